"""The image beside a Redis in a pod, and beside applications that share one."""

from __future__ import annotations

import itertools
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor

import redis

from tests.container.pods import REDIS_IMAGE, Pod, Pods, ask, end, log_of, until_logged
from tests.raw import request
from tests.servers import until

PORT = 6380
REDIS_PORT = 6379


def with_proxy(pods: Pods) -> Pod:
    """Start a pod of a Redis and a proxy, both published."""
    pod = pods.pod(REDIS_PORT, PORT)
    pod.redis()
    pod.proxy(PORT)
    pod.until_up(PORT)
    return pod


def redis_cli(pod: Pod, *words: str) -> str:
    host, port = pod.address(PORT)
    run = subprocess.run(
        ["redis-cli", "-h", host, "-p", str(port), *words], capture_output=True, text=True, timeout=30, check=True
    )
    return run.stdout.strip()


def test_members_expire_for_redis_cli_and_redis_py(pods: Pods) -> None:
    pod = with_proxy(pods)
    assert redis_cli(pod, "SADD", "cart", "apple", "pear") == "2"
    assert redis_cli(pod, "EXPIREMEMBER", "cart", "apple", "1") == "1"
    assert redis_cli(pod, "TTL", "cart", "pear") == "-1"
    client = pod.client(PORT)
    assert client.hset("session", mapping={"phone": "1", "laptop": "2"}) == 2
    assert ask(client, "EXPIREMEMBER", "session", "phone", 300, "ms") == 1
    # Asked of Redis itself: the sweeper has removed them, not the question.
    straight = pod.client(REDIS_PORT)
    until(lambda: straight.smembers("cart") == {"pear"} and straight.hkeys("session") == ["laptop"])
    assert redis_cli(pod, "SMEMBERS", "cart") == "pear"


def test_a_killed_proxy_comes_back_with_all_deadlines(pods: Pods) -> None:
    pod = pods.pod(REDIS_PORT, PORT)
    pod.redis()
    proxy = pod.proxy(PORT)
    pod.until_up(PORT)
    client = pod.client(PORT)
    client.sadd("s", "soon", "late", "never")
    assert ask(client, "PEXPIREMEMBER", "s", "soon", 1) == 1
    assert ask(client, "EXPIREMEMBER", "s", "late", 600) == 1
    proxy.get_wrapped_container().kill()
    proxy.get_wrapped_container().start()
    pod.until_up(PORT)
    client = pod.client(PORT)
    assert client.smembers("s") == {"late", "never"}
    assert 500 < ask(client, "TTL", "s", "late") <= 600


def test_a_killed_redis_comes_back_behind_the_same_proxy(pods: Pods) -> None:
    pod = pods.pod(REDIS_PORT, PORT)
    server = pod.redis("--appendonly", "yes", "--appendfsync", "always")
    proxy = pod.proxy(PORT)
    pod.until_up(PORT)
    client = pod.client(PORT)
    client.sadd("s", "soon", "late", "never")
    assert ask(client, "EXPIREMEMBER", "s", "late", 600) == 1
    assert ask(client, "EXPIREMEMBER", "s", "soon", 1) == 1
    with pod.connect(PORT) as watched:
        assert watched.command("PING") == b"+PONG\r\n"
        server.get_wrapped_container().kill()
        assert watched.rest() == b""
    with pod.connect(PORT) as refused:
        assert b"-ERR expiremember-proxy: upstream redis://127.0.0.1:6379 is unavailable" in refused.command("PING")
    server.get_wrapped_container().start()
    pod.until_up(PORT)
    straight = pod.client(REDIS_PORT)
    until(lambda: straight.smembers("s") == {"late", "never"}, what="a sweep")
    assert 500 < ask(pod.client(PORT), "TTL", "s", "late") <= 600
    assert end(proxy) == 0, log_of(proxy)
    assert "Traceback" not in log_of(proxy)


def test_two_applications_with_a_sidecar_each_share_a_redis(pods: Pods) -> None:
    network = pods.network()
    store = pods.pod(REDIS_PORT, network=network, alias="store")
    store.run(REDIS_IMAGE, ["redis-server", "--requirepass", "secret"])
    applications = [pods.pod(network=network, alias=name) for name in ("one", "two")]
    for application in applications:
        proxy = application.proxy(
            REDIS_PORT, "redis://store:6379", listen=f"127.0.0.1:{REDIS_PORT}", upstream_password="secret"
        )
        until_logged(proxy, '"ready"')

    def tell(number: int, expression: str) -> str:
        """What an application finds, at the address where it would find a Redis of its own."""
        code = "import redis; r = redis.Redis(password='secret', decode_responses=True)"
        return applications[number].python(f"{code}; print({expression})")

    assert tell(0, "r.sadd('cart', 'apple', 'pear', 'plum')") == "3"
    assert tell(1, "r.execute_command('EXPIREMEMBER', 'cart', 'apple', 600)") == "1"
    assert 500 < int(tell(0, "r.execute_command('TTL', 'cart', 'apple')")) <= 600
    # A life that ends through one sidecar takes along the deadline that came through the other.
    assert tell(0, "r.srem('cart', 'apple') + r.sadd('cart', 'apple')") == "2"
    assert tell(1, "r.execute_command('TTL', 'cart', 'apple')") == "-1"
    assert tell(0, "r.execute_command('PEXPIREMEMBER', 'cart', 'pear', 200)") == "1"
    assert tell(1, "__import__('time').sleep(0.2) or sorted(r.smembers('cart'))") == "['apple', 'plum']"


def test_an_end_under_load_loses_no_reply(pods: Pods) -> None:
    pod = pods.pod(REDIS_PORT, PORT)
    pod.redis()
    proxy = pod.proxy(PORT)
    pod.until_up(PORT)
    clients, depth = 8, 20
    under_way = [threading.Event() for _ in range(clients)]

    def load(number: int) -> int:
        """Count until the connection ends; return the last number that was told."""
        batch = request("INCR", f"counter:{number}") * depth
        last = 0
        with pod.connect(PORT) as client:
            assert client.command("SADD", f"set:{number}", "m") == b":1\r\n"
            assert client.command("EXPIREMEMBER", f"set:{number}", "m", 600) == b":1\r\n"
            for round_number in itertools.count():
                try:
                    client.send(batch)
                    for _ in range(depth):
                        last = int(client.reply()[1:-2])
                except OSError:
                    return last
                if round_number == 50:
                    under_way[number].set()
        raise AssertionError

    with ThreadPoolExecutor(clients) as threads:
        counting = [threads.submit(load, number) for number in range(clients)]
        for event in under_way:
            assert event.wait(60)
        assert end(proxy) == 0, log_of(proxy)
        told = [future.result(30) for future in counting]
    straight = pod.client(REDIS_PORT)
    done = [int(count or 0) for count in straight.mget([f"counter:{number}" for number in range(clients)])]
    assert told == done
    assert min(done) > 50 * depth
    assert "unanswered" not in log_of(proxy)


def test_a_client_that_waits_does_not_hold_up_the_end(pods: Pods) -> None:
    pod = pods.pod(REDIS_PORT, PORT)
    pod.redis()
    proxy = pod.proxy(PORT, shutdown_timeout="1")
    pod.until_up(PORT)
    with pod.connect(PORT) as waiting:
        waiting.send(request("BLPOP", "nothing", 0))
        until(lambda: "blpop" in str(pod.client(REDIS_PORT).client_list()))
        assert end(proxy) == 0, log_of(proxy)
    assert "stopped before the server had answered" in log_of(proxy)


def test_clients_can_have_the_port_of_redis_itself(pods: Pods) -> None:
    """An application that knows only 127.0.0.1:6379 needs no change where Redis is elsewhere."""
    network = pods.network()
    pods.pod(network=network, alias="store").redis()
    application = pods.pod(network=network, alias="app")
    until_logged(application.proxy(REDIS_PORT, "redis://store:6379"), '"ready"')
    code = "import redis; r = redis.Redis(); r.sadd('s', 'm'); print(r.execute_command('EXPIREMEMBER', 's', 'm', 9))"
    assert application.python(code) == "1"


def test_redis_py_keeps_its_pool_over_a_restart_of_the_proxy(pods: Pods) -> None:
    pod = pods.pod(REDIS_PORT, PORT)
    pod.redis()
    proxy = pod.proxy(PORT)
    pod.until_up(PORT)
    client = pod.client(PORT)
    assert client.set("k", "v")
    proxy.get_wrapped_container().restart()

    def found() -> bool:
        try:
            return bool(client.get("k") == "v")
        except redis.ConnectionError:
            return False

    until(found, timeout=30)

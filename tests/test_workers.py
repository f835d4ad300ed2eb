"""Several processes as one proxy: what one proxy promises, its log, its admin port, its signals and its end."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from pydantic import SecretStr

from proxy.admin.server import MOST_SCRAPES
from proxy.metrics.kinds import Histogram
from proxy.metrics.table import DECLARATIONS, Metrics
from proxy.settings import Settings
from proxy.workers.board import Board
from proxy.workers.fellows import SharedBudget
from proxy.workers.messages import (
    Assignment,
    News,
    Order,
    pack_metrics,
    pack_news,
    pack_order,
    pack_settings,
    unpack_metrics,
    unpack_news,
    unpack_order,
    unpack_settings,
)
from proxy.workers.overview import HUNG_SECONDS, merge
from tests.admin import admin_of, with_admin
from tests.certificates import Authority
from tests.conftest import StartProxy, StartServer, once_a_kind
from tests.mutations import Mutation, broken_copy
from tests.raw import Raw, request
from tests.servers import KIND, ROOT, Process, Proxy, Server, free_port, halt, proxy_environment, until
from tests.test_lifecycle import embedded_pid, gone, run
from tests.test_lives import Talk, talk
from tests.test_proxies import Sequences, check
from tests.test_systemd import listening
from tests.test_transcripts import SCENARIOS
from tests.test_transcripts import test_answers_as_keydb_did as check_answers

pytestmark = pytest.mark.start

__all__ = ["talk"]  # a fixture


def fleet(workers: int, shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    def make(kind: str, stack: ExitStack) -> Proxy:
        proxy = Proxy("--upstream", shared_server(kind).url, "--workers", str(workers), "--leftovers-rate", "0")
        stack.callback(proxy.close)
        stack.callback(proxy.stop)
        return proxy

    return once_a_kind(make)


@pytest.fixture(scope="module")
def pairs(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Gives a proxy of two workers in front of the shared server of a kind."""
    yield from fleet(2, shared_server)


@pytest.fixture(scope="module")
def triples(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Gives a proxy of three workers in front of the shared server of a kind."""
    yield from fleet(3, shared_server)


@pytest.fixture
def proxy(upstream: Server, pairs: Callable[[str], Proxy]) -> Proxy:
    """The proxy of two workers, in place of the usual one."""
    return pairs(upstream.kind)


def worker_of(client: Raw) -> int:
    """The number of the worker that serves a client."""
    found = re.search(rb"\r\nworker:(\d+)\r\n", client.command("INFO", "expiremember"))
    assert found is not None
    return int(found[1])


@contextlib.contextmanager
def clients(proxy: Proxy, count: int) -> Iterator[list[Raw]]:
    """Give so many clients, each connected when the one before it was served."""
    with ExitStack() as stack:
        made = []
        for _ in range(count):
            made.append(stack.enter_context(proxy.connect()))
            assert made[-1].command("PING") == b"+PONG\r\n"
        yield made


def children(proxy: Proxy) -> list[int]:
    """The ids of its workers, first to last."""
    workers = psutil.Process(proxy.pid).children()
    return [one.pid for one in sorted(workers, key=lambda one: one.cmdline()[-1]) if "start.py" in one.cmdline()[-2]]


# Several proxies in front of one server, behind one address.


@pytest.mark.one_kind
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"].replace(" ", "-"))
def test_workers_answer_as_keydb_did(proxy: Proxy, scenario: dict[str, Any]) -> None:
    """Workers do what one process does; on which server makes no difference to what is theirs."""
    check_answers(proxy, scenario)


@pytest.mark.parametrize("workers", [2, 3])
@pytest.mark.one_kind
def test_deadlines_hold_through_all_workers(
    workers: int,
    upstream: Server,
    pairs: Callable[[str], Proxy],
    triples: Callable[[str], Proxy],
    talk: Callable[..., Talk],
) -> None:
    proxy = {2: pairs, 3: triples}[workers](upstream.kind)
    with clients(proxy, 2 * workers) as raws:
        assert Counter(map(worker_of, raws)) == dict.fromkeys(range(1, workers + 1), 2)
        sequences = Sequences([Talk(raw) for raw in raws], talk(upstream))
        sequences.lives(120)
        sequences.reads(30)
        check(sequences)


def test_a_worker_says_which_it_is(proxy: Proxy) -> None:
    with clients(proxy, 2) as raws:
        told = [raw.command("INFO", "expiremember") for raw in raws]
    pids = {int(re.findall(rb"process_id:(\d+)", one)[0]) for one in told}
    assert pids == set(children(proxy))
    assert all(b"\r\nworkers:2\r\n" in one for one in told)
    assert {re.findall(rb"\r\nworker:(\d)", one)[0] for one in told} == {b"1", b"2"}


# Sockets.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("certificates"), "authority")


def test_all_kinds_of_addresses(server: Server, start_proxy: StartProxy, tmp_path: Path, authority: Authority) -> None:
    """On each of them clients go to the worker that has the fewest; a port of 0 is the same one for all."""
    certificate = authority.sign("server", "IP:127.0.0.1")
    path, port = tmp_path / "redis.sock", free_port()
    given = ["--listen", "127.0.0.1:0", "--listen", f"unix://{path}", "--listen", f"tls://127.0.0.1:{port}"]
    given += ["--listen-tls-cert-file", str(certificate.file), "--listen-tls-key-file", str(certificate.key)]
    proxy = start_proxy(server, "--workers", "3", *given)
    ready = next(line for line in proxy.log() if line["event"] == "ready")
    chosen = ready["listen"][0].partition("127.0.0.1:")[2]
    assert int(chosen) > 0
    assert ready["listen"][1:] == [f"unix://{path}", f"tls://127.0.0.1:{port}"]
    proxy.address = "127.0.0.1", int(chosen)
    check_balance(proxy)
    proxy.address = path
    check_balance(proxy)
    context = ssl.create_default_context(cafile=str(authority.file))
    with ExitStack() as stack:
        for _ in range(4):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), 20))
            tls = stack.enter_context(context.wrap_socket(plain, server_hostname="127.0.0.1"))
            tls.sendall(request("PING"))
            assert tls.recv(100) == b"+PONG\r\n"
    proxy.process.send_signal(signal.SIGHUP)
    until(lambda: proxy.process.output.count("certificates reloaded") == 3)
    assert {line["worker"] for line in proxy.log() if line["event"] == "certificates reloaded"} == {1, 2, 3}
    again = run("--listen", f"127.0.0.1:{chosen}", "--workers", "2", "--upstream", server.url)
    assert again.returncode == 2
    assert f"cannot listen on 127.0.0.1:{chosen}" in again.stderr
    proxy.stop()
    assert not path.exists()


def is_idle(proxy: Proxy) -> bool:
    """Whether none of three workers has a client from before."""
    with clients(proxy, 3) as raws:
        told = [raw.command("INFO", "expiremember") for raw in raws]
    return all(b"\nclient_connections:1\r" in one for one in told)


def check_balance(proxy: Proxy) -> None:
    """On three workers, clients are spread evenly."""
    until(lambda: is_idle(proxy), what="the end of all earlier clients")
    with clients(proxy, 9) as raws:
        assert Counter(map(worker_of, raws)) == {1: 3, 2: 3, 3: 3}
    # All at once too, when no worker knows yet what the others accept.
    with ExitStack() as stack:
        raws = [stack.enter_context(proxy.connect()) for _ in range(60)]
        assert min(Counter(map(worker_of, raws)).values()) >= 10


def test_limits_are_of_all_workers_together(server: Server, start_proxy: StartProxy) -> None:
    limits = ("--max-clients", "7", "--held-limit", "1000000", "--request-limit", "900000")
    proxy, admin = with_admin(start_proxy, server, "--workers", "3", *limits)
    with ExitStack() as stack:
        replies: Counter[bytes] = Counter()
        for _ in range(20):  # one by one: of two that come to different workers at once, both may be turned away
            raw = stack.enter_context(proxy.connect())
            with contextlib.suppress(OSError):
                raw.send(request("PING"))
            replies[raw.line()] += 1
        assert replies == {b"+PONG\r\n": 7, b"-ERR max number of clients reached\r\n": 13}
    until(lambda: not any(admin.metrics()[f"client_connections{{worker={worker}}}"] for worker in (1, 2, 3)))
    with clients(proxy, 3) as raws:
        # Each holds less than the limit, and all together hold more.
        raws.sort(key=worker_of)
        assert [*map(worker_of, raws)] == [1, 2, 3]
        begun = b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$500000\r\n"
        for number, raw in enumerate(raws[:2], 1):
            raw.send(begun + b"x" * 450_000)
            until(lambda: admin.metrics()[f"held_bytes{{worker={number}}}"] >= 450_000)  # noqa: B023
        # Alone: of two that pass the limit in the same moment, each would be turned away.
        raws[2].send(begun + b"x" * 150_000)
        assert raws[2].line().startswith(b"-ERR expiremember-proxy: too many unfinished requests")
        line = proxy.process.line(lambda line: "client dropped: held_limit reached" in line)
        assert json.loads(line)["worker"] == 3
        until(lambda: admin.metrics()["held_bytes{worker=3}"] == 0, what="the end of what the third one held")
        for raw in raws[:2]:
            raw.send(b"x" * 50_000 + b"\r\n$1\r\nb\r\n$1\r\n2\r\n")
            assert raw.reply() == b"+OK\r\n"


def check_crowd_at_the_door(proxy: Proxy) -> None:
    """All connect while the proxy is held up, as after its start."""
    assert isinstance(proxy.address, tuple)
    count = min(2000, int(Path("/proc/sys/net/core/somaxconn").read_text()))
    with ExitStack() as stack:
        halt(proxy.pid)
        try:
            waiting = {}
            for _ in range(count):
                client = stack.enter_context(socket.socket())
                client.setblocking(False)
                client.connect_ex(proxy.address)
                waiting[client.fileno()] = client
            connected = select.poll()
            for number in waiting:
                connected.register(number, select.POLLOUT)
            while waiting:
                ready = connected.poll(500)  # what the system has dropped is tried again after a second
                assert ready, f"{len(waiting)} of {count} are not connected"
                for number, _ in ready:
                    connected.unregister(number)
                    del waiting[number]
        finally:
            os.kill(proxy.pid, signal.SIGCONT)


def test_nobody_is_dropped_at_the_door(server: Server, start_proxy: StartProxy) -> None:
    check_crowd_at_the_door(start_proxy(server))


def test_a_worker_that_has_ended_is_not_said_to_hang(start_server: StartServer, tmp_path: Path) -> None:
    """It has no clients any more, while another one waits for its own."""
    patience = "HUNG_SECONDS: Final = 5.0"
    broken_copy(tmp_path, Mutation("workers/overview.py", patience, patience.replace("5.0", "0.5"), ""))
    server = start_server(KIND)
    arguments = ("--upstream", server.url, "--workers", "2", "--shutdown-timeout", "20")
    proxy = Proxy(*arguments, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    with clients(proxy, 1) as (client,):
        client.send_command("BLPOP", "list", 0)
        until(lambda: b"blocked_clients:1" in server.command("INFO", "clients"), what="a client that waits")
        workers = children(proxy)
        stopping = threading.Thread(target=proxy.stop)
        stopping.start()
        until(lambda: sum(map(gone, workers)) == 1, what="the end of the idle worker")
        time.sleep(2)  # several times as long as it takes until one hangs
        server.command("RPUSH", "list", "a")
        assert client.rest().startswith(b"*2\r\n$4\r\nlist\r\n$1\r\na\r\n")
        stopping.join(20)
    assert not [line for line in proxy.log() if line["level"] == "error"]


def test_a_worker_that_stands_still_gets_no_clients_of_others(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    """And the admin port tells of it, and tells what the others tell; in the end it is killed."""
    path = tmp_path / "redis.sock"
    with listening(str(tmp_path / "notify")) as manager:
        environment = {"NOTIFY_SOCKET": manager.address, "WATCHDOG_USEC": "1000000"}
        arguments = ["--workers", "2", "--shutdown-timeout", "0", "--admin", "127.0.0.1:0"]
        proxy = start_proxy(server, "--listen", f"unix://{path}", *arguments, env=environment)
        admin = admin_of(proxy)
        until(lambda: admin.ask("/readyz") == (200, "ready\n"))
        until(lambda: manager.heard().count("WATCHDOG=1") >= 2)
        assert manager.heard().count("READY=1") == 1
        stopped = children(proxy)[1]
        halt(stopped)
        began = time.monotonic()
        metrics = admin.metrics()
        assert time.monotonic() - began < 8
        assert (metrics["worker_up{worker=1}"], metrics["worker_up{worker=2}"]) == (1, 0)
        assert "client_connections{worker=1}" in metrics
        assert "client_connections{worker=2}" not in metrics
        until(lambda: admin.ask("/livez") == (503, "not alive: worker 2 does not answer\n"), HUNG_SECONDS + 5)
        assert admin.ask("/readyz") == (503, "not ready: worker 2 does not answer\n")
        fed = manager.heard().count("WATCHDOG=1")
        with clients(proxy, 10) as raws:
            assert set(map(worker_of, raws)) == {1}
        assert manager.heard().count("WATCHDOG=1") <= fed + 1
        proxy.process.line(lambda line: "worker does not answer" in line)
        os.kill(stopped, signal.SIGCONT)
        until(lambda: admin.ask("/livez") == (200, "alive\n"))
        until(lambda: admin.metrics()["worker_up{worker=2}"] == 1)
        until(lambda: "worker answers again" in proxy.process.output)
        halt(stopped)
        assert proxy.process.end() == 1
        assert gone(stopped)
        assert "worker killed: it did not stop in time" in proxy.process.output


# The admin port.


def test_the_admin_port_tells_of_all_workers(server: Server, start_proxy: StartProxy) -> None:
    proxy, admin = with_admin(start_proxy, server, "--workers", "2")
    until(lambda: admin.ask("/readyz") == (200, "ready\n"))
    with clients(proxy, 5) as raws:
        for number, raw in enumerate(raws):
            raw.command("SADD", f"k{number}", "m")
            assert raw.command("EXPIREMEMBER", f"k{number}", "m", 1000) == b":1\r\n"
        metrics = admin.metrics()
        each = Counter(map(worker_of, raws))
        assert all("{worker=" in name for name in metrics)
        for worker in (1, 2):
            assert metrics[f"client_connections{{worker={worker}}}"] == each[worker]
            assert metrics[f"requests_rewritten_total{{script=expire}}{{worker={worker}}}"] == each[worker]
            assert metrics[f"worker_up{{worker={worker}}}"] == 1
        until(lambda: all(admin.metrics()[f"covered_prefixes{{worker={worker}}}"] == 1 for worker in (1, 2)))
    texts = []

    def scrape() -> None:
        texts.append(admin.ask("/metrics", Accept="application/openmetrics-text"))

    threads = [threading.Thread(target=scrape) for _ in range(MOST_SCRAPES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in texts] == [200] * MOST_SCRAPES
    assert all(text.endswith("# EOF\n") for _, text in texts)
    names = {name for name in DECLARATIONS if f"# TYPE expiremember_{name.removesuffix('_total')} " in texts[0][1]}
    assert names == set(DECLARATIONS)
    assert admin.ask("/drain", "POST") == (202, "draining\n")
    assert proxy.process.wait() == 0


def test_it_is_not_ready_while_the_upstream_is_away(start_proxy: StartProxy) -> None:
    _, admin = with_admin(start_proxy, None, "--workers", "2", "--upstream", f"redis://127.0.0.1:{free_port()}")
    status, text = admin.ask("/readyz")
    assert status == 503
    assert text.startswith("not ready: upstream redis://127.0.0.1:")
    assert admin.ask("/livez") == (200, "alive\n")


def test_metrics_of_workers_come_together() -> None:
    one, two = Metrics({"worker": "1", "upstream": "u"}), Metrics({"worker": "2", "upstream": "u"})
    one.worker_up = two.worker_up = 1.0
    one.request_hold_seconds.observe(0.3)
    two.members_expired_total["sweep"] += 5
    told = {
        number: unpack_metrics(json.loads(json.dumps(pack_metrics(metrics))))
        for number, metrics in enumerate((one, two), 1)
    }
    merged = {metric.name: metric.samples for metric in merge({**told, 3: None})}
    assert list(merged) == list(DECLARATIONS)
    assert [(sample.labels, sample.value) for sample in merged["worker_up"]] == [
        ({"worker": "1"}, 1.0),
        ({"worker": "2"}, 1.0),
        ({"worker": "3"}, 0.0),
    ]
    assert ({"trigger": "sweep", "worker": "2"}, 5) in merged["members_expired_total"]
    held = merged["request_hold_seconds"][0]
    assert isinstance(held.value, Histogram)
    assert held.value.cumulative() == one.request_hold_seconds.cumulative()


# The end.


def test_a_worker_that_is_killed_ends_the_proxy(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--workers", "3")
    with clients(proxy, 6) as raws:
        served = {worker_of(raw): raw for raw in raws}
        served[2].send(request("BLPOP", "nothing", 1))
        until(lambda: b"cmd=blpop" in server.command("CLIENT", "LIST"))
        pids = children(proxy)
        os.kill(pids[0], signal.SIGKILL)
        assert served[2].reply() in (b"*-1\r\n", b"$-1\r\n")  # others answer what they have begun
        assert proxy.process.wait() == 1
    assert all(map(gone, pids))
    exited = [line for line in proxy.log() if line["event"] == "worker exited"]
    assert [(line["worker"], line["status"]) for line in exited] == [(1, -9)]
    assert "stopped: a worker failed" in proxy.process.output


def test_a_supervisor_that_is_killed_leaves_nobody_behind(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    path = tmp_path / "redis.sock"
    given = ["--workers", "2", "--listen", f"unix://{path}", "--listen", f"127.0.0.1:{free_port()}"]
    proxy = start_proxy(server, *given)
    pids = children(proxy)
    with clients(proxy, 2) as raws:
        raws[0].send(request("BLPOP", "nothing", 1))
        until(lambda: b"cmd=blpop" in server.command("CLIENT", "LIST"))
        proxy.process.send_signal(signal.SIGKILL)
        assert raws[0].reply() in (b"*-1\r\n", b"$-1\r\n")
        until(lambda: all(map(gone, pids)))
    assert [line["worker"] for line in proxy.log() if line["event"] == "supervisor exited"] in ([1, 2], [2, 1])
    start_proxy(server, *given).stop()


def test_no_acknowledged_write_is_lost_by_a_stop_under_load(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--workers", "2")
    acknowledged: list[int] = []
    served: set[int] = set()

    def write(name: int) -> None:
        last = 0
        with contextlib.suppress(OSError, ConnectionError, AssertionError), proxy.connect() as client:
            served.add(worker_of(client))
            while client.command("SET", f"w{name}", last + 1) == b"+OK\r\n":
                last += 1
                acknowledged[name] = last

    acknowledged += [0] * 8
    threads = [threading.Thread(target=write, args=(name,)) for name in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: min(acknowledged) > 50)
    # As a terminal and a service manager do: to all processes at once.
    for pid in (*children(proxy), proxy.pid):
        os.kill(pid, signal.SIGTERM)
    assert proxy.process.wait() == 0
    for thread in threads:
        thread.join()
    assert served == {1, 2}
    for name, last in enumerate(acknowledged):
        stored = int(server.command("GET", f"w{name}").split(b"\r\n")[1])
        assert last <= stored <= last + 1
    events = Counter(line["event"] for line in proxy.log())
    assert (events["ready"], events["stopped"]) == (1, 1)
    assert "Traceback" not in proxy.process.output


def test_a_signal_to_a_worker_counts_for_all(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(server, "--workers", "2")
    os.kill(children(proxy)[1], signal.SIGTERM)
    proxy.process.line(lambda line: '"stopped"' in line)
    assert proxy.process.wait() == 0
    assert "worker exited" not in proxy.process.output


def test_a_second_signal_ends_all_at_once(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    path = tmp_path / "redis.sock"
    proxy = start_proxy(server, "--workers", "2", "--shutdown-timeout", "3600", "--listen", f"unix://{path}")
    pids = children(proxy)
    with clients(proxy, 2) as raws:
        for raw in raws:
            raw.send(request("BLPOP", "nothing", 0))
        until(lambda: server.command("CLIENT", "LIST").count(b"cmd=blpop") == 2)
        proxy.process.send_signal(signal.SIGTERM)
        until(lambda: proxy.process.output.count('"stopping"') == 2)
        began = time.monotonic()
        assert proxy.process.end(signal.SIGTERM) == 1
        assert time.monotonic() - began < 3
    until(lambda: all(map(gone, pids)))
    assert not path.exists()


def test_embedded(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--embedded", "--workers", "2")
    assert len(re.findall("embedded server started", proxy.process.output)) == 1
    with clients(proxy, 2) as raws:
        assert raws[0].command("SADD", "s", "m") == b":1\r\n"
        assert raws[0].command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
        assert raws[1].command("SREM", "s", "m") == b":1\r\n"
        assert raws[1].command("SADD", "s", "m") == b":1\r\n"
        assert raws[0].command("TTL", "s", "m") == b":-1\r\n"
        pids = [embedded_pid(proxy), *children(proxy)]
        assert len(pids) == 3
        proxy.process.send_signal(signal.SIGKILL)
        until(lambda: all(map(gone, pids)), 20)


def test_an_embedded_server_that_ends_ends_the_proxy(start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--embedded", "--workers", "2")
    psutil.Process(embedded_pid(proxy)).kill()
    assert proxy.process.wait() == 1
    assert "Traceback" not in proxy.process.output
    assert "embedded server exited" in proxy.process.output


# The start.

FAILING = {
    "hangs": ("import time; time.sleep(3600)", 1, "worker did not start in time"),
    "ends": ("raise SystemExit(3)", 1, '"status": 3'),
    "talks nonsense": ("import os, time; os.write(0, b'nonsense\\n'); time.sleep(3600)", 1, "worker exited"),
    "talks for ever": ("import os\nwhile True: os.write(0, b'x' * 65536)", 1, "worker exited"),
    "cannot use a setting": (
        """import os; os.write(0, b'{"news":"unusable","what":"listen_tls_cert_file: it has gone"}\\n')""",
        2,
        "expiremember-proxy: listen_tls_cert_file: it has gone",
    ),
}


@pytest.mark.parametrize("name", FAILING)
def test_a_worker_that_fails_at_its_start(name: str, server: Server, tmp_path: Path) -> None:
    source, status, said = FAILING[name]
    (tmp_path / "start.py").write_text(source)
    seconds = 1 if name == "hangs" else 60
    change = f"process.START, supervisor.START_SECONDS = Path({str(tmp_path / 'start.py')!r}), {seconds}"
    check_failure(server, change, status, said, *(["--shutdown-timeout", "0"] if name == "hangs" else []))


def test_a_worker_that_cannot_be_started(server: Server) -> None:
    check_failure(server, "sys.executable = '/nowhere/python'", 1, "worker could not be started")


def test_a_stop_does_not_wait_for_a_worker_that_loads(server: Server, tmp_path: Path) -> None:
    check_loading(server, tmp_path)


def check_loading(server: Server, folder: Path, home: Path = ROOT) -> None:
    """On a busy machine it may load for longer than a stop may take; it has served nobody yet."""
    loads, start = folder / "loads", folder / "start.py"
    start.write_text(
        f"""
import os, runpy, sys, time
from pathlib import Path
if sys.argv[1] == "2":
    supervisor = os.getppid()
    Path({str(loads)!r}).touch()
    while os.getppid() == supervisor:
        time.sleep(0.05)
runpy.run_path({str(home / "proxy" / "workers" / "start.py")!r}, run_name="__main__")
"""
    )
    program = f"""
from pathlib import Path
from proxy.workers import process
process.START = Path({str(start)!r})
from proxy.cli import main
main()
"""
    given = ["--workers", "2", "--upstream", server.url, "--listen", "127.0.0.1:0", "--log-format", "json"]
    command = [sys.executable, "-c", program, *given, "--shutdown-timeout", "3600"]
    process = Process(command, proxy_environment({"PYTHONPATH": str(home)}), home)
    try:
        until(loads.exists, what="the second worker")
        began = time.monotonic()
        assert process.end() == 0
        assert time.monotonic() - began < 5
    finally:
        process.kill()
    assert not any(said in process.output for said in ("worker killed", "worker exited", "Traceback"))


def test_ctrl_c_as_workers_start_ends_it_in_order(server: Server) -> None:
    """A terminal sends it to all processes of a group; Python cannot block it while it starts."""
    command = [sys.executable, "-m", "proxy", "--workers", "3", "--upstream", server.url, "--listen", "127.0.0.1:0"]
    for delay in (0.0, 0.006, 0.012, 0.03):
        done = subprocess.Popen(
            command, env=proxy_environment(), cwd=ROOT, stderr=subprocess.PIPE, start_new_session=True
        )
        try:
            until(lambda: psutil.Process(done.pid).children(), 20, "the first worker")  # noqa: B023
            time.sleep(delay)
            os.killpg(done.pid, signal.SIGINT)
            _, said = done.communicate(timeout=20)
        finally:
            done.kill()
        assert done.returncode == 0, said
        assert b"Traceback" not in said


def check_failure(server: Server, change: str, status: int, said: str, *arguments: str) -> None:
    """The proxy, with something changed in it, ends with a status before it is ready, and says why."""
    program = f"""
import sys
from pathlib import Path
from proxy.workers import process, supervisor
{change}
from proxy.cli import main
main()
"""
    given = ["--workers", "2", "--upstream", server.url, "--listen", "127.0.0.1:0", "--log-format", "json"]
    done = subprocess.run(
        [sys.executable, "-c", program, *given, *arguments],
        env=proxy_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, said in done.stderr) == (status, True), done.stderr
    assert "Traceback" not in done.stderr
    assert '"ready"' not in done.stderr


def test_no_password_is_shown(start_proxy: StartProxy, start_server: Callable[..., Server]) -> None:
    server = start_server(KIND, "--requirepass", "s3cret-word")
    url = server.url.replace("redis://", "redis://:s3cret-word@")
    proxy = start_proxy(None, "--workers", "2", env={"EXPIREMEMBER_UPSTREAM": url})
    with proxy.connect() as client:
        assert client.command("AUTH", "s3cret-word") == b"+OK\r\n"
        assert client.command("PING") == b"+PONG\r\n"
    for pid in children(proxy):
        assert "s3cret" not in " ".join(psutil.Process(pid).cmdline())
    assert "s3cret" not in proxy.process.output


# What the processes tell each other.


def test_settings_arrive_as_they_were_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPIREMEMBER_SWEEP_BATCH", "77")
    given = Settings(
        workers=2,
        listen=["127.0.0.1:1", "unix:///a"],
        upstream_password=SecretStr("s3cret"),
        embedded_dir=None,
        tls_ca_file=Path("ca.pem"),
        connect_timeout=0.25,
        sweep=False,
    )
    monkeypatch.setenv("EXPIREMEMBER_SWEEP_BATCH", "88")
    monkeypatch.setenv("EXPIREMEMBER_PREFIX", "other:")
    sent = Assignment(
        1, 2, pack_settings(given), "redis://x", [(5, False, "a:1"), (6, True, "tls://b:2")], 7, 8, {2: 9}
    )
    got = Assignment.unpack(sent.pack())
    assert got == sent
    settings = unpack_settings(got.settings)
    assert settings.model_dump() == given.model_dump()
    assert settings.model_fields_set == given.model_fields_set


def test_messages_survive_and_nonsense_does_not() -> None:
    assert [unpack_order(pack_order(order)) for order in Order] == list(Order)
    assert [unpack_news(pack_news(news, "what")) for news in News] == [(news, "what") for news in News]
    for line in (b"", b"\n", b"1\n", b"[]\n", b"{}\n", b'{"news":"x"}\n', b"\xff\n", b"{"):
        for unpack in (unpack_order, unpack_news, Assignment.unpack):
            with pytest.raises(ValueError):  # noqa: PT011
                unpack(line)
    with pytest.raises(ValueError, match="1 errors"):
        unpack_settings({"upstream": "s3cret"})


def test_the_board() -> None:
    shared = Board.make(3)
    mine, theirs = Board(shared, 3), Board(shared, 3)
    mine.set_clients(0, 4)
    theirs.set_clients(2, 1)
    mine.send(0, 2)
    mine.send(0, 2)
    mine.send(0, 1)
    mine.send(0, 1, -1)
    assert [theirs.clients_of(worker) for worker in range(3)] == [4, 0, 3]
    assert theirs.clients() == 7
    theirs.receive(2)
    theirs.set_clients(2, 2)
    assert [mine.clients_of(worker) for worker in range(3)] == [4, 0, 3]
    assert not theirs.has_begun(0)
    mine.beat(0)
    assert theirs.has_begun(0)
    assert theirs.silent_seconds(0) < 5
    one, other = SharedBudget(200_000, 200_000, mine, 0), SharedBudget(200_000, 200_000, theirs, 2)
    assert one.account(0, 150_000)
    assert not other.account(0, 70_000)
    assert one.account(150_000, 0)
    assert other.account(70_000, 80_000)
    os.close(shared)

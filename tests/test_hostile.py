"""What a stranger can do with a socket and some bytes: nothing that lasts, nothing that others notice."""

from __future__ import annotations

import itertools
import os
import random
import re
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from proxy.relay.state import MOVES, State
from proxy.relay.vigil import PATIENT_SECONDS
from tests.conftest import StartProxy, StartServer
from tests.mutations import Mutation, broken_copy
from tests.raw import Raw, about, held_count, request
from tests.relay import Relay
from tests.servers import KIND, Proxy, Server, until
from tests.test_flow import MEGABYTE, Peak, open_connections, send_all

PASSWORD = ("AUTH", "secret")

CONTROL = 8
"""Connections of the proxy's own that may come to be meanwhile."""

COMPLAINTS = ("Traceback", "never retrieved", "handler is closed", "write_eof", "Task was destroyed")


@contextmanager
def nothing_left(proxy: Proxy, server: Server) -> Iterator[None]:
    """Check that connections and descriptors are afterwards as before, and that the log has no defect in it."""
    process = psutil.Process(proxy.pid)
    assert proxy.command("PING").startswith((b"+PONG", b"-NOAUTH"))
    until(lambda: client_descriptors(process) == 0)
    before = process.num_fds()
    yield
    until(lambda: client_descriptors(process) == 0, what="an end of all connections")
    until(lambda: process.num_fds() <= before + CONTROL, what="an end of all descriptors")
    for complaint in COMPLAINTS:
        assert complaint not in proxy.process.output, proxy.process.output[-6000:]


def client_descriptors(process: psutil.Process) -> int:
    """How many accepted connections the proxy has."""
    listening = {c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return sum(bool(c.raddr) and c.laddr in listening for c in process.net_connections("tcp"))


@contextmanager
def worst_answer(proxy: Proxy) -> Iterator[list[float]]:
    """Ask on a connection of its own, again and again, and note how long an answer took in seconds."""
    times: list[float] = []
    end = threading.Event()

    def ask() -> None:
        with proxy.connect(60) as client:
            while not end.is_set():
                began = time.monotonic()
                client.command("PING")
                times.append(time.monotonic() - began)
                end.wait(0.002)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    try:
        until(lambda: times, what="a first answer")
        yield times
        before = len(times)
        until(lambda: len(times) > before, 60, what="an answer after it all")
    finally:
        end.set()
        thread.join(60)


NESTED = b"*1\r\n%1\r\n*0\r\n+a\r\n"


@contextmanager
def acl(server: Server, user: str, *rules: str) -> Iterator[str]:
    """Let there be a user; give its password."""
    assert server.command("ACL", "SETUSER", user, "on", ">secret", *rules) == b"+OK\r\n"
    yield "secret"
    server.forget_users()


HOSTILE = {
    "map-with-an-array-as-key": NESTED,
    "map-behind-a-request": request("PING") + NESTED,
    "map-behind-an-odd-request": request("Ping") + b"*3\r\n*1\r\n+\r\n%1\r\n*0\r\n",
    "huge-push": b"*1\r\n>300000000\r\n",
    "huge-set": b"*2\r\n$4\r\nPing\r\n~300000000\r\n",
    "huge-map": b"*1\r\n%150000000\r\n",
    "huge-attribute": b"*1\r\n|150000000\r\n",
    "huge-with-plus": b"*+30000000\r\n",
    "nested-arrays": b"*2\r\n$1\r\na\r\n" * 5000,
    "nested-large-arrays": b"*9999\r\n$1\r\na\r\n" * 5000,
    "nested-medium-arrays": b"*99\r\n$1\r\na\r\n" * 5000,
    "empty-arrays": b"*1\r\n*0\r\n" * 5000,
    "double": b"*1\r\n,nan\r\n",
    "big-number": b"*1\r\n(" + b"9" * 5000 + b"\r\n",
    "verbatim": b"*1\r\n=7\r\ntxt:abc\r\n",
    "null-and-bool": b"*2\r\n_\r\n#t\r\n",
    "bulk-error": b"*1\r\n!3\r\nabc\r\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_leave_nothing_and_hold_nobody_up(upstream: Server, lean_proxy: Proxy, name: str) -> None:
    proxy = lean_proxy
    process = psutil.Process(proxy.pid)
    data = HOSTILE[name]
    with nothing_left(proxy, upstream), Peak(proxy.pid) as peak, worst_answer(proxy) as times:
        used = process.cpu_times().user
        for cut in (0, 1, len(data) // 2):
            for _ in range(5):
                with proxy.connect() as client, suppress(OSError):
                    for piece in (data[:cut], data[cut:]):
                        if piece:
                            client.send(piece)
                    client.end_of_requests()
                    client.rest()
        assert process.cpu_times().user - used < 3
    assert peak.bytes < 30 * MEGABYTE
    assert max(times) < 1


SLOW_TO_JUDGE = {
    "class": [request("SCAN", 0, "MATCH", b"[" + b"x" * 4_000_000 + b"]")],
    "negated-class": [request("KEYS", b"[^" + b"x-y" * 1_300_000 + b"]")],
    "stars": [request("COMMAND", "LIST", "FILTERBY", "PATTERN", "*" * 999)] * 500,
}
"""What takes long to judge, if it is judged byte by byte. Whoever sends it needs no right to it."""


@pytest.mark.parametrize("name", SLOW_TO_JUDGE)
@pytest.mark.one_kind
def test_what_is_long_is_judged_quickly(upstream: Server, lean_proxy: Proxy, name: str) -> None:
    process, requests = psutil.Process(lean_proxy.pid), SLOW_TO_JUDGE[name]
    with acl(upstream, "nobody", "-@all", "+ping") as password, lean_proxy.connect() as other:
        assert other.command("SADD", "s", "m") == b":1\r\n"
        assert other.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
        with lean_proxy.connect(60) as client:
            assert client.command("AUTH", "nobody", password) == b"+OK\r\n"
            used = process.cpu_times().user
            client.send(b"".join(requests))
            assert all(reply.startswith(b"-") for reply in client.replies(len(requests)))
            assert process.cpu_times().user - used < 1


@pytest.mark.one_kind
def test_a_script_whose_keys_have_come_is_not_judged_anew_with_every_byte(lean_proxy: Proxy) -> None:
    process = psutil.Process(lean_proxy.pid)
    with lean_proxy.connect() as client, lean_proxy.connect() as other:
        client.send(b"*1000003\r\n" + request("EVAL", "", 1_000_000, *[""] * 999_990).split(b"\r\n", 1)[1])
        client.send(b"$1000\r\n")

        def is_at_rest() -> bool:
            used = process.cpu_times().user
            time.sleep(0.3)
            return process.cpu_times().user - used < 0.05

        until(is_at_rest, 60, "an end of what came at first")
        used = process.cpu_times().user
        for _ in range(999):
            client.send(b"x")
            assert other.command("PING") == b"+PONG\r\n"
        assert process.cpu_times().user - used < 1


def check_hostile_bytes(proxy: Proxy, upstream: Server) -> None:
    """All of them in short, for the deliberate breaks."""
    for data in HOSTILE.values():
        with nothing_left(proxy, upstream), worst_answer(proxy) as times, proxy.connect(5) as client:
            client.send(data)
            client.end_of_requests()
            client.rest()
        assert max(times) < 1


def test_500_of_them_at_once(upstream: Server, proxy: Proxy) -> None:
    with nothing_left(proxy, upstream):
        clients = [proxy.connect() for _ in range(500)]
        for client in clients:
            client.send(NESTED)
        for client in clients:
            client.close()


@pytest.mark.one_kind
def test_an_impossible_reply_ends_the_connection(upstream: Server, start_proxy: StartProxy) -> None:
    """Though more comes behind it, in which the same would be met again."""
    upstream.flush()
    dying = threading.Event()

    def answer(reply: bytes) -> bytes:
        sign = re.search(rb"\$32\r\n[0-9a-f]{32}\r\n", reply)
        if not dying.is_set() or sign is None:
            return reply
        return reply[: sign.end()] + b":5\r\n" * 400_000

    with Relay(upstream.address) as relay:
        proxy = Proxy("--upstream", relay.url)
        try:
            relay.answers = answer
            process = psutil.Process(proxy.pid)
            with proxy.connect() as client:
                client.command("SADD", "k", "a")
                client.command("EXPIREMEMBER", "k", "a", 1000)
            for _ in range(5):
                with proxy.connect() as client:
                    client.command("PING")
                    dying.set()
                    client.send(request("TTL", "k", "a") * 8)
                    client.rest()
                    dying.clear()
            until(lambda: client_descriptors(process) == 0, what="an end of all connections")
            assert proxy.process.end() == 0
        finally:
            proxy.close()


@pytest.mark.one_kind
def test_a_defect_ends_both_sides_with_a_log_line(upstream: Server, tmp_path: Path) -> None:
    """Whatever goes wrong within a connection ends it: none is left half alive."""
    places = [
        ("session/session.py", "if not self.intake.reader.within and not self._standing.is_stranger:\n"),
        ("session/session.py", "question, pending = judge.take()\n"),
        ("relay/conversation.py", "self._session = session = surroundings.new_session()\n"),
    ]
    for number, (file, text) in enumerate(places, 1):
        folder = tmp_path / str(number)
        condition = "b'DEFECT' in data" if number == 1 else "True"
        defect = f"if {condition}:\n            raise KeyError({number})\n        "
        broken_copy(folder, Mutation(file, text, defect + text, ""))
        proxy = Proxy("--upstream", upstream.url, env={"PYTHONPATH": str(folder)}, cwd=folder)
        try:
            process = psutil.Process(proxy.pid)
            fds = process.num_fds()
            for _ in range(20):
                with proxy.connect() as client, suppress(ConnectionError):
                    # A script waits for the engine where its key is known.
                    client.send(request("HSET", "h", "f", 1) + request("EXPIREMEMBER", "h", "f", 100))
                    client.send(held_count("h", "f", 1) + request("DEFECT"))
                    client.rest()
            until(lambda: process.num_fds() <= fds + CONTROL, what="an end of both sides")  # noqa: B023
            assert f"KeyError: {number}" in proxy.process.output
        finally:
            proxy.close()
        upstream.flush()


def test_every_state_can_end() -> None:
    for state in State:
        reached = {state}
        while more := set(itertools.chain.from_iterable(MOVES[one] for one in reached)) - reached:
            reached |= more
        assert State.CLOSED in reached


def test_requests_behind_a_quit(upstream: Server, proxy: Proxy) -> None:
    with nothing_left(proxy, upstream):
        proxy.command("HSET", "h", "f", 1)
        proxy.command("EXPIREMEMBER", "h", "f", 1000)
        for behind in (
            b"",
            held_count("h", "f", 1) * 3,
            request("GET", "x") * 1000,
            request("EXPIREMEMBER", "h"),
        ):
            for leave in (Raw.close, Raw.reset):
                for _ in range(10):
                    client = proxy.connect()
                    client.send(held_count("h", "f", 1) + request("QUIT") + behind)
                    assert client.reply().startswith(b":")
                    assert client.reply() == b"+OK\r\n"
                    leave(client)


def test_an_ordinary_restart_of_the_server(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KIND, "--appendonly", "yes")
    proxy = start_proxy(server)
    proxy.command("HSET", "h", "f", 1)
    proxy.command("EXPIREMEMBER", "h", "f", 1000)
    for _ in range(3):
        end = threading.Event()

        def work(end: threading.Event = end) -> None:
            while not end.is_set():
                with suppress(OSError), proxy.connect() as client:
                    while not end.is_set():
                        client.send(held_count("h", "f", 1) * 20 + request("EXPIREMEMBER", "h") * 5)
                        client.replies(25)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        until(lambda: b"cmdstat_hincrby" in server.command("INFO", "commandstats"))
        server.stop(signal.SIGTERM)
        server.start()
        end.set()
        for thread in threads:
            thread.join(20)
        until(lambda: proxy.command("PING") == b"+PONG\r\n")
    for complaint in COMPLAINTS:
        assert complaint not in proxy.process.output, proxy.process.output[-6000:]
    proxy.stop()


def test_before_a_login_little_is_held(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind, "--requirepass", "secret")
    check_little_is_held_before_a_login(server, start_proxy(None, "--upstream", login_url(server)))


def login_url(server: Server) -> str:
    return f"redis://:secret@127.0.0.1:{server.port}"


def check_little_is_held_before_a_login(server: Server, proxy: Proxy) -> None:
    """For the deliberate breaks too; the server's password is `secret`."""
    with proxy.connect() as client:
        client.command(*PASSWORD)
        client.command("SADD", "s", "m")
        assert client.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    for head in (
        b"*11\r\n$4\r\nMSET\r\n$1\r\ns\r\n",
        b"*5\r\n$4\r\nMSET\r\n$1\r\ns\r\n$16385\r\n",
        b"*3\r\n$4\r\nSADD\r\n$1\r\ns\r\n$16385\r\n",
    ):
        told = []
        for where in (server, proxy):
            with where.connect() as client:
                client.send(request("GET", "x") + head)
                told.append(client.rest())
        assert told[0] == told[1], head
    with Peak(proxy.pid) as peak:
        clients = [proxy.connect() for _ in range(100)]
        for client in clients:
            client.send(b"*10\r\n$4\r\nMSET\r\n$1\r\ns\r\n" + b"$16384\r\n%b\r\n" % (b"x" * 16384) * 6)
        until(lambda: all(client.socket.fileno() >= 0 for client in clients))
        for client in clients:
            client.close()
    assert peak.bytes < 30 * MEGABYTE
    # Who logs in and goes on without waiting is no stranger.
    value = b"x" * 40_000
    for transaction in (False, True):
        with proxy.connect() as client:
            data = request("MSET", *(word for n in range(20) for word in (f"k{n}", value)))
            begin = request(*PASSWORD) + (request("MULTI") if transaction else b"")
            client.send(begin + data[:1000])
            client.send(data[1000:] + (request("EXEC") if transaction else b""))
            wanted = [b"+OK\r\n"] * 2 + ([b"+QUEUED\r\n", b"*1\r\n+OK\r\n"] if transaction else [])
            assert client.replies(len(wanted)) == wanted
    proxy.stop()


HELD_LIMIT = ("--held-limit", str(16 * MEGABYTE))


def test_all_clients_together_make_it_hold_no_more_than_a_limit(upstream: Server, start_proxy: StartProxy) -> None:
    check_all_that_is_held_is_bounded(upstream, start_proxy(upstream, *HELD_LIMIT))


@pytest.mark.every_kind(valkey=(9, 1))
@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (HELD_LIMIT, b"held_limit (16777216 bytes)"),
        (("--request-limit", str(MEGABYTE)), b"request_limit (1048576 bytes)"),
        ((*HELD_LIMIT, "--request-limit", str(16 * MEGABYTE)), b"request_limit and held_limit (16777216 bytes)"),
    ],
)
def test_a_request_that_can_never_fit_is_told_which_limit_to_raise(
    upstream: Server, start_proxy: StartProxy, flags: tuple[str, ...], names: bytes
) -> None:
    proxy = start_proxy(upstream, *flags)
    with proxy.connect() as client:
        with suppress(OSError):
            client.send(b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$%d\r\n" % (40 * MEGABYTE) + b"x" * (17 * MEGABYTE))
        assert client.line() == b"-ERR expiremember-proxy: request larger than " + names + b"\r\n"
    (line,) = (line for line in proxy.log() if line["level"] == "warning")
    assert line["event"] == "client dropped: request larger than request_limit"
    assert f"raise {names.decode().partition(' (')[0]}" in line["advice"]


def check_all_that_is_held_is_bounded(upstream: Server, proxy: Proxy) -> None:
    """For the deliberate breaks too."""
    begun = b"*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$%d\r\n" % (4 * MEGABYTE)
    clients = [proxy.connect() for _ in range(20)]
    try:
        with Peak(proxy.pid) as peak:
            for client in clients:
                with suppress(OSError):
                    client.send(begun + b"x" * (2 * MEGABYTE))
            refused: set[Raw] = set()

            def twelve_are_told() -> bool:
                readable = select.select([client.socket for client in clients], [], [], 0.1)[0]
                refused.update(client for client in clients if client.socket in readable)
                return len(refused) >= 12  # no more than eight can hold their two megabytes

            until(twelve_are_told)
            line = b"-ERR expiremember-proxy: too many unfinished requests are buffered (held_limit)\r\n"
            assert {client.line() for client in refused} == {line}
            small = proxy.connect()
            assert small.command("MSET", "a", b"x" * 50_000, "b", 1) == b"+OK\r\n"
            small.close()
        assert peak.bytes < 60 * MEGABYTE
    finally:
        for client in clients:
            client.close()
    until(lambda: open_connections(upstream, proxy) == 0)
    with proxy.connect() as last:
        last.send(begun + b"x" * MEGABYTE)
        until(lambda: b"held_bytes:0\r" not in proxy.command("INFO", "expiremember"))
        last.reset()  # without the end of its stream, at which what has come is counted anew
    until(lambda: b"held_bytes:0\r" in proxy.command("INFO", "expiremember"), what="an end of what they held")
    with proxy.connect() as client:  # so there is room again
        assert client.command("MSET", "a", b"x" * 8 * MEGABYTE, "b", 1) == b"+OK\r\n"
    proxy.stop()


def test_many_short_arguments_count_by_the_memory_that_they_take(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream, *HELD_LIMIT)
    with Peak(proxy.pid) as peak, proxy.connect() as client:
        with suppress(OSError):
            client.send(b"*1000001\r\n$4\r\nMSET\r\n" + b"$2\r\nab\r\n" * 900_000)  # 7 MB
        assert (
            client.line()
            == b"-ERR expiremember-proxy: unfinished requests of one client exceed held_limit: raise it\r\n"
        )
    assert peak.bytes < 50 * MEGABYTE


@pytest.mark.every_kind(redis=(8,))
@pytest.mark.parametrize(
    "line", ["SADD s", "HSET h f", "RPUSH l", "ZADD z NX CH 5", "SET s", "SISMEMBER s", "LSET l 0"]
)
def test_a_large_value_for_a_known_key_passes_in_little_memory(
    upstream: Server, start_proxy: StartProxy, line: str
) -> None:
    head = line.split()
    proxy = start_proxy(upstream)
    size = 100 * MEGABYTE
    block = os.urandom(MEGABYTE)
    with proxy.connect(60) as client:
        for first in (("SADD", "s", "m"), ("HSET", "h", "m", 1), ("RPUSH", "l", "m"), ("ZADD", "z", 1, "m")):
            assert client.command(*first) == b":1\r\n"
        for key in "shlz":
            assert client.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
        with Peak(proxy.pid) as peak:
            client.send(b"*%d\r\n" % (len(head) + 1) + request(*head).split(b"\r\n", 1)[1] + b"$%d\r\n" % size)
            sender = send_all(client, itertools.chain(itertools.repeat(block, 100), (b"\r\n" + request("PING"),)))
            answer = client.line()
            assert not answer.startswith(b"-"), answer
            assert client.line() == b"+PONG\r\n"
            sender.join(20)
        if head[0] not in ("SET", "LSET"):
            assert about(client.command("TTL", head[1], "m"), 1000)
    assert peak.bytes < 30 * MEGABYTE
    proxy.stop()


@pytest.mark.every_kind(redis=(8,))
def test_refused_requests_without_replies_cost_little(start_server: StartServer, start_proxy: StartProxy) -> None:
    proxy = start_proxy(start_server(KIND))
    refused = request("EXPIREMEMBER", "x") * 1000
    with proxy.connect(60) as client:
        client.send(request("CLIENT", "REPLY", "OFF") + refused)
        for attempt in range(3):  # a busy machine may let a process wait
            if attempt:
                client.send(request("CLIENT", "REPLY", "OFF"))
            with Peak(proxy.pid) as peak, worst_answer(proxy) as times:
                for _ in range(150):
                    client.send(refused)
                client.send(request("CLIENT", "REPLY", "ON") + request("EXPIREMEMBER", "x") + request("PING"))
                assert client.replies(3) == [
                    b"+OK\r\n",
                    b"-ERR wrong number of arguments for 'expiremember' command\r\n",
                    b"+PONG\r\n",
                ]
            assert peak.bytes < 20 * MEGABYTE
            if max(times) < 0.5:
                break
        else:
            pytest.fail(f"others waited {max(times)} s")
    proxy.stop()


@pytest.mark.one_kind
def test_refused_requests_behind_a_blocking_one_are_not_taken_without_end(
    upstream: Server, start_proxy: StartProxy
) -> None:
    proxy = start_proxy(upstream)
    refused = request("EXPIREMEMBER", "x")
    count = 100_000
    with proxy.connect(60) as client:
        with Peak(proxy.pid) as peak:
            client.send(request("BLPOP", "nope", 0))
            sender = send_all(client, iter([refused * count]))
            until(lambda: b"cmd=blpop" in upstream.command("CLIENT", "LIST"))
            upstream.command("RPUSH", "nope", "x")
            assert client.reply() == b"*2\r\n$4\r\nnope\r\n$1\r\nx\r\n"
            line = b"-ERR wrong number of arguments for 'expiremember' command\r\n"
            assert client.exactly(len(line) * count) == line * count
            sender.join(20)
        assert peak.bytes < 40 * MEGABYTE
    proxy.stop()


@pytest.mark.one_kind
def test_short_connections_leave_no_memory(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream)
    process = psutil.Process(proxy.pid)

    def come_and_go(count: int) -> None:
        for _ in range(count):
            with proxy.connect() as client:
                client.command("PING")

    come_and_go(500)
    until(lambda: client_descriptors(process) == 0)
    before = process.memory_info().rss
    come_and_go(6000)
    until(lambda: client_descriptors(process) == 0)
    assert process.memory_info().rss - before < 12 * MEGABYTE
    proxy.stop()


@pytest.mark.one_kind
def test_idle_connections_take_little(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream)
    process = psutil.Process(proxy.pid)
    assert proxy.command("PING") == b"+PONG\r\n"
    before = process.memory_info().rss
    count = 2000
    clients = [proxy.connect() for _ in range(count)]
    try:
        for client in clients:
            assert client.command("PING") == b"+PONG\r\n"
        assert (process.memory_info().rss - before) / count < 25_000
    finally:
        for client in clients:
            client.close()
    proxy.stop()


def test_requests_at_any_instant_after_connecting_are_answered(upstream: Server, proxy: Proxy) -> None:
    """Also one that waits for the engine, in the moment in which the upstream connection comes to be."""
    proxy.command("HSET", "h", "f", 0)
    proxy.command("EXPIREMEMBER", "h", "f", 1000)
    chance = random.Random(8)
    for number in range(400):
        with proxy.connect(10) as client:
            time.sleep(chance.random() * 0.0008)
            client.send(held_count("h", "f", 1))
            assert client.reply() == b":%d\r\n" % (number + 1)


def half_closed(connect: Callable[[], Raw], data: bytes) -> bytes:
    with connect() as client:
        client.send(data)
        client.end_of_requests()
        return client.rest()


@pytest.mark.one_kind
def test_what_is_held_when_the_client_leaves_still_runs(upstream: Server, start_proxy: StartProxy) -> None:
    """A client that does not wait for replies loses no request, not even one that waits for a removal."""
    proxy = start_proxy(upstream, "--no-sweep")
    for leave in (Raw.close, Raw.end_of_requests):
        for number in range(30):
            key = f"{leave.__name__}{number}"
            with proxy.connect() as client:
                client.send(request("SADD", key, "due", "stays") + request("PEXPIREMEMBER", key, "due", 1))
                client.replies(2)
                time.sleep(0.002)
                client.send(request("SADD", key, "late") + request("SET", f"behind-{key}", 1))
                leave(client)
                if leave is Raw.end_of_requests:
                    assert client.rest() == b":1\r\n+OK\r\n"
            until(lambda key=key: upstream.command("EXISTS", f"behind-{key}") == b":1\r\n")  # type: ignore[misc]
            assert upstream.command("SISMEMBER", key, "late") == b":1\r\n"
    proxy.stop()


@pytest.mark.parametrize("line", [b"\n", b"\r\n", b"a\n", b"get a\r\n", b"dbsize\n", b"ttl a b\n"])
@pytest.mark.one_kind
def test_a_flood_of_small_requests_holds_nobody_up(upstream: Server, proxy: Proxy, line: bytes) -> None:
    flood = line * (128 * 1024 // len(line))
    with proxy.connect() as client, worst_answer(proxy) as times:
        sender = send_all(client, iter([flood + request("ECHO", "--end--")]))
        tail = b""
        while not tail.endswith(b"--end--\r\n"):
            tail = (tail + client.some())[-20:]
        sender.join(20)
    assert max(times) < 0.5


@pytest.mark.parametrize(
    "behind", [request("SADD", "known", "x"), request("EXPIREMEMBER", "known") * 9_000], ids=["waits", "refused"]
)
@pytest.mark.parametrize("leave", [Raw.close, Raw.reset])
@pytest.mark.one_kind
def test_a_client_that_leaves_behind_a_blocking_request_takes_no_job(
    upstream: Server, start_proxy: StartProxy, leave: Callable[[Raw], None], behind: bytes
) -> None:
    """A server drops a blocked client that leaves; so must the proxy, also while requests wait behind that one."""
    with upstream.connect() as admin:
        admin.command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-eval")
    proxy = start_proxy(upstream)
    proxy.command("SADD", "known", "m")
    proxy.command("EXPIREMEMBER", "known", "m", 1000)
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(5)]
        for client in clients:
            client.send(request("BLPOP", "queue", 0) + behind)
        until(lambda: b"blocked_clients:5" in upstream.command("INFO", "clients"))
        for client in clients:
            leave(client)
        until(
            lambda: b"blocked_clients:0" in upstream.command("INFO", "clients"),
            PATIENT_SECONDS,
            lambda: f"{upstream.command('CLIENT', 'LIST')!r}, {proxy.process.output}: this",
        )
    assert upstream.command("RPUSH", "queue", "job") == b":1\r\n"
    assert upstream.command("LLEN", "queue") == b":1\r\n"
    proxy.stop()
    assert upstream.command("ACL", "DELUSER", "limited") == b":1\r\n"


@pytest.mark.one_kind
@pytest.mark.parametrize("earlier", ["none", "apart", "together", "nothing at all"])
def test_what_is_in_front_of_a_blocking_request_does_not_delay_the_end(
    upstream: Server, start_proxy: StartProxy, earlier: str
) -> None:
    check_ahead(upstream, start_proxy, earlier)


def check_ahead(upstream: Server, start_proxy: StartProxy, earlier: str = "none") -> None:
    """However large: a server that has come to the blocking request has read it. `earlier`: what has blocked before."""
    proxy = start_proxy(upstream)
    proxy.command("SADD", "known", "m")
    proxy.command("EXPIREMEMBER", "known", "m", 1000)

    def blocked(count: int) -> bool:
        return b"blocked_clients:%d" % count in upstream.command("INFO", "clients")

    with proxy.connect() as client:
        if earlier == "nothing at all":
            large = request("BLPOP", *(b"queue:%05d" % number for number in range(40_000)), 0)
            client.send(large + request("EVAL", "return 1", 1, "known"))
            until(lambda: blocked(1))
            client.close()
            until(lambda: blocked(0), 0.4)
            return
        client.command("PING")
        ahead, behind = request("RPUSH", "l", b"x" * 600_000), request("SADD", "known", "x")
        behind += request("SISMEMBER", "known", "m") + request("CLIENT", "REPLY", "SKIP")
        first = b"" if earlier == "none" else request("BLPOP", "nothing", "0.5")
        if earlier == "apart":
            client.send(first)
            until(lambda: blocked(1))
        client.send((first if earlier == "together" else b"") + ahead + request("BLPOP", "queue", 0) + behind)
        assert client.replies(1 + bool(first))[-1] == b":1\r\n"
        until(lambda: blocked(1))
    until(lambda: blocked(0), 1.2)
    proxy.stop()


def both_ways(upstream: Server, proxy: Proxy, data: bytes, count: int) -> tuple[list[bytes], list[bytes]]:
    """The first replies to a stream, straight and through the proxy."""
    told = []
    for where in (upstream, proxy):
        with where.connect(5) as client:
            client.send(data)
            told.append([client.reply() for _ in range(count)])
    return told[0], told[1]


def test_replies_that_are_skipped_stay_skipped(upstream: Server, start_proxy: StartProxy) -> None:
    with upstream.connect() as admin:
        admin.command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-eval")
    proxy = start_proxy(upstream)
    proxy.command("SADD", "known", "m")
    proxy.command("EXPIREMEMBER", "known", "m", 1000)
    skip = request("CLIENT", "REPLY", "SKIP")
    refused = (skip + request("SET", "__expiremember__:index", "x")) * 5000 + request("ECHO", "end")
    assert both_ways(upstream, proxy, refused, 1)[1] == [b"$3\r\nend\r\n"]
    proxy.stop()
    upstream.command("ACL", "DELUSER", "limited")


def test_replies_come_again_after_they_were_off(upstream: Server, start_proxy: StartProxy) -> None:
    """Also where the server refused to be silent."""
    with upstream.connect() as admin:
        admin.command("ACL", "SETUSER", "limited", "on", "nopass", "~*", "&*", "+@all", "-eval")
        admin.command("ACL", "SETUSER", "talkative", "on", "nopass", "~*", "&*", "+@all", "-eval", "-client")
    proxy = start_proxy(upstream)
    proxy.command("SADD", "known", "m")
    proxy.command("EXPIREMEMBER", "known", "m", 1000)
    off, on = request("CLIENT", "REPLY", "OFF"), request("CLIENT", "REPLY", "ON")
    add = request("SADD", "known", "y") + request("SREM", "known", "y")
    straight, through = both_ways(upstream, proxy, request("AUTH", "limited", "x") + off + on + add, 4)
    assert through == straight
    with proxy.connect() as client:
        assert client.command("AUTH", "talkative", "x") == b"+OK\r\n"
        assert client.command("CLIENT", "REPLY", "OFF").startswith(b"-NOPERM")
        client.send(add)
        assert client.replies(2) == [b":1\r\n", b":1\r\n"]
    with proxy.connect() as client:
        refused = request("EXPIREMEMBER", "known")
        client.send(request("CLIENT", "REPLY", "OFF") + refused * 3 + on + refused * 5000)
        assert client.reply() == b"+OK\r\n"
        assert set(client.replies(5000)) == {b"-ERR wrong number of arguments for 'expiremember' command\r\n"}
    proxy.stop()
    upstream.command("ACL", "DELUSER", "limited", "talkative")


@pytest.mark.one_kind
def test_no_reserved_name_passes_in_a_huge_request(upstream: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(upstream)
    upstream.command("SET", "__expiremember__:probe", "x")
    count = 1_048_578
    with proxy.connect(60) as client, suppress(ConnectionError):
        name = b"__expiremember__:probe"
        client.send(b"*%d\r\n$3\r\nDEL\r\n" % count + b"$1\r\na\r\n" * (count - 2))
        client.send(b"$%d\r\n%b\r\n" % (len(name), name))
        assert client.line().startswith(b"-ERR")
    assert upstream.command("DEL", "__expiremember__:probe") == b":1\r\n"
    proxy.stop()


@pytest.mark.every_kind
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_refused_login_in_a_transaction_shifts_no_reply(
    kind: str, place: int, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """Redis 8.0, Valkey 8.0 and 8.1 leave its reply out of those of EXEC, so that nobody can count these."""
    server = start_server(kind, "--requirepass", "secret")
    proxy = start_proxy(None, "--upstream", login_url(server))
    lines = ["MULTI", "DEL nothing", "HINCRBY hash field 0", "SADD set m n", "EXEC"]
    lines.insert(place, "AUTH wrong")
    lines += ["SADD set m", "HINCRBY hash field 0", "SMEMBERS nothing", "ECHO end"]
    told = []
    with server.connect() as straight, proxy.connect() as through:
        for client in (through, straight):
            assert client.command(*PASSWORD) == b"+OK\r\n"
        for line in ("HSET hash field 5", "SADD set m n", "EXPIREMEMBER hash field 100", "EXPIREMEMBER set m 100"):
            assert through.command(*line.split()).startswith(b":")
        for client in (straight, through):
            client.send(b"".join(request(*line.split()) for line in lines))
            said = b""
            while not said.endswith(b"$3\r\nend\r\n"):
                said += client.some()
            told.append(said)
    assert told[1] == told[0]
    proxy.stop()


def test_strangers_change_nothing(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """Who has not logged in leaves no mark, and what TTL tells of a removed member stays."""
    server = start_server(kind, "--requirepass", "secret")
    with server.connect() as admin:
        admin.command(*PASSWORD)
        admin.command("ACL", "SETUSER", "limited", "on", ">limited", "~*", "&*", "+@all", "-eval")
    proxy = start_proxy(None, "--upstream", login_url(server))
    refusal = b"-NOAUTH Authentication required.\r\n"
    with proxy.connect() as client, proxy.connect() as limited:
        client.command(*PASSWORD)
        client.command("SADD", "secret", "m", "stays")
        client.command("EXPIREMEMBER", "secret", "m", 500)
        client.command("SREM", "secret", "m")
        client.command("SADD", "plain", "m")
        with proxy.connect() as stranger:
            assert stranger.command("SADD", "secret", "m") == refusal
            assert stranger.command("EXPIREMEMBER", "plain", "m", 100) == refusal
        assert about(client.command("TTL", "secret", "m"), 500)
        assert limited.command("AUTH", "limited", "limited") == b"+OK\r\n"
        assert limited.command("SADD", "source", "a") == b":1\r\n"
        assert limited.command("SUNIONSTORE", "plain", "source") == b":1\r\n"
    proxy.stop()


@pytest.mark.parametrize(
    "head",
    [
        b"*4\r\n$3\r\nTTL\r\n$1\r\nk\r\n$1\r\nm\r\n$536870913\r\n",
        b"*5\r\n$12\r\nEXPIREMEMBER\r\n$1\r\nk\r\n$1\r\nm\r\n$1\r\n5\r\n$536870913\r\n",
        b"*3\r\n$3\r\nSET\r\n$18\r\n__expiremember__:a\r\n$536870913\r\n",
        b"*3\r\n$3\r\nFOO\r\n$18\r\n__expiremember__:a\r\n$20000\r\n",
        b"*5\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\nk\r\n$20000\r\n",
        b"*6\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n1\r\n$1\r\nk\r\n$18\r\n__expiremember__:a\r\n$20000\r\n",
    ],
    ids=["TTL", "EXPIREMEMBER", "SET", "unknown", "EVAL", "EVAL-with-a-reserved-argument"],
)
def test_the_rest_of_a_long_request_never_runs_as_requests(upstream: Server, proxy: Proxy, head: bytes) -> None:
    """What stands in a value stays a value, also where the request in which it stands is refused."""
    upstream.command("SET", "victim", "x")
    proxy.command("SADD", "k", "m")
    proxy.command("EXPIREMEMBER", "k", "m", 1000)
    with proxy.connect(5) as client:
        inner = b"\r\n" + request("DEL", "victim") * 700
        with suppress(OSError):
            client.send(head)
            for begin in range(0, len(inner), 1000):
                client.send(inner[begin : begin + 1000])
            client.end_of_requests()
            client.rest()
    until(lambda: open_connections(upstream, proxy) == 0)
    assert upstream.command("EXISTS", "victim") == b":1\r\n"


@pytest.mark.parametrize("line", ["ZADD {key} CH 1 m", "GEOADD {key} CH 1 1 m"])
def test_options_that_come_late_hide_no_member(upstream: Server, proxy: Proxy, line: str) -> None:
    words = line.format(key="k" * 17_000).split()
    first = [word for word in words if word != "CH"]
    data = request(*words)
    cut = data.index(b"\r\n$2\r\nCH") + 2
    with proxy.connect() as client:
        assert client.command(*first) == b":1\r\n"
        assert client.command("EXPIREMEMBER", words[1], "m", 1000) == b":1\r\n"
        assert upstream.command("ZREM", words[1], "m") == b":1\r\n"
        client.send(data[:cut])
        time.sleep(0.05)  # so that the server's answer cannot depend on one read
        client.send(data[cut:])
        assert client.reply() == b":1\r\n"
        assert client.command("TTL", words[1], "m") == b":-1\r\n"


def test_a_client_that_sends_everything_before_it_reads(upstream: Server, proxy: Proxy) -> None:
    """Also while a request waits until those before it, whose replies fill every buffer, have been answered."""
    value = b"x" * MEGABYTE
    with proxy.connect(10) as client:
        assert client.command("HSET", "h", "f", 1) == b":1\r\n"
        assert client.command("EXPIREMEMBER", "h", "f", 1000) == b":1\r\n"
        assert client.command("SET", "big", value) == b"+OK\r\n"
        client.send(request("GET", "big") * 25 + held_count("h", "f", 1) + request("SET", "other", value) * 18)
        for _ in range(25):
            assert len(client.reply()) > MEGABYTE
        assert client.replies(19) == [b":2\r\n"] + [b"+OK\r\n"] * 18


def test_what_is_voided_is_voided_behind_all_that_was_sent_before(upstream: Server, proxy: Proxy) -> None:
    """HINCRBY and scripts are no scripts of the proxy's: what goes before them in the pipeline has gone by then."""
    filler = request("ECHO", "x" * 100) * 800
    script = "redis.call('sadd', KEYS[1], 'm')"
    for _ in range(10):
        with proxy.connect() as client:
            client.command("DEL", "s", "h")
            client.send(request("SADD", "s", "m") + request("EXPIREMEMBER", "s", "m", 1000))
            client.send(request("HSET", "h", "f", 1) + request("EXPIREMEMBER", "h", "f", 1000))
            client.replies(4)
            client.send(filler + request("SPOP", "s") + request("EVAL", script, 1, "s"))
            client.send(filler + request("EXPIRE", "h", -1) + request("HINCRBY", "h", "f", 1))
            client.replies(1604)
            assert client.command("TTL", "s", "m") == b":-1\r\n"
            assert client.command("TTL", "h", "f") == b":-1\r\n"

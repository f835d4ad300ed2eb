"""What a client sends before, while and after it logs in and out is answered byte by byte as by the server itself."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import product

import psutil
import pytest

from proxy.upstream.login import LoginWatch
from tests.admin import Admin
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, about, request
from tests.relay import Relay
from tests.servers import Proxy, Server, free_port, halt, until
from tests.test_lives import PREFIX

PASSWORD = "pw"
AUTH = request("AUTH", PASSWORD)
MANY = request("SREM", "nosuch", *(f"m{number}" for number in range(20)))
"""More arguments than a server takes of a stranger."""


def requests(*lines: str) -> bytes:
    return b"".join(request(*line.split()) for line in lines)


CASES = {
    "a silent reply, then one of ours": [AUTH + requests("CLIENT REPLY SKIP", "PERSIST s a x", "ECHO end")],
    "a silent reply, then a transaction": [AUTH + requests("CLIENT REPLY SKIP", "MULTI", "ECHO end", "EXEC")],
    "no replies, then an adder": [
        AUTH + requests("CLIENT REPLY OFF", "SADD s zz", "CLIENT REPLY ON", "SISMEMBER s zz", "ECHO end")
    ],
    "no RESET, then a transaction": [
        AUTH + requests("PING"), requests("RESET x"), requests("MULTI", "ECHO a", "EXEC", "ECHO end"),
    ],
    "no RESET, then many arguments": [AUTH + requests("PING"), requests("RESET x"), MANY[:100], MANY[100:]],
    "no RESET without replies": [
        AUTH + requests("PING"),
        requests("CLIENT REPLY OFF", "RESET x", "HINCRBY h y 1", "CLIENT REPLY ON", "ECHO end"),
    ],
    "a RESET without replies": [
        AUTH + requests("CLIENT REPLY OFF", "PING"), requests("RESET") + AUTH, MANY[:100], MANY[100:],
    ],
    "no replies, many arguments": [
        AUTH + requests("CLIENT REPLY OFF") + MANY[:100], MANY[100:] + requests("CLIENT REPLY ON", "ECHO end"),
    ],
    "a stranger subscribes, then a transaction": [requests("SUBSCRIBE c"), requests("MULTI"), requests("PING")],
    "a stranger subscribes, then many arguments": [requests("SUBSCRIBE c"), MANY[:100]],
    "a stranger wants no replies": [requests("CLIENT REPLY OFF", "MULTI", "PING")],
    "a silent reply to nothing": [
        AUTH + requests("PING"), requests("CLIENT REPLY SKIP") + b"*0\r\n" + requests("HINCRBY h x 1", "ECHO end"),
    ],
    "a silent reply, then a transaction bit by bit": [
        AUTH + requests("PING"), requests("CLIENT REPLY SKIP"), requests("MULTI"), requests("HINCRBY h w 1"),
        requests("HINCRBY h w 1"), requests("EXEC", "ECHO end"),
    ],
    "a transaction whose EXEC is refused": [
        AUTH + requests("MULTI", "SADD s p", "EXEC x", "HINCRBY h u 1", "MULTI", "HINCRBY h u 1", "EXEC", "ECHO end"),
    ],
    "replies in a transaction that is dropped": [
        AUTH + requests("CLIENT REPLY OFF", "MULTI", "nosuch", "CLIENT REPLY ON", "EXEC", "HINCRBY h z 1"),
        requests("CLIENT REPLY ON", "HGET h z"),
    ],
    "replies after a transaction": [
        AUTH + requests("CLIENT REPLY OFF", "MULTI", "CLIENT REPLY ON", "EXEC", "HINCRBY h v 1", "HGET h v"),
    ],
    "a stranger names a reserved key": [requests(f"GET {PREFIX.decode()}x", "PING")],
    "a stranger quits": [requests("QUIT", "HINCRBY h g 1", "PING")],
}  # fmt: skip

LOGOUTS = {
    name: [AUTH + before + requests("RESET", "SADD s v", "PING")]
    for name, before in (
        {
            "plain": requests("PING"),
            "skipped": requests("CLIENT REPLY SKIP"),
            "skipped behind a reply": requests("PING", "CLIENT REPLY SKIP"),
            "without replies": requests("PING", "CLIENT REPLY OFF"),
            "joined": requests("PING", "CLIENT CACHING YES"),
            "of a stranger": requests("CLIENT REPLY SKIP", "RESET", "AUTH wrong"),
        }.items()
    )
}
LOGOUTS |= {
    f"{name}, then {more}": [AUTH + before + requests("RESET", more, "HELLO 3", "SADD s v", "SADD s v", "PING")]
    for (name, before), more in product(
        {"skipped": requests("CLIENT REPLY SKIP"), "without replies": requests("PING", "CLIENT REPLY OFF")}.items(),
        ["GET v", "GET s"],
    )
}
LOGOUTS["of who was one"] = [requests("PING"), AUTH + requests("CLIENT REPLY SKIP", "RESET", "SADD s v", "PING")]
"""Whoever has logged out is a stranger, whatever of the login is still to be answered."""


def said(server: Server | Proxy, pieces: list[bytes]) -> tuple[bytes, bool]:
    """What comes back, and whether the connection was closed then."""
    with server.connect() as client:
        for piece in pieces:
            client.send(piece)
            client.silent(0.05)  # so that it is read by itself
        client.socket.settimeout(1)
        got = b""
        try:
            while part := client.some():
                got += part
        except TimeoutError:
            return got, False
        return got, True


def url_of(server: Server) -> str:
    return server.url.replace("//", f"//:{PASSWORD}@")


@pytest.fixture
def pair(kind: str, start_server: StartServer, start_proxy: StartProxy) -> tuple[Server, Proxy, Server]:
    """A server that wants a password; another with the proxy in front, whose keys have deadlines there."""
    straight, upstream = (start_server(kind, "--requirepass", PASSWORD) for _ in range(2))
    proxy = start_proxy(None, "--upstream", url_of(upstream))
    for server in (straight, proxy):
        with server.connect() as client:
            client.send(AUTH + requests("SADD s a b", "HSET h f 1 g 2"))
            assert client.replies(3) == [b"+OK\r\n", b":2\r\n", b":2\r\n"]
    with proxy.connect() as client:
        client.send(AUTH + requests("EXPIREMEMBER s b 10000", "EXPIREMEMBER h g 10000"))
        assert client.replies(3) == [b"+OK\r\n", b":1\r\n", b":1\r\n"]
    return straight, proxy, upstream


@pytest.mark.every_kind
def test_the_same_is_said_to_strangers(pair: tuple[Server, Proxy, Server]) -> None:
    straight, proxy, _ = pair
    with ThreadPoolExecutor(2 * len(CASES)) as pool:
        wanted = {name: pool.submit(said, straight, pieces) for name, pieces in CASES.items()}
        found = {name: pool.submit(said, proxy, pieces) for name, pieces in CASES.items()}
        assert {name: one.result() for name, one in found.items()} == {
            name: one.result() for name, one in wanted.items()
        }
    with proxy.connect() as client:
        client.send(AUTH + requests("SREM s b", "TTL s b"))
        client.replies(2)
        assert about(client.reply(), 10000)
        # QUIT is answered as a login is; it is none, and nothing is done for what follows.
        assert said(proxy, [requests("QUIT", "SADD s b")]) == (b"+OK\r\n", True)
        client.send(requests("TTL s b"))
        assert about(client.reply(), 10000)


@pytest.mark.every_kind
@pytest.mark.parametrize("few", [False, True])
def test_who_has_logged_out_is_a_stranger(
    pair: tuple[Server, Proxy, Server], start_proxy: StartProxy, few: bool
) -> None:
    """Also where some users have few rights, so that all are asked what they may do."""
    straight, proxy, upstream = pair
    if few:
        for server in (straight, upstream):
            let_few(server)
        proxy = start_proxy(None, "--upstream", url_of(upstream))
    check_logouts(straight, proxy)


def let_few(server: Server) -> None:
    """Give a user few rights."""
    with server.connect() as client:
        client.send(AUTH + requests("ACL SETUSER few on nopass ~* +@all -eval"))
        assert client.replies(2) == [b"+OK\r\n", b"+OK\r\n"]


def check_logouts(straight: Server, proxy: Proxy) -> None:
    """See that each is answered as by the server itself, in each of some tries."""
    with proxy.connect() as client:
        client.send(AUTH + requests("SADD s b", "EXPIREMEMBER s b 10000"))
        client.replies(3)
        client.send(requests("RESET") + AUTH + requests("EXPIREMEMBER s b 10000"))
        assert client.replies(3) == [b"+RESET\r\n", b"+OK\r\n", b":1\r\n"]
    with ThreadPoolExecutor(2 * len(LOGOUTS)) as pool:
        wanted = {name: pool.submit(said, straight, pieces) for name, pieces in LOGOUTS.items()}
        found = [{name: pool.submit(said, proxy, pieces) for name, pieces in LOGOUTS.items()} for _ in range(3)]
        for each in found:
            assert {name: one.result() for name, one in each.items()} == {
                name: one.result() for name, one in wanted.items()
            }


def test_nothing_goes_by_unjudged_behind_a_head_that_is_refused(pair: tuple[Server, Proxy, Server]) -> None:
    """Whatever a client has sent while it was being found out."""
    _, proxy, upstream = pair
    key, harm = MANY[:100], requests(f"SET {PREFIX.decode()}x 1", f"DEL {PREFIX.decode()}index")
    for login in (AUTH + requests("RESET x"), AUTH + requests("CLIENT REPLY OFF", "RESET") + AUTH, b""):
        said(proxy, [login, requests("BLPOP q 0.3") + key, MANY[100:] + harm])
        said(proxy, [login + requests("BLPOP q 0.3") + key, MANY[100:], harm])
    with upstream.connect() as beside:
        beside.send(AUTH + request("EXISTS", PREFIX + b"x") + request("EXISTS", PREFIX + b"index"))
        assert beside.replies(3)[1:] == [b":0\r\n", b":1\r\n"]


def test_what_comes_before_a_request_that_the_server_refuses_is_answered(pair: tuple[Server, Proxy, Server]) -> None:
    """Also if the first of it is answered by the proxy, and another takes its time.

    Redis 8.10 may swallow the error behind it, and then does not close.
    """
    huge = b"*3\r\n$4\r\nMSET\r\n$1\r\nk\r\n$600000000\r\n" + b"v" * 20_000
    straight, proxy, _ = pair
    behind = requests("BLPOP q 0.3", "ECHO end") + huge
    wanted, closed = said(straight, [AUTH + behind])
    wanted = wanted.partition(b"-ERR Protocol error")[0]
    assert wanted == b"+OK\r\n*-1\r\n$3\r\nend\r\n"
    arity = b"-ERR wrong number of arguments for 'expiremember' command\r\n"  # servers look at that before the login
    for front in (b"", AUTH):
        answer, closed_too = said(proxy, [front + requests("EXPIREMEMBER x") + AUTH + behind])
        answer = answer.partition(b"-ERR Protocol error")[0]
        assert answer == (b"+OK\r\n" if front else b"") + arity + wanted
        assert closed_too or not closed


@pytest.mark.one_kind
def test_a_server_that_does_not_answer_makes_nobody_hold_much_for_strangers(
    pair: tuple[Server, Proxy, Server],
) -> None:
    _, proxy, upstream = pair
    process = psutil.Process(proxy.pid)
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(5)]
        for client in clients:
            client.send(request("PING"))
            client.reply()
        assert upstream.process is not None
        halt(upstream.process.pid)
        stack.callback(upstream.process.send_signal, signal.SIGCONT)
        before = process.memory_info().rss
        for client in clients:
            client.send(AUTH + request("MULTI"))
            client.socket.settimeout(0.3)
            with contextlib.suppress(TimeoutError):
                for _ in range(40):
                    client.send(request("ECHO", b"x" * 1_000_000))
        assert process.memory_info().rss - before < 10_000_000


@pytest.mark.one_kind
def test_nobody_waits_for_requests_that_may_be_refused(
    pair: tuple[Server, Proxy, Server], start_proxy: StartProxy
) -> None:
    """The beginning of a long one is on its way while another client gives its key the first deadline."""
    _, _, upstream = pair
    with upstream.connect() as beside:
        beside.send(AUTH + requests("ACL SETUSER limited on nopass ~other -@all +sadd +auth"))
        assert beside.replies(2) == [b"+OK\r\n", b"+OK\r\n"]
    proxy = start_proxy(None, "--upstream", url_of(upstream))
    beginning = request("SADD", "cart", *(f"m{number}" + "x" * 4000 for number in range(8)))[:26_000]
    with proxy.connect() as client, proxy.connect() as stranger, proxy.connect() as limited:
        client.send(AUTH + requests("SADD cart a b"))
        assert client.replies(2) == [b"+OK\r\n", b":2\r\n"]
        stranger.send(beginning)
        assert limited.command("AUTH", "limited", "x") == b"+OK\r\n"
        limited.send(beginning)
        began = time.monotonic()
        for member in "ab":
            assert client.command("EXPIREMEMBER", "cart", member, 1000) == b":1\r\n"
        assert time.monotonic() - began < 2


def check_new_password(server: Server, proxy: Proxy) -> None:
    """Whoever resets the connection after a password has been set is a stranger, whom some servers tell nothing else;
    so is who comes then, though the proxy does not know it yet."""
    proxy.command("SADD", "s", "b")
    assert proxy.command("EXPIREMEMBER", "s", "b", 10_000) == b":1\r\n"
    off, skip, on = (requests(f"CLIENT REPLY {word}") for word in ("OFF", "SKIP", "ON"))
    reset, get, ping = requests("RESET"), requests("GET v"), requests("PING")
    programs = {
        "a read": [reset, get],
        "an adder": [reset, requests("SADD s k"), ping],
        "a covered read": [reset, requests("SMEMBERS s"), ping],
        "a transaction": [reset, requests("MULTI"), requests("SADD s k"), requests("EXEC")],
        "no replies": [reset, off + get, ping],
        "a skip": [reset, skip, ping, ping],
        "no replies to a login": [reset, off, AUTH, ping, on, ping],
        "no replies before": [off, reset, ping],
        "logins and logouts": [AUTH + off + get + reset + off + get + AUTH + off + get + on + ping],
        "a logout in silence": [off + reset + off + ping],
        "a logout behind a read in silence": [off + get + reset + get + off + ping],
        "a login behind": [reset + get + AUTH + get],
        "reads beside a login": [reset + off + get + AUTH + get + on + requests("AUTH wrong") + ping],
    }
    for early in (True, False):
        for name, pieces in programs.items():
            if not early and len(pieces) > 1:
                continue
            answers = partial(_with_new_password, server, pieces, early)
            assert_same(answers, server, proxy, (name, early))


def _with_new_password(
    server: Server, pieces: list[bytes], early: bool, where: Server | Proxy, seconds: float
) -> list[bytes]:
    with server.connect() as admin, ExitStack() as stack:
        if early:
            client = stack.enter_context(where.connect())
            assert client.command("PING") == b"+PONG\r\n"
        assert admin.command("CONFIG", "SET", "requirepass", PASSWORD) == b"+OK\r\n"
        if not early:
            client = stack.enter_context(where.connect())
        said = answers_of(client, pieces, seconds)
        assert admin.command("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
    return said


def _with_password_again(admin: Raw, pieces: list[bytes], where: Server | Proxy, seconds: float) -> list[bytes]:
    with where.connect() as client:
        assert client.command("PING").startswith(b"-NOAUTH")
        assert admin.command("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
        assert client.command("PING") == b"+PONG\r\n"
        assert admin.command("CONFIG", "SET", "requirepass", PASSWORD) == b"+OK\r\n"
        return answers_of(client, pieces, seconds)


def assert_same(
    answers: Callable[[Server | Proxy, float], list[bytes]], server: Server, proxy: Proxy, what: object
) -> None:
    """See that the same comes from both, each time until nothing does for some seconds; more on a busy machine."""
    for seconds in (0.15, 1):
        wanted, got = answers(server, seconds), answers(proxy, seconds)
        if got == wanted:
            return
    assert got == wanted, what


def check_password_again(server: Server, proxy: Proxy) -> None:
    """A password that is removed, and set again, bars those who came before it was removed."""
    with server.connect() as admin:
        assert admin.command("AUTH", PASSWORD) == b"+OK\r\n"
        with proxy.connect() as client:
            client.send(AUTH + requests("SADD s b", "EXPIREMEMBER s b 10000"))
            assert client.replies(3)[2] == b":1\r\n"
        for pieces in (
            [requests("SADD s k"), requests("PING")],
            [requests("CLIENT REPLY OFF"), requests("PING")],
            [requests("GET v", "CLIENT REPLY SKIP"), requests("PING")],
        ):
            assert_same(partial(_with_password_again, admin, pieces), server, proxy, pieces)


def answers_of(client: Raw, pieces: list[bytes], seconds: float) -> list[bytes]:
    """What comes for each piece until nothing does for some seconds, and at the end."""
    got = []
    for piece in pieces:
        client.send(piece)
        got.append(client.until_silent(seconds))
    client.end_of_requests()
    return [*got, client.rest()]


@pytest.mark.every_kind
def test_who_resets_a_connection_after_a_password_was_set_is_a_stranger(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    check_new_password(server, start_proxy(None, "--upstream", server.url))


@pytest.mark.every_kind
def test_who_came_before_a_password_was_removed_is_barred_when_it_is_set_again(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind, "--requirepass", PASSWORD)
    check_password_again(server, start_proxy(None, "--upstream", url_of(server)))


QUERY = b"$4\r\nPING\r\n$"
"""What the proxy asks without a login, and nobody else here: a PING with an argument."""


@contextlib.contextmanager
def gate(server: Server, how: str) -> Iterator[Relay]:
    """A relay that passes on everything but the proxy's query without a login; set `asks` to `bytes` to open it."""
    with Relay(server.address) as relay:

        def asks(data: bytes) -> bytes:
            if QUERY not in data:
                return data
            for pipe in [pipe for pipe in relay.pipes if QUERY in pipe.asked] if how == "closes" else []:
                with contextlib.suppress(OSError):
                    pipe.near.shutdown(socket.SHUT_RDWR)
            return b""

        relay.asks = asks
        yield relay


@pytest.mark.one_kind
@pytest.mark.parametrize("how", ["closes", "is silent"])
def test_a_query_that_gets_no_answer_is_told_to_clients(server: Server, start_proxy: StartProxy, how: str) -> None:
    check_without_an_answer(server, start_proxy, how)


def check_without_an_answer(server: Server, start_proxy: StartProxy, how: str) -> None:
    """Something before the server lets nobody ask without a login: whoever waits gets an error, and its place back."""
    with gate(server, how) as relay, ExitStack() as stack:
        admin = f"127.0.0.1:{free_port()}"
        options = ("--connect-timeout", "1", "--admin", admin, "--max-clients", "4")
        proxy = start_proxy(None, "--upstream", relay.url, *options, ready=False)
        proxy.process.line(lambda line: "admin port open" in line)
        until(lambda: levels(proxy, "cannot find out whether the upstream requires a login") == ["warning"])
        clients = [stack.enter_context(proxy.connect(4)) for _ in range(4)]
        for client in clients:
            client.send(requests("INCR n"))
        clients.pop().close()
        for client in clients:
            assert b"cannot find out whether the server requires a login" in client.rest()
        host, port = admin.split(":")
        status, why = Admin((host, int(port))).ask("/readyz")
        assert (status, "whether the server requires a login" in why) == (503, True)
        relay.asks = bytes
        until(lambda: levels(proxy, "login requirement of the upstream is known again") == ["info"])
        until(lambda: proxy.command("INCR", "n") == b":1\r\n")
        assert levels(proxy, "cannot find out whether the upstream requires a login") == ["warning"]
        assert proxy.process.end() == 0, proxy.process.output


def levels(proxy: Proxy, event: str) -> list[str]:
    """The levels at which an event has been logged."""
    return [line["level"] for line in proxy.log() if line["event"] == event]


def test_a_reply_without_an_end_is_not_kept() -> None:
    """It is a failure, as soon as it is longer than any reply."""

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        with contextlib.suppress(OSError):
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()

    async def ask() -> None:
        async with await asyncio.start_server(answers, "127.0.0.1", 0) as listening:
            host, port = listening.sockets[0].getsockname()

            async def connect(factory: Callable[[], asyncio.Protocol]) -> None:
                await asyncio.get_running_loop().create_connection(factory, host, port)

            with pytest.raises(ConnectionError, match="the first line of its reply is too long"):
                await LoginWatch(connect).ask()

    asyncio.run(ask())

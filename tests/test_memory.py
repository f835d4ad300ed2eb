"""What has been answered takes no memory any more, whatever it was; what is buffered is counted, wherever it stands."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from tests.admin import Admin, with_admin
from tests.certificates import Authority
from tests.conftest import StartProxy
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until
from tests.test_tls import flags, tls_server

MEGABYTE = 1 << 20
CLIENTS = 60
BIG = b"x" * (2 * MEGABYTE)

pytestmark = pytest.mark.one_kind


def _said(client: Raw, *args: str | bytes | int, by: bytes = b"") -> None:
    assert client.command(*args)[:1] in (by or b"+:*$")


def _in_multi(client: Raw) -> None:
    for arguments in (("MULTI",), ("MSET", "a", BIG, "b", BIG), ("CLIENT", "REPLY", BIG), ("SET", BIG, "1")):
        client.command(*arguments)
    _said(client, "DISCARD")


def _queued_words(client: Raw) -> None:
    _said(client, "MULTI")
    _said(client, "CLIENT", "REPLY", BIG)


def _expire(client: Raw) -> None:
    _said(client, "SADD", "set", BIG)
    _said(client, "EXPIREMEMBER", "set", BIG, 1000)


def _rewritten(client: Raw) -> None:
    _said(client, "SADD", "known", "member")
    _said(client, "EXPIREMEMBER", "known", "member", 1000)
    _said(client, "SADD", "known", BIG, BIG + b"1")


def _cut_off(client: Raw) -> None:
    client.send(request("MSET", "a", BIG, "b", BIG)[: 3 * MEGABYTE])
    client.end_of_requests()
    client.rest()


def _pushes(client: Raw) -> None:
    _said(client, "HELLO", 3, by=b"%")
    _said(client, "SUBSCRIBE", "news", by=b">")
    client.send_command("PUBLISH", "news", BIG)
    client.replies(2)
    _said(client, "UNSUBSCRIBE", by=b">")


def _inline(client: Raw) -> None:
    client.send(b"SET a " + b"x" * 60_000 + b"\r\n")
    assert client.reply() == b"+OK\r\n"


SHAPES: dict[str, Callable[[Raw], None]] = {
    "whole": lambda client: _said(client, "MSET", "a", BIG, "b", BIG),
    "streamed": lambda client: _said(client, "SET", "a", BIG + BIG),
    "rewritten": _rewritten,
    "of a huge member": _expire,
    "refused": lambda client: _said(client, "PEXPIREMEMBER", "set", "member", BIG, by=b"-"),
    "a name": lambda client: _said(client, "AUTH", BIG, "password", by=b"-"),
    "in MULTI": _in_multi,
    "words in MULTI": _queued_words,
    "cut off": _cut_off,
    "inline": _inline,
    "a big reply": lambda client: _said(client, "MGET", *["big"] * 4),
    "pushes": _pushes,
}


@pytest.mark.parametrize("shape", SHAPES)
def test_what_has_been_answered_is_not_kept(server: Server, start_proxy: StartProxy, shape: str) -> None:
    assert server.command("SET", "big", BIG) == b"+OK\r\n"
    proxy, admin = with_admin(start_proxy, server)
    _check_nothing_is_kept(proxy, admin, SHAPES[shape], 200_000)


def _check_nothing_is_kept(proxy: Proxy, admin: Admin, ask: Callable[[Raw], None], each: int) -> None:
    """Have clients ask one after another, and see that none of them keeps more than so many bytes."""
    process = psutil.Process(proxy.pid)
    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(CLIENTS)]
        for client in clients:
            _said(client, "PING")
        before = process.memory_info().rss
        for client in clients:
            ask(client)
        until(
            lambda: process.memory_info().rss - before < CLIENTS * each,
            what=lambda: f"the memory of {(process.memory_info().rss - before) / CLIENTS} bytes for each client",
        )
        until(lambda: admin.metrics()["held_bytes"] < CLIENTS * 4096, what="the end of what is counted")


def test_tls_keeps_little(start_server: Callable[..., Server], start_proxy: StartProxy, tmp_path: Path) -> None:
    """OpenSSL's buffers never shrink: what passes through them goes in pieces."""

    class Files:
        authority = Authority(tmp_path, "authority")
        server = authority.sign("server", "IP:127.0.0.1")

    _, port = tls_server(start_server, Files, Files.server)  # type: ignore[arg-type]
    options = ["--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=Files.authority.file)]
    proxy, admin = with_admin(start_proxy, None, *options)
    _check_nothing_is_kept(proxy, admin, SHAPES["whole"], 300_000)


def test_what_the_server_has_not_taken_is_counted(server: Server, start_proxy: StartProxy) -> None:
    proxy, admin = with_admin(start_proxy, server, "--held-limit", str(32 * MEGABYTE))
    with proxy.connect() as first, proxy.connect() as second:
        for client in (first, second):
            _said(client, "PING")
        assert server.process is not None
        server.process.send_signal(signal.SIGSTOP)
        try:
            first.send_command("MSET", "a", b"x" * (12 * MEGABYTE), "b", b"x" * (12 * MEGABYTE))
            until(lambda: admin.metrics()["held_bytes"] > 12 * MEGABYTE)
            with suppress(ConnectionError):
                second.send_command("MSET", "a", b"x" * (24 * MEGABYTE), "b", b"x")
            until(lambda: admin.metrics()["requests_refused_total{reason=held_limit}"] == 1)
        finally:
            server.process.send_signal(signal.SIGCONT)
        assert first.reply() == b"+OK\r\n"
        assert second.rest().startswith(b"-ERR expiremember-proxy: ")
        until(lambda: admin.metrics()["held_bytes"] == 0)
    proxy.stop()


def test_messages_do_not_wait_for_a_request_of_the_proxys_own(server: Server, start_proxy: StartProxy) -> None:
    """Of a client that shares, `WAIT` has a write in front, and both replies are taken out of the stream."""
    proxy = start_proxy(server)
    with proxy.connect() as client, server.connect() as other:
        _said(client, "HELLO", 3, by=b"%")
        for _ in range(200):
            _said(client, "SET", "k", "v")
        _said(client, "SUBSCRIBE", "news", by=b">")
        client.send_command("WAIT", 1, 0)
        until(lambda: b"blocked_clients:1\r" in server.command("INFO", "clients"))
        for number in range(3):
            assert other.command("PUBLISH", "news", f"message {number}") == b":1\r\n"
            assert b"message %d" % number in client.reply()
        unblocked = b":%d\r\n"
        for line in server.command("CLIENT", "LIST").splitlines():
            if b"cmd=wait" in line:
                assert other.command("CLIENT", "UNBLOCK", line.split()[0].removeprefix(b"id=")) == unblocked % 1
        assert client.reply() == b":0\r\n"
        assert client.command("PING") == b"+PONG\r\n"
    proxy.stop()

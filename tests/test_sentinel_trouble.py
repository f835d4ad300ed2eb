"""Sentinels that are wrong, late or no Sentinels at all, and servers that hang or change while somebody is at work."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from proxy.check.findings import Finding, Level
from proxy.ending import end
from tests.conftest import StartProxy, StartServer
from tests.keydb_files import closed
from tests.raw import request
from tests.relay import Pipe, Relay
from tests.sentinels import NAME, Sentinel
from tests.servers import Server, free_port, halt, until
from tests.test_check import found
from tests.test_events_command import events
from tests.test_import import Ended, bring, many
from tests.test_sentinel import (
    SERVED_SECONDS,
    TESTED,
    events_of,
    lone,
    start_with_admin,
    tell_of,
    until_asked_again,
    url_of,
)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


def hold_still(one: Server | Sentinel, stack: ExitStack) -> None:
    """Let it hang until the test ends."""
    assert one.process is not None
    halt(one.process.pid)
    stack.callback(one.process.send_signal, signal.SIGCONT)


def relayed(sentinel: Sentinel, stack: ExitStack) -> tuple[Relay, str]:
    """Put a relay before a Sentinel, which is then the only one that answers of three."""
    relay = stack.enter_context(Relay(sentinel.address))
    nowhere = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    return relay, f"redis+sentinel://{relay.url.removeprefix('redis://')},{nowhere}/{NAME}"


def test_a_primary_that_hangs_holds_up_nobody_at_the_next(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    hanging, other = start_server(TESTED[0]), start_server(TESTED[0])
    sentinel = lone(stack, hanging)
    hold_still(hanging, stack)
    proxy, _ = start_with_admin(start_proxy, url_of(sentinel), "--control-timeout", "0.5")
    tell_of(other, sentinel)
    until(lambda: events_of(proxy, "upstream switched"), what="a switch")
    with proxy.connect(timeout=SERVED_SECONDS) as client:
        assert client.command("PING") == b"+PONG\r\n"
    (line,) = until(lambda: events_of(proxy, "clients are served again"), what="the news of it")
    assert int(str(line["ms"])) < 1000 * SERVED_SECONDS
    proxy.stop()


def test_a_sweep_that_hangs_with_its_server_is_no_failure(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    hanging, other = start_server(TESTED[0]), start_server(TESTED[0])
    sentinel = lone(stack, hanging)
    proxy, _ = start_with_admin(start_proxy, url_of(sentinel))
    with proxy.connect() as client:
        # A known key is looked at four times a second.
        assert client.command("SADD", "s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s", "m", 100) == b":1\r\n"
        hold_still(hanging, stack)
        until_asked_again(sentinel)
        tell_of(other, sentinel)
        assert client.rest() == b""
    assert proxy.command("PING") == b"+PONG\r\n"
    until(lambda: events_of(proxy, "clients are served again"), what="the end of the switch")
    assert not events_of(proxy, "sweep failed")
    proxy.stop()


def test_a_foreign_sentinel_with_a_higher_epoch_is_outvoted(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    right, wrong = start_server(TESTED[0]), start_server(TESTED[0])
    right.command("SET", "where", "right")
    wrong.command("SET", "where", "wrong")
    foreign = lone(stack, wrong, f"sentinel config-epoch {NAME} 40")
    honest = [lone(stack, right, quorum=2) for _ in range(2)]
    url = url_of(foreign, *honest)
    findings: dict[str, Finding] = {}
    checking = threading.Thread(target=lambda: findings.update(found(url)), daemon=True)
    checking.start()
    proxy, admin = start_with_admin(start_proxy, url, "--connect-timeout", "1")
    status, text = admin.ask("/readyz")
    assert status == 503
    assert "the Sentinels disagree" in text
    assert f"127.0.0.1:{foreign.port} names 127.0.0.1:{wrong.port} (epoch 40)" in text
    assert b"is unavailable: the Sentinels disagree" in proxy.command("GET", "where")
    until(lambda: proxy.command("GET", "where") == b"$5\r\nright\r\n", 20, "the right primary")
    (line,) = until(lambda: events_of(proxy, "sentinels disagree"), what="a warning")
    assert f"127.0.0.1:{foreign.port} names 127.0.0.1:{wrong.port}" in str(line["told"])
    checking.join(20)
    assert findings["sentinels"].level is Level.WARNING
    assert f"2 of 3 name 127.0.0.1:{right.port} as the primary" in findings["sentinels"].text
    assert f"127.0.0.1:{foreign.port} names 127.0.0.1:{wrong.port}" in findings["sentinels"].text
    foreign.stop()
    until(lambda: events_of(proxy, "sentinels agree again"), what="an agreement")
    assert proxy.command("GET", "where") == b"$5\r\nright\r\n"
    assert not events_of(proxy, "upstream switched")
    proxy.stop()


def test_a_switch_of_long_ago_is_not_followed(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    """As the proxy reads it that stood still while the primary became another one, and this one again."""
    server, other = start_server(TESTED[0]), start_server(TESTED[0])
    sentinel = lone(stack, server)
    relay, url = relayed(sentinel, stack)
    proxy, _ = start_with_admin(start_proxy, url)
    message = f"{NAME} 127.0.0.1 {server.port} 127.0.0.1 {other.port}".encode()
    push = b">" + request("message", "+switch-master", message)[1:]
    late = iter([push])
    relay.answers = lambda data: next(late, b"") + data
    until_asked_again(sentinel)
    until(lambda: next(late, None) is None, what="the message")
    until_asked_again(sentinel)
    with proxy.connect() as client:
        assert client.command("SET", "k", "v") == b"+OK\r\n"
    assert server.command("GET", "k") == b"$1\r\nv\r\n"
    assert not events_of(proxy, "upstream switched")
    proxy.stop()


def test_what_answers_as_no_sentinel_does_is_told_in_plain_words(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    server = start_server(TESTED[0])
    sentinel = lone(stack, server)
    relay, url = relayed(sentinel, stack)
    proxy, admin = start_with_admin(start_proxy, url)

    def said() -> list[object]:
        about = f"127.0.0.1:{sentinel_port}"
        return [line["state"] for line in events_of(proxy, "sentinel cannot be used") if line["sentinel"] == about]

    sentinel_port = int(relay.url.rpartition(":")[2])
    for odd in (b">0\r\n", b">1\r\n$7\r\nmessage\r\n", b"%1\r\n*0\r\n:1\r\n"):
        before = len(relay.pipes)
        relay.answers = lambda data, odd=odd: odd if b"config-epoch" in data else data  # type: ignore[misc]
        until(lambda: len(relay.pipes) > before, what="another attempt")  # noqa: B023
    # The same to all, and never what it is waited for.
    before = len(relay.pipes)
    # (One that has subscribed already while the answers were others is not to stay.)
    awaited = (b"subscribe", b"PONG", b"config-epoch")
    relay.answers = lambda data: b"+HM\r\n" if any(word in data for word in awaited) else data
    until(lambda: len(relay.pipes) > before + 1, what="another attempt")
    assert said()[-1] == "its replies are not those of a Sentinel"
    relay.answers = bytes
    until(lambda: admin.metrics()["sentinels_up"] == 1, what="a Sentinel")
    until(lambda: events_of(proxy, "sentinel can be used again"), what="the end of it")
    assert proxy.command("PING") == b"+PONG\r\n"
    assert not any("exception" in line for line in proxy.log())
    proxy.stop()


def test_a_sentinel_that_hangs_up_again_and_again_is_told_once(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    """As a load balancer does whose Sentinel is gone."""
    server = start_server(TESTED[0])
    sentinel = lone(stack, server)
    relay, url = relayed(sentinel, stack)

    def hang_up(pipe: Pipe) -> None:
        with contextlib.suppress(OSError):
            pipe.near.shutdown(socket.SHUT_RDWR)

    def answer_once(data: bytes) -> bytes:
        if b"config-epoch" in data:
            threading.Timer(0.05, hang_up, relay.pipes[-1:]).start()
        return data

    relay.answers = answer_once
    proxy, _ = start_with_admin(start_proxy, url)
    until(lambda: len(relay.pipes) >= 6, 20, "attempts")
    port = relay.url.rpartition(":")[2]
    lines = [line for line in proxy.log() if line.get("sentinel") == f"127.0.0.1:{port}"]
    assert {line["event"] for line in lines} == {"sentinel cannot be used"}
    assert len(lines) <= 2  # it may end in the midst of an answer
    assert proxy.command("PING") == b"+PONG\r\n"
    proxy.stop()


def test_a_user_with_the_rights_of_the_documentation_needs_no_other(
    start_server: StartServer, start_proxy: StartProxy, stack: ExitStack
) -> None:
    """Neither PING nor, if need be, SUBSCRIBE."""
    server = start_server(TESTED[0])
    rights = "resetchannels -@all +hello +client +sentinel|master +sentinel|get-master-addr-by-name"
    sentinel = lone(stack, server, f"user follower on >secret {rights}", "requirepass admin")
    sentinel.password = "admin"
    more = ("--sentinel-user", "follower", "--sentinel-password", "secret")
    proxy, admin = start_with_admin(start_proxy, url_of(sentinel), *more)
    assert proxy.command("PING") == b"+PONG\r\n"
    assert admin.metrics()["sentinels_up"] == 1
    assert not events_of(proxy, "sentinel cannot be used")
    proxy.stop()


def test_a_sentinel_that_hangs_is_named_however_short_the_timeouts_are(
    start_server: StartServer, stack: ExitStack
) -> None:
    server = start_server(TESTED[0])
    sentinels = [lone(stack, server, quorum=2) for _ in range(3)]
    hold_still(sentinels[2], stack)
    url = url_of(*sentinels)
    findings = found(url, connect_timeout=0.5, control_timeout=0.5)
    assert findings["upstream"].level is Level.OK, findings["upstream"].text
    assert f"2 of 3 name 127.0.0.1:{server.port} as the primary" in findings["sentinels"].text
    assert f"127.0.0.1:{sentinels[2].port}: no answer in time" in findings["sentinels"].text
    assert events("list", "--upstream", url, "--connect-timeout", "0.3") == (0, "no rules\n")


def test_an_import_does_not_outlive_a_switch(start_server: StartServer, stack: ExitStack, tmp_path: Path) -> None:
    """What the old primary still acknowledges is lost with it."""
    server, other = start_server(TESTED[0]), start_server(TESTED[0])
    sentinel = lone(stack, server)
    file = tmp_path / "many.rdb"
    file.write_bytes(closed(b"".join(many(100, 10))))
    # A write waits there; nothing is wrong with the server.
    assert server.command("CLIENT", "PAUSE", 60_000, "WRITE") == b"+OK\r\n"
    ended: list[Ended] = []
    more = ("--upstream", url_of(sentinel), "--control-timeout", "60")
    importing = threading.Thread(target=lambda: ended.append(bring("--rdb", file, *more)), daemon=True)
    importing.start()
    until(lambda: re.search(rb" name=expiremember-proxy .* flags=P?b", server.command("CLIENT", "LIST")), 30, "a write")
    tell_of(other, sentinel)
    importing.join(10)
    server.command("CLIENT", "UNPAUSE")
    importing.join(30)
    assert ended[0].status == 1, ended[0]
    assert "if there was a failover, repeat the import" in ended[0].complained


def test_events_are_not_followed_at_a_server_that_is_the_primary_no_more(
    start_server: StartServer, stack: ExitStack
) -> None:
    server, other = start_server(TESTED[0]), start_server(TESTED[0])
    sentinel = lone(stack, server)
    ended: list[tuple[int, str]] = []
    words = ("tail", "expired", "--follow", "--upstream", url_of(sentinel))
    following = threading.Thread(target=lambda: ended.append(events(*words)), daemon=True)
    following.start()
    until(lambda: b"cmd=xread" in server.command("CLIENT", "LIST"), what="a reader")
    tell_of(other, sentinel)
    following.join(20)
    ((status, said),) = ended
    assert status == 2
    assert "there was a failover; repeat the command" in said


def test_tasks_have_ended_although_who_ends_them_is_cancelled() -> None:
    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.05)
            raise OSError("as it ended")

    async def main() -> None:
        task = asyncio.create_task(slow_to_end())
        await asyncio.sleep(0)
        ending = asyncio.create_task(end([task]))
        await asyncio.sleep(0)
        ending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await ending
        assert task.done()

    asyncio.run(main())

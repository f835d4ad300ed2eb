"""However many connections have much to send at once, others are served in between."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
import time
from contextlib import ExitStack
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.relay.turns import TurnQueue
from proxy.session.turns import BYTES, REQUESTS, RUNS, Turns
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, request
from tests.servers import KIND, Proxy, Server, halt, until
from tests.streams import cuts
from tests.test_hostile import login_url, worst_answer
from tests.test_session import Driver, run_streams, without_signs

CROWD = 100


def test_a_turn_is_the_shorter_the_more_there_are_who_wait() -> None:
    turns = Turns()
    assert (turns.requests, turns.runs, turns.bytes) == (REQUESTS, RUNS, BYTES)
    turns.waiting = 1
    assert turns.requests <= REQUESTS // 2
    turns.waiting = 1_000_000
    assert turns.requests > 0
    assert turns.runs > 0
    assert turns.bytes > 0


def comparable(sent: bytes) -> bytes:
    """Without tokens, and as if no line had an odd end: of a long request the head goes before its last line comes."""
    return re.sub(rb"[0-9a-f]{32}", b"", sent).replace(b"\r?", b"\r\n")


@settings(max_examples=40)
@given(st.data(), st.integers(0, 40), st.sampled_from([b"GET", b"PING", b"SADD"]))
def test_what_is_judged_in_short_turns_is_judged_as_at_once(data: st.DataObject, waiting: int, name: bytes) -> None:
    """Also where requests that can go as they came are cut anywhere, and what cannot comes behind them."""
    many = request(name, "x", "y") * 1_500
    stream = many + data.draw(run_streams) + many
    short, whole = Driver("k1", "k2"), Driver("k1", "k2")
    short.ground.turns.waiting = waiting
    short.feed(*data.draw(cuts(stream)))
    whole.feed(stream)
    alike = comparable(without_signs(short.sent)) == comparable(without_signs(whole.sent))
    assert alike, stream[9000:11_000]  # to tell the difference of long texts would take for ever
    assert short.session.held == whole.session.held


def test_turns_come_in_order_and_the_loop_has_its_own_in_between() -> None:
    async def run() -> tuple[list[int], int]:
        turns, seen, looks = Turns(), list[int](), 0
        queue, ended = TurnQueue(turns), asyncio.Event()

        def work(number: int) -> None:
            end = time.monotonic() + 0.004
            while time.monotonic() < end:
                pass
            seen.append(number)
            if number < 50:
                queue.join(partial(work, number + 50))
            elif number == 99:
                ended.set()

        for number in range(50):
            queue.join(partial(work, number))
        assert turns.waiting == 50
        while not ended.is_set():
            looks += 1
            await asyncio.sleep(0)
        assert turns.waiting == 0
        assert not queue.is_busy
        return seen, looks

    seen, looks = asyncio.run(run())
    assert seen == list(range(100))
    assert looks > 20  # of 0.4 s in all


def test_what_has_been_answered_does_not_wait_for_all_others() -> None:
    async def run() -> list[int]:
        queue, seen, ended = TurnQueue(Turns()), list[int](), asyncio.Event()
        for number in range(100):
            queue.join(partial(seen.append, number))
        for number in range(100, 105):
            queue.join(partial(seen.append, number), answered=True)
        queue.join(ended.set)
        await ended.wait()
        return seen

    seen = asyncio.run(run())
    assert sorted(seen) == list(range(105))
    assert [number for number in seen if number < 100] == list(range(100))
    assert [number for number in seen[:10] if number >= 100] == list(range(100, 105))


def test_long_turns_of_what_has_been_answered_leave_every_second_one_to_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each takes as long as the sockets may wait, and its connection has another one at once."""
    monkeypatch.setattr("proxy.relay.turns._SECONDS", 0.0)

    async def run() -> list[str]:
        queue, seen, ended = TurnQueue(Turns()), list[str](), asyncio.Event()

        def go_on() -> None:
            seen.append("answered")
            if len(seen) < 100:
                queue.join(go_on, answered=True)
            else:
                ended.set()

        queue.join(go_on, answered=True)
        for _ in range(3):
            queue.join(partial(seen.append, "other"))
        await ended.wait()
        return seen

    assert asyncio.run(run())[:8].count("other") == 3


def test_a_turn_that_fails_takes_no_other_away() -> None:
    async def run() -> None:
        queue = TurnQueue(Turns())
        errors: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
        queue.join(lambda: [].remove(0))  # type: ignore[arg-type]
        ended = asyncio.Event()
        queue.join(ended.set)
        await ended.wait()
        assert len(errors) == 1

    asyncio.run(run())


def check_a_crowd(proxy: Proxy, data: bytes) -> None:
    """Many send at one moment: for that the proxy is stopped meanwhile, which is what a network does by chance."""
    with ExitStack() as stack:
        crowd = [stack.enter_context(proxy.connect()) for _ in range(CROWD)]
        for one in crowd:
            one.socket.setblocking(False)
        with worst_answer(proxy) as times:
            halt(proxy.pid)
            try:
                for one in crowd:
                    one.send(data)
            finally:
                began = time.monotonic()
                os.kill(proxy.pid, signal.SIGCONT)
            until(lambda: time.monotonic() > began + 2, 4, "the time in which the crowd is served")
        # The first answer had to wait for the end of the stop.
        assert sorted(times)[-2] < 0.8


@pytest.mark.parametrize("line", [b"a\n", b"PING\r\n", request("PING"), request("SADD", "known", "m", "n")])
def test_a_crowd_holds_nobody_up(start_server: StartServer, start_proxy: StartProxy, line: bytes) -> None:
    proxy = start_proxy(start_server(KIND))
    with proxy.connect() as client:
        client.command("SADD", "known", "m")
        client.command("EXPIREMEMBER", "known", "m", 1000)
    check_a_crowd(proxy, line * (16_000 // len(line)))


def test_a_crowd_of_strangers_holds_nobody_up(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KIND, "--requirepass", "secret")
    proxy = start_proxy(server, "--upstream", login_url(server))
    check_a_crowd(proxy, b"a\n" * 8_000)


def test_many_clients_give_first_deadlines_at_once(start_server: StartServer, start_proxy: StartProxy) -> None:
    """Each waits for the pipelines of the others, and no other proxy is there that could not be told."""
    proxy = start_proxy(start_server(KIND))
    count, pairs = 40, 500
    replies: list[bytes] = []

    def load(client: Raw, number: int) -> None:
        keys = [f"{number}:{place}" for place in range(pairs)]
        client.send(b"".join(request("SADD", key, "m") + request("EXPIREMEMBER", key, "m", 1000) for key in keys))
        replies.extend(client.replies(2 * pairs))

    with ExitStack() as stack:
        clients = [stack.enter_context(proxy.connect()) for _ in range(count)]
        threads = [threading.Thread(target=load, args=(client, number)) for number, client in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert replies == [b":1\r\n"] * (2 * pairs * count)


LIMIT = 64 * 1024


def test_no_key_with_a_long_name_gets_deadlines(upstream: Server, proxy: Proxy) -> None:
    """Servers tell the proxies of each key that gets some, and end a connection to which they have too much to tell."""
    just, long = "j" * LIMIT, "l" * (LIMIT + 1)
    refused = b"-ERR expiremember-proxy: a key with member deadlines may have a name of 65536 bytes at most\r\n"
    with proxy.connect() as client:
        for key in (just, long, "~"):
            assert client.command("SADD", key, "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", just, "m", 1000) == b":1\r\n"
        assert client.command("EXPIREMEMBER", long, "m", 1000) == refused
        assert client.command("TTL", long, "m") == b":-1\r\n"
        assert client.command("RENAME", "~", long) == b"+OK\r\n"  # where none can have deadlines every name will do
        assert client.command("SADD", "k", "m") == client.command("EXPIREMEMBER", "k", "m", 1000) == b":1\r\n"
        assert client.command("RENAME", "k", long) == refused
        assert client.command("COPY", "k", long, "REPLACE") == refused
        assert client.command("TTL", "k", "m") == b":1000\r\n"
        assert client.command("MULTI") == b"+OK\r\n"
        assert client.command("EXPIREMEMBER", long, "m", 1000) == refused
        assert client.command("EXEC").startswith(b"-EXECABORT")
        assert client.command("EXISTS", long) == b":1\r\n"

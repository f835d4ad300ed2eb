"""The states of a client's connection: every event in every state, over transports that are not there."""

from __future__ import annotations

import asyncio
import gc
import itertools
import re
import socket
import struct
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from proxy.commands.described import ServerCommands
from proxy.coverage.coverage import Coverage
from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.relay.budget import HeldBudget
from proxy.relay.client import ClientConnection
from proxy.relay.fence import Fence
from proxy.relay.inspection import Doing
from proxy.relay.lanes import Lanes
from proxy.relay.state import State
from proxy.relay.turns import TurnQueue
from proxy.relay.upstream import UpstreamConnection
from proxy.scripts.naming import Names
from proxy.session.ground import Ground
from proxy.session.pipeline import Pipeline
from proxy.session.question import Question
from proxy.session.rewrite import Rewriter
from proxy.session.session import Session
from proxy.session.turns import REQUESTS
from proxy.wire.request import RequestReader


class Wire(asyncio.Transport):
    """A transport to nowhere: notes what is done to it."""

    def __init__(self, *, halves: bool = True) -> None:
        super().__init__()
        self.written = b""
        self.journal: list[bytes] = []  # may be that of several
        self.ended = self.closed = self.paused = False
        self._halves = halves
        self._protocol: asyncio.BaseProtocol | None = None
        self.socket: socket.socket | None = None

    def write(self, data: Any) -> None:
        assert not self.ended or not data, "written behind the end"
        self.written += data
        self.journal.append(data)

    def write_eof(self) -> None:
        self.ended = True

    def can_write_eof(self) -> bool:
        return self._halves

    def get_write_buffer_size(self) -> int:
        return 1  # it is never done: there is no socket to be shut down

    def is_reading(self) -> bool:
        return not self.paused

    def pause_reading(self) -> None:
        self.paused = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self.socket if name == "socket" else default

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_soon(self._end)

    def abort(self) -> None:
        self.close()

    def say(self, data: bytes) -> None:
        """Have the other side say something."""
        cast(asyncio.Protocol, self._protocol).data_received(data)

    def _end(self) -> None:
        if self._protocol is not None:
            self._protocol.connection_lost(None)


class Answering(Wire):
    """A transport to a server that says whose a connection is, that it knows no other name, or OK."""

    def __init__(self, *, halves: bool = True) -> None:
        super().__init__(halves=halves)
        self.silent = False
        self._reader = RequestReader()

    def write(self, data: Any) -> None:
        super().write(data)
        self._reader.feed(data)
        asyncio.get_running_loop().call_soon(self.answer)

    def answer(self) -> None:
        """Answer all that has come."""
        while not (self.silent or self.closed) and (request := self._reader.next_request()) is not None:
            if request.arguments:
                self._protocol.data_received(self._reply(request.arguments))  # type: ignore[union-attr]

    @staticmethod
    def _reply(words: list[bytes]) -> bytes:
        if words == [b"CLIENT", b"INFO"]:
            told = b"id=1 flags=N db=0 sub=0 psub=0 ssub=0 multi=-1 user=default resp=2\n"
            return b"$%d\r\n%b\r\n" % (len(told), told)
        if words[0].upper() in (b"GET", b"INCR", b"HSET", b"SMEMBERS", b"CLIENT"):
            return b"+OK\r\n"
        if words[0].upper() == b"ECHO":
            return b"$%d\r\n%b\r\n" % (len(words[1]), words[1])
        return b"-ERR unknown command '%b', with args beginning with: \r\n" % words[0]


class Credentials:
    """No password."""

    user = b"default"
    login = ()


class World:
    """A connection amid surroundings that answer when they are told to."""

    def __init__(self, *, halves: bool = True) -> None:
        names = Names(b"__expiremember__:")
        self.coverage = Coverage()
        self.coverage.loaded = True
        self.coverage.see()
        self.coverage.learn([b"known"])
        self.coverage.confirm(self.coverage.entries)
        self.clock = 1000.0
        rewriter = Rewriter(names, self.coverage, ServerCommands())
        self.ground = Ground(rewriter, self.coverage, 1 << 20, now=self.now)
        self.lanes: Lanes | None = None
        self.queue = TurnQueue(self.ground.turns)
        self.held = HeldBudget(1 << 20, 1 << 20)
        self.metrics = Metrics()
        self.traffic = Traffic(self.metrics)
        self.is_plain = self.ground.checks.is_plain
        self.answered = asyncio.Event()
        self.connected = asyncio.Event()
        self.living: set[ClientConnection] = set()
        self.metrics = Metrics()
        self.traffic = Traffic(self.metrics)
        self.errors: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.errors.append(context))
        self.client = ClientConnection(self)
        self.near, self.far = Wire(), Wire(halves=halves)
        self.shared: list[Answering] = []  # connections
        self.near.set_protocol(self.client)
        self.client.connection_made(self.near)

    @property
    def state(self) -> State:
        return self.client._course.state

    def new_session(self) -> Session:
        return Session(self.ground)

    def orphan(self, pipeline: Pipeline) -> None:
        self.ground.streams.ran(pipeline)

    def now(self) -> float:
        return self.clock

    async def connect_upstream(self, factory: Callable[[Fence], asyncio.Protocol]) -> None:
        await self.connected.wait()
        upstream = cast(UpstreamConnection, factory(Fence()))
        self.far.set_protocol(upstream)
        upstream.connection_made(self.far)

    def upstream_error(self, error: Exception) -> bytes:
        return b"-ERR %b\r\n" % str(error).encode()

    async def answer(self, question: Question) -> None:
        await self.answered.wait()
        self.coverage.confirm(question.covers)

    async def inspect(self, near: bytes | None) -> Doing:
        return Doing.UNKNOWN

    async def round_trip(self) -> None:
        await self.answered.wait()

    def opened(self, connection: ClientConnection) -> None:
        self.living.add(connection)

    def closed(self, connection: ClientConnection) -> None:
        self.living.discard(connection)

    async def settle(self) -> None:
        """Let everything happen that can."""
        for _ in range(60):
            await asyncio.sleep(0)

    def send(self, data: bytes) -> None:
        if not self.near.paused and not self.near.closed:
            self.client.data_received(data)

    async def share(self) -> None:
        """Have the client share."""
        self.far = Answering(halves=self.far.can_write_eof())
        self.lanes = Lanes(self.ground, self._open_shared, Credentials(), self.traffic, self.metrics, 1)
        self.connected.set()
        for _ in range(3):
            await self.settle()
            self.send(SMALL_REQUEST)
        await self.settle()
        assert [wire.written.count(SMALL_REQUEST) for wire in self.shared] == [0, 1], "it does not share"
        assert self.near.written.count(b"+OK\r\n") == 3

    async def _open_shared(self, factory: Callable[[Fence], asyncio.Protocol]) -> None:
        wire, lane = Answering(), factory(Fence())
        self.shared.append(wire)
        wire.set_protocol(lane)
        lane.connection_made(wire)

    def shared_answers(self) -> None:
        for wire in self.shared:
            wire.silent = False
            wire.answer()

    # What happens.

    def client_leaves(self) -> None:
        self.near.close()

    def client_ends(self) -> None:
        if not self.near.paused and not self.near.closed and not self.client.eof_received():
            self.near.close()

    def server_goes(self) -> None:
        if self.connected.is_set():
            self.far.close()

    def proxy_stops(self) -> None:
        self.client.finish()

    def proxy_gives_up(self) -> None:
        self.client.abandon()

    def time_runs_out(self) -> None:
        self.client.cut_short()

    def shared_goes(self) -> None:
        for wire in self.shared:
            wire.close()

    def client_reads_nothing(self) -> None:
        self.client.pause_writing()

    def server_is_stuffed(self) -> None:
        if isinstance(upstream := self.far._protocol, UpstreamConnection):
            upstream.pause_writing()

    def server_is_free(self) -> None:
        if isinstance(upstream := self.far._protocol, UpstreamConnection):
            upstream.resume_writing()


EVENTS = (
    World.client_leaves,
    World.client_ends,
    World.server_goes,
    World.proxy_stops,
    World.proxy_gives_up,
    World.time_runs_out,
    World.server_is_stuffed,
    World.client_reads_nothing,
)
COUNT = REQUESTS + 10
JUDGED = b"hset known f 5\n" + b"incr x\n" * COUNT
"""More than is judged in one turn, as it begins with a known key."""

SMALL_REQUEST = b"*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"


async def connecting(_: World) -> int:
    return 0


async def connecting_with_requests(world: World) -> int:
    world.send(JUDGED)
    return COUNT


async def relaying(world: World) -> int:
    world.connected.set()
    await world.settle()
    world.send(b"incr x\n")
    assert world.state is State.RELAYING
    return 1


async def relaying_in_turns(world: World) -> int:
    count = await relaying(world)
    world.send(JUDGED)
    assert world.state is State.RELAYING
    assert world.far.written.count(b"incr x\n") < count + COUNT
    return count + COUNT


async def relaying_stuffed(world: World) -> int:
    count = await relaying_in_turns(world)
    world.server_is_stuffed()
    return count


async def held(world: World) -> int:
    count = await relaying(world)
    world.send(b"expiremember first m 5\n" + JUDGED)
    await world.settle()
    assert world.state is State.HELD
    return count + COUNT


async def sharing(world: World) -> int:
    await world.share()
    return 0


async def sharing_with_a_request_to_be_sent(world: World) -> int:
    await world.share()
    world.send(SMALL_REQUEST)
    assert [wire.written.count(SMALL_REQUEST) for wire in world.shared] == [0, 1]
    return 0


async def sharing_with_a_request_under_way(world: World) -> int:
    await world.share()
    world.shared[1].silent = True
    world.send(SMALL_REQUEST)
    await world.settle()
    assert [wire.written.count(SMALL_REQUEST) for wire in world.shared] == [0, 2]
    return 0


async def leaving_what_is_shared(world: World) -> int:
    await sharing_with_a_request_under_way(world)
    world.send(b"incr x\n")
    await world.settle()
    assert b"incr x" not in world.far.written
    return 1


async def finishing_what_is_shared(world: World) -> int:
    count = await leaving_what_is_shared(world)
    world.proxy_stops()
    assert world.state is State.FINISHING
    return count


async def finishing(world: World) -> int:
    count = await held(world)
    world.proxy_stops()
    assert world.state is State.FINISHING
    return count


async def finishing_before_it_began(world: World) -> int:
    world.send(JUDGED)
    world.proxy_stops()
    assert world.state is State.FINISHING
    return COUNT


async def orphaned(world: World) -> int:
    count = await held(world)
    world.client_leaves()
    await world.settle()
    assert world.state is State.ORPHANED
    return count


async def orphaned_before_it_began(world: World) -> int:
    world.send(JUDGED)
    world.client_leaves()
    await world.settle()
    assert world.state is State.ORPHANED
    return COUNT


async def ended(world: World) -> int:
    count = await relaying(world)
    world.client_ends()
    assert world.state is State.ENDED
    return count


async def draining(world: World) -> int:
    count = await relaying(world)
    world.proxy_stops()
    assert world.state is State.DRAINING
    return count


async def turned_away_while_held(world: World) -> int:
    await held(world)
    world.held.limit = 0
    world.client.data_received(b"x" * 100_000)
    assert world.state is State.DRAINING
    return 1


HUGE = b"*1\r\n$1000000000\r\n"


async def refused(world: World) -> int:
    count = await relaying(world)
    world.send(HUGE)
    assert world.state is State.REFUSED
    return count


async def refused_in_silence(world: World) -> int:
    count = await relaying(world)
    world.send(b"client reply off\n" + HUGE)
    assert world.state is State.REFUSED
    return count


async def farewell(world: World) -> int:
    count = await relaying(world)
    world.server_goes()
    await world.settle()
    assert world.state is State.FAREWELL
    return count


async def closed(world: World) -> int:
    count = await relaying(world)
    world.client_leaves()
    await world.settle()
    assert world.state is State.CLOSED
    return count


STATES = (
    connecting,
    connecting_with_requests,
    relaying,
    relaying_in_turns,
    relaying_stuffed,
    held,
    sharing,
    sharing_with_a_request_to_be_sent,
    sharing_with_a_request_under_way,
    leaving_what_is_shared,
    finishing_what_is_shared,
    finishing,
    finishing_before_it_began,
    orphaned,
    orphaned_before_it_began,
    ended,
    draining,
    turned_away_while_held,
    refused,
    refused_in_silence,
    farewell,
    closed,
)


@pytest.mark.parametrize("halves", [True, False], ids=["tcp", "tls"])
@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__)
def test_every_event_in_every_state(
    monkeypatch: pytest.MonkeyPatch, reach: Callable[[World], Awaitable[int]], halves: bool
) -> None:
    """Whatever happens, twice: it ends, nothing fails or stays behind, and what came before has gone upstream."""
    failures: list[BaseException] = []
    monkeypatch.setattr(ClientConnection, "fail", lambda _, error: failures.append(error))
    monkeypatch.setattr("proxy.relay.lanes.AGAIN_SECONDS", 0)

    async def play(events: tuple[Callable[[World], None], ...]) -> None:
        world = World(halves=halves)
        count = await reach(world)
        for event in events:
            event(world)
            await world.settle()
        world.answered.set()
        world.connected.set()
        world.server_is_free()
        world.shared_answers()
        await world.settle()
        if not set(events) & _LOSING:
            assert world.far.written.count(b"incr x\n") == count
        # What is still there ends by itself, or when the other side does.
        if world.far.ended:
            world.far.close()
        await world.settle()
        for wire in (world.near, world.far):
            wire.close()
            await world.settle()
        assert not failures
        assert not world.errors
        assert world.state is State.CLOSED
        assert not world.living
        assert not world.held.total
        assert len(asyncio.all_tasks()) == 1

    for events in itertools.product(EVENTS if "shar" not in reach.__name__ else (*EVENTS, World.shared_goes), repeat=2):
        asyncio.run(play(events))


@pytest.mark.parametrize("halves", [True, False], ids=["tcp", "tls"])
@pytest.mark.parametrize("reach", STATES, ids=lambda reach: reach.__name__)
def test_nothing_of_a_client_that_has_gone_is_left_to_the_collector(
    reach: Callable[[World], Awaitable[int]], halves: bool
) -> None:
    """It runs seldom, and until then what one of many clients has sent would stay."""

    async def play() -> None:
        world = World(halves=halves)
        await reach(world)
        world.answered.set()
        world.connected.set()
        world.server_is_free()
        world.shared_answers()
        await world.settle()
        for wire in (world.near, world.far, *world.shared):
            wire.close()
            await world.settle()
            wire.set_protocol(asyncio.Protocol())
        assert world.state is State.CLOSED
        client = weakref.ref(world.client)
        del world.client
        assert client() is None

    gc.collect()
    gc.disable()
    try:
        asyncio.run(play())
    finally:
        gc.enable()


_LOSING = {World.server_goes, World.proxy_gives_up, World.time_runs_out, World.shared_goes}


def echo(sent: bytes) -> bytes:
    """What a server says to the last silent sign."""
    return b"$32\r\n%b\r\n" % re.findall(rb"ECHO\r\n\$32\r\n([0-9a-f]{32})", sent)[-1]


@pytest.mark.parametrize(
    "reach", [finishing_what_is_shared, finishing, finishing_before_it_began], ids=lambda reach: reach.__name__
)
def test_what_comes_after_the_proxy_has_begun_to_stop_is_not_taken(reach: Callable[[World], Awaitable[int]]) -> None:
    """But it is read: a client that sends everything before it reads a reply would never read one."""

    async def play() -> None:
        world = World()
        count = await reach(world)
        world.connected.set()
        await world.settle()
        assert not world.near.paused
        world.send(b"incr x\n" * 100)
        assert world.held.total < 100_000
        world.answered.set()
        world.shared_answers()
        await world.settle()
        assert world.far.written.count(b"incr x\n") == count
        world.client.abandon()
        await world.settle()

    asyncio.run(play())


def test_when_time_runs_out_what_runs_is_answered_and_nothing_more_is_sent() -> None:
    async def play() -> None:
        world = World()
        count = await finishing(world)
        assert world.client.cut_short()
        assert world.state is State.DRAINING
        sent = world.far.written
        world.answered.set()
        await world.settle()
        assert world.far.written == sent
        assert sent.count(b"incr x\n") == count - COUNT
        world.far.say(b":1\r\n" * (count - COUNT) + echo(sent))
        assert world.near.written == b":1\r\n" * (count - COUNT)
        assert cast(State, world.state) is State.FAREWELL
        world.client.abandon()
        await world.settle()

    asyncio.run(play())


def test_when_time_runs_out_nothing_follows_a_shared_request() -> None:
    """What waited for its reply does not run any more; the reply arrives."""

    async def play() -> None:
        world = World()
        await finishing_what_is_shared(world)
        assert world.client.cut_short()
        before = world.near.written.count(b"+OK\r\n")
        world.shared_answers()
        await world.settle()
        assert world.near.written.count(b"+OK\r\n") == before + 1
        assert b"incr x" not in world.far.written
        assert world.state is State.FAREWELL
        world.client.abandon()
        await world.settle()

    asyncio.run(play())


def test_who_is_refused_waits_for_what_stands_in_front(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is blocked there says nothing of the request at which it will close."""
    monkeypatch.setattr("proxy.relay.ending.PATIENCE_SECONDS", 0.01)

    async def play() -> None:
        world = World()
        await relaying(world)
        world.far.say(b":1\r\n")
        world.send(b"blpop q 0\n" + HUGE)
        await asyncio.sleep(0.1)
        assert world.state is State.REFUSED
        world.far.say(b"$3\r\njob\r\n" + echo(world.far.written))
        await asyncio.sleep(0.1)
        assert world.near.written.startswith(b":1\r\n$3\r\njob\r\n-ERR Protocol error")
        assert cast(State, world.state) is State.FAREWELL
        world.client.abandon()
        await world.settle()

    asyncio.run(play())


def test_the_end_of_who_is_refused_reaches_the_server() -> None:
    """It may be blocked in front, and what others bring is not for a client that has gone."""

    async def play() -> None:
        world = World()
        await relaying(world)
        world.send(b"blpop q 0\n" + HUGE)
        world.client_ends()
        assert world.far.ended
        world.client.abandon()
        await world.settle()

    asyncio.run(play())


@pytest.mark.parametrize("ends_first", [False, True])
def test_the_end_of_who_is_silent_is_told_when_the_server_is_at_a_request_that_blocks(ends_first: bool) -> None:
    """Until then replies that are dropped may be unsent, and behind them one that the client wants."""

    async def play() -> None:
        world = World()
        await relaying(world)
        world.far.say(b":1\r\n")
        world.send(b"client reply off\nblpop q 0\nclient reply on\n")
        opens, front, _ = re.findall(rb"ECHO\r\n\$32\r\n([0-9a-f]{32})", world.far.written)
        said = b"$32\r\n%b\r\n+OK\r\n" % opens, b"$32\r\n%b\r\n" % front
        if ends_first:
            world.client_ends()
            await world.settle()
            for part in said:
                assert not world.far.ended
                world.far.say(part)
        else:
            world.far.say(b"".join(said))
            world.client_ends()
        assert world.far.ended
        world.client.abandon()
        await world.settle()

    asyncio.run(play())


def test_what_waits_for_the_end_of_a_turn_goes_before_anything_is_judged() -> None:
    """A key's first deadline is to come behind what was judged without it."""

    async def play() -> None:
        world = World()
        await sharing_with_a_request_to_be_sent(world)
        world.far, wire = Wire(), world.shared[1]
        other, near = ClientConnection(world), Wire()
        near.set_protocol(other)
        other.connection_made(near)
        await world.settle()
        world.send(SMALL_REQUEST)
        before = wire.written.count(SMALL_REQUEST)
        other.data_received(b"*4\r\n$12\r\nEXPIREMEMBER\r\n$1\r\nk\r\n$1\r\na\r\n$1\r\n5\r\n")
        assert wire.written.count(SMALL_REQUEST) == before + 1
        assert b"eval" not in world.far.written.lower()
        world.answered.set()
        await world.settle()
        assert b"eval" in world.far.written.lower()
        for wires in (near, world.near, *world.shared):
            wires.close()
        await world.settle()

    asyncio.run(play())


def test_what_goes_in_short_turns_is_long_all_the_same() -> None:
    """Others' first deadlines wait for a long pipeline, which the server may not have read yet."""

    async def play() -> None:
        world = World()
        await relaying(world)
        assert not world.ground.streams.pipelines
        world.ground.turns.waiting = 100
        world.send(b"incr x\n" * 400)
        assert 0 < world.far.written.count(b"incr x\n") < 50
        assert world.ground.streams.pipelines
        await world.settle()

    asyncio.run(play())


@pytest.mark.parametrize(
    ("resets", "reads", "noticed"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_a_reset_by_the_server_is_noticed_while_the_client_reads_nothing(
    monkeypatch: pytest.MonkeyPatch, resets: bool, reads: bool, noticed: bool
) -> None:
    """Nothing is read from it meanwhile, so the loop does not see it. Who reads on is left its time; and behind a mere
    close a reply may stand that is still to be read."""
    monkeypatch.setattr("proxy.relay.upstream.LINGER_SECONDS", 0.3)

    async def play() -> bool:
        world = World()
        await relaying(world)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            near = socket.create_connection(listening.getsockname())
            far, _ = listening.accept()
        with near, far:
            far.send(b"$9\r\nthe reply\r\n")
            near.shutdown(socket.SHUT_WR)
            world.far.socket = near
            world.client.pause_writing()
            for number in range(80):
                await asyncio.sleep(0.02)
                if number == 20:
                    assert not world.far.closed
                    if resets:
                        far.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    far.close()
                if reads:
                    world.client.resume_writing()
                    world.client.pause_writing()
            return world.far.closed

    assert asyncio.run(play()) is noticed


def test_a_slow_client_by_tls_is_given_its_time_at_the_end() -> None:
    """Behind its own word of the end TLS waits for 30 s, whatever the other side still has to read."""

    async def play() -> None:
        world = World()
        world.near.can_write_eof = lambda: False  # type: ignore[method-assign]
        await relaying(world)
        world.server_goes()
        await world.settle()
        assert world.state is State.FAREWELL
        assert not world.near.closed, "something is still to be sent"
        world.client.abandon()
        await world.settle()
        other = World()
        other.near.can_write_eof = lambda: False  # type: ignore[method-assign]
        other.near.get_write_buffer_size = lambda: 0  # type: ignore[method-assign]
        await relaying(other)
        other.server_goes()
        await other.settle()
        assert other.near.closed

    asyncio.run(play())


def test_who_leaves_before_the_server_is_connected_leaves_no_attempt() -> None:
    async def run() -> None:
        world = World()
        attempt = world.client._connecting
        assert attempt is not None
        await world.settle()
        world.client_leaves()
        await world.settle()
        assert attempt.cancelled()
        assert not world.living
        assert not world.errors

    asyncio.run(run())


def test_who_has_sent_nothing_leaves_nothing_for_the_server() -> None:
    """Whether it ends in order or resets; the server may hang."""

    async def run() -> None:
        world = World()
        world.connected.set()
        await world.settle()
        assert world.state is State.RELAYING
        world.client_leaves()
        await world.settle()
        assert world.far.closed
        assert not world.living

    asyncio.run(run())

"""Looking after a client that has ended: when it is taken for one that the server does not come to."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, Final, cast

import pytest
from redis.exceptions import ResponseError

from proxy.relay import vigil
from proxy.relay.inspection import REST_SECONDS, Doing, Inspection, doing_in
from proxy.relay.progress import Progress
from proxy.relay.state import Course
from proxy.relay.upstream import UpstreamConnection
from proxy.relay.vigil import MOST_UNREAD, READ_AT_ONCE, Vigil
from proxy.session.outgoing import Blocker
from proxy.session.session import Session
from tests.servers import Server, until


class Host:
    """A client that has ended in order."""

    def __init__(
        self, *, may_block: bool = True, behind: int = 0, answers_at: int = 1 << 30, does: Doing = Doing.BLOCKED
    ) -> None:
        self.awaits = self.has_left = self.is_heard = self.is_taken = True
        self.ended = False
        self.drops = True
        self.may_block = may_block
        self.unsigned = False
        self.does = does
        self.asked = 0
        self._behind, self._answers_at = behind, answers_at
        self.trips = 0
        self.given_up = False

    def has_gone(self) -> bool:
        return True

    def behind(self) -> int:
        return self._behind

    def heard(self) -> int:
        return self.answered()

    def answered(self) -> int:
        """Return 1 when so many round trips were made: then the last request has been answered."""
        self.awaits = self.trips < self._answers_at
        return int(not self.awaits)

    async def round_trip(self) -> None:
        self.trips += 1

    async def doing(self) -> Doing:
        self.asked += 1
        return self.does

    def note_silence(self, *, silent: bool) -> None:
        pass

    def vigil_ended(self) -> None:
        pass

    def give_up(self) -> None:
        self.given_up, self.awaits = True, False


@pytest.mark.parametrize(
    ("sent", "later", "behind"),
    [(500, 100_700, 200), (0, 100_200, 200), (0, 0, 0)],
    ids=["TCP", "the first bytes", "unknown"],
)
def test_what_stands_in_front_of_a_request_that_blocks_is_not_behind_it(sent: int, later: int, behind: int) -> None:
    """Where the system does not count, as for a Unix socket, nothing is known of either."""
    counts = [(7, sent)]
    upstream = SimpleNamespace(counts=lambda: counts[0], ends_by_halves=True)
    session = SimpleNamespace(blocker=Blocker(0, -1), may_block=True)
    progress = Progress(cast(Session, session), cast(UpstreamConnection, upstream))
    session.blocker = Blocker(1, 0, 100_000)
    progress.note_judged()
    counts[0] = (7, later)
    assert progress.behind() == behind
    counts[0] = (8, later)
    assert progress.behind() == behind


def test_behind_several_that_block_counts_what_was_sent_after_the_one_that_may_still_do() -> None:
    """The first, and after a reply the last, whether they were sent in one piece or in several."""
    counts = [(7, 0)]
    upstream = SimpleNamespace(counts=lambda: counts[0], ends_by_halves=True)
    session = SimpleNamespace(blocker=Blocker(0, -1), may_block=True)
    progress = Progress(cast(Session, session), cast(UpstreamConnection, upstream))
    session.blocker = Blocker(2, 0, 300)
    progress.note_judged()
    counts[0] = (7, 500)
    assert progress.behind() == 500
    session.blocker = Blocker(3, 0, 90)
    progress.note_judged()
    counts[0] = (7, 800)
    assert progress.behind() == 800
    counts[0] = (8, 800)
    assert progress.behind() == 210


def _look_after(host: Host, seconds: float = 1.0) -> None:
    async def run() -> None:
        tasks: list[asyncio.Task[None]] = []

        def start(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
            tasks.append(asyncio.create_task(work))
            return tasks[0]

        watch = Vigil(host, cast(Course, host), cast(Progress, host), start)
        await asyncio.wait(tasks, timeout=seconds)
        watch.end()

    asyncio.run(run())


def test_who_ends_behind_a_request_that_blocks_is_given_up() -> None:
    host = Host()
    _look_after(host)
    assert host.given_up
    assert (host.trips, host.asked) == (1, 1)


def test_where_the_server_does_not_say_it_is_given_some_turns() -> None:
    host = Host(does=Doing.UNKNOWN)
    _look_after(host)
    assert host.given_up
    assert (host.trips, host.asked) == (3, 2)


def test_a_server_reads_a_part_in_each_of_its_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So the more was sent behind the request, the more of its turns have to pass."""
    monkeypatch.setattr(vigil, "SLOWEST", 1 << 40)
    monkeypatch.setattr(vigil, "SLOW", 1 << 40)
    for behind in (100 * READ_AT_ONCE, 10 * MOST_UNREAD):
        turns = min(behind, MOST_UNREAD) // READ_AT_ONCE
        host = Host(behind=behind, answers_at=turns)
        _look_after(host)
        assert not host.given_up
        host = Host(behind=behind)
        _look_after(host)
        assert host.given_up
        assert host.trips == turns + 2


def test_what_is_still_to_be_sent_is_waited_for() -> None:
    host = Host()
    host.is_taken = False
    _look_after(host, 0.2)
    assert not host.given_up
    assert not host.trips


def test_where_all_has_been_sent_on_a_slow_way_makes_no_difference() -> None:
    """Behind a half close nothing is lost that stands in front of it."""
    host = Host(behind=200_000)
    host.drops = False
    _look_after(host, 0.2)
    assert host.given_up


def test_what_a_slow_way_may_still_pass_on_is_waited_for() -> None:
    """Of a request that blocks it is not known whether it has been answered long ago."""
    host = Host(behind=100 * 1024)
    _look_after(host, 0.5)
    assert not host.given_up
    host = Host(behind=1024)
    _look_after(host, 0.5)
    assert host.given_up


def test_without_a_request_that_can_block_it_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(may_block=False)
    _look_after(host, 0.2)
    assert not host.given_up
    monkeypatch.setattr(vigil, "PATIENT_SECONDS", 0.1)
    host = Host(may_block=False)
    _look_after(host)
    assert host.given_up


def test_what_is_not_blocked_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long reply, or a packet that comes late, looks like a server that has nothing to do."""
    for does in (Doing.NOTHING, Doing.REPLYING, Doing.SILENT):
        host = Host(does=does)
        _look_after(host, 0.5)
        assert not host.given_up
        assert host.asked > 1
    monkeypatch.setattr(vigil, "PATIENT_SECONDS", 0.1)
    host = Host(does=Doing.REPLYING)
    _look_after(host, 0.5)
    assert not host.given_up
    host = Host(does=Doing.NOTHING)
    _look_after(host, 0.5)
    assert host.given_up


def test_where_no_sign_is_to_come_it_is_enough_that_nothing_is_left_to_do() -> None:
    host = Host(does=Doing.NOTHING)
    host.unsigned = True
    _look_after(host)
    assert host.given_up


def test_messages_do_not_keep_a_client_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vigil, "LONGEST_SECONDS", 0.3)

    class Hearing(Host):
        def heard(self) -> int:
            return self.asked + self.trips

    host = Hearing(does=Doing.NOTHING)
    _look_after(host, 0.1)
    assert not host.given_up
    _look_after(host)
    assert host.given_up


def test_where_the_server_does_not_say_its_silence_has_to_do() -> None:
    host = Host(does=Doing.UNKNOWN)
    _look_after(host)
    assert host.given_up


NEAR: Final = b"127.0.0.1:40001"

LINE: Final = (
    "id=8 addr=127.0.0.1:40001 laddr=127.0.0.1:6379 fd=9 name= flags={} db=0 qbuf=20 obl={} oll={} omem=0 cmd=get"
)


@pytest.mark.parametrize(
    ("state", "does"),
    [
        (("N", 0, 0), Doing.NOTHING),
        (("b", 0, 0), Doing.BLOCKED),
        (("tb", 5, 0), Doing.BLOCKED),
        (("N", 5, 0), Doing.REPLYING),
        (("N", 0, 1), Doing.REPLYING),
    ],
)
def test_what_a_server_says_of_a_connection(state: tuple[str, int, int], does: Doing) -> None:
    assert doing_in(LINE.format(*state).encode()) is does
    assert doing_in(b"") is Doing.UNKNOWN


def ask(inspection: Inspection, near: str | None = "127.0.0.1:40001", count: int = 1) -> list[Doing]:
    """Ask so many times at once."""

    async def run() -> list[Doing]:
        return await asyncio.gather(*(inspection.doing(None if near is None else near.encode()) for _ in range(count)))

    return asyncio.run(run())


def test_a_real_server_says_so(upstream: Server) -> None:
    async def clients() -> bytes:
        return upstream.command("CLIENT", "LIST")

    with upstream.connect() as client:
        near = "{}:{}".format(*client.socket.getsockname())
        client.send_command("BLPOP", "nothing", 0)
        until(lambda: ask(Inspection(clients), near) == [Doing.BLOCKED], what="a blocked client")
        upstream.command("RPUSH", "nothing", "something")
        assert client.reply() == b"*2\r\n$7\r\nnothing\r\n$9\r\nsomething\r\n"
        assert ask(Inspection(clients), near) == [Doing.NOTHING]
        assert ask(Inspection(clients), "127.0.0.1:1") == [Doing.UNKNOWN]
        assert ask(Inspection(clients), None) == [Doing.UNKNOWN]


def test_all_that_is_asked_at_once_is_one_question() -> None:
    asked = []

    async def clients() -> bytes:
        asked.append(1)
        await asyncio.sleep(0.01)
        return b"\n".join(
            (LINE.replace("40001", "4000").format("N", 0, 0).encode(), LINE.format("b", 0, 0).encode(), b"")
        )

    inspection = Inspection(clients)
    assert ask(inspection, count=50) == [Doing.BLOCKED] * 50
    assert len(asked) == 1


def test_who_asks_while_a_list_is_under_way_gets_the_next_one() -> None:
    """The state in the one under way may be older than what the proxy has seen."""

    async def run() -> None:
        lists = 0
        under_way = asyncio.Event()

        async def clients() -> bytes:
            nonlocal lists
            lists += 1
            under_way.set()
            await asyncio.sleep(0.01)
            return LINE.format("b" if lists == 1 else "N", 0, 0).encode()

        inspection = Inspection(clients)
        first = asyncio.create_task(inspection.doing(NEAR))
        await under_way.wait()
        assert await asyncio.gather(*(inspection.doing(NEAR) for _ in range(20))) == [Doing.NOTHING] * 20
        assert await first is Doing.BLOCKED
        assert lists == 2

    asyncio.run(run())


def test_a_server_with_many_clients_rests_between_lists() -> None:
    async def run() -> None:
        asked = []

        async def clients() -> bytes:
            asked.append(time.monotonic())
            return LINE.format("b", 0, 0).encode() + b"\n" * 2_000_000

        inspection = Inspection(clients)
        for _ in range(3):
            assert await inspection.doing(NEAR) is Doing.BLOCKED
        assert asked[2] - asked[0] >= 2 * 2_000_000 * REST_SECONDS

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "does", "lists"),
    [
        (ResponseError("NOPERM"), Doing.UNKNOWN, 1),
        (ResponseError("BUSY"), Doing.SILENT, 3),
        (OSError(), Doing.SILENT, 3),
        (TimeoutError(), Doing.SILENT, 3),
    ],
)
def test_a_server_that_does_not_say(error: Exception, does: Doing, lists: int) -> None:
    """One that forbids the question is left alone, and nobody waits for it: its silence has to do."""
    asked = []

    async def clients() -> bytes:
        asked.append(1)
        raise error

    async def run() -> None:
        inspection = Inspection(clients)
        for _ in range(3):
            assert await inspection.doing(NEAR) is does

    asyncio.run(run())
    assert len(asked) == lists

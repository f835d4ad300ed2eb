"""Looking after a client that has ended: when it is taken for one that the server does not come to."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from proxy.relay import vigil
from proxy.relay.progress import Progress
from proxy.relay.state import Course
from proxy.relay.vigil import MOST_UNREAD, READ_AT_ONCE, Vigil


class Host:
    """A client that has ended in order."""

    def __init__(self, *, may_block: bool = True, behind: int = 0, answers_at: int = 1 << 30) -> None:
        self.awaits = self.has_left = self.is_heard = self.is_taken = True
        self.ended = False
        self.drops = True
        self.may_block = may_block
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

    def note_silence(self, *, silent: bool) -> None:
        pass

    def vigil_ended(self) -> None:
        pass

    def give_up(self) -> None:
        self.given_up, self.awaits = True, False


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
    assert host.trips == 2


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

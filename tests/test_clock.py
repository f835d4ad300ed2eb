"""Clocks that are stepped, or drift: deadlines hold by the server's clock, whatever any clock does."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.expiry.clock import DRIFT, ServerClock
from tests.conftest import StartProxy, StartServer
from tests.servers import BINARIES, KINDS, Server, until
from tests.test_lives import PREFIX, Talk, clock, talk

__all__ = ["talk"]  # a fixture

# The estimate, against a model of two clocks.


@dataclass
class World:
    """Two clocks: this machine's monotonic one, and the server's; all in ms.

    Attributes:
        local: the one.
        offset: by how much the server's is ahead of it.
    """

    local: float = 1e6
    offset: float = 1.7e12
    steps: list[float] = field(default_factory=list)

    @property
    def server(self) -> float:
        return self.local + self.offset

    def pass_time(self, milliseconds: float, drift: float) -> None:
        self.local += milliseconds
        self.offset += milliseconds * drift

    def ask(self, estimate: ServerClock, there: float, back: float, drift: float) -> None:
        """Ask the server for its time: it answers in whole µs, between the way there and the way back."""
        sent = self.local
        self.pass_time(there, drift)
        answer = math.floor(self.server * 1000) / 1000
        self.pass_time(back, drift)
        estimate.observe(sent, self.local, answer)


ROUNDING: Final = 0.002
"""What doubles and whole µs leave of a Unix time in ms."""


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    monkeypatch.setattr(ServerClock, "local", staticmethod(lambda: world.local))
    return world


@pytest.fixture
def estimate(world: World) -> ServerClock:
    estimate = ServerClock()
    estimate.on_step(world.steps.append)
    return estimate


def is_right(world: World, estimate: ServerClock) -> bool:
    latest, doubt = estimate.latest(), estimate.doubt()
    return latest - doubt - ROUNDING <= world.server <= latest + ROUNDING and latest - doubt <= estimate.now() <= latest


DRIFTS = st.floats(-DRIFT, DRIFT)
TRIPS = st.tuples(st.floats(0.001, 50), st.floats(0.001, 50))


@given(st.lists(st.tuples(st.floats(0, 60_000), TRIPS, DRIFTS), min_size=1, max_size=40), st.floats(0, 60_000), DRIFTS)
def test_the_servers_clock_is_within_the_bounds(
    answers: list[tuple[float, tuple[float, float], float]], later: float, drift: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World()
        patch.setattr(ServerClock, "local", staticmethod(lambda: world.local))
        estimate = ServerClock()
        estimate.on_step(world.steps.append)
        shortest = math.inf
        for pause, (there, back), rate in answers:
            world.pass_time(pause, rate)
            world.ask(estimate, there, back, rate)
            assert is_right(world, estimate)
            # No answer makes it worse, and the newest bounds it by itself.
            shortest = min(shortest + 2 * DRIFT * (pause + there + back), (there + back) * (1 + 2 * DRIFT))
            assert estimate.doubt() <= shortest + ROUNDING
        world.pass_time(later, drift)
        assert is_right(world, estimate)
        assert not world.steps, "there was no step"


@given(
    st.lists(TRIPS, min_size=1, max_size=20),
    st.sampled_from([3_600_000.0, -3_600_000.0, 2000.0, -2000.0, 150.0, -150.0]),
    TRIPS,
    DRIFTS,
)
def test_one_answer_after_a_step_is_enough(
    before: list[tuple[float, float]], step: float, trip: tuple[float, float], drift: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        world = World()
        patch.setattr(ServerClock, "local", staticmethod(lambda: world.local))
        estimate = ServerClock()
        estimate.on_step(world.steps.append)
        for there, back in before:
            world.ask(estimate, there, back, drift)
        world.offset += step
        world.pass_time(250, drift)
        world.ask(estimate, *trip, drift)
        assert is_right(world, estimate)
        assert len(world.steps) == 1
        assert abs(world.steps[0] - step) <= 102


def test_a_short_round_trip_of_long_ago_counts_for_less(world: World, estimate: ServerClock) -> None:
    world.ask(estimate, 0.02, 0.02, 0)
    assert estimate.doubt() < 0.05
    world.pass_time(60_000, DRIFT)
    assert estimate.doubt() > 2 * DRIFT * 60_000
    world.ask(estimate, 0.2, 0.2, 0)
    assert estimate.doubt() < 0.41
    assert is_right(world, estimate)


def test_an_answer_overtaken_by_one_from_after_the_step_does_not_undo_it(world: World, estimate: ServerClock) -> None:
    world.ask(estimate, 0.1, 0.1, 0)
    slow_sent, slow_answer = world.local, world.server
    world.offset += 2000
    world.ask(estimate, 0.1, 0.1, 0)
    estimate.observe(slow_sent, world.local, slow_answer)
    assert is_right(world, estimate)
    assert world.steps == [pytest.approx(2000, abs=1)]


def test_this_machines_wall_clock_plays_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    estimate = ServerClock()
    local = estimate.local()
    estimate.observe(local, local, 1e12)
    monkeypatch.setattr("time.time", lambda: 0.0)
    assert estimate.now() == pytest.approx(1e12, abs=1000)


# Real processes whose wall clock is stepped while they run.

WINDOW_MS: Final = 700
"""After a step of the server's clock: how long the proxy may take to notice. The look is due after 250 ms; the rest is
for a machine that is busy with other tests."""

STEPS: Final = (-2, 3600)
"""Seconds; each is taken back, so there are steps of as much the other way too."""

# Debian's servers use jemalloc, which asks for the time before libfaketime is ready, and waits for ever: they get
# glibc's allocator, where they can do with it. Those that bring their own symbols need nothing.
_ALLOCATORS: Final = ("", "libc_malloc_debug.so.0:")


@dataclass(frozen=True)
class FakeClock:
    """A wall clock that can be stepped; whoever runs with `env` lives by it.

    Attributes:
        env: the environment to run a process in.
        path: the file that says how far it is off.
    """

    env: Mapping[str, str]
    path: Path

    def set(self, offset: str) -> None:
        """Step it to so many seconds ahead of the true one, and let it drift from then on: ``+2``, ``+0 x1.0005``."""
        new = self.path.with_suffix(".new")
        new.write_text(offset + "\n")
        new.rename(self.path)


def _library() -> Path | None:
    return next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)


def fake_clock(folder: Path, program: Path | None = None) -> FakeClock:
    """Make a clock, for a program if one is given; skip the test where libfaketime does not go with it."""
    library = _library()
    if library is None:
        pytest.skip("libfaketime is not installed (Debian's package faketime has it)")
    path = folder / "offset"
    path.write_text("+0\n")
    for allocator in _ALLOCATORS:
        env = {
            **os.environ,
            "LD_PRELOAD": f"{allocator}{library}",
            "FAKETIME_TIMESTAMP_FILE": str(path),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        if program is None:
            return FakeClock(env, path)
        try:
            if subprocess.run([program, "--version"], env=env, capture_output=True, timeout=2).returncode == 0:
                return FakeClock(env, path)
        except subprocess.TimeoutExpired:
            continue
    pytest.skip("libfaketime and this server's allocator wait for each other")


@pytest.fixture
def faked(kind: str, tmp_path: Path) -> Iterator[tuple[Server, FakeClock]]:
    """A server of every kind that goes with it, whose clock can be stepped."""
    fake = fake_clock(tmp_path, BINARIES[kind].path)
    server = Server(kind, env=fake.env)
    yield server, fake
    server.close()


def read(client: Talk, beside: Talk) -> tuple[int, float, set[bytes]]:
    """Read the set, with the server's clock before the transaction was sent off, and after the set was read."""
    client.say("MULTI")
    client.say("SMEMBERS k")
    client.say("TIME")
    before = clock(beside)
    members, (seconds, micros) = client.say("EXEC")
    return before, int(seconds) * 1000 + int(micros) / 1000, set(members)


class Watch:
    """Sets deadlines, reads through a proxy without pause, and checks what is there against the server's clock.

    Args:
        client: speaks to the proxy.
        beside: speaks to the server.
    """

    def __init__(self, client: Talk, beside: Talk) -> None:
        self._client = client
        self._beside = beside
        self._deadlines: dict[bytes, float] = {}
        self._gone: set[bytes] = set()
        self.lateness: list[float] = []

    def add(self, *after: int) -> None:
        """Add members that are due so many ms from now by the server's clock."""
        moment = clock(self._beside)
        for milliseconds in after:
            member = b"m%d" % len(self._deadlines)
            self._client("SADD", "k", member)
            self._client("PEXPIREMEMBERAT", "k", member, moment + milliseconds)
            self._deadlines[member] = moment + milliseconds

    def follow(self, milliseconds: float, *, noticed: bool = True) -> None:
        """Read for so long; no member is missed before its deadline, or, once a step is noticed, seen after it."""
        end = clock(self._beside) + milliseconds
        moment, furthest = 0.0, -math.inf
        while moment < end:
            before, moment, members = read(self._client, self._beside)
            ahead = 1000 * (time.time() - time.monotonic())
            furthest = max(furthest, ahead)
            back = furthest - ahead  # by how much the machine's clock has been put back meanwhile
            late = {member: before - self._deadlines[member] for member in members}
            assert not noticed or max(late.values(), default=-1) < 0, f"read after the deadline: {late}"
            missing = self._deadlines.keys() - members - self._gone
            early = {member: self._deadlines[member] - moment for member in missing}
            assert max(early.values(), default=0) <= back, f"removed before the deadline: {early}"
            self._gone |= missing

    def measure_removal(self) -> None:
        """Let a member fall due with nobody reading through the proxy, and note how late it is removed."""
        self.add(300)
        member, deadline = list(self._deadlines.items())[-1]

        def gone_at() -> float:
            _, moment, members = read(self._beside, self._client)
            return 0 if member in members else moment

        moment = until(gone_at, 5, "the removal")
        assert moment >= deadline
        self._gone.add(member)
        self.lateness.append(moment - deadline)


def _say_lateness(what: str, lateness: list[float]) -> None:
    print(f"{what}: removed {statistics.median(lateness):.1f} ms late at the median, {max(lateness):.1f} at most")
    assert max(lateness) <= 500


@pytest.mark.measures
def test_the_servers_clock_is_stepped(
    faked: tuple[Server, FakeClock], start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server, fake = faked
    watch = Watch(talk(start_proxy(server)), talk(server))
    watch.add(1_800_000, 10_000_000)
    for step in STEPS:
        watch.add(100, 400, 700, 1000, 2500)
        for offset in (f"{step:+}", "+0"):
            watch.follow(100)
            fake.set(offset)
            watch.follow(WINDOW_MS, noticed=False)
            watch.follow(400)
            watch.measure_removal()
    _say_lateness("the server's clock stepped", watch.lateness)


@pytest.mark.measures
def test_the_proxys_clock_is_stepped(
    start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk], tmp_path: Path
) -> None:
    server = start_server(KINDS[0])
    fake = fake_clock(tmp_path)
    watch = Watch(talk(start_proxy(server, env=fake.env)), talk(server))
    for step in STEPS:
        watch.add(100, 250, 400, 550, 700, 5_000_000)
        fake.set(f"{step:+}")
        watch.follow(600)
        fake.set("+0")
        watch.follow(200)
        watch.measure_removal()
    _say_lateness("the proxy's clock stepped", watch.lateness)


@pytest.mark.measures
@pytest.mark.parametrize("rate", ["1.0005", "0.9995"])
def test_the_servers_clock_drifts(
    faked: tuple[Server, FakeClock], start_proxy: StartProxy, talk: Callable[..., Talk], rate: str
) -> None:
    server, fake = faked
    fake.set(f"+0 x{rate}")
    watch = Watch(talk(start_proxy(server)), talk(server))
    watch.add(*range(0, 1000, 10))
    watch.follow(1000)
    watch.measure_removal()
    _say_lateness("the server's clock drifts", watch.lateness)


def test_a_lease_from_before_the_clock_was_put_back_is_taken_over(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    """The server counts a lease by its own clock: put back by an hour, the lease of a dead proxy lasts an hour more."""
    server = start_server(kind)
    beside, client = talk(server), talk(start_proxy(server))
    for number, lease in enumerate((("PX", 3_600_000), ())):
        beside("SET", PREFIX + b"sweeper", "of a dead proxy", *lease)
        client("SADD", f"k{number}", "m")
        client("PEXPIREMEMBER", f"k{number}", "m", 50)
        until(lambda key=f"k{number}": not beside("EXISTS", key), 3, "the removal")  # type: ignore[misc]

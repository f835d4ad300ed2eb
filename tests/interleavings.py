"""A model of several proxies and their server, small enough to be explored whole: the product's own state machine."""

from __future__ import annotations

import math
import pickle
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from proxy.proxies.messages import Message
from proxy.proxies.protocol import Member

KEY: Final = b"k"


@dataclass(frozen=True)
class Bounds:
    """How much may happen in a run.

    Attributes:
        proxies: how many there are.
        started: how many of them are there from the beginning.
        lease: how many steps of the clock it takes.
        ticks: steps of the clock.
        prompt: which proxies do all that they can before time passes; the others may be slow, or stopped, at any point.
        deadlines: which proxies may give the key a deadline, each once.
        crashes: which proxies may die.
        cuts: how often the server may drop a proxy's connection.
        flushes: whether somebody may empty the server, once.
    """

    proxies: int = 2
    started: int = 2
    lease: int = 2
    ticks: int = 4
    prompt: tuple[int, ...] = ()
    deadlines: tuple[int, ...] = (0,)
    crashes: tuple[int, ...] = ()
    cuts: tuple[int, ...] = ()
    flushes: bool = False


class ModelKeys:
    """What one proxy knows of the one prefix.

    Attributes:
        covered: whether it covers it.
        confirmed: whether all others do.
    """

    def __init__(self) -> None:
        self.covered = False
        self.confirmed = False

    def mark_announced(self, keys: Iterable[bytes]) -> None:
        self.covered = self.covered or KEY in keys

    def note_announced(self, keys: Iterable[bytes], moment: float) -> None:
        self.confirmed = self.confirmed or KEY in keys

    def forget_announced(self) -> None: ...

    def outstanding(self) -> list[bytes]:
        return [KEY] if self.covered else []


class Process:
    """One proxy, and its connection to the server."""

    def __init__(self, number: int, world: World, machine: type[Member]) -> None:
        self.number = number
        self.world = world
        self.keys = ModelKeys()
        self.member = machine(b"%d" % number, self.keys, self, float(world.bounds.lease))
        self.alive = False
        self.listed = False  # whether the server has its connection
        self.loaded = False
        self.ended = False  # whether the connection has come to its end, behind what is still to be read
        self.inbox: deque[tuple[str, Any]] = deque()
        self.aside: deque[Any] = deque()  # answers that come on another connection
        self.wants = self.asked = False
        self.steps: list[str] = []  # of covering the key, those that are still to be taken

    # What the protocol asks of its connection.

    def publish(self, to: bytes | None, message: Message) -> None:
        if not self.listed:
            return
        receivers = [other for other in self.world.processes if other.listed and to in (None, b"%d" % other.number)]
        for other in receivers:
            if other is not self:
                other.inbox.append(("message", message))
        if to is None:
            self._answer(len(receivers))
        else:
            # Its answer would prolong the lease as that to a renewal does; without it there are fewer states.
            self.member._requests.pop()

    def renew(self, others: list[bytes]) -> None:
        if self.listed:
            missing = [name for name in others if not self.world.processes[int(name)].listed]
            if self.world.renewals_aside:
                self.aside.append(missing)
            else:
                self._answer(missing)

    def _answer(self, answer: object) -> None:
        self.inbox.append(("answer", answer))

    @property
    def trusts(self) -> bool:
        return self.alive and self.loaded and self.world.now < self.member.trusted_until


class World:
    """The whole: proxies, server, time."""

    renewals_aside = False
    steps = ("list", "announce")

    def __init__(self, bounds: Bounds, machine: type[Member]) -> None:
        self.bounds = bounds
        self.now = 0.0
        self.has_deadline = self.is_listed = False
        self.may_be_flushed = bounds.flushes
        self.pending: list[int] = []
        self.crashes = set(bounds.crashes)
        self.cuts = set(bounds.cuts)
        self.processes = [Process(number, self, machine) for number in range(bounds.proxies)]
        for process in self.processes:
            process.wants = process.number in bounds.deadlines
        for process in self.processes[: bounds.started]:
            self.start(process)
            process.loaded = True
        self._read_all()
        while not all(process.trusts for process in self.processes[: bounds.started]):
            self.now += 1
            for process in self.processes[: bounds.started]:
                process.member.tick(self.now)
            self._read_all()
        self.until = self.now + bounds.ticks

    def _read_all(self) -> None:
        while any(process.inbox or process.aside for process in self.processes):
            for process in self.processes:
                if process.inbox:
                    self.handle(process)
                elif process.aside:
                    self.handle_aside(process)

    # What may happen.

    def start(self, process: Process) -> None:
        process.alive = process.listed = True
        process.ended = False
        process.inbox.clear()
        process.aside.clear()
        process.member.connect(self.now)

    def handle(self, process: Process) -> None:
        kind, content = process.inbox.popleft()
        if kind == "message":
            process.member.receive(content, self.now)
        else:
            process.member.answered(content, self.now)

    def actions(self) -> list[tuple[str, int]]:
        """Return all that may happen next: what, and to which proxy."""
        found = []
        busy = any(self._is_busy(self.processes[number]) for number in self.bounds.prompt)
        if self.now < self.until and not busy and all(self._may_wait(number) for number in self.pending):
            found.append(("pass_time", 0))
        found += [("run", number) for number in self.pending]
        if self.may_be_flushed:
            found.append(("flush", 0))
        for process in self.processes:
            found += [(what, process.number) for what in self._actions_of(process)]
        return found

    def act(self, what: str, number: int) -> None:
        """Have something happen."""
        getattr(self, what)(self.processes[number])

    def _is_busy(self, process: Process) -> bool:
        member = process.member
        return process.alive and bool(
            process.inbox or process.aside or process.ended or not member.connected or member.wake <= self.now
        )

    def _may_wait(self, number: int) -> bool:
        """What a proxy has sent is in the server at the latest when its lease ends, unless it goes on."""
        process = self.processes[number]
        return process.alive and (self.now + 1 < process.member.trusted_until)

    def _actions_of(self, process: Process) -> Iterator[str]:
        number, member = process.number, process.member
        if not process.alive:
            if number >= self.bounds.started and not member.connected and self._all_heard():
                yield "start"
            return
        if process.inbox:
            yield "handle"
        if process.aside:
            yield "handle_aside"
        if not member.connected:
            yield "start"
        elif process.ended and not process.inbox:
            yield "see_end"
        elif self.now >= member.wake and not any(kind == "renew" for kind, _ in member._requests):
            yield "tick"
        if process.listed and not process.loaded:
            yield "load"
        if process.wants and process.loaded:
            if process.keys.confirmed:
                yield "send"
            elif not process.asked:
                yield "cover"
        if process.steps:
            yield "step"
        if number in self.crashes:
            yield "die"
        if number in self.cuts and process.listed:
            yield "cut"

    def _all_heard(self) -> bool:
        """Whether every proxy with trust has a connection: otherwise a first start may take itself to be alone."""
        return all(process.listed for process in self.processes if process.trusts)

    def pass_time(self, _: Process) -> None:
        self.now += 1

    def run(self, sender: Process) -> None:
        self.pending.remove(sender.number)
        self.has_deadline = True

    def handle_aside(self, process: Process) -> None:
        answer = process.aside.popleft()
        requests = process.member._requests
        place = next(place for place, (kind, _) in enumerate(requests) if kind == "renew")
        _, sent = requests[place]
        del requests[place]
        requests.appendleft(("renew", sent))
        process.member.answered(answer, self.now)

    def see_end(self, process: Process) -> None:
        process.loaded = False
        process.member.disconnect()

    def tick(self, process: Process) -> None:
        process.member.tick(self.now)

    def load(self, process: Process) -> None:
        process.loaded = True
        process.keys.covered = process.keys.covered or self.is_listed

    def cover(self, process: Process) -> None:
        process.keys.covered = process.asked = True
        process.steps = list(self.steps)
        self.step(process)

    def step(self, process: Process) -> None:
        if process.steps.pop(0) == "list":
            self.is_listed = True
        else:
            process.member.announce([KEY], self.now)

    def send(self, process: Process) -> None:
        process.wants = False
        self.pending.append(process.number)

    def flush(self, _: Process) -> None:
        self.may_be_flushed = self.is_listed = self.has_deadline = False

    def die(self, process: Process) -> None:
        self.crashes.discard(process.number)
        process.alive = process.listed = False
        process.inbox.clear()

    def cut(self, process: Process) -> None:
        self.cuts.discard(process.number)
        process.listed = False
        process.ended = True

    # What must hold.

    def violation(self) -> str | None:
        """Say who should cover the key, and does not."""
        if not self.pending and not self.has_deadline:
            return None
        for process in self.processes:
            if process.trusts and not process.keys.covered:
                return f"{process.number} trusts what it knows, and does not cover the key"
        return None

    def key(self) -> int:
        """Return what tells states apart."""
        parts: list[Any] = [
            self.now,
            self.has_deadline,
            self.is_listed,
            self.may_be_flushed,
            *self.pending,
            *self.crashes,
            *self.cuts,
        ]
        for process in self.processes:
            member, keys, flight = process.member, process.keys, process.member._flight
            parts += (
                (process.alive, process.listed, process.loaded, process.ended, process.wants, process.asked),
                (*process.steps, keys.covered, keys.confirmed),
                (member.completed, member.connected, member._sent, member._until, member._proven, member._trusts),
                (member._ever, member._join, member._not_before, len(member._batches), member._last_number),
                tuple(member._requests),
                None if member._welcomes is None else tuple(sorted(member._welcomes.items())),
                tuple(sorted(member._others.items())),
                tuple(member._joiners.items()) and (tuple(member._joiners.items()), member._welcomed),
                flight and (flight.number, flight.sent, tuple(sorted(flight.early))),
                flight and flight.awaited is not None and tuple(sorted(flight.awaited.items())),
                tuple(map(repr, process.inbox)),
                tuple(map(repr, process.aside)),
            )
        return hash(tuple(parts))


@dataclass
class Found:
    """What an exploration found.

    Attributes:
        states: how many there are.
        violation: what is wrong, with the way there; None where all is well.
    """

    states: int
    violation: list[str] | None


def explore(
    bounds: Bounds, machine: type[Member] = Member, world: type[World] = World, most: float = math.inf
) -> Found:
    """Go through all that may happen.

    Args:
        bounds: how much may happen.
        machine: the protocol.
        world: the server.
        most: states at which to give up.

    Raises:
        AssertionError: there are more states.
    """
    first = world(bounds, machine)
    seen = {first.key()}
    stack: list[tuple[bytes, Any]] = [(pickle.dumps(first, -1), None)]
    while stack:
        packed, way = stack.pop()
        for what, number in pickle.loads(packed).actions():
            after = pickle.loads(packed)
            after.act(what, number)
            key = after.key()
            if key in seen:
                continue
            seen.add(key)
            assert len(seen) <= most, "too many states"
            here: Any = (f"{number}: {what}", way)
            if wrong := after.violation():
                steps = [wrong]
                while here is not None:
                    steps.append(here[0])
                    here = here[1]
                return Found(len(seen), steps[::-1])
            stack.append((pickle.dumps(after, -1), here))
    return Found(len(seen), None)

"""Yield deadlines, soonest first, from any number of keys, indexes and servers, reading only what that takes.

Its tests: tests/test_deadlines.py.

An index has, for each key, a time before which nothing of it expires. So keys are read in that order, and a deadline is
given as soon as no key that has not been read can have an earlier one.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from proxy.looking.walk import Element, Walk, Words

KEYS: Final = 100
"""Keys that are read in one step."""

ELEMENTS: Final = 400
"""Deadlines that are read in one step."""

COMPARED: Final = 100_000
"""Elements of lists that the server compares in one step, about."""

_INDEXES: Final = 25
"""Indexes of which keys are read in one step."""

FEWEST_COMPARED: Final = COMPARED // ELEMENTS
"""Elements of a list that are compared with each member."""

_COLLECTIONS: Final = (b"set", b"zset", b"hash", b"list")

_FIRST: Final = 4
"""Deadlines of a key that are read at first; each time four times as many."""

MOST_OPEN: Final = 500_000
"""How many keys to remember whose deadlines have been read and not been given yet."""


class TooManyError(Exception):
    """More than `MOST_OPEN` keys would have to be remembered."""


class SpoiltError(Exception):
    """An index is no sorted set."""


def check_index(error: Exception) -> None:
    """Raise `SpoiltError` if that is why an index cannot be read; else it is at another node."""
    if str(error).startswith("WRONGTYPE"):
        raise SpoiltError


class Asked(Protocol):
    """A server."""

    async def ask(self, requests: Sequence[Words]) -> list[Any]:
        """Return the replies to some requests, which go in one step.

        An error is in its place if the key has another type, or is on its way to another node of the cluster.
        """


class Deadline(NamedTuple):
    """When a member expires; ordered by that.

    Attributes:
        score: the deadline as it is stored: Unix ms, to be rounded up.
        key: the key.
        member: the member.
        unsure: whether it is not certain that the member is there.
    """

    score: float
    key: bytes
    member: bytes
    unsure: bool = False


class _Index:
    """An index that has not been read to its end.

    Attributes:
        server: where it is.
        walk: how far it has been read.
        behind: what is still to come is behind this.
    """

    __slots__ = ("behind", "server", "walk")

    def __init__(self, server: Asked, walk: Walk, behind: Element) -> None:
        self.server = server
        self.walk = walk
        self.behind = behind

    def __lt__(self, other: _Index) -> bool:
        return self.behind < other.behind


class _Open:
    """A key of which deadlines have been read, and more may be.

    Attributes:
        server: where it is.
        key: the key.
        walk: how far its shadow has been read.
        read: what has been read and is not given yet.
        size: how much to read next.
    """

    __slots__ = ("key", "read", "server", "size", "walk")

    def __init__(self, server: Asked, key: bytes, walk: Walk) -> None:
        self.server = server
        self.key = key
        self.walk = walk
        self.read: deque[Deadline] = deque()
        self.size = _FIRST

    def __lt__(self, other: _Open) -> bool:
        return self.read[0] < other.read[0]


class Soonest:
    """Deadlines in their order.

    Args:
        shadow: returns the name of a key's shadow.
        wanted: returns whether a key's deadlines are wanted.
        until: the last deadline that is wanted, in Unix ms.
        most: how many are wanted; 0: all.

    Attributes:
        looked_at: how many keys have been found in the indexes.
    """

    def __init__(
        self,
        shadow: Callable[[bytes], bytes],
        wanted: Callable[[bytes], bool] = lambda _: True,
        *,
        until: float = math.inf,
        most: int = 0,
    ) -> None:
        self.looked_at = 0
        self._shadow = shadow
        self._wanted = wanted
        self._until = until
        self._most = most
        self._indexes: list[_Index] = []  # both are heaps
        self._open: list[_Open] = []
        self._names: set[bytes] = set()  # of the open ones
        self._given: Deadline | None = None

    def add_index(self, server: Asked, index: bytes, earliest: float = 0.0) -> None:
        """Add an index.

        Args:
            server: where it is.
            index: its name.
            earliest: its first score, if that is known.
        """
        heapq.heappush(self._indexes, _Index(server, Walk(index), (earliest, b"")))

    async def add_key(self, server: Asked, key: bytes) -> None:
        """Add a key."""
        await self._open_all(server, [key])

    async def deadlines(self) -> AsyncIterator[Deadline]:
        """Give them.

        Raises:
            TooManyError: it would take too much memory.
            SpoiltError: an index cannot be read.
            RestlessError: there are changes faster than can be read.
        """
        given = 0
        while not self._most or given < self._most:
            while self._indexes and not (self._open and self._open[0].read[0][:2] <= self._indexes[0].behind):
                if self._indexes[0].behind[0] > self._until:
                    self._indexes.clear()
                else:
                    await self._read_indexes()
                    self._prune(self._most - given)
            if not self._open:
                return
            first = heapq.heappop(self._open)
            deadline = first.read.popleft()
            if not first.read:
                await self._read_on(first)
            self._keep(first)
            # A deadline earlier than one already given has been set since.
            if self._given is None or deadline > self._given:
                self._given = deadline
                given += 1
                yield deadline

    async def _read_indexes(self) -> None:
        """Read on in the indexes that have the earliest keys."""
        server = self._indexes[0].server
        chosen = [heapq.heappop(self._indexes)]
        while self._indexes and self._indexes[0].server is server and len(chosen) < _INDEXES:
            chosen.append(heapq.heappop(self._indexes))
        size = KEYS // len(chosen)
        replies = await server.ask([index.walk.request(size) for index in chosen])
        keys: list[bytes] = []
        for index, reply in zip(chosen, replies, strict=True):
            if isinstance(reply, Exception):
                check_index(reply)
                continue
            keys += [key for _, key in index.walk.take(reply)]
            if not index.walk.done:
                index.behind = index.walk.last or index.behind
                heapq.heappush(self._indexes, index)
        self.looked_at += len(keys)
        await self._open_all(server, [key for key in keys if key not in self._names and self._wanted(key)])

    async def _open_all(self, server: Asked, keys: Iterable[bytes]) -> None:
        floor = 0.0 if self._given is None else self._given.score
        found = [_Open(server, key, Walk(self._shadow(key), floor)) for key in keys]
        await self._fill(server, found)
        for one in found:
            self._names.add(one.key)
            self._keep(one)
        if len(self._open) > MOST_OPEN:
            raise TooManyError

    def _keep(self, one: _Open) -> None:
        """Keep a key for as long as there is something of it to give."""
        if one.read and one.read[0].score <= self._until:
            heapq.heappush(self._open, one)
        else:
            self._names.discard(one.key)

    def _prune(self, left: int) -> None:
        """Forget keys that cannot be among the first: enough others have an earlier deadline."""
        if self._most and len(self._open) > 2 * left + KEYS:
            self._open = heapq.nsmallest(left, self._open)  # sorted, so it is a heap
            self._names = {one.key for one in self._open}

    async def _read_on(self, one: _Open) -> None:
        """Read on in a key that has nothing to give, and with it in those that will soon have nothing."""
        if not one.walk.done:
            near = [
                other
                for other in self._open[:KEYS]
                if len(other.read) == 1 and not other.walk.done and other.server is one.server
            ]
            await self._read(one.server, next(_parts([one, *near])))
        await self._fill(one.server, [one])

    async def _fill(self, server: Asked, keys: Sequence[_Open]) -> None:
        """Read on in the shadows of some keys that have nothing to give, until they have, or there is no more."""
        waiting = list(keys)
        while waiting:
            waiting = [one for one in waiting if not one.read and not one.walk.done]
            for part in _parts(waiting):
                await self._read(server, part)

    async def _read(self, server: Asked, keys: Sequence[_Open]) -> None:
        requests: list[Words] = []
        for one in keys:
            requests += [one.walk.request(one.size), ("TYPE", one.key)]
        replies = await server.ask(requests)
        found: list[tuple[_Open, bytes, list[Element]]] = []
        for place, one in enumerate(keys):
            reply, kind = replies[2 * place], replies[2 * place + 1]
            one.size = min(4 * one.size, ELEMENTS // 2)
            if isinstance(reply, Exception) or kind not in _COLLECTIONS:
                one.walk.done = True  # there is none, or all are void
                continue
            elements = one.walk.take(reply)
            if elements and elements[0][0] > self._until:
                one.walk.done = True
            elif elements:
                found.append((one, kind, elements))
        there = await presence(server, [(one.key, kind, [name for _, name in new]) for one, kind, new in found])
        for (one, _, elements), present in zip(found, there, strict=True):
            for (score, member), is_there in zip(elements, present, strict=True):
                deadline = Deadline(score, one.key, member, is_there is None)
                if is_there is not False and (self._given is None or deadline > self._given):
                    one.read.append(deadline)


def _parts(keys: Sequence[_Open]) -> Iterator[list[_Open]]:
    """Give some keys in parts of which one step reads the deadlines."""
    part: list[_Open] = []
    size = 0
    for one in keys:
        if part and size + one.size > ELEMENTS:
            yield part
            part, size = [], 0
        part.append(one)
        size += one.size
    if part:
        yield part


async def presence(
    server: Asked, wanted: Sequence[tuple[bytes, bytes, Sequence[bytes]]], compared: int = COMPARED
) -> list[list[bool | None]]:
    """Return whether members are there, in one step.

    Args:
        server: where they are.
        wanted: keys with their types, and some members of each.
        compared: how many elements of lists to compare, about.

    Returns:
        For each member; None where the list is too long to tell.
    """
    elements = sum(len(members) for _, kind, members in wanted if kind == b"list")
    depth = max(FEWEST_COMPARED, compared // max(1, elements))
    requests: list[Words] = []
    for key, kind, members in wanted:
        requests += _questions(key, kind, members, depth)
    replies = iter(await server.ask(requests) if requests else ())
    found: list[list[bool | None]] = []
    for _, kind, members in wanted:
        if kind in (b"set", b"zset"):
            reply = next(replies)
            absent = 0 if kind == b"set" else None
            each = [absent] * len(members) if isinstance(reply, Exception) else reply
            found.append([one != absent for one in each])
        elif kind == b"hash":
            found.append([next(replies) == 1 for _ in members])
        elif kind == b"list":
            is_longer = isinstance(further := next(replies), list) and bool(further)
            places = [next(replies) for _ in members]
            found.append([isinstance(place, int) or (None if is_longer else False) for place in places])
        else:
            found.append([False] * len(members))
    return found


def _questions(key: bytes, kind: bytes, members: Sequence[bytes], depth: int) -> list[Words]:
    if kind == b"set":
        return [("SMISMEMBER", key, *members)]
    if kind == b"zset":
        return [("ZMSCORE", key, *members)]
    if kind == b"hash":
        return [("HEXISTS", key, member) for member in members]
    if kind == b"list":
        return [("LRANGE", key, depth, depth), *(("LPOS", key, member, "MAXLEN", depth) for member in members)]
    return []

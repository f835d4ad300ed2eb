"""Yield deadlines, soonest first, from any number of keys, indexes and servers, reading no more than needed.

Its tests: tests/test_deadlines.py.

An index gives for each key a time before which no member of the key expires. So keys are read in the order of these
times, and a deadline is yielded as soon as no unread key can have an earlier deadline.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol

from proxy.looking.walk import Element, Walk, Words

KEYS: Final = 100
"""Number of keys to read in one step."""

ELEMENTS: Final = 400
"""Number of deadlines to read in one step."""

COMPARED: Final = 100_000
"""About how many list elements the server compares in one step."""

_INDEXES: Final = 25
"""Number of indexes to read in one step."""

FEWEST_COMPARED: Final = COMPARED // ELEMENTS
"""Minimum number of list elements to compare with each member."""

_COLLECTIONS: Final = (b"set", b"zset", b"hash", b"list")

_FIRST: Final = 4
"""Number of deadlines of a key to read first. Each further step reads four times as many as the step before."""

MOST_OPEN: Final = 500_000
"""Maximum number of keys with deadlines that have been read but not yet yielded."""


class TooManyError(Exception):
    """More than `MOST_OPEN` keys would have to be kept in memory."""


class SpoiltError(Exception):
    """An index is not a sorted set."""


def check_index(error: Exception) -> None:
    """Raise `SpoiltError` if an index has the wrong type. Any other error means that the index is at another node."""
    if str(error).startswith("WRONGTYPE"):
        raise SpoiltError


class Asked(Protocol):
    """A server that answers requests."""

    async def ask(self, requests: Sequence[Words]) -> list[Any]:
        """Return the replies to requests that are sent in one step.

        A reply may be an error: the key has another type, or is moving to another node of the cluster.
        """


class Deadline(NamedTuple):
    """A member and its deadline; ordered by deadline.

    Attributes:
        score: the deadline as stored: Unix ms, which `whole_ms` rounds up.
        key: the key.
        member: the member.
        unsure: whether the member may not exist.
    """

    score: float
    key: bytes
    member: bytes
    unsure: bool = False


class _Index:
    """An index that has not been read to the end.

    Attributes:
        server: the server that has the index.
        walk: how far the index has been read.
        behind: the last element read. All unread keys come after that element.
    """

    __slots__ = ("behind", "server", "walk")

    def __init__(self, server: Asked, walk: Walk, behind: Element) -> None:
        self.server = server
        self.walk = walk
        self.behind = behind

    def __lt__(self, other: _Index) -> bool:
        return self.behind < other.behind


class _Open:
    """A key whose shadow has been read, at least in part.

    Attributes:
        server: the server that has the key.
        key: the key.
        walk: how far the shadow has been read.
        read: deadlines that have been read but not yet yielded.
        size: how many deadlines to read next.
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
    """Yields deadlines in order.

    Args:
        shadow: returns the name of a key's shadow.
        wanted: returns whether a key's deadlines are wanted.
        until: the latest deadline to yield, in Unix ms.
        most: how many deadlines to yield; 0 for all.

    Attributes:
        looked_at: how many keys have been read from the indexes.
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
        self._indexes: list[_Index] = []  # a heap, like `_open`
        self._open: list[_Open] = []
        self._names: set[bytes] = set()  # the keys in `_open`
        self._given: Deadline | None = None

    def add_index(self, server: Asked, index: bytes, earliest: float = 0.0) -> None:
        """Add an index.

        Args:
            server: the server that has the index.
            index: the name of the index.
            earliest: the first score in the index, if known.
        """
        heapq.heappush(self._indexes, _Index(server, Walk(index), (earliest, b"")))

    async def add_key(self, server: Asked, key: bytes) -> None:
        """Add a key."""
        await self._open_all(server, [key])

    async def deadlines(self) -> AsyncIterator[Deadline]:
        """Yield the deadlines.

        Raises:
            TooManyError: too many keys would have to be kept in memory.
            SpoiltError: an index is not a sorted set.
            RestlessError: keys change faster than they can be read.
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
            # Skip a deadline that is earlier than the last one yielded: it was set meanwhile.
            if self._given is None or deadline > self._given:
                self._given = deadline
                given += 1
                yield deadline

    async def _read_indexes(self) -> None:
        """Read more of the indexes that have the earliest unread keys."""
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
        """Keep a key as long as it has deadlines to yield."""
        if one.read and one.read[0].score <= self._until:
            heapq.heappush(self._open, one)
        else:
            self._names.discard(one.key)

    def _prune(self, left: int) -> None:
        """Drop keys that are not needed any more, because enough other keys have earlier deadlines."""
        if self._most and len(self._open) > 2 * left + KEYS:
            self._open = heapq.nsmallest(left, self._open)  # sorted, so it is a heap
            self._names = {one.key for one in self._open}

    async def _read_on(self, one: _Open) -> None:
        """Read more of a key's shadow, until the key has a deadline to yield or the shadow has been read to the end.

        The first step also reads on for other keys of the same server that will soon need it: early keys with only one
        deadline left to yield.
        """
        if not one.walk.done:
            near = [
                other
                for other in self._open[:KEYS]
                if len(other.read) == 1 and not other.walk.done and other.server is one.server
            ]
            await self._read(one.server, next(_parts([one, *near])))
        await self._fill(one.server, [one])

    async def _fill(self, server: Asked, keys: Sequence[_Open]) -> None:
        """Read more of some keys' shadows, until each key has deadlines to yield or its shadow is at its end."""
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
                one.walk.done = True  # there is no shadow, or all deadlines in it are void
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
    """Yield keys in batches small enough to be read in one step."""
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
    """Return whether members exist, in one step.

    Args:
        server: the server that has the keys.
        wanted: keys with their types, and some members of each key.
        compared: about how many list elements the server may compare.

    Returns:
        One value per member; None if unknown, because the list is too long.
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

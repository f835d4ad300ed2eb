"""Search an order of concurrent requests that explains every reply: linearizability, with deadlines of members.

Each request, or transaction, takes effect at one moment between its invocation and its reply, by the server's clock,
and a member with a deadline is there before that moment and not from it on. The search is Wing and Gong's with Lowe's
memory, one key at a time: a history is right if and only if each of its keys' is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Words = Sequence[str]

Frozen = tuple[tuple[Any, ...], tuple[tuple[str, float], ...]]
"""What a key holds, and the deadlines of its members, so that it can be remembered."""

REMOVAL_SCRIPTS: Final = {
    "set": "return redis.call('SREM', KEYS[1], ARGV[1])",
    "hash": "return redis.call('HDEL', KEYS[1], ARGV[1])",
    "zset": "return redis.call('ZREM', KEYS[1], ARGV[1])",
    "list": "return redis.call('LREM', KEYS[1], 0, ARGV[1])",
}
"""For each type of collection a script that removes a member and returns how many went: the only one that is known."""


@dataclass(frozen=True, slots=True)
class Operation:
    """Requests of one client for one key that took effect together.

    Attributes:
        invoked: when they were sent, in Unix ms.
        returned: when the replies had come, in Unix ms.
        requests: the requests: several where they were a transaction.
        replies: theirs, made `tests.model.plain`.
    """

    invoked: float
    returned: float
    requests: tuple[tuple[str, ...], ...]
    replies: tuple[Any, ...]

    def __str__(self) -> str:
        said = "; ".join(
            f"{' '.join(words)} -> {reply!r}" for words, reply in zip(self.requests, self.replies, strict=True)
        )
        return f"{self.invoked:.3f} to {self.returned:.3f}: {said}"


class _Collection:
    """A set, a hash, a sorted set or a list, with the deadlines of its members.

    Args:
        kind: which.
        frozen: what it holds.
        now: the moment, in Unix ms: what is due is removed.
        earliest: when what is to be run was sent, for replies that tell of the time.
        latest: when its reply had come.
    """

    def __init__(self, kind: str, frozen: Frozen, now: float, earliest: float, latest: float) -> None:
        self.kind = kind
        self.now = now
        self.earliest = earliest
        self.latest = latest
        items, deadlines = frozen
        self.elements = list(items) if kind == "list" else []
        self.items: dict[str, Any] = {} if kind == "list" else dict(items)
        self.deadlines = dict(deadlines)
        for member, deadline in deadlines:
            if deadline <= now:
                self.remove(member)

    def freeze(self) -> Frozen:
        items = tuple(self.elements) if self.kind == "list" else tuple(sorted(self.items.items()))
        return items, tuple(sorted(self.deadlines.items()))

    def holds(self, member: str) -> bool:
        return member in (self.elements if self.kind == "list" else self.items)

    def is_empty(self) -> bool:
        return not self.elements and not self.items

    def remove(self, *members: str) -> int:
        """Remove members, which ends their lives and so their deadlines; return how many went."""
        count = 0
        for member in members:
            self.deadlines.pop(member, None)
            if self.kind == "list":
                count += self.elements.count(member)
                self.elements = [element for element in self.elements if element != member]
            else:
                count += self.items.pop(member, self) is not self
        return count

    def explains(self, words: Words, reply: Any) -> bool:
        """Run a request, and return whether it gets this reply."""
        wanted = getattr(self, f"_{words[0].lower()}")(reply, *words[2:])
        return wanted(reply) if callable(wanted) else bool(reply == wanted and type(reply) is type(wanted))

    # Deadlines.

    def _pexpirememberat(self, _: Any, member: str, moment: str, condition: str = "") -> Any:
        deadline, present = int(moment), self.deadlines.get(member)
        if (
            not self.holds(member)
            or (condition == "NX" and present is not None)
            or (condition == "XX" and present is None)
            or (condition == "GT" and (present is None or deadline <= present))
            or (condition == "LT" and present is not None and deadline >= present)
        ):
            return 0
        if deadline <= self.now:
            self.remove(member)
        else:
            self.deadlines[member] = deadline
        return 1

    def _pttl(self, _: Any, member: str) -> Any:
        if self.is_empty():
            return -2
        if not self.holds(member):
            return lambda reply: reply != -2  # of one that was removed by name a while longer what it would have had
        if member not in self.deadlines:
            return -1
        deadline = self.deadlines[member]
        return lambda reply: deadline - self.latest - 1 <= reply <= deadline - self.earliest + 1

    def _persist(self, _: Any, member: str) -> Any:
        if not self.holds(member):
            return lambda reply: reply in (0, 1)
        return int(self.deadlines.pop(member, None) is not None)

    # Every type.

    def _del(self, _: Any) -> Any:
        there = not self.is_empty()
        self.elements, self.items, self.deadlines = [], {}, {}
        return int(there)

    def _script(self, _: Any, member: str) -> Any:
        return self.remove(member)

    def _srem(self, _: Any, *members: str) -> Any:
        return self.remove(*members)

    _hdel = _zrem = _srem

    def _scard(self, _: Any) -> Any:
        return len(self.items)

    # Sets.

    def _sadd(self, _: Any, *members: str) -> Any:
        before = len(self.items)
        self.items.update(dict.fromkeys(members))
        return len(self.items) - before

    def _sismember(self, _: Any, member: str) -> Any:
        return int(member in self.items)

    def _smembers(self, _: Any) -> Any:
        return lambda reply: sorted(reply) == sorted(self.items)

    def _spop(self, popped: Any) -> Any:
        if popped is not None:
            return self.remove(popped) and popped
        return None if not self.items else False

    # Hashes.

    def _hset(self, _: Any, field: str, value: str) -> Any:
        fresh = field not in self.items
        self.items[field] = value
        return int(fresh)

    def _hsetnx(self, _: Any, field: str, value: str) -> Any:
        return 0 if field in self.items else self._hset(_, field, value)

    def _hincrby(self, _: Any, field: str, amount: str) -> Any:
        value = int(self.items.get(field, 0)) + int(amount)
        self.items[field] = str(value)
        return value

    def _hget(self, _: Any, field: str) -> Any:
        return self.items.get(field)

    def _hgetall(self, _: Any) -> Any:
        return lambda reply: dict(zip(reply[::2], reply[1::2], strict=True)) == self.items

    # Sorted sets.

    def _zadd(self, _: Any, score: str, member: str) -> Any:
        fresh = member not in self.items
        self.items[member] = int(score)
        return int(fresh)

    def _zincrby(self, _: Any, amount: str, member: str) -> Any:
        self.items[member] = self.items.get(member, 0) + int(amount)
        return str(self.items[member])

    def _zscore(self, _: Any, member: str) -> Any:
        return str(self.items[member]) if member in self.items else None

    def _ranked(self) -> list[tuple[str, int]]:
        return sorted(self.items.items(), key=lambda pair: (pair[1], pair[0]))

    def _zrange(self, _: Any, *__: str) -> Any:
        return [word for member, score in self._ranked() for word in (member, str(score))]

    def _zpopmin(self, _: Any) -> Any:
        first = self._ranked()[:1]
        self.remove(*(member for member, _ in first))
        return [word for member, score in first for word in (member, str(score))]

    # Lists.

    def _rpush(self, _: Any, *members: str) -> Any:
        self.elements += members
        return len(self.elements)

    def _lpop(self, _: Any) -> Any:
        if not self.elements:
            return None
        element = self.elements.pop(0)
        if element not in self.elements:
            self.deadlines.pop(element, None)
        return element

    def _lrem(self, _: Any, __: str, member: str) -> Any:
        return self.remove(member)

    def _lrange(self, _: Any, *__: str) -> Any:
        return self.elements


def _unscripted(words: Words) -> Words:
    """Name a script that removes a member as if it were a command."""
    return ("SCRIPT", *words[3:]) if words[0] == "EVAL" else words


class UndecidedError(Exception):
    """The search took more steps than it was given."""


@dataclass
class _Search:
    """One key's search, and how far it has come."""

    kind: str
    clients: Sequence[Sequence[Operation]]
    passing: bool

    def after(self, operation: Operation, frozen: Frozen, moment: float) -> Iterator[tuple[Frozen, float]]:
        """Give what a key may hold after an operation that began at a moment, and when it ended; nothing if its replies
        would be others."""
        replies = tuple(zip(operation.requests, operation.replies, strict=True))
        waiting = [(frozen, moment, replies)]
        while waiting:
            before, now, (first, *others) = waiting.pop()
            collection = _Collection(self.kind, before, now, operation.invoked, operation.returned)
            words, reply = first
            if not collection.explains(_unscripted(words), reply):
                continue
            held = collection.freeze()
            if not others:
                yield held, now
                continue
            moments = self.moments(operation, held, now, operation.returned) if self.passing else (now,)
            waiting += [(held, later, tuple(others)) for later in moments]

    @staticmethod
    def moments(operation: Operation, frozen: Frozen, now: float, latest: float) -> Iterator[float]:
        """Give the moments that make a difference at which an operation may have run: none is better than the first
        before the next deadline."""
        first = max(now, operation.invoked)
        if first > latest:
            return
        yield first
        deadlines = {deadline for _, deadline in frozen[1]}
        deadlines.update(int(words[3]) for words in operation.requests if words[0] == "PEXPIREMEMBERAT")
        yield from sorted(deadline for deadline in deadlines if first < deadline <= latest)


def unexplained(
    kind: str, clients: Sequence[Sequence[Operation]], limit: int = 300_000, *, passing: bool = False
) -> str | None:
    """Return why no order explains the history of a key; None where one does.

    Args:
        kind: set, hash, zset or list.
        clients: each client's operations on the key, in the order in which it sent them. The key is empty before.
        passing: whether time passes within a transaction, as it does for scripts before Redis 7.2.
        limit: steps of the search.

    Raises:
        UndecidedError: neither an order nor its absence was found within the limit.
    """
    search = _Search(kind, clients, passing)
    sizes = tuple(map(len, clients))
    Place = tuple[tuple[int, ...], Frozen]  # noqa: N806 (a type)
    begin: Place = (0,) * len(clients), ((), ())
    # The earliest moment at which each place has been reached: from there all can be reached that can be later.
    reached: dict[Place, float] = {begin: -math.inf}
    waiting = [(begin, -math.inf)]
    furthest = begin
    steps = 0
    while waiting:
        place, now = waiting.pop()
        counts, frozen = place
        if counts == sizes:
            return None
        if sum(counts) > sum(furthest[0]):
            furthest = place
        heads = [(number, clients[number][count]) for number, count in enumerate(counts) if count < sizes[number]]
        latest = min(operation.returned for _, operation in heads)
        # What returned first is tried first, so it is put down last.
        for number, operation in sorted(heads, key=lambda head: -head[1].returned):
            for moment in search.moments(operation, frozen, now, latest):
                steps += 1
                for after, ended in search.after(operation, frozen, moment):
                    there = (*counts[:number], counts[number] + 1, *counts[number + 1 :]), after
                    if reached.get(there, math.inf) > ended:
                        reached[there] = ended
                        waiting.append((there, ended))
        if steps > limit:
            raise UndecidedError
    return _report(clients, furthest[0], [frozen for counts, frozen in reached if counts == furthest[0]])


_BEFORE: Final = 12
"""Operations of each client that a report tells before the one that nothing explains."""


def _report(clients: Sequence[Sequence[Operation]], counts: Sequence[int], states: list[Frozen]) -> str:
    past = [operation for client, count in zip(clients, counts, strict=True) for operation in client[:count]]
    past.sort(key=lambda operation: operation.returned)
    lines = [f"  {operation}" for operation in past[-_BEFORE:]]
    lines += [f"the key may hold then: {frozen}" for frozen in states[:5]]
    lines.append("and none of these can be next:")
    lines += [f"  {client[count]}" for client, count in zip(clients, counts, strict=True) if count < len(client)]
    return "\n".join(lines)

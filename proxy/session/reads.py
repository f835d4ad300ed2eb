"""Guarded reads of covered keys: send them at once, and again if the reply is late.

Its tests: tests/test_reads.py.

In front of them, in the same write, goes a request for the earliest deadline of their keys. A late reply is dropped,
and the read sent again behind a script that removes due members. Later requests that would change the second reply wait
for the first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from proxy.commands.table import FREQUENT, Command, Effect, is_indifferent
from proxy.coverage.outlook import Outlook
from proxy.session.alone import KEYS_AT_ONCE
from proxy.session.ground import PLAIN, Ground
from proxy.session.outgoing import Outgoing
from proxy.session.plain import FREE, FREE_OF_BLIND, OF_ONE_KEY, PURE, REPEATABLE, STRINGS
from proxy.session.standing import End, Next, Standing
from proxy.session.without_engine import WithoutEngine
from proxy.wire.batch import BatchParser
from proxy.wire.guard import (
    Fronted,
    Guard,
    Repeated,
    earliest_of_all,
    first_of,
    is_wrong_type,
    is_zero_or_wrong_type,
    may_be_late,
)
from proxy.wire.pieces import Slot
from proxy.wire.request import ARGUMENT_SIZE, Kind, Request, encode

MOST_REPEATS: Final = 5
"""How often a read is sent again because a deadline passed before its reply came. It is sent with the script that
removes due members, so few repeats are needed."""

_LONGEST_REST: Final = 1024
"""Maximum number of bytes after the reads of a chunk: the beginning of one more read, or a few other requests."""

_MOST_UNNAMED: Final = 64
"""How many chunks of reads may be under way before their arguments are collected in `_named`."""

_MOST_NAMED: Final = 10_000
"""Maximum number of names in reads under way. Beyond that, reads are not guarded until all have been answered."""

_MOST_KEPT: Final = 32 * 1024 * 1024
"""Maximum number of bytes that reads under way take. Beyond that, reads are not guarded until enough are answered."""

_LITTLE: Final = 64 * 1024
"""So many bytes of reads under way are not worth counting."""

_NAMED: Final = frozenset((Effect.EXPIRE, Effect.LIFETIME, Effect.ADD, Effect.REMOVE, Effect.COUNT))
_EXPIRE: Final = frozenset((b"EXPIRE", b"expire", b"Expire"))
_SECONDS: Final = re.compile(rb"[1-9][0-9]{0,9}").fullmatch
_NAMES: Final = REPEATABLE | STRINGS | _EXPIRE
_ZERO: Final = frozenset(spelled for name in (b"SETNX", b"MSETNX") for spelled in (name, name.lower(), name.title()))
_ORDINARY: Final = _NAMES | FREE | {spelled for name in FREQUENT for spelled in (name, name.lower(), name.title())}
_FREE: Final = Next.FREE
_QUIT: Final = End.QUIT


_LIFETIMES: Final = frozenset(spelled for name in (b"TTL", b"PTTL") for spelled in (name, name.lower(), name.title()))


def _is_guarded(request: list[bytes]) -> bool:
    """Return whether a request can be sent twice, at least if its key holds a collection.

    EXPIRE returns the same the second time if it has no condition and does not remove the key.
    """
    if request[0] in _EXPIRE:
        return len(request) == 3 and _SECONDS(request[2]) is not None
    return request[0] in _NAMES


def _count(reads: bytes) -> int:
    """Return the number of reads in a chunk that `Checks.reads` has matched: no argument contains a line end."""
    return reads.count(b"\r\n*") + 1


def _what_matters(name: bytes) -> Callable[[bytes], bool]:
    """Return the function that decides by the beginning of a late reply whether it may show due members."""
    if name in STRINGS:
        return is_zero_or_wrong_type if name in _ZERO else is_wrong_type
    return may_be_late


class _Batch:
    """Requests that were sent together. They are parsed again only if needed, which is rare.

    Args:
        raw: the received bytes.
        parser: parses them.
        covered: returns the covered keys that some requests name.
        requests: the parsed requests, if the parser does not accept the bytes.

    Attributes:
        size: about how many bytes are kept.
    """

    __slots__ = ("_covered", "_keys", "_parser", "_raw", "_requests", "size")

    def __init__(
        self,
        raw: bytes,
        parser: BatchParser,
        covered: Callable[[Sequence[list[bytes]]], set[bytes]],
        requests: Sequence[list[bytes]] | None = None,
    ) -> None:
        self._raw = raw if requests is None else b""
        self._parser = parser
        self._covered = covered
        self._requests = requests
        self._keys: set[bytes] | None = None
        self.size = len(raw) + (ARGUMENT_SIZE * sum(map(len, requests)) if requests is not None else 0)

    def parsed(self) -> Sequence[list[bytes]]:
        """Return the parsed requests, without keeping them: they take several times as much as the bytes."""
        if self._requests is not None:
            return self._requests
        parsed = self._parser.parse(self._raw)
        assert parsed is not None  # these bytes were parsed or matched before
        return parsed[0]

    @property
    def requests(self) -> Sequence[list[bytes]]:
        """The parsed requests, kept while the replies are late."""
        if self._requests is None:
            self._requests = self.parsed()
        return self._requests

    @property
    def keys(self) -> set[bytes]:
        """The covered keys that the requests name."""
        if self._keys is None:
            self._keys = self._covered(self.requests)
        return self._keys

    def names(self) -> tuple[set[bytes], set[bytes]]:
        """Return the arguments of the guarded requests, and of those among them that may write."""
        requests, named, written = self.parsed(), set[bytes](), set[bytes]()
        keys = self._covered(requests)
        for request in requests:
            if _is_guarded(request) and not keys.isdisjoint(request):
                named.update(request[1:])
                if request[0] not in PURE:
                    written.update(request[1:])
        return named, written

    def matters(self, place: int) -> Callable[[bytes], bool] | None:
        """Return the function of `_what_matters` for one of the requests; None if a late reply never matters."""
        request = self.requests[place]
        return _what_matters(request[0]) if _is_guarded(request) and not self.keys.isdisjoint(request) else None


class Late(NamedTuple):
    """A read whose reply was late and that has to be sent again.

    Attributes:
        arguments: the request.
        keys: its keys that may have due members.
        slot: the place for its reply.
        repeats: how often it has been sent again.
    """

    arguments: list[bytes]
    keys: list[bytes]
    slot: Slot
    repeats: int

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(map(len, self.arguments)) + ARGUMENT_SIZE * len(self.arguments)


class Reads:
    """The guarded reads of one connection.

    Args:
        ground: what all sessions share.
        standing: the state of the connection.
        out: what goes upstream.
        without: removes due members on the connection.

    Attributes:
        under_way: how many reads or batches have not been answered.
        quiet: whether the last bytes sent were reads of `guard_at_once`.
    """

    __slots__ = (
        "_coverage",
        "_ground",
        "_named",
        "_out",
        "_outlook",
        "_settled",
        "_size",
        "_standing",
        "_unnamed",
        "_wanted",
        "_without",
        "_written",
        "quiet",
        "under_way",
    )

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing, without: WithoutEngine) -> None:
        self._ground = ground
        self._coverage = ground.coverage
        self._standing = standing
        self._out = out
        self._without = without
        self._named: set[bytes] = set()  # all arguments of reads under way, except those in `_unnamed`
        self._unnamed: set[_Batch] = set()  # read-only batches under way whose arguments have not been added yet
        self._written: set[bytes] = set()  # the arguments of guarded requests under way that may write
        self._outlook = Outlook()
        self._wanted: list[Late] = []
        self._size = 0  # size of the batches and of the late reads under way, and of `_named`, in bytes
        self._settled = False
        self.under_way = 0
        self.quiet = False

    def take_late(self) -> list[Late]:
        """Return and clear the late reads, to be sent again by `send_again`."""
        late = list(self._wanted)
        self._wanted.clear()
        return late

    def take_settled(self) -> bool:
        """Return whether all reads have been answered since the last call."""
        settled, self._settled = self._settled and not self.under_way, False
        return settled

    @property
    def memory(self) -> int:
        """About how many bytes the reads under way take; zero if they are few."""
        return self._size if self._size > _LITTLE else 0

    def may_be_guarded(self, now: float) -> bool:
        """Return whether the connection's state allows reads to be guarded and sent again."""
        standing, names = self._standing, self._ground.names
        return (
            names.slots is None
            and standing.transaction is None
            and standing.next is _FREE
            and standing.hears_echoes
            and len(self._named) <= _MOST_NAMED
            and self._size <= _MOST_KEPT
            and not (standing.caches or standing.is_link or standing.end is _QUIT)
            and not standing.rights.unsure(now)
            and not standing.limited
        )

    def lets_pass(self, requests: Sequence[list[bytes]]) -> bool:
        """Return whether requests that touch no covered key change nothing that reads under way may see."""
        return all(request[0] in _ORDINARY and self._names().isdisjoint(request) for request in requests)

    def disturbs(self, command: Command | None, request: Request) -> bool:
        """Return whether a request may change what reads under way would see if sent again."""
        arguments = request.arguments
        if request.kind is not Kind.WHOLE:
            return True
        if arguments[0] in PURE and arguments[0] in PLAIN:
            return not self._written.isdisjoint(arguments)
        if arguments[0] in _ORDINARY or (command is not None and command.effect in _NAMED):
            return not self._names().isdisjoint(arguments)
        return True

    def guard(self, requests: Sequence[list[bytes]], raw: bytes, now: float, *, keep: bool = False) -> bool:
        """Send on a chunk of requests if all are frequent ones and those on covered keys are reads.

        Args:
            requests: the requests, without any of the proxy's own keys.
            raw: their bytes, as received.
            now: the server's clock, in Unix ms.
            keep: whether to keep the requests, because a `BatchParser` may not accept the bytes.

        Returns:
            Whether they have been sent on.

        Raises:
            TypeError: an element of a request is not bytes.
        """
        used = {request[0] for request in requests}
        if not used <= _ORDINARY or used.isdisjoint(_NAMES):
            return False
        keys = self._covered(requests, used)
        if not 0 < len(keys) <= KEYS_AT_ONCE or not self.may_be_guarded(now):
            return False
        if not used <= PLAIN:
            for name in used - PLAIN:
                self._ground.command(name)
            lifetimes = [request for request in requests if request[0] in _LIFETIMES]
            if not used <= PLAIN | _LIFETIMES or any(len(request) != 2 for request in lifetimes):
                return False
        if not (used <= PURE and not self._written) and not self._may_follow(requests, keys):
            return False
        batch = _Batch(raw, self._ground.batch, self._covered, requests if keep else None)
        self._send(batch, keys, len(requests), raw, now)
        if not used <= PURE:
            self._names()
        return True

    def guard_front(self, data: bytes, now: float) -> int:
        """While no deadline is near, send the reads at the front of a chunk without parsing them.

        Returns:
            The size of the reads that were sent, in bytes: 0, or nearly the whole chunk.
        """
        if not self._outlook.is_far(now) or self._coverage.blind or self._written:
            return 0
        reads = self._ground.checks.reads.match(data)
        if reads is None or reads.end() < len(data) - _LONGEST_REST or not self.may_be_guarded(now):
            return 0
        raw = data[: reads.end()]
        self._send(self._unparsed(raw), (), _count(raw), raw, now)
        return reads.end()

    def guard_at_once(self, data: bytes, now: float) -> bytes | None:
        """Return the bytes to send for a chunk that `Checks.reads` matches as a whole, while no reads are under way;
        else None.

        If the last bytes sent were such a chunk too, no sign is needed to find the reply.
        """
        if not self._outlook.is_far(now) or self._coverage.blind or self._ground.checks.reads.fullmatch(data) is None:
            return None
        if not self.may_be_guarded(now):
            return None
        replies, names = self._standing.replies_for_own(), self._ground.names
        assert names is not None
        guard = self._begin(self._unparsed(data), 0, _count(data))
        quiet, self.quiet = self.quiet, True
        if quiet and not self._standing.greeted_in_resp3 and not replies.active:  # else a push may have begun
            replies.enter(guard)
            return first_of(names.index) + data
        return replies.open(guard) + first_of(names.index) + data

    def _unparsed(self, raw: bytes) -> _Batch:
        return _Batch(raw, self._ground.batch, self._covered)

    def _send(self, batch: _Batch, keys: Collection[bytes], count: int, raw: bytes, now: float) -> None:
        names, outlook, out, replies = self._ground.names, self._outlook, self._out, self._standing.replies_for_own()
        assert names is not None
        first = first_of(names.index)
        far = outlook.is_far(now)
        if not far and outlook.wants(now):
            out.append(replies.open(Fronted([lambda said: outlook.hear(earliest_of_all(said))])))
            out.append(first)
        out.append(replies.open(self._begin(batch, 0 if far else len(keys), count)))
        out.append(first if far else encode([b"ZMSCORE", names.index, *keys]))
        out.append(raw)

    def _begin(self, batch: _Batch, asked: int, count: int) -> Guard:
        self.under_way += 1
        self._size += batch.size
        self._unnamed.add(batch)
        if len(self._unnamed) > _MOST_UNNAMED:
            self._names()
        repeat, end = partial(self._repeat_first, batch), partial(self._end, batch.size, batch)
        return Guard(asked, count, batch.matters, self._ground.now, repeat, end, self._outlook.hear)

    def _covered(self, requests: Sequence[list[bytes]], used: set[bytes] | None = None) -> set[bytes]:
        """Return the covered keys that some requests name, and perhaps values that look like such keys.

        `used`: the requests' commands, if already collected.
        """
        used = {request[0] for request in requests} if used is None else used
        if not self._coverage.blind and used <= OF_ONE_KEY:
            return set(self._coverage.among({request[1] for request in requests if len(request) > 1}))
        if not self._coverage.blind:
            return set(self._coverage.among(chain.from_iterable(requests)))
        named, command, is_certain = self._ground.rewriter.named, self._ground.command, self._coverage.is_certain
        return {
            key
            for request in requests
            if request[0] not in FREE
            for key in named(command(request[0]), request)
            if request[0] not in FREE_OF_BLIND or is_certain(key)
        }

    def guard_one(self, request: Request, now: float) -> bool:
        """Like `guard`, for a single request."""
        return (
            request.kind is Kind.WHOLE
            and request.arguments[0] in _NAMES
            and self.guard([request.arguments], request.raw, now, keep=True)
        )

    def send_again(self, late: list[Late], now: float) -> None:
        """Send late reads again, now that the engine has removed due members from their keys."""
        together: list[Late] = []
        keys: dict[bytes, None] = {}
        for again in late:
            if together and len(keys) + len(again.keys) > KEYS_AT_ONCE:
                self._send_together(together, list(keys), now)
                together, keys = [], {}
            together.append(again)
            keys.update(dict.fromkeys(again.keys))
        if together:
            self._send_together(together, list(keys), now)

    def _send_together(self, late: list[Late], keys: list[bytes], now: float) -> None:
        """Send some reads again, behind one script for all their keys."""
        alone, replies = self._without.alone, self._standing.replies_for_own()
        repeated = [
            Repeated(
                again.slot,
                _what_matters(again.arguments[0]),
                self._ground.now,
                partial(self._repeat, again._replace(repeats=again.repeats + 1)),
                partial(self._end, again.size),
            )
            for again in late
        ]

        def tell(earliest: float) -> None:
            for again, one in zip(late, repeated, strict=True):
                one.earliest = earliest if again.repeats < MOST_REPEATS or earliest == -math.inf else math.inf

        self._out.append(alone.clear(keys, replies, now, tell))
        for again, one in zip(late, repeated, strict=True):
            self._out.append(replies.open(one))
            self._out.append(encode(again.arguments))

    def _may_follow(self, requests: Sequence[list[bytes]], keys: set[bytes]) -> bool:
        """Return whether no request of a batch changes what an earlier read in it would see if sent again.

        `keys`: the covered keys of the guarded reads.
        """
        named, written = set(self._names()), set(self._written)
        for request in requests:
            if not (written if request[0] in PURE else named).isdisjoint(request[1:]):
                return False
            if not keys.isdisjoint(request):
                if _is_guarded(request):
                    named.update(request[1:])
                    if request[0] not in PURE:
                        written.update(request[1:])
                elif not is_indifferent(request):
                    return False
        return True

    def _names(self) -> set[bytes]:
        """Return all names in reads under way."""
        for batch in self._unnamed:
            self._name(*batch.names())
        self._unnamed.clear()
        return self._named

    def _name(self, named: set[bytes], written: set[bytes]) -> None:
        """Add arguments of reads under way, and those among them of requests that may write."""
        named -= self._named
        self._size += sum(map(len, named)) + ARGUMENT_SIZE * len(named)
        self._named |= named
        self._written |= written

    def _end(self, size: int, batch: _Batch | None = None) -> None:
        """Note that a batch, or a late read, has been answered; `size`: as it was counted."""
        self.under_way -= 1
        self._size -= size
        if batch is not None:
            self._unnamed.discard(batch)
        if not self.under_way:
            self._named.clear()
            self._written.clear()
            self._size = 0
            self._settled = True

    def _repeat_first(self, batch: _Batch, place: int) -> Slot:
        arguments, slot = batch.requests[place], Slot()
        if batch in self._unnamed:  # it may end before the late read does
            self._unnamed.remove(batch)
            self._name(*batch.names())
        self._repeat(Late(arguments, [key for key in dict.fromkeys(arguments) if key in batch.keys], slot, 0))
        return slot

    def _repeat(self, again: Late) -> None:
        self.under_way += 1
        self._size += again.size
        self._wanted.append(again)

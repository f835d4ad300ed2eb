"""Send guarded reads of covered keys at once, and again if a reply is late, so that none shows expired members.

Its tests: tests/test_reads.py.

The proxy sends a request for the earliest deadline of the reads' keys before the reads, in the same write. It drops a
late reply, and sends the read again after a script that removes due members. Later requests that could change the
second reply wait until the first has come. Over shared connections, `BatchGuard` (proxy/relay/batch_guard.py) guards
reads; a late read is sent again over the client's own connection.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from functools import partial
from itertools import chain
from typing import Final, NamedTuple

from proxy.commands.table import FREQUENT, Command, Effect, is_indifferent
from proxy.coverage.coverage import Scope
from proxy.coverage.outlook import Outlook
from proxy.session.alone import KEYS_AT_ONCE
from proxy.session.ground import PLAIN, Ground
from proxy.session.outgoing import Outgoing
from proxy.session.plain import FREE, FREE_OF_BLIND, OF_ONE_KEY, PURE, REPEATABLE, SEVERAL_KEYS, STRINGS
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
from proxy.wire.pieces import Slot, Tally
from proxy.wire.request import ARGUMENT_SIZE, Kind, Request, RequestReader, encode
from proxy.wire.runs import LEAST, MOST_BYTES

MOST_REPEATS: Final = 5
"""Maximum number of times a read is sent again because a deadline passed before its reply came. A script that removes
due members precedes each repeat, so few repeats are needed."""

_LONGEST_REST: Final = 1024
"""Maximum number of bytes after the reads of a chunk: the beginning of one more read, or a few other requests."""

_MOST_UNNAMED: Final = 64
"""How many chunks of reads may be under way before their names are collected in `_named`."""

_MOST_NAMED: Final = 10_000
"""Maximum number of names in reads under way. Beyond that, reads are not guarded until all have been answered."""

_MOST_WAITING: Final = 4096
"""Maximum number of replies that wait for another, each of which may become late. Beyond that, reads are not guarded
until enough of them have been passed on."""

_MOST_KEPT: Final = 32 * 1024 * 1024
"""Maximum number of bytes that reads under way take. Beyond that, reads are not guarded until enough are answered."""

_LITTLE: Final = 64 * 1024
"""Reads under way that take no more than this, in bytes, are not worth counting."""

_NAMED: Final = frozenset((Effect.EXPIRE, Effect.LIFETIME, Effect.ADD, Effect.REMOVE, Effect.COUNT))
_EXPIRE: Final = {
    spelled: re.compile(not_soon).fullmatch
    for name, not_soon in ((b"EXPIRE", rb"[1-9][0-9]{1,9}"), (b"PEXPIRE", rb"[1-9][0-9]{4,12}"))
    for spelled in (name, name.lower(), name.title())
}
"""Command → a test whether its time is at least 10 s: the key lasts until reads in front have been sent again."""
_NAMES: Final = REPEATABLE | STRINGS
_ZERO: Final = frozenset(spelled for name in (b"SETNX", b"MSETNX") for spelled in (name, name.lower(), name.title()))
_ORDINARY: Final = _NAMES | FREE | {spelled for name in FREQUENT for spelled in (name, name.lower(), name.title())}
_FREE: Final = Next.FREE
_QUIT: Final = End.QUIT


_LIFETIMES: Final = frozenset(spelled for name in (b"TTL", b"PTTL") for spelled in (name, name.lower(), name.title()))
_EXPIRE_TIMES: Final = frozenset(
    spelled for name in (b"EXPIRETIME", b"PEXPIRETIME") for spelled in (name, name.lower(), name.title())
)
_CONTENTS: Final = PURE - _EXPIRE_TIMES


class Concern(Enum):
    """What a guarded request reads or writes of its keys."""

    CONTENT = "it reads the contents"
    LIFETIME = "it reads when the key expires"
    EXPIRY = "it writes when the key expires, not soon"
    ANYTHING = "it may read or write anything"


_NAMES_IN: Final[dict[Concern, tuple[Concern, ...]]] = {
    Concern.CONTENT: (Concern.ANYTHING,),
    Concern.LIFETIME: (Concern.ANYTHING,),
    Concern.EXPIRY: (Concern.LIFETIME, Concern.ANYTHING),
    Concern.ANYTHING: tuple(Concern),
}
"""Concern of a request → the concerns of earlier requests on the same keys for which the request must wait: if one of
those were sent again after it, a reply or the effect might differ."""

Named = dict[Concern, set[bytes]]
"""The names in guarded requests, by the concern of the request."""


def _none_named() -> Named:
    return {concern: set() for concern in Concern}


def _is_guarded(request: list[bytes]) -> bool:
    """Return whether the request can be sent twice, at least if its key holds a collection."""
    return request[0] in _NAMES


def _concern(request: list[bytes]) -> Concern:
    """Return the concern of a request."""
    name = request[0]
    if name in _CONTENTS:
        return Concern.CONTENT
    if (name in _EXPIRE_TIMES or name in _LIFETIMES) and len(request) == 2:
        return Concern.LIFETIME
    if name in _EXPIRE and len(request) == 3 and _EXPIRE[name](request[2]):
        return Concern.EXPIRY
    return Concern.ANYTHING


def _named(request: list[bytes]) -> list[bytes]:
    """Return the keys of a guarded request, perhaps with other arguments."""
    return request[1:] if request[0] in SEVERAL_KEYS else request[1:2]


def _collides(request: list[bytes], named: Named) -> bool:
    """Return whether a request must wait for one of the earlier guarded requests; `named`: the names in those."""
    return not all(named[concern].isdisjoint(request) for concern in _NAMES_IN[_concern(request)])


def _count(reads: bytes) -> int:
    """Return the number of reads in a chunk that `Checks.reads` has matched: no argument contains a line end."""
    return reads.count(b"\r\n*") + 1


def _what_matters(name: bytes) -> Callable[[bytes], bool]:
    """Return the function that decides from the beginning of a late reply whether the reply may show due members."""
    if name in STRINGS:
        return is_zero_or_wrong_type if name in _ZERO else is_wrong_type
    return may_be_late


class _Batch:
    """Requests that were sent together. They are parsed again only if needed, which is rare.

    Args:
        raw: the received bytes.
        parser: parses them.
        covered: returns the keys that some requests name and that a scope covers.
        scope: which keys were covered when the requests were sent. Reads of other keys are not guarded, and later
            requests do not wait for them. So they are never sent again, even if their key has been covered since.
        requests: the parsed requests, to keep instead of the bytes if the parser may not accept these (as with inline
            requests).

    Attributes:
        size: about how many bytes are kept.
    """

    __slots__ = ("_covered", "_keys", "_parser", "_raw", "_requests", "_scope", "size")

    def __init__(
        self,
        raw: bytes,
        parser: BatchParser,
        covered: Callable[[Sequence[list[bytes]], Scope], set[bytes]],
        scope: Scope,
        requests: Sequence[list[bytes]] | None = None,
    ) -> None:
        self._raw = raw if requests is None else b""
        self._parser = parser
        self._covered = covered
        self._scope = scope
        self._requests = requests
        self._keys: set[bytes] | None = None
        self.size = len(raw) + (ARGUMENT_SIZE * sum(map(len, requests)) if requests is not None else 0)

    def parsed(self) -> Sequence[list[bytes]]:
        """Return the parsed requests, without keeping them: they take several times as much memory as the bytes."""
        if self._requests is not None:
            return self._requests
        parsed = self._parser.parse(self._raw)
        assert parsed is not None  # these bytes were parsed or matched before
        return parsed[0]

    @property
    def requests(self) -> Sequence[list[bytes]]:
        """The parsed requests, kept from the first late reply on."""
        if self._requests is None:
            self._requests = self.parsed()
        return self._requests

    @property
    def keys(self) -> set[bytes]:
        """The covered keys that the requests name."""
        if self._keys is None:
            self._keys = self._covered(self.requests, self._scope)
        return self._keys

    def names(self) -> Named:
        """Return the names in the guarded requests."""
        requests, named = self.parsed(), _none_named()
        keys = self._covered(requests, self._scope)
        for request in requests:
            if _is_guarded(request) and not keys.isdisjoint(request):
                named[_concern(request)].update(_named(request))
        return named

    def matters(self, place: int) -> Callable[[bytes], bool] | None:
        """Return the function of `_what_matters` for one of the requests; None if a late reply never matters."""
        request = self.requests[place]
        return _what_matters(request[0]) if _is_guarded(request) and not self.keys.isdisjoint(request) else None


class Late(NamedTuple):
    """A read that must be sent again because its reply was late.

    Attributes:
        arguments: the request.
        keys: its keys that may have due members.
        repeats: how often it has been sent again.
        slot: the place for its reply.
    """

    arguments: list[bytes]
    keys: list[bytes]
    repeats: int
    slot: Slot

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return sum(map(len, self.arguments)) + ARGUMENT_SIZE * len(self.arguments)


class Reads:
    """The guarded reads of one connection.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        without: removes due members on the connection.

    Attributes:
        under_way: how many batches, and reads sent again, have not been answered.
        quiet: whether the last bytes sent were reads of `guard_at_once`.
    """

    __slots__ = (
        "_again",
        "_count",
        "_ground",
        "_named",
        "_out",
        "_outlook",
        "_settled",
        "_singly",
        "_size",
        "_standing",
        "_unnamed",
        "_wanted",
        "_without",
        "quiet",
        "under_way",
    )

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing, without: WithoutEngine) -> None:
        self._ground = ground
        self._standing = standing
        self._out = out
        self._without = without
        self._named = _none_named()  # in reads under way, except those in `_unnamed`
        self._count = 0  # how many names `_named` holds
        self._unnamed: set[_Batch] = set()  # read-only batches under way whose names have not been added yet
        self._outlook = Outlook()
        self._wanted: list[Late] = []
        self._again = 0  # how many late reads have not been answered again
        self._size = 0  # size of the batches and of the late reads under way, and of `_named`, in bytes
        self._settled = False
        self._singly = 0  # requests to judge one by one before `guard_from` tries again
        self.under_way = 0
        self.quiet = False

    def close(self) -> None:
        """Forget the reads under way, which refer to this object: the client has gone."""
        self._unnamed.clear()
        self._wanted.clear()

    def take_late(self) -> list[Late]:
        """Return and clear the late reads, to be sent again by `send_again`."""
        late = list(self._wanted)
        self._wanted.clear()
        return late

    def take_settled(self) -> bool:
        """Return whether the last read under way has been answered since the previous call; now none is under way."""
        settled, self._settled = self._settled and not self.under_way, False
        return settled

    @property
    def memory(self) -> int:
        """About how many bytes the reads under way take; zero if that is little."""
        return self._size if self._size > _LITTLE else 0

    def may_be_guarded(self, now: float) -> bool:
        """Return whether the connection's state allows reads to be guarded and sent again."""
        standing, names = self._standing, self._ground.names
        return (
            names.slots is None
            and standing.transaction is None
            and standing.next is _FREE
            and standing.hears_echoes
            and self._count <= _MOST_NAMED
            and self._size <= _MOST_KEPT
            and self._again <= _MOST_WAITING
            and not (standing.caches or standing.is_link or standing.end is _QUIT)
            and not standing.rights.unsure(now)
            and not standing.limited
        )

    def lets_pass(self, requests: Sequence[list[bytes]]) -> bool:
        """Return whether requests that touch no covered key leave alone everything that reads under way may see."""
        named = self._names().values()
        return all(
            request[0] in _ORDINARY and all(names.isdisjoint(request) for names in named) for request in requests
        )

    def disturbs(self, command: Command | None, request: Request) -> bool:
        """Return whether a request may change the reply that reads under way would get if sent again."""
        arguments = request.arguments
        if request.kind is not Kind.WHOLE:
            return True
        if arguments[0] in _ORDINARY or (command is not None and command.effect in _NAMED):
            return _collides(arguments, self._names())
        return True

    def guard(self, requests: Sequence[list[bytes]], raw: bytes, now: float, *, keep: bool = False) -> bool:
        """Send a chunk of requests if all are frequent and all requests on covered keys are reads.

        Args:
            requests: the requests, without any of the proxy's own keys.
            raw: their bytes, as received.
            now: the server's clock, in Unix ms.
            keep: whether to keep the requests, because a `BatchParser` may not accept the bytes.

        Returns:
            Whether the requests have been sent.

        Raises:
            TypeError: an element of a request is not bytes.
        """
        used = {request[0] for request in requests}
        if not used <= _ORDINARY or used.isdisjoint(_NAMES):
            return False
        scope = self._ground.coverage.scope
        keys = self._covered(requests, scope, used)
        if not 0 < len(keys) <= KEYS_AT_ONCE or not self.may_be_guarded(now):
            return False
        if not used <= PLAIN:
            for name in used - PLAIN:
                self._ground.command(name)
            lifetimes = [request for request in requests if request[0] in _LIFETIMES]
            if not used <= PLAIN | _LIFETIMES or any(len(request) != 2 for request in lifetimes):
                return False
        if not (used <= _CONTENTS and not self._may_write) and not self._may_follow(requests, keys):
            return False
        batch = _Batch(raw, self._ground.batch, self._covered, scope, requests if keep else None)
        self._send(batch, keys, len(requests), raw if used.isdisjoint(_EXPIRE) else self._settling(requests, keys), now)
        if not used <= PURE:
            self._names()
        return True

    def _settling(self, requests: Sequence[list[bytes]], keys: set[bytes]) -> bytes:
        """Return the bytes of a chunk, with each EXPIRE of `keys` replaced by a script that removes due members first.

        Otherwise EXPIRE would return 1 for a key whose members are all due, as if the key still existed.
        """
        calls, parts = self._ground.rewriter.calls, list[bytes]()
        for request in requests:
            part, settles = encode(request), request[0] in _EXPIRE and not keys.isdisjoint(request[1:2])
            parts.append(calls.settled(request, part) if settles else part)
        return b"".join(parts)

    def guard_front(self, data: bytes, now: float) -> int:
        """While no deadline is near, send the reads at the front of a chunk without parsing them.

        Returns:
            The size of the reads that were sent, in bytes: 0, or nearly the whole chunk.
        """
        if not self._outlook.is_far(now) or self._ground.coverage.blind or self._may_write:
            return 0
        reads = self._ground.checks.reads.match(data)
        if reads is None or reads.end() < len(data) - _LONGEST_REST or not self.may_be_guarded(now):
            return 0
        raw = data[: reads.end()]
        self._send(self._unparsed(raw), (), _count(raw), raw, now)
        return reads.end()

    def guard_from(self, reader: RequestReader, now: float) -> bool:
        """Send the next requests together if they are several reads of covered keys; return whether any were sent."""
        if self._singly:
            self._singly -= 1
            return False
        if not self.may_be_guarded(now):
            return False
        data, begin = reader.front(MOST_BYTES)
        reads = self._ground.checks.reads.match(data, begin, begin + MOST_BYTES)
        if reads is None:
            return False
        raw = reads.group()
        count = _count(raw)
        if count >= LEAST and self._guard_run(raw, count, now):
            reader.skip(len(raw))
            return True
        self._singly = count - 1  # otherwise the rest of these reads would be matched again for each of them
        return False

    def _guard_run(self, raw: bytes, count: int, now: float) -> bool:
        """Send reads that `Checks.reads` has matched, if their keys are covered; return whether they were sent."""
        coverage = self._ground.coverage
        if self._outlook.is_far(now) and not coverage.blind and not self._may_write:
            if not coverage.search(raw):
                return False
            self._send(self._unparsed(raw), (), count, raw, now)
            return True
        parsed = self._ground.batch.parse(raw)
        return parsed is not None and self.guard(parsed[0], raw, now)

    def guard_at_once(self, data: bytes, now: float) -> bytes | None:
        """Return the bytes to send for a chunk that `Checks.reads` matches as a whole; None if it must be judged.

        Call only while no reads are under way. If the last bytes sent were such a chunk too, no sign is needed to find
        the reply.
        """
        if (
            not self._outlook.is_far(now)
            or self._ground.coverage.blind
            or self._ground.checks.reads.fullmatch(data) is None
        ):
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
        return _Batch(raw, self._ground.batch, self._covered, self._ground.coverage.scope)

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
        return Guard(asked, count, batch.matters, self._ground.now, repeat, end, self, self._outlook.hear)

    # The methods of `Line` (proxy/wire/guard.py).

    @property
    def tally(self) -> Tally:
        """Counts what the replies that wait take."""
        return self._standing.replies.tally

    @property
    def waits(self) -> bool:
        """Whether a reply that comes now waits for the reply to a late read."""
        return self._again > 0

    def join(self) -> None:
        """Note that a reply waits for the reply to a late read. While it waits, its read may have to be sent again."""
        self.under_way += 1
        self._again += 1

    def leave(self) -> None:
        """Note that a reply waits no more."""
        self._end(0)

    def _covered(self, requests: Sequence[list[bytes]], scope: Scope, used: set[bytes] | None = None) -> set[bytes]:
        """Return the keys that some requests name and that a scope covers, and perhaps values that look like such keys.

        `used`: the requests' commands, if already collected.
        """
        used = {request[0] for request in requests} if used is None else used
        if not scope.blind and used <= OF_ONE_KEY:
            return set(scope.among({request[1] for request in requests if len(request) > 1}))
        if not scope.blind:
            return set(scope.among(chain.from_iterable(requests)))
        named, command = self._ground.rewriter.named, self._ground.command
        return {
            key
            for request in requests
            if request[0] not in FREE
            for key in named(command(request[0]), request)
            if request[0] not in FREE_OF_BLIND or scope.is_certain(key)
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
        """Send some reads again, after one script for all their keys."""
        alone, replies = self._without.alone, self._standing.replies_for_own()
        repeated = [
            Repeated(
                again.slot,
                _what_matters(again.arguments[0]),
                self._ground.now,
                partial(self._repeat, again.arguments, again.keys, again.repeats + 1),
                partial(self._end, again.size),
                self,
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
        """Return whether every earlier read would get the same reply if it were sent again after the whole batch.

        `keys`: the covered keys of the guarded reads.
        """
        named = {concern: set(names) for concern, names in self._names().items()}
        for request in requests:
            if _collides(request, named):
                return False
            if not keys.isdisjoint(request):
                if _is_guarded(request):
                    named[_concern(request)].update(_named(request))
                elif request[0] in _EXPIRE:
                    if len(request) != 3 or self._standing.rights.confinement:
                        return False
                elif not is_indifferent(request):
                    return False
        return True

    @property
    def _may_write(self) -> bool:
        """Whether guarded requests under way may write what a read returns. (`guard` collects their names at once.)"""
        return self._count > 0 and bool(self._named[Concern.ANYTHING])

    def _names(self) -> Named:
        """Return all names in reads under way."""
        for batch in self._unnamed:
            self._name(batch.names())
        self._unnamed.clear()
        return self._named

    def _name(self, named: Named) -> None:
        """Add names in reads under way."""
        for concern, names in named.items():
            names -= self._named[concern]
            self._size += sum(map(len, names)) + ARGUMENT_SIZE * len(names)
            self._count += len(names)
            self._named[concern] |= names

    def _end(self, size: int, batch: _Batch | None = None) -> None:
        """Note that a batch or a late read has been answered, or waits no more; `size`: its size when it was sent."""
        self.under_way -= 1
        self._size -= size
        if batch is not None:
            if self._again and batch in self._unnamed:  # some of its reads are late, or may become late
                self._name(batch.names())
            self._unnamed.discard(batch)
        else:
            self._again -= 1
        if not self.under_way:
            if self._count:
                self._named, self._count = _none_named(), 0
            self._size = 0
            self._settled = True

    def _repeat_first(self, batch: _Batch, place: int, slot: Slot) -> None:
        arguments = batch.requests[place]
        self._repeat(arguments, [key for key in dict.fromkeys(arguments) if key in batch.keys], 0, slot)

    def _repeat(self, arguments: list[bytes], keys: list[bytes], repeats: int, slot: Slot) -> None:
        late = Late(arguments, keys, repeats, slot)
        self.under_way += 1
        self._again += 1
        self._size += late.size
        self._wanted.append(late)

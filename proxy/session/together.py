"""Replace many requests of one connection by one script call, which returns the reply to each.

Its tests: tests/test_together.py.

A run of requests of one form is split column by column, without an object for each. A mixture is parsed: requests on
members go together up to one that must be judged by itself, or that the server runs on different terms. Ordinary
requests between them, on keys without deadlines, are forwarded unchanged.

This is done only if every request would be rewritten anyway and none would have to wait. Anything special is left to
`Judge`, which takes requests one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from itertools import chain, groupby
from typing import Final, cast

from proxy.commands.dialects import TOGETHER
from proxy.commands.table import BATCHED, Command
from proxy.session.ground import PLAIN, Ground
from proxy.session.operations import LONGEST, Form, Operation, plan
from proxy.session.outgoing import Outgoing
from proxy.session.plain import BATCHED_RUNS
from proxy.session.reads import Reads
from proxy.session.standing import Login, Next, Standing
from proxy.wire.batch import requests_size
from proxy.wire.request import RequestReader, bulks
from proxy.wire.runs import LEAST, MOST_BYTES, Run

_POSITIVE: Final = re.compile(rb"(?:[1-9][0-9]{0,14}\r)+")
_NUMBERS: Final = re.compile(rb"[-+.0-9\r]+")
MOST_MIXED: Final = 200
"""Maximum number of requests in a call with several forms."""

_BETWEEN: Final = b"\r\n*"
_NAME: Final = re.compile(rb"\*[0-9]{1,4}\r\n\$[0-9]{1,2}\r\n([a-zA-Z]+)\r\n").match
_JOINED: Final = frozenset(spelled for name in BATCHED | TOGETHER for spelled in (name, name.lower()))
_DEADLINE: Final = re.compile(
    rb"\r\n(?:P?EXPIREMEMBER|[HSZ]P?EXPIRE|FIELDEXPIRE|HSETEX|SADDEX"
    rb"|p?expiremember|[hsz]p?expire|fieldexpire|hsetex|saddex)\r\n"
).search
_BYTES: Final = {bytes}
_MOST_IN_VAIN: Final = 6
_UNREADABLE: Final = 16
"""How many requests to judge one by one after a chunk that could not be parsed at once."""

LONG_LISTS: Final = 1_000
"""Maximum number of keys of long lists to remember."""

_MOST_NAMED: Final = 8 * 1024
"""Maximum total size, in bytes, of the names kept until a call's reply shows whether one is a long list."""

_FREE: Final = Next.FREE
_STRANGER: Final = Login.STRANGER


def note_long_list(long_lists: set[bytes], key: bytes) -> None:
    """Note that a key's list is so long that no script should look for many members in it."""
    if len(long_lists) >= LONG_LISTS:
        long_lists.clear()
    long_lists.add(key)


def _note_number(long_lists: set[bytes], names: list[bytes], number: int) -> None:
    note_long_list(long_lists, names[number - 1])


def _nothing(number: int) -> None:
    """Note nothing."""


class Together:
    """Combines requests of one connection into script calls.

    Args:
        ground: what all sessions share.
        standing: the state of the connection.
        out: what goes upstream.
        reads: the reads under way, which must not be disturbed.
    """

    __slots__ = ("_coverage", "_ground", "_in_vain", "_left", "_out", "_reads", "_rewriter", "_standing")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing, reads: Reads) -> None:
        self._ground = ground
        self._coverage = ground.coverage
        self._rewriter = ground.rewriter
        self._standing = standing
        self._out = out
        self._reads = reads
        self._left = 0  # requests to judge one by one before the next attempt
        self._in_vain = 0  # how many pieces in a row were parsed for nothing

    def may_take(self, data: bytes, now: float) -> bool:
        """Return whether a chunk may contain requests that can go together."""
        if not self._may_queue(now) and not self.is_ordinary(now):
            return False
        return BATCHED_RUNS.may_be_in(data) or _DEADLINE(data) is not None

    def take(self, data: bytes, begin: int, now: float) -> int:
        """Send the requests that can go together, from a position where a request begins.

        Args:
            data: the received bytes.
            begin: the position.
            now: the server's clock, in Unix ms.

        Returns:
            The position after them; `begin` if there are none.
        """
        self._left = 0
        run = BATCHED_RUNS.at(data, begin) if self._standing.transaction is None else None
        if run is None:
            return self._take_mixed(data, begin, now)
        end = begin + run.length
        if self.is_ordinary(now) and data.find(self._ground.prefix, begin, end) < 0 and (taken := self._send(run, now)):
            return begin + taken
        self._left = run.count - 1
        return begin

    def take_from(self, reader: RequestReader, now: float) -> bool:
        """Send the next requests if they can go together; return whether any were sent."""
        if self._left:
            self._left -= 1
            return False
        data, begin = reader.front(MOST_BYTES)
        taken = self.take(data, begin, now) - begin
        reader.skip(taken)
        return taken > 0

    def _send(self, run: Run, now: float) -> int:
        """Send a run, or the part of it that can go; return how many of the client's bytes that replaces."""
        form = self._rewriter.operations.form(run.name, run.size, run.column(run.size - 1)[0])
        if form is None:
            return 0
        keys = run.column(1)
        is_covered = self._coverage.covers
        if not form.of_own and not all(map(is_covered, keys)):
            run, keys = self._beginning(run, keys, next(i for i, key in enumerate(keys) if not is_covered(key)))
        if keys and (count := self._rewriter.calls.length_in_slot(keys)) < len(keys):
            run, keys = self._beginning(run, keys, count)
        if not keys:
            return 0
        names = list(dict.fromkeys(keys))
        if form.unit and not self._note_deadlines(form, run, names, now):
            return 0
        if form.scored and not _NUMBERS.fullmatch(b"\r".join(run.column(2))):
            return 0  # an argument in the place of a score may be an option
        if len(names) == 1:
            runs = bytes((1, 1, run.count))
        else:
            numbers = {name: number for number, name in enumerate(names, 1)}
            runs = b"".join([bytes((1, numbers[key], sum(1 for _ in same))) for key, same in groupby(keys)])
        tail = run.encoded(2, form.end)
        call = self._rewriter.calls.batch([form], names, runs, tail, (form.end - 2) * run.count)
        self._rewriter.calls.count(form.script, run.count)
        self._out.put_together(call(False), run.count, self._took_long(names))
        return run.length

    @staticmethod
    def _beginning(run: Run, keys: list[bytes], count: int) -> tuple[Run, list[bytes]]:
        """Return a run of the first `count` requests, and their keys; no keys if there are too few requests."""
        return (run.beginning(count), keys[:count]) if count >= LEAST else (run, [])

    def _note_deadlines(self, form: Form, run: Run, names: list[bytes], now: float) -> bool:
        """Note deadlines for the sweeper; return False if the requests must be judged one by one."""
        if form.end < run.size and len(set(run.column(4))) > 1:
            return False
        if not self._ground.checks.long_lists.isdisjoint(names):
            return False
        terms = run.column(3)
        if not _POSITIVE.fullmatch(b"\r".join(terms) + b"\r") or self._coverage.unconfirmed(names):
            return False
        delays = [int(term) * form.unit for term in terms]
        if max(delays) > LONGEST:
            return False
        self._rewriter.marks.expect(names, now + min(delays))
        return True

    def _take_mixed(self, data: bytes, begin: int, now: float) -> int:
        """Send the requests of several forms that can go together; return the position after them."""
        name = _NAME(data, begin)
        if name is None or name[1] not in _JOINED or self._is_of_cluster:
            return begin
        queued = self._may_queue(now)
        if not (queued or self.is_ordinary(now)) or not self._may_begin(data, begin):
            return begin
        piece = data[begin : begin + MOST_BYTES]
        if self._ground.prefix in piece:
            return self._give_up(begin, 0)
        parsed = self._ground.batch.parse(piece)
        if parsed is None:
            return self._give_up(begin, _UNREADABLE)
        requests = parsed[0][:MOST_MIXED]
        if set(map(type, chain.from_iterable(requests))) != _BYTES:
            return self._give_up(begin, 0)
        if queued:
            return self._queue(requests, begin, now)
        groups, count = self._groups(requests)
        done = sum(len(group) for group in groups if group and isinstance(group[0], Operation))
        calls = sum(1 for group in groups if group and isinstance(group[0], Operation))
        if done < LEAST or done < 2 * calls:
            return self._give_up(begin, max(0, count - 1))
        self._in_vain = 0
        position = begin
        place = 0
        for group in groups:
            end = position + requests_size(requests[place : place + len(group)])
            place += len(group)
            if isinstance(group[0], Operation):
                self._put(group, now)
            else:
                self._out.append(data[position:end])
            position = end
        return position

    def _give_up(self, begin: int, left: int) -> int:
        """Judge at least `left` requests one by one; more after each further piece in a row that was parsed for
        nothing."""
        self._in_vain = min(self._in_vain + 1, _MOST_IN_VAIN)
        self._left = max(left, (1 << self._in_vain) - 2)
        return begin

    def _may_begin(self, data: bytes, begin: int) -> bool:
        """Return whether there are enough requests, and the first ones may go together: checking the whole piece costs
        more.

        Part of an argument may look like the beginning of a request: then requests may be judged one by one needlessly.
        """
        position = begin
        for place in range(LEAST):
            name = _NAME(data, position)
            if name is None or not (name[1] in _JOINED or name[1] in PLAIN):
                self._left = max(0, place - 1)
                return False
            position = data.find(_BETWEEN, position) + 2
        first = self._ground.batch.parse(data[begin : position if position > 1 else begin + MOST_BYTES])
        if first is None or len(first[0]) < LEAST or set(map(type, chain.from_iterable(first[0]))) != _BYTES:
            return True
        _, count = self._groups(first[0][:LEAST], mixes=False)
        if count == LEAST:
            return True
        self._left = max(0, count - 1)
        return False

    def _queue(self, requests: list[list[bytes]], begin: int, now: float) -> int:
        """Queue the first group of requests together in the open transaction; return the position after it."""
        groups, count = self._groups(requests, mixes=False)
        ahead = 0
        for group in groups:
            if len(group) >= LEAST and isinstance(group[0], Operation):
                break
            ahead += len(group)
        else:
            ahead = count
        if ahead or not groups:
            return self._give_up(begin, max(0, ahead - 1))
        self._in_vain = 0
        self._put(cast(list[Operation], groups[0]), now)
        return begin + requests_size(requests[: len(groups[0])])

    @property
    def _is_of_cluster(self) -> bool:
        names = self._ground.names
        return names.slots is not None

    def _groups(
        self, requests: list[list[bytes]], *, mixes: bool = True
    ) -> tuple[list[list[Operation] | list[None]], int]:
        """Return the groups that go as one call each or are forwarded unchanged, and the number of requests in them.

        `mixes`: whether a call may include ordinary requests.
        """
        read, coverage, long_lists = self._rewriter.operations.read, self._coverage, self._ground.checks.long_lists
        groups: list[list[Operation] | list[None]] = []
        group: list[Operation] = []
        alike = ""
        covered: set[bytes] = set()
        confirmed: set[bytes] = set()
        for place, request in enumerate(requests):
            operation = read(request)
            if operation is not None:
                form, key, _, delay = operation
                if delay and key not in confirmed:
                    if key in long_lists or not coverage.is_confirmed(key):
                        return groups, place
                    confirmed.add(key)
                if form.does == "o":
                    if mixes and group and alike is form.alike and not coverage.touches((request,)):
                        group.append(operation)
                        continue
                elif form.of_own or key in covered or coverage.covers(key):
                    covered.add(key)
                    if form.alike is not alike:
                        group, alike = [], form.alike
                        groups.append(group)
                    group.append(operation)
                    continue
            if request[0] not in PLAIN or coverage.touches((request,)):
                return groups, place
            if alike or not groups:
                groups.append([])
                alike = ""
            cast(list[None], groups[-1]).append(None)
        return groups, len(requests)

    def _put(self, operations: list[Operation], now: float) -> None:
        """Send one call for some requests."""
        keys, forms, runs = plan(operations)
        words = [word for operation in operations for word in operation.words]
        delays = [operation.delay for operation in operations if operation.delay]
        if delays:
            self._rewriter.marks.expect(keys, now + min(delays))
        call = self._rewriter.calls.batch(forms, keys, runs, bulks(words), len(words))
        self._rewriter.calls.count_all(operations)
        count, took_long = len(operations), self._took_long(keys)
        transaction = self._standing.transaction
        if transaction is None:
            self._out.put_together(call(False), count, took_long)
            return
        transaction.queue_together(operations, keys)
        first = operations[0]
        name = first.form.name
        command = cast(Command, self._rewriter.command(name))
        guard = self._rewriter.beside.guard(command, [name, first.key, *first.words])
        self._out.queue_together(call(False), count, took_long, guard=guard)

    def _took_long(self, names: list[bytes]) -> Callable[[int], None]:
        """Return the function that notes a long list: the reply gives the number of its key.

        The function is kept until the reply comes, so it holds no long names.
        """
        if sum(map(len, names)) > _MOST_NAMED:
            return _nothing
        return partial(_note_number, self._ground.checks.long_lists, names)

    def is_ordinary(self, now: float) -> bool:
        """Return whether the connection is in its ordinary state, in which requests may go together."""
        return self._standing.transaction is None and self._is_at_ease(now)

    def _may_queue(self, now: float) -> bool:
        """Return whether a transaction is open in which several requests may go as one."""
        is_open = self._standing.transaction is not None and self._out.can_put_aside
        return is_open and not self._coverage.blind and self._is_at_ease(now)

    def _is_at_ease(self, now: float) -> bool:
        standing, rights = self._standing, self._standing.rights
        return not (
            standing.next is not _FREE
            or standing.is_link
            or standing.login is _STRANGER
            or standing.subscriptions.begun
            or self._reads.under_way
            or rights.by_state
            or rights.unsure(now)
            or standing.limited
            or rights.confinement
        )

"""Replace many requests of one connection by one script call, which returns the reply to each.

Its tests: tests/test_together.py.

A run of requests of one form is split column by column, without an object for each. A mixture is parsed: requests on
members go together until one must be judged by itself, or runs in the server on different terms. Ordinary requests
between them, on keys without deadlines, are forwarded unchanged.

This is done only if every request would be rewritten anyway and none would have to wait. Anything special is left to
`Judge`, which takes requests one by one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from functools import partial
from itertools import chain
from typing import Final, cast

from proxy.commands.dialects import TOGETHER
from proxy.commands.table import BATCHED, Command
from proxy.session.ground import PLAIN, Ground
from proxy.session.operations import MIXED, OTHER_READS, OTHER_WRITES, Operation, plan, runs_of_one, script_for
from proxy.session.outgoing import Outgoing
from proxy.session.own_commands import is_cleared
from proxy.session.plain import BATCHED_RUNS
from proxy.session.reads import Reads
from proxy.session.standing import Login, Next, Standing
from proxy.wire.batch import requests_size
from proxy.wire.request import RequestReader, bulks
from proxy.wire.runs import LEAST, MOST_BYTES, Run

MOST_MIXED: Final = 200
"""Maximum number of requests in a call with several forms."""

_BETWEEN: Final = re.compile(rb"\r\n(?=\*[0-9]{1,4}\r\n\$)").search
_NAME: Final = re.compile(rb"\*[0-9]{1,4}\r\n\$[0-9]{1,2}\r\n([a-zA-Z]+)\r\n").match
_JOINED: Final = frozenset(spelled for name in BATCHED | TOGETHER for spelled in (name, name.lower()))
_OTHERS: Final = frozenset(spelled for name in OTHER_WRITES for spelled in (name, name.lower()))
_FOLLOW: Final = _JOINED | _OTHERS | {spelled for name in OTHER_READS for spelled in (name, name.lower())}
_DEADLINE: Final = re.compile(
    rb"\r\n(?:P?EXPIREMEMBER|[HSZ]P?EXPIRE|FIELDEXPIRE|HSETEX|SADDEX"
    rb"|p?expiremember|[hsz]p?expire|fieldexpire|hsetex|saddex)\r\n"
).search
_OTHER: Final = re.compile(rb"\r\n(?:%b)\r\n" % b"|".join(sorted(_OTHERS))).search
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
    """Ignore a long list: its name was not kept."""


class Together:
    """Combines requests of one connection into script calls.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.
        reads: the guarded reads under way, which must not be disturbed.
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
        return BATCHED_RUNS.may_be_in(data) or _DEADLINE(data) is not None or _OTHER(data) is not None

    def take_transaction(self, requests: list[list[bytes]], data: bytes, now: float) -> bool:
        """Send one call instead of a whole transaction: the call is atomic too, and much cheaper.

        Args:
            requests: the parsed requests of a chunk, of which the first is a MULTI.
            data: the chunk.
            now: the server's clock, in Unix ms.

        Returns:
            Whether they were sent.

        Raises:
            AttributeError, TypeError: an element of a request is not bytes.
        """
        if len(data) > MOST_BYTES or not self.is_ordinary(now):
            return False
        few = self._ground.checks.joinable.few_of(requests)
        if few is None or not self.may_replace_transactions:
            return False
        self._put(few.operations, now, transaction=True, free=few.free)
        return True

    @property
    def may_replace_transactions(self) -> bool:
        """Whether the client's MULTI and EXEC certainly succeed."""
        standing, has = self._standing, self._rewriter.server.has
        may_fail = standing.watched.begun or not (standing.rights.all_may and standing.is_proved)
        return not may_fail and has(b"MULTI") and has(b"EXEC")

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
        """Send one call for a run, or for its beginning; return the size of the replaced requests, in bytes."""
        form = self._rewriter.operations.form(run.name, run.size, run.column(run.size - 1)[0])
        if form is None:
            return 0
        keys = run.column(1)
        is_covered = self._coverage.covers
        if not form.of_own and not all(map(is_covered, set(keys))):
            run, keys = self._beginning(run, keys, next(i for i, key in enumerate(keys) if not is_covered(key)))
        if keys and (count := self._rewriter.calls.length_in_slot(keys)) < len(keys):
            run, keys = self._beginning(run, keys, count)
        if not keys:
            return 0
        columns = self._ground.checks.joinable.columns(run, form)
        if columns is None:
            return 0
        if columns.delay:
            self._rewriter.marks.expect(keys, now + columns.delay)
        names = list(dict.fromkeys(keys))
        call = self._rewriter.calls.batch([form], names, runs_of_one(keys, names), columns.tail, columns.size)
        self._rewriter.calls.count(form.script, run.count)
        self._out.put_together(call(False), run.count, self._took_long(names), counts=form.counts)
        return run.length

    @staticmethod
    def _beginning(run: Run, keys: list[bytes], count: int) -> tuple[Run, list[bytes]]:
        """Return a run of the first `count` requests, and their keys; no keys if there are too few requests."""
        return (run.beginning(count), keys[:count]) if count >= LEAST else (run, [])

    def _take_mixed(self, data: bytes, begin: int, now: float) -> int:
        """Send the requests of several forms that can go together; return the position after them."""
        name = _NAME(data, begin)
        if name is None or not self._may_join(name[1]) or self._is_of_cluster:
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

    def _may_join(self, name: bytes) -> bool:
        """Return whether requests with a command name, as the client spells it, may have a form on this server."""
        if name in _OTHERS:
            return True
        if name not in _JOINED:
            return False
        upper = name.upper()
        return upper in BATCHED or self._rewriter.server.dialect(upper) is not None

    def _give_up(self, begin: int, left: int) -> int:
        """Have at least `left` requests judged one by one, and more after each further piece that was parsed for
        nothing."""
        self._in_vain = min(self._in_vain + 1, _MOST_IN_VAIN)
        self._left = max(left, (1 << self._in_vain) - 2)
        return begin

    def _may_begin(self, data: bytes, begin: int) -> bool:
        """Return whether there are enough requests and the first ones may go together, without the cost of parsing the
        whole piece.

        If part of an argument looks like the beginning of a request, the result may be needlessly False.
        """
        position = begin
        for place in range(LEAST):
            name = _NAME(data, position)
            if name is None or not (name[1] in _FOLLOW or name[1] in PLAIN):
                self._left = max(0, place - 1)
                return False
            between = _BETWEEN(data, position)
            if between is None:
                position = begin + MOST_BYTES
                break
            position = between.end()
        first = self._ground.batch.parse(data[begin:position])
        if first is None or len(first[0]) < LEAST or set(map(type, chain.from_iterable(first[0]))) != _BYTES:
            return True
        _, count = self._groups(first[0][:LEAST], mixes=self._standing.transaction is None)
        if count == LEAST:
            return True
        self._left = max(0, count - 1)
        return False

    def _queue(self, requests: list[list[bytes]], begin: int, now: float) -> int:
        """Queue the first group of requests as one call in the open transaction; return the position after it."""
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
        """Return groups, each to be sent as one call or forwarded unchanged, and the number of requests in them.

        `mixes`: whether a call may include ordinary requests, and requests on different terms; False in a transaction.
        """
        # If the clock advances in a transaction, a call must not show what the transaction has not fixed for later
        # requests: reads go one by one, with a front before the first.
        advances = self._rewriter.server.clock_advances
        read, coverage, long_lists = self._rewriter.operations.read, self._coverage, self._ground.long_lists
        transaction = self._standing.transaction
        groups: list[list[Operation] | list[None]] = []
        group: list[Operation] = []
        alike = ""  # the letters of the forms that may follow in the group; empty if requests are forwarded
        covered: set[bytes] = set()
        confirmed: set[bytes] = set()
        for place, request in enumerate(requests):
            operation = read(request)
            if operation is not None:
                form, key, _, delay = operation
                if advances and is_cleared(key, transaction):
                    return groups, place  # the call would count members as gone that the transaction has shown
                if delay and key not in confirmed:
                    if key in long_lists or not coverage.is_confirmed(key):
                        return groups, place
                    confirmed.add(key)
                needs = form.of_own or key in covered or coverage.covers(key)
                if needs and (mixes or (form.names_members and not form.counts and not (form.reads and advances))):
                    covered.add(key)
                    if form.does not in alike:
                        if form.does == "q":
                            return groups, place
                        alike = form.alike if form.reads or not mixes else MIXED
                        group = []
                        groups.append(group)
                    group.append(operation)
                    continue
                if mixes and form.does in alike and not form.names_members:
                    group.append(operation)
                    continue
            if request[0] not in PLAIN or coverage.touches((request,)):
                return groups, place
            if alike or not groups:
                groups.append([])
                alike = ""
            cast(list[None], groups[-1]).append(None)
        return groups, len(requests)

    def _put(
        self, operations: list[Operation], now: float, *, transaction: bool = False, free: Collection[int] = ()
    ) -> None:
        """Send one call for some requests; `transaction`: also for the MULTI and EXEC around them; `free`: as in
        `Few`."""
        forms = [operation.form for operation in operations]
        different, keys, runs = plan(forms, [operation.key for operation in operations])
        words = [word for operation in operations for word in operation.words]
        delays = [operation.delay for operation in operations if operation.delay]
        if delays:
            self._rewriter.marks.expect(keys, now + min(delays))
        script = script_for(different, transaction=transaction)
        assert script is not None  # there is one for each group
        call = self._rewriter.calls.batch(different, keys, runs, bulks(words), len(words), terms=script[1])
        self._rewriter.calls.count_all(forms)
        count, took_long = len(operations), self._took_long(keys)
        begun = self._standing.transaction
        if begun is None:
            counts = any(form.counts for form in different)
            self._out.put_together(call(False), count, took_long, transaction=transaction, free=free, counts=counts)
            return
        begun.queue_together(operations, keys)
        first = operations[0]
        name = first.form.name
        command = cast(Command, self._rewriter.command(name))
        guard = self._rewriter.beside.guard(command, [name, first.key, *first.words])
        self._out.queue_together(call(False), count, took_long, guard=guard)

    def _took_long(self, names: list[bytes]) -> Callable[[int], None]:
        """Return the function that notes a long list. It takes the number of the list's key, which the reply gives.

        The function is kept until the reply comes, so it holds no long names.
        """
        if sum(map(len, names)) > _MOST_NAMED:
            return _nothing
        return partial(_note_number, self._ground.long_lists, names)

    def is_ordinary(self, now: float) -> bool:
        """Return whether the connection is in its ordinary state, in which requests may go together."""
        return self.is_between and self._standing.rights.is_sure_of_all(lambda: now)

    @property
    def is_between(self) -> bool:
        """Whether the connection is in its ordinary state, regardless of its user's permissions."""
        return self._standing.transaction is None and self._is_at_ease

    def _may_queue(self, now: float) -> bool:
        """Return whether a transaction is open in which several requests may go as one."""
        is_open = self._standing.transaction is not None and self._out.can_put_aside
        may_go = is_open and not self._coverage.blind and self._is_at_ease
        return may_go and self._standing.rights.is_sure_of_all(lambda: now)

    @property
    def _is_at_ease(self) -> bool:
        standing = self._standing
        return not (
            standing.next is not _FREE
            or standing.is_link
            or standing.login is _STRANGER
            or standing.subscriptions.begun
            or self._reads.under_way
        )

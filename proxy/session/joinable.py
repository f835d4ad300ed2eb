"""Parse several clients' requests on members, so that one script call can do them all.

Its tests: tests/test_joint.py.

Requests of one form are parsed as a run, column by column (a column is one argument of each). All other requests are
parsed one by one, or with the few others in their chunk.
"""

from __future__ import annotations

import re
from itertools import chain
from typing import Final, NamedTuple

from proxy.commands.described import Terms
from proxy.coverage.coverage import Coverage
from proxy.session.operations import LONGEST, MOST_ARGUMENTS, MOST_KEYS, Form, Operation, script_for
from proxy.session.plain import BATCHED_RUNS, EXEC, MULTI
from proxy.session.rewrite import Rewriter
from proxy.wire.batch import BatchParser
from proxy.wire.request import packed
from proxy.wire.runs import Run

_POSITIVE: Final = re.compile(rb"(?:[1-9][0-9]{0,14}\r)+")
_NUMBERS: Final = re.compile(rb"(?:[-+.0-9]+\r)+")

_LEAST_PARTS: Final = 2 * 2 + 1
_MOST_PARTS: Final = 2 * MOST_ARGUMENTS + 1
"""Line ends in the shortest and the longest requests that have a form."""


class Columns(NamedTuple):
    """The keys and arguments of requests of one form.

    Attributes:
        form: their form.
        keys: the key of each.
        tail: the other arguments that the script gets, request by request, as bulk strings.
        size: the number of these arguments.
        delay: the earliest deadline that they set, in ms from now; 0 if they set none.
    """

    form: Form
    keys: list[bytes]
    tail: bytes
    size: int
    delay: int


class Few(NamedTuple):
    """A few requests that came together, possibly as a transaction.

    Attributes:
        operations: what the requests do.
        is_transaction: whether a MULTI and an EXEC are around them.
        free: the positions of those that the server queues even if it is out of memory.
    """

    operations: list[Operation]
    is_transaction: bool
    free: list[int]

    @property
    def is_one_call(self) -> bool:
        """Whether one call can do all requests."""
        return self.script is not None

    @property
    def script(self) -> tuple[str, Terms] | None:
        """The script that can do all requests; see `script_for`."""
        return script_for([operation.form for operation in self.operations], transaction=self.is_transaction)

    @property
    def delay(self) -> int:
        """The earliest deadline that they set, in ms from now; 0 if they set none."""
        return min([operation.delay for operation in self.operations if operation.delay], default=0)


class Joinable:
    """Reads the keys and arguments of requests that need not be judged one by one.

    Args:
        rewriter: knows the forms of requests.
        coverage: the covered keys.
        batch: parses chunks.

    Attributes:
        long_lists: keys of lists too long to look for many members in one script.
    """

    def __init__(self, rewriter: Rewriter, coverage: Coverage, batch: BatchParser) -> None:
        self._batch = batch
        self._operations = rewriter.operations
        self._names = rewriter.names
        self._coverage = coverage
        self.long_lists: set[bytes] = set()

    def one(self, chunk: bytes) -> Operation | None:
        """Return the operation of a chunk, which may be any bytes; None unless it is one request that can be joined."""
        parts = chunk.split(b"\r\n", _MOST_PARTS)
        if len(parts) <= _LEAST_PARTS or self._names.slots is not None:
            return None  # in a cluster a call is for one slot, which requests rarely share
        request = parts[2:-1:2]
        if packed(request) != chunk:
            return None  # an argument has line ends
        operation = self._operation(request)
        if operation is None or operation.form.does == "q":  # a guard is enough for a read
            return None
        return operation if self._needs_script(operation) else None

    def few(self, chunk: bytes) -> Few | None:
        """Return the operations of a chunk's requests, which one call can do; None if there is no such call."""
        try:
            requests = self._batch.parse_whole(chunk)
            few = None if requests is None else self.few_of(requests)
        except (TypeError, AttributeError):  # an array in the place of an argument
            return None
        return few if few is not None and few.is_one_call else None

    def few_of(self, requests: list[list[bytes]]) -> Few | None:
        """Return the operations of requests; None unless a script must replace at least one of them.

        None, too, if the requests are a transaction that one script cannot do.

        Raises:
            AttributeError, TypeError: an element of a request is not bytes.
        """
        is_transaction = requests[0][0] in MULTI
        if is_transaction:
            is_whole = len(requests) > 2 and len(requests[0]) == len(requests[-1]) == 1 and requests[-1][0] in EXEC
            if not is_whole:
                return None
            requests = requests[1:-1]
        b"".join(chain.from_iterable(requests))  # raises TypeError for an array
        if self._names.slots is not None or len(requests) > MOST_KEYS:
            return None
        operations = []
        for request in requests:
            operation = self._operation(request)
            if operation is None:
                return None
            operations.append(operation)
        if not any(map(self._needs_script, operations)):
            return None
        few = Few(operations, is_transaction, self._operations.free(operations) if is_transaction else [])
        # The server must refuse the call whenever it would refuse one of the requests. When memory has run out, the
        # server refuses only calls that are declared to take memory.
        if is_transaction and not (few.script and few.script[1].declared and few.script[1].takes_memory):
            return None
        return few

    def _needs_script(self, operation: Operation) -> bool:
        return operation.form.of_own or self._coverage.covers(operation.key)

    def _operation(self, request: list[bytes]) -> Operation | None:
        """Return the operation of a request; None if it must be judged by itself."""
        operation = self._operations.read(request)
        if operation is None or operation.key.startswith(self._names.prefix):
            return None
        form, key, _, delay = operation
        if delay and (key in self.long_lists or not self._coverage.is_confirmed(key)):
            return None
        return operation if not form.names_members or self._needs_script(operation) else None

    def several(self, requests: list[bytes]) -> Columns | None:
        """Return the columns of some requests; None unless they have one form, and each can be joined.

        Args:
            requests: chunks. In each only the first line begins with a star; otherwise they may be any bytes.
        """
        chunk = b"".join(requests)
        run = BATCHED_RUNS.at(chunk)
        if run is None or run.count != len(requests) or run.length != len(chunk):
            return None
        if self._names.slots is not None or self._names.prefix in chunk:
            return None
        form = self._operations.form(run.name, run.size, run.column(run.size - 1)[0])
        if form is None or not (form.of_own or all(map(self._coverage.covers, set(run.column(1))))):
            return None
        return self.columns(run, form)

    def columns(self, run: Run, form: Form) -> Columns | None:
        """Return the columns of a run of requests; None if one must be judged by itself.

        Call this only if all their keys are covered, or if the server lacks the command.
        """
        keys = run.column(1)
        delay = 0
        if form.unit:
            terms, names = set(run.column(3)), set(keys)
            is_mixed = form.end < run.size and len(set(run.column(4))) > 1
            if is_mixed or not _POSITIVE.fullmatch(b"\r".join(terms) + b"\r"):
                return None
            delays = list(map(int, terms))
            if (
                max(delays) * form.unit > LONGEST
                or self._coverage.unconfirmed(names)
                or not self.long_lists.isdisjoint(names)
            ):
                return None
            delay = min(delays) * form.unit
        if form.scored and not _NUMBERS.fullmatch(b"\r".join(run.column(2)) + b"\r"):
            return None  # an argument in the place of a score may be an option
        return Columns(form, keys, run.encoded(2, form.end), (form.end - 2) * run.count, delay)

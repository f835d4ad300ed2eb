"""Joint calls: send member requests of several clients over a shared connection as one call of a script.

Its tests: tests/test_joint.py.

A call refers to its script by digest if the text has run over the same lane. If the server no longer has the
script, or the proxy's user may not run scripts by digest, nothing has run, and the call is sent again with the text.
"""

from __future__ import annotations

import re
from itertools import chain, islice
from typing import Final, NamedTuple

import structlog

from proxy.commands.described import Terms
from proxy.relay.lane import Lane, State
from proxy.relay.port import Port
from proxy.session.ground import Ground
from proxy.session.joinable import Columns, Few, Joinable
from proxy.session.operations import Form, Operation, plan, script_for
from proxy.session.script_calls import Loadable
from proxy.session.together import note_long_list
from proxy.wire.elements import as_counter, of_transaction
from proxy.wire.frames import frames
from proxy.wire.replies import MOST_PARTS
from proxy.wire.request import bulks
from proxy.wire.runs import LEAST

log = structlog.get_logger("proxy.relay")

MOST: Final = MOST_PARTS
"""Maximum number of requests per call: their replies are split in one go."""

_HEAD: Final = 12
"""Number of first bytes in which requests of different commands differ, as in `*3\\r\\n$4\\r\\nSADD`."""

_BETWEEN: Final = b"\r\n*"
"""Bytes that may begin another request, or be part of a value. A chunk without them is one request, or part of one."""

_NO_SUCH_SCRIPT: Final = b"-NOSCRIPT"
_NOT_BY_DIGEST: Final = re.compile(rb"-(?:NOPERM [^\r]*'evalsha(?:_ro)?'|ERR unknown command)").match
"""Matches refusals of calls by digest. Any other NOPERM is the script's own error, for a command that it runs."""


_FORBIDDEN: Final = re.compile(rb"-NOPERM (?![^\r]* script: )").match
"""Matches refusals of calls whose script has not begun to run."""


class Part(NamedTuple):
    """Requests of one form and their clients, or a few requests of one client.

    Attributes:
        asked: the arguments of several requests, by columns; the operation of a single one; or a few operations.
        ports: the clients' ports.
        forms: the form of each request.
    """

    asked: Columns | Operation | Few
    ports: list[Port]
    forms: list[Form]

    @property
    def script(self) -> tuple[str, Terms]:
        """The script that carries out these requests, and others like them; see `script_for`."""
        script = self.asked.script if isinstance(self.asked, Few) else script_for(self.forms[:1])
        assert script is not None  # `Joinable` takes only what one call can do
        return script

    @property
    def arguments(self) -> tuple[list[bytes], bytes, int]:
        """The key of each request; the other arguments that the script gets, as bulk strings; and their number."""
        asked = self.asked
        if isinstance(asked, Columns):
            return asked.keys, asked.tail, asked.size
        operations = asked.operations if isinstance(asked, Few) else [asked]
        words = [word for operation in operations for word in operation.words]
        return [operation.key for operation in operations], bulks(words), len(words)


def read(joinable: Joinable, ports: list[Port]) -> tuple[list[Part], list[Port]]:
    """Parse the requests of a turn; return the parts, and the ports whose requests cannot go jointly."""
    parts: list[Part] = []
    refused: list[Port] = []
    groups: dict[bytes, list[Port]] = {}
    for port in ports:
        if _BETWEEN in port.request:
            _take(joinable.few(port.request), port, parts, refused)
        else:
            groups.setdefault(port.request[:_HEAD], []).append(port)
    for group in groups.values():
        for begin in range(0, len(group), MOST):
            some = group[begin : begin + MOST]
            columns = joinable.several([port.request for port in some]) if len(some) >= LEAST else None
            if columns is not None:
                parts.append(Part(columns, some, [columns.form] * len(some)))
                continue
            for port in some:
                _take(joinable.one(port.request), port, parts, refused)
    return parts, refused


def _take(asked: Operation | Few | None, port: Port, parts: list[Part], refused: list[Port]) -> None:
    if asked is None:
        refused.append(port)
    else:
        forms = [operation.form for operation in asked.operations] if isinstance(asked, Few) else [asked.form]
        parts.append(Part(asked, [port], forms))


def in_calls(parts: list[Part]) -> list[list[Part]]:
    """Group parts into calls."""
    if len(parts) == 1:
        return [parts]
    calls: list[list[Part]] = []
    open_calls: dict[tuple[str, Terms], tuple[list[Part], int]] = {}  # script → the last call of it, and its size
    for part in parts:
        script, count = part.script, len(part.forms)
        call, size = open_calls.get(script, ([], MOST))
        if size + count > MOST:
            call, size = [], 0
            calls.append(call)
        call.append(part)
        open_calls[script] = call, size + count
    return calls


class Joint:
    """One joint call.

    Args:
        ground: what all sessions share.
        parts: the requests, which all need the same kind of script.
        lane: the lane to send it over.
        counts: whether to count the requests as replaced; False if they have been counted.
    """

    __slots__ = (
        "_by_digest",
        "_call",
        "_count",
        "_counts",
        "_ground",
        "_is_alone",
        "_keys",
        "_lane",
        "_left",
        "_pieces",
        "_several",
        "port",
    )

    def __init__(self, ground: Ground, parts: list[Part], lane: Lane, *, counts: bool = True) -> None:
        self._ground = ground
        self._left = [port for part in parts for port in part.ports]
        self._lane = lane
        self._pieces: list[bytes] = []
        self._keys: list[bytes] = []
        calls, first = ground.rewriter.calls, parts[0].asked
        forms = parts[0].forms if len(parts) == 1 else [form for part in parts for form in part.forms]
        if counts:
            calls.count_all(forms)
        self._count = len(forms)
        self._counts = any(form.counts for form in set(forms))
        self._several = {
            part.ports[0]: (len(part.forms), part.asked.is_transaction, part.asked.free)
            for part in parts
            if isinstance(part.asked, Few)
        }
        alone = None
        if len(parts) == 1 and isinstance(first, Operation):
            alone = calls.alone(first, self._left[0].request)
        self._is_alone = alone is not None
        self._call = alone or self._batch(parts[0].script, forms, [part.arguments for part in parts])
        self._by_digest = lane.has_script(self._call.script)
        self.port = port = Port(self._pieces.append)
        port.busy = True
        port.request = self._left[0].request  # any request will do: the lane gives back only ports that have a request
        port.settled, port.lost, port.returned, port.broke = self._settle, self._lose, self._give_back, self._break

    def _batch(
        self, script: tuple[str, Terms], forms: list[Form], arguments: list[tuple[list[bytes], bytes, int]]
    ) -> Loadable:
        keys, tails, sizes = zip(*arguments, strict=True)
        different, self._keys, runs = plan(forms, list(chain.from_iterable(keys)))
        does, terms = script
        encode = self._ground.rewriter.calls.batch(
            different, self._keys, runs, b"".join(tails), sum(sizes), does, terms=terms
        )
        return Loadable(script, encode)

    def request(self) -> bytes:
        """Return the bytes of the call."""
        return self._call.encode(self._by_digest)

    def _settle(self) -> None:
        """Pass each client its reply. If the call was refused and has not run, send it again, as EVAL or split up."""
        said = b"".join(self._pieces)
        self._pieces.clear()
        if len(self._left) > 1 and _FORBIDDEN(said) and not _NOT_BY_DIGEST(said):
            self._send_each()
            return
        if self._by_digest and said[:1] == b"-":
            for_good = _NOT_BY_DIGEST(said) is not None
            if for_good or said.startswith(_NO_SUCH_SCRIPT):
                self._send_text(for_good=for_good)
                return
        elif said[:1] != b"-":  # after a refusal the server may not know the text
            self._lane.note_script(self._call.script)
        refused = said[:1] == b"-"
        replies = [said] * self._count if self._is_alone or refused else self._cut(said)
        if self._several:
            replies = self._for_each_client(replies, refused=refused)
        ports, self._left = self._left, []
        for port, reply in zip(ports, replies, strict=True):
            port.busy = False
            try:
                port.deliver(reply)
                if port.settled is not None:
                    port.settled()
            except Exception as error:  # noqa: BLE001 - one client's defect is not another's
                port.broke(error)

    def _cut(self, said: bytes) -> list[bytes]:
        """Split the reply into one for each request. Raises ValueError if their number is wrong."""
        count = self._count
        head, *lines, _ = said.split(b"\r\n")
        size = int(head[1:])
        if len(lines) == size:
            replies = [line + b"\r\n" for line in lines]
        else:
            replies = frames(said[len(head) + 2 :])
        if len(replies) == count + 1:
            note_long_list(self._ground.long_lists, self._keys[int(replies.pop(0)[1:]) - 1])
        if head[:1] != b"*" or len(replies) != count:
            raise ValueError
        return list(map(as_counter, replies)) if self._counts else replies

    def _for_each_client(self, replies: list[bytes], *, refused: bool) -> list[bytes]:
        """Join the replies to all requests into one piece for each client; `refused`: whether the call was refused."""
        rest, pieces = iter(replies), []
        for port in self._left:
            count, is_transaction, free = self._several.get(port, (1, False, []))
            piece = b"".join(islice(rest, count))
            if is_transaction:
                piece = of_transaction(count, piece, refused=refused, free=free)
            pieces.append(piece)
        return pieces

    def _send_text(self, *, for_good: bool) -> None:
        """Send the call again with the script's text: it has not run."""
        self._by_digest = False
        self._lane.lack_script(self._call.script, for_good=for_good)
        if self._lane.state is not State.OPEN:
            self._give_back(b"")
            return
        self.port.busy = True
        self._lane.send([self.port], self.request())

    def _send_each(self) -> None:
        """Send each client's requests as a separate call: none has run, and perhaps only one client names a key that
        the clients' common user may not access.

        Do not simply give the requests back: a client that has gone meanwhile could not send its own again.
        """
        ports, self._left = self._left, []
        for port in ports:
            try:
                self._send_alone(port)
            except Exception as error:  # noqa: BLE001 - one client's defect is not another's
                port.fail(error)

    def _send_alone(self, port: Port) -> None:
        parts, _ = read(self._ground.checks.joinable, [port])
        if parts and self._lane.state is State.OPEN:
            call = Joint(self._ground, parts, self._lane, counts=False)
            self._lane.send([call.port], call.request())
        else:
            port.give_back(port.request)

    def _lose(self) -> None:
        """Handle the loss of the reply."""
        ports, self._left = self._left, []
        for port in ports:
            port.lose()

    def _give_back(self, _: bytes) -> None:
        """Have each client send its request over its own connection: no request has run, or all can run twice."""
        ports, self._left = self._left, []
        for port in ports:
            port.give_back(port.request)

    def _break(self, error: Exception) -> None:
        """Close the lane after a wrong reply: replies can no longer be assigned to clients."""
        log.error("shared connection closed: stray reply", reply=repr(error))
        self._lane.abort()
        self._lose()

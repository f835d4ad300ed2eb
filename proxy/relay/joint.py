"""Joint calls: send member requests of several clients over a shared connection as one call of a script.

Its tests: tests/test_joint.py.

A call refers to its script by digest if the text has run over the same lane. If the server no longer has the
script, or the proxy's user may not run scripts by digest, nothing has run, and the call is sent again with the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import structlog

from proxy.coverage.coverage import Coverage
from proxy.relay.lane import Lane, State
from proxy.relay.port import Port
from proxy.session.ground import Ground
from proxy.session.operations import Operation, plan
from proxy.session.script_calls import Loadable
from proxy.session.together import note_long_list
from proxy.wire.frames import frames
from proxy.wire.replies import MOST_PARTS
from proxy.wire.request import bulks

log = structlog.get_logger("proxy.relay")

MOST: Final = MOST_PARTS
"""Maximum number of requests per call: their replies are split in one go."""

_NO_SUCH_SCRIPT: Final = b"-NOSCRIPT"
_NOT_BY_DIGEST: Final = re.compile(rb"-(?:NOPERM [^\r]*'evalsha(?:_ro)?'|ERR unknown command)").match
"""Any other NOPERM is the script's own error, for a command that it runs."""


class Taken(NamedTuple):
    """A request of one client.

    Attributes:
        port: the client's port.
        operation: what the request asks for.
    """

    port: Port
    operation: Operation


def in_calls(taken: Iterable[Taken]) -> list[list[Taken]]:
    """Group requests into calls."""
    kinds: dict[str, list[Taken]] = {}
    for one in taken:
        kinds.setdefault(one.operation.form.alike, []).append(one)
    return [some[begin : begin + MOST] for some in kinds.values() for begin in range(0, len(some), MOST)]


def sort_out(coverage: Coverage, taken: Sequence[Taken]) -> tuple[list[Taken], list[Port]]:
    """Return the requests that can still be sent, and the ports of those that would set a first deadline."""
    setting = [one.operation.key for one in taken if one.operation.delay]
    if not (unconfirmed := set(coverage.unconfirmed(setting))):
        return list(taken), []
    first = [one for one in taken if one.operation.delay and one.operation.key in unconfirmed]
    return [one for one in taken if one not in first], [one.port for one in first]


class Joint:
    """One joint call.

    Args:
        ground: what all sessions share.
        taken: the requests, which all need the same kind of script.
        lane: the lane to send it over.
    """

    __slots__ = ("_by_digest", "_call", "_ground", "_is_alone", "_keys", "_lane", "_left", "_pieces", "port")

    def __init__(self, ground: Ground, taken: Sequence[Taken], lane: Lane) -> None:
        self._ground = ground
        self._left = [one.port for one in taken]
        self._lane = lane
        self._pieces: list[bytes] = []
        operations = [one.operation for one in taken]
        rewriter = ground.rewriter
        alone = rewriter.calls.alone(operations[0], self._left[0].request) if len(taken) == 1 else None
        self._is_alone = alone is not None
        self._keys: list[bytes] = []
        self._call = alone or self._batch(operations)
        rewriter.calls.count_all(operations)
        self._by_digest = lane.has_script(self._call.script)
        self.port = port = Port(self._pieces.append)
        port.busy = True
        port.request = self._left[0].request  # any request will do: the lane gives back only ports that have one
        port.settled, port.lost, port.returned, port.broke = self._settle, self._lose, self._give_back, self._break

    def _batch(self, operations: list[Operation]) -> Loadable:
        self._keys, forms, runs = plan(operations)
        words = [word for operation in operations for word in operation.words]
        alike = forms[0].alike
        encode = self._ground.rewriter.calls.batch(forms, self._keys, runs, bulks(words), len(words), alike)
        return Loadable((alike, forms[0].terms), encode)

    def request(self) -> bytes:
        """Return the call as it is sent."""
        return self._call.encode(self._by_digest)

    def _settle(self) -> None:
        """Pass each client its reply, or resend as EVAL if EVALSHA was refused."""
        said = b"".join(self._pieces)
        self._pieces.clear()
        if self._by_digest and said[:1] == b"-":
            for_good = _NOT_BY_DIGEST(said) is not None
            if for_good or said.startswith(_NO_SUCH_SCRIPT):
                self._send_text(for_good=for_good)
                return
        elif said[:1] != b"-":  # a refused text may be unknown to the server
            self._lane.note_script(self._call.script)
        if self._is_alone or said[:1] == b"-":
            replies = [said] * len(self._left)
        else:
            replies = self._cut(said)
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
        count = len(self._left)
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
        return replies

    def _send_text(self, *, for_good: bool) -> None:
        """Send the call again with the script's text: it has not run."""
        self._by_digest = False
        self._lane.lack_script(self._call.script, for_good=for_good)
        if self._lane.state is not State.OPEN:
            self._give_back(b"")
            return
        self.port.busy = True
        self._lane.send([self.port], self.request())

    def _lose(self) -> None:
        """Handle the loss of the reply."""
        ports, self._left = self._left, []
        for port in ports:
            port.busy = False
            port.lost()

    def _give_back(self, _: bytes) -> None:
        """Have each client send its request over its own connection: none has run, or all can run twice."""
        ports, self._left = self._left, []
        for port in ports:
            port.give_back(port.request)

    def _break(self, error: Exception) -> None:
        """Close the lane after a wrong reply: replies can no longer be assigned to clients."""
        log.error("shared connection closed: stray reply", reply=repr(error))
        self._lane.abort()
        self._lose()

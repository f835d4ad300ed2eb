"""A request that is sent on while it arrives: what has to be checked again before its last byte goes.

Its tests: tests/test_streams.py.
"""

from __future__ import annotations

from typing import Final

from proxy.commands.table import BLIND, Command
from proxy.session import additions
from proxy.session.ground import Ground
from proxy.session.outgoing import Outgoing
from proxy.session.question import Question
from proxy.session.standing import Standing
from proxy.session.streams import Stream
from proxy.wire.request import Request

LARGE: Final = 1024 * 1024
"""Behind an upload longer than this, in bytes, goes a sign: it may still wait to be sent long after its end has
come."""


class Upload:
    """What is known of that request, and of those before it that may not have run.

    Args:
        ground: what all sessions stand on.
        standing: the state of the connection.
        out: what goes upstream.

    Attributes:
        stream: the request, while others may have to wait for its end.
    """

    __slots__ = ("_adding", "_coverage", "_keys", "_out", "_signed", "_standing", "_streams", "stream")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing) -> None:
        self._coverage = ground.coverage
        self._streams = ground.streams
        self._standing = standing
        self._out = out
        self.stream: Stream | None = None
        self._keys: list[bytes] = []  # those that are looked at once more before its last byte goes
        self._adding: list[bytes] = []  # those to which it may add members without a script that looks which are absent
        self._signed: list[Stream] = []  # those whose replies are to show that they have run

    def begin(self, command: Command, request: Request) -> None:
        """Note that the head of a request goes as it came. Not within a transaction: there EXEC is looked at again."""
        standing = self._standing
        keys = command.keys(request.arguments) or []
        # Nobody else removes what is due for a user who may run no scripts.
        self._keys = keys if standing.limited or command.effect in BLIND else []
        self._adding = additions.blind_keys(command, request, limited=standing.limited)
        trusted = not standing.limited and not standing.rights.unasked
        self.stream = self._streams.begin(standing, keys, is_waited_for=trusted)

    def begin_unnamed(self, keys: list[bytes]) -> None:
        """Note the head of a request that the table does not name, with the key in front; or none, of a whole one."""
        self._keys, self._adding = keys, []

    def last_look(self) -> Question | None:
        """Return what has to be done before the last byte goes, with which the request runs: more members may be due or
        absent by now."""
        keys, self._keys = self._keys, []
        adding, self._adding = self._adding, []
        due = self._coverage.among(keys)
        absent = [(key, None) for key in adding if self._coverage.covers(key)]
        tentative = bool(absent) and self._standing.limited
        return Question(due=tuple(due), absent=tuple(absent), tentative=tentative) if due or absent else None

    def follow(self, part: Request, *, ended: bool, broken: bool) -> None:
        """Note what has been sent on of it.

        Args:
            part: the part.
            ended: whether it is the last one.
            broken: whether what follows in the stream cannot be understood.
        """
        stream = self.stream
        if stream is None:
            return
        stream.size += len(part.raw)
        if not ended:
            return
        self.stream = None
        streams, signed = self._streams, self._signed
        if (stream.is_awaited or stream.size >= LARGE) and self._standing.askable and not broken:

            def has_run() -> None:
                streams.end(stream)
                signed.remove(stream)

            signed.append(stream)
            self._out.append(self._out.expect(b"", found=has_run))
        else:
            streams.end(stream)

    def close(self) -> None:
        """Let nobody wait any longer: the client has gone."""
        for stream in (*self._signed, *((self.stream,) if self.stream is not None else ())):
            self._streams.end(stream)

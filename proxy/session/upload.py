"""Track uploads (requests forwarded while they arrive), and check their keys again before the last byte is sent.

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
"""Minimum size, in bytes, of an upload that a sign follows: the server may get the end long after the proxy."""


class Upload:
    """The current upload, and earlier ones that may not have run.

    Args:
        ground: the objects that all sessions share.
        standing: the state of the connection.
        out: the stream to the server.

    Attributes:
        stream: the upload, while other connections may have to wait for its end.
    """

    __slots__ = ("_adding", "_coverage", "_keys", "_out", "_signed", "_standing", "_streams", "stream")

    def __init__(self, ground: Ground, standing: Standing, out: Outgoing) -> None:
        self._coverage = ground.coverage
        self._streams = ground.streams
        self._standing = standing
        self._out = out
        self.stream: Stream | None = None
        self._keys: list[bytes] = []  # keys to check again before the upload's last byte is sent
        self._adding: list[bytes] = []  # keys to which the upload may add members without a script
        self._signed: list[Stream] = []  # uploads sent whole; signs will show that they have run

    def begin(self, command: Command, request: Request) -> None:
        """Note that the head of a request is forwarded unchanged.

        Do not call this in a transaction: its keys are checked before EXEC.
        """
        standing = self._standing
        keys = command.keys(request.arguments) or []
        # No script removes due members for a user who may run none.
        self._keys = keys if standing.limited or command.effect in BLIND else []
        self._adding = additions.blind_keys(command, request, limited=standing.limited)
        trusted = not standing.limited and not standing.rights.unasked
        self.stream = self._streams.begin(standing, keys, is_waited_for=trusted)

    def begin_unnamed(self, keys: list[bytes]) -> None:
        """Note that a request is sent whose command is not in the table.

        `keys`: the keys to check again before its last byte: the first argument of a head, none of a whole request.
        """
        self._keys, self._adding = keys, []

    def last_look(self) -> Question | None:
        """Return the work to do before the last byte is sent, because more members may be due or absent by now."""
        keys, self._keys = self._keys, []
        adding, self._adding = self._adding, []
        due = self._coverage.among(keys)
        absent = [(key, None) for key in adding if self._coverage.covers(key)]
        tentative = bool(absent) and self._standing.limited
        return Question(due=tuple(due), absent=tuple(absent), tentative=tentative) if due or absent else None

    def follow(self, part: Request, *, ended: bool, broken: bool) -> None:
        """Note that a part of the upload has been sent.

        Args:
            part: the part.
            ended: whether it is the last one.
            broken: whether the rest of the stream is invalid.
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
        """End all waits for uploads: the client has gone."""
        for stream in (*self._signed, *((self.stream,) if self.stream is not None else ())):
            self._streams.end(stream)

"""Requests that are on their way when a prefix becomes covered, so that they were judged as if it were not.

One that still arrives was judged by its head. If a key gains a deadline during an upload, members that it adds would
wrongly inherit it. So whoever is about to cover a prefix waits for it, for a time; then the request is cut off, which
the server does not run.

One that has been sent may wait in the server behind many others of its pipeline, which runs in turns with others'.
Which keys these name nobody has noted: so the long pipelines of all others are waited for, for a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from proxy.coverage.coverage import covers_any
from proxy.session.pipeline import Pipeline

LONG: Final = 4 * 1024
"""Bytes of a chunk behind which a connection counts as having a long pipeline. The servers read 16 KB of a connection
before they turn to the next one, and run all of it: what is shorter has run before a request that is sent later."""


class Stream:
    """A request on its way.

    Args:
        owner: whose it is.
        keys: those that it may add members to.

    Attributes:
        is_waited_for: whether others may be made to wait for it: not for one that the server may refuse in the end.
        is_cut: whether nothing more of it may be sent on.
        size: how many bytes of it have been sent on.
    """

    __slots__ = ("_waiting", "is_cut", "is_waited_for", "keys", "owner", "size")

    def __init__(self, owner: object, keys: tuple[bytes, ...], *, is_waited_for: bool) -> None:
        self.owner = owner
        self.is_waited_for = is_waited_for
        self.keys = keys
        self.is_cut = False
        self.size = 0
        self._waiting: list[Callable[[], None]] = []

    @property
    def is_awaited(self) -> bool:
        """Whether somebody waits for its end."""
        return bool(self._waiting)

    def on_end(self, call: Callable[[], None]) -> None:
        """Have something called when it ends."""
        self._waiting.append(call)

    def ended(self) -> None:
        """Make the calls that were asked for."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


class Streams:
    """All such requests of a proxy.

    Attributes:
        uploads: those that still arrive.
        pipelines: the connections that have sent long chunks which may not have run, with the number of the last one.
    """

    def __init__(self) -> None:
        self.uploads: dict[Stream, None] = {}
        self.pipelines: dict[Pipeline, int] = {}
        self._chunks = 0  # long ones, of all connections: no number comes again

    def lengthen(self, owner: Pipeline) -> None:
        """Note that a connection has sent a long chunk."""
        self._chunks += 1
        self.pipelines[owner] = self._chunks

    def ran(self, owner: Pipeline, chunk: int | None = None) -> None:
        """Note that what a connection had sent has run, or may be taken to; if that long chunk is its last one."""
        if chunk is None or self.pipelines.get(owner) == chunk:
            self.pipelines.pop(owner, None)

    def of_others(self, owner: Pipeline | None) -> tuple[Pipeline, ...]:
        """Return the connections that have long pipelines, but for one, if any."""
        return tuple(other for other in self.pipelines if other is not owner)

    def begin(self, owner: object, keys: Iterable[bytes], *, is_waited_for: bool = True) -> Stream:
        """Note a request whose head is about to be sent."""
        stream = Stream(owner, tuple(dict.fromkeys(keys)), is_waited_for=is_waited_for)
        self.uploads[stream] = None
        return stream

    def end(self, stream: Stream) -> None:
        """Note that a request has run, or never will; more than once does no harm."""
        self.uploads.pop(stream, None)
        stream.ended()

    def cut(self, stream: Stream) -> None:
        """Let nothing more of a request be sent."""
        stream.is_cut = True
        self.end(stream)

    def cut_all(self, entries: Iterable[bytes]) -> None:
        """Let nothing more be sent of any request that may add members to keys that some entries cover."""
        for stream in self.under(entries):
            self.cut(stream)

    def under(self, entries: Iterable[bytes], *, but: object = None) -> list[Stream]:
        """Return the requests that may add members to keys that some entries cover, without those of one owner, whose
        come in order."""
        entries = tuple(entries)
        return [stream for stream in self.uploads if stream.owner is not but and covers_any(entries, stream.keys)]

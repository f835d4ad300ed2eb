"""Track requests that are under way when a prefix becomes covered: they were judged as if their keys were not.

Its tests: tests/test_streams.py.

An upload was judged by its head. If a member gets a deadline during an upload that adds it, the new life would wrongly
inherit the deadline. So before a prefix is covered the proxy waits for uploads, for a bounded time. Then it cuts off
those that remain, and the server does not run them.

A request that has been sent may still wait in the server behind others of its pipeline. The proxy has not recorded the
keys of sent requests, so it waits, for a bounded time, for the long pipelines of all other connections.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from proxy.coverage.coverage import covers_any
from proxy.session.pipeline import Pipeline

LONG: Final = 4 * 1024
"""A connection that sends a chunk longer than this, in bytes, counts as having a long pipeline. A server reads 16 KB of
a connection and runs all of it before it turns to the next one, so shorter chunks have run before any later request."""


class Stream:
    """An upload under way.

    Args:
        owner: the connection that sends it.
        keys: the keys to which it may add members.

    Attributes:
        is_waited_for: whether other connections must wait for it; false if the server may refuse the request.
        is_cut: whether it is cut off: no more of it may be sent.
        size: how many bytes of it have been sent.
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
        """Whether other connections are waiting for its end now."""
        return bool(self._waiting)

    def on_end(self, call: Callable[[], None]) -> None:
        """Register a callback for its end."""
        self._waiting.append(call)

    def ended(self) -> None:
        """Run the callbacks."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call()


class Streams:
    """The uploads and long pipelines of all connections of a proxy.

    Attributes:
        uploads: the uploads under way.
        pipelines: connections that have sent long chunks which may not have run → number of the last chunk.
    """

    def __init__(self) -> None:
        self.uploads: dict[Stream, None] = {}
        self.pipelines: dict[Pipeline, int] = {}
        self._chunks = 0  # number of the last long chunk, over all connections

    def lengthen(self, owner: Pipeline) -> None:
        """Note that a connection has sent a long chunk."""
        self._chunks += 1
        self.pipelines[owner] = self._chunks

    def ran(self, owner: Pipeline, chunk: int | None = None) -> None:
        """Stop waiting for a pipeline; with `chunk`, only if that is still the number of its last long chunk."""
        if chunk is None or self.pipelines.get(owner) == chunk:
            self.pipelines.pop(owner, None)

    def of_others(self, owner: Pipeline | None) -> tuple[Pipeline, ...]:
        """Return the connections with long pipelines, except for the given one."""
        return tuple(other for other in self.pipelines if other is not owner)

    def begin(self, owner: object, keys: Iterable[bytes], *, is_waited_for: bool = True) -> Stream:
        """Note an upload whose head is about to be sent."""
        stream = Stream(owner, tuple(dict.fromkeys(keys)), is_waited_for=is_waited_for)
        self.uploads[stream] = None
        return stream

    def end(self, stream: Stream) -> None:
        """Note that an upload has run or never will. May be called repeatedly."""
        self.uploads.pop(stream, None)
        stream.ended()

    def cut(self, stream: Stream) -> None:
        """Cut off an upload: send no more of it."""
        stream.is_cut = True
        self.end(stream)

    def cut_all(self, entries: Iterable[bytes]) -> None:
        """Cut off every upload that may add members to keys under some entries (covered prefixes)."""
        for stream in self.under(entries):
            self.cut(stream)

    def under(self, entries: Iterable[bytes], *, but: object = None) -> list[Stream]:
        """Return the uploads that may add members to keys under some entries, except for one owner's."""
        entries = tuple(entries)
        return [stream for stream in self.uploads if stream.owner is not but and covers_any(entries, stream.keys)]

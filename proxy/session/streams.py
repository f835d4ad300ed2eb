"""Requests that are on their way when a key gets its first deadline, so that they were judged as if it had none.

One that still arrives was judged by its head. Would one of its keys have a deadline when its last byte comes, what it
adds would keep it. So whoever is about to give a key its first deadline waits for it, for a time; then the request is
cut off, which the server does not run.

One that has been sent may wait in the server behind many others of its pipeline, which runs in turns with other
clients. Which keys these name nobody has noted: so whoever is about to give any key its first deadline waits, for a
time, until the long pipelines of the others have run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Container, Iterable
from typing import Final

from proxy.session.claims import Claims

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
        keys: those that some request on its way may add members to.
        pipelines: the connections that have sent long chunks which may not have run, with the number of the last one.
        awaited: the keys whose first deadlines wait for pipelines, and how often.
    """

    def __init__(self) -> None:
        self.keys: dict[bytes, list[Stream]] = {}
        self.pipelines: dict[Claims, int] = {}
        self._chunks = 0  # long ones, of all connections: no number comes again
        self.awaited: Counter[bytes] = Counter()

    def lengthen(self, owner: Claims) -> None:
        """Note that a connection has sent a long chunk."""
        self._chunks += 1
        self.pipelines[owner] = self._chunks

    def ran(self, owner: Claims, chunk: int | None = None) -> None:
        """Note that what a connection had sent has run, or may be taken to; if that long chunk is its last one."""
        if chunk is None or self.pipelines.get(owner) == chunk:
            self.pipelines.pop(owner, None)

    def of_others(self, owner: Claims) -> tuple[Claims, ...]:
        """Return the connections that have long pipelines, but for one."""
        return tuple(other for other in self.pipelines if other is not owner)

    def held_up(self, keys: Iterable[bytes], known: Container[bytes], owner: Claims) -> list[bytes]:
        """Return those keys whose first deadlines, by one connection, have to wait for the pipelines of others.

        Of a key that is known all that has been sent has been judged; unless it has only just become so.
        """
        if self.pipelines.keys() <= {owner}:
            return []
        return [key for key in keys if key not in known or key in self.awaited]

    def let_wait(self, keys: Iterable[bytes]) -> None:
        """Note that the first deadlines of keys wait for pipelines."""
        self.awaited.update(keys)

    def let_go(self, keys: Iterable[bytes]) -> None:
        """Note that they wait no more."""
        awaited = self.awaited
        for key in keys:
            if awaited[key] > 1:
                awaited[key] -= 1
            else:
                del awaited[key]

    def begin(self, owner: object, keys: Iterable[bytes], *, is_waited_for: bool = True) -> Stream:
        """Note a request whose head is about to be sent."""
        stream = Stream(owner, tuple(dict.fromkeys(keys)), is_waited_for=is_waited_for)
        for key in stream.keys:
            self.keys.setdefault(key, []).append(stream)
        return stream

    def end(self, stream: Stream) -> None:
        """Note that a request has run, or never will; more than once does no harm."""
        for key in stream.keys:
            streams = self.keys.get(key, [])
            if stream in streams:
                streams.remove(stream)
                if not streams:
                    del self.keys[key]
        stream.ended()

    def cut(self, stream: Stream) -> None:
        """Let nothing more of a request be sent."""
        stream.is_cut = True
        self.end(stream)

    def cut_all(self, keys: Iterable[bytes]) -> None:
        """Let nothing more be sent of any request that may add members to some keys."""
        for stream in self.of(keys):
            self.cut(stream)

    def of(self, keys: Iterable[bytes], *, but: object = None) -> list[Stream]:
        """Return the requests that may add members to some keys, without those of one owner, whose come in order."""
        found = dict.fromkeys(stream for key in keys for stream in self.keys.get(key, ()) if stream.owner is not but)
        return list(found)

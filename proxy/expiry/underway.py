"""Wait, before a prefix is covered, for requests that are under way. Each wait is bounded.

Its tests: tests/test_streams.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable
from typing import Final

from proxy.session.pipeline import Pipeline
from proxy.session.streams import Streams

ARRIVAL_SECONDS: Final = 5.0
"""Maximum time that the first deadline under a prefix waits for uploads to arrive and pipelines to run."""

SILENT_SECONDS: Final = 0.25
"""How long a first deadline waits for a pipeline that gets no replies although the server answers the proxy. One of the
pipeline's requests then blocks or waits for EXEC, or its client wants no replies."""

_SHORTEST_NAP: Final = 0.0005
_LONGEST_NAP: Final = 0.002
"""Seconds between two checks whether a pipeline has run."""


class Underway:
    """Waits for requests of this proxy's clients that are under way.

    Args:
        streams: keeps track of these requests.
        round_trip: waits for a reply to the proxy's own request; raises ConnectionError or TimeoutError.
    """

    def __init__(self, streams: Streams, round_trip: Callable[[], Awaitable[None]]) -> None:
        self._streams = streams
        self._round_trip = round_trip
        self._waiting: dict[Pipeline, list[asyncio.Future[None]]] = {}  # done when the next sign has come back
        self._tasks: set[asyncio.Task[None]] = set()

    async def until_arrived(self, entries: Collection[bytes], owner: object) -> None:
        """Wait until uploads to keys under some covered prefixes have run; cut off uploads that take too long.

        `owner`: a connection whose uploads are not waited for, because its requests run in order anyway.
        """
        streams = self._streams
        for stream in streams.under(entries, but=owner):
            if not stream.is_waited_for:
                streams.cut(stream)
        waiting = streams.under(entries, but=owner)
        if not waiting:
            return
        ended = [asyncio.get_running_loop().create_future() for _ in waiting]
        for stream, future in zip(waiting, ended, strict=True):
            stream.on_end(lambda future=future: _settle([future]))  # type: ignore[misc]
        await asyncio.wait(ended, timeout=ARRIVAL_SECONDS)
        for stream, future in zip(waiting, ended, strict=True):
            if not future.done():
                streams.cut(stream)

    async def until_run(self, owners: Iterable[Pipeline]) -> None:
        """Wait until the pipelines of some connections have run, as long as the server keeps answering on them.

        A connection that was given up is waited for again only after the server has answered on it.
        """
        pipelines = self._streams.pipelines
        signs = [
            self._next_sign(owner) for owner in owners if owner in pipelines and owner.given_up != owner.sender.heard()
        ]
        if signs:
            await asyncio.wait(signs, timeout=ARRIVAL_SECONDS)

    def _next_sign(self, owner: Pipeline) -> asyncio.Future[None]:
        """Return a future that is done when a sign sent from now on, after a pipeline, has come back.

        Callers that arrive while a sign is outstanding share the next one. Otherwise each of many first deadlines would
        send a sign after every pipeline.
        """
        loop = asyncio.get_running_loop()
        sign: asyncio.Future[None] = loop.create_future()
        waiting = self._waiting.get(owner)
        if waiting is None:
            self._waiting[owner] = [sign]
            task = loop.create_task(self._put_signs(owner))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            waiting.append(sign)
        return sign

    async def _put_signs(self, owner: Pipeline) -> None:
        """Send one sign after another while callers wait for the next."""
        waiting: list[asyncio.Future[None]] = []
        try:
            while self._waiting[owner]:
                waiting, self._waiting[owner] = self._waiting[owner], []
                await self._until_signed(owner)
                _settle(waiting)
        finally:
            _settle([*waiting, *self._waiting.pop(owner)])

    async def _until_signed(self, owner: Pipeline) -> None:
        loop, pipelines, nap = asyncio.get_running_loop(), self._streams.pipelines, _SHORTEST_NAP
        sign, chunk = owner.sender.before() or owner.sender.ask(), pipelines.get(owner)
        heard, since = owner.sender.heard(), loop.time()
        end = since + ARRIVAL_SECONDS
        while owner in pipelines and not (sign is not None and sign()):
            if (now := loop.time()) >= end:
                owner.given_up = heard
                break
            if now >= since + SILENT_SECONDS:
                if not await self._is_answered(end - now):
                    break
                if owner.sender.heard() == heard:
                    owner.given_up = heard
                    break
            else:
                await asyncio.sleep(nap)
            nap = min(2 * nap, _LONGEST_NAP)
            sign = sign or owner.sender.before() or owner.sender.ask()
            if (count := owner.sender.heard()) is None or count != heard:
                heard, since = count, loop.time()
        if chunk is not None:
            self._streams.ran(owner, chunk)

    async def _is_answered(self, seconds: float) -> bool:
        """Return whether the server answers the proxy in time. If not, another client's request may keep it busy."""
        try:
            async with asyncio.timeout(seconds):
                for _ in range(2):  # the second reply proves that the server has read all input from before the first
                    await self._round_trip()
        except (ConnectionError, TimeoutError):
            return False
        return True


def _settle(futures: list[asyncio.Future[None]]) -> None:
    for future in futures:
        if not future.done():
            future.set_result(None)

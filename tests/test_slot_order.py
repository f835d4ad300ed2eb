"""A look at a cluster node's deadlines knows those that another look has only begun to read."""

from __future__ import annotations

import asyncio
from typing import cast

from proxy.coverage.coverage import Coverage
from proxy.expiry.caller import Call, Caller
from proxy.expiry.clock import ServerClock
from proxy.expiry.indexes import Indexes, Look
from proxy.scripts.naming import Names, slot
from proxy.scripts.slots import Slots

KEY = b"cart"
DEADLINE = 1_000_000
"""In Unix ms."""


class SlowServer:
    """A node whose first answer to a look at an index takes until it is allowed; its clock is past the deadline."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answers = asyncio.Event()

    async def time(self) -> int:
        return (DEADLINE + 1) * 1000

    async def call(self, script: str, calls: list[Call]) -> list[list[bytes]]:
        assert script == "page"
        if not self.asked.is_set():
            self.asked.set()
            await self.answers.wait()
        return [[KEY, b"%d" % DEADLINE] for _ in calls]


def test_a_look_waits_for_one_that_has_begun() -> None:
    async def main() -> list[Look]:
        server, names = SlowServer(), Names(b"__expiremember__:")
        slots = names.slots = Slots(b"node")
        slots.take(primary=True, owned=frozenset((slot(KEY),)), moving=frozenset())
        indexes = Indexes(cast(Caller, server), 0, names, Coverage(), ServerClock())
        learning = asyncio.create_task(indexes.learn_slots((slot(KEY),)))  # as the tracker does of one that has changed
        await server.asked.wait()
        looking = asyncio.create_task(indexes.look())
        for _ in range(10):  # as far as it comes
            await asyncio.sleep(0)
        server.answers.set()
        await learning
        return (await looking)[0]

    (look,) = asyncio.run(main())
    assert look.due == [(KEY, float(DEADLINE))]

"""A name that cannot be looked up in time is told once, by whom it concerns, and not by the loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import socket

import pytest
import uvloop

from proxy.upstream.lookups import expect_late_failures


async def _give_up_a_lookup() -> None:
    loop = asyncio.get_running_loop()
    connecting = asyncio.ensure_future(loop.create_connection(asyncio.Protocol, "name.invalid", 6379))
    await asyncio.sleep(0)  # the lookup is under way
    connecting.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await connecting
    for _ in range(5):  # the last of these ends behind the other
        with contextlib.suppress(socket.gaierror):
            await loop.getaddrinfo("name.invalid", 6379)
    for _ in range(3):
        gc.collect()
        await asyncio.sleep(0)


@pytest.mark.parametrize("expected", [True, False])
def test_a_lookup_that_fails_too_late_is_no_error(expected: bool, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        if expected:
            expect_late_failures(asyncio.get_running_loop())
        await _give_up_a_lookup()

    with caplog.at_level(logging.ERROR):
        uvloop.run(main())
    assert any("never retrieved" in record.message for record in caplog.records) is not expected


def test_other_failures_are_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        expect_late_failures(loop)
        loop.call_soon(lambda: 1 / 0)
        await asyncio.sleep(0)

    with caplog.at_level(logging.ERROR):
        uvloop.run(main())
    assert len(caplog.records) == 1

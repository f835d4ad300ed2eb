"""Name lookups that were given up: the loop reports their failure, when it comes at last, as an error of its own."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import structlog

log = structlog.get_logger("proxy.upstream")


def expect_late_failures(loop: asyncio.AbstractEventLoop) -> None:
    """Log at level debug what a lookup that nobody waits for any more fails with.

    uvloop leaves the future of a lookup behind when the connection that wanted it has timed out, and the loop then
    reports "Future exception was never retrieved". That the upstream cannot be reached has been logged by then.
    """
    others = loop.get_exception_handler()

    def handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(error := context.get("exception"), socket.gaierror) and "never retrieved" in context["message"]:
            log.debug("a name lookup that was given up has failed", error=str(error))
        elif others is not None:
            others(loop, context)
        else:
            loop.default_exception_handler(context)

    loop.set_exception_handler(handle)

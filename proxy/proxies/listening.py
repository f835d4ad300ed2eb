"""Read replies and pushes from the connection between proxies.

Its tests: tests/test_background.py.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from redis.exceptions import ResponseError

from proxy.proxies.announcer import PUSHED, Proxies

_AGAIN_SECONDS: Final = 0.5
"""How often to check for outstanding replies after the server has been silent for longer than allowed."""


async def listen(connection: Any, proxies: Proxies) -> None:
    """Read pushes and replies for ever. Replies to lease renewals show that a quiet connection is alive.

    Args:
        connection: the connection, whose parser passes pushes to their handlers.
        proxies: handles the replies.

    Raises:
        TimeoutError: the server does not reply.
        redis.exceptions.RedisError, OSError: the connection is lost.
    """
    loop = asyncio.get_running_loop()
    heard = loop.time()
    while True:
        patience = max(heard + connection.socket_timeout - loop.time(), _AGAIN_SECONDS)
        try:
            response = await connection.read_response(push_request=True, timeout=patience)
        except ResponseError as error:
            response = error
        if response is not None:
            heard = loop.time()
            if response is not PUSHED:
                proxies.answered(response)
        elif proxies.awaits and loop.time() - heard > connection.socket_timeout:
            raise TimeoutError("the upstream does not answer")

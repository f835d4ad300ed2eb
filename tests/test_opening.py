"""What becomes of a connection to the server whose opening is given up, in whatever moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from proxy.loop import Loop
from proxy.metrics.table import Metrics
from proxy.metrics.traffic import Traffic
from proxy.relay.fence import Fence
from proxy.relay.upstream import UpstreamConnection
from proxy.settings import load
from proxy.upstream.endpoint import Upstream

Open = Callable[[Callable[[], asyncio.Protocol]], Awaitable[object]]


class Client:
    """The client's side of one connection."""

    def __init__(self) -> None:
        self.attached = 0
        self.lost = 0
        self.who: dict[str, str] = {}

    def attach(self, upstream: UpstreamConnection) -> bool:
        self.attached += 1
        return True

    def set_clogged(self, clogged: bool) -> None:
        """Go on."""

    def logged_in(self) -> None:
        """Go on."""

    def replies_passed(self) -> None:
        """Go on."""

    def upstream_lost(self, refusal: Exception | None) -> None:
        self.lost += 1


async def give_up_at_every_moment(open_one: Open, *, switched: bool) -> int:
    """Give openings up after one turn of the loop, after two, … until one succeeds; return how many were attached.

    `switched`: the server has become another one just before.
    """
    attached = 0
    for turns in range(1000):
        traffic, fence, client = Traffic(Metrics()), Fence(), Client()
        upstream = UpstreamConnection(client, lambda _: None, traffic, fence)
        task = asyncio.ensure_future(open_one(lambda made=upstream: made))  # type: ignore[misc]
        for _ in range(turns):
            await asyncio.sleep(0)
        if switched:
            fence.close()
        succeeded = task.done()
        task.cancel()
        await asyncio.wait([task])
        if succeeded and not switched:
            upstream.abort()
        for _ in range(20):
            await asyncio.sleep(0)
        attached += client.attached
        assert client.lost == client.attached
        assert fence.close() == 0, "nothing is kept"
        assert traffic.connections == 0, "nothing is kept"
        for _ in traffic.look_at_all():
            pass
        if succeeded:
            return attached
    raise AssertionError("none succeeded")


@pytest.mark.parametrize("switched", [False, True], ids=["given up", "switched"])
@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_connection_that_is_given_up_leaves_nothing(way: str, switched: bool, tmp_path: Path) -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        path = str(tmp_path / "socket")
        if way == "unix":
            server = await loop.create_unix_server(asyncio.Protocol, path)
        else:
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)

        def open_one(factory: Callable[[], asyncio.Protocol]) -> Awaitable[object]:
            if way == "unix":
                return loop.create_unix_connection(factory, path)
            return loop.create_connection(factory, *server.sockets[0].getsockname())

        try:
            async with asyncio.timeout(30):
                return await give_up_at_every_moment(open_one, switched=switched)
        finally:
            server.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(main()) >= (not switched)


@pytest.mark.parametrize("way", ["tcp", "unix"])
def test_a_connection_that_is_made_is_not_given_up(way: str, tmp_path: Path) -> None:
    """A process that stands still in that moment finds that its patience is over."""

    class Slow(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            time.sleep(0.3)  # as if it had been stopped
            self.transport = transport

    async def main() -> None:
        loop, protocol = asyncio.get_running_loop(), Slow()
        path = str(tmp_path / "socket")
        if way == "unix":
            server, url = await loop.create_unix_server(asyncio.Protocol, path), f"unix://{path}"
        else:
            server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
            url = "redis://{}:{}".format(*server.sockets[0].getsockname())
        try:
            settings = load({"upstream": url, "connect_timeout": 0.1}, None)
            await Upstream(settings, settings.upstream).connect(lambda: protocol)
            assert not protocol.transport.is_closing()
            protocol.transport.close()
        finally:
            server.close()

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(main())

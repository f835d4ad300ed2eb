"""A primary, its replicas, and the Sentinels that watch them: real servers on loopback ports."""

from __future__ import annotations

import shutil
import signal
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.raw import Address, Raw
from tests.servers import BINARIES, Process, Server, free_port, until

NAME = "mymaster"

PERIODS = (
    "INFO-PERIOD",
    200,
    "PUBLISH-PERIOD",
    300,
    "PING-PERIOD",
    100,
    "ASK-PERIOD",
    100,
    "SLAVE-RECONF-TIMEOUT",
    1000,
)
"""Sentinels that hurry (SENTINEL DEBUG): a failover takes a second or two."""


class Sentinel:
    """A Sentinel, with its configuration in a folder of its own.

    Args:
        kind: which kind of server it is made of.
        primary: the port of the primary.
        options: more lines of its configuration.
        name: what it calls the primary.
        quorum: how many have to agree.
    """

    def __init__(self, kind: str, primary: int, options: Sequence[str] = (), name: str = NAME, quorum: int = 2) -> None:
        self.kind = kind
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="expiremember-sentinel-"))
        self.password: str | None = None
        self.process: Process | None = None
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.folder}",
            f"sentinel monitor {name} 127.0.0.1 {primary} {quorum}",
            f"sentinel down-after-milliseconds {name} 500",
            f"sentinel failover-timeout {name} 2000",
            f"sentinel parallel-syncs {name} 2",
            *options,
        ]
        (self.folder / "sentinel.conf").write_text("\n".join(lines) + "\n")
        self.start()

    @property
    def address(self) -> Address:
        return "127.0.0.1", self.port

    def start(self) -> None:
        """Start it, and wait until it answers."""
        path = str(BINARIES[self.kind].path)
        self.process = Process([path, str(self.folder / "sentinel.conf"), "--sentinel"])
        until(self._answers, what="an answer of a Sentinel")

    def _answers(self) -> bool:
        assert self.process is not None
        assert not self.process.ended, self.process.output
        with suppress(OSError):
            return bool(self.command("PING"))
        return False

    def connect(self) -> Raw:
        client = Raw(self.address)
        if self.password is not None:
            client.command("AUTH", self.password)
        return client

    def command(self, *args: str | bytes | int) -> bytes:
        with self.connect() as client:
            return client.command(*args)

    def hurry(self) -> None:
        """Let it look, and tell others, more often."""
        reply = self.command("SENTINEL", "DEBUG", *PERIODS)
        assert reply == b"+OK\r\n", reply

    def primary(self, name: str = NAME) -> int:
        """The port of the primary, as it knows it."""
        return int(self.command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", name).split(b"\r\n")[4])

    def about(self, name: str = NAME) -> dict[bytes, bytes]:
        words = self.command("SENTINEL", "MASTER", name).split(b"\r\n")[2::2]
        return dict(zip(words[::2], words[1::2], strict=False))

    def stop(self) -> None:
        """End it; its configuration stays."""
        process, self.process = self.process, None
        if process is not None:
            process.end(signal.SIGKILL)

    def close(self) -> None:
        if self.process is not None:
            self.process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


class Watched:
    """One primary, replicas, and Sentinels that agree about them.

    Args:
        kind: the kind of all of them.
        stack: ends them.
        replicas: how many.
        sentinels: how many.
        server_options: more arguments for the servers.
        sentinel_options: more lines for the Sentinels' configuration.
    """

    def __init__(
        self,
        kind: str,
        stack: ExitStack,
        *,
        replicas: int = 2,
        sentinels: int = 3,
        server_options: Sequence[str] = (),
        sentinel_options: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.servers: list[Server] = []
        for number in range(replicas + 1):
            options = [*server_options, "--repl-diskless-sync-delay", "0", "--repl-backlog-size", "4mb"]
            if number:
                options += ["--replicaof", "127.0.0.1", str(self.servers[0].port)]
            server = Server(kind, *options)
            stack.callback(server.close)
            self.servers.append(server)
        self.sentinels: list[Sentinel] = []
        for _ in range(sentinels):
            sentinel = Sentinel(kind, self.servers[0].port, sentinel_options)
            stack.callback(sentinel.close)
            self.sentinels.append(sentinel)

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{NAME}"

    def until_whole(self, timeout: float = 30) -> Server:
        """Wait until all agree who the primary is, and a failover could begin; return the primary."""
        for sentinel in self.sentinels:
            sentinel.hurry()

        def whole() -> bool:
            ports = {sentinel.primary() for sentinel in self.sentinels}
            if len(ports) != 1:
                return False
            primary = self.server(*ports)
            if b"role:master" not in primary.command("INFO", "replication"):
                return False
            for server in self.servers:
                info = server.command("INFO", "replication")
                if server is not primary and (
                    b"master_port:%d\r" % primary.port not in info or b"master_link_status:up" not in info
                ):
                    return False
            for sentinel in self.sentinels:
                about = sentinel.about()
                if (
                    about.get(b"flags") != b"master"
                    or int(about[b"num-slaves"]) < len(self.servers) - 1
                    or int(about[b"num-other-sentinels"]) < len(self.sentinels) - 1
                ):
                    return False
            return True

        def is_whole() -> bool:
            try:
                return whole()
            except ConnectionError:
                return False  # a server drops its clients when Sentinels make it another's replica

        until(is_whole, timeout, "an agreement of all Sentinels and servers")
        return self.server(self.sentinels[0].primary())

    def server(self, port: int) -> Server:
        return next(server for server in self.servers if server.port == port)

    def fail_over(self) -> None:
        """Have the first Sentinel begin a failover; the old primary is alive."""
        until(
            lambda: self.sentinels[0].command("SENTINEL", "FAILOVER", NAME) == b"+OK\r\n", 20, "the begin of a failover"
        )

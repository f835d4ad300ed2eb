"""Starts containers as Kubernetes does: those of a pod share a network namespace that outlives each of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Final

from redis import Redis
from testcontainers.core.container import DockerContainer
from testcontainers.core.network import Network

from tests.raw import Raw
from tests.servers import until

REDIS_IMAGE: Final = "redis:8"

RESTRICTED: Final[Mapping[str, Any]] = {
    "read_only": True,
    "cap_drop": ["ALL"],
    "security_opt": ["no-new-privileges"],
}
"""What a cautious operator runs every container with."""


class Pod:
    """A network namespace, and the containers that share it.

    Args:
        stack: removes them.
        image: the proxy's image. Its Python holds the namespace open.
        ports: those to publish on the host.
        network: the network that it is connected to; the daemon's own where not given.
        alias: its name in that network.
    """

    def __init__(
        self, stack: ExitStack, image: str, ports: Sequence[int], network: Network | None, alias: str | None
    ) -> None:
        self._stack = stack
        self._image = image
        holder = DockerContainer(
            image,
            ports=list(ports),
            network=network,
            network_aliases=[alias] if alias else None,
            entrypoint=["python3", "-c", HOLD],
            init=True,
        )
        self._holder = stack.enter_context(holder)

    def run(
        self, image: str, command: list[str] | None = None, env: Mapping[str, str] | None = None, **options: Any
    ) -> DockerContainer:
        """Start a container in the namespace."""
        container = DockerContainer(
            image, env=dict(env or {}), network_mode=f"container:{self._holder.get_container_id()}", **options
        )
        return self._stack.enter_context(container.with_command(command) if command else container)

    def redis(self, *args: str) -> DockerContainer:
        """Start a Redis on port 6379."""
        return self.run(REDIS_IMAGE, ["redis-server", *args])

    def proxy(self, port: int, upstream: str = "redis://127.0.0.1:6379", **settings: str) -> DockerContainer:
        """Start a proxy, restricted, on a port of all addresses; settings are written as in a configuration file."""
        chosen = {"listen": f"0.0.0.0:{port}", "upstream": upstream, **settings}
        return self.run(self._image, env=environment(**chosen), **RESTRICTED)

    def python(self, code: str) -> str:
        """Run Python in a container of the pod, as an application beside the proxy; return what it prints."""
        holder = self._holder.get_wrapped_container()
        status, output = holder.exec_run(["python3", "-c", code])
        text = bytes(output).decode()
        assert status == 0, text
        return text.strip()

    def address(self, port: int) -> tuple[str, int]:
        """Return the address on the host of a published port."""
        return self._holder.get_container_host_ip(), self._holder.get_exposed_port(port)

    def connect(self, port: int) -> Raw:
        return Raw(self.address(port))

    def client(self, port: int) -> Redis:
        """Return a client of a published port; it is closed with the pod."""
        host, published = self.address(port)
        client = Redis(host=host, port=published, decode_responses=True, socket_timeout=20)
        self._stack.callback(client.close)
        return client

    def until_up(self, port: int) -> None:
        """Wait until what listens on a published port can be used."""

        def answers() -> bool:
            try:
                with self.connect(port) as client:
                    return client.command("PING") == b"+PONG\r\n"
            except OSError:
                return False

        until(answers, timeout=30, what=f"an answer on port {port}")


HOLD: Final = "import signal; signal.pause()"


class Pods:
    """What a test starts.

    Args:
        stack: removes it.
        image: the proxy's image.
    """

    def __init__(self, stack: ExitStack, image: str) -> None:
        self._stack = stack
        self.image = image

    def network(self) -> Network:
        """Create a network."""
        return self._stack.enter_context(Network())

    def pod(self, *ports: int, network: Network | None = None, alias: str | None = None) -> Pod:
        """Start a pod without containers, with published ports."""
        return Pod(self._stack, self.image, ports, network, alias)

    def run(self, env: Mapping[str, str], **options: Any) -> DockerContainer:
        """Start a proxy by itself, restricted."""
        return self._stack.enter_context(DockerContainer(self.image, env=dict(env), **{**RESTRICTED, **options}))


def ask(client: Redis, *words: str | int) -> Any:
    """Send a command that redis-py has no method for; return the reply."""
    return client.execute_command(*words)  # type: ignore[no-untyped-call]


def environment(**settings: str) -> dict[str, str]:
    """Return settings as environment variables."""
    return {f"EXPIREMEMBER_{name.upper()}": value for name, value in settings.items()}


def log_of(container: DockerContainer) -> str:
    """Return all that a container has said."""
    return bytes(container.get_wrapped_container().logs()).decode()


def until_logged(container: DockerContainer, words: str) -> None:
    """Wait until a container has said something."""
    until(lambda: words in log_of(container), timeout=30, what=f"{words!r} in the log")


def end(container: DockerContainer, seconds: int = 10) -> int:
    """Stop a container as `docker stop` does, by SIGTERM and after some seconds by SIGKILL; return its exit status."""
    wrapped = container.get_wrapped_container()
    wrapped.stop(timeout=seconds)
    return int(wrapped.wait(timeout=30)["StatusCode"])

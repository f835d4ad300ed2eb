"""config/compose.yaml, started by Compose, as it is and with its commented-out alternatives."""

from __future__ import annotations

import os
import re
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.alternatives import Alternative, alternatives
from tests.container.pods import REDIS_IMAGE
from tests.manifests import COMPOSE, COMPOSE_DEMO
from tests.raw import Raw
from tests.servers import free_port, until

Compose = Callable[..., str]


@pytest.fixture
def port() -> int:
    """The port that the proxy is published on."""
    return free_port()


@pytest.fixture
def compose(image: str, port: int, tmp_path: Path) -> Iterator[Compose]:
    """Runs `docker compose`, with the file or others in its place, on a project of its own."""
    secret = tmp_path / "password"
    secret.write_text("let me in\n")
    # As the file tells: everybody may read it, nobody else comes to it.
    secret.chmod(0o444)
    environment = {**os.environ, "PORT": str(port), "ADMIN_PORT": str(free_port()), "REDIS_PASSWORD_FILE": str(secret)}
    project = f"expiremember-{uuid.uuid4().hex[:8]}"

    def run(*words: str, check: bool = True) -> str:
        files = [word for file in sorted(tmp_path.glob("*.yaml")) or [COMPOSE] for word in ("--file", str(file))]
        folder = ["--project-directory", str(COMPOSE.parent)]
        done = subprocess.run(
            ["docker", "compose", *files, *folder, "--project-name", project, *words],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0 or not check, done.stderr
        return done.stdout

    try:
        yield run
    finally:
        run("down", "--volumes", "--timeout", "1")


def test_the_example_serves_and_ends_in_order(compose: Compose, port: int) -> None:
    compose("up", "--wait", "--no-build")
    with Raw(("127.0.0.1", port)) as client:
        assert client.command("GET", "k").startswith(b"-NOAUTH")
        assert client.command("AUTH", "let me in") == b"+OK\r\n"
        assert client.command("SADD", "s", "m", "n") == b":2\r\n"
        assert client.command("EXPIREMEMBER", "s", "m", 600) == b":1\r\n"
        assert client.command("PEXPIREMEMBER", "s", "n", 1) == b":1\r\n"
        until(lambda: client.command("SMEMBERS", "s") == b"*1\r\n$1\r\nm\r\n")
    # What there was is in the volume.
    compose("restart", "redis")

    def left() -> int:
        try:
            with Raw(("127.0.0.1", port)) as client:
                known = client.command("AUTH", "let me in") == b"+OK\r\n"
                return int(client.command("TTL", "s", "m")[1:-2]) if known else 0
        except ConnectionError:
            return 0

    assert 500 < until(left, timeout=30, what="an answer after the restart") <= 600
    compose("stop", "proxy")
    assert '"ExitCode":0' in compose("ps", "--all", "--format", "json", "proxy")


def _sidecar(compose: Compose, folder: Path) -> None:
    """The application has its Redis at its own address, and nobody else can use it."""
    application = f"{{image: '{REDIS_IMAGE}', entrypoint: [sleep, '300'], init: true}}"
    (folder / "of-the-test.yaml").write_text(f"services: {{application: {application}}}\n")
    compose("up", "--wait", "--no-build")

    def ask(*words: str, service: str = "application", host: str = "127.0.0.1") -> str:
        command = ["exec", "-T", "--env", "REDISCLI_AUTH=let me in", service, "redis-cli", "-h", host, *words]
        return compose(*command, check=False).strip()

    assert ask("SADD", "s", "m") == "1"
    assert ask("EXPIREMEMBER", "s", "m", "600") == "1"
    assert 500 < int(ask("TTL", "s", "m")) <= 600
    assert ask("PING", service="redis") == "PONG"
    assert ask("PING", service="redis", host="application") == ""
    compose("stop", "proxy")
    assert '"ExitCode":0' in compose("ps", "--all", "--format", "json", "proxy")


def test_the_demo_serves_and_expires_members(compose: Compose, port: int, tmp_path: Path) -> None:
    """Its proxy, Redis and application; of Prometheus and Grafana there are no images here."""
    (tmp_path / "compose.yaml").write_text(COMPOSE_DEMO.read_text("utf-8"), "utf-8")
    compose("config", "--quiet")
    compose("up", "--wait", "--no-build", "application")
    with Raw(("127.0.0.1", port)) as client:

        def expired() -> int:
            found = re.search(rb"members_expired_total:sweep=(\d+)", client.command("INFO", "expiremember"))
            return int(found[1]) if found else 0

        until(lambda: expired() > 5, timeout=30, what="members that have expired")
    assert '"ExitCode":0' in compose("ps", "--format", "json", "application")


ACTS: Final[dict[str, Callable[[Compose, Path], None]]] = {"Sidecar": _sidecar}
"""What is done with each alternative, by its label."""


@pytest.mark.parametrize("alternative", alternatives("compose"), ids=lambda one: one.label)
def test_an_alternative_serves(alternative: Alternative, compose: Compose, tmp_path: Path) -> None:
    (tmp_path / "compose.yaml").write_text(alternative.text, "utf-8")
    compose("config", "--quiet")
    ACTS[alternative.label](compose, tmp_path)

"""Fixtures: the image, and what is started beside it and removed with the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import docker
import pytest

from tests.container.pods import REDIS_IMAGE, Pods

VARIABLE = "PROXY_IMAGE"


def pytest_runtest_setup(item: pytest.Item) -> None:
    if "image" not in getattr(item, "fixturenames", ()) or os.environ.get(VARIABLE):
        return
    # Here, not in a fixture: so pytest tells it once for all of them.
    pytest.skip(f"no {VARIABLE}: docs/testing.md tells how to build the image and run these tests")


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the proxy's image, which has been built."""
    return os.environ[VARIABLE]


@pytest.fixture(scope="session")
def daemon(image: str) -> Iterator[docker.DockerClient]:
    """The container daemon, with the images."""
    client = docker.from_env()
    try:
        client.images.get(image)
        assert client.images.list(REDIS_IMAGE) or client.images.pull(REDIS_IMAGE)
        yield client
    finally:
        client.close()


@pytest.fixture
def pods(image: str, daemon: docker.DockerClient) -> Iterator[Pods]:
    """Pods, networks and containers of the test's own."""
    with ExitStack() as stack:
        yield Pods(stack, image)

"""Fixtures: the image, and what is started beside it and removed with the test."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack

import docker
import pytest

from tests.container.pods import REDIS_IMAGE, Pods

VARIABLE = "PROXY_IMAGE"


@pytest.fixture(scope="session")
def image() -> str:
    """The name of the proxy's image, which must have been built."""
    name = os.environ.get(VARIABLE)
    if not name and os.environ.get("CI"):
        pytest.fail(f"CI has no {VARIABLE}: .ci/containers starts a daemon and builds the images")
    if not name:
        pytest.skip(f"no image: .ci/containers COMMAND builds it, or set {VARIABLE} to one of your daemon")
    return name


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

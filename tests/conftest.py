"""Fixtures: a server of every kind that is installed, and a proxy in front of each, both started once a worker."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol, TypeVar

import hypothesis
import pytest

from tests import servers
from tests.raw import Raw, a_test_begins
from tests.servers import BINARIES, EVERY_KIND, EVERY_VERSION, KIND, KINDS, REQUIRED, Proxy, Server

T = TypeVar("T")

# The reasons for which a test may be skipped even in CI: nothing that CI could install would let it run.
CANNOT_BE_HAD = ("libfaketime and this server's allocator wait for each other",)

# How long an example takes says nothing on a busy machine.
hypothesis.settings.register_profile("unhurried", deadline=None)
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--long", action="store_true", help="run the tests of many minutes too")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    a_test_begins()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a test that is skipped has failed: what it lacks is what CI should have installed."""
    report = yield
    if report.skipped and "CI" in os.environ and isinstance(report.longrepr, tuple):
        reason = str(report.longrepr[2])
        if not reason.endswith(CANNOT_BE_HAD):
            report.outcome, report.longrepr = "failed", f"{item.nodeid}: not to be skipped in CI: {reason}"
    return report


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    missing = [kind for kind in REQUIRED if kind not in BINARIES]
    if missing:
        terminalreporter.write_line(f"not installed, so nothing was tested on: {', '.join(missing)}")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" not in metafunc.fixturenames:
        return
    kinds = KINDS or ("no server",)
    marker = metafunc.definition.get_closest_marker("every_kind")
    if metafunc.definition.get_closest_marker("one_kind") is not None:
        kinds = (KIND,)
    elif metafunc.definition.get_closest_marker("few_kinds") is not None:
        pass
    elif metafunc.definition.get_closest_marker("every_version") is not None:
        kinds = EVERY_VERSION or kinds
    elif marker is not None:
        kinds = tuple(kind for kind in EVERY_KIND or kinds if _is_since(kind, marker.kwargs))
    metafunc.parametrize("kind", kinds, indirect=True)


def _is_since(kind: str, versions: Mapping[str, tuple[int, ...]]) -> bool:
    """Whether a kind of server, such as ``redis-7.0``, is at least of the version asked of its product."""
    product, _, version = kind.partition("-")
    return not versions or (product in versions and tuple(map(int, version.split("."))) >= versions[product])


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--long"):
        return
    long = [item for item in items if item.get_closest_marker("long")]
    if long:
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture(autouse=True)
def _start(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the proxies of tests marked `start` start as users start them."""
    if request.node.get_closest_marker("start") is not None:
        monkeypatch.setattr(servers, "starts_anew", True)


class StartServer(Protocol):
    def __call__(self, kind: str, *args: str) -> Server: ...


class StartProxy(Protocol):
    def __call__(
        self,
        upstream: Server | None,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: bool = True,
    ) -> Proxy: ...


def installed(kind: str) -> str:
    """Return the kind of server; fail the test where there is none of it."""
    if kind not in BINARIES:
        pytest.fail(f"{kind} is not installed; found: {', '.join(BINARIES) or 'no server'}")
    return kind


def once_a_kind(make: Callable[[str, ExitStack], T]) -> Iterator[Callable[[str], T]]:
    """Give, for a fixture, what is made when it is first asked for, of each kind of server one.

    Args:
        make: makes it of a kind; what is put on the stack ends it with the fixture.
    """
    made: dict[str, T] = {}
    with ExitStack() as stack:

        def get(kind: str) -> T:
            if kind not in made:
                made[kind] = make(kind, stack)
            return made[kind]

        yield get


def new_server(kind: str, stack: ExitStack) -> Server:
    """Start a server that ends with the stack."""
    server = Server(installed(kind))
    stack.callback(server.close)
    return server


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Callable[[str], Server]]:
    """Gives the server of a kind that all tests of this worker share."""
    yield from once_a_kind(new_server)


def _proxies(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Give a proxy in front of the shared server of each kind, which must end in order after the last test."""

    def make(kind: str, stack: ExitStack) -> Proxy:
        proxy = Proxy("--upstream", shared_server(kind).url)
        stack.callback(proxy.close)
        stack.callback(proxy.stop)
        return proxy

    return once_a_kind(make)


@pytest.fixture(scope="session")
def shared_proxy(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Gives the proxy in front of the shared server of a kind."""
    yield from _proxies(shared_server)


@pytest.fixture(scope="session")
def unmarked_proxy(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Gives a proxy in front of the shared server of a kind whose clients set no deadlines.

    The shared proxy remembers for seconds that one did, and while a key is known it refuses a request of more than a
    million arguments.
    """
    yield from _proxies(shared_server)


@pytest.fixture(scope="session")
def lean_proxies(shared_server: Callable[[str], Server]) -> Iterator[Callable[[str], Proxy]]:
    """Gives a proxy in front of the shared server of a kind that has never needed much memory."""
    yield from _proxies(shared_server)


@pytest.fixture
def lean_proxy(upstream: Server, lean_proxies: Callable[[str], Proxy]) -> Proxy:
    """A proxy in front of `upstream` for tests that watch its memory, and in which it grows by little."""
    return lean_proxies(upstream.kind)


@pytest.fixture(scope="session")
def lazy_pairs() -> Iterator[Callable[[str], tuple[Server, Proxy]]]:
    """Gives a server of a kind of its own, where nobody sweeps, and a proxy without a sweeper in front of it."""

    def make(kind: str, stack: ExitStack) -> tuple[Server, Proxy]:
        server = new_server(kind, stack)
        proxy = Proxy("--upstream", server.url, "--no-sweep", "--leftovers-rate", "0")
        stack.callback(proxy.close)
        return server, proxy

    yield from once_a_kind(make)


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    """Every kind of server, such as ``redis-7.0``.

    Those that are installed; for tests marked ``every_kind`` the newest too, for those marked
    ``every_kind(redis=(8,))`` the ones of that product that are at least as new, for those marked ``every_version``
    those between two others too, and for those marked ``one_kind`` one.
    """
    return installed(str(request.param))


@pytest.fixture
def upstream(kind: str, shared_server: Callable[[str], Server]) -> Server:
    """A server of every kind, empty, without users of earlier tests."""
    server = shared_server(kind)
    server.flush()
    server.forget_users()
    return server


@pytest.fixture
def proxy(upstream: Server, shared_proxy: Callable[[str], Proxy]) -> Proxy:
    """The proxy in front of `upstream`."""
    return shared_proxy(upstream.kind)


Both = tuple[Raw, Raw]
"""A client of the server, and one of the proxy in front of it, that speak the same protocol."""


@pytest.fixture(params=[2, 3])
def both(request: pytest.FixtureRequest, upstream: Server, proxy: Proxy) -> Iterator[Both]:
    with upstream.connect() as straight, proxy.connect() as through:
        for client in (straight, through):
            client.command("HELLO", request.param)
        yield straight, through


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers of the test's own: ``start_server(kind, *args)``."""
    with ExitStack() as stack:

        def start(kind: str, *args: str) -> Server:
            server = Server(installed(kind), *args)
            stack.callback(server.close)
            return server

        yield start


@pytest.fixture
def start_proxy() -> Iterator[StartProxy]:
    """Starts proxies of the test's own: ``start_proxy(upstream, *args, env=…)``, where upstream may be None."""
    with ExitStack() as stack:

        def start(
            upstream: Server | None,
            *args: str,
            env: Mapping[str, str] | None = None,
            cwd: Path | None = None,
            ready: bool = True,
        ) -> Proxy:
            if upstream is not None:
                args = ("--upstream", upstream.url, *args)
            started = Proxy(*args, env=env, cwd=cwd, ready=ready)
            stack.callback(started.close)
            return started

        yield start


class Start(Protocol):
    def __call__(self, *args: str) -> Proxy: ...


@pytest.fixture
def server(request: pytest.FixtureRequest, start_server: StartServer) -> Server:
    """A server of the test's own, of the one kind that is enough for it.

    No proxy of another test tells those in front of it what it knows.
    """
    return start_server(min(BINARIES) if request.node.get_closest_marker("oldest_kind") is not None else KIND)


@pytest.fixture
def start(server: Server, start_proxy: StartProxy) -> Start:
    """Starts proxies in front of `server`, with further arguments; no pass over leftovers comes by chance."""

    def start(*args: str) -> Proxy:
        return start_proxy(server, "--leftovers-rate", "0", *args)

    return start

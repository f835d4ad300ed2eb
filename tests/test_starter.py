"""A forked proxy is what a proxy that has started anew is: its process, and how it ends."""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests import servers
from tests.conftest import StartProxy
from tests.mutations import Mutation, broken_copy
from tests.servers import Proxy, Server, free_port, until
from tests.starter import Forked

pytestmark = pytest.mark.one_kind


@pytest.fixture(params=[False, True], ids=["forked", "anew"], autouse=True)
def anew(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether the proxies start anew."""
    monkeypatch.setattr(servers, "starts_anew", request.param)
    return bool(request.param)


def test_which_way_it_starts(server: Server, start_proxy: StartProxy, anew: bool) -> None:
    proxy = start_proxy(server)
    assert isinstance(proxy.process._guard, Forked) != anew
    assert any("tests.starter" in word for word in psutil.Process(proxy.pid).cmdline()) != anew


def test_another_copy_of_the_package(server: Server, tmp_path: Path) -> None:
    text = "BACKLOG: Final = 4096"
    broken_copy(tmp_path, Mutation("listen/binding.py", text, f"print(__file__)\n{text}", ""))
    proxy = Proxy("--upstream", server.url, env={"PYTHONPATH": str(tmp_path)}, cwd=tmp_path)
    proxy.close()
    assert str(tmp_path / "proxy" / "listen" / "binding.py") in proxy.process.output.splitlines()


def test_what_it_is_given(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    (tmp_path / "proxy.toml").write_text("max_clients = 7\n")
    listen = f"127.0.0.1:{free_port()}"
    env = {"EXPIREMEMBER_PREFIX": "mine:"}
    proxy = start_proxy(server, "--config", "proxy.toml", "--listen", listen, env=env, cwd=tmp_path)
    process = psutil.Process(proxy.pid)
    assert Path(process.cwd()) == tmp_path
    with proxy.connect() as client:
        client.command("SADD", "k", "m")
        assert client.command("EXPIREMEMBER", "k", "m", 100) == b":1\r\n"
    assert b"mine:" in server.command("KEYS", "*")


def test_descriptors_and_signals(server: Server, start_proxy: StartProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of a proxy that has started anew."""
    proxies = [start_proxy(server)]
    monkeypatch.setattr(servers, "starts_anew", True)
    proxies.append(start_proxy(server))
    until(lambda: len({psutil.Process(proxy.pid).num_fds() for proxy in proxies}) == 1, what="as many descriptors")
    first, second = (Path(f"/proc/{proxy.pid}/status").read_text().splitlines() for proxy in proxies)
    for sign in ("SigBlk:", "SigCgt:"):
        assert [line for line in first if line.startswith(sign)] == [line for line in second if line.startswith(sign)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT])
def test_the_status_of_one_that_a_signal_ended(server: Server, start_proxy: StartProxy, number: int) -> None:
    assert start_proxy(server).process.end(number) == 128 + number


def test_the_status_of_one_that_stops(server: Server, start_proxy: StartProxy) -> None:
    start_proxy(server).stop()


def test_the_status_of_one_that_cannot_start() -> None:
    proxy = Proxy("--upstream", "nonsense://", ready=False)
    assert proxy.process.wait() == 2
    assert proxy.process.output.startswith("expiremember-proxy: upstream: must begin with")


def test_it_ends_with_the_tests(server: Server, start_proxy: StartProxy) -> None:
    """Whose end of its guard's standard input is closed then."""
    proxy = start_proxy(server)
    stdin = proxy.process._guard.stdin
    assert stdin is not None
    stdin.close()
    until(lambda: not psutil.pid_exists(proxy.pid), what="its end")

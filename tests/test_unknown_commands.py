"""Commands that the proxy's table does not name: those of a module, and those that somebody has given another name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import StartProxy, StartServer
from tests.servers import ROOT, Proxy, Server, until
from tests.test_lives import FAR, Talk, is_far, talk

__all__ = ["talk"]

pytestmark = pytest.mark.every_version

COMMANDS = {
    "that says that it writes": "MADE.TOLD s m",
    "that does not tell its keys": "MADE.UNTOLD some words s m",
    "that does not say that it writes": "made.silent s m",
    "that is a subcommand": "MADE.BOX add s m",
}


@pytest.fixture(scope="session")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module."""
    made = tmp_path_factory.mktemp("module") / "made.so"
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", str(made), str(ROOT / "tests" / "module.c")]
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def served(kind: str, module: Path, start_server: StartServer) -> Server:
    """A server that has loaded the module."""
    return start_server(kind, "--loadmodule", str(module))


def commands(server: Server) -> dict[str, str]:
    """The commands that the module has at a server."""
    return {says: line for says, line in COMMANDS.items() if server.version >= (7,) or "BOX" not in line}


def lose(through: Talk, beside: Talk, key: str = "s") -> None:
    """Give a member a deadline, and remove it beside the proxy."""
    through("DEL", key)
    assert through("SADD", key, "m", "stays") == 2
    assert through("EXPIREMEMBER", key, "m", FAR) == 1
    assert beside("SREM", key, "m") == 1
    assert is_far(through("TTL", key, "m"))


def test_a_member_that_a_module_adds_begins_a_new_life(
    served: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    proxy = start_proxy(served, "--leftovers-rate", "0")
    through, beside = talk(proxy), talk(served)
    stale = []
    for says, line in commands(served).items():
        lose(through, beside)
        assert through.say(line) == 1
        assert through("SISMEMBER", "s", "m") == 1
        stale += [says] if through("TTL", "s", "m") != -1 else []
        through("EXPIREMEMBER", "s", "m", FAR)
        assert through.say(line) == 1
        assert is_far(through("TTL", "s", "m")), "it was there all the time"
    assert not stale


def test_so_does_one_that_it_adds_within_a_transaction(
    served: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    proxy = start_proxy(served, "--leftovers-rate", "0")
    through, beside = talk(proxy), talk(served)
    stale = []
    for says, line in commands(served).items():
        for removal in ("before", "within"):
            lose(through, beside)
            if removal == "within":
                through("SADD", "s", "m")
                through("EXPIREMEMBER", "s", "m", FAR)
            through("MULTI")
            if removal == "within":
                through("SPOP", "s", 2)
            through.say(line)
            assert through("EXEC")[-1] == 1
            stale += [f"{says}, {removal}"] if through("TTL", "s", "m") != -1 else []
    assert not stale


def test_so_does_one_that_is_added_for_a_user_who_may_not_run_scripts(
    served: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    proxy = start_proxy(served, "--leftovers-rate", "0")
    through, beside, few = talk(proxy), talk(served), talk(proxy)
    beside.say("ACL SETUSER few on nopass ~* +@all -eval")
    served.wait_until_proxies_know_the_users()
    assert few.say("AUTH few any") == b"OK"
    for line in commands(served).values():
        lose(through, beside)
        assert few.say(line) == 1
        until(lambda: through("SISMEMBER", "s", "m") == 1)
        trace = through("TTL", "s", "m")
        assert trace == -1, line


def test_a_command_that_only_reads_voids_nothing(
    served: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    proxy = start_proxy(served, "--leftovers-rate", "0")
    through, beside = talk(proxy), talk(served)
    lose(through, beside)
    for line in ("MADE.LOOK s m", *(["MADE.BOX LOOK s m"] if served.version >= (7,) else [])):
        assert isinstance(through.say(line), int)
        assert is_far(beside("ZSCORE", "__expiremember__:k:{s}", "m") and through("TTL", "s", "m")), line
    assert beside("ZSCORE", "__expiremember__:k:{s}", "m")[:1] != b"-"


def test_nor_may_a_module_write_the_proxys_own_keys(served: Server, proxy_of: Proxy) -> None:
    with proxy_of.connect() as client:
        for line in commands(served).values():
            words = line.replace(" s ", " __expiremember__:k:{s} ").split()
            assert client.command(*words).startswith(b"-ERR expiremember-proxy: names that begin with"), line


@pytest.fixture
def proxy_of(served: Server, start_proxy: StartProxy) -> Proxy:
    return start_proxy(served)


def check_renamed(through: Talk, beside: Talk) -> None:
    """Check that a member begins a new life if it comes back by a SADD that is called PUT.IN."""
    through("PUT.IN", "s", "m", "stays")
    for line in ("PUT.IN s m", "put.in s m"):
        through("PUT.IN", "s", "m")
        through("EXPIREMEMBER", "s", "m", FAR)
        beside("SREM", "s", "m")
        assert through.say(line) == 1
        assert through("TTL", "s", "m") == -1


def test_commands_that_the_server_had_not_when_it_was_asked(
    kind: str, module: Path, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    """A module that is loaded later; and a renamed command, of which no server tells the new name."""
    server = start_server(kind, "--rename-command", "SADD", "put.in")
    proxy = start_proxy(server, "--leftovers-rate", "0")
    through, beside = talk(proxy), talk(server)
    check_renamed(through, beside)
    other = start_server(kind, *(["--enable-module-command", "yes"] if server.version >= (7,) else []))
    proxy = start_proxy(other, "--leftovers-rate", "0")
    through, beside = talk(proxy), talk(other)
    assert beside("MODULE", "LOAD", str(module)) == b"OK"
    for line in commands(other).values():
        lose(through, beside)
        assert through.say(line) == 1
        assert through("TTL", "s", "m") == -1, line

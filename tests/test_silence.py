"""What the server sees of a proxy: nothing while nothing is to be done, and no write where something is only read."""

from __future__ import annotations

import re
import time

import hiredis
import pytest

from proxy.expiry.healing import BETWEEN_ROUNDS
from proxy.scripts.calls import composed, reads_only
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, request
from tests.servers import ROOT, Server

SCRIPTS = sorted(path.stem for path in (ROOT / "proxy" / "scripts" / "lua").glob("*.lua"))

_RENEWALS = (b'"PING"', b'"CLIENT" "INFO"', b'"CLIENT" "SETNAME"')
"""By which a proxy sees that the server is there, and whose connections are."""

_LOOKS = (
    b'"INFO" "keyspace"', b'"SELECT"', b'"ZRANGE" "__expiremember__:covered"', b'"EXISTS" "__expiremember__:index"',
)  # fmt: skip
"""By which it sees every few seconds whether somebody has set deadlines past it."""


def called(text: bytes) -> set[bytes]:
    """The commands that a script names in its calls."""
    return {found.upper() for found in re.findall(rb"(?:call|try)\('(\w+)'", text)}


@pytest.mark.every_kind
def test_scripts_that_only_read_say_so(upstream: Server) -> None:
    """Those that run the client's own request do as that does, and `fail` is refused as what it stands for would be."""
    reader = hiredis.Reader()
    reader.feed(upstream.command("COMMAND"))
    writing = {row[0].upper() for row in reader.gets() if b"write" in row[2]}
    assert {b"SADD", b"ZADD", b"UNLINK"} <= writing
    assert b"ZSCORE" not in writing
    others = {"fail", "fail_members", "write"}
    for name in SCRIPTS:
        if reads_only(name):
            own = (ROOT / "proxy" / "scripts" / "lua" / f"{name}.lua").read_bytes()
            assert name == "rights" or not called(own) & writing, name  # that one sees what it might
        elif name not in others:
            long = composed(name).encode()
            assert b"unpack(ARGV" in long or called(long) & writing, name


class Watch:
    """Sees what the server runs, beside the renewals of trust."""

    def __init__(self, server: Server) -> None:
        self._raw = server.connect()
        assert self._raw.command("MONITOR") == b"+OK\r\n"
        self._begun = b""

    def seen(self, seconds: float) -> list[bytes]:
        """Return what has been seen until so many seconds from now."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if not self._raw.silent(left):
                self._begun += self._raw.some()  # of many lines too: none may be left where nobody looks
        *lines, self._begun = self._begun.split(b"\r\n")
        found = [line.partition(b"] ")[2].strip() for line in lines]
        return [line for line in found if not line.startswith((*_RENEWALS, *_LOOKS))]

    def until_silent(self) -> None:
        """Wait until what is done at the start has been done, on a machine that may be busy."""
        while self.seen(2):
            pass

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, *_: object) -> None:
        self._raw.close()


def in_transaction(client: Raw) -> list[bytes]:
    return [client.command(*line.split()) for line in ("MULTI", "SET a b", "EXEC")]


def test_what_is_idle_is_silent(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    proxy = start_proxy(server)
    with Watch(server) as watch, proxy.connect() as client, proxy.connect() as other:
        watch.until_silent()
        client.command("FLUSHALL")
        assert [line for line in watch.seen(BETWEEN_ROUNDS + 1.5) if line.startswith(b'"EVAL')] == []
        assert watch.seen(1) == []
        for each in (client, other):
            in_transaction(each)
        assert watch.seen(0.5) == [b'"MULTI"', b'"SET" "a" "b"', b'"EXEC"'] * 2


@pytest.mark.parametrize("rules", ["~* +@all -@dangerous", "~* +@all -eval", "%R~* +@read +@transaction"])
def test_a_first_transaction_brings_no_script_where_nothing_has_deadlines(
    kind: str, start_server: StartServer, start_proxy: StartProxy, rules: str
) -> None:
    """Also where users have few rights, so that clients are asked what they may do."""
    server = start_server(kind)
    rules = rules if server.version >= (7,) else rules.replace("%R", "")
    assert server.command("ACL", "SETUSER", "few", "on", "nopass", *rules.split()) == b"+OK\r\n"
    proxy = start_proxy(server)
    with proxy.connect() as client, proxy.connect() as few:
        few.command("AUTH", "few", "any")
        with Watch(server) as watch:
            watch.until_silent()
            assert in_transaction(client)[-1] == b"*1\r\n+OK\r\n"
            few.command("MULTI")
            few.command("GET", "a")
            assert few.command("EXEC") == b"*1\r\n$1\r\nb\r\n"
            assert watch.seen(0.5) == [b'"MULTI"', b'"SET" "a" "b"', b'"EXEC"', b'"MULTI"', b'"GET" "a"', b'"EXEC"']


@pytest.mark.parametrize("begins", ["nothing has deadlines", "a far deadline"])
def test_reads_go_on_while_writes_are_paused(
    kind: str, start_server: StartServer, start_proxy: StartProxy, begins: str
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server, "--control-timeout", "1")
    with proxy.connect() as client, proxy.connect() as reader:
        if begins == "a far deadline":
            client.send(
                request("SADD", "k", "m") + request("EXPIREMEMBER", "k", "m", 1000) + request("SET", "foo", "b")
            )
            client.replies(3)
        else:
            client.send(request("FLUSHALL") + request("SET", "foo", "b"))
            client.replies(2)
        assert client.command("CLIENT", "PAUSE", 30_000, "WRITE") == b"+OK\r\n"
        end = time.monotonic() + 4
        while time.monotonic() < end:
            asked = time.monotonic()
            assert reader.command("GET", "foo") == b"$1\r\nb\r\n"
            assert time.monotonic() - asked < 0.7
        assert server.command("CLIENT", "UNPAUSE") == b"+OK\r\n"
    assert "no control connection" not in proxy.process.output

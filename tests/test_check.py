"""`expiremember-proxy check` names what is broken, says what to do, and never hangs; its probe is quick."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import os
import re
import socket
import ssl
import string
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from proxy import __version__
from proxy.check.asking import check_upstream
from proxy.check.findings import Facts, Finding, Level, judge
from proxy.check.listening import check_listening
from proxy.check.needed import TRIALS, rules
from proxy.check.probe import PING, NoAnswerError, ask, has_line, listening
from proxy.cli import command
from proxy.loop import PlainLoop
from proxy.settings import load
from proxy.upstream.words import EMBEDDED_BEHIND
from tests.conftest import StartProxy, StartServer
from tests.relay import Relay
from tests.servers import KINDS, ROOT, Proxy, Server, free_port, proxy_environment, until
from tests.test_takeover import fill
from tests.test_tls import Files, flags, tls_server
from tests.test_tls import files as files  # a fixture

PREFIX = "__expiremember__:"


class Report:
    """What a check has said, in this process, which is quicker, or in one of its own.

    Attributes:
        status: its exit status.
        text: all of it.
    """

    def __init__(self, *arguments: str, env: dict[str, str] | None = None, apart: bool = False) -> None:
        if apart:
            line = [sys.executable, "-m", "proxy", "check", *arguments]
            run = subprocess.run(line, capture_output=True, text=True, timeout=60, env=proxy_environment(env), cwd=ROOT)
            self.status, self.text = run.returncode, run.stdout + run.stderr
            return
        variables = dict.fromkeys(name for name in os.environ if name.upper().startswith("EXPIREMEMBER_"))
        invoked = CliRunner().invoke(command(), ["check", *arguments], env={**variables, **(env or {})})
        gc.collect()  # what a check leaves open is told of, as an error, where it was made
        assert invoked.exception is None or isinstance(invoked.exception, SystemExit), invoked.exception
        self.status, self.text = invoked.exit_code, invoked.output

    def lines(self, level: str) -> list[str]:
        return [line for line in self.text.splitlines() if line.startswith(f"{level} ")]


def nowhere() -> tuple[str, str]:
    """Flags for an address to listen on that is free."""
    return "--listen", f"127.0.0.1:{free_port()}"


def fails(report: Report, subject: str, *said: str) -> None:
    """See that a check has one failure, on a subject, with these words."""
    (line,) = report.lines("failure")
    assert report.status == 1
    assert re.match(rf"failure +{subject} ", line), line
    for words in said:
        assert words in line
    assert "Traceback" not in report.text


def found(upstream: str, **more: object) -> dict[str, Finding]:
    """What a check of an upstream finds, by subject; in this process, which is quicker."""
    with asyncio.Runner(loop_factory=PlainLoop) as runner:
        findings = runner.run(check_upstream(load({"upstream": upstream, **more}, None)))
    return {finding.subject: finding for finding in findings}


# Where all is right.


@pytest.mark.every_kind
def test_a_right_set_up(upstream: Server) -> None:
    upstream.command("ACL", "SETUSER", "checker", "reset", "on", ">right-pw", "resetchannels", *rules(PREFIX))
    report = Report("--upstream", upstream.url.replace("//", "//checker:right-pw@"), *nowhere())
    assert report.status == 0, report.text
    assert not report.lines("failure")
    product, _, version = upstream.kind.partition("-")
    assert re.search(rf"^ok +version +{product.title()} {re.escape(version)}", report.text, re.MULTILINE)
    assert "right-pw" not in report.text
    upstream.command("ACL", "DELUSER", "checker")


def test_nothing_is_changed_in_the_server(kind: str, start_server: StartServer) -> None:
    server = start_server(kind)
    for line in ("SET k v", "SADD s a", "CONFIG RESETSTAT"):
        server.command(*line.split())
    before = server.command("DEBUG", "DIGEST"), server.command("DBSIZE")
    assert found(server.url)["rights"].level is Level.OK
    assert (server.command("DEBUG", "DIGEST"), server.command("DBSIZE")) == before
    pushed = 2 if server.version < (7,) else 0  # see docs/check.md
    assert b"rdb_changes_since_last_save:%d\r\n" % (2 + pushed) in server.command("INFO", "persistence")


def test_the_rights_are_those_that_are_documented() -> None:
    security = (ROOT / "docs" / "security.md").read_text("utf-8")
    documented = security.split("<!-- control-rules -->")[1].split("```")[1].split()
    assert documented == rules(PREFIX)
    example = (ROOT / "config" / "acl.example").read_text("utf-8")
    (line,) = [line for line in example.splitlines() if line.startswith("user expiremember ")]
    assert line.split()[-len(documented) :] == documented


# Broken on purpose.


def test_nobody_listens() -> None:
    port = free_port()
    fails(Report("--upstream", f"redis://127.0.0.1:{port}", *nowhere()), "upstream", str(port), "check the address")
    missing = Report("--upstream", "unix:///no/such/redis.sock", *nowhere())
    fails(missing, "upstream", "unix:///no/such/redis.sock", "check the address")
    fails(Report("--upstream", "redis://no-such-host.invalid:1", *nowhere()), "upstream", "no-such-host.invalid")


def test_a_wrong_password_or_none(kind: str, start_server: StartServer, tmp_path: Path) -> None:
    server = start_server(kind, "--requirepass", "the-right-one")
    fails(Report("--upstream", server.url, *nowhere()), "login", "upstream_password")
    wrong = Report("--upstream", server.url.replace("//", "//:the-wrong-one@"), *nowhere())
    fails(wrong, "login", "upstream_password")
    assert "the-wrong-one" not in wrong.text
    file = tmp_path / "password"
    file.write_text("the-other-wrong-one\n")
    by_file = Report("--upstream", server.url, "--upstream-password-file", str(file), *nowhere())
    fails(by_file, "login", str(file))
    assert "the-other-wrong-one" not in by_file.text
    file.write_text("the-right-one")
    right = Report("--upstream", server.url, "--upstream-password-file", str(file), *nowhere())
    assert right.status == 0
    assert "the-right-one" not in right.text


def test_tls_where_there_is_none_and_the_reverse(
    kind: str, upstream: Server, start_server: StartServer, files: Files
) -> None:
    plain = Report("--upstream", upstream.url.replace("redis:", "rediss:"), "--connect-timeout", "1", *nowhere())
    fails(plain, "upstream", "check that the server speaks TLS on this port")
    if kind != KINDS[-1]:
        return
    _, port = tls_server(start_server, files, files.server)
    reverse = Report("--upstream", f"redis://127.0.0.1:{port}", "--control-timeout", "1", *nowhere())
    fails(reverse, "upstream", "rediss://")
    strange = Report("--upstream", f"rediss://127.0.0.1:{port}", *nowhere())
    fails(strange, "upstream", "tls_ca_file")
    right = Report("--upstream", f"rediss://127.0.0.1:{port}", *flags(tls_ca_file=files.authority.file), *nowhere())
    assert right.status == 0, right.text


def test_each_right_that_is_missing_is_named(kind: str, start_server: StartServer) -> None:
    server = start_server(kind)
    url = server.url.replace("//", "//few:pw@")
    for name in TRIALS.keys() - {"hello"}:  # which nobody can be denied
        server.command("ACL", "SETUSER", "few", "reset", "on", ">pw", "resetchannels", *rules(PREFIX), f"-{name}")
        finding = found(url)["rights"]
        assert finding.level is Level.FAILURE, name
        assert finding.text.startswith(f"the proxy's user lacks +{name};"), (name, finding.text)
        assert ("+rpush cannot be tried" in finding.text) is (name == "eval"), finding.text
    narrowed = {"+client": ["+client|tracking"], "+command": ["+command|count"]} if server.version >= (7,) else {}
    for rule, instead in narrowed.items():  # parts of a command
        some = [given for given in rules(PREFIX) if given != rule]
        server.command("ACL", "SETUSER", "few", "reset", "on", ">pw", "resetchannels", *some, *instead)
        assert found(url)["rights"].text.startswith(f"the proxy's user lacks {rule};"), rule
    without = [rule for rule in rules(PREFIX) if rule[0] not in "~&"]
    for patterns, lacking in (
        (["~app:*", f"&{PREFIX}*", "&__subkey*"], "~*"), (["~*"], "the channels of the proxy"),
        (["~*", f"&{PREFIX}proxy:*", "&__subkey*"], "the channels of the proxy"),
        (["~*", f"&{PREFIX}*"], "the channels of the proxy"),
        ([*(f"~{digit:x}*" for digit in range(16)), f"&{PREFIX}*", "&__subkey*"], "~*"),
        ([f"~{PREFIX}*", f"&{PREFIX}*", "&__subkey*"], "~*"),
        (["~app:*", "&other"], "~* the channels of the proxy"),
    ):  # fmt: skip
        server.command("ACL", "SETUSER", "few", "reset", "on", ">pw", "resetchannels", *patterns, *without)
        assert found(url)["rights"].text.startswith(f"the proxy's user lacks {lacking};"), patterns
    server.command("ACL", "SETUSER", "few", "reset", "on", ">pw", "resetchannels", "~*", "&*", "-@all")
    report = Report("--upstream", url, *nowhere())
    some = [name for name in TRIALS if name not in ("hello", "rpush")]  # the latter only a script can try
    fails(report, "rights", " ".join(f"+{name}" for name in some), "config/acl.example")
    assert "replication" not in report.text  # which only INFO tells


@pytest.mark.parametrize("gone", [["EVAL"], ["INFO"], ["SUBSCRIBE", "HELLO"], [name.upper() for name in TRIALS]])
def test_commands_that_are_renamed_away_are_named(start_server: StartServer, kind: str, gone: list[str]) -> None:
    server = start_server(kind, *(word for name in gone for word in ("--rename-command", name, "")))
    report = Report("--upstream", server.url, *nowhere())
    names = [name.upper() for name in TRIALS if name.upper() in gone]
    assert f"the server has no {', '.join(names)}, which the proxy needs" in report.text
    fails(report, "commands", "rename-command")


def test_a_database_that_there_is_not(upstream: Server) -> None:
    fails(Report("--upstream", f"{upstream.url}/99", *nowhere()), "upstream", "DB index is out of range")


def test_eviction_of_deadlines(kind: str, start_server: StartServer) -> None:
    server = start_server(kind, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru")
    fails(Report("--upstream", server.url, *nowhere()), "eviction", "allkeys-lru", "set maxmemory-policy to noeviction")
    server.command("CONFIG", "SET", "maxmemory", 0)
    assert found(server.url)["eviction"].level is Level.WARNING
    server.command("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    assert found(server.url)["eviction"].level is Level.OK


def test_a_replica_and_its_primary(kind: str, start_server: StartServer) -> None:
    primary = start_server(kind)
    replica = start_server(kind, "--replicaof", "127.0.0.1", str(primary.port), "--repl-diskless-sync-delay", "0")
    until(lambda: b"master_link_status:up" in replica.command("INFO", "replication"), 30, "a replica in sync")
    report = Report("--upstream", replica.url, *nowhere())
    fails(report, "replication", "this is a replica", f"set upstream to its primary, 127.0.0.1:{primary.port}")
    assert "min-replicas-to-write is 0" in found(primary.url)["replication"].text
    primary.command("CONFIG", "SET", "min-replicas-to-write", 1)
    until(lambda: found(primary.url)["replication"].level is Level.OK, what="a replica in time")
    replica.stop()
    until(lambda: "no replica keeps up" in found(primary.url)["replication"].text, 30, "a replica that is late")


def test_a_cluster(kind: str, start_server: StartServer) -> None:
    port = free_port()
    server = start_server(kind, "--cluster-enabled", "yes", "--cluster-announce-port", str(port))
    report = Report("--upstream", server.url, "--listen", f"127.0.0.1:{port}")
    assert report.status == 0
    assert any("cluster" in line and "where the proxy listens" in line for line in report.lines("ok"))
    report = Report("--upstream", server.url, *nowhere())
    assert report.status == 0
    assert any("set cluster-announce-port" in line for line in report.lines("warning"))


def test_a_proxy_behind_the_proxy(proxy: Proxy, upstream: Server) -> None:
    host, port = proxy.address  # type: ignore[misc]
    report = Report("--upstream", f"redis://{host}:{port}", *nowhere())
    fails(report, "upstream", "is an expiremember-proxy itself", f"set upstream to {upstream.url}", __version__)


@pytest.mark.one_kind
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_proxy_behind_the_proxy_with_a_server_of_its_own(start_proxy: StartProxy, workers: str) -> None:
    """The socket of that server is in a folder that goes with the proxy: nobody else is to use it."""
    inner = start_proxy(None, "--embedded", "--workers", workers)
    host, port = inner.address  # type: ignore[misc]
    at = f"redis://{host}:{port}"
    report = Report("--upstream", at, *nowhere())
    fails(report, "upstream", "is an expiremember-proxy itself", EMBEDDED_BEHIND)
    outer = start_proxy(None, "--upstream", at)
    assert EMBEDDED_BEHIND in {line.get("advice") for line in outer.log()}
    assert "redis.sock" not in report.text + outer.process.output


def test_a_version_that_is_too_old(upstream: Server) -> None:
    """As no server so old is at hand, one tells less than it is."""
    pattern = re.compile(rb"((?:redis|valkey)_version:)\d\.\d")
    with Relay(upstream.address) as relay:
        relay.answers = lambda data: pattern.sub(rb"\g<1>6.0", data)
        fails(Report("--upstream", relay.url, *nowhere()), "version", "too old", "needs Redis 6.2, Valkey 7.2 or newer")


def test_persistence(kind: str, start_server: StartServer) -> None:
    server = start_server(kind)
    assert (found(server.url)["persistence"].level, found(server.url)["persistence"].text[:4]) == (
        Level.WARNING,
        "off:",
    )
    server.command("CONFIG", "SET", "save", "900 1")
    assert "snapshots (900 1)" in found(server.url)["persistence"].text
    server.command("CONFIG", "SET", "appendonly", "yes")
    assert found(server.url)["persistence"] == Finding(Level.OK, "persistence", "append-only file")


def test_other_proxies_and_their_versions(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    assert found(server.url)["proxies"].text == "none on this server yet"
    start_proxy(server)
    until(lambda: "1 on this server" in found(server.url)["proxies"].text, what="a proxy")
    tells = b"lib-name" in server.command("CLIENT", "LIST")
    told = __version__ if tells else "of unknown version: servers before Redis 7.2 do not report it"
    assert found(server.url)["proxies"].text == f"1 on this server ({told})"


def listening_is(address: str) -> tuple[Level, str]:
    """What a check finds of an address to listen on."""
    (finding,) = check_listening(load({"listen": [address]}, None))
    assert finding.text.startswith(f"{address} ")
    return finding.level, finding.text.removeprefix(f"{address} ")


def test_an_address_that_cannot_be_listened_on(tmp_path: Path) -> None:
    """As the proxy finds it, which ends there with status 2."""
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(f"{tmp_path}/left")
    for address, said in (
        (f"unix://{tmp_path}/file", "it is a file, not a socket"),
        (f"unix://{tmp_path}/link", "it is a broken link"),
        (f"unix:///{'x' * 120}", "its path is longer than"),
        (f"unix://{tmp_path}/no/such", "its folder does not exist"),
        ("no-such-host.invalid:6380", "Name or service not known"),
        ("192.0.2.1:6380", "Cannot assign requested address"),
    ):
        level, text = listening_is(address)
        assert (level, text.partition(": ")[0]) == (Level.FAILURE, "cannot be listened on"), text
        assert said in text or "invalid" in address
        proxy = Proxy("--listen", address, "--upstream", "redis://127.0.0.1:1", ready=False)
        assert proxy.process.wait() == 2
    for name in ("new", "left"):
        assert listening_is(f"unix://{tmp_path}/{name}") == (Level.OK, "is free")


def test_a_proxy_that_cannot_serve_everybody_at_present_is_alive(
    start_server: StartServer, start_proxy: StartProxy, kind: str
) -> None:
    """A health check that restarts it would help nobody."""
    server = start_server(kind, "--lua-time-limit", "50")
    proxy = start_proxy(server, "--max-clients", "2")
    address = "{}:{}".format(*proxy.address)  # type: ignore[misc]
    with proxy.connect() as first, proxy.connect() as second:
        for client in (first, second):
            assert client.command("PING") == b"+PONG\r\n"
        assert ask(address, PING, has_line).startswith(b"-ERR max number of clients")
        assert probe(address).status == 0
        assert listening_is(address)[0] is Level.OK
        first.send_command("EVAL", "while true do end", "0")
        second.close()
        until(lambda: ask(address, PING, has_line).startswith(b"-BUSY"), what="a busy server")
        assert probe(address).status == 0
        assert listening_is(address)[0] is Level.OK
        server.command("SCRIPT", "KILL")


def test_no_terminal_obeys_a_server() -> None:
    with stub(partial(turn_away, b"-ERR \x1b[31mred\x1b[0m")) as port:
        for report in (Report("--upstream", f"redis://127.0.0.1:{port}", *nowhere()), probe(f"127.0.0.1:{port}")):
            assert report.status == 1
            assert "?[31mred" in report.text


def test_ipv6_beside_ipv4() -> None:
    with socket.create_server(("0.0.0.0", 0)) as other:
        port = other.getsockname()[1]
        assert listening_is(f"[::]:{port}") == (Level.OK, "is free")
        level, text = listening_is(f"0.0.0.0:{port}")
        assert level is Level.FAILURE, text


# What answers strangely.


@contextlib.contextmanager
def stub(behave: Callable[[socket.socket], object]) -> Iterator[int]:
    """Something that listens, and does that with each connection, in a thread; gives its port."""
    listener = socket.create_server(("127.0.0.1", 0))
    taken: list[socket.socket] = []

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                taken.append(connection)
                threading.Thread(target=lose_quietly, args=(connection,), daemon=True).start()

    def lose_quietly(connection: socket.socket) -> None:
        with contextlib.suppress(OSError):
            behave(connection)

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1]
    finally:
        for end in (listener, *taken):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def trickle(connection: socket.socket) -> None:
    """Begin a reply, and go on with it a byte at a time."""
    connection.sendall(b"+")
    while True:
        connection.sendall(b"x")
        time.sleep(0.2)


def never_end(connection: socket.socket) -> None:
    """Answer each request after most of the time that it may take."""
    while connection.recv(1 << 16):
        time.sleep(0.8)
        connection.sendall(b"+PONG\r\n" * 8)


def turn_away(line: bytes, connection: socket.socket) -> None:
    connection.sendall(line + b"\r\n")
    connection.close()


STRANGE: dict[str, tuple[Callable[[socket.socket], object], str]] = {
    "nothing": (lambda connection: connection.recv(1), "no answer in time"),
    "garbage": (lambda connection: connection.sendall(b"SSH-2.0-OpenSSH_9.2p1\r\n"), "check that it is a Redis"),
    "binary garbage": (lambda connection: connection.sendall(bytes(range(256)) * 40), "check that it is a Redis"),
    "HTTP": (lambda connection: connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), "check that it is a Redis"),
    "an end": (lambda connection: connection.close(), "check that it is a Redis"),
    "a trickle": (trickle, "no answer in time"),
    "slow answers": (never_end, ""),
    "protected mode": (partial(turn_away, b"-DENIED Redis is running in protected mode"), "in protected mode"),
    "too many": (partial(turn_away, b"*2000000000"), "check that it is a Redis"),
    "no places": (partial(turn_away, b"-ERR max number of clients reached"), "max number of clients reached"),
}  # fmt: skip


def test_a_tls_server_that_falls_silent_leaves_no_connection_open(files: Files) -> None:
    """The end of TLS is agreed on by both sides."""
    context, over = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), threading.Event()
    context.load_cert_chain(files.server.file, files.server.key)

    def fall_silent(connection: socket.socket) -> None:
        with context.wrap_socket(connection, server_side=True):
            over.wait(30)

    arguments = (*flags(tls_ca_file=files.authority.file), "--control-timeout", "0.2", *nowhere())
    with stub(fall_silent) as port:
        try:
            fails(Report("--upstream", f"rediss://127.0.0.1:{port}", *arguments), "upstream", "no answer in time")
        finally:
            over.set()


@pytest.mark.one_kind
def test_covered_prefixes_are_shown(start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(KINDS[-1])
    assert "covered" not in found(server.url)
    proxy = start_proxy(server)
    for key in ("cart:1", "session:1"):
        proxy.command("SADD", key, "m")
        assert proxy.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
    assert found(server.url)["covered"].text == "keys that begin with cart:, session:"
    for number in range(9):
        proxy.command("EXPIREMEMBER", f"{chr(65 + number)}:1", "m", 1000)
    assert found(server.url)["covered"].text.endswith(" G:, H:, I:, cart: and 1 more")
    for first in string.ascii_letters:  # more than there may be: some of them become one
        for second in string.ascii_letters[:3]:
            proxy.command("EXPIREMEMBER", f"{first}{second}:1", "m", 1000)
    warned = found(server.url)["covered"]
    assert warned.level is Level.WARNING
    assert warned.text.endswith("give keys with deadlines common prefixes, such as cart:")
    assert len(warned.text) < 300


@pytest.mark.parametrize("how", STRANGE)
def test_what_answers_strangely_is_given_up_in_time(how: str) -> None:
    behave, said = STRANGE[how]
    with stub(behave) as port:
        for scheme in ("redis", "rediss"):
            began = time.monotonic()
            findings = found(f"{scheme}://127.0.0.1:{port}", connect_timeout=1, control_timeout=1)
            assert time.monotonic() - began < 7
            (finding,) = [finding for finding in findings.values() if finding.level is Level.FAILURE]
            assert finding.subject in ("upstream", "version")
            if scheme == "redis":
                assert said in finding.text, finding.text


# Where it is to listen.


def test_an_address_that_another_program_has(upstream: Server) -> None:
    for behave, said in (
        (lambda connection: connection.sendall(b"220 mail.example ESMTP\r\n"), "another program"),
        (lambda connection: connection.close(), "does not answer"),
    ):
        with stub(behave) as port:
            report = Report("--upstream", upstream.url, "--listen", f"127.0.0.1:{port}")
            fails(report, "listen", f"127.0.0.1:{port} is in use", said)
    fails(Report("--upstream", upstream.url, "--listen", f"127.0.0.1:{upstream.port}"), "listen", "another program")
    fails(Report("--upstream", upstream.url, "--listen", "192.0.2.1:6380"), "listen", "cannot be listened on")
    fails(Report("--upstream", upstream.url, "--listen", "unix:///no/such/folder/x"), "listen", "folder does not exist")


def test_an_address_that_the_running_proxy_has(upstream: Server, proxy: Proxy) -> None:
    host, port = proxy.address  # type: ignore[misc]
    report = Report("--upstream", upstream.url, "--listen", f"{host}:{port}")
    assert report.status == 0, report.text
    assert f"{host}:{port} is where the proxy is running (version {__version__})" in report.text


@pytest.mark.every_kind(valkey=(9, 1))
def test_the_address_of_the_admin_port(upstream: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    port = free_port()
    free = Report("--upstream", upstream.url, *nowhere(), "--admin", f"127.0.0.1:{port}")
    assert free.status == 0
    assert f"127.0.0.1:{port} is free" in free.text
    taken = Report("--upstream", upstream.url, *nowhere(), "--admin", f"127.0.0.1:{upstream.port}")
    fails(taken, "admin", f"127.0.0.1:{upstream.port} is in use by another program")
    fails(Report("--upstream", upstream.url, *nowhere(), "--admin", "192.0.2.1:1"), "admin", "cannot be listened on")
    same = Report("--upstream", upstream.url, "--listen", f"127.0.0.1:{port}", "--admin", f"127.0.0.1:{port}")
    fails(same, "admin", "is in listen too")
    for address in (f"127.0.0.1:{port}", f"unix://{tmp_path}/admin.sock"):
        proxy = start_proxy(upstream, "--admin", address)
        running = Report("--upstream", upstream.url, *nowhere(), "--admin", address)
        assert running.status == 0
        assert f"{address} is where the proxy is running" in running.text
        proxy.stop()


@pytest.mark.one_kind
def test_the_path_at_which_another_proxy_takes_over(upstream: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    def report(path: Path) -> Report:
        return Report("--upstream", upstream.url, *nowhere(), "--takeover", str(path))

    (tmp_path / "file").write_text("mine")
    fails(report(tmp_path / "none" / "x"), "takeover", "its folder does not exist")
    fails(report(tmp_path), "takeover", f"{tmp_path} cannot be listened on: it is a file, not a socket")
    fails(report(tmp_path / "file"), "takeover", "it is a file, not a socket")
    fails(report(tmp_path / ("x" * 150)), "takeover", "its path is longer than 107 bytes")
    path = tmp_path / "takeover"
    assert f"takeover     {path} is free" in report(path).text
    proxy = start_proxy(upstream, "--takeover", str(path))
    assert f"{path} is in use: a proxy that starts takes over" in report(path).text
    proxy.process.kill()
    proxy.process.wait()
    left = report(path)
    assert left.status == 0
    assert f"{path} is free" in left.text
    assert path.exists()
    with socket.socket(socket.AF_UNIX) as busy:
        busy.bind(str(tmp_path / "busy"))
        busy.listen(0)
        fill(tmp_path / "busy")
        assert f"{tmp_path / 'busy'} is in use: a proxy that starts takes over" in report(tmp_path / "busy").text


@pytest.mark.every_kind(valkey=(9, 1))
def test_an_open_server_where_others_can_reach_it(kind: str, start_server: StartServer, files: Files) -> None:
    everywhere = ("--listen", f"0.0.0.0:{free_port()}")
    server = start_server(kind)
    report = Report("--upstream", server.url, *everywhere)
    assert report.status == 0
    (warning,) = [line for line in report.lines("warning") if " listen " in line]
    assert f"without a password, at {everywhere[1]}; set a password" in warning
    assert "without a password" not in Report("--upstream", server.url, *nowhere()).text
    certified = ("--listen", "tls://" + everywhere[1], *flags(listen_tls_cert_file=files.server.file))
    certified += tuple(flags(listen_tls_key_file=files.server.key, listen_tls_ca_file=files.authority.file))
    assert "without a password" not in Report("--upstream", server.url, *certified).text
    assert server.command("CONFIG", "SET", "requirepass", "secret") == b"+OK\r\n"
    assert "without a password" not in Report("--upstream", server.url.replace("//", "//:secret@"), *everywhere).text
    assert "without a password" in Report("--embedded", *everywhere).text


def test_settings_that_cannot_be_used_are_bad_usage(tmp_path: Path) -> None:
    for arguments in (
        ["--upstream", "http://x"],
        ["--no-such-flag"],
        ["--tls-ca-file", "/no/such", "--upstream", "rediss://h"],
    ):
        report = Report(*arguments, apart=True)
        assert report.status == 2
        assert report.text.startswith("expiremember-proxy: ")
        assert report.text.count("\n") == 1
    config = tmp_path / "proxy.toml"
    config.write_text('upstream = "redis://127.0.0.1:1"\n')
    fails(Report("--config", str(config), *nowhere()), "upstream", "127.0.0.1:1 ")
    fails(Report(*nowhere(), env={"EXPIREMEMBER_UPSTREAM": "redis://127.0.0.1:2"}), "upstream", "127.0.0.1:2 ")


def test_flags_in_front_of_the_subcommand_count_too() -> None:
    line = [sys.executable, "-m", "proxy", "--upstream", "redis://127.0.0.1:3", *nowhere(), "check"]
    run = subprocess.run(line, capture_output=True, text=True, timeout=30, env=proxy_environment(), cwd=ROOT)
    assert run.returncode == 1
    assert "redis://127.0.0.1:3 cannot be used" in run.stdout


# The probe.


def probe(*addresses: str, env: dict[str, str] | None = None) -> Report:
    flags = itertools.chain.from_iterable(("--listen", address) for address in addresses)
    return Report("--probe", *flags, env=env, apart=True)


def test_a_probe_follows_the_proxy(start_server: StartServer, start_proxy: StartProxy, tmp_path: Path) -> None:
    server = start_server(KINDS[-1])
    address, path = f"127.0.0.1:{free_port()}", f"unix://{tmp_path}/x.sock"
    assert (probe(address, path).status, probe(address).text) == (
        1,
        f"{address}: nothing listens there; is the proxy running?\n",
    )
    proxy = start_proxy(server, "--listen", address, "--listen", path)
    assert probe(address, path, env={"EXPIREMEMBER_LISTEN": "ignored:1"}).status == 0
    assert probe(env={"EXPIREMEMBER_LISTEN": f"{address.replace('127.0.0.1', '0.0.0.0')}, {path}"}).status == 0
    config = tmp_path / "proxy.toml"
    config.write_text(f'listen = ["{address}"]\n')
    assert Report("--probe", "--config", str(config), apart=True).text == f"{address}: answers\n"
    server.command("CONFIG", "SET", "requirepass", "pw")
    assert probe(address).status == 0
    server.stop()
    until(lambda: probe(address).status == 1, what="an outage")
    assert probe(address).text.startswith(f"{address}: ERR expiremember-proxy: upstream ")
    proxy.process.end(9)
    assert probe(address, path).status == 1


def test_a_probe_speaks_tls(start_server: StartServer, start_proxy: StartProxy, files: Files) -> None:
    upstream = start_server(KINDS[-1])
    own = ["--listen-tls-cert-file", str(files.server.file), "--listen-tls-key-file", str(files.server.key)]
    for more in ([], ["--listen-tls-ca-file", str(files.authority.file)]):
        port = free_port()
        address = f"tls://127.0.0.1:{port}"
        where = {"EXPIREMEMBER_LISTEN": address}
        proxy = start_proxy(upstream, *own, *more, env=where)
        report = probe(address)
        assert report.status == 0, report.text
        assert ("certificate" in report.text) is bool(more)
        assert probe(address.replace("tls://", "")).status == 1
        proxy.stop()


@pytest.mark.parametrize("how", ["nothing", "an end", "a trickle"])
def test_a_probe_of_something_else_ends_in_time(how: str) -> None:
    with stub(STRANGE[how][0]) as port:
        for address in (f"127.0.0.1:{port}", f"tls://127.0.0.1:{port}"):
            began = time.monotonic()
            with pytest.raises(NoAnswerError):
                ask(address, PING, has_line, timeout=0.5)
            assert time.monotonic() - began < 2


def test_a_probe_of_something_else_fails() -> None:
    with stub(STRANGE["garbage"][0]) as port:
        assert probe(f"127.0.0.1:{port}").status == probe(f"tls://127.0.0.1:{port}").status == 1


@pytest.mark.parametrize("arguments", [
    [], ["--probe"], ["--listen", "a:1"], ["--listen=a:1", "--listen", "unix:///x"], ["--listen", "h:2", "--probe"],
    ["--upstream", "redis://h"], ["--config", "x"], ["--listen", "nonsense"], ["--listen"], ["--lis", "a:1"],
])  # fmt: skip
@pytest.mark.parametrize("environment", [
    {}, {"EXPIREMEMBER_LISTEN": "e:1, f:2"}, {"expiremember_listen": "g:3"}, {"EXPIREMEMBER_LISTEN": ""},
    {"EXPIREMEMBER_CONFIG": "x"}, {"EXPIREMEMBER_LOG_LEVEL": "debug"},
])  # fmt: skip
def test_a_probe_asks_where_the_settings_say(
    arguments: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read without the settings, to be quick; or not at all, and then by them."""
    for name in [name for name in os.environ if name.upper().startswith("EXPIREMEMBER_")]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    quick = listening(arguments, environment)
    if quick is None:
        return
    given = [word.removeprefix("--listen=") for word in arguments if ":" in word]
    assert quick == load({"listen": given} if given else {}, None).listen


def test_a_probe_loads_little() -> None:
    code = (
        "import sys; sys.argv = ['x', 'check', '--probe', '--listen', '127.0.0.1:1']\n"
        "from proxy.check import probe; import proxy.entry; assert probe.main() == 1; print(*sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    loaded = set(run.stdout.split())
    assert not loaded & {"asyncio", "ssl", "click", "pydantic", "redis", "uvloop", "structlog", "tomllib", "hiredis"}


# What the facts mean; those that no server at hand shows.


@pytest.mark.parametrize(("facts", "subject", "level"), [
    (Facts("a", info={"redis_version": "5.0.14", "role": "master"}), "version", Level.FAILURE),
    (Facts("a", info={"redis_version": "255.255.255"}), "version", Level.OK),
    (Facts("a", info={"redis_version": "7.2.4", "valkey_version": "7.2.9"}), "version", Level.OK),
    (Facts("a", info={"redis_version": "7.2.4", "valkey_version": "7.0.1"}), "version", Level.FAILURE),
    (Facts("a", info={"redis_version": "unstable"}), "version", Level.FAILURE),
    (Facts("a", info={"redis_version": "7.0.1", "redis_mode": "sentinel"}), "mode", Level.FAILURE),
    (Facts("a", info={"redis_version": "7.0.1", "loading": "1"}), "loading", Level.FAILURE),
    (Facts("a", info={"redis_version": "7.0.1"}, round_trip_ms=12.0), "round trip", Level.WARNING),
    (Facts("a", has_command=True), "upstream", Level.FAILURE),
    (Facts("a", ahead=-75.0), "clock", Level.WARNING),
    (Facts("a", ahead=0.2), "clock", Level.OK),
    (Facts("a", proxies=["0.1.0", "0.2.0"], version="0.2.0"), "proxies", Level.WARNING),
    (Facts("a", proxies=["0.2.0", "0.2.0", ""], version="0.2.0"), "proxies", Level.OK),
])  # fmt: skip
def test_what_the_facts_mean(facts: Facts, subject: str, level: Level) -> None:
    (finding,) = [finding for finding in judge(facts) if finding.subject == subject]
    assert finding.level is level
    assert "\n" not in finding.text
    assert (";" in finding.text) or level is Level.OK  # what to do about it


@pytest.mark.parametrize(
    ("listen", "name"),
    [("127.0.0.1", "localhost"), ("localhost", "127.0.0.1"), ("0.0.0.0", "127.1.2.3"), ("0.0.0.0", "0.0.0.0"),
     ("0.0.0.0", socket.gethostname())],
)  # fmt: skip
def test_the_proxy_itself_that_does_not_run(listen: str, name: str) -> None:
    port = free_port()
    report = Report("--listen", f"{listen}:{port}", "--upstream", f"redis://{name}:{port}")
    fails(report, "upstream", f"redis://{name}:{port} is the proxy's own listen address", "set upstream to")
    other = Report("--listen", f"{listen}:{free_port()}", "--upstream", f"redis://{name}:{port}")
    fails(other, "upstream", "check the address")


def test_the_proxy_itself_at_a_unix_socket(tmp_path: Path) -> None:
    (tmp_path / "folder").symlink_to(tmp_path)
    listen = f"unix://{tmp_path}/proxy.sock"
    for path in ("proxy.sock", "folder/proxy.sock", "./proxy.sock"):
        report = Report("--listen", listen, "--upstream", f"unix://{tmp_path}/{path}")
        fails(report, "upstream", "is the proxy's own listen address")
    fails(Report("--listen", listen, "--upstream", f"unix://{tmp_path}/redis.sock"), "upstream", "check the address")


def test_a_proxy_that_serves_nobody(start_proxy: StartProxy) -> None:
    """One that would close a circle, among others: its upstream is where the proxy is to be."""
    port = free_port()
    between = start_proxy(None, "--upstream", f"redis://127.0.0.1:{port}")
    host, other = between.address  # type: ignore[misc]
    report = Report("--listen", f"127.0.0.1:{port}", "--upstream", f"redis://{host}:{other}")
    fails(report, "upstream", "it is an expiremember-proxy itself; set upstream to the Redis or Valkey server behind")
    assert report.text.count("unavailable") == 0

"""Passwords: taken from a file that may change, and shown to nobody; and warnings where there is none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from redis.exceptions import RedisError, ResponseError

from proxy.settings import Settings, SettingsError, load
from proxy.upstream.refusals import UnknownCommandError, shown
from tests.admin import admin_of
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw
from tests.servers import BINARIES, Process, Proxy, Server, free_port, proxy_environment, until

pytestmark = pytest.mark.start

SECRET = "s3cret-Ä/pw"
OTHER = "0ther-t0ken"


@pytest.fixture
def server(start_server: StartServer) -> Server:
    """A server that wants a password of everybody, with a user for the proxy."""
    server = start_server(min(BINARIES), "--requirepass", OTHER)
    set_password(server, SECRET)
    return server


def admin(server: Server) -> Raw:
    client = server.connect()
    assert client.command("AUTH", OTHER) == b"+OK\r\n"
    return client


def set_password(server: Server, password: str) -> None:
    """Give the proxy's user a new password, and end its connections."""
    with admin(server) as client:
        rules = ("on", "resetpass", f">{password}", "~*", "&*", "+@all")
        assert client.command("ACL", "SETUSER", "proxy", *rules) == b"+OK\r\n"
        client.command("CLIENT", "KILL", "USER", "proxy")


def url(server: Server, user: str = "proxy@") -> str:
    return f"redis://{user}127.0.0.1:{server.port}"


def reachable(proxy: Proxy) -> bool:
    """Whether clients are served."""
    with proxy.connect() as client:
        client.send_command("PING")
        return client.line().startswith(b"-NOAUTH")


def shows_nothing(proxy: Proxy, *passwords: str) -> None:
    """Neither the log nor the process's command line has a password."""
    shown = proxy.process.output + " ".join(psutil.Process(proxy.pid).cmdline())
    for password in passwords:
        assert password not in shown
        assert password.encode().hex() not in shown


def test_the_password_from_a_file_is_taken_up_when_it_changes(
    server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    file = tmp_path / "password"
    file.write_text(SECRET + "\n", "utf-8")
    proxy = start_proxy(None, "--upstream", url(server), "--upstream-password-file", str(file), "--log-level", "debug")
    until(lambda: reachable(proxy))
    set_password(server, "r0tated-one")
    refused = proxy.process.line(lambda line: "refuses the proxy's login" in line)
    assert str(file) in refused
    file.write_text("r0tated-one\n", "utf-8")
    proxy.process.line(lambda line: "control connection to the upstream is back" in line)
    with proxy.connect() as client:
        assert client.command("AUTH", OTHER) == b"+OK\r\n"
        assert client.command("SADD", "s", "m", "n") == b":2\r\n"
        assert client.command("PEXPIREMEMBER", "s", "m", 1) == b":1\r\n"
        until(lambda: client.command("SCARD", "s") == b":1\r\n")
    file.unlink()
    set_password(server, "r0tated-two")
    gone = proxy.process.line(lambda line: "cannot be read" in line)
    assert str(file) in gone
    with proxy.connect() as client:
        client.send_command("PING")
        client.line()
    file.write_bytes(b"\xff\xfe")
    proxy.process.line(lambda line: "is not UTF-8" in line)
    file.write_text("r0tated-two", "utf-8")
    until(lambda: len([line for line in proxy.log() if line["event"].endswith("upstream is back")]) == 2)
    shows_nothing(proxy, SECRET, "r0tated-one", "r0tated-two", OTHER)
    proxy.stop()


@pytest.mark.parametrize("where", ["EXPIREMEMBER_UPSTREAM_PASSWORD", "EXPIREMEMBER_UPSTREAM"])
def test_the_password_from_the_environment(server: Server, start_proxy: StartProxy, where: str) -> None:
    encoded = SECRET.replace("/", "%2F")
    if where == "EXPIREMEMBER_UPSTREAM":
        proxy = start_proxy(None, env={where: url(server, f"proxy:{encoded}@")})
    else:
        proxy = start_proxy(None, "--upstream", url(server), env={where: SECRET})
    until(lambda: reachable(proxy))
    shows_nothing(proxy, SECRET, encoded)
    assert "command line" not in proxy.process.output
    proxy.stop()


def test_a_password_on_the_command_line_is_warned_of_once(server: Server, start_proxy: StartProxy) -> None:
    encoded = SECRET.replace("/", "%2F")
    for args in (
        ("--upstream", url(server, f"proxy:{encoded}@")),
        ("--upstream-password", SECRET, "--upstream", url(server)),
    ):
        proxy = start_proxy(None, *args)
        until(lambda proxy=proxy: reachable(proxy))  # type: ignore[misc]
        warnings = [line for line in proxy.log() if line["level"] == "warning"]
        assert len(warnings) == 1
        assert "command line" in warnings[0]["event"]
        assert SECRET not in proxy.process.output
        assert encoded not in proxy.process.output
        proxy.stop()


def test_a_rejected_password_is_shown_to_nobody(server: Server, start_proxy: StartProxy) -> None:
    wrong = "wr0ng-pw"
    proxy = start_proxy(None, "--upstream", url(server, f"proxy:{wrong}@"), "--log-level", "debug")
    with proxy.connect() as client:
        told = client.rest()
    assert told.startswith(b"-ERR expiremember-proxy: upstream ")
    assert wrong.encode() not in told
    assert wrong not in proxy.process.output
    proxy.stop()


@pytest.mark.parametrize(
    "bad",
    [
        f"redis://proxy:{SECRET}@127.0.0.1:6379",
        "redis://proxy:s3cret?x@127.0.0.1:6379",
        "redis://proxy:s3cret#x@127.0.0.1:6379",
        "redis://proxy:12/s3cret@127.0.0.1:6379",
        "redis://proxy:s3cret@[::1:6379",
        "redis://proxy:s3cret@127.0.0.1:s3cret",
        "redis://proxy:s3cret@127.0.0.1:6379/s3cret",
        "redis://proxy:s3cret\u2100@127.0.0.1:6379",
        "http://proxy:s3cret@127.0.0.1:6379",
        "redis://:12?s3cret@127.0.0.1",
        "unix://proxy:s3cret@",
    ],
)
def test_an_address_that_cannot_be_used_is_not_repeated(bad: str, tmp_path: Path) -> None:
    file = tmp_path / "proxy.toml"
    file.write_text(f'upstream = "{bad}"\n', "utf-8")
    for flags, config in (({"upstream": bad}, None), ({}, file)):
        with pytest.raises(SettingsError) as error:
            load(flags, config)
        assert "s3cret" not in str(error.value)
        assert str(error.value).startswith("upstream: ")


def test_the_settings_show_no_password() -> None:
    for flags in ({"upstream": f"redis://u:{OTHER}@h"}, {"upstream_password": OTHER}):
        settings = load(flags, None)
        assert OTHER not in repr(settings)
        assert OTHER not in str(settings)
    assert isinstance(settings, Settings)


@pytest.mark.parametrize(("text", "says"), [(None, "cannot be read"), ("", "is empty"), ("\n", "is empty")])
def test_a_password_file_that_cannot_be_used_ends_it_with_one_line(tmp_path: Path, text: str | None, says: str) -> None:
    file = tmp_path / "password"
    if text is not None:
        file.write_text(text)
    proxy = Proxy("--upstream-password-file", str(file), ready=False)
    assert proxy.process.wait() == 2
    assert says in proxy.process.output
    assert str(file) in proxy.process.output
    assert len(proxy.process.lines) == 1


def everywhere(server: Server) -> Process:
    """Start a proxy that other machines could reach; it is stopped within the second."""
    command = [sys.executable, "-m", "proxy", "--listen", f"0.0.0.0:{free_port()}", "--upstream", url(server)]
    return Process([*command, "--log-format", "json"], proxy_environment({"EXPIREMEMBER_UPSTREAM_PASSWORD": SECRET}))


def test_a_password_on_the_server_needs_no_warning(server: Server, start_proxy: StartProxy) -> None:
    process = everywhere(server)
    try:
        process.line(lambda line: "covered prefixes loaded" in line)
        until(lambda: asked(server))
        assert process.end() == 0
        assert "without a password" not in process.output
    finally:
        process.kill()


def asked(server: Server) -> bool:
    """Whether somebody has been refused for want of a password."""
    with admin(server) as client:
        return b"errorstat_NOAUTH" in client.command("INFO", "errorstats")


def test_an_open_server_is_warned_of_where_others_can_reach_it(server: Server) -> None:
    with admin(server) as client:
        assert client.command("ACL", "SETUSER", "default", "nopass") == b"+OK\r\n"
    process = everywhere(server)
    try:
        told = process.line(lambda line: "other machines can use the server through the proxy" in line)
        assert "requirepass" in told
        assert "0.0.0.0" in told
        assert process.end() == 0
    finally:
        process.kill()


def test_a_password_file_that_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe would hold up everything, and so would a disk's worth of zeros."""
    pipe, huge = tmp_path / "pipe", tmp_path / "huge"
    os.mkfifo(pipe)
    huge.write_bytes(b"x" * 100_000)
    for file in (pipe, huge, tmp_path):
        command = [sys.executable, "-m", "proxy", "--upstream-password-file", str(file)]
        done = subprocess.run(command, env=proxy_environment(), capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 2, done.stderr
        assert str(file) in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.every_kind
def test_a_server_that_quotes_a_login_that_it_does_not_know_makes_nobody_show_the_password(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """As Redis before 6 does at HELLO: clients, probes, the log and the check tell no more than that."""
    renamed = [word for name in ("HELLO", "AUTH") for word in ("--rename-command", name, "")]
    server = start_server(kind, "--requirepass", OTHER, *renamed)
    unknown = server.command("HELLO").startswith(b"-ERR unknown")  # the newest do not tell before a login
    missing = {name: f"the server has no {name}" if unknown else "Authentication required" for name in renamed[1::3]}
    where = url(server, f":{OTHER}@")
    proxy = start_proxy(None, "--upstream", where, "--admin", "127.0.0.1:0", "--log-level", "debug")
    with proxy.connect() as client:
        client.send_command("PING")
        told = client.line().decode()
    status, ready = admin_of(proxy).ask("/readyz")
    assert status == 503
    command = [sys.executable, "-m", "proxy", "check", "--upstream", where, "--listen", f"127.0.0.1:{free_port()}"]
    checked = subprocess.run(command, env=proxy_environment(), capture_output=True, text=True, timeout=30, check=False)
    assert missing["AUTH"] in checked.stdout
    for text in (told, ready, proxy.process.output):
        assert missing["HELLO"] in text
    for text in (told, ready, checked.stdout, checked.stderr, proxy.process.output):
        assert OTHER not in text
        assert "args beginning" not in text
    proxy.stop()


@pytest.mark.parametrize(("said", "password", "told"), [
    ("unknown command `HELLO`, with args beginning with: `3`, `AUTH`, `a", "abcdef", "the server has no HELLO: it is"),
    ("unknown command 'Scan', with args beginning with: '0' ", "", "the server has no SCAN: perhaps rename-command"),
    ("cannot do HELLO 3 AUTH default s3cret", "s3cret", "cannot do HELLO 3 AUTH default ***"),
    ("cannot do AUTHs3cret-long", "s3cret-long", "cannot do AUTH***"),
    ("User u has no permissions to run the 'get' command", "e", "User u has no permissions to run the 'get' command"),
    ("AUTH e refused", "e", "AUTH *** refused"),
    ("unknown subcommand 'SETINFO'. Try CLIENT HELP.", "x", "unknown subcommand 'SETINFO'. Try CLIENT HELP."),
])  # fmt: skip
def test_what_is_shown_of_an_error(said: str, password: str, told: str) -> None:
    error = ResponseError(said)
    result = shown(error, [password] if password else [])
    assert str(result).startswith(told)
    assert isinstance(result, UnknownCommandError) is ("unknown command" in said)
    assert len(password) < 2 or password not in str(result)
    assert isinstance(shown(RedisError("x"), ["y"]), RedisError)


def test_a_proxy_without_the_password_says_what_to_set(server: Server, start_proxy: StartProxy) -> None:
    proxy = start_proxy(None, "--upstream", server.url)
    with proxy.connect() as client:
        told = client.rest()
    wanted = "it requires a password, and the proxy has none"
    assert told == f"-ERR expiremember-proxy: upstream {server.url} is unavailable: {wanted}\r\n".encode()
    (ready,) = (line for line in proxy.log() if line["event"] == "ready")
    assert ready["upstream_state"] == wanted
    (lost,) = (line for line in proxy.log() if line["event"] == "no control connection to the upstream")
    assert lost["state"] == wanted
    assert "upstream_password_file" in lost["advice"]
    proxy.stop()

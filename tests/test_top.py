"""`expiremember-proxy top` in a pseudo-terminal: it shows the figures, and leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from proxy.settings import SettingsError
from proxy.status.shape import Status
from proxy.status.text import lines_of
from proxy.status.top import Source, TopError
from proxy.status.view import sections
from tests.admin import Admin, admin_of, with_admin
from tests.conftest import Start, StartProxy
from tests.patience import patience
from tests.servers import KIND, ROOT, Proxy, Server, free_port, proxy_environment, until

pytestmark = pytest.mark.one_kind

TOP = [sys.executable, "-m", "proxy", "top"]
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?1049l"


def run(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*TOP, *arguments],
        cwd=ROOT,
        env=proxy_environment(more),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def at(port: Admin) -> str:
    assert not isinstance(port.address, Path)
    return f"http://{port.address[0]}:{port.address[1]}"


class Terminal:
    """A terminal with `top` in it.

    Attributes:
        output: all that has been written there.
    """

    def __init__(self, url: str, width: int, height: int) -> None:
        self._ours, self._theirs = pty.openpty()
        fcntl.ioctl(self._theirs, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self.before = termios.tcgetattr(self._theirs)
        self.output = ""
        env = proxy_environment({"TERM": "xterm-256color", "LC_ALL": "C.UTF-8"})
        self.process = subprocess.Popen(
            [*TOP, url],
            cwd=ROOT,
            env=env,
            stdin=self._theirs,
            stdout=self._theirs,
            stderr=self._theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def read(self) -> str:
        """Read what there is, and return all."""
        while select.select([self._ours], [], [], 0.05)[0]:
            self.output += os.read(self._ours, 1 << 16).decode(errors="replace")
        return self.output

    def until(self, text: str) -> None:
        until(lambda: text in self.read(), 20, lambda: f"{text!r} in {self.output!r}")

    def type(self, keys: bytes) -> None:
        os.write(self._ours, keys)

    def resize(self, width: int, height: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def end(self) -> int:
        """Wait for the end; return the exit status."""
        end = time.monotonic() + patience(20)
        while self.process.poll() is None:
            assert time.monotonic() < end, self.output
            self.read()
        self.read()
        return self.process.returncode

    @property
    def screen(self) -> str:
        """What it has drawn last, without colours."""
        last = self.output.rpartition("\x1b[H")[2]
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", last)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)
        os.close(self._theirs)


@contextmanager
def terminal(url: str, width: int = 110, height: int = 60) -> Iterator[Terminal]:
    made = Terminal(url, width, height)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def port() -> Iterator[Admin]:
    """The admin port of a proxy in front of a server with two keys that have deadlines."""
    with ExitStack() as stack:
        server = Server(KIND)
        stack.callback(server.close)
        proxy = Proxy("--upstream", server.url, "--admin", "127.0.0.1:0", "--admin-names")
        stack.callback(proxy.close)
        with proxy.connect() as client:
            for key in (b"cart:1", b"evil\x1b[2J\xe2\x80\xae:1"):
                client.command("SADD", key, "a", "b")
                assert client.command("EXPIREMEMBER", key, "a", 1800) == b":1\r\n"
        yield admin_of(proxy)


def test_it_prints_the_figures_once(port: Admin) -> None:
    for arguments, more in (((at(port), "--once"), {}), ((), {"EXPIREMEMBER_ADMIN": at(port).removeprefix("http://")})):
        done = run(*arguments, **more)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith("Good: clients are served, and members are removed on time.\n")
        assert re.search(r"In the next minute +0\n +In the next hour +2\n", done.stdout), done.stdout
        assert "Each key counts once, however many deadlines it has." in " ".join(done.stdout.split())
        assert "evil\\x1b[2J\\u202e:1" in done.stdout
        assert "\x1b" not in done.stdout
    done = run(at(port) + "/", "--once", "--json")
    assert Status.model_validate_json(done.stdout).state.level == "good"
    assert done.stdout.count("\n") == 1


@pytest.mark.parametrize("way", ["q", "ctrl-c", "SIGTERM", "SIGHUP"])
def test_it_leaves_the_terminal_as_it_was(port: Admin, way: str) -> None:
    with terminal(at(port)) as shown:
        shown.until("Falls due")
        shown.until("cart:")
        if way == "q":
            shown.type(b"q")
        elif way == "ctrl-c":
            shown.type(b"\x03")
        else:
            shown.process.send_signal(getattr(signal, way))
        status = {"q": 0, "ctrl-c": 130, "SIGTERM": 143, "SIGHUP": 129}[way]
        assert shown.end() == status
        assert shown.output.count(ENTER) == shown.output.count(LEAVE) == 1
        assert shown.output.rstrip().endswith("\x1b[?25h" + LEAVE)
        assert termios.tcgetattr(shown._theirs) == shown.before
        assert "Traceback" not in shown.output
        assert "\x1b[2J\u202e" not in shown.output


def test_it_is_live_and_fits_the_terminal(start: Start, server: Server) -> None:
    proxy = start("--admin", "127.0.0.1:0")
    with terminal(at(admin_of(proxy)), 110, 50) as shown, proxy.connect() as client:
        shown.until("Good: ")
        client.command("SADD", "cart:1", "a")
        client.command("EXPIREMEMBER", "cart:1", "a", 1800)
        until(lambda: shown.read() and re.search(r"In the next hour +1\b", shown.screen), 20)
        lines = shown.screen.split("\r\n")
        assert len(lines) <= 50
        assert max(map(len, lines)) <= 110
        shown.resize(48, 12)
        until(lambda: shown.read() and len(shown.screen.split("\r\n")) <= 12, 20)
        assert max(map(len, shown.screen.split("\r\n"))) <= 48
        proxy.stop()
        shown.until("connection refused")
        assert shown.process.poll() is None
        shown.type(b"q")
        assert shown.end() == 0


def test_json_is_a_line_for_each_look(port: Admin) -> None:
    with subprocess.Popen(
        [*TOP, at(port), "--json"],
        cwd=ROOT,
        env=proxy_environment(),
        stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores it
    ) as process:
        assert process.stdout is not None
        try:
            looks = [json.loads(process.stdout.readline())["at"] for _ in range(2)]
            assert looks[1] > looks[0]
            process.send_signal(signal.SIGINT)
            assert process.wait(patience(20)) == 130
        finally:
            process.kill()


def test_what_cannot_be_had_is_said_in_one_line(server: Server, start_proxy: StartProxy) -> None:
    _, off = with_admin(start_proxy, server, "--no-admin-page")
    nobody = free_port()
    done = run(f"127.0.0.1:{nobody}")
    advice = "start the proxy with --admin, or give the address of its admin port"
    said = f"expiremember-proxy: http://127.0.0.1:{nobody}: connection refused; {advice}\n"
    assert (done.returncode, done.stderr, done.stdout) == (1, said, "")
    done = run("http://u:secret@h:1")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "secret" not in done.stderr
    for address, said in (
        (at(off), f"{at(off)}: the status page is turned off: see the setting admin_page"),
        (f"http://127.0.0.1:{server.port}", "not an HTTP server: give the admin port of a proxy (--admin)"),
        ("unix:///no/such.sock", "unix:///no/such.sock: no such file or directory"),
        ("http://no-such-host.invalid:1", "no-such-host.invalid:1: "),
    ):
        with pytest.raises(TopError) as error:
            Source(address).read()
        assert said in str(error.value)
        assert "\n" not in str(error.value)
    for wrong in ("https://h:1", "nonsense", "http://h:99999"):
        with pytest.raises(SettingsError):
            Source(wrong)


@pytest.mark.parametrize("body", [b'{"a": 1}', b"[" * 100_000, b"\xff", b"x" * (3 << 20), b""])
def test_figures_of_something_else_are_not_believed(body: bytes) -> None:
    """They may be of another version, or without an end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            client, _ = listener.accept()
            with client, contextlib.suppress(OSError):
                client.recv(1000)
                client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
                client.sendall(body)
                client.recv(1000)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(TopError, match="not from this version"):
            Source(f"127.0.0.1:{listener.getsockname()[1]}").read()
        thread.join(20)


def test_no_line_is_wider_than_the_terminal(port: Admin) -> None:
    status = Status.model_validate_json(port.ask("/status.json")[1])
    state = status.state.model_copy(update={"text": "宽" * 200, "advice": "é" * 300})
    wide = status.model_copy(update={"state": state})
    for one, width, height in itertools.product((status, wide), (20, 48, 79, 100, 160), (1, 2, 10, 24, 80)):
        lines = lines_of(one, width, height, colours=True)
        assert len(lines) <= height
        for line in lines:
            told = re.sub(r"\x1b\[[0-9;]*m", "", line)
            assert sum(2 if character == "宽" else 1 for character in told) <= width


def test_what_matters_least_is_left_out_of_a_low_terminal(port: Admin) -> None:
    status = Status.model_validate_json(port.ask("/status.json")[1])
    prefix = status.prefixes.listed[0]
    many = status.prefixes.model_copy(update={"count": 30, "listed": [prefix] * 30})
    crowded = status.model_copy(update={"prefixes": many})
    titles = [part.title for part in sections(crowded)]
    assert len(titles) == 7
    for width, height in ((80, 24), (120, 24), (80, 40), (120, 30)):
        shown = lines_of(crowded, width, height)
        text = "\n".join(shown)
        assert len(shown) <= height
        assert "Falls due" in text
        assert "Removed at their deadline" in text
        missing = re.fullmatch(r"(\d+) more lines?(?:: (.+))?", shown[-1])
        assert missing, shown[-1]
        without = [title for title in titles if title not in "\n".join(shown[:-1])]
        assert ", ".join(without).startswith((missing[2] or "").rstrip("…"))
    low = lines_of(crowded, 80, 24)
    assert "Most deadlines" not in "\n".join(low[:-1])
    assert lines_of(crowded, 80, 200)[-1].startswith("  ")  # all of it
    assert not any("more line" in line for line in lines_of(crowded, 80, 200))


def test_what_is_wrong_is_shown_whole_on_a_narrow_terminal(port: Admin) -> None:
    status = Status.model_validate_json(port.ask("/status.json")[1])
    told = "http://127.0.0.1:9121: connection refused; start the proxy with --admin, or give the address of its port"
    shown = lines_of(status, 40, 60, complaint=told)
    assert " ".join(shown[:3]) == told
    assert shown[3] == "The figures below are older."
    cut = lines_of(status, 20, 60, complaint=told)
    assert cut[2].endswith("…")
    assert cut[3] == "The figures below"

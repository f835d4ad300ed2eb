"""`expiremember-proxy top`: show the figures of the status page in a terminal.

Its tests: tests/test_top.py.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import queue
import select
import shutil
import signal
import socket
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path
from types import FrameType
from typing import Any, Final

from pydantic import ValidationError

from proxy.addresses import TCPAddress, parse_address
from proxy.settings import SettingsError
from proxy.standard_streams import OutputError
from proxy.status.names import visible
from proxy.status.shape import Status
from proxy.status.text import lines_of

EVERY_SECONDS: Final = 2.0
"""Interval between reads of the figures."""

PATIENCE_SECONDS: Final = 5.0
"""Time limit for the proxy to send the figures."""

LONGEST: Final = 1 << 20
"""Maximum size of the figures, in bytes. Usually they have some 10,000 bytes."""

_OTHERS: Final = "the reply is not from this version of expiremember-proxy"
_ENTER: Final = "\x1b[?1049h\x1b[?25l"
_LEAVE: Final = "\x1b[0m\x1b[?25h\x1b[?1049l"
_ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SIZE: Final = (80, 24)
"""Size to assume if the terminal does not report one."""


class TopError(Exception):
    """The figures are not available; the text is one line that says why."""


class Source:
    """Reads the figures from an admin port.

    Args:
        url: the address of an admin port.

    Raises:
        SettingsError: the address is invalid.

    Attributes:
        name: the address, as shown to users.
    """

    def __init__(self, url: str) -> None:
        if "@" in url.partition("://")[2].partition("/")[0]:
            raise SettingsError("top: the admin port has no users: remove user and password from its address")
        if url.startswith("https://"):
            raise SettingsError("top: the admin port does not support TLS: use http://host:port")
        try:
            where = parse_address(url.removeprefix("http://").removesuffix("/"), offer_tls=False)
        except ValueError as error:
            raise SettingsError(f"top: {error}") from None
        self._where: Path | TCPAddress = where
        if isinstance(where, Path):
            self.name = f"unix://{where}"
        else:
            self.name = (
                f"http://[{where.host}]:{where.port}" if ":" in where.host else f"http://{where.host}:{where.port}"
            )

    def read(self) -> tuple[str, Status]:
        """Read the figures; return the JSON text, and the status parsed from it.

        Raises:
            TopError: the figures are not available.
        """
        try:
            status, body = self._ask()
        except http.client.HTTPException:
            advice = "not an HTTP server: give the admin port of a proxy (--admin)"
            raise TopError(f"{self.name}: {advice}") from None
        except TimeoutError:
            raise TopError(f"{self.name}: no answer in time") from None
        except ConnectionRefusedError:
            advice = "start the proxy with --admin, or give the address of its admin port"
            raise TopError(f"{self.name}: connection refused; {advice}") from None
        except OSError as error:
            raise TopError(f"{self.name}: {visible((error.strerror or str(error)).lower())}") from None
        if status == http.HTTPStatus.NOT_FOUND and b"turned off" in body:
            raise TopError(f"{self.name}: the status page is turned off: see the setting admin_page")
        if status == http.HTTPStatus.NOT_FOUND:
            raise TopError(f"{self.name}: no status page: is it the admin port of an expiremember-proxy?")
        if status != http.HTTPStatus.OK:
            raise TopError(f"{self.name}: HTTP status {status}: {visible(body[:200].decode(errors='replace').strip())}")
        try:
            return body.decode(), Status.model_validate_json(body)
        except (ValidationError, UnicodeDecodeError):
            raise TopError(f"{self.name}: {_OTHERS}") from None

    def _ask(self) -> tuple[int, bytes]:
        end = time.monotonic() + PATIENCE_SECONDS
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE_SECONDS)
        with contextlib.closing(connection):
            connection.sock = self._connect()
            connection.request("GET", "/status.json", headers={"Accept": "application/json"})
            answer = connection.getresponse()
            body = b""
            while len(body) <= LONGEST and (piece := answer.read1(1 << 16)):
                body += piece
                if time.monotonic() > end:
                    raise TimeoutError
            return answer.status, body if len(body) <= LONGEST else b""

    def _connect(self) -> socket.socket:
        if isinstance(self._where, TCPAddress):
            return socket.create_connection((self._where.host, self._where.port), PATIENCE_SECONDS)
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(PATIENCE_SECONDS)
            connection.connect(str(self._where))
        except OSError:
            connection.close()
            raise
        return connection


def run(url: str, *, once: bool, as_json: bool) -> int:
    """Show the figures.

    Args:
        url: the address of an admin port.
        once: whether to show them only once.
        as_json: whether to print JSON.

    Returns:
        The exit status.

    Raises:
        SettingsError: the address is invalid.
    """
    source = Source(url)
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal may not support all characters
    try:
        if as_json:
            _print_json(source, once=once)
        elif once or not sys.stdout.isatty():
            _, status = source.read()
            print("\n".join(lines_of(status, shutil.get_terminal_size(_SIZE).columns, None, colours=_colours())))
        else:
            return _live(source)
    except TopError as error:
        print(f"expiremember-proxy: {error}", file=sys.stderr)
        return 1
    return 0


def _print_json(source: Source, *, once: bool) -> None:
    while True:
        print(source.read()[0], flush=True)
        if once:
            return
        time.sleep(EVERY_SECONDS)


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


@contextlib.contextmanager
def _screen() -> Iterator[None]:
    """Switch the terminal to the alternate screen, and restore it at the end."""
    keyboard = sys.stdin.fileno() if sys.stdin is not None and sys.stdin.isatty() else None
    before = None if keyboard is None else termios.tcgetattr(keyboard)
    try:
        if keyboard is not None:
            tty.setcbreak(keyboard, termios.TCSANOW)
            now = termios.tcgetattr(keyboard)
            now[6][termios.VSUSP] = b"\0"  # disable Ctrl-Z: after a stop the terminal would stay on this screen
            termios.tcsetattr(keyboard, termios.TCSANOW, now)
        sys.stdout.write(_ENTER)
        sys.stdout.flush()
        yield
    finally:
        with contextlib.suppress(OutputError, ValueError, termios.error):  # the terminal may have gone
            sys.stdout.write(_LEAVE)
            sys.stdout.flush()
        if keyboard is not None and before is not None:
            with contextlib.suppress(OSError, termios.error):
                termios.tcsetattr(keyboard, termios.TCSANOW, before)


class _Watch:
    """Reads the figures in a thread, so that keys respond even if the proxy is slow.

    Args:
        source: reads the figures.
        wake: the descriptor of a pipe that is written to after each read.
    """

    def __init__(self, source: Source, wake: int) -> None:
        self._source = source
        self._wake = wake
        self.news: queue.SimpleQueue[Status | TopError] = queue.SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(EVERY_SECONDS)
            try:
                found: Status | TopError = self._source.read()[1]
            except TopError as error:
                found = error
            self.news.put(found)
            with contextlib.suppress(OSError):
                os.write(self._wake, b"\0")


def _live(source: Source) -> int:
    _, status = source.read()
    ends: list[int] = []

    def end(number: int, _frame: FrameType | None) -> None:
        ends.append(number)

    awake, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    handlers: dict[int, Any] = {number: signal.signal(number, end) for number in _ENDING}
    handlers[signal.SIGWINCH] = signal.signal(signal.SIGWINCH, lambda *_: None)  # wakes the loop to redraw
    watch = _Watch(source, wake)
    watch.start()
    complaint: str | None = None
    keyboard = [sys.stdin.fileno()] if sys.stdin is not None and sys.stdin.isatty() else []
    try:
        with _screen(), contextlib.suppress(OSError, OutputError):  # the terminal may have gone
            while not ends:
                _draw(status, complaint)
                ready, _, _ = select.select([awake, *keyboard], [], [])
                if awake in ready:
                    os.read(awake, 4096)
                if keyboard and keyboard[0] in ready:
                    typed = os.read(keyboard[0], 4096)
                    if not typed or b"q" in typed.lower():
                        return 0
                while not watch.news.empty():
                    found = watch.news.get()
                    if isinstance(found, TopError):
                        complaint = str(found)
                    else:
                        status, complaint = found, None
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    return 128 + ends[0] if ends else 0


def _draw(status: Status, complaint: str | None) -> None:
    size = os.get_terminal_size(sys.stdout.fileno())
    width, height = size if size.columns > 0 and size.lines > 0 else _SIZE
    lines = lines_of(status, width, height, colours=_colours(), complaint=complaint)
    sys.stdout.write("\x1b[H" + "\x1b[K\n".join(lines) + "\x1b[K\x1b[J")
    sys.stdout.flush()

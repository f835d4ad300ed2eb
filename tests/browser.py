"""A real browser, Debian's chromium, driven over a pipe: what a page shows, asks for and complains of."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import patience


class Browser:
    """Chromium, without a screen."""

    def __init__(self) -> None:
        program = shutil.which("chromium")
        if program is None:
            pytest.skip("chromium is not installed")
        self._folder = tempfile.TemporaryDirectory(prefix="expiremember-browser-")
        commands, self._commands = os.pipe()
        self._answers, answers = os.pipe()
        # It reads commands from descriptor 3 and writes answers to descriptor 4.
        script = f'exec 3<&{commands} 4>&{answers}; exec "$0" "$@"'
        flags = [
            *("--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage"),
            "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
            f"--user-data-dir={self._folder.name}",
        ]
        self._process = subprocess.Popen(
            ["bash", "-c", script, program, *flags, "about:blank"],
            pass_fds=(commands, answers),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(answers)
        self._number = 0
        self._buffer = b""
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Have something done, and return the answer; what happens meanwhile is in `events`."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + patience(60)
        while True:
            found = self._next(end)
            if found is None:
                raise AssertionError(f"the browser did not answer {method}")
            if found.get("id") == self._number:
                assert "error" not in found, found
                result: dict[str, Any] = found["result"]
                return result
            self.events.append(found)

    def _next(self, end: float) -> dict[str, Any] | None:
        """Return the next message; None if there comes none in time."""
        while b"\0" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    @contextmanager
    def tab(
        self, url: str, *, dark: bool = False, width: int = 1280, height: int = 1300, scripts: bool = True
    ) -> Iterator[Tab]:
        """Open a page, and give it when it is there."""
        context = self.call("Target.createBrowserContext")["browserContextId"]
        target = self.call("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        try:
            yield Tab(self, session, url, dark=dark, width=width, height=height, scripts=scripts)
        finally:
            self.call("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        """End it."""
        os.close(self._commands)  # it ends when nobody can tell it anything any more
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
        shutil.rmtree(self._folder.name, ignore_errors=True)  # helpers of the browser may still write there
        self._folder.cleanup()


class Tab:
    """A page.

    Attributes:
        url: its address.
    """

    def __init__(
        self, browser: Browser, session: str, url: str, *, dark: bool, width: int, height: int, scripts: bool
    ) -> None:
        self._browser = browser
        self._session = session
        self.url = url
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._call("Emulation.setEmulatedMedia", features=[scheme])
        self._call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self._call("Emulation.setScriptExecutionDisabled", value=not scripts)
        self._call("Page.navigate", url=url)
        end = time.monotonic() + patience(30)
        while not self._events("Page.loadEventFired"):
            found = self._browser._next(end)
            assert found is not None, f"{url} was not loaded"
            self._browser.events.append(found)

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **parameters)

    def _events(self, method: str) -> list[dict[str, Any]]:
        return [
            event["params"]
            for event in self._browser.events
            if event.get("sessionId") == self._session and event["method"] == method
        ]

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        return self._call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)[
            "result"
        ].get("value")

    def text(self) -> str:
        """Return what is to be read."""
        return str(self.value("document.body.innerText"))

    def until(self, expression: str, seconds: float = 20) -> None:
        """Wait until an expression is true in the page."""
        end = time.monotonic() + patience(seconds)
        while not self.value(expression):
            assert time.monotonic() < end, f"{expression} did not become true:\n{self.text()}"
            time.sleep(0.05)

    def screenshot(self, path: Path) -> None:
        """Make a picture of the whole page."""
        data = self._call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(data))

    def asked_for(self) -> set[str]:
        """Return the addresses that the page has asked for."""
        self.value("1")
        return {event["request"]["url"] for event in self._events("Network.requestWillBeSent")}

    def complaints(self) -> list[str]:
        """Return the errors and warnings of the page, its policy's among them."""
        self.value("1")
        thrown = [str(event["exceptionDetails"]) for event in self._events("Runtime.exceptionThrown")]
        logged = [str(event["entry"]["text"]) for event in self._events("Log.entryAdded")]
        said = [str(event["args"]) for event in self._events("Runtime.consoleAPICalled")]
        return thrown + logged + said

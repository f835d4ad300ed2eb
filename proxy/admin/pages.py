"""Answer requests for each path of the admin port.

Its tests: tests/test_admin.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from http import HTTPStatus
from typing import Final, NamedTuple, Protocol

from proxy.admin.http import Request, Response

_READ: Final = ("GET", "HEAD")
_PAGE: Final = ("/", "/status.json")
_METHODS: Final = {**dict.fromkeys((*_PAGE, "/livez", "/readyz", "/metrics"), _READ), "/drain": ("POST",)}
_NOT_FOUND: Final = b"there are GET /, GET /status.json, GET /livez, GET /readyz, GET /metrics and POST /drain\n"
PAGE_OFF: Final = b"the status page is turned off: see the setting admin_page\n"
"""The response if the status page is turned off."""


class StatusPage(Protocol):
    """The status page."""

    async def gather(self) -> None:
        """Update the figures of the page, within a bounded time."""

    def html(self) -> Response:
        """Return the page."""

    def json(self) -> Response:
        """Return the figures of the page."""


class Answer(NamedTuple):
    """A response, and what to do after it.

    Attributes:
        response: the response to send.
        then: a function to call when the response has been sent; None if there is none.
    """

    response: Response
    then: Callable[[], None] | None = None


class Pages:
    """The pages of the admin port.

    Args:
        not_ready: returns why clients cannot be served now, on one line; None if they can.
        refresh: updates the metrics, one piece of work per step.
        metrics: renders the metrics in a format that an `Accept` header allows; returns the text and its content type.
        drain: starts to drain.
        gather: collects the other workers' metrics, within a bounded time; None if there are none.
        hung: returns which part of the proxy is stuck, on one line; None if none is.
        page: the status page; None if it is turned off.
    """

    def __init__(
        self,
        not_ready: Callable[[], str | None],
        refresh: Callable[[], Iterator[None]],
        metrics: Callable[[str], tuple[bytes, str]],
        drain: Callable[[], None],
        gather: Callable[[], Awaitable[None]] | None = None,
        hung: Callable[[], str | None] = lambda: None,
        page: StatusPage | None = None,
    ) -> None:
        self._not_ready = not_ready
        self._refresh = refresh
        self._metrics = metrics
        self._drain = drain
        self._gather = gather
        self._hung = hung
        self._page = page

    def preparation(self, request: Request) -> Iterator[None] | None:
        """Return the work to do before a request is answered, one piece per step; None if there is none."""
        if self._page is not None and _wants_page(request):
            return iter(())
        return self._refresh() if _wants_metrics(request) else None

    def gathering(self, request: Request) -> Awaitable[None] | None:
        """Return what to await before the work of `preparation`; None if there is nothing to await."""
        if self._page is not None and _wants_page(request):
            return self._page.gather()
        return self._gather() if self._gather is not None and _wants_metrics(request) else None

    def answer(self, request: Request, *, is_local: bool) -> Answer:
        """Answer a request.

        Args:
            request: the request.
            is_local: whether it comes from this machine: from a loopback address or through a Unix socket.
        """
        methods = _METHODS.get(request.path)
        if methods is None:
            return Answer(Response(HTTPStatus.NOT_FOUND, _NOT_FOUND))
        if request.method not in methods:
            allow = ", ".join(methods)
            text = f"{request.path} takes {' and '.join(methods)}\n"
            return Answer(Response(HTTPStatus.METHOD_NOT_ALLOWED, text.encode(), headers={"Allow": allow}))
        if request.path in _PAGE:
            if self._page is None:
                return Answer(Response(HTTPStatus.NOT_FOUND, PAGE_OFF))
            return Answer(self._page.html() if request.path == "/" else self._page.json())
        if request.path == "/livez":
            reason = self._hung()
            if reason is None:
                return Answer(Response(HTTPStatus.OK, b"alive\n"))
            return Answer(Response(HTTPStatus.SERVICE_UNAVAILABLE, f"not alive: {reason}\n".encode()))
        if request.path == "/readyz":
            reason = self._not_ready()
            if reason is None:
                return Answer(Response(HTTPStatus.OK, b"ready\n"))
            text = f"not ready: {reason}\n"
            return Answer(Response(HTTPStatus.SERVICE_UNAVAILABLE, text.encode("utf-8", "backslashreplace")))
        if request.path == "/metrics":
            body, content_type = self._metrics(request.headers.get("accept", ""))
            return Answer(Response(HTTPStatus.OK, body, content_type))
        if not is_local:
            return Answer(Response(HTTPStatus.FORBIDDEN, b"only from this machine: by 127.0.0.1 or a Unix socket\n"))
        if "origin" in request.headers:
            # A web page in a browser on this machine could send this request to any address that it guesses.
            return Answer(Response(HTTPStatus.FORBIDDEN, b"not from a web page\n"))
        return Answer(Response(HTTPStatus.ACCEPTED, b"draining\n"), self._drain)


def _wants_page(request: Request) -> bool:
    return request.path in _PAGE and request.method in _READ


def _wants_metrics(request: Request) -> bool:
    return request.path == "/metrics" and request.method in _READ

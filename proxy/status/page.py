"""Render the status page: one file that loads nothing from elsewhere. Without JavaScript the page shows tables.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from html import escape
from http import HTTPStatus
from importlib.resources import files
from typing import Final

from proxy.admin.http import Response
from proxy.status.shape import Status
from proxy.status.status import StatusBoard
from proxy.status.view import Section, sections
from proxy.status.words import clock

_PLACE: Final = re.compile(r"<!--(data|rows)-->")
_INLINE: Final = re.compile(r"<(style|script)>(.*?)</\1>", re.DOTALL)
_LONG: Final = 24
"""Cells with more characters than this may be broken into lines."""
_WRAPS: Final = ' class="free"'


@cache
def _template() -> str:
    return (files("proxy.status") / "page.html").read_text(encoding="utf-8")


@cache
def _headers() -> dict[str, str]:
    """Return headers that allow the page only its own style, script and icon, and to fetch its figures."""
    hashes = {
        kind: base64.b64encode(sha256(text.encode()).digest()).decode() for kind, text in _INLINE.findall(_template())
    }
    policy = {
        "default-src": "'none'",
        "script-src": f"'sha256-{hashes['script']}'",
        "style-src": f"'sha256-{hashes['style']}'",
        "img-src": "data:",
        "connect-src": "'self'",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return {
        "Content-Security-Policy": "; ".join(f"{name} {value}" for name, value in policy.items()),
        "Referrer-Policy": "no-referrer",
        "X-Frame-Options": "DENY",
        "Cross-Origin-Resource-Policy": "same-origin",
    }


class Page:
    """The page and its figures. They are rendered once for all concurrent requests.

    Args:
        board: collects the figures.
    """

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self._of: Status | None = None
        self._json = b""
        self._html = b""

    async def gather(self) -> None:
        """Update the figures, within a bounded time."""
        await self._board.gather()

    def html(self) -> Response:
        """Return the page as HTML."""
        status = self._current()
        if not self._html:
            self._html = render(status, self._json.decode()).encode()
        return Response(HTTPStatus.OK, self._html, "text/html; charset=utf-8", dict(_headers()))

    def json(self) -> Response:
        """Return the figures as JSON."""
        self._current()
        headers = {"Cross-Origin-Resource-Policy": "same-origin"}
        return Response(HTTPStatus.OK, self._json, "application/json; charset=utf-8", headers)

    def _current(self) -> Status:
        status = self._board.status
        assert status is not None
        if status is not self._of:
            self._of, self._json, self._html = status, status.model_dump_json().encode(), b""
        return status


def render(status: Status, data: str) -> str:
    """Render the page.

    Args:
        status: the figures.
        data: the figures as JSON.
    """
    # Only "<" can end the content of a script element.
    parts = {"data": data.replace("<", "\\u003c"), "rows": "".join(_rows(status))}
    return _PLACE.sub(lambda place: parts[place[1]], _template())


def _rows(status: Status) -> Iterator[str]:
    state = status.state
    advice = "" if state.advice is None else f"<p>{escape(state.advice)}</p>"
    yield f'<header class="state {state.level}"><h1>{escape(state.text)}</h1>{advice}'
    yield f'<p class="meta">expiremember-proxy {escape(status.version)} · {clock(status.at)}</p></header>'
    for section in sections(status):
        yield from _section(section)


def _section(section: Section) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2><table>"
    if section.head:
        yield "<thead><tr>" + "".join(f"<th>{escape(cell)}</th>" for cell in section.head) + "</tr></thead>"
    for name, *cells in section.rows:
        yield f'<tr><th scope="row"><bdi>{escape(name)}</bdi></th>'
        yield "".join(f"<td{_WRAPS * (len(cell) > _LONG)}><bdi>{escape(cell)}</bdi></td>" for cell in cells) + "</tr>"
    yield "</table>"
    if section.note:
        yield f'<p class="note">{escape(section.note)}</p>'
    yield "</section>"

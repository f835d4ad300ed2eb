"""The server's side of one HTTP connection, without I/O: parses requests and renders responses.

Its tests: tests/test_admin_http.py.

Strict and small: requests have no body and come one at a time. A bad request gets an error and ends the connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from email.utils import formatdate
from enum import Enum
from http import HTTPStatus
from typing import Final

import h11

READ: Final = 2048
"""Maximum number of bytes to pass to `receive` at once."""

HEAD_LIMIT: Final = 8 * 1024
"""Maximum size of a request's head, in bytes: Prometheus sends 250, a browser with many cookies some thousands."""

LINES_LIMIT: Final = 100
"""Maximum number of lines in a request's head: Prometheus sends 7, a browser 20. Even a short line takes time."""

TEXT: Final = "text/plain; charset=utf-8"


class State(Enum):
    """The state of a connection."""

    AWAITING = "a request is awaited"
    ANSWERING = "a request is being answered, and nothing else is read"
    OVER = "no more requests are accepted"


@dataclass(frozen=True, slots=True)
class Request:
    """A complete request.

    Attributes:
        method: the method, such as "GET".
        path: the path, without the query.
        headers: name, in lower case → value; of several values, the last.
    """

    method: str
    path: str
    headers: dict[str, str]


@dataclass(frozen=True, slots=True)
class Response:
    """A response.

    Attributes:
        status: the status.
        body: the body.
        content_type: the body's content type.
        headers: further headers.
    """

    status: HTTPStatus
    body: bytes
    content_type: str = TEXT
    headers: dict[str, str] = field(default_factory=dict)


class BadRequestError(Exception):
    """A request that gets an error response and ends its connection.

    Attributes:
        response: the error response.
    """

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.response = Response(status, f"{text}\n".encode())


class Conversation:
    """The protocol state of one connection.

    Attributes:
        state: the state of the connection.
    """

    def __init__(self) -> None:
        self.state = State.AWAITING
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_LIMIT)
        self._closes = False
        self._is_head = False
        self._lines = 0  # lines of the head so far

    def receive(self, data: bytes) -> Request | None:
        """Parse received bytes: `READ` at most, and none at the end of the input.

        Returns:
            A request to `respond` to, if one is complete.

        Raises:
            BadRequestError: the request is invalid or not supported. Pass its response to `respond`.
        """
        assert self.state is State.AWAITING
        self._is_head = False
        self._lines += data.partition(b"\r\n\r\n")[0].count(b"\n")
        if self._lines > LINES_LIMIT:
            self.state = State.ANSWERING
            self._closes = True
            raise BadRequestError(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "too many header fields")
        try:
            self._http.receive_data(data)
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                self.state = State.ANSWERING
                return self._read(event)
        except h11.RemoteProtocolError as error:
            self.state = State.ANSWERING
            self._closes = True
            status = HTTPStatus(error.error_status_hint)
            raise BadRequestError(status, status.phrase.lower()) from None
        if isinstance(event, h11.ConnectionClosed):
            self.state = State.OVER
        return None

    def _read(self, event: h11.Request) -> Request:
        headers = {name.decode("ascii"): value.decode("latin-1") for name, value in event.headers}
        method = event.method.decode("ascii")
        self._is_head = method == "HEAD"
        if event.http_version not in (b"1.0", b"1.1"):
            self._closes = True
            raise BadRequestError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "use HTTP/1.1")
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            self._closes = True
            raise BadRequestError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "requests must not have a body")
        end = self._http.next_event()
        assert isinstance(end, h11.EndOfMessage)
        # Close the connection after a pipelined request: only an attacker gains from pipelining.
        self._closes = bool(self._http.trailing_data[0])
        return Request(method, event.target.decode("ascii").partition("?")[0], headers)

    def close_after(self) -> None:
        """Make the next response the last."""
        self._closes = True

    def respond(self, response: Response) -> bytes:
        """Respond to the request.

        Returns:
            The bytes to send. Afterwards `state` shows whether another request may follow.
        """
        assert self.state is State.ANSWERING
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **response.headers,
        }
        if self._closes:
            headers["Connection"] = "close"
        event = h11.Response(
            status_code=response.status, headers=list(headers.items()), reason=response.status.phrase.encode()
        )
        out = self._http.send(event) or b""
        if not self._is_head:
            out += self._http.send(h11.Data(data=response.body)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE:
            self._http.start_next_cycle()
            self._lines = 0
            self.state = State.AWAITING
        else:
            self.state = State.OVER
        return out

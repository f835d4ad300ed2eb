"""The admin port's HTTP without a network: what a connection makes of bytes, however they are cut."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from http import HTTPStatus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.admin.http import HEAD_LIMIT, LINES_LIMIT, READ, BadRequestError, Conversation, Request, Response, State
from proxy.admin.pages import Pages
from proxy.admin.readiness import Readiness

PROBE = b"GET /livez HTTP/1.1\r\nHost: here\r\n\r\n"


def converse(conversation: Conversation, data: bytes, size: int = READ) -> Iterator[Request | BadRequestError]:
    """Give what a connection makes of bytes that come in pieces of a size; each is answered with "fine"."""
    for begin in range(0, len(data), size):
        if conversation.state is State.OVER:
            return
        try:
            request = conversation.receive(data[begin : begin + size])
        except BadRequestError as error:
            yield error
            conversation.respond(error.response)
            return
        if request is not None:
            yield request
            conversation.respond(Response(HTTPStatus.OK, b"fine"))


@pytest.mark.parametrize("size", [1, 2, 7, READ])
def test_a_request_is_the_same_however_it_is_cut(size: int) -> None:
    conversation = Conversation()
    requests = list(converse(conversation, PROBE.replace(b"livez", b"livez?a=b"), size))
    assert requests == [Request("GET", "/livez", {"host": "here"})]
    assert conversation.state is State.AWAITING


def test_a_connection_is_kept_for_the_next_request() -> None:
    conversation = Conversation()
    for _ in range(3):
        assert conversation.receive(PROBE) is not None
        assert b"Connection: close" not in conversation.respond(Response(HTTPStatus.OK, b"fine"))
    assert conversation.receive(b"") is None
    assert conversation.state is State.OVER


@pytest.mark.parametrize(
    "request_", [PROBE.replace(b"1.1", b"1.0"), PROBE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")]
)
def test_a_connection_ends_where_the_client_wants_it_to(request_: bytes) -> None:
    conversation = Conversation()
    assert conversation.receive(request_) is not None
    assert b"Connection: close" in conversation.respond(Response(HTTPStatus.OK, b"fine"))
    assert conversation.state is State.OVER


def test_what_comes_before_the_answer_is_not_taken() -> None:
    """Pipelining is of use to nobody here but an attacker: one answer, and the end."""
    conversation = Conversation()
    assert conversation.receive(PROBE * 50) is not None
    assert b"Connection: close" in conversation.respond(Response(HTTPStatus.OK, b"fine"))
    assert conversation.state is State.OVER


def test_the_answer_to_head_has_no_body_but_its_length() -> None:
    conversation = Conversation()
    conversation.receive(PROBE.replace(b"GET", b"HEAD"))
    head, _, body = conversation.respond(Response(HTTPStatus.OK, b"fine")).partition(b"\r\n\r\n")
    assert b"\r\nContent-Length: 4" in head
    assert body == b""
    assert conversation.state is State.AWAITING


POST = b"POST /drain HTTP/1.1\r\nHost: here\r\n"
BAD: dict[str, tuple[bytes, int]] = {
    "no HTTP": (b"PING\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "a folded header at the front": (b"GET / HTTP/1.1\r\n Host: a\r\n\r\n", 400),
    "a blank in a header's name": (b"GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400),
    "a null byte": (b"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 400),
    "a path that is no ASCII": ("GET /ä HTTP/1.1\r\nHost: a\r\n\r\n".encode(), 400),
    "another version": (b"GET / HTTP/9.9\r\nHost: a\r\n\r\n", 505),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "TLS": (bytes.fromhex("160301020001000001fc0303") + b"\0" * 40 + b"\r\n\r\n", 400),
    "a body": (POST + b"Content-Length: 4\r\n\r\nmore", 413),
    "a body to come": (POST + b"Content-Length: 4000000000\r\nExpect: 100-continue\r\n\r\n", 413),
    "a body in chunks": (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
    "both lengths": (POST + b"Content-Length: 0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 413),
    "two lengths": (POST + b"Content-Length: 0\r\nContent-Length: 5\r\n\r\n", 400),
    "a length with a sign": (POST + b"Content-Length: +0\r\n\r\n", 400),
    "an unknown coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n", 501),
    "a head without end": (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"x" * 3 * HEAD_LIMIT, 431),
    "headers without end": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x:y\r\n" * HEAD_LIMIT, 431),
    "too many headers": (b"GET / HTTP/1.1\r\nHost: a\r\n" + b"x:\r\n" * LINES_LIMIT + b"\r\n", 431),
    "no line at all": (b"x" * 3 * HEAD_LIMIT, 431),
}


@pytest.mark.parametrize("what", BAD)
def test_what_is_wrong_is_answered_once_and_ends_the_connection(what: str) -> None:
    data, status = BAD[what]
    conversation = Conversation()
    found = list(converse(conversation, data))
    assert len(found) == 1
    assert isinstance(found[0], BadRequestError)
    answer = found[0].response
    assert answer.status == status
    assert conversation.state is State.OVER


@given(st.lists(st.one_of(st.binary(max_size=40), st.sampled_from([PROBE, POST, b"\r\n", b"GET ", b"Host: a\r\n"]))))
@settings(max_examples=300)
def test_no_bytes_break_it(pieces: list[bytes]) -> None:
    conversation = Conversation()
    for _ in converse(conversation, b"".join(pieces), 16):
        pass
    if conversation.state is not State.OVER:
        with contextlib.suppress(BadRequestError):
            assert conversation.receive(b"") is None
    assert conversation.state is not State.AWAITING


def test_what_is_wrong_behind_a_head_request_is_answered() -> None:
    conversation = Conversation()
    assert conversation.receive(PROBE.replace(b"GET", b"HEAD")) is not None
    assert b"fine" not in conversation.respond(Response(HTTPStatus.OK, b"fine"))
    with pytest.raises(BadRequestError) as error:
        conversation.receive(b"garbage\r\n\r\n")
    assert conversation.respond(error.value.response).endswith(b"bad request\n")
    assert conversation.state is State.OVER


class Place:
    """The pages of a proxy that does nothing else."""

    def __init__(self) -> None:
        self.readiness = Readiness()
        self.drained = False

        def metrics(accept: str) -> tuple[bytes, str]:
            return accept.encode(), "text/plain"

        self.pages = Pages(self.readiness.obstacle, lambda: iter(()), metrics, self.drain)

    def drain(self) -> None:
        self.drained = True

    def ask(self, method: str, path: str, *, is_local: bool = True, **headers: str) -> tuple[int, bytes]:
        answer = self.pages.answer(Request(method, path, headers), is_local=is_local)
        assert not self.drained
        if answer.then is not None:
            answer.then()
        return answer.response.status, answer.response.body


def test_readiness_tells_why_not() -> None:
    place = Place()
    assert place.ask("GET", "/readyz") == (503, b"not ready: starting\n")
    place.readiness.judge_by(lambda: "the upstream is away")
    assert place.ask("GET", "/readyz") == (503, b"not ready: the upstream is away\n")
    place.readiness.judge_by(lambda: None)
    assert place.ask("HEAD", "/readyz")[0] == 200
    place.readiness.drain()
    assert place.ask("GET", "/readyz") == (503, b"not ready: draining\n")
    assert place.ask("GET", "/livez")[0] == 200


def test_who_may_drain() -> None:
    assert Place().ask("POST", "/drain", is_local=False)[0] == 403
    assert Place().ask("POST", "/drain", origin="http://elsewhere.example")[0] == 403
    assert Place().ask("GET", "/drain")[0] == 405
    place = Place()
    assert place.ask("POST", "/drain")[0] == 202
    assert place.drained


@pytest.mark.parametrize(
    "path", ["/", "", "*", "/metrics/", "//metrics", "/../metrics", "/%6detrics", "/Metrics", "http://here/metrics"]
)
def test_a_path_is_exactly_that(path: str) -> None:
    assert Place().ask("GET", path)[0] == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_a_page_is_only_read(method: str) -> None:
    assert Place().ask(method, "/metrics")[0] == 405

"""Who does not want replies (CLIENT REPLY OFF and SKIP) gets those that the server would have sent, and no other."""

from __future__ import annotations

import re
from itertools import product
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.frames import frames
from proxy.wire.pieces import Opening, Wish
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import encode
from tests.conftest import StartProxy, StartServer
from tests.raw import about, request
from tests.servers import Proxy, Server, until
from tests.streams import cuts
from tests.test_session import Driver, Upstream
from tests.test_wire import line_for

OFF, ON, SKIP = (request("CLIENT", "REPLY", word) for word in ("OFF", "ON", "SKIP"))

REPLIES: Final = (
    b"+OK\r\n", b"+RESET\r\n", b":1\r\n", b"$-1\r\n", b"$7\r\n+OK\r\n-E\r\n", b"*2\r\n$1\r\na\r\n*1\r\n:2\r\n",
    b"*-1\r\n",
    b"-ERR no\r\n", b"%1\r\n+k\r\n_\r\n", b"*0\r\n",
)  # fmt: skip
PUSH: Final = b">2\r\n$7\r\nmessage\r\n*1\r\n$1\r\nx\r\n"
MESSAGE: Final = b"*3\r\n$7\r\nmessage\r\n$1\r\na\r\n$2\r\nhi\r\n"

Event = bytes | tuple[Wish, bytes]

_events: st.SearchStrategy[Event] = st.one_of(
    st.sampled_from(REPLIES),
    st.sampled_from((PUSH, MESSAGE)),
    st.tuples(st.sampled_from(list(Wish)), st.sampled_from((b"+OK\r\n", b"-NOPERM no\r\n"))),
)


class Model:
    """What a server sends that has been told to be silent, reply by reply."""

    def __init__(self) -> None:
        self.none = self.not_next = False
        self.last = b""
        self.ends = self.place = -1  # which reply behind a MULTI that is refused is to a CLIENT REPLY ON

    def answer(self, reply: bytes) -> bytes:
        """Return what comes of a reply."""
        if not (self.none or self.not_next):
            return reply
        self.place += 1
        refused = reply.startswith(b"-")
        if self.place == 0 and not refused:
            self.ends = -1
        if self.none and self.place == self.ends and not refused:
            self.none = False
            return reply
        self.not_next = False
        self.last = reply
        return b""

    def wish(self, wish: Wish, reply: bytes) -> bytes:
        """Return what comes of the reply to a wish, if it was asked for."""
        self.ends = self.place = -1
        if wish in (Wish.LISTENS, Wish.ANEW, Wish.BEGINS):
            pass
        elif wish is Wish.HEARD:
            self.not_next = False
        elif wish is Wish.RAN:
            if not self.none or self.last[:1] != b"*" or self.last == b"*-1\r\n":
                return b""
            self.none = self.not_next = False
            return b"+OK\r\n"
        elif reply != b"+OK\r\n":
            return self.answer(reply)
        elif wish is Wish.ON:
            self.none = self.not_next = False
            return reply
        elif not self.none:
            self.none, self.not_next = wish is Wish.OFF, wish is Wish.SKIP
        return b""

    def reset(self, reply: bytes) -> bytes:
        """Return what comes of the reply to a RESET."""
        if self.none and reply == b"+RESET\r\n":
            self.none = False
            return reply
        return self.answer(reply)


@settings(max_examples=300)
@given(st.lists(_events, max_size=30), st.booleans(), st.data())
def test_what_is_not_wanted_is_dropped_at_any_cut(events: list[Event], subscribes: bool, data: st.DataObject) -> None:
    substitution, model = ReplySubstitution(), Model()
    silence = substitution.silence
    stream, wanted = b"", b""
    for event in [(Wish.LISTENS, b""), *events]:
        if event == PUSH or (event == MESSAGE and subscribes):
            stream += event
            wanted += event
        elif isinstance(event, bytes):
            stream += event
            wanted += model.answer(event)
        else:
            wish, reply = event
            asked = wish in (Wish.ON, Wish.OFF, Wish.SKIP)
            if wish is Wish.ANEW:
                reply = b"+RESET\r\n" if reply == b"+OK\r\n" else reply
                stream += reply
                wanted += model.reset(reply)
            opening = Opening() if wish is Wish.BEGINS else None
            way = silence.expect(wish, lambda: subscribes, replies=int(asked), opening=opening)
            stream += line_for(substitution.open(way, silent=False), b"'") + (reply if asked else b"")
            wanted += model.wish(wish, reply)
            if opening is not None:
                model.ends = opening.ends = data.draw(st.sampled_from((-1, 1, 2, 3)))
    passed = b"".join(substitution.receive(piece) for piece in data.draw(cuts(stream or b"x")) if stream)
    assert passed == wanted
    assert silence.unanswered == 0


@pytest.mark.parametrize("ends", [b"", b">2\r\n+push", b"$100\r\nabc"])
def test_a_push_within_a_reply_is_told_and_the_reply_is_one(ends: bytes) -> None:
    """Redis 6.2 and 7.0 send what a client publishes to itself within EXEC's reply."""
    for inner in (PUSH, PUSH * 2, b":1\r\n" + PUSH, PUSH + b"*0\r\n"):
        left = 3 - inner.count(b":1\r\n") - inner.count(b"*0\r\n")
        stream = b"*3\r\n" + inner + b":2\r\n" * left + b"+NEXT\r\n" + PUSH + ends
        for cut in range(len(stream)):
            substitution = ReplySubstitution()
            silence = substitution.silence
            sign = substitution.open(silence.expect(Wish.SKIP, bool, replies=1), silent=False)
            assert substitution.receive(line_for(sign, b"'") + b"+OK\r\n") == b""
            told = substitution.receive(stream[:cut]) + substitution.receive(stream[cut:])
            assert told == PUSH * inner.count(PUSH) + b"+NEXT\r\n" + PUSH + ends, (inner, cut)


def both(server: Server, proxy: Proxy, program: bytes) -> tuple[bytes, bytes]:
    """What comes of a program straight, and through the proxy."""
    said = []
    for where in (server, proxy):
        with where.connect() as client:
            client.send(program)
            client.end_of_requests()
            said.append(client.rest())
    return said[0], said[1]


BETWEEN: Final = [
    request("PING"), request("HINCRBY", "h", "n", 0), request("EXPIREMEMBER", "s"), request("SUBSCRIBE", "a", "b"),
    request("SUBSCRIBE"), request("UNSUBSCRIBE"), request("RESET"), request("RESET", "x"), request("NOSUCH"), b"*0\r\n",
    request("MULTI") + request("SADD", "s", "m") + request("EXEC"), request("MULTI") + request("DISCARD"), SKIP, ON,
    OFF,
    request("CLIENT", "REPLY", "ON", "x"), request("SMEMBERS", "s"), request("HELLO", 3), b"client reply skip\r\n",
]  # fmt: skip
"""Each of them behind each of them behind a wish."""


@pytest.mark.every_kind
def test_who_wants_no_replies_gets_those_of_the_server(upstream: Server, proxy: Proxy) -> None:
    check_programs(upstream, proxy)


def check_programs(server: Server, proxy: Proxy) -> None:
    """See that each is answered as by the server itself."""
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    proxy.command("HSET", "h", "n", "1")
    assert proxy.command("EXPIREMEMBER", "h", "n", 1000) == b":1\r\n"
    wrong = request("EXPIREMEMBER", "s")
    for wish, first, second in product((OFF, SKIP), BETWEEN, BETWEEN):
        for end in (b"", ON + request("PING")):
            program = wish + first + second + end
            straight, through = both(server, proxy, program.replace(wrong, request("SISMEMBER", "s")))
            straight = straight.replace(b"'sismember'", b"'expiremember'")
            if wrong in program:
                through = both(server, proxy, program)[1]
            assert _told(through) == _told(straight), program


def _told(said: bytes) -> bytes:
    """What was said, without the greeting to HELLO, which differs."""
    begin = said.find(b"%7\r\n$6\r\nserver")
    if begin < 0:
        begin = said.find(b"%8\r\n$6\r\nserver")
    end = said.find(b"modules\r\n", begin)
    return said if begin < 0 else said[:begin] + said[said.find(b"\r\n", end + 9) :]


@pytest.mark.every_kind
def test_requests_go_together_whatever_is_wanted_of_their_replies(upstream: Server, proxy: Proxy) -> None:
    """A skip is of the first of them; those that fail are as silent as the others."""
    pairs = b"".join(
        request("SADD", "s", f"m{number}") + request("EXPIREMEMBER", "s", f"m{number}", 100 + number)
        for number in range(500)
    )
    wrong = request("EXPIREMEMBER", "text", "m", 100) * 200
    upstream.command("SET", "text", "v")
    upstream.command("CONFIG", "RESETSTAT")
    with proxy.connect() as client:
        client.send(OFF + pairs + wrong + ON)
        assert client.reply() == b"+OK\r\n"
        assert client.command("SCARD", "s") == b":500\r\n"
        assert about(client.command("TTL", "s", "m499"), 599)
        calls = re.search(rb"cmdstat_eval:calls=(\d+)", upstream.command("INFO", "commandstats"))
        assert calls is not None
        assert int(calls[1]) < 200
        client.send(SKIP + pairs + SKIP + wrong + request("PING"))
        assert client.replies(999) == [b":1\r\n", *[b":0\r\n", b":1\r\n"] * 499]
        *replies, last = client.replies(200)
        assert last == b"+PONG\r\n"
        assert set(replies) == {b"-ERR object type is unsupported\r\n"}


def test_of_what_is_cut_off_only_whole_replies_of_the_client_are_told() -> None:
    """Those to what was asked before, and nothing of a sign or of a reply to the proxy itself."""
    refusal = b"-NOPERM this user has no permissions to run the 'echo' command\r\n"
    for echoes, wish in product((False, True), (Wish.SKIP, Wish.OFF)):
        whole, cut = b"", 0
        while True:
            substitution = ReplySubstitution()
            substitution.echoes = echoes
            signs = [
                substitution.enclose(b"", lambda _: b""),
                substitution.open(substitution.silence.expect(wish, bool, replies=1)),
                substitution.expect(b"", silent=echoes),
            ]
            first, second, third, last = (
                refusal if echoes else line_for(sign, b"'")
                for sign in (*re.findall(rb"\*\d.*?(?=\*|\Z)", signs[0], re.DOTALL), *signs[1:])
            )
            end = line_for(substitution.expect(b""), b"'")
            stream = b":7\r\n" + first + b"+own\r\n" + second + b"$2\r\nab\r\n" + third + b"+OK\r\n:1\r\n:2\r\n" + last
            stream += b"*2\r\n:3\r\n:4\r\n" + end
            if not whole:
                whole = substitution.receive(stream)
                assert whole.startswith(b":7\r\n$2\r\nab\r\n")
                cut = 1
                continue
            told = substitution.receive(stream[:cut]) + substitution.end()
            assert whole.startswith(told), (stream[:cut], told)
            cut += 1
            if cut == len(stream):
                break


def check_doubt_at_the_end(server: Server, proxy: Proxy) -> None:
    """Who may not ECHO, and whose connection the server closes, gets the replies behind which no sign comes."""
    server.command("ACL", "SETUSER", "noecho", "on", "nopass", "~*", "&*", "+@all", "-echo")
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    quits = request("QUIT")
    for program in (SKIP + request("PING") * 2, SKIP + request("PING") * 2 + quits, OFF + ON + request("PING") + quits):
        for _ in range(5):
            straight, through = both(server, proxy, request("AUTH", "noecho", "x") + program)
            assert through == straight
        told = []
        for place in (server, proxy):  # who is known to be served gets silent signs
            with place.connect() as client:
                assert client.command("AUTH", "noecho", "x") == b"+OK\r\n"
                assert client.command("SISMEMBER", "s", "m") == b":1\r\n"
                client.send(program)
                client.end_of_requests()
                told.append(client.rest())
        assert told[0] == told[1], program


@pytest.mark.every_kind
def test_what_is_in_doubt_when_the_server_closes_is_told(upstream: Server, proxy: Proxy) -> None:
    check_doubt_at_the_end(upstream, proxy)


def check_caching(server: Server, proxy: Proxy) -> None:
    """CLIENT CACHING outlasts a CLIENT REPLY between it and the request that it is for."""
    for words in (SKIP + request("PING"), OFF + ON, SKIP + ON, OFF + ON + SKIP):
        with proxy.connect() as client, server.connect() as other:
            other.command("SET", "cached", 1)
            client.command("HELLO", 3)
            client.send(request("CLIENT", "TRACKING", "ON", "OPTIN") + OFF + ON)
            assert client.replies(2) == [b"+OK\r\n", b"+OK\r\n"]
            client.send(
                request("CLIENT", "CACHING", "YES") + words.replace(request("PING"), b"") + request("GET", "cached")
            )
            client.send(request("GET", "other"))
            said = b""
            while not said.endswith(b"_\r\n"):
                said += client.reply()
            assert (b"$1\r\n1\r\n" in said) == (not words.endswith((SKIP, request("PING")))), words
            other.command("SET", "cached", 2)
            assert b"invalidate" in client.reply(), words


@pytest.mark.every_kind
def test_caching_lasts_over_client_reply(upstream: Server, proxy: Proxy) -> None:
    check_caching(upstream, proxy)


@pytest.mark.every_kind
def test_subscribers_who_want_no_replies_get_their_messages(upstream: Server, proxy: Proxy) -> None:
    check_subscribers(upstream, proxy)


def check_subscribers(server: Server, proxy: Proxy) -> None:
    """See that they do in both protocols."""
    for protocol in (2, 3):
        with proxy.connect() as client:
            client.command("HELLO", protocol)
            client.send(OFF + request("SUBSCRIBE", "a"))
            assert b"subscribe" in client.reply()
            for number in range(3):
                server.command("PUBLISH", "a", f"m{number}")
                assert b"m%d" % number in client.reply()


def test_no_array_is_taken_for_a_message_without_a_subscription(upstream: Server, proxy: Proxy) -> None:
    read = request("LRANGE", "ll", 0, -1)
    subscribed = request("SUBSCRIBE", "c") + request("UNSUBSCRIBE")
    upstream.command("DEL", "ll")
    upstream.command(*["RPUSH", "ll", "message", "a", "lvl"])
    for before in (b"", subscribed, request("HELLO", 3) + request("SUBSCRIBE", "c"), subscribed + request("RESET")):
        for behind in (SKIP + read + request("GET", "x"), OFF + read + ON, OFF + read + request("RESET")):
            straight, through = both(upstream, proxy, before + behind + request("PING"))
            assert _told(through) == _told(straight), (before, behind)
    check_a_subscriber_after_a_reset(upstream, proxy)


def check_a_subscriber_after_a_reset(server: Server, proxy: Proxy) -> None:
    """In RESP3 no array is a message, though nothing that was judged has shown yet that the client may do anything."""
    server.command("DEL", "ll")
    server.command("RPUSH", "ll", "message", "a", "lvl")
    with proxy.connect() as client:
        for first in (request("RESET"), request("HELLO", 3), request("GET", "x") * 10, request("SUBSCRIBE", "c")):
            client.send(first)
            client.some()
        client.send(OFF + request("LRANGE", "ll", 0, -1) + ON + request("PING"))
        assert client.replies(2) == [b"+OK\r\n", b"+PONG\r\n"]


def test_a_reset_is_known_by_its_place(upstream: Server, proxy: Proxy) -> None:
    says = request("EVAL", "return redis.status_reply('RESET')", 0)
    for program in (OFF + says + request("RESET"), OFF + says + request("ECHO", "x") + request("RESET")):
        straight, through = both(upstream, proxy, program + request("PING"))
        assert through == straight, program


def test_pushes_within_a_transaction_lose_nothing(upstream: Server, proxy: Proxy) -> None:
    check_pushes(upstream, proxy)


def check_pushes(server: Server, proxy: Proxy) -> None:
    """The order of what a client publishes to itself is the server's."""
    hello, subscribe, multi = request("HELLO", 3), request("SUBSCRIBE", "c"), request("MULTI")
    publish, run = request("PUBLISH", "c", "in"), request("EXEC")
    for program in (
        hello + subscribe + OFF + multi + publish + run + request("RESET"),
        hello + subscribe + OFF + multi + publish * 3 + run + ON,
        hello + subscribe + SKIP + multi + publish + run,
    ):
        straight, through = both(server, proxy, program + request("PING"))
        assert _told(through) == _told(straight), program
    for protocol in (2, 3):  # what confirms a subscription in a transaction is lost; what comes afterwards is not
        until(lambda: server.command("PUBLISH", "c", "none") == b":0\r\n", what="the end of earlier subscribers")
        with proxy.connect() as client:
            client.command("HELLO", protocol)
            client.send(OFF + multi + subscribe + run + request("PUBLISH", "c", "own") * (protocol == 3))
            until(lambda: server.command("PUBLISH", "c", "other") == b":1\r\n", what="a subscriber")
            said = b""
            while b"other" not in said:
                said += client.reply()
            assert (b"own" in said) == (protocol == 3)


class Blocked(Upstream):
    """Answers nothing from a BLPOP on, or from the beginning on."""

    def __init__(self, *, from_the_beginning: bool = False) -> None:
        super().__init__()
        self.blocks = from_the_beginning

    def _result(self, name: bytes, arguments: list[bytes]) -> bytes:
        self.blocks = self.blocks or name == b"BLPOP"
        return super()._result(name, arguments)

    def _reply(self, arguments: list[bytes]) -> bytes:
        said = super()._reply(arguments)
        return b"" if self.blocks else said


def could_lose(upstream: Upstream, *pieces: bytes) -> bool:
    """Whether who has sent this could lose a reply by its end."""
    driver = Driver()
    driver.upstream = upstream
    driver.feed(*pieces)
    return driver.session.loss.is_possible


_PING: Final = request("PING")
_POP: Final = request("BLPOP", "jobs", 0)
_TRANSACTION: Final = request("MULTI") + _PING + request("EXEC")


@pytest.mark.parametrize(
    ("pieces", "could"),
    [
        ([_PING + _POP], False),
        ([OFF + _PING + _POP], False),
        ([_PING + OFF, _PING, _TRANSACTION], False),
        ([OFF + _PING + ON], True),
        ([OFF + _PING + ON + OFF], True),
        ([OFF + _PING + request("RESET")], True),
        ([_POP + SKIP], False),
        ([_POP + SKIP + SKIP], False),
        ([SKIP + OFF + _PING], False),
        ([SKIP + _PING], True),
        ([SKIP, _PING], True),
        ([SKIP + _PING + SKIP], True),
        ([request("CLIENT", "CACHING", "YES") + SKIP], False),
        ([request("CLIENT", "CACHING", "YES") + SKIP + _PING], True),
    ],
)
def test_who_wants_nothing_behind_what_is_dropped_loses_nothing(pieces: list[bytes], could: bool) -> None:
    """Nothing has been answered yet. A skip may be of more than one request, as far as is known."""
    assert could_lose(Blocked(from_the_beginning=True), *pieces) == could
    assert not could_lose(Upstream(), *pieces, _PING + _PING, request("CLIENT", "REPLY", "OFF"))


def test_who_wants_messages_may_lose_one_at_any_time() -> None:
    assert could_lose(Upstream(), OFF + _PING + request("SUBSCRIBE", "a"), _PING + _PING)
    assert could_lose(Upstream(), request("CLIENT", "TRACKING", "ON"), OFF, _PING + _PING)
    assert not could_lose(Upstream(), request("SUBSCRIBE", "a"), _PING)


def test_where_the_server_is_at_a_request_that_blocks_nothing_is_lost() -> None:
    """What it has not sent stands behind that. The last that has come is the sign in front of it."""
    for program in (OFF + _POP + ON, OFF + _PING + ON + OFF + _POP + ON + _PING, SKIP + _POP + _PING):
        assert not could_lose(Blocked(), program), program
        assert could_lose(Blocked(from_the_beginning=True), program), program
    assert could_lose(Blocked(), SKIP + _PING + _POP, OFF + _PING + ON)  # between them it may have gone on unseen
    for program in (OFF + _PING + ON + _POP, OFF + _POP * 2 + ON):
        driver = Driver()
        driver.feed(program)
        assert not driver.session.loss.has_reached_blocker


def check_refused_multi(server: Server, proxy: Proxy) -> None:
    """A CLIENT REPLY ON behind a MULTI that the server refuses is not queued, so it is heeded at once."""
    server.command("ACL", "SETUSER", "nomulti", "on", "nopass", "~*", "&*", "+@all", "-multi")
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    multi, ping, run, add = request("MULTI"), request("PING"), request("EXEC"), request("SADD", "s", "m")
    programs = [
        OFF + multi + before + ON + behind + ping
        for before in (
            b"",
            ping,
            add,
            add * 20,
            multi,
            request("NOSUCH"),
            b"*0\r\n",
            request("CLIENT", "REPLY", "ON", "x"),
        )
        for behind in (b"", ON, add, run, request("DISCARD"))
    ]
    programs += [multi + ON + ping, OFF + multi + run + multi + ping + ON + ping, SKIP + multi + ON + ping]
    for program in programs:
        for login in (b"", request("AUTH", "nomulti", "x")):
            straight, through = both(server, proxy, login + program)
            assert through == straight, (login, program)
    with proxy.connect() as client:
        client.send(request("AUTH", "nomulti", "x") + OFF + multi)
        client.silent(0.05)
        client.send(ON + ping)
        assert client.replies(3) == [b"+OK\r\n", b"+OK\r\n", b"+PONG\r\n"]


@pytest.mark.every_kind
def test_all_replies_are_wanted_again_behind_a_multi_that_is_refused(upstream: Server, proxy: Proxy) -> None:
    check_refused_multi(upstream, proxy)


def check_many_channels(server: Server, proxy: Proxy) -> None:
    """More channels than are remembered are none after an UNSUBSCRIBE from all."""
    server.command("DEL", "ll")
    server.command("RPUSH", "ll", "message", "a", "lvl")
    many = [f"c{number}" for number in range(105)]
    read = SKIP + request("LRANGE", "ll", 0, -1) + request("PING")
    for kind in ("", "P"):
        ends = request(f"{kind}UNSUBSCRIBE")
        straight, through = both(server, proxy, request(f"{kind}SUBSCRIBE", *many) + ends + read)
        assert sorted(frames(through)) == sorted(frames(straight))
    both_kinds = request("SUBSCRIBE", *many) + request("PSUBSCRIBE", *many) + request("UNSUBSCRIBE")
    with proxy.connect() as client:  # the patterns are still there
        client.send(OFF + both_kinds)
        client.replies(105 * 3)
        server.command("PUBLISH", "c7", "here")
        assert b"pmessage" in client.reply()


@pytest.mark.every_kind
def test_no_array_is_taken_for_a_message_after_many_channels(upstream: Server, proxy: Proxy) -> None:
    check_many_channels(upstream, proxy)


def check_master_down(server: Server, proxy: Proxy) -> None:
    """A server without its master refuses reads and, on Redis 6.2, ECHO too; it never refuses CLIENT."""
    read, ping = request("GET", "x"), request("PING")
    programs = (
        OFF + read + ON, OFF + read * 3 + ON + read + ping, SKIP + read + SKIP + read + ping,
        SKIP + read * 2 + ON + ping, OFF + read, read + OFF + read + ON + read,
    )  # fmt: skip
    for program in programs:
        said = []
        for where in (server, proxy):
            with where.connect() as client:
                assert client.command("PING") == b"+PONG\r\n"
                server.command("REPLICAOF", "127.0.0.1", "1")
                client.send(program)
                said.append(client.until_silent(0.2))
            server.command("REPLICAOF", "NO", "ONE")
        assert said[1] == said[0], program


@pytest.mark.every_kind
def test_a_server_without_its_master_is_understood(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind, "--replica-serve-stale-data", "no")
    check_master_down(server, start_proxy(None, "--upstream", server.url))


def test_a_refused_sign_of_a_wish_is_known_by_the_reply_behind_it() -> None:
    """Servers that refuse ECHO with these errors permit CLIENT."""
    for error in (
        b"-MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.\r\n",
        b"-LOADING Redis is loading the dataset in memory\r\n",
    ):
        for ends in (Wish.ON, Wish.SKIP):
            substitution = ReplySubstitution()
            substitution.echoes = True
            for wish in (Wish.OFF, ends):
                substitution.open(substitution.silence.expect(wish, bool, replies=1))
            sign = substitution.expect(b"")
            stream = error + b"+OK\r\n" + error + error + b"+OK\r\n" + error + line_for(sign, b"'")
            assert substitution.receive(stream) == (b"+OK\r\n" + error if ends is Wish.ON else b"")


@pytest.mark.every_kind
def test_a_half_close_loses_no_reply_behind_those_that_are_dropped(upstream: Server, proxy: Proxy) -> None:
    check_half_close(upstream, proxy)


_GET: Final = request("GET", "big")
FRONTS: Final = (
    (OFF + _GET * 5 + ON + request("PING"), b"+OK\r\n+PONG\r\n"),
    (SKIP + _GET + request("PING"), b"+PONG\r\n"),
)
_TOO_LONG: Final = b"-ERR Protocol error: invalid bulk length\r\n"
CUT_OFF: Final = (
    (request("SET", "value", "x" * 300_000)[:200_000], b""),
    (b"*1\r\n$x\r\n", _TOO_LONG),
    (b"*1\r\n$1000000000\r\n", _TOO_LONG),
    (request("MULTI") + request("SET", "value", "x" * 300_000)[:200_000], b"+OK\r\n"),
)
"""Requests after which no sign is possible, or that are broken off; and what the client gets for them."""


def check_half_close(server: Server, proxy: Proxy) -> None:
    """See that large replies that are dropped keep nobody from those that are wanted."""
    server.command("SET", "big", b"x" * 5_000_000)
    get, ping = request("GET", "big"), request("PING")
    server.command("XADD", "stream", "*", "a", "b")
    could_block = request("XREAD", "STREAMS", "stream", 0) + request("WAIT", 0, 100)
    server.command("ACL", "SETUSER", "few", "on", "nopass", "~*", "&*", "+@all", "-eval")
    server.command("ACL", "SETUSER", "nomulti", "on", "nopass", "~*", "&*", "+@all", "-multi")
    few = request("AUTH", "few", "x")
    for begins, comes, message in (  # of messages too, also when the server has answered all before
        (request("SUBSCRIBE", "own"), request("PUBLISH", "own", "m"), b"message"),
        (
            request("CLIENT", "TRACKING", "ON") + ping,
            request("GET", "big2") + request("SET", "big2", "y"),
            b"invalidate",
        ),
    ):
        for settles in (False, True):
            with proxy.connect() as client:
                client.command("HELLO", 3)
                client.send(begins + request("GET", "big2"))
                until(lambda: client.some() != b"")
                if settles:
                    client.send(OFF + comes)
                    until(lambda message=message: message in client.some())  # type: ignore[misc]
                    client.send(get * 5 + comes)
                else:
                    client.send(OFF + get * 5 + comes)
                client.end_of_requests()
                assert message in client.rest()
    for number in range(3):
        with proxy.connect() as client:
            client.send(request("AUTH", "nomulti", "x") + OFF + request("MULTI") + request("SET", "reached", number))
            until(lambda n=number: server.command("GET", "reached") == b"$1\r\n%d\r\n" % n)  # type: ignore[misc]
            client.send(get * 5 + ON + ping)
            client.end_of_requests()
            assert client.rest() == b"+OK\r\n" * 2 + b"+PONG\r\n"
    for program, wanted in (
        (few + FRONTS[0][0] + CUT_OFF[0][0], b"+OK\r\n" + FRONTS[0][1]),
        (OFF + get * 5 + ON + ping, b"+OK\r\n+PONG\r\n"),
        (OFF + could_block + get * 5 + ON + ping, b"+OK\r\n+PONG\r\n"),
        (SKIP + get + ping, b"+PONG\r\n"),
        *((front + behind, told + error) for front, told in FRONTS for behind, error in CUT_OFF),
        (request("AUTH", "nomulti", "x") + OFF + get * 5 + request("MULTI") + ON + ping, b"+OK\r\n" * 2 + b"+PONG\r\n"),
    ):
        for _ in range(3):
            with proxy.connect() as client:
                client.send(program)
                client.end_of_requests()
                assert client.rest() == wanted
    with proxy.connect() as client:  # who has left in front of a request that blocks takes nothing
        client.send(OFF + request("BLPOP", "jobs", 0))
        until(lambda: b"blocked_clients:1" in server.command("INFO", "clients"))
    until(lambda: b"blocked_clients:0" in server.command("INFO", "clients"))


@pytest.mark.every_kind
def test_a_server_that_wants_no_login_any_more_is_not_silenced(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """By a client that was to log in when it came."""
    server = start_server(kind, "--requirepass", "secret")
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//:secret@"))
    with server.connect() as admin:
        assert admin.command("AUTH", "secret") == b"+OK\r\n"
        for program in (OFF + request("INCR", "n") + ON, SKIP + request("INCR", "n")):
            with proxy.connect() as client:
                assert client.command("CLIENT", "REPLY", "OFF").startswith(b"-NOAUTH")
                assert admin.command("CONFIG", "SET", "requirepass", "") == b"+OK\r\n"
                client.send(program + request("ECHO", "end"))
                wanted = b"+OK\r\n" if ON in program else b""
                client.end_of_requests()
                assert client.rest() == wanted + b"$3\r\nend\r\n"
            assert admin.command("CONFIG", "SET", "requirepass", "secret") == b"+OK\r\n"


def test_of_caching_only_the_word_is_kept() -> None:
    """Since it may be sent again and again."""
    big = b"x" * 100_000
    for words in ([big], [b"YES", big], [b"MAYBE"], [b"yes"]):
        sent = Driver().feed(encode([b"CLIENT", b"CACHING", *words]) + SKIP * 3)
        assert len(sent) < 2_000 + sum(map(len, words))


def check_many_resets(server: Server, proxy: Proxy) -> None:
    """A client that has not logged in gets as many replies before as the server itself sends it."""
    straight, through = both(server, proxy, request("RESET") * 400)
    assert through == straight
    assert server.version < (7,) or straight.startswith(b"+RESET\r\n" * 100)


@pytest.mark.every_kind
def test_a_stranger_may_reset_as_often_as_at_the_server(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind, "--requirepass", "secret")
    check_many_resets(server, start_proxy(None, "--upstream", server.url.replace("//", "//:secret@")))


@pytest.mark.every_kind
def test_a_user_who_may_not_reset_is_told_nothing_else(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """On Redis 6.2, where that needs a right: the subscription lasts, and HELLO would be refused."""
    server = start_server(kind, "--requirepass", "secret")
    with server.connect() as admin:
        admin.send(
            request("AUTH", "secret") + request("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all", "-reset")
        )
        assert admin.replies(2) == [b"+OK\r\n", b"+OK\r\n"]
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//:secret@"))
    with proxy.connect() as client:
        client.send(request("AUTH", "secret") + request("SADD", "s", "m") + request("EXPIREMEMBER", "s", "m", 1000))
        assert client.replies(3)[2] == b":1\r\n"
    login, reset = request("AUTH", "few", "pw"), request("RESET")
    for behind in (b"", request("SADD", "s", "m"), request("UNSUBSCRIBE") + request("SREM", "s", "x")):
        straight, through = both(server, proxy, login + request("SUBSCRIBE", "a") + reset + behind)
        assert through == straight


@pytest.mark.every_kind
def test_messages_beside_a_question_of_the_proxys_own_are_told(upstream: Server, proxy: Proxy) -> None:
    """One who may not UNSUBSCRIBE stays a subscriber in RESP2, to whom messages may come at any time."""
    upstream.command("ACL", "SETUSER", "stays", "on", "nopass", "~*", "&*", "+@all", "-unsubscribe")
    with proxy.connect() as client, upstream.connect() as other:
        client.send(request("HELLO", 3) + request("AUTH", "stays", "x") + request("SUBSCRIBE", "a"))
        while b"subscribe" not in client.reply():
            pass
        client.send(request("UNSUBSCRIBE") + request("HELLO", 2))
        client.reply()
        client.reply()
        other.send(request("PUBLISH", "a", "flood") * 300)
        client.send((request("UNSUBSCRIBE") + request("PSUBSCRIBE", "b*")) * 100)
        assert other.replies(300) == [b":1\r\n"] * 300
        told = 0
        while told < 300:
            told += b"flood" in client.reply()

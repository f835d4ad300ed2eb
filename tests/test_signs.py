"""Signs in the stream of replies: the proxy's own requests leave no error at the server, and get lost in no state."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.elements import Elements
from proxy.wire.reply import ReplySubstitution, UnclearRepliesError
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until
from tests.test_lives import asks_for_rights

# A server that refuses some requests, as one does that a script keeps busy.

BUSY = b"-BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.\r\n"
WAYS = ("request", "error", "sign", "enclosed", "begun", "together", "value")
ANSWERS = {
    "request": b"$4\r\na000\r\n",
    "error": b"-ERR no\r\n",
    "value": b"$%d\r\na\r\n%b\r\n" % (len(BUSY) + 3, BUSY),
}


def tokens(sent: bytes) -> list[bytes]:
    return re.findall(rb"[0-9a-f]{32}", sent)


def conversation(steps: list[str], busy: list[bool]) -> tuple[ReplySubstitution, bytes, bytes]:
    """Return what the replies of a server pass through, what it says, and what of it the client is to get."""
    replies = ReplySubstitution()
    replies.echoes = True
    said, wanted = b"", b""
    for step, refuses in zip(steps, busy, strict=True):
        if step in ANSWERS:
            reply = BUSY if refuses else ANSWERS[step]
            said += reply
            wanted += reply
        elif step == "together":
            (token,) = tokens(replies.open(Elements(3, lambda _: None)))
            said += BUSY + BUSY if refuses else b"$32\r\n%b\r\n*3\r\n:1\r\n:2\r\n:3\r\n" % token
            wanted += BUSY * 3 if refuses else b":1\r\n:2\r\n:3\r\n"
        elif step == "sign":
            (token,) = tokens(replies.expect(b"", silent=True))
            said += BUSY if refuses else b"$32\r\n%b\r\n" % token
        else:
            first, second = tokens(replies.enclose(b"", lambda _: b""))
            for token in (first, b"", second):
                refused = refuses and not (step == "begun" and token == first)  # the server is busy from then on
                said += BUSY if refused else b"$32\r\n%b\r\n" % token if token else b":1\r\n"
    return replies, said, wanted


@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_what_the_client_gets_is_right_whoever_is_refused(data: st.DataObject) -> None:
    steps = data.draw(st.lists(st.sampled_from(WAYS), min_size=1, max_size=8))
    busy = data.draw(st.lists(st.booleans(), min_size=len(steps), max_size=len(steps)))
    replies, said, wanted = conversation(steps, busy)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(said)), max_size=4)))
    passed = b""
    said_last = b""
    try:
        for begin, end in zip([0, *cuts], [*cuts, len(said)], strict=True):
            passed += replies.receive(said[begin:end])
            assert wanted.startswith(passed)
            if replies.wants_probe:
                probe = tokens(replies.expect(b""))[0]
                said_last += b"-ERR unknown command '%b', with args beginning with: \r\n" % probe
        passed += replies.receive(said_last)
    except UnclearRepliesError:
        assert wanted.startswith(passed)
        return
    assert passed == wanted
    assert not replies.outstanding


def test_a_lasting_refusal_is_sorted_out() -> None:
    """The usual case: a script keeps the server busy for long, and all that a client sends is refused."""
    for steps in (
        ["sign"],
        ["together", "request", "together"],
        ["request", "sign", "request", "sign", "sign", "request"],
    ):
        replies, said, wanted = conversation(steps, [True] * len(steps))
        assert replies.receive(said) == b""
        assert replies.wants_probe
        (probe,) = tokens(replies.expect(b""))
        got = replies.receive(b"-ERR unknown command '%b', with args beginning with: \r\n" % probe)
        assert got == wanted
        assert not replies.active


def answer(token: bytes) -> bytes:
    """What a server says to a sign that is a request which it does not know."""
    return b"-ERR unknown command '%b', with args beginning with: \r\n" % token


def test_what_a_busy_server_allows_all_the_same_does_not_confuse() -> None:
    """It answers UNWATCH, MULTI and HELLO: how many replies a sign encloses tells which errors are whose."""
    replies = ReplySubstitution()
    replies.echoes = True
    heard: list[bytes] = []

    def hear(said: bytes) -> bytes:
        heard.append(said)
        return b""

    replies.enclose(b"", hear)
    assert replies.receive(BUSY * 3 + b"+OK\r\n") == b""
    assert replies.receive(answer(tokens(replies.expect(b""))[0])) == b"+OK\r\n"
    assert heard == [BUSY]


@pytest.mark.parametrize("size", [100, 1_000_000, 20_000_000])
def test_a_value_that_looks_like_a_refusal_is_passed_on(size: int) -> None:
    replies = ReplySubstitution()
    (token,) = tokens(replies.expect(b"", silent=True))
    text = b"log:\n%b and on\r\n-BUSY Redis is busy \n" % BUSY.strip() + b"x" * size
    value = b"$%d\r\n%b\r\n" % (len(text), text)
    passed = b"".join(replies.receive(value[begin : begin + 65536]) for begin in range(0, len(value), 65536))
    assert len(value) - len(passed) < 65536 + 256
    assert passed + replies.receive(b"$32\r\n%b\r\n" % token) == value


def test_replies_in_doubt_are_searched_once() -> None:
    """What is held back is not searched anew for each chunk: that would take time by the square of its length."""
    replies = ReplySubstitution()
    (token,) = tokens(replies.expect(b"", silent=True))
    value = b"$%d\r\n%b\r\n" % (14_000_000, b"x" * 14_000_000)
    said = BUSY + value
    begun = time.process_time()
    for begin in range(0, len(said), 16384):
        assert replies.receive(said[begin : begin + 16384]) == b""
    assert time.process_time() - begun < 1
    assert replies.wants_probe
    assert replies.receive(answer(tokens(replies.expect(b""))[0])) == value
    assert not replies.outstanding
    del token


def test_an_error_of_a_scripts_own_is_no_refusal() -> None:
    replies = ReplySubstitution()
    replies.expect(b"", silent=True)
    for error in (b"-BUSY mine\r\n", b"-LOADING of the ship\r\n", b"-NOAUTH for you\r\n", b"-MASTERDOWN no\r\n"):
        assert replies.receive(error) == error


# Real servers.

LINES = [
    "HINCRBY h n 1", "HINCRBY h n 2", "SADD s a x", "SREM s x", "TTL s a", "PTTL h n", "EVAL return(1) 1 s",
    "GET v", "SET v 1", "EXPIREMEMBER s a 100", "EXPIREMEMBER new m 100", "PERSIST new m", "RPUSH l a", "LPOP l",
    "RPUSH l b", "DEL new", "COMMAND COUNT", "INFO everything", "SUNIONSTORE t s", "SMOVE s t b", "RENAME t u",
    "COPY u w", "SADD new m", "DBSIZE", "KEYS *", "SCAN 0", "RANDOMKEY", "SPOP s", "CLIENT REPLY ON", "CLIENT ID",
    "WAIT 0 0", "SELECT 1", "SELECT 0", "SORT s BY nosort STORE l2",
]  # fmt: skip


def errors(server: Server) -> dict[str, str]:
    """What a server counts of errors, and of requests that it has rejected or that have failed."""
    text = server.command("INFO", "everything").decode()
    found = dict(
        re.findall(r"^(total_error_replies|errorstat_\w+|acl_access_denied_\w+):(.+?)\r?$", text, re.MULTILINE)
    )
    failed = re.findall(r"^cmdstat_(\S+?):.*?rejected_calls=(\d+),failed_calls=(\d+)", text, re.MULTILINE)
    found |= {name: f"{rejected} {wrong}" for name, rejected, wrong in failed if (rejected, wrong) != ("0", "0")}
    found["ACL LOG"] = repr(server.command("ACL", "LOG"))
    return found


def work(client: Raw, protocol: int) -> None:
    """Do one after another what clients do, then in one pipeline, then in transactions."""
    client.command("HELLO", protocol)
    for line in ("DEL h s l v new t u w", "HSET h n 1 m 2", "SADD s a b c d", "RPUSH l a b", "EXPIREMEMBER h n 1000",
                 "EXPIREMEMBER s a 1000", "EXPIREMEMBER l b 1000", *LINES):  # fmt: skip
        assert client.command(*line.split())[:1] != b"-", line
    client.send(b"".join(request(*line.split()) for line in LINES))
    for line in LINES:
        assert client.reply()[:1] != b"-", line
    client.send(b"".join(request("SADD", "s", number) for number in range(50)))
    client.replies(50)
    for lines in (["SADD s q", "HINCRBY h n 1", "TTL s a"], ["GET v"], LINES[:12]):
        for line in ("MULTI", *lines):
            assert client.command(*line.split())[:1] == b"+", line
        assert client.command("EXEC").startswith(b"*%d" % len(lines))
        client.send(b"".join(request(*line.split()) for line in ("MULTI", *lines, "EXEC")))
        assert client.replies(len(lines) + 2)[-1].startswith(b"*")


def check_ordinary_work(server: Server, proxy: Proxy, protocol: int, *, few: bool = False) -> None:
    """See that it leaves no error at the server."""
    assert proxy.command("PING") == b"+PONG\r\n"

    def is_over() -> bool:
        seen = errors(server)
        time.sleep(0.7)
        return errors(server) == seen

    until(is_over, what="the end of what a proxy does at its start")
    assert server.command("CONFIG", "RESETSTAT") == b"+OK\r\n"
    before = errors(server)
    with proxy.connect() as client:
        work(client, protocol)
    with proxy.connect() as client:
        for _ in range(30):
            client.send(request("SET", "v", "1") + request("GET", "v"))
            client.replies(2)
            for _ in range(20):
                client.command("GET", "v")
    after = errors(server)
    if few and server.version < (7,):  # scripts cannot ask: RENAME finds no key, RPUSH another type, HSET no value
        for name in ("rename", "rpush", "hset"):
            after.pop(name, None)
        assert set(after) - set(before) <= {"errorstat_ERR", "errorstat_WRONGTYPE"}
        return
    assert after == before


@pytest.mark.every_kind
def test_a_server_that_has_no_echo_is_understood(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    proxy = start_proxy(start_server(kind, "--rename-command", "ECHO", ""))
    with proxy.connect() as client:
        for line in ("HSET h n 1", "SADD s a b", "EXPIREMEMBER h n 1000", "EXPIREMEMBER s a 1000"):
            client.command(*line.split())
        assert client.command("HINCRBY", "h", "n", 1) == b":2\r\n"
        lines = ["HINCRBY h n 1", *["SADD s b"] * 5, "MULTI", "HINCRBY h n 1", "EXEC", "GET v"]
        client.send(b"".join(request(*line.split()) for line in lines))
        zeros = [b":0\r\n"] * 5
        assert client.replies(10) == [b":3\r\n", *zeros, b"+OK\r\n", b"+QUEUED\r\n", b"*1\r\n:4\r\n", b"$-1\r\n"]


@pytest.mark.every_kind
def test_a_start_leaves_no_error_at_the_server(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    before = errors(server)
    proxy = start_proxy(server)
    for key in ("a", "b"):
        assert proxy.command("SET", key, "1") == b"+OK\r\n"
    assert errors(server) == before


@pytest.mark.every_kind
@pytest.mark.parametrize("few", [False, True])
@pytest.mark.parametrize("protocol", [2, 3])
def test_ordinary_work_leaves_no_error_at_the_server(
    kind: str, start_server: StartServer, start_proxy: StartProxy, few: bool, protocol: int
) -> None:
    """Also where some users have few rights, so that all are asked what they may do."""
    server = start_server(kind)
    if few:
        assert server.command("ACL", "SETUSER", "few", "on", "nopass", "~*", "+@all", "-@dangerous") == b"+OK\r\n"
    proxy = start_proxy(server)
    if few:
        until(lambda: asks_for_rights(server, proxy), what="questions for rights")
    check_ordinary_work(server, proxy, protocol, few=few)


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("subscriber", [False, True])
def test_who_has_subscribed_leaves_no_error_either(
    server: Server, start_proxy: StartProxy, protocol: int, subscriber: bool
) -> None:
    check_subscribers(server, start_proxy(server), protocol, subscriber=subscriber)


def check_subscribers(server: Server, proxy: Proxy, protocol: int, *, subscriber: bool) -> None:
    """In RESP3 a subscriber may do everything; in RESP2 one that has ended all its subscriptions."""
    with proxy.connect() as client:
        for line in ("HSET h n 1 m 1", "EXPIREMEMBER h m 1000"):
            client.command(*line.split())
        client.command("HELLO", protocol)
        client.command("SUBSCRIBE", "a", "b")
        client.reply()
        client.command("UNSUBSCRIBE", "a")
        if not (subscriber and protocol == 3):
            client.command("UNSUBSCRIBE")
        server.command("CONFIG", "RESETSTAT")
        for _ in range(3):
            assert client.command("HINCRBY", "h", "n", 1)[:1] == b":"
            assert client.command("EVAL", "return 1", 1, "h") == b":1\r\n"
            assert client.command("SCAN", 0)[:1] == b"*"
        assert "ERR" not in "".join(errors(server))


@pytest.mark.every_kind
def test_no_sign_stands_between_a_skip_and_what_it_skips(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server)
    check_skips(server, proxy)
    server.command("ACL", "SETUSER", "few", "on", "nopass", "~app:*", "+@all", "-eval")
    check_skips(server, proxy)


def check_skips(server: Server, proxy: Proxy) -> None:
    """See that who skips a skip gets the replies that it gets of the server."""
    proxy.command("SADD", "s", "z")
    assert proxy.command("EXPIREMEMBER", "s", "z", 1000) == b":1\r\n"
    skip = request("CLIENT", "REPLY", "SKIP")
    behind = request("SADD", "s", "a") + request("SMEMBERS", "s") + request("SREM", "s", "a")
    for last in (skip, OFF + ON, b"*0\r\n" + skip, b"*-1\r\n" + skip):
        told = []
        for where in (server, proxy):
            with where.connect() as client:
                client.send(request("BLPOP", "queue", 0) + skip + last + request("INCR", "n") + behind)
                until(lambda: b"blocked_clients:1" in server.command("INFO", "clients"))
                server.command("RPUSH", "queue", "job")
                client.end_of_requests()
                told.append(client.rest())
            server.command("DEL", "n")
        assert told[0].startswith(b"*2\r\n$5\r\nqueue\r\n$3\r\njob\r\n")
        assert told[1] == told[0]


OFF, ON, SKIP = (request("CLIENT", "REPLY", word) for word in ("OFF", "ON", "SKIP"))


@pytest.mark.every_kind
def test_a_refusal_that_nobody_hears_ends_no_silence(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind, "--rename-command", "RESET", "")
    check_unheard_refusals(server, start_proxy(server))


def check_unheard_refusals(server: Server, proxy: Proxy) -> None:
    """See that who asks for replies once more gets those that the server gives, and is held up by nothing before."""
    server.command("ACL", "SETUSER", "full", "on", ">pw", "~*", "&*", "+@all")
    server.command("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all", "-client")
    proxy.command("SADD", "s", "a")
    assert proxy.command("EXPIREMEMBER", "s", "a", 1000) == b":1\r\n"
    scripts = request("EVAL", "return 1", 1, "s") * 2
    for refused in (request("RESET"), request("AUTH", "few", "pw") + ON):
        with proxy.connect() as client:
            assert client.command("AUTH", "full", "pw") == b"+OK\r\n"
            client.send(OFF + refused + scripts + request("AUTH", "full", "pw") + ON + request("PING"))
            assert client.replies(2) == [b"+OK\r\n", b"+PONG\r\n"]
    with proxy.connect() as client, server.connect() as other, server.connect() as straight:
        client.send(OFF + request("SET", "off", 1))
        until(lambda: server.command("EXISTS", "off") == b":1\r\n")
        with server.busy_after(50):
            other.send(request("EVAL", "while true do end", 0))
            until(lambda: straight.command("GET", "v").startswith(b"-BUSY"), what="a busy server")
            client.send(ON)
            for _ in range(20):  # so that it is refused, in all likelihood
                assert proxy.command("GET", "v").startswith(b"-BUSY")
            assert straight.command("SCRIPT", "KILL") == b"+OK\r\n"
            assert other.reply().startswith(b"-ERR")
            client.send(scripts + ON + request("PING"))
            told = b""
            while not told.endswith(b"+PONG\r\n"):
                told += client.reply()
            assert told.endswith(b"+OK\r\n+PONG\r\n")


@pytest.mark.every_kind
def test_a_subscriber_in_resp3_without_echo_gets_all_replies(upstream: Server, proxy: Proxy) -> None:
    """Also if it ends at once, so that no sign can follow."""
    upstream.command("ACL", "SETUSER", "silent", "on", ">pw", "~*", "&*", "+@all", "-echo")
    program = request("HELLO", 3) + request("AUTH", "silent", "pw") + request("SUBSCRIBE", "a")
    for last in (b"", request("ECHO", "hi")):
        for _ in range(5):
            with proxy.connect() as client:
                client.send(program + last)
                client.end_of_requests()
                assert re.fullmatch(rb"%7\r\n.*\+OK\r\n>3\r\n\S+\r\nsubscribe\r\n.+", client.rest(), re.DOTALL)


def check_refused_greeting(server: Server, proxy: Proxy) -> None:
    """A subscriber in RESP2 whom the server has refused HELLO 3 gets each error, and is not disconnected."""
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    echo, last = request("ECHO", "hi"), request("CLIENT", "REPLY", "ON", "x") + request("PING")
    tails = (
        echo + request("EVAL", "return 1", 1, "s") + request("EXEC") + last,
        echo + request("EXEC") + last,
        echo + request("DISCARD") + request("MULTI"),
    )
    subscribe, asked, named = request("SUBSCRIBE", "a"), request("HELLO", 3), request("HELLO", 3, "SETNAME", "a b")
    programs = (
        subscribe + asked,
        named + subscribe,
        asked + request("HELLO", 2) + subscribe,
        asked + subscribe + request("HELLO", 2),
        request("HELLO", 3, "AUTH", "nobody", "x") + subscribe,
        request("HELLO", 3, "OPTION") + request("PSUBSCRIBE", "a*") + named,
        request("MULTI") + named + request("EXEC") + subscribe,
    )
    for program, tail, at_once in product(programs, tails, (True, False)):
        said = []
        for where in (server, proxy):
            with where.connect() as client:
                client.send(program + tail if at_once else program)
                first = client.reply()
                client.send(b"" if at_once else tail)
                client.end_of_requests()
                said.append(re.sub(rb"id\r\n:\d+", b"id", first + client.rest()))
        assert said[0] == said[1], program + tail


@pytest.mark.every_kind
def test_a_subscriber_whom_a_greeting_is_refused_stays(upstream: Server, proxy: Proxy) -> None:
    check_refused_greeting(upstream, proxy)


def check_queued_words(server: Server, proxy: Proxy) -> None:
    """With OFF or SKIP in it no transaction runs. ON runs in it, and ends a silence behind the reply to EXEC."""
    multi, run, add = request("MULTI"), request("EXEC"), request("SADD", "s", "x")
    with proxy.connect() as client:
        for word in (OFF, SKIP):
            client.send(multi + add + word + run + request("PING"))
            assert client.replies(5) == [
                b"+OK\r\n",
                b"+QUEUED\r\n",
                b"-ERR Command 'client|reply' not allowed inside a transaction\r\n",
                b"-EXECABORT Transaction discarded because of previous errors.\r\n",
                b"+PONG\r\n",
            ]
        assert client.command("SADD", "s", "m") == b":1\r\n"  # a covered key, so that replies are taken out
        assert client.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    for program in (
        OFF + multi + ON + run + add,
        OFF + multi + ON + request("NOSUCH") + run + add + ON,
        OFF + multi + ON + request("DISCARD") + add + ON,
        OFF + request("WATCH", "s") + add + multi + ON + run + ON,
        OFF + multi + ON + request("EXEC", "x") + add + ON,
        multi + ON + add + run,
    ):
        said = []
        for where in (server, proxy):
            server.command("SREM", "s", "x")
            with where.connect() as client:
                client.send(program + request("PING"))
                client.end_of_requests()
                said.append((client.rest(), server.command("SCARD", "s")))
        assert said[0] == said[1], program
    assert "Traceback" not in proxy.process.output, proxy.process.output


@pytest.mark.every_kind
def test_a_transaction_that_speaks_of_replies_breaks_off_no_reply(upstream: Server, proxy: Proxy) -> None:
    check_queued_words(upstream, proxy)


def check_rights_behind_silence(server: Server, proxy: Proxy) -> None:
    """Who asks for replies again, and may run no script, is refused nothing that the user may do."""
    server.command("ACL", "SETUSER", "few", "on", ">pw", "~*", "&*", "+@all", "-@scripting")
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    login = request("AUTH", "few", "pw")
    for before in (OFF + login + ON, OFF + ON + login, OFF + request("RESET") + login, OFF + login + OFF + ON):
        for _ in range(5):
            server.command("SREM", "s", "a")
            with proxy.connect() as client:
                client.send(before + request("SADD", "s", "a") + request("PING"))
                client.end_of_requests()
                assert client.rest().endswith(b":1\r\n+PONG\r\n"), before


@pytest.mark.every_kind
def test_who_may_run_no_script_may_write_behind_a_silence(upstream: Server, proxy: Proxy) -> None:
    check_rights_behind_silence(upstream, proxy)


def check_silent_quit(server: Server, proxy: Proxy) -> None:
    """Nothing is asked behind a QUIT of whose reply nothing comes, so nobody waits for an answer."""
    proxy.command("SADD", "s", "m")
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    for more in (request("UNSUBSCRIBE", "a"), request("AUTH", "few", "pw"), request("BLPOP", "nothing", 0)):
        for last in (request("SADD", "s", "a"), request("EXPIREMEMBER", "new:1", "m", 10)):
            with proxy.connect() as client:
                began = time.monotonic()
                for piece in (SKIP, request("QUIT"), more, last):
                    with suppress(OSError):
                        client.send(piece)
                    assert server.command("PING") == b"+PONG\r\n"
                with suppress(OSError):
                    client.end_of_requests()
                    client.rest()
                assert time.monotonic() - began < 5, (more, last)


@pytest.mark.every_kind
def test_nobody_waits_behind_a_silent_quit(upstream: Server, proxy: Proxy) -> None:
    check_silent_quit(upstream, proxy)


@pytest.mark.every_kind
def test_while_a_script_keeps_the_server_busy_each_request_has_its_reply(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    check_busy(server, start_proxy(server))


def check_busy(server: Server, proxy: Proxy) -> None:
    """See that each request has its own reply meanwhile, and that all is well afterwards."""
    with proxy.connect() as client, server.connect() as other:
        for line in ("HSET h n 1", "SADD s a b", "EXPIREMEMBER h n 1000", "EXPIREMEMBER s a 1000", "HINCRBY h n 1"):
            client.command(*line.split())
        with server.busy_after(50):
            other.send(request("EVAL", "while true do end", 0))
            with server.connect() as straight:
                until(lambda: straight.command("GET", "v").startswith(b"-BUSY"), what="a busy server")
                busy = straight.command("GET", "v")
                for line in ("HINCRBY h n 1", "GET v", "HINCRBY h n 1"):
                    assert client.command(*line.split()) == busy, line
                lines = ["HINCRBY h n 1", "GET v", "HINCRBY h n 1", *["SADD s b"] * 5, "HINCRBY h n 1", "GET v"]
                client.send(b"".join(request(*line.split()) for line in lines))
                assert client.replies(len(lines)) == [busy] * len(lines)
                assert straight.command("SCRIPT", "KILL") == b"+OK\r\n"
            assert other.reply().startswith(b"-ERR")
            assert client.command("HINCRBY", "h", "n", 1) == b":3\r\n"
            assert client.command("MULTI") == b"+OK\r\n"
            assert client.command("HINCRBY", "h", "n", 1) == b"+QUEUED\r\n"
            assert client.command("EXEC") == b"*1\r\n:4\r\n"

"""Users with few rights lose nothing, gain nothing, and are told what they lack in the server's own words."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.commands.described import Terms
from proxy.expiry.users import is_barred
from proxy.scripts.calls import Variant, composed, evaluation
from proxy.scripts.naming import Names, _tags
from proxy.session.globs import may_match_beginning
from proxy.session.rights import _ALL, _INNER, TRUST_MS
from proxy.wire.reply import ReplySubstitution
from tests.conftest import StartProxy, StartServer, installed
from tests.model import parse
from tests.raw import Raw, about, request
from tests.servers import KINDS, ROOT, Proxy, Server, until
from tests.test_lives import asks_for_rights
from tests.test_streams import is_underway
from tests.test_transparency import elements

NAMES = Names(b"__expiremember__:")
FAR = 10_000


# Which patterns can match a reserved name.

LETTERS = "ab]^-\\"
BEGINNING = "ab"
SOME_NAMES = [
    BEGINNING,
    *(BEGINNING + one for one in LETTERS),
    *(BEGINNING + one + two for one in LETTERS for two in "a]"),
]


@pytest.fixture(scope="module", params=KINDS)
def names_server(request: pytest.FixtureRequest) -> Iterator[Raw]:
    server = Server(request.param)
    with server.connect() as client:
        for name in SOME_NAMES:
            assert client.command("SET", name, "v") == b"+OK\r\n"
        yield client
    server.close()


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("ab*?[]^-\\", max_size=8))
@example("[^]*")
@example("[")
@example("[a-")
@example("[z-a]*")
@example("\\")
@example("a\\")
@example("a[\\]b]*")
@example("[]a]b")
@example("[^\\")
def test_a_pattern_that_matches_is_never_taken_for_one_that_cannot(names_server: Raw, pattern: str) -> None:
    if names_server.command("KEYS", pattern) != b"*0\r\n":
        assert may_match_beginning(pattern.encode(), BEGINNING.encode())


@pytest.mark.parametrize(
    ("pattern", "may"),
    [("app:*", False), ("*", True), ("_*", True), ("?pp:*", False), ("[a-z]*", False), ("[^a-z]*", True), ("", False),
     ("__expiremember__:*", True), ("__expiremember__", False), ("\\_\\_e*", True), ("\\__f*", False),
     ("__[a-d]*", False), ("__[f-d]*", True), ("??", False), ("cart:[0-9]*", False), ("[", True),
     ("a" * 257, True)],
)  # fmt: skip
def test_what_patterns_need_no_look(pattern: str, may: bool) -> None:
    assert may_match_beginning(pattern.encode(), NAMES.prefix) is may


# What a first deadline makes others do is not done for somebody whom the server refuses.

MAY_NOT = {
    "low": ("~low:*", "~__expiremember__:*", "+@all", "-@dangerous"),
    "nothing": ("-@all", "+ping", "+auth"),
    "scripts": ("~app:*", "~__expiremember__:*", "-@all", "+eval", "+multi", "+exec", "+auth"),
    "blind": ("~app:*", "~__expiremember__:*", "+@all", "-sismember", "-rename", "-copy", "-move"),
}
MAY = ("~app:*", "~low:*", "~__expiremember__:*", "+@all", "-hset")  # not everything, so that nobody goes by scripts


def make_user(pair: Pair, who: str) -> None:
    """Make one of those, and wait until the proxy asks what users may do: it looks for such once a second."""
    if who.encode() in pair.server.command("ACL", "USERS"):
        return
    pair.user(who, *MAY_NOT.get(who, MAY))
    until(lambda: asks_for_rights(pair.server, pair.proxy), what="questions for rights")


@pytest.mark.parametrize("who", [*MAY_NOT, "may"])
@pytest.mark.parametrize("how", ["alone", "behind its own", "in a transaction", "bit by bit"])
def test_a_refused_first_deadline_spoils_nothing(pair: Pair, who: str, how: str) -> None:
    make_user(pair, who)
    key = f"app:{who}-{how.replace(' ', '-')}:k"  # under a prefix of its own
    lines = {
        "alone": [f"EXPIREMEMBER {key} a 100"],
        "behind its own": ["EXPIREMEMBER low:s a 100", f"EXPIREMEMBER {key} a 100"],
    }.get(how, ["MULTI", f"EXPIREMEMBER {key} a 100", "EXEC"])
    with pair.proxy.connect() as client, pair.login(who) as other:
        client.command("SADD", "low:s", "a")
        client.command("SADD", key, "a")
        client.command("MULTI")
        assert client.command("SADD", key, "b") == b"+QUEUED\r\n"
        if how == "bit by bit":
            replies = [other.command(*line.split()) for line in lines]
        else:
            other.send(b"".join(request(*line.split()) for line in lines))
            replies = other.replies(len(lines))
        assert (b":1" in replies[-1]) == (who == "may"), replies
        if who == "low" and how == "behind its own":
            assert replies[0] == b":1\r\n"
        if who == "may":
            # What has come bit by bit is noticed before the next request of the same client.
            assert other.command("PING") == b"+PONG\r\n"
            assert pair.ttl(key, "a") > 90
            assert client.command("EXEC").startswith(b"-EXECABORT")
            assert other.command("SREM", key, "a") == b":1\r\n"
            assert other.command("SADD", key, "a") == b":1\r\n"
            assert pair.ttl(key, "a") == -1
        else:
            assert client.command("EXEC") == b"*1\r\n:1\r\n"


def test_a_refused_first_deadline_hides_no_other_of_its_pipeline(pair: Pair) -> None:
    """Its right is asked for together with the others', and then each by itself."""
    make_user(pair, "low")
    key = "low:beside"
    lines = (f"EXPIREMEMBER {key} a 100", f"SREM {key} a", f"SADD {key} a", "EXPIREMEMBER app:beside a 100")
    with pair.login("low") as client:
        client.command("SADD", key, "a")
        client.send(b"".join(request(*line.split()) for line in lines))
        replies = client.replies(len(lines))
        assert replies[:3] == [b":1\r\n"] * 3
        assert replies[3].startswith(b"-NOPERM")
    assert pair.ttl(key, "a") == -1


@pytest.mark.parametrize("who", ["may", "default"])
def test_a_deadline_that_could_not_be_asked_for_counts_for_who_set_it(
    pair: Pair, start_proxy: StartProxy, who: str
) -> None:
    """Also the first one of all, of a user who may do everything where another may not."""
    make_user(pair, "may")
    with start_proxy(pair.server).connect() as client:
        client.command("AUTH", who, "any")
        for number in range(20):
            key = f"app:unasked:{number}"
            client.command("SADD", key, "a")
            for line in ("MULTI", f"EXPIREMEMBER {key} a 100"):
                client.command(*line.split())
            rest = ["EXEC", f"SREM {key} a", f"SADD {key} a", f"TTL {key} a"]
            client.send(b"".join(request(*line.split()) for line in rest))
            assert client.replies(4)[1:] == [b":1\r\n", b":1\r\n", b":-1\r\n"]


@pytest.mark.parametrize("who", [*MAY_NOT, "may"])
def test_a_refused_first_deadline_cuts_nothing_off(pair: Pair, start_proxy: StartProxy, who: str) -> None:
    """Through the same proxy the permitted one waits for the upload; through another one it cuts it off."""
    make_user(pair, who)
    second = start_proxy(pair.server)
    members = [b"m%d" % number for number in range(6000)]
    for proxy in (pair.proxy, second):
        key = f"app:{who}-{proxy is second}:k"  # under a prefix of its own
        whole = request("SADD", key, *members)
        with pair.proxy.connect() as slow, proxy.connect() as other:
            other.command("AUTH", who, "secret")
            slow.command("SADD", key, "m0")
            slow.send(whole[: len(whole) // 2])
            until(lambda: is_underway(pair.server))
            other.send(request("EXPIREMEMBER", key, "m0", 100))
            if who in MAY_NOT:
                assert other.reply().startswith(b"-NOPERM")
            elif proxy is second:
                assert other.reply() == b":1\r\n"
            slow.send(whole[len(whole) // 2 :])
            if who == "may" and proxy is second:
                assert slow.reply().startswith(b"-ERR expiremember-proxy: not run")
            else:
                assert slow.reply() == b":5999\r\n"
            if who == "may" and proxy is not second:
                assert other.reply() == b":1\r\n"


# A reply of the proxy's own is taken out of the stream, wherever that is cut.


@pytest.mark.parametrize("push", [b"", b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n"])
def test_an_enclosed_reply_is_heard_and_not_passed_on(push: bytes) -> None:
    cut = 0
    while True:
        replies = ReplySubstitution()
        heard: list[bytes] = []

        def hear(said: bytes, heard: list[bytes] = heard) -> bytes:
            heard.append(said)
            return said.replace(b"+yes\r\n", b"")

        tokens = re.findall(rb"[0-9a-f]{32}", replies.enclose(b"", hear))
        before, behind = (b"-ERR unknown command '%b', with args beginning with: \r\n" % token for token in tokens)
        stream = b":1\r\n" + before + b"+yes\r\n" + push + behind + b":2\r\n"
        if cut == len(stream):
            return
        assert replies.receive(stream[:cut]) + replies.receive(stream[cut:]) == b":1\r\n" + push + b":2\r\n"
        assert heard == [b"+yes\r\n"]
        assert not replies.outstanding
        cut += 1


# Users who may run no script.


def answers(where: Raw | Server | Proxy, wanted: bytes, *args: str | bytes | int) -> bool:
    """Whether that is the reply to a request now."""
    return where.command(*args) == wanted


class Pair:
    """A server and a proxy of a module's own: users would stay on the shared ones."""

    def __init__(self, kind: str) -> None:
        self.server = Server(kind)
        self.proxy = Proxy("--upstream", self.server.url)

    def user(self, name: str, *rules: str) -> None:
        assert self.server.command("ACL", "SETUSER", name, "reset", "on", "nopass", "&*", *rules) == b"+OK\r\n"

    def login(self, name: str, *, straight: bool = False) -> Raw:
        client = self.server.connect() if straight else self.proxy.connect()
        assert client.command("AUTH", name, "any") == b"+OK\r\n"
        return client

    def give_deadlines(self, *keys: str) -> None:
        """Make hashes, sets, sorted sets and lists whose names end in h, s, z or l, with deadlines far away."""
        adding = {"h": "HSET {} a 1 b 2 c 3", "s": "SADD {} a b c", "z": "ZADD {} 1 a 2 b 3 c", "l": "RPUSH {} a b c"}
        with self.proxy.connect() as client:
            for key in keys:
                assert client.command(*adding[key[-1]].format(key).split()) == b":3\r\n"
                for member in "abc":
                    assert client.command("EXPIREMEMBER", key, member, FAR) == b":1\r\n"

    def ttl(self, key: str, member: str) -> int:
        return int(self.proxy.command("TTL", key, member)[1:-2])


@pytest.fixture(scope="module", params=KINDS)
def pairs(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with ExitStack() as stack:
        pair = Pair(request.param)
        stack.callback(pair.server.close)
        stack.callback(pair.proxy.close)
        yield pair
        pair.proxy.stop()


@pytest.fixture
def pair(pairs: Pair) -> Pair:
    """A server of each kind, empty, and a proxy in front of it."""
    pairs.server.flush()
    return pairs


def test_a_user_who_has_just_been_made_may_what_the_server_lets_it(pair: Pair) -> None:
    """Also where nobody had few rights before, at which the proxy looks once a second."""
    pair.server.forget_users()
    until(lambda: not asks_for_rights(pair.server, pair.proxy), what="no questions for rights")
    pair.give_deadlines("app:s")
    pair.user("new", "~app:*", "+sadd")
    with pair.login("new") as client:
        assert client.command("SADD", "app:s", "d") == b":1\r\n"
    pair.user("newer", "~app:*", "+sadd")
    with pair.proxy.connect() as client:
        client.send(request("HELLO", 3, "SETNAME", "auth", "AUTH", "newer", "any") + request("SADD", "app:s", "e"))
        assert client.reply().startswith(b"%")
        assert client.reply() == b":1\r\n"


def test_a_transaction_goes_on_as_it_began_though_somebody_gets_few_rights_meanwhile(pair: Pair) -> None:
    pair.server.forget_users()
    until(lambda: not asks_for_rights(pair.server, pair.proxy), what="no questions for rights")
    pair.give_deadlines("s")
    with pair.proxy.connect() as client:
        assert client.command("MULTI") == b"+OK\r\n"
        assert client.command("SPOP", "s", 5) == b"+QUEUED\r\n"
        make_user(pair, "low")
        assert client.command("SADD", "s", "a") == b"+QUEUED\r\n"
        assert client.command("EXEC").startswith(b"*2\r\n")
    assert pair.ttl("s", "a") == -1


def test_who_may_set_a_first_deadline_may_do_so_with_replies_off(pair: Pair) -> None:
    """It is known what the server says, so that what the same client sends next is judged by it."""
    make_user(pair, "may")
    with pair.login("may") as client:
        assert client.command("SADD", "app:off", "a", "b") == b":2\r\n"
        lines = (
            "CLIENT REPLY OFF",
            "EXPIREMEMBER app:off a 100",
            "SREM app:off a",
            "SADD app:off a",
            "CLIENT REPLY ON",
        )
        client.send(b"".join(request(*line.split()) for line in (*lines, "TTL app:off a")))
        assert client.replies(2) == [b"+OK\r\n", b":-1\r\n"]


WITHOUT_SCRIPTS = {
    "no scripts": ("~app:*", "+@all", "-@scripting"),
    "scripts, but not the proxy's keys": ("~app:*", "+@all"),
    "the proxy's keys, but not what scripts need": ("~*", "+@all", "-zscore", "-time"),
}


@pytest.fixture(params=WITHOUT_SCRIPTS)
def limited(request: pytest.FixtureRequest, pair: Pair) -> Iterator[Raw]:
    """A client of the proxy that has logged in as a user for whom scripts cannot stand in."""
    pair.user("limited", *WITHOUT_SCRIPTS[request.param])
    with pair.login("limited") as client:
        yield client


AS_THEY_CAME = [
    ("SADD app:s a", 0), ("SADD app:s d", 1), ("SREM app:s d", 1), ("SADD app:s d e", 2), ("HSET app:h d 1 a 2", 1),
    ("HDEL app:h b", 1), ("HSETNX app:h b 1", 1), ("HINCRBY app:h n 1", 1), ("RPUSH app:l d", 4), ("LREM app:l 0 d", 1),
    ("ZADD app:z 4 d", 1), ("SMOVE app:s app:t a", 1), ("LSET app:l 0 x", "OK"), ("DEL app:z app:missing", 1),
    ("SET app:h string", "OK"), ("UNLINK app:h", 1), ("MSET app:1 v app:2 v", "OK"),
    ("EXISTS app:1", 1),
]  # fmt: skip


def test_a_user_without_scripts_does_what_the_server_allows(pair: Pair, limited: Raw) -> None:
    pair.give_deadlines("app:h", "app:s", "app:z", "app:l")
    for line, wanted in AS_THEY_CAME:
        reply = limited.command(*line.split())
        assert reply == (b":%d\r\n" % wanted if isinstance(wanted, int) else b"+OK\r\n"), line
    assert 0 < pair.ttl("app:s", "b") <= FAR


def test_a_user_without_scripts_sees_what_the_server_shows(pair: Pair, limited: Raw) -> None:
    pair.give_deadlines("app:h", "app:s")
    assert limited.command("KEYS", "app:?") == pair.server.command("KEYS", "app:?")
    assert set(elements(limited.command("KEYS", "*"))) == set(elements(pair.server.command("KEYS", "*")))
    assert limited.command("DBSIZE") == pair.server.command("DBSIZE")
    assert limited.command("SCAN", 0, "MATCH", "app:s", "COUNT", 1000) == b"*2\r\n$1\r\n0\r\n*1\r\n$5\r\napp:s\r\n"
    seen = limited.command("SCAN", 0)
    assert all(key in seen for key in (b"\r\napp:s\r\n", b"\r\napp:h\r\n", b":k:{app:s}\r\n", b":index\r\n"))
    assert limited.command("RANDOMKEY").startswith(b"$")


def test_a_member_that_such_a_user_brings_back_has_no_deadline(pair: Pair, limited: Raw) -> None:
    """One by one, in one pipeline, and in a transaction; by each way to remove and each way to add."""
    ways = [
        ("app:s", "SREM app:s a", "SADD app:s a"),
        ("app:s", "SPOP app:s 3", "SADD app:s a b c"),
        ("app:s", "DEL app:s", "SADD app:s a"),
        ("app:h", "HDEL app:h a", "HSET app:h a 1"),
        ("app:h", "SET app:h string", "DEL app:h", "HSET app:h a 1"),
        ("app:h", "HDEL app:h a", "HINCRBY app:h a 1"),
        ("app:z", "ZREMRANGEBYRANK app:z 0 -1", "ZADD app:z 1 a"),
        ("app:l", "LREM app:l 0 a", "LPUSH app:l a"),
        ("app:s", "SREM app:s a", "SADD app:other a", "SMOVE app:other app:s a"),
        ("app:l", "LREM app:l 0 a", "RPUSH app:other a", "RPOPLPUSH app:other app:l"),
    ]
    for key, *lines in ways:
        for how in ("one by one", "one pipeline", "transaction"):
            pair.server.flush()
            pair.give_deadlines(key)
            if how == "one by one":
                replies = [limited.command(*line.split()) for line in lines]
            else:
                requests = [request(*line.split()) for line in lines]
                if how == "transaction":
                    # What goes and comes back within it keeps its deadline: so it goes before, in the same pipeline.
                    requests[-1:] = [request("MULTI"), requests[-1], request("EXEC")]
                limited.send(b"".join(requests))
                replies = limited.replies(len(requests))
            assert not [reply for reply in replies if reply.startswith(b"-")], (lines, how, replies)
            assert pair.ttl(key, "a") == -1, (lines, how)


def test_what_is_removed_late_is_voided_after_that(pair: Pair, limited: Raw) -> None:
    """The removal waits behind a request that blocks, and so must the look which members are absent."""
    pair.give_deadlines("app:s")
    assert limited.command("SADD", "app:s", "b") == b":0\r\n"  # the proxy asks for the user's rights
    limited.send(b"".join(request(*line.split()) for line in ("BLPOP app:no 0.2", "SREM app:s a", "SADD app:s a")))
    assert limited.replies(3)[1:] == [b":1\r\n", b":1\r\n"]
    assert pair.ttl("app:s", "a") == -1


def check_permissions_unknown(server: Server, proxy: Proxy) -> None:
    """A server that answered nothing, since it was busy, has not said that a client may run no scripts."""
    assert server.command("ACL", "SETUSER", "other", "on", "nopass", "~x:*", "+get") == b"+OK\r\n"
    try:
        with server.busy_after(1), proxy.connect() as client, server.connect() as busy:
            client.command("HSET", "c:h", "f", 1)
            assert client.command("HEXPIRE", "c:h", 90, "FIELDS", 1, "f") == b"*1\r\n:1\r\n"
            old = time.monotonic() + TRUST_MS / 1000 + 0.1
            until(lambda: time.monotonic() > old, what="permissions that must be asked for again")
            busy.send_command("EVAL", "while true do end", 0)
            until(lambda: server.command("PING").startswith(b"-BUSY"), what="BUSY")
            assert client.command("HSET", "c:h", "g", 1).startswith(b"-BUSY")
            assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
            until(lambda: server.command("PING") == b"+PONG\r\n", what="an idle server")
            assert client.command("HSET", "c:h", "f", 2) == b":0\r\n"
            assert client.command("HTTL", "c:h", "FIELDS", 1, "f") == b"*1\r\n:-1\r\n"
            assert b"__expiremember__" not in client.command("KEYS", "*")
    finally:
        server.command("ACL", "DELUSER", "other")


@pytest.mark.every_kind
def test_a_busy_server_has_not_denied_permissions(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    check_permissions_unknown(server, start_proxy(server))


def test_a_member_that_such_a_user_overwrites_keeps_its_deadline(pair: Pair, limited: Raw) -> None:
    pair.give_deadlines("app:h")
    assert limited.command("HSET", "app:h", "a", 5) == b":0\r\n"
    assert 0 < pair.ttl("app:h", "a") <= FAR


def test_a_user_cannot_void_what_is_there_by_requests_that_fail(pair: Pair, limited: Raw) -> None:
    """The engine acts before the server has judged the request: it must do nothing that can be noticed."""
    pair.user("limited", "~app:*", "-@all", "+ping")
    pair.give_deadlines("app:s", "other:s")
    for line in (
        "SADD other:s a",
        "DEL other:s",
        "SUNIONSTORE other:s app:s",
        "RENAME app:s other:s",
        "SREM other:s a",
    ):
        assert limited.command(*line.split()).startswith(b"-NOPERM"), line
    for key in ("app:s", "other:s"):
        assert [0 < pair.ttl(key, member) <= FAR for member in "abc"] == [True] * 3


def test_rights_are_asked_for_again_after_a_login(pair: Pair) -> None:
    pair.user("limited", *WITHOUT_SCRIPTS["no scripts"])
    pair.user("free", "~*", "+@all")
    pair.give_deadlines("app:s")
    with pair.proxy.connect() as client:
        for name, login in (
            ("free", ("AUTH", "free", "x")),
            ("limited", ("AUTH", "limited", "x")),
            ("free", ("HELLO", 3, "AUTH", "free", "x")),
            ("limited", ("AUTH", "limited", "x")),
        ):
            assert client.command(*login)[:1] in b"+%"
            keys = elements(client.command("KEYS", "*"))
            assert (NAMES.index in keys) == (name == "limited")
            assert client.command("SADD", "app:s", "a") == b":0\r\n"
        assert client.command("RESET") == b"+RESET\r\n"
        assert elements(client.command("KEYS", "*")) == [b"app:s"]


DONE_WITHOUT = {
    "hlen", "llen", "scard", "lrange", "lset", "hpexpireat",  # scripts ask for these first, or count in another way
    "publish",  # counted as failed
    "sadd", "renamenx",  # the client's own request
    "set",  # a type; and of write.lua, which WAIT tells of
    "get",  # of a counter beyond 2^53: without it the reply is near
}  # fmt: skip


def test_all_rights_that_scripts_use_are_asked_for(pair: Pair) -> None:
    """Collected from the scripts that run as clients' users: all that the sessions name."""
    sessions = "".join(path.read_text("utf-8") for path in (ROOT / "proxy" / "session").glob("*.py"))
    commands = {info[0].decode() for info in parse(pair.server.command("COMMAND"))}
    found: dict[str, str] = {}
    for path in (ROOT / "proxy" / "scripts" / "lua").glob("*.lua"):
        if path.stem != "rights" and f'"{path.stem}"' in sessions:
            code = re.sub(r"--.*", "", composed(path.stem, Variant(told=True)))
            found.update(dict.fromkeys(commands.intersection(re.findall(r"'([a-z]+)'", code)), path.stem))
    assert len(found) > 40
    asked = {*_INNER.decode().split(), *DONE_WITHOUT}
    assert {name: where for name, where in found.items() if name not in asked} == {}
    assert (asked & commands).difference(found) <= {"keys"}  # a client's own, which keys.lua replaces


@pytest.mark.parametrize("name", ["hset", "zrange", "zscan"])
def test_a_user_without_a_command_that_few_scripts_use_has_few_rights(pair: Pair, name: str) -> None:
    """As one is shown by seeing the proxy's own keys."""
    pair.give_deadlines("app:s")
    pair.user("some", "~*", "&*", "+@all", f"-{name}")
    until(lambda: asks_for_rights(pair.server, pair.proxy), what="questions for rights")
    with pair.login("some") as client:
        assert NAMES.index in elements(client.command("KEYS", "*"))


@pytest.mark.every_kind
def test_each_right_that_scripts_use_counts(kind: str) -> None:
    """Newer servers say whether a command is allowed only for as many arguments as it takes (Redis 8.2.9).

    Redis before 7.0 is not asked for those of clients' own requests: the scripts run these, and fail.
    """
    server = Server(installed(kind))
    try:
        keys = [b"k", NAMES.shadow(b"k"), NAMES.index]
        terms = Terms(writes=False, takes_memory=False, declared=server.version >= (7,))
        asking = evaluation(terms, "rights", keys, [_ALL, b"said "])
        assert server.command("ZADD", NAMES.index, 1, "k") == b":1\r\n"  # rpush is tried on it
        tried = {*_ALL.decode().split()} if server.version >= (7,) else {*_INNER.decode().split()} - {"keys"}
        for name in sorted(tried):
            made = server.command("ACL", "SETUSER", "some", "reset", "on", "nopass", "~*", "&*", "+@all", f"-{name}")
            if made.startswith(b"-ERR Error in ACL SETUSER modifier"):
                assert server.command("COMMAND", "INFO", name).startswith((b"*1\r\n*-1\r\n", b"*1\r\n$-1\r\n"))
                continue
            assert made == b"+OK\r\n"
            with server.connect() as client:
                assert client.command("AUTH", "some", "any") == b"+OK\r\n"
                client.send(asking)
                assert client.reply() == b"+said 0\r\n", name
    finally:
        server.close()


def test_rights_that_change_count_within_seconds(pair: Pair) -> None:
    pair.user("some", "~*", "+@all")
    pair.give_deadlines("app:s")
    with pair.login("some") as client:
        assert elements(client.command("KEYS", "*")) == [b"app:s"]
        pair.user("some", "~app:*", "+@all", "-@scripting")
        until(lambda: client.command("SADD", "app:s", "a") == b":0\r\n", 5, "an answer without a script")
        pair.user("some", "~*", "+@all")
        until(lambda: elements(client.command("KEYS", "*")) == [b"app:s"], 5, "an answer by a script")


def test_nothing_is_put_between_requests_that_belong_together(pair: Pair) -> None:
    """CLIENT REPLY SKIP and CLIENT CACHING speak of the next request."""
    pair.user("limited", *WITHOUT_SCRIPTS["no scripts"])
    pair.give_deadlines("app:s")
    with pair.login("limited") as client:
        assert client.command("SADD", "app:s", "a") == b":0\r\n"
        skip = request("CLIENT", "REPLY", "SKIP") + request("SADD", "app:s", "x")
        off = request("CLIENT", "REPLY", "OFF") + request("SREM", "app:s", "x") + request("DBSIZE")
        client.send(skip + request("SADD", "app:s", "x") + off + request("CLIENT", "REPLY", "ON"))
        assert client.replies(2) == [b":0\r\n", b"+OK\r\n"]
        assert client.command("SISMEMBER", "app:s", "x") == b":0\r\n"


@pytest.mark.parametrize("before", ["CLIENT REPLY OFF", "CLIENT REPLY SKIP", "CLIENT CACHING YES"])
def test_who_goes_on_where_nobody_can_be_asked_has_been_asked_before(pair: Pair, before: str) -> None:
    """The first that a new user says forbids the proxy to put anything behind it."""
    pair.user("limited", *WITHOUT_SCRIPTS["no scripts"])
    pair.give_deadlines("app:s")
    with pair.login("limited") as client:
        if "CACHING" in before:
            assert client.command("HELLO", 3).startswith(b"%")
            assert client.command("CLIENT", "TRACKING", "ON", "OPTIN") == b"+OK\r\n"
        assert client.command("AUTH", "limited", "pw") == b"+OK\r\n"
        words = [request(*line.split()) for line in (before, "SADD app:s x", "CLIENT REPLY ON", "SISMEMBER app:s x")]
        client.send(b"".join(words))
        until(lambda: client.reply() == b":1\r\n", what="the member that was added without a script")


def test_a_client_that_watches_all_requests_is_answered_too(pair: Pair) -> None:
    """MONITOR shows, on the connection itself, what the proxy puts into it."""
    pair.give_deadlines("app:s")
    with pair.proxy.connect() as client:
        assert client.command("MONITOR") == b"+OK\r\n"
        client.send(request("DBSIZE") + request("PING"))
        until(lambda: client.reply().startswith(b"-ERR Replica can't"), what="the server's refusal")
        until(lambda: client.reply() == b"+PONG\r\n", what="the reply of PING")


def test_before_a_login_everything_is_refused_by_the_server(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind, "--requirepass", "pw")
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//:pw@"))
    with proxy.connect() as client, proxy.connect() as stranger:
        assert client.command("AUTH", "pw") == b"+OK\r\n"
        assert client.command("SADD", "s", "a") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s", "a", FAR) == b":1\r\n"
        for line in ("SADD s a", "DBSIZE", "KEYS *", "MULTI", "DEL s", "RENAME s t", "EXPIREMEMBER s a 9"):
            assert stranger.command(*line.split()).startswith(b"-NOAUTH"), line
        assert stranger.command("AUTH", "pw") == b"+OK\r\n"
        assert stranger.command("DBSIZE") == b":1\r\n"


def test_while_the_control_connection_is_down(pair: Pair, start_proxy: StartProxy) -> None:
    """Nobody knows then which keys have deadlines: a request that needs no script goes as it came."""
    pair.user("control", "~*", "+@all")
    pair.user("limited", "~app:*", "+@all", "-@scripting")
    pair.user("free", "~*", "+@all")
    proxy = start_proxy(None, "--upstream", pair.server.url.replace("//", "//control:x@"))
    pair.give_deadlines("app:s")
    with proxy.connect() as limited, proxy.connect() as free:
        assert limited.command("AUTH", "limited", "x") == free.command("AUTH", "free", "x") == b"+OK\r\n"
        pair.user("control", "off")
        assert pair.server.command("CLIENT", "KILL", "USER", "control")[:1] == b":"
        proxy.process.line(lambda line: "no control connection" in line)
        for client in (limited, free):
            for line, wanted in (
                ("SET app:new v", b"+OK\r\n"), ("DEL app:new", b":1\r\n"), ("GET app:new", b"$-1\r\n"),
                ("KEYS app:n*", b"*0\r\n"), ("MSET app:1 v app:2 v", b"+OK\r\n"), ("DEL app:1 app:2", b":2\r\n"),
            ):  # fmt: skip
                assert client.command(*line.split()) == wanted, line
        assert limited.command("DBSIZE") in (b":3\r\n", b":4\r\n")  # with the proxy's own; a list may come later
        assert free.command("DBSIZE") == b":1\r\n"
        # A collection that goes unnoticed takes its deadlines along all the same.
        assert limited.command("DEL", "app:s") == b":1\r\n"
        assert free.command("SADD", "app:s", "a") == b":1\r\n"
        assert free.command("TTL", "app:s", "a") == b":-1\r\n"
    pair.user("control", "on", "~*", "+@all")


# Errors are told in the server's own words.

ON_EVERY_TYPE = [
    "HSET {} a", "HSET {} a 1 b", "HSET {} a 1", "HINCRBYFLOAT {} a x", "HINCRBYFLOAT {} n 1", "HINCRBY {} a x",
    "HSETNX {} a 1", "SADD {}", "SADD {} a", "ZADD {} x a", "ZADD {} nan a", "ZADD {} NX XX 1 a", "ZADD {} NX GT 1 a",
    "ZADD {} INCR 1 a 2 b", "ZADD {} 1 a", "ZINCRBY {} x a", "ZINCRBY {} 1 a", "GEOADD {} 200 200 a",
    "GEOADD {} x 1 a", "LPUSH {} a", "LINSERT {} NEAR a b", "LINSERT {} BEFORE a b", "LSET {} 99 a", "LSET {} x a",
    "LREM {} x a", "LREM {} 0 zz", "HDEL {} zz", "SREM {} zz", "ZREM {} zz", "SMOVE {} app:str a",
    "SMOVE app:str {} a", "SMOVE {} app:none zz", "RPOPLPUSH {} app:str", "LMOVE {} app:str LEFT LEFT",
    "LMOVE {} app:none UP LEFT", "SUNIONSTORE {} app:str", "SINTERSTORE {} {} app:str", "ZUNIONSTORE {} x app:str",
    "ZUNIONSTORE {} 1 app:str", "ZRANGESTORE {} app:str 0 -1", "SORT app:str STORE {}", "RESTORE {} 0 junk",
    "RESTORE {} 0 junk REPLACE", "BITOP XOR {} app:s", "RENAME app:missing {}", "RENAMENX {} app:str",
    "COPY {} app:str", "COPY {} app:none DB 99", "COPY {} app:none DB x", "MOVE {} 99", "MOVE {} 0", "SET {} v EX x",
    "SET {} v NX XX", "SETEX {} 0 v", "MSET {}", "GEORADIUS app:str 1 1 1 km STORE {}",
]  # fmt: skip


def same_errors(pair: Pair, straight: Raw, through: Raw, keys: list[str], lines: list[str]) -> int:
    """Compare what is said to requests that fail, on keys with deadlines; return how many did."""
    failed = 0
    for key in keys:
        for line in lines:
            data = request(*line.format(key, key).split())
            straight.send(data)
            wanted = straight.reply()
            if not wanted.startswith(b"-"):
                continue
            failed += 1
            through.send(data)
            got = through.reply()
            assert got == wanted, (line, key)
    return failed


@pytest.mark.parametrize("protocol", [2, 3])
def test_errors_on_keys_with_deadlines_are_the_servers_own(pair: Pair, protocol: int) -> None:
    keys = ["app:h", "app:s", "app:z", "app:l"]
    pair.give_deadlines(*keys)
    with pair.server.connect() as straight, pair.proxy.connect() as through:
        for client in (straight, through):
            client.command("HELLO", protocol)
        # A request may succeed straight, so each is tried on what is still as it was.
        straight.command("SET", "app:str", "v")
        failed = 0
        for line in ON_EVERY_TYPE:
            pair.server.flush()
            pair.give_deadlines(*keys)
            straight.command("SET", "app:str", "v")
            failed += same_errors(pair, straight, through, keys, [line])
        assert failed > 120


@pytest.mark.parametrize("without", ["-sadd", "-hset", "-srem", "-rename", "-sunionstore", "-del", "-eval"])
def test_a_right_that_is_missing_is_told_as_the_server_tells_it(pair: Pair, without: str) -> None:
    pair.user("some", "~app:*", f"~{NAMES.prefix.decode()}*", "+@all", without)
    keys = ["app:h", "app:s"]
    lines = ["SADD {} a", "HSET {} a 1", "SREM {} a", "DEL {}", "EVAL return(1) 1 {}", "SADD other a", "DEL other"]
    if without != "-eval":  # for these a script has to stand in
        lines += ["RENAME {} app:t", "SUNIONSTORE {} app:s", "COPY {} app:t REPLACE"]
    with pair.login("some", straight=True) as straight, pair.login("some") as through:
        failed = 0
        for line in lines:
            pair.server.flush()
            pair.give_deadlines(*keys)
            failed += same_errors(pair, straight, through, keys, [line])
        assert failed >= 6
        for client in (straight, through):
            client.send(b"".join(request(*line.split()) for line in ("MULTI", "SADD other a", "EXEC")))
        assert straight.replies(3) == through.replies(3)


@pytest.mark.parametrize("rules", [f"~{NAMES.prefix.decode()}* -eval", f"~{NAMES.prefix.decode()}* -hincrby", ""])
def test_the_first_request_of_a_user_with_few_rights_counts(pair: Pair, rules: str) -> None:
    """Nobody has asked yet what the user may do."""
    pair.user("some", "~app:*", "+@all", *rules.split())
    for requests in (["HINCRBY app:h n 1"], ["CLIENT REPLY SKIP", "HINCRBY app:h n 1", "PING"]):
        replies = []
        for straight in (True, False):
            pair.server.flush()
            pair.give_deadlines("app:h")
            with pair.login("some", straight=straight) as client:
                client.send(b"".join(request(*line.split()) for line in requests))
                replies.append(client.reply())
        assert replies[0] == replies[1], requests


def test_without_memory_and_on_a_replica_errors_are_the_servers_own(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server)
    lines = [
        "SADD app:s new",
        "HSET app:h a 2",
        "ZADD app:z 1 new",
        "RPUSH app:l a",
        "SET app:s v",
        "SUNIONSTORE app:s app:s",
        "COPY app:s app:t",
    ]
    with server.connect() as straight, proxy.connect() as through:
        for line in ("SADD app:s a", "HSET app:h a 1", "ZADD app:z 1 a", "RPUSH app:l a"):
            through.command(*line.split())
            assert through.command("EXPIREMEMBER", line.split()[1], "a", FAR) == b":1\r\n"
        straight.command("CONFIG", "SET", "maxmemory", 1)
        for line in lines:
            wanted = straight.command(*line.split())
            assert wanted.startswith(b"-OOM"), line
            assert through.command(*line.split()) == wanted, line
        assert through.command("EXPIREMEMBER", "app:s", "a", 9) == straight.command("SADD", "app:s", "new")
        straight.command("CONFIG", "SET", "maxmemory", 0)
        straight.command("REPLICAOF", "127.0.0.1", 1)
        with suppress(ConnectionError):
            for _ in range(5):  # all connections end when it shows to be a primary no more
                through.command("EVAL", "return 1", 1, "app:s")
    with server.connect() as straight, proxy.connect() as through:
        for line in (*lines, "SREM app:s a", "DEL app:s", "RENAME app:s app:t"):
            wanted = straight.command(*line.split())
            assert wanted.startswith(b"-READONLY"), line
            assert through.command(*line.split()) == wanted, line
        assert through.command("EXPIREMEMBER", "app:s", "a", 9) == straight.command("SADD", "app:s", "new")


# Exactly the rights that the documentation names.

SECURITY = (ROOT / "docs" / "security.md").read_text("utf-8")
ADDING = {"set": "SADD {} a b", "hash": "HSET {} a 1 b 2", "sorted": "ZADD {} 1 a 2 b", "list": "RPUSH {} a b"}
REMOVING = {"set": "SREM {} a", "hash": "HDEL {} a", "sorted": "ZREM {} a", "list": "LREM {} 0 a"}
REQUESTS: dict[str, list[tuple[str, str, int | str]]] = {
    # Whether there are deadlines before, the request, and its reply.
    "EXPIREMEMBER": [
        ("none", "EXPIREMEMBER app:k a 100", 1),
        ("both", "EXPIREMEMBER app:k a 200 NX", 0),
        ("both", "PEXPIREMEMBER app:k a 9999999", 1),
        ("both", "EXPIREMEMBERAT app:k a 1", 1),
        ("last", "PEXPIREMEMBERAT app:k b 1", 1),
    ],
    "TTL": [("both", "TTL app:k a", 1000), ("gone", "TTL app:k a", 1000)],
    "PERSIST": [("both", "PERSIST app:k a", 1), ("gone", "PERSIST app:k a", 1)],
    "SUNIONSTORE": [("both", "SUNIONSTORE app:k app:o", 2)],
    "RENAME": [("both", "RENAME app:k app:o", "OK"), ("both", "RENAME app:o app:k", "OK")],
    "COPY": [("both", "COPY app:k app:o REPLACE", 1), ("both", "COPY app:o app:k REPLACE", 1)],
    "MOVE": [("both", "MOVE app:k 1", 1), ("none", "MOVE app:k 1", 1)],
}
STRAIGHT = {
    "eval": "EVAL return(1) 0", "time": "TIME", "type": "TYPE k", "exists": "EXISTS k", "sismember": "SISMEMBER k m",
    "srem": "SREM k m", "hexists": "HEXISTS k m", "hdel": "HDEL k m", "lpos": "LPOS k m", "lrem": "LREM k 0 m",
    "unlink": "UNLINK k", "zadd": "ZADD k 1 m", "zrem": "ZREM k m", "zscore": "ZSCORE k m",
    "zrangebyscore": "ZRANGEBYSCORE k 0 0", "zrevrangebyscore": "ZREVRANGEBYSCORE k 0 0",
    "sunionstore": "SUNIONSTORE k k", "rename": "RENAME k k", "copy": "COPY k k", "move": "MOVE k 1",
    "select": "SELECT 0",
}  # fmt: skip
"""A request of each command, such as the server judges."""
KEYS = {
    "key": b"app:k", "shadow": NAMES.shadow(b"app:k"), "index": NAMES.index,
    "other key": b"app:o", "other shadow": NAMES.shadow(b"app:o"),
}  # fmt: skip


def rights_table() -> list[tuple[str, str, list[str], list[str]]]:
    """The rows: the first command named, the type of the collection, keys, and commands."""
    table = SECURITY.split("<!-- rights -->")[1].split("<!-- /rights -->")[0]
    rows = []
    for line in table.strip().splitlines()[2:]:
        requests, keys, commands = (cell.strip() for cell in line.strip("|").split("|"))
        named = re.findall(r"`([A-Z]+)`", requests)
        kind = next((kind for kind in ADDING if f"a {kind}" in requests), "set")
        rows.append((named[0], kind, keys.split(", "), [*commands.strip("`").split()]))
    return rows


def contents(server: Server) -> dict[tuple[int, bytes], Any]:
    """What the server has in its first two databases, but for the lease and the covered prefixes.

    Scores in whole ms: the background pass notes in the fraction when it first met a void deadline.
    """
    found: dict[tuple[int, bytes], Any] = {}
    for database in (0, 1):
        with server.connect() as client:
            client.command("SELECT", database)
            for key in parse(client.command("KEYS", "*")):
                if key in (NAMES.lease, NAMES.covered):
                    continue
                if key.startswith(NAMES.prefix):
                    pairs = [*parse(client.command("ZRANGE", key, 0, -1, "WITHSCORES"))]
                    found[database, key] = {
                        member: int(float(score)) for member, score in zip(pairs[::2], pairs[1::2], strict=True)
                    }
                else:
                    found[database, key] = client.command("DUMP", key)
    return found


def said_to(pair: Pair, command: str, kind: str, rules: list[str]) -> list[bytes]:
    """What a user with these rules is told to the requests for a row, each on data of its own, which refusals leave."""
    replies = []
    for before, line, _ in REQUESTS[command]:
        pair.server.flush()
        with pair.proxy.connect() as client:
            for key in ("app:k", "app:o"):
                assert client.command(*ADDING[kind].format(key).split())[:1] in b":+"
            for member, seconds in (("a", 1000), ("b", 2000)):
                assert client.command("EXPIREMEMBER", "app:k", member, seconds) == b":1\r\n"
                if before == "none":
                    assert client.command("PERSIST", "app:k", member) == b":1\r\n"
            if before in ("last", "gone"):
                assert client.command(*REMOVING[kind].format("app:k").split()) == b":1\r\n"
        pair.user("exact", "-@all", *rules)
        was = contents(pair.server)
        with pair.login("exact") as client:
            replies.append(client.command(*line.split()))
        if replies[-1].startswith(b"-") and pair.server.version >= (7,):
            assert contents(pair.server) == was, (line, rules, replies[-1])
        if not replies[-1].startswith(b"-"):
            now = contents(pair.server)
            for database in (0, 1):
                left = [one for one in now.get((database, NAMES.index), ()) if (database, NAMES.shadow(one)) not in now]
                assert not left, (line, rules)
    return replies


@pytest.mark.parametrize("row", rights_table(), ids=lambda row: f"{row[0]}-{row[1]}")
def test_exactly_the_rights_that_are_documented(pair: Pair, row: tuple[str, str, list[str], list[str]]) -> None:
    command, kind, keys, commands = row
    key_rules = {key: f"~{KEYS[key].decode()}" for key in keys}
    rules = {**key_rules, **{name: f"+{name}" for name in commands}}
    for (_, line, wanted), reply in zip(
        REQUESTS[command], said_to(pair, command, kind, [*rules.values()]), strict=True
    ):
        if wanted == 1000:
            assert about(reply, 1000), line
        else:
            assert reply == (b":%d\r\n" % wanted if isinstance(wanted, int) else b"+OK\r\n"), line
    for missing in rules:
        replies = said_to(pair, command, kind, [rule for name, rule in rules.items() if name != missing])
        with pair.login("exact", straight=True) as straight:
            if missing in STRAIGHT:
                refusal = straight.command(*STRAIGHT[missing].split())
            elif "eval" in commands:
                refusal = straight.command("EVAL", "return 1", 1, KEYS[missing])
            else:
                refusal = straight.command("TYPE", KEYS[missing])
        assert refusal.startswith(b"-NOPERM"), missing
        assert refusal in replies, (missing, replies)


READERS = {"reads only": ("%R~*", "+@read", "+hello"), "reads": ("~*", "+@read", "+hello", "+time", "-eval")}


@pytest.mark.parametrize("who", READERS)
@pytest.mark.parametrize("protocol", [2, 3])
def test_who_may_only_read_is_told_lifetimes(pair: Pair, who: str, protocol: int) -> None:
    rules = [rule if pair.server.version >= (7,) else rule.replace("%R", "") for rule in READERS[who]]
    keys = [f"{{app}}:{kind}" for kind in "hszl"]
    pair.give_deadlines(*keys)
    pair.server.command("SET", "{app}:v", "v")
    pair.user("reader", "-@all", *rules)
    with pair.login("reader") as reader, pair.proxy.connect() as client:
        reader.command("HELLO", protocol)
        for key in keys:
            assert about(reader.command("TTL", key, "a"), FAR), key
            assert about(int(reader.command("PTTL", key, "a")[1:-2]) // 1000, FAR), key
            assert client.command("PERSIST", key, "a") == b":1\r\n"
            assert reader.command("TTL", key, "a") == b":-1\r\n"
            remove = {"h": "HDEL {} b", "s": "SREM {} b", "z": "ZREM {} b", "l": "LREM {} 0 b"}[key[-1]]
            assert client.command(*remove.format(key).split()) == b":1\r\n"
            assert about(reader.command("TTL", key, "b"), FAR)  # as KeyDB does, what it would have had
            assert client.command("PEXPIREMEMBER", key, "c", 30) == b":1\r\n"
            left = int(reader.command("PTTL", key, "c")[1:-2])
            assert -1 <= left <= 30
            until(partial(answers, reader, b":-1\r\n", "PTTL", key, "c"), timeout=2)
        assert reader.command("TTL", "nothing", "a") == b":-2\r\n"
        assert reader.command("TTL", "{app}:v", "a") == b":-1\r\n"
        lines = ["TTL {app}:s a", "TTL {app}:s x", "GET {app}:v", "TTL {app}:s b", "TTL {app}:s"]
        reader.send(b"".join(request(*line.split()) for line in lines))
        replies = reader.replies(5)
        assert replies[:3] == [b":-1\r\n", b":-1\r\n", b"$1\r\nv\r\n"]
        assert about(replies[3], FAR)
        assert replies[4] == b":-1\r\n"
        shadow = NAMES.shadow(b"{app}:s")
        score = float(parse(pair.server.command("ZSCORE", shadow, "b")))
        assert score < 0
        assert pair.server.command("SADD", "{app}:s", "b") == b":1\r\n"  # back, past the proxy: it has no deadline
        assert reader.command("TTL", "{app}:s", "b") == b":-1\r\n"
        # Only the key's own pattern: the shadow is missed, and nothing is told.
        pair.user("reader", "-@all", "~{app}:*", "+@read")
        assert reader.command("TTL", "{app}:s", "b").startswith(b"-NOPERM")


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_acl_dryrun_is_asked_for_the_commands_of_a_row(
    start_server: StartServer, start_proxy: StartProxy, kind: str
) -> None:
    server = start_server(kind)
    proxy = start_proxy(server)
    assert server.command("ACL", "SETUSER", "reader", "on", "nopass", "%R~*", "+@read") == b"+OK\r\n"
    said = {}
    for line in re.findall(r"^127.0.0.1:6380> (ACL DRYRUN .+)$", SECURITY, re.MULTILINE):
        said[line] = parse(proxy.command(*(word.strip('"') for word in re.findall(r'"[^"]+"|\S+', line)))).decode()
        of_all = said[line].replace("This user", "User reader")  # Redis 7.0
        assert f'{line}\n"{of_all}"\n' in SECURITY
    assert len(said) == 2
    assert proxy.command("ACL", "DRYRUN", "reader", "EXPIREMEMBER", "k", "m", 1) == (
        b"-ERR Command 'EXPIREMEMBER' not found\r\n"
    )
    assert b"wrong number of arguments" in proxy.command("ACL", "DRYRUN", "reader", "TTL", "k", "m")


@pytest.mark.every_kind
def test_who_may_renamenx_and_not_rename_takes_deadlines_along(
    start_server: StartServer, start_proxy: StartProxy, kind: str
) -> None:
    pair = Pair.__new__(Pair)
    pair.server = start_server(kind)
    pair.proxy = start_proxy(pair.server)
    pair.give_deadlines("app:s", "to:s")
    pair.server.command("DEL", "to:s")  # its deadlines are left over
    pair.user("some", "~*", "+@all", "-rename")
    with pair.login("some") as client:
        assert client.command("RENAMENX", "app:s", "to:s") == b":1\r\n"
        assert client.command("SADD", "app:s", "a") == b":1\r\n"
    assert about(pair.ttl("to:s", "a"), FAR)
    assert pair.ttl("app:s", "a") == -1


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
@pytest.mark.parametrize(
    "line", ["RENAME app:s app:t", "COPY app:s app:t REPLACE", "COPY app:s t DB 1", "MOVE app:s 1"]
)
def test_a_right_that_a_selector_gives_to_some_keys_only_is_missed_before_anything_is_done(
    start_server: StartServer, start_proxy: StartProxy, kind: str, line: str
) -> None:
    """The selector allows the request, the rules before it the script, and neither what that does to shadows."""
    pair = Pair.__new__(Pair)
    pair.server = start_server(kind)
    pair.proxy = start_proxy(pair.server)
    pair.give_deadlines("app:s")
    assert pair.proxy.command("SADD", "app:t", "a") == b":1\r\n"
    pair.user("selected", "~*", "+@all", f"-{line.split()[0]}", "(~app:* ~t +@all)")
    with pair.login("selected") as client:
        assert client.command(*line.split()).startswith(b"-NOPERM"), line
        assert client.command("SCARD", "app:s") == b":3\r\n"
        assert client.command("SCARD", "app:t") == b":1\r\n"
        assert client.command("SELECT", 1) == b"+OK\r\n"
        assert client.command("DBSIZE") == b":0\r\n"
    assert about(b":%d\r\n" % pair.ttl("app:s", "a"), FAR)


@pytest.mark.every_kind(valkey=(9, 1))
def test_rights_that_differ_by_database_are_asked_for_again_in_another(
    start_server: StartServer, start_proxy: StartProxy, kind: str
) -> None:
    pair = Pair.__new__(Pair)
    pair.server = start_server(kind)
    pair.proxy = start_proxy(pair.server)
    with pair.proxy.connect() as client:
        for database in (0, 1):
            client.command("SELECT", database)
            assert client.command("SADD", "s", "a", "b", "c") == b":3\r\n"
            assert client.command("EXPIREMEMBER", "s", "a", FAR) == b":1\r\n"
    pair.user("some", "~*", "+@all", "db=0", "(~* +@read +@write +@connection db=1)")
    with pair.login("some") as client:
        for database in (0, 1, 0, 1):
            assert client.command("SELECT", database) == b"+OK\r\n"
            assert client.command("SREM", "s", "a") in (b":0\r\n", b":1\r\n")
            assert client.command("SADD", "s", "a") == b":1\r\n"


# The smallest key patterns.


def example_rules(name: str) -> list[str]:
    """The rules for a user in config/acl.example, without the password."""
    text = (ROOT / "config" / "acl.example").read_text("utf-8")
    line = next(line for line in text.splitlines() if line.startswith(f"user {name} "))
    return [rule for rule in line.split()[2:] if not rule.startswith(">")]


THEIRS = [b"app:1", b"app:{7}:1", b"app:a}b", b"app:a}b{c", b"app:{}x"]
NOT_THEIRS = [b"other", b"apples", b"x}app:1", b"{app:}1", b"{x}app:1", b"1}app:1", b"a{}app:1", b"}app:1"]


def test_the_smallest_rules_are_enough_and_give_nothing_more(pair: Pair) -> None:
    assert {NAMES.shadow(key)[len(NAMES.prefix) :][:2] for key in THEIRS} == {b"k:", b"t:", b"s:"}
    pair.user("app", *example_rules("app"))
    with pair.login("app") as client, pair.login("app", straight=True) as beside, pair.proxy.connect() as anybody:
        for key in THEIRS:
            assert client.command("SADD", key, "a", "b") == b":2\r\n"
            assert client.command("EXPIREMEMBER", key, "a", FAR) == b":1\r\n"
            assert about(client.command("TTL", key, "a"), FAR)
            assert client.command("SREM", key, "a") == client.command("SADD", key, "a") == b":1\r\n"
            assert client.command("TTL", key, "a") == b":-1\r\n"
        for key in NOT_THEIRS:
            assert anybody.command("SADD", key, "a") == b":1\r\n"
            assert client.command("EXPIREMEMBER", key, "a", FAR).startswith(b"-NOPERM")
            shadow = NAMES.shadow(key)
            for place, count in (("KEYS[1]", 1), ("ARGV[1]", 0)):
                for connection in (client, beside):
                    reply = connection.command("EVAL", f"return redis.call('zadd', {place}, 1, 'a')", count, shadow)
                    assert re.search(rb"^-NOPERM|ACL failure|can't access|are reserved", reply), (key, reply)
            # The index does not make up for it.
            assert beside.command("ZADD", NAMES.index, 1, key)[:1] == b":"
        until(lambda: pair.server.command("ZCOUNT", NAMES.index, 1, 1) == b":0\r\n", what="a look for nothing")
        for key in NOT_THEIRS:
            assert anybody.command("SISMEMBER", key, "a") == b":1\r\n"


def test_the_digits_in_the_patterns_are_as_many_as_there_are() -> None:
    digits = {rule.count("[0-9]") for rule in example_rules("app") if "s:{" in rule}
    assert digits == set(range(1, max(map(len, _tags())) + 1))


# What somebody does to the index only delays, and is healed.


HARMS = ["DEL {i}", "SET {i} junk", "ZADD {i} 99999999999999 app:k", "ZREM {i} app:k", "ZADD {i} inf app:k 1 other"]


def test_a_spoilt_index_delays_nobody_for_long(pair: Pair) -> None:
    """Each harm in a database of its own."""
    with ExitStack() as stack:
        databases = []
        for number, harm in enumerate(HARMS):
            client, beside = stack.enter_context(pair.proxy.connect()), stack.enter_context(pair.server.connect())
            for connection in (client, beside):
                assert connection.command("SELECT", number) == b"+OK\r\n"
            for key in ("app:k", "app:r"):
                assert client.command("SADD", key, "stays", "goes", "later") == b":3\r\n"
                assert client.command("EXPIREMEMBER", key, "later", FAR) == b":1\r\n"
                assert client.command("PEXPIREMEMBER", key, "goes", 300) == b":1\r\n"
            assert not beside.command(*harm.format(i=NAMES.index.decode()).split()).startswith(b"-")
            databases.append((harm, client, beside))
        for harm, client, _ in databases:
            # Nobody is refused anything meanwhile.
            for line, wanted in (
                ("SADD app:k later", 0), ("SREM app:k none", 0), ("SADD app:k none", 1), ("PERSIST app:k later", 1),
                ("EXPIREMEMBER app:k later 100", 1), ("SREM app:k none", 1),
            ):  # fmt: skip
                assert client.command(*line.split()) == b":%d\r\n" % wanted, (harm, line)
            assert client.command("DBSIZE").startswith(b":")
        for harm, client, beside in databases:
            for key in ("app:k", "app:r"):
                until(partial(answers, beside, b":0\r\n", "SISMEMBER", key, "goes"), 9, f"a sweep after {harm}")
            until(partial(answers, beside, b":2\r\n", "ZCARD", NAMES.index), 9, f"a whole index after {harm}")
            assert client.command("SISMEMBER", "app:k", "later") == b":1\r\n"


# The proxy's own user.


def test_the_proxy_does_all_its_work_with_the_least_rights(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    rules = SECURITY.split("<!-- control-rules -->")[1].split("```")[1].split()
    assert set(rules) == set(example_rules("expiremember")) - {"on", "resetchannels"}
    server = start_server(kind)
    assert server.command("ACL", "SETUSER", "expiremember", "on", ">pw", "resetchannels", *rules) == b"+OK\r\n"
    url = server.url.replace("//", "//expiremember:pw@")
    proxies = [start_proxy(None, "--upstream", url), start_proxy(None, "--upstream", url, "--no-sweep")]
    with proxies[0].connect() as client, proxies[1].connect() as reader:
        for line in ("SADD s a b", "HSET h a 1 b 1", "ZADD z 1 a 1 b", "RPUSH l a b"):
            key = line.split()[1]
            client.command(*line.split())
            assert client.command("PEXPIREMEMBER", key, "a", 60) == b":1\r\n"
            assert client.command("EXPIREMEMBER", key, "b", FAR) == b":1\r\n"
        for line in ("SCARD s", "HLEN h", "ZCARD z", "LLEN l"):
            until(partial(answers, server, b":1\r\n", *line.split()), what="a sweep")
        # Known to the other by tracking; what is due waits for its removal; what a script may add is voided before.
        assert client.command("SADD", "s", "c") == b":1\r\n"
        assert client.command("HINCRBY", "h", "b", 1) == b":2\r\n"
        assert client.command("EVAL", "return 1", 1, "s") == b":1\r\n"
        assert client.command("PEXPIREMEMBER", "s", "c", 30) == b":1\r\n"
        until(lambda: reader.command("SISMEMBER", "s", "c") == b":0\r\n", what="a removal")
        # Leftovers go, and an index comes back: at once where a proxy starts.
        assert client.command("SPOP", "s", 9).startswith(b"*1\r\n")
        assert client.command("DEL", "z") == b":1\r\n"
        assert server.command("DEL", "l") == b":1\r\n"
        assert server.command("ZREM", NAMES.index, "h") == b":1\r\n"
        proxies.append(start_proxy(None, "--upstream", url))
        for name in (b"s", b"z", b"l"):
            until(partial(answers, server, b":0\r\n", "EXISTS", NAMES.shadow(name)), 15, "an end of leftovers")
        until(partial(answers, server, b":1\r\n", "ZCARD", NAMES.index), 15, "a whole index")
        until(lambda: any("index corrected" in proxy.process.output for proxy in proxies), 15, "a word in the log")
    log = "".join(proxy.process.output for proxy in proxies)
    assert "NOPERM" not in log
    assert "no permissions" not in log
    assert b"expiremember" not in server.command("ACL", "LOG")


@pytest.mark.every_kind(valkey=(9, 1))
@pytest.mark.parametrize(
    ("rights", "database", "wanted"),
    [("db=1,2", 2, b":1\r\n"), ("db=1", 2, b"-NOPERM No permissions to access database\r\n")],
    ids=["both", "one"],
)
@pytest.mark.parametrize("line", ["COPY s t DB {}", "MOVE s {}"])
def test_what_goes_to_another_database_needs_the_right_to_that_one(
    start_server: StartServer, start_proxy: StartProxy, kind: str, rights: str, database: int, wanted: bytes, line: str
) -> None:
    """And to no other: not to the first, in which no user needs to have been."""
    server = start_server(kind)
    proxy = start_proxy(server)
    assert server.command("ACL", "SETUSER", "some", "reset", "on", "nopass", "~*", "&*", "+@all", rights) == b"+OK\r\n"
    words = line.format(database).split()
    with proxy.connect() as free, proxy.connect() as some:
        free.command("SELECT", 1)
        free.command("SADD", "s", "a", "b")
        assert free.command("EXPIREMEMBER", "s", "a", FAR) == b":1\r\n"
        some.command("AUTH", "some", "any")
        assert some.command("SELECT", 1) == b"+OK\r\n"
        assert some.command(*words) == wanted
        went = wanted == b":1\r\n"
        assert free.command("TTL", "s", "a") != b":-2\r\n" or (went and words[0] == "MOVE")
        free.command("SELECT", database)
        assert about(free.command("TTL", "t" if words[0] == "COPY" else "s", "a"), FAR if went else -2)


def test_while_nobody_can_tell_of_the_users_each_client_is_asked(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    """A user who has been given few rights while the control connection was down is not taken for one with all."""
    server = start_server(kind)
    proxy = start_proxy(server, "--control-timeout", "1", "--leftovers-rate", "0")
    with server.connect() as admin:
        # Twice: so the first answer has come, which says that everybody may do everything.
        until(lambda: re.search(rb"cmdstat_acl(\|list)?:calls=[2-9]", admin.command("INFO", "commandstats")))
        control = re.findall(rb"\bid=(\d+) [^\n]*name=expiremember-proxy", admin.command("CLIENT", "LIST"))
        # At once, so that nobody lists the users between; from then on no control connection is let in.
        requests = [
            *(request("CLIENT", "KILL", "ID", number) for number in control),
            request("ACL", "SETUSER", "few", "on", "nopass", "~*", "+@all", "-eval"),
            request("ACL", "SETUSER", "default", "-client|tracking" if server.version >= (7,) else "-client"),
        ]
        admin.send(request("MULTI") + b"".join(requests) + request("EXEC"))
        assert b"-" not in admin.replies(len(requests) + 2)[-1]
    proxy.process.line(lambda line: "no control connection to the upstream" in line, 10)
    with proxy.connect() as few:
        assert few.command("AUTH", "few", "any") == b"+OK\r\n"
        until(lambda: few.command("SADD", "s", "a")[:1] == b":", 10, "an answer without a script")


@pytest.mark.parametrize(
    ("rules", "barred"),
    [
        ("~* +@all", False),
        ("~* +@all -@dangerous", False),
        ("~* +@all -eval", True),
        ("~* +@all -@scripting", True),
        ("~* +@all -@scripting +eval", False),
        ("~* -@all +eval", False),
        ("~* -@all +@read +@write", True),
        ("~* -@all +@slow", False),
        ("%R~* +@all", True),
        ("~app:* +@all", True),
        ("~app:* +@all (~* +@all)", False),
    ],
)
def test_who_is_barred_from_scripts_is_seen_in_the_list_of_users(rules: str, barred: bool) -> None:
    assert is_barred(f"user u on nopass sanitize-payload {rules} resetchannels".encode()) is barred


@pytest.mark.every_kind
def test_who_may_run_no_script_is_asked_once_at_most(
    start_server: StartServer, start_proxy: StartProxy, kind: str
) -> None:
    server = start_server(kind)
    rules = ("~*", "-@all", "+@read", "+@write", "+@connection", "+@transaction")
    assert server.command("ACL", "SETUSER", "few", "on", "nopass", *rules) == b"+OK\r\n"
    proxy = start_proxy(server)
    with proxy.connect() as client:
        for line in ("SADD s a b", "EXPIREMEMBER s a 1000", "HSET h n 1", "EXPIREMEMBER h n 1000"):
            client.command(*line.split())
    until(lambda: asks_for_rights(server, proxy), what="questions for rights")
    assert server.command("CONFIG", "RESETSTAT") == b"+OK\r\n"
    assert server.command("ACL", "LOG", "RESET") == b"+OK\r\n"
    with proxy.connect() as client:
        assert client.command("AUTH", "few", "any") == b"+OK\r\n"
        for line in ("SADD s a c", "SREM s c", "HINCRBY h n 1", "TTL s a", "DEL s", "MULTI", "HSET h n 2", "EXEC") * 3:
            assert client.command(*line.split())[:1] != b"-", line
    # One where the client might also be the default user, who logs in by doing nothing.
    assert server.command("ACL", "LOG").count(b"\r\nreason\r\n") <= 1
    assert b"\r\nerrorstat_ERR:" not in server.command("INFO", "errorstats")

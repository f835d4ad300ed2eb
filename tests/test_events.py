"""Members that expire are told of: each once, by the script that removes it, wherever that is."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Final

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from proxy.check.needed import rules
from proxy.events.rules import Rule, RuleError, decode
from proxy.scripts.calls import Variant, script
from proxy.scripts.naming import Names
from tests.admin import with_admin
from tests.conftest import Start, StartProxy, StartServer
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import KIND, KINDS, ROOT, Proxy, Server, until
from tests.test_blind import Blind
from tests.test_lives import Talk, busy, clock, wait_past

LUA = ROOT / "proxy" / "scripts" / "lua"
NAMES = Names(b"__expiremember__:")
FAR = 10_000
ADD = {
    "set": ("SADD {} a b", "SREM {} b"), "hash": ("HSET {} a one b two", "HDEL {} b"),
    "zset": ("ZADD {} 1.5 a 2 b", "ZREM {} b"), "list": ("RPUSH {} a b a", "LREM {} 0 b"),
}  # fmt: skip
WHAT = {"set": {}, "hash": {"value": "one"}, "zset": {"value": "1.5"}, "list": {"count": "2"}}


@pytest.fixture
def talk() -> Iterator[Callable[..., Talk]]:
    """Connects: ``talk(server or proxy, database=0)``."""
    with ExitStack() as stack:

        def connect(to: Server | Proxy, database: int = 0) -> Talk:
            client = Talk(stack.enter_context(to.connect()))
            if database:
                client("SELECT", database)
            return client

        yield connect


def want(beside: Talk, rule: Rule) -> None:
    """Put a rule in the database of a connection."""
    beside("ZADD", NAMES.events, 0, rule.encode())


def entries(beside: Talk, stream: str = "expired") -> list[dict[str, str]]:
    """What stands in a stream, in order."""
    found = []
    for _, flat in beside("XRANGE", stream, "-", "+"):
        words = [word.decode() for word in flat]
        found.append(dict(zip(words[::2], words[1::2], strict=True)))
    return found


def gone(beside: Talk, key: str, member: str = "a") -> None:
    """Wait until a member is not in a collection any more, as the server itself sees it."""
    kind = beside("TYPE", key)
    read = {
        "set": ("SISMEMBER", key, member), "hash": ("HEXISTS", key, member), "zset": ("ZSCORE", key, member),
        "list": ("LPOS", key, member),
    }.get(kind if isinstance(kind, str) else kind.decode(), ("EXISTS", key))  # fmt: skip
    until(lambda: beside(*read) in ((None,) if read[0] == "LPOS" else (None, 0)), what=f"an end of {member} in {key}")


# The mechanism: one piece of Lua removes what has expired.


def test_every_script_removes_what_has_expired_by_the_one_piece_that_tells() -> None:
    removes = re.compile(r"'(?:srem|hdel|lrem|spop|lpop|rpop)'")
    by_request = set()
    for path in sorted(LUA.rglob("*.lua")):
        code = re.sub(r"--.*", "", path.read_text("utf-8"))
        name = str(path.relative_to(LUA))
        # bracket.lua takes out a field of its own; front.lua leaves all where somebody is to be told.
        if name not in ("shared/discard.lua", "shared/lapse.lua", "weed.lua", "bracket.lua", "rights.lua", "front.lua"):
            assert not removes.search(code), name
            assert not re.search(
                r"call\('(?:zrem|zremrangebyscore|zpopmin)', (?:key|source|target|KEYS\[1\])\b", code
            ), name
        if re.search(r"\bdiscard\(", code) and name != "shared/discard.lua":
            by_request.add(name)
    # EXPIREMEMBER with a deadline in the past, and the import of one, are removals by request; the others first look
    # whether anybody has to be told.
    look = {"shared/quiet.lua", "shared/overdue.lua", "shared/passed.lua"}
    assert (
        by_request
        == {"shared/lapse.lua", "expire.lua", "expire_members.lua", "get_fields.lua", "set_members.lua", "import.lua"}
        | look
    )
    # What removes many elements of a list does not begin where somebody has to be told.
    weed = re.sub(r"--.*", "", (LUA / "weed.lua").read_text("utf-8"))
    assert weed.index("heeded(key, index)") < min(place.start() for place in removes.finditer(weed))


# Rules.


@pytest.mark.parametrize(
    "rule",
    [
        Rule(b"cart:*", b"expired"), Rule(b"*", b"", letters="SV"), Rule(b"a b: 3:-", b"with space", value=True),
        Rule(b"\xff\n*", b"\x00\n", maxlen=0, database=15),
        Rule(b"*", list=b"ready"), Rule(b"*", b"s", list=b"a}b", value=True),
        Rule(b"*", list=b"{t}\xff", letters="I", database=3), Rule(b"*", list=b"}"),
        Rule(b"1 0", b"s 1:", list=b"1:k:{x}"),
    ],
)  # fmt: skip
def test_a_rule_is_read_as_it_was_kept(rule: Rule) -> None:
    assert decode(rule.encode()) == rule


@pytest.mark.parametrize(
    "text", [b"", b"x", b"1 0 0 - 9:ab", b"1 2 0 - 1:ab", b"1 0 0 -9 1:ab", b"1 0 0 -2 1:aXY", b"1 0 0 -x 1:ab"]
)
def test_what_is_no_rule_is_read_as_none(text: bytes) -> None:
    assert decode(text) is None


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (Rule(b"", b"s"), "empty"), (Rule(b"*"), "--stream"), (Rule(b"*", value=True, letters="S"), "--stream"),
        (Rule(b"*", b"s", maxlen=-1), "--maxlen"), (Rule(b"*", letters="SX"), "STIV"),
        (Rule(b"*", letters="SS"), "once"),
        (Rule(b"*", NAMES.index), "reserved"), (Rule(b"*" * 1025, b"s"), "1024"),
        (Rule(b"{orders}:*", b"expired"), "{orders}:expired"), (Rule(b"*", list=NAMES.index), "reserved"),
        (Rule(b"*", list=b"l" * 1025), "1024"), (Rule(b"*", b"same", list=b"same"), "both"),
        (Rule(b"{orders}:*", list=b"ready"), "{orders}:ready"), (Rule(b"{orders}:*", b"{order}:expired"), "hash tag"),
    ],
)  # fmt: skip
def test_a_rule_that_cannot_be_is_refused(rule: Rule, said: str) -> None:
    with pytest.raises(RuleError, match=re.escape(said)):
        rule.check(NAMES.prefix)


@pytest.mark.parametrize(
    ("pattern", "stream"),
    [
        (b"{orders}:*", b"{orders}:expired"), (b"{orders}:*", b"orders"), (b"*{orders}", b"s"), (b"[{]a}*", b"s"),
        (b"{}*", b"s"),
    ],
)  # fmt: skip
def test_a_stream_in_the_slot_of_its_keys(pattern: bytes, stream: bytes) -> None:
    Rule(pattern, stream).check(NAMES.prefix)


GLOB = (LUA / "shared" / "glob.lua").read_text("utf-8") + "\nreturn matches(glob(ARGV[1]), ARGV[2]) and 1 or 0"


@pytest.fixture(scope="module", params=KINDS)
def plain_server(request: pytest.FixtureRequest) -> Iterator[Raw]:
    server = Server(request.param)
    with server.connect() as client:
        yield client
    server.close()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text("ab*?[]^-\\", max_size=8), st.text("ab]^-\\*", max_size=6))
@example("[^]*", "a")
@example("[", "[")
@example("[a-", "a")
@example("[b-a]", "a")
@example("\\", "\\")
@example("a\\", "a\\")
@example("*a*b*a", "abababa")
@example("*", "")
@example("**", "")
@example("", "")
def test_a_pattern_matches_as_the_server_has_it(plain_server: Raw, pattern: str, name: str) -> None:
    ours = plain_server.command("EVAL", GLOB, 0, pattern, name)
    plain_server.command("FLUSHALL")
    plain_server.command("SET", name, "v")
    theirs = plain_server.command("KEYS", pattern)
    assert (ours == b":1\r\n") is (theirs != b"*0\r\n")


def test_a_bad_pattern_and_a_long_key_take_bounded_time(plain_server: Raw) -> None:
    reply = plain_server.command("EVAL", GLOB, 0, "*a" * 20 + "b", "a" * 100_000)
    assert reply == b":0\r\n"


def test_rules_for_other_keys_take_no_time(plain_server: Raw) -> None:
    tries = "local one = glob(ARGV[1]) for _ = 1, 50000 do matches(one, ARGV[2]) end return 0"
    script = GLOB.rpartition("\n")[0] + "\n" + tries

    def seconds(pattern: str) -> float:
        began = time.perf_counter()
        assert plain_server.command("EVAL", script, 0, pattern, "user:session:000001:x") == b":0\r\n"
        return time.perf_counter() - began

    looked_through = seconds("*:1*:*:*x")
    assert seconds("*:1:*:y") < looked_through / 3
    assert seconds("users:*") < looked_through / 3


# One entry for each member that expires.


@pytest.mark.every_kind
@pytest.mark.parametrize("kind_of", ADD)
def test_an_entry_tells_which_member_went(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], kind_of: str
) -> None:
    client, beside = talk(proxy), talk(upstream)
    want(beside, Rule(b"k:*", b"expired", value=True))
    want(beside, Rule(b"k:?", b"short"))
    add, remove = ADD[kind_of]
    client.say(add.format("k:1"))
    deadline = int(client("TIME")[0]) * 1000 + 1100
    assert client("PEXPIREMEMBERAT", "k:1", "a", deadline) == 1
    assert client("EXPIREMEMBER", "k:1", "b", FAR) == 1
    gone(beside, "k:1")
    wanted = {"key": "k:1", "type": kind_of, "member": "a", "deadline": str(deadline)}
    assert entries(beside) == [wanted | WHAT[kind_of]]
    assert entries(beside, "short") == [wanted | (WHAT[kind_of] if kind_of == "list" else {})]
    # What a request removes is told nobody, nor what is given a deadline in the past.
    assert client("PEXPIREMEMBER", "k:1", "b", 150) == 1
    client.say(remove.format("k:1"))
    client.say(add.format("k:2"))
    assert client("PEXPIREMEMBERAT", "k:2", "a", 1) == client("EXPIREMEMBER", "k:2", "b", 0) == 1
    client.say(add.format("k:3"))
    assert client("PEXPIREMEMBER", "k:3", "a", 100) == 1
    client("DEL", "k:3")
    client.say(add.format("other"))
    assert client("PEXPIREMEMBER", "other", "a", 300) == 1
    gone(beside, "other")
    assert len(entries(beside)) == len(entries(beside, "short")) == 1


@pytest.mark.parametrize("apart", [0, 1], ids=["a mass of one ms", "some of another ms"])
def test_each_entry_has_its_members_own_deadline(
    server: Server, start: Start, talk: Callable[..., Talk], apart: int
) -> None:
    beside, client = talk(server), talk(start("--no-sweep"))
    want(beside, Rule(b"k", b"expired", value=True))
    first = clock(beside) + 2000
    deadlines = {str(number): first + apart * (number // 15) for number in range(40)}
    for member, deadline in deadlines.items():
        client("HSET", "k", member, f"value {member}")
        client("PEXPIREMEMBERAT", "k", member, deadline)
    wait_past(beside, max(deadlines.values()))
    assert client.say("HGETALL k") == []
    found = {entry["member"]: (int(entry["deadline"]), entry["value"]) for entry in entries(beside)}
    assert found == {member: (deadline, f"value {member}") for member, deadline in deadlines.items()}


def left_nothing(beside: Talk, key: str) -> bool:
    return bool(beside("EXISTS", NAMES.shadow(key.encode())) == 0)


def test_who_has_a_void_deadline_is_not_told_of(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, beside = talk(proxy), talk(upstream)
    want(beside, Rule(b"*", b"expired"))
    for add, _ in ADD.values():
        key = add.split()[0]
        client.say(add.format(key))
        for member in "ab":
            assert client("PEXPIREMEMBER", key, member, 200) == 1
    for line in ("SREM SADD a", "HDEL HSET a", "ZREM ZADD a", "LREM RPUSH 0 a"):
        beside.say(line)  # past the proxy: the deadlines are left over
    for key in ("SADD", "HSET", "ZADD", "RPUSH"):
        until(partial(left_nothing, beside, key), what=f"an end of the deadlines of {key}")
    assert sorted(entry["key"] + entry["member"] for entry in entries(beside)) == ["HSETb", "RPUSHb", "SADDb", "ZADDb"]


# Wherever a member is removed.


def due(client: Talk, beside: Talk, key: str = "k", milliseconds: int = 50) -> None:
    """Add a member that is due a moment later, and wait for that moment."""
    assert client("SADD", key, "a", "b") == 2
    assert client("PEXPIREMEMBER", key, "a", milliseconds) == 1
    wait_past(beside, clock(beside) + milliseconds)


def test_a_read_that_comes_first_leaves_the_entry(
    lazy_pairs: Callable[[str], tuple[Server, Proxy]], kind: str, talk: Callable[..., Talk]
) -> None:
    server, proxy = lazy_pairs(kind)
    server.flush()
    for database in (0, 5):
        client, beside = talk(proxy, database), talk(server, database)
        want(beside, Rule(b"*", f"expired {database}".encode(), letters="S", database=database))
    # The rules and the streams are those of the key's database: both are looked through for it.
    with server.connect() as listener:
        listener.command("PSUBSCRIBE", "__subkey*")
        for database in (0, 5):
            client, beside = talk(proxy, database), talk(server, database)
            due(client, beside)
            assert client("SMEMBERS", "k") == [b"b"]
            assert [entry["member"] for entry in entries(beside, f"expired {database}")] == ["a"]
            assert f"__subkeyspace@{database}__:k".encode() in listener.reply()
        # DBSIZE removes all that is due.
        due(client, beside, "other")
        assert client("DBSIZE") == 3
        assert len(entries(beside, "expired 5")) == 2


def test_the_rules_of_one_database_are_not_anothers(server: Server, start: Start, talk: Callable[..., Talk]) -> None:
    proxy = start("--no-sweep")
    want(talk(server), Rule(b"*", b"expired"))
    clients = [talk(proxy, database) for database in (0, 1)]
    for client in clients:
        client("SADD", "k", "a", "b")
    for client in clients:
        assert client("PEXPIREMEMBER", "k", "a", 500) == 1
    wait_past(talk(server), clock(talk(server)) + 500)
    assert clients[1]("SMEMBERS", "k") == [b"b"]  # which clears the key in both
    until(lambda: len(entries(talk(server))) == 1, what="an entry")
    assert talk(server, 1)("EXISTS", "expired") == 0


@pytest.mark.every_kind
def test_a_client_that_removes_what_is_due_while_the_proxy_is_blind_leaves_the_entry(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind)
    blind = Blind(server, start_proxy, "--no-sweep")
    client, beside = talk(blind.proxy), talk(server)
    want(beside, Rule(b"*", b"expired", value=True, letters="STIV"))
    client("HSET", "h", "a", "1", "b", "2")
    assert client("PEXPIREMEMBER", "h", "a", 300) == 1
    blind.lock_out()
    wait_past(beside, clock(beside) + 300)
    assert client("HGETALL", "h") == [b"b", b"2"]
    assert [(entry["member"], entry["value"]) for entry in entries(beside)] == [("a", "1")]
    section = client("INFO", "expiremember").decode()
    assert "expiry_events_total:entry=1,message=4,element=0" in section
    assert "expiry_events_lost_total:entry=0,message=0,element=0" in section


def test_without_the_right_to_the_stream_a_client_fails_before_it_removes(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind)
    beside, client = talk(server), talk(server)
    want(beside, Rule(b"*", b"expired"))
    names = [b"k", NAMES.shadow(b"k"), NAMES.index]
    beside("SADD", "k", "a")
    beside("ZADD", names[1], 1, "a")
    beside("ZADD", names[2], 1, "k")
    beside("ACL", "SETUSER", "few", "on", ">x", "~*", "+@all", "-xadd")
    assert client("AUTH", "few", "x") == b"OK"
    clear: list[str | bytes | int] = ["EVAL", script("clear"), 3, names[2], *names[:2], 100, 0, ""]
    assert str(client(*clear)).startswith("NOPERM")
    assert (beside("SISMEMBER", "k", "a"), beside("ZSCORE", names[1], "a"), beside("EXISTS", "expired")) == (1, b"1", 0)
    # Who has the right leaves an entry; where no rule concerns the key it is not needed.
    beside("ACL", "SETUSER", "few", "+xadd")
    assert client(*clear)[4] == 1
    assert [entry["member"] for entry in entries(beside)] == ["a"]
    beside("SADD", "k", "a")
    beside("ZADD", names[1], 1, "a")
    beside("ACL", "SETUSER", "few", "-xadd")
    beside("DEL", NAMES.events)
    assert client(*clear)[4] == 1
    assert len(entries(beside)) == 1


def test_a_request_that_adds_what_has_just_become_due_leaves_the_removal_to_who_tells(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    beside = talk(start_server(kind))
    names = [b"k", NAMES.shadow(b"k"), NAMES.index]
    add: list[str | bytes | int] = ["EVAL", script("add"), 3, *names, "4 4 1", "SADD", "k", "a"]
    for wanted in (0, 1):
        beside("SADD", "k", "a")
        moment = int(clock(beside))
        beside("ZADD", names[1], moment, "a")
        beside("ZADD", names[2], moment, "k")
        if not wanted:
            want(beside, Rule(b"*", b"expired"))
        assert beside(*add) == wanted
        assert beside("ZSCORE", names[1], "a") == (None if wanted else b"%d" % moment)
        beside("DEL", NAMES.events)


@pytest.mark.parametrize("seconds", [0.2, 1.3])
def test_what_passes_while_requests_wait_is_told_of(
    server: Server, start: Start, talk: Callable[..., Talk], seconds: float
) -> None:
    """Each entry is written though the client has been told that the member has gone, however long the wait was."""
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"*", b"expired"))
    script = busy(seconds)
    members = [b"%d" % number for number in range(8)]
    client("SADD", "k", "stays", *members)
    for member in members:
        client("PEXPIREMEMBER", "k", member, int(seconds * 500))  # behind what is sent, within the script's time
    lines = ["PERSIST k 0", "EXPIREMEMBER k 1 900", "EXPIREMEMBER k 2 900 XX", *["PERSIST k 3"] * 5, "MULTI"]
    lines += ["PERSIST k 4", "EXPIREMEMBER k 5 900", "PERSIST k 5", "EXEC", *["EXPIREMEMBER k 6 900"] * 5, "SADD k 7"]
    client.raw.send(b"".join(request(*words) for words in (script, *(line.split() for line in lines))))
    replies = [parse(reply) for reply in client.raw.replies(len(lines) + 1)][1:]
    assert replies == [0] * 8 + [b"OK"] + [b"QUEUED"] * 3 + [[0, 0, 0]] + [0] * 5 + [1]
    assert beside("SMEMBERS", "k") == [b"stays", b"7"] or beside("SMEMBERS", "k") == [b"7", b"stays"]
    until(lambda: len(entries(beside)) >= 8, what="an entry for each")
    assert {entry["member"] for entry in entries(beside)} == set("01234567")
    assert len(entries(beside)) == 8


LATE: Final[dict[str, tuple[str, list[str], list[object]]]] = {
    "one": ("HSET {} m old o 1", ["HSET {} m new"], [1]),
    "run": ("HSET {} m old o 1", ["HSET {} m new"] * 5, [1, 0, 0, 0, 0]),
    "set": ("SADD {} m o", ["SADD {} m"] * 4, [1, 0, 0, 0]),
    "zset": ("ZADD {} 7 m 8 o", ["ZADD {} 9 m"] * 4, [1, 0, 0, 0]),
    "list": ("RPUSH {} m m o", ["RPUSH {} m"], [2]),
    "mixture": ("SADD {} m o", ["SADD {} m x", "PEXPIREMEMBER {} x 100000", "SADD {} m", "PERSIST {} x"], [2, 1, 0, 1]),
    "transaction": ("SADD {} m o", ["MULTI", *["SADD {} m"] * 5, "EXEC"], [b"OK", *[b"QUEUED"] * 5, [1, 0, 0, 0, 0]]),
    "dialect": ("HSET {} m old o 1", ["HEXPIRE {} 100 FIELDS 1 m", "HSET {} m new"], [[-2], 1]),
    "count": ("HSET {} m 40 o 1", ["HINCRBY {} m 2"], [2]),
    "not there": ("HSET {} m old o 1", ["HDEL {} m"], [0]),
    "not in a run": ("SADD {} m o", ["SREM {} m"] * 4, [0, 0, 0, 0]),
    "not kept": ("SADD {} m o", ["PERSIST {} m"] * 4, [0, 0, 0, 0]),
}
"""By key: what makes a member that expires, what is sent long after its deadline, and what is answered."""


def check_late(server: Server, start: Callable[..., Proxy], talk: Callable[..., Talk]) -> None:
    """However late a request runs: what has expired has one entry and element, and what the request brings stays."""
    beside = talk(server)
    want(beside, Rule(b"[a-z]*", b"expired", value=True, list=b"ready"))
    client = talk(start("--upstream", server.url, "--no-sweep"))
    for key, (made, _, _) in LATE.items():
        client(*(word.format(key) for word in made.split()))
        assert client("PEXPIREMEMBER", key, "m", 20) == 1
    wait_past(beside, int(clock(beside)) + 1_200)
    for key, (_, sent, wanted) in LATE.items():
        lines = [[word.format(key) for word in line.split()] for line in sent]
        client.raw.send(b"".join(request(*line) for line in lines))
        assert [parse(reply) for reply in client.raw.replies(len(lines))] == wanted, key
    for key in LATE:
        assert client("TTL", key, "m") == -1, key
    for _ in range(2):
        assert client("HSET", "twice", "m", "same") == 1
        assert client("PEXPIREMEMBER", "twice", "m", 20) == 1
        wait_past(beside, int(clock(beside)) + 30)
    assert client("HSET", "twice", "m", "same") == 1
    start("--upstream", server.url)
    until(lambda: len(entries(beside)) >= len(LATE) + 2, what="an entry for each")
    until(lambda: not beside("EXISTS", NAMES.owed, NAMES.shadow(NAMES.owed)), what="an end of all notes")
    told = {entry["key"]: entry for entry in entries(beside)}
    assert len(told) == len(LATE) + 1
    assert len(entries(beside)) == len(LATE) + 2 == beside("LLEN", "ready")
    assert told["one"]["value"] == told["run"]["value"] == "old"
    assert told["zset"]["value"] == "7"
    assert told["list"]["count"] == "2"
    for key in LATE:
        name = {"hash": "HEXISTS", "set": "SISMEMBER", "zset": "ZSCORE", "list": "LPOS"}[beside("TYPE", key).decode()]
        assert (beside(name, key, "m") not in (0, None)) is not key.startswith("not"), key


def test_what_a_late_request_meets_has_expired_and_is_told_of(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    check_late(start_server(kind), partial(start_proxy, None), talk)


def test_the_members_of_a_key_are_told_of_in_order_though_a_request_has_removed_the_first(
    server: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    check_order(server, partial(start_proxy, None), talk)


def test_where_no_rule_wants_values_none_is_kept(
    server: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    beside = talk(server)
    want(beside, Rule(b"[a-z]*", b"expired"))
    client = talk(start_proxy(None, "--upstream", server.url, "--no-sweep"))
    client("HSET", "h", "a", "x" * 100_000, "b", "y")
    client("PEXPIREMEMBER", "h", "a", 20)
    wait_past(beside, int(clock(beside)) + 30)
    assert client("HDEL", "h", "a") == 0
    assert beside("HVALS", NAMES.owed) == [b""]


def test_a_key_that_has_become_another_holds_up_no_sweep(
    server: Server, start: Start, talk: Callable[..., Talk]
) -> None:
    """Somebody has put a string in the place of a collection: its deadlines are void."""
    check_no_hold_up(server, start, talk)


def check_no_hold_up(server: Server, start: Callable[..., Proxy], talk: Callable[..., Talk]) -> None:
    beside = talk(server)
    want(beside, Rule(b"*", b"expired"))
    proxy = start()
    client = talk(proxy)
    for key in ("k1", "k2", "k3"):
        client("SADD", key, "m", "o")
        assert client("PEXPIREMEMBER", key, "m", 300) == 1
    beside("SET", "k1", "x")
    until(lambda: len(entries(beside)) == 2, 5, "an entry for each of the others")
    assert beside("GET", "k1") == b"x"
    assert not [line for line in proxy.log() if line["event"] == "sweep failed"]


def test_lists_that_push_to_each_other_repeat_nothing(
    server: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    beside = talk(server)
    want(beside, Rule(b"k*", b"first", list=b"ready"))
    want(beside, Rule(b"ready", b"second"))
    client = talk(start_proxy(None, "--upstream", server.url, "--no-sweep"))
    client("RPUSH", "ready", "m")
    client("SADD", "k", "m", "o")
    for key in ("ready", "k"):
        assert client("PEXPIREMEMBER", key, "m", 20) == 1
    wait_past(beside, int(clock(beside)) + 30)
    assert client("SADD", "k", "m") == 1
    assert [beside("XLEN", stream) for stream in ("first", "second")] == [0, 0]
    proxy = start_proxy(None, "--upstream", server.url)
    until(lambda: not beside("EXISTS", NAMES.owed), what="an end of all notes")
    until(lambda: beside("XLEN", "second") == 1, what="an entry for the element")
    assert [entry["member"] for entry in entries(beside, "first")] == ["m"]
    assert beside("LRANGE", "ready", 0, -1) == [b"m"]
    assert not [line for line in proxy.log() if "lost" in line["event"]]


def check_order(server: Server, start: Callable[..., Proxy], talk: Callable[..., Talk]) -> None:
    beside = talk(server)
    want(beside, Rule(b"[a-z]*", b"expired"))
    client = talk(start("--upstream", server.url, "--no-sweep"))
    client("SADD", "k", "a", "b", "c")
    for member in "ab":
        client("PEXPIREMEMBER", "k", member, 50_000)
    names = ["k", NAMES.shadow(b"k").decode(), NAMES.index.decode()]
    beside("ZADD", names[1], int(clock(beside)) - 2000, "a")
    beside("ZADD", names[2], int(clock(beside)) - 2000, "k")
    assert beside("EVAL", script("add", Variant(told=True)), 3, *names, "4 4 1", "SADD", "k", "a") == 1
    beside("ZADD", names[1], int(clock(beside)) - 1000, "b")
    beside("ZADD", names[2], int(clock(beside)) - 1000, "k")
    assert sorted(client("SMEMBERS", "k")) == [b"a", b"c"]
    until(lambda: len(entries(beside)) == 2, what="an entry for each")
    assert [entry["member"] for entry in entries(beside)] == ["a", "b"]
    assert beside("EXISTS", NAMES.owed, NAMES.shadow(NAMES.owed), NAMES.index) == 0


def calls(beside: Talk, name: str) -> int:
    found = re.search(rb"cmdstat_%b:calls=(\d+)" % name.encode(), beside("INFO", "commandstats"))
    return int(found[1]) if found else 0


def make_due(beside: Talk, key: str, *members: str) -> None:
    """Give members deadlines that have just passed, past every proxy: each a little later than the one before."""
    first = int(clock(beside)) - 500
    beside(
        "ZADD",
        NAMES.shadow(key.encode()),
        *(word for at, one in enumerate(members) for word in (first + at // 10, one)),
    )
    beside("ZADD", NAMES.index, first, key)


def settle(beside: Talk, text: bytes, key: str, *line: str | int) -> object:
    """Run a request as the script that first removes what is due. `text`: that script."""
    return beside("EVAL", text, 3, key, NAMES.shadow(key.encode()), NAMES.index, *line)


def check_many_elements_under_way(beside: Talk, text: bytes, *, told: bool) -> None:
    """They go in one scan of a list. Some stand in it several times, and of those before and behind them none goes."""
    if told:
        want(beside, Rule(b"l", b"expired"))
    elements = [f"e{number}" for number in range(3_000)] + ["e1500", "stays", "e7", "e2999", "e1500", "e0"]
    beside("RPUSH", "l", *elements)
    due = [*(f"e{number}" for number in range(0, 2_700, 3)), "e2999", "not there"]
    make_due(beside, "l", *due)
    beside("ZADD", NAMES.shadow(b"l"), 9 * 10**15, "e7")
    beside("CONFIG", "RESETSTAT")
    left = [element.encode() for element in elements if element not in set(due)]
    assert settle(beside, text, "l", "LRANGE", "l", 0, -1) == left
    assert calls(beside, "lrem") == 1
    assert calls(beside, "lpos") == 0
    assert beside("ZRANGE", NAMES.shadow(b"l"), 0, -1) == [b"e7"]
    if told:
        beside("EVAL", script("sweep"), 3, NAMES.index, NAMES.owed, NAMES.shadow(NAMES.owed), 0, 2_000)
        counts = {entry["member"]: int(entry["count"]) for entry in entries(beside)}
        assert counts == {element: elements.count(element) for element in due[:-1]}


@pytest.mark.parametrize("told", [True, False])
def test_many_elements_that_pass_under_way_take_one_scan(
    kind: str, start_server: StartServer, talk: Callable[..., Talk], told: bool
) -> None:
    check_many_elements_under_way(talk(start_server(kind)), script("settled", Variant(told=told)), told=told)


def check_many_persisted_under_way(beside: Talk, text: bytes) -> None:
    beside("RPUSH", "l", *range(100))
    make_due(beside, "l", *map(str, range(50)))
    beside("CONFIG", "RESETSTAT")
    names = [b"l", NAMES.shadow(b"l"), NAMES.index]
    assert beside("EVAL", text, 3, *names, "list", *range(20), 60, 7) == [*[-2] * 20, -1, -2]
    assert beside("LLEN", "l") == 80
    assert calls(beside, "lrem") == 1


def test_many_elements_that_pass_before_their_persist_take_one_scan(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    check_many_persisted_under_way(talk(start_server(kind)), script("persist_members"))


def check_elements_of_who_may_little(beside: Talk, text: bytes) -> None:
    """Without the rights for one scan few go in a script: others do not wait."""
    for right in ("lrange", "lset"):
        beside("DEL", "l", NAMES.shadow(b"l"))
        beside("RPUSH", "l", *range(200))
        make_due(beside, "l", *map(str, range(100)))
        beside("ACL", "SETUSER", "default", f"-{right}")
        beside("ACL", "LOG", "RESET")
        try:
            assert settle(beside, text, "l", "LLEN", "l") == 190, right
            assert beside("ACL", "LOG") == [] or not beside("EVAL", "return redis.acl_check_cmd and 1", 0), right
        finally:
            beside("ACL", "SETUSER", "default", f"+{right}")
        assert beside("LRANGE", "l", 0, 0) == [b"10"]
        assert beside("ZCARD", NAMES.shadow(b"l")) == 90


def test_without_the_rights_for_one_scan_few_elements_go(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    check_elements_of_who_may_little(talk(start_server(kind)), script("settled"))


def test_a_request_for_another_type_scans_a_list_for_few_elements(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    beside = talk(start_server(kind))
    text = script("settled", Variant(lists=False))
    for count, refused in ((200, True), (5, False)):
        beside("DEL", "l", NAMES.shadow(b"l"))
        beside("RPUSH", "l", *range(count))
        make_due(beside, "l", *map(str, range(count)))
        beside("CONFIG", "RESETSTAT")
        found = settle(beside, text, "l", "HGETALL", "l")
        assert str(found).startswith("WRONGTYPE") if refused else found == [], count
        assert calls(beside, "lrem") == min(count, 10)


def check_large_values(beside: Talk, text: bytes) -> None:
    """The server holds few of them twice while they become notes."""
    want(beside, Rule(b"h", b"expired", value=True))
    fields = [f"f{number}" for number in range(300)]
    for field in fields:
        beside("HSET", "h", field, "x" * 100_000)
    make_due(beside, "h", *fields)
    beside("CONFIG", "RESETSTAT")
    before = int(re.search(rb"used_memory:(\d+)", beside("INFO", "memory"))[1])  # type: ignore[index]
    assert settle(beside, text, "h", "HLEN", "h") == 0
    assert beside("HLEN", NAMES.owed) == 300
    assert int(re.search(rb"used_memory_peak:(\d+)", beside("INFO", "memory"))[1]) - before < 10_000_000  # type: ignore[index]


def test_large_values_become_notes_few_at_a_time(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    check_large_values(talk(start_server(kind)), script("settled", Variant(told=True)))


def check_order_of_many(beside: Talk, add: bytes, sweep: bytes) -> None:
    """A sweep removes no member while more notes are left than it pays."""
    want(beside, Rule(b"k", b"expired"))
    members = [f"m{number:04}" for number in range(1_300)]
    beside("SADD", "k", *members, "last", "stays")
    make_due(beside, "k", *members)
    names = ["k", NAMES.shadow(b"k").decode(), NAMES.index.decode()]
    assert beside("EVAL", add, 3, *names, "4 4 1", "SADD", "k", "new") == 1
    assert beside("HLEN", NAMES.owed) == 1_300
    beside("ZADD", names[1], int(clock(beside)) - 10, "last")
    beside("ZADD", names[2], int(clock(beside)) - 10, "k")
    for _ in range(4):
        beside("EVAL", sweep, 3, NAMES.index, *names[:2], 0, 1_000)
    assert [entry["member"] for entry in entries(beside)] == [*sorted(members), "last"]
    assert beside("EXISTS", NAMES.owed, NAMES.shadow(NAMES.owed), NAMES.index) == 0


def test_the_members_of_a_key_are_told_of_in_order_however_many_notes_there_are(
    kind: str, start_server: StartServer, talk: Callable[..., Talk]
) -> None:
    check_order_of_many(talk(start_server(kind)), script("add", Variant(told=True)), script("sweep"))


def check_spoilt_notes(server: Server, start: Callable[..., Proxy], talk: Callable[..., Talk]) -> None:
    """Something else stands where the notes were, or their deadlines: it goes, as with the index."""
    beside = talk(server)
    want(beside, Rule(b"k", b"expired", value=True))
    client = talk(start("--upstream", server.url, "--no-sweep"))
    for place in (NAMES.owed, NAMES.shadow(NAMES.owed)):
        client("HSET", "k", "f", "old")
        assert client("PEXPIREMEMBER", "k", "f", 20) == 1
        beside("DEL", NAMES.owed, NAMES.shadow(NAMES.owed))
        beside("SET", place, "spoilt")
        wait_past(beside, int(clock(beside)) + 30)
        assert client("HSET", "k", "f", "new") == 1
        assert client("HGET", "k", "f") == b"new"
        assert [beside("TYPE", name) for name in (NAMES.owed, NAMES.shadow(NAMES.owed))] == [b"hash", b"zset"]
    start("--upstream", server.url)
    until(lambda: len(entries(beside)) == 1, what="an entry")
    assert [entry["value"] for entry in entries(beside)] == ["old"]
    until(lambda: not beside("EXISTS", NAMES.owed, NAMES.shadow(NAMES.owed)), what="an end of all notes")


def test_something_else_stands_where_the_notes_were(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    check_spoilt_notes(start_server(kind), partial(start_proxy, None), talk)


def test_a_request_that_adds_what_was_due_long_before_begins_a_new_life(
    server: Server, talk: Callable[..., Talk]
) -> None:
    """Where the proxy could not remove it in time, its sender cannot have seen the member: what it adds stays."""
    beside = talk(server)
    want(beside, Rule(b"other:*", stream=b"expired"))
    names = ["h", NAMES.shadow(b"h").decode(), NAMES.index.decode()]
    beside("HSET", "h", "a", "old", "b", "old")
    for member, ago in (("a", 2000), ("b", 0)):
        beside("ZADD", names[1], int(clock(beside)) - ago, member)
    beside("ZADD", names[2], int(clock(beside)) - 2000, "h")
    add: list[str | bytes | int] = ["EVAL", script("add"), 3, *names, "4 6 2", "HSET", "h", "a", "new", "b", "new"]
    assert beside(*add) == 1
    assert beside("ZSCORE", names[1], "a") is None
    assert beside("ZSCORE", names[1], "b") is not None


def test_the_first_rule_counts_at_once_and_the_short_scripts_come_back(
    server: Server, start: Start, talk: Callable[..., Talk]
) -> None:
    clients, beside = [talk(start("--no-sweep")) for _ in range(2)], talk(server)
    for number in range(6):
        if number == 2:
            want(beside, Rule(b"*", b"expired"))
        client = clients[number % 2]
        due(client, beside, f"k{number}")
        assert client("SMEMBERS", f"k{number}") == [b"b"]
    assert [entry["key"] for entry in entries(beside)] == ["k2", "k3", "k4", "k5"]


def test_members_that_a_short_script_has_removed_elsewhere_are_counted(
    server: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    proxy, port = with_admin(start_proxy, server, "--no-sweep")
    want(talk(server, 3), Rule(b"*", b"expired", database=3))
    clients = [talk(proxy, database) for database in (0, 3)]
    beside = talk(server)
    deadline = clock(beside) + 200
    for client in clients:
        client("SADD", "k", "a", "b")
        assert client("PEXPIREMEMBERAT", "k", "a", deadline) == 1
    wait_past(beside, deadline)
    assert clients[0]("SMEMBERS", "k") == [b"b"]
    assert [entry["member"] for entry in entries(talk(server, 3))] == ["a"]
    assert port.metrics()["members_expired_total{trigger=request}"] == 2


def test_a_client_that_may_not_write_entries_has_them_written_by_the_proxy(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(proxy), talk(upstream)
    want(beside, Rule(b"*", b"expired"))
    beside("ACL", "SETUSER", "few", "on", ">x", "~*", "&*", "+@all", "-xadd")
    assert client("AUTH", "few", "x") == b"OK"
    due(client, beside)
    assert client("SADD", "k", "a") == 1
    assert [entry["member"] for entry in entries(beside)] == ["a"]


def test_without_memory_members_go_and_entries_come(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind)
    proxies = start_proxy(server), start_proxy(server, "--no-sweep")
    client, beside = talk(proxies[1]), talk(server)
    want(beside, Rule(b"*", b"expired", value=True))
    client("HSET", "h", *(word for number in range(20) for word in (number, "v")))
    for number in range(20):
        assert client("PEXPIREMEMBER", "h", number, 700) == 1
    beside("CONFIG", "SET", "maxmemory", 1)
    until(lambda: not beside("EXISTS", "h"), what="a sweep")
    assert sorted(int(entry["member"]) for entry in entries(beside)) == list(range(20))
    assert {entry["value"] for entry in entries(beside)} == {"v"}


def test_a_stream_that_is_none_stops_no_removal(server: Server, start: Start, talk: Callable[..., Talk]) -> None:
    proxy = start()
    client, beside = talk(proxy), talk(server)
    want(beside, Rule(b"*", b"wrong"))
    want(beside, Rule(b"k", b"right", letters="S"))
    beside("SET", "wrong", "a string")
    due(client, beside)
    gone(beside, "k")
    assert [entry["member"] for entry in entries(beside, "right")] == ["a"]
    warning = proxy.process.line(lambda line: "events about expired members lost" in line)
    assert "WRONGTYPE" in warning
    assert '"entries": 1' in warning
    section = client("INFO", "expiremember").decode()
    assert "expiry_events_lost_total:entry=1,message=0,element=0" in section
    assert "expiry_events_total:entry=1,message=1,element=0" in section
    # Nor does something else in the place of the rules, or a rule that is none.
    beside("DEL", NAMES.events)
    beside("SET", NAMES.events, "spoilt")
    due(client, beside, "k2")
    gone(beside, "k2")
    beside("DEL", NAMES.events)
    beside("ZADD", NAMES.events, 0, "nonsense")
    due(client, beside, "k3")
    gone(beside, "k3")


def test_a_proxy_without_the_right_to_write_entries_removes_and_says_so(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    server = start_server(kind)
    older = [rule for rule in rules("__expiremember__:") if rule not in ("+xadd", "+hmget", "+zmscore", "+smismember")]
    server.command(
        "ACL", "SETUSER", "older", "on", ">pw", "resetchannels", *(rule for rule in older if "subkey" not in rule)
    )
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//older:pw@"))
    client, beside = talk(proxy), talk(server)
    want(beside, Rule(b"*", b"expired", letters="S"))
    due(client, beside)
    gone(beside, "k")
    warning = proxy.process.line(lambda line: "events about expired members lost" in line)
    assert "permission" in warning or "can't" in warning, warning
    assert beside("EXISTS", "expired") == 0


def test_members_go_on_expiring_after_a_failover_with_their_entries(
    start_server: StartServer, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    first, second = start_server(KIND), start_server(KIND)
    proxy = start_proxy(first)
    client = talk(proxy)
    want(talk(first), Rule(b"*", b"expired"))
    for name, milliseconds in (("early", 50), ("late", 2500)):
        client("SADD", name, "a")
        assert client("PEXPIREMEMBER", name, "a", milliseconds) == 1
    until(lambda: entries(talk(first)), what="an entry")
    second.command("REPLICAOF", "127.0.0.1", first.port)
    until(lambda: b"master_link_status:up" in second.command("INFO", "replication"), what="a replica")
    assert entries(talk(second)) == entries(talk(first))
    talk(first)("SET", "marker", "v")
    until(lambda: second.command("EXISTS", "marker") == b":1\r\n", what="all of it on the replica")
    first.stop(signal.SIGKILL)
    second.command("REPLICAOF", "NO", "ONE")
    start_proxy(second)
    until(lambda: len(entries(talk(second))) == 2, what="an entry on the new primary")
    assert [entry["key"] for entry in entries(talk(second))] == ["early", "late"]


def test_the_rules_do_not_show(server: Server, start: Start, talk: Callable[..., Talk]) -> None:
    beside = talk(server, 3)
    want(beside, Rule(b"*", b"expired"))
    beside("SET", "k", "v")
    client = talk(start(), 3)  # rules, and no deadline ever, when it starts
    assert (client("DBSIZE"), client("KEYS", "*"), client("SCAN", 0)) == (1, [b"k"], [b"0", [b"k"]])
    assert "are reserved" in str(client("ZADD", NAMES.events, 0, "x"))


# Live messages.


@pytest.mark.every_kind
@pytest.mark.parametrize("kind_of", ADD)
def test_messages_are_as_redis_has_them(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk], kind_of: str
) -> None:
    client, beside = talk(proxy, 2), talk(upstream, 2)
    want(beside, Rule(b"k*", letters="STIV", database=2))
    event = kind_of[0] + "expired"
    with upstream.connect() as listener:
        listener.command("PSUBSCRIBE", "__subkey*")

        def heard(count: int) -> set[tuple[bytes, ...]]:
            replies = (parse(listener.reply()) for _ in range(count))
            return {tuple(reply[2:]) for reply in replies if isinstance(reply, list)}

        client.say(ADD[kind_of][0].format("k"))
        assert client("PEXPIREMEMBER", "k", "a", 50) == 1
        assert heard(4) == {
            (b"__subkeyspace@2__:k", f"{event}|1:a".encode()), (f"__subkeyevent@2__:{event}".encode(), b"1:k|1:a"),
            (b"__subkeyspaceitem@2__:k\na", event.encode()), (f"__subkeyspaceevent@2__:{event}|k".encode(), b"1:a"),
        }  # fmt: skip
        # Several in one go, and a key that would not end where it seems to.
        client(*(word.replace("{}", "k\n2") for word in ADD[kind_of][0].split()))
        deadline = clock(beside) + 300
        for member in "ab":
            assert client("PEXPIREMEMBERAT", "k\n2", member, deadline) == 1
        assert heard(3) == {
            (b"__subkeyspace@2__:k\n2", f"{event}|1:a,1:b".encode()),
            (f"__subkeyevent@2__:{event}".encode(), b"3:k\n2|1:a,1:b"),
            (f"__subkeyspaceevent@2__:{event}|k\n2".encode(), b"1:a,1:b"),
        }


def test_large_members_come_in_several_messages(server: Server, start: Start, talk: Callable[..., Talk]) -> None:
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"*", letters="T"))
    with server.connect() as listener:
        listener.command("SUBSCRIBE", "__subkeyevent@0__:sexpired")
        members = [letter * 50_000 for letter in "abc"]
        client("SADD", "k", *members)
        at = clock(beside) + 500
        for member in members:
            assert client("PEXPIREMEMBERAT", "k", member, at) == 1
        parts = ["1:k|" + ",".join(f"50000:{member}" for member in some) for some in (members[:2], members[2:])]
        heard = [parse(listener.reply()) for _ in parts]
        assert [one[2] for one in heard if isinstance(one, list)] == [part.encode() for part in parts]


def test_several_rules_write_one_entry_into_each_stream(
    server: Server, start: Start, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"*", b"all"))
    want(beside, Rule(b"car*", b"expired"))
    want(beside, Rule(b"cart:*", b"expired", value=True))
    client("HSET", "cart:1", "a", "1")
    client("HSET", "car", "a", "1")
    for key in ("cart:1", "car"):
        assert client("PEXPIREMEMBER", key, "a", 50) == 1
    until(lambda: len(entries(beside, "all")) == 2, what="two entries")
    assert {(entry["key"], entry.get("value")) for entry in entries(beside)} == {("car", None), ("cart:1", "1")}
    assert len(entries(beside)) == 2


def test_a_stream_keeps_about_as_many_entries_as_the_rule_says(
    server: Server, start: Start, talk: Callable[..., Talk]
) -> None:
    client, beside = talk(start()), talk(server)
    want(beside, Rule(b"few", b"short", maxlen=100))
    want(beside, Rule(b"all", b"long", maxlen=0))
    at = clock(beside) + 1500
    for key in ("few", "all"):
        client("SADD", key, *range(1000))
        client.raw.send(b"".join(request("PEXPIREMEMBERAT", key, member, at) for member in range(1000)))
        client.raw.replies(1000)
    until(lambda: not beside("EXISTS", "few", "all"), what="a sweep")
    assert beside("XLEN", "long") == 1000
    assert 100 <= beside("XLEN", "short") <= 200

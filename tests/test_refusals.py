"""What the server refuses it refuses in its own words and at its own moment, whatever stands in for a command."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import pytest

from proxy.wire import asides as asides_module
from proxy.wire.asides import Asides, Whose
from proxy.wire.reply import ReplySubstitution
from tests.conftest import StartProxy, StartServer, installed
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until

FAR: Final = 100_000

FILL: Final = (
    "DEL s t h z l q copy new", "SADD s a b", "SADD t c", "HSET h a 1 n 1", "ZADD z 1 a", "RPUSH l a b", "SET q text",
)  # fmt: skip

DEADLINES: Final = ("s a", "t c", "h a", "z a", "l a")

COMMANDS: Final = (
    "SADD s new", "SREM s nosuch", "SREM s b", "HSET h new 1", "HDEL h nosuch", "HINCRBY h n 1", "HINCRBYFLOAT h a 1.5",
    "ZADD z 2 new", "ZINCRBY z 1 a", "ZREM z nosuch", "LPUSH l new", "LSET l 0 x", "LREM l 0 nosuch", "SMOVE s t b",
    "LMOVE l l LEFT RIGHT", "RPOPLPUSH l l", "SINTERSTORE s t", "SORT s ALPHA STORE l", "SET q v", "DEL s", "UNLINK t",
    "RENAME s new", "RENAMENX h z", "COPY s copy", "MOVE t 5", "SPOP s 0", "TTL s", "PERSIST s", "SCARD s", "HGET h a",
    "EVAL return(redis.call('hget',KEYS[1],'a')) 1 h",
)  # fmt: skip


class Twins:
    """Two servers of a kind with the same data: one is asked straight, the other through a proxy.

    Args:
        kind: of which kind.
        start: starts the proxy in front of a server, if not as usual.
    """

    def __init__(self, kind: str, start: Callable[[Server], Proxy] | None = None) -> None:
        self._stack = ExitStack()
        self.straight, self.behind = Server(kind), Server(kind)
        self._stack.callback(self.straight.close)
        self._stack.callback(self.behind.close)
        self.proxy = (
            Proxy("--upstream", self.behind.url, "--leftovers-rate", "0") if start is None else start(self.behind)
        )
        self._stack.callback(self.proxy.close)
        with (
            self.proxy.connect() as client
        ):  # a prefix that has to be covered first is refused as the proxy's own write
            for key in ("new1", "copy1"):
                client.command("SADD", key, "m")
                client.command("EXPIREMEMBER", key, "m", FAR)
                client.command("DEL", key)

    def close(self) -> None:
        self._stack.close()

    def configure(self, *lines: str) -> None:
        for server in (self.straight, self.behind):
            for line in lines:
                assert server.command(*line.split()).startswith(b"+"), line

    def fill(self) -> None:
        """Give both the same data, and members deadlines where the proxy is."""
        for to in (self.straight, self.proxy):
            with to.connect() as client:
                client.command("SELECT", 5)
                client.command("FLUSHDB")
                client.command("SELECT", 0)
                for line in FILL:
                    client.command(*line.split())
        with self.proxy.connect() as client:
            for place in DEADLINES:
                assert client.command("EXPIREMEMBER", *place.split(), FAR) == b":1\r\n"

    def connect(self, protocol: int) -> tuple[Raw, Raw]:
        clients = self._stack.enter_context(self.straight.connect()), self._stack.enter_context(self.proxy.connect())
        for client in clients:
            client.command("HELLO", protocol)
        return clients


@pytest.fixture(scope="module")
def shared_twins() -> Iterator[Callable[[str], Twins]]:
    found: dict[str, Twins] = {}
    with ExitStack() as stack:

        def get(kind: str) -> Twins:
            if kind not in found:
                found[kind] = Twins(installed(kind))
                stack.callback(found[kind].close)
            return found[kind]

        yield get


@pytest.fixture
def twins(kind: str, shared_twins: Callable[[str], Twins]) -> Twins:
    return shared_twins(kind)


REFUSALS: Final = {
    "no memory": (("CONFIG SET maxmemory 1",), ("CONFIG SET maxmemory 0",)),
    "no replicas": (("CONFIG SET min-replicas-to-write 1",), ("CONFIG SET min-replicas-to-write 0",)),
    "read-only replica": (("REPLICAOF 127.0.0.1 1",), ("REPLICAOF NO ONE",)),
}


def unless_noticed(refusal: str, check: Callable[[], None]) -> None:
    """Run a check, anew if the proxy has noticed that its server is a replica: it closes all connections then, once."""
    for last in (False, False, True):
        try:
            check()
        except ConnectionError:
            if last or refusal != "read-only replica":
                raise
        else:
            return


def check_refusals(twins: Twins, refusal: str, protocol: int) -> None:
    begin, end = REFUSALS[refusal]
    straight, through = twins.connect(protocol)

    def both(*words: str) -> None:
        wanted = straight.command(*words)
        if words[0] in ("SCARD", "HGET") and refusal == "no memory":
            assert not wanted.startswith(b"-") or queued
        assert through.command(*words) == wanted, (words, wanted)

    for line in COMMANDS:
        words = line.split()
        queued = False
        twins.fill()
        twins.configure(*begin)
        try:
            both(*words)
            queued = True
            for step in ("MULTI", line, "EXEC"):
                both(*step.split())
        finally:
            twins.configure(*end)
        twins.fill()
        for step in ("MULTI", "SCARD t", line, "SREM s a", "SADD s again"):
            both(*step.split())
        twins.configure(*begin)
        try:
            both("EXEC")
        finally:
            twins.configure(*end)
        for look in ("EXISTS s t h z l q copy new", "TYPE s", "SCARD t"):
            both(*look.split())


@pytest.mark.every_kind
@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_refusal_is_the_servers_own(twins: Twins, refusal: str) -> None:
    """One by one, while queueing, and between queueing and EXEC."""
    unless_noticed(refusal, partial(check_refusals, twins, refusal, 3 if refusal == "no replicas" else 2))


def check_no_half(twins: Twins) -> None:
    """A job is not taken from one set without being put into the other."""
    _, through = twins.connect(2)
    for queued in (
        ("SADD t a", "SREM s a"),
        ("EXPIREMEMBER t c 50", "SREM s a"),
        ("RENAME t new", "HDEL h a", "LSET l 0 x"),
    ):
        twins.fill()
        for line in ("MULTI", *queued):
            assert through.command(*line.split()) in (b"+OK\r\n", b"+QUEUED\r\n")
        twins.configure("CONFIG SET maxmemory 1")
        try:
            needs_memory = queued[0].split()[0] != "RENAME"
            reply = through.command("EXEC")
            assert reply.startswith(b"-EXECABORT" if needs_memory or "LSET" in queued[-1] else b"*"), (queued, reply)
        finally:
            twins.configure("CONFIG SET maxmemory 0")
        assert through.command("SISMEMBER", "s", "a") == b":1\r\n"
        assert through.command("EXISTS", "new") == b":0\r\n"


@pytest.mark.every_kind
def test_no_transaction_runs_in_half(twins: Twins) -> None:
    check_no_half(twins)


def check_removal_without_memory(twins: Twins) -> None:
    twins.fill()
    with twins.proxy.connect() as client:
        client.command("SADD", "s", "x")
        client.command("EXPIREMEMBER", "s", "x", FAR)
        twins.configure("CONFIG SET maxmemory 1")
        try:
            assert client.command("EXPIREMEMBER", "s", "b", FAR).startswith(b"-OOM")
            assert client.command("SREM", "s", "x") == b":1\r\n"
            # A script's first write allows the others: what removes something first is not to add it then.
            assert client.command("SADD", "s", "x").startswith(b"-OOM")
            assert client.command("PERSIST", "s", "a") == b":1\r\n"
            assert client.command("EXPIREMEMBER", "s", "a", 0) == b":1\r\n"
            assert client.command("EXPIREMEMBERAT", "s", "b", 1) == b":1\r\n"
        finally:
            twins.configure("CONFIG SET maxmemory 0")
        assert client.command("EXISTS", "s") == b":0\r\n"


@pytest.mark.every_kind
def test_without_memory_members_can_be_removed(twins: Twins) -> None:
    check_removal_without_memory(twins)


def _fails_to_save(server: Server) -> bool:
    return server.command("SET", "probe", "v").startswith(b"-MISCONF")


@pytest.mark.every_kind
def test_a_failed_save_refuses_as_it_does_straight(kind: str) -> None:
    twins = Twins(installed(kind))
    try:
        twins.fill()
        for server in (twins.straight, twins.behind):
            (Path(server.folder.name) / "dump.rdb").mkdir()
            assert server.command("CONFIG", "SET", "save", "3600 1000000") == b"+OK\r\n"
            assert server.command("BGSAVE").startswith(b"+")
            until(partial(_fails_to_save, server), what="MISCONF")
        straight, through = twins.connect(2)
        for line in ("SADD s b", "SREM s b", "SINTERSTORE s t", "RENAME s new", "SCARD s", "MULTI", "SADD s b", "EXEC"):
            assert through.command(*line.split()) == straight.command(*line.split()), line
        assert through.command("TTL", "s", "a")[:1] == b":"
        assert through.command("EXPIREMEMBER", "s", "b", FAR).startswith(b"-MISCONF")
    finally:
        twins.close()


@pytest.mark.every_kind
def test_a_users_lack_of_a_right_is_told_as_straight(kind: str) -> None:
    """While queueing too, where no script need stand in for the user's request and the server can be asked before."""
    twins = Twins(installed(kind))
    try:
        for line in (
            "SADD s x",
            "SREM s x",
            "RENAME s new",
            "SINTERSTORE s t",
            "HSET h x 1",
            "SMOVE s t b",
            "HINCRBY h n 1",
        ):
            name = line.split()[0].lower()
            twins.fill()
            twins.configure(f"ACL SETUSER some reset on >x ~* &* +@all -{name}")
            straight, through = twins.connect(2)
            assert straight.command("AUTH", "some", "x") == through.command("AUTH", "some", "x") == b"+OK\r\n"
            wanted = straight.command(*line.split())
            assert wanted.startswith(b"-NOPERM")
            assert through.command(*line.split()) == wanted
            if name in ("rename", "sinterstore") or (twins.straight.version < (7,) and name != "hincrby"):
                continue
            # That users may not do everything is noticed within a second.
            steps = ["MULTI", "SCARD s", line, "EXEC"]
            until(lambda: [_told(straight, steps)] == [_told(through, steps)], 5, f"the server's refusal of {line}")  # noqa: B023
    finally:
        twins.close()


def _told(client: Raw, lines: list[str]) -> list[bytes]:
    return [client.command(*line.split()) for line in lines]


def check_pause(twins: Twins) -> None:
    twins.fill()
    with twins.proxy.connect(5) as client, twins.behind.connect() as other:
        assert other.command("CLIENT", "PAUSE", 60_000, "WRITE") == b"+OK\r\n"
        try:
            assert client.command("DBSIZE") == b":6\r\n"
            assert client.command("TTL", "s", "a")[:1] == b":"
            assert client.command("KEYS", "*")[:4] == b"*6\r\n"
            assert client.command("SCAN", 0, "COUNT", 100)[:4] == b"*2\r\n"
            assert client.command("RANDOMKEY")[:1] == b"$"
        finally:
            assert other.command("CLIENT", "UNPAUSE") == b"+OK\r\n"


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_what_writes_nothing_is_not_paused(twins: Twins) -> None:
    check_pause(twins)


def check_subscriber(twins: Twins) -> None:
    """It may not run its own command; nobody has heard of a script."""
    lines = [line for line in COMMANDS if not line.startswith("EVAL")] + ["MULTI", "SADD s x", "HINCRBY h a 1", "EXEC"]
    for pipelined in (True, False):
        twins.fill()
        straight, through = twins.connect(2)
        told = []
        for client in (straight, through):
            if pipelined:
                client.send(request("SUBSCRIBE", "c") + b"".join(request(*line.split()) for line in lines))
                told.append(client.replies(1 + len(lines)))
            else:
                told.append([client.command(*line.split()) for line in ("SUBSCRIBE c", *lines)])
        assert told[1] == told[0]
        for line in ("EXPIREMEMBER s a 5", "TTL s a", "PERSIST s a"):
            name = line.split()[0].lower().encode()
            assert through.command(*line.split()).startswith(b"-ERR Can't execute '%b': only (P" % name)
        assert through.command("EXPIREMEMBER", "s") == b"-ERR wrong number of arguments for 'expiremember' command\r\n"
        assert through.command("RESET") == b"+RESET\r\n"
        assert through.command("TTL", "s", "a")[:1] == b":"


@pytest.mark.every_kind
def test_a_subscriber_hears_of_its_own_commands(twins: Twins) -> None:
    check_subscriber(twins)


def check_void_refused(twins: Twins, refusal: str) -> None:
    begin, end = REFUSALS[refusal]
    twins.fill()
    straight, through = twins.connect(2)
    for client in (straight, through):
        assert client.command("EVAL", "return redis.call('hdel', KEYS[1], 'a')", 1, "h") == b":1\r\n"
    twins.configure(*begin)
    try:
        # If it was a primary until now, all connections end when the proxy itself may not write.
        with suppress(ConnectionError):
            for _ in range(5):
                through.command("EVAL", "return 1", 1, "h")
        straight, through = twins.connect(2)
        for line in (
            "HINCRBY h a 1",
            "EVAL return(redis.call('hlen',KEYS[1])) 1 h",
            "BLMOVE l l LEFT RIGHT 1",
            "SCARD s",
        ):
            assert through.command(*line.split()) == straight.command(*line.split()), line
    finally:
        twins.configure(*end)


@pytest.mark.every_kind
@pytest.mark.parametrize("refusal", ["no replicas", "read-only replica"])
def test_what_cannot_be_voided_before_a_request_is_refused_with_it(twins: Twins, refusal: str) -> None:
    unless_noticed(refusal, partial(check_void_refused, twins, refusal))


def check_reads(twins: Twins, refusal: str) -> None:
    begin, end = REFUSALS[refusal]
    reads = ["EVAL return(redis.call('hget',KEYS[1],'a')) 1 h", "EVAL return(redis.call('hget',KEYS[1],'a')) 1 gone"]
    if twins.straight.version >= (7,):
        reads.append("EVAL_RO return(redis.call('hget',KEYS[1],'a')) 1 h")
    straight, through = twins.connect(2)
    twins.fill()
    # A key that is known, and that has no shadow in this database.
    with twins.proxy.connect() as other:
        other.command("SELECT", 5)
        other.command("HSET", "gone", "a", 1)
        assert other.command("EXPIREMEMBER", "gone", "a", FAR) == b":1\r\n"
    twins.configure(*begin)
    try:
        for line in (*reads, "MULTI", *reads, "EXEC"):
            words = line.split()
            assert through.command(*words) == straight.command(*words), line
        if twins.straight.version >= (7,):
            script = "#!lua flags=no-writes\nreturn redis.call('hget', KEYS[1], 'a')"
            for words in (["EVAL", script, "1", "h"], ["MULTI"], ["EVAL", script, "1", "h"], ["EXEC"]):
                assert through.command(*words) == straight.command(*words), words
    finally:
        twins.configure(*end)


@pytest.mark.every_kind
@pytest.mark.parametrize("refusal", ["no replicas", "read-only replica"])
def test_a_script_that_only_reads_is_never_refused_for_a_write_of_the_proxys(twins: Twins, refusal: str) -> None:
    unless_noticed(refusal, partial(check_reads, twins, refusal))


# Within one transaction.

REMOVALS: Final = {
    "script": (["EVAL", "return redis.call('hdel', KEYS[1], 'a')", "1", "h"],),
    "pop": (["SPOP", "s", "5"], ["LPOP", "l"], ["ZPOPMIN", "z"]),
    "expiry": (["PEXPIRE", "h", "0"],),
    "run": tuple(["HDEL", "h", field] for field in "axyz"),
}


def check_transaction_lives(twins: Twins, pieces: bool) -> None:
    """A member that goes within a transaction, unnamed, and comes back in it has no deadline."""
    straight, through = twins.connect(3)
    adders = (["HINCRBY", "h", "a", "2"], ["EVAL", "return redis.call('hset', KEYS[1], 'a', 7)", "1", "h"],
              ["BLMOVE", "from", "l", "LEFT", "RIGHT", "1"], ["SADD", "s", "a"], ["ZINCRBY", "z", "2", "a"],
              ["HINCRBYFLOAT", "h", "a", "1"])  # fmt: skip
    for way, removers in REMOVALS.items():
        for adder in adders:
            twins.fill()
            for client in (straight, through):
                client.command("RPUSH", "from", "a")
            program = [["MULTI"], ["GET", "q"], *removers, adder, ["HGETALL", "h"], ["EXEC"], ["PING"]]
            replies = []
            for client in (straight, through):
                if pieces:
                    replies.append([client.command(*words) for words in program])
                else:
                    client.send(b"".join(request(*words) for words in program))
                    replies.append(client.replies(len(program)))
                client.command("DEL", "from")
            assert [*map(_unordered, replies[1])] == [*map(_unordered, replies[0])], (way, adder)
            key = adder[3] if adder[0] == "EVAL" else adder[2] if adder[0] == "BLMOVE" else adder[1]
            if (key == "h" and way != "pop") or (key != "h" and way == "pop"):
                assert through.command("TTL", key, "a") == b":-1\r\n", (way, adder)


@pytest.mark.every_kind
@pytest.mark.parametrize("pieces", [True, False], ids=["one by one", "pipelined"])
def test_a_member_that_comes_back_within_its_transaction_has_no_deadline(twins: Twins, pieces: bool) -> None:
    check_transaction_lives(twins, pieces)


@pytest.mark.every_kind
def test_transactions_that_do_not_run_are_answered_as_straight(twins: Twins) -> None:
    """Dropped, spoilt, overtaken by a change of what is watched, in a state that refuses MULTI."""
    straight, through = twins.connect(2)
    add, count = "SADD s x", "HINCRBY h a 1"
    programs = (
        ("MULTI", add, count, "DISCARD", "GET q"),
        ("MULTI", count, "NOSUCH", add, "EXEC", "GET q"),
        ("MULTI", count, "MULTI", add, count, "EXEC", "GET q"),
        ("MULTI", count, "WATCH s", add, "EXEC", "GET q"),
        ("WATCH q", "SET q other", "MULTI", add, count, "EXEC", "GET q"),
        ("MULTI", count, "SUBSCRIBE c d", "GET q", count, "EXEC", "UNSUBSCRIBE c", "UNSUBSCRIBE d", "GET q"),
        ("MULTI", count, "HELLO 3", "HGETALL h", count, "EXEC", "GET q", "HELLO 2"),
        ("MULTI", count, "CLIENT REPLY ON", add, "EXEC", "GET q"),
        ("MULTI", add, "RESET", "GET q"),
        ("EXEC", "MULTI", "EXEC", "MULTI", count, "EXEC x", "EXEC", "EXEC", "GET q"),
        (
            "MULTI",
            count,
            add,
            "LRANGE l 0 -1",
            "SORT s ALPHA",
            "HGETALL h",
            "LINDEX l 99",
            "LSET q 0 x",
            "EXEC",
            "DISCARD",
        ),
    )
    for program in programs:
        for pieces in (True, False):
            twins.fill()
            told = []
            for client in (straight, through):
                stream = b"".join(request(*line.split()) for line in program) + request("ECHO", "end")
                if pieces:
                    for at in range(0, len(stream), 37):
                        client.send(stream[at : at + 37])
                else:
                    client.send(stream)
                replies = [client.reply()]
                while replies[-1] != b"$3\r\nend\r\n":
                    replies.append(client.reply())
                told.append([_unordered(reply) for reply in replies])
            assert told[1] == told[0], program


def _unordered(reply: bytes) -> list[bytes]:
    """The lines of a reply in any order, for the members of a set; without the connection's number, for a greeting."""
    return sorted(re.sub(rb"(\r\nid\r\n:)\d+", rb"\1", reply).split(b"\r\n"))


# Asides, without a server.


def _frames(random_: random.Random, depth: int = 0) -> bytes:
    kind = random_.choice("+:$$n_#,*%~|L" if depth < 3 else "+:$n")
    if kind == "L":  # many parts in a row
        count = random_.randrange(50, 250)
        return b"*%d\r\n" % count + b"".join(_frames(random_, 3) for _ in range(count))
    if kind == "$":
        body = random_.choice([b"", b"x", b"\r\n", b"+QUEUED\r\n", b"*3\r\n", b"y" * 300])
        return b"$%d\r\n%b\r\n" % (len(body), body)
    if kind in "+:_#,n":
        status = b"+%b\r\n" % random_.choice([b"OK", b"OK", b"s" * 25, b"t" * 200])
        return {"+": status, ":": b":12\r\n", "_": b"_\r\n", "#": b"#t\r\n", ",": b",1.5\r\n", "n": b"$-1\r\n"}[kind]
    count = random_.randrange(3)
    inner = b"".join(_frames(random_, depth + 1) for _ in range(count * (1 + (kind in "%|"))))
    behind = _frames(random_, depth + 1) if kind == "|" else b""
    return kind.encode() + b"%d\r\n" % count + inner + behind


@pytest.mark.parametrize("longest", [asides_module.LONGEST_LINE, 20])
@pytest.mark.parametrize("seed", range(60))
def test_asides_are_taken_out_wherever_the_stream_is_cut(
    seed: int, longest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asides_module, "LONGEST_LINE", longest)
    random_ = random.Random(seed)
    asides, replies = Asides(), ReplySubstitution()
    token = replies.open(asides).split(b"\r\n")[2]
    asides.note(Whose.CLIENT)
    stream, wanted = b":7\r\n-ERR unknown command '%b', with args\r\n+OK\r\n" % token, b":7\r\n+OK\r\n"
    asked, answers, kept = 0, b"", b""
    push = b">2\r\n+x\r\n*1\r\n$-1\r\n"
    own = 0
    for _ in range(random_.randrange(8)):
        asides.note(Whose.CLIENT)
        if random_.random() < 0.4:
            asides.precede()
            answers += _frames(random_)
            own += 1
            stream += b"+QUEUED\r\n"
        asked += 1
        element = random_.choice([b"", b"", push]) + _frames(random_)
        answers, kept = answers + element, kept + element
        stream, wanted = stream + b"+QUEUED\r\n", wanted + b"+QUEUED\r\n"
    asides.note(Whose.EXEC)
    asides.close()
    stream += b"*%d\r\n" % (asked + own) + answers + b"$2\r\nab\r\n"
    wanted += b"*%d\r\n" % asked + kept + b"$2\r\nab\r\n"
    got, position = b"", 0
    while position < len(stream):
        size = random_.choice([1, 1, 2, 5, 40, 400])
        got += replies.receive(stream[position : position + size])
        position += size
    assert got == wanted
    assert not replies.active


def test_a_refused_aside_is_the_answer_to_the_request_behind_it() -> None:
    asides, replies = Asides(), ReplySubstitution()
    token = replies.open(asides).split(b"\r\n")[2]
    for _ in range(3):
        asides.note(Whose.CLIENT)
    asides.precede()
    asides.note(Whose.EXEC)
    asides.close()
    head = b"-ERR unknown command `%b`, with\r\n+OK\r\n+QUEUED\r\n" % token
    tail = b"-NOREPLICAS no\r\n+QUEUED\r\n-EXECABORT x\r\n:1\r\n"
    assert replies.receive(head + tail) == b"+OK\r\n+QUEUED\r\n-NOREPLICAS no\r\n-EXECABORT x\r\n:1\r\n"
    assert not replies.active


def test_a_large_element_streams(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """Taking out what stands before it does not hold it."""
    server = start_server(kind)
    proxy = start_proxy(server)
    with proxy.connect() as client:
        client.command("HSET", "h", "a", 1)
        client.command("EXPIREMEMBER", "h", "a", FAR)
        client.command("SETRANGE", "big", 100_000_000, "x")
        before = psutil.Process(proxy.pid).memory_info().rss
        client.send(
            b"".join(request(*line.split()) for line in ("MULTI", "HINCRBY h a 1", "GET big", "HINCRBY h a 1", "EXEC"))
        )
        assert client.replies(4) == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
        assert [client.line(), client.line(), client.line()] == [b"*3\r\n", b":2\r\n", b"$100000001\r\n"]
        assert len(client.exactly(100_000_003)) == 100_000_003
        assert client.line() == b":3\r\n"
        assert _peak(proxy.pid) - before < 40_000_000


def test_a_long_status_streams(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """A hundred bytes of requests make a line of any length, which was searched from its beginning with each chunk."""
    proxy = start_proxy(start_server(kind))
    process = psutil.Process(proxy.pid)
    with proxy.connect() as client:
        client.command("HSET", "h", "a", 1)
        client.command("EXPIREMEMBER", "h", "a", FAR)
        before, used = process.memory_info().rss, process.cpu_times().user
        long = ("EVAL", "return {ok = string.rep('x', 50000000)}", 0)
        words = [line.split() for line in ("MULTI", "HINCRBY h a 1", "HINCRBY h a 1", "EXEC")]
        client.send(b"".join(request(*one) for one in (*words[:2], long, *words[2:])))
        assert client.replies(4) == [b"+OK\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n", b"+QUEUED\r\n"]
        assert [client.line(), client.line()] == [b"*3\r\n", b":2\r\n"]
        assert client.exactly(50_000_003)[-4:] == b"xx\r\n"
        assert client.line() == b":3\r\n"
        assert process.cpu_times().user - used < 2
        assert _peak(proxy.pid) - before < 40_000_000


def _peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text("ascii"))
    assert found is not None
    return int(found[1]) * 1024

"""COMMAND knows what the proxy adds, and says of all else what the server says, byte for byte."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from redis._parsers.commands import CommandsParser

from proxy.commands.own import EXTENDED, OWN
from proxy.commands.table import COMMANDS, DIALECTS, Effect
from proxy.session.globs import matches
from proxy.wire.asides import Asides, Whose
from proxy.wire.frames import frames
from tests.conftest import Both, StartProxy, StartServer
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import KINDS, Proxy, Server, until

MODELS = {"pexpire": rb":-?3\r\n", "pttl": rb":2\r\n"}


def ours_at(server: Raw) -> list[str]:
    """The proxy's commands that the server does not have."""
    rows = parse(server.command("COMMAND", "INFO", *OWN))
    return [name.decode() for name, row in zip(OWN, rows, strict=True) if row is None]


def test_all_of_the_proxys_commands_are_described() -> None:
    new = {name for name, command in COMMANDS.items() if command.effect is Effect.EXPIRE}
    assert {name.upper() for name in OWN} == new | DIALECTS.keys()
    extended = {name for name, command in COMMANDS.items() if command.effect is Effect.LIFETIME}
    assert {name.upper() for name in EXTENDED} == extended


@pytest.fixture
def has_docs(upstream: Server) -> bool:
    return upstream.version >= (7,)


def parts(reply: bytes) -> list[bytes]:
    """The elements of an array or a map, as they came."""
    return frames(reply.partition(b"\r\n")[2])


def size(reply: bytes) -> int:
    return int(reply[1 : reply.index(b"\r\n")])


def entry(model: bytes, name: str) -> bytes:
    """What COMMAND INFO is to say of a command of the proxy's, where it says that of its model."""
    own = OWN[name.encode()]
    flags = b"%d\r\n" % len(own.flags) + b"".join(b"+%s\r\n" % flag for flag in own.flags)
    arity = MODELS[own.model.decode()]
    head = b"$%d\r\n%s\r\n:%d\r\n" % (len(name), name.encode(), own.arity)
    found = re.sub(rb"\$\d\r\n%s\r\n" % own.model + arity, head, model, count=1)
    return re.sub(rb"([*~])\d\r\n(?:\+\w+\r\n)+", lambda kind: kind[1] + flags, found, count=1)


def extended(entry: bytes) -> bytes:
    return re.sub(rb"^(\*\d+\r\n\$\d\r\n(?:ttl|pttl|persist)\r\n):2\r\n", rb"\1:-2\r\n", entry)


@pytest.mark.every_kind
def test_the_whole_list_has_them_at_its_end(both: Both, has_docs: bool) -> None:
    straight, through = both
    own = ours_at(straight)
    assert len(own) in (37, 49)
    for words in [["COMMAND"], *([["command", "Info"]] if has_docs else [])]:
        theirs, ours = straight.command(*words), through.command(*words)
        assert size(ours) == size(theirs) + len(own)
        models = {name: parts(straight.command("COMMAND", "INFO", name))[0] for name in MODELS}
        added = [entry(models[OWN[name.encode()].model.decode()], name) for name in own]
        assert parts(ours) == [*map(extended, parts(theirs)), *added]
    count = int(straight.command("COMMAND", "COUNT")[1:])
    assert through.command("COMMAND", "COUNT") == b":%d\r\n" % (count + len(own))


@pytest.mark.every_kind
def test_single_ones_are_described(both: Both, has_docs: bool) -> None:
    straight, through = both
    model = parts(straight.command("COMMAND", "INFO", "pexpire"))[0]
    ttl, nothing = parts(straight.command("COMMAND", "INFO", "ttl", "nosuch"))
    get = parts(straight.command("COMMAND", "INFO", "get"))[0]
    words = ["ExpireMember", "pexpire", "get", "pexpirememberAT", "nosuch", "PEXPIRE", "ttl", "expiremember"]
    assert parts(through.command("COMMAND", "INFO", *words)) == [
        entry(model, "expiremember"), model, get, entry(model, "pexpirememberat"), nothing, model, extended(ttl),
        entry(model, "expiremember"),
    ]  # fmt: skip
    assert extended(ttl) != ttl
    pttl = parts(straight.command("COMMAND", "INFO", "pttl"))[0]
    assert parts(through.command("COMMAND", "INFO", "zPERSIST", "pttl", "STTL", "pexpire", "lexpireat")) == [
        entry(model, "zpersist"), extended(pttl), entry(pttl, "sttl"), model, entry(model, "lexpireat"),
    ]  # fmt: skip
    for words in (["pexpire", "get"], ["nosuch"], ["get"], ["config|get"]):
        assert through.command("COMMAND", "INFO", *words) == straight.command("COMMAND", "INFO", *words)


@pytest.mark.every_kind
def test_keys_are_found_in_them(both: Both) -> None:
    straight, through = both
    for subcommand in ("GETKEYS", "GETKEYSANDFLAGS", "getkeys"):
        found = straight.command("COMMAND", subcommand, "PEXPIRE", "k", 1)
        for line in ("EXPIREMEMBER k m 1", "pexpirememberat k m 1 XX", "ExpireMember k m 1 ms NX",
                     "SEXPIRE k 1 MEMBERS 1 a", "zpersist k MEMBERS 1 a"):  # fmt: skip
            assert through.command("COMMAND", subcommand, *line.split()) == found
        assert through.command("COMMAND", subcommand, "EXPIREMEMBER", "k", "m") == straight.command(
            "COMMAND", subcommand, "PEXPIRE", "k"
        )
        assert through.command("COMMAND", subcommand, "EXPIREMEMBER") == straight.command(
            "COMMAND", subcommand, "PEXPIRE"
        )
        found = straight.command("COMMAND", subcommand, "PTTL", "k")
        assert through.command("COMMAND", subcommand, "STTL", "k", "MEMBERS", 2, "a", "b") == found
        found = straight.command("COMMAND", subcommand, "PTTL", "k", "k")
        assert through.command("COMMAND", subcommand, "STTL", "k", "MEMBERS", 2) == found
        for name in ("TTL", "persist"):
            found = straight.command("COMMAND", subcommand, name, "k")
            assert through.command("COMMAND", subcommand, name, "k", "m") == found


@pytest.mark.every_kind
def test_what_does_not_name_them_is_the_servers(both: Both) -> None:
    straight, through = both
    for line in (
        "COMMAND COUNT x", "COMMAND NOSUCH", "COMMAND LIST x", "COMMAND LIST FILTERBY", "COMMAND LIST FILTERBY PATTERN",
        "COMMAND LIST FILTERBY MODULE expiremember", "COMMAND LIST FILTERBY ACLCAT pubsub", "COMMAND GETKEYS",
        "COMMAND LIST FILTERBY PATTERN zadd", "COMMAND GETKEYS NOSUCH a b", "COMMAND GETKEYS TTL", "COMMAND HELP",
        "COMMAND GETKEYS TTL a b c", "COMMAND GETKEYS MSET a 1 b 2", "COMMAND DOCS get nosuch",
        "COMMAND INFO get get", "COMMAND LIST FILTERBY ACLCAT nosuch", "COMMAND LIST FILTERBY COLOUR green",
    ):  # fmt: skip
        assert through.command(*line.split()) == straight.command(*line.split()), line


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_lists_have_those_that_their_filter_lets_through(both: Both) -> None:
    straight, through = both
    own = ours_at(straight)
    for words, added in (
        ([], own), (["FILTERBY", "PATTERN", "EXPIRE*T"], ["expirememberat"]),
        (["filterby", "pattern", "p[a-f]xpire[mM]ember?t"], ["pexpirememberat"]),
        (["FILTERBY", "aclcat", "Keyspace"], own),
        (["FILTERBY", "ACLCAT", "write"], [name for name in own if b"write" in OWN[name.encode()].flags]),
        (["FILTERBY", "ACLCAT", "read"], [name for name in own if b"readonly" in OWN[name.encode()].flags]),
        (["FILTERBY", "PATTERN", "nosuch"], []), (["FILTERBY", "PATTERN", "?TTL"], [n for n in own if n[1:] == "ttl"]),
    ):  # fmt: skip
        theirs = straight.command("COMMAND", "LIST", *words)
        names = [b"$%d\r\n%s\r\n" % (len(name), name.encode()) for name in added]
        ours = through.command("COMMAND", "LIST", *words)
        assert parts(ours) == [*parts(theirs), *names], words
        assert size(ours) == size(theirs) + len(added)


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_the_documentation_has_their_arguments(both: Both) -> None:
    straight, through = both
    whole, theirs = through.command("COMMAND", "DOCS"), straight.command("COMMAND", "DOCS")
    pairs = 1 if whole.startswith(b"%") else 2
    own = ours_at(straight)
    first = -len(own)
    assert size(whole) == size(theirs) + len(own) * pairs
    names, docs = parts(whole)[::2], parts(whole)[1::2]
    assert names[first:] == [b"$%d\r\n%s\r\n" % (len(name), name.encode()) for name in own]
    both_docs = zip(names[:first], docs, parts(theirs)[1::2], strict=False)
    changed = {name for name, ours, other in both_docs if ours != other}
    assert changed == {b"$%d\r\n%s\r\n" % (len(name), name) for name in EXTENDED}
    assert parts(through.command("COMMAND", "DOCS", "get", "EXPIREMEMBER"))[2:] == [names[first], docs[first]]
    head = b"%b%d\r\n" % (whole[:1], pairs)
    assert through.command("COMMAND", "DOCS", "expireMEMBER") == head + names[first] + docs[first]
    single = straight.command("COMMAND", "DOCS", "ttl")
    assert size(through.command("COMMAND", "DOCS", "ttl")) == size(single)


def decoded(client: redis.Redis, *words: str) -> object:
    client.response_callbacks.clear()
    reply: object = client.execute_command(*words)  # type: ignore[no-untyped-call]
    return reply


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_the_documentation_reads_as_the_servers_own_does(proxy: Proxy) -> None:
    with redis.Redis(port=int(str(proxy.address[1])), protocol=3) as client:  # type: ignore[index]
        docs = decoded(client, "COMMAND", "DOCS", "expiremember", "ttl", "pexpire")
    assert isinstance(docs, dict)
    assert list(docs) == [b"ttl", b"pexpire", b"expiremember"]
    ours, ttl = docs[b"expiremember"], docs[b"ttl"]
    assert ours.keys() <= docs[b"pexpire"].keys()
    names = [argument[b"name"] for argument in ours[b"arguments"]]
    assert names == [b"key", b"member", b"delay", b"unit", b"condition"]
    assert [one[b"token"] for one in ours[b"arguments"][3][b"arguments"]] == [b"s", b"ms"]
    assert [argument[b"name"] for argument in ttl[b"arguments"]] == [b"key", b"member"]


# Wherever it stands in the stream, and whoever asks.


@pytest.mark.every_kind
def test_within_transactions(both: Both) -> None:
    check_within_transactions(*both)


def check_within_transactions(straight: Raw, through: Raw) -> None:
    lines = [
        "MULTI", "COMMAND COUNT", "COMMAND INFO expiremember get", "SET k v", "COMMAND GETKEYS EXPIREMEMBER k m 1",
        "COMMAND INFO nosuch", "COMMAND INFO ttl", "EXEC",
    ]  # fmt: skip
    # Before there are deadlines, a transaction that the network cuts gets the server's own replies.
    through.command("SADD", "deadlines", "m")
    assert through.command("EXPIREMEMBER", "deadlines", "m", 100) == b":1\r\n"
    through.send(b"".join(request(*line.split()) for line in lines))
    replies = through.replies(len(lines))
    assert replies[:-1] == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 6]
    with_one = through.command("COMMAND", "INFO", "expiremember", "get")
    model = parts(straight.command("COMMAND", "INFO", "pexpire"))[0]
    assert parts(with_one)[0] == entry(model, "expiremember")
    assert parts(replies[-1]) == [
        through.command("COMMAND", "COUNT"), with_one, b"+OK\r\n", b"*1\r\n$1\r\nk\r\n",
        straight.command("COMMAND", "INFO", "nosuch"), through.command("COMMAND", "INFO", "ttl"),
    ]  # fmt: skip


@pytest.mark.every_kind
def test_within_a_transaction_that_comes_in_pieces(both: Both) -> None:
    """Beside requests of the proxy's own, which stand in it once there are deadlines."""
    _, through = both
    through.command("HSET", "h", "f", 1)
    assert through.command("EXPIREMEMBER", "h", "f", 100) == b":1\r\n"
    count = through.command("COMMAND", "COUNT")
    said = [through.command(*line.split()) for line in ("MULTI", "HDEL h f", "COMMAND COUNT", "HINCRBY h f 1")]
    assert said == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 3]
    assert through.command("EXEC") == b"*3\r\n:1\r\n%s:1\r\n" % count
    assert through.command("TTL", "h", "f") == b":-1\r\n"


def test_an_amended_reply_in_a_transaction_may_be_cut_anywhere() -> None:
    stream = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n+QUEUED\r\n*3\r\n:1\r\n*2\r\n$1\r\na\r\n*1\r\n:3\r\n$2\r\nxy\r\n+next\r\n"
    for cut in range(len(stream)):
        asides = Asides()
        asides.note(Whose.CLIENT)
        asides.note(Whose.CLIENT)
        asides.precede()
        asides.amend(bytes.upper)
        asides.note(Whose.CLIENT)
        asides.note(Whose.EXEC)
        asides.close()
        kept, behind = asides.receive(stream[:cut])
        more, rest = asides.receive(stream[cut:]) if not asides.done else (b"", stream[cut:])
        wanted = b"+OK\r\n+QUEUED\r\n+QUEUED\r\n*2\r\n*2\r\n$1\r\nA\r\n*1\r\n:3\r\n$2\r\nxy\r\n+next\r\n"
        assert kept + behind + more + rest == wanted


def test_in_a_long_pipeline_with_replies_switched_off_and_on(both: Both) -> None:
    _, through = both
    count = through.command("COMMAND", "COUNT")
    lines = ["CLIENT REPLY SKIP", "COMMAND COUNT", "COMMAND COUNT", "CLIENT REPLY OFF", "COMMAND COUNT"]
    through.send(b"".join(request(*line.split()) for line in [*lines, "CLIENT REPLY ON", "COMMAND COUNT"]))
    assert through.replies(3) == [count, b"+OK\r\n", count]
    through.send(request("COMMAND", "COUNT") * 400 + request("PING"))
    assert through.replies(401) == [count] * 400 + [b"+PONG\r\n"]


def test_between_push_messages_and_for_who_watches_all(both: Both, proxy: Proxy) -> None:
    _, through = both
    count = through.command("COMMAND", "COUNT")
    with proxy.connect() as subscriber, proxy.connect() as watcher, proxy.connect() as other:
        subscriber.command("HELLO", 3)
        subscriber.command("SUBSCRIBE", "c")
        for number in range(50):
            assert other.command("PUBLISH", "c", number) == b":1\r\n"
            subscriber.send_command("COMMAND", "COUNT")
            assert sorted(subscriber.replies(2)) == [count, b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$%d\r\n%d\r\n"
                                                    % (len(str(number)), number)]  # fmt: skip
        assert watcher.command("MONITOR") == b"+OK\r\n"
        watcher.send_command("COMMAND", "COUNT")
        until(lambda: watcher.reply().startswith(b":"), what="a reply")


def test_before_a_login_the_server_answers(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind, "--requirepass", "pw")
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//:pw@"))
    refused = server.command("COMMAND")
    assert refused.startswith(b"-NOAUTH")
    with proxy.connect() as client:
        client.send(request("COMMAND", "COUNT") + request("AUTH", "pw") + request("COMMAND", "COUNT"))
        first, second, third = client.replies(3)
        assert (first, second) == (refused, b"+OK\r\n")
        with server.connect() as straight:
            straight.command("AUTH", "pw")
            assert int(third[1:]) == int(straight.command("COMMAND", "COUNT")[1:]) + len(ours_at(straight))
        # Who may run no script is told the same; who may not ask is told so.
        for name, rules in (("few", "+@all -@scripting"), ("none", "+@all -command")):
            assert client.command("ACL", "SETUSER", name, "on", "nopass", "~app:*", *rules.split()) == b"+OK\r\n"
        assert client.command("AUTH", "few", "x") == b"+OK\r\n"
        assert client.command("COMMAND", "COUNT") == third
        assert client.command("AUTH", "none", "x") == b"+OK\r\n"
        assert client.command("COMMAND", "COUNT").startswith(b"-NOPERM")
        assert client.command("COMMAND", "INFO", "expiremember").startswith(b"-NOPERM")


# What clients make of it.


def test_redis_cluster_clients_find_the_keys(proxy: Proxy) -> None:
    """redis-py's cluster client refuses a command that COMMAND does not list, without asking any server."""
    with redis.Redis(port=int(str(proxy.address[1]))) as client:  # type: ignore[index]
        parser: Any = CommandsParser(client)  # type: ignore[no-untyped-call]
        assert parser.get_keys(client, "EXPIREMEMBER", "k", "m", 10) == ["k"]
        assert parser.get_keys(client, "PEXPIREMEMBERAT", "k", "m", 10, "NX") == ["k"]
        assert parser.get_keys(client, "TTL", "k", "m") == ["k"]
        assert parser.get_keys(client, "HTTL", "k", "FIELDS", 1, "m") == ["k"]


_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class Terminal:
    """A program that takes what is typed, and draws."""

    def __init__(self, *command: str) -> None:
        self.near, far = pty.openpty()
        fcntl.ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        env = {**os.environ, "TERM": "xterm"}
        self.process = subprocess.Popen(command, stdin=far, stdout=far, stderr=far, env=env, close_fds=True)
        os.close(far)

    def type_and_see(self, text: str, wanted: Callable[[bytes], object], timeout: float = 15) -> None:
        """Type the beginning of a line, and wait until what is drawn is what is wanted."""
        drawn = b""
        os.write(self.near, text.encode())
        deadline = time.monotonic() + timeout
        while not wanted(_COLOUR.sub(b"", drawn)):
            left = deadline - time.monotonic()
            assert left > 0, drawn
            if select.select([self.near], [], [], left)[0]:
                drawn += os.read(self.near, 1 << 16)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.near)


@pytest.mark.skipif("redis-7.0" not in KINDS, reason="needs redis-cli from 7.0 on")
def test_redis_cli_shows_the_arguments_as_one_types(kind: str, proxy: Proxy) -> None:
    if not kind.startswith("redis-7") and not kind.startswith("valkey"):
        return  # it asks for COMMAND DOCS, which came with Redis 7.0
    terminal = Terminal("redis-cli", "-p", str(proxy.address[1]))  # type: ignore[index]
    try:
        terminal.type_and_see("", lambda drawn: b"> " in drawn)
        shown = b"key member delay [s|ms] [NX|XX|GT|LT]"
        terminal.type_and_see("EXPIREMEMBER ", lambda drawn: shown in drawn)
        terminal.type_and_see("k m ", lambda drawn: b"delay [s|ms] [NX|XX|GT|LT]" in drawn)
        terminal.type_and_see("\x15ttl ", lambda drawn: b"key [member]" in drawn)
        terminal.type_and_see(
            "\x15help pexpiremember\r", lambda drawn: b"since: 0.1.0" in drawn and b"generic" in drawn
        )
    finally:
        terminal.close()


# Patterns, as the server reads them.


@pytest.fixture(scope="module")
def named() -> Iterator[Raw]:
    server = Server(KINDS[-1])
    with server.connect() as client:
        for name in OWN:
            assert client.command("SET", name, "v") == b"+OK\r\n"
        yield client
    server.close()


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from([*"pexirmbat*?[]^-\\", "expire", "member", "[a-f]", "[^a-f]", "**"])).map("".join))
@example("[")
@example("[p")
@example("*[t")
@example("*\\")
@example("*[\\t]")
@example("p*[a-]")
@example("*" * 300 + "z")
def test_patterns_match_what_they_match_for_the_server(named: Raw, pattern: str) -> None:
    found = set(re.findall(rb"[a-z]+(?=\r\n)", named.command("KEYS", pattern)))
    assert {name for name in OWN if matches(pattern.encode(), name)} == found


def test_a_long_pattern_is_tried_in_bounded_time() -> None:
    began = time.process_time()
    assert not matches(b"*?[a-z]" * 140 + b"!", b"pexpirememberat")
    assert time.process_time() - began < 0.5

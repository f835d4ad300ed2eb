"""The proxy is not there: the same bytes sent straight to the server and through the proxy get the same bytes back."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import repeat

import pytest

from proxy.commands.dialects import WORDS
from tests.battery import SCENARIOS, Line
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until
from tests.test_lives import PREFIX

pytestmark = pytest.mark.every_kind

Connect = Callable[[], Raw]
Talk = Callable[[Connect], list[bytes]]
"""A conversation over one connection or several; what it gives back is what the servers' answers are compared by."""

MEGABYTE = 1 << 20
CLIENT_ID = re.compile(rb"(\$2\r\nid\r\n:)\d+")


def same_both_ways(upstream: Server, proxy: Proxy, talk: Talk) -> list[bytes]:
    """Hold a conversation straight and through the proxy, each with an empty server; return what both gave."""
    reset_server(upstream)
    straight = talk(upstream.connect)
    upstream.flush()
    reset_server(upstream)
    through = talk(proxy.connect)
    differences = [
        f"answer {number}: straight {one[:300]!r}, through the proxy {other[:300]!r}"
        for number, (one, other) in enumerate(zip(straight, through, strict=True))
        if one != other
    ]
    assert not differences, "\n".join(differences)
    return straight


def normal(line: Line, reply: bytes) -> bytes:
    """A reply without what rightly differs from run to run: the client's id, and order where there is none."""
    reply = CLIENT_ID.sub(rb"\1(id)", reply)
    return b"\n".join(sorted(reply.split(b"\r\n"))) if line.unordered else reply


def hello(client: Raw, protocol: int) -> None:
    """Have the connection speak a version of the protocol."""
    if protocol != 2:
        assert client.command("HELLO", protocol).startswith(b"%")


def subscribed(server: Server) -> list[bytes]:
    """The channels that have subscribers, beside those on which proxies tell each other of keys."""
    channels = server.command("PUBSUB", "CHANNELS").split(b"\r\n")[2::2]
    return [channel for channel in channels if not channel.startswith(PREFIX)]


def reset_server(server: Server) -> None:
    """Remove what a flush leaves: functions, and subscribers whose connections are still closing."""
    until(lambda: not subscribed(server), what="the end of the last subscription")
    until(lambda: server.command("PUBSUB", "NUMPAT") == b":0\r\n", what="the end of the last pattern")
    if server.version >= (7,):
        assert server.command("FUNCTION", "FLUSH") == b"+OK\r\n"


protocols = pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
scenarios = pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda name: name.replace(" ", "-"))


def requests_of(scenario: str, upstream: Server) -> list[Line]:
    """The requests of a scenario, without words of other servers that this one lacks: the proxy has those itself."""
    rows = parse(upstream.command("COMMAND", "INFO", *WORDS))
    lacked = {name for name, row in zip(WORDS, rows, strict=True) if row is None}
    return [line for line in SCENARIOS[scenario] if line.arguments[0].upper() not in lacked]


def send_slices(client: Raw, data: bytes, sizes: Iterator[int]) -> None:
    """Send bytes in pieces of the given sizes."""
    position = 0
    while position < len(data):
        end = position + next(sizes)
        client.send(data[position:end])
        position = end


@contextmanager
def concurrently(work: Callable[[], None]) -> Iterator[None]:
    """Do something while the caller does something else."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield
    thread.join(30)
    assert not thread.is_alive()


# The battery, four ways.


@scenarios
@protocols
def test_one_by_one(upstream: Server, proxy: Proxy, protocol: int, scenario: str) -> None:
    lines = requests_of(scenario, upstream)

    def talk(connect: Connect) -> list[bytes]:
        with connect() as client:
            hello(client, protocol)
            return [normal(line, client.command(*line.arguments)) for line in lines]

    same_both_ways(upstream, proxy, talk)


@scenarios
def test_pipelined_in_small_pieces(upstream: Server, proxy: Proxy, scenario: str) -> None:
    # A failed AUTH behind another request of the same batch gets no reply at all from Valkey 8.0.1, proxy or not.
    lines = [line for line in requests_of(scenario, upstream) if b"nosuchuser" not in line.arguments]
    data = b"".join(request(*line.arguments) for line in lines)

    def talk(connect: Connect) -> list[bytes]:
        with connect() as client:
            sizes = random.Random(scenario)
            with concurrently(partial(send_slices, client, data, iter(lambda: sizes.randint(1, 40), None))):
                return [normal(line, client.reply()) for line in lines]

    same_both_ways(upstream, proxy, talk)


@scenarios
@protocols
def test_with_deadlines_on_every_member(upstream: Server, proxy: Proxy, protocol: int, scenario: str) -> None:
    """Whatever stands in for a request, on keys whose members have deadlines, answers as the request does without."""
    lines = requests_of(scenario, upstream)

    def talk(connect: Connect) -> list[bytes]:
        replies = []
        with connect() as client, upstream.connect() as straight, proxy.connect() as marker:
            hello(client, protocol)
            for line in lines:
                if connect == proxy.connect:
                    give_deadlines(straight, marker)
                replies.append(normal(line, client.command(*line.arguments)))
        return replies

    same_both_ways(upstream, proxy, talk)


def give_deadlines(straight: Raw, through: Raw) -> None:
    """Give every member of every hash, set and sorted set a deadline that is far away."""
    listing = {b"hash": ("HKEYS",), b"set": ("SMEMBERS",), b"zset": ("ZRANGE", 0, -1)}
    for key in elements(straight.command("KEYS", "*")):
        if key.startswith(b"__expiremember__:"):
            continue
        kind = straight.command("TYPE", key)[1:-2]
        if kind in listing:
            name, *limits = listing[kind]
            for member in elements(straight.command(name, key, *limits)):
                assert through.command("EXPIREMEMBER", key, member, 10000) == b":1\r\n"


def elements(reply: bytes) -> list[bytes]:
    """The bulk strings of a flat array."""
    found = []
    position = reply.index(b"\n") + 1
    while position < len(reply):
        end = reply.index(b"\r\n", position)
        size = int(reply[position + 1 : end])
        found.append(reply[end + 2 : end + 2 + size])
        position = end + 2 + size + 2
    return found


@scenarios
def test_inline(upstream: Server, proxy: Proxy, scenario: str) -> None:
    """As somebody types it into a telnet."""
    lines = requests_of(scenario, upstream)

    def talk(connect: Connect) -> list[bytes]:
        with connect() as client:
            replies = []
            for line in lines:
                quoted = ("".join(f"\\x{byte:02x}" for byte in word) for word in line.arguments)
                client.send(" ".join(f'"{word}"' for word in quoted).encode() + b"\r\n")
                replies.append(normal(line, client.reply()))
            return replies

    same_both_ways(upstream, proxy, talk)


def test_the_battery_is_no_heap_of_errors(upstream: Server) -> None:
    """What a server refuses compares little: it must understand most of the battery, though it may be an old one."""
    for name, lines in SCENARIOS.items():
        upstream.flush()
        reset_server(upstream)
        with upstream.connect() as client:
            replies = [client.command(*line.arguments) for line in lines]
        errors = sum(reply.startswith(b"-") for reply in replies)
        assert name == "errors" or errors < len(replies) * 0.6, (name, errors, len(replies))


# What is more than one request and one reply.


def conversation(talk: Callable[..., list[bytes]]) -> Callable[..., None]:
    """Make a test of a conversation, held with either protocol."""

    @protocols
    def test(upstream: Server, proxy: Proxy, protocol: int) -> None:
        same_both_ways(upstream, proxy, partial(talk, protocol=protocol))

    test.__doc__ = talk.__doc__
    return test


def _pubsub(connect: Connect, protocol: int) -> list[bytes]:
    """Subscribing, messages from elsewhere, and what is allowed meanwhile."""
    with connect() as reader, connect() as writer:
        hello(reader, protocol)
        reader.send_command("SUBSCRIBE", "news", "other")
        got = reader.replies(2)
        reader.send_command("PSUBSCRIBE", "n*")
        got += reader.replies(1)
        got.append(writer.command("PUBLISH", "news", b"hello \r\n\x00"))
        got += reader.replies(2)
        got.append(writer.command("PUBSUB", "NUMSUB", "news", "other", "nope"))
        reader.send_command("PING")
        reader.send_command("GET", "k")
        got += reader.replies(2)
        reader.send_command("UNSUBSCRIBE")
        got += sorted(reader.replies(2))
        reader.send_command("PUNSUBSCRIBE", "n*", "never")
        got += reader.replies(2)
        got.append(reader.command("PING"))
        got.append(writer.command("PUBLISH", "news", "nobody"))
        reader.send_command("SSUBSCRIBE", "shard")
        got.append(reader.reply())
        return [*got, writer.command("SPUBLISH", "shard", "x")]


test_pubsub = conversation(_pubsub)


def _monitor(connect: Connect, protocol: int) -> list[bytes]:
    """MONITOR shows what others do, as they did it."""
    with connect() as watcher, connect() as other:
        hello(watcher, protocol)
        got = [watcher.command("MONITOR")]
        other.send(request("SET", "monitored-key", "v") + b"get monitored-key\r\n" + request("ECHO", "monitored-end"))
        got += other.replies(3)
        seen: list[bytes] = []
        while not (seen and b"monitored-end" in seen[-1]):
            line = watcher.line()
            if b"monitored" in line:
                seen.append(re.sub(rb"^\+[\d.]+ \[(\d+) [^]]+\]", rb"+time [\1 address]", line))
        return got + seen


test_monitor = conversation(_monitor)


def _blocking(connect: Connect, protocol: int) -> list[bytes]:
    """Requests that wait for another client, or in vain."""
    with connect() as waiter, connect() as other:
        hello(waiter, protocol)
        got = []
        for blocked, *release in (
            (("BLPOP", "a", "b", 0), ("RPUSH", "b", "x", "y")),
            (("BRPOP", "b2", 0), ("LPUSH", "b2", "z")),
            (("BZPOPMIN", "z", 0), ("ZADD", "z", "1.5", "m")),
            (("BLMOVE", "src", "dst", "LEFT", "RIGHT", 0), ("RPUSH", "src", "moved")),
            (("XREAD", "BLOCK", 0, "STREAMS", "s", "$"), ("XADD", "s", "1-1", "f", "v")),
        ):
            waiter.send(request("CLIENT", "ID") + request(*blocked) + request("PING", "behind"))
            number = waiter.reply()[1:-2]
            until(lambda number=number: b"flags=b" in other.command("CLIENT", "LIST", "ID", number))  # type: ignore[misc]
            got.append(other.command(*release[0]))
            got += waiter.replies(2)
        waiter.send_command("BLPOP", "nope", "0.05")
        waiter.send_command("BZPOPMAX", "nope", "0.05")
        got += waiter.replies(2)
        number = waiter.command("CLIENT", "ID")[1:-2]
        waiter.send_command("BLPOP", "nope", 0)
        got.append(until(lambda: other.command("CLIENT", "UNBLOCK", number, "ERROR").replace(b":0\r\n", b"")))
        return [*got, waiter.reply()]


test_blocking = conversation(_blocking)


def _client_reply(connect: Connect, protocol: int) -> list[bytes]:
    """Replies switched off, skipped and on again, pipelined: only those that are wanted come."""
    with connect() as client:
        hello(client, protocol)
        client.send(
            request("SET", "a", 1)
            + request("CLIENT", "REPLY", "SKIP")
            + request("GET", "a")
            + request("GET", "a")
            + request("CLIENT", "REPLY", "OFF")
            + request("INCR", "a")
            + request("NOSUCH")
            + request("HSET", "a", "f", "v")
            + request("TTL")
            + request("CLIENT", "REPLY", "ON")
            + request("GET", "a")
        )
        return client.replies(4)


test_client_reply = conversation(_client_reply)


def _tracking(connect: Connect, protocol: int) -> list[bytes]:
    """Invalidation messages of client-side caching, in every mode."""
    with connect() as reader, connect() as writer, connect() as listener:
        hello(reader, protocol)
        hello(writer, protocol)
        got = [writer.command("SET", "k", 1)]
        if protocol == 3:
            got.append(reader.command("CLIENT", "TRACKING", "ON"))
            invalidated = reader
        else:
            number = listener.command("CLIENT", "ID")[1:-2]
            got.append(listener.command("SUBSCRIBE", "__redis__:invalidate"))
            got.append(reader.command("CLIENT", "TRACKING", "ON", "REDIRECT", number))
            invalidated = listener
        got.append(reader.command("GET", "k"))
        got.append(writer.command("SET", "k", 2))
        got.append(invalidated.reply())
        got.append(reader.command("GET", "k"))
        got.append(writer.command("FLUSHALL"))
        got.append(invalidated.reply())
        got.append(reader.command("CLIENT", "TRACKING", "OFF"))
        if protocol == 3:
            got.append(reader.command("CLIENT", "TRACKING", "ON", "BCAST", "PREFIX", "user:"))
            got.append(writer.command("MSET", "user:1", "a", "other", "b"))
            got.append(reader.reply())
            got.append(reader.command("GET", "user:1"))
            got.append(reader.command("CLIENT", "TRACKINGINFO"))
        return got


test_tracking = conversation(_tracking)


def _watch(connect: Connect, protocol: int) -> list[bytes]:
    """A transaction that another client's change undoes, and one that it does not concern."""
    with connect() as client, connect() as other:
        hello(client, protocol)
        got = []
        for watched in ("k", "elsewhere"):
            got.append(client.command("WATCH", watched))
            got.append(client.command("MULTI"))
            got.append(client.command("HSET", "h", watched, "v"))
            got.append(other.command("SET", "k", "changed"))
            got.append(client.command("EXEC"))
            got.append(client.command("HGETALL", "h"))
        return got


test_watch = conversation(_watch)


def _quit(connect: Connect, protocol: int) -> list[bytes]:
    """QUIT is answered, and what comes behind it is not."""
    with connect() as client:
        hello(client, protocol)
        client.send(request("SET", "k", "v") + request("QUIT") + request("SET", "k", "later"))
        got = [client.rest()]
    with connect() as client:
        return [*got, client.command("GET", "k")]


test_quit = conversation(_quit)


def _killed(connect: Connect, protocol: int) -> list[bytes]:
    """A client that another one kills is closed, whatever it waits for."""
    with connect() as victim, connect() as other:
        hello(victim, protocol)
        number = victim.command("CLIENT", "ID")[1:-2]
        victim.send_command("BLPOP", "nope", 0)
        got = [until(lambda: other.command("CLIENT", "KILL", "ID", number).replace(b":0\r\n", b""))]
        return [*got, victim.rest()]


test_killed = conversation(_killed)


def _half_close(connect: Connect, protocol: int) -> list[bytes]:
    """A client that has sent its last request still gets its replies, then the end; a blocked one is let go."""
    got = []
    with connect() as client:
        hello(client, protocol)
        client.send(request("SET", "k", "v") + request("GET", "k") + b"PING\r\n")
        client.end_of_requests()
        got.append(client.rest())
    with connect() as client:
        client.send_command("BLPOP", "nope", 0)
        client.end_of_requests()
        got.append(client.rest())
    with connect() as client:
        client.send(request("SET", "k", "lost")[:-3])
        client.end_of_requests()
        got.append(client.rest())
        with connect() as other:
            return [*got, other.command("GET", "k")]


test_half_close = conversation(_half_close)


# How requests are framed.

END = request("ECHO", "--end--")

FRAMES: dict[str, bytes] = {
    "array header is no number": b"*abc\r\n",
    "array header is empty": b"*\r\n",
    "array of minus one is nothing": b"*-1\r\n",
    "array of minus many is nothing": b"*-100\r\n",
    "array of none is nothing": b"*0\r\n",
    "array with a plus": b"*+1\r\n$4\r\nPING\r\n",
    "array with a zero in front": b"*01\r\n$4\r\nPING\r\n",
    "array with a space in front": b"* 1\r\n$4\r\nPING\r\n",
    "array with a space behind": b"*1 \r\n$4\r\nPING\r\n",
    "array as hexadecimal": b"*0x1\r\n$4\r\nPING\r\n",
    "array of too many": b"*2147483648\r\n",
    "array of far too many": b"*99999999999999999999999\r\n",
    "array of a million and one": b"*1048577\r\n" + b"$1\r\na\r\n" * 1_048_577,
    "array header ends in no line feed": b"*1\rX$4\r\nPING\r\n",
    "array header ends in a line feed alone": b"*1\n$4\r\nPING\r\n",
    "array header has a null byte": b"*1\x00\r\n$4\r\nPING\r\n",
    "inline where a string should be": b"*1\r\nPING\r\n",
    "integer where a string should be": b"*2\r\n$4\r\nECHO\r\n:42\r\n",
    "array where a string should be": b"*1\r\n*1\r\n$4\r\nPING\r\n",
    "string header is no number": b"*1\r\n$abc\r\n",
    "string header is empty": b"*1\r\n$\r\n",
    "string of minus one": b"*2\r\n$4\r\nECHO\r\n$-1\r\n",
    "string of minus one in front": b"*1\r\n$-1\r\n",
    "string with a plus": b"*1\r\n$+4\r\nPING\r\n",
    "string with a zero in front": b"*1\r\n$04\r\nPING\r\n",
    "string of minus zero": b"*2\r\n$4\r\nECHO\r\n$-0\r\n\r\n",
    "string too long": b"*2\r\n$4\r\nECHO\r\n$536870913\r\n" + b"x" * 20_000,
    "string far too long": b"*2\r\n$4\r\nECHO\r\n$99999999999999999999\r\n",
    "string header ends in no line feed": b"*1\r\n$4\rXPING\r\n",
    "string ends in something else": b"*1\r\n$4\r\nPINGXY",
    "string is longer than it says": b"*1\r\n$4\r\nPINGPONG\r\n",
    "string is shorter than it says": b"*1\r\n$5\r\nPING\r\n",
    "empty string as a command": b"*1\r\n$0\r\n\r\n",
    "empty string as an argument": b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n",
    "answers before the error": request("SET", "k", "v") + b"PING\r\n" + request("GET", "k") + b"*1\r\n!1\r\n",
    "error inside of a transaction": request("MULTI") + request("SET", "k", "v") + b"*x\r\n" + request("EXEC"),
    "string header alone": b"$4\r\nPING\r\n",
    "status line alone": b"+PING\r\n",
    "map header alone": b"%1\r\n",
    "empty lines": b"\r\n\r\n\n\r\nPING\r\n\r\n",
    "line feed alone ends a line": b"PING\nECHO x\n",
    "carriage return inside of a line": b"ECHO a\rb\r\n",
    "carriage returns before a line feed": b"ECHO a\r\r\n",
    "blanks around": b"   PING   \r\n\tECHO \t x\x0b\r\n",
    "blanks alone": b"   \r\nPING\r\n",
    "null byte in a line": b"PING\x00 x\r\nPING\r\n",
    "null byte first": b"\x00\r\nPING\r\n",
    "high bytes": b"ECHO \xff\xfe\xc3\xa9\r\n",
    "double quotes": b'ECHO "a b\\x41\\n\\r\\t\\b\\a\\"q\\\\ \\q \\xZZ"\r\n',
    "single quotes": b"ECHO 'a b \\' \\n \"x\"'\r\n",
    "empty quotes": b"ECHO \"\"\r\nECHO ''\r\n",
    "quotes within a word": b'ECHO a"b c"\r\n',
    "text right behind a quote": b'ECHO "a"b\r\nPING\r\n',
    "text right behind a single quote": b"ECHO 'a'b\r\n",
    "unbalanced double quote": b'ECHO "a b\r\n',
    "unbalanced single quote": b"ECHO 'a b\r\n",
    "backslash at the end of a quote": b'ECHO "a\\"\r\n',
    "quotes around a line end": b'ECHO "a\r\nb"\r\n',
    "quoted command": b'"PING"\r\n"SET" \'k\' "v"\r\nGET k\r\n',
    "line and array by turns": b"SET k 1\r\n" + request("INCR", "k") + b"INCR k\r\n" + request("GET", "k"),
    "HTTP": b"GET / HTTP/1.1\r\nAccept: */*\r\nConnection: close\r\n\r\n",
    "HTTP post": b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nPING\r\n",
    "HTTP with a host": b"Host: localhost\r\n\r\n",
    "a TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n",
    "long line": b"ECHO " + b"x" * 60_000 + b"\r\n",
    "line without an end": b"A" * 200_000,
    "array header without an end": b"*" + b"1" * 200_000,
    "string header without an end": b"*1\r\n$" + b"1" * 200_000,
    "many words": b"DEL" + b" k" * 30_000 + b"\r\n",
    "many arguments": request("DEL", *range(20_000)),
}


def exchange(client: Raw, data: bytes, size: int) -> list[bytes]:
    """Send bytes and an ECHO behind them in pieces of this size, then nothing more; return all that is answered."""

    def send() -> None:
        with suppress(OSError):  # the server may have closed already, for what came first
            send_slices(client, data + END, repeat(size))
            client.end_of_requests()

    with concurrently(send):
        return [client.rest()]


SIZES = {"byte-by-byte": 1, "in-sevens": 7, "whole": MEGABYTE}
CUTS = [(name, size) for size in SIZES.values() for name, frame in FRAMES.items()
        if size == MEGABYTE or len(frame) < MEGABYTE]  # fmt: skip
"""What is sent, and in pieces of how many bytes; whatever is long comes in several anyway."""


@pytest.mark.parametrize(
    ("name", "size"), CUTS, ids=lambda value: str(value).replace(" ", "-") if isinstance(value, str) else None
)
def test_framing(upstream: Server, unmarked_proxy: Callable[[str], Proxy], name: str, size: int) -> None:
    proxy = unmarked_proxy(upstream.kind)
    data = FRAMES[name]
    size = max(size, len(data) // 1000)  # byte by byte would take long, and say no more

    def talk(connect: Connect) -> list[bytes]:
        with connect() as client:
            (said,) = exchange(client, data, size)
        # The proxy may send in one piece what has come in several.
        swallowed = upstream.swallows_errors and size < len(data)
        return [re.sub(rb"-ERR Protocol error: [^\r]*\r\n\Z", b"", said) if swallowed else said]

    same_both_ways(upstream, proxy, talk)

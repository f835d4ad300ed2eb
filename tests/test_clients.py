"""The clients that people use, unmodified: redis-cli, redis-py, and somebody with a telnet."""

from __future__ import annotations

import asyncio
import gc
import os
import pty
import re
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import redis.asyncio
from redis.commands.core import HashDataPersistOptions

from tests.conftest import installed
from tests.raw import about
from tests.servers import BINARIES, Proxy, Server, until


def port_of(proxy: Proxy) -> int:
    assert not isinstance(proxy.address, Path)
    return proxy.address[1]


# redis-cli


@pytest.fixture(scope="module")
def redis_cli() -> str:
    """The real one: from PATH, else the one beside a server."""
    folders = [str(binary.path.parent) for binary in BINARIES.values()]
    found = shutil.which("redis-cli") or next(filter(None, (shutil.which("redis-cli", path=p) for p in folders)), None)
    assert found is not None, "no redis-cli on this machine"
    return found


def cli(program: str, proxy: Proxy, *args: str, typed: str | None = None) -> str:
    """Run redis-cli to its end; return what it prints."""
    command = [program, "-h", "127.0.0.1", "-p", str(port_of(proxy)), *args]
    done = subprocess.run(command, input=typed, capture_output=True, text=True, timeout=20, check=True)
    assert done.stderr == ""
    return done.stdout


def test_redis_cli_with_arguments(redis_cli: str, proxy: Proxy) -> None:
    assert cli(redis_cli, proxy, "SADD", "s", "a", "b") == "2\n"
    assert cli(redis_cli, proxy, "EXPIREMEMBER", "s", "a", "100") == "1\n"
    assert about(cli(redis_cli, proxy, "TTL", "s", "a"), 100)
    refused = "(error) ERR wrong number of arguments for 'expiremember' command"
    assert cli(redis_cli, proxy, "--no-raw", "EXPIREMEMBER", "s").rstrip() == refused
    assert cli(redis_cli, proxy, "-3", "--no-raw", "SMISMEMBER", "s", "a", "c") == "1) (integer) 1\n2) (integer) 0\n"


def test_redis_cli_reading_commands(redis_cli: str, proxy: Proxy) -> None:
    typed = """
        SELECT 3
        HSET h f "v w"
        MULTI
        EXPIREMEMBER h f 50
        TTL h g
        PERSIST h f
        EXEC
        TTL h f
        HGETALL h
        nosuch
    """
    printed = cli(redis_cli, proxy, typed="\n".join(line.strip() for line in typed.strip().splitlines()) + "\n")
    assert printed.splitlines()[:12] == [
        *("OK", "1", "OK", "QUEUED", "QUEUED", "QUEUED"),
        *("1", "-1", "1"),
        *("-1", "f", "v w"),
    ]
    assert printed.splitlines()[12].startswith("ERR unknown command")


def test_redis_cli_in_a_terminal(redis_cli: str, proxy: Proxy) -> None:
    """As a newcomer meets it: it asks the server about its commands first, and shows its prompt."""
    ours, theirs = pty.openpty()
    command = [redis_cli, "-h", "127.0.0.1", "-p", str(port_of(proxy))]
    env = {**os.environ, "TERM": "dumb", "HOME": "/nonexistent"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, env=env, start_new_session=True
    ) as shell:
        os.close(theirs)
        seen = ""

        def wait_for(pattern: str) -> None:
            nonlocal seen
            while not re.search(pattern, seen):
                seen += os.read(ours, 4096).decode()

        try:
            prompt = rf"127\.0\.0\.1:{port_of(proxy)}> $"
            wait_for(prompt)
            for line, answer in (
                ("sadd s a", r"\(integer\) 1\r\n"),
                ("expiremember s a 100", r"\(integer\) 1\r\n"),
                ("ttl s a", r"\(integer\) (100|9\d)\r\n"),
                ("smembers s", r'1\) "a"\r\n'),
            ):
                seen = ""
                os.write(ours, line.encode() + b"\n")
                wait_for(answer + prompt)
            os.write(ours, b"quit\n")
            assert shell.wait(10) == 0
        finally:
            shell.kill()
            os.close(ours)


def test_redis_cli_pipe_mode(redis_cli: str, proxy: Proxy) -> None:
    """Mass insertion ends with an ECHO of random bytes that has to come back."""
    typed = "".join(f"SADD s m{number}\r\n" for number in range(10_000))
    assert "errors: 0, replies: 10000" in cli(redis_cli, proxy, "--pipe", typed=typed)
    assert proxy.command("SCARD", "s") == b":10000\r\n"


def test_redis_cli_scans(redis_cli: str, upstream: Server, proxy: Proxy) -> None:
    """What looks through all keys does not meet the proxy's own."""
    assert proxy.command("MSET", "a", 1, "b", 2) == b"+OK\r\n"
    assert proxy.command("SADD", "s", "m") == b":1\r\n"
    assert proxy.command("EXPIREMEMBER", "s", "m", 1000) == b":1\r\n"
    assert upstream.command("DBSIZE") != b":3\r\n"
    assert sorted(cli(redis_cli, proxy, "--scan").split()) == ["a", "b", "s"]
    assert "Sampled 3 keys in the keyspace" in cli(redis_cli, proxy, "--bigkeys")


# A telnet


def test_a_telnet_session(proxy: Proxy) -> None:
    with proxy.connect() as telnet:
        for typed, answer in (
            (b"PING\r\n", b"+PONG\r\n"),
            (b"sadd s 'one member' other\r\n", b":2\r\n"),
            (b'expiremember s "one member" 100\n', b":1\r\n"),
            (b'TTL s "other"\r\n', b":-1\r\n"),
            (b'pexpirememberat s "one \\x6dember" 99999999999999\r\n', b":1\r\n"),
            (b"expiremember s\r\n", b"-ERR wrong number of arguments for 'expiremember' command\r\n"),
            (b"\r\n\r\nsismember s other\r\n", b":1\r\n"),
            (b"multi\r\n", b"+OK\r\n"),
            (b"persist s 'one member'\r\n", b"+QUEUED\r\n"),
            (b"exec\r\n", b"*1\r\n:1\r\n"),
            (b"quit\r\n", b"+OK\r\n"),
        ):
            for byte in typed:  # as fast as somebody types
                telnet.send(bytes([byte]))
            assert telnet.exactly(len(answer)) == answer
        assert telnet.rest() == b""


# redis-py


@pytest.fixture(params=[2, 3], ids=["resp2", "resp3"])
def client(request: pytest.FixtureRequest, proxy: Proxy) -> Iterator[redis.Redis]:
    """A redis-py client of either protocol."""
    with redis.Redis(port=port_of(proxy), protocol=request.param, decode_responses=True) as made:
        yield made


def test_redis_py(client: Any) -> None:
    assert client.ping()
    assert client.set("k", "v", ex=100)
    assert client.get("k") == "v"
    assert client.ttl("k") == 100
    assert client.hset("h", mapping={"f": 1, "g": 2}) == 2
    assert client.execute_command("EXPIREMEMBER", "h", "f", 100) == 1
    assert about(client.execute_command("TTL", "h", "f"), 100)
    assert client.execute_command("PTTL", "h", "f") > 90_000
    assert client.execute_command("PERSIST", "h", "f") is True
    assert client.execute_command("PERSIST", "h", "f") is False
    assert client.hgetall("h") == {"f": "1", "g": "2"}
    assert client.zadd("z", {"a": 1.5, "b": 2}) == 2
    assert client.execute_command("PEXPIREMEMBER", "z", "a", 100_000) == 1
    assert client.zincrby("z", 1, "a") == 2.5
    assert client.zadd("z", {"c": 1e20}, incr=True) == 1e20
    assert client.zscore("z", "a") == 2.5
    assert client.zrange("z", 0, -1, withscores=True)[0][0] == "b"
    with pytest.raises(redis.ResponseError, match="object type is unsupported"):
        client.execute_command("EXPIREMEMBER", "k", "x", 10)
    with pytest.raises(redis.ResponseError, match="wrong number of arguments for 'expiremember' command"):
        client.execute_command("EXPIREMEMBER", "k")
    assert sorted(client.scan_iter()) == ["h", "k", "z"]
    assert client.eval("return redis.call('get', KEYS[1])", 1, "k") == "v"
    script = client.register_script("return ARGV[1]")
    assert script(args=["x"]) == "x"


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
def test_redis_py_fields_on_an_old_server(
    protocol: int, shared_server: Callable[[str], Server], shared_proxy: Callable[[str], Proxy]
) -> None:
    """Its methods for lifetimes of fields get from Redis 6.2 what they get from a server that has the commands."""
    said = []
    for port in (shared_server(installed("redis-8.10")).port, port_of(shared_proxy(installed("redis-6.2")))):
        with redis.Redis(port=port, protocol=protocol, decode_responses=True) as client:
            client.flushall()
            said.append([re.sub(r"\b(4|6)999\b", lambda found: f"{int(found[1]) + 1}000", str(reply))
                         for reply in fields(client)])  # fmt: skip
    new, through = said
    assert through == new
    assert new[1:4] == ["[1, -2]", "[0]", "[1]"]
    assert new[-1] == "wrong number of arguments for 'httl' command"


def fields(client: Any) -> Iterator[object]:
    yield client.hset("h", mapping={"a": 1, "b": 2, "c": 3})
    yield client.hexpire("h", 5000, "a", "none")
    yield client.hexpire("h", 5000, "a", nx=True)
    yield client.hpexpireat("h", 4_000_000_000_001, "b")
    yield client.httl("h", "a", "c")
    yield client.hpexpiretime("h", "b")
    yield client.hexpiretime("h", "b")
    yield client.hpersist("h", "a", "c")
    yield client.hsetex("h", "d", 4, ex=7000, data_persist_option=HashDataPersistOptions.FNX)
    yield client.httl("h", "d")
    yield client.hgetex("h", "d", "none", persist=True)
    yield client.httl("h", "d")
    yield client.hgetdel("h", "d", "none")
    yield client.hexpire("h", 0, "a")
    yield client.hgetall("h")
    with client.pipeline() as pipe:
        yield pipe.hset("h", "b", 5).httl("h", "b").execute()
    with pytest.raises(redis.ResponseError) as refused:
        client.execute_command("HTTL", "h")
    yield refused.value


def test_redis_py_an_expired_member_is_gone(client: Any) -> None:
    client.sadd("s", "gone", "stays")
    client.execute_command("EXPIREMEMBER", "s", "gone", 1, "ms")
    until(lambda: client.smembers("s") == {"stays"})
    client.execute_command("EXPIREMEMBER", "s", "stays", 1, "ms")
    until(lambda: not client.exists("s"))


def test_redis_py_pipeline(client: Any) -> None:
    for transaction in (True, False):
        client.delete("s")
        with client.pipeline(transaction=transaction) as pipe:
            for number in range(1000):
                pipe.sadd("s", number)
                pipe.execute_command("EXPIREMEMBER", "s", number, 1000)
            pipe.scard("s")
            pipe.execute_command("TTL", "s", 7)
            *replies, left = pipe.execute()
            assert replies == [1, 1] * 1000 + [1000]
            assert about(left, 1000)
        with client.pipeline(transaction=transaction) as pipe:
            pipe.set("k", "v").execute_command("EXPIREMEMBER", "k", "x", 10).get("k")
            assert [type(reply) for reply in pipe.execute(raise_on_error=False)] == [bool, redis.ResponseError, str]


def test_redis_py_watch(client: Any, upstream: Server) -> None:
    client.set("k", 1)
    with client.pipeline() as pipe:
        pipe.watch("k")
        assert pipe.get("k") == "1"
        pipe.multi()
        pipe.set("k", 2)
        assert pipe.execute() == [True]
        pipe.watch("k")
        upstream.command("SET", "k", "changed")
        pipe.multi()
        pipe.set("k", 3)
        with pytest.raises(redis.WatchError):
            pipe.execute()

    def move(pipe: Any) -> None:
        value = pipe.get("k")
        pipe.multi()
        pipe.sadd("s", value)
        pipe.execute_command("EXPIREMEMBER", "s", value, 50)

    assert client.transaction(move, "k") == [1, 1]
    assert about(client.execute_command("TTL", "s", "changed"), 50)


def test_redis_py_pubsub(client: Any) -> None:
    with client.pubsub() as pubsub:
        pubsub.subscribe("news")
        pubsub.psubscribe("n*")
        kinds = [until(lambda: pubsub.get_message(timeout=5))["type"] for _ in range(2)]
        assert kinds == ["subscribe", "psubscribe"]
        assert client.publish("news", "hello") == 2
        messages = [until(lambda: pubsub.get_message(timeout=5)) for _ in range(2)]
        assert [(message["type"], message["data"]) for message in messages] == [
            ("message", "hello"),
            ("pmessage", "hello"),
        ]


def test_redis_py_blocking_and_many_databases(client: Any, proxy: Proxy) -> None:
    assert client.blpop("nope", timeout=0.05) is None
    client.rpush("l", "x")
    assert list(client.blpop("l")) == ["l", "x"]
    with redis.Redis(port=port_of(proxy), db=5) as other:
        other.sadd("s", "m")
        assert other.execute_command("EXPIREMEMBER", "s", "m", 100) == 1
        assert about(other.execute_command("TTL", "s", "m"), 100)
    assert client.exists("s") == 0


def run_with(proxy: Proxy, protocol: int, work: Callable[[Any], Awaitable[None]]) -> None:
    async def main() -> None:
        async with redis.asyncio.Redis(port=port_of(proxy), protocol=protocol, decode_responses=True) as client:
            await work(client)

    asyncio.run(main())
    gc.collect()  # what was left open is complained of here, not in a later test


@pytest.mark.parametrize("protocol", [2, 3], ids=["resp2", "resp3"])
def test_redis_py_asyncio(proxy: Proxy, protocol: int) -> None:
    async def work(client: Any) -> None:
        assert await client.hset("h", "f", "v") == 1
        assert await client.execute_command("EXPIREMEMBER", "h", "f", 100) == 1
        assert about(await client.execute_command("TTL", "h", "f"), 100)
        async with client.pipeline(transaction=True) as pipe:
            assert await pipe.sadd("s", "a").execute_command("EXPIREMEMBER", "s", "a", 10).execute() == [1, 1]
        # All at once, over many connections.
        replies = await asyncio.gather(*(client.incr("n") for _ in range(50)))
        assert sorted(replies) == list(range(1, 51))
        async with client.pubsub() as pubsub:
            await pubsub.subscribe("news")
            assert (await pubsub.get_message(timeout=5))["type"] == "subscribe"
            await client.publish("news", "hello")
            assert (await pubsub.get_message(timeout=5))["data"] == "hello"

    run_with(proxy, protocol, work)

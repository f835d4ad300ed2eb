"""The typed methods for redis-py, with its real clients: of one server and of a cluster, synchronous and not."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
import redis
import redis.asyncio
import redis.asyncio.cluster
import redis.cluster

from proxy.redis_py import AsyncMemberCommands, MemberCommands, Queued
from tests.cluster import Cluster
from tests.pages import page
from tests.servers import BINARIES, KIND, ROOT, Proxy, until

pytestmark = pytest.mark.one_kind


class Client(MemberCommands, redis.Redis):
    """One server's, synchronous."""


class AsyncClient(AsyncMemberCommands, redis.asyncio.Redis):  # type: ignore[misc] # two of its own bases disagree
    """One server's, asynchronous."""


class ClusterClient(MemberCommands, redis.cluster.RedisCluster):
    """A cluster's, synchronous."""


class AsyncClusterClient(AsyncMemberCommands, redis.asyncio.cluster.RedisCluster):  # type: ignore[misc] # likewise
    """A cluster's, asynchronous."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with ExitStack() as stack:
        yield Cluster(KIND if BINARIES[KIND].version >= (7,) else max(BINARIES), stack, replicas=0)


@pytest.fixture
def port(proxy: Proxy) -> int:
    assert isinstance(proxy.address, tuple)
    return proxy.address[1]


def keys(prefix: str) -> list[str]:
    """Names in different slots, so that a cluster's client has to find the node of each."""
    return [f"{prefix}:{number}" for number in range(12)]


def now() -> datetime:
    return datetime.now(UTC)


def use(client: Client | ClusterClient) -> None:
    for key in keys("cart"):
        client.sadd(key, "apple", "pear", "plum", "fig", 7)
        assert client.expiremember(key, "apple", 100) is True
        assert client.expiremember(key, "nothing", 100) is False
        assert 99 <= client.ttl_member(key, "apple") <= 100
        assert 99_000 <= client.pttl_member(key, "apple") <= 100_000
        assert client.ttl_member(key, "pear") == client.pttl_member(key, "pear") == -1
        assert client.ttl_member(f"{{{key}}}:nothing", "apple") == -2
        assert client.expiremember(key, "apple", 200, "NX") is False
        assert client.expiremember(key, "apple", 200, condition="XX") is True
        assert client.expiremember(key, "apple", 100, "GT") is False
        assert client.expiremember(key, "apple", timedelta(milliseconds=150_500), "LT") is True
        assert 150_000 <= client.pttl_member(key, "apple") <= 150_500
        assert client.pexpiremember(key, b"pear", 60_000) is True
        assert 59_000 <= client.pttl_member(key, "pear") <= 60_000
        assert client.expirememberat(key, "plum", int(time.time()) + 50) is True
        assert 48 <= client.ttl_member(key, "plum") <= 50
        assert client.expirememberat(key, "plum", now() + timedelta(seconds=70.5)) is True
        assert 69_000 <= client.pttl_member(key, "plum") <= 70_501  # rounded up
        assert client.pexpirememberat(key, 7, int(time.time() * 1000) + 30_000) is True
        assert 29_000 <= client.pttl_member(key, "7") <= 30_000
        assert client.pexpirememberat(key, 7, datetime.now(timezone(timedelta(hours=5))) + timedelta(hours=1)) is True
        assert 3_590 <= client.ttl_member(key, 7) <= 3_601
        assert client.persist_member(key, "pear") is True
        assert client.persist_member(key, "pear") is False
        # Less than a millisecond is not at once, and what is due is removed.
        assert client.expiremember(key, "fig", timedelta(microseconds=1)) is True
        assert client.expiremember(key, "apple", 0) is True
        until(lambda: client.smembers(key) == {b"pear", b"plum", b"7"})  # noqa: B023 - at once
        # Of the key's own lifetime they leave the methods alone.
        assert client.ttl(key) == -1
        assert client.expire(key, 1000)
        assert client.persist(key)


async def use_asynchronously(client: AsyncClient | AsyncClusterClient) -> None:
    for key in keys("session"):
        await client.hset(key, mapping={"phone": "1", "laptop": "2", "tv": "3"})
        assert await client.expiremember(key, "phone", 100) is True
        assert await client.expiremember(key, "phone", timedelta(seconds=9), "GT") is False
        assert 99 <= await client.ttl_member(key, "phone") <= 100
        assert await client.pexpiremember(key, "laptop", 60_000, "NX") is True
        assert 59_000 <= await client.pttl_member(key, "laptop") <= 60_000
        assert await client.expirememberat(key, "laptop", now() + timedelta(seconds=30)) is True
        assert 28 <= await client.ttl_member(key, "laptop") <= 31  # rounded up
        assert await client.pexpirememberat(key, "laptop", int(time.time() * 1000) + 20_000) is True
        assert 18_000 <= await client.pttl_member(key, "laptop") <= 20_000
        assert await client.persist_member(key, "laptop") is True
        assert await client.persist_member(key, "laptop") is False
        assert await client.pttl_member(key, "tv") == -1
        assert await client.expiremember(key, "tv", -1) is True
        assert await client.hkeys(key) == [b"phone", b"laptop"]


def queue(pipe: Any) -> list[Any]:
    """Put each of the commands into a pipeline; return what its replies are to be, where they are exact."""
    members, key = Queued(pipe), "online"
    pipe.zadd(key, {"carol": 1, "dave": 2})
    assert members.expiremember(key, "carol", 30, "NX") is pipe
    members.pexpiremember(key, "carol", timedelta(seconds=20))
    members.expirememberat(key, "dave", int(time.time()) + 90)
    members.pexpirememberat(key, "dave", now() + timedelta(seconds=60))
    members.ttl_member(key, "carol")
    members.pttl_member(key, "nobody")
    members.persist_member(key, "dave")
    members.persist_member(key, "nobody")
    return [2, 1, 1, 1, 1, 20, -1, True, False]


def check(replies: list[Any], expected: list[Any]) -> None:
    assert replies[:5] + replies[6:] == expected[:5] + expected[6:]
    assert 19 <= replies[5] <= 20


def test_the_methods(port: int) -> None:
    with Client(port=port) as client:
        use(client)
        with client.pipeline(transaction=True) as pipe:
            expected = queue(pipe)
            check(pipe.execute(), expected)


def test_the_methods_in_resp3_with_text(port: int) -> None:
    with Client(port=port, protocol=3, decode_responses=True) as client:
        client.rpush("list", "a", "b")
        assert client.expiremember("list", "a", 10) is True
        assert client.persist_member("list", "a") is True
        assert client.ttl_member("list", "a") == -1


def test_the_methods_of_a_cluster(cluster: Cluster) -> None:
    with ClusterClient(host="127.0.0.1", port=cluster.flush().nodes[0].announced_port) as client:
        use(client)
        with client.pipeline() as pipe:
            expected = queue(pipe)
            check(pipe.execute(), expected)


def run(main: Callable[[], Any]) -> None:
    asyncio.run(main())


def test_the_asynchronous_methods(port: int) -> None:
    async def main() -> None:
        async with AsyncClient(port=port) as client:
            await use_asynchronously(client)
            async with client.pipeline(transaction=True) as pipe:
                expected = queue(pipe)
                check(await pipe.execute(), expected)

    run(main)


def test_the_asynchronous_methods_of_a_cluster(cluster: Cluster) -> None:
    async def main() -> None:
        client = AsyncClusterClient(host="127.0.0.1", port=cluster.flush().nodes[0].announced_port)
        async with client:
            await use_asynchronously(client)
            async with client.pipeline() as pipe:
                expected = queue(pipe)
                check(await pipe.execute(), expected)

    run(main)


def test_the_page_names_every_method_and_no_other() -> None:
    section = page("docs/clients.md").text.split("\n## Python\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`[a-z_`, ]+`) \| (`.+`) \|$", section, re.M)
    named = {method: said for methods, said in rows for method in re.findall(r"\w+", methods)}
    for one in (MemberCommands, AsyncMemberCommands, Queued):
        assert named.keys() == {name for name in vars(one) if not name.startswith("_")}, one
    for method, said in named.items():
        assert f"`{method.removesuffix('_member').upper()}" in said


def test_the_module_stands_alone() -> None:
    """It loads nothing that an application has not, not even redis-py."""
    shown = "import sys, proxy.redis_py; print(*(name for name in sys.modules if name.partition('.')[0] not in known))"
    code = f"import sys; known = {{*sys.stdlib_module_names, *sys.modules}}; {shown}"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"proxy", "proxy.redis_py"}

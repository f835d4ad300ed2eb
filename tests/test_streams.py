"""A key gets its first deadline while requests for it are still arriving: neither keeps what was not meant for it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import pytest

from proxy.expiry.underway import SILENT_SECONDS, Underway
from proxy.session.pipeline import Pipeline, Sender
from proxy.session.streams import Streams
from tests.conftest import StartProxy, StartServer
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until
from tests.test_lives import Talk, clock, first_of_its_kind, new_key, talk, wait_past

__all__ = ["talk"]  # a fixture


@pytest.fixture
def upstream(kind: str, start_server: StartServer) -> Server:
    """A server of the test's own, where no kind of keys is covered yet."""
    return start_server(kind)


@pytest.fixture
def proxy(upstream: Server, start_proxy: StartProxy) -> Proxy:
    return start_proxy(upstream)


MEMBERS = [b"m%d" % number for number in range(6000)]
UPLOADS = {
    "SADD": (b"SADD %b", MEMBERS),
    "HSET": (b"HSET %b", [part for member in MEMBERS for part in (member, b"1")]),
    "ZADD": (b"ZADD %b", [part for member in MEMBERS for part in (b"1", member)]),
    "RPUSH": (b"RPUSH %b", MEMBERS),
    "RESTORE": (b"RESTORE %b 0", []),
    "EVAL": (b"EVAL 2 1 %b", MEMBERS),
}
"""Requests of more than 40 kB, each of which gives a key its members, m0 among them."""

ADDS = "for i = 1, #ARGV do redis.call('sadd', KEYS[1], ARGV[i]) end return 1"


def upload(name: str, key: str, server: Server) -> bytes:
    head, tail = UPLOADS[name]
    words: list[str | bytes | int] = [*(head % key.encode()).split(), *tail]
    if name == "EVAL":
        words[1:3] = [ADDS, 1]
    if name == "RESTORE":
        server.command("SADD", "model", *MEMBERS)
        words += [server.command("DUMP", "model").split(b"\r\n", 1)[1][:-2], "REPLACE"]
    return request(*words)


def is_underway(server: Server) -> bool:
    """Whether the server has got the beginning of an upload."""
    clients = server.command("CLIENT", "LIST")
    return any(int(one[1]) + int(one[2]) > 8_000 for one in re.finditer(rb" qbuf=(\d+) .* argv-mem=(\d+) ", clients))


def make(name: str, client: Talk, key: str) -> None:
    """Make a collection of one member, of the type that the upload makes."""
    maker = {"HSET": f"HSET {key} m0 0", "ZADD": f"ZADD {key} 0 m0", "RPUSH": f"RPUSH {key} m0"}
    client.say(maker.get(name, f"SADD {key} m0"))


@contextmanager
def first_deadline_meanwhile(
    name: str, upstream: Server, proxy: Proxy, client: Talk
) -> Iterator[tuple[Talk, str, Raw, bytes, Raw]]:
    """Have most of an upload arrive, and a first deadline asked for on another connection.

    Gives a client, the key, the connection that uploads, the rest of the upload, and the other connection.
    """
    key = first_of_its_kind()
    make(name, client, key)
    whole = upload(name, key, upstream)
    cut = len(whole) * 3 // 4
    with proxy.connect() as slow, proxy.connect() as other:
        slow.send(whole[:cut])
        until(lambda: is_underway(upstream))
        other.send(request("EXPIREMEMBER", key, "m0", 1000))
        yield client, key, slow, whole[cut:], other


@pytest.mark.parametrize(
    ("name", "others_are_limited"), [(name, False) for name in UPLOADS] + [("SADD", True), ("EVAL", True)]
)
def test_a_first_deadline_waits_for_what_is_arriving(
    name: str,
    others_are_limited: bool,
    upstream: Server,
    proxy: Proxy,
    talk: Callable[..., Talk],
) -> None:
    """Also where the server has a user who may do nothing: for such a one nobody waits, so users are told apart."""
    if others_are_limited:
        upstream.command("ACL", "SETUSER", "limited", "on", ">limited", "-@all")
        upstream.wait_until_proxies_know_the_users()
    with first_deadline_meanwhile(name, upstream, proxy, talk(proxy)) as (client, key, slow, rest, other):
        assert other.silent(0.2), (other.reply(), upstream.command("CLIENT", "LIST"))
        # What is asked of the same key meanwhile is not held up.
        assert client.say(f"EXISTS {key}") == 1
        slow.send(rest)
        assert not slow.reply().startswith(b"-")
        assert other.reply() == b":1\r\n"
    assert client.say(f"TTL {key} m0") == 1000


@pytest.mark.parametrize("name", ["RESTORE"])
@pytest.mark.one_kind
def test_what_arrives_too_slowly_is_cut_off(
    name: str, upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    with first_deadline_meanwhile(name, upstream, proxy, talk(proxy)) as (client, key, slow, rest, other):
        assert other.reply() == b":1\r\n"
        slow.send(rest)
        assert slow.reply().startswith(b"-ERR expiremember-proxy: not run")
        assert slow.rest() == b""
    # Nothing of it has run.
    assert client.say(f"EXPIREMEMBER {key} m1 1") == 0
    assert client.say(f"TTL {key} m0") == 1000


@pytest.mark.parametrize("known", [True, False], ids=["known by then", "not yet known"])
def test_a_member_whose_deadline_passes_while_it_is_asked_for_is_not_seen(
    known: bool, upstream: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    proxy = start_proxy(upstream, "--no-sweep")
    client, key = talk(proxy), first_of_its_kind()
    client.say(f"SADD {key} m0 keeps")
    whole = request("SMISMEMBER", key, *MEMBERS, "keeps")
    deadline = clock(talk(upstream)) + 300
    with proxy.connect() as slow:
        if known:
            client.say(f"PEXPIREMEMBERAT {key} m0 {deadline}")
        slow.send(whole[: len(whole) * 3 // 4])
        until(lambda: is_underway(upstream))
        if not known:
            client.say(f"PEXPIREMEMBERAT {key} m0 {deadline}")
        wait_past(talk(upstream), deadline)
        slow.send(whole[len(whole) * 3 // 4 :] + request("ECHO", "next"))
        assert slow.reply() == b"*%d\r\n" % (len(MEMBERS) + 1) + b":0\r\n" * len(MEMBERS) + b":1\r\n"
        assert slow.reply() == b"$4\r\nnext\r\n"


def test_a_member_that_goes_while_the_script_that_adds_it_arrives_begins_a_new_life(
    upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    client, key = talk(proxy), new_key()
    client.say(f"SADD {key} m0 keeps")
    for member in ("m0", "keeps"):
        client.say(f"EXPIREMEMBER {key} {member} 1000")
    whole = upload("EVAL", key, upstream)
    with proxy.connect() as slow:
        slow.send(whole[: len(whole) * 3 // 4])
        until(lambda: is_underway(upstream))
        assert client.say(f"EVAL return(redis.call('srem',KEYS[1],'m0')) 1 {key}") == 1
        slow.send(whole[len(whole) * 3 // 4 :])
        assert slow.reply() == b":1\r\n"
    assert client.say(f"TTL {key} m0") == -1


@pytest.mark.one_kind
def test_what_arrives_while_another_proxy_sets_the_first_deadline_is_cut_off(
    upstream: Server, proxy: Proxy, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    other, key = talk(start_proxy(upstream)), first_of_its_kind()
    make("SADD", other, key)
    whole = upload("SADD", key, upstream)
    with proxy.connect() as slow:
        slow.send(whole[: len(whole) * 3 // 4])
        until(lambda: is_underway(upstream))
        assert other.say(f"EXPIREMEMBER {key} m0 1000") == 1
        slow.send(whole[len(whole) * 3 // 4 :])
        assert slow.reply().startswith(b"-ERR expiremember-proxy: not run")
    assert other.say(f"SCARD {key}") == 1


@pytest.mark.parametrize("name", ["SADD", "RPUSH"])
def test_a_member_whose_deadline_passes_while_its_request_arrives_begins_a_new_life(
    name: str, upstream: Server, start_proxy: StartProxy, talk: Callable[..., Talk]
) -> None:
    """Nobody else removes it meanwhile: the script that adds it has to."""
    proxy = start_proxy(upstream, "--no-sweep")
    client, key = talk(proxy), new_key()
    make(name, client, key)
    client.say(f"{name} {key} keeps")
    deadline = clock(talk(upstream)) + 300
    client.say(f"PEXPIREMEMBERAT {key} m0 {deadline}")
    whole = upload(name, key, upstream)
    with proxy.connect() as slow:
        slow.send(whole[: len(whole) * 3 // 4])
        until(lambda: is_underway(upstream))
        wait_past(talk(upstream), deadline)
        slow.send(whole[len(whole) * 3 // 4 :])
        assert slow.reply() == b":%d\r\n" % (len(MEMBERS) + (name == "RPUSH"))
    assert client.say(f"TTL {key} m0") == -1


@pytest.mark.parametrize("name", ["SADD", "RPUSH"])  # the others have so many arguments that they are read whole
def test_what_a_user_without_scripts_adds_is_looked_at_before_its_last_byte(
    name: str, upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    """A member that goes while the request that adds it arrives begins a new life, for every user."""
    upstream.command("ACL", "SETUSER", "limited", "on", ">limited", "~*", "&*", "+@all", "-eval", "-evalsha")
    upstream.wait_until_proxies_know_the_users()
    client, key = talk(proxy), new_key()
    make(name, client, key)
    client.say(f"EXPIREMEMBER {key} m0 1000")
    whole = upload(name, key, upstream)
    with proxy.connect() as limited:
        assert limited.command("AUTH", "limited", "limited") == b"+OK\r\n"
        limited.send(whole[:-10])
        until(lambda: is_underway(upstream))
        # By a way that does not tell the proxy which member goes.
        assert client.say(f"{'LPOP' if name == 'RPUSH' else 'SPOP'} {key}") == b"m0"
        limited.send(whole[-10:])
        assert not limited.reply().startswith(b"-")
    assert client.say(f"TTL {key} m0") == -1


# Long pipelines, of which nobody has noted the keys.


SLOW = {"frequent": ("LREM", "long", "0", "absent"), "looked at": ("LPOS", "long", "absent")}
"""Some 0.06 ms of the server's time each. One is passed on by its form alone."""


def moment(time_reply: bytes) -> tuple[int, int]:
    """The seconds and us of a reply to TIME."""
    seconds, microseconds = time_reply.split(b"\r\n")[2:5:2]
    return int(seconds), int(microseconds)


@pytest.mark.parametrize(("slow", "others"), [("frequent", 0), ("looked at", 0), ("frequent", 9)])
def test_a_first_deadline_waits_for_a_re_add_behind_a_long_pipeline(
    slow: str, others: int, upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    check_a_re_add_behind_a_long_pipeline(slow, upstream, proxy, talk, others)


def check_a_re_add_behind_a_long_pipeline(
    name: str, server: Server, proxy: Proxy, talk: Callable[..., Talk], others: int = 0
) -> None:
    """`others`: how many deadlines of other keys come with the first one, to be sent on together with it."""
    server.command("DEL", "long")
    server.command("RPUSH", "long", *range(1000))
    for _ in range(4):
        _check_a_re_add(name, server, proxy, talk(proxy), others)


def _check_a_re_add(name: str, server: Server, proxy: Proxy, client: Talk, others: int) -> None:
    key, count = first_of_its_kind(), 5000
    server.command("CONFIG", "RESETSTAT")
    client.say(f"SADD {key} m")
    with proxy.connect() as slow, proxy.connect() as other:
        slow.send(request(*SLOW[name]) * count)
        slow.send(request("TIME") + request("SREM", key, "m") + request("SADD", key, "m") + request("TIME"))
        begun = f"cmdstat_{SLOW[name][0].lower()}:".encode()
        until(lambda: begun in server.command("INFO", "commandstats"))
        run = request("EXPIREMEMBER", key, "m", 1000) + request("EXPIREMEMBER", f"{key}:no", "m", 1000) * others
        other.send(request("TIME") + run + request("TIME"))
        earliest, given, *_, latest = other.replies(3 + others)
        *_, before, removed, added, after = slow.replies(count + 4)
    assert (removed, added) == (b":1\r\n",) * 2
    left = client.say(f"TTL {key} m")
    # Whichever came first: a deadline that was given before the removal is not the new member's.
    if moment(latest) <= moment(before):
        assert (given, left) == (b":1\r\n", -1)
    elif moment(earliest) >= moment(after):
        assert (given, left) == (b":1\r\n", 1000)


def test_one_that_blocks_is_not_waited_for_long(upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, keys = talk(proxy), [first_of_its_kind(), first_of_its_kind()]
    for key in keys:
        client.say(f"SADD {key} m")
    with proxy.connect() as blocked:
        blocked.send(request("BLPOP", "gate", "0") + request("PING") * 1000)
        until(lambda: b" cmd=blpop " in upstream.command("CLIENT", "LIST"))
        began = time.monotonic()
        assert client.say(f"EXPIREMEMBER {keys[0]} m 1000") == 1
        waited = time.monotonic()
        assert waited - began < 2
        assert client.say(f"EXPIREMEMBER {keys[1]} m 1000") == 1
        assert time.monotonic() - waited < 2
        client.say("RPUSH gate x")
        assert len(blocked.replies(1001)) == 1001


@pytest.mark.parametrize("how", ["gone", "in a transaction", "replied", "blocked since", "silenced"])
def test_what_has_run_is_not_waited_for(how: str, upstream: Server, proxy: Proxy, talk: Callable[..., Talk]) -> None:
    client, key = talk(proxy), first_of_its_kind()
    client.say(f"SADD {key} m")
    with proxy.connect() as other:
        if how == "in a transaction":
            other.send(request("MULTI"))
            other.reply()
        other.send(request("PING") * 1000)
        other.replies(1000)
        if how == "gone":
            other.close()
        elif how == "blocked since":
            other.send(request("BLPOP", "gate", "0"))
        elif how == "silenced":
            other.send(request("CLIENT", "REPLY", "OFF") + request("PING") * 1000)
        began = time.monotonic()
        assert client.say(f"EXPIREMEMBER {key} m 1000") == 1
        assert time.monotonic() - began < 2


def test_first_deadlines_in_two_long_pipelines_do_not_wait_for_each_other(proxy: Proxy) -> None:
    names = [[f"{kind}{n}" for kind in (first_of_its_kind() for _ in range(20)) for n in range(15)] for _ in range(2)]
    began = time.monotonic()
    with proxy.connect() as one, proxy.connect() as other:
        for client, keys in ((one, names[0]), (other, names[1])):
            client.send(b"".join(request("SADD", key, "m") + request("EXPIREMEMBER", key, "m", 1000) for key in keys))
        for client in (one, other):
            assert set(client.replies(600)) == {b":1\r\n"}
    assert time.monotonic() - began < 4


@pytest.mark.parametrize("ahead", ["many scripts", "a client that leaves"])
def test_a_first_deadline_waits_for_what_is_long_on_its_way_to_the_server(
    ahead: str, upstream: Server, proxy: Proxy, talk: Callable[..., Talk]
) -> None:
    """Though what the client sent is short, or the client has gone."""
    client = talk(proxy)
    client.say("SADD known m")
    client.say("EXPIREMEMBER known m 1000")
    upstream.command("RPUSH", "long", *range(1000))
    first = request("TTL", "known", "m") + request("PTTL", "known", "m")
    for number in range(20):
        key = first_of_its_kind()
        client.say(f"SADD {key} m")
        readd = request("SREM", key, "m") + request("SADD", key, "m") + request("SET", f"{key}:ran", "1")
        with proxy.connect() as slow, proxy.connect() as other:
            if ahead == "many scripts":
                slow.send(first * 40 + readd)
            else:
                slow.send(request(*SLOW["frequent"]) * 2000 + readd)
                slow.close()
            time.sleep(number / 10_000)
            ran = request("EXISTS", f"{key}:ran")
            other.send(ran + request("EXPIREMEMBER", key, "m", 1000) + ran)
            before, given, after = other.replies(3)
            if ahead == "many scripts":
                slow.replies(83)
            until(lambda key=key: client.say(f"EXISTS {key}:ran") == 1)  # type: ignore[misc]
        if before == after:  # else nobody can tell which came first
            assert client.say(f"TTL {key} m") == (1000 if before == given == b":1\r\n" else -1)


def test_a_long_chunk_is_not_forgotten_for_an_earlier_one() -> None:
    streams, owner = Streams(), Pipeline()
    streams.lengthen(owner)
    first = streams.pipelines[owner]
    streams.ran(owner, first)
    streams.lengthen(owner)
    streams.ran(owner, first)
    assert owner in streams.pipelines


def test_who_asks_while_a_sign_is_awaited_waits_for_the_next_one_and_shares_it() -> None:
    streams, owner, signs = Streams(), Pipeline(), [False, False]
    put = iter(range(2))

    class Answered(Sender):
        def ask(self) -> Callable[[], bool]:
            number = next(put)
            return lambda: signs[number]

        def heard(self) -> int:
            return next(heard)

    owner.sender, heard = Answered(), count()
    streams.lengthen(owner)
    underway = Underway(streams, never)

    async def main() -> None:
        first = asyncio.create_task(underway.until_run([owner]))
        await asyncio.sleep(0.01)
        others = [asyncio.create_task(underway.until_run([owner])) for _ in range(5)]
        await asyncio.sleep(0.01)
        streams.lengthen(owner)  # the owner sends on
        signs[0] = True
        await asyncio.wait_for(first, 1)
        await asyncio.sleep(0.01)
        assert not any(other.done() for other in others)
        signs[1] = True
        await asyncio.wait_for(asyncio.gather(*others), 1)
        assert owner not in streams.pipelines

    asyncio.run(main())


async def never() -> None:
    """A server that answers nobody."""
    await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("silent", [True, False])
def test_a_pipeline_is_given_up_only_where_the_server_answers_others(silent: bool) -> None:
    """Else all that it says nothing to are taken for those that it waits for."""
    streams, owner, asked = Streams(), Pipeline(), []

    async def answer() -> None:
        asked.append(True)
        if silent:
            await never()

    underway = Underway(streams, answer)

    async def main() -> None:
        streams.lengthen(owner)
        waiting = asyncio.create_task(underway.until_run([owner]))
        _, pending = await asyncio.wait([waiting], timeout=4 * SILENT_SECONDS)
        assert bool(pending) is silent
        assert (owner.given_up == -1) is silent
        streams.ran(owner)
        waiting.cancel()

    asyncio.run(main())
    assert len(asked) == (1 if silent else 2)

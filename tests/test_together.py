"""Many requests sent as one call do, and are answered, as each of them is when it comes alone."""

from __future__ import annotations

import gc
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, islice, pairwise
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.scripts.naming import Names
from proxy.session.plain import BATCHED_RUNS
from proxy.wire.asides import Asides, Call, Whose
from proxy.wire.batch import BatchParser
from proxy.wire.elements import Elements, as_counter
from proxy.wire.first_line import StrayReplyError
from proxy.wire.integer import Integer
from proxy.wire.reply import ReplySubstitution
from proxy.wire.request import ARGUMENT_SIZE, RequestReader, encode
from proxy.wire.runs import LEAST, MOST, MOST_BYTES
from tests.conftest import StartProxy, StartServer, installed, new_server, once_a_kind
from tests.model import parse
from tests.raw import Raw, request
from tests.servers import Proxy, Server, until
from tests.streams import cuts
from tests.test_refusals import REFUSALS
from tests.test_session import NOW, Driver, of_clients, size_of_batch
from tests.test_transparency import concurrently, send_slices

Words = tuple[str | bytes | int, ...]

NAMES = Names(b"__expiremember__:")
FAR = 100_000


def pipelined(client: Raw, requests: Sequence[Words]) -> list[bytes]:
    """Send requests in one piece."""
    client.send(b"".join(request(*words) for words in requests))
    return client.replies(len(requests))


def singly(client: Raw, requests: Sequence[Words]) -> list[bytes]:
    """Send each request when the one before has been answered."""
    return [client.command(*words) for words in requests]


def by_itself(proxy: Proxy, words: Words) -> bytes:
    """Send a request on a new connection: its client does not share yet, so it is judged by itself."""
    with proxy.connect() as client:
        return client.command(*words)


def calls(server: Server) -> int:
    """How many calls of scripts a server has run."""
    found = re.search(rb"cmdstat_eval:calls=(\d+)", server.command("INFO", "commandstats"))
    return int(found[1]) if found else 0


def rewritten(client: Raw, script: str) -> int:
    """How many requests a proxy has replaced by a script."""
    told = client.command("INFO", "expiremember")
    found = re.search(rb"requests_rewritten_total:(?:\S+,)?%b=(\d+)" % script.encode(), told)
    return int(found[1]) if found else 0


# Runs of requests.


_words = st.sampled_from([b"m", b"", b"member", b"x" * 255, b"x" * 256, b"\r\n", b"*3\r\n$3\r\nTTL\r\n", b"*3", b"\0"])
_requests = st.builds(
    lambda name, key, rest: [name, key, *rest],
    st.sampled_from([b"TTL", b"SADD", b"sadd", b"EXPIREMEMBER", b"Ttl", b"GET"]),
    st.sampled_from([b"k", b"other", b"TTL", b"*3"]),
    st.lists(_words, min_size=0, max_size=4),
)
_repeated = st.builds(lambda one, count: [one] * count, _requests, st.integers(1, 6))


@given(st.lists(st.one_of(_requests.map(lambda one: [one]), _repeated), max_size=8), st.integers(0, 400))
def test_a_run_is_what_the_parser_finds(pieces: list[list[list[bytes]]], cut: int) -> None:
    requests = [one for piece in pieces for one in piece]
    data = b"".join(map(encode, requests))
    data = data[: len(data) - cut]
    run = BATCHED_RUNS.at(data)
    if run is None:
        same = [one for one in requests[:LEAST] if one[0] == requests[0][0] and len(one) == len(requests[0])]
        fit = all(len(word) < 256 and b"\r" not in word for one in same for word in one)
        upper = {b"TTL", b"SADD", b"sadd", b"EXPIREMEMBER"}
        proper = requests and requests[0][0] in upper and len(requests[0]) >= 3
        whole = len(data) >= sum(len(encode(one)) for one in same)
        assert not (len(same) == LEAST and fit and proper and whole)
        return
    assert LEAST <= run.count <= MOST
    found = [list(words) for words in zip(*(run.column(place) for place in range(run.size)), strict=True)]
    assert found == requests[: run.count]
    assert run.length == sum(len(encode(one)) for one in found)
    rest = b"".join(encode([b"", *one[2:]])[len(encode([b"", *one[2:]]).split(b"\r\n")[0]) + 8 :] for one in found)
    assert run.encoded(2, run.size) == rest
    assert BatchParser().parse(run.beginning(2).encoded(0, 1)) is not None or run.count


def test_a_run_is_bounded() -> None:
    many = encode([b"TTL", b"k", b"m"]) * 1000
    run = BATCHED_RUNS.at(many)
    assert run is not None
    assert run.count == MOST
    long = encode([b"SADD", b"k", b"x" * 250]) * 1000
    run = BATCHED_RUNS.at(long)
    assert run is not None
    assert run.length <= MOST_BYTES
    assert run.count < MOST


# Replies.


PUSH = b">2\r\n$10\r\ninvalidate\r\n*1\r\n$3\r\n\r\n-\r\n"


@pytest.mark.parametrize("pushes", [0, 1, 2])
@pytest.mark.parametrize(
    ("reply", "wanted"),
    [
        (b"*3\r\n:1\r\n-ERR no\r\n*2\r\n:1\r\n:2\r\n", b":1\r\n-ERR no\r\n*2\r\n:1\r\n:2\r\n"),
        (b"-OOM none left\r\n", b"-OOM none left\r\n" * 3),
    ],
)
@pytest.mark.parametrize("transaction", [False, True])
def test_replies_come_out_however_they_are_cut(pushes: int, reply: bytes, wanted: bytes, transaction: bool) -> None:
    """With the reply to a request before, and to one behind."""
    if transaction and reply[:1] == b"-":
        wanted = b"+OK\r\n" + wanted + b"-EXECABORT Transaction discarded because of previous errors.\r\n"
    elif transaction:
        wanted = b"+OK\r\n" + b"+QUEUED\r\n" * 3 + b"*3\r\n" + wanted
    singles, pairs = [(place,) for place in range(200)], [(place, place + 1) for place in range(200)]
    for places in (*singles, *pairs, range(200)):
        replies = ReplySubstitution()
        sign = replies.open(Elements(3, transaction=transaction))
        token = sign.split(b"\r\n")[2]
        before, behind = b"$7\r\n-ERR un\r\n", b"-ERR other\r\n"
        line = b"-ERR unknown command '" + token + b"', with args beginning with: \r\n"
        stream = before + line + PUSH * pushes + reply + behind
        at = [0, *(place for place in places if 0 < place < len(stream)), len(stream)]
        got = b"".join(replies.receive(stream[begin:end]) for begin, end in pairwise(at))
        assert got == before + PUSH * pushes + wanted + behind, places
        assert not replies.active


CALLED: tuple[tuple[bytes, bytes], ...] = (
    (b"*10\r\n" + b":1\r\n" * 9 + b"*1\r\n:2\r\n", b":1\r\n" * 9 + b"*1\r\n:2\r\n"),
    (b"*11\r\n:7\r\n" + b":1\r\n" * 9 + b"$-1\r\n", b":1\r\n" * 9 + b"$-1\r\n"),
    (b"-OOM no\r\n", b"-OOM no\r\n" * 10),
)
"""What answers for ten requests within EXEC's reply, and what the client gets of it."""


@pytest.mark.parametrize(("element", "wanted"), CALLED, ids=["each", "took long", "failed"])
def test_a_calls_reply_in_a_transaction_comes_out_however_it_is_cut(element: bytes, wanted: bytes) -> None:
    queued = b"+QUEUED\r\n"
    stream = b"+OK\r\n" + queued * 4 + b"*4\r\n:0\r\n" + element + b":3\r\n$2\r\nxy\r\n+next\r\n"
    for cut in range(len(stream)):
        told: list[int] = []
        asides = Asides()
        asides.note(Whose.CLIENT)
        asides.put_together(Call(10, told.append))
        asides.precede()
        asides.note(Whose.CLIENT)
        asides.note(Whose.CLIENT)
        asides.note(Whose.EXEC)
        asides.close()
        kept, behind = asides.receive(stream[:cut])
        more, rest = asides.receive(stream[cut:]) if not asides.done else (b"", stream[cut:])
        out = b"+OK\r\n" + queued * 12 + b"*12\r\n" + wanted + b":3\r\n$2\r\nxy\r\n+next\r\n"
        assert kept + behind + more + rest == out, cut
        assert told == [7] * (b":7" in element)


def test_a_call_that_was_not_queued_has_run() -> None:
    """The server has refused MULTI: each request gets its reply at once."""
    for array in (b"*3\r\n", b"*4\r\n:7\r\n"):
        stream = b"-NOPERM no\r\n:0\r\n" + array + b":1\r\n:2\r\n*1\r\n:5\r\n-ERR EXEC without MULTI\r\n+next\r\n"
        for cut in range(len(stream)):
            asides = Asides()
            asides.note(Whose.CLIENT)
            asides.put_together(Call(3, lambda _: None))
            asides.precede()
            asides.note(Whose.EXEC)
            asides.close()
            kept, behind = asides.receive(stream[:cut])
            more, rest = asides.receive(stream[cut:]) if not asides.done else (b"", stream[cut:])
            wanted = b"-NOPERM no\r\n:1\r\n:2\r\n*1\r\n:5\r\n-ERR EXEC without MULTI\r\n+next\r\n"
            assert kept + behind + more + rest == wanted


@pytest.mark.parametrize("line", [b"*9\r\n", b"+OK\r\n", b"$-1\r\n"])
def test_another_element_is_not_taken_for_the_reply_to_a_call(line: bytes) -> None:
    asides = Asides()
    asides.put_together(Call(10, lambda _: None))
    asides.note(Whose.EXEC)
    asides.close()
    with pytest.raises(StrayReplyError):
        asides.receive(b"+QUEUED\r\n*1\r\n" + line)


def test_each_request_gets_the_error_with_which_a_call_is_not_queued() -> None:
    for refused in (b"-OOM no\r\n", b"+QUEUED\r\n-OOM no\r\n", b"-OOM no\r\n+QUEUED\r\n"):
        asides = Asides()
        asides.note(Whose.CLIENT)
        asides.put_together(Call(3, lambda _: None))
        asides.precede()
        asides.note(Whose.EXEC)
        asides.close()
        second = b"" if refused.count(b"\r\n") == 2 else b"-OOM no\r\n"
        kept, behind = asides.receive(b"+OK\r\n" + refused + second + b"-EXECABORT no\r\n+next\r\n")
        assert kept + behind == b"+OK\r\n" + b"-OOM no\r\n" * 3 + b"-EXECABORT no\r\n+next\r\n"


def test_an_element_that_is_too_many_says_that_the_call_took_long() -> None:
    stream = b"*4\r\n:7\r\n:1\r\n:0\r\n:1\r\n"
    for place in range(1, len(stream)):
        said: list[int] = []
        elements = Elements(3, said.append)
        got = b""
        for piece in (stream[:place], stream[place:]):
            passed, rest = (b"", piece) if elements.done else elements.receive(piece)
            got += passed + rest
        assert (got, said) == (stream[8:], [7])


def test_another_reply_is_not_taken_for_that_to_a_call() -> None:
    for stray in (b"*2\r\n", b"+OK\r\n", b"$3\r\n", b":1\r\n"):
        with pytest.raises(StrayReplyError):
            Elements(3).receive(stray)


# What a session sends.


def sent_for(sent: bytes) -> tuple[int, int]:
    """How many requests the calls of scripts are for, and how many calls there are."""
    reader = RequestReader()
    reader.feed(sent)
    answered = made = 0
    while (one := reader.next_request()) is not None:
        if one.arguments[0] == b"EVAL":
            made += 1
            answered += size_of_batch(one.arguments) or 1
    return answered, made


EXPIRES = [encode([b"EXPIREMEMBER", b"k", b"m%d" % number, b"%d" % (number + 1)]) for number in range(6)]


def test_wherever_a_run_is_cut_each_request_is_answered() -> None:
    stream = b"".join(EXPIRES)
    for cut in range(1, len(stream)):
        driver = Driver("k")
        sent = driver.feed(stream[:cut], stream[cut:])
        assert sent_for(sent)[0] == 6
        members = re.findall(rb"\r\n(m\d)\r\n", sent)
        assert members == [b"m%d" % number for number in range(6)]
    assert sent_for(Driver("k").feed(stream)) == (6, 1)


def test_a_deep_pipeline_goes_in_many_calls() -> None:
    driver = Driver("k")
    sent = driver.feed(b"".join(EXPIRES) * 1000 + EXPIRES[0][:-3])
    assert sent_for(sent) == (6_000, 60)
    assert driver.session.held == len(EXPIRES[0]) - 3 + 3 * ARGUMENT_SIZE


@pytest.mark.parametrize(
    "before",
    [
        [b"CLIENT", b"CACHING", b"YES"],
        [b"SUBSCRIBE", b"channel"],
        [b"MONITOR"],
    ],
    ids=lambda words: b" ".join(words).decode(),
)
def test_in_special_states_requests_go_one_by_one(before: list[bytes]) -> None:
    driver = Driver("k")
    driver.feed(encode(before))
    sent = driver.feed(b"".join(EXPIRES[1 : LEAST + 1]))  # none of them is near
    assert b"*" not in before
    assert sent_for(of_clients(sent)) == (LEAST, LEAST)


def test_in_a_transaction_they_go_together() -> None:
    driver = Driver("k")
    stream = encode([b"MULTI"]) + b"".join(EXPIRES[1 : LEAST + 1]) + encode([b"EXEC"])
    assert sent_for(of_clients(driver.feed(stream))) == (LEAST, 1)
    blind = Driver("k")
    blind.feed(encode([b"MULTI"]))
    blind.coverage.distrust()
    assert sent_for(of_clients(blind.feed(b"".join(EXPIRES[1 : LEAST + 1]))))[1] >= LEAST


def test_a_client_that_goes_within_a_transaction_leaves_nothing() -> None:
    """Not even until the collector comes, which counts objects, and not their bytes; what is kept is counted."""

    def calls_kept() -> int:
        return sum(type(one) is Call for one in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before, driver = calls_kept(), Driver("k")
        driver.feed(encode([b"MULTI"]) + b"".join(EXPIRES[1 : LEAST + 1]) * 100)
        assert calls_kept() > before
        transaction = driver.session._standing.transaction
        assert transaction is not None
        assert transaction.size > 0
        del driver, transaction
        assert calls_kept() == before
    finally:
        gc.enable()


def check_refused_multi(server: Server, proxy: Proxy) -> None:
    """What follows runs at once, and each request gets its own reply."""
    server.flush()
    assert server.command("ACL", "SETUSER", "some", "reset", "on", ">x", "~*", "&*", "+@all", "-multi") == b"+OK\r\n"
    with proxy.connect() as client:
        client.command("SADD", "k", "m")
        assert client.command("EXPIREMEMBER", "k", "m", FAR) == b":1\r\n"
        assert client.command("AUTH", "some", "x") == b"+OK\r\n"
        adders: list[Words] = [("SADD", "k", number) for number in range(30)]
        replies = pipelined(client, [("MULTI",), *adders, ("EXEC",), ("ECHO", "behind")])
        assert replies[0].startswith(b"-NOPERM")
        assert replies[1:31] == [b":1\r\n"] * 30
        assert replies[31:] == [b"-ERR EXEC without MULTI\r\n", b"$6\r\nbehind\r\n"]


@pytest.mark.every_kind
def test_behind_a_refused_multi_each_gets_its_reply(upstream: Server, proxy: Proxy) -> None:
    check_refused_multi(upstream, proxy)


def test_what_is_queued_together_is_due_from_exec_on() -> None:
    """A transaction may wait for its EXEC."""
    driver = Driver("k")
    driver.feed(encode([b"MULTI"]) + b"".join(EXPIRES[1 : LEAST + 1]))
    alarm = driver.ground.rewriter.marks.alarm
    alarm.next_deadline = math.inf
    driver.feed(encode([b"EXEC"]))
    assert alarm.next_deadline == NOW + 2000


def test_without_the_engine_requests_go_one_by_one() -> None:
    assert sent_for(Driver(blind=True).feed(b"".join(EXPIRES)))[0] == sent_for(Driver(blind=True).feed(*EXPIRES))[0]


def test_a_request_that_has_to_wait_is_not_taken_together_with_others() -> None:
    driver = Driver()
    driver.session.receive(b"".join(EXPIRES[:4]), NOW)
    assert driver.session.question is not None
    driver = Driver("k")
    driver.coverage.shared, driver.coverage.trusted_until = True, 0.0
    assert driver.session.receive(b"".join(EXPIRES[:4]), NOW).count(b"EXPIREMEMBER") != 1


def check_first_of_a_mixture(server: Server, proxy: Proxy) -> None:
    """The prefix is in the list that other proxies read."""
    with proxy.connect() as client:
        client.command("SADD", "known", "m")
        client.command("SADD", "first", "m")
        assert client.command("EXPIREMEMBER", "known", "m", FAR) == b":1\r\n"
        pair: list[Words] = [("SADD", "known", "n"), ("EXPIREMEMBER", "known", "m", FAR)]
        replies = pipelined(client, [*pair * 3, ("EXPIREMEMBER", "first", "m", FAR), *pair * 3])
        assert replies == [b":1\r\n" if place != 2 and place != 4 else b":0\r\n" for place in range(6)] + replies[6:]
        assert replies[6:] == [b":1\r\n", *[b":0\r\n", b":1\r\n"] * 3]
        assert b"first" in server.command("ZRANGE", NAMES.covered, 0, -1)


def test_a_first_deadline_among_others_is_listed(upstream: Server, start_proxy: StartProxy) -> None:
    upstream.flush()
    check_first_of_a_mixture(upstream, start_proxy(upstream))


def test_a_first_deadline_among_others_is_announced() -> None:
    driver = Driver("known")
    pair = [encode([b"SADD", b"known", b"m"]), encode([b"EXPIREMEMBER", b"known", b"m", b"9"])]
    first = encode([b"EXPIREMEMBER", b"first", b"m", b"9"])
    sent = driver.session.receive(b"".join([*pair * 3, first, *pair * 3]), NOW)
    assert driver.session.question is not None
    assert driver.session.question.covers == (b"=first",)
    assert sent_for(sent) == (6, 1)
    assert first not in sent


def test_an_adder_for_a_key_without_deadlines_goes_as_it_came() -> None:
    known, unknown = (encode([b"SADD", key, b"m"]) for key in (b"k", b"unknown"))
    sent = Driver("k").feed(known * 5 + unknown * 5 + known * 2)
    assert unknown * 5 in sent
    assert sent_for(sent) == (7, 3)


# The real thing.


LINES = [line.strip() for row in """
    EXPIREMEMBER {k} m d|EXPIREMEMBER {k} m d|PEXPIREMEMBER {k} m d000|EXPIREMEMBER {k} m d u|EXPIREMEMBER {k} m d NX
    EXPIREMEMBER s m d|EXPIREMEMBER h m d|EXPIREMEMBER z m d|EXPIREMEMBER l m d|TTL {k} m|TTL {k} m|PTTL {k} m|TTL n m
    PERSIST {k} m|SADD s m|SADD s m|SADD s m m m|SADD {k} m|SADD n m|SREM s m|SREM s m|SREM s m m|SREM {k} m|SREM n m
    HSET h m 1|HSET h m 1 m 2|HSET {k} m 1|HSETNX h m 1|HMSET h m 1|HINCRBYFLOAT h m f|HDEL h m|HDEL h m m m
    ZADD z f m|ZADD z f m f m|ZADD z NX f m|ZADD z XX INCR f m|ZADD {k} f m|ZINCRBY z f m|ZREM z m|ZREM z m m
    SISMEMBER s m|HGET h m|RPUSH l m|ZPOPMIN z|ZREMRANGEBYRANK z 0 2|ZPOPMIN z|LPOP l|DEL {k}
    SEXPIRE s d MEMBERS 1 m|SEXPIRE {k} d MEMBERS 1 m|HEXPIRE h d FIELDS 1 m|HPEXPIRE {k} d000 FIELDS 1 m
    ZPEXPIRE z d000 MEMBERS 1 m|ZEXPIRE {k} d MEMBERS 1 m|FIELDEXPIRE {k} d m|FIELDEXPIRE h d m|FIELDEXPIRE s d m
    SEXPIRE s d NX MEMBERS 1 m|SEXPIRE s d MEMBERS 2 m m|SEXPIRE s d FIELDS 1 m|ZEXPIRE z d MEMBERS 2 m
    LEXPIRE l d MEMBERS 1 m|STTL s MEMBERS 1 m|HTTL {k} FIELDS 1 m|ZPERSIST z MEMBERS 1 m
    HSETEX h EX d FIELDS 1 m 1|HSETEX {k} PX d000 FIELDS 1 m 2|SADDEX s d m|SADDEX s EX d MEMBERS 1 m|SADDEX {k} d m
    SADDEX {k} PX d000 MEMBERS 1 m|HSETEX h FNX EX d FIELDS 1 m 1|HSETEX h EX d FIELDS 2 m 1 m 2|HSETEX h FIELDS 1 m 1
    HSETEX h FIELDS 1 m 1 EX d|SADDEX s KEEPTTL d m|SADDEX s d m m|SADDEX s MNX EX d MEMBERS 1 m|HSETEX h d m 1
    HSETEX h KEEPTTL FIELDS 1 m 1|HSETEX h EXAT d FIELDS 1 m 1|SADDEX s EX d FIELDS 1 m|SADDEX s EX d MEMBERS 2 m
    EXPIRE {k} d|PEXPIRE {k} d000|EXPIRE {k} d NX|INCR {k}|INCRBY n f|GETSET t m|APPEND t m|SETNX {k} m|SET t m|GET t
    XADD x 1-1 f m|XADD {k} MAXLEN 5 1-2 f m|SETRANGE t 2 m|DECR n|INCRBYFLOAT n f|SETBIT {k} 7 1|TTL {k}
    SCARD {k}|HLEN h|HGET h m|HGET {k} m|EXISTS {k}|LLEN l|LINDEX l 0|ZCARD {k}|ZCOUNT z -inf 5|RPOP l|LTRIM l 0 5
    ZREMRANGEBYSCORE z 0 2|STRLEN t|SISMEMBER {k} m|HEXISTS h m|PTTL {k}|HINCRBY h m 3|HINCRBY {k} m f
""".strip().splitlines() for line in row.split("|")]  # fmt: skip


PAIRS = [line.strip() for row in """
    HSET h m 1|EXPIREMEMBER h m d|SADD s m|EXPIREMEMBER s m d|ZADD z f m|EXPIREMEMBER z m d|HSET h m 1 m 2|SADD s m m
    EXPIREMEMBER {k} m d|PEXPIREMEMBER {k} m d000|HSETNX h m 1|ZINCRBY z f m|HINCRBYFLOAT h m f|SADD {k} m|SREM s m
    TTL s m|SEXPIRE s d MEMBERS 1 m|HEXPIRE h d FIELDS 1 m|ZEXPIRE z d MEMBERS 1 m|SEXPIRE {k} d MEMBERS 1 m
    FIELDEXPIRE h d m|FIELDEXPIRE s d m|HSETEX h EX d FIELDS 1 m 1|HSETEX h PX d000 FIELDS 1 m 2|SADDEX s d m
    SADDEX s EX d MEMBERS 1 m|HSETEX {k} EX d FIELDS 1 m 1|SADDEX {k} d m|EXPIRE {k} d|EXPIRE {k} d|INCR n|INCR {k}
    SCARD {k}|HGET h m|ZCARD z|EXISTS {k}|TTL {k} m|TTL {k}|LPOP l|ZREMRANGEBYSCORE z 8 9|GET t|HINCRBY h m 3|LLEN l
    GETSET t m|SREM {k} m|PERSIST {k} m|HDEL h m|ZREM z m|PEXPIRE {k} d000|XADD x 1-1 f m|SET t m
""".strip().splitlines() for line in row.split("|")]  # fmt: skip
BETWEEN = ["SET p m", "SETNX p m", "GET p", "APPEND p m", "SETEX p d m", "SADD q m", "SREM q m", "SADD p m", "SET q m"]
BETWEEN += ["INCR v", "EXPIRE v d", "EXPIRE p d", "GETSET p m", "INCRBY v f"]
BETWEEN += [f"RPUSH r{' m' * 10}", f"RPUSH r{' m' * 104}"]
"""Requests for keys that have no deadlines."""


class Program:
    """Random runs of requests, for keys of two names.

    Args:
        seed: of the choices.
        mixed: whether hardly any request is of the form of the one before it.
    """

    MEMBERS: tuple[str | bytes, ...] = (*"abcdefgh", "", "a\r\nb", "x" * 300, b"\xff\0")

    def __init__(self, seed: str, *, mixed: bool = False) -> None:
        self._chance = random.Random(seed)
        self._mixed = mixed
        self.runs = [self._run() for _ in range(300 if mixed else 30)]

    def _word(self, pattern: str) -> str | bytes:
        words: Sequence[str | bytes]
        match pattern:
            case "m":
                words = self.MEMBERS[:8] if self._chance.random() < 0.95 else self.MEMBERS
            case "d" | "d000":
                words = [str(self._chance.randrange(2000, 9000)) + pattern[1:]]
                if self._chance.random() < 0.03:
                    words = ("-5", "0", "x", "01", "5 6", " 5", "5\r6", "9" * 17, "9" * 20)
            case "f":
                words = (
                    ("1", "2.5", "-3", "inf", "1e3", "NX", "x", "1 2", "") if self._chance.random() < 0.2 else ("7",)
                )
            case "u":
                words = ("s", "ms", "MS", "h") if self._chance.random() < 0.1 else ("s",)
            case _:
                words = (pattern,)
        return self._chance.choice(words)

    def _run(self) -> list[Words]:
        pick = self._chance.choice
        line = pick((*PAIRS, *BETWEEN) if self._mixed and self._chance.random() < 0.9 else LINES)
        fixed = self._chance.random() < 0.7
        key = pick("shzltn")
        if self._chance.random() < 0.2:
            line = line.lower()
        count = 130 if self._chance.random() < 0.05 else self._chance.randrange(1, 14)
        if self._mixed:
            count = self._chance.choice((1, 1, 1, 2))
        requests: list[Words] = []
        for _ in range(count):
            words = line.split()
            if words[1].startswith("{"):
                words[1] = key if fixed else pick("shzltn")
            requests.append((words[0], words[1], *map(self._word, words[2:])))
        return requests

    def named(self, name: str) -> list[list[Words]]:
        """The requests for the keys of one name: those that have deadlines begin with it, and no others."""

        def whole(key: str) -> str:
            return f"{name}:{key}" if key in "shzltn" else f"{key}:{name}"

        return [[(words[0], whole(cast(str, words[1])), *words[2:]) for words in run] for run in self.runs]


FILL: tuple[Words, ...] = (
    ("SADD", "s", *"abcd"), ("HSET", "h", *"a1b2c3"), ("ZADD", "z", 1, "a", 2, "b", 3, "c"), ("RPUSH", "l", *"abca"),
    ("SET", "t", "text"), ("EXPIREMEMBER", "s", "a", FAR), ("EXPIREMEMBER", "h", "a", FAR),
    ("EXPIREMEMBER", "z", "a", FAR), ("EXPIREMEMBER", "l", "a", FAR),
)  # fmt: skip


def fill(client: Raw, name: str) -> None:
    for command, key, *rest in FILL:
        assert not client.command(command, f"{name}:{key!s}", *rest).startswith(b"-")


def _numbers(reply: bytes) -> list[int | bytes]:
    return [int(line) if re.fullmatch(rb"-?\d+", line) else line for line in re.split(rb"\r\n[:$*]?|^:", reply)]


def alike(one: bytes, other: bytes) -> bool:
    """Whether two replies are the same, but for times that differ by what passed between the requests."""
    if one == other:
        return True
    pairs = list(zip(_numbers(one), _numbers(other), strict=False))
    return len(_numbers(one)) == len(_numbers(other)) and all(
        mine == its
        or (isinstance(mine, int) and isinstance(its, int) and min(mine, its) > 1500 and abs(mine - its) < 20_000)
        for mine, its in pairs
    )


def state(server: Server, name: str) -> list[bytes]:
    """What there is of the keys of one name, and of their deadlines."""
    found = []
    with server.connect() as client:
        for key in "shzltn":
            whole = f"{name}:{key}".encode()
            kind = client.command("TYPE", whole)
            found += [kind, b"lives on" if client.command("TTL", whole).startswith(b":-") else b"ends"]
            read: Words = {
                b"+set\r\n": ("SORT", whole, "ALPHA"), b"+hash\r\n": ("HGETALL", whole),
                b"+list\r\n": ("LRANGE", whole, 0, -1),
                b"+zset\r\n": ("ZRANGE", whole, 0, -1, "WITHSCORES"),
            }.get(kind, ("GET", whole))  # fmt: skip
            reply = client.command(*read)
            found += sorted(reply.split(b"\r\n")) if kind == b"+hash\r\n" else [reply]
            shadow = NAMES.shadow(whole)
            members = cast(list[bytes], parse(client.command("SORT", shadow, "ALPHA")))
            for member in members:
                deadline = client.command("ZSCORE", shadow, member)
                # The deadline of an element that was popped from a list stays until something meets it.
                popped = key == "l" and not client.command("LPOS", whole, member).startswith(b":")
                if not (popped and b"-" not in deadline):
                    found.append(member + b"=" + deadline)
            scores = [client.command("ZSCORE", shadow, member).split(b"\r\n")[1] for member in members]
            earliest = min((abs(float(score)) for score in scores), default=None)
            index = client.command("ZSCORE", NAMES.index, whole)
            listed = None if index[:2] == b"$-" else float(index.split(b"\r\n")[1])
            assert listed == earliest, (whole, index, scores)
    return found


def in_transactions(requests: Iterable[Words], size: int) -> Iterator[list[Words]]:
    """Put so many requests in a row into a transaction, and ordinary ones among them if they are many."""
    rest = iter(requests)
    before, behind = ([("ECHO", "before")], [("ECHO", "behind")]) if size > 9 else ([], [])
    while queued := list(islice(rest, size)):
        yield [("MULTI",), *before, *queued, *behind, ("EXEC",)]


def check_program(
    upstream: Server,
    proxy: Proxy,
    seed: str,
    protocol: int,
    *,
    at_once: bool,
    mixed: bool = False,
    queued: int = 0,
) -> None:
    """The same requests in one piece and one by one, so many in a transaction: the same replies, and the same in the
    end."""
    upstream.flush()
    program = Program(seed, mixed=mixed)
    with proxy.connect() as one, proxy.connect() as other:
        for client in (one, other):
            client.command("HELLO", protocol)
        fill(one, "one")
        fill(other, "two")
        together, alone = program.named("one"), program.named("two")
        if at_once:
            together, alone = [list(chain(*together))], [list(chain(*alone))]
        if queued:
            together, alone = (list(in_transactions(chain(*one), queued)) for one in (together, alone))
        for mine, its in zip(together, alone, strict=True):
            got, wanted = pipelined(one, mine), singly(other, its)
            for words, reply, right in zip(its, got, wanted, strict=True):
                assert alike(reply, right.replace(b"two:", b"one:")), (words, reply, right)
    left, right_ = state(upstream, "one"), state(upstream, "two")
    for mine_, its_ in zip(left, right_, strict=True):
        *name, time = mine_.rpartition(b"=")
        timed = name[1] and name == list(its_.rpartition(b"=")[:2])
        assert alike(mine_, its_) or (timed and abs(_time(time) - _time(its_)) < 60_000)


def _time(text: bytes) -> int:
    return int(re.findall(rb"-?\d+(?=(?:\.\d+)?\r\n$)", text)[-1])


@pytest.fixture(scope="module")
def still_pairs() -> Iterator[Callable[[str], tuple[Server, Proxy]]]:
    """Gives a server of a kind, and a proxy without the pass over leftovers, which changes what programs leave."""

    def make(kind: str, stack: ExitStack) -> tuple[Server, Proxy]:
        server = new_server(kind, stack)
        proxy = Proxy("--upstream", server.url, "--leftovers-rate", "0")
        stack.callback(proxy.close)
        return server, proxy

    yield from once_a_kind(make)


@pytest.mark.every_kind
@pytest.mark.parametrize("seed", range(6))
def test_requests_together_do_as_one_by_one(
    kind: str, still_pairs: Callable[[str], tuple[Server, Proxy]], seed: int
) -> None:
    check_program(*still_pairs(kind), f"together {seed}", 2 + seed % 2, at_once=seed % 3 == 0)


@pytest.mark.every_kind
@pytest.mark.parametrize("seed", range(6))
def test_requests_of_several_forms_do_as_one_by_one(
    kind: str, still_pairs: Callable[[str], tuple[Server, Proxy]], seed: int
) -> None:
    check_program(*still_pairs(kind), f"mixed {seed}", 2 + seed % 2, at_once=True, mixed=True)


@pytest.mark.every_kind
@pytest.mark.parametrize("seed", range(6))
def test_requests_queued_together_do_as_one_by_one(
    kind: str, still_pairs: Callable[[str], tuple[Server, Proxy]], seed: int
) -> None:
    mixed = seed % 3 > 0
    check_program(*still_pairs(kind), f"queued {seed}", 2 + seed % 2, at_once=True, mixed=mixed, queued=60)


@pytest.mark.every_kind
@pytest.mark.parametrize("size", [1, 2, 5])
def test_small_transactions_do_as_their_requests_one_by_one(
    kind: str, still_pairs: Callable[[str], tuple[Server, Proxy]], size: int
) -> None:
    check_program(*still_pairs(kind), f"small {size}", 2 + size % 2, at_once=True, mixed=True, queued=size)


def _transactions(server: Server) -> int:
    found = re.search(rb"cmdstat_multi:calls=(\d+)", server.command("INFO", "commandstats"))
    return int(found[1]) if found else 0


def _seen(server: Server) -> int:
    """How many scripts and CLIENT REPLY a server has run."""
    stats = server.command("INFO", "commandstats")
    return sum(map(int, re.findall(rb"cmdstat_(?:evalsha|eval|client\|reply):calls=(\d+)", stats)))


PAIR: tuple[Words, ...] = (("SADD", "k", "n"), ("EXPIREMEMBER", "k", "n", FAR))


def check_small_transactions(server: Server, proxy: Proxy, protocol: int = 2) -> None:
    """A pair within MULTI is one call, with the replies of all of them; unless something is special about it."""
    server.flush()
    with proxy.connect() as client, server.connect() as other:
        client.command("HELLO", protocol)
        for words in PAIR:
            assert client.command(*words) == b":1\r\n"
        whole: list[Words] = [("MULTI",), *PAIR, ("EXEC",)]
        queued = [b"+OK\r\n", *[b"+QUEUED\r\n"] * 2]
        before = _transactions(server)
        assert pipelined(client, whole) == [*queued, b"*2\r\n:0\r\n:1\r\n"]
        assert pipelined(client, [(str(words[0]).lower(), *words[1:]) for words in whole]) == [
            *queued,
            b"*2\r\n:0\r\n:1\r\n",
        ]
        assert _transactions(server) == before
        server.command("SET", "text", "x")
        wrong = pipelined(client, [("MULTI",), ("SADD", "k", "o"), ("SADD", "text", "o"), ("EXEC",)])
        assert wrong[:3] == queued
        assert wrong[3].startswith(b"*2\r\n:1\r\n-WRONGTYPE ")
        client.command("RPUSH", "long", *range(3000))
        far: list[Words] = [("EXPIREMEMBER", "long", 60 * number, FAR) for number in range(60)]
        client.command(*far[0])
        assert pipelined(client, [("MULTI",), *far, ("EXEC",)])[-1].count(b":1\r\n") == 50
        client.send(request("CLIENT", "REPLY", "SKIP") + b"".join(request(*words) for words in whole))
        assert client.replies(3) == [*queued[1:], b"*2\r\n:0\r\n:1\r\n"]
        client.send_command("CLIENT", "REPLY", "SKIP")
        client.send(b"".join(request(*words) for words in whole))
        assert client.replies(3) == [*queued[1:], b"*2\r\n:0\r\n:1\r\n"]
        off, on = request("CLIENT", "REPLY", "OFF"), request("CLIENT", "REPLY", "ON")
        for pieces in ((off, None, on), (off, None, None, on + request("PING"))):
            for piece in pieces:
                before = _seen(server)
                client.send(b"".join(request(*words) for words in whole) if piece is None else piece)
                until(lambda: _seen(server) > before, what="each piece comes by itself")  # noqa: B023
            assert client.reply() == b"+OK\r\n"
        assert client.reply() == b"+PONG\r\n"
        for watched in ("w", "w" * 70_000):
            assert client.command("WATCH", watched) == b"+OK\r\n"
            other.command("INCR", watched)
            nothing = b"_\r\n" if protocol == 3 else b"*-1\r\n"
            assert pipelined(client, whole) == [*queued, nothing]


def check_forbidden_multi(server: Server, proxy: Proxy) -> None:
    """A user who may do everything else."""
    server.flush()
    assert server.command("ACL", "SETUSER", "some", "reset", "on", ">x", "~*", "&*", "+@all", "-multi") == b"+OK\r\n"
    with proxy.connect() as client:
        for words in PAIR:
            assert client.command(*words) == b":1\r\n"
        assert client.command("AUTH", "some", "x") == b"+OK\r\n"
        assert client.command("TTL", "k", "n") == b":%d\r\n" % FAR
        replies = pipelined(client, [("MULTI",), *PAIR, ("EXEC",)])
    assert replies[0].startswith(b"-NOPERM")
    assert replies[1:3] == [b":0\r\n", b":1\r\n"]
    assert replies[3].startswith(b"-ERR EXEC without MULTI")


def check_busy_transaction(server: Server, proxy: Proxy) -> None:
    """A server that is busy refuses EXEC too, for a reason of its own."""
    server.flush()
    with server.busy_after(1), proxy.connect() as client, server.connect() as straight, server.connect() as busy:
        for words in PAIR:
            assert client.command(*words) == b":1\r\n"
        busy.send_command("EVAL", "while true do end", 0)
        until(lambda: server.command("PING").startswith(b"-BUSY"), what="BUSY")
        wanted = pipelined(straight, [("MULTI",), ("SADD", "k", "n"), ("ZADD", "z", 1, "n"), ("EXEC",)])
        assert pipelined(client, [("MULTI",), *PAIR, ("EXEC",)]) == wanted
        assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
        assert busy.reply().startswith(b"-")


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_a_busy_server_refuses_a_small_transaction(
    kind: str, start_server: StartServer, start_proxy: StartProxy
) -> None:
    server = start_server(kind)
    check_busy_transaction(server, start_proxy(server))


def check_renamed_multi(server: Server, proxy: Proxy) -> None:
    """On a server that has no MULTI under that name."""
    with proxy.connect() as client:
        for words in PAIR:
            assert client.command(*words) == b":1\r\n"
        replies = pipelined(client, [("MULTI",), *PAIR, ("EXEC",)])
    assert replies[0].startswith(b"-ERR unknown command")
    assert replies[1:3] == [b":0\r\n", b":1\r\n"]


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_without_multi_there_is_no_transaction(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind, "--rename-command", "MULTI", "")
    check_renamed_multi(server, start_proxy(server))


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
@pytest.mark.parametrize("protocol", [2, 3])
def test_a_small_transaction_is_one_call(
    kind: str, still_pairs: Callable[[str], tuple[Server, Proxy]], protocol: int
) -> None:
    check_small_transactions(*still_pairs(kind), protocol)


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_who_may_not_use_multi_gets_no_transaction(pair: tuple[Server, Proxy]) -> None:
    check_forbidden_multi(*pair)


def check_deadlines(server: Server, client: Raw, count: int) -> None:
    """So many keys have the deadlines that they were given, and the index has them too."""
    for number in range(count):
        found = server.command("ZSCORE", NAMES.shadow(b"k:%d" % number), "m")
        assert found == server.command("ZSCORE", NAMES.index, f"k:{number}")
        assert alike(client.command("TTL", f"k:{number}", "m"), b":%d\r\n" % (FAR + number))


def check_queued_pairs(server: Server, proxy: Proxy) -> None:
    """Pairs in a transaction are few calls, and each has its replies."""
    server.flush()
    with proxy.connect() as client:
        client.command("SADD", "k:first", "m")
        assert client.command("EXPIREMEMBER", "k:first", "m", FAR) == b":1\r\n"
        pairs: list[Words] = []
        for number in range(300):
            pairs += [("HSET", f"k:{number}", "m", 1), ("EXPIREMEMBER", f"k:{number}", "m", FAR + number)]

        def go_together() -> bool:
            """Likewise."""
            for number in range(300):
                client.command("DEL", f"k:{number}")
            before = calls(server)
            replies = pipelined(client, [("MULTI",), ("GET", "x"), *pairs, ("SETEX", "y", 9, "y"), ("EXEC",)])
            assert replies[:-1] == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 602]
            assert replies[-1] == b"*602\r\n$-1\r\n" + b":1\r\n" * 600 + b"+OK\r\n"
            return calls(server) - before <= 10

        until(go_together, what="few calls")
        check_deadlines(server, client, 300)
        client.command("RPUSH", "k:long", *range(3000))
        far: list[Words] = [("EXPIREMEMBER", "k:long", 60 * number, FAR) for number in range(60)]
        replies = pipelined(client, [("MULTI",), *far, ("EXEC",), ("ECHO", "behind")])
        assert replies[-2:] == [b"*60\r\n" + b":1\r\n" * 50 + b":0\r\n" * 10, b"$6\r\nbehind\r\n"]


@pytest.mark.every_kind
def test_queued_pairs_are_few_calls(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    check_queued_pairs(server, start_proxy(server))


def check_watched_pairs(server: Server, proxy: Proxy) -> None:
    """Of a transaction that is dropped, or discarded, nothing is done; and what is left of it disturbs no other."""
    server.flush()
    with proxy.connect() as client, server.connect() as other:
        client.command("SADD", "k", "m")
        assert client.command("EXPIREMEMBER", "k", "m", FAR) == b":1\r\n"
        queued: list[Words] = [("MULTI",), *[("SADD", "k", "n"), ("EXPIREMEMBER", "k", "n", FAR)] * 4]
        for end in ("EXEC", "DISCARD"):
            assert client.command("WATCH", "w") == b"+OK\r\n"
            other.command("INCR", "w")
            replies = pipelined(client, [*queued, (end,), ("ECHO", "behind")])
            assert replies[-2:] == [b"*-1\r\n" if end == "EXEC" else b"+OK\r\n", b"$6\r\nbehind\r\n"]
            assert client.command("SMEMBERS", "k") == b"*1\r\n$1\r\nm\r\n"
        assert pipelined(client, [*queued, ("NOSUCH",), ("EXEC",)])[-1].startswith(b"-EXECABORT")
        assert pipelined(client, [*queued, ("EXEC",)])[-1] == b"*8\r\n" + b":1\r\n" * 2 + b":0\r\n:1\r\n" * 3


@pytest.mark.every_kind
def test_of_a_transaction_that_does_not_run_nothing_is_done(upstream: Server, proxy: Proxy) -> None:
    check_watched_pairs(upstream, proxy)


def check_refused_queue(server: Server, proxy: Proxy) -> None:
    """Where the server refuses something, in one piece as one by one: while queueing, with the whole, or as it runs."""
    queued: list[Words] = [
        ("HSET", "one:h", "a", "1"), ("EXPIREMEMBER", "one:h", "a", FAR), ("SADD", "one:s", "a"),
        ("EXPIREMEMBER", "one:t", "a", FAR), ("EXPIREMEMBER", "one:s", "a", FAR), ("SADD", "one:t", "a"),
        ("HSETEX", "one:h", "EX", FAR, "FIELDS", 1, "a", "1"),
        *[("SREM", "one:s", "nosuch")] * 3, *[("TTL", "one:s", "a")] * 3,
    ]  # fmt: skip
    with proxy.connect() as client:
        fill(client, "one")
        singly(client, queued)
        for refusal in (None, *REFUSALS):
            for part in (queued[:7], queued[7:10], queued[10:], [queued[6]] * 5, queued):
                with refusing(server, refusal) if refusal else nullcontext():
                    wanted = singly(client, [("MULTI",), *part, ("EXEC",)])
                    got = pipelined(client, [("MULTI",), *part, ("EXEC",)])
                assert len(got) == len(wanted)
                assert all(map(alike, got, wanted)), (refusal, got, wanted)
        said = []
        for send in (singly, pipelined):  # the server looks at rights when it queues, and when it runs
            assert server.command("ACL", "SETUSER", "some", "reset", "on", ">x", "~*", "&*", "+@all") == b"+OK\r\n"
            assert client.command("AUTH", "some", "x") == b"+OK\r\n"
            assert set(send(client, [("MULTI",), *queued])) == {b"+OK\r\n", b"+QUEUED\r\n"}
            assert server.command("ACL", "SETUSER", "some", "-eval") == b"+OK\r\n"
            said += [*send(client, [("EXEC",), ("ECHO", "behind")])]
        assert said[:2] == said[2:]
        assert said[0].count(b"-NOPERM") == len(queued)


@pytest.mark.every_kind
def test_each_request_of_a_refused_queue_gets_its_own_error(pair: tuple[Server, Proxy]) -> None:
    check_refused_queue(*pair)


def check_pairs(server: Server, proxy: Proxy) -> None:
    """An adder and a deadline for what it adds, on a new key each time, and something else between: few calls."""
    with proxy.connect() as client:
        for adder in (("SADD", "k:{}", "m"), ("HSET", "k:{}", "m", 1), ("ZADD", "k:{}", 1, "m")):
            server.command("FLUSHALL")
            client.command("SADD", "k:first", "m")
            assert client.command("EXPIREMEMBER", "k:first", "m", FAR) == b":1\r\n"
            requests: list[Words] = []
            for number in range(60):
                key = f"k:{number}"
                requests.append(tuple(str(word).format(number) for word in adder))
                requests.append(("EXPIREMEMBER", key, "m", FAR + number))
                requests.append(("SET", f"plain:{number}", "x"))

            def go_together(requests: list[Words] = requests) -> bool:
                """Unless something has just to be asked, such as what the user may do."""
                client.command("DEL", *(f"k:{number}" for number in range(60)))
                before = calls(server)
                assert pipelined(client, requests) == [b":1\r\n", b":1\r\n", b"+OK\r\n"] * 60
                return calls(server) - before <= 10

            until(go_together, what="few calls")
            check_deadlines(server, client, 60)


def check_dialect_pairs(server: Server, proxy: Proxy) -> None:
    """The same with another dialect's word: what it sets ends when the member is written over."""
    one = b"*1\r\n:1\r\n"
    with proxy.connect() as client:
        client.command("ZADD", "k:first", 1, "m")
        assert client.command("EXPIREMEMBER", "k:first", "m", FAR) == b":1\r\n"
        pairs: list[Words] = []
        for number in range(40):
            pairs += [("ZADD", f"k:{number}", 1, "m", 1, "n"), ("ZEXPIRE", f"k:{number}", FAR, "MEMBERS", 1, "m")]
            pairs += [("ZPEXPIRE", f"k:{number}", FAR * 1000, "MEMBERS", 1, word) for word in ("no", "n")]

        def go_together() -> bool:
            client.command("DEL", *(f"k:{number}" for number in range(40)))
            before = calls(server)
            assert pipelined(client, pairs) == [b":2\r\n", one, b"*1\r\n:-2\r\n", one] * 40
            return calls(server) - before <= 10

        until(go_together, what="few calls")
        for number in range(40):
            lefts = client.command("ZTTL", f"k:{number}", "MEMBERS", 3, "m", "n", "no")
            assert alike(lefts, b"*3\r\n:%d\r\n:%d\r\n:-2\r\n" % (FAR, FAR)), lefts
        assert client.command("ZADD", "k:1", 2, "m", 2, "n") == b":0\r\n"
        assert client.command("ZTTL", "k:1", "MEMBERS", 2, "m", "n") == b"*2\r\n:-1\r\n:-1\r\n"
        wrong: Words = ("ZEXPIRE", "k:2", FAR, "MEMBERS", 2, "m")
        client.send(b"".join(request(*words) for words in [*pairs[:4], wrong, *pairs[:4]]))
        assert client.replies(9)[4] == by_itself(proxy, wrong)
        late: Words = ("FIELDEXPIRE", "k:2", 1 << 32, "m")
        assert pipelined(client, [*pairs[:4], late, *pairs[:4]])[4] == by_itself(proxy, late)
        assert client.command("SADD", "k:s", "m") == b":1\r\n"
        other: Words = ("ZEXPIRE", "k:s", FAR, "MEMBERS", 1, "m")
        client.send(b"".join(request(*words) for words in [*pairs[4:8], other, *pairs[4:8]]))
        assert client.replies(9)[4].startswith(b"-WRONGTYPE")


@pytest.mark.every_kind
def test_pairs_of_a_dialect_are_few_calls(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    check_dialect_pairs(server, start_proxy(server))


WRITES: dict[str, tuple[tuple[Words, bytes], ...]] = {
    "h": (
        (("HSETEX", "EX", FAR, "FIELDS", 1, "m", "one"), b":1\r\n"),
        (("HSETEX", "px", FAR * 1000, "fields", 1, "n", "two"), b":1\r\n"),
    ),
    "s": (
        (("SADDEX", FAR, "m"), b":1\r\n"),
        (("SADDEX", FAR, "m"), b":0\r\n"),
        (("SADDEX", "EX", FAR, "MEMBERS", 1, "m"), b":1\r\n"),
        (("SADDEX", "PX", FAR * 1000, "MEMBERS", 1, "n"), b":1\r\n"),
    ),
}
"""Requests that write a member with its lifetime, without their key, and their replies."""


def _writes(number: int, kind: str) -> tuple[list[Words], list[bytes]]:
    rows = [((words[0], f"w:{kind}{number}", *words[1:]), reply) for words, reply in WRITES[kind]]
    return [words for words, _ in rows], [reply for _, reply in rows]


def check_writes(server: Server, proxy: Proxy) -> None:
    """Members that are written with their lifetimes: few calls, and all that each does alone."""
    with proxy.connect() as client:
        for kind, add in (("h", ("m", 1)), ("s", ("m",))):
            client.command("HSET" if kind == "h" else "SADD", f"w:{kind}first", *add)
            assert client.command("EXPIREMEMBER", f"w:{kind}first", "m", FAR) == b":1\r\n"
        # Those for hashes first: where the server has HSETEX itself, they go one by one, by another script.
        singles = 0 if parse(server.command("COMMAND", "INFO", "HSETEX")) == [None] else 80
        rows = [_writes(number, kind) for kind in "hs" for number in range(40)]
        requests, wanted = list(chain(*(some for some, _ in rows))), list(chain(*(some for _, some in rows)))

        def go_together() -> bool:
            client.command("DEL", *(f"w:{kind}{number}" for kind in "hs" for number in range(40)))
            before, counted = calls(server), rewritten(client, "set_members")
            assert pipelined(client, requests) == wanted
            assert rewritten(client, "set_members") - counted == len(requests) - singles
            return calls(server) - before <= 10 + singles

        until(go_together, what="few calls")
        for number in range(40):
            for name, noun, key in (("HTTL", "FIELDS", f"w:h{number}"), ("STTL", "MEMBERS", f"w:s{number}")):
                lefts = client.command(name, key, noun, 3, "m", "n", "no")
                assert alike(lefts, b"*3\r\n:%d\r\n:%d\r\n:-2\r\n" % (FAR, FAR)), lefts
            found = server.command("ZSCORE", NAMES.index, f"w:s{number}").split(b"\r\n")[1]
            assert found == min(
                server.command("ZSCORE", NAMES.shadow(b"w:s%d" % number), one).split(b"\r\n")[1] for one in "mn"
            )
            assert found.endswith(b".5")
        # Written over, it lives on for ever; given a lifetime by EXPIREMEMBER before, it has the new one.
        assert client.command("HSET", "w:h1", "m", 2) == b":0\r\n"
        assert client.command("HTTL", "w:h1", "FIELDS", 2, "m", "n").startswith(b"*2\r\n:-1\r\n:")
        assert client.command("EXPIREMEMBER", "w:s1", "m", 5000) == b":1\r\n"
        assert client.command("EXPIREMEMBER", "w:s1", "n", 5000) == b":1\r\n"
        again, replies = _writes(1, "s")
        assert pipelined(client, again) == [b":0\r\n", b":0\r\n", *replies[2:]]
        assert alike(client.command("TTL", "w:s1", "m"), b":%d\r\n" % FAR)
        assert server.command("ZSCORE", NAMES.index, "w:s1").split(b"\r\n")[1].endswith(b".5")
        # A member that was removed is new, without what it had before.
        assert client.command("SREM", "w:s1", "m", "n") == b":2\r\n"
        assert pipelined(client, again) == replies
        # Of another type: nothing is done, neither to the key nor to its members' deadlines.
        assert client.command("ZADD", "w:z", 1, "m", 1, "n") == b":2\r\n"
        assert client.command("EXPIREMEMBER", "w:z", "m", 5000) == b":1\r\n"
        assert client.command("SET", "w:t", "text") == b"+OK\r\n"
        assert client.command("ZREM", "w:z", "m") == b":1\r\n"
        for key in ("w:z", "w:t"):
            wrong: list[Words] = [("SADDEX", key, FAR, "m"), ("SADDEX", key, "EX", FAR, "MEMBERS", 1, "n")]
            got = pipelined(client, [*again, *wrong * 3, *again])
            assert got[4:10] == [client.command(*words) for words in wrong] * 3
            assert got[4].startswith(b"-WRONGTYPE")
        assert alike(client.command("TTL", "w:z", "m"), b":5000\r\n")  # void, and left as it is
        assert client.command("TTL", "w:z", "n") == b":-1\r\n"
        assert server.command("EXISTS", NAMES.shadow(b"w:t")) == b":0\r\n"
        # What is not as simple goes alone.
        for other in (
            ("SADDEX", "w:s3", FAR, "x", "y"), ("SADDEX", "w:s3", "KEEPTTL", FAR, "x"),
            ("SADDEX", "w:s3", "KEEPTTL", "MEMBERS", 1, "x"), ("SADDEX", "w:s3", 0, "x"),
            ("SADDEX", "w:s3", 1 << 32, "x"), ("SADDEX", "w:s3", "EX", FAR, "MEMBERS", 2, "x"),
            ("SADDEX", "w:s3", "EX", FAR, "FIELDS", 1, "x"), ("SADDEX", "w:s3", "EX", 0, "MEMBERS", 1, "x"),
            ("SADDEX", "w:s3", "EX", 10**15, "MEMBERS", 1, "x"),
            ("SADDEX", "w:s3", "EXAT", 4 * 10**9, "MEMBERS", 1, "m"), ("SADDEX", "w:s3", "MEMBERS", 1, "x", "EX", FAR),
        ):  # fmt: skip
            singly(client, [("DEL", "w:s3"), ("SADD", "w:s3", "m")])
            alone, left = client.command(*other), client.command("SMEMBERS", "w:s3")
            singly(client, [("DEL", "w:s3"), ("SADD", "w:s3", "m")])
            assert pipelined(client, [*again, other, *again])[len(again)] == alone, other
            assert client.command("SMEMBERS", "w:s3") == left, other


@pytest.mark.every_kind
def test_writes_with_lifetimes_are_few_calls(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    server = start_server(kind)
    check_writes(server, start_proxy(server))


def check_forbidden_writes(server: Server, proxy: Proxy) -> None:
    """Where a right for the deadline is missing, nothing is written: neither the members nor their deadlines."""
    with proxy.connect() as client, proxy.connect() as other:
        other.command("SADD", "w:sfirst", "m")
        assert other.command("EXPIREMEMBER", "w:sfirst", "m", FAR) == b":1\r\n"
        assert server.command("ACL", "SETUSER", "some", "reset", "on", ">x", "~*", "&*", "+@all") == b"+OK\r\n"
        assert client.command("AUTH", "some", "x") == b"+OK\r\n"
        (some, wanted), (more, _) = _writes(0, "s"), _writes(1, "s")
        names: Words = "w:s0", "w:s1", NAMES.shadow(b"w:s0"), NAMES.shadow(b"w:s1")

        def left() -> list[bytes]:
            return [server.command("EXISTS", name) for name in names]

        def go_together() -> bool:
            client.command("DEL", "w:s0", "w:s1")
            before = calls(server)
            assert pipelined(client, some + more) == wanted * 2
            return calls(server) - before == 1

        def is_refused_together(*rules: str) -> bool:
            """For a moment the user counts as one who may do everything."""
            assert server.command("ACL", "SETUSER", "some", "clearselectors", "+@all") == b"+OK\r\n"
            until(go_together, what="one call")
            server.flush()
            assert server.command("ACL", "SETUSER", "some", *rules) == b"+OK\r\n"
            before = calls(server)
            got = pipelined(client, some + more), left()
            count = calls(server) - before
            server.flush()
            assert got == (singly(client, some + more), left()), rules
            assert got[0][-1].startswith(b"-NOPERM")
            assert got[1][1::2] == [b":0\r\n"] * 2, rules
            return count == 1

        for lacking in ("zadd", "zrem", "unlink", "zrangebyscore", "zrevrangebyscore", "sadd"):
            until(partial(is_refused_together, f"-{lacking}"), what="a refusal of one call")
        for command in ("zadd", "sadd"):
            rules = f"-{command}", f"(+{command} ~*s0* ~{NAMES.index.decode()})"
            until(partial(is_refused_together, *rules), what="a refusal of one key")


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_of_writes_without_the_rights_nothing_is_done(pair: tuple[Server, Proxy]) -> None:
    check_forbidden_writes(*pair)


@pytest.mark.every_kind
def test_pairs_are_few_calls(kind: str, start_server: StartServer, start_proxy: StartProxy) -> None:
    """On a server of its own: where many names have been met, some that are plain here may be covered."""
    server = start_server(kind)
    check_pairs(server, start_proxy(server))


@pytest.mark.every_kind
def test_each_request_of_a_refused_mixture_gets_its_own_error(pair: tuple[Server, Proxy]) -> None:
    check_refused_mixture(*pair)


def check_refused_mixture(server: Server, proxy: Proxy) -> None:
    mixture: list[Words] = [
        ("HSET", "one:h", "a", "1"), ("EXPIREMEMBER", "one:h", "a", FAR), ("SREM", "one:s", "nosuch"),
        ("SET", "plain", "x"), ("SADD", "one:s", "a"), ("EXPIREMEMBER", "one:t", "a", FAR), ("TTL", "one:s", "a"),
        ("SADD", "one:t", "a"), ("EXPIREMEMBER", "one:s", "a", FAR), ("GET", "plain"), ("ZREM", "one:z", "nosuch"),
        ("PERSIST", "one:z", "nosuch"), ("SADD", "one:s", "a"), ("EXPIREMEMBER", "one:s", "nosuch", FAR),
        ("SADDEX", "one:s", FAR, "a"), ("SADDEX", "one:s", "EX", FAR, "MEMBERS", 1, "a"), ("SADDEX", "one:t", FAR, "a"),
        ("EXPIRE", "one:s", FAR), ("SCARD", "one:s"), ("HGET", "one:h", "a"), ("LTRIM", "one:l", 0, 99),
        ("GET", "one:t"),
    ]  # fmt: skip
    with proxy.connect() as client:
        fill(client, "one")
        singly(client, mixture)
        for refusal in (None, *REFUSALS):
            with refusing(server, refusal) if refusal else nullcontext():
                wanted = singly(client, mixture)
                got = pipelined(client, mixture * 9)
                for place, reply in enumerate(got):
                    assert alike(reply, wanted[place % len(mixture)]), (refusal, mixture[place % len(mixture)], reply)


def check_pieces_in_vain() -> None:
    """Requests that look as if they could go together, and cannot: parsing a piece for each would be quadratic."""
    for requests in (encode([b"EXPIREMEMBER", b"k"]) * 500, (encode([b"SADD", b"k", b"m"]) + encode([b"MULTI"])) * 250):
        driver, pieces = Driver("k"), list[int]()
        parse = driver.ground.batch.parse

        def counted(data: bytes, parse: Callable[[bytes], Any] = parse, pieces: list[int] = pieces) -> Any:
            pieces.append(len(data))
            return parse(data)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(driver.ground.batch, "parse", counted)
            driver.feed(requests)
        assert sum(pieces) < 10 * len(requests)


def test_pieces_are_not_parsed_in_vain_again_and_again() -> None:
    check_pieces_in_vain()


def check_odd_requests(proxy: Proxy) -> None:
    with proxy.connect() as client:
        assert client.command("SADD", "odd:s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "odd:s", "m", 1000) == b":1\r\n"
        for delay in ("5 6", " 5", "5 ", "5\r6", "", "5\n6"):
            requests: list[Words] = [
                *[("EXPIREMEMBER", "odd:s", "m", "1000")] * 6,
                ("EXPIREMEMBER", "odd:s", "m", delay),
            ]
            assert pipelined(client, requests) == singly(client, requests), delay
        assert pipelined(client, [("TTL", "odd:none", "m")] * 6) == [b":-2\r\n"] * 6


def test_odd_requests_in_a_run_are_answered_as_alone(proxy: Proxy) -> None:
    check_odd_requests(proxy)


@pytest.mark.every_kind
def test_a_run_is_one_call(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    with proxy.connect() as client:
        client.command("SADD", "k", *range(100))
        assert client.command("EXPIREMEMBER", "k", 0, FAR) == b":1\r\n"
        for name, more, wanted in (
            ("EXPIREMEMBER", (FAR,), b":1\r\n"), ("TTL", (), None), ("SADD", (), b":0\r\n"), ("SREM", (), b":1\r\n"),
            ("SADD", (), b":1\r\n"), ("PERSIST", (), b":0\r\n"),
        ):  # fmt: skip
            before = calls(upstream)
            replies = pipelined(client, [(name, "k", number, *more) for number in range(100)])
            assert wanted is None or set(replies) == {wanted}
            assert calls(upstream) - before < 50, name
        assert upstream.command("ZCARD", NAMES.shadow(b"k")) == b":0\r\n"


@pytest.mark.every_kind
@pytest.mark.parametrize("protocol", [2, 3])
def test_requests_in_small_pieces(upstream: Server, proxy: Proxy, protocol: int) -> None:
    upstream.flush()
    requests: list[Words] = [("EXPIREMEMBER", "one:s", "abcdef"[number % 6], FAR) for number in range(300)]
    requests += [("TTL", "one:s", "a"), ("SADD", "one:s", "new")] * 5 + [("SREM", "one:s", "a")] * 9
    with proxy.connect() as client:
        client.command("HELLO", protocol)
        fill(client, "one")
        sizes = random.Random(protocol)
        pieces = iter(lambda: sizes.randint(1, 700), None)
        with concurrently(partial(send_slices, client, b"".join(request(*words) for words in requests), pieces)):
            replies = client.replies(len(requests))
    assert replies[:6] == [b":1\r\n"] * 4 + [b":0\r\n"] * 2
    assert replies[-9:] == [b":1\r\n"] + [b":0\r\n"] * 8


def check_index(server: Server, proxy: Proxy) -> None:
    """The index tells the earliest deadline of a key, whichever of a run's requests sets it, or takes it away."""
    with proxy.connect() as client:
        client.command("SADD", "k", *range(6))
        for delays, earliest in (
            ((9000,) * 6, 9000),
            ((9000, 9000, 500, 9000, 9000, 9000), 500),
            ((9000,) * 6, 9000),
            ((100,) + (9000,) * 5, 100),
            ((9000,) * 6, 9000),
            ((500, 9500, 9500, 9500), 500),
        ):
            now = int(server.command("TIME").split(b"\r\n")[2])
            assert pipelined(client, [("EXPIREMEMBER", "k", *pair) for pair in enumerate(delays)]) == [b":1\r\n"] * len(
                delays
            )
            told = int(server.command("ZSCORE", NAMES.index, "k").split(b"\r\n")[1]) // 1000 - now
            assert earliest - 2 <= told <= earliest + 60
        assert pipelined(client, [("PERSIST", "k", number) for number in range(5)]) == [b":1\r\n"] * 5
        assert server.command("ZSCORE", NAMES.index, "k") == server.command("ZSCORE", NAMES.shadow(b"k"), 5)
        # One by one; with a condition a request goes by a script of its own.
        client.command("SADD", "single", "a", "b")
        for member, delay, condition, first in (
            ("a", 500, "NX", "a"), ("b", 900, "NX", "a"), ("a", 9000, "GT", "b"), ("b", 9500, "GT", "a"),
        ):  # fmt: skip
            assert client.command("EXPIREMEMBER", "single", member, delay, condition) == b":1\r\n"
            found = server.command("ZSCORE", NAMES.shadow(b"single"), first)
            assert server.command("ZSCORE", NAMES.index, "single") == found
        # Of keys that have no deadlines yet, under a prefix that is known.
        client.command("SADD", "new:0", "m")
        assert client.command("EXPIREMEMBER", "new:0", "m", 9000) == b":1\r\n"
        for delays in ((500, 9000, 9000, 9000), (9000, 500, 9000, 9000), (9000, 9000, 500, 900)):
            server.command("DEL", "new:1", NAMES.shadow(b"new:1"))
            server.command("ZREM", NAMES.index, "new:1")
            client.command("SADD", "new:1", *range(4))
            run: list[Words] = [("EXPIREMEMBER", "new:1", *pair) for pair in enumerate(delays)]
            assert pipelined(client, run) == [b":1\r\n"] * 4
            least = server.command("ZRANGE", NAMES.shadow(b"new:1"), 0, 0, "WITHSCORES").split(b"\r\n")[4]
            assert server.command("ZSCORE", NAMES.index, "new:1").split(b"\r\n")[1] == least
        for delays in (
            (500, 9000, 9000, 9000),
            (9000, 500, 9000, 9000),
            (9000, 9000, 500, 900),
            (9000, 9000, 9000, 9000),
        ):
            written: list[Words] = [("SADDEX", "new:2", delay, number) for number, delay in enumerate(delays)]
            pipelined(client, written)
            least = server.command("ZRANGE", NAMES.shadow(b"new:2"), 0, 0, "WITHSCORES").split(b"\r\n")[4]
            assert server.command("ZSCORE", NAMES.index, "new:2").split(b"\r\n")[1] == least


def check_added_again(proxy: Proxy) -> None:
    """A member that a request removed without naming it has no deadline when a run adds it again."""
    with proxy.connect() as client:
        client.command("ZADD", "z", *chain(*((number, number) for number in range(6))))
        assert pipelined(client, [("EXPIREMEMBER", "z", number, FAR) for number in range(6)]) == [b":1\r\n"] * 6
        assert client.command("ZPOPMIN", "z", 5).startswith(b"*10\r\n")
        assert pipelined(client, [("ZADD", "z", 1, number) for number in range(5)]) == [b":1\r\n"] * 5
        assert pipelined(client, [("TTL", "z", number) for number in range(5)]) == [b":-1\r\n"] * 5


def check_emptied(server: Server, proxy: Proxy) -> None:
    """A run that removes the last member leaves no deadlines behind."""
    with proxy.connect() as client:
        for once in range(2):
            client.command("SADD", "emptied", *range(6))
            assert (
                pipelined(client, [("EXPIREMEMBER", "emptied", number, FAR) for number in range(6)]) == [b":1\r\n"] * 6
            )
            assert pipelined(client, [("SREM", "emptied", number) for number in range(6)]) == [b":1\r\n"] * 6, once
        assert server.command("EXISTS", NAMES.shadow(b"emptied")) == b":0\r\n"
        assert server.command("ZSCORE", NAMES.index, "emptied") == b"$-1\r\n"


@pytest.mark.every_kind
def test_a_run_that_empties_a_key_leaves_no_deadlines(upstream: Server, proxy: Proxy) -> None:
    check_emptied(upstream, proxy)


@pytest.mark.every_kind
def test_members_added_again_by_a_run_have_no_deadlines(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    check_added_again(proxy)


@pytest.mark.every_kind
def test_the_index_tells_the_earliest_deadline_of_a_run(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    check_index(upstream, proxy)


# A call that fails as a whole.


FORMS: tuple[Words, ...] = (
    ("EXPIREMEMBER", "one:s", "b", FAR), ("TTL", "one:s", "a"), ("PERSIST", "one:s", "nosuch"),
    ("SADD", "one:s", "new"), ("SREM", "one:s", "nosuch"), ("HSET", "one:h", "x", "1"), ("ZREM", "one:z", "nosuch"),
    ("EXPIREMEMBER", "one:s", "no", FAR), ("ZINCRBY", "one:z", "2", "a"), ("SADDEX", "one:s", FAR, "a"),
    ("SADDEX", "one:s", "EX", FAR, "MEMBERS", 1, "a"), ("HSETEX", "one:h", "EX", FAR, "FIELDS", 1, "x", "1"),
)  # fmt: skip


@pytest.fixture
def pair(kind: str) -> Iterator[tuple[Server, Proxy]]:
    server = Server(installed(kind))
    proxy = Proxy("--upstream", server.url)
    try:
        yield server, proxy
    finally:
        proxy.close()
        server.close()


@contextmanager
def refusing(server: Server, refusal: str) -> Iterator[None]:
    begin, end = REFUSALS[refusal]
    for line in begin:
        assert server.command(*line.split()) == b"+OK\r\n"
    try:
        yield
    finally:
        for line in end:
            server.command(*line.split())


@pytest.mark.every_kind
@pytest.mark.parametrize("protocol", [2, 3])
def test_each_request_of_a_refused_call_gets_the_error(pair: tuple[Server, Proxy], protocol: int) -> None:
    server, proxy = pair
    check_refused(server, proxy, protocol)


def check_refused(server: Server, proxy: Proxy, protocol: int) -> None:
    """As one by one, with an ordinary reply in front and behind."""
    with proxy.connect() as client:
        client.command("HELLO", protocol)
        fill(client, "one")
        for refusal in REFUSALS:
            with refusing(server, refusal):
                for form in FORMS:
                    wanted = client.command(*form)
                    got = pipelined(client, [("ECHO", "-before"), *[form] * 7, ("ECHO", "behind")])
                    assert got[0] == b"$7\r\n-before\r\n"
                    assert got[-1] == b"$6\r\nbehind\r\n"
                    assert all(alike(reply, wanted) for reply in got[1:-1]), (refusal, form, got, wanted)


@pytest.mark.every_kind
def test_each_request_of_a_call_to_a_busy_server_gets_the_error(pair: tuple[Server, Proxy]) -> None:
    server, proxy = pair
    with server.busy_after(1), proxy.connect() as client, server.connect() as busy:
        fill(client, "one")
        busy.send_command("EVAL", "while true do end", 0)
        until(lambda: server.command("PING").startswith(b"-BUSY"), what="BUSY")
        got = pipelined(client, [form for form in FORMS[:5] for _ in range(7)])
        # The proxy's own connection hears of it too, and then it is blind.
        assert all(reply.startswith((b"-BUSY", b"-ERR expiremember-proxy: other")) for reply in got), got
        assert server.command("SCRIPT", "KILL") == b"+OK\r\n"
        assert busy.reply().startswith(b"-ERR")
        until(lambda: pipelined(client, [FORMS[0]] * 7) == [b":1\r\n"] * 7, what="replies as before")


@pytest.mark.every_kind
def test_a_user_who_may_run_no_script_is_told_so_for_each_request(pair: tuple[Server, Proxy]) -> None:
    server, proxy = pair
    with proxy.connect() as client, proxy.connect() as other:
        fill(other, "one")
        assert server.command("ACL", "SETUSER", "some", "on", ">x", "~*", "&*", "+@all") == b"+OK\r\n"
        assert client.command("AUTH", "some", "x") == b"+OK\r\n"
        assert pipelined(client, [FORMS[0]] * 7) == [b":1\r\n"] * 7
        assert server.command("ACL", "SETUSER", "some", "-eval") == b"+OK\r\n"
        for _ in range(3):
            for form in (FORMS[0], FORMS[1]):
                got = pipelined(client, [form] * 7)
                assert all(reply.startswith(b"-NOPERM") for reply in got), got
        assert server.command("ACL", "SETUSER", "some", "+eval", "-smismember", "-zmscore", "-lrange") == b"+OK\r\n"
        until(lambda: client.command(*FORMS[0]) == b":1\r\n", what="the right to run scripts")
        assert pipelined(client, [FORMS[0]] * 7) == [b":1\r\n"] * 7
        assert len(set(pipelined(client, [FORMS[1]] * 7))) <= 2
        list_ = pipelined(client, [("EXPIREMEMBER", "one:l", member, FAR) for member in "abcdef"])
        assert list_ == [b":1\r\n"] * 3 + [b":0\r\n"] * 3


@pytest.mark.every_kind
def test_a_spoilt_shadow_fails_the_requests_for_its_key_alone(pair: tuple[Server, Proxy]) -> None:
    server, proxy = pair
    with proxy.connect() as client:
        fill(client, "one")
        assert server.command("DEL", NAMES.shadow(b"one:s")) == b":1\r\n"
        assert server.command("SET", NAMES.shadow(b"one:s"), "text") == b"+OK\r\n"
        for name, more in (("EXPIREMEMBER", (FAR,)), ("TTL", ()), ("PERSIST", ())):
            requests: list[Words] = [(name, key, "a", *more) for key in ("one:h", "one:s", "one:z") for _ in range(3)]
            got, wanted = pipelined(client, requests), singly(client, requests)
            if name == "PERSIST":  # the first of three drops it
                assert got == [b":1\r\n", b":0\r\n", b":0\r\n", *wanted[3:6], b":1\r\n", b":0\r\n", b":0\r\n"]
            else:
                assert all(map(alike, got, wanted)), (got, wanted)
            assert got[3].startswith(b"-WRONGTYPE")


@pytest.mark.every_kind
def test_in_a_long_list_members_are_looked_for_one_by_one_after_the_first_time(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    with proxy.connect() as client:
        client.command("RPUSH", "long", *range(3000))
        requests: list[Words] = [("EXPIREMEMBER", "long", number * 60, FAR) for number in range(60)]

        def calls_of_a_run() -> int:
            before = calls(upstream)
            assert pipelined(client, requests) == [b":1\r\n"] * 50 + [b":0\r\n"] * 10
            return calls(upstream) - before

        # Where other proxies have been lately, the first run goes one by one, behind an announcement of its key.
        until(lambda: calls_of_a_run() < 60, what="a run that goes together")
        assert calls_of_a_run() >= 60


@pytest.mark.every_kind
def test_runs_behind_other_requests_are_found(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    with proxy.connect() as client:
        client.command("SADD", "k", *range(50))
        assert client.command("EXPIREMEMBER", "k", 0, FAR) == b":1\r\n"
        run: list[Words] = [("EXPIREMEMBER", "k", number, FAR) for number in range(50)]
        before = calls(upstream)
        replies = pipelined(client, [("SPOP", "k", 0), *run, ("MULTI",), ("EXEC",), *run, ("ECHO", "end")])
        assert replies == [b"*0\r\n", *[b":1\r\n"] * 50, b"+OK\r\n", b"*0\r\n", *[b":1\r\n"] * 50, b"$3\r\nend\r\n"]
        assert calls(upstream) - before < 50


def check_transaction(proxy: Proxy) -> None:
    with proxy.connect() as client:
        fill(client, "one")
        for form in FORMS:
            wanted = client.command(*form)
            got = pipelined(client, [("MULTI",), *[form] * 6, ("EXEC",), ("ECHO", "behind")])
            assert got[:7] == [b"+OK\r\n", *[b"+QUEUED\r\n"] * 6]
            assert got[8] == b"$6\r\nbehind\r\n"
            assert got[7].startswith(b"*6\r\n")
            if form[0] in ("EXPIREMEMBER", "SADD", "HSET"):
                last = wanted if form[0] == "EXPIREMEMBER" else b":0\r\n"
                assert got[7] == b"*6\r\n" + last * 6, form


@pytest.mark.every_kind
def test_in_a_transaction_each_is_queued(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    check_transaction(proxy)


def check_due(server: Server, lazy: Proxy) -> None:
    """For a run as well a member whose deadline has passed is gone; `lazy` does not sweep."""
    with lazy.connect() as client:
        for name, more, wanted in (
            ("EXPIREMEMBER", (FAR,), b":0\r\n"),
            ("SADD", (), b":1\r\n"),
            ("SREM", (), b":0\r\n"),
            ("SADDEX", (FAR,), b":1\r\n"),
        ):
            server.command("DEL", "due")
            client.command("SADD", "due", "stays", *range(6))
            for number in range(6):
                assert client.command("PEXPIREMEMBER", "due", number, 400 + number) == b":1\r\n"
            index = NAMES.shadow(b"due")
            latest = int(server.command("ZREVRANGE", index, 0, 0, "WITHSCORES").split(b"\r\n")[4])
            until(partial(_is_past, server, latest), what="the deadlines")
            requests: list[Words] = [
                (name, "due", *((*more, number) if name == "SADDEX" else (number, *more))) for number in range(6)
            ]
            assert pipelined(client, requests) == [wanted] * 6
        server.command("DEL", "due")
        client.command("SADD", "due", "stays", *range(6))
        assert pipelined(client, [("PEXPIREMEMBER", "due", number, 400) for number in range(6)]) == [b":1\r\n"] * 6
        latest = int(server.command("ZREVRANGE", index, 0, 0, "WITHSCORES").split(b"\r\n")[4])
        until(partial(_is_past, server, latest), what="the deadlines")
        pairs: list[Words] = [(name, "due", n, *more) for n in range(6) for name, more in
                              (("EXPIREMEMBER", (FAR,)), ("SADD", ()))]  # fmt: skip
        assert pipelined(client, pairs) == [b":0\r\n", b":1\r\n"] * 6


def check_due_of_another_type(server: Server, lazy: Proxy) -> None:
    """A key whose members are all due is as good as gone, whatever its type; `lazy` does not sweep."""
    with lazy.connect() as client:
        client.command("ZADD", "due", 1, "a", 1, "b")
        for member in "ab":
            assert client.command("PEXPIREMEMBER", "due", member, 300) == b":1\r\n"
        latest = int(server.command("ZREVRANGE", NAMES.shadow(b"due"), 0, 0, "WITHSCORES").split(b"\r\n")[4])
        until(partial(_is_past, server, latest), what="the deadlines")
        assert pipelined(client, [("SADDEX", "due", FAR, number) for number in range(6)]) == [b":1\r\n"] * 6


def check_due_of_strings(server: Server, lazy: Proxy) -> None:
    """Nor are strings, and lifetimes of keys, in the way of such a key; `lazy` does not sweep."""
    with lazy.connect() as client:
        for line, before, behind in (
            ("EXPIRE due 100", b":1\r\n", b":0\r\n"),
            ("INCR due", b"-WRONGTYPE", b":1\r\n"),
            ("SETNX due text", b":0\r\n", b":1\r\n"),
            ("XADD due 1-1 f v", b"-WRONGTYPE", b"$3\r\n1-1\r\n"),
            ("SPOP due", b"$1\r\n", b"$-1\r\n"),
        ):
            server.command("DEL", "due")
            client.command("SADD", "due", "a", "b")
            requests: list[Words] = [tuple(line.split()), ("SADD", "due:other", "m"), *[("SREM", "due:other", "m")] * 4]
            assert pipelined(client, requests)[0].startswith(before)
            client.command("SADD", "due", "a", "b")
            for member in "ab":
                assert client.command("PEXPIREMEMBER", "due", member, 300) == b":1\r\n"
            latest = int(server.command("ZREVRANGE", NAMES.shadow(b"due"), 0, 0, "WITHSCORES").split(b"\r\n")[4])
            until(partial(_is_past, server, latest), what="the deadlines")
            assert pipelined(client, requests)[0] == behind, line


@pytest.mark.every_kind
def test_strings_find_no_member_that_is_due(upstream: Server, start_proxy: StartProxy) -> None:
    check_due_of_strings(upstream, start_proxy(upstream, "--no-sweep"))


def check_without_memory(server: Server, proxy: Proxy) -> None:
    """Of a mixture, a server out of memory refuses what it would refuse one by one, wherever it stands."""
    words: list[Words] = [
        ("EXPIRE", "c:s", FAR), ("SADD", "c:s", "n"), ("INCR", "c:n"), ("EXPIRE", "c:s", FAR), ("SREM", "c:s", "m"),
        ("HSET", "c:h", "f", 1), ("SREM", "c:s", "o"), ("SETNX", "c:t", "text"), ("SCARD", "c:s"), ("EXISTS", "c:s"),
    ]  # fmt: skip
    with proxy.connect() as client:
        client.command("SADD", "c:s", "m", "o", "p")
        assert client.command("EXPIREMEMBER", "c:s", "o", FAR) == b":1\r\n"
        calls_before = calls(server)
        with refusing(server, "no memory"):
            refused = client.command("SADD", "c:s", "n")
            assert refused.startswith(b"-OOM")
            replies = pipelined(client, words)
        yes = b":1\r\n"
        assert replies == [yes, refused, refused, yes, yes, refused, yes, refused, yes, yes]
        assert calls(server) - calls_before < len(words)
        assert client.command("SMEMBERS", "c:s") == b"*1\r\n$1\r\np\r\n"


def check_transaction_without_memory(server: Server, proxy: Proxy) -> None:
    """A server out of memory that queues what takes none does so too if the transaction comes in one piece."""
    server.flush()
    with proxy.connect() as client:
        assert client.command("SADD", "c:s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "c:s", "m", FAR) == b":1\r\n"
        some: list[Words] = [("EXPIRE", "c:s", FAR), ("SREM", "c:s", "n")]
        for queued in (some, [*some, ("SADD", "c:s", "n"), ("INCR", "c:n")]):
            whole: list[Words] = [("MULTI",), *queued, ("EXEC",)]
            assert pipelined(client, whole)[-1].startswith(b"*%d\r\n" % len(queued))
            with refusing(server, "no memory"):
                assert pipelined(client, whole) == singly(client, whole)


@pytest.mark.every_kind
def test_a_transaction_on_a_server_out_of_memory(upstream: Server, proxy: Proxy) -> None:
    check_transaction_without_memory(upstream, proxy)


COUNTERS = """
    INCR {k}n|HINCRBY {k}h n -1|INCR {k}n|HINCRBY {k}h n -1|XADD {k}q 1-1 f v|SETNX {k}g +5
    INCRBY {k}n 1000000000000001|EXPIRE {k}n 100|HINCRBY {k}h n -9000000000000001|SADD {k}s z|APPEND {k}g b
    HINCRBY {k}h x 5|HINCRBY {k}s x 1|SADDEX {k}s 100 y|SEXPIRE {k}s 100 MEMBERS 1 y|DECRBY {k}n 2|DECR {k}n
    XADD {k}q 1-2 f v|INCR {k}n
"""
"""Replies of any type, among them counters about 2^53, from which on a Lua number does not hold each integer."""


def counters_for(key: str) -> list[Words]:
    return [
        tuple(line.split()) for row in COUNTERS.strip().splitlines() for line in row.strip().format(k=key).split("|")
    ]


def fill_counters(server: Server, key: str) -> None:
    server.command("DEL", *(key + name for name in "nhqgs"))
    server.command("SET", f"{key}n", 2**53 - 1)
    server.command("HSET", f"{key}h", "n", 1 - 2**53)


def check_counters(server: Server, proxy: Proxy, protocol: int = 2) -> None:
    """Each digit is right, and the next reply is found."""
    with proxy.connect() as client:
        client.command("HELLO", protocol)
        for key in ("c:", "c:one:"):
            fill_counters(server, key)
        client.command("SADD", "c:first", "m")
        assert client.command("EXPIREMEMBER", "c:first", "m", FAR) == b":1\r\n"
        wanted = singly(client, counters_for("c:one:"))
        before = calls(server)
        assert pipelined(client, counters_for("c:")) == wanted
        assert calls(server) - before <= 4
        assert b":9007199254740993\r\n" in wanted
        for some, size in ([("INCR", "c:n")], 3), ([("HINCRBY", "c:h", "n", 1)], 5):
            start = int(client.command(*some[0])[1:])
            assert client.command("MULTI") == b"+OK\r\n"
            assert pipelined(client, some * 6) == [b"+QUEUED\r\n"] * 6
            counted = b"".join(b":%d\r\n" % (start + number) for number in range(1, 7))
            assert b"".join(client.command("EXEC").split(b"\r\n", 1)[1:]) == counted
            start += 6
            whole = [("MULTI",), *some * size, ("EXEC",)]
            queued = [b"+OK\r\n", *[b"+QUEUED\r\n"] * size]
            counted = b"".join(b":%d\r\n" % (start + number) for number in range(1, size + 1))
            assert pipelined(client, whole) == [*queued, b"*%d\r\n" % size + counted]
        client.command("RPUSH", "c:long", *range(3000))
        assert client.command("EXPIREMEMBER", "c:long", 7, FAR) == b":1\r\n"
        mixture: list[Words] = [("INCR", "c:n"), ("EXPIREMEMBER", "c:long", 60, FAR)] * 4
        assert [reply[:1] for reply in pipelined(client, mixture)] == [b":"] * 8
        assert client.command("PING") == b"+PONG\r\n"


@pytest.mark.every_kind
@pytest.mark.parametrize("protocol", [2, 3])
def test_counters_keep_their_digits(upstream: Server, proxy: Proxy, protocol: int) -> None:
    upstream.flush()
    check_counters(upstream, proxy, protocol)


def check_far_times(server: Server, proxy: Proxy) -> None:
    """Beyond 2^53 ms a time may lose digits, but it is a time whatever the key holds."""
    far = 91 * 10**17
    with proxy.connect() as client:
        fill_counters(server, "c:")
        server.command("SET", "c:text", "hello")
        server.command("SET", "c:digits", "123")
        client.command("SADD", "c:s", "m")
        assert client.command("EXPIREMEMBER", "c:s", "m", FAR) == b":1\r\n"
        for key in ("c:text", "c:digits", "c:s"):
            for first in ("INCR", "c:n"), ("SADD", "c:s", "m"):
                mixture: list[Words] = [first, ("PEXPIRE", key, far), ("PTTL", key), ("TTL", key), ("SCARD", "c:s")]
                times = pipelined(client, mixture)[2:-1]
                for reply, wanted in zip(times, (far, far // 1000), strict=True):
                    assert reply[:1] == b":"
                    assert abs(int(reply[1:]) - wanted) < 2000


@pytest.mark.every_kind
def test_far_times_are_times(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    check_far_times(upstream, proxy)


def check_undescribed(server: Server, proxy: Proxy) -> None:
    """A server without TTL, or that does not say what its commands do."""
    with proxy.connect() as client:
        client.command("SADD", "c:s", "m")
        assert client.command("EXPIREMEMBER", "c:s", "m", FAR) == b":1\r\n"
        mixture: list[Words] = [("TTL", "c:s", "m"), ("INCR", "c:n"), ("TTL", "c:s", "m"), *[("SADD", "c:s", "q")] * 2]
        wanted = [b":%d\r\n" % FAR, b":1\r\n", b":%d\r\n" % FAR, b":1\r\n", b":0\r\n"]
        assert all(map(alike, pipelined(client, mixture), wanted))
        server.command("CONFIG", "SET", "maxmemory", 1)
        writes: list[Words] = [("EXPIRE", "c:n", FAR), ("APPEND", "c:n", 5), ("INCR", "c:n"), ("SETNX", "c:new", 1)]
        assert [reply[:4] for reply in pipelined(client, writes)] == [b":1\r\n", *[b"-OOM"] * 3]
        server.command("CONFIG", "SET", "maxmemory", 0)


@pytest.mark.every_kind(redis=(7,), valkey=(9,))
@pytest.mark.parametrize("missing", ["TTL", "COMMAND"])
def test_of_undescribed_commands_calls_hold_none_that_others_judge(
    kind: str, start_server: StartServer, start_proxy: StartProxy, missing: str
) -> None:
    server = start_server(kind, "--rename-command", missing, "")
    check_undescribed(server, start_proxy(server, "--no-share"))


@given(cuts=st.lists(st.integers(0, 200), max_size=6), long=st.booleans())
def test_counters_are_found_however_replies_are_cut(cuts: list[int], long: bool) -> None:
    parts = [
        b"+9007199254740993\r\n",
        b"$3\r\n+12\r\n",
        b"*2\r\n:1\r\n$-1\r\n",
        b"+OK\r\n",
        b"_\r\n",
        b"-ERR +1\r\n",
        b"+-9\r\n",
    ]
    stream = b"*%d\r\n" % (len(parts) + long) + b":1\r\n" * long + b"".join(parts) + b"+7\r\n"
    elements, passed = Elements(len(parts), counts=True), b""
    places = sorted({0, len(stream), *(min(cut, len(stream)) for cut in cuts)})
    for begin, end in pairwise(places):
        if elements.done:
            passed += stream[begin:end]
            continue
        out, rest = elements.receive(stream[begin:end])
        passed += out + rest
    assert passed == b"".join(map(as_counter, parts)) + b"+7\r\n"
    assert as_counter(parts[0]) == b":9007199254740993\r\n"
    assert parts[1] in passed


def check_reads_of_mixtures_while_paused(server: Server, proxy: Proxy) -> None:
    """Writes alone are held up, and what is behind them."""
    with proxy.connect() as client:
        assert client.command("SADD", "c:s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "c:s", "m", FAR) == b":1\r\n"
        server.command("CLIENT", "PAUSE", 10_000, "WRITE")
        try:
            for line in ["SCARD c:s", "EXISTS c:s", "SCARD c:s", "SADD c:s n", "SCARD c:s", "EXPIRE c:s 100"]:
                client.send_command(*line.split())
            for read in ([("SCARD", "c:s"), ("EXISTS", "c:s")], [("TTL", "c:s"), ("SISMEMBER", "c:s", "m")]):
                with proxy.connect() as other:
                    other.send(b"".join(request(*words) for words in [*read, ("SADD", "c:s", "m"), *read]))
                    assert len(other.replies(2)) == 2
            assert client.replies(3) == [b":1\r\n"] * 3
        finally:
            server.command("CLIENT", "UNPAUSE")
        assert client.replies(3) == [b":1\r\n", b":2\r\n", b":1\r\n"]


@pytest.mark.every_kind
def test_no_read_of_a_mixture_is_held_up_by_a_write_behind_it(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    check_reads_of_mixtures_while_paused(upstream, proxy)


def check_few_calls(server: Server, proxy: Proxy) -> None:
    """A mixture goes together, whatever its keys are."""
    server.flush()
    with proxy.connect() as client:
        assert client.command("SADD", "c:s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "c:s", "m", FAR) == b":1\r\n"
        mixtures = (
            ["HSET c:h f 1", "EXPIRE c:h 100"],
            ["SADD c:s a", "EXPIREMEMBER c:s a 100", "EXPIRE c:s 100", "SREM c:s b"],
            ["HSET c:h f 1", "SET plain text", "INCR plain:n", "EXPIRE plain 100"],
            ["INCR c:n"],
            ["HINCRBY c:h n 1", "EXPIRE c:h 100"],
            ["HINCRBY c:h n 1"],
            ["ZADD c:z 1 m", "ZREMRANGEBYSCORE c:z 0 0", "ZCARD c:z", "EXPIRE c:z 60"],
            ["TTL c:s a", "SADD c:s a", "TTL c:s a", "EXPIREMEMBER c:s a 100"],
            ["SADD c:s a", "SCARD c:s", "EXPIREMEMBER c:s a 100", "TTL c:s a", "SISMEMBER c:s b"],
            ["XADD c:q * f v", "EXPIRE c:q 100"],
            ["EXPIRE c:s 100"],
        )
        for mixture in mixtures:
            words = [tuple(line.split()) for line in mixture] * 10
            before = calls(server)
            assert not [reply for reply in pipelined(client, words) if reply.startswith(b"-")]
            assert calls(server) - before <= 4, mixture
        gone: list[Words] = [("SADD", "c:s", "x"), ("SREM", "c:s", "x"), ("EXPIREMEMBER", "c:s", "x", FAR)]
        assert pipelined(client, gone * 4) == [b":1\r\n", b":1\r\n", b":0\r\n"] * 4


@pytest.mark.every_kind
def test_a_mixture_goes_in_few_calls(upstream: Server, proxy: Proxy) -> None:
    check_few_calls(upstream, proxy)


@pytest.mark.every_kind
def test_a_server_out_of_memory_refuses_only_what_takes_some(upstream: Server, proxy: Proxy) -> None:
    upstream.flush()
    check_without_memory(upstream, proxy)


@pytest.mark.every_kind
def test_writes_find_no_member_of_another_type_that_is_due(upstream: Server, start_proxy: StartProxy) -> None:
    check_due_of_another_type(upstream, start_proxy(upstream, "--no-sweep"))


def _is_past(server: Server, moment: int) -> bool:
    seconds, microseconds = server.command("TIME").split(b"\r\n")[2::2][:2]
    return int(seconds) * 1000 + int(microseconds) // 1000 > moment


def test_a_run_finds_no_member_that_is_due(upstream: Server, start_proxy: StartProxy) -> None:
    check_due(upstream, start_proxy(upstream, "--no-sweep"))


@pytest.mark.every_kind(redis=(7,), valkey=(8,))
def test_a_call_that_reads_is_run_by_a_replica(pair: tuple[Server, Proxy]) -> None:
    server, proxy = pair
    with proxy.connect() as client:
        fill(client, "one")
        with refusing(server, "read-only replica"):
            assert all(alike(reply, b":%d\r\n" % FAR) for reply in pipelined(client, [FORMS[1]] * 7))


@given(st.data())
def test_a_status_becomes_an_integer_however_it_is_cut(data: st.DataObject) -> None:
    pushes = b">2\r\n+invalidate\r\n*1\r\n$5\r\n+1\r\n+\r\n" * data.draw(st.integers(0, 2))
    first, then = data.draw(st.sampled_from([(b"+12\r\n", b":12\r\n"), (b"-ERR +1\r\n", b"-ERR +1\r\n")]))
    behind = b"+1\r\n"
    stream = pushes + first + behind
    integer, passed = Integer(), b""
    for piece in data.draw(cuts(stream)):
        if integer.done:
            passed += piece
            continue
        kept, rest = integer.receive(piece)
        passed += kept + rest
    assert passed == pushes + then + behind

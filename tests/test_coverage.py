"""Which keys are covered, how prefixes are chosen, and when the next deadline is (proxy/coverage/)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.coverage.alarm import Alarm
from proxy.coverage.coverage import Coverage, covers_any
from proxy.coverage.order import SlotOrder
from proxy.coverage.prefixes import LONGEST, MOST, merged, prefix_of


def trusted() -> Coverage:
    coverage = Coverage()
    coverage.loaded = True
    coverage.see()
    assert not coverage.blind
    return coverage


# How a prefix is chosen.


@pytest.mark.parametrize(
    ("key", "prefix"),
    [
        (b"cart:123", b"cart:"), (b"cart:abc", b"cart:"), (b"bull:queue:meta", b"bull:queue:"),
        (b"session:9f2c:devices", b"session:"), (b"online", b"online"), (b"online7", b"online"),
        (b"a.b-c_d|7", b"a.b-c_d|"), (b"{user1}:cart", b"{user1}:cart"), (b"{users}:7", b"{users}:"),
        (b":x", b":x"), (b"::7", b"::7"), (b"7", b"7"), (b"\0\xff", b"\0\xff"), (b"", b""),
        (b"token:" + b"aGVsbG8gd29ybGQh" + b":set", b"token:"),
    ],
)  # fmt: skip
def test_a_prefix_ends_before_what_looks_like_an_identifier(key: bytes, prefix: bytes) -> None:
    assert prefix_of(key) == prefix


@given(st.binary(max_size=80))
def test_a_prefix_begins_its_key_and_says_something(key: bytes) -> None:
    prefix = prefix_of(key)
    assert key.startswith(prefix)
    assert prefix or not key  # no key makes everything covered
    assert len(prefix) <= LONGEST


@given(st.sets(st.binary(min_size=1, max_size=6), min_size=2, max_size=12))
def test_those_are_merged_that_begin_alike_for_longest(prefixes: set[bytes]) -> None:
    one, other, common = merged(prefixes)
    assert one != other
    assert one.startswith(common)
    assert other.startswith(common)
    assert {one, other} <= prefixes


def test_prefixes_can_be_covered_before_any_key() -> None:
    coverage = trusted()
    assert coverage.want([b"cart:", b"session:"]) == [b"=cart:", b"=session:"]
    assert coverage.among([b"cart:1", b"session:1", b"user:1"]) == [b"cart:1", b"session:1"]
    coverage.confirm([b"=cart:"])
    assert coverage.want([b"cart:", b"session:"]) == [b"=session:"]
    coverage.confirm([b"=session:"])
    assert coverage.want([b"cart:", b"session:"]) == []
    assert coverage.unconfirmed([b"cart:1"]) == []


def test_what_another_proxy_announces_too_is_not_a_connections_own() -> None:
    """Nor have its uploads under it been looked at: they are to be cut off."""
    told: list[bytes] = []
    coverage, mine = trusted(), object()
    coverage.on_covered = told.extend
    assert coverage.begin([b"cart:1"], mine, queued=True) == [b"=cart:"]
    assert not coverage.others_cover([b"cart:1"], mine)
    assert told == []
    coverage.hear([b"=cart:"])
    assert coverage.others_cover([b"cart:1"], mine)
    assert told == [b"=cart:"]
    coverage.hear([b"=cart:"])
    coverage.confirm([b"=cart:"])
    coverage.hear([b"=cart:"])
    assert told == [b"=cart:"]


@pytest.mark.parametrize(
    "names",
    [
        [f"{letter * 10}{number}:" for number in range(40) for letter in "abcdefghij"],
        [f"{number}" for number in range(1000)],
        [f"{number:b}:" for number in range(1000)],
        [chr(number) for number in range(256, 600)],
    ],
    ids=["groups", "numbers", "bits", "letters"],
)
def test_there_are_no_more_prefixes_than_can_be_looked_for(names: list[str]) -> None:
    coverage, mine = trusted(), object()
    keys = [f"{name.encode().hex() if name.isalpha() else name}x:1".encode() for name in names]
    for key in keys:
        if entries := coverage.begin([key], mine):
            assert len(coverage.entries) <= MOST + len(entries)
            coverage.confirm(entries)
        assert coverage.unconfirmed([key]) == []
        assert len(coverage) <= MOST
    assert coverage.among(keys) == keys
    assert coverage.unconfirmed(keys) == []
    assert not any(coverage.others_cover([key], mine) for key in keys)


# Which keys are covered.

keys = st.lists(st.sampled_from([b"", b"a", b"ab", b"abc", b"b:1", b"b:2", b"c:x:1", b"\n", b"\xff\0"]), max_size=6)


@given(keys, keys)
def test_covered_is_what_begins_so(covered: list[bytes], asked: list[bytes]) -> None:
    coverage = trusted()
    coverage.learn(covered)

    def slowly(key: bytes) -> bool:
        return any(key == entry[1:] or (entry[:1] == b"=" and key.startswith(entry[1:])) for entry in coverage.entries)

    assert all(map(coverage.covers, covered))
    assert coverage.among(asked) == [key for key in dict.fromkeys(asked) if slowly(key)]
    assert coverage.touches([[key] for key in asked]) == any(map(slowly, asked))
    for key in asked:
        assert coverage.covers(key) == coverage.is_certain(key) == slowly(key)
        chunk = b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key)
        assert coverage.search(chunk) or not slowly(key)
        assert covers_any(coverage.entries, [key]) == slowly(key)


def test_the_empty_key_covers_itself_alone() -> None:
    coverage = trusted()
    coverage.learn([b""])
    assert coverage.covers(b"")
    assert not coverage.covers(b"a")


def test_without_trust_every_key_is_covered() -> None:
    coverage = Coverage()
    assert coverage.covers(b"a")
    assert coverage.among([b"a", b"b", b"a"]) == [b"a", b"b"]
    assert coverage.touches([])
    assert not coverage.is_certain(b"a")


def test_no_more_than_so_many_are_looked_for() -> None:
    coverage = trusted()
    names = [f"{letter}{other}{third}:1".encode() for letter in "abcdefgh" for other in "abcd" for third in "abcd"]
    for name in names:
        coverage.confirm(coverage.begin([name], object()))
    assert all(map(coverage.covers, names))
    assert len([entry for entry in coverage.entries if entry[:1] == b"="]) <= 2 * MOST
    assert not coverage.covers(b"z:1")


# First deadlines.


def test_a_first_deadline_waits_until_all_know() -> None:
    coverage, one = trusted(), object()
    assert coverage.unconfirmed([b"cart:1"]) == [b"cart:1"]
    assert coverage.begin([b"cart:1"], one) == [b"=cart:"]
    assert coverage.covers(b"cart:2")  # from here on what this proxy sends is looked at
    assert coverage.unconfirmed([b"cart:2"]) == [b"cart:2"]
    coverage.confirm([b"=cart:"])
    assert coverage.unconfirmed([b"cart:2", b"other"]) == [b"other"]
    assert coverage.begin([b"cart:3"], one) == []


def test_what_others_have_announced_is_covered_and_not_confirmed() -> None:
    coverage = trusted()
    heard: list[bytes] = []
    coverage.on_covered = heard.extend
    coverage.add([b"=cart:", b"!", b"nonsense", b""])
    assert heard == [b"=cart:", b"!"]
    assert coverage.covers(b"cart:1")
    assert coverage.unconfirmed([b"cart:1"]) == [b"cart:1"]
    assert coverage.begin([b"cart:1"], object()) == [b"=cart:"]


def test_who_has_covered_a_key_is_known_until_another_does() -> None:
    coverage, one, two = trusted(), object(), object()
    coverage.begin([b"cart:1"], one, queued=True)
    assert not coverage.others_cover([b"cart:2"], one)
    assert coverage.others_cover([b"cart:2"], two)
    coverage.begin([b"cart:3"], two, queued=True)  # nothing has been set by it
    assert not coverage.others_cover([b"cart:2"], one)
    coverage.begin([b"cart:3"], two)
    assert coverage.others_cover([b"cart:2"], one)


# When the next deadline is.


def test_the_alarm_rings_for_an_earlier_deadline() -> None:
    alarm, rung, first = Alarm(), list[None](), list[None]()
    alarm.on_first = lambda: first.append(None)
    alarm.end_watch(math.inf, 0.0, lambda: rung.append(None))
    assert alarm.is_idle
    alarm.set(1_000.0)
    assert (len(rung), len(first), alarm.is_idle) == (1, 1, False)
    alarm.set(2_000.0)
    assert (len(rung), len(first)) == (1, 1)
    alarm.set(500.0)
    assert (len(rung), alarm.next_deadline) == (2, 500.0)
    alarm.begin_watch()
    alarm.set(100.0)  # its request may not have run when the server was asked
    alarm.end_watch(math.inf, 0.0, lambda: rung.append(None))
    assert (len(rung), alarm.next_deadline, alarm.is_idle) == (2, 100.0, False)
    alarm.end_watch(math.inf, 3_000.0, lambda: rung.append(None))
    assert (alarm.next_deadline, alarm.is_idle) == (math.inf, False)  # all have passed
    alarm.ring()
    assert len(rung) == 3


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([1.0, 2.0, 3.0, math.inf]))))
def test_slots_come_in_the_order_of_their_deadlines(steps: list[tuple[int, float]]) -> None:
    order, slots = SlotOrder(), dict[int, float]()
    for number, deadline in steps:
        order.put(number, deadline)
        slots[number] = deadline
        assert order.earliest == min(slots.values(), default=math.inf)
        assert order.due(2.0, 9) == sorted(
            (slot for slot, deadline in slots.items() if deadline <= 2.0), key=lambda slot: (slots[slot], slot)
        )
    order.clear()
    assert order.earliest == math.inf

"""The beginnings of known keys: a chunk that has none of them names no known key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from proxy.session.beginnings import MOST, SHORTEST, Beginnings
from proxy.session.known import KnownKeys


def beginnings(*keys: bytes) -> tuple[bytes, ...]:
    found = Beginnings()
    for key in keys:
        found.add(key)
    return found.found


def test_keys_of_few_kinds_share_few_beginnings() -> None:
    keys = [b"%b:%d" % (kind, number) for number in range(7, 300) for kind in (b"cart", b"session", b"{t}presence")]
    assert set(beginnings(*keys)) == {b"cart:", b"session:", b"{t}presence:"}


def test_keys_of_many_kinds_have_nothing_in_common() -> None:
    assert beginnings(*(b"%d" % number for number in range(MOST))) == tuple(b"%d" % number for number in range(MOST))
    assert beginnings(*(b"%d" % number for number in range(MOST + 1))) == (b"",)


def test_a_beginning_is_not_too_short_to_tell_anything() -> None:
    assert beginnings(b"session", b"settings") == (b"session", b"settings")
    assert SHORTEST == 3
    assert beginnings(b"a", b"aaa") == (b"a",)


@given(st.lists(st.text("ab:", max_size=8).map(str.encode) | st.binary(max_size=5), max_size=30))
def test_every_key_begins_with_one_of_them(keys: list[bytes]) -> None:
    found = beginnings(*keys)
    assert len(found) <= MOST
    for key in keys:
        assert key.startswith(found)


def test_they_follow_the_known_keys() -> None:
    known = KnownKeys()
    known.learn(b"cart:1", 5.0, 0)
    known.mark(b"session:1", 5.0, 0.0)
    together = known.beginnings.found
    assert together == (b"cart:1", b"session:1")
    known.stale_marks(1e9)
    known.learn(b"session:1", None, 0)
    assert known.beginnings.found == together
    known.learn(b"cart:1", None, 0)
    assert not known.beginnings.found

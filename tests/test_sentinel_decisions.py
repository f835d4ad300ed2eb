"""Which server is followed, by what Sentinels say; and what addresses may look like. Without servers."""

from __future__ import annotations

import asyncio

import pytest
from redis.exceptions import NoPermissionError, ResponseError

from proxy.upstream.address import Address, UpstreamURL, parse_upstream
from proxy.upstream.sentinel import (
    GRACE_SECONDS,
    STEADY_SECONDS,
    Council,
    Report,
    SentinelError,
    read_report,
)
from proxy.upstream.stay import MovedError, Stay

A, B, C = (Address("10.0.0.1", port) for port in (1, 2, 3))
ONE, TWO, THREE = (Address(f"sentinel-{number}", 26379) for number in (1, 2, 3))


def council(*reports: tuple[Address, Address, int | None], primary: Address | None = None, at: float = 0.0) -> Council:
    made = Council((ONE, TWO, THREE))
    if primary is not None:
        for sentinel in (ONE, TWO, THREE):
            made.report(sentinel, Report(primary, 5), 0.0)
        assert made.decide(0.0) == primary
    for sentinel, address, epoch in reports:
        made.report(sentinel, Report(address, epoch), at)
    return made


def test_the_first_answer_alone_decides_only_after_a_moment() -> None:
    made = council((ONE, A, 1))
    assert made.decide(0.0) is None
    made.report(TWO, Report(B, 2), 0.1)
    assert made.decide(0.2) is None
    assert made.decide(GRACE_SECONDS) == B


def test_when_all_have_answered_or_failed_nobody_is_waited_for() -> None:
    made = council((ONE, A, 1), (TWO, A, 1))
    assert made.decide(0.0) is None
    made.fail(THREE, "gone")
    assert made.decide(0.0) == A


def test_one_that_knows_of_a_later_failover_is_followed() -> None:
    made = council((TWO, B, 6), primary=A)
    assert made.decide(1.0) == B
    # The others hear of it later; what they say until then leads nobody back.
    made.report(ONE, Report(A, 5), 1.1)
    made.report(THREE, Report(A, 5), 1.1)
    assert made.decide(1.2) == B


@pytest.mark.parametrize("epoch", [3, 5, None])
def test_one_that_was_cut_off_is_not_followed(epoch: int | None) -> None:
    made = council((THREE, B, epoch), primary=A)
    assert made.decide(1.0) == A
    made.fail(ONE, "gone")
    made.fail(TWO, "gone")
    assert made.decide(2.0) == A


@pytest.mark.parametrize("epoch", [0, 5, None])
def test_a_majority_is_followed_whatever_it_counts(epoch: int | None) -> None:
    """The Sentinels have been set up anew, or may not tell what they count."""
    made = council((ONE, B, epoch), (TWO, B, epoch), primary=A)
    made.fail(THREE, "gone")
    assert made.decide(1.0) == B


def test_a_failover_that_only_a_dead_sentinel_knew_of_is_taken_back_by_the_others() -> None:
    made = council((ONE, B, 6), primary=A)
    assert made.decide(1.0) == B
    made.fail(ONE, "gone")
    assert made.decide(1.0) == A


def test_while_none_answers_the_last_one_stays() -> None:
    made = council(primary=A)
    for sentinel in (ONE, TWO, THREE):
        made.fail(sentinel, "gone")
    assert made.decide(1.0) == A
    assert made.missing is None


def go_on(made: Council, said: dict[Address, Report], begin: float, seconds: float) -> list[Address | None]:
    """Have Sentinels say the same every second; return where the primary was after each."""
    decided = []
    for second in range(int(seconds) + 1):
        for sentinel, report in said.items():
            made.report(sentinel, report, begin + second)
            decided.append(made.decide(begin + second))
    return decided


def test_a_majority_that_goes_on_naming_another_counts_against_the_highest_epoch() -> None:
    """Two Sentinels have been set up anew."""
    made = council(primary=A)
    said = {ONE: Report(B, 0), TWO: Report(B, 0), THREE: Report(A, 5)}
    assert set(go_on(made, said, 1.0, STEADY_SECONDS - 1)) == {A}
    assert not made.are_at_odds(STEADY_SECONDS)
    assert go_on(made, said, 1.0 + STEADY_SECONDS, 0)[-1] == B
    assert made.are_at_odds(1.0 + STEADY_SECONDS)
    assert made.reason == "most Sentinels go on naming it, and not 10.0.0.1:1"
    # The one that was contradicted leads nobody back, whatever becomes of the others, until it names the same.
    made.fail(ONE, "gone")
    assert set(go_on(made, {TWO: Report(B, 0), THREE: Report(A, 6)}, 20.0, 20)) == {B}
    made.fail(TWO, "gone")
    assert set(go_on(made, {THREE: Report(A, 7)}, 50.0, 20)) == {B}
    assert set(go_on(made, {THREE: Report(B, 7)}, 80.0, 1)) == {B}
    assert go_on(made, {THREE: Report(C, 8)}, 90.0, 0) == [C]


def test_a_failover_is_followed_while_a_sentinel_disagrees_for_ever() -> None:
    made = council(primary=A)
    foreign = Report(C, 40)
    assert go_on(made, {THREE: foreign}, 1.0, 0) == [C]
    assert go_on(made, {ONE: Report(A, 5), TWO: Report(A, 5), THREE: foreign}, 2.0, 20)[-1] == A
    assert go_on(made, {ONE: Report(B, 6)}, 30.0, 0) == [B]
    assert set(go_on(made, {ONE: Report(B, 6), TWO: Report(A, 5), THREE: foreign}, 31.0, 5)) == {B}
    assert set(go_on(made, {ONE: Report(B, 6), TWO: Report(B, 6), THREE: foreign}, 37.0, 20)) == {B}


def test_a_majority_against_the_highest_epoch_is_waited_for_at_the_start() -> None:
    """Served by none rather than by one of somebody else's."""
    made = council()
    said = {ONE: Report(A, 1), TWO: Report(A, 1), THREE: Report(B, 40)}
    assert set(go_on(made, said, 0.0, STEADY_SECONDS - 1)) == {None}
    assert made.missing == (
        "the Sentinels disagree: sentinel-1:26379 names 10.0.0.1:1 (epoch 1), sentinel-2:26379 names 10.0.0.1:1"
        " (epoch 1), sentinel-3:26379 names 10.0.0.1:2 (epoch 40)"
    )
    assert set(go_on(made, said, STEADY_SECONDS, 20)[2:]) == {A}
    # A failover of which the others hear a moment later.
    made = council()
    assert set(go_on(made, {ONE: Report(A, 1), TWO: Report(A, 1), THREE: Report(B, 2)}, 0.0, 2)) == {None}
    assert go_on(made, {TWO: Report(B, 2)}, 3.0, 0) == [B]


def test_what_was_said_before_the_proxy_stood_still_does_not_count_as_going_on() -> None:
    made = council(primary=A)
    assert go_on(made, {THREE: Report(B, 6), ONE: Report(A, 5), TWO: Report(A, 5)}, 1.0, 2)[-1] == B
    # Answers to questions of before are read.
    for sentinel, report in ((ONE, Report(A, 5)), (TWO, Report(A, 5)), (THREE, Report(B, 6))):
        made.report(sentinel, report, 4.0)
        assert made.decide(100.0) == B
    assert set(go_on(made, dict.fromkeys((ONE, TWO, THREE), Report(B, 6)), 100.0, 20)) == {B}


def test_while_the_majority_is_none_for_a_moment_the_time_begins_anew() -> None:
    made = council(primary=A)
    said = {ONE: Report(B, 0), TWO: Report(B, 0), THREE: Report(A, 5)}
    go_on(made, said, 1.0, STEADY_SECONDS - 2)
    made.fail(TWO, "gone")
    assert set(go_on(made, said, STEADY_SECONDS, STEADY_SECONDS - 1)) == {A}
    assert go_on(made, said, 2 * STEADY_SECONDS, 0)[-1] == B


def test_sentinels_disagree_only_when_it_lasts() -> None:
    made = council(primary=A)
    assert not made.are_at_odds(100.0)
    made.report(ONE, Report(B, 6), 100.0)
    made.decide(100.0)
    assert not made.are_at_odds(100.0 + STEADY_SECONDS - 1)
    assert made.are_at_odds(100.0 + STEADY_SECONDS)
    for sentinel in (TWO, THREE):
        made.report(sentinel, Report(B, 6), 112.0)
    made.decide(112.0)
    assert not made.are_at_odds(200.0)


def test_what_is_wrong_with_each_is_told() -> None:
    made = council()
    made.fail(ONE, "connection refused")
    made.fail(TWO, "it is not a Sentinel")
    assert made.missing == (
        "no Sentinel names the primary: sentinel-1:26379: connection refused; sentinel-2:26379: it is not a Sentinel"
    )


# What comes by the wire.


def test_a_report() -> None:
    about = {b"name": b"mymaster", b"config-epoch": b"17"}
    flat = [part for pair in about.items() for part in pair]
    for first in (about, flat):
        assert read_report(first, [b"10.0.0.1", b"1"], "mymaster") == Report(A, 17)
    refused = NoPermissionError("User x has no permissions to run the 'sentinel|master' command")
    assert read_report(refused, [b"10.0.0.1", b"1"], "mymaster") == Report(A, None)
    assert read_report({b"config-epoch": b"-1"}, [b"name.example", b"1"], "x") == Report(
        Address("name.example", 1), None
    )


@pytest.mark.parametrize(
    ("address", "said"),
    [
        (None, "it knows no primary with the name 'mymaster'"),
        (ResponseError("unknown command 'SENTINEL', with args beginning with"), "it is not a Sentinel"),
        (ResponseError("IDONTKNOW what\nthis is"), "it answers: IDONTKNOW what this is"),
        ([], "does not report"),
        ([b"10.0.0.1"], "does not report"),
        ([b"", b"6379"], "does not report"),
        ([b"10.0.0.1", b"0"], "does not report"),
        ([b"10.0.0.1", b"65536"], "does not report"),
        ([b"10.0.0.1", b"99999999999999999999"], "does not report"),
        ([b"10.0.0.1\r\n", b"1"], "does not report"),
        (["\xff".encode("latin-1"), b"1"], "does not report"),
        ([1, 2], "does not report"),
        (b"10.0.0.1:1", "does not report"),
    ],
)
def test_a_report_that_is_none(address: object, said: str) -> None:
    with pytest.raises(SentinelError, match=said):
        read_report({}, address, "mymaster")


@pytest.mark.parametrize(
    "about",
    [[[b"config-epoch"], b"5", {}, b"1"], {b"config-epoch": b"9" * 5000}, [b"config-epoch"], b"config-epoch", None],
)
def test_an_epoch_that_is_none(about: object) -> None:
    assert read_report(about, [b"10.0.0.1", b"1"], "mymaster") == Report(A, None)


# Addresses.


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("redis+sentinel://h1,h2:5,[::1],[::2]:7/mymaster", UpstreamURL(
            sentinels=(Address("h1", 26379), Address("h2", 5), Address("::1", 26379), Address("::2", 7)),
            primary="mymaster",
        )),
        ("rediss+sentinel://u%40:p%2Fw@h/m%20m/3", UpstreamURL(
            tls=True, user="u@", password="p/w", database=3, sentinels=(Address("h", 26379),), primary="m m"
        )),
        ("REDIS+SENTINEL://:p@h,h/m/", UpstreamURL(password="p", sentinels=(Address("h", 26379),), primary="m")),
        ("redis://u@h:1/2", UpstreamURL(user="u", database=2, address=Address("h", 1))),
        ("unix:///a%20b", UpstreamURL(path="/a b")),
    ],
)  # fmt: skip
def test_an_address(url: str, found: UpstreamURL) -> None:
    assert parse_upstream(url) == found


def test_an_address_is_shown_without_what_is_secret() -> None:
    shown = str(parse_upstream("rediss+sentinel://user:secret@h1,[::1]:7/mymaster/3"))
    assert shown == "rediss+sentinel://h1:26379,[::1]:7/mymaster"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("redis+sentinel://h1,h2", "lacks the primary's name, as the Sentinels know it"),
        ("redis+sentinel:///mymaster", "no valid hosts and ports"),
        ("redis+sentinel://h1,,h2/m", "no valid hosts and ports"),
        ("redis+sentinel://h1:0/m", "no valid hosts and ports"),
        ("redis+sentinel://h1:65536/m", "no valid hosts and ports"),
        ("redis+sentinel://sec/ret@h1/m", "no valid|call the primary|must be a number"),
        ("redis+sentinel://h1/m/zero", "the database"),
        ("redis+sentinel://h1/m?sentinel_password=secret", "has a \\?"),
        ("redis-sentinel://h1/m", "must begin with"),
    ],
)
def test_an_address_that_is_none(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as told:
        parse_upstream(url)
    assert "secret" not in str(told.value)


# What is held to a stay.


def test_work_ends_with_the_stay_that_it_is_held_to() -> None:
    async def main() -> None:
        stay = Stay(A)
        assert await stay.hold(asyncio.sleep(0, "done")) == "done"
        working = asyncio.create_task(stay.hold(asyncio.sleep(60)))
        resting = asyncio.create_task(stay.rest(60))
        await asyncio.sleep(0)
        stay.end("it has moved")
        with pytest.raises(MovedError, match="it has moved"):
            await asyncio.wait_for(working, 5)
        await asyncio.wait_for(resting, 5)
        await stay.rest(60)
        with pytest.raises(MovedError):
            await stay.hold(asyncio.sleep(0))

    asyncio.run(main())


def test_an_error_of_the_work_is_passed_on() -> None:
    async def fail() -> None:
        raise OSError("as it is")

    async def main() -> None:
        with pytest.raises(OSError, match="as it is"):
            await Stay(A).hold(fail())

    asyncio.run(main())

"""What the proxy does in the background keeps going, keeps its bounds, and leaves the server to others."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import hiredis
import psutil
import pytest

from proxy.scripts.calls import script
from proxy.scripts.naming import Names
from tests.conftest import Start, StartProxy, StartServer
from tests.raw import request
from tests.relay import Relay
from tests.servers import Proxy, Server, halt, until
from tests.test_lives import PREFIX, Talk, as_stranger, clock, knows, talk, wait_past

__all__ = ["talk"]  # a fixture

TalkTo = Callable[..., Talk]


LOST = "no control connection to the upstream"
BACK = "control connection to the upstream is back"


def evaluations(beside: Talk) -> tuple[int, int]:
    """How many EVALs the server has run, and how many µs that took."""
    found = re.search(rb"cmdstat_eval:calls=(\d+),usec=(\d+)", beside.say("INFO commandstats"))
    return (int(found[1]), int(found[2])) if found else (0, 0)


def add_to_index(beside: Talk, deadline: float | str) -> None:
    """Have 2,500 keys in the index, under 25 prefixes."""
    for name in range(0, 2500, 500):
        keys = (f"{'abcde'[key // 500]}{'abcde'[key % 5]}:{key}" for key in range(name, name + 500))
        beside("ZADD", PREFIX + b"index", *(word for key in keys for word in (str(deadline), key)))


def check_ties(server: Server, start: Start, talk: TalkTo) -> None:
    """More keys with one and the same deadline than are read at once."""
    beside = talk(server)
    add_to_index(beside, 10**13)
    loaded = start().process.line(lambda line: "prefixes loaded" in line, 4)
    assert '"prefixes": 25' in loaded


def test_who_does_not_sweep_seldom_looks_at_what_is_due(
    kind: str, start_server: StartServer, start_proxy: StartProxy, talk: TalkTo
) -> None:
    server = start_server(kind)  # at which no other test's proxy looks
    client, beside = talk(start_proxy(server, "--no-sweep")), talk(server)
    client.say("SADD set m")
    client.say("PEXPIREMEMBER set m 10")
    wait_past(beside, int(clock(beside)) + 100)
    before, began = evaluations(beside)[0], time.monotonic()
    time.sleep(2)  # for which the looks are counted
    assert evaluations(beside)[0] - before <= 6 * (time.monotonic() - began)


def check_changes_wake_the_passes(server: Server, proxy: Proxy, talk: TalkTo, pause: float = 10) -> None:
    """While nothing changes no script runs; what somebody does past the proxy is seen in the next round.

    `pause`: the longer pause between two rounds, in seconds.
    """
    client, beside = talk(proxy), talk(server)
    for key in range(100):
        client.say(f"SADD k{key} m other")
        client.say(f"EXPIREMEMBER k{key} m 1000")

    def rests(seconds: float) -> bool:
        before, began = evaluations(beside)[0], time.monotonic()
        while time.monotonic() - began < seconds:
            if evaluations(beside)[0] != before:
                return False
            time.sleep(0.05)
        return True

    until(lambda: rests(pause + 2), max(15, 6 * pause), "an end of the rounds")
    beside("ZREM", PREFIX + b"index", "k7")
    until(lambda: beside("ZSCORE", PREFIX + b"index", "k7") is not None, max(5, 2 * pause), "the entry in the index")
    beside.say("SREM k9 m")
    until(lambda: float(beside("ZSCORE", PREFIX + b"k:{k9}", "m")) < 0, max(5, 2 * pause), "the end of the leftover")


def test_passes_rest_until_something_changes(server: Server, start_proxy: StartProxy, talk: TalkTo) -> None:
    check_changes_wake_the_passes(server, start_proxy(server), talk)


def test_a_pass_looks_at_many_keys_at_a_time(
    server: Server, start: Start, start_proxy: StartProxy, talk: TalkTo
) -> None:
    """Among them some with more deadlines than one look may take in."""
    beside, idle = talk(server), start()
    client = talk(idle)
    for key in range(200):
        members = [b"%d" % number for number in range(700 if key % 100 == 7 else 2)]
        client("SADD", b"k%d" % key, "stays", *members)
        client.raw.send(b"".join(request(b"EXPIREMEMBER", b"k%d" % key, member, b"1000") for member in members))
        client.raw.replies(len(members))
        beside("SREM", b"k%d" % key, *members)
    idle.stop()
    before = evaluations(beside)[0]
    started = start_proxy(server, "--leftovers-rate", "100000")

    def voids() -> int:
        left = [beside("ZCOUNT", PREFIX + b"k:{k%d}" % key, 0, "+inf") for key in range(200)]
        return sum(left)

    until(lambda: voids() == 0, 20, "the end of all leftovers")
    assert evaluations(beside)[0] - before < 100
    assert not started.process.ended


def walks(beside: Talk) -> tuple[int, int]:
    """How many pages of lists the server has read since it was asked last, and for how many elements it has looked."""
    text = beside.say("INFO commandstats")
    counts = [re.search(rb"cmdstat_%b:calls=(\d+)" % name, text) for name in (b"lrange", b"lpos")]
    beside.say("CONFIG RESETSTAT")
    pages, searches = (int(found[1]) if found else 0 for found in counts)
    return pages, searches


def put_into_a_list(beside: Talk, count: int, deadlines: int) -> None:
    """Add elements to the list `l`, of which the last have deadlines."""
    names = [b"%d" % number for number in range(count)]
    for first in range(0, count, 50_000):
        beside("RPUSH", "l", *names[first : first + 50_000])
    if deadlines:
        beside("ZADD", PREFIX + b"k:{l}", *(word for name in names[-deadlines:] for word in (b"4000000000000", name)))


def look_through(beside: Talk, look: bytes, change: Callable[[int], object] = lambda _: None) -> tuple[int, int]:
    """Have the background pass look at the list `l`, something changed between its scripts; return the most walks."""
    shadow, cursor, most, number = PREFIX + b"k:{l}", b"0", (0, 0), 0
    while number == 0 or cursor != b"0":
        walks(beside)
        [[cursor, *_]] = beside("EVAL", look, 3, PREFIX + b"index", "l", shadow, 0, 500, 60_000, "", cursor)
        pages, searches = walks(beside)
        most = max(most[0], pages), max(most[1], searches)
        change(number)
        number += 1
        assert number < 3_000
    return most


def is_left(beside: Talk, element: bytes) -> bool:
    return float(beside("ZSCORE", PREFIX + b"k:{l}", element)) > 0


def check_a_pass_over_a_long_list(beside: Talk, look: bytes) -> None:
    """Each of its scripts reads a part of the list, or looks for few elements; what is there keeps its deadline."""
    put_into_a_list(beside, 100_000, 1_000)
    beside("RPOP", "l", 30)
    pages, searches = look_through(beside, look)
    assert pages <= 10
    assert searches <= 3
    assert [is_left(beside, b"%d" % number) for number in range(99_960, 100_000)] == [True] * 10 + [False] * 30


def test_a_pass_reads_a_part_of_a_long_list_at_a_time(server: Server, talk: TalkTo) -> None:
    check_a_pass_over_a_long_list(talk(server), script("void_pages"))


def check_a_list_that_changes_under_a_pass(beside: Talk, look: bytes) -> None:
    """An element goes from the part that is to be looked at to one that has been."""
    put_into_a_list(beside, 50_000, 5)
    look_through(beside, look, lambda _: [beside.say("RPOPLPUSH l l") for _ in range(2)])
    assert all(is_left(beside, b"%d" % number) for number in range(49_995, 50_000))


def test_a_pass_sees_elements_that_move(server: Server, talk: TalkTo) -> None:
    check_a_list_that_changes_under_a_pass(talk(server), script("void_pages"))


def test_a_pass_looks_through_a_short_list_once(server: Server, talk: TalkTo) -> None:
    beside = talk(server)
    put_into_a_list(beside, 5_000, 400)
    beside("RPOP", "l", 100)
    pages, searches = look_through(beside, script("void_pages"))
    assert pages <= 10
    assert searches == 0
    assert [is_left(beside, b"%d" % number) for number in (4_600, 4_899, 4_900, 4_999)] == [True, True, False, False]


@pytest.mark.parametrize("right", ["lrange", "llen"])
def test_a_pass_without_the_right_to_read_a_list_looks_for_few_at_a_time(
    server: Server, talk: TalkTo, right: str
) -> None:
    beside = talk(server)
    put_into_a_list(beside, 50_000, 10)
    beside("RPOP", "l", 5)
    beside.say(f"ACL SETUSER default -{right}")
    try:
        _, searches = look_through(beside, script("void_pages"))
    finally:
        beside.say(f"ACL SETUSER default +{right}")
    assert searches <= 6
    assert [is_left(beside, b"%d" % number) for number in (49_990, 49_994, 49_995, 49_999)] == [
        True,
        True,
        False,
        False,
    ]


def test_a_write_of_unknown_members_reads_a_list_once(server: Server, talk: TalkTo) -> None:
    """What a client's request does so for is one script: it reads the list once."""
    beside = talk(server)
    put_into_a_list(beside, 20_000, 1_000)
    beside("RPOP", "l", 500)
    walks(beside)
    beside("EVAL", script("void_page"), 3, "l", PREFIX + b"k:{l}", PREFIX + b"index", "", 0, 2_000)
    pages, searches = walks(beside)
    assert pages <= 20
    assert searches == 0
    assert is_left(beside, b"19499")
    assert not is_left(beside, b"19500")


def test_a_write_of_unknown_members_without_the_right_to_read_the_list(server: Server, talk: TalkTo) -> None:
    """All that are gone are void behind it all the same."""
    beside = talk(server)
    put_into_a_list(beside, 3_000, 100)
    beside("RPOP", "l", 50)
    beside.say("ACL SETUSER default -lrange -llen")
    try:
        beside("EVAL", script("void_page"), 3, "l", PREFIX + b"k:{l}", PREFIX + b"index", "", 0, 1_000)
    finally:
        beside.say("ACL SETUSER default +lrange +llen")
    left = [is_left(beside, b"%d" % number) for number in range(2_900, 3_000)]
    assert left == [True] * 50 + [False] * 50


def test_a_scan_without_the_right_to_read_the_list_gives_few_members(
    server: Server, start: Start, talk: TalkTo
) -> None:
    client, beside = talk(start()), talk(server)
    put_into_a_list(client, 1_000, 0)
    for number in range(100):
        assert client("EXPIREMEMBERAT", "l", number, 4_000_000_000) == 1
    beside.say("ACL SETUSER default -lrange -llen")
    found, cursor, calls = [], b"0", 0
    try:
        while calls == 0 or cursor != b"0":
            cursor, some = client("EXPIREMEMBERSCAN", "l", cursor, "COUNT", 1_000)
            found += some[::2]
            calls += 1
    finally:
        beside.say("ACL SETUSER default +lrange +llen")
    assert sorted(found) == sorted(b"%d" % number for number in range(100))
    assert calls > 40


def test_a_proxy_beside_which_nothing_happens_wakes_seldom(server: Server, start: Start, talk: TalkTo) -> None:
    """Its background tasks wake together, four times a second, each time once more for what the server answers."""
    proxies = [start() for _ in range(2)]
    clients = [talk(proxy) for proxy in proxies]
    clients[0].say("SADD k m")
    clients[0].say("EXPIREMEMBER k m 1000")
    assert all(client.say("SCARD k") == 1 for client in clients)
    for proxy in proxies:
        process = psutil.Process(proxy.pid)

        def wakes(process: psutil.Process = process) -> float:
            before, began = process.num_ctx_switches().voluntary, time.monotonic()
            time.sleep(3)  # for which they are counted
            return float((process.num_ctx_switches().voluntary - before) / (time.monotonic() - began))

        until(lambda: wakes() < 16, 20, "a rest")
    before = evaluations(talk(server))[0]
    time.sleep(1)  # in which nothing is asked by a script
    assert evaluations(talk(server))[0] == before


def check_sweeps_leave_the_server_to_others(server: Server, start: Start, talk: TalkTo) -> None:
    """Elements of many lists, each of which the server has to look for, are due at once.

    A sweep is followed by as long a pause, so by the server's own account at most half of the time goes into sweeps,
    however slow the machine; without pauses it is nearly all.
    """
    beside, client = talk(server), talk(start())
    count = 100
    for key in range(count):
        beside("RPUSH", key, *(b"%040d" % number for number in range(4_000)))
    deadline = clock(beside) + 2_000
    for key in range(count):
        entries = (word for number in range(3_910, 4_000) for word in (deadline, b"%040d" % number))
        beside("ZADD", PREFIX + b"k:{%d}" % key, *entries)
        beside("ZADD", PREFIX + b"index", deadline, key)
    assert clock(beside) < deadline, "too slow to tell"
    assert client.say("TTL 0") == -1
    wait_past(beside, deadline - 20)
    first = last = (0.0, 0)
    # A second of it tells the share; all of it takes a minute on a busy machine.
    while last[0] - first[0] < 1 and (left := beside("ZCARD", PREFIX + b"index")) > 5:
        if left < count:
            asked, busy = time.monotonic(), evaluations(beside)[1]
            first = first if first[0] else (asked, busy)
            last = (time.monotonic(), busy)
        time.sleep(0.001)
    assert last[0] - first[0] > 0.05, "too fast to tell"
    share = (last[1] - first[1]) / 1e6 / (last[0] - first[0])
    assert share < 0.65, f"{share:.2f} of the time"


def check_a_dead_control_connection_is_noticed(server: Server, start: Start, talk: TalkTo) -> None:
    """What the server sends on one connection never arrives, and nobody closes it."""
    with Relay(server.address) as relay:
        deaf = start("--upstream", relay.url, "--control-timeout", "1")
        stranger = as_stranger(talk(server), talk(deaf))
        assert not knows(stranger, "k")
        assert relay.lose(b"TRACKING") == 1
        other = talk(start())
        other.say("SADD k m")
        other.say("EXPIREMEMBER k m 1000")
        until(lambda: knows(stranger, "k"), 4, "the news")
        deaf.process.line(lambda line: LOST in line, 1)


def check_news_of_a_nearer_deadline(server: Server, start: Start, talk: TalkTo) -> None:
    """Another proxy gives a member of a known key a deadline that comes before all that are known."""
    beside, client, other = talk(server), talk(start("--no-sweep")), talk(start("--no-sweep"))
    other.say("SADD k near far")
    assert other.say("EXPIREMEMBER k far 1000") == 1
    until(lambda: client.say("TTL k far") > 0 and client.say("SCARD k") == 2)
    for _ in range(3):
        deadline = clock(beside) + 300
        assert other.say(f"PEXPIREMEMBERAT k near {deadline}") == 1
        wait_past(beside, deadline)
        assert client.say("SMEMBERS k") == [b"far"]
        other.say("SADD k near")


def check_names_are_bounded(server: Server, start: Start, talk: TalkTo) -> None:
    """Clients send names of commands that there are not, each another one."""
    proxy = start()
    client = talk(proxy)
    process = psutil.Process(proxy.pid)

    def send(names: range) -> int:
        for begin in names[::1000]:
            client.raw.send(b"".join(request(b"%060d" % name) for name in range(begin, begin + 1000)))
            client.raw.replies(1000)
        return int(process.memory_info().rss)

    before = send(range(20_000))
    grown = send(range(100_000, 200_000)) - before
    assert grown < 5 << 20, f"{grown >> 20} MB"


def test_keys_with_one_and_the_same_deadline_are_all_loaded(server: Server, start: Start, talk: TalkTo) -> None:
    check_ties(server, start, talk)


def test_sweeps_leave_the_server_to_others(server: Server, start: Start, talk: TalkTo) -> None:
    check_sweeps_leave_the_server_to_others(server, start, talk)


def test_a_dead_control_connection_is_noticed(server: Server, start: Start, talk: TalkTo) -> None:
    check_a_dead_control_connection_is_noticed(server, start, talk)


def test_a_deadline_that_has_yet_to_be_set_keeps_nobody_waiting_when_it_has_passed(
    server: Server, start: Start, talk: TalkTo
) -> None:
    """It waits in somebody's transaction: nothing is there to be removed, and to look once is enough."""
    beside, proxy = talk(server), start()
    client, other = talk(proxy), talk(proxy)
    client.say("SADD k m stays")
    client.say("MULTI")
    deadline = clock(beside) + 50
    client.say(f"PEXPIREMEMBERAT k m {deadline}")
    wait_past(beside, deadline)
    before = evaluations(beside)[0]
    for _ in range(20):
        assert other.say("SCARD k") == 2
    assert evaluations(beside)[0] - before < 60
    client.say("EXEC")
    assert other.say("SMEMBERS k") == [b"stays"]


def test_news_of_a_nearer_deadline_is_heard(server: Server, start: Start, talk: TalkTo) -> None:
    check_news_of_a_nearer_deadline(server, start, talk)


def test_names_of_commands_are_bounded(server: Server, start: Start, talk: TalkTo) -> None:
    check_names_are_bounded(server, start, talk)


def test_a_server_that_stands_still_is_noticed(server: Server, start: Start) -> None:
    proxy = start("--control-timeout", "1")
    assert server.process is not None
    halt(server.process.pid)
    try:
        proxy.process.line(lambda line: LOST in line, 4)
    finally:
        server.process.send_signal(signal.SIGCONT)
    proxy.process.line(lambda line: BACK in line, 6)


# Whatever the server answers: log it, try again, and do not spin.


def check_removes(client: Talk, beside: Talk) -> None:
    """A member goes when it is due."""

    def begun() -> bool:
        client.say("SADD due m")
        return bool(client.say("PEXPIREMEMBER due m 50") == 1)

    until(begun, 20, "a deadline")
    until(lambda: not beside.say("EXISTS due"), 20, "the removal")


def check_holds_out(proxy: Proxy, beside: Talk) -> None:
    """In a time in which it can do nothing, the proxy lives on, and asks and logs little."""
    calls, lines = evaluations(beside)[0], len(proxy.log())
    until_end = time.monotonic() + 1.5
    until(lambda: proxy.process.ended or time.monotonic() > until_end)
    assert not proxy.process.ended, proxy.process.output[-3000:]
    assert evaluations(beside)[0] - calls < 60
    assert len(proxy.log()) - lines < 20


@pytest.mark.parametrize("line", ["SET {i} text", "RPUSH {i} 1 2"], ids=["string", "list"])
def test_something_else_stands_where_the_index_was(server: Server, start: Start, talk: TalkTo, line: str) -> None:
    """Nobody is refused anything, and the proxy puts it right by itself; without the pass that heals the index."""
    index = PREFIX + b"index"
    proxy = start()
    client, beside = talk(proxy), talk(server)
    check_removes(client, beside)
    client.say("SADD k m")
    client.say("EXPIREMEMBER k m 1000")
    beside("MULTI")
    beside("DEL", index)
    beside.say(line.format(i=index.decode()))
    assert not any(isinstance(reply, hiredis.ReplyError) for reply in beside("EXEC"))
    assert client.say("EXPIREMEMBER k m 500") == 1
    assert 0 < client.say("TTL k m") <= 500
    check_holds_out(proxy, beside)
    until(lambda: beside("TYPE", index) in (b"none", b"zset"), 5, "an end of what stands there")
    check_removes(client, beside)
    assert "Traceback" not in proxy.process.output


@pytest.mark.parametrize("deadline", ["inf", "1e300", "9999999999999.5"])
def test_deadlines_that_are_no_time_are_loaded(server: Server, start: Start, talk: TalkTo, deadline: str) -> None:
    beside = talk(server)
    add_to_index(beside, deadline)
    proxy = start()
    assert '"prefixes": 25' in proxy.process.line(lambda line: "prefixes loaded" in line, 4)
    check_removes(talk(proxy), beside)


def test_no_database_has_less_than_no_keys(server: Server, start: Start, talk: TalkTo) -> None:
    """Where somebody has put keys into the index that are none."""
    beside, client = talk(server), talk(start("--no-sweep", "--leftovers-rate", "0"))
    client.say("SADD k m")
    assert client.say("EXPIREMEMBER k m 1000") == 1
    assert client.say("DBSIZE") == 1
    beside("ZADD", PREFIX + b"index", 10**13, "a", 10**13, "b", 10**13, "c")
    assert client.say("DBSIZE") == 0


def test_a_key_that_has_gone_meanwhile_is_no_reason_to_correct_the_index(server: Server) -> None:
    """The names were read a moment before: in a mass expiry many go between."""
    gone = [name for key in (b"a", b"b") for name in (key, Names(PREFIX).shadow(key))]
    with server.connect() as client:
        reply = client.command("EVAL", script("heal"), 1 + len(gone), PREFIX + b"index", *gone, 0)
        assert reply == b"*0\r\n"


def test_the_control_users_rights_are_taken_away_and_given_back(
    server: Server, start_proxy: StartProxy, talk: TalkTo
) -> None:
    beside = talk(server)
    assert beside.say("ACL SETUSER control on >secret ~* &* +@all") == b"OK"
    proxy = start_proxy(None, "--upstream", server.url.replace("//", "//control:secret@"))
    client = talk(proxy)
    check_removes(client, beside)
    client.say("SADD k m")
    client.say("EXPIREMEMBER k m 1000")
    beside.say("ACL SETUSER control -@all")
    proxy.process.line(lambda line: "NOPERM" in line or "no permissions" in line, 5)
    check_holds_out(proxy, beside)
    assert "Traceback" not in proxy.process.output
    beside.say("ACL SETUSER control +@all")
    check_removes(client, beside)


@pytest.mark.parametrize(
    "answer", [b":1\r\n", b"*3\r\n:1\r\n:1\r\n:1\r\n", b"*0\r\n", b"+OK\r\n", b"$-1\r\n", b"?\r\n"]
)
def test_answers_of_no_sense_are_outlived(server: Server, start_proxy: StartProxy, talk: TalkTo, answer: bytes) -> None:
    beside = talk(server)
    with Relay(server.address) as relay:
        proxy = start_proxy(None, "--upstream", relay.url, "--control-timeout", "1", "--leftovers-rate", "1000")
        client = talk(proxy)
        client.say("SADD k m")
        client.say("EXPIREMEMBER k m 1000")
        relay.answers = lambda _: answer
        proxy.process.line(lambda line: "sweep failed" in line or LOST in line, 5)
        check_holds_out(proxy, beside)
        relay.answers = bytes
        check_removes(talk(proxy), beside)

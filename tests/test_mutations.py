"""The tests can fail: every deliberate break of the proxy is caught, and the proxy as it is passes the same checks."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import pytest
from hypothesis.errors import Flaky

from tests import test_acl as acl
from tests import test_admin as admin
from tests import test_background as background
from tests import test_blind as blind
from tests import test_circles as circles
from tests import test_cluster_details as details
from tests import test_command as descriptions
from tests import test_deadlines as deadlines
from tests import test_dialects as dialects
from tests import test_embedded as embedded
from tests import test_ends as ends
from tests import test_events as events
from tests import test_events_list as lists
from tests import test_flow as flow
from tests import test_histories as histories
from tests import test_hostile as hostile
from tests import test_info as info
from tests import test_inline as inline
from tests import test_joint as joint
from tests import test_leaving as leaving
from tests import test_lifecycle as lifecycle
from tests import test_lives as lives
from tests import test_lost_rights as lost_rights
from tests import test_many_due as many_due
from tests import test_memory as memory
from tests import test_native_expiry as native
from tests import test_newest_commands as newest_commands
from tests import test_presumed as presumed
from tests import test_proxies as proxies
from tests import test_proxy_protocol as headers
from tests import test_reads as reads
from tests import test_refusals as refusals
from tests import test_sentinel as sentinel
from tests import test_sentinel_decisions as decisions
from tests import test_sharing as sharing
from tests import test_signs as signs
from tests import test_silence as silence
from tests import test_standard_streams as standard
from tests import test_status_page as page
from tests import test_strangers as strangers
from tests import test_streams as streams
from tests import test_takeover as takeover
from tests import test_tls as tls
from tests import test_together as together
from tests import test_unknown_commands as unknown_commands
from tests import test_upgrade as upgrades
from tests import test_workers as workers
from tests.admin import admin_of
from tests.cluster import Cluster, Node
from tests.conftest import StartProxy, new_server
from tests.histories import SHORT_LIFETIMES_MS, Plan
from tests.mutations import MUTATIONS, Mutation, broken_copy
from tests.patience import impatience
from tests.raw import Raw, request
from tests.servers import KIND, KINDS, ROOT, Proxy, Server, until
from tests.test_cluster import now_ms

NEWEST: Final = "valkey-9.1"
NEWEST_REDIS: Final = "redis-8.10"
"""The server for the checks of commands that only the newest have."""

PATIENCE: Final = 4
"""Seconds after which what a break keeps from coming counts as missing."""

LONG_PATIENCE: Final = dict.fromkeys(
    (
        "void passed",
        "changes",
        "bit by bit",
        "the only one",
        "the only one, covered",
        "a slow server",
        "taken by nobody",
        "given out at last",
        "no answer without a login",
    ),
    15,
)
"""The same for checks that wait so long where nothing is broken."""

HASTY: Final = frozenset(("changes",))
"""Checks that wait until background passes have rested several times."""

TRIES: Final = 6
"""How often a break is looked for: what is a race shows by chance, less often on a busy machine."""


def _decisions(place: Place) -> None:
    """See what the copy makes of what Sentinels say."""
    path = place.folder / "proxy" / "upstream" / "sentinel.py"
    spec = importlib.util.spec_from_file_location("sentinel_of_the_copy", path)
    assert spec is not None
    assert spec.loader is not None
    copy = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, copy)
        spec.loader.exec_module(copy)
        patch.setattr(decisions, "Council", copy.Council)
        decisions.test_the_first_answer_alone_decides_only_after_a_moment()
        decisions.test_a_majority_is_followed_whatever_it_counts(0)
        decisions.test_one_that_was_cut_off_is_not_followed(5)
        decisions.test_one_that_knows_of_a_later_failover_is_followed()
        decisions.test_a_majority_that_goes_on_naming_another_counts_against_the_highest_epoch()
        decisions.test_what_was_said_before_the_proxy_stood_still_does_not_count_as_going_on()


def _of_session(module: str, call: str) -> Callable[[Place], None]:
    """A check without a server: a test's own, of the copy in a process of its own."""

    def check(place: Place) -> None:
        env = {**os.environ, "PYTHONPATH": f"{place.folder}:{ROOT}"}
        command = [sys.executable, "-c", f"from tests import {module}; {module}.{call}"]
        done = subprocess.run(command, cwd=place.folder, env=env, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr

    return check


def _in_order(place: Place) -> None:
    """See in which order the copy gives deadlines, and whether it gives all."""
    with pytest.MonkeyPatch.context() as patch:
        for name, taken in (("walk", "Walk"), ("merge", "Soonest")):
            path = place.folder / "proxy" / "looking" / f"{name}.py"
            spec = importlib.util.spec_from_file_location(f"{name}_of_the_copy", path)
            assert spec is not None
            assert spec.loader is not None
            copy = importlib.util.module_from_spec(spec)
            patch.setitem(sys.modules, spec.name, copy)
            spec.loader.exec_module(copy)
            patch.setattr(deadlines, taken, getattr(copy, taken))
        deadlines.test_the_first_ones_take_few_steps_and_little_memory()
        deadlines.test_the_order_is_that_of_a_sorted_list()
        deadlines.test_a_walk_meets_every_element_that_stays()
        deadlines.test_what_stays_is_listed_once_and_in_order_whatever_changes()


class Place:
    """A server, and proxies of a copy of the package in front of it.

    Args:
        server: the server, empty.
        folder: where the copy is.
        stack: ends all at last.
        cluster: gives a cluster without proxies.
        package: where the package is that proxies run; the copy, where it is another.
    """

    def __init__(
        self, server: Server, folder: Path, stack: ExitStack, cluster: Callable[[], Cluster], package: Path
    ) -> None:
        self.server = server
        self.folder = folder
        self._package = package
        self.cluster = cluster
        self._stack = stack

    def proxy(self, *arguments: str, env: Mapping[str, str] | None = None, ready: bool = True) -> Proxy:
        """Start a proxy; without a leftovers pass, which would be by chance when it comes."""
        if "--leftovers-rate" not in arguments:
            arguments = (*arguments, "--leftovers-rate", "0")
        env = {**(env or {}), "PYTHONPATH": str(self._package)}
        proxy = Proxy("--upstream", self.server.url, *arguments, env=env, cwd=self.folder, ready=ready)
        self._stack.callback(proxy.close)
        return proxy

    def script(self, name: str, *, told: bool = False, cleared: bool = False) -> bytes:
        """Return the text of a script of the copy."""
        show = (
            "import sys; from proxy.scripts.calls import Variant, script;"
            f" sys.stdout.buffer.write(script({name!r}, Variant(told={told}, cleared={cleared})))"
        )
        return subprocess.run([sys.executable, "-c", show], cwd=self.folder, capture_output=True, check=True).stdout

    def temporary(self) -> Path:
        """Make a folder, of a short name, for temporary files."""
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="em-")))

    def talk(self, to: Server | Proxy, database: int = 0, protocol: int = 2) -> lives.Talk:
        client = lives.Talk(self._stack.enter_context(to.connect()))
        if protocol == 3:
            client("HELLO", 3)
        if database:
            client("SELECT", database)
        return client

    def start_server(self, kind: str, *args: str) -> Server:
        """Give the server."""
        assert kind == self.server.kind
        assert not args
        return self.server

    def start_proxy(
        self,
        upstream: Server | None,
        *args: str,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        ready: bool = True,
    ) -> Proxy:
        """Start a proxy of the copy."""
        assert upstream in (self.server, None)  # the last of two flags counts
        return self.proxy(*args, env=env, ready=ready)


def _mass(place: Place) -> many_due.Mass:
    return many_due.Mass(place.talk(place.proxy("--no-sweep")), place.talk(place.server))


def _owed(place: Place, behind: str, before: str = "PING") -> None:
    with closing(Server(place.server.kind)) as server:
        server.command(*before.split())
        proxy = place.proxy("--upstream", server.url, "--no-share", "--shutdown-timeout", "4")
        lifecycle.check_what_is_owed(server, proxy, behind)


def _large_values(place: Place) -> None:
    with closing(Server(place.server.kind)) as server:  # a fresh one: it tells the most memory that it ever used
        events.check_large_values(place.talk(server), place.script("settled", told=True))


def _renamed_multi(place: Place) -> None:
    with closing(Server(place.server.kind, "--rename-command", "MULTI", "")) as server:
        together.check_renamed_multi(server, place.proxy("--upstream", server.url))


def _undescribed(place: Place, missing: str) -> None:
    with closing(Server(place.server.kind, "--rename-command", missing, "")) as server:
        together.check_undescribed(server, place.proxy("--upstream", server.url, "--no-share"))


def _silence(place: Place) -> None:
    with closing(Server(place.server.kind, "--rename-command", "RESET", "")) as server:
        signs.check_unheard_refusals(server, place.proxy("--upstream", server.url))


def _many_resets(place: Place) -> None:
    with closing(Server(NEWEST, "--requirepass", strangers.PASSWORD)) as server:
        silence.check_many_resets(server, place.proxy("--upstream", strangers.url_of(server)))


def _new_password(place: Place, kind: str = NEWEST) -> None:
    with closing(Server(kind)) as server:
        strangers.check_new_password(server, place.proxy("--upstream", server.url))


def _password_again(place: Place) -> None:
    with closing(Server(NEWEST, "--requirepass", strangers.PASSWORD)) as server:
        strangers.check_password_again(server, place.proxy("--upstream", strangers.url_of(server)))


def _master_down(place: Place) -> None:
    with closing(Server(OLDEST, "--replica-serve-stale-data", "no")) as server:
        silence.check_master_down(server, place.proxy("--upstream", server.url))


def _logouts(place: Place) -> None:
    with closing(Server(NEWEST, "--requirepass", strangers.PASSWORD)) as server:
        strangers.let_few(server)
        strangers.check_logouts(server, place.proxy("--upstream", strangers.url_of(server)))


def _ends_without_echo(place: Place) -> None:
    server, port = ends.server_by_tls(Server, ends.certificate(place.folder))
    with closing(server):
        ends.check_ends_without_echo(server, port, place.start_proxy)


def _left_a_server_by_tls(sent: str) -> Callable[[Place], None]:
    def check(place: Place) -> None:
        server, port = ends.server_by_tls(Server, ends.certificate(place.folder))
        with closing(server):
            leaving.check_who_has_left_a_server_by_tls(server, port, place.start_proxy, sent)

    return check


def _upgrade(place: Place) -> None:
    for check in (upgrades.check_all_become_the_servers_own, upgrades.check_the_servers_words):
        server = Server(upgrades.UPGRADES[0][0])
        try:
            check(server, upgrades.UPGRADES[0][1], lambda its, *more: place.proxy("--upstream", its.url, *more))
        finally:
            server.close()


def _again(place: Place) -> takeover.Again:
    return takeover.again_at(place.server, place.start_proxy, place.folder)


def _removal(way: str) -> Callable[[Place], None]:
    def check(place: Place) -> None:
        lives.check_lives(lives.Bench(place.talk(place.proxy()), place.talk(place.server)), lives.REMOVALS[way])

    return check


def _together(place: Place) -> None:
    proxy = place.proxy()
    for seed in range(8):
        together.check_program(place.server, proxy, f"together {seed}", 2, at_once=False)


def _mixed(place: Place) -> None:
    proxy = place.proxy("--leftovers-rate", "0")
    for seed in range(4):
        together.check_program(place.server, proxy, f"mixed {seed}", 2, at_once=True, mixed=True)


def _announced(place: Place) -> None:
    _, sequences = proxies.together(2, place.proxy, place.server, place.talk)
    sequences.lives(20)
    proxies.check(sequences)


def _listed(place: Place) -> None:
    """A proxy starts when the one has gone that has covered a second kind of keys."""
    first, beside = place.proxy("--no-sweep"), place.talk(place.server)
    client = place.talk(first)
    for key in ("listed:1", "later:1"):
        client("SADD", key, "m", "n")
        assert client("EXPIREMEMBER", key, "m", 1000) == 1
        until(lambda: beside("ZSCORE", lives.PREFIX + b"covered", "*") is not None, what="a list that tells all")
    first.process.kill()
    other = place.talk(place.proxy("--no-sweep"))
    other("SREM", "later:1", "m")
    other("SADD", "later:1", "m")
    assert other("TTL", "later:1", "m") == -1


def _unheard_of(place: Place) -> None:
    """A proxy has not heard of the first deadlines of a kind of keys, as it has no control connection."""
    away = blind.Blind(place.server, place.start_proxy, "--no-sweep")
    other, beside = place.talk(place.proxy("--no-sweep")), place.talk(place.server)
    clients = [place.talk(away.proxy) for _ in range(2)]
    away.lock_out()
    other("SADD", "unheard:1", "m", "n")
    assert other("EXPIREMEMBER", "unheard:1", "m", 1000) == 1
    for client in clients:
        client("SREM", "unheard:1", "m")
        client("SADD", "unheard:1", "m")
        assert other("TTL", "unheard:1", "m") == -1
        assert other("EXPIREMEMBER", "unheard:1", "m", 1000) == 1
    for number, read in enumerate(
        ("SISMEMBER {} m", "SUNION {} none", "EVAL return\0redis.call('scard',KEYS[1]) 1 {}")
    ):
        key = f"unheard:{number}"
        other("SADD", key, "m", "n")
        assert other("PEXPIREMEMBER", key, "m", 10) == 1
        deadline = lives.clock(beside) + 10
        lives.wait_past(beside, deadline)
        words = [word.replace("\0", " ") for word in read.format(key).split()]
        assert clients[0](*words) == (0, [b"n"], 1)[number]


def _just_looked_at(place: Place, *read: str) -> None:
    """A user who may run no script reads when nothing is due, and a moment later, when something is."""
    beside = place.talk(place.server)
    beside("ACL", "SETUSER", "low", "on", "nopass", "~*", "+@all", "-@scripting")
    here, elsewhere = place.proxy("--no-sweep"), place.proxy("--no-sweep")
    setter, readers = place.talk(here), [place.talk(here), place.talk(elsewhere)]
    for reader in readers:  # who is blind does not look everywhere for such a user
        until(lambda: b"blind:0" in reader("INFO", "expiremember"))  # noqa: B023
        reader("AUTH", "low", "any")
    setter("SADD", "looked:2", "n")
    setter("EXPIREMEMBER", "looked:2", "n", 1000)
    seen = 0
    for number in range(60):
        reader = readers[number % 2]
        setter("SADD", "looked:1", "m")
        if number % 2:  # through another proxy: the look tells of the deadline
            setter("PEXPIREMEMBER", "looked:1", "m", 8)
            deadline = lives.clock(beside) + 8
            lives.wait_past(beside, deadline - 5)
            reader(*read)
        else:
            reader(*read)
            setter("PEXPIREMEMBER", "looked:1", "m", 2)
            deadline = lives.clock(beside) + 2
        while lives.clock(beside) <= deadline:
            pass
        seen += bool(reader(*read))
    assert seen == 0


def _a_reply_that_waits(place: Place) -> None:
    with place.proxy("--no-sweep").connect() as client:
        for together in (False, True):
            reads.check_what_waits(client, place.server, together=together)


def _many_due_while_blind(place: Place) -> None:
    """More is due in a key than one script removes, and the engine cannot."""
    away = blind.Blind(place.server, place.start_proxy, "--no-sweep")
    client, beside = place.talk(away.proxy), place.talk(place.server)
    client("SADD", "many:1", "stays", *range(3000))
    deadline = lives.clock(beside) + 3000
    client.raw.send(b"".join(request("PEXPIREMEMBERAT", "many:1", member, deadline) for member in range(3000)))
    assert set(client.raw.replies(3000)) == {b":1\r\n"}
    away.lock_out()
    lives.wait_past(beside, deadline)
    assert client("SCARD", "many:1") == 1


@contextmanager
def _few_seen(*names: str) -> Iterator[None]:
    """Leave a few of the requests that find something due in their keys."""
    few = {
        kind: cases[: 2 * (kind == "set")] + [case for case in cases if case[0].startswith(names)]
        for kind, cases in lives.SEEN.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lives, "SEEN", few)
        yield


def _when_due(line: str, wanted: object, *before: str) -> Callable[[Place], None]:
    """A check of a request that finds the member 7 of a set due; `before`: what is done while it is not."""

    def check(place: Place) -> None:
        client, beside = place.talk(place.proxy("--no-sweep")), place.talk(place.server)
        for one in ("SADD due:1 7 1", "EXPIREMEMBER due:1 1 1000", *before, "PEXPIREMEMBER due:1 7 10"):
            assert client.say(one)
        lives.wait_past(beside, lives.clock(beside) + 10)
        assert client.say(line) == wanted

    return check


def _union_when_due(place: Place) -> None:
    """Of two keys that a read names, one has a member that is due."""
    client, beside = place.talk(place.proxy("--no-sweep")), place.talk(place.server)
    for due, other in (("both:1", "both:2"), ("both:4", "both:3")):
        for key, member in ((due, "n"), (other, "o")):
            client("SADD", key, "m", member)
            client("EXPIREMEMBER", key, member, 1000)
        client("SREM", other, "m")
        assert client("PEXPIREMEMBER", due, "m", 10) == 1
        lives.wait_past(beside, lives.clock(beside) + 10)
        assert sorted(client("SUNION", due, other)) == [b"n", b"o"]


def _exec_when_due(place: Place) -> None:
    with _few_seen("SMEMBERS", "SPOP", "HGETALL", "ZRANGE {m} 0 -1", "LRANGE", "EVAL "):
        lives.test_no_transaction_sees_a_member_that_is_due(
            place.server, place.proxy("--no-sweep"), place.talk, caching=True
        )


def _watched_until_exec(place: Place) -> None:
    """A deadline in a watched key passes while the transaction is open."""
    client, beside = place.talk(place.proxy("--no-sweep")), place.talk(place.server)
    for number in range(3):
        key = f"watched:{number}"
        client("SADD", key, "m", "n")
        client("PEXPIREMEMBER", key, "m", 100)
        deadline = lives.clock(beside) + 100
        client("WATCH", key)
        client("MULTI")
        assert client("INCR", "sold") == b"QUEUED"
        lives.wait_past(beside, deadline)
        assert client("EXEC") is None


def _not_spoilt(place: Place) -> None:
    """Two transactions come in one piece each that add and expire the same member of a kind of keys that is new."""
    proxy, key = place.proxy(), lives.first_of_its_kind()
    one, two = place.talk(proxy), place.talk(proxy)
    for client in (one, two):
        lines = "MULTI", f"SADD {key} m", f"EXPIREMEMBER {key} m 1000"
        client.raw.send(b"".join(request(*line.split()) for line in lines))
        assert client.raw.replies(3)[-1] == b"+QUEUED\r\n"
    assert two("EXEC") == [1, 1]
    assert one("EXEC") == [0, 1]


def _survivor(place: Place, *, once: bool) -> None:
    """A proxy ends before a deadline that it has set has passed: the other one removes the member in time.

    `once`: whether something has had deadlines before.
    """
    first, beside = place.proxy(), place.talk(place.server)
    client = place.talk(first)
    place.proxy()
    if once:
        client("SADD", "survivor:1", "m", "n")
        client("PEXPIREMEMBER", "survivor:1", "m", 50)
    time.sleep(7 if once else 2)  # until nobody looks often
    client("SADD", "survivor:1", "m", "n")
    assert client("PEXPIREMEMBER", "survivor:1", "m", 400) == 1
    deadline = lives.clock(beside) + 400
    first.process.kill()
    lives.wait_past(beside, deadline)
    until(lambda: beside("SCARD", "survivor:1") == 1, 1, "a removal in time")


def _void_by_name(place: Place) -> None:
    """A member is removed by name, and comes back past the proxy."""
    client, beside = place.talk(place.proxy("--no-sweep")), place.talk(place.server)
    client("SADD", "void:1", "m", "n")
    assert client("EXPIREMEMBER", "void:1", "m", 1000) == 1
    assert client("SREM", "void:1", "m") == 1
    beside("SADD", "void:1", "m")
    assert client("TTL", "void:1", "m") == -1


def _slow_upload(place: Place) -> None:
    """First deadlines of many kinds of keys are set while somebody uploads a large value."""
    proxy = place.proxy()
    with proxy.connect() as client, proxy.connect() as slow:
        slow.send(b"*3\r\n$3\r\nSET\r\n$5\r\nlarge\r\n$50000000\r\n")
        took = []
        for _ in range(20):
            key = lives.first_of_its_kind()
            assert client.command("SADD", key, "m") == b":1\r\n"
            slow.send(b"x" * 8000)
            assert client.command("PING") == b"+PONG\r\n"
            began = time.monotonic()
            assert client.command("EXPIREMEMBER", key, "m", 1000) == b":1\r\n"
            took.append(time.monotonic() - began)
    assert sorted(took)[10] < 0.2


def _front_of_a_chunk(place: Place) -> None:
    """Frequent requests on a covered key come in front of another one."""
    client = place.talk(place.proxy())
    client("SADD", "front:1", "m", "n")
    assert client("EXPIREMEMBER", "front:1", "m", 1000) == 1
    client.raw.send(b"".join(request(*line.split()) for line in ("SREM front:1 m", "SADD front:1 m", "TTL front:1 m")))
    assert client.raw.replies(3) == [b":1\r\n", b":1\r\n", b":-1\r\n"]


def _scripts_in_a_pipeline(place: Place) -> None:
    """A script is sent several times together, a moment after it was sent alone; a deadline passes in between."""
    client, beside = place.talk(place.proxy("--no-sweep")), place.talk(place.server)
    client("SADD", "piped:1", "m", "n")
    client("EXPIREMEMBER", "piped:1", "n", 1000)
    words = "EVAL", "return redis.call('scard', KEYS[1])", 1, "piped:1"
    seen = 0
    for _ in range(30):
        client("SADD", "piped:1", "m")
        client("PEXPIREMEMBER", "piped:1", "m", 8)
        deadline = lives.clock(beside) + 8
        client(*words)
        while lives.clock(beside) <= deadline:
            pass
        client.raw.send(request(*words) * 3)
        seen += client.raw.replies(3) != [b":1\r\n"] * 3
    assert seen == 0


def _renamed(place: Place) -> None:
    server = Server(KIND, "--rename-command", "SADD", "put.in")
    try:
        proxy = place.proxy("--upstream", server.url)
        unknown_commands.check_renamed(place.talk(proxy), place.talk(server))
    finally:
        server.close()


def _on_the_oldest(place: Place, check: Callable[[Server, Proxy], None]) -> None:
    with ExitStack() as stack:
        server = new_server(OLDEST, stack)
        check(server, place.proxy("--upstream", server.url))


def _check_short_requests(place: Place) -> None:
    with place.proxy("--no-sweep").connect() as client:
        reads.check_short_requests(client, place.server)


def _check_sent_twice(proxy: Proxy) -> None:
    with proxy.connect() as client:
        for together in (True, False):
            reads.check_behind(client, together=together)


def _proxied(place: Place, *arguments: str) -> headers.Place:
    """Start a proxy to which a load balancer says where clients come from."""
    return headers.place(place.start_proxy, place.server, tls.Files(place.folder), place.folder, *arguments)


CHECKS: dict[str, Callable[[Place], None]] = {
    "a renamed command": _renamed,
    "many due": lambda place: many_due.check_no_transaction_sees_what_is_due(_mass(place)),
    "more due than go": lambda place: many_due.check_what_is_added_stays(
        _mass(place), "S", ["SADD", "many", "?"], many_due.TOO_MANY, alone=False
    ),
    "more due than go, moved": lambda place: many_due.check_a_move_finds_no_member_that_is_due(
        _mass(place), many_due.TOO_MANY
    ),
    "behind one that is due": lambda place: many_due.check_an_element_behind_one_that_is_due_moves_as_itself(
        _mass(place)
    ),
    "void, and gone": lambda place: many_due.check_no_void_deadline_is_dropped(_mass(place), ("alone", 1)),
    "void, and gone, together": lambda place: many_due.check_no_void_deadline_is_dropped(_mass(place), ("both", 4)),
    "announced": _announced,
    "announced to who begins": lambda place: proxies.test_what_is_announced_while_a_proxy_begins_is_not_forgotten(
        place.server, place.start_proxy, place.talk
    ),
    "listed": _listed,
    "unheard of": _unheard_of,
    "just looked at": lambda place: _just_looked_at(place, "SISMEMBER", "looked:1", "m"),
    "just looked everywhere": lambda place: _just_looked_at(place, "KEYS", "looked:1"),
    "told once a turn": lambda place: info.test_a_pipeline_of_them_costs_one_a_turn(place.proxy()),
    "scripts in a pipeline": _scripts_in_a_pipeline,
    "front of a chunk": _front_of_a_chunk,
    "void by name": _void_by_name,
    "a survivor": lambda place: _survivor(place, once=False),
    "an idle survivor": lambda place: _survivor(place, once=True),
    "watched until EXEC": _watched_until_exec,
    "many due while blind": _many_due_while_blind,
    "unions when due": _union_when_due,
    "pops when due": _when_due("SPOP due:1 9", [b"1"]),
    "lifetimes when due": _when_due("TTL due:1 7", -2, "SREM due:1 1"),
    "scripts when due": _when_due("EVAL return(redis.call('scard',KEYS[1])) 1 due:1", 1),
    "an upload elsewhere": lambda place: (
        streams.test_what_arrives_while_another_proxy_sets_the_first_deadline_is_cut_off(
            place.server, place.proxy(), place.start_proxy, place.talk
        )
    ),
    "shared reads when due": lambda place: sharing.check_reads_of_known_keys(
        place.proxy(*sharing.SHARING, "--no-sweep")
    ),
    "DEL": _removal("DEL"),
    "SPOP": _removal("SPOP"),
    "script": _removal("script"),
    "COPY": lambda place: lives.test_deadlines_go_along_with_their_key(
        place.server, place.proxy(), place.talk, "COPY {k} {n} DB 3"
    ),
    "RENAME": lambda place: lives.test_deadlines_go_along_with_their_key(
        place.server, place.proxy(), place.talk, "RENAME {k} {n}"
    ),
    "condition XX": lambda place: lives.test_a_deadline_with_a_condition(
        place.server, place.proxy(), place.talk, 5, "XX", 1
    ),
    "index": lambda place: lives.test_the_index_tells_the_earliest_deadline_of_each_key(
        place.server, place.proxy(), place.talk
    ),
    "TTL in a transaction": lambda place: lives.check_one_moment(
        place.talk(place.server), place.script("ttl", cleared=True), ["7", "1"], 1, -1
    ),
    "buffers of TLS": lambda place: memory.check_buffers_of_tls(place.server, place.start_proxy, place.folder),
    "a guard killed early": lambda place: embedded.check_killed_early(place.temporary(), place.folder),
    "guard and owner killed": lambda place: embedded.check_killed_together(None, place.temporary(), place.folder),
    "HTTL in a transaction": lambda place: lives.check_one_moment(
        place.talk(place.server), place.script("ttl_members", cleared=True), ["set left 1 0 -2 one", "7"], 1, -2
    ),
    "HPERSIST in a transaction": lambda place: lives.check_one_moment(
        place.talk(place.server), place.script("persist_members", cleared=True), ["set", "7"], [1], [-2]
    ),
    "HGETEX in a transaction": lambda place: lives.check_one_moment(
        place.talk(place.server),
        place.script("get_fields", cleared=True),
        ["none relative hgetex 9e15 leave", "7"],
        [b"0"],
        [None],
    ),
    "a scan in a transaction": lambda place: lives.check_one_moment(
        place.talk(place.server), place.script("scan_members", cleared=True), ["0"], 2, 0
    ),
    "void in a transaction": lambda place: lives.check_void_passes(
        place.talk(place.server), place.script("ttl", cleared=True)
    ),
    "one void that has passed": lambda place: lives.check_void_is_dropped(
        place.talk(place.server), place.talk(place.proxy("--no-sweep")), 1
    ),
    "some void that have passed": lambda place: lives.check_void_is_dropped(
        place.talk(place.server), place.talk(place.proxy("--no-sweep")), 6
    ),
    "a run of reads first": lambda place: lives.check_first_reads(*(place.talk(to) for to in [place.proxy()] * 2)),
    "much that was left": lambda place: lives.check_much_left(
        place.talk(place.server), place.talk(place.server), place.script("vanish", cleared=True)
    ),
    "SMOVE of what was left": lambda place: lives.check_left_over(
        place.talk(place.server), place.script("move_member", cleared=True)
    ),
    "a target without room": _of_session("test_session", "check_target(99, looked_at=True)"),
    "a large one alone": _of_session(
        "test_vigil",
        "test_what_stands_in_front_of_a_request_that_blocks_is_not_behind_it(500, 100_700, 200)",
    ),
    "RENAME in it, and a read": lambda place: lives.check_reads_hold(
        place.talk(place.proxy()), "SADD k 7", "RENAME k:2 new:3|SCARD new:3"
    ),
    "DEL in a transaction": lambda place: lives.check_reads_hold(place.talk(place.proxy()), "SADD k 7", "DEL k:2"),
    "a run of SREM": lambda place: lives.check_reads_hold(
        place.talk(place.proxy()), "SADD k 7", "SREM k:2 a|SREM k:2 7|SREM k:2 b|SREM k:2 c"
    ),
    "TTL": lambda place: lives.test_ttl_is_rounded_and_persist_ends_the_deadline(
        place.server, place.proxy(), place.talk
    ),
    "list": lambda place: lives.test_every_occurrence_of_an_element_goes(place.proxy(), place.talk),
    "conditions": lambda place: lives.test_a_deadline_with_a_condition(
        place.server, place.proxy(), place.talk, 9, "GT", 0
    ),
    "BLMOVE": _removal("LPOP"),
    "nothing left behind": lambda place: lives.test_what_is_removed_by_name_leaves_nothing_behind(
        place.server, place.proxy(), place.talk
    ),
    "pipeline": lambda place: lives.test_all_in_one_pipeline(place.proxy(), place.talk),
    "leftovers": lambda place: lives.test_deadlines_that_are_left_over_are_cleared(
        KIND, place.start_server, place.start_proxy, place.talk
    ),
    "reserved names": lambda place: lives.test_the_proxys_own_keys_do_not_show(place.server, place.proxy(), place.talk),
    "refusals in a pipeline": lambda place: lives.test_the_proxys_own_keys_are_refused_within_a_pipeline(
        place.server, place.proxy()
    ),
    "inline requests": lambda place: inline.test_an_inline_request_on_a_key_with_deadlines_is_judged(
        place.server, place.start_proxy
    ),
    "refusals": lambda place: lives.test_a_request_that_names_the_proxys_own_keys_is_refused(
        place.server, place.proxy(), place.talk, "index"
    ),
    "reads when due": lambda place: lives.test_no_request_sees_a_member_that_is_due(
        place.server, place.proxy("--no-sweep"), place.talk, 0
    ),
    "EXEC when due": _exec_when_due,
    "changing list": lambda place: lives.check_a_list_that_changes(
        place.talk(place.server), place.script("weed"), heeded=True
    ),
    "list that never rests": lambda place: lives.check_a_list_that_changes(
        place.talk(place.server), place.script("weed"), heeded=False
    ),
    "pass over a long list": lambda place: background.check_a_pass_over_a_long_list(
        place.talk(place.server), place.script("void_pages")
    ),
    "list that changes under a pass": lambda place: background.check_a_list_that_changes_under_a_pass(
        place.talk(place.server), place.script("void_pages")
    ),
    "few elements": lambda place: lives.check_few_elements_of_a_long_list(
        place.server, place.proxy("--no-sweep"), place.talk
    ),
    "void passed": lambda place: lives.check_the_pass_frees(
        place.server, place.proxy("--leftovers-rate", "100000"), place.talk
    ),
    "void for long": lambda place: lives.check_void_ones_are_freed(place.server, place.proxy(), place.talk),
    "many elements": lambda place: lives.check_many_elements_of_a_list(
        place.server, place.proxy("--no-sweep"), place.talk
    ),
    "watched": lambda place: lives.test_a_deadline_that_passes_in_a_watched_key_is_a_change(
        place.server, place.proxy("--no-sweep"), place.talk, "set"
    ),
    "watched while blind": lambda place: blind.test_a_deadline_in_a_watched_key_that_passes_meanwhile_is_seen(
        blind.Blind(place.server, place.start_proxy), place.talk
    ),
    "keyspace when due": lambda place: lives.test_requests_that_name_no_key_see_nothing_that_is_due(
        place.server, place.proxy("--no-sweep"), place.talk, "DBSIZE", transaction=False
    ),
    "together": lambda place: _together(place),
    "together, first": lambda place: together.check_first_of_a_mixture(place.server, place.proxy()),
    "together, mixed": lambda place: _mixed(place),
    "together, refused mixture": lambda place: together.check_refused_mixture(place.server, place.proxy()),
    "together, index": lambda place: together.check_index(place.server, place.proxy()),
    "together, added again": lambda place: together.check_added_again(place.proxy()),
    "together, refused": lambda place: together.check_refused(place.server, place.proxy(), 2),
    "queued together": lambda place: together.check_queued_pairs(place.server, place.proxy()),
    "small transactions": lambda place: together.check_small_transactions(place.server, place.proxy()),
    "busy, transaction": lambda place: together.check_busy_transaction(place.server, place.proxy()),
    "renamed MULTI": lambda place: _renamed_multi(place),
    "MULTI forbidden": lambda place: together.check_forbidden_multi(place.server, place.proxy()),
    "queued, refused": lambda place: together.check_refused_queue(place.server, place.proxy()),
    "queued, MULTI refused": lambda place: together.check_refused_multi(place.server, place.proxy()),
    "refused mixture on the oldest": lambda place: _on_the_oldest(place, together.check_refused_mixture),
    "queued, refused on the oldest": lambda place: _on_the_oldest(place, together.check_refused_queue),
    "together, queued": lambda place: together.check_transaction(place.proxy()),
    "strings, due": lambda place: together.check_due_of_strings(place.server, place.proxy("--no-sweep")),
    "without memory": lambda place: together.check_without_memory(place.server, place.proxy()),
    "queued on an old one, no memory": lambda place: together.check_transaction_without_memory(
        place.server, place.proxy()
    ),
    "together, in few calls": lambda place: together.check_few_calls(place.server, place.proxy()),
    "together, due": lambda place: together.check_due(place.server, place.proxy("--no-sweep")),
    "ties": lambda place: background.check_ties(place.server, place.proxy, place.talk),
    "dead connection": lambda place: background.check_a_dead_control_connection_is_noticed(
        place.server, place.proxy, place.talk
    ),
    "counts": lambda place: admin.test_it_counts_what_the_proxy_does(place.server, place.start_proxy),
    "bytes": lambda place: admin.test_it_counts_bytes(place.server, place.start_proxy),
    "changes": lambda place: background.check_changes_wake_the_passes(
        place.server, place.proxy("--leftovers-rate", "1000"), place.talk, pause=1
    ),
    "sweeps leave time": lambda place: background.check_sweeps_leave_the_server_to_others(
        place.server, place.proxy, place.talk
    ),
    "late reader": lambda place: flow.check_a_late_reader_makes_the_server_wait(place.server, place.proxy()),
    "long pipeline": lambda place: streams.check_a_re_add_behind_a_long_pipeline(
        "frequent", place.server, place.proxy(), place.talk
    ),
    "a run behind a long pipeline": lambda place: streams.check_a_re_add_behind_a_long_pipeline(
        "frequent", place.server, place.proxy(), place.talk, 9
    ),
    "long pipeline, looked at": lambda place: streams.check_a_re_add_behind_a_long_pipeline(
        "looked at", place.server, place.proxy(), place.talk
    ),
    "events": lambda place: events.test_an_entry_tells_which_member_went(
        place.server, place.proxy(), place.talk, "hash"
    ),
    "own deadlines": lambda place: events.test_each_entry_has_its_members_own_deadline(
        place.server, place.proxy, place.talk, 1
    ),
    "void and events": lambda place: events.test_who_has_a_void_deadline_is_not_told_of(
        place.server, place.proxy(), place.talk
    ),
    "trimmed": lambda place: events.test_a_stream_keeps_about_as_many_entries_as_the_rule_says(
        place.server, place.proxy, place.talk
    ),
    "rules of databases": lambda place: events.test_the_rules_of_one_database_are_not_anothers(
        place.server, place.proxy, place.talk
    ),
    "no stream": lambda place: events.test_a_stream_that_is_none_stops_no_removal(
        place.server, place.proxy, place.talk
    ),
    "messages": lambda place: events.test_messages_are_as_redis_has_them(
        place.server, place.proxy(), place.talk, "set"
    ),
    "several rules": lambda place: events.test_several_rules_write_one_entry_into_each_stream(
        place.server, place.proxy, place.talk
    ),
    "pushed": lambda place: lists.test_a_member_that_expires_lands_in_the_list(
        place.server, place.proxy(), place.talk, "hash"
    ),
    "own list": lambda place: lists.test_what_expires_in_a_list_is_not_pushed_to_it_again(
        place.server, place.proxy, place.talk
    ),
    "rules for a list": lambda place: lists.test_of_several_rules_for_a_list_the_longest_pattern_counts(
        place.server, place.proxy, place.talk
    ),
    "no list": lambda place: lists.test_a_list_that_is_none_stops_no_removal(place.server, place.proxy, place.talk),
    "a new life in a list": lambda place: lists.check_new_life(
        place.talk(place.server), "{t}ready", place.script("sweep")
    ),
    "the right to push": lambda place: lists.check_rights(
        place.talk(place.server), place.talk(place.server), place.script("clear")
    ),
    "the first rule": lambda place: events.test_the_first_rule_counts_at_once_and_the_short_scripts_come_back(
        place.server, place.proxy, place.talk
    ),
    "rules do not show": lambda place: events.test_the_rules_do_not_show(place.server, place.proxy, place.talk),
    "names of commands": lambda place: background.check_names_are_bounded(place.server, place.proxy, place.talk),
}

NEWEST_CHECKS: dict[str, Callable[[Place], None]] = {
    "HGETDEL": lambda place: native.test_hgetdel_voids_the_deadlines_of_all_that_it_removes(
        place.talk(place.proxy()), place.talk(place.server), queued=False
    ),
    "HGETDEL of nothing": lambda place: native.test_answers_on_a_key_with_deadlines_are_the_servers_own(
        place.server, place.proxy(), protocol=3
    ),
    "HSETEX": lambda place: native.test_hsetex_voids_the_deadlines_of_the_absent_fields_that_it_sets(
        place.talk(place.proxy()), place.talk(place.server), options="FNX"
    ),
    "MSETEX": lambda place: native.test_msetex_over_collections_ends_their_deadlines(
        place.talk(place.proxy()), place.talk(place.server)
    ),
}

NEWEST_CHECKS["few by database"] = lambda place: acl.test_rights_that_differ_by_database_are_asked_for_again_in_another(
    place.start_server, place.start_proxy, place.server.kind
)

NEWEST_CHECKS["queued, no memory"] = lambda place: together.check_transaction_without_memory(
    place.server, place.proxy()
)

NEWEST_CHECKS["queued by many, no memory"] = lambda place: joint.check_transactions_without_memory(
    place.server, place.proxy(*sharing.SHARING)
)

NEWEST_CHECKS["WAITAOF"] = lambda place: sharing.test_waitaof_waits_for_what_was_shared(
    place.server, place.proxy(*sharing.SHARING)
)

NEWEST_REDIS_CHECKS: dict[str, Callable[[Place], None]] = {
    "HIMPORT": lambda place: newest_commands.check_import(place.talk(place.proxy()), place.talk(place.server)),
    "HIMPORT without MULTI": lambda place: newest_commands.test_an_import_by_who_may_run_no_transaction(
        place.server, place.proxy(), place.talk, "-multi"
    ),
    "the server's own words": lambda place: dialects.check_own_words(place.talk(place.proxy()).raw, has=True),
}

CHECKS |= NEWEST_CHECKS | NEWEST_REDIS_CHECKS


OLDEST: Final = "redis-6.2"


def _twins(check: Callable[[refusals.Twins], None], kind: str = KIND) -> Callable[[Place], None]:
    """A check on two servers of its own."""

    def run(place: Place) -> None:
        if kind not in KINDS:
            pytest.skip(f"{kind} is not installed")

        def start(upstream: Server) -> Proxy:
            env = {"PYTHONPATH": str(place.folder)}
            arguments = "--upstream", upstream.url, "--leftovers-rate", "0"
            return Proxy(*arguments, env=env, cwd=place.folder)

        twins = refusals.Twins(kind, start)
        try:
            check(twins)
        finally:
            twins.close()

    return run


CHECKS |= {
    "refusals without memory": _twins(lambda twins: refusals.check_refusals(twins, "no memory", 2)),
    "paused writes": _twins(refusals.check_pause),
    "refusals on the oldest": _twins(lambda twins: refusals.check_refusals(twins, "no replicas", 2), OLDEST),
    "no half": _twins(refusals.check_no_half),
    "no half on the oldest": _twins(refusals.check_no_half, OLDEST),
    "removal on the oldest": _twins(refusals.check_removal_without_memory, OLDEST),
    "a subscriber": _twins(refusals.check_subscriber),
    "lives within a transaction": _twins(lambda twins: refusals.check_transaction_lives(twins, pieces=False)),
}


def _sharing(check: Callable[[Server, Proxy], None]) -> Callable[[Place], None]:
    """A check of a proxy whose clients share from their second request on."""
    return lambda place: check(place.server, place.proxy(*sharing.SHARING))


def _starting(check: Callable[[Server, StartProxy], None]) -> Callable[[Place], None]:
    """A check that starts a proxy itself."""
    return lambda place: check(place.server, place.start_proxy)


CHECKS |= {
    "lost": _starting(sharing.test_what_may_run_again_does_when_a_shared_connection_is_lost),
    "not asked": _sharing(sharing.test_who_has_logged_in_as_another_user_is_not_asked_about),
    "many parts": _starting(sharing.test_who_gets_replies_of_many_parts_does_not_share_for_a_while),
    "the only one": _starting(sharing.test_who_is_the_only_one_goes_back_to_its_own_connection),
    "the only one, covered": _starting(sharing.test_who_is_the_only_one_shares_what_is_about_members),
    "joint": _sharing(joint.check_one_call),
    "joint, odd ones": _sharing(lambda _, proxy: joint.check_odd_ones(proxy)),
    "joint, alone": _sharing(joint.check_lone),
    "joint, few": _sharing(joint.check_few),
    "joint, MULTI forbidden": _sharing(joint.check_joint_multi_forbidden),
    "joint, bytes of two": _sharing(joint.check_bytes_of_two),
    "a crowd at the door": lambda place: workers.check_crowd_at_the_door(place.proxy()),
    "mixtures while paused": lambda place: together.check_reads_of_mixtures_while_paused(place.server, place.proxy()),
    "few while paused": _sharing(joint.check_few_while_paused),
    "counters": lambda place: together.check_counters(place.server, place.proxy("--no-share")),
    "a half close without files": lambda place: ends.check_half_close_without_files(place.proxy()),
    "far times": lambda place: together.check_far_times(place.server, place.proxy("--no-share")),
    "without TTL": lambda place: _undescribed(place, "TTL"),
    "without COMMAND": lambda place: _undescribed(place, "COMMAND"),
    "counters of many": _sharing(joint.check_counters),
    "strings of many": _sharing(joint.check_strings),
    "behind an unread reply": lambda place: leaving.check_behind_an_unread_reply(place.server, place.start_proxy),
    "permissions unknown": lambda place: acl.check_permissions_unknown(place.server, place.proxy()),
    "joint, one forbidden": _sharing(joint.check_one_forbidden),
    "joint, one forbidden, all left": _sharing(joint.check_one_forbidden_and_all_left),
    "joint, refused texts": _sharing(joint.check_refused_texts),
    "joint, errors": _sharing(lambda _, proxy: joint.check_own_errors(proxy)),
    "joint, flushed": _sharing(joint.check_flushed_scripts),
    "joint, no digests": _sharing(joint.check_no_digests),
    "joint, digests again": _sharing(joint.check_digests_after_a_refusal),
    "joint, paused": _sharing(joint.check_paused),
    "another user": _sharing(sharing.test_a_user_who_looks_like_the_proxys_own_does_not_share),
    "a state of its own": lambda place: sharing.test_a_state_of_its_own_keeps_a_client_from_sharing(
        place.server, place.proxy(*sharing.SHARING), ["CLIENT", "NO-EVICT", "on"], ["CLIENT", "NO-EVICT", "off"]
    ),
    "order of what is shared": _sharing(sharing.test_order_is_kept_between_shared_and_own_connections),
    "shared reads": _sharing(sharing.test_reads_go_on_while_writes_are_paused),
    "a push to others": _sharing(sharing.test_what_others_have_the_server_push_to_a_shared_connection_is_dropped),
    "a long nested reply": _sharing(sharing.test_a_long_nested_reply_takes_little_time),
    "beginnings of replies": _sharing(sharing.test_a_value_that_looks_like_the_beginnings_of_replies_takes_little_time),
    "room for others": _sharing(sharing.test_users_who_may_not_share_leave_room_for_others),
    "bit by bit": lambda place: sharing.test_who_reads_bit_by_bit_does_not_keep_the_writes_of_others_waiting(
        place.start_server, place.start_proxy
    ),
    "a slow server": lambda place: sharing.test_who_stands_behind_a_long_reply_of_a_slow_server_asks_again_elsewhere(
        place.start_server, place.start_proxy
    ),
    "shared, due": _starting(sharing.test_who_shares_sees_no_member_that_is_due),
    "a push within a reply": lambda place: sharing.check_a_push_within_a_reply(place.server, place.proxy),
    "pushes that wait": lambda place: sharing.check_pushes_that_wait(place.server, place.proxy),
    "a name of another": lambda place: circles.test_a_name_of_another_is_sent_on(place.start_proxy),
    "an outage behind": lambda place: circles.test_an_outage_behind_is_told_once(place.start_proxy),
}


def _login(place: Place) -> None:
    server = Server(KIND, "--requirepass", "secret")
    try:
        hostile.check_little_is_held_before_a_login(server, place.proxy("--upstream", hostile.login_url(server)))
    finally:
        server.close()


def _pair(place: Place) -> acl.Pair:
    pair = acl.Pair.__new__(acl.Pair)
    pair.server, pair.proxy = place.server, place.proxy()
    return pair


def _ordinary_work(place: Place) -> None:
    """On a server that no other check has left users on."""
    with closing(Server(place.server.kind)) as server:
        signs.check_ordinary_work(server, place.proxy("--upstream", server.url), 2)


def _histories(place: Place) -> None:
    plan = Plan(batches=25, lifetimes=SHORT_LIFETIMES_MS)
    assert histories.check_histories(plan, place.server, [place.proxy()], "mutations", 50)


CHECKS |= {
    "histories": _histories,
    **{
        f"{first} under way": partial(
            lambda first, place: lives.test_a_member_whose_deadline_passes_under_way_gets_no_other(
                place.proxy(), place.talk, "set", first, queued=False
            ),
            first,
        )
        for first in lives.UNDER_WAY
    },
    "queued": lambda place: lives.test_a_member_whose_deadline_passes_under_way_gets_no_other(
        place.proxy("--no-sweep"), place.talk, "set", "expire", queued=True
    ),
    "told of what passes": lambda place: events.test_what_passes_while_requests_wait_is_told_of(
        place.server, place.proxy, place.talk, 1.3
    ),
    "late": lambda place: events.check_late(place.server, place.proxy, place.talk),
    "another kind": lambda place: events.check_no_hold_up(place.server, place.proxy, place.talk),
    "told in order": lambda place: events.check_order(place.server, place.proxy, place.talk),
    "a new life by a note": lambda place: events.test_lists_that_push_to_each_other_repeat_nothing(
        place.server, place.start_proxy, place.talk
    ),
    "many told in order": lambda place: events.check_order_of_many(
        place.talk(place.server), place.script("add", told=True), place.script("sweep")
    ),
    "many elements under way": lambda place: events.check_many_elements_under_way(
        place.talk(place.server), place.script("settled", told=True), told=True
    ),
    "many persisted under way": lambda place: events.check_many_persisted_under_way(
        place.talk(place.server), place.script("persist_members")
    ),
    "elements of who may little": lambda place: events.check_elements_of_who_may_little(
        place.talk(place.server), place.script("settled")
    ),
    "large values": _large_values,
    "notes spoilt": lambda place: events.check_spoilt_notes(place.server, place.proxy, place.talk),
    "spoilt": lambda place: lives.test_a_transaction_that_adds_and_expires_is_spoilt_by_somebody_elses_first_deadline(
        place.proxy(), place.talk, 2, "SPOP"
    ),
    "not spoilt": _not_spoilt,
    "not spoilt while it waits": lambda place: lives.test_a_transaction_is_not_spoilt_while_its_first_deadline_waits(
        place.proxy(), place.talk, "SADD {k} 7", False
    ),
    "few spoil": lambda place: acl.test_a_refused_first_deadline_spoils_nothing(_pair(place), "low", "alone"),
    "few cut off": lambda place: acl.test_a_refused_first_deadline_cuts_nothing_off(
        _pair(place), place.start_proxy, "nothing"
    ),
    "few who may nothing in scripts": lambda place: acl.test_a_refused_first_deadline_spoils_nothing(
        _pair(place), "scripts", "alone"
    ),
    "few together": lambda place: acl.test_a_refused_first_deadline_hides_no_other_of_its_pipeline(_pair(place)),
    "few by selectors": lambda place: (
        acl.test_a_right_that_a_selector_gives_to_some_keys_only_is_missed_before_anything_is_done(
            place.start_server, place.start_proxy, place.server.kind, "RENAME app:s app:t"
        )
    ),
    "few change nothing": lambda place: acl.test_exactly_the_rights_that_are_documented(
        _pair(place), next(row for row in acl.rights_table() if row[:2] == ("PERSIST", "set"))
    ),
    "few who store": lambda place: acl.test_exactly_the_rights_that_are_documented(
        _pair(place), next(row for row in acl.rights_table() if row[0] == "SUNIONSTORE")
    ),
    "few who rename": lambda place: acl.test_exactly_the_rights_that_are_documented(
        _pair(place), next(row for row in acl.rights_table() if row[0] == "RENAME")
    ),
    "few meanwhile": lambda place: acl.test_a_transaction_goes_on_as_it_began_though_somebody_gets_few_rights_meanwhile(
        _pair(place)
    ),
    "few give and rename": lambda place: presumed.test_a_deadline_that_the_transaction_sets_itself_counts(
        presumed.Few(place.server, place.start_proxy), "enough, told in an odd way", at_once=False
    ),
    "few moved": lambda place: presumed.check_moved_without_deadlines(presumed.Few(place.server, place.start_proxy)),
    "few while it waits": lambda place: presumed.test_a_deadline_that_another_client_sets_before_exec_counts(
        presumed.Few(place.server, place.start_proxy), "no shadows"
    ),
    "few who may": lambda place: presumed.test_a_deadline_that_another_client_sets_before_exec_counts(
        presumed.Few(place.server, place.start_proxy), "enough"
    ),
    "few who may not": lambda place: presumed.test_nothing_is_refused_on_keys_without_deadlines(
        presumed.Few(place.server, place.start_proxy), "no shadows"
    ),
    "few without a command": lambda place: acl.test_a_user_without_a_command_that_few_scripts_use_has_few_rights(
        _pair(place), "zrange"
    ),
    "few unanswered": lambda place: presumed.test_exec_fails_while_nobody_can_tell_of_deadlines(
        place.server, place.start_proxy
    ),
    "no errors": _ordinary_work,
    "reads behind a busy server": lambda place: reads.check_behind_a_busy_server(
        place.server, place.proxy(), 2, pipelined=True
    ),
    "a nearer deadline": lambda place: reads.check_a_nearer_deadline(place.server, place.proxy("--no-sweep")),
    "a nearer one, shared": _sharing(sharing.check_a_nearer_deadline),
    "reads wait for none": lambda place: reads.check_waiting_for_none(place.server, place.proxy()),
    "behind reads": lambda place: reads.check_what_follows(place.server, place.proxy("--no-sweep")),
    "sent twice": lambda place: _check_sent_twice(place.proxy("--no-sweep")),
    "few wait": lambda place: reads.check_few_wait(place.server, place.proxy("--no-sweep")),
    "an EXPIRE behind a read": lambda place: reads.check_an_expire(
        place.server, place.proxy("--no-sweep"), ["SCARD s", "EXPIRE s 100"]
    ),
    "not covered yet": lambda place: reads.check_what_was_not_covered(
        place.server, place.proxy("--no-sweep"), then="SADD", together=False
    ),
    "a reply that waits": _a_reply_that_waits,
    "subscriber": lambda place: signs.check_subscribers(place.server, place.proxy(), 3, subscriber=True),
    "no subscriber": lambda place: signs.check_subscribers(place.server, place.proxy(), 2, subscriber=False),
    "busy": lambda place: signs.check_busy(place.server, place.proxy()),
    "who may only read": lambda place: acl.test_who_may_only_read_is_told_lifetimes(_pair(place), "reads", 2),
    "the first of all in MULTI": lambda place: (
        proxies.test_the_first_of_all_in_a_transaction_is_announced_where_somebody_has_few_rights(
            place.server, place.proxy, place.talk
        )
    ),
    "begun TLS": lambda place: memory.check_handshakes(place.server, place.start_proxy, place.temporary()),
    "closed TLS": lambda place: memory.check_closed_tls(place.server, place.start_proxy, place.temporary()),
    "left unread": lambda place: memory.check_unread(place.server, place.start_proxy, place.temporary()),
    "a large request ahead": lambda place: hostile.check_ahead(place.server, place.start_proxy),
    "behind an earlier one": lambda place: hostile.check_ahead(place.server, place.start_proxy, "together"),
    "leaves behind a blocking request": lambda place: (
        hostile.test_a_client_that_leaves_behind_a_blocking_request_takes_no_job(
            place.server, place.start_proxy, Raw.close, request("EXPIREMEMBER", "known") * 400_000
        )
    ),
    "a refused greeting": lambda place: signs.check_refused_greeting(place.server, place.proxy()),
    "queued words": lambda place: signs.check_queued_words(place.server, place.proxy()),
    "caching, then silence": lambda place: silence.check_caching(place.server, place.proxy()),
    "replies in doubt at the end": lambda place: silence.check_doubt_at_the_end(place.server, place.proxy()),
    "many resets": _many_resets,
    "late replies": lambda place: blind.check_late_replies(place.server, place.start_proxy),
    "an end that nobody reads": lambda place: leaving.check_unread_end(place.server, place.proxy(*sharing.SHARING)),
    "reads one by one": lambda place: reads.check_one_by_one(place.server, place.proxy()),
    "short requests": _check_short_requests,
    "a shared push": lambda place: leaving.check_a_shared_push(place.server, place.proxy(*sharing.SHARING)),
    "half closed": lambda place: leaving.check_half_closed(place.server, place.proxy()),
    "left unused": lambda place: leaving.check_left_unused(place.server, place.start_proxy),
    "busy script": lambda place: leaving.check_behind_a_busy_script(
        place.server, place.start_proxy, Raw.end_of_requests, "-ping"
    ),
    "long replies": lambda place: leaving.check_long_replies(place.server, place.start_proxy),
    "left in front of a silence": lambda place: leaving.check_who_has_left_in_silence(
        place.server, place.start_proxy, behind=leaving.OFF
    ),
    "left in a silence": lambda place: leaving.check_who_has_left_in_silence(
        place.server, place.start_proxy, leaving.OFF, leaving.ON
    ),
    "left after a message": lambda place: leaving.check_who_has_left_in_silence(
        place.server, place.start_proxy, leaving.HEARS + leaving.OFF, message=b"word"
    ),
    "left after a long message": lambda place: leaving.check_who_has_left_in_silence(
        place.server, place.start_proxy, leaving.HEARS + leaving.OFF, message=b"w" * 1_000_000
    ),
    "left in a silence, apart": lambda place: leaving.check_who_has_left_in_silence(
        place.server, place.start_proxy, leaving.OFF, leaving.ON, apart=True
    ),
    "left at once in a silence": lambda place: leaving.check_who_has_left_in_silence(
        place.server, place.start_proxy, leaving.OFF, leaving.ON, later=0.012, waits=False
    ),
    "left as a transaction waits": lambda place: leaving.check_who_has_left_with_a_transaction(
        place.server, place.start_proxy
    ),
    "left after jobs": _left_a_server_by_tls("behind jobs"),
    "before a wrong one": _left_a_server_by_tls("before a wrong one"),
    "the first bytes": lambda place: hostile.check_ahead(place.server, place.start_proxy, "nothing at all"),
    "a half close behind a silence": lambda place: silence.check_half_close(place.server, place.proxy()),
    "a refused MULTI in silence": lambda place: silence.check_refused_multi(place.server, place.proxy()),
    "many channels": lambda place: silence.check_many_channels(place.server, place.proxy()),
    "a master that is down": _master_down,
    "a new password": _new_password,
    "a new password, told late": lambda place: _new_password(place, place.server.kind),
    "a password again": _password_again,
    "pushes in a silence": lambda place: silence.check_pushes(place.server, place.proxy()),
    "subscribers in silence": lambda place: silence.check_subscribers(place.server, place.proxy()),
    "written before it is read": lambda place: flow.test_a_client_may_send_all_before_it_reads(
        place.server, place.proxy(), "HINCRBY"
    ),
    "queued blindly": lambda place: (
        lives.test_a_member_that_goes_while_a_transaction_is_queued_comes_back_without_a_deadline(
            place.server, place.proxy(), place.talk
        )
    ),
    "hostile bytes": lambda place: hostile.check_hostile_bytes(place.proxy(), place.server),
    "held limit": lambda place: hostile.check_all_that_is_held_is_bounded(
        place.server, place.proxy(*hostile.HELD_LIMIT)
    ),
    "before a login": _login,
    "left behind reads": lambda place: leaving.check_who_has_left_is_gone(
        place.server, place.start_proxy, Raw.close, "reads"
    ),
    "a slow way": lambda place: leaving.check_a_slow_way(place.start_proxy, "redis", leaving.port_of(place.server)),
    "left as it stops": lambda place: leaving.check_who_has_left_is_gone(
        place.server, place.start_proxy, Raw.close, "the end"
    ),
    "many names": lambda place: memory.check_nothing_is_kept(place.server, place.start_proxy, "many names"),
    "given out at last": lambda place: memory.check_what_is_given_out_at_last(place.server, place.start_proxy),
    "given out at once": lambda place: memory.check_what_is_given_out(place.server, place.start_proxy),
    "waited": lambda place: memory.check_what_waited(place.server, place.start_proxy),
    "waits for too much": lambda place: memory.check_who_waits_for_too_much(place.server, place.start_proxy),
    "replies in doubt": lambda place: memory.check_replies_in_doubt(place.server, place.start_proxy),
    "no job": lambda place: leaving.test_who_has_left_gets_no_job(KIND, place.start_server, place.start_proxy),
    "a slow upload": _slow_upload,
    "descriptions": lambda place: descriptions.check_within_transactions(
        place.talk(place.server).raw, place.talk(place.proxy()).raw
    ),
    "writes": lambda place: together.check_writes(place.server, place.proxy()),
    "writes, another type is due": lambda place: together.check_due_of_another_type(
        place.server, place.proxy("--no-sweep")
    ),
    "told what has run": lambda place: lost_rights.check_what_has_run_is_told(place.server, place.proxy()),
    "a subscriber after a RESET": lambda place: silence.check_a_subscriber_after_a_reset(place.server, place.proxy()),
    "signs are held": lambda place: memory.check_outstanding_replies(place.server, place.start_proxy),
    "reads are held": lambda place: memory.check_reads_under_way(place.server, place.start_proxy),
    "reads are bounded": lambda place: memory.check_reads_are_bounded(place.server, place.start_proxy),
    "odd requests": lambda place: together.check_odd_requests(place.proxy()),
    "forbidden writes": lambda place: together.check_forbidden_writes(place.server, place.proxy()),
    "dialect pairs": lambda place: together.check_dialect_pairs(place.server, place.proxy()),
    "emptied": lambda place: together.check_emptied(place.server, place.proxy()),
    "dialects": lambda place: dialects.check_words(place.talk(place.proxy()).raw),
    "only due members": lambda place: dialects.check_only_due_members(place.talk(place.proxy("--no-sweep")).raw),
    "skips": lambda place: signs.check_skips(place.server, place.proxy()),
    "silence": _silence,
    "owed in front of a part": lambda place: _owed(place, "a part of a value"),
    "owed among users": lambda place: _owed(place, "a protocol error", "ACL SETUSER few on nopass ~* +@all -eval"),
    "owed in front of CACHING": lambda place: _owed(place, "CACHING"),
    "owed in front of an error": lambda place: _owed(place, "a line with a NUL"),
    "an upgrade": _upgrade,
    "dialects, index": lambda place: dialects.check_the_index(
        place.talk(place.proxy()).raw, place.talk(place.server).raw, 2
    ),
    "dialects without a time": lambda place: dialects.test_a_request_that_sets_no_deadline_covers_nothing(
        place.server, place.proxy()
    ),
    "idle clients by TLS": lambda place: ends.check_idle_clients_by_tls(
        place.server, place.start_proxy, ends.certificate(place.folder)
    ),
    "a silent handshake": lambda place: takeover.check_silent_handshake(_again(place), place.folder, "1"),
    "no answer without a login": lambda place: strangers.check_without_an_answer(
        place.server, place.start_proxy, "is silent"
    ),
    "who is accepted as it stops": lambda place: ends.check_who_is_accepted_as_it_stops(
        place.server, place.start_proxy, ends.certificate(place.folder)
    ),
    "who comes as it stops": lambda place: ends.check_who_comes_as_it_stops(place.server, place.start_proxy),
    "told while it waits": lambda place: takeover.check_told_while_it_waits(
        _again(place), place.folder, signal.SIGTERM, queued=False
    ),
    "a full queue": lambda place: takeover.check_a_full_queue(_again(place), place.folder),
    "a late signal": lambda place: lifecycle.check_a_late_signal(place.server, place.start_proxy, "1"),
    "streams at the end": lambda place: lifecycle.check_streams(place.server, place.start_proxy),
    "idle": lambda place: lifecycle.check_who_has_sent_nothing(place.server, place.start_proxy),
    "answered at the end": lambda place: lifecycle.check_who_has_got_every_reply(place.server, place.start_proxy),
    "messages to who has left": lambda place: ends.check_messages(place.server, place.start_proxy),
    "a header at every cut": lambda place: headers.check_every_cut(_proxied(place)),
    "a header that does not come": lambda place: headers.check_stalls(_proxied(place, "--listen-tls-timeout", "1")),
    "a client by its header": lambda place: headers.check_the_name_in_the_log(
        _proxied(place, "--request-limit", "65536")
    ),
    "past the balancer": lambda place: headers.check_unlisted(_proxied(place)),
    "ends": lambda place: ends.check_ends_of_clients(place.server, place.start_proxy, ends.certificate(place.folder)),
    "ends without ECHO": _ends_without_echo,
    "logouts": _logouts,
    "handshakes": lambda place: tls.check_handshakes_take_turns(place.server, place.start_proxy, place.folder),
    "wrong authority": lambda place: tls.check_a_wrong_authority_is_refused(place.folder, place.proxy),
    "limits of workers": lambda place: workers.test_limits_are_of_all_workers_together(place.server, place.start_proxy),
    "taken over": lambda place: takeover.test_the_next_proxy_takes_the_place_of_the_one_that_runs(
        _again(place), place.folder, 1, 1
    ),
    "taken over, in parts": lambda place: takeover.check_parts(_again(place), "1", 0),
    "taken over within a request": lambda place: takeover.check_parts(_again(place), "1", 30),
    "taken over within a large one": lambda place: takeover.check_parts(_again(place), "1", 20_000, 80_000),
    "told by the new one": lambda place: takeover.check_the_admin_port(_again(place), place.folder),
    "no longer wanted": lambda place: takeover.check_dropped(_again(place), place.folder, "1", "1"),
    "answered by the one that serves": lambda place: takeover.check_one_answers(_again(place), place.folder, "1"),
    "bound in vain": lambda place: takeover.check_bound_in_vain(_again(place), place.folder, "1"),
    "files of others": lambda place: takeover.check_foreign(_again(place), place.folder, "dropped", "1"),
    "a late probe": lambda place: takeover.check_a_late_probe(_again(place), place.folder, "1"),
    "left to one": lambda place: takeover.check_left(_again(place), place.folder, "told", "1"),
    "left to workers": lambda place: takeover.check_left(_again(place), place.folder, "killed", "2"),
    "refused at the last moment": lambda place: takeover.check_untouched(_again(place), place.folder, "2"),
    "streams of a subcommand": lambda place: standard.check_streams(
        standard.staged(place.server, place.start_proxy, place.folder, place.folder),
        "events tail told…ü --upstream {url}",
    ),
    "a proxy without streams": lambda place: standard.check_a_silent_proxy(place.server, "2", "2>&-", place.folder),
    "left to nobody": lambda place: takeover.test_files_are_left_to_nobody_who_has_gone(_again(place), place.folder),
    "left at once": lambda place: takeover.test_a_word_at_once_behind_the_sockets_is_heard(_again(place), place.folder),
    "one that ends": lambda place: takeover.check_meeting_one_that_ends(_again(place), place.folder),
    "a slow start": lambda place: takeover.test_a_slow_start_is_waited_for(_again(place), place.folder),
    "a silent visitor": lambda place: takeover.check_silent(_again(place), place.folder, "visitor"),
    "taken without files": lambda place: takeover.check_without_files(_again(place), place.folder),
    "taken by nobody": lambda place: takeover.test_who_cannot_serve_takes_nothing_over(_again(place), place.folder),
    "balance of workers": lambda place: workers.check_balance(place.proxy("--workers", "3")),
    "metrics of workers": lambda place: workers.test_the_admin_port_tells_of_all_workers(
        place.server, place.start_proxy
    ),
    "names on the page": lambda place: page.test_names_are_shown_only_where_that_is_wanted(place.server, place.proxy),
    "hostile names on the page": lambda place: page.test_hostile_names_are_text(place.proxy),
    "what falls due": lambda place: page.test_keys_are_counted_by_their_earliest_deadline(place.server, place.proxy),
    "many who look": lambda place: page.check_the_server_is_asked_little(
        place.server, admin_of(place.proxy("--admin", "127.0.0.1:0"))
    ),
    "words of Sentinels": _decisions,
    "deadlines in order": _in_order,
    "another server": lambda place: sentinel.check_moves(place.server, place.start_proxy),
    "a demoted primary": lambda place: sentinel.check_demoted(place.server, place.start_proxy),
    "a worker that loads": lambda place: workers.check_loading(place.server, place.folder, place.folder),
    "a killed worker": lambda place: workers.test_a_worker_that_is_killed_ends_the_proxy(
        place.server, place.start_proxy
    ),
    "a signal to a worker": lambda place: workers.test_a_signal_to_a_worker_counts_for_all(
        place.server, place.start_proxy
    ),
}


class FewRights(details.Stage):
    """Who connects to a replica may run no script: nothing can be put in front of their requests."""

    def through(self, node: Node, user: str = "", url: str = "") -> Raw:
        client = super().through(node, user, url)
        if node not in (self.source, self.target):
            assert node.command("ACL", "SETUSER", "low", "on", "nopass", "~*", "+@all", "-@scripting") == b"+OK\r\n"
            self.stack.callback(node.command, "ACL", "DELUSER", "low")
            assert client.command("AUTH", "low", "any") == b"+OK\r\n"
        return client


def _unseen_slot(stage: details.Stage) -> None:
    """A slot comes whose keys had come before the proxy started, and nobody touches them: the sweeper does."""
    source = stage.through(stage.source)
    slot, tag = stage.slot(7)
    key, moment = f"{tag}1", now_ms() + 4000
    assert source.command("SADD", key, "m", "n") == b":2\r\n"
    assert source.command("PEXPIREMEMBERAT", key, "m", moment) == b":1\r\n"
    stage.begin_move(slot)
    stage.cluster.move_keys(slot, stage.source, stage.target)
    stage.through(stage.target)
    stage.cluster.end_move(slot, stage.source, stage.target)
    until(lambda: now_ms() > moment, 6)
    until(lambda: stage.target.command("SCARD", key) == b":1\r\n", 1.5, "a removal in time")


AT_A_NODE = details.CHECKS | {"a slot that came before": _unseen_slot}


def _at_a_node(name: str, place: Place) -> None:
    cluster = place.cluster().until_whole().flush()
    stages = FewRights if name == "a takeover" else details.Stage
    with stages(cluster, place.folder) as stage:
        AT_A_NODE[name](stage)


CHECKS |= {name: partial(_at_a_node, name) for name in AT_A_NODE if name != "an index that has gone"}


@pytest.fixture(scope="module")
def own_cluster() -> Iterator[Callable[[], Cluster]]:
    """Gives a small cluster that these tests have for themselves; another where one has not become whole again."""
    with ExitStack() as stack:
        made: list[tuple[Cluster, ExitStack]] = []

        def get() -> Cluster:
            if made:
                try:
                    return made[-1][0].until_whole()
                except AssertionError:
                    made.pop()[1].close()
            own = stack.enter_context(ExitStack())
            made.append((details.small_cluster(KIND, own), own))
            return made[-1][0]

        yield get


@pytest.fixture(scope="module")
def own_server() -> Iterator[Callable[[str], Server]]:
    """Gives an empty server of a kind that these tests have for themselves; another where a break has left it of no
    use."""
    with ExitStack() as stack:
        made: dict[str, tuple[Server, ExitStack]] = {}

        def get(kind: str) -> Server:
            if kind in made:
                server, own = made.pop(kind)
                try:
                    server.flush()
                    server.forget_users()
                except (AssertionError, OSError):
                    own.close()
                else:
                    made[kind] = server, own
            if kind not in made:
                own = stack.enter_context(ExitStack())
                made[kind] = new_server(kind, own), own
            return made[kind][0]

        yield get


@contextmanager
def a_place(
    own_server: Callable[[str], Server], own_cluster: Callable[[], Cluster], folder: Path, check: str, package: Path
) -> Iterator[Place]:
    kind = NEWEST if check in NEWEST_CHECKS else NEWEST_REDIS if check in NEWEST_REDIS_CHECKS else KIND
    with ExitStack() as stack:
        yield Place(own_server(kind), folder, stack, own_cluster, package)


def test_each_check_catches_a_break() -> None:
    assert set(CHECKS) == {mutation.caught_by for mutation in MUTATIONS}


@pytest.mark.parametrize("check", CHECKS)
def test_the_proxy_as_it_is_passes(
    own_server: Callable[[str], Server], own_cluster: Callable[[], Cluster], tmp_path: Path, check: str
) -> None:
    """Within the time that a break is given, or breaks would be caught by that alone."""
    broken_copy(tmp_path, None, hasty=check in HASTY)
    package = tmp_path if check in HASTY else ROOT  # which is loaded already
    for last in (False, False, True):
        try:
            with a_place(own_server, own_cluster, tmp_path, check, package) as place, _time_of(check):
                CHECKS[check](place)
        except (AssertionError, ConnectionError, TimeoutError):
            if last:
                raise
        else:
            return


def _time_of(check: str) -> AbstractContextManager[None]:
    return impatience(LONG_PATIENCE.get(check, PATIENCE))


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_break_is_caught(
    own_server: Callable[[str], Server], own_cluster: Callable[[], Cluster], tmp_path: Path, mutation: Mutation
) -> None:
    broken_copy(tmp_path, mutation, hasty=mutation.caught_by in HASTY)
    for _ in range(TRIES):
        begun = False
        try:
            with (
                a_place(own_server, own_cluster, tmp_path, mutation.caught_by, tmp_path) as place,
                _time_of(mutation.caught_by),
            ):
                begun = True
                CHECKS[mutation.caught_by](place)
        except (AssertionError, ConnectionError, TimeoutError, Flaky):
            assert begun, "the server is of no use"
            return
    pytest.fail("not caught")

"""A store, RENAME, COPY or MOVE of a user with few rights goes by the deadlines that its keys have when it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from proxy.session.grants import _NEEDED, _SMALL, DANGEROUS, Grants, read_grants
from proxy.session.rights import _ALL
from tests.conftest import StartProxy
from tests.model import parse
from tests.raw import Raw, about, request
from tests.servers import KINDS, Proxy, Server, until
from tests.test_acl import FAR, NAMES
from tests.test_lives import asks_for_rights

A, B = "app:a", "app:b"

FEW = {
    "enough": (
        "~app:*",
        f"~{NAMES.shadow(b'app:*').decode().removesuffix('}')}",
        f"~{NAMES.index.decode()}",
        "+@all",
    ),
    "enough, told in an odd way": ("~app:*", f"~{NAMES.prefix.decode()}*", "+@all", "-@hash"),
    "no shadows": ("~app:*", "+@all"),
    "no scripts": ("~*", "+@all", "-@scripting"),
}
"""Users for whom no script replaces what can do without. The first two may run those that are needed here."""

ONTO = ["RENAME app:b app:a", "COPY app:b app:a REPLACE", "SUNIONSTORE app:a app:b", "SORT app:b ALPHA STORE app:a"]
"""Requests that void the target's deadlines."""

ALONG = ["RENAME app:b app:a", "COPY app:b app:a REPLACE", "MOVE app:b 1", "COPY app:b app:a DB 1"]
"""Requests that take deadlines along."""


class Few:
    """A server with such users, and a proxy that covers their keys, none of which has deadlines."""

    def __init__(self, server: Server, start_proxy: StartProxy, *args: str) -> None:
        self.server = server
        for name, rules in FEW.items():
            told = server.command("ACL", "SETUSER", name.replace(" ", "-"), "reset", "on", "nopass", "&*", *rules)
            assert told == b"+OK\r\n"
        self.proxy: Proxy = start_proxy(server, "--cover", "app:", *args)
        until(lambda: asks_for_rights(server, self.proxy), what="questions for rights")
        self.begin()

    def begin(self) -> None:
        self.server.flush()
        self.proxy.command("SADD", A, "m")
        self.proxy.command("SADD", B, "m")

    def login(self, who: str) -> Raw:
        client = self.proxy.connect()
        assert client.command("AUTH", who.replace(" ", "-"), "any") == b"+OK\r\n"
        return client

    def expire(self, key: str) -> None:
        assert self.proxy.command("EXPIREMEMBER", key, "m", FAR) == b":1\r\n"

    def ttl(self, line: str) -> int:
        """The lifetime of the member that a line has moved, stored or copied."""
        with self.proxy.connect() as client:
            if line.endswith(" 1"):
                client.command("SELECT", 1)
            return int(client.command("TTL", B if line.startswith("MOVE") else A, "m")[1:-2])


@pytest.fixture(scope="module", params=KINDS)
def few_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server = Server(request.param)
    yield server
    server.close()


@pytest.fixture
def few(few_server: Server, start_proxy: StartProxy) -> Few:
    return Few(few_server, start_proxy)


def say(client: Raw, lines: list[str], *, at_once: bool) -> list[bytes]:
    if not at_once:
        return [client.command(*line.split()) for line in lines]
    client.send(b"".join(request(*line.split()) for line in lines))
    return client.replies(len(lines))


@pytest.mark.parametrize("who", ["enough", "enough, told in an odd way", "default"])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_deadline_that_the_transaction_sets_itself_counts(few: Few, who: str, at_once: bool) -> None:
    for key, lines in ((A, ONTO), (B, ALONG)):
        for line in lines:
            few.begin()
            with few.login(who) as client:
                said = say(client, ["MULTI", f"EXPIREMEMBER {key} m {FAR}", line, "EXEC"], at_once=at_once)
                assert said[-1].startswith(b"*2\r\n:1\r\n"), said
            assert few.ttl(line) == -1 if key == A else about(few.ttl(line), FAR), line


def test_a_deadline_that_the_transaction_has_moved_counts(few: Few) -> None:
    with few.login("enough, told in an odd way") as client:
        client.command("SADD", "app:c", "m")
        lines = ["MULTI", f"EXPIREMEMBER {B} m {FAR}", f"RENAME {B} {A}", f"SUNIONSTORE {A} app:c", "EXEC"]
        assert say(client, lines, at_once=False)[-1] == b"*3\r\n:1\r\n+OK\r\n:1\r\n"
    assert few.ttl(lines[-2]) == -1


def check_anothers(few: Few, who: str, line: str, key: str) -> None:
    """Another client sets a deadline while the transaction waits."""
    few.begin()
    with few.login(who) as client:
        assert client.command("MULTI") == b"+OK\r\n"
        assert client.command(*line.split()) == b"+QUEUED\r\n"
        few.expire(key)
        said = client.command("EXEC")
        if who in ("enough", "default"):
            assert said.startswith(b"*1\r\n"), said
            return
        assert said.startswith(b"-EXECABORT"), (who, line, said)
        assert client.command("SMEMBERS", B) == b"*1\r\n$1\r\nm\r\n"
    assert about(few.proxy.command("TTL", key, "m"), FAR)


@pytest.mark.parametrize("who", [*FEW, "default"])
def test_a_deadline_that_another_client_sets_before_exec_counts(few: Few, who: str) -> None:
    for line in ONTO:
        check_anothers(few, who, line, A)
        if who in ("enough", "default"):
            assert few.ttl(line) == -1, line
    for line in ALONG:
        check_anothers(few, who, line, B)
        if who in ("enough", "default"):
            assert about(few.ttl(line), FAR), line


def test_exec_fails_while_nobody_can_tell_of_deadlines(few_server: Server, start_proxy: StartProxy) -> None:
    few = Few(few_server, start_proxy, "--control-timeout", "1")
    with few.login("no shadows") as client:
        assert say(client, ["MULTI", f"RENAME {B} {A}"], at_once=False)[-1] == b"+QUEUED\r\n"
        assert few.server.command("CLIENT", "PAUSE", 2500, "ALL") == b"+OK\r\n"
        assert client.command("EXEC").startswith(b"-EXECABORT")


@pytest.mark.parametrize("who", FEW)
def test_nothing_is_refused_on_keys_without_deadlines(few: Few, who: str) -> None:
    for line in (*ONTO, *ALONG, "RENAMENX app:b app:new", "RESTORE app:a 0 junk REPLACE"):
        for at_once in (True, False):
            few.begin()
            with few.login(who) as client, few.server.connect() as straight:
                said = say(client, ["MULTI", line, "EXEC"], at_once=at_once)[-1]
                few.begin()
                assert straight.command("AUTH", who.replace(" ", "-"), "any") == b"+OK\r\n"
                assert said == say(straight, ["MULTI", line, "EXEC"], at_once=True)[-1], (line, at_once)
                few.begin()
                alone = client.command(*line.split())
                few.begin()
                assert alone == straight.command(*line.split()), line


def check_moved_without_deadlines(few: Few) -> None:
    """What a script has moved has no deadlines where its source had none, and is watched until EXEC."""
    few.server.command(
        "ACL", "SETUSER", "in-part", "reset", "on", "nopass", "&*", "+@all", "~app:*", "~tmp:*",
        f"~{NAMES.shadow(b'app:*').decode().removesuffix('}')}", f"~{NAMES.index.decode()}",
    )  # fmt: skip
    until(lambda: runs_script(few, "in-part", "RENAME app:b app:a"), what="news of the user")
    for first in ("RENAME app:b app:a", "COPY app:b app:a REPLACE"):
        for then in ("RENAME app:a tmp:c", "COPY app:a tmp:c"):
            for expires in (False, True):
                few.begin()
                with few.login("in-part") as client:
                    said = say(client, ["MULTI", first, then], at_once=True)
                    assert said[1:] == [b"+QUEUED\r\n"] * 2, (first, then)
                    if expires:
                        few.expire(B)
                    assert client.command("EXEC").startswith(b"-EXECABORT" if expires else b"*2\r\n"), (first, then)


def test_what_has_been_moved_without_deadlines_needs_no_rights(few: Few) -> None:
    check_moved_without_deadlines(few)


def runs_script(few: Few, who: str, line: str) -> bool:
    """Whether a script runs a request of that user outside a transaction."""
    few.begin()
    with few.server.connect() as watcher, few.login(who) as client:
        assert watcher.command("MONITOR") == b"+OK\r\n"
        client.command(*line.split())
        wanted = b'"%b" ' % line.split()[0].encode()
        while True:
            seen = watcher.reply()
            if wanted in seen and b"EVAL" not in seen:
                return b" lua]" in seen


@pytest.mark.parametrize("line", [*ONTO, *ALONG])
def test_a_user_with_the_rights_gets_the_script_whatever_the_keys_have(few: Few, line: str) -> None:
    """So that no deadline can come in between; of others the server is asked first."""
    assert runs_script(few, "enough", line)
    assert not runs_script(few, "no shadows", line)


@pytest.mark.parametrize(
    ("rules", "allowed"),
    [
        ("~app:* ~own:* +@all", True),
        ("%RW~app:* ~own:* +@all", True),
        ("~* &* +@all -@dangerous", True),
        ("~* +@all -flushall -config|set", True),
        ("~* -@all +@all", True),
        ("~* +@all -rename +rename", True),
        ("~* +@all (~other +@all)", True),
        ("~a?p:* ~own:1 +@all", False),
        ("~app:* ~ow*:1 +@all", False),
        ("~app:1 ~own:1 +@all", True),
        ("~app: ~own:1 +@all", False),
        ("~app:* +@all", False),
        ("%R~app:* ~own:* +@all", False),
        ("~app:* (~own:* +@all)", False),
        ("~* +@all -rename", False),
        ("~* +@all -eval", False),
        ("~* +@all -time", False),
        ("~* +@all -select|x", False),
        ("~* +@all -@hash", False),
        ("~* +@all -rename +rename|x", False),
        ("~* +@all -@all", False),
        ("~* -@all +@write +@scripting", False),
        ("~* +@all db=0", False),
        ("~* db=0 +@all", False),
    ],
)
def test_who_may_run_the_scripts_is_seen_in_the_list_of_users(rules: str, allowed: bool) -> None:
    grants = read_grants(rules.encode().split())
    assert (grants is not None and grants.allow(b"RENAME", [b"app:1", b"own:1"])) is allowed


def test_what_takes_long_to_match_is_not_matched() -> None:
    assert not Grants(frozenset(), (b"*",)).allow(b"RENAME", [b"k"] * 33)
    assert read_grants([b"+@all", *[b"~k"] * 33]) is None
    began = time.monotonic()
    assert not Grants(frozenset(), (b"*a" * 500 + b"*b",) * 32).allow(b"RENAME", [b"a" * 10_000] * 32)
    assert time.monotonic() - began < 1


def test_small_categories_have_no_other_commands_of_scripts(few_server: Server) -> None:
    for rule in _SMALL:
        named = set(parse(few_server.command("ACL", "CAT", rule[2:])))
        assert named & {*_NEEDED, *_ALL.split()} <= DANGEROUS, rule

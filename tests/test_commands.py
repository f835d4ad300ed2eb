"""The command table against the server's own `COMMAND`: no write to a collection that the table does not place."""

from __future__ import annotations

import re

import pytest
import redis

from proxy.commands.described import ServerCommands
from proxy.commands.table import COMMANDS, FREQUENT, FREQUENT_READS, HARMLESS, PURE_READS, STREAMED, Effect
from tests.servers import ROOT, Server

pytestmark = pytest.mark.every_version

COLLECTIONS = {"@set", "@hash", "@sortedset", "@list", "@geo"}

Described = dict[bytes, tuple[set[str], set[str], list[int]]]
"""Upper-case name → flags, ACL categories, and position of the first key, of the last, and step."""


@pytest.fixture
def commands(upstream: Server) -> Described:
    """What the server says of its commands."""
    with redis.Redis.from_url(upstream.url) as client:
        client.response_callbacks.clear()
        rows = client.execute_command("COMMAND")
    found = {}
    for row in rows:
        flags = {flag.decode() for flag in row[2]}
        categories = {category.decode() for category in row[6]}
        found[row[0].upper()] = (flags, categories, [int(row[3]), int(row[4]), int(row[5])])
    return found


def test_every_write_to_a_collection_is_placed(commands: Described) -> None:
    writes = {
        name for name, (flags, categories, _) in commands.items() if "write" in flags and categories & COLLECTIONS
    }
    assert len(writes) > 45
    assert writes - COMMANDS.keys() == set()


def test_every_command_that_may_write_is_placed(upstream: Server) -> None:
    server = ServerCommands()
    with redis.Redis.from_url(upstream.url, protocol=2) as client:
        client.response_callbacks.clear()
        rows = client.execute_command("COMMAND")
    server.read(rows)
    names = {bytes(row[0]).upper() for row in rows}
    assert {name for name in names if server.command(name) is not COMMANDS.get(name)} == set()
    assert server.command(b"NO.SUCH") is not None, "it may be a module's that is loaded later"
    assert not HARMLESS & COMMANDS.keys()


def test_the_keys_stand_where_the_server_says(commands: Described) -> None:
    checked = 0
    for name, command in COMMANDS.items():
        if name not in commands or command.effect in (Effect.KEYSPACE, Effect.MULTI, Effect.EXEC, Effect.DISCARD):
            continue
        first, last, step = commands[name][2]
        arguments = [name, *(b"a%d" % position for position in range(1, 9))]
        ours = command.keys(arguments)
        if ours is None:
            continue  # SORT, GEORADIUS: their target stands behind a word of its own
        theirs = arguments[first : (last + 1 if last >= 0 else len(arguments) + last + 1) : step or 1]
        assert set(ours) <= set(theirs), name
        checked += 1
    assert checked > 30


def test_what_is_streamed_has_its_only_key_in_front(
    commands: dict[bytes, tuple[set[str], set[str], list[int]]],
) -> None:
    for name in STREAMED & commands.keys():
        assert commands[name][2] in ([1, 1, 1], [0, 0, 0]), name


def test_what_is_frequent_needs_no_look_while_it_touches_no_known_key(commands: Described) -> None:
    known = FREQUENT & commands.keys()
    assert len(known) > 70
    for name in known:
        assert not (name in COMMANDS and COMMANDS[name].always), name
        flags, _, (first, _, _) = commands[name]
        assert first == 1 or name == b"PUBLISH", name
        assert not flags & {"movablekeys", "blocking", "noscript"}, name


def test_what_may_be_shared_changes_no_connection_and_reads_are_reads(commands: Described) -> None:
    for name in FREQUENT & commands.keys():
        assert not commands[name][1] & {"@connection", "@transaction", "@blocking", "@scripting", "@admin"}, name
    assert FREQUENT_READS < FREQUENT
    for name in PURE_READS & commands.keys():
        assert not commands[name][0] & {"write", "may_replicate"}, name
        assert "readonly" in commands[name][0], name


def test_the_documentation_says_what_each_of_them_does(commands: Described) -> None:
    text = (ROOT / "docs" / "semantics.md").read_text("utf-8")
    table = re.findall(r"^\| `.*?\|", text.split("## What each command does", 1)[1].split("\n## ", 1)[0], re.MULTILINE)
    named = {name.encode() for row in table for name in re.findall(r"[A-Z][A-Z_-]+", row)}
    assert COMMANDS.keys() - named == set()
    writes = {name for name, (flags, groups, _) in commands.items() if "write" in flags and groups & COLLECTIONS}
    assert writes - named == set()

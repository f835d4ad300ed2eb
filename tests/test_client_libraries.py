"""Unmodified client libraries of other languages: their programs print the same straight and through the proxy."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import StartProxy, installed
from tests.libraries import LIBRARIES, NPM, run
from tests.pages import Block, page
from tests.servers import ROOT, Proxy, Server
from tests.test_clients import port_of

PROGRAMS: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    "ioredis": ("ioredis.mjs", [()]),
    "node-redis": ("node_redis.mjs", [(2,), (3,)]),
    "GLIDE": ("glide.mjs", [(2,), (3,)]),
    "phpredis": ("phpredis.php", [()]),
    "Predis": ("predis.php", [()]),
    "redis-rb": ("redis_rb.rb", [()]),
}
"""Library → its program in tests/programs, and what it is called with behind the port: versions of RESP."""

MEMBERS = {
    "ioredis": "[[[null,1],[null,1],[null,100],[null,1],[null,-1]],",
    "node-redis": '[["apple","pear","plum"],[1,1,100,1,-1],',
    "GLIDE": "[[1,1,100,true,-1],",
    "phpredis": "[[1,1,100,1,-1],",
    "Predis": "[[1,1,100,1,-1],",
    "redis-rb": "[[1,1,100,1,-1],",
}
"""How what it prints of members with deadlines begins: two deadlines set, one of them read, taken away, read again."""

ELSEWHERE = {"redis-py", "TypeScript"}
"""What tests/test_clients.py and tests/test_redis_py.py do more with, and a language of a library that is here."""

CALLS = [(library, arguments) for library, (_, each) in PROGRAMS.items() for arguments in each]


@pytest.mark.parametrize(("library", "arguments"), CALLS, ids=str)
def test_a_program_prints_the_same_through_the_proxy(
    library: str, arguments: tuple[int, ...], server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    name, _ = PROGRAMS[library]
    program = (ROOT / "tests" / "programs" / name).read_text("utf-8")
    printed = []
    for port in (server.port, port_of(start_proxy(server))):
        folder = tmp_path / str(port)
        folder.mkdir()
        printed.append(run(library, program, folder, port, *arguments))
    straight, through = printed
    *same, members = through
    assert same == straight
    assert len(same) >= 12
    assert re.sub(r"\b99\b", "100", members) == f'members {MEMBERS[library]}["pear","plum"]]'


# Methods for lifetimes of fields, on a server that lacks the commands.

FIELDS: dict[str, str] = {
    "ioredis": "fields_ioredis.mjs",
    "node-redis": "fields_node_redis.mjs",
    "GLIDE": "fields_glide.mjs",
    "phpredis": "fields_phpredis.php",
    "redis-rb": "fields_redis_rb.rb",
}
"""Library → its program. The last two have no methods of their own for them in the tested versions."""


@pytest.mark.parametrize("library", FIELDS)
def test_fields_on_an_old_server_are_as_on_a_new_one(
    library: str, shared_server: Callable[[str], Server], shared_proxy: Callable[[str], Proxy], tmp_path: Path
) -> None:
    program = (ROOT / "tests" / "programs" / FIELDS[library]).read_text("utf-8")
    ports = shared_server(installed("redis-8.10")).port, port_of(shared_proxy(installed("redis-6.2")))
    new, through = run(library, program, tmp_path, *ports)
    one, other = (re.sub(r"\b(4|6)999\b", lambda found: f"{int(found[1]) + 1}000", line) for line in (new, through))
    assert one == other
    assert one.replace(" ", "").startswith("[[1,-2],[0],[1],[5000,-1],[4000000000001],[4000000001],[1,-1],1,[7000],")
    assert "wrong number of arguments" in one


# docs/clients.md

PAGE = page("docs/clients.md")
MARKED = [block for block in PAGE.blocks if block.marker]
"""The others are run by tests/test_docs.py."""


@pytest.mark.parametrize("block", MARKED, ids=lambda block: block.marker)
def test_a_program_of_the_page_prints_what_it_says(
    block: Block, server: Server, start_proxy: StartProxy, tmp_path: Path
) -> None:
    port = port_of(start_proxy(server))
    said = re.findall(r"(?://|#) (\d+|\[.*\])$", block.text, re.M)
    printed = run(block.marker, block.text.replace("6380", str(port)), tmp_path)
    assert [re.sub("^119[0-9]$", "1200", line) for line in printed] == said


def test_the_page_has_a_program_of_each_library() -> None:
    assert [block.marker for block in MARKED] == [*LIBRARIES]
    assert PROGRAMS.keys() == MEMBERS.keys() == LIBRARIES.keys() - ELSEWHERE
    for version in NPM.values():
        assert f"| {version.rpartition('.')[0]} |" in PAGE.text

"""Shortened scripts: they compile to what the long ones compile to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement, product

import pytest

from proxy.scripts.calls import Variant, composed, script
from proxy.scripts.shortening import GLOBALS, ShorteningError, Text, shorten
from proxy.session.operations import MIXED
from tests.bytecode import Compiled, compiled
from tests.raw import Raw
from tests.servers import KINDS, ROOT, Server

LUA = ROOT / "proxy" / "scripts" / "lua"
NAMES = sorted(path.stem for path in LUA.glob("*.lua"))
DOES = {
    "batch": (
        "",
        "aAoeprt",
        "a",
        "A",
        "o",
        "e",
        "p",
        "r",
        "t",
        "ae",
        "Ao",
        "er",
        "aoep",
        "W",
        "kW",
        "akm",
        "ekmd",
        "AEWaeokprm",
        "AEWaeokprmd",
    ),
    "expire": ("", "e", "ex", "ed", "exd"),
    "expire_members": ("", "1", "1x", "1d", "1xd", "n", "nx", "nd", "nxd"),
}


@cache
def forms(name: str) -> dict[str, str]:
    """Return the long text of a script in all forms in which it is sent, by what they are called."""
    texts = {}
    for clustered in (True, False):
        for undeclared in {False, clustered}:
            for does in DOES.get(name, ("",)):
                for quiet in {False, "local function lapse(" in composed(name)}:
                    for told, lists, cleared in product((False, True), repeat=3):
                        text = composed(name, Variant(quiet, undeclared, does, clustered, told, lists, cleared))
                        texts[f"{does} {quiet=} {undeclared=} {clustered=} {told=} {lists=} {cleared=}"] = text
    return {what: text for text, what in {text: what for what, text in texts.items()}.items()}


class Compiler:
    """Compiles texts, by a server."""

    def __init__(self, client: Raw) -> None:
        self._client = client

    def __call__(self, text: str) -> Compiled:
        reply = self._client.command("EVAL", "return string.dump(assert(loadstring(ARGV[1])))", 0, text)
        head, _, rest = reply.partition(b"\r\n")
        assert head[:1] == b"$", reply
        return compiled(rest[:-2])


@pytest.fixture(scope="module")
def compiler() -> Iterator[Compiler]:
    server = Server(KINDS[0])
    with server.connect() as client:
        yield Compiler(client)
    server.close()


@pytest.mark.parametrize("name", NAMES)
def test_a_script_compiles_to_the_same_as_its_long_text(compiler: Compiler, name: str) -> None:
    """But for the functions that nothing calls, each part of the work is seen to change nothing."""
    for what, long in forms(name).items():
        text = Text(long)
        before = compiler(long)
        assert compiler(str(text)) == before, what
        text.drop_unused()
        whole = str(text)
        kept = compiler(whole)
        assert kept.globals_named() <= before.globals_named(), what  # else something has been dropped that is used
        assert kept.count() <= before.count(), what
        text.rename()
        assert compiler(str(text)) == kept, what
        assert str(text) == shorten(long), what
        assert len(str(text)) <= len(whole), what


@pytest.mark.parametrize("mixed", ["", "m", "md"])
def test_a_batch_has_all_that_its_operations_need(mixed: str) -> None:
    """`script` raises an error for a name that no part declares."""
    for one, other in combinations_with_replacement(MIXED, 2):
        does = "".join(sorted({one, other})) + mixed
        for clustered, lists in product((False, True), repeat=2):
            assert script("batch", Variant(does=does, clustered=clustered, lists=lists)), does


def test_what_servers_hash_is_short() -> None:
    """Limits for those that come with nearly each request of a client that does not share, in bytes."""
    limits = {"expire": 3310, "expire_members": 3940, "add": 3725, "remove": 3565, "ttl": 2000}
    for name, limit in limits.items():
        does = "1" if name == "expire_members" else "e"
        assert len(script(name, Variant(does=does, clustered=False, lists=False))) < limit, name
        assert len(script(name, Variant(does=does, clustered=False))) < limit + 1000, name
        assert b"--" not in script(name)
        assert b"  " not in script(name)


def test_what_is_for_cluster_nodes_is_not_in_front_of_others() -> None:
    for name in NAMES:
        if b"CLUSTERDOWN" in script(name):
            assert re.search(rb"rehashing|CLUSTERDOWN|non local", script(name, Variant(clustered=False))) is None, name


# What has names, and what only looks like it.

PIECES = {
    "local one = 1 return one": "local a=1 return a",
    "local one, two = 1, 2\nreturn two .. one": "local a,b=1,2\nreturn b..a",
    "local one = {one = 1, ['one'] = 2} return one.one": "local a={one=1,['one']=2}return a.one",
    "local one, t = 1, {} t.one = {two = 1; one, one = 2} t:one(one)":
        "local a,b=1,{}b.one={two=1;a,one=2}b:one(a)",
    "local one = {function() local two = 1; two = 2 return two end, two = 1} return one":
        "local b={function()local a=1;a=2 return a end,two=1}return b",
    "local one = 'one' -- one\nreturn one .. \"one \\\" -- one\" .. 'it\\'s one'":
        "local a='one'return a..\"one \\\" -- one\"..'it\\'s one'",
    "local one = [[one -- one]] .. [==[one ]] one]==] return one": "local a=[[one -- one]]..[==[one ]] one]==]return a",
    "local one = {} return one[ [[one]] ]": "local a={}return a[ [[one]]]",
    "local one = 1 return 2 - -one, 2 .. one, one ..2, 1. ..one, .5 ..one, one .. .5":
        "local a=1 return 2- -a,2 ..a,a..2,1. ..a,.5 ..a,a.. .5",
    "local one = 0x1F + 1e-5 return one ~= 1 and not (one <= 2)": "local a=0x1F+1e-5 return a~=1 and not(a<=2)",
    "for one = 1, 2 do for two, three in pairs({}) do ARGV[two] = three end end":
        "for c=1,2 do for a,b in pairs({})do ARGV[a]=b end end",
    "repeat local one = pcall(tonumber, ...) until one return ...":
        "repeat local a=pcall(tonumber,...)until a return...",
    "local KEYS, keys = {}, KEYS return KEYS[1], keys[1]": "local KEYS,a={},KEYS return KEYS[1],a[1]",
    "local one = 1 local function two(one) return one end return two(one), {...}":
        "local a=1 local function b(a)return a end return b(a),{...}",
    "local one = 2 do local one = one return one end": "local a=2 do local a=a return a end",
    "if ARGV[1] then return 1 elseif ARGV[2] then return 2 else return 3 end":
        "if ARGV[1]then return 1 elseif ARGV[2]then return 2 else return 3 end",
    "while not ARGV[1] do break end": "while not ARGV[1]do break end",
    # What nothing names:
    "local function one() return 1 end return 2": "return 2",
    "local function one() return one() end local function two() return one() end return 2": "return 2",
    "local one, two = 1, 2 return 2": "local a,b=1,2 return 2",
    "local one = false local two = {} local three = 'x' return 2": "return 2",
    "local one = false and ARGV[1] return 2": "local a=false and ARGV[1]return 2",
    "local one = 'x' .. redis.call('time')[1] return 2": "local a='x'..redis.call('time')[1]return 2",
    "local one = {} (redis.call)('time')": "local a={}(redis.call)('time')",
    "local one = 1 one = redis.call('time')": "local a=1 a=redis.call('time')",
    "local function one() end local t = {one = one} return t": "local function a()end local b={one=a}return b",
    "local function one() end local t = {one = 1} return t.one": "local a={one=1}return a.one",
}  # fmt: skip


@pytest.mark.parametrize("text", PIECES)
def test_a_piece(compiler: Compiler, text: str) -> None:
    assert shorten(text) == PIECES[text]
    short, long = compiler(PIECES[text]), compiler(text)
    assert short == long or len(PIECES[text]) < len(text) / 2


def test_lines_end_where_there_has_to_be_a_blank() -> None:
    text = "-- A\nlocal one = 1\n\n-- B\nlocal two = ARGV\nreturn one,\n  two"
    assert shorten(text) == "local a=1\nlocal b=ARGV\nreturn a,b"


@pytest.mark.parametrize(
    "text",
    [
        "one = 1", "return one", "local one = 1 return two", "function one() end",
        "local t = {} function t:one() return self end",
        "local one = 'one", "local one = [[one]", "return 1 @ 2", "goto one", "return 1 // 2", "--[[ one ]] return 1",
        "do return 1", "return 1 end", "return (1", "return {1)", "repeat return 1 end", "if ARGV then until",
        "local one = 1 & 2",
        "local one <const> = 1", "local ö = 1", "::one::",
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(text: str) -> None:
    with pytest.raises(ShorteningError):
        shorten(text)


def test_names_are_many_and_none_is_a_word_of_the_language(compiler: Compiler) -> None:
    text = "\n".join(f"do local name_{number} = ARGV return name_{number} end" for number in range(5000))
    short = shorten(text)
    assert compiler(short) == compiler(text)
    names = re.findall(r"local (\w+)=", short)
    assert len(set(names)) == 5000
    assert not GLOBALS & set(names)

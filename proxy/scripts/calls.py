"""Load the Lua scripts, one file per operation, and combine them with shared pieces.

Its tests: tests/test_refusals.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final, NamedTuple

from proxy.commands.described import Terms
from proxy.scripts.shortening import shorten
from proxy.wire.request import bulk, bulks

_FOLDER: Final = files("proxy.scripts") / "lua"
_BEGIN: Final = "local ok, reply = pcall(function()"
_END: Final = "end)\nif ok then return reply end\nreturn failure or error(reply, 0)"
TELL: Final = b"TELL "
"""The short form's reply begins with this if events must be sent. The number of members removed so far follows."""
_TELLING: Final = ("need", "glob")  # pieces that only `lapse` needs
_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_READS: Final = re.compile(r"^-- Reads only$", re.MULTILINE)
_ALONE: Final = re.compile(r"^-- Alone: ", re.MULTILINE)
_PART: Final = re.compile(r"^ *-- For ([\w+]+)(?:; uses: ?(.*))?$", re.MULTILINE)
_ALL, _CLUSTERED, _ALONE_THERE, _TELLS, _LISTS, _NO_LISTS, _MIXED, _DECLARED = "all", "c", "-", "t", "L", "n", "m", "d"
_CLEARED: Final = "s"
"""The letters of `For` comments, besides those of a script's operations. `c`: the server may be a cluster node (`-`: it
is not); `t`: there may be rules for events; `L`: the script may have to remove many elements of a list (`n`: it need
not); `m`: as `Terms.mixed`; `d`: as `Terms.declared`, for a mixed batch; `s`: as `Terms.cleared`."""
_GRACE: Final = 50
"""Deadlines of the last `grace` ms do not count. It is 0, but for scripts in whose transaction due members have been
removed in front of the requests, which must all see the same moment (`Terms.cleared`)."""
_READING: Final = b"#!lua flags=no-writes,allow-cross-slot-keys\n"
"""The first line of a script that only reads. Without this line servers assume that the script may write, and delay it
until a `CLIENT PAUSE … WRITE` ends. With this line they also need the other flag, to access keys of several slots."""


def _parts_for(text: str, does: str) -> tuple[str, set[str]]:
    """Return a script without the parts that are not needed, and the pieces that only removed parts use.

    Args:
        text: the script. A comment line with `For` and letters precedes each part. The part is needed if one of its
            letters is in `does`; if they contain a plus, one letter before it and one after it must be in `does`.
        does: the letters of what the script has to do.
    """
    front, *parts = _PART.split(text)
    kept, used, unused = [front], set[str](), set[str]()
    for letters, uses, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        wanted = letters == _ALL or not any(set(does).isdisjoint(some) for some in letters.split("+"))
        if wanted:
            kept.append(part)
        (used if wanted else unused).update(filter(None, re.split(r",\s*", uses or "")))
    return "".join(kept), unused - used


class Variant(NamedTuple):
    """The conditions for which a script is composed. They decide which parts the script gets.

    Attributes:
        quiet: for a script that removes expired members, whether to send the short form, which returns `TELL` if events
            must be sent.
        undeclared: whether all keys come in ARGV, and the server sees only some of them (shared/undeclared.lua).
        does: for a script with several operations, the letters of the operations that it needs.
        clustered: whether the server may be a cluster node.
        told: whether there may be rules for events.
        lists: whether the script may have to remove many elements of a list.
        cleared: as in `Terms`.
    """

    quiet: bool = False
    undeclared: bool = False
    does: str = ""
    clustered: bool = True
    told: bool = False
    lists: bool = True
    cleared: bool = False


_WHOLE: Final = Variant()


def composed(name: str, variant: Variant = _WHOLE) -> str:
    """Return the whole text of a script, not shortened; see `script`.

    The text has first the shared pieces in the script's `-- uses:` line, then its own code. Errors are returned,
    because the server adds the script's name and line to an error that is raised.
    """
    text = _read(name)
    if _ALONE.search(text) and not variant.undeclared:
        return f"local call = redis.call\n{text}"
    uses = _USES.search(text)
    pieces = [] if uses is None else re.split(r",\s*", uses[1])
    if variant.does:
        text, unused = _parts_for(text, variant.does)
        pieces = [piece for piece in pieces if piece not in unused]
    if variant.quiet:
        pieces = ["quiet" if piece == "lapse" else piece for piece in pieces if piece not in _TELLING]
    front = _read("shared/undeclared") if variant.undeclared else "local undeclared = false\n"
    front += f"local grace = {_GRACE if variant.cleared else 0}"
    where = (_CLUSTERED if variant.clustered else _ALONE_THERE) + (_TELLS if variant.told else "")
    where += (_LISTS if variant.lists else _NO_LISTS) + (_CLEARED if variant.cleared else "")
    call, *parts = (_parts_for(_read(f"shared/{piece}"), where)[0] for piece in ("call", *pieces))
    return "\n".join((front, call, _BEGIN, *parts, text, _END))


@cache
def script(name: str, variant: Variant = _WHOLE) -> bytes:
    """Return the text of a script as it is sent: shortened, because the server hashes it at each call.

    Args:
        name: the file's name without the suffix, such as "expire".
        variant: the conditions for which the script is composed.
    """
    return shorten(composed(name, variant)).encode()


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


@cache
def reads_only(name: str) -> bool:
    """Return whether a script only reads. Its first line then says so to Redis 7.0 and later, which enforce it."""
    return _READS.search(_read(name)) is not None


def control_script(name: str, *, declares: bool, quiet: bool = False, undeclared: bool = False) -> bytes:
    """Return the text of a script for the proxy's own user; see `script`.

    `declares`: whether the server reads a script's terms from its first line.
    """
    text = script(name, Variant(quiet=quiet, undeclared=undeclared))
    return _READING + text if declares and reads_only(name) else text


def _head(terms: Terms) -> bytes:
    """Return the head that makes the server check a script like the command that it replaces."""
    if terms.mixed:
        return b""  # the server checks each call that the script makes
    if not terms.declared:
        # Check first: a script's first write may need no memory, and after that the server allows all others.
        return _guard() if terms.takes_memory else b""
    if not terms.writes:
        return _READING if terms.across else b"#!lua flags=no-writes\n"
    return b"#!lua\n" if terms.takes_memory else b"#!lua flags=allow-oom\n"


@cache
def _guard() -> bytes:
    return shorten(_read("shared/guard")).encode() + b"\n"


@cache
def _opening(terms: Terms, name: str, keys: int, *, undeclared: bool, loaded: bool, does: str) -> bytes:
    if terms.mixed:
        does += _MIXED + (_DECLARED if terms.declared else "")
    lists = terms.lists or name == "batch"  # a batch has the terms of one of its requests; the others may use lists
    variant = Variant(
        undeclared=undeclared,
        does=does,
        clustered=terms.clustered,
        told=terms.told,
        lists=lists,
        cleared=terms.cleared,
    )
    text = _head(terms) + script(name, variant)
    if loaded:
        digest = sha1(text, usedforsecurity=False).hexdigest().encode()
        # EVALSHA_RO for a script that only reads: a server that has lost the text takes EVALSHA for a write, which
        # CLIENT PAUSE WRITE delays.
        command = b"EVALSHA" if terms.writes or not terms.declared else b"EVALSHA_RO"
        return b"%b%b%b" % (bulk(command), bulk(digest), bulk(b"%d" % keys))
    return b"%b%b%b" % (bulk(b"EVAL"), bulk(text), bulk(b"%d" % keys))


def all_in_arguments(keys: Sequence[bytes], present: str = "") -> list[bytes]:
    """Return the beginning of ARGV for a script whose keys are not all declared; see `evaluation`."""
    return [b"%d" % len(keys), present.encode(), *keys]


def evaluation(
    terms: Terms,
    name: str,
    keys: list[bytes],
    arguments: list[bytes],
    tail: bytes = b"",
    tail_count: int = 0,
    *,
    declared: list[bytes] | None = None,
    present: str = "",
    loaded: bool = False,
    does: str = "",
) -> bytes:
    """Encode an EVAL of a script. EVAL contains the text, so the script need not be loaded.

    Args:
        terms: the terms on which the server runs the script.
        name: the script.
        keys: KEYS.
        arguments: the beginning of ARGV.
        tail: the rest of ARGV, as encoded bulk strings.
        tail_count: how many strings `tail` holds.
        declared: the keys that the server sees as KEYS; by default all.
        present: the positions of keys that must be at this node, for shared/undeclared.lua.
        loaded: whether the server has run the same script before, so that the digest is enough.
        does: as in `Variant`.

    Returns:
        The request.
    """
    undeclared = declared is not None
    if declared is not None:
        keys, arguments = declared, [*all_in_arguments(keys, present), *arguments]
    return b"*%d\r\n%b%b%b" % (
        3 + len(keys) + len(arguments) + tail_count,
        _opening(terms, name, len(keys), undeclared=undeclared, loaded=loaded, does=does),
        bulks([*keys, *arguments]),
        tail,
    )

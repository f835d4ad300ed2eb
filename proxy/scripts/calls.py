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
"""The beginning of a short form's reply if events must be sent; the number of removed members follows."""
_TELLING: Final = ("need", "glob")  # pieces that only `lapse` needs
_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_READS: Final = re.compile(r"^-- Reads only$", re.MULTILINE)
_ALONE: Final = re.compile(r"^-- Alone: ", re.MULTILINE)
_PART: Final = re.compile(r"^ *-- For ([\w+]+)(?:; uses: ?(.*))?$", re.MULTILINE)
_ALL, _CLUSTERED, _ALONE_THERE, _TELLS, _LISTS, _NO_LISTS = "all", "c", "-", "t", "L", "n"
_READING: Final = b"#!lua flags=no-writes,allow-cross-slot-keys\n"
"""The first line of a script that only reads. Without it servers assume that it may write, and hold it until a `CLIENT
PAUSE … WRITE` ends. Other flags are those of a script without such a line."""


def _parts_for(text: str, does: str) -> tuple[str, set[str]]:
    """Return a script without the parts that it does not need, and the pieces that only removed parts use.

    Args:
        text: the script, in which comment lines with `For` and letters precede such parts: any letter is enough, but of
            letters joined by a plus all are needed.
        does: the letters of the operations that it needs.
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
    """What a script is composed for.

    Attributes:
        quiet: for a script that removes expired members, whether to send the short form, which returns `TELL` if events
            must be sent.
        undeclared: whether all keys come in ARGV, so that the server sees only some of them (shared/undeclared.lua).
        does: for a script with several operations, the letters of those that it needs.
        clustered: whether the server may be a cluster node.
        told: whether there may be rules for events.
        lists: whether it may have to remove many elements of a list.
    """

    quiet: bool = False
    undeclared: bool = False
    does: str = ""
    clustered: bool = True
    told: bool = False
    lists: bool = True


_WHOLE: Final = Variant()


def composed(name: str, variant: Variant = _WHOLE) -> str:
    """Return the whole text of a script, not shortened; see `script`.

    First the shared pieces in its `-- uses:` line, then its own code. Errors are returned, because the server adds the
    script's name and line to an error that is raised.
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
    front = _read("shared/undeclared") if variant.undeclared else "local undeclared = false"
    where = (_CLUSTERED if variant.clustered else _ALONE_THERE) + (_TELLS if variant.told else "")
    where += _LISTS if variant.lists else _NO_LISTS
    call, *parts = (_parts_for(_read(f"shared/{piece}"), where)[0] for piece in ("call", *pieces))
    return "\n".join((front, call, _BEGIN, *parts, text, _END))


@cache
def script(name: str, variant: Variant = _WHOLE) -> bytes:
    """Return the text of a script as it is sent: shortened, because the server hashes it at each call.

    Args:
        name: its file's name without the suffix, such as "expire".
        variant: what it is composed for.
    """
    return shorten(composed(name, variant)).encode()


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


@cache
def reads_only(name: str) -> bool:
    """Return whether a script never writes; Redis 7.0 and later are told so and enforce it."""
    return _READS.search(_read(name)) is not None


def control_script(name: str, *, declares: bool, quiet: bool = False, undeclared: bool = False) -> bytes:
    """Return the text of a script for the proxy's own user; see `script`.

    `declares`: whether the server reads a script's terms from its first line.
    """
    text = script(name, Variant(quiet=quiet, undeclared=undeclared))
    return _READING + text if declares and reads_only(name) else text


def _head(terms: Terms) -> bytes:
    """Return the head that makes the server check a script like the command that it replaces."""
    if not terms.declared:
        # Check first: a script's first write may need no memory, and after it the server allows all others.
        return _guard() if terms.takes_memory else b""
    if not terms.writes:
        return _READING if terms.across else b"#!lua flags=no-writes\n"
    return b"#!lua\n" if terms.takes_memory else b"#!lua flags=allow-oom\n"


@cache
def _guard() -> bytes:
    return shorten(_read("shared/guard")).encode() + b"\n"


@cache
def _opening(terms: Terms, name: str, keys: int, *, undeclared: bool, loaded: bool, does: str) -> bytes:
    lists = terms.lists or name == "batch"  # a batch has the terms of just one of its requests; others may use lists
    variant = Variant(undeclared=undeclared, does=does, clustered=terms.clustered, told=terms.told, lists=lists)
    text = _head(terms) + script(name, variant)
    if loaded:
        digest = sha1(text, usedforsecurity=False).hexdigest().encode()
        # If the server has lost the text, it takes EVALSHA for a write, which CLIENT PAUSE WRITE delays.
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
    """Encode an EVAL of a script: EVAL contains the text, so the script need not be loaded.

    Args:
        terms: the terms on which the server runs it.
        name: the script.
        keys: KEYS.
        arguments: the beginning of ARGV.
        tail: the rest of ARGV, as encoded bulk strings.
        tail_count: how many strings `tail` holds.
        declared: those of KEYS that the server sees; all by default.
        present: the positions of keys that must be at this node, for shared/undeclared.lua.
        loaded: whether the server has run the same script before, so that its digest is enough.
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

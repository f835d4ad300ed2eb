"""Load the Lua scripts, one file per operation, and put together the pieces that they share.

Its tests: tests/test_refusals.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib.resources import files
from typing import Final

from proxy.commands.described import Terms
from proxy.scripts.shortening import shorten
from proxy.wire.request import bulk, bulks

_FOLDER: Final = files("proxy.scripts") / "lua"
_BEGIN: Final = "local ok, reply = pcall(function()"
_END: Final = "end)\nif ok then return reply end\nreturn failure or error(reply, 0)"
TELL: Final = b"TELL "
"""What the reply of a short form begins with that has to be told; then comes how many members it has removed."""
_TELLING: Final = ("need", "glob")  # what `lapse` alone needs
_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)
_READS: Final = re.compile(r"^-- Reads only$", re.MULTILINE)
_ALONE: Final = re.compile(r"^-- Alone: ", re.MULTILINE)
_PART: Final = re.compile(r"^ *-- For ([\w+]+)(?:; uses: ?(.*))?$", re.MULTILINE)
_ALL, _CLUSTERED, _ALONE_THERE, _TELLS = "all", "c", "-", "t"
_READING: Final = b"#!lua flags=no-writes,allow-cross-slot-keys\n"
"""In front of a script that only reads. Else servers take it for one that may write: it waits for the end of a
`CLIENT PAUSE … WRITE`. Other flags are those of a script without such a line."""


def _parts_for(text: str, does: str) -> tuple[str, set[str]]:
    """Leave out the parts of a script that are for other things than it is to do; return what parts left out use alone.

    Args:
        text: the script, in which lines of comment with `For` and letters stand in front of such parts: any of them
            is enough, of those with a plus between them all are needed.
        does: the letters of what it is to do.
    """
    front, *parts = _PART.split(text)
    kept, used, unused = [front], set[str](), set[str]()
    for letters, uses, part in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        wanted = letters == _ALL or not any(set(does).isdisjoint(some) for some in letters.split("+"))
        if wanted:
            kept.append(part)
        (used if wanted else unused).update(filter(None, re.split(r",\s*", uses or "")))
    return "".join(kept), unused - used


def composed(
    name: str,
    *,
    quiet: bool = False,
    undeclared: bool = False,
    does: str = "",
    clustered: bool = True,
    told: bool = False,
) -> str:
    """Return the whole text of a script, as it is written; as `script`.

    The shared pieces that its `-- uses:` line names, then its own code. What it raises is returned, because the server
    adds the script's name and line to an error that is raised.
    """
    text = _read(name)
    if _ALONE.search(text) and not undeclared:
        return f"local call = redis.call\n{text}"
    uses = _USES.search(text)
    pieces = [] if uses is None else re.split(r",\s*", uses[1])
    if does:
        text, unused = _parts_for(text, does)
        pieces = [piece for piece in pieces if piece not in unused]
    if quiet:
        pieces = ["quiet" if piece == "lapse" else piece for piece in pieces if piece not in _TELLING]
    front = _read("shared/undeclared") if undeclared else "local undeclared = false"
    where = (_CLUSTERED if clustered else _ALONE_THERE) + (_TELLS if told else "")
    call, *parts = (_parts_for(_read(f"shared/{piece}"), where)[0] for piece in ("call", *pieces))
    return "\n".join((front, call, _BEGIN, *parts, text, _END))


@cache
def script(
    name: str,
    *,
    quiet: bool = False,
    undeclared: bool = False,
    does: str = "",
    clustered: bool = True,
    told: bool = False,
) -> bytes:
    """Return the text of a script as it is sent: short, as the server hashes it at each call.

    Args:
        name: its file's name without the ending, such as "expire".
        quiet: of a script that removes what has expired, whether to send the short form, which ends with `TELL` where
            somebody has to be told of it.
        undeclared: whether all of KEYS come in ARGV, so that the server sees only some of them (shared/undeclared.lua).
        does: of one that can do several things, the letters of those that it is to do.
        clustered: whether the server may be a cluster node.
        told: whether somebody may have asked to be told of what expires.
    """
    text = composed(name, quiet=quiet, undeclared=undeclared, does=does, clustered=clustered, told=told)
    return shorten(text).encode()


def _read(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")


@cache
def reads_only(name: str) -> bool:
    """Return whether a script never writes; from Redis 7.0 on the server is told so, and holds it to that."""
    return _READS.search(_read(name)) is not None


def control_script(name: str, *, declares: bool, quiet: bool = False, undeclared: bool = False) -> bytes:
    """Return the text of a script for the proxy's own user; as `script`.

    `declares`: whether the server reads in a script's first line on which terms to run it.
    """
    text = script(name, quiet=quiet, undeclared=undeclared)
    return _READING + text if declares and reads_only(name) else text


def _head(terms: Terms) -> bytes:
    """Return what makes the server check a script as it would check the command for which it stands in."""
    if not terms.declared:
        # A script's first write may be one that takes none, and after it the server allows all others.
        return _guard() if terms.takes_memory else b""
    if not terms.writes:
        return _READING if terms.across else b"#!lua flags=no-writes\n"
    return b"#!lua\n" if terms.takes_memory else b"#!lua flags=allow-oom\n"


@cache
def _guard() -> bytes:
    return shorten(_read("shared/guard")).encode() + b"\n"


@cache
def _opening(terms: Terms, name: str, keys: int, *, undeclared: bool, loaded: bool, does: str) -> bytes:
    text = _head(terms) + script(name, undeclared=undeclared, does=does, clustered=terms.clustered, told=terms.told)
    if loaded:
        digest = sha1(text, usedforsecurity=False).hexdigest().encode()
        return b"%b%b%b" % (bulk(b"EVALSHA"), bulk(digest), bulk(b"%d" % keys))
    return b"%b%b%b" % (bulk(b"EVAL"), bulk(text), bulk(b"%d" % keys))


def all_in_arguments(keys: Sequence[bytes], present: str = "") -> list[bytes]:
    """Return the beginning of ARGV for a script of which not all of KEYS are declared; as `evaluation`."""
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
    """Encode an EVAL of a script: EVAL carries its text, so it cannot fail for want of a loaded script.

    Args:
        terms: on which terms the server is to run it.
        name: the script.
        keys: KEYS.
        arguments: the beginning of ARGV.
        tail: the rest of ARGV, as bulk strings that are already encoded.
        tail_count: how many.
        declared: those of KEYS that the server is to see; all, where not given.
        present: the places of those that have not gone to another cluster node alone, as of `undeclared`.
        loaded: whether the server has run the same script before, so that its digest does.
        does: as of `script`.

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

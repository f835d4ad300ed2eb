"""Loads the Lua scripts, one file an operation, and puts together the pieces that they share."""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

from proxy.wire.request import bulk

_FOLDER: Final = files("proxy.scripts") / "lua"
_BEGIN: Final = "local ok, reply = pcall(function()"
_END: Final = "end)\nif ok then return reply end\nreturn failure or error(reply, 0)"
_USES: Final = re.compile(r"^-- uses: (.+)$", re.MULTILINE)


def _code(text: str) -> str:
    """Take comments, indentation and blank lines out: the server reads a script's text at each call."""
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("--"))


@cache
def script(name: str) -> bytes:
    """Return the text of a script as it is sent.

    Args:
        name: its file's name without the ending, such as "expire".

    Returns:
        The shared pieces that its `-- uses:` line names, then its own code, without comments; what it raises is
        returned, because the server adds the script's name and line to an error that is raised.
    """
    text = (_FOLDER / f"{name}.lua").read_text(encoding="utf-8")
    uses = _USES.search(text)
    pieces = [] if uses is None else re.split(r",\s*", uses[1])
    call, *texts = [(_FOLDER / "shared" / f"{piece}.lua").read_text(encoding="utf-8") for piece in ("call", *pieces)]
    return "\n".join((_code(call), _BEGIN, *map(_code, (*texts, text)), _END)).encode()


@cache
def _opening(name: str, keys: int) -> bytes:
    return b"%b%b%b" % (bulk(b"EVAL"), bulk(script(name)), bulk(b"%d" % keys))


def evaluation(name: str, keys: list[bytes], arguments: list[bytes], tail: bytes = b"", tail_count: int = 0) -> bytes:
    """Encode an EVAL of a script: EVAL carries its text, so it cannot fail for want of a loaded script.

    Args:
        name: the script.
        keys: KEYS.
        arguments: the beginning of ARGV.
        tail: the rest of ARGV, as bulk strings that are already encoded.
        tail_count: how many.

    Returns:
        The request.
    """
    return b"*%d\r\n%b%b%b" % (
        3 + len(keys) + len(arguments) + tail_count,
        _opening(name, len(keys)),
        b"".join(map(bulk, (*keys, *arguments))),
        tail,
    )

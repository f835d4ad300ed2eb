"""Add the proxy's own commands and its section to the server's replies to COMMAND and INFO.

Its tests: tests/test_command.py.

The request is forwarded, nearly unchanged, on the client's own connection, and the server's reply is amended. So the
rest of the reply is the server's, byte for byte, in the client's protocol, and so is every error.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Final

from proxy.commands.own import (
    EXTENDED,
    EXTENDED_ARITY,
    MODELS,
    OPTIONAL_MEMBER,
    OWN,
    encode_reply,
    header,
)
from proxy.session.globs import matches
from proxy.session.outgoing import Outgoing
from proxy.session.standing import Standing
from proxy.wire.frames import frame_end, frames
from proxy.wire.request import Request, encode

SECTION: Final = b"expiremember"
"""The name of the proxy's section of INFO."""

MOST_WORDS: Final = 1_000
"""Maximum number of arguments of a request whose reply is amended: the reply is buffered whole."""

LONGEST_PATTERN: Final = 32
"""Maximum size of a pattern that is matched against the proxy's own commands, in bytes: about twice their longest name.
Any user can send a pattern, and each of its bytes may be compared with each byte of a name."""

MOST_STARS: Final = 4
"""Maximum number of stars in such a pattern: each star adds a position to match from."""

_REMEMBERED: Final = lru_cache(maxsize=4)
"""Caches the amended table of all commands: amending takes milliseconds, and all clients get the same table."""

Names = tuple[bytes, ...]
"""The proxy's own commands that the server lacks, in lower case."""

Amend = Callable[[bytes], bytes]
"""Turns the server's reply into the client's."""


@dataclass(frozen=True, slots=True)
class Described:
    """How to answer a request for a description of the server.

    Attributes:
        instead: the request to send instead; None for the request itself.
        amend: amends the reply; None to leave it as it is.
    """

    instead: list[bytes] | None = None
    amend: Amend | None = None


class Descriptions:
    """Decides how to answer requests for descriptions of the server (COMMAND, INFO).

    Args:
        section: returns the lines of the proxy's section of INFO.
        has: returns whether the server itself has a command, given in upper case.
    """

    def __init__(self, section: Callable[[], bytes], has: Callable[[bytes], bool]) -> None:
        self._section = section
        self._has = has

    def of(self, arguments: list[bytes]) -> Described | None:
        """Return how to answer a request; None to leave it and its reply alone.

        Args:
            arguments: the request's arguments, the command's name first.
        """
        if len(arguments) > MOST_WORDS:
            return None
        if arguments[0].upper() == b"INFO":
            return self._info(arguments[1:])
        if self._has(b"EXPIREMEMBER"):  # the server is another proxy, or KeyDB
            return None
        return _command(tuple(name for name in OWN if not self._has(name.upper())), arguments)

    def _info(self, sections: list[bytes]) -> Described | None:
        named = {section.lower() for section in sections}
        # With `everything` or `modules` Redis shows the sections of modules: then show the proxy's too.
        if named.isdisjoint((SECTION, b"everything", b"modules")):
            return None
        return Described(amend=self._add_section)

    def _add_section(self, reply: bytes) -> bytes:
        head, _, rest = reply.partition(b"\r\n")
        mark = head[:1]
        if mark not in (b"$", b"="):
            return reply
        text = rest[:-2]
        gap = b"" if text in (b"", b"txt:") else b"\r\n"
        text += gap + self._section()
        return b"%b%d\r\n%b\r\n" % (mark, len(text), text)


def instead(
    descriptions: Descriptions, standing: Standing, out: Outgoing, request: Request, *, askable: bool
) -> bytes | None:
    """Return what to send instead of a request for a description of the server, and have the reply amended.

    Args:
        descriptions: decides what to send.
        standing: the state of the connection.
        out: the stream to the server.
        request: the request.
        askable: whether the proxy's own requests may be put around the request.

    Returns:
        None to forward it unchanged.
    """
    described = descriptions.of(request.arguments)
    if described is None:
        return None
    sent = request.raw if described.instead is None else encode(described.instead)
    amend = described.amend
    if amend is None:
        return sent
    if not askable or standing.is_stranger:
        return None
    if standing.transaction is not None:
        return sent if out.amend(amend) else None
    crowded = standing.rights.by_state
    return standing.replies_for_own().enclose(sent, lambda said: amend_only_reply(said, amend, crowded=crowded))


def amend_only_reply(said: bytes, amend: Amend, *, crowded: bool) -> bytes:
    """Amend the reply in the server's output between two signs.

    Args:
        said: the reply, and pushes before or after it.
        amend: amends it.
        crowded: whether `said` may contain further frames that are not pushes; if there are any, amend nothing.
    """
    if not crowded and not said.startswith(b">") and b"\r\n>" not in said:
        return amend(said)  # no need to split it, which takes milliseconds
    parts = frames(said)
    replies = [number for number, part in enumerate(parts) if not part.startswith(b">")]
    if len(replies) == 1:
        parts[replies[0]] = amend(parts[replies[0]])
    return b"".join(parts)


def _command(own: Names, arguments: list[bytes]) -> Described | None:
    """Decide how to answer a COMMAND."""
    if len(arguments) == 1:
        return Described(amend=partial(_add_to_all, own))
    words = arguments[2:]
    match arguments[1].upper():
        case b"INFO" if not words:
            return Described(amend=partial(_add_to_all, own))
        case b"INFO":
            return _info_of(own, words)
        case b"DOCS":
            return _docs_of(own, words)
        case b"COUNT" if not words:
            return Described(amend=partial(_add_to_count, len(own)))
        case b"LIST":
            return _list(own, words)
        case b"GETKEYS" | b"GETKEYSANDFLAGS" if words:
            model = _model_request(own, words)
            return None if model is None else Described([*arguments[:2], *model])
        case _:
            return None


# COMMAND INFO: the proxy's commands get the entries of their models, with another name, arity and flags.

_MODEL_ENTRY: Final = re.compile(
    rb"(\*(?:7|10)\r\n)\$\d\r\n(%b)\r\n:-?\d\r\n([*~])\d\r\n(?:\+\w+\r\n)+" % b"|".join(MODELS)
)
_ARITY: Final = re.compile(rb"(\*(?:7|10)\r\n\$\d\r\n(?:%b)\r\n):2\r\n" % b"|".join(EXTENDED))
_WITH_ARITY: Final = rb"\g<1>:%d\r\n" % EXTENDED_ARITY


def _begin_entry(name: bytes, of_model: re.Match[bytes]) -> bytes:
    own = OWN[name]
    flags = header(of_model[3], len(own.flags)) + b"".join(b"+%b\r\n" % flag for flag in own.flags)
    return b"%b$%d\r\n%b\r\n:%d\r\n%b" % (of_model[1], len(name), name, own.arity, flags)


@_REMEMBERED
def _add_to_all(own: Names, reply: bytes) -> bytes:
    """Append the entries of the proxy's commands to the server's."""
    models = {found[2]: found for found in _MODEL_ENTRY.finditer(reply)}
    counted = _COUNTED.match(reply)
    if models.keys() != MODELS.keys() or counted is None:
        return reply
    rests = {name: reply[found.end() : frame_end(reply, found.start())] for name, found in models.items()}
    entries = (_begin_entry(name, models[OWN[name].model]) + rests[OWN[name].model] for name in own)
    amended = _ARITY.sub(_WITH_ARITY, reply[counted.end() :])
    return b"".join((header(counted[1], int(counted[2]) + len(own)), amended, *entries))


def _info_of(own: Names, names: list[bytes]) -> Described | None:
    lower = [name.lower() for name in names]
    if set(own).isdisjoint(lower):
        return None if not set(EXTENDED) & set(lower) else Described(amend=partial(_ARITY.sub, _WITH_ARITY))
    asked = [name for name in lower if name in MODELS or name in own]

    def amend(reply: bytes) -> bytes:
        coming = iter(asked)

        def entry(found: re.Match[bytes]) -> bytes:
            name = next(coming, found[2])
            return found[0] if name in MODELS else _begin_entry(name, found)

        return _ARITY.sub(_WITH_ARITY, _MODEL_ENTRY.sub(entry, reply))

    sent = (OWN[name.lower()].model if name.lower() in own else name for name in names)
    return Described([b"COMMAND", b"INFO", *sent], amend)


# COMMAND DOCS: from Redis 7.0 on, a map.

_COUNTED: Final = re.compile(rb"([*%])(\d+)\r\n")
_EXTENDED_DOCS: Final = re.compile(rb"\$\d\r\n(?:%b)\r\n(?=[*%%]\d+\r\n\$7\r\nsummary\r\n)" % b"|".join(EXTENDED))
_ONE_ARGUMENT: Final = b"$9\r\narguments\r\n*1\r\n"


def _docs_of(own: Names, names: list[bytes]) -> Described | None:
    lower = [name.lower() for name in names] or [*own, *EXTENDED]
    wanted = tuple(name for name in dict.fromkeys(lower) if name in own)  # once, even if requested several times
    if not wanted and not set(EXTENDED) & set(lower):
        return None
    return Described(amend=partial(_add_docs, wanted))


@_REMEMBERED
def _add_docs(names: tuple[bytes, ...], reply: bytes) -> bytes:
    counted = _COUNTED.match(reply)
    if counted is None:
        return reply
    resp3 = counted[1] == b"%"
    parts = [header(counted[1], int(counted[2]) + len(names) * (1 if resp3 else 2))]
    position = counted.end()
    for found in _EXTENDED_DOCS.finditer(reply):
        end = frame_end(reply, found.end())
        place = reply.find(_ONE_ARGUMENT, found.end(), end)
        if place < 0:
            continue
        argument = place + len(_ONE_ARGUMENT)
        behind = frame_end(reply, argument)
        parts += (reply[position:place], _ONE_ARGUMENT.replace(b"*1", b"*2"), reply[argument:behind])
        parts.append(encode_reply(OPTIONAL_MEMBER, resp3=resp3))
        position = behind
    parts.append(reply[position:])
    parts += (_docs_entry(name, resp3) for name in names)
    return b"".join(parts)


@cache
def _docs_entry(name: bytes, resp3: bool) -> bytes:
    return encode_reply(name, resp3=resp3) + encode_reply(OWN[name].docs, resp3=resp3)


# COMMAND COUNT, LIST and GETKEYS.


def _add_to_count(added: int, reply: bytes) -> bytes:
    number = reply[1:-2]
    return b":%d\r\n" % (int(number) + added) if reply.startswith(b":") and number.isdigit() else reply


def _list(own: Names, words: list[bytes]) -> Described | None:
    names: Iterable[bytes]
    match [words[0].upper(), words[1].upper(), *words[2:]] if len(words) == 3 else words:
        case []:
            names = own
        case [b"FILTERBY", b"ACLCAT", category]:
            names = [name for name in own if category.lower() in MODELS[OWN[name].model]]
        case [b"FILTERBY", b"PATTERN", pattern] if (
            len(pattern) <= LONGEST_PATTERN and pattern.count(b"*") <= MOST_STARS
        ):
            names = [name for name in own if matches(pattern.lower(), name)]
        case _:
            names = ()
    added = tuple(names)
    return Described(amend=partial(_add_names, added)) if added else None


def _add_names(names: tuple[bytes, ...], reply: bytes) -> bytes:
    counted = _COUNTED.match(reply)
    if counted is None:
        return reply
    head = header(counted[1], int(counted[2]) + len(names))
    return b"".join((head, reply[counted.end() :], *(encode_reply(name, resp3=False) for name in names)))


def _model_request(own: Names, words: list[bytes]) -> list[bytes] | None:
    """Return a request with the same keys for a command that the server knows, so that the server can find them."""
    name = words[0].lower()
    if name in own:
        model, arity = OWN[name].model, OWN[name].arity
        whole = len(words) == arity if arity > 0 else len(words) >= -arity
        writes = model == b"pexpire"
        # If the number of arguments is right, return as many as the model accepts; if not, a number that it rejects.
        return [model, *words[1:2] * (1 if writes or whole else 2), *([b"1"] if writes and whole else [])]
    return words[:2] if name in EXTENDED and len(words) == 3 else None

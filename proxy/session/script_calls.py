"""Encode script calls: choose their keys, and which of them are declared to a cluster node.

Its tests: tests/test_refusals.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from proxy.commands.described import ServerCommands, Terms
from proxy.commands.table import Command, Effect
from proxy.metrics.table import Metrics
from proxy.scripts.calls import evaluation
from proxy.scripts.naming import Names, slot
from proxy.session.operations import Form, Operation
from proxy.wire.request import Request, bulk, strict_integer

UNPACKED: Final = 7_000
"""Maximum number of arguments that a script passes to one command: Lua unpacks some 8,000 (LUAI_MAXCSTACK)."""

COPIED: Final = 64 * 1024
"""Maximum size, in bytes, of a request that a script replaces although the request could be forwarded."""

_NUMBERED: Final = frozenset((b"ZUNIONSTORE", b"ZINTERSTORE", b"ZDIFFSTORE"))
"""Commands whose keys are the first argument and, after a count, that many others."""

_OF_SOME_KEYS: Final = frozenset(("replace", "vanish"))
"""Scripts whose KEYS may be only some of the request's keys."""

_SETTING: Final = frozenset(("expire", "expire_members", "rename", "copy", "move"))
"""Scripts that always set deadlines, and so need the index of the key's slot."""


def _batch(
    terms: Terms,
    names: list[bytes],
    arguments: list[bytes],
    tail: bytes,
    tail_count: int,
    declared: list[bytes] | None,
    present: str,
    does: str,
    loaded: bool,
) -> bytes:
    return evaluation(
        terms, "batch", names, arguments, tail, tail_count, declared=declared, present=present, loaded=loaded, does=does
    )


def _alone(
    terms: Terms, name: str, keys: list[bytes], arguments: list[bytes], tail: bytes, count: int, does: str, loaded: bool
) -> bytes:
    return evaluation(terms, name, keys, arguments, tail, count, loaded=loaded, does=does)


class Loadable(NamedTuple):
    """A script call that can name its script by digest.

    Attributes:
        script: identifies the script's text.
        encode: encodes the call; its argument says whether the server knows the text, so that a digest is enough.
    """

    script: tuple[str, Terms]
    encode: Callable[[bool], bytes]


class ScriptCalls:
    """Encodes the script calls that replace requests, and the proxy's own.

    Args:
        names: the names of the proxy's own keys.
        server: the server's commands.
        metrics: counts the requests that are replaced.
    """

    def __init__(self, names: Names, server: ServerCommands, metrics: Metrics) -> None:
        self._names = names
        self._server = server
        self._metrics = metrics

    @property
    def removing(self) -> Terms:
        """The terms of a script that writes, but takes no memory."""
        return self._server.own_terms(writes=True, takes_memory=False)

    @property
    def reading(self) -> Terms:
        """The terms of a script that writes nothing."""
        return self._server.own_terms(writes=False, takes_memory=False)

    def triple(self, key: bytes) -> list[bytes]:
        """Return a key, its shadow and its index."""
        return [key, self._names.shadow(key), self._names.index_for(key)]

    def pair(self, key: bytes) -> list[bytes]:
        """Return a key and its shadow, for a script that needs no index."""
        return [key, self._names.shadow(key)]

    def pairs(self, keys: list[bytes]) -> list[bytes]:
        """Return keys, each with its shadow, and their index."""
        return [*self._names.with_shadows(keys), self._names.index_for(keys[0])]

    def length_in_slot(self, keys: list[bytes]) -> int:
        """Return how many of the given keys, counted from the first, one script call may name.

        While a slot moves, a cluster node has only some of the slot's keys, and refuses every call that names one of
        the others.
        """
        names, first = self._names, keys[0]
        if names.slots is None:
            return len(keys)
        if self._server.redirects_split or names.is_moving(first):  # a slot may begin to move before the proxy knows
            return next((place for place, key in enumerate(keys) if key != first), len(keys))
        index = names.index_for(first)
        return next((place for place, key in enumerate(keys) if names.index_for(key) != index), len(keys))

    def replacing(
        self,
        terms: Terms,
        name: str,
        keys: list[bytes],
        arguments: list[bytes],
        tail: bytes = b"",
        tail_count: int = 0,
        *,
        named: Sequence[bytes] = (),
        sets: bool = False,
        does: str = "",
    ) -> bytes:
        """Return the script call that replaces a request, and count it; see `evaluation`.

        Args:
            named: the request's keys, if the script gets only those with deadlines.
            sets: whether this call sets deadlines, for a script that only sometimes does.
            does: the operations that the script must contain; see `calls.script`.
        """
        self._metrics.requests_rewritten_total[name] += 1
        declared = None if sets or name in _SETTING else self.declared([*named, *keys])
        present = "" if declared is None else self.shadows(keys)
        return evaluation(terms, name, keys, arguments, tail, tail_count, declared=declared, present=present, does=does)

    def wrapping(
        self,
        command: Command,
        script: str,
        keys: list[bytes],
        extra: list[bytes],
        request: Request,
        *,
        cleared: bool = False,
    ) -> bytes:
        """Return a script call that runs the client's own request, with its bytes unchanged if they are RESP.

        `cleared`: as in `Terms`.
        """
        if request.header:
            tail = request.raw[request.header :]
        else:
            tail = b"".join(map(bulk, request.arguments))
        named = self.all_keys(command, request.arguments) if script in _OF_SOME_KEYS else []
        terms = self._server.terms(command.name)
        if cleared:
            terms = terms._replace(cleared=True)
        return self.replacing(terms, script, keys, extra, tail, request.count, named=named)

    def settled(self, arguments: Sequence[bytes], request: bytes) -> bytes:
        """Return the script call that removes due members of a request's key (its first argument) and runs the request.

        The call contains the script's text: if it had a digest and the server had forgotten the script, the client
        would see the error.

        Args:
            arguments: the request; not for a cluster node.
            request: the same as a RESP array of bulk strings.
        """
        terms, tail = self._server.terms(arguments[0].upper()), request[request.index(b"\n") + 1 :]
        return self.replacing(terms, "settled", self.triple(arguments[1]), [], tail, len(arguments))

    def is_of_many_slots(self, command: Command, request: Request) -> bool:
        """Return whether a request names keys of different slots: then it is forwarded, for the node to refuse."""
        if self._names.slots is None:
            return False
        keys = self.all_keys(command, request.arguments)
        return len(self._names.of_one_slot(keys)) < len(keys)

    def all_keys(self, command: Command, arguments: list[bytes]) -> list[bytes]:
        """Return the keys of a request that a cluster node checks."""
        if command.name in _NUMBERED:
            return [arguments[1], *arguments[3 : 3 + (strict_integer(arguments[2]) or 0)]]
        if not self._server.has_keys_elsewhere(command.name):
            return self._server.keys(arguments)
        keys = command.keys(arguments) or []
        return [arguments[1], *keys] if command.effect is Effect.REPLACE else keys

    def shadows(self, keys: list[bytes]) -> str:
        """Return the positions (from 1), among a script's keys, of the shadows that must be at this node."""
        found = ((place, self._names.key(name)) for place, name in enumerate(keys, 1))
        return " ".join(str(place) for place, key in found if key is not None and self._has_had(key))

    def _has_had(self, key: bytes) -> bool:
        """Return whether a key may have had deadlines here. False only for a key of a moving slot that had none."""
        slots = self._names.slots
        return slots is None or slot(key) not in slots.moving or key in slots.had

    def declared(self, keys: list[bytes]) -> list[bytes] | None:
        """Return the keys to declare to a cluster node, so that it redirects the script like the client's request."""
        return self._names.declared(keys) if keys else None

    def batch(
        self,
        forms: Sequence[Form],
        keys: Sequence[bytes],
        runs: bytes,
        tail: bytes,
        tail_count: int,
        does: str = "",
        *,
        terms: Terms | None = None,
    ) -> Callable[[bool], bytes]:
        """Return a function that encodes the call of a script for many requests.

        Args:
            forms: their forms, each once.
            keys: their keys, each once.
            runs: which forms and keys belong together; see `plan`.
            tail: the arguments that the script gets, as bulk strings.
            tail_count: the number of these arguments.
            does: the operations that the script must contain; by default those that the forms need.
            terms: the terms on which the server runs the script; by default those that all forms have.

        Returns:
            The function. Its argument: whether the server knows the script, so that a digest is enough.
        """
        sets = any(form.unit for form in forms)
        index = self._names.index_for(keys[0]) if forms[0].terms.writes else self._names.index_of_key(keys[0])
        names = [index, *self._names.with_shadows(keys)]
        declared = None if sets else self.declared(list(keys))
        return partial(
            _batch,
            terms or forms[0].terms,
            names,
            [runs, b" ".join([form.text for form in forms])],
            tail,
            tail_count,
            declared,
            "" if declared is None else self.shadows(names),
            does or "".join(sorted({form.does for form in forms})),
        )

    def alone(self, operation: Operation, request: bytes) -> Loadable | None:
        """Return the call of the script for a single request, which costs less than a batch of one.

        None if the server is a cluster node, or if the script might lose digits of the reply.

        Args:
            operation: the request's operation.
            request: the request, a RESP array of bulk strings.
        """
        form, words, keys = operation.form, operation.words, self.triple(operation.key)
        terms, does, tail, count = form.terms, "", b"", 0
        what = b"%d %b" % (operation.delay, form.alone) if form.unit else form.alone
        match form.does:
            case "e":
                arguments, does = [words[0], what], "e"
            case "E":
                arguments, does, terms = [what, words[-1]], "1", terms._replace(lists=False)
            case "W":
                arguments = [what, *words[:-1]]
            case "t":
                arguments, keys = [words[0], what], keys[:2]
            case "p":
                arguments = [words[0]]
            case _:
                head = request.index(b"\n") + 1
                arguments, tail, count = [what] if what else [], request[head:], int(request[1 : head - 2])
        if self._names.slots is not None or form.counts:
            return None
        encode = partial(_alone, terms, form.script, keys, arguments, tail, count, does)
        return Loadable((form.script, terms), encode)

    def count(self, script: str, requests: int) -> None:
        """Count requests as replaced by a script, even if `batch.lua` runs in its place."""
        self._metrics.requests_rewritten_total[script] += requests

    def count_all(self, forms: Sequence[Form]) -> None:
        """Count requests that a call replaces, by the form of each."""
        for form in set(forms):
            self.count(form.script, forms.count(form))

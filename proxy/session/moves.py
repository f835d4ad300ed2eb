"""Handle the requests that send keys from one cluster node to another, so that deadlines move with their keys.

Its tests: tests/test_cluster_moves.py.
"""

from __future__ import annotations

from typing import Final

from proxy.coverage.coverage import Coverage
from proxy.scripts.naming import Names, slot
from proxy.session.question import Arrival
from proxy.wire.request import encode

_MADE_BY: Final = frozenset((b"RESTORE-ASKING", b"MIGRATE"))
"""The commands with which cluster nodes send each other keys, including the proxy's own keys."""

_MIGRATE_OPTIONS: Final = {b"COPY": 1, b"REPLACE": 1, b"AUTH": 2, b"AUTH2": 3}
"""Options of MIGRATE → how many arguments each takes, including its name."""

_RESTORE_SIZE: Final = 4
"""How many arguments a node's RESTORE-ASKING has without REPLACE, which is one more."""


class Moves:
    """Handles the requests that move keys.

    Args:
        names: the names of the proxy's own keys.
        coverage: the covered keys.
    """

    def __init__(self, names: Names, coverage: Coverage) -> None:
        self._names = names
        self._coverage = coverage

    def are_made_by(self, name: bytes) -> bool:
        """Return whether a command, given in upper case, moves keys."""
        return self._names.slots is not None and name in _MADE_BY

    def opens_link(self, arguments: list[bytes]) -> bool:
        """Return whether a request begins a node's transfer of slots (Valkey 9). No client's requests follow it."""
        is_link = len(arguments) > 1 and (arguments[0].upper(), arguments[1].upper()) == (b"CLUSTER", b"SYNCSLOTS")
        return is_link and self._names.slots is not None

    def leftovers(self, arguments: list[bytes]) -> list[bytes]:
        """Return the keys of a MIGRATE whose shadows must be removed first if the keys themselves are gone.

        Leave out keys that were sent before: such a key may have arrived at the other node without its shadow.
        """
        migration = self._migration(arguments)
        if migration is None:
            return []
        names = [*map(self._names.key, migration[1]), *self._coverage.among(migration[1])]
        return list(dict.fromkeys(name for name in names if name is not None and not self._is_sent(name)))

    def _is_sent(self, key: bytes) -> bool:
        return self._names.slots is not None and key in self._names.slots.sent

    def arrival(self, arguments: list[bytes], count: int) -> Arrival | None:
        """Return the key that another node sends, if old deadlines or an old copy may have to be removed here first.

        Removing them does no harm even if the server then refuses the key: in a slot that another node owns, this node
        has only remnants of earlier moves.

        Args:
            arguments: the received arguments of a RESTORE-ASKING.
            count: how many the request has in all.
        """
        slots, more = self._names.slots, count - _RESTORE_SIZE
        if slots is None or more not in (0, 1) or len(arguments) < 2 or arguments[1].startswith(self._names.prefix):
            return None
        if slot(arguments[1]) in slots.owned or (len(arguments) > 4 and arguments[4].upper() != b"REPLACE"):
            return None
        return Arrival(arguments[1], replaces=bool(more))

    def owner(self, arguments: list[bytes]) -> bytes | None:
        """Return the key whose shadow a request sends, or None."""
        return self._names.key(arguments[1]) if self._names.slots is not None and len(arguments) > 1 else None

    def migrate(self, arguments: list[bytes]) -> bytes | None:
        """Return the MIGRATE with the shadows of its keys added; None if that changes nothing.

        A key must not be sent without its shadow: the old deadline of a member might arrive at the other node after
        the member was removed and added there.
        """
        migration = self._migration(arguments)
        if migration is None:
            return None
        options, keys = migration
        names: dict[bytes, None] = {}
        for name in keys:
            key = self._names.key(name)
            if key is None and (name.startswith(self._names.prefix) or not self._coverage.covers(name)):
                names[name] = None
                continue
            key = name if key is None else key
            if (slots := self._names.slots) is not None:
                slots.send(slot(key), key)
            # The shadow needs no REPLACE: the other node's proxy removes an existing shadow before the key arrives.
            names[key] = names[self._names.shadow(key)] = None
        if list(names) == keys:
            return None
        return encode([*arguments[:3], b"", *arguments[4:6], *options, b"KEYS", *names])

    def _migration(self, arguments: list[bytes]) -> tuple[list[bytes], list[bytes]] | None:
        """Return the options and the keys of a MIGRATE between nodes of a cluster; None if the server refuses it."""
        if self._names.slots is None or len(arguments) < 6:
            return None
        options, keys, place = arguments[6:], [arguments[3]] if arguments[3] else [], 0
        while place < len(options) and (word := options[place].upper()) != b"KEYS":
            place += _MIGRATE_OPTIONS.get(word, len(options) + 1)
        if place > len(options) or bool(keys) is (place < len(options)):
            return None
        return options[:place], keys or options[place + 1 :]

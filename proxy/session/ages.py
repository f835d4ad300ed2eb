"""Keys in the order of when something was noted of them, so that what is old is found without looking at the rest."""

from __future__ import annotations

from collections import OrderedDict


class Ages(OrderedDict[bytes, float]):
    """Key → when something was last noted of it, the oldest first.

    (Not a plain dictionary: one from whose front much was deleted is searched for its first entry from slot 0 on.)
    """

    def note(self, key: bytes, moment: float) -> None:
        """Note something, at a moment that is no earlier than any before."""
        self[key] = moment
        self.move_to_end(key)

    def end(self, moment: float) -> list[bytes]:
        """Drop what was noted at a moment or before, and return those keys."""
        old: list[bytes] = []
        while self and self[key := next(iter(self))] <= moment:
            del self[key]
            old.append(key)
        return old

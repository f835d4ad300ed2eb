"""What a session asks of the engine before it can send a request on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Question:
    """What has to be done before a request may be sent on.

    Attributes:
        due: keys from which to remove what is due.
        everywhere: whether to remove what is due in all other keys too.
        replied: whether to wait until everything that the client sent before has been answered.
        absent: keys in which to void the deadlines of absent members: of those named, or for None of all.
    """

    due: tuple[bytes, ...] = ()
    everywhere: bool = False
    absent: tuple[tuple[bytes, tuple[bytes, ...] | None], ...] = ()
    replied: bool = False

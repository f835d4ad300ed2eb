"""What a session needs done before it can send a request on.

Its tests: tests/test_session.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.session.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Arrival:
    """A key that is about to come from another cluster node.

    Attributes:
        key: the key.
        replaces: whether it takes the place of one that is there; otherwise the server refuses it then.
    """

    key: bytes
    replaces: bool


@dataclass(frozen=True, slots=True)
class Question:
    """What has to be done before a request may be sent on.

    Attributes:
        covers: entries to announce to other proxies, because a first deadline may be set under them.
        owner: the connection that asks. Its own requests run in order and are not waited for.
        behind: connections with long pipelines, which have to run first.
        due: keys from which to remove what is due.
        everywhere: whether to remove what is due in all other keys too.
        unclear: keys to ask the server about: do they have deadlines at all?
        found: the answer: the unclear keys that have deadlines.
        replied: whether to wait until everything that the client sent before has been answered.
        absent: keys in which to void deadlines of absent members: of the named ones; of all if None.
        tentative: whether the server may still refuse the request: then TTL has to go on showing the void deadlines.
        again: whether to judge the request again afterwards.
        login: whether the replies are awaited only to see if the client has logged in: the first sign of it is enough.
        leftover: keys that are about to move: remove their shadows first if the keys themselves are gone.
        arrivals: keys that are about to come from another node: remove deadlines or copies that are here.
    """

    covers: tuple[bytes, ...] = ()
    owner: object = None
    behind: tuple[Pipeline, ...] = ()
    due: tuple[bytes, ...] = ()
    everywhere: bool = False
    unclear: tuple[bytes, ...] = ()
    found: set[bytes] = field(default_factory=set)
    absent: tuple[tuple[bytes, tuple[bytes, ...] | None], ...] = ()
    replied: bool = False
    tentative: bool = False
    again: bool = False
    login: bool = False
    leftover: tuple[bytes, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

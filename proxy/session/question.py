"""What a session needs done before it can send a request on.

Its tests: tests/test_session.py.

A new reason to hold a request needs three parts: `Inquiry.question` finds it, a field of `Question` names it, and
`Engine.answer` deals with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from proxy.session.pipeline import Pipeline


@dataclass(frozen=True, slots=True)
class Arrival:
    """A key that is about to arrive from another cluster node.

    Attributes:
        key: the key.
        replaces: whether it replaces an existing key; otherwise the server refuses it if one exists.
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
        due: keys from which to remove due members.
        everywhere: whether to remove due members from all other keys too.
        unclear: keys to ask the server about: do they have deadlines at all?
        found: the answer: the unclear keys that have deadlines.
        replied: whether to wait until everything that the client sent before has been answered.
        absent: keys in which to void deadlines of absent members, with the members; None for all.
        tentative: whether the server may still refuse the request: then TTL must keep showing the void deadlines.
        again: whether to judge the request again afterwards.
        login: whether to wait only for proof that the client has logged in.
        leftover: keys that are about to move: remove their shadows first if the keys themselves are gone.
        arrivals: keys that are about to arrive from another node: remove deadlines or copies here first.
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

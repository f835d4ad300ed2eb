"""The work that must be done before a session can send a request.

Its tests: tests/test_session.py.

CONTRIBUTING.md says what a new reason to hold a request needs.
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
    """The work that must be done before a held request may be sent.

    Attributes:
        covers: entries (covered prefixes) to announce to other proxies, because a first deadline may be set under them.
        owner: the connection of the held request. Its own requests run in order, so there is no need to wait for them.
        behind: connections whose long pipelines must run first.
        due: keys from which to remove due members.
        everywhere: whether to remove due members from all other keys too.
        unclear: keys for which to find out whether they have deadlines.
        found: the result: those of the unclear keys that have deadlines.
        replied: whether to wait until all earlier requests of the client have been answered.
        absent: keys in which to void deadlines of absent members, with the members; None for all.
        tentative: whether the server may still refuse the request: then TTL must keep showing the void deadlines.
        again: whether to judge the request again afterwards.
        login: whether to wait only for proof that the client has logged in.
        leftover: keys that are about to move: remove their shadows first if the keys themselves are gone.
        arrivals: keys that are about to arrive from another node: remove their old deadlines and copies here first.
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

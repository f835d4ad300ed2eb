"""What a session asks of the engine before it can send a request on."""

from __future__ import annotations

from dataclasses import dataclass

from proxy.session.claims import Claims


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
        arriving: keys that are about to get deadlines, while requests of others that may add to them are on their way.
        due: keys from which to remove what is due.
        everywhere: whether to remove what is due in all other keys too.
        unclear: keys of which to ask whether they have deadlines at all.
        replied: whether to wait until everything that the client sent before has been answered.
        absent: keys in which to void the deadlines of absent members: of those named, or for None of all.
        tentative: whether the server may refuse the request, so that what TTL shows of the absent members has to stay.
        again: whether to judge the request again afterwards.
        announce: keys that other proxies have to know before, because they may get their first deadlines.
        first: whether such a key gets no deadline unless they have been told.
        near: those among them that may get a deadline which passes before the server can tell the others of it.
        login: whether that is to show if the client has logged in: then the first sign of it is enough.
        leftover: keys whose deadlines are void if they are not there any more, and are to go before.
        arrivals: keys of which there may be deadlines, or copies.
        behind: the connections with long pipelines in which requests for `arriving` may be.
    """

    arriving: tuple[bytes, ...] = ()
    due: tuple[bytes, ...] = ()
    everywhere: bool = False
    unclear: tuple[bytes, ...] = ()
    absent: tuple[tuple[bytes, tuple[bytes, ...] | None], ...] = ()
    replied: bool = False
    tentative: bool = False
    again: bool = False
    announce: tuple[bytes, ...] = ()
    first: bool = False
    near: frozenset[bytes] = frozenset()
    login: bool = False
    behind: tuple[Claims, ...] = ()
    leftover: tuple[bytes, ...] = ()
    arrivals: tuple[Arrival, ...] = ()

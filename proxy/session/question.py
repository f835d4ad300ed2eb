"""What a session asks of the engine before it can send a request on."""

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
        covers: entries that other proxies have to know before, as a first deadline may be set under them.
        owner: whose requests need not be waited for then, as they come in order.
        behind: the connections with long pipelines that have to have run before.
        due: keys from which to remove what is due.
        everywhere: whether to remove what is due in all other keys too.
        unclear: keys of which to ask whether they have deadlines at all.
        found: the answer: those of them that have.
        replied: whether to wait until everything that the client sent before has been answered.
        absent: keys in which to void the deadlines of absent members: of those named, or for None of all.
        tentative: whether the server may refuse the request, so that what TTL shows of the absent members has to stay.
        again: whether to judge the request again afterwards.
        login: whether that is to show if the client has logged in: then the first sign of it is enough.
        leftover: keys whose deadlines are void if they are not there any more, and are to go before.
        arrivals: keys of which there may be deadlines, or copies.
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

"""Parse the reply to `CLUSTER NODES`: a node's description of itself and of others.

Its tests: tests/test_deadlines.py.
"""

from __future__ import annotations

from typing import NamedTuple

from proxy.upstream.address import Address


class Node(NamedTuple):
    """A cluster node, as it describes itself.

    Attributes:
        name: its id.
        address: the address that it announces.
        primary: whether it is a primary.
        slots: its slots; those of its primary, if it is a replica.
        moving: slots that are being moved to it or from it.
    """

    name: bytes
    address: Address
    primary: bool
    slots: frozenset[int]
    moving: frozenset[int]


def myself(reply: bytes) -> Node:
    """Return the node's own entry in its reply to `CLUSTER NODES`.

    Each line has an id, an address, flags, the id of the primary or `-`, three numbers, the state of the link, and then
    slots: `5`, `5-9`, `[5->-id]` for a slot on its way to another node, `[5-<-id]` for one on its way from another
    node.

    Raises:
        ValueError: the reply does not have that form.
    """
    lines = _lines(reply)
    own = next((words for words in lines if b"myself" in words[2].split(b",")), None)
    if own is None:
        raise ValueError("CLUSTER NODES does not say which node it is")
    primary = own[3] == b"-"
    slots = _slots(own[8:])
    if not primary:
        slots = next((_slots(words[8:]) for words in lines if words[0] == own[3]), slots)
    moving = {int(word[1:].split(b"-")[0]) for word in own[8:] if word.startswith(b"[")}
    return Node(own[0], _address(own[1]), primary, slots, frozenset(moving))


def primaries(reply: bytes, *, by_name: bool = False) -> list[Node]:
    """Return the owners of slots from the reply to `CLUSTER NODES`. `moving` is empty: a node reports only its moves.

    Args:
        reply: the reply.
        by_name: whether to use announced host names, as certificates require.

    Raises:
        ValueError: the reply does not have that form.
    """
    found = []
    for words in _lines(reply):
        slots, address = _slots(words[8:]), _address(words[1])
        name = words[1].split(b",")[1].decode("ascii", "replace") if by_name and b"," in words[1] else ""
        if slots and words[3] == b"-":
            found.append(Node(words[0], address._replace(host=name or address.host), True, slots, frozenset()))
    return found


def _lines(reply: bytes) -> list[list[bytes]]:
    lines = [line.split(b" ") for line in reply.splitlines()]
    return [words for words in lines if len(words) >= 8]


def _address(text: bytes) -> Address:
    """Parse `ip:port@bus`, to which newer servers append the host name."""
    host, _, port = text.split(b"@")[0].rpartition(b":")
    return Address(host.decode("ascii", "replace"), int(port))


def _slots(words: list[bytes]) -> frozenset[int]:
    found: set[int] = set()
    for word in words:
        if not word.startswith(b"["):
            first, _, last = word.partition(b"-")
            found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)

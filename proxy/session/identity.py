"""Read the identity of a connection from CLIENT INFO. Clients with the same identity may share connections.

Its tests: tests/test_sharing.py.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

WHO: Final = b"*2\r\n$6\r\nCLIENT\r\n$4\r\nINFO\r\n"

ORDINARY: Final = (b"N", b"U")
"""Flags of a connection in its ordinary state: none, or `U` for a Unix socket."""

_FIELD: Final = re.compile(rb"([a-z-]+)=([^ \r\n]*)")
_NOUGHT: Final = {b"sub": b"0", b"psub": b"0", b"ssub": b"0", b"watch": b"0"}
"""Fields for state on which replies depend, with their values in the ordinary state; older servers lack some. The field
`multi` is left out: it is 0 or -1 after a transaction, and an open transaction shows in the flags."""


class Identity(NamedTuple):
    """User, database and protocol of a connection.

    Attributes:
        user: the user.
        database: the number of the database.
        protocol: 2 or 3.
    """

    user: bytes
    database: int
    protocol: int


def who(reply: bytes) -> Identity | None:
    """Return the identity of a connection.

    Args:
        reply: the server's reply to CLIENT INFO.

    Returns:
        None if the connection is in a special state, or the server does not report all fields.
    """
    if reply[:1] not in (b"$", b"="):
        return None
    said = dict(_FIELD.findall(reply))
    database, protocol, user = said.get(b"db", b""), said.get(b"resp", b""), said.get(b"user", b"")
    if said.get(b"capa"):
        return None
    if said.get(b"flags") not in ORDINARY or any(said.get(name, nought) != nought for name, nought in _NOUGHT.items()):
        return None
    if not (user and database.isdigit() and protocol in (b"2", b"3")):
        return None
    return Identity(user, int(database), int(protocol))

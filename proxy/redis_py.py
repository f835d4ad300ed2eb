"""The new commands as typed methods for redis-py's clients: for one server or a cluster, synchronous or asynchronous.

Its tests: tests/test_redis_py.py.

    class Client(MemberCommands, redis.Redis): ...

This module imports neither redis-py nor anything from this package, so an application can also use a copy of it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Generic, Literal, Protocol, TypeAlias, TypeVar

Text: TypeAlias = str | bytes | bytearray | memoryview
"""A key."""

Member: TypeAlias = Text | int | float
"""A field, member or element, as accepted by redis-py's `hset`, `sadd` and `rpush`."""

Condition: TypeAlias = Literal["NX", "XX", "GT", "LT"]
"""When to set a deadline: if the member has none (NX) or has one (XX), if the new one is later (GT) or earlier (LT)."""


class _Client(Protocol):
    def execute_command(self, *arguments: Any, **options: Any) -> Any:
        """Send a command, and return the reply."""


class _AsyncClient(Protocol):
    def execute_command(self, *arguments: Any, **options: Any) -> Awaitable[Any]:
        """Send a command, and return the reply."""


Pipeline = TypeVar("Pipeline", bound=_Client)


_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def _milliseconds(delay: timedelta) -> int:
    """Convert to milliseconds, rounding up: with 0 the member would be removed at once."""
    return -(-delay // timedelta(milliseconds=1))


def _expire(
    name: str, key: Text, member: Member, when: int | timedelta | datetime, condition: Condition | None
) -> list[Any]:
    """Build a command's arguments. `timedelta` and `datetime` are sent in milliseconds, whatever the command's unit."""
    by: list[Any]
    if isinstance(when, timedelta):
        name, by = "PEXPIREMEMBER", [_milliseconds(when)]
    elif isinstance(when, datetime):
        name, by = "PEXPIREMEMBERAT", [_milliseconds(when.astimezone(UTC) - _EPOCH)]
    else:
        by = [when]
    return [name, key, member, *by, *(() if condition is None else (condition,))]


class MemberCommands:
    """Mixin with the new commands for redis-py's synchronous clients.

    A number as `when` is in the command's own unit.
    """

    def expiremember(
        self: _Client, key: Text, member: Member, when: int | timedelta, condition: Condition | None = None
    ) -> bool:
        """Set a member's lifetime in seconds; return whether it was set. Zero or less removes it at once."""
        return bool(self.execute_command(*_expire("EXPIREMEMBER", key, member, when, condition)))

    def pexpiremember(
        self: _Client, key: Text, member: Member, when: int | timedelta, condition: Condition | None = None
    ) -> bool:
        """Set a member's lifetime in milliseconds; return whether it was set. Zero or less removes it at once."""
        return bool(self.execute_command(*_expire("PEXPIREMEMBER", key, member, when, condition)))

    def expirememberat(
        self: _Client, key: Text, member: Member, when: int | datetime, condition: Condition | None = None
    ) -> bool:
        """Set a member's deadline, a Unix time in seconds; return whether it was set."""
        return bool(self.execute_command(*_expire("EXPIREMEMBERAT", key, member, when, condition)))

    def pexpirememberat(
        self: _Client, key: Text, member: Member, when: int | datetime, condition: Condition | None = None
    ) -> bool:
        """Set a member's deadline, a Unix time in milliseconds; return whether it was set."""
        return bool(self.execute_command(*_expire("PEXPIREMEMBERAT", key, member, when, condition)))

    def ttl_member(self: _Client, key: Text, member: Member) -> int:
        """Return a member's remaining seconds; -1 without a deadline or member, -2 without the key."""
        return int(self.execute_command("TTL", key, member))

    def pttl_member(self: _Client, key: Text, member: Member) -> int:
        """Return a member's remaining milliseconds; -1 and -2 as for `ttl_member`."""
        return int(self.execute_command("PTTL", key, member))

    def persist_member(self: _Client, key: Text, member: Member) -> bool:
        """Drop a member's deadline; return whether it had one."""
        return bool(self.execute_command("PERSIST", key, member))


class AsyncMemberCommands:
    """Mixin with the new commands for redis-py's asynchronous clients."""

    async def expiremember(
        self: _AsyncClient, key: Text, member: Member, when: int | timedelta, condition: Condition | None = None
    ) -> bool:
        """Set a member's lifetime in seconds; return whether it was set. Zero or less removes it at once."""
        return bool(await self.execute_command(*_expire("EXPIREMEMBER", key, member, when, condition)))

    async def pexpiremember(
        self: _AsyncClient, key: Text, member: Member, when: int | timedelta, condition: Condition | None = None
    ) -> bool:
        """Set a member's lifetime in milliseconds; return whether it was set. Zero or less removes it at once."""
        return bool(await self.execute_command(*_expire("PEXPIREMEMBER", key, member, when, condition)))

    async def expirememberat(
        self: _AsyncClient, key: Text, member: Member, when: int | datetime, condition: Condition | None = None
    ) -> bool:
        """Set a member's deadline, a Unix time in seconds; return whether it was set."""
        return bool(await self.execute_command(*_expire("EXPIREMEMBERAT", key, member, when, condition)))

    async def pexpirememberat(
        self: _AsyncClient, key: Text, member: Member, when: int | datetime, condition: Condition | None = None
    ) -> bool:
        """Set a member's deadline, a Unix time in milliseconds; return whether it was set."""
        return bool(await self.execute_command(*_expire("PEXPIREMEMBERAT", key, member, when, condition)))

    async def ttl_member(self: _AsyncClient, key: Text, member: Member) -> int:
        """Return a member's remaining seconds; -1 without a deadline or member, -2 without the key."""
        return int(await self.execute_command("TTL", key, member))

    async def pttl_member(self: _AsyncClient, key: Text, member: Member) -> int:
        """Return a member's remaining milliseconds; -1 and -2 as for `ttl_member`."""
        return int(await self.execute_command("PTTL", key, member))

    async def persist_member(self: _AsyncClient, key: Text, member: Member) -> bool:
        """Drop a member's deadline; return whether it had one."""
        return bool(await self.execute_command("PERSIST", key, member))


class Queued(Generic[Pipeline]):
    """Queues the new commands in a pipeline of any client, and returns the pipeline; replies are numbers.

    Args:
        pipeline: the pipeline.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline

    def expiremember(
        self, key: Text, member: Member, when: int | timedelta, condition: Condition | None = None
    ) -> Pipeline:
        """Set a member's lifetime in seconds."""
        return self._put(*_expire("EXPIREMEMBER", key, member, when, condition))

    def pexpiremember(
        self, key: Text, member: Member, when: int | timedelta, condition: Condition | None = None
    ) -> Pipeline:
        """Set a member's lifetime in milliseconds."""
        return self._put(*_expire("PEXPIREMEMBER", key, member, when, condition))

    def expirememberat(
        self, key: Text, member: Member, when: int | datetime, condition: Condition | None = None
    ) -> Pipeline:
        """Set a member's deadline, a Unix time in seconds."""
        return self._put(*_expire("EXPIREMEMBERAT", key, member, when, condition))

    def pexpirememberat(
        self, key: Text, member: Member, when: int | datetime, condition: Condition | None = None
    ) -> Pipeline:
        """Set a member's deadline, a Unix time in milliseconds."""
        return self._put(*_expire("PEXPIREMEMBERAT", key, member, when, condition))

    def ttl_member(self, key: Text, member: Member) -> Pipeline:
        """Get a member's remaining seconds."""
        return self._put("TTL", key, member)

    def pttl_member(self, key: Text, member: Member) -> Pipeline:
        """Get a member's remaining milliseconds."""
        return self._put("PTTL", key, member)

    def persist_member(self, key: Text, member: Member) -> Pipeline:
        """Drop a member's deadline."""
        return self._put("PERSIST", key, member)

    def _put(self, *arguments: Any) -> Pipeline:
        self._pipeline.execute_command(*arguments)
        return self._pipeline

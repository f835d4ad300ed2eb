"""The structure of /status.json. tools/status_schema.py generates docs/status.schema.json from it.

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """Base of all parts: rejects unknown fields."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class State(Shape):
    """The proxy's state, in one line."""

    level: Literal["good", "warning", "bad"] = Field(description="How serious the state is.")
    text: str = Field(description="The state, in one line.")
    advice: str | None = Field(description="What to do about it; null where there is nothing to do.")


class Upstream(Shape):
    """The upstream server."""

    address: str = Field(description="Its address, without a password.")
    reachable: bool = Field(description="Whether the proxy's control connection is up.")
    product: str | None = Field(description="Redis or Valkey; null until known.")
    version: str | None = Field(description="Its version.")
    role: Literal["primary", "replica"] | None = Field(description="Its role.")
    mode: str | None = Field(description="standalone or cluster, as the server reports it.")
    replicas: int | None = Field(description="How many replicas it has.")
    commands: float | None = Field(description="Commands per second, for all clients of the server.")
    slots: int = Field(description="Slots of a cluster node; 0 for other servers.")
    sentinels: int = Field(description="Sentinels that answer; 0 if none are configured.")
    clock_offset: float = Field(description="How far the server's clock is ahead of this machine's, in seconds.")
    next_deadline: float | None = Field(description="Unix time of the earliest deadline, by the server's clock.")
    asked: float | None = Field(description="Unix time of the server's last answer for this page; null if none.")
    trouble: str | None = Field(description="Why there is no newer answer; null if the last one is recent.")


class Worker(Shape):
    """A worker of this proxy."""

    number: int = Field(description="Its number, from 1 on.")
    answers: bool = Field(description="Whether it reported its state.")
    clients: int | None = Field(description="The number of its clients.")
    blind: bool | None = Field(
        description="Whether the worker may not know every covered prefix, and so checks every request."
    )


class Proxies(Shape):
    """The proxies in front of the server."""

    workers: list[Worker] = Field(description="The workers of this proxy.")
    others: int | None = Field(description="Other proxies, counting each worker; null if unknown.")


class Requests(Shape):
    """Requests per second of this proxy. Requests forwarded unchanged are not counted."""

    seconds: float = Field(description="How many seconds the counts span.")
    shared: float = Field(description="Sent over shared connections.")
    scripted: float = Field(description="Replaced by a script.")
    held: float = Field(description="Held until a question was answered.")
    refused: float = Field(description="Answered by the proxy with an error.")


class Removals(Shape):
    """Members that this proxy removed at their deadline. The lists have one element per span of time."""

    removed_lately: float | None = Field(description="Members removed per second, over the span of `requests`.")
    removed: int = Field(description="Members removed in all spans together.")
    median: float | None = Field(description="How late the sweeper was for half of the keys, in seconds.")
    p99: float | None = Field(description="How late the sweeper was for 99 of 100 keys, in seconds.")
    ages: list[float] = Field(description="How many seconds ago each span ended; the oldest first.")
    rates: list[float] = Field(description="Members removed per second in each span.")
    medians: list[float | None] = Field(
        description="How late the sweeper was for half of the keys, in seconds; null if no key was due."
    )
    p99s: list[float | None] = Field(
        description="How late the sweeper was for 99 of 100 keys, in seconds; null if no key was due."
    )


class Due(Shape):
    """Keys by when their earliest deadline falls due. Each key counts once, however many deadlines it has."""

    overdue: int = Field(description="Keys whose earliest deadline has passed.")
    minute: int = Field(description="Keys whose earliest deadline passes within a minute, including the overdue.")
    hour: int = Field(description="Keys whose earliest deadline passes within an hour, including all above.")
    day: int = Field(description="Keys whose earliest deadline passes within a day, including all above.")
    keys: int = Field(description="All keys with deadlines.")


class Prefix(Shape):
    """A covered prefix."""

    name: str | None = Field(description="The prefix, or the whole name; null if names are not shown.")
    whole: bool = Field(description="Whether it is one whole name.")
    keys: int | None = Field(description="Keys under it that have deadlines; null if unknown.")


class Prefixes(Shape):
    """The covered prefixes."""

    count: int = Field(description="How many there are.")
    listed: list[Prefix] = Field(description="The first of them, at most 64.")
    exact: bool = Field(description="Whether the numbers of keys are exact; otherwise estimated from a sample.")
    sampled: int | None = Field(description="How many keys were sampled; null if none.")


class Key(Shape):
    """A key with deadlines."""

    name: str = Field(description="Its name.")
    database: int = Field(description="Its database.")
    deadlines: int = Field(description="How many of its members have a deadline.")


class Biggest(Shape):
    """The keys with the most deadlines in a sample."""

    listed: list[Key] = Field(description="The keys, the biggest first.")
    sampled: int = Field(description="How many keys were sampled.")
    whole: bool = Field(description="Whether these are all keys with deadlines.")


class Rule(Shape):
    """A rule of events."""

    database: int = Field(description="Its database.")
    pattern: str | None = Field(description="The pattern of the keys it applies to; null if names are not shown.")
    stream: str | None = Field(description="The stream that gets the entries; null if none, or names are not shown.")
    streams: bool = Field(description="Whether a stream gets an entry for each expired member.")
    list: str | None = Field(description="The list that gets the members; null if none, or names are not shown.")
    lists: bool = Field(description="Whether each expired member is pushed to a list.")
    publishes: str = Field(description="The kinds of messages that are published, as letters.")
    maxlen: int = Field(description="About how many entries the stream keeps; 0 for all.")


class Rules(Shape):
    """The rules of events."""

    count: int = Field(description="How many there are.")
    listed: list[Rule] = Field(description="The first of them, at most 64.")


class Looked(Shape):
    """The result of one look at the server."""

    at: float = Field(description="Unix time.")
    product: str | None
    version: str | None
    role: Literal["primary", "replica"] | None
    mode: str | None
    replicas: int | None
    commands: float | None
    others: int | None
    due: Due | None
    due_trouble: str | None
    prefixes: Prefixes
    biggest: Biggest | None
    rules: Rules | None
    passed_over: int


class Status(Shape):
    """The state of a proxy: the figures of its status page."""

    version: str = Field(description="The proxy's version.")
    at: float = Field(description="Unix time of these figures, by this machine's clock.")
    names: bool = Field(description="Whether names of keys are shown (admin_names).")
    state: State = Field(description="The proxy's state, in one line.")
    upstream: Upstream = Field(description="The server.")
    proxies: Proxies = Field(description="The proxies in front of the server.")
    requests: Requests | None = Field(description="Requests per second; null in the first second.")
    removals: Removals = Field(description="Members that were removed at their deadline.")
    due: Due | None = Field(description="Keys by when their earliest deadline falls due; null if unknown.")
    due_trouble: str | None = Field(description="Why `due` is null.")
    passed_over: int = Field(description="How many databases were not queried, because there are too many.")
    prefixes: Prefixes = Field(description="The covered prefixes.")
    biggest: Biggest | None = Field(description="The keys with the most deadlines; null if names are not shown.")
    rules: Rules | None = Field(description="The rules of events; null if unknown, or for a cluster node.")

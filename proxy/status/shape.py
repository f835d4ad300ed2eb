"""What /status.json holds. Its schema, docs/status.schema.json, is made from this (tools/status_schema.py).

Its tests: tests/test_status_page.py.
"""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class Shape(BaseModel):
    """A part of the whole."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class State(Shape):
    """How the proxy is, in one line."""

    level: Literal["good", "warning", "bad"] = Field(description="How it is.")
    text: str = Field(description="The same in one line.")
    advice: str | None = Field(description="What to do about it; null where there is nothing to do.")


class Upstream(Shape):
    """The server."""

    address: str = Field(description="Its address, without a password.")
    reachable: bool = Field(description="Whether the proxy's control connection is there.")
    product: str | None = Field(description="Redis or Valkey; null while it has not said.")
    version: str | None = Field(description="Its version.")
    role: Literal["primary", "replica"] | None = Field(description="Its role.")
    mode: str | None = Field(description="standalone or cluster, as it says.")
    replicas: int | None = Field(description="How many replicas it has.")
    commands: float | None = Field(description="Commands that it ran a second, of all its clients.")
    slots: int = Field(description="Slots of a cluster node; 0 for any other server.")
    sentinels: int = Field(description="Sentinels that answer; 0 where none are asked.")
    clock_offset: float = Field(description="How far its clock is ahead of this machine's, in seconds.")
    next_deadline: float | None = Field(description="Unix time of the earliest deadline, by its clock.")
    asked: float | None = Field(description="Unix time of its last answer for this page; null: it has given none.")
    trouble: str | None = Field(description="Why it has given no newer answer; null where that is new.")


class Worker(Shape):
    """A worker of this proxy."""

    number: int = Field(description="Its number, from 1 on.")
    answers: bool = Field(description="Whether it has told how it is.")
    clients: int | None = Field(description="Its clients.")
    blind: bool | None = Field(description="Whether it may not know every covered prefix, and looks at every request.")


class Proxies(Shape):
    """The proxies in front of the server."""

    workers: list[Worker] = Field(description="The workers of this one.")
    others: int | None = Field(description="Other proxies, each worker counted; null: that is not known.")


class Requests(Shape):
    """Requests a second of this proxy. Those that pass as they came are not counted."""

    seconds: float = Field(description="In how many seconds they were counted.")
    shared: float = Field(description="Sent over shared connections.")
    scripted: float = Field(description="Replaced by a script.")
    held: float = Field(description="Held until something else was done.")
    refused: float = Field(description="Answered with an error of the proxy.")


class Removals(Shape):
    """Members that this proxy has removed at their deadline. Each list has an element for each age."""

    removed_lately: float | None = Field(description="Members removed a second, in the time that `requests` counts.")
    removed: int = Field(description="Members removed in all the time that the lists span.")
    median: float | None = Field(description="How late the sweeper was in that time, in seconds: half of the keys.")
    p99: float | None = Field(description="The same: 99 of 100 keys.")
    ages: list[float] = Field(description="How many seconds ago each span ended; the oldest first.")
    rates: list[float] = Field(description="Members removed a second in each span.")
    medians: list[float | None] = Field(description="How late half of the keys were, in seconds; null: none was due.")
    p99s: list[float | None] = Field(description="The same: 99 of 100 keys.")


class Due(Shape):
    """Keys by when the earliest deadline of each falls due. A key counts once, whatever follows in it."""

    overdue: int = Field(description="Keys whose earliest deadline has passed.")
    minute: int = Field(description="Keys whose earliest deadline passes within a minute; the overdue are among them.")
    hour: int = Field(description="The same within an hour.")
    day: int = Field(description="The same within a day.")
    keys: int = Field(description="All keys with deadlines.")


class Prefix(Shape):
    """A covered prefix."""

    name: str | None = Field(description="The beginning of names, or the name; null: names are not shown.")
    whole: bool = Field(description="Whether it is one whole name.")
    keys: int | None = Field(description="Keys under it that have deadlines; null: that is not known.")


class Prefixes(Shape):
    """The covered prefixes."""

    count: int = Field(description="How many there are.")
    listed: list[Prefix] = Field(description="The first of them.")
    exact: bool = Field(description="Whether their numbers of keys are exact; else they are estimated from a sample.")
    sampled: int | None = Field(description="Keys that were looked at for it; null: none.")


class Key(Shape):
    """A key with deadlines."""

    name: str = Field(description="Its name.")
    database: int = Field(description="Its database.")
    deadlines: int = Field(description="How many of its members have a deadline.")


class Biggest(Shape):
    """The keys with the most deadlines, of a sample."""

    listed: list[Key] = Field(description="The keys, the biggest first.")
    sampled: int = Field(description="Keys that were looked at.")
    whole: bool = Field(description="Whether these are all keys with deadlines.")


class Rule(Shape):
    """A rule of events."""

    database: int = Field(description="Its database.")
    pattern: str | None = Field(description="The keys that it is for; null: names are not shown.")
    stream: str | None = Field(description="The stream that gets an entry; null: none, or names are not shown.")
    streams: bool = Field(description="Whether a stream gets an entry for each member.")
    list: str | None = Field(description="The list that each member is pushed to; null: none, or names are not shown.")
    lists: bool = Field(description="Whether each member is pushed to a list.")
    publishes: str = Field(description="The kinds of messages that are published, as letters.")
    maxlen: int = Field(description="How many entries the stream keeps, about; 0 for all.")


class Rules(Shape):
    """The rules of events."""

    count: int = Field(description="How many there are.")
    listed: list[Rule] = Field(description="The first of them.")


class Looked(Shape):
    """What one look at the server has found."""

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
    """How a proxy is: the figures of its status page."""

    version: str = Field(description="The proxy's version.")
    at: float = Field(description="Unix time of these figures, by this machine's clock.")
    names: bool = Field(description="Whether names of keys are shown (admin_names).")
    state: State = Field(description="How the proxy is, in one line.")
    upstream: Upstream = Field(description="The server.")
    proxies: Proxies = Field(description="The proxies in front of the server.")
    requests: Requests | None = Field(description="Requests a second; null in the first second.")
    removals: Removals = Field(description="Members that were removed at their deadline.")
    due: Due | None = Field(description="Keys by when the earliest deadline of each falls due; null: not known.")
    due_trouble: str | None = Field(description="Why that is not known.")
    passed_over: int = Field(description="Databases that were not looked at: there are too many.")
    prefixes: Prefixes = Field(description="The covered prefixes.")
    biggest: Biggest | None = Field(description="The keys with the most deadlines; null: names are not shown.")
    rules: Rules | None = Field(description="The rules of events; null: not known, or a cluster node.")

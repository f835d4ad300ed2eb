"""What KeyDB 6.3 answered, recorded reply by reply, is what the proxy answers, on every server."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.raw import Raw
from tests.servers import Proxy

pytestmark = pytest.mark.every_kind

RECORDING = Path(__file__).parent / "data" / "keydb-6.3.jsonl"
SCENARIOS: list[dict[str, Any]] = [json.loads(line) for line in RECORDING.read_text("utf-8").splitlines()]

Reply = dict[str, Any]
"""A reply as it is recorded: its kind and its value, such as ``{"int": 1}``."""


def read(client: Raw) -> Reply:
    line = client.line()
    kind, value = line[:1], line[1:-2].decode("latin-1")
    match kind:
        case b"+":
            return {"status": value}
        case b"-":
            return {"error": value}
        case b":":
            return {"int": int(value)}
        case b"$":
            size = int(value)
            return {"bulk": None if size < 0 else client.exactly(size + 2)[:-2].decode("latin-1")}
        case b"*":
            size = int(value)
            return {"array": None if size < 0 else [read(client) for _ in range(size)]}
    raise AssertionError(f"not a reply of the protocol's second version: {line!r}")


def agree(how: str, recorded: Reply, got: Reply, lost: float = 0.0) -> bool:
    """Whether a reply is the recorded one, with the leeway that the recording gives it: for order, or for time.

    `lost`: seconds that this machine has taken, beside those that are part of the recording.
    """
    if how == "unordered":
        return ordered(recorded) == ordered(got)
    if how.startswith("array int±"):
        wanted, given = recorded.get("array"), got.get("array")
        if wanted is None or given is None:
            return recorded == got
        return len(wanted) == len(given) and all(
            agree(how.removeprefix("array ") if one.get("int", 0) > 0 else "exact", one, other, lost)
            for one, other in zip(wanted, given, strict=True)
        )
    if how.startswith("int±") and "int" in recorded and "int" in got:
        leeway = int(how.removeprefix("int±"))
        late = lost if leeway == 1 else 1000 * lost  # it is s, or ms
        return bool(got["int"] > 0 and -leeway <= recorded["int"] - got["int"] <= leeway + late)
    assert how in ("exact", "int±1", "int±250"), how
    return recorded == got


def ordered(reply: Reply) -> Reply:
    elements = reply.get("array")
    return reply if elements is None else {"array": sorted(elements, key=json.dumps)}


def test_the_recording_is_whole() -> None:
    assert len(SCENARIOS) == 153
    assert sum("send" in step for scenario in SCENARIOS for step in scenario["steps"]) == 4841


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"].replace(" ", "-"))
def test_answers_as_keydb_did(proxy: Proxy, scenario: dict[str, Any]) -> None:
    with proxy.connect() as client:
        began, slept = time.monotonic(), 0.0
        for number, step in enumerate(scenario["steps"]):
            if "sleep_ms" in step:
                # Part of the recording: what is under test is the time that passes.
                time.sleep(step["sleep_ms"] / 1000)
                slept += step["sleep_ms"] / 1000
                continue
            client.send_command(*step["send"])
            reply = read(client)
            lost = time.monotonic() - began - slept
            assert agree(step["match"], step["reply"], reply, lost), (
                f"step {number}, {step['send']}: {step} but got {reply}"
            )

"""The alert rules of config/prometheus: of metrics that there are, with pages that there are, and each fires."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy.metrics.table import DECLARATIONS, PREFIX
from tests.pages import page
from tests.servers import ROOT
from tests.test_metrics import of_the_table

RULES: Final = ROOT / "config" / "prometheus" / "alerts.yaml"
TESTS: Final = ROOT / "tests" / "data" / "alerts.yaml"


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(RULES.read_text("utf-8"))["groups"]
    return list(group["rules"])


def promtool(*arguments: str, status: int = 0) -> str:
    """Run promtool, which has to end with a status; return all that it says. In CI to skip is to fail."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_asks_of_metrics_that_there_are(rule: dict[str, Any]) -> None:
    named = re.findall(rf"{PREFIX}\w+", rule["expr"])
    assert named
    for series in named:
        declaration = DECLARATIONS[of_the_table(series)]
        shown = set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"])))
        assert shown <= {"job", "instance", declaration.label}
    path, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor in page(path).anchors
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_every_alert_has_been_seen_to_fire() -> None:
    fired = set(re.findall(r'alertname="(\w+)"', TESTS.read_text("utf-8")))
    assert fired == {rule["alert"] for rule in rules()}


def test_promtool_finds_the_rules_right() -> None:
    assert f"{len(rules())} rules found" in promtool("check", "rules", "--lint=all", "--lint-fatal", str(RULES))
    assert "SUCCESS" in promtool("test", "rules", str(TESTS))


def test_promtool_would_find_a_rule_wrong(tmp_path: Path) -> None:
    """That the tests of the rules can fail."""
    broken = tmp_path / "alerts.yaml"
    broken.write_text(RULES.read_text("utf-8").replace("abs(", "("), "utf-8")
    tests = tmp_path / "tests.yaml"
    tests.write_text(re.sub(r"rule_files: .*", "rule_files: [alerts.yaml]", TESTS.read_text("utf-8")), "utf-8")
    assert "ExpirememberClockOff" in promtool("test", "rules", str(tests), status=1)

"""In CI no test is skipped for what CI could have installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

SKIPPED = """
import pytest

@pytest.fixture
def lacking():
    pytest.skip("not installed")

def test_in_itself():
    pytest.skip("not installed")

@pytest.mark.skipif(True, reason="not installed")
def test_by_a_mark(): ...

def test_by_a_fixture(lacking): ...

def test_what_cannot_be_had():
    pytest.skip("libfaketime and this server's allocator wait for each other")
"""


@pytest.mark.parametrize(("ci", "outcome"), [(True, "1 failed, 1 skipped, 2 errors"), (False, "4 skipped")])
def test_a_skip_fails_in_ci_only(tmp_path: Path, ci: bool, outcome: str) -> None:
    (tmp_path / "test_some.py").write_text(SKIPPED)
    env = {name: value for name, value in os.environ.items() if name != "CI"} | ({"CI": "true"} if ci else {})
    options = ["-p", "tests.conftest", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    command = [sys.executable, "-m", "pytest", *options, str(tmp_path)]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert outcome in run.stdout.splitlines()[-1], run.stdout

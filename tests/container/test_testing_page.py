"""docs/testing.md: what it tells users to write and to run works as it stands there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import docker

from tests.servers import ROOT

PAGE = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")


def marked(name: str) -> str:
    """Return the code block between two markers."""
    found = re.search(rf"<!-- {re.escape(name)} -->\n```\w+\n(.*?)```\n<!-- /{re.escape(name)} -->", PAGE, re.DOTALL)
    assert found is not None
    return found[1]


def test_every_block_of_the_page_is_marked() -> None:
    names = re.findall(r"<!-- ([^/ ]\S*) -->", PAGE)
    assert len(names) == PAGE.count("\n```\n")
    assert all(marked(name) for name in names)


def test_the_class_is_ten_lines() -> None:
    lines = [line for line in marked("proxy_container.py").splitlines() if line and "import" not in line]
    assert len(lines) <= 10


def test_its_tests_pass(image: str, daemon: docker.DockerClient, tmp_path: Path) -> None:
    daemon.images.get(image).tag("expiremember-proxy")
    for name in ("proxy_container.py", "test_cart.py", "test_pod.py"):
        (tmp_path / name).write_text(marked(name))
    # On their own: nothing of this project's is in reach.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:valkey", "--rootdir", "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    assert "3 passed" in run.stdout, run.stdout


def test_the_image_is_built_by_the_command(image: str) -> None:
    # Without a registry, on another base and by way of the host's network; all else as it stands there.
    command = shlex.split(marked("build-command"))
    command[-1:-1] = shlex.split(os.environ.get("BUILD_OPTIONS", ""))
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr


def test_the_container_tests_are_run_by_the_command() -> None:
    script, *_, tests = shlex.split(marked("container-tests"))
    assert (ROOT / script).stat().st_mode & 0o111
    assert (ROOT / tests / "test_testing_page.py").is_file()

"""What is built and installed: the files of the wheel and the source distribution, and the bounds of dependencies."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest

from proxy.settings import load
from proxy.upstream.endpoint import Upstream
from tests.conftest import StartServer
from tests.servers import BINARIES, ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def build(target: str, source: Path, folder: Path) -> Path:
    """Build a wheel or an sdist of a source tree, as pip does; return the file."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, of the dev extra, is not installed")
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(folder)]
    subprocess.run(command, cwd=source, capture_output=True, check=True)
    (made,) = folder.iterdir()
    return made


def names_in(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def shipped(folder: str) -> set[str]:
    """The files of a folder of this checkout that belong to a distribution."""
    found = {path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    return {str(path.relative_to(ROOT)) for path in found}


def test_wheel_and_sdist_have_all_that_is_needed(tmp_path: Path) -> None:
    for folder in ("wheel", "sdist", "again"):
        (tmp_path / folder).mkdir()
    names = names_in(build("wheel", ROOT, tmp_path / "wheel"))
    package = shipped("proxy")
    assert {"proxy/py.typed", "proxy/embedded/guard.py"} <= package
    assert any(name.endswith(".lua") for name in package)
    assert {name for name in names if ".dist-info/" not in name} == package
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)

    sdist = build("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        members = {member.name.partition("/")[2] for member in archive if member.isfile()}
        if hasattr(tarfile, "data_filter"):  # not before 3.11.4; from 3.12 on Python warns where none is named
            archive.extraction_filter = tarfile.data_filter
        archive.extractall(tmp_path)
    expected = set().union(*(shipped(folder) for folder in ("proxy", "config", "tests", "benchmarks", "docs")))
    assert expected | {"README.md", "LICENSE", "Dockerfile", "pyproject.toml"} <= members
    assert not any(name.startswith(".") and name != ".gitignore" for name in members), (
        "hatchling adds .gitignore itself"
    )
    (unpacked,) = tmp_path.glob("expiremember_proxy-*")
    assert names_in(build("wheel", unpacked, tmp_path / "again")) == names


def test_what_is_installed_is_no_older_than_what_is_asked_for() -> None:
    for requirement in PROJECT["dependencies"]:
        parts = re.fullmatch(r"([a-z0-9-]+)>=([0-9.]+)(?:,<([0-9]+))?", requirement)
        assert parts is not None, requirement
        installed = tuple(int(number) for number in importlib.metadata.version(parts[1]).split(".")[:3])
        assert installed >= tuple(int(number) for number in parts[2].split("."))
        assert parts[3] is None or installed < (int(parts[3]),)


def test_the_inside_of_redis_py_is_what_send_at_once_takes_it_for(start_server: StartServer) -> None:
    """It uses a private attribute, as redis-py cannot send without waiting: so its next major version is not allowed.

    A newer one is allowed by raising the bound, if this passes with it.
    """
    (bounded,) = (requirement for requirement in PROJECT["dependencies"] if requirement.startswith("redis>"))
    assert re.search(r",<[0-9]+$", bounded)
    server = start_server(min(BINARIES))

    async def main() -> None:
        pushed: list[Any] = []

        async def take(push: list[Any]) -> object:
            pushed.append(push)
            return push

        connection = Upstream(load({"upstream": server.url}, None), server.url).listening_connection(take, take)
        connection.send_at_once("dropped")
        await connection.connect()  # type: ignore[no-untyped-call]
        await connection.send_command("SET", "number", "1")
        connection.send_at_once("INCR", "number")
        connection.send_at_once(b"SUBSCRIBE", "channel")
        connection.send_at_once("CLIENT", "TRACKING", "ON", "BCAST")
        connection.send_at_once("INCR", "number")
        answers = [await connection.read_response(push_request=True, timeout=5) for _ in range(6)]
        await connection.disconnect(nowait=True)
        connection.send_at_once("dropped")
        subscribed, invalidated = [b"subscribe", b"channel", 1], [b"invalidate", [b"number"]]
        assert pushed == [subscribed, invalidated]
        assert answers[:4] == [b"OK", 2, subscribed, b"OK"]
        assert sorted(answers[4:], key=str) == sorted([3, invalidated], key=str)

    asyncio.run(main())

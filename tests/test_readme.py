"""The README says what is so: its session prints what it shows, its commands are the ones that run."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

from proxy.commands.table import COMMANDS, Effect
from tests.servers import Proxy

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def marked(name: str) -> str:
    """The code block between two markers."""
    found = re.search(rf"<!-- {name} -->\n```\w+\n(.*?)```\n<!-- /{name} -->", README, re.DOTALL)
    assert found is not None
    return found[1]


def test_the_session_prints_what_the_readme_prints(proxy: Proxy) -> None:
    port = str(proxy.address[1])  # type: ignore[index]
    prompt = "127.0.0.1:6380> "
    exchanges = marked("session").split(prompt)[1:]
    assert len(exchanges) > 10
    for exchange in exchanges:
        line, shown = exchange.split("\n", 1)
        run = subprocess.run(
            ["redis-cli", "--no-raw", "-p", port, *shlex.split(line)],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        assert run.stdout == shown, line


def test_every_command_of_the_proxy_is_in_the_table() -> None:
    section = README.split("## Commands")[1].split("## ")[0]
    for name, command in COMMANDS.items():
        if command.effect in (Effect.EXPIRE, Effect.LIFETIME):
            assert f"`{name.decode()} key member" in section

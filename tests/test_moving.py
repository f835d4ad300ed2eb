"""The page on moving from KeyDB says what is so: its commands are the ones that run here, one after the other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.conftest import StartServer
from tests.keydb_files import SyncRelay, recorded, recorded_deadlines
from tests.pages import page
from tests.servers import Proxy, free_port, proxy_environment
from tests.test_import import KIND, NAMES, SENDER, holding, kept

PAGE = page("docs/moving-from-keydb.md")

STATUSES = [3, 0, 0, 0, 0, 0, None, 0]
"""The exit statuses of the page's commands, in order; None for the one that serves."""


def test_every_step_does_what_the_page_says(start_server: StartServer, tmp_path: Path) -> None:
    keydb = holding(start_server, SENDER, tmp_path, recorded("types"))
    server = start_server(KIND)
    wanted = recorded_deadlines("types")
    ports = {"6379": server.port, "6380": free_port(), "6390": keydb.port}
    said: list[str] = []
    with SyncRelay(keydb.address, wanted) as relay:
        proxy = None
        try:
            for block, status in zip(PAGE.blocks, STATUSES, strict=True):
                text = block.text
                # The deadlines come by the relay, all else from the server itself.
                text = text.replace("redis://127.0.0.1:6390", relay.url)
                text = text.replace("expiremember-proxy", f"{sys.executable} -m proxy")
                commands = re.sub(r"\b(6379|6380|6390)\b", lambda found: str(ports[found[0]]), text)
                if status is None:
                    proxy = Proxy(*commands.split()[3:])
                    continue
                run = subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", commands],
                    capture_output=True,
                    text=True,
                    timeout=60,
                    env=proxy_environment(),
                )
                assert run.returncode == status, (commands, run)
                said.append(run.stdout)
        finally:
            if proxy is not None:
                proxy.close()
    first, _, rehearsed, offsets, _, imported, left = said
    assert "27 of them have members with deadlines: 1,386 deadlines" in first
    assert "1,386  no such key" in first
    assert "1,386  to be set" in rehearsed
    assert len(re.findall(r"offset:(\d+)", offsets)) == 2
    assert "1,386  the same" in imported
    assert int(left) > 10**9
    assert kept(server, wanted) == wanted
    assert server.command("ZCARD", NAMES.index) != b":0\r\n"


def test_the_page_has_every_difference() -> None:
    section = page("docs/semantics.md").text.split("## Where it differs")[1].split("## ")[0]
    differences = [row[0] for row in re.findall(r"^\| (.+?) \| (.+?) \|", section, re.MULTILINE)][2:]
    section = PAGE.text.split("## What behaves differently")[1]
    told = [row[0] for row in re.findall(r"^\| (.+?) \| (.+?) \|", section, re.MULTILINE)][2:]
    assert len(differences) > 5
    assert told == differences

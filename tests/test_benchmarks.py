"""The measurements run, each in a short form: what they measure is told by their figures, not here."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile

import psutil
import pytest

from tests.servers import ROOT, until

SHORT = [
    "crowd --rounds 1 --requests 500",
    "fleet --proxies 1 2 --rounds 1 --requests 50 --keys 100 --idle-seconds 0.1",
    "lateness --members 100 --seconds 1",
    "lateness --members 100 --seconds 1 --read --proxy-arg=--no-sweep",
    "mass --members 2000 --keys 200",
    "members --sizes 100 1000 --rounds 1 --requests 500 --latency-requests 50",
    "inline --rounds 1 --requests 1000",
    "events --members 2000 --rounds 1",
    "memory --members 1000 --keys 5000",
    "pairs --rounds 1 --requests 1200",
    "relay --rounds 1 --requests 1000 --known-keys 100 --bare --unix --admin",
    "window --sequences 40 --only quiet",
]


NEEDED = (("redis-server", "valkey-server"),)
GENERATOR = ("redis-benchmark", "valkey-benchmark")
NEEDED_BY = {"crowd": (GENERATOR,), "inline": (GENERATOR,), "relay": (GENERATOR, ("haproxy",), ("nutcracker",))}


@pytest.mark.parametrize("line", SHORT)
def test_a_measurement_gives_figures(line: str) -> None:
    name, *options = line.split()
    for programs in (*NEEDED, *NEEDED_BY.get(name, ())):
        if not any(map(_installed, programs)):
            pytest.skip(f"not installed: {' or '.join(programs)}")
    result = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *options, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "v=" in json.loads(result.stdout)["server"]


@pytest.mark.skipif(sys.platform != "linux", reason="no other system ends a process with its parent")
def test_nothing_outlives_a_measurement_that_is_killed() -> None:
    code = "from benchmarks.stage import Stage\nwith Stage() as stage: print(stage.redis().process.pid); input()"
    command = [sys.executable, "-uc", code]
    with (
        tempfile.TemporaryDirectory() as folder,  # pytest's own is too long for the path of a Unix socket
        subprocess.Popen(
            command, cwd=ROOT, env=os.environ | {"TMPDIR": folder}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as measurement,
    ):
        assert measurement.stdout is not None
        server = psutil.Process(int(measurement.stdout.readline()))
        measurement.kill()
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                until(lambda: server.status() == psutil.STATUS_ZOMBIE)
            finally:
                server.kill()


def _installed(program: str) -> bool:
    return shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin:/usr/local/sbin") is not None

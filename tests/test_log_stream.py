"""A log that nobody reads: clients are served all the same, and it is told how many lines were lost."""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from proxy.log_stream import Patient
from tests.raw import Raw
from tests.servers import Server, free_port, until


def drain(descriptor: int) -> bytes:
    """All that can be read at once."""
    os.set_blocking(descriptor, False)
    said = b""
    while True:
        try:
            said += os.read(descriptor, 65536)
        except BlockingIOError:
            return said


@pytest.mark.parametrize("means", ["pipe", "socket"])
def test_lines_that_nobody_reads_are_dropped_and_counted(means: str) -> None:
    if means == "pipe":
        reading, writing = os.pipe()
    else:
        reading, writing = (end.detach() for end in socket.socketpair())
    with open(writing, "w") as stream:  # noqa: PTH123 - a descriptor
        told: list[int] = []
        patient = Patient(stream)
        patient.on_room = told.append
        number = 0
        while not patient.lost:
            patient.write(f"{number} {'x' * 100}\n")
            number += 1
        for _ in range(9):
            patient.write("never\n")
        assert patient.lost == 10
        assert not told
        lines = drain(reading).splitlines()
        assert [int(line.split()[0]) for line in lines[: number - 1]] == list(range(number - 1))
        patient.write("again\n")
        assert told == [10]
        assert drain(reading).endswith(b"\nagain\n" if len(lines) == number else b"again\n")
        patient.write("y" * 200_000 + "\n")  # more than there is room for
        assert patient.lost == 1
        drain(reading)
        patient.write("behind it\n")
        assert drain(reading) == b"\nbehind it\n"
        patient.close()
    os.close(reading)


def test_a_stream_that_makes_nobody_wait_is_written_to_as_it_is() -> None:
    stream = io.StringIO()
    patient = Patient(stream)
    patient.write("line\n")
    patient.flush()
    assert stream.getvalue() == "line\n"


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.one_kind
def test_a_log_reader_that_stands_still_holds_no_client_up(upstream: Server, workers: str) -> None:
    port = free_port()
    command = [sys.executable, "-m", "proxy", "--upstream", upstream.url, "--listen", f"127.0.0.1:{port}"]
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4096)
    proxy = subprocess.Popen([*command, "--workers", workers, "--log-format", "json"], stderr=writing)
    os.close(writing)
    try:
        until(lambda: accepts(port))
        for _ in range(100):
            proxy.send_signal(signal.SIGHUP)
            with Raw(("127.0.0.1", port)) as client:
                assert client.command("PING") == b"+PONG\r\n"
        first = drain(reading)
        proxy.send_signal(signal.SIGHUP)
        said = b""

        def lost() -> bool:
            nonlocal said
            said += drain(reading)
            return b"log lines lost" in said and said.endswith(b"\n")

        until(lost)
        told = [json.loads(line) for line in said.splitlines() if b"log lines lost" in line]
        assert told[0]["lines"] > 10
        assert len(first) <= 4096
        proxy.send_signal(signal.SIGTERM)
        assert proxy.wait(20) == 0
    finally:
        proxy.kill()
        proxy.wait()
        os.close(reading)


def accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True

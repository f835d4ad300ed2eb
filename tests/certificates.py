"""Makes certificates for the tests: authorities, and what they have signed, by the openssl command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificate:
    """A certificate, with its key.

    Attributes:
        file: the certificate.
        key: its private key.
    """

    file: Path
    key: Path


class Authority:
    """A certificate authority of its own.

    Args:
        folder: where its files are put.
        name: what it is called.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.own = self._make(name, "-addext", "basicConstraints=critical,CA:TRUE")
        self.file = self.own.file

    def sign(self, name: str, alternative: str = "") -> Certificate:
        """Make a certificate for a name; `alternative` such as `IP:127.0.0.1` is what a client checks."""
        more = ["-addext", f"subjectAltName={alternative}"] if alternative else []
        return self._make(name, "-CA", str(self.own.file), "-CAkey", str(self.own.key), *more)

    def _make(self, name: str, *args: str) -> Certificate:
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        command += ["-subj", f"/CN={name}", "-days", "2", "-out", str(made.file), "-keyout", str(made.key), *args]
        subprocess.run(command, check=True, capture_output=True)
        return made

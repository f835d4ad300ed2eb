"""Makes certificates for the tests: authorities, and what they have signed, by the openssl command."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

EC = "ec"


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

    def sign(self, name: str, alternative: str = "", *, since: int = 0, kind: str = EC) -> Certificate:
        """Make a certificate for a name.

        Args:
            name: the name.
            alternative: what a client checks, such as `IP:127.0.0.1`.
            since: in how many days its two days begin.
            kind: of its key, such as `rsa:4096`.
        """
        more = ["-addext", f"subjectAltName={alternative}"] if alternative else []
        return self._make(name, "-CA", str(self.own.file), "-CAkey", str(self.own.key), *more, since=since, kind=kind)

    def _make(self, name: str, *args: str, since: int = 0, kind: str = EC) -> Certificate:
        made = Certificate(self._folder / f"{name}.pem", self._folder / f"{name}.key")
        command = ["openssl", "req", "-x509", "-newkey", kind, "-nodes"]
        command += ["-pkeyopt", "ec_paramgen_curve:prime256v1"] if kind == EC else []
        command += ["-subj", f"/CN={name}", "-days", "2", "-out", str(made.file), "-keyout", str(made.key), *args]
        subprocess.run(command, check=True, capture_output=True, env=os.environ | _shifted(since))
        return made


def _shifted(days: int) -> dict[str, str]:
    """What makes a program see another date.

    The program `faketime` would leave shared memory behind for each process, and fail where a number comes round.
    """
    if not days:
        return {}
    (library,) = Path("/usr/lib").glob("*/faketime/libfaketime.so.1")
    return {"LD_PRELOAD": str(library), "FAKETIME": f"{days:+}d"}

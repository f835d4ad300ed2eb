"""Client libraries, most of other languages: found on this machine, or installed once into the user's cache."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

NPM: Final = {"ioredis": "6.0.0", "redis": "6.3.1", "@valkey/valkey-glide": "2.5.2", "typescript": "5.9.3"}
"""Packages of Node.js, and the versions that are tested."""

PREDIS: Final = Path("/usr/share/php/Predis/Autoloader.php")


def node_modules() -> Path:
    """Return the folder with the libraries of Node.js, installed if need be; skip the test where it is not."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("npm and node are not installed")
    packages = [f"{name}@{version}" for name, version in NPM.items()]
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "expiremember-proxy"
    folder = cache / "-".join(["npm", *NPM.values()])
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as made:
            command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--prefix", made, *packages]
            subprocess.run(command, check=True, capture_output=True, timeout=300)
            try:
                Path(made).rename(folder)
            except OSError:
                assert folder.exists()  # another worker was quicker
            Path(made).mkdir(exist_ok=True)
    return folder / "node_modules"


def _node(folder: Path) -> list[str]:
    (folder / "node_modules").symlink_to(node_modules())
    return ["node"]


def _typescript(folder: Path) -> list[str]:
    """Check it as strictly as there is, then run what has been made of it."""
    _node(folder)
    check = (
        'node_modules/.bin/tsc --strict --target es2022 --module nodenext --skipLibCheck "$0" && node "${0%.mts}.mjs"'
    )
    return ["sh", "-c", f"cd {shlex.quote(str(folder))} && {check}"]


def _php(folder: Path) -> list[str]:
    del folder
    return _having("php", "-r", "exit(extension_loaded('redis') ? 0 : 1);")


def _predis(folder: Path) -> list[str]:
    if not PREDIS.exists():
        pytest.skip("Predis is not installed")
    return _php(folder)


def _ruby(folder: Path) -> list[str]:
    del folder
    return _having("ruby", "-rredis", "-e", "")


def _having(program: str, *check: str) -> list[str]:
    """Return how a program is called; skip the test where it, or the library that `check` loads, is not there."""
    if shutil.which(program) is None or subprocess.run([program, *check], check=False, timeout=60).returncode:
        pytest.skip(f"{program} or its library for Redis is not installed")
    return [program]


LIBRARIES: Final[dict[str, tuple[str, Callable[[Path], list[str]]]]] = {
    "redis-py": (".py", lambda _: [sys.executable, "-W", "error"]),
    "ioredis": (".mjs", _node),
    "TypeScript": (".mts", _typescript),
    "node-redis": (".mjs", _node),
    "GLIDE": (".mjs", _node),
    "phpredis": (".php", _php),
    "Predis": (".php", _predis),
    "redis-rb": (".rb", _ruby),
}
"""Library → how the names of its programs end, and what prepares a folder for them and tells what runs them."""


def run(library: str, program: str, folder: Path, *arguments: str | int) -> list[str]:
    """Run a program that uses a library to its end.

    Args:
        library: one of `LIBRARIES`.
        program: its text.
        folder: an empty one.
        arguments: what it is called with.

    Returns:
        The lines that it printed.
    """
    suffix, prepare = LIBRARIES[library]
    file = folder / f"program{suffix}"
    file.write_text(program, "utf-8")
    command = [*prepare(folder), str(file), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()

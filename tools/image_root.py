"""Gather the files of the container image: Python, the proxy, what they load, and nothing else: no shell, no tools.

python3 tools/image_root.py VENV ROOT, in the build of the image: of its own Python and VENV, into the folder ROOT.
"""

from __future__ import annotations

import compileall
import py_compile
import re
import shutil
import ssl
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

_FOLDERS: Final = "__pycache__ dist-packages ensurepip idlelib lib2to3 pydoc_data site-packages test tests tkinter"
NOT_OF_PYTHON: Final = frozenset(f"{_FOLDERS} turtledemo".split())
"""Folders of the standard library that the proxy never loads."""

CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
USER: Final = 10001

FILES: Final = ("/etc/os-release", "/etc/debian_version", "/etc/ld.so.cache", "/etc/ssl/openssl.cnf", str(CERTIFICATES))


class Root:
    """The folder, and what has been put into it.

    Args:
        folder: where it is; it is made.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.libraries: set[Path] = set()
        folder.mkdir(parents=True)
        for name in ("bin", "lib", "lib64", "sbin"):
            if (link := Path("/", name)).is_symlink():
                (folder / name).symlink_to(link.readlink())
        for name in ("bin", "lib", "lib64", "sbin"):
            (folder / "usr" / name).mkdir(parents=True, exist_ok=True)

    def at(self, path: Path) -> Path:
        """Return where a path is in the folder; the folder it is in is made."""
        place = self._folder / path.relative_to("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def copy(self, path: Path) -> None:
        """Copy a file to its own path, whatever links lead to it."""
        if path.is_file() and not self.at(path).exists():
            shutil.copy2(path, self.at(path))

    def write(self, path: str, text: str) -> None:
        """Write a file."""
        self.at(Path(path)).write_text(text, "utf-8")

    def need(self, files: Iterable[Path]) -> None:
        """Copy the libraries that programs or libraries load."""
        for file in files:
            said = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout  # noqa: S603, S607
            for found in re.findall(r"(/\S+) \(0x", said):
                self.libraries.add(Path(found))
        for library in self.libraries:
            self.copy(library)


def standard_library(folder: Path) -> Iterator[Path]:
    """Give the files of the standard library that are of use: no tests, and nothing to link other programs with."""
    for path in sorted(folder.iterdir()):
        if path.name in NOT_OF_PYTHON or path.name.startswith(("config-", "_tkinter.", "_test")):
            continue
        if path.is_dir():
            yield from standard_library(path)
        else:
            yield path


def packages(libraries: Iterable[Path]) -> str:
    """Return what dpkg knows of the packages that files are of, for those who look for vulnerable ones."""
    paths = {form for path in libraries for form in (path, path.resolve(), Path("/usr", path.relative_to("/")))}
    paths |= {Path("/", path.relative_to("/usr")) for path in paths if path.is_relative_to("/usr")}
    listed = subprocess.run(["dpkg", "-S", *map(str, paths)], capture_output=True, text=True, check=False)  # noqa: S603, S607
    names = {line.partition(":")[0] for line in listed.stdout.splitlines()}
    known = Path("/var/lib/dpkg/status").read_text("utf-8").split("\n\n")
    return (
        "\n\n".join(one.strip("\n") for one in known if one.partition("\n")[0].removeprefix("Package: ") in names)
        + "\n"
    )


def gather(venv: Path, folder: Path) -> None:
    """Gather all files."""
    root = Root(folder)
    interpreter, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    root.copy(interpreter)
    for name in {"python3", f"python3.{sys.version_info.minor}"} - {interpreter.name}:
        root.at(interpreter.parent / name).symlink_to(interpreter.name)
    files = list(standard_library(library))
    for file in files:
        root.copy(file)
    shutil.copytree(venv, root.at(venv), symlinks=True, ignore=shutil.ignore_patterns("__pycache__", "*.pyx", "*.pxd"))
    for compiled in (library, venv):
        # By no date: that of a file may not outlive the way into an image.
        by = py_compile.PycInvalidationMode.UNCHECKED_HASH
        compileall.compile_dir(root.at(compiled), stripdir=str(folder), quiet=1, workers=0, invalidation_mode=by)
    root.need([interpreter, *(file for file in files if ".so" in file.suffixes), *venv.rglob("*.so")])
    root.need([_library("libgcc_s.so.1")])  # the C library loads it when a thread ends
    root.copy(_library("libgcc_s.so.1"))
    for name in FILES:
        root.copy(Path(name))
    paths = ssl.get_default_verify_paths()
    if not root.at(Path(paths.openssl_cafile)).exists():
        root.at(Path(paths.openssl_cafile)).symlink_to(CERTIFICATES)
    root.write("/etc/passwd", f"root:x:0:0:root:/:/sbin/nologin\nproxy:x:{USER}:{USER}:proxy:/:/sbin/nologin\n")
    root.write("/etc/group", f"root:x:0:\nproxy:x:{USER}:\n")
    root.write("/etc/nsswitch.conf", "hosts: files dns\n")
    root.write("/var/lib/dpkg/status", packages({*root.libraries, interpreter, library / "os.py"}))
    for copyright_file in Path("/usr/share/doc").glob("*/copyright"):
        root.copy(copyright_file)
    root.at(Path("/tmp/x")).parent.chmod(0o1777)  # noqa: S108


def _library(name: str) -> Path:
    said = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    found = re.search(rf"^\s*{re.escape(name)} .* => (\S+)$", said, re.MULTILINE)
    assert found is not None, name
    return Path(found[1])


if __name__ == "__main__":
    gather(Path(sys.argv[1]), Path(sys.argv[2]))

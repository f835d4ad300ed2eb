"""Every commented-out alternative in config/ does what it says; a new one that nothing runs fails here."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy.settings import ENVIRONMENT_PREFIX, Settings, load
from tests.alternatives import KINDS, Alternative, alternatives
from tests.conftest import StartServer
from tests.container.test_compose import ACTS
from tests.manifests import KUBERNETES, environment_of, pod_of, rendered, sidecar_of
from tests.pages import pages
from tests.raw import Raw
from tests.servers import BINARIES, ROOT, free_port, until
from tests.test_systemd import PROGRAM, analyze

pytestmark = [pytest.mark.start, pytest.mark.oldest_kind]

CONFIG: Final = [path for path in sorted((ROOT / "config").rglob("*")) if path.is_file() and path.suffix != ".json"]
PASSWORD: Final = "let me in"


def comments(path: Path) -> Iterator[str]:
    for line in path.read_text("utf-8").splitlines():
        if match := re.fullmatch(r"\s*#( .*)?", line):
            yield (match[1] or "")[1:]


# There are no others.


def test_each_is_run_by_something() -> None:
    found = {str(alternative) for alternative in alternatives()}
    assert found == {str(alternative) for kind in KINDS for alternative in alternatives(kind)}
    assert len(found) >= 6
    assert {alternative.label for alternative in alternatives("compose")} == set(ACTS)


@pytest.mark.parametrize("path", CONFIG, ids=lambda path: path.name)
def test_what_comments_call_a_line_is_one(path: Path) -> None:
    """Prose offers no alternative; a setting in it is one that can be made, and an entry stands somewhere."""
    plain = "\n".join(
        line for each in CONFIG for line in each.read_text("utf-8").splitlines() if not line.lstrip().startswith("#")
    )
    for comment in comments(path):
        if comment.startswith("  ") or path.suffix == ".toml":
            continue  # a command, or below
        for name, value in re.findall(r"\b([A-Za-z_]+)=(\S+)", comment):
            assert name.startswith(ENVIRONMENT_PREFIX), comment
            Settings(**{name.removeprefix(ENVIRONMENT_PREFIX).lower(): value})
        for entry in re.findall(r"`([\w-]+: [^`]+)`", comment):
            assert entry in plain, comment


def test_documents_have_none() -> None:
    for page in pages():
        for block in page.blocks:
            if block.language not in ("c", "js", "php"):
                assert not re.search(r"^\s*#[^\s#!]", block.text, re.M), block


# proxy.toml


_SENTINELS: Final = 'upstream = "redis+sentinel://127.0.0.1:26379/main"'
_TLS: Final = ('upstream = "rediss://127.0.0.1:6379"',)
_OWN_TLS: Final = ('listen_tls_cert_file = "x"', 'listen_tls_key_file = "x"', 'listen = ["tls://127.0.0.1:6380"]')
NEEDS: Final = {
    "listen_tls_cert_file": _OWN_TLS,
    "listen_tls_key_file": _OWN_TLS,
    "listen_tls_ca_file": _OWN_TLS,
    "sentinel_user": (_SENTINELS, 'sentinel_password = "x"'),
    "sentinel_password": (_SENTINELS,),
    "sentinel_password_file": (_SENTINELS,),
    "embedded_dir": ("embedded = true",),
    "tls_ca_file": _TLS,
    "tls_cert_file": (*_TLS, 'tls_key_file = "x"'),
    "tls_key_file": (*_TLS, 'tls_cert_file = "x"'),
}
"""What else a setting makes sense with."""


def test_each_setting_that_is_not_set_can_be(tmp_path: Path) -> None:
    text = (ROOT / "config" / "proxy.toml").read_text("utf-8")
    unset = set(re.findall(r'^# (\w+) = ""$', text, re.M))
    assert unset == {name for name, one in Settings.model_fields.items() if one.default is None}
    for name in sorted(unset):
        changed = text
        for line in (f'{name} = "{"127.0.0.1:9121" if name == "admin" else "x"}"', *NEEDS.get(name, ())):
            changed, count = re.subn(rf"^(# )?{line.partition(' ')[0]} = .*$", line, changed, flags=re.M)
            assert count == 1
        file = tmp_path / "proxy.toml"
        file.write_text(changed, "utf-8")
        assert getattr(load({}, file), name) is not None


# systemd


def run_of(text: str, places: dict[str, str]) -> tuple[dict[str, str], int]:
    """The environment and the mask that a unit gives to the proxy, with these specifiers and folders."""
    for name, place in places.items():
        text = text.replace(name, place)
    environment = dict(re.findall(r"^Environment=(\w+)=(.*)$", text, re.M))
    (mask,) = re.findall(r"^UMask=([0-7]+)$", text, re.M)
    return environment, int(mask, 8)


@contextmanager
def running(environment: dict[str, str], mask: int, log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "proxy"], cwd=ROOT, umask=mask, stdout=output, stderr=output,
            env={name: value for name, value in os.environ.items() if not name.startswith(ENVIRONMENT_PREFIX)}
            | environment,
        )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or "upstream_state=reachable" in _plain(log), what="readiness")
        assert process.poll() is None, log.read_text("utf-8")
        yield
        process.terminate()
        assert process.wait(timeout=20) == 0
    finally:
        process.kill()
        process.wait()


def _plain(log: Path) -> str:
    return log.read_text("utf-8").replace('": "', "=").replace('"', "")


@pytest.mark.parametrize("alternative", alternatives("unit"), ids=lambda one: one.label)
def test_an_alternative_of_the_unit(alternative: Alternative, start_server: StartServer, tmp_path: Path) -> None:
    unit = tmp_path / Path(alternative.file).name
    program = tmp_path / "program"
    shutil.copy(shutil.which("true") or "/bin/true", program)
    unit.write_text(alternative.text.replace(f"ExecStart={PROGRAM}", f"ExecStart={program}"), "utf-8")
    done = analyze("verify", "--man=no", str(unit))
    assert (done.returncode, done.stdout + done.stderr) == (0, "")

    lines = [line for line in alternative.text.splitlines() if not line.startswith("#")]
    text = "\n".join(lines)
    places = {
        "%d": str(tmp_path),
        "%S": str(tmp_path),
        "/run/expiremember-proxy": str(tmp_path),
        "/run/redis": str(tmp_path),
    }
    (tmp_path / "password").write_text(PASSWORD)
    (tmp_path / "expiremember-proxy").mkdir()  # StateDirectory
    if "%d/" in text:
        assert any(line.startswith("LoadCredential=password:") for line in lines)
    if "%S/" in text:
        assert "StateDirectory=expiremember-proxy" in lines
    if "/run/expiremember-proxy/" in text:
        assert "RuntimeDirectory=expiremember-proxy" in lines

    upstream = start_server(
        min(BINARIES), "--requirepass", PASSWORD, "--unixsocket", str(tmp_path / "redis-server.sock"),
        "--unixsocketperm", "700",
    )  # fmt: skip
    given, mask = run_of(text, places)
    assert given.keys() <= {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in Settings.model_fields}
    port = free_port()
    environment = {"EXPIREMEMBER_LISTEN": f"127.0.0.1:{port}"}
    embedded = "EXPIREMEMBER_EMBEDDED" in given
    if not embedded:
        environment["EXPIREMEMBER_UPSTREAM"] = f"redis://127.0.0.1:{upstream.port}"
        if "EXPIREMEMBER_UPSTREAM_PASSWORD_FILE" not in given:
            environment["EXPIREMEMBER_UPSTREAM_PASSWORD"] = PASSWORD
    environment |= given
    listen = environment["EXPIREMEMBER_LISTEN"]
    with running(environment, mask, tmp_path / "log"):
        path = Path(listen.removeprefix("unix://"))
        with Raw(path if listen.startswith("unix://") else ("127.0.0.1", port)) as client:
            if not embedded:
                assert client.command("AUTH", PASSWORD) == b"+OK\r\n"
            assert client.command("SADD", "s", "m") == b":1\r\n"
            assert client.command("EXPIREMEMBER", "s", "m", 600) == b":1\r\n"
        if listen.startswith("unix://"):
            # Those of the group, and nobody else.
            assert stat.S_IMODE(path.stat().st_mode) == 0o660
    if embedded:
        assert any((tmp_path / "expiremember-proxy").iterdir())


# Kubernetes


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """The folder with the examples, copied."""
    shutil.copytree(KUBERNETES, tmp_path / "kubernetes")
    return tmp_path / "kubernetes"


def _no_readiness(objects: dict[str, Any]) -> None:
    sidecar = sidecar_of(objects)
    assert "readinessProbe" not in sidecar
    assert sidecar["startupProbe"]
    assert sidecar["livenessProbe"]


ASKS: Final = {"Where the application can do its work without Redis": _no_readiness}


@pytest.mark.parametrize("alternative", alternatives("kubernetes"), ids=lambda one: one.label)
def test_an_alternative_of_the_sidecar(alternative: Alternative, copied: Path) -> None:
    (copied / Path(alternative.file).relative_to("config/kubernetes")).write_text(alternative.text, "utf-8")
    ASKS[alternative.label](rendered(copied / "base"))


def test_the_kustomization_in_the_head_of_the_sidecar(copied: Path, tmp_path: Path) -> None:
    """The lines that the component's head gives for an application's own kustomization."""
    head = (copied / "sidecar" / "kustomization.yaml").read_text("utf-8").partition("#\n# The password")[0]
    lines = [line.removeprefix("#   ") for line in head.splitlines() if line.startswith("#   ")]
    text = "\n".join(["resources: [deployment.yaml]", *lines, ""])
    assert set(yaml.safe_load(text)) == {"resources", "components", "images", "patches"}
    folder = tmp_path / "application"
    folder.mkdir()
    shutil.copy(copied / "base" / "deployment.yaml", folder)
    (folder / "kustomization.yaml").write_text(text.replace("...", "..").replace("config/kubernetes", "kubernetes"))
    objects = rendered(folder)
    assert sidecar_of(objects)["image"] == "registry.example/expiremember-proxy:0.2"
    assert environment_of(objects)["EXPIREMEMBER_LOG_LEVEL"] == "warning"
    assert pod_of(objects)["containers"]

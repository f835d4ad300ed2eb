"""The examples of config/ as the tools that they are written for read them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.servers import ROOT

KUBERNETES: Final = ROOT / "config" / "kubernetes"
COMPOSE: Final = ROOT / "config" / "compose.yaml"
COMPOSE_DEMO: Final = ROOT / "config" / "compose-demo.yaml"
COMPOSE_SENTINEL: Final = ROOT / "config" / "compose-sentinel.yaml"
SIDECAR: Final = "expiremember-proxy"


@cache
def _renderer() -> tuple[str, ...] | None:
    if shutil.which("kustomize"):
        return "kustomize", "build"
    if shutil.which("kubectl"):
        return "kubectl", "kustomize"
    return None


def rendered(folder: Path) -> dict[str, Any]:
    """Render a kustomization.

    Returns:
        Kind → object; the test is skipped where there is no kustomize.
    """
    command = _renderer()
    if command is None:
        pytest.skip("neither kustomize nor kubectl is installed")
    run = subprocess.run([*command, str(folder)], capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert not run.stderr, run.stderr
    objects = list(yaml.safe_load_all(run.stdout))
    found = {str(each["kind"]): each for each in objects}
    assert len(found) == len(objects)
    return found


def pod_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of the Deployment's pods."""
    return dict(objects["Deployment"]["spec"]["template"]["spec"])


def sidecar_of(objects: Mapping[str, Any]) -> dict[str, Any]:
    """Return the specification of the proxy's container."""
    (found,) = pod_of(objects)["initContainers"]
    assert found["name"] == SIDECAR
    return dict(found)


def environment_of(objects: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment that the proxy gets."""
    (source,) = sidecar_of(objects)["envFrom"]
    config = objects["ConfigMap"]
    assert source == {"configMapRef": {"name": config["metadata"]["name"]}}
    return dict(config["data"])


def compose(file: Path = COMPOSE) -> dict[str, Any]:
    """Return a Compose file, without its variables being filled in."""
    return dict(yaml.safe_load(file.read_text(encoding="utf-8")))

"""The examples in config/ agree with the settings, and each with itself."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from proxy import settings
from proxy.settings import ENVIRONMENT_PREFIX, Settings, TCPAddress, parse_address
from proxy.upstream.address import parse_upstream
from tests.manifests import COMPOSE, COMPOSE_SENTINEL, KUBERNETES, compose, environment_of, pod_of, rendered, sidecar_of
from tests.servers import ROOT

VARIABLES = {f"{ENVIRONMENT_PREFIX}{name.upper()}" for name in (*Settings.model_fields, "config")}

NAMING = sorted(
    path
    for path in (ROOT / "Dockerfile", ROOT / "docs" / "testing.md", *(ROOT / "config").rglob("*"))
    if path.is_file() and ENVIRONMENT_PREFIX in path.read_text(encoding="utf-8")
)

MEBIBYTES = {"Mi": 1 << 20, "Gi": 1 << 30}


def load(monkeypatch: pytest.MonkeyPatch, environment: Mapping[str, str]) -> Settings:
    """The settings of an environment that has no others."""
    for name in [name for name in os.environ if name.startswith(ENVIRONMENT_PREFIX)]:
        monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return settings.load({}, None)


def set_in_image() -> dict[str, str]:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    return dict(re.findall(rf"({ENVIRONMENT_PREFIX}\w+)=(\S+?)(?: \\)?$", text.split("\nENV ")[1], re.MULTILINE))


@pytest.mark.parametrize("path", NAMING, ids=lambda path: path.name)
def test_every_environment_variable_is_one_of_a_setting(path: Path) -> None:
    named = set(re.findall(rf"\b{ENVIRONMENT_PREFIX}\w+", path.read_text(encoding="utf-8")))
    assert named <= VARIABLES


def test_the_files_that_name_variables_are_found() -> None:
    assert {"Dockerfile", "compose.yaml", "proxy.env", "proxy.toml"} <= {path.name for path in NAMING}


def test_the_image_ends_before_docker_kills_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = load(monkeypatch, set_in_image())
    assert chosen.shutdown_timeout < 10
    assert chosen.log_format == "json"
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert re.findall(r"^EXPOSE (\d+)$", text, re.MULTILINE) == [str(port_of(chosen.listen[0]))]


def port_of(address: str) -> int:
    where = parse_address(address)
    assert isinstance(where, TCPAddress)
    return where.port


# Compose


def test_compose_fits_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    services = compose()["services"]
    proxy = services["proxy"]
    chosen = load(monkeypatch, {**set_in_image(), **proxy["environment"]})
    assert chosen.upstream == "redis://redis:6379"
    assert "redis" in services
    (secret,) = proxy["secrets"]
    assert chosen.upstream_password_file == Path("/run/secrets") / secret
    assert chosen.shutdown_timeout < int(proxy["stop_grace_period"].removesuffix("s"))
    (port,) = proxy["ports"]
    assert port.startswith("127.0.0.1:")
    assert port.endswith(f":{port_of(chosen.listen[0])}")


def test_compose_with_sentinels_fits_the_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    services = compose(COMPOSE_SENTINEL)["services"]
    proxy = services["proxy"]
    chosen = load(monkeypatch, {**set_in_image(), **proxy["environment"]})
    url = parse_upstream(chosen.upstream)
    assert {address.host for address in url.sentinels} == {name for name in services if name.startswith("sentinel")}
    (secret,) = proxy["secrets"]
    assert chosen.upstream_password_file == chosen.sentinel_password_file == Path("/run/secrets") / secret
    assert chosen.shutdown_timeout < int(proxy["stop_grace_period"].removesuffix("s"))
    assert proxy["ports"][0].endswith(f":{port_of(chosen.listen[0])}")
    for name, service in services.items():
        if name != "proxy":
            assert service["command"][0] == name  # what it tells others to be called
            assert service["networks"] == ["back"]
            assert f"sentinel monitor {url.primary} redis-1 6379 2\n" in service["entrypoint"][2] or "redis" in name


@pytest.mark.parametrize("file", [COMPOSE, COMPOSE_SENTINEL], ids=lambda file: file.stem)
def test_compose_restricts_the_proxy(file: Path) -> None:
    proxy = compose(file)["services"]["proxy"]
    assert proxy["read_only"] is True
    assert proxy["cap_drop"] == ["ALL"]
    assert proxy["security_opt"] == ["no-new-privileges:true"]


# Kubernetes


@pytest.fixture
def objects() -> dict[str, Any]:
    return rendered(KUBERNETES / "base")


def test_the_sidecar_fits_the_settings(objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pod, sidecar = pod_of(objects), sidecar_of(objects)
    chosen = load(monkeypatch, {**set_in_image(), **environment_of(objects)})
    assert sidecar["restartPolicy"] == "Always"
    # Beyond the pod nobody can use the Redis through it.
    assert chosen.listen == ["127.0.0.1:6379"]
    assert chosen.upstream_password_file is not None
    (mount,) = sidecar["volumeMounts"]
    (volume,) = pod["volumes"]
    assert mount["name"] == volume["name"]
    assert Path(mount["mountPath"]) == chosen.upstream_password_file.parent
    assert "subPath" not in mount
    assert [item["path"] for item in volume["secret"]["items"]] == [chosen.upstream_password_file.name]


def test_probes_ask_the_admin_port(objects: dict[str, Any]) -> None:
    sidecar = sidecar_of(objects)
    admin = parse_address(environment_of(objects)[ENVIRONMENT_PREFIX + "ADMIN"])
    assert isinstance(admin, TCPAddress)
    assert admin.host == "0.0.0.0"  # the kubelet asks from outside the pod
    (port,) = sidecar["ports"]
    assert port["containerPort"] == admin.port
    paths = {kind: sidecar[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")}
    assert {each["port"] for each in paths.values()} == {port["name"]}
    assert [each["path"] for each in paths.values()] == ["/readyz", "/readyz", "/livez"]
    annotations = objects["Deployment"]["spec"]["template"]["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == str(admin.port)


def test_the_pod_leaves_time_to_end(objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = load(monkeypatch, environment_of(objects))
    assert pod_of(objects)["terminationGracePeriodSeconds"] >= chosen.shutdown_timeout + 20


def test_the_sidecar_has_memory_for_what_it_may_hold(objects: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = load(monkeypatch, environment_of(objects))
    limit = sidecar_of(objects)["resources"]["limits"]["memory"]
    assert int(limit[:-2]) * MEBIBYTES[limit[-2:]] >= 4 * chosen.held_limit + (64 << 20)


def test_every_container_is_restricted(objects: dict[str, Any]) -> None:
    """What the Pod Security Standard "restricted" demands, and a read-only root."""
    pod = pod_of(objects)
    for container in (*pod["initContainers"], *pod["containers"]):
        context = container["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] > 0
        assert context["allowPrivilegeEscalation"] is False
        assert context["readOnlyRootFilesystem"] is True
        assert context["capabilities"] == {"drop": ["ALL"]}
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
    assert user is not None
    context = sidecar_of(objects)["securityContext"]
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))


def test_the_sidecar_is_given_to_marked_deployments_only(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text(
        f"resources: [deployment.yaml]\ncomponents: [{os.path.relpath(KUBERNETES / 'sidecar', tmp_path.resolve())}]\n"
    )
    marked = (KUBERNETES / "base" / "deployment.yaml").read_text(encoding="utf-8")
    (tmp_path / "deployment.yaml").write_text(marked.replace("expiremember-proxy: sidecar", "other: label"))
    assert "initContainers" not in pod_of(rendered(tmp_path))
    (tmp_path / "deployment.yaml").write_text(marked)
    assert sidecar_of(rendered(tmp_path))

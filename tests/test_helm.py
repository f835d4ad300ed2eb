"""The charts of config/helm, as helm renders them: they agree with the settings, and with themselves."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from proxy import __version__
from proxy.settings import ENVIRONMENT_PREFIX, Settings, parse_address
from tests.servers import ROOT
from tests.test_config_files import MEBIBYTES, load, set_in_image

CHART: Final = ROOT / "config" / "helm" / "expiremember-proxy"
SIDECAR: Final = CHART / "charts" / "expiremember-proxy-sidecar"
EVERYTHING: Final = ("passwordSecret.name=redis", "serviceMonitor.enabled=true", "prometheusRule.enabled=true")

APPLICATION: Final = {
    "Chart.yaml": """\
apiVersion: v2
name: application
version: 1.0.0
dependencies: [{name: expiremember-proxy-sidecar, version: %s, repository: "file://%s"}]
""",
    "values.yaml": """\
expiremember-proxy-sidecar:
  settings: {upstream: "rediss://redis.example:6379", sweep: false, cover: ["cart:", "session:"], connect_timeout: 0.5}
  passwordSecret: {name: redis}
""",
    "templates/deployment.yaml": """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: application}
spec:
  selector: {matchLabels: {app: application}}
  template:
    metadata: {labels: {app: application}}
    spec:
      terminationGracePeriodSeconds: 40
      initContainers:      {{- include "expiremember-proxy.sidecar" . | nindent 8 }}
      containers: [{name: application, image: application}]
      volumes:             {{- include "expiremember-proxy.sidecar-volumes" . | nindent 8 }}
""",
}
"""The chart of an application, with the lines that values.yaml of the sidecar's names."""


def helm(*arguments: str, fails: bool = False) -> str:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    program = shutil.which("helm") or shutil.which("helm", path=str(cache / "expiremember-proxy" / "helm"))
    if program is None:
        pytest.skip("helm is not installed: .ci/helm fetches it")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode != 0) is fails, done.stdout + done.stderr
    return done.stderr if fails else done.stdout


def rendered(chart: Path, *given: str, release: str = "shop") -> dict[tuple[str, str], dict[str, Any]]:
    """Render a chart; return its objects by kind and name."""
    options = [word for setting in given for word in ("--set", setting)]
    objects = [one for one in yaml.safe_load_all(helm("template", release, str(chart), *options)) if one]
    found = {(str(one["kind"]), str(one["metadata"]["name"])): one for one in objects}
    assert len(found) == len(objects)
    return found


def environment_of(container: dict[str, Any]) -> dict[str, str]:
    assert all(type(one["value"]) is str for one in container["env"])
    return {one["name"]: one["value"] for one in container["env"]}


@pytest.fixture(scope="module")
def objects() -> dict[tuple[str, str], dict[str, Any]]:
    return rendered(CHART, *EVERYTHING)


NAME: Final = "shop-expiremember-proxy"


def pod_of(objects: dict[tuple[str, str], dict[str, Any]], name: str = NAME) -> dict[str, Any]:
    return dict(objects["Deployment", name]["spec"]["template"]["spec"])


def check_container(container: dict[str, Any], pod: dict[str, Any], chosen: Settings) -> None:
    """Check that a container agrees with its settings, and is restricted."""
    context = container["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    user = re.search(r"^USER (\d+):(\d+)$", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)
    assert user is not None
    assert (context["runAsUser"], context["runAsGroup"]) == (int(user[1]), int(user[2]))
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert chosen.admin is not None
    admin, listen = parse_address(chosen.admin), parse_address(chosen.listen[0])
    assert not isinstance(admin, Path)
    assert not isinstance(listen, Path)
    assert (admin.host, ports) == ("0.0.0.0", {"admin": admin.port, "redis": listen.port})
    probes = [container[kind]["httpGet"] for kind in ("startupProbe", "readinessProbe", "livenessProbe")]
    assert [(probe["port"], probe["path"]) for probe in probes] == [
        ("admin", "/readyz"),
        ("admin", "/readyz"),
        ("admin", "/livez"),
    ]
    limit = container["resources"]["limits"]["memory"]
    assert int(limit[:-2]) * MEBIBYTES[limit[-2:]] >= 4 * chosen.held_limit + (64 << 20)
    (mount,), (volume,) = container["volumeMounts"], pod["volumes"]
    assert chosen.upstream_password_file == Path(mount["mountPath"]) / volume["secret"]["items"][0]["path"]
    assert mount["name"] == volume["name"]
    assert "subPath" not in mount


def test_the_charts_are_of_this_version() -> None:
    for chart in (CHART, SIDECAR):
        said = yaml.safe_load((chart / "Chart.yaml").read_text("utf-8"))
        assert said["version"] == said["appVersion"] == __version__
    (dependency,) = yaml.safe_load((CHART / "Chart.yaml").read_text("utf-8"))["dependencies"]
    assert dependency["version"] == __version__
    assert yaml.safe_load((SIDECAR / "values.yaml").read_text("utf-8"))["image"]["tag"] == __version__


def test_the_chart_has_the_alerts() -> None:
    """A copy: helm reads nothing outside of the chart."""
    assert (CHART / "alerts.yaml").read_text("utf-8") == (ROOT / "config/prometheus/alerts.yaml").read_text("utf-8")


def test_helm_finds_the_chart_right() -> None:
    assert "0 chart(s) failed" in helm("lint", "--strict", str(CHART), "--set", "passwordSecret.name=redis")


def test_the_deployment_fits_the_settings(
    objects: dict[tuple[str, str], dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = pod_of(objects)
    (container,) = pod["containers"]
    chosen = load(monkeypatch, {**set_in_image(), **environment_of(container)})
    check_container(container, pod, chosen)
    assert container["image"] == f"expiremember-proxy:{__version__}"
    drain = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= drain + chosen.shutdown_timeout + 5
    assert pod["automountServiceAccountToken"] is False


def test_services_and_monitors_find_what_they_select(objects: dict[tuple[str, str], dict[str, Any]]) -> None:
    template = objects["Deployment", NAME]["spec"]["template"]
    labels = template["metadata"]["labels"].items()
    assert objects["Deployment", NAME]["spec"]["selector"]["matchLabels"].items() <= labels
    assert objects["PodDisruptionBudget", NAME]["spec"]["selector"]["matchLabels"].items() <= labels
    names = {port["name"] for container in template["spec"]["containers"] for port in container["ports"]}
    services = [one for (kind, _), one in objects.items() if kind == "Service"]
    for service in services:
        assert service["spec"]["selector"].items() <= labels
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= names
    monitor = objects["ServiceMonitor", NAME]["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (monitored,) = [service for service in services if wanted <= service["metadata"]["labels"].items()]
    (endpoint,) = monitor["endpoints"]
    assert endpoint["port"] in {port["name"] for port in monitored["spec"]["ports"]}
    alerts = yaml.safe_load((CHART / "alerts.yaml").read_text("utf-8"))
    assert objects["PrometheusRule", NAME]["spec"] == alerts


def test_by_default_there_is_nothing_for_an_operator_that_may_not_be_there() -> None:
    kinds = {kind for kind, _ in rendered(CHART)}
    assert kinds == {"Deployment", "PodDisruptionBudget", "Service"}
    assert "PodDisruptionBudget" not in {kind for kind, _ in rendered(CHART, "replicas=1")}


def test_values_become_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["settings.listen={unix:///x,tls://0.0.0.0:7000}", "settings.held_limit=33554433", "settings.sweep=false"]
    given += ["settings.listen_proxy_protocol={10.0.0.0/8,fd00::/8}", "settings.connect_timeout=0.25"]
    given += ["settings.listen_tls_cert_file=/tls/tls.crt", "settings.listen_tls_key_file=/tls/tls.key"]
    given += ["extraVolumes[0].name=tls", "extraVolumes[0].secret.secretName=tls", "podLabels.team=a"]
    given += ["extraVolumeMounts[0].name=tls", "extraVolumeMounts[0].mountPath=/tls", "nodeSelector.disk=fast"]
    found = rendered(CHART, *given, release="expiremember-proxy")
    pod = pod_of(found, "expiremember-proxy")
    (container,) = pod["containers"]
    chosen = load(monkeypatch, {**set_in_image(), **environment_of(container)})
    assert (chosen.held_limit, chosen.sweep, chosen.connect_timeout) == (33554433, False, 0.25)
    assert chosen.listen_proxy_protocol == ["10.0.0.0/8", "fd00::/8"]
    assert {"name": "redis", "containerPort": 7000} in container["ports"]
    assert container["volumeMounts"] == [{"name": "tls", "mountPath": "/tls"}]
    assert pod["volumes"] == [{"name": "tls", "secret": {"secretName": "tls"}}]
    assert pod["nodeSelector"] == {"disk": "fast"}
    assert found["Deployment", "expiremember-proxy"]["spec"]["template"]["metadata"]["labels"]["team"] == "a"


@pytest.mark.parametrize("wrong", ["settings.lisen=x", "settings.upstream_password=x"])
def test_settings_that_there_are_not_are_refused(wrong: str) -> None:
    assert "settings" in helm("template", "x", str(CHART), "--set", wrong, fails=True)


def test_an_application_has_the_sidecar_of_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = (SIDECAR / "values.yaml").read_text("utf-8")
    for name, text in APPLICATION.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text % (__version__, SIDECAR) if name == "Chart.yaml" else text)
        for line in re.findall(r"\w+: +\{\{.*", text):
            assert line in said  # as the page of values tells
    monkeypatch.setenv("HELM_CACHE_HOME", str(tmp_path / "cache"))
    helm("dependency", "build", str(tmp_path))
    found = rendered(tmp_path)
    pod = pod_of(found, "application")
    (sidecar,) = pod["initContainers"]
    assert sidecar["restartPolicy"] == "Always"
    chosen = load(monkeypatch, {**set_in_image(), **environment_of(sidecar)})
    check_container(sidecar, pod, chosen)
    assert chosen.listen == ["127.0.0.1:6379"]  # beyond the pod nobody can use the Redis through it
    assert (chosen.upstream, chosen.sweep) == ("rediss://redis.example:6379", False)
    assert (chosen.cover, chosen.connect_timeout) == (["cart:", "session:"], 0.5)
    assert pod["terminationGracePeriodSeconds"] >= chosen.shutdown_timeout + 20


def test_the_pages_of_values_begin_with_how_to_use_them_and_have_no_value_twice() -> None:
    for chart in (CHART, SIDECAR):
        lines = (chart / "values.yaml").read_text("utf-8").splitlines()
        assert lines[0].startswith("# ")
        assert ENVIRONMENT_PREFIX not in "\n".join(lines)
        names = yaml.safe_load("\n".join(lines))
        assert {line.partition(":")[0] for line in lines if re.match(r"[a-zA-Z]+:", line)} == set(names)

"""The sidecar of config/kubernetes/, run by what its rendered Deployment says, in a pod as Kubernetes makes one."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import Any

from testcontainers.core.container import DockerContainer

from tests.container.pods import REDIS_IMAGE, Pod, Pods, end, log_of
from tests.manifests import KUBERNETES, environment_of, pod_of, rendered, sidecar_of
from tests.servers import until


def start(pod: Pod, objects: dict[str, Any], image: str, secret: Path) -> DockerContainer:
    """Start the sidecar with all that its specification gives it and takes from it."""
    sidecar = sidecar_of(objects)
    (mount,) = sidecar["volumeMounts"]
    context = sidecar["securityContext"]
    assert context["allowPrivilegeEscalation"] is False
    return pod.run(
        image,
        env=environment_of(objects),
        volumes=[(str(secret), mount["mountPath"], "ro")],
        user=f"{context['runAsUser']}:{context['runAsGroup']}",
        read_only=context["readOnlyRootFilesystem"],
        cap_drop=context["capabilities"]["drop"],
        security_opt=["no-new-privileges"],
        mem_limit=sidecar["resources"]["limits"]["memory"].lower().removesuffix("i"),
    )


def probe(pod: Pod, objects: dict[str, Any], kind: str) -> bool:
    """Ask as the kubelet does, from outside the pod."""
    sidecar = sidecar_of(objects)
    question = sidecar[kind]["httpGet"]
    (port,) = (port["containerPort"] for port in sidecar["ports"] if port["name"] == question["port"])
    host, published = pod.address(port)
    try:
        with urllib.request.urlopen(f"http://{host}:{published}{question['path']}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # an HTTP error is one
        return False


def test_the_sidecar_runs_as_its_specification_says(pods: Pods, tmp_path: Path) -> None:
    objects = rendered(KUBERNETES / "base")
    (item,) = pod_of(objects)["volumes"][0]["secret"]["items"]
    (tmp_path / item["path"]).write_text("let me in")
    tmp_path.chmod(0o755)
    (port,) = sidecar_of(objects)["ports"]
    network = pods.network()
    application = pods.pod(port["containerPort"], network=network)
    proxy = start(application, objects, pods.image, tmp_path)
    until(lambda: probe(application, objects, "livenessProbe"), timeout=30, what="a sign of life")
    assert not probe(application, objects, "startupProbe")  # no Redis: the application has to wait
    store = pods.pod(network=network, alias="redis")
    store.run(REDIS_IMAGE, ["redis-server", "--requirepass", "let me in"])
    until(lambda: probe(application, objects, "startupProbe"), timeout=30, what="readiness")
    code = (
        "import redis; r = redis.Redis(password='let me in'); r.sadd('s', 'm');"
        "print(r.execute_command('EXPIREMEMBER', 's', 'm', 600), r.execute_command('TTL', 's', 'm'))"
    )
    assert application.python(code) == "1 600"
    assert end(proxy, pod_of(objects)["terminationGracePeriodSeconds"]) == 0, log_of(proxy)

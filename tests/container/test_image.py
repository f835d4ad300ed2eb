"""The image by itself: what it may do, how it is configured, how it says that it is well, and how it ends."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import docker

from proxy import __version__
from tests.container.pods import Pods, end, environment, log_of, until_logged
from tests.servers import until

AT_MOST = 120_000_000
"""Bytes that it may have; it was 89 MB when this was written."""

LOOK = """
import json, os, shutil, socket, ssl
socket.getaddrinfo("localhost", 1)  # by /etc/nsswitch.conf
print(json.dumps({
    "trusted": len(ssl.create_default_context().get_ca_certs()),
    "programs": [name for name in ("sh", "bash", "apt-get", "dpkg", "pip", "perl") if shutil.which(name)],
    "packages": open("/var/lib/dpkg/status").read().count("\\nVersion: "),
    "temporary": os.access("/tmp", os.W_OK),
}))
"""


def test_runs_without_rights_and_writes_nothing(pods: Pods) -> None:
    pod = pods.pod(6379, 6380)
    pod.redis()
    proxy = pod.proxy(6380)
    pod.until_up(6380)
    wrapped = proxy.get_wrapped_container()
    _, status = wrapped.exec_run(["python3", "-c", "print(open('/proc/1/status').read())"])
    facts = dict(line.split(":\t", 1) for line in bytes(status).decode().splitlines() if ":\t" in line)
    assert facts["Uid"].split() == ["10001"] * 4
    assert facts["Gid"].split() == ["10001"] * 4
    assert facts["CapEff"] == facts["CapPrm"] == facts["CapBnd"] == "0" * 16
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"
    assert facts["Threads"] == "1"
    assert wrapped.diff() is None


def test_runs_where_its_files_can_be_written_too_and_does_not(pods: Pods) -> None:
    proxy = pods.run(environment(upstream="redis://127.0.0.1:1"), read_only=False)
    until_logged(proxy, '"ready"')
    assert end(proxy) == 0, log_of(proxy)
    assert proxy.get_wrapped_container().diff() is None


def test_any_user_can_run_it(pods: Pods) -> None:
    """Some clusters give each namespace a user of its own, which no image can know."""
    proxy = pods.run(environment(upstream="redis://127.0.0.1:1"), user="1234567:0")
    until_logged(proxy, '"ready"')
    assert end(proxy) == 0, log_of(proxy)


def test_it_is_small(image: str, daemon: docker.DockerClient, record_testsuite_property: Any) -> None:
    size = daemon.images.get(image).attrs["Size"]
    record_testsuite_property("bytes of the image", size)
    assert 50_000_000 < size < AT_MOST


def test_contains_what_it_needs_and_no_tools(image: str, daemon: docker.DockerClient) -> None:
    """Certificates that a rediss:// server may have, names, and for scanners which packages its files are of."""
    said = daemon.containers.run(image, ["-W", "error", "-c", LOOK], entrypoint="python3", remove=True)
    found = json.loads(said)
    assert found["trusted"] > 50
    assert found["programs"] == []
    assert found["packages"] > 10
    assert found["temporary"]


def test_everything_that_is_installed_loads(image: str, daemon: docker.DockerClient) -> None:
    """Every module of the proxy, and every library beneath the modules of Python that are left."""
    code = (
        "import importlib, pkgutil, pathlib, sysconfig, proxy\n"
        "for one in pkgutil.walk_packages(proxy.__path__, 'proxy.'):\n"
        "    if one.name not in ('proxy.__main__', 'proxy.embedded.guard', 'proxy.workers.start'):\n"
        "        importlib.import_module(one.name)\n"
        "for path in pathlib.Path(sysconfig.get_path('platstdlib'), 'lib-dynload').glob('*.so'):\n"
        "    importlib.import_module(path.name.partition('.')[0])\n"
        "print('loaded')"
    )
    assert daemon.containers.run(image, ["-c", code], entrypoint="python3", remove=True) == b"loaded\n"


def test_contains_nothing_of_where_it_was_built(image: str, daemon: docker.DockerClient) -> None:
    found = daemon.images.get(image)
    said = json.dumps([found.history(), found.attrs["Config"]])
    assert "PIP_" not in said
    assert "://" not in said
    assert found.attrs["Config"]["User"] == "10001:10001"
    assert found.attrs["Config"]["StopSignal"] == "SIGTERM"
    tools = daemon.containers.run(
        image, ["-c", "import importlib.util as u; print(u.find_spec('pip'))"], entrypoint="python3", remove=True
    )
    assert tools == b"None\n"


def test_says_which_version_it_is(image: str, daemon: docker.DockerClient) -> None:
    said = daemon.containers.run(image, ["--version"], remove=True)
    assert said.decode().strip() == f"expiremember-proxy, version {__version__}"


def test_a_bad_setting_ends_it_with_one_line(pods: Pods) -> None:
    proxy = pods.run(environment(sweep_batch="0"))
    assert proxy.wait() == 2
    assert re.fullmatch(r"expiremember-proxy: sweep_batch: .*\n", log_of(proxy))


def test_reads_the_password_from_a_mounted_file(pods: Pods, tmp_path: Path) -> None:
    (tmp_path / "password").write_text("let me in\n")
    (tmp_path / "password").chmod(0o444)
    pod = pods.pod(6379, 6380)
    pod.redis("--requirepass", "let me in")
    mounted = str(tmp_path / "password"), "/run/secrets/redis", "ro"
    settings = environment(listen="0.0.0.0:6380", upstream_password_file="/run/secrets/redis")
    proxy = pod.run(pods.image, env=settings, volumes=[mounted], read_only=True)
    until_logged(proxy, '"covered prefixes loaded"')
    with pod.connect(6380) as client:
        assert client.command("GET", "k").startswith(b"-NOAUTH")
        assert client.command("AUTH", "let me in") == b"+OK\r\n"
        assert client.command("SADD", "s", "m") == b":1\r\n"
        assert client.command("EXPIREMEMBER", "s", "m", 1) == b":1\r\n"


def test_is_healthy_once_it_serves(pods: Pods) -> None:
    pod = pods.pod(6379, 6380)
    server = pod.redis("--requirepass", "secret")
    often = {"test": None, "interval": 200_000_000, "retries": 1}
    settings = environment(listen="0.0.0.0:6380", upstream_password="secret")
    proxy = pod.run(pods.image, env=settings, read_only=True, healthcheck=often)
    assert health_of(proxy, "healthy")
    wrapped = server.get_wrapped_container()
    wrapped.kill()
    assert health_of(proxy, "unhealthy")
    wrapped.start()
    assert health_of(proxy, "healthy")


def health_of(container: Any, wanted: str) -> str:
    """Wait for what the image's own check finds, and return what it says."""
    wrapped = container.get_wrapped_container()

    def health() -> dict[str, Any]:
        wrapped.reload()
        return dict(wrapped.attrs["State"]["Health"])

    until(lambda: health()["Status"] == wanted, timeout=40, what=f"the state {wanted}")
    return str(health()["Log"][-1]) or "nothing"

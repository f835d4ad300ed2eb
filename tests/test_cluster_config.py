"""The example of a cluster, config/compose-cluster.yaml, agrees with the settings and with itself."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from proxy.upstream.address import parse_upstream
from tests.manifests import compose
from tests.servers import ROOT
from tests.test_config_files import load, port_of, set_in_image

FILE: Final = ROOT / "config" / "compose-cluster.yaml"

NODES: Final = 6


@pytest.fixture
def services() -> dict[str, Any]:
    found: dict[str, Any] = compose(FILE)["services"]
    return found


def test_there_is_a_proxy_for_each_node(services: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    names = {f"{what}-{number}" for what in ("node", "proxy") for number in range(1, NODES + 1)}
    assert set(services) == names | {"cluster"}
    for number in range(1, NODES + 1):
        node, proxy = services[f"node-{number}"], services[f"proxy-{number}"]
        chosen = load(monkeypatch, {**set_in_image(), **proxy["environment"]})
        upstream = parse_upstream(chosen.upstream).address
        assert upstream is not None
        assert (upstream.host, str(upstream.port)) == (f"node-{number}", node["environment"]["PORT"])
        # At the name that the node announces, its port is the proxy's.
        assert proxy["ports"] == [f"127.0.0.1:{upstream.port}:{port_of(chosen.listen[0])}"]
        assert chosen.upstream_password_file is not None
        assert chosen.upstream_password_file.name == proxy["secrets"][0]
        assert chosen.shutdown_timeout < int(proxy["stop_grace_period"].removesuffix("s"))
        assert list(node["networks"]) == ["back"]
        assert node["volumes"] == [f"node-{number}:/data"]


def test_the_cluster_is_made_of_the_nodes(services: dict[str, Any]) -> None:
    made = re.findall(r"\d+\.\d+\.\d+\.\d+:\d+", services["cluster"]["entrypoint"][2])
    nodes = [services[f"node-{number}"] for number in range(1, NODES + 1)]
    assert made == [f"{node['networks']['back']['ipv4_address']}:{node['environment']['PORT']}" for node in nodes]
    assert set(services["cluster"]["depends_on"]) == {f"node-{number}" for number in range(1, NODES + 1)}


def test_proxies_are_restricted(services: dict[str, Any]) -> None:
    for number in range(1, NODES + 1):
        proxy = services[f"proxy-{number}"]
        assert proxy["read_only"] is True
        assert proxy["cap_drop"] == ["ALL"]
        assert proxy["security_opt"] == ["no-new-privileges:true"]

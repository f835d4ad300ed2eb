"""config/compose-demo.yaml: its parts agree, its application expires members, its Prometheus sees that.

tests/container/test_compose.py starts what of it there are images of.
"""

from __future__ import annotations

import json
import shutil
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from proxy.settings import parse_address
from tests.admin import with_admin
from tests.conftest import StartProxy
from tests.manifests import compose
from tests.servers import ROOT, Process, Server, free_port, proxy_environment, until
from tests.test_alerts import RULES, promtool, rules
from tests.test_config_files import load, port_of, set_in_image

FILE = ROOT / "config" / "compose-demo.yaml"
DEMO = ROOT / "config" / "demo"

pytestmark = pytest.mark.one_kind


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((DEMO / name).read_text("utf-8")))


def test_the_parts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    services = compose(FILE)["services"]
    assert set(services) == {"application", "grafana", "prometheus", "proxy", "redis"}
    for service in services.values():
        for volume in service.get("volumes", ()):
            assert (FILE.parent / volume.partition(":")[0]).exists(), volume
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    chosen = load(monkeypatch, {**set_in_image(), **services["proxy"]["environment"]})
    assert chosen.upstream == "redis://redis:6379"
    assert chosen.admin is not None
    (scraped,) = read("prometheus.yaml")["scrape_configs"][0]["static_configs"]
    assert scraped["targets"] == [f"proxy:{port_of(chosen.admin)}"]
    assert parse_address(chosen.admin) == parse_address("0.0.0.0:9121")
    assert services["application"]["entrypoint"][2:] == ["proxy", str(port_of(chosen.listen[0]))]
    (source,) = read("datasources.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = read("dashboards.yaml")["providers"]
    mounted = {volume.split(":")[1]: volume.split(":")[0] for volume in services["grafana"]["volumes"]}
    assert (FILE.parent / mounted[provider["options"]["path"]] / "dashboard.json").exists()
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/dashboard.json"
    assert set(mounted) >= {
        f"/etc/grafana/provisioning/{kind}/expiremember.yaml" for kind in ("dashboards", "datasources")
    }


def test_prometheus_scrapes_what_the_application_does(server: Server, start_proxy: StartProxy, tmp_path: Path) -> None:
    """The application and Prometheus as the demo has them, in front of a proxy that is elsewhere."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed")
    proxy, admin = with_admin(start_proxy, server)
    assert isinstance(proxy.address, tuple)
    assert isinstance(admin.address, tuple)
    shutil.copy(RULES, tmp_path)
    config = (DEMO / "prometheus.yaml").read_text("utf-8").replace("proxy:9121", f"127.0.0.1:{admin.address[1]}")
    (tmp_path / "prometheus.yml").write_text(config.replace("5s", "1s"))
    promtool("check", "config", str(tmp_path / "prometheus.yml"))
    port = free_port()
    listen = ["--web.listen-address", f"127.0.0.1:{port}", "--storage.tsdb.path", str(tmp_path / "data")]
    prometheus = Process([program, "--config.file", str(tmp_path / "prometheus.yml"), *listen])
    shop = [sys.executable, "-W", "error", str(DEMO / "application.py"), "127.0.0.1", str(proxy.address[1])]
    application = Process(shop, proxy_environment())

    def ask(path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=5) as answer:
                return json.load(answer)["data"]
        except OSError:
            return None

    def value(query: str) -> float:
        found = ask(f"query?query={urllib.parse.quote(query)}")
        return float(found["result"][0]["value"][1]) if found and found["result"] else 0.0

    try:
        until(lambda: value("sum(expiremember_members_expired_total)") > 0, 30, lambda: prometheus.output[-3000:])
        assert not application.ended, application.output
        found = [rule["name"] for group in ask("rules")["groups"] for rule in group["rules"]]
        assert found == [rule["alert"] for rule in rules()]
        assert ask("alerts")["alerts"] == []
    finally:
        application.kill()
        prometheus.kill()
    proxy.stop()

"""The files for operators name only metrics that a running coordinator exports, and settings that it reads."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import coordinator.deploy
from coordinator.config import resolve_coordinator_config
from coordinator.service.metrics import exposition
from coordinator.service.telemetry import Sources
from edge.core.errors import BudgetExhausted, OutcomeUnknown
from edge.rpc.client import StepUnits
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import client_of, command, coordinator_process, settings_for
from tests.worlds.metrics_page import scraped
from tests.worlds.upstream_server import hangs

DEPLOY = Path(coordinator.deploy.__path__[0])
NAME = re.compile(r"\b(?:edge_coordinator|process)_[a-z_]+")


def dashboard() -> dict:
    return json.loads((DEPLOY / "grafana" / "dashboard.json").read_text())


def rules() -> list[dict]:
    return [rule for group in yaml.safe_load((DEPLOY / "alerts.yaml").read_text())["groups"] for rule in group["rules"]]


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())


async def test_every_metric_in_the_deploy_files_is_exported_and_the_health_check_works(tmp_path, upstream) -> None:
    health = (
        "healthcheck",
        "--config",
        str(tmp_path / "coordinator.yaml"),
        "--state",
        str(tmp_path / "state"),
        "--timeout-s",
        "1",
    )
    limits = {"device": {"calls_limit": 2}, "fleet": {"spend_limit_uusd": 10**6}}
    settings = settings_for(upstream, budgets=limits, metrics_listen="127.0.0.1:0")
    async with coordinator_process(tmp_path, settings, "--json") as child:
        client = client_of(child, max_retries=0)
        await client.open_step("math", 0, 4, 4, 0.5)
        await client.complete(call("k1", "a", step=0), 10.0)
        await client.close_step("math", 0, StepUnits(16, 4))
        upstream.reply = hangs
        with pytest.raises(OutcomeUnknown):
            await client.complete(call("k2", "b"), 2.0)
        with pytest.raises(BudgetExhausted):
            await client.complete(call("k3", "c", prompt_id="p2"), 10.0)
        await client.aclose()
        shown = {name for name, _ in await scraped(json.loads(child.serving_line)["metrics_url"])}
        assert (await command(*health))[:2] == (0, f"SERVING on unix:{tmp_path}/state/admin.sock\n")
        await child.stop()
    code, out, problem = await command(*health)
    assert (code, out) == (1, "") and "NOT_SERVING" in problem
    panels = [target["expr"] for panel in dashboard()["panels"] for target in panel["targets"]]
    named = {name for expression in (*panels, *(rule["expr"] for rule in rules())) for name in NAME.findall(expression)}
    assert len(named) > 25
    broker, none = SimpleNamespace(admitting=True, in_flight=0), SimpleNamespace(all=list)
    sources: Any = (SimpleNamespace(conflicts=0), broker, None, none, None, SimpleNamespace(counts=lambda: (0, 0)))
    with_tls_and_replicas = exposition(Sources(*sources).families(())).decode()
    shown |= {name for name in NAME.findall(with_tls_and_replicas) if "tls_" in name or "conflicts" in name}
    assert named <= shown, named - shown


@pytest.mark.skipif(
    shutil.which("promtool") is None, reason="no promtool here: apt-get install prometheus to evaluate the alerts"
)
def test_every_alert_fires_on_its_example() -> None:
    example = Path(__file__).parent / "alerts_firing.yaml"
    done = subprocess.run(["promtool", "test", "rules", str(example)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_containers_run_without_root_on_a_read_only_root_with_secrets_as_files() -> None:
    config = compose()
    for name, service in config["services"].items():
        assert service["user"].split(":")[0] not in ("0", "root"), name
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        assert "no-new-privileges:true" in service["security_opt"], name
        for secret in service.get("secrets", ()):
            assert config["secrets"][secret]["file"].startswith("./secrets/")
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert source in config["volumes"] or (DEPLOY / source).exists(), volume
        for key, value in service.get("environment", {}).items():
            assert not ("PASSWORD" in key and not key.endswith("FILE")), (name, key, value)
    assert "healthcheck" in config["services"]["coordinator"] and "healthcheck" in config["services"]["postgres"]
    published = [port for service in config["services"].values() for port in service.get("ports", ())]
    assert published == ["8443:8443", "127.0.0.1:3000:3000"]


def test_container_runs_as_an_ordinary_user_with_a_health_check() -> None:
    lines = (DEPLOY / "Containerfile").read_text().splitlines()
    last_stage = lines[max(index for index, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 10001:10001" in last_stage and "STOPSIGNAL SIGTERM" in last_stage
    assert any("healthcheck" in line for line in last_stage)


def test_container_configuration_is_valid() -> None:
    config = resolve_coordinator_config(DEPLOY / "coordinator.yaml").config
    assert config.tls is not None and config.metrics_listen == "127.0.0.1:9464"
    secrets = {f"/run/secrets/{name}" for name in compose()["services"]["coordinator"]["secrets"]}
    assert {config.tls.cert, config.tls.key, config.tls.client_ca} <= secrets
    scraped_at = yaml.safe_load((DEPLOY / "prometheus.yaml").read_text())["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scraped_at == [config.metrics_listen]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here to check the unit with")
def test_systemd_accepts_the_unit_and_rates_it_well_confined(tmp_path) -> None:
    unit = tmp_path / "edge-coordinator.service"
    unit.write_text((DEPLOY / unit.name).read_text().replace("/opt/edge/bin/edge-coordinator", "/bin/true"))
    checked = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False)
    assert str(unit.name) not in checked.stderr, checked.stderr
    rated = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--no-pager", "--threshold=20", str(unit)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert rated.returncode == 0, rated.stdout[-300:]

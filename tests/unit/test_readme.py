"""What the README tells people to type must work."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import typer
import yaml

from coordinator.cli import main as coordinator_main
from coordinator.config import CoordinatorConfig
from edge.cli.app import app
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.tasks.practice import PracticeSource

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def configuration(text: str, tmp_path: Path) -> CoordinatorConfig:
    path = tmp_path / "coordinator.yaml"
    path.write_text(text, encoding="utf-8")
    return resolve(CoordinatorConfig, files=[path]).config


def test_the_coordinator_configurations_are_accepted(tmp_path: Path) -> None:
    small, fleet = blocks("yaml")
    config = configuration(small, tmp_path)
    assert config.upstreams["default"].base_url == yaml.safe_load(small)["upstreams"]["default"]["base_url"]
    assert config.budgets.device.spend_limit_uusd == 5_000_000
    config = configuration(fleet, tmp_path)
    assert [choice.upstream for choice in config.aliases["default"]] == ["cheap", "strong"]
    assert (config.tasks["*"].dual_scope, config.storage.backend) == ("fleet", "postgres")


def test_the_request_is_valid_json_and_names_the_bundled_model() -> None:
    (shell,) = [block for block in blocks("sh") if "curl" in block]
    body = json.loads(re.search(r"-d '(\{.*\})'", shell, re.DOTALL).group(1))  # type: ignore[union-attr]
    assert body["model"] == "nano-edge" and body["messages"][0]["role"] == "user"


@pytest.mark.parametrize("line", re.findall(r"^edge-agent eval .*$", "\n".join(blocks("sh")), re.MULTILINE))
def test_the_evaluations_use_options_that_exist(line: str) -> None:
    command = typer.main.get_command(app)
    known = {option for parameter in command.commands["eval"].params for option in parameter.opts}  # type: ignore[attr-defined]
    assert set(re.findall(r"--[a-z-]+", line.partition("#")[0])) <= known


@pytest.mark.parametrize("link", sorted(set(re.findall(r"\]\((?!http)([^)#]+)\)", README))))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).exists()


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)", README):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_token_is_for_the_labels_that_an_agent_learns_by_default() -> None:
    (issued,) = re.findall(r"`edge-coordinator token issue lamp (.*?)`", README)
    sources = [PracticeSource(phase.source.partition(":")[2]) for phase in AgentConfig().phases]
    assert set(re.findall(r"--task (\S+)", issued)) == {next(source.train(0)).task for source in sources}


def test_the_files_of_the_first_fleet_are_those_that_pki_init_makes_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (line,) = [line for block in blocks("sh") for line in block.splitlines() if "pki init" in line]
    assert coordinator_main(line.split()[1:]) == 0
    tls = yaml.safe_load(blocks("yaml")[1])["tls"]
    assert tls and all(Path(path).is_file() for path in tls.values())

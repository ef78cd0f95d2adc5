"""The required settings of a launch file for verl. Needs no verl."""

from __future__ import annotations

import copy
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from coordinator.config import ServerConfig
from edge.config.loader import resolve
from edge.core.errors import ConfigError
from tools.integrations.verl.method import NEEDS, SAMES, at, require_method
from tools.integrations.verl.settings import DagrpoSettings

HERE = Path(__file__).resolve().parents[2] / "tools" / "integrations" / "verl"


def put(config: dict[str, Any], dotted: str, value: Any) -> None:
    *path, last = dotted.split(".")
    for part in path:
        config = config.setdefault(part, {})
    config[last] = value


@pytest.fixture
def launch() -> dict[str, Any]:
    """The launch file, with those of verl's defaults that the method keeps (test_verl_adapter has the real ones)."""
    config: dict[str, Any] = yaml.safe_load((HERE / "config" / "dagrpo.yaml").read_text())
    config["trainer"]["default_local_dir"] = "checkpoints"
    for need in NEEDS:
        if at(config, need.key) is None:
            put(config, need.key, need.values[0])
    for same in SAMES:
        put(config, same.key, at(config, same.other))
    return config


def test_the_launch_file_has_the_papers_settings(launch):
    actor, rollout, data = launch["actor_rollout_ref"]["actor"], launch["actor_rollout_ref"]["rollout"], launch["data"]
    assert (data["train_batch_size"], rollout["n"]) == (128, 8)
    assert (data["max_prompt_length"], data["max_response_length"]) == (1024, 1024)
    assert actor["optim"]["lr"] == 2e-6
    assert rollout["temperature"] == 1.0
    assert launch["algorithm"]["rollout_correction"]["rollout_is_threshold"] == 2.0
    assert (launch["dagrpo"]["target_rate"], launch["trainer"]["total_training_steps"]) == (0.3, 840)


def test_the_coordinators_file_has_the_papers_rates_and_price_and_no_limit_of_calls_per_step():
    tasks = resolve(ServerConfig, files=[HERE / "config" / "coordinator.yaml"]).config.tasks
    for name, rate in (("*", 0.3), ("group2", 0.5)):
        terms = tasks[name]
        assert (terms.target_rate, terms.dual_init, terms.dual_lr) == (rate, 0.5, 0.01)
        assert (terms.dual_scope, terms.step_credit_kappa) == ("global", None)


def test_launch_file_meets_the_needs_of_the_method(launch):
    require_method(launch)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor_rollout_ref.actor.ppo_mini_batch_size", 64),
        ("actor_rollout_ref.rollout.n", 1),
        ("algorithm.rollout_correction.rollout_is_threshold", "0.5_2.0"),
        ("algorithm.rollout_correction.rollout_is_threshold", 0),
        ("actor_rollout_ref.rollout.calculate_log_probs", False),
        ("actor_rollout_ref.rollout.response_length", 256),
        ("actor_rollout_ref.rollout.max_model_len", 2047),
        ("actor_rollout_ref.rollout.top_p", "1.0"),
    ],
)
def test_a_setting_under_which_verl_would_compute_something_else_is_refused_by_name(launch, key, value):
    put(launch, key, value)
    with pytest.raises(ConfigError, match=f"^{key} must be "):
        require_method(launch)


def test_every_required_setting_is_enforced_for_the_given_reason(launch: dict[str, Any]) -> None:
    for need in NEEDS:
        changed = copy.deepcopy(launch)
        put(changed, need.key, "another")
        with pytest.raises(ConfigError, match=f"^{need.key} must be .+, not 'another': {need.why}$"):
            require_method(changed)


def test_the_correction_may_be_left_out_and_then_needs_nothing_of_the_sampler(launch):
    launch["algorithm"]["rollout_correction"] = {"rollout_is": None}
    launch["actor_rollout_ref"]["rollout"]["calculate_log_probs"] = False
    require_method(launch)


def test_the_section_becomes_settings_beside_verls_own(launch, tmp_path):
    launch["trainer"]["default_local_dir"] = str(tmp_path)
    launch["dagrpo"] |= {"agent": {"coordinator": {"address": "127.0.0.1:1"}}, "run_id": "a run"}
    settings = DagrpoSettings.of(launch)
    assert (settings.task, settings.planned_prompts, settings.group_size) == ("group1", 128, 8)
    assert settings.state_file == tmp_path / "dagrpo.json"
    agent = settings.agent_config()
    rollout = settings.rollout_settings(agent)
    assert (rollout.run_id, rollout.group_size, rollout.skip_unanimous_calls, rollout.cloud_prompt_form) == (
        "a run",
        1,
        False,
        "full",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"target": 0.3},
        {"task": ""},
        {"target_rate": 1.5},
        {"agent": "coordinator.address=a"},
        {"validate_with_cloud": "no"},
    ],
    ids=str,
)
def test_invalid_section_is_refused_by_its_key(launch, change):
    launch["dagrpo"] |= change
    with pytest.raises(ConfigError, match=rf"^dagrpo\.{next(iter(change))}: ") as refusal:
        DagrpoSettings.of(launch)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("coordinator", "line"),
    [
        ({}, "coordinator.address is missing"),
        ({"address": "127.0.0.1:1", "hint_chars": 100}, "coordinator.hint_chars must be 0"),
        ({"adress": "127.0.0.1:1"}, r"^dagrpo\.agent\.coordinator\.adress: unknown key coordinator\.adress"),
    ],
)
def test_inapplicable_agent_settings_are_refused(launch, coordinator, line):
    launch["dagrpo"]["agent"] = {"coordinator": coordinator}
    with pytest.raises(ConfigError, match=line):
        DagrpoSettings.of(launch).agent_config()


def test_unenforceable_privacy_rules_are_refused(launch):
    launch["dagrpo"]["agent"] = {"coordinator": {"address": "127.0.0.1:1"}, "privacy": {"never_send": ["secret"]}}
    with pytest.raises(ConfigError, match=r"privacy\.terms, terms_file and never_send do not hold here"):
        DagrpoSettings.of(launch).agent_config()


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        ([], 2, "usage: launch.sh MODEL"),
        (["../config/dagrpo"], 2, "usage: launch.sh MODEL"),
        (["qwen2.5-1.5b-instruct"], 1, "no train.parquet"),
    ],
)
def test_launch_script_reports_what_is_missing(tmp_path, arguments, code, line):
    found = subprocess.run(
        ["bash", str(HERE / "launch.sh"), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, "DAGRPO_DATA": str(tmp_path)},
        check=False,
    )
    assert found.returncode == code
    assert line in found.stderr

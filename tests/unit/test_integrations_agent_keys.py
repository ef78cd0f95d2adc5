"""Of the agent's settings, an engine that trains in its place follows each or refuses it by name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from edge.config.schema import AgentConfig, BudgetConfig, LearningConfig
from edge.core.errors import ConfigError
from tools.integrations.agent_keys import REFUSED_BY_TRL, REFUSED_BY_VERL, not_held
from tools.integrations.trl.config import TrlConfig, resolve_run
from tools.integrations.verl.settings import DagrpoSettings

HERE = Path(__file__).resolve().parents[2] / "tools" / "integrations"
LIMITS = {"calls_limit", "tokens_limit", "spend_limit_uusd", "period"}
DUAL = {"dual_lr", "dual_init", "dual_scope", "dual_proportional", "dual_window", "dual_ceiling"}
HELD_BY_VERL = {"answer_match", "updates_per_rollout", "controller"}
"""updates_per_rollout: with method da-grpo it is one or left out, wherever it runs. controller: λ alone holds the rate in any case."""
HELD_BY_TRL = (
    HELD_BY_VERL
    | DUAL
    | {
        "group_size",
        "prompts_per_step",
        "learning_rate",
        "weight_decay",
        "max_grad_norm",
        "max_tokens",
        "seed",
        "unanimous_calls",
    }
)

OTHER: Mapping[str, Any] = {
    "learning.method": "gvpo",
    "learning.assist_reward": 0.3,
    "learning.assist_rewards": {"group1": 0.3},
    "learning.ratio_clip": 0.1,
    "learning.gvpo_beta": 0.2,
    "learning.advantage_scale": "group",
    "learning.temperature": 0.7,
    "learning.importance_cap": 3.0,
    "learning.micro_batch_tokens": 2048,
    "learning.torch_threads": 1,
    "learning.device": "cpu",
    "learning.memory_probe": "off",
    "learning.gradient_checkpointing": "on",
    "learning.enabled": False,
    "learning.when": {"on_mains": False},
    "learning.price_levels": [0, 1],
    "learning.price": "spend",
    "learning.stated_price": 0.5,
    "learning.cloud_samples": "on",
    "learning.demonstrations": "all",
    "learning.skills": [],
    "routing.policy": "router",
    "budget.dial": 0.2,
    "budget.learning_calls_per_day": 5,
    "budget.learning_spend_per_day_uusd": 5,
    "learning.group_size": 4,
    "learning.prompts_per_step": 4,
    "learning.learning_rate": 1e-3,
    "learning.weight_decay": 0.1,
    "learning.max_grad_norm": 2.0,
    "learning.max_tokens": 64,
    "learning.seed": 1,
    "learning.unanimous_calls": "skip",
    "learning.dual_lr": 0.5,
    "learning.dual_init": 0.1,
    "learning.dual_scope": "global",
    "learning.dual_proportional": 0.1,
    "learning.dual_window": 2,
    "learning.dual_ceiling": 5.0,
    "budget.calls_limit": 5,
    "budget.tokens_limit": 5,
    "budget.spend_limit_uusd": 5,
    "budget.period": "month",
    "mode": "local-only",
}


def agent_with(key: str) -> dict[str, Any]:
    """The agent's settings with one of them changed, and what that one needs."""
    section, _, name = key.rpartition(".")
    own = {name: OTHER[key], **({"router": "router.onnx"} if key == "routing.policy" else {})}
    return {section: own} if section else own


def names(refused: Mapping[str, str], section: str) -> set[str]:
    return {key.removeprefix(f"{section}.") for key in refused if key.startswith(f"{section}.")}


@pytest.mark.parametrize(
    ("refused", "learning", "budget"),
    [(REFUSED_BY_TRL, HELD_BY_TRL, LIMITS), (REFUSED_BY_VERL, HELD_BY_VERL, set())],
    ids=["trl", "verl"],
)
def test_every_key_of_learning_and_of_the_budget_either_holds_or_is_refused(refused, learning, budget):
    for section, held, schema in (("learning", learning, LearningConfig), ("budget", budget, BudgetConfig)):
        assert names(refused, section) | held == set(schema.model_fields)
        assert not names(refused, section) & held


def trl_file(folder: Path, agent: Mapping[str, Any]) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"agent": {"phases": [{"source": "practice:arith", "steps": 2}], **agent}}))
    return path


@pytest.mark.parametrize("key", sorted(REFUSED_BY_TRL))
def test_trl_refuses_what_it_would_pass_over_by_name_and_place(key, tmp_path):
    path = trl_file(tmp_path, agent_with(key))
    with pytest.raises(ConfigError, match=rf"^{path}:\d+: agent\.{key} must be ") as refusal:
        resolve_run(path)
    assert "\n" not in str(refusal.value)


def verl_settings(agent: Mapping[str, Any], agent_file: Path | None = None) -> DagrpoSettings:
    section = {
        "run_id": "run",
        "task": "group1",
        "target_rate": 0.3,
        "agent": {"coordinator": {"address": "127.0.0.1:1"}, **agent},
    }
    return DagrpoSettings.of(
        {
            "dagrpo": {**section, "agent_file": str(agent_file) if agent_file else None},
            "data": {"train_batch_size": 8, "max_response_length": 96},
            "actor_rollout_ref": {"rollout": {"n": 4}},
            "trainer": {"default_local_dir": "checkpoints"},
        }
    )


@pytest.mark.parametrize("key", sorted(REFUSED_BY_VERL))
def test_verl_refuses_what_it_would_pass_over_by_name_and_place(key):
    place = "" if isinstance(OTHER[key], dict) else rf"dagrpo\.agent\.{key}: "
    with pytest.raises(ConfigError, match=rf"^{place}{key} must be ") as refusal:
        verl_settings(agent_with(key)).agent_config()
    assert "\n" not in str(refusal.value)


def test_what_holds_or_has_its_default_is_taken():
    learning = {"answer_match": "equivalent", "updates_per_rollout": 1, "method": "da-grpo", "dual_init": 0.5, "price_levels": []}
    assert verl_settings({"learning": learning}).agent_config().learning.answer_match == "equivalent"
    assert not_held(AgentConfig(), REFUSED_BY_VERL) is None


@pytest.mark.parametrize("path", sorted((HERE / "trl" / "configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_launch_files_set_nothing_that_does_not_hold(path):
    assert isinstance(resolve_run(path).config, TrlConfig)

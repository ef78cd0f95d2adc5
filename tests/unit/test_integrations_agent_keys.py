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

CONFIGS = Path(__file__).resolve().parents[2] / "tools" / "integrations" / "trl" / "configs"
HELD_BY_VERL = {"answer_match", "updates_per_rollout", "controller"}
"""updates_per_rollout: with method da-grpo it is one or left out, wherever it runs. controller: λ alone holds the rate in any case."""
LIMITS = {"calls_limit", "tokens_limit", "spend_limit_uusd", "period"}
DUAL = {"dual_lr", "dual_init", "dual_scope", "dual_proportional", "dual_window", "dual_ceiling"}
SAMPLING = {"group_size", "prompts_per_step", "max_tokens", "seed", "unanimous_calls"}
HELD_BY_TRL = HELD_BY_VERL | DUAL | SAMPLING | {"learning_rate", "weight_decay", "max_grad_norm"}


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
    assert not_held(AgentConfig(), refused) is None


def trl_file(folder: Path, agent: Mapping[str, Any]) -> Path:
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"agent": {"phases": [{"source": "practice:arith", "steps": 2}], **agent}}))
    return path


@pytest.mark.parametrize(
    ("key", "value"), [("learning.method", "gvpo"), ("learning.when", {"on_mains": False}), ("learning.price_levels", [0, 1]),
                   ("budget.dial", 0.2), ("budget.learning_calls_per_day", 5)],
)  # fmt: skip
def test_trl_refuses_what_it_would_pass_over_by_name_and_place(key, value, tmp_path):
    section, name = key.split(".")
    path = trl_file(tmp_path, {section: {name: value}})
    with pytest.raises(ConfigError, match=rf"^{path}:\d+: agent\.{key} must be .*: {REFUSED_BY_TRL[key]}"):
        resolve_run(path)


def verl_settings(agent: Mapping[str, Any]) -> DagrpoSettings:
    return DagrpoSettings.of(
        {
            "dagrpo": {
                "run_id": "run",
                "task": "group1",
                "target_rate": 0.3,
                "agent": {"coordinator": {"address": "127.0.0.1:1"}, **agent},
            },
            "data": {"train_batch_size": 8, "max_response_length": 96},
            "actor_rollout_ref": {"rollout": {"n": 4}},
            "trainer": {"default_local_dir": "checkpoints"},
        }
    )


@pytest.mark.parametrize(
    ("agent", "key"),
    [({"learning": {"group_size": 4}}, "learning.group_size"), ({"learning": {"dual_lr": 0.5}}, "learning.dual_lr"),
     ({"budget": {"calls_limit": 5}}, "budget.calls_limit"), ({"mode": "local-only"}, "mode")],
)  # fmt: skip
def test_verl_refuses_what_it_would_pass_over_by_name_and_place(agent, key):
    with pytest.raises(ConfigError, match=rf"^dagrpo\.agent\.{key}: {key} must be .*: {REFUSED_BY_VERL[key]}"):
        verl_settings(agent).agent_config()


def test_verl_takes_what_holds_or_has_its_default():
    learning = {"answer_match": "equivalent", "updates_per_rollout": 1, "method": "da-grpo", "dual_init": 0.5, "price_levels": []}
    assert verl_settings({"learning": learning}).agent_config().learning.answer_match == "equivalent"


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_launch_files_set_nothing_that_does_not_hold(path):
    assert isinstance(resolve_run(path).config, TrlConfig)

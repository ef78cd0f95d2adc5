"""Training engines that replace the agent's own follow each of its settings or refuse it by name."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import yaml
from pydantic import BaseModel

from edge.config.reference import keys_of
from edge.config.schema import AgentConfig, BudgetConfig, LearningConfig
from edge.core.errors import ConfigError
from tools.integrations.agent_keys import REFUSED_BY_TRL, REFUSED_BY_VERL, not_held
from tools.integrations.trl.config import resolve_run
from tools.integrations.verl.settings import DagrpoSettings

LIMITS = {"calls_limit", "tokens_limit", "spend_limit_uusd", "period"}
DUAL = {f"control.dual_{name}" for name in ("lr", "init", "scope", "proportional", "window", "ceiling")}
HELD_BY_VERL = {"objective.answer_match", "optimiser.updates_per_rollout", "control.controller"}
"""updates_per_rollout: with method da-grpo it is one or left out, wherever it runs. controller: λ alone holds the rate in any case."""
HELD_BY_TRL = (
    HELD_BY_VERL
    | DUAL
    | {
        "group_size",
        "prompts_per_step",
        "optimiser.learning_rate",
        "optimiser.weight_decay",
        "optimiser.max_grad_norm",
        "max_tokens",
        "seed",
        "objective.unanimous_calls",
    }
)


def names(refused: Mapping[str, str], section: str) -> set[str]:
    return {key.removeprefix(f"{section}.") for key in refused if key.startswith(f"{section}.")}


def settings_in(schema: type[BaseModel]) -> set[str]:
    """Its keys, of `when` the section alone."""
    return {key.path for key in keys_of(schema) if key.path == "when" or not (key.is_section or key.parent == "when")}


@pytest.mark.parametrize(
    ("refused", "learning", "budget"),
    [(REFUSED_BY_TRL, HELD_BY_TRL, LIMITS), (REFUSED_BY_VERL, HELD_BY_VERL, set())],
    ids=["trl", "verl"],
)
def test_every_key_of_learning_and_budget_is_used_or_refused(refused, learning, budget):
    for section, held, schema in (("learning", learning, LearningConfig), ("budget", budget, BudgetConfig)):
        assert names(refused, section) | held == settings_in(schema)
        assert not names(refused, section) & held


@pytest.mark.parametrize("refused", [REFUSED_BY_TRL, REFUSED_BY_VERL], ids=["trl", "verl"])
def test_every_refused_key_exists_in_the_agent_and_may_have_its_default(refused):
    assert not_held(AgentConfig(), refused) is None


def test_trl_refuses_ignored_keys_with_file_line_and_reason(tmp_path):
    path = tmp_path / "run.yaml"
    agent = {"phases": [{"source": "practice:arith", "steps": 2}], "learning": {"temperature": 0.7}}
    path.write_text(yaml.safe_dump({"agent": agent}))
    with pytest.raises(ConfigError, match=rf"^{path}:\d+: agent\.learning\.temperature must be 1, not 0\.7: that is what"):
        resolve_run(path)
    path.write_text(yaml.safe_dump({"agent": {**agent, "learning": {"control": {"dual_lr": 0.5}, "group_size": 4}}}))
    assert resolve_run(path).config.agent.learning.group_size == 4


@pytest.mark.parametrize("in_file", [False, True])
def test_verl_refuses_ignored_keys_with_place_and_reason(tmp_path, in_file):
    path = tmp_path / "agent.yaml"
    path.write_text(f"learning:\n  objective:\n    {'unanimous_calls: skip' if in_file else 'answer_match: equivalent'}\n")
    own = {} if in_file else {"learning": {"objective": {"unanimous_calls": "skip"}}}
    settings = DagrpoSettings(
        "run", "group1", 0.3, 8, 4, 96, tmp_path / "state", True, {"coordinator": {"address": "a:1"}, **own}, str(path)
    )
    place = f"{path}:3" if in_file else r"dagrpo\.agent\.learning\.objective\.unanimous_calls"
    with pytest.raises(
        ConfigError, match=rf"^{place}: learning\.objective\.unanimous_calls must be make, not skip: a worker sees one"
    ):
        settings.agent_config()

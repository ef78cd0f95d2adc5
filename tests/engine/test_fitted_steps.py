"""`learn` and `run` fit the size of a step to the speed of a model that is not bundled, once for each run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.app import step_size
from edge.app.step_size import FITTED, Fitted, fitted_steps, size_lines
from edge.cli.settings import Settings
from edge.config.loader import Resolved
from edge.config.schema import AgentConfig
from edge.core.errors import StateError
from edge.state.folder import StateFolder
from edge.training.step_size import StepSize, StepSpeed, StepTexts
from tests.worlds.tiny_gguf import write_tiny_model

NAMES = ("learning.prompts_per_step", "learning.group_size", "learning.max_tokens", "learning.step_tokens")
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.delenv("EDGE_AGENT_DEVICE_PROFILE")
    return World(tmp_path)


class World:
    """A tiny model of an unknown make, and a file of facts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.model, self.facts = folder, folder / "tiny.gguf", folder / "facts.csv"
        self.said: list[str] = []
        write_tiny_model(self.model, prompt_form=None, chat_template=TEMPLATE, context_length=512)
        self.facts.write_text("question,answer\nWho has the key?,Ilka\nWho rows?,Mia\nWhich day?,Thursday\n", encoding="utf-8")

    def resolved(self, *sets: str, **options: Any) -> Resolved[AgentConfig]:
        threads = ("engine.threads=1", "learning.torch_threads=1", "learning.context_tokens=512")
        given: dict[str, Any] = {"model": str(self.model), "tasks": [str(self.facts)], "state": self.folder / "state", **options}
        return Settings(sets=[*threads, *sets], **given).resolve()

    def fitted(self, resolved: Resolved[AgentConfig], **options: Any) -> tuple[Resolved[AgentConfig], list[str]]:
        return fitted_steps(resolved, self.said.append, **options)


def values(resolved: Resolved[AgentConfig]) -> dict[str, tuple[Any, str]]:
    return {name: (value, origin) for name, value, origin in resolved.rows() if name in NAMES}


def test_what_nobody_set_is_fitted_once_and_kept_for_the_run(world: World) -> None:
    first, lines = world.fitted(world.resolved())
    assert {origin for _, origin in values(first).values()} == {FITTED}
    learning = first.config.learning
    assert 4 <= learning.prompts_per_step <= 8 and 4 <= learning.group_size <= 8 and learning.max_tokens <= 288
    assert f"{learning.prompts_per_step} questions x {learning.group_size} responses of at most" in lines[0]
    again, _ = world.fitted(world.resolved(), is_begun=True)
    assert again == first and len(world.said) == 1

    set_by_hand, _ = world.fitted(world.resolved("learning.group_size=5"))
    assert values(set_by_hand)["learning.group_size"] == (5, "--set learning.group_size")
    assert set_by_hand.config.learning.prompts_per_step == learning.prompts_per_step and len(world.said) == 1


def test_other_tasks_are_another_run(world: World) -> None:
    world.fitted(world.resolved())
    _, lines = world.fitted(world.resolved(tasks=["practice:arith"]))
    assert len(world.said) == 2 and lines


def test_texts_in_columns_of_a_persons_choice_are_measured(world: World) -> None:
    rows = "".join(f"{number} boats came,{'harbour' if number % 2 else 'sea'}\n" for number in range(12))
    world.facts.write_text(f"mail,folder\n{rows}", encoding="utf-8")
    _, lines = world.fitted(world.resolved(question="mail", answer="folder", ask="Which folder?"))
    assert "responses of at most" in lines[0]


@pytest.mark.parametrize(
    ("sets", "options"),
    [
        ((), {"model": "nano-edge"}),
        (("learning.control.controller=paper",), {}),
        (("device_profile=none",), {}),
    ],
    ids=["bundled model", "the paper's controller", "no profile"],
)
def test_other_runs_keep_the_usual_size(world: World, sets: tuple[str, ...], options: dict[str, Any]) -> None:
    resolved = world.resolved(*sets, **options)
    assert world.fitted(resolved) == (resolved, []) and not world.said


def test_a_run_of_before_keeps_the_size_that_it_began_with(world: World) -> None:
    resolved = world.resolved()
    assert world.fitted(resolved, is_begun=True) == (resolved, []) and not world.said


def test_a_state_folder_in_use_is_refused_with_what_to_do(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(*_: Any) -> Fitted:
        return fitted_of(50.0)

    monkeypatch.setattr(step_size, "_measured", at_once)
    with StateFolder(world.folder / "state"), pytest.raises(StateError):
        world.fitted(world.resolved())


def fitted_of(tokens_per_s: float) -> Fitted:
    return Fitted(StepSpeed(1000.0, tokens_per_s, tokens_per_s, 8), StepTexts(50.0, (100,), 288), {})


def test_a_step_of_some_minutes_is_announced_with_what_to_do() -> None:
    config = AgentConfig()
    slow, quick = size_lines(config, fitted_of(20.0)), size_lines(config, fitted_of(2000.0))
    assert len(quick) == 1 and len(slow) == 2
    assert "11 min" in slow[0] and "learning.prompts_per_step" in slow[1] and "smaller model" in slow[1]
    assert StepSize(8, 8, 288).seconds(fitted_of(20.0).texts, fitted_of(20.0).speed) > 600

"""The training data of a router, its threshold and quality on held-out examples, and its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.app import engines, judging
from edge.cli.settings import Settings
from edge.config.schema import AgentConfig
from edge.core.errors import ModelFileError, UsageError
from edge.core.types import FinishReason
from edge.evaluation.evaluate import EvalRoles, Example, examples_of
from edge.routing.classifier import calibrate
from edge.routing.policy import SelfOffload
from edge.testing.backend import ScriptedBackend
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import HELP, World, item, local_answer, number_in


async def examples(tmp_path: Path, script: Any, count: int = 6, progress: list[tuple[int, int]] | None = None) -> list[Example]:
    settings = replace(World(tmp_path / "state").rollout_settings("run"), temperature=0.0, prompt_form="compact")
    roles = EvalRoles(ScriptedBackend(script), ExactMathAnswer(), SelfOffload(), None)
    seen = [] if progress is None else progress
    return await examples_of(roles, settings, [item(number) for number in range(count)] * 2, lambda *done: seen.append(done))


async def test_label_is_the_forced_answer_and_features_come_from_the_free_response(tmp_path: Path) -> None:
    def script(messages: Any, sampling: Any, seed: int) -> str:
        number = number_in(messages[-1].content)
        if number < 3 and not sampling.suppress_help:
            return HELP
        return local_answer(number + 1 if number % 2 else 0)

    progress: list[tuple[int, int]] = []
    found = await examples(tmp_path, script, progress=progress)
    assert [example.item.id for example in found] == [f"math-{number}" for number in range(6)]  # each once
    assert [example.failed for example in found] == [True, False, True, False, True, False]
    assert [example.response.text == HELP for example in found] == [True] * 3 + [False] * 3
    assert all(example.response.finish is FinishReason.EOS for example in found)
    assert progress == [(done, 6) for done in range(1, 7)]


async def test_endless_response_is_no_example(tmp_path: Path) -> None:
    found = await examples(tmp_path, lambda messages, sampling, seed: "<think>\nStep 1: on and on " * 40)
    assert found == []


def noisy(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.Generator(np.random.Philox(5))
    rows = random.normal(size=(count, 3))
    return rows, random.random(count) < 1 / (1 + np.exp(-3 * rows[:, 1]))


@pytest.mark.parametrize("rate", [0.0, 0.25, 1.0])
def test_threshold_and_quality_come_from_the_held_out_quarter(rate: float) -> None:
    rows, failed = noisy(400)
    router = calibrate(rows, failed, rate)
    quality, held_out = router.quality, slice(3, None, 4)
    handed_over = router.model.probabilities(rows[held_out]) > router.threshold
    assert (quality.fitted, quality.held_out) == (300, 100)
    assert quality.asked == handed_over.mean() <= rate
    assert quality.asked == pytest.approx(rate, abs=0.011)
    kept = failed[held_out][~handed_over]
    assert quality.kept_accuracy == (None if rate == 1.0 else 1 - kept.mean())
    assert quality.failed == failed[held_out].mean()
    assert quality.auc is not None
    assert quality.auc > 0.75
    moved = rows.copy()
    moved[held_out] += 1.0
    assert np.array_equal(calibrate(moved, failed, rate).model.weights, router.model.weights)


def test_three_examples_are_too_few_to_calibrate_a_router() -> None:
    with pytest.raises(UsageError, match="too few"):
        calibrate(np.zeros((3, 2)), np.array([True, False, True]), 0.5)


def config(**routing: Any) -> AgentConfig:
    return AgentConfig.model_validate({"routing": routing})


def test_missing_router_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="edge-agent router train"):
        Settings(sets=["routing.policy=router"]).config()
    missing = config(policy="router", router=str(tmp_path / "none.onnx"))
    with pytest.raises(ModelFileError, match=r"none\.onnx"):
        judging.build_policy(missing)
    with pytest.raises(ModelFileError, match="cannot be read"):
        judging.policy_name(missing)
    monkeypatch.setattr(engines, "installed", lambda _engine: False)
    with pytest.raises(UsageError, match="ONNX is not installed") as caught:
        judging.build_policy(missing)
    assert ".[onnx]" in caught.value.hint


def test_router_name_separates_file_and_threshold(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a.onnx", "b.onnx")]
    for file in files:
        file.write_text(file.name)
    names = {judging.policy_name(config(policy="router", router=str(file))) for file in files}
    names.add(judging.policy_name(config(policy="router", router=str(files[0]), threshold=0.4)))
    assert len(names) == 3

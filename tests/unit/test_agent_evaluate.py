from __future__ import annotations

from pathlib import Path

import pytest

from edge.agent.cloud import CloudDesk
from edge.agent.evaluate import EvalReport, Evaluation
from edge.core.errors import BudgetExhausted
from edge.inference.scripted import ScriptedBackend
from edge.routing.self_offload import SelfOffload
from edge.verifiers.math_answer import ExactMathAnswer
from tests.unit.agent_world import HELP, Sums, World, local_answer, number_in


def by_level(messages, sampling, seed):  # type: ignore[no-untyped-def]
    """Level 1 right; level 2 asks and would be right when forced; level 3 asks and would be wrong."""
    number = number_in(messages[-1].content)
    level = 1 + number % 3
    if level == 1:
        return local_answer(number + 1)
    if not sampling.suppress_help:
        return HELP
    return local_answer(number + 1 if level == 2 else 0)


async def report(tmp_path: Path, with_cloud: bool = True, failures: int = 0) -> EvalReport:
    world = World(tmp_path / "state")
    world.client.fail_next("complete", BudgetExhausted("gone"), times=failures)
    settings = World(tmp_path).rollout_settings("run")
    settings = type(settings)("run", 7, 1, 1.0, 64, "compact", "compact", 64)
    desk = CloudDesk(world.client, 1.0) if with_cloud else None
    evaluation = Evaluation(ScriptedBackend(by_level), ExactMathAnswer(), SelfOffload(), settings, desk)
    seen: list[int] = []
    result = await evaluation.run("sums", Sums().test(9), "tag", seen.append)
    assert seen == list(range(1, 10))
    assert result.cloud_calls == len(world.client.calls)
    return result


async def test_each_accuracy_means_what_it_says_and_comes_with_its_rate(tmp_path: Path) -> None:
    result = await report(tmp_path)
    scores = result.scores
    assert (scores.items, scores.kept_accuracy, scores.coverage) == (9, 1.0, pytest.approx(1 / 3))
    assert scores.assist_rate == pytest.approx(2 / 3)
    assert scores.forced_local_accuracy == pytest.approx(2 / 3)
    assert (scores.joint_accuracy, scores.format_ok, scores.cloud_failures) == (1.0, 1.0, 0)
    assert result.cloud_calls == 6
    assert result.spend_uusd == 600
    assert [(level.level, level.scores.assist_rate, level.scores.forced_local_accuracy) for level in result.by_level] == [
        (1, 0.0, 1.0), (2, 1.0, 1.0), (3, 1.0, 0.0),
    ]  # fmt: skip
    low, high = result.forced_local_interval
    assert low < 2 / 3 < high


async def test_without_a_cloud_the_joint_accuracy_is_not_known(tmp_path: Path) -> None:
    result = await report(tmp_path, with_cloud=False)
    assert (result.scores.joint_accuracy, result.joint_interval, result.cloud_calls) == (None, None, 0)
    assert result.scores.forced_local_accuracy == pytest.approx(2 / 3)


async def test_a_refused_call_is_a_wrong_joint_answer_and_counted(tmp_path: Path) -> None:
    result = await report(tmp_path, failures=2)
    assert (result.scores.cloud_failures, result.scores.joint_accuracy) == (2, pytest.approx(7 / 9))


async def test_a_report_is_json_with_its_levels(tmp_path: Path) -> None:
    data = (await report(tmp_path)).to_json()
    assert data["scores"]["items"] == 9
    assert data["by_level"][0]["scores"]["kept_accuracy"] == 1.0

"""The real loop on the bundled models with two tiny steps: llama.cpp, LoRA training, an embedded coordinator with its ledger."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.app.agents import build_agent
from edge.app.measuring import evaluate
from edge.app.settings import latest_adapters
from edge.core.errors import CoordinatorUnavailable, ModelFileError
from edge.core.events import FanOutSink, MemorySink
from edge.core.types import Message
from edge.dagrpo.dual import DualState, ProportionalIntegral, proportional_integral_step
from edge.evaluation.plan import EvalPlan
from edge.learning.run_folder import RunFolder
from edge.state.answer_record import AnswerRequest
from edge.state.events import StepFinished
from tests.worlds.tiny_run import learn, tiny_config


def numbers(step: StepFinished) -> dict[str, Any]:
    """The values that must be equal in a repeated run."""
    quiet = ("seconds", "seconds_by_part", "tokens_per_s", "at")
    return {key: value for key, value in step.to_json().items() if key not in quiet}


async def test_two_real_steps_write_checkpoints_run_folder_and_a_matching_ledger(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "state")
    folder = RunFolder(tmp_path / "run", "mode: auto\n")
    memory = MemorySink()
    async with build_agent(config, FanOutSink([memory, folder])) as agent:
        before = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        finished = await agent.learn(2)
        after = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        steps, budget = agent.components.state.steps(), await agent.link.budget()
        summary = folder.finish(steps, finished, agent.adapter.in_use())
    folder.close()
    assert [step.step for step in steps] == [1, 2]
    assert (before.adapter_version, after.adapter_version) == (0, 2)
    assert steps[1].control.dual_before == steps[0].control.dual_after != steps[0].control.dual_before
    assert budget.dual == steps[1].control.dual_after
    assert budget.calls == steps[-1].cloud.total_cloud_calls + (before.source == "cloud") + (after.source == "cloud")
    assert all(step.scores.masked == 0 and not step.control.offline for step in steps)
    assert any(step.time.tokens > 0 and step.update.mean_abs_logprob_diff < 0.2 for step in steps)
    figures = {f"{name}.png" for name in ("rate_and_dual", "accuracy", "bands", "families")}
    files = {"config.yaml", "events.jsonl", "metrics.csv", "summary.json", "adapter"}
    assert {path.name for path in (tmp_path / "run").iterdir()} == files | figures
    assert summary["steps"] == 2


async def test_resumed_real_run_gives_the_numbers_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, _ = await learn(tiny_config(tmp_path / "whole"), 2)
    halves = tiny_config(tmp_path / "halves")
    await learn(halves, 1)
    resumed, _ = await learn(halves, 1)
    assert [numbers(step) for step in resumed] == [numbers(step) for step in whole]


async def test_without_a_coordinator_the_agent_answers_learns_and_reports_offline(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "state", f"coordinator.address=unix:{tmp_path}/none.sock")
    async with build_agent(config, MemorySink()) as agent:
        answer = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        await agent.learn(1)
        status = agent.status()
        with pytest.raises(CoordinatorUnavailable):
            await agent.link.budget()
    assert answer.source in ("local", "local-fallback")
    assert (status.online, status.waiting_reports, status.steps_done) == (False, 1, 1)


async def test_an_evaluation_reports_accuracies_with_their_rate_and_is_repeatable(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / "state")
    plan = EvalPlan(("practice:arith",), limit=6)
    first = (await evaluate(config, MemorySink(), plan)).report
    await learn(config, 1)
    trained = (await evaluate(config, MemorySink(), replace(plan, adapters=latest_adapters(config), cloud="none"))).report
    again = (await evaluate(config, MemorySink(), plan)).report
    assert first.scores == again.scores
    assert (first.scores.items, first.measured.adapter_version, trained.measured.adapter_version) == (6, 0, 1)
    assert first.scores.coverage == 1.0 - first.scores.assist_rate
    assert sum(level.scores.items for level in first.families[0].levels) == 6


@pytest.mark.parametrize("scope", ["task", "global"])
async def test_repeated_phases_keep_or_share_their_dual_in_the_embedded_ledger(tmp_path: Path, scope: str) -> None:
    """arith, facts, arith again, with a proportional part; the child's ledger proves each λ."""
    phases = "[" + ", ".join(f"{{source: 'practice:{name}', steps: 1}}" for name in ("arith", "facts", "arith")) + "]"
    rule = ProportionalIntegral(0.2, 0.5, 2)
    sets = [
        f"learning.control.dual_scope={scope}",
        "learning.control.dual_lr=0.2",
        "learning.control.dual_proportional=0.5",
        "learning.control.dual_window=2",
    ]
    config = tiny_config(tmp_path / "state", f"phases={phases}", "learning.prompts_per_step=2", *sets)
    steps, _ = await learn(config, 3)
    states: dict[str, DualState] = {}
    for step in steps:
        whose = step.task if scope == "task" else ""
        before = states.get(whose, DualState(config.learning.control.dual_init))
        assert step.control.own_rate is not None, "λ follows the rate without the help bias"
        states[whose] = proportional_integral_step(before, step.control.own_rate, step.control.target_rate, rule)
        assert (step.control.dual_before, step.control.dual_after) == (before.dual, states[whose].dual)
    assert steps[0].task == steps[2].task != steps[1].task
    proof = [sys.executable, "-m", "coordinator", "ledger", "verify", "--state", str(tmp_path / "state" / "coordinator")]
    verified = subprocess.run(proof, capture_output=True, text=True, check=True)
    assert "3 dual updates" in verified.stdout


async def test_the_embedded_coordinator_is_started_again_when_it_dies_and_stopped_at_the_end(tmp_path: Path) -> None:
    agent = build_agent(tiny_config(tmp_path / "state"), MemorySink())
    async with agent:
        child = agent.components.coordinator
        assert child is not None
        first = child.pid  # type: ignore[attr-defined]
        os.kill(first, 9)
        async with asyncio.timeout(60):
            while child.pid in (None, first) or not await child._probe():  # type: ignore[attr-defined]
                await asyncio.sleep(0.05)
        budget = await agent.link.budget("math")
        last = child.pid  # type: ignore[attr-defined]
    assert budget.calls == 0
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


async def test_long_state_folder_name_works(tmp_path: Path) -> None:
    config = tiny_config(tmp_path / ("long" * 30))
    async with build_agent(config, MemorySink()) as agent:
        assert agent.status().online
        assert (await agent.link.budget("math")).calls == 0


def test_missing_model_is_refused_in_one_line_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such model file"):
        build_agent(tiny_config(tmp_path / "state", "model.path=nothing.gguf"), MemorySink())
    assert not (tmp_path / "state").exists()


async def test_a_corrupt_model_file_is_refused_in_one_line_and_frees_the_state_folder(tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 64)
    for _ in range(2):
        with pytest.raises(ModelFileError) as caught:
            async with build_agent(tiny_config(tmp_path / "state", f"model.path={broken}"), MemorySink()):
                pass
        assert "\n" not in str(caught.value)


async def test_with_a_gate_real_steps_are_promoted_only_after_evaluation_and_resume_identically(
    tmp_path: Path,
) -> None:
    gate = ("gate.enabled=true", "gate.every=2", "gate.anchors=2", "gate.max_drop=1")
    async with build_agent(tiny_config(tmp_path / "whole", *gate), MemorySink()) as agent:
        await agent.learn(1)
        waiting = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        await agent.learn(1)
        promoted = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        whole = agent.components.state.steps()
    assert (waiting.adapter_version, promoted.adapter_version) == (0, 2)
    assert [step.adapter.gate for step in whole] == ["", "promoted"]
    assert (whole[1].adapter.gate_before, whole[1].time.seconds_by_part.gate > 0) != (None, False)
    halves = tiny_config(tmp_path / "halves", *gate)
    await learn(halves, 1)
    resumed, _ = await learn(halves, 1)
    assert [numbers(step) for step in resumed] == [numbers(step) for step in whole]

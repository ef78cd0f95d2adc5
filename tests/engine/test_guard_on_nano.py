"""The guard and learning from feedback on the bundled model: real adapters, a real engine, an embedded coordinator."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from edge.app.agents import build_agent
from edge.app.settings import model_file
from edge.config.schema import AgentConfig
from edge.core.events import MemorySink
from edge.core.types import GGUF_ADAPTER, Message
from edge.inference.adapters import check_adapter, write_gguf_adapter
from edge.state.answer_record import AnswerRequest
from edge.state.events import WentBack
from edge.state.feedback import Feedback
from tests.worlds.agent import give_feedback, reported
from tests.worlds.tiny_run import tiny_config


def gated_config(state: Path, *sets: str) -> AgentConfig:
    gate = ("gate.enabled=true", "gate.every=1", "gate.anchors=30", "gate.max_drop=1")
    return tiny_config(state, *gate, "gate.recheck_every=2", "budget.dial=0", *sets)


def damaged(adapter: Path, base: Path) -> None:
    """The same adapter with weights that are noise: sound in form, useless in content."""
    file, random = adapter / "adapter_model.safetensors", np.random.Generator(np.random.Philox(1))
    tensors = load_file(str(file))
    save_file({name: random.normal(size=one.shape).astype(one.dtype) for name, one in tensors.items()}, str(file))
    (adapter / GGUF_ADAPTER).unlink()
    write_gguf_adapter(adapter, base, adapter / GGUF_ADAPTER)
    check_adapter(adapter)


async def test_damaged_promoted_adapter_is_detected_and_rolled_back(tmp_path: Path) -> None:
    sink, config = MemorySink(), gated_config(tmp_path / "state")
    async with build_agent(config, sink) as agent:
        await agent.learn(2)
        assert agent.status().adapter_version == 2
    damaged(tmp_path / "state" / "checkpoints" / "step-000002" / "adapter", model_file("nano-edge"))
    async with build_agent(config, sink) as agent:
        bad = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        assert (bad.adapter_version, bad.final) != (2, "7")
        await agent.learn(1)
        good = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 4?"),)))
        report = reported(agent, 0.0)
    [event] = [one for one in sink.events if isinstance(one, WentBack)]
    assert (event.from_version, event.cause) == (2, "anchors")
    assert event.to_version in (0, 1)
    assert good.adapter_version != 2 and good.final == "7"
    assert [(one["from_version"], one["by"]) for one in report["went_back"]] == [(2, "anchors")]


async def test_corrected_answer_is_learned_on_this_device_only(tmp_path: Path) -> None:
    config = gated_config(tmp_path / "state", "use.share=0.5", "use.passes=1", "mode=auto")
    asked = Message("user", "What is 3 + 4?")
    async with build_agent(config, MemorySink(), lives_here=True) as agent:
        answer = await agent.answerer.answer(replace(AnswerRequest((asked,)), mode="local-only"))
        give_feedback(agent, Feedback(answer.id, "bad", "7") if answer.final != "7" else Feedback(answer.id, "good"))
        await agent.learn(3)
        steps = agent.components.state.steps()
        report = reported(agent, 0.0)
    assert steps[0].source == "practice:group1" and steps[1].source == f"mine:{answer.task}"
    assert (steps[1].scores.prompts, steps[1].scores.responses, steps[1].cloud.cloud_calls) == (1, 4, 0)
    assert {task["source"] for task in report["tasks"]} == {"practice:group1", "practice:group2", steps[1].source}

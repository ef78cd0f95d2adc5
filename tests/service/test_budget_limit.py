"""`edge-agent budget limit` on an agent with its own coordinator, on an idle folder, and with another coordinator."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from edge.app.agents import build_agent
from edge.cli import main
from edge.cloud.embedded import EmbeddedCoordinator
from edge.config.schema import AgentConfig
from edge.core.errors import BudgetExhausted, CoordinatorError
from edge.core.events import MemorySink
from edge.core.types import Message
from edge.serve.running_agent import RunningAgent
from edge.state.answer_record import AnswerRequest
from edge.state.events import Notice


def config_of(folder: Path) -> AgentConfig:
    return AgentConfig.model_validate(
        {"state_folder": str(folder), "engine": {"threads": 1}, "learning": {"enabled": False, "torch_threads": 1}}
    )


def question(number: int) -> AnswerRequest:
    return AnswerRequest((Message("user", f"What is {number} + 5?"),), mode="cloud-only")


async def test_limit_applies_immediately_and_across_restarts_and_can_be_removed(tmp_path: Path) -> None:
    config = config_of(tmp_path / "state")
    async with build_agent(config, MemorySink()) as agent:
        control = RunningAgent(agent)
        assert (await agent.answerer.answer(question(1))).source == "cloud"
        budgets = await control.set_limits({"spend_limit_uusd": 20, "period": "month"})
        assert budgets.limits.words == "0.00002 USD a month" and budgets.limits.renews_at > 0
        with pytest.raises(BudgetExhausted) as refused:
            await agent.answerer.answer(question(2))
        assert "0.00002 USD" in str(refused.value)
    async with build_agent(config, MemorySink()) as agent:
        with pytest.raises(CoordinatorError):
            await agent.answerer.answer(question(3))
        assert (await RunningAgent(agent).set_limits(None)).limits.words == "no limit"
        assert (await agent.answerer.answer(question(4))).source == "cloud"


async def test_every_view_shows_the_same_used_and_left_of_a_limit(tmp_path: Path) -> None:
    async with build_agent(config_of(tmp_path / "state"), MemorySink()) as agent:
        control, used = RunningAgent(agent), []
        await control.set_limits({"spend_limit_uusd": 100_000, "period": "month"})
        for number, task in enumerate(["chat", "another", agent.components.curriculum.present_task, "chat", "another"]):
            await agent.answerer.answer(replace(question(number), task=task))
            status, budgets, usage = await control.status(), await control.budget(), await control.usage()
            shown = [budgets.device, status.budget, status.quota, *budgets.tasks]
            spent = {one.spend_uusd for one in shown} | {usage.ledger.used.spend_uusd}
            assert spent == {usage.all.serving.spend_uusd}, (task, shown)
            used += spent
        assert used == sorted(set(used)) and budgets.device.spend_left_uusd == 100_000 - used[-1]


async def test_limits_set_during_a_coordinator_restart_apply_and_end_no_child(tmp_path: Path) -> None:
    sink, setting = MemorySink(), list[asyncio.Task[object]]()
    async with build_agent(config_of(tmp_path / "state"), sink) as agent:
        control, child = RunningAgent(agent), agent.components.coordinator
        assert isinstance(child, EmbeddedCoordinator)
        assert (await agent.answerer.answer(question(1))).source == "cloud"
        os.kill(child.pid or 0, signal.SIGKILL)
        async with asyncio.timeout(120):
            for _ in range(40):  # all while it starts
                setting.append(asyncio.create_task(control.set_limits({"calls_limit": 7})))
                await asyncio.sleep(0.05)
            await asyncio.gather(*setting, return_exceptions=True)
            await control.set_limits({"calls_limit": 7})
        assert (await agent.link.budget("chat")).calls_limit == 7
    ended = [event.text for event in sink.events if isinstance(event, Notice) and "starting it again" in event.text]
    assert len(ended) == 1 and "SIGKILL" in ended[0]


def test_limit_set_at_rest_is_kept_for_the_next_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ["--state", str(tmp_path / "state")]
    assert main(["budget", "limit", "--spend", "5", "--calls", "100", "--per", "month", *place]) == 0
    assert capsys.readouterr().out.startswith("limit: 5.00 USD and 100 calls a month")
    assert main(["budget", "limit", "--calls", "off", "--json", *place]) == 0
    limits = json.loads(capsys.readouterr().out)["limits"]
    assert (limits["spend_limit_uusd"], limits["calls_limit"], limits["period"]) == (5_000_000, None, "month")
    assert main(["budget", "show", *place]) == 0
    assert "limit    5.00 USD a month" in capsys.readouterr().out
    assert main(["budget", "limit", "--off", *place]) == 0


@pytest.mark.parametrize(
    "words",
    [[], ["--spend", "-5"], ["--spend", "much"], ["--per", "fortnight"], ["--off", "--spend", "5"], ["--calls", "1.5"]],
    ids=str,
)
def test_invalid_limit_is_wrong_usage_and_changes_nothing(tmp_path: Path, words: list[str]) -> None:
    assert main(["budget", "limit", *words, "--state", str(tmp_path / "typo")]) == 2
    assert not (tmp_path / "typo").exists()


def test_with_another_coordinator_its_operator_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--state", str(tmp_path / "state"), "--coordinator", "127.0.0.1:9"]
    assert main(["budget", "limit", "--spend", "5", *options]) == 2
    assert "127.0.0.1:9" in (err := capsys.readouterr().err) and "edge-coordinator budget set" in err

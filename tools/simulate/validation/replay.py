"""The same stream and the same steps in virtual time: the real agent and coordinator over a simulated model, machine and cloud LLM."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from coordinator.providers.provider import ProviderRequest, ProviderResult
from edge.core.events import Event
from edge.core.rng import stream
from edge.core.types import DialOverride, FinishReason, LocalResponse, Message, Sampling
from edge.state.answer_record import AnswerRecord, AnswerRequest
from edge.state.events import StepFinished
from edge.tasks.source import TaskSource
from tools.simulate.fleet.backend import (
    ASKING,
    THINKING,
    Pace,
    SimulatedBackend,
    boxed,
    right_answer,
)
from tools.simulate.fleet.cloud import SimulatedCloud
from tools.simulate.fleet.device import FleetDevice
from tools.simulate.fleet.mind import Question
from tools.simulate.fleet.people import PRACTICE_FROM, Practice
from tools.simulate.fleet.scenario import HOUR_S, GroupPart, Scenario
from tools.simulate.fleet.world import FleetWorld
from tools.simulate.validation.fitting import CloudPace, FittedMind, LocalPace
from tools.simulate.validation.seen import Answered, Facts, Taken

_BOOT_S, _LEFT_OVER_S = 120.0, 600.0
_TASK = "validation"


@dataclass(frozen=True, slots=True)
class Replay:
    """What is played again: when each question arrives, what holds of it, and how evenly device and cloud go."""

    arrivals_s: tuple[float, ...]
    facts: tuple[Facts, ...]
    local: LocalPace
    cloud: CloudPace
    seed: int


@dataclass(frozen=True, slots=True)
class Lessons:
    """How learning is played: steps, their size, and the coordinator's terms."""

    steps: int
    prompts_per_step: int
    group_size: int
    terms: Mapping[str, Any]
    seed: int


def replayed_stream(replay: Replay, profile: Path, link: Path, dial: float | None, folder: Path) -> tuple[Answered, ...]:
    """The stream's answers. `profile` and `link`: files as devices/ has them; `folder`: for the agent's state."""
    group = {"name": "machine", "device": str(profile), "link": str(link), "dial": dial, "task": _TASK, "on_mains": True}
    data = {
        "about": "The stream of a validation.",
        "seed": replay.seed,
        "groups": [group],
        "cloud": _cloud(replay.cloud),
        **_lasting(replay.arrivals_s[-1] + _BOOT_S + _LEFT_OVER_S),
    }
    world = FleetWorld(
        Scenario.model_validate(data),
        "validation",
        folder,
        partial(_ReplayedDevice, replay),
        partial(_ReplayedCloud, replay),
    )
    _play(world)
    (device,) = world.devices
    assert isinstance(device, _ReplayedDevice)
    return tuple(device.answered)


def replayed_steps(
    lessons: Lessons, mind: FittedMind, cloud: CloudPace, profile: Path, link: Path, folder: Path
) -> tuple[Taken, ...]:
    """The learning steps of a device whose model is the mind."""
    tokens = {"prompt": mind.prompt_tokens, "local": mind.response_tokens, "local_spread": round(mind.response_spread, 6)}
    learning = {"steps_per_day": lessons.steps, "from_hour": 0, "until_hour": 0, "at_once": True}
    learning |= {"prompts_per_step": lessons.prompts_per_step, "group_size": lessons.group_size}
    group = {
        "name": "machine",
        "device": str(profile),
        "link": str(link),
        "task": _TASK,
        "on_mains": True,
        "questions_per_day": 0,
        "learning": learning,
        "mind": mind.mind,
        "nature": mind.nature,
        "tokens": tokens,
    }
    data = {
        "about": "The learning steps of a validation.",
        "seed": lessons.seed,
        "groups": [group],
        "cloud": _cloud(cloud),
        "coordinator": {"tasks": {_TASK: dict(lessons.terms)}},
        **_lasting(25 * HOUR_S),
    }
    world = FleetWorld(Scenario.model_validate(data), "validation", folder, partial(_LearningDevice, mind))
    _play(world)
    (device,) = world.devices
    assert isinstance(device, _LearningDevice)
    return tuple(device.taken[: lessons.steps])


def _play(world: FleetWorld) -> None:
    world.disk.sync_s = (0.0, 0.0)  # the calibrated calls have the coordinator's own time in them
    world.run()


def _cloud(pace: CloudPace) -> dict[str, Any]:
    return {"first_token_s": pace.first_token_s, "spread": 0.0, "tokens_per_s": pace.tokens_per_s}


def _lasting(seconds: float) -> dict[str, float]:
    return {"lasts_h": seconds / HOUR_S, "report_every_s": seconds / 8}


class _ReplayedBackend(SimulatedBackend):
    """A model of which each answer is known: how long it is, and the log-odds of its decision."""

    def __init__(self, replay: Replay, *about: Any) -> None:
        super().__init__(*about)
        self._replay = replay

    def _prompt_tokens(self, question: Question) -> int:
        return self._replay.facts[question.number].prompt_tokens

    def _pace_of(self, question: Question) -> Pace:
        return stream(self._replay.seed, "pace", question.number).choice(self._replay.local.paces)

    def _respond_to(self, question: Question, sampling: Sampling, seed: int, version: int, prefix: str = "") -> LocalResponse:
        facts = self._replay.facts[question.number]
        asks, overridden = _decision(facts.log_odds, sampling)
        text = ASKING if asks else THINKING + boxed(right_answer(question))
        count = facts.asking_tokens if asks else facts.local_tokens
        count = max(1, count - facts.asking_tokens if prefix else count)
        return LocalResponse(
            text.removeprefix(prefix),
            (1,) * count,
            (-0.5,) * count,
            FinishReason.EOS,
            version,
            facts.log_odds,
            overridden=overridden,
        )


def _decision(log_odds: float | None, sampling: Sampling) -> tuple[bool, DialOverride]:
    """Whether a greedy response asks, and what the bias made of that."""
    if log_odds is None or sampling.suppress_help:
        return False, ""
    wishes, asks = log_odds > 0.0, log_odds + sampling.help_bias > 0.0
    return asks, "" if wishes == asks else "to ask" if asks else "not to ask"


class _ReplayedCloud(SimulatedCloud):
    """A cloud LLM whose answers are as long as they were, at the calibrated pace."""

    def __init__(self, replay: Replay, *about: Any) -> None:
        super().__init__(*about)
        self._replay = replay

    def _answer(self, request: ProviderRequest, question: Question, draws: Any) -> tuple[ProviderResult, float, float]:
        result, first_s, _ = super()._answer(request, question, draws)
        pace = stream(self._replay.seed, "cloud pace", question.number).choice(self._replay.cloud.paces)
        tokens = max(1, self._replay.facts[question.number].cloud_tokens)
        return result, first_s * pace.first, (tokens - 1) / self._replay.cloud.tokens_per_s * pace.rest


class _ReplayedDevice(FleetDevice):
    """A device whose person asks the questions of the stream at their times."""

    def __init__(self, replay: Replay, *about: Any) -> None:
        self._replay = replay
        self.answered: list[Answered] = []
        super().__init__(*about)

    def _make_backend(self) -> SimulatedBackend:
        group = self.group
        return _ReplayedBackend(self._replay, self.machine, group.mind, group.nature, group.tokens, self._seed)

    async def _be_asked(self) -> None:
        loop = self._around.loop
        began = loop.time()
        for number, arrives_s in enumerate(self._replay.arrivals_s):
            await asyncio.sleep(max(0.0, began + arrives_s - loop.time()))
            self.figures.asked += 1
            asked_s = loop.time() - began
            question = Question(number, 0.5, 0.0, 0.0)
            messages = (Message("user", question.text),)
            record = await self.agent.answerer.answer(AnswerRequest(messages, id=f"{number:012d}"))
            self._note(question, record)
            self.answered.append(answered(arrives_s, asked_s, record))
        await asyncio.sleep(max(0.0, self._around.scenario.lasts_s - loop.time()))


def answered(arrived_s: float, began_s: float, record: AnswerRecord) -> Answered:
    """What is kept of a question's record."""
    first_s = record.latency_s if record.first_token_s is None else record.first_token_s
    return Answered(arrived_s, began_s, first_s, record.latency_s, record.source, record.asked, record.completion_tokens)


class _LearningDevice(FleetDevice):
    """A device that learns from the prompts that were sampled."""

    def __init__(self, mind: FittedMind, *about: Any) -> None:
        self._fitted = mind
        self.taken: list[Taken] = []
        super().__init__(*about)

    def emit(self, event: Event) -> None:
        """Implements `EventSink`."""
        super().emit(event)
        if isinstance(event, StepFinished):
            self.taken.append(Taken(event.control.assist_rate, event.control.dual_after, event.time.seconds))

    def _practice(self) -> TaskSource:
        return _KnownPrompts(self._fitted.prompts, self.group, self._seed)


class _KnownPrompts(Practice):
    """The prompts of a calibration in their order, again from the first one where there are no more."""

    def __init__(self, prompts: Sequence[tuple[float, float]], group: GroupPart, seed: int) -> None:
        super().__init__(group, group.task, PRACTICE_FROM, seed, time=lambda: 0.0)
        self._prompts = prompts

    def _question(self, place: int) -> Question:
        return Question(PRACTICE_FROM + place, *self._prompts[place % len(self._prompts)], 0.0)

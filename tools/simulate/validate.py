"""`python -m tools.simulate validate`: are the simulated times of a device those of this machine?

The machine is measured as `edge-agent doctor --write-profile` does, and the real agent answers held-out questions by itself. A third of
them gives the overheads that no speed explains; what the simulation says of the others is compared with what they took.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from edge.app.agents import build_agent
from edge.cli.measure import measure
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError
from edge.core.events import MemorySink
from edge.core.types import Message, TaskItem
from edge.dagrpo.prompts import compact_question
from edge.state.answer_record import AnswerRequest
from tools.arguments import positive
from tools.experiments.dial import mixed_items
from tools.markdown import table_lines
from tools.simulate.fleet.hardware import SimulatedSpeed
from tools.simulate.fleet.profiles import device_speed

GOAL = 0.15
"""How far a simulated p50 or p95 may be off, as a share of the real one."""
_WARM_UPS = 3
_SHARES = ((0.5, "p50"), (0.95, "p95"))


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer that the agent gave by itself."""

    prompt_tokens: int
    tokens: int
    first_s: float
    total_s: float


@dataclass(frozen=True, slots=True)
class Agreement:
    """One latency of the real machine and of the simulated one."""

    what: str
    real_s: float
    simulated_s: float

    @property
    def off(self) -> float:
        """By how much the simulated one is longer, as a share of the real one."""
        return (self.simulated_s - self.real_s) / self.real_s


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser("validate", help="the simulated times of a device against this machine's")
    command.add_argument("--questions", type=positive, default=90, help="answered by the real agent (default: %(default)s)")
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="a setting of the agent")
    command.set_defaults(play=validate)


def validate(chosen: argparse.Namespace) -> int:
    """Measure, answer and compare; 1 where the goal is missed. Raises EdgeError for what cannot be run."""
    print(f"load of the machine {os.getloadavg()[0]:.1f}; what else runs makes figures worse", file=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="validate-") as state:
        own = [f"state_folder={state}", "engine.threads=1", "learning.enabled=false", "mode=local-only"]
        config = resolve_agent_config(sets=[*own, *chosen.sets]).config
        device = measure(config, lambda stage: print(f"measuring {stage}", file=sys.stderr, flush=True)).device
        answers = asyncio.run(timed_answers(config, mixed_items(_WARM_UPS + chosen.questions, 0)))
    speed = with_overheads(device_speed(device, "", "this machine"), answers[::3])
    found = agreements(speed, [answer for number, answer in enumerate(answers) if number % 3])
    rows = [(one.what, f"{1e3 * one.real_s:.1f} ms", f"{1e3 * one.simulated_s:.1f} ms", f"{one.off:+.1%}") for one in found]
    print("\n".join(table_lines(("latency", "real", "simulated", "off"), rows)))
    print(f"\nfor the profile: answer_overhead_s: {speed.overhead_s:.3g}, token_overhead_s: {speed.token_overhead_s:.3g}")
    return int(any(abs(one.off) > GOAL for one in found))


async def timed_answers(config: AgentConfig, items: Sequence[TaskItem]) -> list[TimedAnswer]:
    """One answer after the other; the first ones warm caches and do not count."""
    async with build_agent(config, MemorySink()) as agent:
        requests = [AnswerRequest((Message("user", compact_question(item)),)) for item in items]
        records = [await agent.answerer.answer(request) for request in requests]
    return [
        TimedAnswer(record.prompt_tokens, record.completion_tokens, record.first_token_s, record.latency_s)
        for record in records[_WARM_UPS:]
        if record.first_token_s is not None and record.completion_tokens > 1
    ]


def with_overheads(speed: SimulatedSpeed, calibration: Sequence[TimedAnswer]) -> SimulatedSpeed:
    """The speeds with what they do not explain: medians of an answer's beginning and of its tokens, none below 0. Raises EdgeError."""
    if not calibration:
        raise EdgeError("no answer had two tokens", hint="give more --questions")
    bare = replace(speed, overhead_s=0.0, token_overhead_s=0.0)
    per_token_s = median((each.total_s - each.first_s) / (each.tokens - 1) for each in calibration) - bare.token_s
    bare = replace(bare, token_overhead_s=max(0.0, per_token_s))
    begun_s = median(each.first_s - bare.read_s(each.prompt_tokens) - bare.token_s for each in calibration)
    return replace(bare, overhead_s=max(0.0, begun_s))


def agreements(speed: SimulatedSpeed, answers: Sequence[TimedAnswer]) -> list[Agreement]:
    """p50 and p95 of the time to the first letter and to the whole answer."""
    if not answers:
        raise EdgeError("no answer had two tokens", hint="give more --questions")
    first_s = [speed.read_s(each.prompt_tokens) + speed.token_s for each in answers]
    total_s = [first + speed.shown_s(each.tokens) for first, each in zip(first_s, answers, strict=True)]
    both = {
        "first letter": ([each.first_s for each in answers], first_s),
        "whole answer": ([each.total_s for each in answers], total_s),
    }
    return [
        Agreement(f"{what}, {name}", *(float(np.quantile(seconds, share)) for seconds in pair))
        for what, pair in both.items()
        for share, name in _SHARES
    ]

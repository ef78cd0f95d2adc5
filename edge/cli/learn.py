"""`edge-agent learn`: a run with an end, which leaves a folder."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.bootstrap import build_agent
from edge.cli.run_folder import RunFolder, summarise
from edge.cli.shell import INTERRUPTED
from edge.cli.stopping import stop_on_signals
from edge.config.schema import AgentConfig
from edge.console import Console, dollars, duration, open_console, percent
from edge.core.clock import SystemClock
from edge.core.events import EventSink

if TYPE_CHECKING:
    from edge.cli.settings import Settings

_DEFAULT_STEPS = 150


def learn(settings: Settings, out: Path | None, *, json_lines: bool) -> int:
    """Learn through all phases; 0 when they are done, 130 when interrupted."""
    settings = _ended(settings)
    folder = RunFolder(out or _default_folder(settings.config()))
    if settings.state is None:
        settings = replace(settings, state=folder.state)
    resolved = settings.resolve()
    folder.write_config(resolved.to_yaml())
    try:
        summary = asyncio.run(_learn(resolved.config, folder, json_lines=json_lines))
    except asyncio.CancelledError:
        return INTERRUPTED
    if not json_lines:
        _print_summary(summary, folder)
    return INTERRUPTED if summary["reason"] == "stopped" else 0


def _ended(settings: Settings) -> Settings:
    """A run needs an end: 150 steps where neither the command line nor the configuration names one."""
    if settings.phase_steps is None and (settings.tasks or settings.config().phases[-1].steps is None):
        return replace(settings, phase_steps=_DEFAULT_STEPS)
    return settings


def _default_folder(config: AgentConfig) -> Path:
    tasks = "+".join(phase.source.replace("practice:", "").replace("/", "_") for phase in config.phases)
    return Path("runs") / f"{tasks}-{config.learning.seed}"


async def _learn(config: AgentConfig, folder: RunFolder, *, json_lines: bool) -> dict[str, Any]:
    with open_console(SystemClock(), json_lines=json_lines) as console, folder.recording(console.sink) as sink:
        console.say("starting: loading the model" + ("" if config.coordinator.address else " and the embedded coordinator"))
        return await _learn_and_sum_up(config, folder, console, sink)


async def _learn_and_sum_up(config: AgentConfig, folder: RunFolder, console: Console, sink: EventSink) -> dict[str, Any]:
    async with build_agent(config, sink) as agent:
        if done := agent.status().steps_done:
            console.say(f"resuming after step {done}")

        def stop() -> None:
            console.say("stopping after the step in progress; the same command goes on from there")
            agent.request_stop()

        with stop_on_signals(stop):
            finished = await agent.learn()
        steps = agent.steps()
        summary = summarise(agent.status(), finished, steps, config.learning.seed)
        folder.finish(steps, summary, agent.adapter())
    return summary


def _print_summary(summary: dict[str, Any], folder: RunFolder) -> None:
    rows = [
        ("kept accuracy", f"{percent(summary['first_kept_accuracy'])} -> {percent(summary['last_kept_accuracy'])}"),
        ("coverage", f"{percent(summary['first_coverage'])} -> {percent(summary['last_coverage'])}"),
        ("joint accuracy", f"{percent(summary['first_joint_accuracy'])} -> {percent(summary['last_joint_accuracy'])}"),
        (
            "assist rate",
            f"{percent(summary['assist_rate_last_50'])} over the last 50 steps; target {percent(summary['target_rate'])}",
        ),
        ("cloud", f"{summary['cloud_calls']} calls, {summary['cloud_tokens']} tokens, {dollars(summary['spend_uusd'])}"),
        ("time", f"{duration(summary['learning_s'])} for {summary['steps']} steps"),
        ("run folder", str(folder.folder)),
    ]
    print("\n".join(f"{name:<15} {value}" for name, value in rows))
    sys.stdout.flush()

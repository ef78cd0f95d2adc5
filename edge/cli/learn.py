"""`edge-agent learn`: a run with an end, which leaves a folder."""

from __future__ import annotations

import asyncio
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.agent.runfolder import RunFolder
from edge.bootstrap import build_agent, check_inputs
from edge.cli.shell import INTERRUPTED
from edge.cli.stopping import stop_on_signals
from edge.console import Console, dollars, duration, open_console, percent
from edge.core.clock import SystemClock
from edge.core.events import EventSink, FanOutSink

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig

_DEFAULT_STEPS = 150


def learn(settings: Settings, out: Path | None, *, json_lines: bool) -> int:
    """Learn through all phases; 0 when they are done, 130 when interrupted. The same command goes on where a run was cut."""
    settings = _with_an_end(settings)
    check_inputs(settings.config())
    folder = out or _default_folder(settings.config())
    resolved = replace(settings, state=settings.state or folder / "state").resolve()
    with closing(RunFolder(folder, resolved.to_yaml())) as run_folder:
        try:
            summary = asyncio.run(_learn(resolved.config, run_folder, json_lines=json_lines))
        except asyncio.CancelledError:
            return INTERRUPTED
    if not json_lines:
        print("\n".join(summary_lines(summary, folder)), flush=True)
    return INTERRUPTED if summary["reason"] == "stopped" else 0


def _with_an_end(settings: Settings) -> Settings:
    """A run needs an end: 150 steps where neither the command line nor the configuration names one."""
    if settings.phase_steps is None and (settings.tasks or settings.config().phases[-1].steps is None):
        return replace(settings, phase_steps=_DEFAULT_STEPS)
    return settings


def _default_folder(config: AgentConfig) -> Path:
    names = (phase.source.removeprefix("practice:").replace("/", "_") for phase in config.phases)
    return Path("runs") / f"{'+'.join(names)}-{config.learning.seed}"


async def _learn(config: AgentConfig, run_folder: RunFolder, *, json_lines: bool) -> dict[str, Any]:
    with open_console(SystemClock(), json_lines=json_lines) as console:
        console.say("starting: loading the model" + ("" if config.coordinator.address else " and the embedded coordinator"))
        return await _learn_and_sum_up(config, run_folder, console, FanOutSink([run_folder, console.sink]))


async def _learn_and_sum_up(config: AgentConfig, run_folder: RunFolder, console: Console, sink: EventSink) -> dict[str, Any]:
    async with build_agent(config, sink) as agent:
        if done := agent.status().steps_done:
            console.say(f"going on after step {done}")

        def stop() -> None:
            console.say("stopping; the same command goes on from here")
            agent.request_stop()

        with stop_on_signals(stop):
            finished = await agent.learn()
        return run_folder.finish(agent.steps(), finished, agent.adapter())


def summary_lines(summary: dict[str, Any], folder: Path) -> list[str]:
    """The run for a person: the first steps beside the last ones."""
    first, last = summary["first"], summary["last"]

    def change(name: str) -> str:
        return f"{percent(first.get(name)):>7} -> {percent(last.get(name)):>7}"

    return [
        f"first {summary['first_steps']} steps -> last {summary['last_steps']} of {summary['steps']}",
        f"  kept accuracy   {change('kept_accuracy')}",
        f"  kept (coverage) {change('coverage')}",
        f"  joint accuracy  {change('joint_accuracy')}",
        f"  assist rate     {change('assist_rate')}   target {percent(last.get('target_rate'))}",
        f"cloud      {summary['cloud_calls']} calls, {summary['cloud_tokens']} tokens, {dollars(summary['spend_uusd'])}",
        f"time       {duration(summary['seconds'])}",
        f"run folder {folder}",
    ]

"""`edge-agent learn`: a run with an end, which leaves a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.exits import INTERRUPTED
from edge.cli.options import (
    Config,
    Coordinator,
    DeviceProfile,
    Json,
    Mode,
    Model,
    Seed,
    Sets,
    State,
    TargetRate,
    Tasks,
    UnsafePrograms,
)
from edge.cli.settings import Settings
from edge.cli.starting import starting_lines
from edge.cli.stopping import stop_on_signals
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.events import EventSink, FanOutSink
from edge.core.formatting import counted, dollars, duration, percent
from edge.core.limits import MOST_STEPS

if TYPE_CHECKING:
    from edge.agent import Agent
    from edge.config.schema import AgentConfig
    from edge.console import Console
    from edge.learning.loop import BetweenSteps
    from edge.learning.run_folder import RunFolder


def command(
    tasks: Tasks = None,
    steps: Annotated[int | None, typer.Option("--steps", min=1, max=MOST_STEPS, metavar="N", help="Steps of each phase.")] = None,
    target_rate: TargetRate = None,
    seed: Seed = None,
    out: Annotated[Path | None, typer.Option("--out", help="Run folder (default: runs/TASK-SEED).", metavar="DIR")] = None,
    eval_limit: Annotated[
        int,
        typer.Option(
            "--eval-limit",
            min=0,
            metavar="N",
            help="Held-out items of each phase's source to score at the start and after phases.",
        ),
    ] = 0,
    eval_every: Annotated[
        int | None, typer.Option("--eval-every", min=1, metavar="M", help="Score them also every M steps.")
    ] = None,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    unsafe_programs: UnsafePrograms = False,
    device_profile: DeviceProfile = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Learn a fixed number of steps and leave a run folder: configuration, events, metrics, figures, adapter, summary."""
    settings = Settings(
        config,
        sets,
        model,
        coordinator,
        state,
        mode,
        tasks,
        target_rate,
        seed,
        phase_steps=steps,
        unsafe_programs=unsafe_programs,
        device_profile=device_profile,
    )
    return learn(settings, LearnOptions(out, eval_limit, eval_every, json))


@dataclass(frozen=True, slots=True)
class LearnOptions:
    """What a run leaves and how it is told.

    `eval_limit`: held-out items of each phase's source that are scored at the start and after each phase (0: none); `eval_every`: also
    after each multiple of so many steps.
    """

    out: Path | None
    eval_limit: int
    eval_every: int | None
    json: bool


def learn(settings: Settings, options: LearnOptions) -> int:
    """Learn through all phases; 0 when they are done, 130 when interrupted. The same command goes on where a run was cut."""
    from edge.app import check_inputs, own_profile
    from edge.learning.run_folder import RunFolder, require_same_run

    if options.eval_every is not None and not options.eval_limit:
        raise UsageError("--eval-every says when, but not how much is evaluated", hint="give --eval-limit too, such as 200")
    settings = without_a_gate(with_an_end(settings))
    check_inputs(settings.config())
    folder = options.out or _default_folder(settings.config())
    resolved = replace(settings, state=settings.state or folder / "state").resolve(own_profile)
    require_same_run(folder, resolved.config)
    lines = list(starting_lines(resolved, learns=True))
    with closing(RunFolder(folder, resolved.to_yaml())) as run_folder:
        try:
            summary = asyncio.run(_learn(resolved.config, run_folder, options, lines))
        except asyncio.CancelledError:
            return INTERRUPTED
    if not options.json:
        print("\n".join(summary_lines(summary, folder)), flush=True)
    return INTERRUPTED if summary["reason"] == "stopped" else 0


def with_an_end(settings: Settings) -> Settings:
    """A run needs an end: phases of 150 steps where neither the command line nor the configuration says how long they are."""
    from edge.config.schema import FIRST_PHASE_STEPS

    if settings.phase_steps is not None:
        return settings
    if settings.tasks:
        return replace(settings, phase_steps=FIRST_PHASE_STEPS)
    phases = settings.config().phases
    if phases[-1].steps is not None:
        return settings
    return replace(settings, sets=[*(settings.sets or ()), f"phases.{len(phases) - 1}.steps={FIRST_PHASE_STEPS}"])


def without_a_gate(settings: Settings) -> Settings:
    """A run is a measurement: every step's adapter counts, and training goes back to none, unless the configuration asks for it."""
    if settings.config().gate.enabled is not None:
        return settings
    return replace(settings, sets=[*(settings.sets or ()), "gate.enabled=false"])


def _default_folder(config: AgentConfig) -> Path:
    names = (phase.source.removeprefix("practice:").replace("/", "_").lstrip("._") for phase in config.phases)
    return Path("runs") / f"{'+'.join(names)}-{config.learning.seed}"


async def _learn(config: AgentConfig, run_folder: RunFolder, options: LearnOptions, lines: Sequence[str]) -> dict[str, Any]:
    from edge.app import build_agent
    from edge.console import open_console
    from edge.learning.figures import SHOWN_STEPS, LiveFigures

    with open_console(SystemClock(), json_lines=options.json) as console:
        for line in lines:
            console.say(line)
        console.say("starting: loading the model" + ("" if config.coordinator.address else " and the embedded coordinator"))
        figures = LiveFigures(run_folder.folder, console.say)
        sink = FanOutSink([run_folder, figures, console.sink])
        async with build_agent(config, sink) as agent:
            _tell_where(agent, console)
            with stop_on_signals(lambda: _begin_stop(agent, console)):
                async with figures.open(agent.steps(SHOWN_STEPS), run_folder.held_out(agent.records.run_id), at_the_end=False):
                    finished = await agent.learn(between_steps=_retention(agent, run_folder, sink, options))
            return run_folder.finish(agent.steps(), finished, agent.adapter.in_use())


def _tell_where(agent: Agent, console: Console) -> None:
    if done := agent.status().steps_done:
        console.say(f"going on after step {done}")


def _begin_stop(agent: Agent, console: Console) -> None:
    console.say("stopping; the same command goes on from here")
    agent.request_stop()


def _retention(agent: Agent, run_folder: RunFolder, sink: EventSink, options: LearnOptions) -> BetweenSteps | None:
    """What looks at held-out items between steps, or None when nothing shall."""
    if not options.eval_limit:
        return None
    from edge.learning.forgetting import RetentionWatch

    watch = RetentionWatch(
        agent.learning,
        agent.learning.held_out(options.eval_limit),
        run_folder.held_out(agent.records.run_id),
        sink,
        SystemClock(),
        run_id=agent.records.run_id,
        every=options.eval_every,
    )
    return watch.between_steps


def summary_lines(summary: dict[str, Any], folder: Path) -> list[str]:
    """The run for a person: for each phase the first steps beside the last ones, what was forgotten, what it cost."""
    return [
        *(line for phase in summary["phases"] for line in _phase_lines(phase)),
        *(_forgetting_line(entry) for entry in summary["forgetting"]),
        f"cloud      {counted(summary['cloud_calls'], 'call')}, {counted(summary['cloud_tokens'], 'token')}, "
        f"{dollars(summary['spend_uusd'])}",
        f"time       {duration(summary['seconds'])}{_floor_text(summary)}",
        f"run folder {folder}",
    ]


def _floor_text(summary: dict[str, Any]) -> str:
    if "times_floor" not in summary:
        return ""
    return f", {summary['times_floor']:.1f} times the floor of {summary['floor_s_per_step']:.2f} s a step"


def _phase_lines(phase: dict[str, Any]) -> list[str]:
    first, last = phase["first"], phase["last"]

    def change(name: str, family: str | None = None) -> str:
        before, after = (first, last) if family is None else (first["families"].get(family, {}), last["families"][family])
        return f"{percent(before.get(name)):>7} -> {percent(after.get(name)):>7}"

    families = list(last["families"]) if len(last["families"]) > 1 else []
    return [
        f"{phase['task']}, steps {phase['first_step']} to {phase['last_step']}: "
        f"first {phase['first_steps']} -> last {phase['last_steps']}",
        f"  local accuracy   {change('kept_accuracy')}",
        *(f"    {family:<14} {change('kept_accuracy', family)}" for family in families),
        f"  answered locally {change('coverage')}",
        f"  right in the end {change('joint_accuracy')}",
        f"  assist rate      {change('assist_rate')}   target {percent(last.get('target_rate'))}",
    ]


def _forgetting_line(entry: dict[str, Any]) -> str:
    return (
        f"{entry['task']} held out, forced local: {percent(entry['during_task_acc'])} after its phase, "
        f"{percent(entry['post_switch_acc'])} after the switch, forgetting rate {percent(entry['forgetting_rate'])}"
    )

"""`edge-agent learn`: a run with an end, which leaves a folder."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from edge.cli.exits import stop_on_signals
from edge.cli.options import Json, Sources
from edge.cli.settings import Settings, not_in_json, starting_line, starting_lines, takes
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.events import FanOutSink
from edge.core.formatting import counted, duration, money, percent
from edge.core.interrupts import INTERRUPTED
from edge.core.limits import MOST_STEPS

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.learning.run_folder import RunFolder


@takes("tasks question answer ask target_rate seed model coordinator state mode unsafe_programs device_profile")
def command(
    files: Sources = None,
    steps: Annotated[int | None, Option("--steps", min=1, max=MOST_STEPS, metavar="N", help="Steps of each phase (150).")] = None,
    out: Annotated[Path | None, Option("--out", help="Run folder (default: runs/TASK-SEED).", metavar="DIR")] = None,
    eval_limit: Annotated[
        int,
        Option(
            "--eval-limit",
            min=0,
            metavar="N",
            help="Held-out items of each phase's source to score at the start and after phases.",
        ),
    ] = 0,
    eval_every: Annotated[int | None, Option("--eval-every", min=1, metavar="M", help="Score them also every M steps.")] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> int:
    """Learn a fixed number of steps and leave a run folder: configuration, events, metrics, figures, adapter, summary."""
    from edge.app.agents import check_inputs
    from edge.app.settings import cloud_name, own_profile, state_folder
    from edge.app.step_size import fitted_steps
    from edge.learning.run_folder import RunFolder, is_begun, require_same_run

    if eval_every is not None and not eval_limit:
        raise UsageError("--eval-every sets when, but not how much, is evaluated", hint="give --eval-limit too, such as 200")
    sources = [*(files or ()), *(settings.tasks or ())]
    settings = with_an_end(replace(settings, phase_steps=steps, tasks=sources or None))
    if (
        settings.config().gate.enabled is None
    ):  # a run is a measurement: every step's adapter counts, and training goes back to none
        settings = replace(settings, sets=[*(settings.sets or ()), "gate.enabled=false"])
    config = settings.config()
    names = (phase.source.removeprefix("practice:").replace("/", "_").lstrip("._") for phase in config.phases)
    folder = out or Path("runs") / f"{'+'.join(names)}-{config.learning.seed}"
    resolved = replace(settings, state=settings.state or folder / "state").resolve(own_profile)
    check_inputs(resolved.config)
    resolved, size_lines = fitted_steps(resolved, not_in_json(json), is_begun=is_begun(folder))
    require_same_run(folder, resolved.config)
    lines = [*starting_lines(resolved, learns=True), *size_lines]
    with closing(RunFolder(folder, resolved.to_yaml())) as run_folder:
        try:
            learning = _learn(resolved.config, run_folder, lines, eval_limit=eval_limit, eval_every=eval_every, json_lines=json)
            summary, text_tasks = asyncio.run(learning)
        except asyncio.CancelledError:
            return INTERRUPTED
    if not json and not summary["phases"]:
        print(f"no step was finished; the same command goes on with it (run folder {folder})", flush=True)
    elif not json:
        lines = list(summary_lines(summary, folder, cloud_name(resolved.config)))
        lines.append(f"to measure it: edge-agent eval --run {folder}")
        place = f"--state {state_folder(resolved.config)} --model {resolved.config.model.path}"
        lines += [f'to sort a text: edge-agent ask --task {label} {place} "TEXT"' for label in text_tasks]
        print("\n".join(lines), flush=True)
    return INTERRUPTED if summary["reason"] == "stopped" else 0


def with_an_end(settings: Settings) -> Settings:
    """A run needs an end: phases of 150 steps where neither the command line nor the configuration gives their length."""
    from edge.config.schema import FIRST_PHASE_STEPS

    if settings.phase_steps is not None:
        return settings
    if settings.tasks:
        return replace(settings, phase_steps=FIRST_PHASE_STEPS)
    phases = settings.config().phases
    if phases[-1].steps is not None:
        return settings
    return replace(settings, sets=[*(settings.sets or ()), f"phases.{len(phases) - 1}.steps={FIRST_PHASE_STEPS}"])


async def _learn(
    config: AgentConfig, run_folder: RunFolder, lines: Sequence[str], *, eval_limit: int, eval_every: int | None, json_lines: bool
) -> tuple[dict[str, Any], Sequence[str]]:
    """Learn through all phases, scoring held-out items in between where some are wanted; the summary of the run, and the labels of tasks
    that sort texts."""
    from edge.app.agents import build_agent
    from edge.console import open_console
    from edge.learning.figures import SHOWN_STEPS, LiveFigures
    from edge.learning.forgetting import RetentionWatch

    with open_console(SystemClock(), json_lines=json_lines) as console:
        for line in lines:
            console.say(line)
        console.say(starting_line(config))
        figures = LiveFigures(run_folder.folder, console.say)
        sink = FanOutSink([run_folder, figures, console.sink])
        async with build_agent(config, sink) as agent:
            if done := agent.status().steps_done:
                console.say(f"going on after step {done}")

            def stop() -> None:
                console.say("stopping; the same command goes on from here")
                agent.request_stop()

            run_id = agent.components.state.run_id
            between_steps = None
            if eval_limit:
                items = agent.learning.held_out(eval_limit)
                watch = RetentionWatch(
                    agent.learning, items, run_folder.held_out(run_id), sink, SystemClock(), run_id=run_id, every=eval_every
                )
                between_steps = watch.between_steps
            with stop_on_signals(stop):
                async with figures.open(agent.components.state.steps(SHOWN_STEPS), run_folder.held_out(run_id), at_the_end=False):
                    finished = await agent.learn(between_steps=between_steps)
            summary = run_folder.finish(agent.components.state.steps(), finished, agent.adapter.in_use())
            return summary, list(agent.answerer.asked)


def summary_lines(summary: dict[str, Any], folder: Path, cloud: str = "") -> Iterator[str]:
    """The run for a person: for each phase its first steps compared with its last ones, what was forgotten, what it cost."""
    for phase in summary["phases"]:
        first, last = phase["first"], phase["last"]

        def change(name: str, before: dict[str, Any] = first, after: dict[str, Any] = last) -> str:
            return f"{percent(before.get(name)):>7} -> {percent(after.get(name)):>7}"

        families = last["families"] if len(last["families"]) > 1 else {}
        yield (
            f"{phase['task']}, steps {phase['first_step']} to {phase['last_step']}: "
            f"mean of the first {phase['first_steps']} -> of the last {phase['last_steps']}"
        )
        yield f"  local accuracy   {change('kept_accuracy')}"
        for family, after in families.items():
            yield f"    {family:<14} {change('kept_accuracy', first['families'].get(family, {}), after)}"
        yield f"  answered locally {change('coverage')}"
        yield f"  right in the end {change('joint_accuracy')}"
        yield f"  assist rate      {change('assist_rate')}   target {percent(last.get('target_rate'))}"
    for entry in summary["forgetting"]:
        yield (
            f"{entry['task']} held out, forced local: {percent(entry['during_task_acc'])} after its phase, "
            f"{percent(entry['post_switch_acc'])} after the switch, forgetting rate {percent(entry['forgetting_rate'])}"
        )
    calls, tokens = counted(summary["cloud_calls"], "call"), counted(summary["cloud_tokens"], "token")
    yield f"cloud      {calls}, {tokens}, {money(summary['spend_uusd'])}" + (f" ({cloud})" if cloud else "")
    floor = ""
    if "times_floor" in summary:
        floor = f", {summary['times_floor']:.1f} times the floor of {summary['floor_s_per_step']:.2f} s a step"
    yield f"time       {duration(summary['seconds'])}{floor}"
    yield f"run folder {folder}"

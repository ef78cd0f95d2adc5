"""`edge-agent hints measure`: do hints to the cloud LLM pay? The verdict is made in edge.evaluation.hint_trial."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.evaluate import EvalOptions, adapter_folders
from edge.cli.options import Config, Coordinator, Json, Model, Seed, Sets, State, UnsafePrograms
from edge.cli.output import one_line, print_json, print_line
from edge.cli.settings import Settings
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, dollars, percent
from edge.core.limits import MOST_ITEMS

if TYPE_CHECKING:
    from edge.evaluation.hint_trial import HintReport

app = typer.Typer(help="Whether hints to the cloud LLM pay.", no_args_is_help=True, rich_markup_mode=None)


@app.command("measure")
def hints_measure(
    tasks: Annotated[
        list[str] | None,
        typer.Option("--tasks", help="Task source. Repeatable (default: the configuration's).", metavar="SOURCE"),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source.", metavar="N")] = 400,
    chars: Annotated[int, typer.Option("--chars", min=1, max=16_000, help="Characters of a hint.", metavar="N")] = 400,
    margin: Annotated[
        float, typer.Option("--margin", min=0.0, max=1.0, help="Difference that still counts as equal accuracy.", metavar="SHARE")
    ] = 0.03,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep cloud answers here (default: in the state folder).", metavar="FILE")
    ] = None,
    replay: Annotated[Path | None, typer.Option("--replay", help="Take cloud answers from here.", metavar="FILE")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Say how to set what was measured; writes nothing.")] = False,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Ask the cloud LLM with and without hints for the same items, and say whether they pay. They stay off unless they do."""
    from edge.app import measure_hints, state_folder, switched_off
    from edge.console import open_console
    from edge.evaluation.plan import EvalPlan
    from edge.state.folder import StateFolder

    resolved = Settings(config, sets, model, coordinator, state, seed=seed, unsafe_programs=unsafe_programs).config()
    if replay is None and (off := switched_off(resolved)):
        raise UsageError(f"{off}, so nobody can be asked", hint="replay a recording with --replay")
    plan = EvalPlan(
        sources=tuple(dict.fromkeys(tasks or [phase.source for phase in resolved.phases])),
        limit=limit,
        adapters=adapter_folders(EvalOptions(), resolved),
        cloud="replay" if replay else "coordinator",
        record=None if replay else record or state_folder(resolved) / RECORDING,
        replay=replay,
    )
    if replay is None:
        with StateFolder(state_folder(resolved)):  # refused before anything is said or loaded where an agent uses it
            pass
    with open_console(SystemClock(), quiet=json) as console:
        console.say(f"items of {', '.join(plan.sources)} that ask for help go to the cloud LLM twice: with and without a hint")
        report = asyncio.run(measure_hints(resolved, console.sink, plan, chars, margin))
    if json:
        print_json(report.to_json())
    else:
        print("\n".join(report_lines(report)), flush=True)
    if apply:
        print_line(f"nothing was written; the setting is: --set {report.setting}, in a file: {_as_yaml(report.setting)}")
    return 0


@app.command("show")
def hints_show(state: State = None, config: Config = None, sets: Sets = None, json: Json = False) -> int:
    """The last verdict."""
    from edge.app import measured_hints

    kept = measured_hints(Settings(config, sets, state=state).config())
    if json:
        print_json(kept or {})
    elif kept is None:
        print_line("hints were not measured here, so they stay off; see edge-agent hints measure")
    else:
        print(f"hints of {kept['hint_chars']} characters: {kept['verdict']} ({one_line(kept['why'])}); {kept['setting']}")
    return 0


RECORDING = "hints.jsonl"
"""Where a trial keeps its cloud answers in the state folder, so that an interrupted one goes on without paying twice."""


def report_lines(report: HintReport) -> Iterator[str]:
    """The report for a person."""
    asked = f"{report.asked} asked for help, {report.tried} of them with steps to tell"
    yield f"{counted(report.items, 'item')}, {asked}, {report.pairs} answered both ways"
    if report.failures:
        yield f"{report.failures} pairs are incomplete: {one_line(report.first_failure)}"
    yield f"{'':<14} {'right':>7} {'95 %':>16} {'input':>9} {'output':>8} {'spend':>10} {'cost per right':>15}"
    for name, arm in (("without hints", report.without), ("with hints", report.hinted)):
        interval = f"[{100 * arm.interval[0]:.1f}, {100 * arm.interval[1]:.1f}]" if report.pairs else "-"
        right = percent(arm.accuracy if report.pairs else None)
        cost = "none right" if arm.cost_per_right is None else f"{arm.cost_per_right:.1f} {_UNITS[report.cost_unit]}"
        yield (
            f"{name:<14} {right:>7} {interval:>16} {arm.input_tokens:>9} {arm.output_tokens:>8}"
            f" {dollars(arm.spend_uusd):>10} {cost:>15}"
        )
    low, value, high = report.difference
    ends = f"[{100 * low:+.1f}, {100 * high:+.1f}]"
    if report.pairs:
        yield f"accuracy, with minus without: {100 * value:+.1f} points {ends}, equal within {100 * report.margin:g}"
    if report.ratio is not None:
        yield f"cost per right answer, with over without: {report.ratio[1]:.3f} [{report.ratio[0]:.3f}, {report.ratio[2]:.3f}]"
    yield f"verdict: {report.verdict}: {report.why}"


_UNITS: Mapping[str, str] = {"uusd": "micro-USD", "tokens": "tokens"}


def _as_yaml(setting: str) -> Any:
    key, _, value = setting.partition("=")
    section, _, name = key.partition(".")
    return f"{section}: {{{name}: {value}}}"

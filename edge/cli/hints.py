"""`edge-agent hints measure`: do hints to the cloud LLM pay? The verdict is made in edge.evaluation.hint_trial."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option, Typer

from edge.cli.evaluate import SERVING, adapter_folders, sources_of
from edge.cli.options import Json
from edge.cli.output import one_line, print_json, print_line, print_result
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, money, percent
from edge.core.limits import MOST_ITEMS

if TYPE_CHECKING:
    from edge.evaluation.hint_trial import HintReport

app = Typer(help="Whether hints to the cloud LLM pay.", no_args_is_help=True, rich_markup_mode=None)


@app.command("measure")
@takes("question answer ask model coordinator state seed unsafe_programs")
def hints_measure(
    tasks: Annotated[
        list[str] | None, Option("--tasks", help="Task source. Repeatable (default: the configuration's).", metavar="SOURCE")
    ] = None,
    limit: Annotated[int, Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source.", metavar="N")] = 400,
    chars: Annotated[int, Option("--chars", min=1, max=16_000, help="Characters of a hint.", metavar="N")] = 400,
    margin: Annotated[
        float, Option("--margin", min=0.0, max=1.0, help="Difference that still counts as equal accuracy.", metavar="SHARE")
    ] = 0.03,
    record: Annotated[
        Path | None, Option("--record", help="Keep cloud answers here (default: in the state folder).", metavar="FILE")
    ] = None,
    replay: Annotated[Path | None, Option("--replay", help="Take cloud answers from here.", metavar="FILE")] = None,
    apply: Annotated[bool, Option("--apply", help="Print how to set what was measured; writes nothing.")] = False,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Ask the cloud LLM with and without hints for the same items, and report whether they pay. They stay off unless they do."""
    from edge.app.measuring import measure_hints
    from edge.app.settings import state_folder, switched_off
    from edge.console import open_console
    from edge.evaluation.plan import EvalPlan
    from edge.state.folder import StateFolder

    config = settings.config()
    if replay is None and (off := switched_off(config)):
        raise UsageError(f"{off}, so nobody can be asked", hint="replay a recording with --replay")
    sources = sources_of(tasks, config)
    plan = EvalPlan(
        sources=sources,
        columns=settings.columns_of(sources, config),
        limit=limit,
        adapters=adapter_folders(SERVING, config),
        cloud="replay" if replay else "coordinator",
        record=None if replay else record or state_folder(config) / RECORDING,
        replay=replay,
    )
    if replay is None:
        with StateFolder(state_folder(config)):  # StateError before anything is loaded where an agent uses it
            pass
    with open_console(SystemClock(), quiet=json) as console:
        console.say(f"items of {', '.join(plan.sources)} that ask for help go to the cloud LLM twice: with and without a hint")
        report = asyncio.run(measure_hints(config, console.sink, plan, chars, margin))
    print_result(report.to_json(), report_lines(report), as_json=json)
    if apply:
        key, _, value = report.setting.partition("=")
        section, _, name = key.partition(".")
        in_yaml = f"{section}: {{{name}: {value}}}"
        print_line(f"nothing was written; the setting is: --set {report.setting}, in a file: {in_yaml}")


@app.command("show")
@takes("state")
def hints_show(settings: Settings, json: Json = False) -> None:
    """The last verdict."""
    from edge.app.measuring import measured_hints

    last = measured_hints(settings.config())
    if json:
        print_json(last or {})
    elif last is None:
        print_line("hints were not measured here, so they stay off; see edge-agent hints measure")
    else:
        print(f"hints of {last['hint_chars']} characters: {last['verdict']} ({one_line(last['why'])}); {last['setting']}")


RECORDING = "hints.jsonl"
"""Where a trial keeps its cloud answers in the state folder, so that an interrupted one goes on without paying twice."""


def report_lines(report: HintReport) -> Iterator[str]:
    """The report for a person."""
    units = {"uusd": "micro-USD", "tokens": "tokens"}
    asked = f"{report.asked} asked for help, {report.tried} of them with steps to show"
    yield f"{counted(report.items, 'item')}, {asked}, {report.pairs} answered both ways"
    if report.failures:
        yield f"{report.failures} pairs are incomplete: {one_line(report.first_failure)}"
    yield f"{'':<14} {'right':>7} {'95 %':>16} {'input':>9} {'output':>8} {'spend':>10} {'cost per right':>15}"
    for name, arm in (("without hints", report.without), ("with hints", report.hinted)):
        interval = f"[{100 * arm.interval[0]:.1f}, {100 * arm.interval[1]:.1f}]" if report.pairs else "-"
        right = percent(arm.accuracy if report.pairs else None)
        cost = "none right" if arm.cost_per_right is None else f"{arm.cost_per_right:.1f} {units[report.cost_unit]}"
        yield (
            f"{name:<14} {right:>7} {interval:>16} {arm.input_tokens:>9} {arm.output_tokens:>8}"
            f" {money(arm.spend_uusd):>10} {cost:>15}"
        )
    low, value, high = report.difference
    ends = f"[{100 * low:+.1f}, {100 * high:+.1f}]"
    if report.pairs:
        yield f"accuracy, with minus without: {100 * value:+.1f} points {ends}, equal within {100 * report.margin:g}"
    if report.ratio is not None:
        yield f"cost per right answer, with over without: {report.ratio[1]:.3f} [{report.ratio[0]:.3f}, {report.ratio[2]:.3f}]"
    yield f"verdict: {report.verdict}: {report.why}"

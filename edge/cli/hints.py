"""`edge-agent hints measure`: do hints to the cloud LLM pay? Knows wording; the verdict is edge.evaluation.hint_trial's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge import app
from edge.cli.evaluate import EvalOptions, adapter_folders
from edge.cli.saying import one_line, print_json, print_line
from edge.console import dollars, open_console
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, percent
from edge.evaluation.plan import EvalPlan
from edge.state.folder import StateFolder

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.evaluation.hint_trial import HintReport

RECORDING = "hints.jsonl"
"""Where a trial keeps its cloud answers in the state folder, so that an interrupted one goes on without paying twice."""


@dataclass(frozen=True, slots=True)
class HintOptions:
    """What is measured: `limit` test items of each source (() of the phases), hints of `chars` characters, `margin` of equal accuracy."""

    sources: Sequence[str]
    limit: int
    chars: int
    margin: float
    record: Path | None = None
    replay: Path | None = None
    apply: bool = False
    json: bool = False


def measure(settings: Settings, options: HintOptions) -> int:
    """Ask both ways, tell the verdict, and keep it in the state folder. Nothing is switched on."""
    config = settings.config()
    if options.replay is None and (off := app.switched_off(config)):
        raise UsageError(f"{off}, so nobody can be asked", hint="replay a recording with --replay")
    plan = EvalPlan(
        sources=tuple(dict.fromkeys(options.sources or [phase.source for phase in config.phases])),
        limit=options.limit,
        adapters=adapter_folders(EvalOptions(), config),
        cloud="replay" if options.replay else "coordinator",
        record=None if options.replay else options.record or app.state_folder(config) / RECORDING,
        replay=options.replay,
    )
    if options.replay is None:
        with StateFolder(app.state_folder(config)):  # refused before anything is said or loaded where an agent uses it
            pass
    with open_console(SystemClock(), quiet=options.json) as console:
        console.say(f"items of {', '.join(plan.sources)} that ask for help go to the cloud LLM twice: with and without a hint")
        report = asyncio.run(app.measure_hints(config, console.sink, plan, options.chars, options.margin))
    if options.json:
        print_json(report.to_json())
    else:
        print("\n".join(report_lines(report)), flush=True)
    if options.apply:
        print_line(f"nothing was written; the setting is: --set {report.setting}, in a file: {_as_yaml(report.setting)}")
    return 0


def show(settings: Settings, *, as_json: bool) -> int:
    """The last verdict that the state folder keeps."""
    kept = app.measured_hints(settings.config())
    if as_json:
        print_json(kept or {})
    elif kept is None:
        print_line("hints were not measured here, so they stay off; see edge-agent hints measure")
    else:
        print(f"hints of {kept['hint_chars']} characters: {kept['verdict']} ({one_line(kept['why'])}); {kept['setting']}")
    return 0


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

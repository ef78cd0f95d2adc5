"""`edge-agent eval`: accuracy on the test split, never without its coverage and rate."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge import bootstrap
from edge.cli.saying import print_json
from edge.console import dollars, duration, open_console, percent
from edge.core.clock import SystemClock
from edge.core.errors import UsageError

if TYPE_CHECKING:
    from edge.agent.evaluate import EvalReport, Scores
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What is evaluated. `adapter` is latest, none or a folder; `latest` is the one of `run_folder`, else of the state folder."""

    limit: int
    adapter: str
    run_folder: Path | None
    with_cloud: bool
    json: bool


def evaluate(settings: Settings, options: EvalOptions) -> int:
    """Evaluate and print the report."""
    if options.run_folder is not None:
        settings = _of_run(settings, options.run_folder)
    config = settings.config()
    adapter = adapter_folder(options, config)
    with open_console(SystemClock(), quiet=options.json) as console:
        console.say(f"evaluating {config.phases[0].source} with {adapter or 'the bare model'}")
        report = asyncio.run(
            bootstrap.evaluate(config, console.sink, items=options.limit, adapter_folder=adapter, with_cloud=options.with_cloud)
        )
    if options.json:
        print_json({**report.to_json(), "adapter": str(adapter) if adapter else None})
    else:
        print("\n".join(report_lines(report)))
    return 0


def adapter_folder(options: EvalOptions, config: AgentConfig) -> Path | None:
    """The adapter that is meant, None for the bare model. Raises UsageError when there is none."""
    if options.adapter == "none":
        return None
    if options.adapter != "latest":
        return _existing(Path(options.adapter), "no such adapter folder")
    if options.run_folder is not None:
        return _existing(options.run_folder / "adapter", "this run has left no adapter")
    return bootstrap.latest_adapter(config)


def _existing(folder: Path, complaint: str) -> Path:
    if not folder.is_dir():
        raise UsageError(f"{folder}: {complaint}", hint="give a run folder, an adapter folder, or --adapter none")
    return folder


def _of_run(settings: Settings, run_folder: Path) -> Settings:
    """The run's own configuration and state where the command line names no other."""
    file = run_folder / "config.yaml"
    if not run_folder.is_dir() or not file.is_file():
        raise UsageError(f"{run_folder} is not a run folder", hint="give the folder that edge-agent learn left")
    return replace(settings, file=settings.file or file)


def report_lines(report: EvalReport) -> list[str]:
    """The report for a person."""
    scores = report.scores
    lines = [
        f"{scores.items} items of {report.source}, {report.model}, adapter {report.adapter_version}, {duration(report.seconds)}",
        f"kept accuracy    {percent(scores.kept_accuracy):>7}{_interval(report.kept_interval)} of the {percent(scores.coverage)} kept",
        f"forced local     {percent(scores.forced_local_accuracy):>7}{_interval(report.forced_local_interval)} of all, asking forbidden",
        f"joint accuracy   {percent(scores.joint_accuracy):>7}{_interval(report.joint_interval)} @ {percent(scores.assist_rate)} cloud",
        f"well formatted   {percent(scores.format_ok):>7}",
        f"cloud            {report.cloud_calls} calls, {report.cloud_tokens} tokens, {dollars(report.spend_uusd)}"
        + (f", {scores.cloud_failures} failed or refused" if scores.cloud_failures else ""),
    ]
    return [*lines, *_level_lines(report)]


def _level_lines(report: EvalReport) -> Iterator[str]:
    if len(report.by_level) < 2:
        return
    yield "level  items   asks   kept right  forced local    joint"
    for entry in report.by_level:
        yield f"{entry.level:>5}  {_level_scores(entry.scores)}"


def _level_scores(scores: Scores) -> str:
    shares = (scores.assist_rate, scores.kept_accuracy, scores.forced_local_accuracy, scores.joint_accuracy)
    asks, kept, forced, joint = map(percent, shares)
    return f"{scores.items:>5}  {asks:>7}  {kept:>8}  {forced:>12}  {joint:>8}"


def _interval(bounds: tuple[float, float] | None) -> str:
    return "" if bounds is None else f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"

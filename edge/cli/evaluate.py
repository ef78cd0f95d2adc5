"""`edge-agent eval`: accuracy on the test split, never without its coverage and rate."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from edge import app
from edge.cli.saying import print_json, print_line, visible
from edge.cli.shell import INTERRUPTED
from edge.console import open_console
from edge.core.clock import SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.files import write_atomically
from edge.core.formatting import shown
from edge.evaluation.plan import EvalPlan
from edge.rpc.cassette import read_cassette

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.config.schema import AgentConfig
    from edge.evaluation.plan import EvalOutcome

SERVING, LATEST, NONE = "serving", "latest", "none"
_DEFAULT_LIMIT = 200
_LONGEST_NAME = 200
"""Bytes; the usual limit is 255, and unfinished files have longer names than what they become."""


@dataclass(frozen=True, slots=True)
class EvalOptions:
    """What is evaluated.

    `adapter` is serving, latest, none or a folder. With a `run_folder` serving and latest are the adapter it left;
    else serving is what the state folder's agent answers with, latest its newest version, also when it was left.

    `sources` (): those of the configuration's phases. `limit` and `per_level` exclude each other.
    """

    sources: Sequence[str] = ()
    limit: int | None = None
    per_level: int | None = None
    adapter: str = SERVING
    run_folder: Path | None = None
    temperature: float = 0.0
    max_steps: int | None = None
    max_tokens: int | None = None
    no_cloud: bool = False
    cloud_all: bool = False
    record: Path | None = None
    replay: Path | None = None
    plot: Path | None = None
    json_out: Path | None = None
    json: bool = False


def evaluate(settings: Settings, options: EvalOptions) -> int:
    """Evaluate and print the report; 0, or 130 when interrupted."""
    check_options(options)
    if options.run_folder is not None:
        settings = _of_run(settings, options.run_folder)
    config = settings.config()
    plan = with_inputs(plan_of(options, config), config)
    try:
        with open_console(SystemClock(), quiet=options.json) as console:
            console.say(f"evaluating {', '.join(plan.sources)} with {adapter_told(plan.adapters, options, config)}")
            outcome = asyncio.run(app.evaluate(config, console.sink, plan))
    except KeyboardInterrupt:
        if plan.journal is not None and plan.journal.exists():
            print_line(f"stopped; what was judged is in {plan.journal}, and the same command goes on from there")
        return INTERRUPTED
    _deliver(outcome, plan, options)
    if plan.cloud_all and plan.cloud == "coordinator":
        _check_answered(outcome)
    if options.plot is not None:
        _plot(outcome, options.plot)
    return 0


def _check_answered(outcome: EvalOutcome) -> None:
    """Raises EdgeError unless the cloud answered every item."""
    silent = [one.judged.failure for one in outcome.judged if one.judged.failure]
    if silent:
        text = f"the cloud did not answer {len(silent)} of {len(outcome.judged)} items: {silent[0]}"
        raise EdgeError(text, hint="repeat the command when it can be asked")


def check_options(options: EvalOptions) -> None:
    """Raises UsageError for options that contradict one another, and for files that could not be written in the end."""
    if options.limit is not None and options.per_level is not None:
        raise UsageError("--limit and --per-level exclude each other", hint="give one of them")
    if options.record and options.replay:
        raise UsageError("--record and --replay exclude each other", hint="give one of them")
    if options.no_cloud and (options.cloud_all or options.record or options.replay):
        raise UsageError("--no-cloud leaves nobody to ask", hint="leave it out, or leave out --cloud-all, --record and --replay")
    if options.plot and not (options.cloud_all or options.replay):
        raise UsageError("--plot needs the cloud's answer to every item", hint="add --cloud-all, or replay a complete recording")
    for name, file in (("--plot", options.plot), ("--json-out", options.json_out), ("--record", options.record)):
        if file is not None and not _may_be_written(file):
            raise UsageError(f"{name} {shown(str(file))}: no file can be written there", hint="name a file in an existing folder")
    if options.plot and options.plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--plot {options.plot}: not a picture's name", hint="let it end in .png, .pdf or .svg")


def _may_be_written(file: Path) -> bool:
    return not _is_folder(file) and _is_folder(file.absolute().parent) and len(os.fsencode(file.name)) <= _LONGEST_NAME


def _is_folder(path: Path) -> bool:
    """False also for a name that no file system takes, and for what may not be looked at."""
    try:
        return path.is_dir()
    except OSError:
        return False


def plan_of(options: EvalOptions, config: AgentConfig) -> EvalPlan:
    """What the options mean under a configuration. Raises UsageError."""
    off = app.switched_off(config)
    if off and (options.cloud_all or options.record) and not options.replay:
        raise UsageError(f"{off}, so nobody can be asked", hint="leave out --cloud-all and --record, or --replay a recording")
    json_out = options.json_out
    return EvalPlan(
        sources=tuple(dict.fromkeys(options.sources or [phase.source for phase in config.phases])),
        limit=options.limit or _DEFAULT_LIMIT,
        per_level=options.per_level,
        adapters=adapter_folders(options, config),
        temperature=options.temperature,
        max_tokens=options.max_tokens,
        max_steps=options.max_steps,
        cloud="replay" if options.replay else "none" if options.no_cloud or off else "coordinator",
        cloud_all=options.cloud_all or bool(options.plot),
        record=options.record,
        replay=options.replay,
        journal=None if json_out is None else json_out.with_name(json_out.name + ".partial.jsonl"),
    )


def with_inputs(plan: EvalPlan, config: AgentConfig) -> EvalPlan:
    """The plan with its items, when model file and recording are there too, so that nothing is begun that cannot be done.

    Raises UsageError, TaskFileError, ModelFileError, ConfigError.
    """
    app.model_file(config.model.path)
    if plan.replay is not None:
        read_cassette(plan.replay)
    return replace(plan, candidates=tuple(app.eval_candidates(plan)))


def adapter_folders(options: EvalOptions, config: AgentConfig) -> tuple[Path, ...]:
    """The adapters that are meant, the first usable one counts; () for the bare model. Raises UsageError for a folder that is none."""
    if options.adapter == NONE:
        return ()
    if options.adapter not in (SERVING, LATEST):
        return (_existing(Path(options.adapter), "no such adapter folder"),)
    if options.run_folder is not None:
        return (_existing(options.run_folder / "adapter", "this run has left no adapter"),)
    return app.serving_adapters(config) if options.adapter == SERVING else app.latest_adapters(config)


def adapter_told(adapters: Sequence[Path], options: EvalOptions, config: AgentConfig) -> str:
    """Which adapter is measured and why, and which one serves where that is another."""
    if not adapters:
        return "the bare model" + (", which serves now" if options.adapter == SERVING else "")
    version = app.adapter_version(adapters[0])
    name = f"the adapter {visible(str(adapters[0]))}" if version is None else f"adapter {version}"
    if options.run_folder is not None or options.adapter not in (SERVING, LATEST):
        return name if version is None else f"{name} ({visible(str(adapters[0]))})"
    if options.adapter == SERVING:
        return f"{name}, which serves now"
    serving = app.serving_adapters(config)
    if serving[:1] == tuple(adapters[:1]):
        return f"{name}, the newest"
    return f"{name}, the newest; {f'adapter {app.adapter_version(serving[0])}' if serving else 'the bare model'} serves"


def _existing(folder: Path, complaint: str) -> Path:
    if not _is_folder(folder):
        raise UsageError(f"{shown(str(folder))}: {complaint}", hint="give a run folder, an adapter folder, or --adapter none")
    return folder


def _of_run(settings: Settings, run_folder: Path) -> Settings:
    """The run's own configuration and state where the command line names no other."""
    file = run_folder / "config.yaml"
    if not _is_folder(run_folder) or not file.is_file():
        raise UsageError(f"{shown(str(run_folder))} is not a run folder", hint="give the folder that edge-agent learn left")
    return replace(settings, file=settings.file or file)


def _deliver(outcome: EvalOutcome, plan: EvalPlan, options: EvalOptions) -> None:
    """Print the report and write the files; the journal goes when the report is safe."""
    from edge.cli.eval_table import report_lines

    body = outcome.report.to_json()
    if options.json_out is not None:
        _write_whole(options.json_out, json.dumps(body, indent=2, allow_nan=False) + "\n")
        if plan.journal is not None:
            plan.journal.unlink(missing_ok=True)
    if options.json:
        print_json(body)
    else:
        print("\n".join(report_lines(outcome.report)), flush=True)


def _plot(outcome: EvalOutcome, path: Path) -> None:
    from edge.evaluation.cost_quality import cost_quality, write_cost_quality

    quality = cost_quality(outcome.report, outcome.judged)
    _write_whole(path.with_suffix(".json"), json.dumps(quality.to_json(), indent=2, allow_nan=False) + "\n")
    print_line(f"cost-quality plot: {write_cost_quality(path, quality)}, its numbers: {path.with_suffix('.json')}")


def _write_whole(path: Path, text: str) -> None:
    try:
        write_atomically(path, text)
    except OSError as error:
        raise EdgeError(f"{path} cannot be written: {error.strerror}") from error

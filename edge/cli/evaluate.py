"""`edge-agent eval`: accuracy on the test split, never without its coverage and rate."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli import completion
from edge.cli.exits import INTERRUPTED
from edge.cli.options import Config, Coordinator, Json, Model, Seed, Sets, State, UnsafePrograms
from edge.cli.output import print_json, print_line, visible
from edge.cli.settings import Settings
from edge.core.clock import SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.files import write_atomically
from edge.core.formatting import counted, dollars, duration, percent, shown
from edge.core.limits import MOST_ITEMS, MOST_STEPS, MOST_TOKENS

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.evaluation.plan import EvalOutcome, EvalPlan
    from edge.evaluation.scores import Accuracies, EvalReport, Interval, MathScores, Scores


def command(
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            help="Task source, as in learning. Repeatable (default: the configuration's).",
            metavar="SOURCE",
            autocompletion=completion.sources,
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source (200).", metavar="N")
    ] = None,
    per_level: Annotated[
        int | None,
        typer.Option(
            "--per-level", min=1, max=MOST_ITEMS, help="N items of each level of each family; totals keep the mix.", metavar="N"
        ),
    ] = None,
    adapter: Annotated[
        str,
        typer.Option(
            "--adapter",
            help="What serves now, the newest version, none, or an adapter folder.",
            metavar="serving|latest|none|PATH",
        ),
    ] = "serving",
    run_folder: Annotated[
        Path | None, typer.Option("--run", help="Run folder whose last adapter is measured.", metavar="DIR")
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.", metavar="T")] = 0.0,
    max_steps: Annotated[
        int | None,
        typer.Option("--max-steps", min=1, max=MOST_STEPS, help="Reasoning steps allowed (default: each item's).", metavar="N"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option("--max-tokens", min=1, max=MOST_TOKENS, help="Longest response (default: as in learning).", metavar="N"),
    ] = None,
    no_cloud: Annotated[
        bool, typer.Option("--no-cloud", "--local-only", help="Ask no cloud; how many are right in the end is then not known.")
    ] = False,
    cloud_all: Annotated[
        bool, typer.Option("--cloud-all", help="Ask the cloud for every item, once, to know its accuracy.")
    ] = False,
    record: Annotated[
        Path | None, typer.Option("--record", help="Keep every cloud answer here (goes on in an existing file).", metavar="FILE")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option("--replay", help="Take cloud answers from here: no coordinator, no key.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", help="Draw cost against quality; its numbers go beside it as .json.", metavar="FILE.png"),
    ] = None,
    json_out: Annotated[
        Path | None, typer.Option("--json-out", help="Write the report here too; an interrupted run goes on.", metavar="FILE")
    ] = None,
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """Measure accuracy, coverage and assist rate on the test split, by family and level."""
    settings = Settings(config, sets, model, coordinator, state, seed=seed, unsafe_programs=unsafe_programs)
    options = EvalOptions(
        sources=tuple(tasks or ()),
        limit=limit,
        per_level=per_level,
        adapter=adapter,
        run_folder=run_folder,
        temperature=temperature,
        max_steps=max_steps,
        max_tokens=max_tokens,
        no_cloud=no_cloud,
        cloud_all=cloud_all,
        record=record,
        replay=replay,
        plot=plot,
        json_out=json_out,
        json=json,
    )
    return evaluate(settings, options)


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
    from edge import app
    from edge.console import open_console

    check_options(options)
    if options.run_folder is not None:
        settings = _of_run(settings, options.run_folder)
    config = settings.config()
    plan = with_inputs(plan_of(options, config), config)
    try:
        with open_console(SystemClock(), quiet=options.json) as console:
            console.say(f"evaluating {', '.join(plan.sources)} with {adapter_described(plan.adapters, options, config)}")
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
    from edge import app
    from edge.evaluation.plan import EvalPlan

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
    from edge import app
    from edge.rpc.cassette import read_cassette

    app.model_file(config.model.path)
    if plan.replay is not None:
        read_cassette(plan.replay)
    return replace(plan, candidates=tuple(app.eval_candidates(plan)))


def adapter_folders(options: EvalOptions, config: AgentConfig) -> tuple[Path, ...]:
    """The adapters that are meant, the first usable one counts; () for the bare model. Raises UsageError for a folder that is none."""
    from edge import app

    if options.adapter == NONE:
        return ()
    if options.adapter not in (SERVING, LATEST):
        return (_existing(Path(options.adapter), "no such adapter folder"),)
    if options.run_folder is not None:
        return (_existing(options.run_folder / "adapter", "this run has left no adapter"),)
    return app.serving_adapters(config) if options.adapter == SERVING else app.latest_adapters(config)


def adapter_described(adapters: Sequence[Path], options: EvalOptions, config: AgentConfig) -> str:
    """Which adapter is measured and why, and which one serves where that is another."""
    from edge import app

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


def report_lines(report: EvalReport) -> list[str]:
    """The report, line by line."""
    return [*_heading(report), *_totals(report.scores), *_cloud(report), *_math(report.scores), *_table(report)]


def _heading(report: EvalReport) -> Iterator[str]:
    measured, scores = report.measured, report.scores
    version = "of an unknown version" if measured.adapter_version is None else measured.adapter_version
    adapter = f"adapter {version}" if measured.adapter else "the bare model"
    yield (
        f"{counted(scores.items, 'item')} of {visible(', '.join(measured.sources))}, {measured.model}, {adapter}, "
        f"T = {measured.temperature:g}, {duration(report.seconds)}"
    )
    if measured.per_level is not None:
        yield f"up to {counted(measured.per_level, 'item')} a level; totals are weighted by each family's mix of levels, families equally"
    if measured.policy != "self":
        yield f"what is handed over is decided by {measured.policy}, whatever the model asks for"
    if scores.too_long:
        yield f"{counted(scores.too_long, 'question does', 'questions do')} not fit into the context, which counts as wrong"


def _totals(scores: Scores) -> Iterator[str]:
    spans = scores.intervals
    rate = f"@ {percent(scores.assist_rate)}{_interval(spans.assist_rate)} cloud"
    yield f"local accuracy   {_share(scores.kept_accuracy, spans.kept_accuracy)}, answered locally {percent(scores.coverage)}"
    yield f"forced local     {_share(scores.forced_local_accuracy, spans.forced_local_accuracy)} @ 0 % cloud, asking forbidden"
    yield f"right in the end {_share(scores.joint_accuracy, spans.joint_accuracy)} {rate}"
    if scores.oracle_bound is not None:
        yield (
            f"oracle router    {_share(scores.oracle_bound, None)} @ {percent(scores.assist_rate)} cloud; the cloud is right on "
            f"{percent(scores.cloud_accuracy)} of the {scores.cloud_answers} items where its answer is known"
        )
    yield f"well formatted   {_share(scores.format_ok, spans.format_ok)} mean response {scores.mean_response_tokens:.1f} tokens"


def _cloud(report: EvalReport) -> Iterator[str]:
    scores, extra = report.scores, report.extra
    if report.measured.cloud == "none":
        yield "cloud            nobody was asked"
        return
    replayed = " (replayed: nothing was asked or paid now)" if report.measured.cloud == "replay" else ""
    yield f"cloud            {_calls(scores.cloud_calls, scores.cloud_cached)}, {_price(scores.cloud_tokens, scores.spend_uusd)}{replayed}"
    if report.measured.cloud_all:
        yield f"  and to know all answers: {_calls(extra.calls, extra.cached)}, {_price(extra.tokens, extra.spend_uusd)}"
    if report.missing_recordings:
        yield f"  {counted(report.missing_recordings, 'answer is', 'answers are')} not in the recording"
    if scores.cloud_failures:
        yield f"  {counted(scores.cloud_failures, 'item')} asked and got no answer, which counts as wrong: {report.first_failure}"


def _calls(calls: int, cached: int) -> str:
    return counted(calls, "call") + (f" ({cached} from the cache)" if cached else "")


def _price(tokens: int, spend_uusd: int) -> str:
    return f"{counted(tokens, 'token')}, {dollars(spend_uusd)}"


def _math(scores: Scores) -> Iterator[str]:
    if scores.math is None or scores.math.equivalent.forced_local is None:
        return
    yield f"mathematics      {counted(scores.math.items, 'item')}, read as the exact string | by equivalence"
    exact, equivalent = scores.math.exact, scores.math.equivalent
    for name, label in (("kept", "local"), ("forced_local", "forced local"), ("joint", "right in the end")):
        yield f"  {label:<16} {_reading(exact, name)} | {_reading(equivalent, name)}{_condition(scores.math, name)}"


def _reading(accuracies: Accuracies, name: str) -> str:
    return f"{percent(getattr(accuracies, name)):>8}"


def _condition(scores: MathScores, name: str) -> str:
    rates = {"kept": f"of the {percent(scores.coverage)} answered locally", "forced_local": "@ 0 % cloud"}
    return "  " + rates.get(name, f"@ {percent(scores.assist_rate)} cloud")


def _table(report: EvalReport) -> Iterator[str]:
    lines = [
        (visible(family.family), family.scores, [(level.level, level.scores) for level in family.levels])
        for family in report.families
    ]
    if len(lines) == 1 and len(lines[0][2]) < 2:
        return
    heads = f"{'local accuracy [95 %] share local':<34}{'forced local [95 %]':<24}{'right in the end [95 %] @ cloud':<33}"
    yield f"{'':<12} {'items':>6}  {heads}{'format':>8} {'tokens':>7}"
    for family, scores, levels in lines:
        yield _row(family, scores)
        if len(levels) > 1:
            yield from (_row(f"  level {level}", of_level) for level, of_level in levels)


def _row(name: str, scores: Scores) -> str:
    spans = scores.intervals
    kept = f"{_share(scores.kept_accuracy, spans.kept_accuracy)} of {percent(scores.coverage)}"
    joint = f"{_share(scores.joint_accuracy, spans.joint_accuracy)} @ {percent(scores.assist_rate)}"
    forced = _share(scores.forced_local_accuracy, spans.forced_local_accuracy)
    shares = f"{kept:<34}{forced:<24}{joint:<33}"
    return f"{name:<12} {scores.items:>6}  {shares}{percent(scores.format_ok):>8} {scores.mean_response_tokens:>7.1f}"


def _share(value: float | None, interval: Interval | None) -> str:
    return f"{percent(value):>7}{_interval(interval)}"


def _interval(bounds: Interval | None) -> str:
    return "" if bounds is None else f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"

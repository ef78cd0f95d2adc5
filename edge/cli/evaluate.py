"""`edge-agent eval`: accuracy on the test split, never without its coverage and rate."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from edge.cli import completion
from edge.cli.options import Json, Sources
from edge.cli.output import print_line, print_result, visible
from edge.cli.settings import Settings, takes, task_file_lines
from edge.core.clock import SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.files import write_atomically
from edge.core.formatting import counted, duration, money, percent, shown
from edge.core.interrupts import INTERRUPTED
from edge.core.limits import MOST_ITEMS, MOST_STEPS, MOST_TOKENS

if TYPE_CHECKING:
    from edge.config.schema import AgentConfig
    from edge.evaluation.scores import EvalReport, Interval, Scores

SERVING, LATEST, NONE = "serving", "latest", "none"
_DEFAULT_LIMIT = 200
_LONGEST_NAME = 200
"""Bytes; the usual limit is 255, and unfinished files have longer names than what they become."""


@takes("question answer ask model coordinator state seed unsafe_programs")
def command(
    files: Sources = None,
    tasks: Annotated[
        list[str] | None,
        Option(
            "--tasks",
            help="Task source, as in learning. Repeatable (default: the configuration's).",
            metavar="SOURCE",
            autocompletion=completion.sources,
        ),
    ] = None,
    limit: Annotated[
        int | None, Option("--limit", min=1, max=MOST_ITEMS, help="Test items of each source (200).", metavar="N")
    ] = None,
    per_level: Annotated[
        int | None,
        Option(
            "--per-level", min=1, max=MOST_ITEMS, help="N items of each level of each family; totals keep the mix.", metavar="N"
        ),
    ] = None,
    adapter: Annotated[
        str,
        Option(
            "--adapter",
            help="The active version, the newest one, none, or an adapter folder.",
            metavar="serving|latest|none|PATH",
        ),
    ] = "serving",
    run_folder: Annotated[Path | None, Option("--run", help="Run folder whose last adapter is measured.", metavar="DIR")] = None,
    temperature: Annotated[float, Option("--temperature", min=0.0, help="0 is greedy.", metavar="T")] = 0.0,
    max_steps: Annotated[
        int | None,
        Option("--max-steps", min=1, max=MOST_STEPS, help="Reasoning steps allowed (default: each item's).", metavar="N"),
    ] = None,
    max_tokens: Annotated[
        int | None,
        Option("--max-tokens", min=1, max=MOST_TOKENS, help="Longest response (default: as in learning).", metavar="N"),
    ] = None,
    no_cloud: Annotated[
        bool, Option("--no-cloud", "--local-only", help="Ask no cloud; how many are right in the end is then not known.")
    ] = False,
    cloud_all: Annotated[bool, Option("--cloud-all", help="Ask the cloud for every item, once, to know its accuracy.")] = False,
    record: Annotated[
        Path | None, Option("--record", help="Keep every cloud answer here (goes on in an existing file).", metavar="FILE")
    ] = None,
    replay: Annotated[
        Path | None, Option("--replay", help="Take cloud answers from here: no coordinator, no key.", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None,
        Option("--plot", help="Draw cost against quality; its numbers are written next to it as .json.", metavar="FILE.png"),
    ] = None,
    json_out: Annotated[
        Path | None, Option("--json-out", help="Write the report here too; an interrupted run goes on.", metavar="FILE")
    ] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> int:
    """Measure accuracy, coverage and assist rate on the test split, by family and level."""
    from edge.app.measuring import eval_candidates, evaluate
    from edge.app.settings import model_file, switched_off
    from edge.console import open_console
    from edge.evaluation.plan import EvalPlan
    from edge.rpc.cassette import read_cassette

    if limit is not None and per_level is not None:
        raise UsageError("--limit and --per-level exclude each other", hint="give one of them")
    if record and replay:
        raise UsageError("--record and --replay exclude each other", hint="give one of them")
    if no_cloud and (cloud_all or record or replay):
        raise UsageError("--no-cloud leaves nobody to ask", hint="leave it out, or leave out --cloud-all, --record and --replay")
    if plot and not (cloud_all or replay):
        raise UsageError("--plot needs the cloud's answer to every item", hint="add --cloud-all, or replay a complete recording")
    for name, file in (("--plot", plot), ("--json-out", json_out), ("--record", record)):
        if file is not None and not _may_be_written(file):
            raise UsageError(f"{name} {shown(str(file))}: no file can be written there", hint="name a file in an existing folder")
    if plot and plot.suffix.lower() not in (".png", ".pdf", ".svg"):
        raise UsageError(f"--plot {plot}: not a picture's name", hint="let it end in .png, .pdf or .svg")
    if run_folder is not None:  # its own configuration and state where the command line names no other
        file = run_folder / "config.yaml"
        if not _is_folder(run_folder) or not file.is_file():
            raise UsageError(f"{shown(str(run_folder))} is not a run folder", hint="give the folder that edge-agent learn left")
        settings = replace(settings, config_file=settings.config_file or file)
    config = settings.config()
    off = switched_off(config)
    if off and (cloud_all or record) and not replay:
        raise UsageError(f"{off}, so nobody can be asked", hint="leave out --cloud-all and --record, or --replay a recording")
    journal = None if json_out is None else json_out.with_name(json_out.name + ".partial.jsonl")
    sources = sources_of([*(files or ()), *(tasks or ())], config)
    plan = EvalPlan(
        sources=sources,
        columns=settings.columns_of(sources, config),
        limit=limit or _DEFAULT_LIMIT,
        per_level=per_level,
        adapters=adapter_folders(adapter, config, run_folder),
        temperature=temperature,
        max_tokens=max_tokens,
        max_steps=max_steps,
        cloud="replay" if replay else "none" if no_cloud or off else "coordinator",
        cloud_all=cloud_all or bool(plot),
        record=record,
        replay=replay,
        journal=journal,
    )
    model_file(config.model.path)  # nothing is begun that cannot be done
    if replay is not None:
        read_cassette(replay)
    plan = replace(plan, candidates=tuple(eval_candidates(plan)))
    try:
        with open_console(SystemClock(), quiet=json) as console:
            described = adapter_described(plan.adapters, adapter, config, run_folder)
            for line in task_file_lines(plan.columns, config, measured=True):
                console.say(line)
            console.say(f"evaluating {', '.join(plan.sources)} with {described}")
            outcome = asyncio.run(evaluate(config, console.sink, plan))
    except KeyboardInterrupt:
        if journal is not None and journal.exists():
            print_line(f"stopped; what was judged is in {journal}, and the same command goes on from there")
        return INTERRUPTED
    report = outcome.report.to_json()
    if json_out is not None and journal is not None:
        _write_json(json_out, report)
        journal.unlink(missing_ok=True)
    print_result(report, report_lines(outcome.report), as_json=json)
    failures = [one.judged.failure for one in outcome.judged if one.judged.failure]
    if failures and plan.cloud_all and plan.cloud == "coordinator":
        text = f"the cloud did not answer {len(failures)} of {len(outcome.judged)} items: {failures[0]}"
        raise EdgeError(text, hint="repeat the command when it can be asked")
    if plot is not None:
        from edge.evaluation.cost_quality import cost_quality, write_cost_quality

        quality, numbers = cost_quality(outcome.report, outcome.judged), plot.with_suffix(".json")
        _write_json(numbers, quality.to_json())
        print_line(f"cost-quality plot: {write_cost_quality(plot, quality)}, its numbers: {numbers}")
    return 0


def sources_of(tasks: Sequence[str] | None, config: AgentConfig) -> tuple[str, ...]:
    """The task sources that were named, else those of the configuration's phases; each once."""
    return tuple(dict.fromkeys(tasks or [phase.source for phase in config.phases]))


def adapter_folders(adapter: str, config: AgentConfig, run_folder: Path | None = None) -> tuple[Path, ...]:
    """The adapters that serving, latest, none or a folder means; the first usable one counts; () for the bare model.

    With a run folder serving and latest are the adapter that it left; else serving is what the state folder's agent answers with, latest
    its newest version, also when it was left. Raises UsageError for a folder that is none.
    """
    from edge.app.settings import latest_adapters, serving_adapters

    if adapter == NONE:
        return ()
    if adapter in (SERVING, LATEST) and run_folder is None:
        return serving_adapters(config) if adapter == SERVING else latest_adapters(config)
    if adapter in (SERVING, LATEST) and run_folder is not None:
        folder, problem = run_folder / "adapter", "this run has left no adapter"
    else:
        folder, problem = Path(adapter), "no such adapter folder"
    if not _is_folder(folder):
        raise UsageError(f"{shown(str(folder))}: {problem}", hint="give a run folder, an adapter folder, or --adapter none")
    return (folder,)


def adapter_described(adapters: Sequence[Path], adapter: str, config: AgentConfig, run_folder: Path | None = None) -> str:
    """Which adapter is measured and why, and which one is active where that is another."""
    from edge.app.settings import adapter_version, serving_adapters

    if not adapters:
        return "the bare model" + (", which is active" if adapter == SERVING else "")
    version, folder = adapter_version(adapters[0]), visible(str(adapters[0]))
    name = f"the adapter {folder}" if version is None else f"adapter {version}"
    if run_folder is not None or adapter not in (SERVING, LATEST):
        return name if version is None else f"{name} ({folder})"
    if adapter == SERVING:
        return f"{name}, which is active"
    serving = serving_adapters(config)
    if serving[:1] == tuple(adapters[:1]):
        return f"{name}, the newest"
    return f"{name}, the newest; {f'adapter {adapter_version(serving[0])}' if serving else 'the bare model'} is active"


def _may_be_written(file: Path) -> bool:
    return not _is_folder(file) and _is_folder(file.absolute().parent) and len(os.fsencode(file.name)) <= _LONGEST_NAME


def _is_folder(path: Path) -> bool:
    """False also for a name that no file system takes, and for what may not be read."""
    try:
        return path.is_dir()
    except OSError:
        return False


def _write_json(path: Path, value: Any) -> None:
    try:
        write_atomically(path, json.dumps(value, indent=2, allow_nan=False) + "\n")
    except OSError as error:
        raise EdgeError(f"{path} cannot be written: {error.strerror}") from error


def report_lines(report: EvalReport) -> Iterator[str]:
    """The report, line by line: what was measured, the totals, the cloud, and a table by family and level."""
    measured, scores, extra, spans = report.measured, report.scores, report.extra, report.scores.intervals
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

    rate = f"{percent(scores.assist_rate)} cloud"
    with_interval = f"{percent(scores.assist_rate)}{_interval(spans.assist_rate)} cloud"
    yield f"local accuracy   {_share(scores.kept_accuracy, spans.kept_accuracy)}, answered locally {percent(scores.coverage)}"
    yield f"forced local     {_share(scores.forced_local_accuracy, spans.forced_local_accuracy)} @ 0 % cloud, asking forbidden"
    yield f"right in the end {_share(scores.joint_accuracy, spans.joint_accuracy)} @ {with_interval}"
    if scores.oracle_bound is not None:
        yield (
            f"oracle router    {_share(scores.oracle_bound, None)} @ {rate}; the cloud is right on "
            f"{percent(scores.cloud_accuracy)} of the {scores.cloud_answers} items where its answer is known"
        )
    yield f"well formatted   {_share(scores.format_ok, spans.format_ok)} mean response {scores.mean_response_tokens:.1f} tokens"

    yield f"help log-odds    {scores.ranking['words']}"

    if measured.cloud == "none":
        yield "cloud            nobody was asked"
    else:
        replayed = " (replayed: nothing was asked or paid now)" if measured.cloud == "replay" else ""
        bill = _bill(scores.cloud_calls, scores.cloud_cached, scores.cloud_tokens, scores.spend_uusd)
        yield f"cloud            {bill}{replayed}"
        if measured.cloud_all:
            yield f"  and to know all answers: {_bill(extra.calls, extra.cached, extra.tokens, extra.spend_uusd)}"
        if report.missing_recordings:
            yield f"  {counted(report.missing_recordings, 'answer is', 'answers are')} not in the recording"
        if scores.cloud_failures:
            yield f"  {counted(scores.cloud_failures, 'item')} asked and got no answer, which counts as wrong: {report.first_failure}"

    if scores.math is not None and scores.math.equivalent.forced_local is not None:
        yield f"mathematics      {counted(scores.math.items, 'item')}, read as the exact string | by equivalence"
        exact, equivalent = scores.math.exact, scores.math.equivalent
        for label, one, other, share in (
            ("local", exact.kept, equivalent.kept, f"of the {percent(scores.math.coverage)} answered locally"),
            ("forced local", exact.forced_local, equivalent.forced_local, "@ 0 % cloud"),
            ("right in the end", exact.joint, equivalent.joint, f"@ {percent(scores.math.assist_rate)} cloud"),
        ):
            yield f"  {label:<16} {percent(one):>8} | {percent(other):>8}  {share}"

    if len(report.families) > 1 or any(len(family.levels) > 1 for family in report.families):
        heads = f"{'local accuracy [95 %] share local':<34}{'forced local [95 %]':<24}{'right in the end [95 %] @ cloud':<33}"
        yield f"{'':<12} {'items':>6}  {heads}{'format':>8} {'tokens':>7}"
        for family in report.families:
            yield _row(visible(family.family), family.scores)
            if len(family.levels) > 1:
                yield from (_row(f"  level {level.level}", level.scores) for level in family.levels)


def _row(name: str, scores: Scores) -> str:
    spans = scores.intervals
    local = f"{_share(scores.kept_accuracy, spans.kept_accuracy)} of {percent(scores.coverage)}"
    forced = _share(scores.forced_local_accuracy, spans.forced_local_accuracy)
    in_the_end = f"{_share(scores.joint_accuracy, spans.joint_accuracy)} @ {percent(scores.assist_rate)}"
    shares = f"{local:<34}{forced:<24}{in_the_end:<33}"
    return f"{name:<12} {scores.items:>6}  {shares}{percent(scores.format_ok):>8} {scores.mean_response_tokens:>7.1f}"


def _bill(calls: int, cached: int, tokens: int, spend_uusd: int) -> str:
    stored = f" ({cached} from the cache)" if cached else ""
    return f"{counted(calls, 'call')}{stored}, {counted(tokens, 'token')}, {money(spend_uusd)}"


def _share(value: float | None, interval: Interval | None) -> str:
    return f"{percent(value):>7}{_interval(interval)}"


def _interval(bounds: Interval | None) -> str:
    return "" if bounds is None else f" [{100 * bounds[0]:.1f}, {100 * bounds[1]:.1f}]"

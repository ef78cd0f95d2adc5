"""An evaluation's report for a person. Knows wording and columns; knows nothing of how it was measured.

An accuracy never stands alone: kept accuracy comes with its coverage, joint accuracy with the assist rate.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from edge.cli.saying import visible
from edge.console import dollars
from edge.core.formatting import counted, duration, percent

if TYPE_CHECKING:
    from edge.evaluation.scores import Accuracies, EvalReport, Interval, MathScores, Scores


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
    yield f"kept accuracy  {_share(scores.kept_accuracy, spans.kept_accuracy)} of the {percent(scores.coverage)} kept"
    yield f"forced local   {_share(scores.forced_local_accuracy, spans.forced_local_accuracy)} @ 0 % cloud, asking forbidden"
    yield f"joint accuracy {_share(scores.joint_accuracy, spans.joint_accuracy)} {rate}"
    if scores.oracle_bound is not None:
        yield (
            f"oracle router  {_share(scores.oracle_bound, None)} @ {percent(scores.assist_rate)} cloud; the cloud is right on "
            f"{percent(scores.cloud_accuracy)} of the {scores.cloud_answers} items where its answer is known"
        )
    yield f"well formatted {_share(scores.format_ok, spans.format_ok)} mean response {scores.mean_response_tokens:.1f} tokens"


def _cloud(report: EvalReport) -> Iterator[str]:
    scores, extra = report.scores, report.extra
    if report.measured.cloud == "none":
        yield "cloud          nobody was asked"
        return
    replayed = " (replayed: nothing was asked or paid now)" if report.measured.cloud == "replay" else ""
    yield f"cloud          {_calls(scores.cloud_calls, scores.cloud_cached)}, {_price(scores.cloud_tokens, scores.spend_uusd)}{replayed}"
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
    yield f"mathematics    {counted(scores.math.items, 'item')}, read as the exact string | by equivalence"
    exact, equivalent = scores.math.exact, scores.math.equivalent
    for name in ("kept", "forced_local", "joint"):
        yield f"  {name.replace('_', ' '):<12} {_reading(exact, name)} | {_reading(equivalent, name)}{_condition(scores.math, name)}"


def _reading(accuracies: Accuracies, name: str) -> str:
    return f"{percent(getattr(accuracies, name)):>8}"


def _condition(scores: MathScores, name: str) -> str:
    rates = {"kept": f"of the {percent(scores.coverage)} kept", "forced_local": "@ 0 % cloud"}
    return "  " + rates.get(name, f"@ {percent(scores.assist_rate)} cloud")


def _table(report: EvalReport) -> Iterator[str]:
    lines = [
        (visible(family.family), family.scores, [(level.level, level.scores) for level in family.levels])
        for family in report.families
    ]
    if len(lines) == 1 and len(lines[0][2]) < 2:
        return
    heads = f"{'kept right [95 %] of kept':<34}{'forced local [95 %]':<24}{'joint [95 %] @ cloud':<33}"
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

"""`edge-agent report`: what was learned, gained, forgotten and spent since a time. Reads; loads no model and changes nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

from typer import Option

from edge.cli.options import Json, since_of
from edge.cli.output import one_line, print_json, visible
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.formatting import counted, duration, money, percent, points, source_name
from edge.core.units import BUDGET_UNITS

if TYPE_CHECKING:
    from edge.serve.agent_schemas import ExampleView, HeadlineView, ReportView, SourceComparedView
    from edge.serve.ports import AgentControl

IN_THE_END = (
    "right in the end is an estimate: up to the same rate, and as far as it pays, the questions that want help most go to the cloud, "
    "which counts as right as often as it was while learning"
)
_WIDTH = 200
"""Of a table that is not printed to a terminal, so that no cell is cut."""


@takes("state")
def command(
    since: Annotated[
        str, Option("--since", help="yesterday, today, ever, 24h, 7d, or a local date or time.", metavar="WHEN")
    ] = "yesterday",
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """What was learned, gained, forgotten and spent, with or without a running agent."""
    config, begin = settings.config(), since_of(since, SystemClock().now())
    report, headline = ask_agent(config, lambda agent: _read(agent, begin))
    if json:
        print_json(report)
        return
    from rich.console import Console
    from rich.table import Table

    print("\n".join(headline_lines(headline)))
    print(f"since {_when(report.since)}")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("validation questions")
    for name in ("alone before", "after", "gained", "lost", "new", "in the end before", "after", "at"):
        table.add_column(name, justify="right")
    for task in report.tasks:
        end = task.in_the_end
        new = f"{task.new_right} of {task.new}" if task.new else "-"
        alone = f"{task.right_then} of {task.items}", f"{task.right_now} of {task.items}"
        cells = (*alone, str(task.gained), str(task.lost), new)
        ends = (percent(end.before), percent(end.after), percent(end.rate)) if end else ("-", "-", "-")
        table.add_row(_named(task), *cells, *ends)
    if report.tasks:
        Console(highlight=False, markup=False, emoji=False, width=None if sys.stdout.isatty() else _WIDTH).print(table)
    print(visible("\n".join(report_lines(report))))


def headline_lines(headline: HeadlineView) -> Iterator[str]:
    """The four numbers, in two lines."""
    practice = headline.practice
    of_practice = f" (practice: {percent(practice.right_in_the_end)}, {points(practice.gained)})" if practice else ""
    parts = [
        f"answered locally {percent(headline.answered_locally)}"
        + (f" of {counted(headline.answers, 'answer')} this month" if headline.answers else ""),
        f"right in the end {percent(headline.right_in_the_end)}{_questions(headline)}",
        f"gained {points(headline.gained)} since the beginning{of_practice}",
    ]
    yield " · ".join(parts)
    cloud = f" ({headline.cloud_name})" if headline.cloud_name else ""
    yield f"spent {money(headline.spent_today_uusd)} today, {money(headline.spent_this_month_uusd)} this month{cloud}"


LEARNED_FROM = "learned from, too"
"""The note next to validation questions of which none is held out."""


def _questions(headline: HeadlineView) -> str:
    """Whose validation questions they are, and that they are learned from where they are."""
    number, learned_from = headline.validation_questions, headline.learned_from
    if not number:
        return ""
    whose = f" of {counted(number, 'question')} of your own" if headline.own else f" of {counted(number, 'practice question')}"
    if not learned_from:
        return whose
    return f"{whose} ({LEARNED_FROM})" if learned_from == number else f"{whose} ({learned_from} of them {LEARNED_FROM})"


def _source(source: str) -> str:
    return one_line(source_name(source))


def _named(task: SourceComparedView) -> str:
    return f"{_source(task.source)} ({LEARNED_FROM})" if task.learned_from else _source(task.source)


def report_lines(report: ReportView) -> Iterator[str]:
    """The lines below the table of validation questions."""
    total, before, now = report.total, report.serving_version_then, report.serving_version
    if not report.tasks:
        yield "gained    nothing was examined yet (with gate.enabled: false it never is)"
    elif total.items:
        both = f"{total.items} validation questions that were examined before and after"
        yield f"gained    {total.gained}, lost {total.lost} of {both}"
    if any(task.in_the_end for task in report.tasks):
        yield f"          {IN_THE_END}"
    for task in report.tasks:
        for example in task.examples:
            yield f"example   {_source(task.source)}, {example_line(example)}"
    forgotten = report.forgotten
    if lost := [f"{one.questions} of {one.of} of {_source(one.source)}" for one in forgotten.by_source]:
        yield f"forgotten {', '.join(lost)}: an earlier adapter had them right"
    for lost_one in forgotten.examples:
        yield f"          {_source(lost_one.source)}, since {_version(lost_one.adapter)} {example_line(lost_one)}"
    yield f"active    {_version(now)}" + (f"; then {_version(before)}" if before != now else ", as then")
    learning = report.learning
    yield f"target    {report.target}"
    yield f"learned   {counted(learning.steps, 'step')}, {learning.promotions} promoted, {learning.refusals} rejected"
    for one in learning.by_source:
        asks = f"asks {percent(one.assist_rate)} of {percent(one.target_rate)}"
        refused = f", {one.refused} requests refused" if one.refused else ""
        yield f"          {_source(one.source)}: {counted(one.steps, 'step')}, {asks}, λ {one.dual:.3f}{refused}"
    for band in report.bands:
        first, last = band.first, band.last
        shares = ", ".join(
            f"{name} {percent(then)} -> {percent(now)}"
            for name, then, now in (
                ("right locally", first.right, last.right),
                ("asks", first.asked, last.asked),
                ("wrong", first.wrong, last.wrong),
            )
        )
        yield f"          {_source(band.source)}, {band.band}: {shares}"
    for reason in learning.refused_because:
        yield f"          rejected: {one_line(reason)}"
    for back in report.went_back:
        why = f": {one_line(back.reason)}" if back.reason else ""
        by = "by hand" if back.by == "person" else f"by itself ({back.by})"
        versions = f"from {_version(back.from_version)} to {_version(back.to_version)}"
        yield f"rolled back {_when(back.at)}, {versions}, {by}{why}"
    for number, given in enumerate(report.answers):
        ratings = f"{given.good} good, {given.bad} bad, {given.corrected} corrected"
        yield f"{'answered' if number == 0 else '':<10}{given.answers} {given.source} ({ratings})"
    if not report.answers:
        yield "answered  nothing"
    for rate in report.rates:
        target = f"target {percent(rate.target_rate)}" if rate.target_rate is not None else "no target set"
        yield f"asked     {percent(rate.rate)} of {counted(rate.answers, 'answer')} of {one_line(rate.task)}, {target}"
    for name, label, used in (("serving", "cloud", report.cloud.serving), ("learning", "", report.cloud.learning)):
        spent = ", ".join(unit.amount(getattr(used, unit.name)) for unit in BUDGET_UNITS)
        practice = f" ({report.cloud_name})" if report.cloud_name and label else ""
        yield f"{label:<10}{name:<9}{spent}{practice}"
    for number, wait in enumerate(report.waits):
        times = "once" if wait.times == 1 else f"{wait.times} times"
        yield f"{'waited' if number == 0 else '':<10}{duration(wait.seconds)}, {times}: {one_line(wait.reason)}"
    if report.paused:
        yield "learning is paused; edge-agent resume goes on"


def example_line(example: ExampleView) -> str:
    """A question that changed: how, and what became of it before and after."""

    def end(answer: str, right: bool, asked: bool) -> str:
        mark = "right" if right else "wrong"
        return "the cloud is asked" if asked else f'"{answer}" ({mark})' if answer else mark

    before = end(example.before, example.right_before, example.change == "asks no longer")
    after = end(example.after, example.right_after, example.change == "asks now")
    return one_line(f'{example.change}: "{example.question}" {before} -> {after}')


async def _read(agent: AgentControl, since: float) -> tuple[ReportView, HeadlineView]:
    return await agent.report(since), await agent.headline()


def _version(version: int) -> str:
    return f"adapter {version}" if version else "the bare model"


def _when(at: float) -> str:
    return "the beginning" if at <= 0 else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")

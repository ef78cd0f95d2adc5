"""`edge-agent report`: what was learned, gained, forgotten and spent since a time. Reads; loads no model and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.control import agent_control
from edge.cli.options import Config, Json, Sets, State, since_of
from edge.cli.output import one_line, print_json
from edge.cli.settings import Settings
from edge.core.clock import SystemClock
from edge.core.formatting import counted, dollars, duration, percent

if TYPE_CHECKING:
    from rich.table import Table

    from edge.config.schema import AgentConfig


def command(
    since: Annotated[
        str, typer.Option("--since", help="yesterday, today, ever, 24h, 7d, or a local date or time.", metavar="WHEN")
    ] = "yesterday",
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """What was learned, gained, forgotten and spent, beside a running agent or without one."""
    found = asyncio.run(_report(Settings(config, sets, state=state).config(), since_of(since, SystemClock().now())))
    if json:
        print_json(dict(found))
    else:
        _print(found)
    return 0


async def _report(config: AgentConfig, since: float) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.report(since)


def _print(report: Mapping[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"since {_when(report['since'])}")
    if report["tasks"]:
        console.print(_validation(report["tasks"]))
    for line in report_lines(report):
        console.print(line, soft_wrap=True)


def _validation(tasks: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("validation questions", "right before", "right after", "gained", "lost", "new"):
        table.add_column(name, justify="left" if name == "validation questions" else "right")
    for task in tasks:
        of = task["items"]
        new = f"{task['new_right']} of {task['new']}" if task["new"] else "-"
        cells = (f"{task['right_then']} of {of}", f"{task['right_now']} of {of}", str(task["gained"]), str(task["lost"]), new)
        table.add_row(one_line(task["source"]), *cells)
    return table


def report_lines(report: Mapping[str, Any]) -> list[str]:
    """What stands below the table of validation questions."""
    return [*_gained(report), *_learned(report), *_answered(report), *_spent(report), *_waited(report)]


def _gained(report: Mapping[str, Any]) -> Iterator[str]:
    total, then, now = report["total"], report["serving_version_then"], report["serving_version"]
    if not report["tasks"]:
        yield "gained    nothing was examined yet (with gate.enabled: false it never is)"
    elif total["items"]:
        both = f"{total['items']} validation questions that both versions were examined on"
        yield f"gained    {total['gained']}, lost {total['lost']} of {both}"
    yield f"active    {_version(now)}" + (f"; then {_version(then)}" if then != now else ", as then")


def _learned(report: Mapping[str, Any]) -> Iterator[str]:
    learning = report["learning"]
    yield f"learned   {counted(learning['steps'], 'step')}, {learning['promotions']} promoted, {learning['refusals']} rejected"
    for one in learning["by_source"]:
        rate = f"asks {percent(one['assist_rate'])} of {percent(one['target_rate'])}"
        refused = f", {one['refused']} requests refused" if one["refused"] else ""
        yield f"          {one_line(one['source'])}: {counted(one['steps'], 'step')}, {rate}, λ {one['dual']:.3f}{refused}"
    for reason in learning["refused_because"]:
        yield f"          rejected: {one_line(reason)}"
    for went in report["went_back"]:
        why = f": {one_line(went['reason'])}" if went["reason"] else ""
        by = "by hand" if went["by"] == "person" else f"by itself ({went['by']})"
        yield f"went back {_when(went['at'])}, from {_version(went['from_version'])} to {_version(went['to_version'])}, {by}{why}"


def _answered(report: Mapping[str, Any]) -> Iterator[str]:
    for number, one in enumerate(report["answers"]):
        verdicts = f"{one['good']} good, {one['bad']} bad, {one['corrected']} corrected"
        yield f"{'answered' if number == 0 else '':<10}{one['answers']} {one['source']} ({verdicts})"
    if not report["answers"]:
        yield "answered  nothing"
    for rate in report["rates"]:
        target = f"target {percent(rate['target_rate'])}" if rate["target_rate"] is not None else "no target set"
        yield f"asked     {percent(rate['rate'])} of {counted(rate['answers'], 'answer')} of {one_line(rate['task'])}, {target}"


def _spent(report: Mapping[str, Any]) -> Iterator[str]:
    for number, name in enumerate(("serving", "learning")):
        cloud = report["cloud"][name]
        said = f"{name:<9}{counted(cloud['calls'], 'call')}, {counted(cloud['tokens'], 'token')}, {dollars(cloud['spend_uusd'])}"
        yield f"{'cloud' if number == 0 else '':<10}{said}"


def _waited(report: Mapping[str, Any]) -> Iterator[str]:
    for number, wait in enumerate(report["waits"]):
        times = "once" if wait["times"] == 1 else f"{wait['times']} times"
        yield f"{'waited' if number == 0 else '':<10}{duration(wait['seconds'])}, {times}: {one_line(wait['reason'])}"
    if report["paused"]:
        yield "learning is paused; edge-agent resume goes on"


def _version(version: int) -> str:
    return f"adapter {version}" if version else "the bare model"


def _when(at: float) -> str:
    return "the beginning" if at <= 0 else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")

"""`edge-agent report`: what was learned, gained, forgotten and spent since a time. Reads; loads no model and changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edge.cli.running import running_agent
from edge.cli.saying import one_line, print_json
from edge.cli.since import since_of
from edge.console import dollars
from edge.core.clock import SystemClock
from edge.core.formatting import counted, duration, percent

if TYPE_CHECKING:
    from rich.table import Table

    from edge.cli.settings import Settings


def report(settings: Settings, since: str, *, as_json: bool) -> int:
    """The report for a person or a machine. Raises UsageError for a time that cannot be read, StateError."""
    from edge.app import state_folder

    now = SystemClock().now()
    told = asyncio.run(_report(state_folder(settings.config()), since_of(since, now), now))
    if as_json:
        print_json(dict(told))
    else:
        _print(told)
    return 0


async def _report(state: Path, since: float, now: float) -> Mapping[str, Any]:
    async with running_agent(state) as remote:
        if remote is not None:
            return await remote.get(f"/api/report?since={since:.3f}")
    from edge.learning.activity import read_daybook

    return read_daybook(state, since, now)


def _print(told: Mapping[str, Any]) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False)
    console.print(f"since {_when(told['since'])}")
    if told["tasks"]:
        console.print(_anchors(told["tasks"]))
    for line in report_lines(told):
        console.print(line, soft_wrap=True)


def _anchors(tasks: Sequence[Mapping[str, Any]]) -> Table:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="")
    for name in ("anchors", "right then", "right now", "gained", "lost", "new"):
        table.add_column(name, justify="left" if name == "anchors" else "right")
    for task in tasks:
        of = task["items"]
        new = f"{task['new_right']} of {task['new']}" if task["new"] else "-"
        cells = (f"{task['right_then']} of {of}", f"{task['right_now']} of {of}", str(task["gained"]), str(task["lost"]), new)
        table.add_row(one_line(task["source"]), *cells)
    return table


def report_lines(told: Mapping[str, Any]) -> list[str]:
    """What stands below the table of anchors."""
    return [*_gained(told), *_learned(told), *_answered(told), *_spent(told), *_waited(told)]


def _gained(told: Mapping[str, Any]) -> Iterator[str]:
    total, then, now = told["total"], told["serving_version_then"], told["serving_version"]
    if not told["tasks"]:
        yield "gained    nothing was examined yet (with gate.enabled: false it never is)"
    elif total["items"]:
        yield f"gained    {total['gained']}, lost {total['lost']} of {total['items']} anchors that both versions were examined on"
    yield f"serves    {_version(now)}" + (f"; then {_version(then)}" if then != now else ", as then")


def _learned(told: Mapping[str, Any]) -> Iterator[str]:
    learning = told["learning"]
    yield f"learned   {counted(learning['steps'], 'step')}, {learning['promotions']} promoted, {learning['refusals']} refused"
    for one in learning["by_source"]:
        rate = f"asks {percent(one['assist_rate'])} of {percent(one['target_rate'])}"
        refused = f", {one['refused']} requests refused" if one["refused"] else ""
        yield f"          {one_line(one['source'])}: {counted(one['steps'], 'step')}, {rate}, λ {one['dual']:.3f}{refused}"
    for reason in learning["refused_because"]:
        yield f"          refused: {one_line(reason)}"
    for went in told["went_back"]:
        why = f": {one_line(went['reason'])}" if went["reason"] else ""
        by = "by hand" if went["by"] == "person" else f"by itself ({went['by']})"
        yield f"went back {_when(went['at'])}, from {_version(went['from_version'])} to {_version(went['to_version'])}, {by}{why}"


def _answered(told: Mapping[str, Any]) -> Iterator[str]:
    for number, one in enumerate(told["answers"]):
        verdicts = f"{one['good']} good, {one['bad']} bad, {one['corrected']} corrected"
        yield f"{'answered' if number == 0 else '':<10}{one['answers']} {one['source']} ({verdicts})"
    if not told["answers"]:
        yield "answered  nothing"
    for rate in told["rates"]:
        target = f"target {percent(rate['target_rate'])}" if rate["target_rate"] is not None else "no target set"
        yield f"asked     {percent(rate['rate'])} of {counted(rate['answers'], 'answer')} of {one_line(rate['task'])}, {target}"


def _spent(told: Mapping[str, Any]) -> Iterator[str]:
    for number, name in enumerate(("serving", "learning")):
        cloud = told["cloud"][name]
        said = f"{name:<9}{counted(cloud['calls'], 'call')}, {counted(cloud['tokens'], 'token')}, {dollars(cloud['spend_uusd'])}"
        yield f"{'cloud' if number == 0 else '':<10}{said}"


def _waited(told: Mapping[str, Any]) -> Iterator[str]:
    for number, wait in enumerate(told["waits"]):
        times = "once" if wait["times"] == 1 else f"{wait['times']} times"
        yield f"{'waited' if number == 0 else '':<10}{duration(wait['seconds'])}, {times}: {one_line(wait['reason'])}"
    if told["paused"]:
        yield "learning is paused; edge-agent resume goes on"


def _version(version: int) -> str:
    return f"adapter {version}" if version else "the bare model"


def _when(at: float) -> str:
    return "the beginning" if at <= 0 else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")

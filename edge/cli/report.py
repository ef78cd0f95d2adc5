"""`edge-agent report`: what was learned, gained, forgotten and spent since a time. Reads; loads no model and changes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any

from typer import Option

from edge.cli.options import Json, since_of
from edge.cli.output import one_line, print_json, visible
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.formatting import counted, duration, money, percent


@takes("state")
def command(
    since: Annotated[
        str, Option("--since", help="yesterday, today, ever, 24h, 7d, or a local date or time.", metavar="WHEN")
    ] = "yesterday",
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """What was learned, gained, forgotten and spent, beside a running agent or without one."""
    config, begin = settings.config(), since_of(since, SystemClock().now())
    report = ask_agent(config, lambda agent: agent.report(begin))
    if json:
        print_json(report)
        return
    from rich.console import Console
    from rich.table import Table

    print(f"since {_when(report['since'])}")
    table = Table(box=None, pad_edge=False, header_style="")
    table.add_column("validation questions")
    for name in ("right before", "right after", "gained", "lost", "new"):
        table.add_column(name, justify="right")
    for task in report["tasks"]:
        of = task["items"]
        new = f"{task['new_right']} of {task['new']}" if task["new"] else "-"
        cells = (f"{task['right_then']} of {of}", f"{task['right_now']} of {of}", str(task["gained"]), str(task["lost"]), new)
        table.add_row(one_line(task["source"]), *cells)
    if report["tasks"]:
        Console(highlight=False, markup=False, emoji=False).print(table)
    print(visible("\n".join(report_lines(report))))


def report_lines(report: Mapping[str, Any]) -> Iterator[str]:
    """What stands below the table of validation questions."""
    total, before, now = report["total"], report["serving_version_then"], report["serving_version"]
    if not report["tasks"]:
        yield "gained    nothing was examined yet (with gate.enabled: false it never is)"
    elif total["items"]:
        both = f"{total['items']} validation questions that both versions were examined on"
        yield f"gained    {total['gained']}, lost {total['lost']} of {both}"
    yield f"active    {_version(now)}" + (f"; then {_version(before)}" if before != now else ", as then")
    learning = report["learning"]
    yield f"target    {report['target']}"
    yield f"learned   {counted(learning['steps'], 'step')}, {learning['promotions']} promoted, {learning['refusals']} rejected"
    for one in learning["by_source"]:
        rate = f"asks {percent(one['assist_rate'])} of {percent(one['target_rate'])}"
        refused = f", {one['refused']} requests refused" if one["refused"] else ""
        yield f"          {one_line(one['source'])}: {counted(one['steps'], 'step')}, {rate}, λ {one['dual']:.3f}{refused}"
    for one in report["bands"]:
        first, last = one["first"], one["last"]
        shares = ", ".join(
            f"{name} {percent(first[key])} -> {percent(last[key])}"
            for key, name in (("right", "right here"), ("asked", "asks"), ("wrong", "wrong"))
        )
        yield f"          {one_line(one['source'])}, {one['band']}: {shares}"
    for reason in learning["refused_because"]:
        yield f"          rejected: {one_line(reason)}"
    for back in report["went_back"]:
        why = f": {one_line(back['reason'])}" if back["reason"] else ""
        by = "by hand" if back["by"] == "person" else f"by itself ({back['by']})"
        yield f"went back {_when(back['at'])}, from {_version(back['from_version'])} to {_version(back['to_version'])}, {by}{why}"
    for number, one in enumerate(report["answers"]):
        verdicts = f"{one['good']} good, {one['bad']} bad, {one['corrected']} corrected"
        yield f"{'answered' if number == 0 else '':<10}{one['answers']} {one['source']} ({verdicts})"
    if not report["answers"]:
        yield "answered  nothing"
    for rate in report["rates"]:
        target = f"target {percent(rate['target_rate'])}" if rate["target_rate"] is not None else "no target set"
        yield f"asked     {percent(rate['rate'])} of {counted(rate['answers'], 'answer')} of {one_line(rate['task'])}, {target}"
    for name, label in (("serving", "cloud"), ("learning", "")):
        cloud = report["cloud"][name]
        spent = f"{counted(cloud['calls'], 'call')}, {counted(cloud['tokens'], 'token')}, {money(cloud['spend_uusd'])}"
        practice = f" ({report['cloud_name']})" if report["cloud_name"] and label else ""
        yield f"{label:<10}{name:<9}{spent}{practice}"
    for number, wait in enumerate(report["waits"]):
        times = "once" if wait["times"] == 1 else f"{wait['times']} times"
        yield f"{'waited' if number == 0 else '':<10}{duration(wait['seconds'])}, {times}: {one_line(wait['reason'])}"
    if report["paused"]:
        yield "learning is paused; edge-agent resume goes on"


def _version(version: int) -> str:
    return f"adapter {version}" if version else "the bare model"


def _when(at: float) -> str:
    return "the beginning" if at <= 0 else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M")

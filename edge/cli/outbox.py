"""`edge-agent outbox`: every request that left the device, when and why, and the reports that wait."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from edge.cli.control import agent_control
from edge.cli.options import Config, Json, Sets, State, since_of
from edge.cli.output import local_time, one_line, print_json, print_line, visible
from edge.cli.settings import Settings
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted
from edge.core.limits import MOST_ITEMS

if TYPE_CHECKING:
    from edge.cloud.sent import Choice
    from edge.config.schema import AgentConfig

app = typer.Typer(help="What left this device, when and why.", invoke_without_command=True, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def outbox(
    context: typer.Context,
    limit: Annotated[int, typer.Option("--limit", min=1, max=MOST_ITEMS, help="Most entries.", metavar="N")] = 20,
    since: Annotated[
        str | None,
        typer.Option("--since", help="Only since then: yesterday, today, 90m, 2h, 3d, 1w ago, or a date.", metavar="TIME"),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option("--kind", help="answering, learning, evaluation, 'step report', registration or inquiry.", metavar="KIND"),
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Reports of steps that have not left yet.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int | None:
    """Every request that left this device, newest first; `outbox show ID` has its content."""
    if context.invoked_subcommand is not None:
        return None
    options = OutboxOptions(limit, since, kind, waiting, json)
    found = asyncio.run(_listing(Settings(config, sets, state=state).config(), choice_of(options)))
    if options.json:
        print_json(found["waiting"] if options.waiting else found)
        return 0
    lines = list(waiting_lines(found["waiting"]) if options.waiting else sent_lines(found["sent"]))
    if lines:
        print("\n".join(lines), flush=True)
    _print_rest(found, options, nothing=not lines)
    return 0


@app.command("show")
def outbox_show(
    entry_id: Annotated[int, typer.Argument(min=1, help="The number that outbox shows.", metavar="ID")],
    raw: Annotated[bool, typer.Option("--raw", help="The very bytes on stdout.")] = False,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """One request exactly as it left."""
    entry = asyncio.run(_entry(Settings(config, sets, state=state).config(), entry_id))
    if raw:
        sys.stdout.buffer.write(base64.b64decode(entry["payload_base64"]))
        sys.stdout.buffer.flush()
    elif json:
        print_json(entry)
    else:
        print("\n".join(entry_lines(entry)), flush=True)
    return 0


@dataclass(frozen=True, slots=True)
class OutboxOptions:
    """What is listed. `since`: as `yesterday`, `2h`, `3d`, or a date; None: from the beginning."""

    limit: int = 20
    since: str | None = None
    kind: str | None = None
    waiting: bool = False
    json: bool = False


def choice_of(options: OutboxOptions) -> Choice:
    """What the options mean. Raises UsageError."""
    from edge.cloud.sent import SENT_KINDS, Choice

    if options.kind is not None and options.kind not in SENT_KINDS:
        raise UsageError(f"--kind {options.kind}: there is no such kind", hint=f"one of: {', '.join(SENT_KINDS)}")
    return Choice(
        options.limit, since=None if options.since is None else since_of(options.since, SystemClock().now()), kind=options.kind
    )


def sent_lines(entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each entry."""
    for entry in entries:
        replaced = replaced_text(entry["replaced"])
        times = f" x{entry['times']}" if entry["times"] > 1 else ""
        parts = [entry["why"], entry["outcome"], f"replaced: {replaced}" if replaced else ""]
        told = " · ".join(one_line(part) for part in parts if part)
        yield f"{entry['id']:>6}  {local_time(entry['at'])}  {entry['kind']:<12} {entry['bytes']:>7} bytes{times}  {told}"


def waiting_lines(reports: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """One line for each report of a step."""
    for report in reports:
        asked = f"{report['help_units']} of {report['total_units']} responses asked for help"
        yield f"step {report['task_step'] + 1} of task {one_line(report['task'])}: {asked}"


def entry_lines(entry: Mapping[str, Any]) -> Iterator[str]:
    """One entry and its content for a person."""
    yield from sent_lines([entry])
    for name in ("method", "answer_id", "call_key"):
        if entry[name]:
            yield f"{name.replace('_', ' ') + ':':<10} {one_line(entry[name])}"
    yield visible(json.dumps(entry["payload"], ensure_ascii=False, indent=2))
    yield f"the message as it left, in base64: {entry['payload_base64']}"


def replaced_text(replaced: Mapping[str, int]) -> str:
    """What stands for something private, e.g. `2 email, 1 path`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(replaced.items()))


def _print_rest(found: Mapping[str, Any], options: OutboxOptions, *, nothing: bool) -> None:
    """On stderr: that there is nothing, what is older, what waits and what is no longer kept."""
    if nothing:
        chosen = " of that" if options.kind or options.since else ""
        print_line("no report waits" if options.waiting else f"nothing{chosen} has left this device")
    if not options.waiting and found["next_before"] is not None:
        print_line("there are older entries; see --limit")
    if not options.waiting and found["waiting"]:
        waiting = counted(len(found["waiting"]), "report of a step waits", "reports of steps wait")
        print_line(f"{waiting} for the coordinator: edge-agent outbox --waiting")
    if dropped := found["dropped"]["entries"]:
        gone = counted(dropped, "older entry is", "older entries are")
        print_line(f"{gone} no longer kept, the last of {local_time(found['dropped']['until'])} (privacy.keep_days)")


async def _listing(config: AgentConfig, choice: Choice) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.sent(choice)


async def _entry(config: AgentConfig, entry_id: int) -> Mapping[str, Any]:
    async with agent_control(config) as agent:
        return await agent.sent_entry(entry_id)

"""`edge-agent outbox`: every request that left the device, when and why, and the step reports that wait."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Context, Option, Typer

from edge.cli.options import Json, since_of
from edge.cli.output import local_time, one_line, print_json, print_line, print_result, visible
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted
from edge.core.limits import MOST_ITEMS

if TYPE_CHECKING:
    from edge.serve.agent_schemas import SentEntryView, SentRequestView, SentView, WaitingReportView
    from edge.serve.ports import AgentControl

_QUESTIONS = "answering"
app = Typer(help="What left this device, when and why.", invoke_without_command=True, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
@takes("state")
def outbox(
    context: Context,
    limit: Annotated[int, Option("--limit", min=1, max=MOST_ITEMS, help="Most entries.", metavar="N")] = 20,
    since: Annotated[
        str | None, Option("--since", help="Only since then: yesterday, today, 90m, 2h, 3d, 1w ago, or a date.", metavar="TIME")
    ] = None,
    kind: Annotated[
        str | None,
        Option("--kind", help="answering, learning, evaluation, 'step report', registration or inquiry.", metavar="KIND"),
    ] = None,
    waiting: Annotated[bool, Option("--waiting", help="Step reports that the coordinator has not taken.")] = False,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Every request that left this device, newest first: your questions, then the last of each other kind; `outbox show ID` has the
    content, --kind lists another kind."""
    if context.invoked_subcommand is not None:
        return
    from edge.cloud.sent import SENT_KINDS, SentChoice

    config = settings.config()
    if kind is not None and kind not in SENT_KINDS:
        raise UsageError(f"--kind {kind}: there is no such kind", hint=f"one of: {', '.join(SENT_KINDS)}")
    choice = SentChoice(limit, since=None if since is None else since_of(since, SystemClock().now()), kind=kind)
    folds = kind is None and not (waiting or json)
    others = [other for other in SENT_KINDS if other != _QUESTIONS] if folds else []

    async def read(agent: AgentControl) -> tuple[SentView, list[SentEntryView]]:
        found = await agent.sent(replace(choice, kind=_QUESTIONS) if folds else choice)
        last = [(await agent.sent(replace(choice, kind=other, limit=1))).sent for other in others]
        return found, [entry for newest in last for entry in newest]

    found, folded = ask_agent(config, read)
    if json:
        print_json(found.waiting_reports if waiting else found)
        return
    if lines := list(_waiting_lines(found.waiting_reports) if waiting else _sent_lines(found.sent)):
        print("\n".join(lines), flush=True)
    elif folded:
        print_line("nothing that you asked has left this device" + (" since then" if since else ""))
    else:
        chosen = " of that" if kind or since else ""
        print_line("no step report waits" if waiting else f"nothing{chosen} has left this device")
    if not waiting and found.next_before is not None:
        print_line("there are older entries; see --limit")
    if folded:
        print("\n".join(_sent_lines(folded)), flush=True)
        print_line(
            "of the rest, such as questions of learned files, only the last of each kind is shown; --kind KIND lists all of one"
        )
    if not waiting and found.waiting_reports:
        reports = counted(len(found.waiting_reports), "step report waits", "step reports wait")
        print_line(f"{reports} for the coordinator: edge-agent outbox --waiting")
    if dropped := found.dropped.entries:
        gone = counted(dropped, "older entry is", "older entries are")
        print_line(
            f"{gone} no longer kept, the last of {local_time(found.dropped.until)} (privacy.keep_days, privacy.keep_entries)"
        )


@app.command("show")
@takes("state")
def outbox_show(
    entry_id: Annotated[int, Argument(min=1, help="The number that outbox shows.", metavar="ID")],
    raw: Annotated[bool, Option("--raw", help="The very bytes on stdout.")] = False,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """One request exactly as it left."""
    entry = ask_agent(settings.config(), lambda agent: agent.sent_entry(entry_id))
    if raw:
        sys.stdout.buffer.write(base64.b64decode(entry.payload_base64))
        sys.stdout.buffer.flush()
    else:
        print_result(entry, _entry_lines(entry), as_json=json)


def _sent_lines(entries: Sequence[SentEntryView]) -> Iterator[str]:
    for entry in entries:
        replaced = replaced_text(entry.replaced)
        times = f" x{entry.times}" if entry.times > 1 else ""
        parts = [entry.why, entry.outcome or entry.ended, f"replaced: {replaced}" if replaced else ""]
        about = " · ".join(one_line(part) for part in parts if part)
        yield f"{entry.id:>6}  {local_time(entry.at)}  {entry.kind:<12} {entry.bytes:>7} bytes{times}  {about}"


def _waiting_lines(reports: Sequence[WaitingReportView]) -> Iterator[str]:
    for report in reports:
        asked = f"{report.help_units} of {counted(report.total_units, 'response')} asked for help"
        refused = f" · refused: {one_line(report.refused)}" if report.refused else ""
        yield f"step {report.task_step + 1} of task {one_line(report.task)}: {asked}{refused}"


def _entry_lines(entry: SentRequestView) -> Iterator[str]:
    yield from _sent_lines([entry])
    for name in ("method", "answer_id", "call_key"):
        if value := getattr(entry, name):
            yield f"{name.replace('_', ' ') + ':':<10} {one_line(value)}"
    yield visible(json.dumps(entry.payload, ensure_ascii=False, indent=2))
    yield f"the message as it left, in base64: {entry.payload_base64}"


def replaced_text(replaced: Mapping[str, int]) -> str:
    """The counts of what was replaced, e.g. `2 email, 1 path`."""
    return ", ".join(f"{count} {kind}" for kind, count in sorted(replaced.items()))

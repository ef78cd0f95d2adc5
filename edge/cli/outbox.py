"""`edge-agent outbox`: every request that left the device, when and why, and the reports that wait. Knows wording; changes nothing."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from edge.cli.running import running_agent
from edge.cli.saying import one_line, print_json, print_line, visible
from edge.cli.since import since_of
from edge.core.clock import SystemClock
from edge.core.errors import NotFound, UsageError
from edge.core.formatting import counted

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.cloud.sent import Choice

_NOTHING: Mapping[str, Any] = {"sent": [], "next_before": None, "dropped": {"entries": 0, "until": 0.0}, "waiting": []}


@dataclass(frozen=True, slots=True)
class OutboxOptions:
    """What is listed. `since`: as `yesterday`, `2h`, `3d`, or a date; None: from the beginning."""

    limit: int = 20
    since: str | None = None
    kind: str | None = None
    waiting: bool = False
    json: bool = False


def list_sent(settings: Settings, options: OutboxOptions) -> int:
    """What left, newest first, or the reports that wait."""
    from edge.app import state_folder

    state = state_folder(settings.config())
    found = asyncio.run(_listing(state, choice_of(options)))
    if options.json:
        print_json(found["waiting"] if options.waiting else found)
        return 0
    lines = list(waiting_lines(found["waiting"]) if options.waiting else sent_lines(found["sent"]))
    if lines:
        print("\n".join(lines), flush=True)
    _tell_rest(found, options, nothing=not lines)
    return 0


def show(settings: Settings, entry_id: int, *, as_json: bool, raw: bool) -> int:
    """One request with its content. Raises NotFound."""
    from edge.app import state_folder

    entry = asyncio.run(_entry(state_folder(settings.config()), entry_id))
    if raw:
        sys.stdout.buffer.write(base64.b64decode(entry["payload_base64"]))
        sys.stdout.buffer.flush()
    elif as_json:
        print_json(entry)
    else:
        print("\n".join(entry_lines(entry)), flush=True)
    return 0


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
        yield f"{entry['id']:>6}  {shown_time(entry['at'])}  {entry['kind']:<12} {entry['bytes']:>7} bytes{times}  {told}"


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


def shown_time(at: float) -> str:
    """A time of this machine's zone."""
    return datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _tell_rest(found: Mapping[str, Any], options: OutboxOptions, *, nothing: bool) -> None:
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
        print_line(f"{gone} no longer kept, the last of {shown_time(found['dropped']['until'])} (privacy.keep_days)")


async def _listing(state: Path, choice: Choice) -> Mapping[str, Any]:
    from edge.cloud.sent import reading_sent

    async with running_agent(state) as remote:
        if remote is not None:
            asked = {"limit": min(choice.limit, 500), "since": int(choice.since or 0) or None, "kind": choice.kind}
            return await remote.get(f"/api/sent?{urlencode({name: value for name, value in asked.items() if value is not None})}")
    with reading_sent(state) as reader:
        return _NOTHING if reader is None else reader.listing(choice)


async def _entry(state: Path, entry_id: int) -> Mapping[str, Any]:
    from edge.cloud.sent import entry_json, reading_sent

    async with running_agent(state) as remote:
        if remote is not None:
            return await remote.get(f"/api/sent/{entry_id}")
    with reading_sent(state) as reader:
        if reader is None:
            raise NotFound("nothing has left this device", hint="see edge-agent outbox")
        return entry_json(*reader.entry(entry_id))

"""How commands print: JSON and lines that steer no terminal, and the sentences about one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edge.core.formatting import STEERING, counted, dollars
from edge.core.formatting import visible as visible

if TYPE_CHECKING:
    from edge.serve.ports import AnswerNote

_SOURCES = {
    "local": "answered locally",
    "cloud": "answered with help",
    "local-fallback": "answered locally without the help it asked for",
}

_STORED = "from the coordinator's store, not charged"
_WORTH_SAYING = {
    "low": "little of the budget is left",
    "used_up": "the budget is used up",
    "paused": "the cloud is paused",
    "switched_off": "the cloud is switched off",
    "offline": "offline",
}


def print_json(value: Any) -> None:
    """One JSON value on stdout; characters that would steer a terminal are written as JSON's escapes."""
    print(_json(value, indent=None if isinstance(value, list) else 2))


def print_json_line(value: Any) -> None:
    """The same on one line, at once: for a program that reads line by line."""
    print(_json(value, indent=None), flush=True)


def _json(value: Any, indent: int | None) -> str:
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    return STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: object) -> str:
    """Anything on one line, its characters visible."""
    return visible(" ".join(str(text).split()))


def local_time(at: float | None) -> str:
    """A time of this machine's zone to the second, - where it is not known."""
    return "-" if at is None else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def print_line(line: str) -> None:
    """One line on stderr: what is about the result, not the result. Words of a model or a cloud in it steer no terminal."""
    print(visible(line), file=sys.stderr, flush=True)


def source_line(note: AnswerNote) -> str:
    """Where an answer came from, in one line."""
    parts = [_SOURCES.get(note.source, note.source)]
    if note.reason:
        parts[0] += f" ({note.reason})"
    if note.help_log_odds is not None:
        parts.append(f"help log-odds {note.help_log_odds:+.2f}")
    if note.dual is not None:
        parts.append(f"λ {note.dual:.3f}")
    if note.spend_uusd:
        parts.append(dollars(note.spend_uusd))
    if note.cached:
        parts.append(_STORED)
    if about_quota := _about_quota(note):
        parts.append(about_quota)
    elif note.calls_left is not None:
        parts.append(f"{counted(note.calls_left, 'call')} left")
    return one_line(" · ".join([*parts, f"adapter {note.adapter_version}", f"{note.latency_s:.1f} s", f"id {note.id}"]))


def _about_quota(note: AnswerNote) -> str:
    """The quota where it matters and the reason does not say so already; in short where the reason has the details."""
    quota = note.quota or {}
    short = _WORTH_SAYING.get(quota.get("state", ""), "")
    if not short or short in note.reason:
        return ""
    return short if note.source == "local-fallback" else str(quota.get("line") or short)


def why_lines(record: Mapping[str, Any]) -> list[str]:
    """A stored answer explained."""
    shown = {
        "answer": record.get("final") or record.get("text"),
        "source": _SOURCES.get(str(record.get("source")), record.get("source")),
        "reason": record.get("reason"),
        "decision": record.get("decision"),
        "help log-odds": _number(record.get("help_log_odds"), "no decision was reached"),
        "price λ": _number(record.get("dual"), "not known"),
        "calls left": _number(record.get("calls_left"), "no limit known"),
        "ledger": _ledger(record.get("ledger")),
        "quota then": (record.get("quota") or {}).get("line"),
        "charged": dollars(int(record.get("charged_uusd") or 0)) + (f"; {_STORED}" if record.get("cached") else ""),
        "model": record.get("model"),
        "cloud model": record.get("cloud_model"),
        "adapter": record.get("adapter_version"),
        "verdict": None if record.get("verdict") == "none" else record.get("verdict"),
        "correction": record.get("correction"),
        "own attempt": record.get("local_text"),
        "cloud said": record.get("cloud_text"),
    }
    return [f"{name + ':':<15} {_indented(value)}" for name, value in shown.items() if value not in (None, "")]


def _ledger(entry: Mapping[str, Any] | None) -> str | None:
    """The call as the coordinator has it, or as the record does where nobody could be asked."""
    if entry is None:
        return None
    told = "" if entry["told_by"] == "coordinator" else " (from the record)"
    model = f", {entry['model']}" if entry["model"] else ""
    said = (
        f"{entry['state'].replace('_', ' ')}, {counted(entry['tokens'], 'token')}, {dollars(entry['charged_uusd'])}{model}{told}"
    )
    note = f"; {entry['note']}" if entry["note"] else ""
    return f"{said}{note}; key {entry['call_key']}"


def _number(value: Any, otherwise: str) -> str:
    return otherwise if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _indented(value: Any) -> str:
    return visible(str(value)).strip().replace("\n", "\n" + " " * 16)

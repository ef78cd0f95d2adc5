"""How commands print: JSON and lines that steer no terminal, and the sentences about one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from edge.core.formatting import STEERING, counted, money, practice_note, shown
from edge.core.formatting import visible as visible
from edge.dagrpo.prompts import HELP_PHRASE

if TYPE_CHECKING:
    from edge.serve.agent_schemas import ExplanationView, FeedbackView
    from edge.serve.ports import AnswerNote

_SOURCES = {
    "local": "answered locally",
    "cloud": "answered with help",
    "local-fallback": "answered locally without the help it asked for",
}

_STORED = "from the coordinator's store, not charged"
_QUOTA_STATES = {
    "low": "little of the budget is left",
    "used_up": "the budget is used up",
    "paused": "the cloud is paused",
    "switched_off": "the cloud is switched off",
    "offline": "offline",
}


def print_result(result: Any, lines: Iterable[str], *, as_json: bool) -> None:
    """The result of a command on stdout: as JSON, or in lines for a person."""
    if as_json:
        print_json(result)
    else:
        print("\n".join(lines), flush=True)


def print_json(value: Any, *, one_line: bool = False) -> None:
    """One JSON value on stdout, at once; characters that would steer a terminal are written as JSON's escapes."""
    text = json.dumps(value, ensure_ascii=False, indent=None if one_line or isinstance(value, list) else 2, default=_dumped)
    print(STEERING.sub(lambda found: f"\\u{ord(found[0]):04x}", text), flush=True)


def _dumped(view: Any) -> Any:
    """A pydantic model within what is printed."""
    return view.model_dump(mode="json")


def one_line(text: object) -> str:
    """Anything on one line, its characters visible."""
    return visible(" ".join(str(text).split()))


def columns(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows of a table as lines, their cells below one another."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def local_time(at: float | None) -> str:
    """A time of this machine's zone to the second, - where it is not known."""
    return "-" if at is None else datetime.fromtimestamp(at, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def print_line(line: str) -> None:
    """One line on stderr: what is about the result, not the result. Words of a model or a cloud in it steer no terminal."""
    print(visible(line), file=sys.stderr, flush=True)


def source_line(note: AnswerNote) -> str:
    """Where an answer came from, in one line; the quota where it matters and the reason does not state it already."""
    parts = [_SOURCES.get(note.source, note.source) + (f" ({note.reason})" if note.reason else "")]
    if note.help_log_odds is not None:
        parts.append(f"help log-odds {note.help_log_odds:+.2f}")
    if note.dual is not None:
        parts.append(f"λ {note.dual:.3f}")
    if note.spend_uusd:
        parts.append(f"{money(note.spend_uusd)}{practice_note(note.cloud_model)}")
    if note.cached:
        parts.append(_STORED)
    quota = note.quota or {}
    short = _QUOTA_STATES.get(quota.get("state", ""), "")
    if short and short not in note.reason:
        parts.append(short if note.source == "local-fallback" else str(quota.get("line") or short))
    elif note.calls_left is not None:
        parts.append(f"{counted(note.calls_left, 'call')} left")
    return one_line(" · ".join([*parts, f"adapter {note.adapter_version}", f"{note.latency_s:.1f} s", f"id {note.id}"]))


def why_lines(answer: ExplanationView) -> list[str]:
    """A stored answer explained; its call as the coordinator has it, or as the record does where nobody could be asked."""
    ledger = None
    if entry := answer.ledger:
        model = f", {entry.model}" if entry.model else ""
        origin = "" if entry.reported_by == "coordinator" else " (from the record)"
        note = f"; {entry.note}" if entry.note else ""
        amounts = f"{counted(entry.tokens, 'token')}, {money(entry.charged_uusd)}{model}{origin}{note}"
        ledger = f"{entry.state.replace('_', ' ')}, {amounts}; key {entry.call_key}"
    odds = "no decision was reached"
    if answer.help_log_odds is not None:
        judged = f"; of this label's answers so far: {answer.ranking.words}" if answer.ranking else ""
        odds = f"{answer.help_log_odds:.3f}{judged}"
    shown = {
        "answer": answer.final,
        "source": _SOURCES.get(answer.source, answer.source),
        "reason": answer.reason,
        "decision": answer.decision,
        "help log-odds": odds,
        "λ": "not known" if answer.dual is None else f"{answer.dual:.3f}",
        "calls left": "no limit" if answer.calls_left is None else answer.calls_left,
        "ledger": ledger,
        "quota then": (answer.quota or {}).get("line"),
        "charged": money(answer.charged_uusd) + (f"; {_STORED}" if answer.cached else ""),
        "model": answer.model,
        "cloud model": f"{answer.cloud_model}{practice_note(answer.cloud_model)}",
        "adapter": answer.adapter_version,
        "prompt": counted(answer.prompt_tokens, "token")
        + (f", {answer.prompt_cached:,} of them read before" if answer.prompt_cached else ""),
        "feedback": None if answer.verdict == "none" else answer.verdict,
        "correction": answer.correction,
        "own attempt": None if answer.local_text == HELP_PHRASE else answer.local_text,
        "cloud said": answer.cloud_text,
    }
    indent = "\n" + " " * 16
    return [
        f"{name + ':':<15} {visible(str(value)).strip().replace(chr(10), indent)}"
        for name, value in shown.items()
        if value not in (None, "")
    ]


_MOST_CORRECTION_CHARS = 200


def noted_line(noted: FeedbackView) -> str:
    """What is printed of feedback that was stored: as it was understood, and what becomes of it."""
    right = f', right is "{one_line(shown(noted.correction, _MOST_CORRECTION_CHARS))}"' if noted.correction else ""
    outlook = f" · {noted.outlook}" if noted.outlook else ""
    return f"noted: {noted.verdict}{right} · id {noted.id}{outlook}"

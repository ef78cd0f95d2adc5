"""What an agent learned, gained, forgot and spent since a time, from its state folder.

Anchors are compared item by item: what the version that served then made of each, and what the one that serves now does. Items that
were examined with one of the two only are counted apart, so that "gained 4, lost 1 of 40" is exact.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from edge.core.errors import StateError
from edge.state.reader import used_since
from edge.state.rows import Lineage
from edge.state.schema import check_readable

_STRETCHES_S = (60, 3600, 86_400)
_MOST_STRETCHES = 200
_TABLES = {"requests", "steps", "feedback", "exams", "learning_spend", "went_back", "waits"}


def read_activity(folder: Path, since: float, now: float) -> dict[str, Any]:
    """The report of a state folder, also of one that an agent uses. Raises StateError for one that cannot be read or is too old."""
    path = folder / "agent.sqlite"
    if not path.is_file():
        raise StateError(f"{folder}: there is no agent's state here", hint="name it with --state, or run edge-agent run first")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
            check_readable(database, path)
            found = {str(row[0]) for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if missing := _TABLES - found:
                text = f"{path}: written by an older version, without {', '.join(sorted(missing))}"
                raise StateError(text, hint="start edge-agent run once; it brings the folder up to date")
            return activity_report(database, since, now)
    except (sqlite3.Error, ValueError) as error:
        raise StateError(f"{path}: cannot be read: {error}", hint="move the file away to start afresh") from error


class MadeSteps:
    """What the report needs of every step. A step is read once: what was made stays as it is, and is added to only at the end."""

    def __init__(self) -> None:
        self._last = -1
        self._steps: list[dict[str, Any]] = []

    def read(self, database: sqlite3.Connection) -> Sequence[Mapping[str, Any]]:
        """All steps, oldest first."""
        for number, event in database.execute("SELECT step, event FROM steps WHERE step > ? ORDER BY step", (self._last,)):
            fields = json.loads(event)
            self._steps.append({name: fields[name] for name in _OF_A_STEP if name in fields})
            self._last = number
        return self._steps


_OF_A_STEP = (
    "step", "at", "serving_version", "gate", "gate_reason", "source", "task", "responses", "assist_rate", "target_rate", "refused",
    "dual_after", "bands",
)  # fmt: skip


def activity_report(
    database: sqlite3.Connection, since: float, now: float, made_steps: MadeSteps | None = None
) -> dict[str, Any]:
    """The report from `since` to `now`, in seconds since the epoch. Shares are None where there was nothing to count.

    `made_steps` of the same database remembers steps from report to report.
    """
    steps = (made_steps or MadeSteps()).read(database)
    serving, then = _serving(database, steps), _serving(database, steps, until=since)
    made = [step for step in steps if step["at"] >= since]
    tasks, used = _tasks(database, then, serving), used_since(database, since)
    return {
        "since": since,
        "now": now,
        "serving_version": serving,
        "serving_version_then": then,
        "tasks": tasks,
        "total": {name: sum(task[name] for task in tasks) for name in _COUNTS},
        "learning": _learning(made),
        "bands": _bands(made),
        "went_back": _went_back(database, since),
        "answers": _answers(database, since),
        "cloud": {
            "serving": {"calls": used.calls, "tokens": used.tokens, "spend_uusd": used.spend_uusd},
            "learning": {"calls": used.learning_calls, "tokens": used.learning_tokens, "spend_uusd": used.learning_spend_uusd},
        },
        "spend": _spend_over_time(database, since),
        "rates": _rates(database, since),
        "waits": _waits(database, since, now),
        "paused": _meta(database, "learning_paused") == "1",
    }


_COUNTS = ("items", "right_then", "right_now", "gained", "lost", "new")


def _tasks(database: sqlite3.Connection, then: int, now: int) -> list[dict[str, Any]]:
    """Each source that the version of now was examined on, compared item by item with the version of then."""
    before, after, compared = _verdicts(database, then), _verdicts(database, now), []
    for source, task in database.execute("SELECT source, min(task) FROM exams GROUP BY source"):
        if source not in after:
            continue
        was, right = before.get(source, {}), after[source]
        both = [key for key in right if key in was]
        compared.append(
            {
                "source": source,
                "task": task,
                "items": len(both),
                "right_then": sum(was[key] for key in both),
                "right_now": sum(right[key] for key in both),
                "gained": sum(right[key] and not was[key] for key in both),
                "lost": sum(was[key] and not right[key] for key in both),
                "new": len(right) - len(both),
                "new_right": sum(is_right for key, is_right in right.items() if key not in was),
            }
        )
    return compared


def _verdicts(database: sqlite3.Connection, version: int) -> dict[str, dict[str, bool]]:
    """By source, the newest verdict of each item with one version."""
    found: dict[str, dict[str, bool]] = {}
    for source, text in database.execute("SELECT source, verdicts FROM exams WHERE adapter_version = ? ORDER BY id", (version,)):
        found.setdefault(source, {}).update(json.loads(text))
    return found


def _serving(database: sqlite3.Connection, steps: Iterable[Mapping[str, Any]], until: float | None = None) -> int:
    """The version that served at a time; now where None."""
    if until is None:
        text = _meta(database, "line")
        if text:
            return Lineage.from_json(text).serving
    changes = [(step["at"], step["serving_version"] if step["serving_version"] >= 0 else step["step"]) for step in steps]
    changes += database.execute("SELECT at, to_version FROM went_back ORDER BY id").fetchall()
    before = [change for change in changes if until is None or change[0] < until]
    return sorted(before, key=lambda change: change[0])[-1][1] if before else 0


def _learning(made: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    gates, by_source = [step.get("gate", "") for step in made], []
    for source, task in dict.fromkeys((step["source"], step["task"]) for step in made):
        own = [step for step in made if (step["source"], step["task"]) == (source, task)]
        responses = sum(step["responses"] for step in own)
        asked = sum(step["assist_rate"] * step["responses"] for step in own)
        by_source.append(
            {
                "source": source,
                "task": task,
                "steps": len(own),
                "assist_rate": asked / responses if responses else None,
                "target_rate": own[-1]["target_rate"],
                "refused": sum(step["refused"] for step in own),
                "dual": own[-1]["dual_after"],
            }
        )
    return {
        "steps": len(made),
        "promotions": gates.count("promoted"),
        "refusals": gates.count("refused") + gates.count("rolled back"),
        "refused_because": list(dict.fromkeys(step["gate_reason"] for step in made if step.get("gate_reason")))[-3:],
        "by_source": by_source,
    }


_BAND_STEPS = 20


def _bands(made: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What became of practice questions by source and band, in the first and the last steps: shares right here, asked, and wrong."""
    found = []
    for source in dict.fromkeys(step["source"] for step in made):
        own = [step for step in made if step["source"] == source and step.get("bands")]
        ends = min(_BAND_STEPS, len(own) // 2)
        if ends:
            first, last = _band_means(own[:ends]), _band_means(own[-ends:])
            found += [
                {"source": source, "band": band, "steps": ends, "first": first[band], "last": last[band]}
                for band in last
                if band in first
            ]
    return found


def _band_means(steps: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    sums: dict[str, dict[str, float]] = {}
    for step in steps:
        for one in step["bands"]:
            total = sums.setdefault(one["band"], dict.fromkeys(("responses", "right", "asked", "wrong"), 0.0))
            total["responses"] += one["responses"]
            for name in ("right", "asked", "wrong"):
                total[name] += one[name] * one["responses"]
    return {
        band: {name: value / total["responses"] for name, value in total.items() if name != "responses"}
        for band, total in sums.items()
    }


def _went_back(database: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    query = "SELECT at, from_version, to_version, by, reason FROM went_back WHERE at >= ? ORDER BY id"
    return _rows(database.execute(query, (since,)))


def _answers(database: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    rows = database.execute(
        "SELECT json_extract(r.record, '$.source') AS source, count(*) AS answers, coalesce(sum(f.verdict = 'good'), 0) AS good,"
        " coalesce(sum(f.verdict = 'bad'), 0) AS bad, count(f.correction) AS corrected"
        " FROM requests r LEFT JOIN feedback f ON r.id = f.request_id WHERE r.created_at >= ? GROUP BY 1 ORDER BY 1",
        (since,),
    )
    return _rows(rows)


def _spend_over_time(database: sqlite3.Connection, since: float) -> dict[str, Any]:
    """What was charged in each stretch of `stretch_s` seconds, oldest first; a stretch without a charge is left out."""
    query = "SELECT created_at, json_extract(record, '$.charged_uusd') FROM requests WHERE created_at >= ?"
    charged = [(at, "serving_uusd", uusd) for at, uusd in database.execute(query, (since,)) if uusd]
    query = "SELECT at, spend_uusd FROM learning_spend WHERE at >= ?"
    charged += [(at, "learning_uusd", uusd) for at, uusd in database.execute(query, (since,)) if uusd]
    times = [at for at, _, _ in charged]
    length = max(times) - min(times) if times else 0.0
    stretch = next((known for known in _STRETCHES_S if length / known < _MOST_STRETCHES), _STRETCHES_S[-1])
    sums: dict[float, dict[str, Any]] = {}
    for at, name, uusd in sorted(charged):
        began = at - at % stretch
        sums.setdefault(began, {"began": began, "serving_uusd": 0, "learning_uusd": 0})[name] += uusd
    return {"stretch_s": stretch, "stretches": list(sums.values())}


def _rates(database: sqlite3.Connection, since: float) -> list[dict[str, Any]]:
    """Of the answers in which the model could ask: how many did, beside the newest τ of the dial (None: the model decided alone)."""
    rows = database.execute(
        "SELECT json_extract(record, '$.task'), count(*), sum(coalesce(json_extract(record, '$.asked'), 0)),"
        " json_extract(record, '$.target_rate'), max(created_at)"
        " FROM requests WHERE created_at >= ? AND json_extract(record, '$.mode') = 'auto'"
        " AND coalesce(json_extract(record, '$.might_ask'), 1) GROUP BY 1 ORDER BY 1",
        (since,),
    )
    return [
        {"task": task or "", "answers": answers, "asked": asked, "rate": asked / answers, "target_rate": target}
        for task, answers, asked, target, _ in rows
    ]


def _waits(database: sqlite3.Connection, since: float, now: float) -> list[dict[str, Any]]:
    rows = database.execute(
        "SELECT reason, count(*) AS times, sum(max(0.0, min(ended_at, ?) - max(began_at, ?))) AS seconds FROM waits WHERE ended_at >= ?"
        " GROUP BY reason ORDER BY 3 DESC",
        (now, since, since),
    )
    return _rows(rows)


def _rows(found: sqlite3.Cursor) -> list[dict[str, Any]]:
    """The rows with their columns' names."""
    return [dict(zip((column[0] for column in found.description), row, strict=True)) for row in found]


def _meta(database: sqlite3.Connection, key: str) -> str | None:
    row = database.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])

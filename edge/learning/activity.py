"""What an agent learned, gained, forgot and spent since a time, from its state folder.

Validation questions are compared one by one: what the version that was active then made of each, and what the active one does. A source
that was not examined then is compared with its first exam. Questions that were examined once only are counted apart, so that
"gained 4, lost 1 of 40" is exact.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from edge.core.clock import day_began
from edge.core.periods import period_began
from edge.core.types import TaskItem
from edge.evaluation.judging import Candidate
from edge.learning.comparison import MOST_EXAMPLES, Asking, changed_example, changed_examples, compare
from edge.learning.promotion import Memory
from edge.state.folder import GATE_MEMORY
from edge.state.reader import no_state_in, reading
from edge.state.rows import ExamAnswer, Lineage, exam_answers
from edge.state.schema import open_in_memory
from edge.state.usage import used_since
from edge.tasks.registry import is_own

_STRETCHES_S = (60, 3600, 86_400)
_MOST_STRETCHES = 200


def read_activity(folder: Path, since: float, now: float) -> dict[str, Any]:
    """The report of a state folder, also of one that an agent uses. Raises StateError for one that cannot be read."""
    return _read(folder, lambda database: activity_report(database, since, now))


def read_headline(folder: Path, now: float) -> dict[str, Any]:
    """The headline of a state folder, likewise; of one that no agent has used, everything is nothing. Raises StateError."""
    if not (folder / "agent.sqlite").is_file():
        with closing(open_in_memory()) as nothing:
            return headline(nothing, now)
    return _read(folder, lambda database: headline(database, now))


def _read(folder: Path, read: Callable[[sqlite3.Connection], dict[str, Any]]) -> dict[str, Any]:
    with reading(folder) as state:
        if state is None:
            raise no_state_in(folder)
        return read(state.database)


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
    "dual_after", "bands", "joint_accuracy", "kept_accuracy", "coverage", "masked", "uncalled",
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
    exams, used = _Exams(database, then, serving), used_since(database, since)
    tasks = exams.compared(_asking(steps))
    return {
        "since": since,
        "now": now,
        "serving_version": serving,
        "serving_version_then": then,
        "tasks": tasks,
        "total": {**{name: sum(task[name] for task in tasks) for name in _COUNTS}, "in_the_end": _together(tasks)},
        "forgotten": exams.forgotten({version for _, version in _activations(database, steps)}),
        "learning": _learning(made),
        "bands": _bands(made),
        "went_back": _went_back(database, since),
        "answers": _answers(database, since),
        "cloud": {purpose: used.to_json()[purpose] for purpose in ("serving", "learning")},
        "spend": _spend_over_time(database, since),
        "rates": _rates(database, since),
        "waits": _waits(database, since, now),
        "paused": _meta(database, "learning_paused") == "1",
    }


_COUNTS = ("items", "right_then", "right_now", "gained", "lost", "new")


def headline(database: sqlite3.Connection, now: float, made_steps: MadeSteps | None = None) -> dict[str, Any]:
    """Four numbers for every page: the share of this month's answers that came from this device, the share of the validation questions
    that is right in the end at the present rate, how much of it was gained since the beginning, and spend today and this month.

    The validation questions are the person's own where there are some (`own`); `practice` then has those of practice separately, else None.
    Shares are None where there was nothing to count.
    """
    month, steps = period_began("month", now), (made_steps or MadeSteps()).read(database)
    tasks = _Exams(database, 0, _serving(database, steps)).compared(_asking(steps), examples=False)
    own, practice = (_ends([task for task in tasks if task["own"] == is_ones]) for is_ones in (True, False))
    has_own = bool(own["validation_questions"])
    today, this_month = used_since(database, day_began(now)), used_since(database, month)
    return {
        "answers": this_month.answers,
        "answered_locally": this_month.local_answers / this_month.answers if this_month.answers else None,
        **(own if has_own else practice),
        "own": has_own,
        "practice": practice if has_own and practice["validation_questions"] else None,
        "spent_today_uusd": today.spend_uusd + today.learning_spend_uusd,
        "spent_this_month_uusd": this_month.spend_uusd + this_month.learning_spend_uusd,
    }


def _ends(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Right in the end over some sources, for the headline. `learned_from`: how many of the validation questions are learned from, too."""
    end = _together(tasks)
    learned_from = sum(task["in_the_end"]["items"] for task in tasks if task["in_the_end"] and task["learned_from"])
    return {
        "right_in_the_end": end["after"] if end else None,
        "gained": end["after"] - end["before"] if end else None,
        "validation_questions": end["items"] if end else 0,
        "learned_from": learned_from,
    }


class _Exams:
    """What two versions made of the validation questions, by source: `before` and `after`."""

    def __init__(self, database: sqlite3.Connection, then: int, now: int) -> None:
        self._database = database
        self.before: dict[str, dict[str, ExamAnswer]] = {}
        self.after: dict[str, dict[str, ExamAnswer]] = {}
        self.task: dict[str, str] = {}
        first: dict[str, dict[str, ExamAnswer]] = {}
        query = (
            "SELECT adapter_version, source, task, verdicts FROM exams"
            " WHERE adapter_version IN (?, ?) OR id IN (SELECT min(id) FROM exams GROUP BY source) ORDER BY id"
        )
        for version, source, task, text in database.execute(query, (then, now)):
            answers = exam_answers(text)
            self.task.setdefault(source, task)
            first.setdefault(source, answers if version != now else {})
            for wanted, found in ((then, self.before), (now, self.after)):
                if version == wanted:
                    found.setdefault(source, {}).update(answers)
        for source, answers in first.items():
            self.before[source] = {**answers, **self.before.get(source, {})}

    def compared(self, asking: Mapping[str, Asking], *, examples: bool = True) -> list[dict[str, Any]]:
        """Each source that the version of now was examined on. `own`: its questions are the person's; `learned_from`: they are learned
        from, too, since none of the source is held out."""
        anchors = _anchors(self._database)
        questions = {Candidate(item).key: item.question for items in anchors.values() for item in items} if examples else {}
        found = []
        for source, after in sorted(self.after.items()):
            before, own = self.before[source], asking.get(source)
            about = {
                "source": source,
                "task": self.task[source],
                "own": is_own(source),
                "learned_from": any(item.split == "train" for item in anchors.get(source, ())),
                **compare(before, after, own),
            }
            found.append({**about, "examples": changed_examples(before, after, own, questions)} if examples else about)
        return found

    def forgotten(self, versions: Collection[int]) -> dict[str, Any]:
        """The validation questions that the active version has wrong and one of these adapters, which were active before, had right: how
        many of each source, one's own sources first, and a few with the newest such adapter."""
        by_source, examples = [], list[dict[str, Any]]()
        for source, items in sorted(_anchors(self._database).items(), key=lambda one: (not is_own(one[0]), one[0])):
            after = self.after.get(source, {})
            questions = {key: item.question for item in items if (key := Candidate(item).key) in after}
            lost = self._had_right(source, versions, [key for key in questions if not after[key].right])
            if lost:
                by_source.append({"source": source, "questions": len(lost), "of": len(questions)})
            for key, (version, before) in lost.items():
                example = changed_example(questions[key], "lost", before, after[key])
                examples.append({"source": source, "adapter": version, **example})
        return {"by_source": by_source, "examples": examples[:MOST_EXAMPLES]}

    def _had_right(self, source: str, versions: Collection[int], keys: Collection[str]) -> dict[str, tuple[int, ExamAnswer]]:
        """Of questions those that one of the adapters had right, with the newest such adapter and its answer."""
        found: dict[str, tuple[int, ExamAnswer]] = {}
        query = (
            "SELECT adapter_version, verdicts FROM exams WHERE source = ? AND adapter_version > 0 ORDER BY adapter_version DESC"
        )
        for version, text in self._database.execute(query, (source,)):
            if not (missing := [key for key in keys if key not in found]):
                break
            if version in versions:
                found |= {key: (version, one) for key, one in exam_answers(text, missing).items() if one.right}
        return found


def _anchors(database: sqlite3.Connection) -> dict[str, tuple[TaskItem, ...]]:
    """The stored validation questions by source."""
    return dict(Memory.from_json(_meta(database, GATE_MEMORY)).anchors)


def _asking(steps: Sequence[Mapping[str, Any]]) -> dict[str, Asking]:
    """The rate that each source was held to last, and how often the cloud's answers to it were right in all its steps."""
    rates: dict[str, float] = {}
    right: dict[str, float] = {}
    asked: dict[str, int] = {}
    for step in steps:
        if "target_rate" in step:
            rates[step["source"]] = step["target_rate"]
        if step.get("masked") == 0 and step.get("joint_accuracy") is not None:
            judged = step["responses"] - step.get("uncalled", 0)
            alone = round(step["coverage"] * step["responses"])
            right[step["source"]] = right.get(step["source"], 0.0) + (
                step["joint_accuracy"] * judged - (step["kept_accuracy"] or 0.0) * alone
            )
            asked[step["source"]] = asked.get(step["source"], 0) + judged - alone - step["refused"]
    return {
        source: Asking(rate, min(1.0, max(0.0, right[source] / asked[source])) if asked.get(source) else None)
        for source, rate in rates.items()
    }


def _together(tasks: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Right in the end over all sources, each at its own rate; None where it is known of none."""
    known = [task["in_the_end"] for task in tasks if task["in_the_end"]]
    items = sum(one["items"] for one in known)
    if not items:
        return None
    return {"items": items, **{end: sum(one[end] * one["items"] for one in known) / items for end in ("before", "after")}}


def _serving(database: sqlite3.Connection, steps: Iterable[Mapping[str, Any]], until: float | None = None) -> int:
    """The version that served at a time; now where None."""
    if until is None:
        text = _meta(database, "line")
        if text:
            return Lineage.from_json(text).serving
    before = [change for change in _activations(database, steps) if until is None or change[0] < until]
    return sorted(before, key=lambda change: change[0])[-1][1] if before else 0


def _activations(database: sqlite3.Connection, steps: Iterable[Mapping[str, Any]]) -> list[tuple[float, int]]:
    """When which version was active: after each step, and where somebody went back."""
    changes = [(step["at"], step["serving_version"] if step["serving_version"] >= 0 else step["step"]) for step in steps]
    return changes + database.execute("SELECT at, to_version FROM went_back ORDER BY id").fetchall()


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
    """Of the answers in which the model could ask: how many did, with the newest τ of the dial (None: the model decided alone)."""
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

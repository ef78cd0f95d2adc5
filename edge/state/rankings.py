"""How well the help log-odds of a label's local answers order right and wrong ones, from what a state folder keeps of judged answers."""

from __future__ import annotations

import json
from collections.abc import Iterator

from edge.dagrpo.ranking import RankedAnswers, Ranking, ranked
from edge.state.reader import StateReader
from edge.state.rows import ExamAnswer, exam_answers

LAST = 300
"""Judged answers of each kind, the newest ones, that count for a label."""
_RECENT_STEPS = 300
_RATED = """
SELECT task, version, form, log_odds, is_right, place FROM (
    SELECT *, row_number() OVER (PARTITION BY task ORDER BY place DESC) AS nth FROM (
        SELECT json_extract(r.record, '$.task') AS task, json_extract(r.record, '$.adapter_version') AS version,
            json_extract(r.record, '$.form') AS form,
            json_extract(r.record, '$.help_log_odds') AS log_odds, f.verdict = 'good' AS is_right, max(f.rowid) AS place
        FROM (SELECT rowid, request_id, verdict FROM feedback ORDER BY rowid DESC LIMIT 2000) f CROSS JOIN requests r ON r.id = f.request_id
        WHERE json_extract(r.record, '$.source') != 'cloud' AND json_extract(r.record, '$.help_log_odds') IS NOT NULL
        GROUP BY task, trim(json_extract(r.record, '$.prompt')),
            CASE WHEN coalesce(json_extract(r.record, '$.turns'), 1) > 1 THEN r.id END
    )
) WHERE nth <= ?
"""
"""A question that was asked again and again counts once, with its last rating; one among others is one of its own. The newest ratings, so
that a scrape costs no more with more of them; CROSS JOIN keeps SQLite from walking all answers instead."""


def rankings(state: StateReader) -> dict[str, Ranking]:
    """By label. Judged are: what the active adapter answers to validation questions when it may not ask; local answers that people rated;
    sampled responses of learning that did not ask."""
    by_task: dict[str, list[RankedAnswers]] = {}
    for judged in (_examined, _rated, _sampled):
        for task, answers in judged(state):
            by_task.setdefault(task, []).append(answers)
    return {task: Ranking(tuple(answers)) for task, answers in by_task.items()}


def ranking_of(state: StateReader, task: str) -> Ranking:
    """Of one label."""
    return rankings(state).get(task, Ranking())


def _examined(state: StateReader) -> Iterator[tuple[str, RankedAnswers]]:
    """A question that was examined again counts once."""
    query = "SELECT task, verdicts FROM exams WHERE adapter_version = ? ORDER BY id"
    by_task: dict[str, dict[str, ExamAnswer]] = {}
    for task, text in state.rows(query, (state.lineage().serving,)):
        by_task.setdefault(str(task), {}).update(exam_answers(text))
    for task, answers in by_task.items():
        yield task, ranked((key, one.help_log_odds, one.right) for key, one in answers.items() if one.help_log_odds is not None)


def _rated(state: StateReader) -> Iterator[tuple[str, RankedAnswers]]:
    comparable: dict[tuple[str, int, str], list[tuple[int, float, bool]]] = {}
    for task, version, form, log_odds, is_right, place in state.rows(_RATED, (LAST,)):
        comparable.setdefault((str(task), version, str(form)), []).append((place, log_odds, bool(is_right)))
    for (task, _, _), answers in comparable.items():
        yield task, ranked(answers)


def _sampled(state: StateReader) -> Iterator[tuple[str, RankedAnswers]]:
    """All responses of a step are one adapter's."""
    query = "SELECT task, json_extract(event, '$.ranked') FROM steps ORDER BY step DESC LIMIT ?"
    counted: dict[str, int] = {}
    for task, text in state.rows(query, (_RECENT_STEPS,)):
        if text is not None and counted.get(task, 0) < LAST:
            answers = RankedAnswers(**json.loads(text))
            counted[task] = counted.get(task, 0) + answers.right + answers.wrong
            yield str(task), answers

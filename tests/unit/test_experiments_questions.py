"""Public questions for experiments, and the card of a model."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from edge.config.schema import CoordinatorConfig
from edge.core.errors import UsageError
from edge.evaluation.judging import CLOUD_TEMPERATURE, cloud_messages
from edge.rpc.cassette import answer_digest, read_cassette
from edge.tasks.jsonl import read_file
from edge.verifiers.choice_answer import ChoiceAnswer
from tests.shared_data import shared_data
from tools.experiments.card import CardRecord, card_table, figures_of
from tools.experiments.month import Asked, Dial, RemainingBudget, SpendFirst, month
from tools.experiments.questions import CLOUD_MODEL, GROUPS, mood_of, write_questions


def test_ratings_from_eight_tenths_on_are_clear() -> None:
    assert [mood_of(rating) for rating in (-4.0, -0.8, -0.79, 0.79, 0.8)] == [
        "negative",
        "negative",
        "neutral",
        "neutral",
        "positive",
    ]


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"texts\.csv: no such file"):
        write_questions(tmp_path, tmp_path / "out")


def test_texts_are_of_their_sources_and_the_cloud_is_right_in_the_stated_share(tmp_path: Path) -> None:
    data = shared_data("mood/texts.csv").parents[1]
    *files, cassette = write_questions(data, tmp_path)
    answers, verifier = read_cassette(cassette), ChoiceAnswer()
    for group, file in zip(GROUPS, files, strict=True):
        items = read_file(file).items
        assert {item.family for item in items} == set(group.sources)
        held_out = [item for item in items if item.split == "test"]
        assert len(held_out) == 1000 and len({item.question for item in items}) == len(items) > 5000
        right = 0
        for item in held_out:
            digest = answer_digest(
                cloud_messages(item, "full"), CLOUD_MODEL, CoordinatorConfig().max_output_tokens, CLOUD_TEMPERATURE
            )
            right += verifier.is_correct(item, answers[digest].text)
        assert right == pytest.approx(1000 * group.cloud_accuracy)
    again = write_questions(data, tmp_path / "again")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in (*files, cassette)]


def record(right: bool, sampled: int, help_log_odds: float | None, uncertainty: float) -> CardRecord:
    return CardRecord("q", "plain", right, True, sampled, help_log_odds, uncertainty, 3, 1.0)


def test_figures_of_a_set() -> None:
    found = figures_of(
        [record(True, 8, -9.0, 0.1), record(True, 0, -7.0, 0.2), record(False, 1, -8.0, 0.9), record(False, 0, None, 0.3)]
    )
    assert (found["right"], found["sampled"], found["pass_at_8"], found["auc_uncertainty"]) == (0.5, 9 / 32, 0.5, 1.0)
    assert found["auc_help"] == 0.5  # of the three that decided, the wrong one is between both right ones
    table = card_table(json.loads(json.dumps({"model": "m", "sets": {"some": found}})))
    assert table.rows[0][:5] == ("some", "plain", "4", "100.0", "50.0 (15 to 85)")


def test_a_set_without_a_wrong_answer_has_no_order() -> None:
    assert figures_of([record(True, 8, -9.0, 0.1)])["auc_help"] is None


def test_a_months_rules_keep_to_the_budget_and_the_remaining_budget_is_spent() -> None:
    rng = random.Random(3)
    questions = [
        Asked(rng.gauss(3.0 if wrong else -3.0, 1.0), not wrong, True) for wrong in rng.choices([True, False], [3, 7], k=1500)
    ]
    found = {type(rule).__name__: month(questions, rule, 300) for rule in (SpendFirst(), Dial(0.1), RemainingBudget())}
    assert all(calls <= 300 for _, calls in found.values())
    assert found["SpendFirst"][1] == 300 and abs(found["Dial"][1] - 150) <= 10 and found["RemainingBudget"][1] >= 290
    assert found["RemainingBudget"][0] > found["SpendFirst"][0]

"""The promotion gate's rules, and the lineage of adapters that its decisions move."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.config.schema import GateConfig
from edge.state.rows import Lineage
from edge.training.promotion_rules import AnchorScore, refusal_of

MAX_DROP = 0.25


def score(source: str, items: int, lost: int, gained: int = 0, right: int | None = None) -> AnchorScore:
    return AnchorScore(source, items, items - gained if right is None else right, lost, gained)


@pytest.mark.parametrize(
    ("lost", "gained", "passes"),
    [(0, 16, True), (5, 0, True), (8, 0, True), (9, 0, False), (16, 0, False), (12, 4, True), (14, 2, False)],
)
def test_a_task_may_fall_by_the_largest_drop_and_no_further(lost: int, gained: int, passes: bool) -> None:
    assert (refusal_of([score("math", 32, lost, gained, right=16)], MAX_DROP) == "") is passes


def test_one_fallen_task_is_enough_and_is_named() -> None:
    scores = [score("math", 16, 0, 8), score("code", 16, 8, 0, right=12)]
    assert refusal_of(scores, MAX_DROP).startswith("code: 25 % of 16")


@pytest.mark.parametrize("items", [1, 2, 3, 4])
def test_losses_on_very_few_items_reject_nothing(items: int) -> None:
    assert refusal_of([score("watched:small", items, items)], MAX_DROP) == ""
    assert refusal_of([score("watched:small", items, items), score("math", 16, 0)], MAX_DROP) == ""
    assert refusal_of([score("watched:small", 5, 5)], MAX_DROP) != ""


def test_tasks_with_few_items_do_not_relax_the_rule_of_another() -> None:
    small = [score(f"watched:{number}", 1, number % 2) for number in range(30)]
    assert refusal_of([score("math", 16, 6), *small], MAX_DROP).startswith("math: 62 % of 16")


def test_many_small_tasks_that_all_fall_are_evidence_together() -> None:
    small = [score(f"watched:{number}", 1, 1) for number in range(6)]
    assert refusal_of(small, MAX_DROP).startswith("all tasks together: 0 % of 6")
    assert refusal_of(small[:4], MAX_DROP) == ""


def test_several_tasks_require_more_evidence_from_each() -> None:
    calm = [score(name, 16, 3, 3) for name in ("code", "facts", "science")]
    mild, clear = score("math", 16, 5), score("math", 16, 9)
    calm_but_changed = [replace(one, lost=4, gained=4) for one in calm]
    assert refusal_of([mild], MAX_DROP) != ""
    assert refusal_of([mild, *calm_but_changed], MAX_DROP) == ""
    assert refusal_of([clear, *calm_but_changed], MAX_DROP).startswith("math: ")


@pytest.mark.parametrize("tasks", [1, 2, 6])
@pytest.mark.parametrize("items", [1, 5, 16])
def test_candidate_that_differs_by_chance_is_rarely_rejected(tasks: int, items: int) -> None:
    chance, held_back = Random(7), 0
    for _ in range(200):
        lost = [sum(chance.random() < 0.5 for _ in range(items)) for _ in range(tasks)]
        scores = [AnchorScore(str(n), 2 * items, items, one, items - one) for n, one in enumerate(lost)]
        held_back += refusal_of(scores, 0.0) != ""
    assert held_back <= 20


def test_step_from_an_abandoned_base_changes_nothing() -> None:
    line = Lineage(2, 2, kept=(2,))
    assert line.after_step(5, 4, "promoted") is line


@given(st.lists(st.sampled_from(["waits", "promoted", "refused"]), max_size=30), st.integers(1, 4), st.integers(1, 4))
def test_training_is_never_behind_the_active_version_and_few_versions_are_kept(
    outcomes: list[str], max_refusals: int, keep: int
) -> None:
    line, promoted = Lineage(0, 0), [0]
    for step, outcome in enumerate(outcomes, 1):
        line = line.after_step(step, line.latest, outcome, max_refusals=max_refusals, keep=keep)
        promoted += [step] * (outcome == "promoted")
        assert line.serving == promoted[-1] <= line.latest
        assert line.refusals < max_refusals
        assert len(line.kept) <= keep
        assert line.serving in (0, *line.kept)
        assert Lineage.from_json(line.to_json()) == line


def test_rollback_keeps_the_version_it_leaves() -> None:
    line = Lineage(9, 8, 2, kept=(3, 8)).back_to(3)
    assert (line.latest, line.serving, line.refusals, line.kept) == (3, 3, 0, (8, 9, 3))
    assert Lineage(2, 2).back_to(0) == Lineage(0, 0, 0, (2,))
    back = Lineage(33, 30, kept=(10, 21, 30)).back_to(10).back_to(21).back_to(0)
    assert 30 in back.kept, "a user who inspects older versions can return"
    assert len(back.after_step(34, 0, "promoted").kept) == 3


def test_combined_fall_of_all_tasks_is_rejected_though_none_fell_too_far() -> None:
    fell = [score(name, 16, 4, 1, right=10) for name in ("arith", "science", "code")]
    assert refusal_of([fell[0]], GateConfig().max_drop) == "" and refusal_of(fell[:1] * 2, GateConfig().max_drop) == ""
    assert refusal_of(fell, GateConfig().max_drop).startswith("all tasks together: 44 % of 48")
    assert refusal_of(fell, 1.0) == ""

"""The promotion gate's rules, and the lineage of adapters that its decisions move."""

from __future__ import annotations

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


def one_each(count: int, lost: int | None = None) -> list[AnchorScore]:
    """Tasks with one question each, of which every second one is lost unless `lost` says."""
    return [score(f"watched:{number}", 1, number % 2 if lost is None else lost) for number in range(count)]


CHANGED = [score(name, 16, 4, 4) for name in ("code", "facts", "science")]
FELL = [score(name, 16, 4, 1, right=10) for name in ("arith", "science", "code")]
JUDGED = {
    **{f"{lost} lost and {gained} gained of 32": ([score("math", 32, lost, gained, right=16)], MAX_DROP, "") for lost, gained in
       ((0, 16), (5, 0), (8, 0), (12, 4))},
    **{f"{lost} lost and {gained} gained": ([score("math", 32, lost, gained, right=16)], MAX_DROP, "math: ") for lost, gained in
       ((9, 0), (16, 0), (14, 2))},
    "one fallen task is enough": ([score("math", 16, 0, 8), score("code", 16, 8, 0, right=12)], MAX_DROP, "code: 25 % of 16"),
    **{f"{items} items are no evidence": ([score("small", items, items), score("math", 16, 0)], MAX_DROP, "") for items in range(1, 5)},
    **{f"{items} items alone are no evidence": ([score("small", items, items)], MAX_DROP, "") for items in range(1, 5)},
    "five are": ([score("small", 5, 5)], MAX_DROP, "small: "),
    "small tasks do not relax the rule of another": ([score("math", 16, 6), *one_each(30)], MAX_DROP, "math: 62 % of 16"),
    "many small tasks are evidence together": (one_each(6, lost=1), MAX_DROP, "all tasks together: 0 % of 6"),
    "few are not": (one_each(4, lost=1), MAX_DROP, ""),
    "a mild fall": ([score("math", 16, 5)], MAX_DROP, "math: "),
    "a mild fall among several tasks": ([score("math", 16, 5), *CHANGED], MAX_DROP, ""),
    "a clear fall among several tasks": ([score("math", 16, 9), *CHANGED], MAX_DROP, "math: "),
    "one that fell a little": (FELL[:1], GateConfig().max_drop, ""),
    "two that fell a little": (FELL[:1] * 2, GateConfig().max_drop, ""),
    "all fell a little": (FELL, GateConfig().max_drop, "all tasks together: 44 % of 48"),
    "all fell a little, which may be": (FELL, 1.0, ""),
}  # fmt: skip


@pytest.mark.parametrize(("scores", "max_drop", "refusal"), JUDGED.values(), ids=JUDGED)
def test_candidate_is_refused_for_evidence_of_a_fall_and_the_task_is_named(
    scores: list[AnchorScore], max_drop: float, refusal: str
) -> None:
    found = refusal_of(scores, max_drop)
    assert found.startswith(refusal) and bool(found) == bool(refusal)


def test_a_skill_may_fall_less_than_a_task() -> None:
    general = score("general", 60, 6)
    assert refusal_of([general], MAX_DROP) == ""
    assert refusal_of([general], MAX_DROP, {"general": 0.02}).startswith("general: ")
    assert refusal_of([score("general", 60, 1)], MAX_DROP, {"general": 0.0}) == "", "one lost answer is chance"


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

"""How the help log-odds order right and wrong answers: AUC, its interval, and what is said of it."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.dagrpo.metrics import wilson_interval
from edge.dagrpo.ranking import RankedAnswers, Ranking, area_under_curve, ranked

SCORES = st.lists(st.sampled_from([-3.0, -0.5, 0.0, 0.25, 4.0]), max_size=12)


def of(*adapters: tuple[list[float], list[float]]) -> Ranking:
    """Of (wrong, right) scores by adapter, each of a question of its own."""
    return Ranking(
        tuple(ranked([(n, score, n >= len(wrong)) for n, score in enumerate([*wrong, *right])]) for wrong, right in adapters)
    )


@given(SCORES, SCORES)
def test_auc_is_the_share_of_pairs_in_order_with_ties_half(wrong: list[float], right: list[float]) -> None:
    pairs = [(one > other) + 0.5 * (one == other) for one in wrong for other in right]
    assert area_under_curve(wrong, right) == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


@given(SCORES, SCORES, st.floats(-9.0, 9.0))
def test_drift_of_the_log_odds_between_adapters_changes_nothing(wrong: list[float], right: list[float], drift: float) -> None:
    moved = ([round(score + drift, 6) for score in wrong], [round(score + drift, 6) for score in right])
    once, twice = of((wrong, right)), of((wrong, right), moved)
    assert twice.auc == (None if once.auc is None else pytest.approx(once.auc))


@given(SCORES.filter(bool), SCORES.filter(bool))
def test_interval_holds_the_auc_within_0_and_1_and_is_never_a_point(wrong: list[float], right: list[float]) -> None:
    ranking = of((wrong, right))
    assert ranking.auc is not None and ranking.interval is not None
    low, high = ranking.interval
    assert 0.0 <= low <= ranking.auc <= high <= 1.0 and high - low > 0.1


@pytest.mark.parametrize(("in_order", "adapters"), [(0, 5), (12, 30), (30, 30), (150, 200)])
def test_interval_of_one_pair_an_adapter_is_that_of_a_share(in_order: int, adapters: int) -> None:
    ranking = of(*[([1.0], [0.0]) if number < in_order else ([0.0], [1.0]) for number in range(adapters)])
    assert ranking.auc == pytest.approx(in_order / adapters)
    assert ranking.interval == pytest.approx(wilson_interval(in_order, adapters), abs=1e-9)


@pytest.mark.parametrize(("adapters", "questions", "samples"), [(1, 16, 1), (1, 60, 1), (12, 6, 1), (30, 8, 1), (6, 4, 8)])
@pytest.mark.parametrize("signal", [0.0, 1.0])
def test_interval_holds_the_true_auc_of_drifting_adapters_19_times_in_20(
    adapters: int, questions: int, samples: int, signal: float
) -> None:
    """Samples of one question share its difficulty and its log-odds."""
    rng = Random(7)

    def drawn(adapters: int) -> Ranking:
        found = []
        for adapter in range(adapters):
            answers = []
            for question in range(questions):
                difficulty = rng.gauss(0.0, 1.0)
                score = signal * difficulty + rng.gauss(0.0, 1.0) + 0.5 * adapter
                answers += [(question, score, rng.gauss(0.0, 1.0) > difficulty) for _ in range(samples)]
            found.append(ranked(answers))
        return Ranking(tuple(found))

    true = drawn(1500).auc
    assert true is not None
    tried = [found.interval for _ in range(200) if (found := drawn(adapters)).interval is not None]
    assert sum(low <= true <= high for low, high in filter(None, tried)) >= 0.92 * len(tried)


def test_samples_of_few_questions_are_little_evidence() -> None:
    one_each = of((list(map(float, range(4, 12))), list(map(float, range(8)))))
    sampled = ranked([(question, score + question, score < 4) for question in (0, 1) for score in map(float, range(8))])
    assert (sampled.right, sampled.wrong, sampled.right_questions, sampled.wrong_questions) == (8, 8, 2, 2)
    wide, narrow = Ranking((sampled,)).interval, one_each.interval
    assert wide is not None and narrow is not None and wide[1] - wide[0] > narrow[1] - narrow[0]


UP, MIXED = [float(number) for number in range(30)], [float(number) for number in (3, 1, 4, 1, 5, 9, 2, 6)]


@pytest.mark.parametrize(
    ("ranking", "said"),
    [
        (Ranking(), ("too few judged answers (0)",)),
        (of((UP[:4], UP[:3])), ("too few judged answers (7)",)),
        (of((MIXED, MIXED)), ("AUC 0.50 (", "16 judged answers", "says nothing about right and wrong yet")),
        (of((UP[20:], UP[:12])), ("AUC 1.00 (", "better than chance")),
        (of((UP[:12], UP[20:])), ("AUC 0.00 (", "worse than chance")),
        (of(([], UP)), ("all 30 judged answers were right",)),
        (of((UP, [])), ("all 30 judged answers were wrong",)),
        (of((UP[:6], []), ([], UP[:6])), ("12 judged answers", "no adapter has both")),
        (Ranking((RankedAnswers(9, 0, 9, 0, None),)), ("too few judged answers (9)",)),
    ],
)
def test_words_say_what_is_known_and_when_it_is_nothing(ranking: Ranking, said: tuple[str, ...]) -> None:
    assert all(part in ranking.words for part in said), ranking.words

"""Sampling maths: exact log-probabilities, the right distribution, independence of rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edge.core.errors import NotFinite
from edge.core.rng import stream
from edge.inference.sampling import (
    RowSampler,
    keep_likeliest,
    likeliest,
    log_odds_of,
    log_probabilities,
)

SIZES = st.integers(2, 700)


def made_up_logits(rows: int, vocab: int, seed: int, spread: float = 4.0) -> np.ndarray:
    return (np.random.Generator(np.random.Philox(seed)).normal(size=(rows, vocab)) * spread).astype(np.float32)


def exact_logprobs(logits: np.ndarray) -> np.ndarray:
    wide = logits.astype(np.float64)
    shifted = wide - wide.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def draw(logits: np.ndarray, temperatures: list[float], uniforms: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return RowSampler(logits.shape[1], len(logits)).sample(logits, np.asarray(temperatures), np.asarray(uniforms))


@given(SIZES, st.integers(1, 9), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_log_probabilities_are_those_of_the_raw_row_at_temperature_one(vocab: int, rows: int, seed: int) -> None:
    logits = made_up_logits(rows, vocab, seed)
    for temperature in (0.0, 0.7, 1.0):
        ids, logprobs = draw(logits, [temperature] * rows, [stream(seed, i).random() for i in range(rows)])
        expected = exact_logprobs(logits)[np.arange(rows), ids]
        np.testing.assert_allclose(logprobs, expected, atol=2e-6)


@given(SIZES, st.integers(0, 999), st.floats(0, 1, exclude_max=True))
@settings(max_examples=100, deadline=None)
def test_the_drawn_token_is_where_the_cumulative_probability_passes_the_uniform(vocab: int, seed: int, uniform: float) -> None:
    logits = made_up_logits(1, vocab, seed)
    ids, _ = draw(logits, [1.0], [uniform])
    cumulative = np.cumsum(np.exp(exact_logprobs(logits)[0]))
    before = cumulative[ids[0] - 1] if ids[0] else 0.0
    assert before - 1e-5 <= uniform <= cumulative[ids[0]] + 1e-5


@given(SIZES, st.integers(2, 12), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_row_gives_the_same_bits_in_any_batch(vocab: int, rows: int, seed: int) -> None:
    logits = made_up_logits(rows, vocab, seed)
    temperatures = [(1.0, 0.0, 0.6)[i % 3] for i in range(rows)]
    uniforms = [stream(seed, "u", i).random() for i in range(rows)]
    ids, logprobs = draw(logits, temperatures, uniforms)
    for row in range(rows):
        alone_id, alone_logprob = draw(logits[row : row + 1].copy(), [temperatures[row]], [uniforms[row]])
        assert (alone_id[0], alone_logprob[0]) == (ids[row], logprobs[row])


def test_temperature_sharpens_the_draw_but_not_the_recorded_log_probability() -> None:
    logits = np.tile(np.array([[1.0, 0.0]], dtype=np.float32), (8_000, 1))
    random = stream(6, "temperature")
    ids, logprobs = draw(logits, [0.5] * len(logits), [random.random() for _ in logits])
    assert np.mean(ids == 0) == pytest.approx(1 / (1 + np.exp(-2.0)), abs=0.015)
    assert logprobs[ids == 0][0] == pytest.approx(-np.log1p(np.exp(-1.0)), abs=1e-6)


def test_temperature_zero_takes_the_first_of_equal_maxima() -> None:
    logits = np.array([[0.0, 3.0, 3.0, 1.0], [5.0, 5.0, 5.0, 5.0]], dtype=np.float32)
    ids, _ = draw(logits, [0.0, 0.0], [0.9, 0.9])
    assert ids.tolist() == [1, 0]


@pytest.mark.parametrize("temperature", [1e-20, 1e-37, 1e-40, 1e-45, 1e-46, 1e-300, 5e-324])
@pytest.mark.parametrize("share", [1.0, 0.5, 1e-9])
def test_however_small_a_temperature_is_the_likeliest_token_is_taken_with_its_log_probability(
    temperature: float, share: float
) -> None:
    logits = made_up_logits(3, 300, 5)
    logits[1, :7] = -np.inf
    temperatures, uniforms = np.array([temperature, temperature, 1.0]), np.array([0.0, 0.999, 0.4])
    ids, logprobs = RowSampler(300, 3).sample(logits, temperatures, uniforms, None, np.array([share, share, 1.0]))
    assert ids[:2].tolist() == logits[:2].argmax(axis=1).tolist()
    np.testing.assert_allclose(logprobs, exact_logprobs(logits)[np.arange(3), ids], atol=2e-6)
    assert ids[2] == draw(logits[2:], [1.0], [0.4])[0][0]


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1.0 - 2.0**-53])
def test_a_forbidden_token_is_never_drawn(uniform: float) -> None:
    vocab = 300
    logits = np.full((1, vocab), -np.inf, dtype=np.float32)
    logits[0, [7, 130, 131, 250]] = [0.0, 1.0, -3.0, -90.0]
    ids, logprobs = draw(logits, [1.0], [uniform])
    assert ids[0] in (7, 130, 131)
    assert np.isfinite(logprobs[0])


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_a_row_without_a_finite_maximum_is_refused(bad: float) -> None:
    with pytest.raises(NotFinite):
        draw(np.full((1, 20), bad, dtype=np.float32), [1.0], [0.5])


def test_scratch_memory_does_not_carry_over_between_calls() -> None:
    sampler = RowSampler(50, 4)
    first, second = made_up_logits(4, 50, 1), made_up_logits(2, 50, 2)
    ones, halves = np.ones(4), np.full(4, 0.5)
    sampler.sample(first, ones, halves)
    ids, logprobs = sampler.sample(second, ones[:2], halves[:2])
    alone_ids, alone_logprobs = RowSampler(50, 4).sample(second, ones[:2], halves[:2])
    assert ids.tolist() == alone_ids.tolist()
    assert logprobs.tolist() == alone_logprobs.tolist()


@given(st.floats(-20, 20), st.integers(0, 99))
@settings(max_examples=50, deadline=None)
def test_a_bias_shifts_the_log_odds_of_a_token_set_by_exactly_that_much(bias: float, seed: int) -> None:
    logits = made_up_logits(1, 64, seed, spread=1.0)[0]
    tokens = np.array([3, 17, 40])
    shifted = logits.copy()
    shifted[tokens] += np.float32(bias)
    assert log_odds_of(shifted, tokens) - log_odds_of(logits, tokens) == pytest.approx(bias, abs=1e-4)


def test_log_odds_are_clipped_where_a_side_has_no_mass() -> None:
    row = np.array([0.0, -np.inf], dtype=np.float32)
    assert log_odds_of(row, np.array([1])) == -60.0
    assert log_odds_of(row, np.array([0])) == 60.0
    assert log_odds_of(row, np.array([], dtype=np.intp)) == -60.0


@given(SIZES, st.integers(0, 999), st.floats(0.01, 0.999), st.floats(0.0, 8.0))
@settings(max_examples=150, deadline=None)
def test_likeliest_tokens_up_to_the_share_are_kept_and_no_more(vocab: int, seed: int, share: float, spread: float) -> None:
    mass = np.exp(made_up_logits(1, vocab, seed, spread)[0])
    kept = mass.copy()
    keep_likeliest(kept, share)
    total, held = mass.sum(dtype=np.float64), kept.sum(dtype=np.float64)
    assert held >= share * total * (1 - 1e-6)
    survivors = kept[kept > 0]
    assert np.array_equal(kept[kept > 0], mass[kept > 0])
    assert held - survivors.min() < share * total * (1 + 1e-6)
    assert len(survivors) == vocab or mass[kept == 0].max() <= survivors.min()


def test_top_p_limits_the_draw_but_not_the_log_probability() -> None:
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], dtype=np.float32)).repeat(200, axis=0)
    uniforms = np.linspace(0.0, 0.9999, 200)
    shares = np.full(200, 0.7)
    sampler = RowSampler(4, 200)
    for temperature in (1.0, 0.999):
        ids, logprobs = sampler.sample(logits, np.full(200, temperature), uniforms, None, shares)
        assert set(ids.tolist()) == {0, 1}
        assert np.mean(ids == 0) == pytest.approx(0.5 / 0.8, abs=0.01)
        np.testing.assert_allclose(logprobs, np.log([0.5, 0.3])[ids], atol=1e-5)
    mixed, _ = sampler.sample(logits, np.ones(200), uniforms, None, np.where(np.arange(200) % 2, 0.7, 1.0))
    plain, _ = sampler.sample(logits, np.ones(200), uniforms)
    assert np.array_equal(mixed[::2], plain[::2])
    assert set(mixed[1::2].tolist()) == {0, 1}


@given(SIZES, st.integers(1, 9), st.integers(0, 999))
@settings(max_examples=60, deadline=None)
def test_alternatives_are_the_likeliest_with_the_distance_to_the_chosen_one(vocab: int, count: int, seed: int) -> None:
    row = made_up_logits(1, vocab, seed)[0]
    chosen = seed % vocab
    ids, above = likeliest(row, count, chosen)
    order = np.lexsort((np.arange(vocab), -row))[:count]
    assert np.array_equal(row[ids], row[order])
    exact = exact_logprobs(row)
    np.testing.assert_allclose(exact[chosen] + above, exact[ids], atol=1e-5)
    assert float(log_probabilities(row[None], np.array([chosen]))[0]) == pytest.approx(exact[chosen], abs=1e-6)


def test_threads_change_no_bit_and_reject_scores_that_are_not_finite() -> None:
    logits = made_up_logits(9, 150_000, 3, 3.5)
    ones, uniforms = np.ones(9), np.linspace(0.05, 0.95, 9)
    alone = RowSampler(150_000, 9).sample(logits, ones, uniforms)
    shared = RowSampler(150_000, 9, threads=3)
    for found, expected in zip(shared.sample(logits, ones, uniforms), alone, strict=True):
        assert np.array_equal(found, expected)
    logits[4, 7] = np.nan
    with pytest.raises(NotFinite):
        shared.sample(logits, ones, uniforms)

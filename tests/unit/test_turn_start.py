"""The decision at the start of a plain turn: with it a model says what it would have said, only that the decision is known first."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from edge.core.forms import PlainForm
from edge.core.rng import stream
from edge.core.types import FinishReason, LocalResponse, Sampling
from edge.core.worker import Priority
from edge.dagrpo.format import asks_help, help_trigger_span, is_well_formed
from edge.dagrpo.prompts import HELP_PHRASE
from edge.dagrpo.turn_start import ask_probability, log_odds, slope
from edge.inference.batcher import Batcher, Request

TEXTS = ["", "I", " need", " more", "Paris"]
EOS, PHRASE, LENGTH, PROMPT = 0, (1, 2, 3), 4, 4


class Tokens:
    texts = TEXTS
    pieces = [text.encode() for text in TEXTS]  # noqa: RUF012
    ends = [token == EOS for token in range(len(TEXTS))]  # noqa: RUF012
    control_ids = {"<|end|>": EOS}  # noqa: RUF012


def logits_after(output: tuple[int, ...]) -> np.ndarray:
    """A model: any text so far has logits of its own, and the phrase is likely."""
    rng = stream(7, "model", *output)
    logits = np.array([rng.gauss(0.0, 1.0) for _ in TEXTS], dtype=np.float32)
    if output == PHRASE[: len(output)] and len(output) < len(PHRASE):
        logits[PHRASE[len(output)]] += 1.5
    return logits


class TableEngine:
    vocab_size, n_ctx, same_in_parts = len(TEXTS), 64, True

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.memory: list[list[int]] = [[] for _ in range(rows)]

    def prefill(self, row: int, ids: list[int], start: int = 0) -> np.ndarray:
        self.memory[row] = [*self.memory[row][:start], *ids]
        return self._logits(row)

    def read(self, row: int, ids: list[int], start: int = 0) -> Iterator[np.ndarray]:
        del self.memory[row][start:]
        for token in ids:
            self.memory[row].append(token)
            yield self._logits(row)[None]

    def decode(self, tokens: np.ndarray, positions: np.ndarray) -> np.ndarray:
        for row, (token, position) in enumerate(zip(tokens, positions, strict=True)):
            assert len(self.memory[row]) == position, "the phrase is no part of the row"
            self.memory[row].append(int(token))
        return np.stack([self._logits(row) for row in range(len(tokens))])

    def fork(self, source: int, target: int, length: int) -> None:
        self.memory[target] = self.memory[source][:length]

    def _logits(self, row: int) -> np.ndarray:
        return logits_after(tuple(self.memory[row][1:])).copy()


def sampled(count: int, **changes: object) -> tuple[LocalResponse, ...]:
    batcher = Batcher(TableEngine(16), Tokens(), rollout_rows=16)  # type: ignore[arg-type]
    sampling = Sampling(**{"max_tokens": LENGTH, "form": PlainForm(), **changes})  # type: ignore[arg-type]
    request = Request([PROMPT], sampling, range(count), Priority.ROLLOUT, phrase_ids=PHRASE)
    batcher.add(request)
    while batcher.has_work(Priority.TRAINING):
        batcher.step()
    return request.future.result().responses


def chances() -> dict[tuple[int, ...], float]:
    """The probability of every text of the model itself; those that begin with the phrase are one."""
    texts = {
        output[: output.index(EOS) + 1] if EOS in output else output
        for output in itertools.product(range(len(TEXTS)), repeat=LENGTH)
    }
    found: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        total = 1.0
        for place, token in enumerate(text):
            logits = logits_after(text[:place]).astype(float)
            total *= math.exp(logits[token]) / np.exp(logits).sum()
        found[PHRASE if text[: len(PHRASE)] == PHRASE else text] += total
    return dict(found)


def by_text(responses: tuple[LocalResponse, ...]) -> Counter[tuple[int, ...]]:
    return Counter(response.token_ids for response in responses)


def phrase_chance() -> float:
    return math.exp(sum(phrase_logprobs()))


def phrase_logprobs() -> list[float]:
    logits = [torch.tensor(logits_after(PHRASE[:place])).double() for place in range(len(PHRASE))]
    return [float(one.log_softmax(-1)[token]) for one, token in zip(logits, PHRASE, strict=True)]


def test_without_a_bias_the_responses_have_the_distribution_of_the_model_itself() -> None:
    count, expected = 6000, chances()
    assert 0.1 < expected[PHRASE] < 0.9, "a model that often begins with the phrase"
    found = by_text(sampled(count))
    likely = {text: share for text, share in expected.items() if share > 0.004}
    assert len(likely) > 20
    chi_squared = sum((found[text] - count * share) ** 2 / (count * share) for text, share in likely.items())
    assert chi_squared < len(likely) + 4.0 * math.sqrt(2.0 * len(likely))


def test_a_bias_moves_the_decision_alone() -> None:
    count, bias = 4000, -1.0
    responses = sampled(count, help_bias=bias)
    asking = [one for one in responses if one.text == HELP_PHRASE]
    expected = ask_probability(log_odds(phrase_logprobs()), bias)
    assert len(asking) / count == pytest.approx(expected, abs=0.03)
    others = chances()
    rest = 1.0 - others.pop(PHRASE)
    found = by_text(tuple(one for one in responses if one.text != HELP_PHRASE))
    for text, share in others.items():
        if share / rest > 0.05:
            assert found[text] / (count - len(asking)) == pytest.approx(share / rest, abs=0.03)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_with_help_suppressed_no_response_begins_with_the_phrase(temperature: float) -> None:
    for response in sampled(200, temperature=temperature, suppress_help=True):
        assert response.token_ids[: len(PHRASE)] != PHRASE
        assert response.help_log_odds == pytest.approx(log_odds(phrase_logprobs()), abs=1e-4)
        assert not asks_help(response, 4)


def test_a_request_has_the_phrase_as_its_text_and_says_who_decided() -> None:
    (forced,) = sampled(1, temperature=0.0, help_bias=30.0)
    assert (forced.text, forced.token_ids, forced.finish) == (HELP_PHRASE, PHRASE, FinishReason.EOS)
    assert forced.overridden == ("" if phrase_chance() > 0.5 else "to ask")
    assert forced.start is not None and forced.start.asked
    assert asks_help(forced, 1) and is_well_formed(forced, 1) and help_trigger_span(forced.text) == (0, len(HELP_PHRASE))


def test_recorded_log_probabilities_are_those_of_the_model_itself() -> None:
    for response in sampled(200, help_bias=-20.0):
        for place, (token, logprob) in enumerate(zip(response.token_ids, response.logprobs, strict=True)):
            own = torch.tensor(logits_after(response.token_ids[:place])).double().log_softmax(-1)[token]
            assert logprob == pytest.approx(float(own), abs=1e-4)


def test_the_decision_does_not_depend_on_how_much_may_be_written() -> None:
    found = [sampled(1, temperature=0.0, certainty=5.0, help_bias=-50.0, max_tokens=most)[0] for most in range(1, 12)]
    assert len({one.help_log_odds for one in found}) == 1 and found[0].doubt
    for most, one in enumerate(found, 1):
        assert len(one.token_ids) <= most and found[-1].token_ids[: len(one.token_ids)] == one.token_ids


def test_a_stop_string_in_the_draft_ends_text_and_tokens_there() -> None:
    (whole,) = sampled(1, temperature=0.0, certainty=5.0, help_bias=-50.0, max_tokens=8)
    word = TEXTS[whole.token_ids[1]]
    (cut,) = sampled(1, temperature=0.0, certainty=5.0, help_bias=-50.0, max_tokens=8, stops=(word,))
    assert cut.finish is FinishReason.STOP and cut.text == whole.text[: whole.text.index(word)]
    assert len(cut.token_ids) <= 2


def test_reported_chances_are_those_of_the_model_itself() -> None:
    for response in sampled(8, help_bias=-20.0, top_logprobs=len(TEXTS)):
        for place, token in enumerate(response.tokens):
            own = torch.tensor(logits_after(response.token_ids[:place])).double().log_softmax(-1)
            assert token.logprob == pytest.approx(float(own[token.token_id]), abs=1e-4)
            assert {one.token_id: one.logprob for one in token.top} == pytest.approx(dict(enumerate(own.tolist())), abs=1e-4)


class MovedEngine(TableEngine):
    """After another adapter is in use the model is another one."""

    moved = False

    def _logits(self, row: int) -> np.ndarray:
        return super()._logits(row) + (np.arange(len(TEXTS), dtype=np.float32) if self.moved else 0.0)


def test_a_decision_is_never_made_of_two_adapters() -> None:
    def log_odds_of(swaps: bool, moved: bool) -> tuple[float, ...]:
        engine = MovedEngine(2)
        engine.moved = moved
        batcher = Batcher(engine, Tokens(), rollout_rows=2)  # type: ignore[arg-type]
        request = Request(
            [PROMPT], Sampling(1.0, LENGTH, form=PlainForm(), certainty=5.0), range(4), Priority.ROLLOUT, phrase_ids=PHRASE
        )
        batcher.add(request)
        batcher.has_work(Priority.TRAINING)
        batcher.step()  # the prompt is read and the draft begun
        batcher.hold = swaps
        while swaps and batcher.has_work(Priority.TRAINING):
            batcher.step()
        if swaps:
            batcher.forget_prompts()
            batcher.hold, engine.moved = False, True
        while batcher.has_work(Priority.TRAINING):
            batcher.step()
        return tuple(one.help_log_odds or 0.0 for one in request.future.result().responses)

    assert log_odds_of(True, False) == log_odds_of(False, True) != log_odds_of(False, False)


@pytest.mark.parametrize("among_few", [False, True])
@pytest.mark.parametrize(("bias", "asked"), [*itertools.product([-3.0, 0.0, 0.7, 5.0], [True, False]), (-math.inf, False)])
def test_the_slope_is_the_gradient_of_the_policy(bias: float, asked: bool, among_few: bool) -> None:
    logits = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(3)).requires_grad_()
    phrase_3 = logits.log_softmax(-1)[torch.arange(3), torch.tensor([0, 1, 2])]
    total = phrase_3.sum()
    rest = torch.log(-torch.expm1(total))
    shifted = total - rest + bias
    # the decision, and for a response that does not ask what is left of the model's distribution: π(y) / (1 - p)
    policy = torch.nn.functional.logsigmoid(shifted if asked else -shifted) - (0.0 if asked or among_few else rest)
    (exact,) = torch.autograd.grad(policy, logits, retain_graph=True)
    (of_phrase,) = torch.autograd.grad(total, logits)
    found = slope(phrase_3.detach().tolist(), bias, asked, among_few)
    torch.testing.assert_close(found * of_phrase, exact)


@pytest.mark.parametrize("total", [-400.0, -30.0, -1e-3, -1e-15, 0.0])
def test_the_decision_is_finite_for_any_phrase(total: float) -> None:
    assert -60.0 <= log_odds([total]) <= 60.0
    for bias in (-30.0, 0.0, 30.0):
        for asked in (True, False):
            assert math.isfinite(slope([total], bias, asked))

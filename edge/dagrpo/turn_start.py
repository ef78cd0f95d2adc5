"""The decision to ask at the start of a turn, for answers whose text is free.

A response asks where its text begins with the help phrase h_1 ... h_K. Its probability is known before anything is written,

    p = Π_k p_k,   p_k = π(h_k | prompt, h_1 ... h_{k-1}),   z = log p - log(1 - p),

so the decision is drawn first, with probability σ(z + b), b the help bias. A response that does not ask is drawn from what is left of the
model's distribution: where the text so far is h_1 ... h_{k-1}, the weight of h_k is p_k times the probability that the phrase is not
finished after it. So with b = 0 the two draws together are the model's own distribution, and no text is changed by the decision.

The gradient of the log-probability of a response y, with log π(y) that of its tokens in the model itself, is

    asks:          (1 - σ(z + b)) ∇z                          with  ∇z = ∇ log p / (1 - p)
    does not ask:  ∇ log π(y) + p/(1 - p) ∇ log p - σ(z + b) ∇z

so next to the responses' own tokens all that is learned is the phrase after the prompt, with `slope` as its coefficient.

The model's certainty may add to the decision, σ(z + a·u + b): u is the mean of -log π over a draft, the likeliest answer's first tokens.
Before anything is learned u tells right from wrong answers, and z does not. Like b it is given, not learned: with its gradient the answers
are moved to be surer or less sure, not to be right (tools/experiments/LOG.md).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

MOST_LOG_ODDS = 60.0
_SUREST = 10.0
"""Beyond these log-odds ∇ log p, which falls as 1 - p does, is rounding in single precision, and is multiplied no further."""


def log_odds(phrase_logprobs_K: Sequence[float]) -> float:
    """z (nats), within ±60."""
    total = min(0.0, math.fsum(phrase_logprobs_K))
    rest = -math.expm1(total)
    return min(MOST_LOG_ODDS, max(-MOST_LOG_ODDS, total - math.log(rest) if rest > 0.0 else MOST_LOG_ODDS))


def ask_probability(log_odds: float, bias: float, temperature: float = 1.0) -> float:
    """σ((z + b) / T); at T = 0 it is 1 or 0."""
    shifted = log_odds + bias
    if temperature == 0.0 or math.isinf(shifted):
        return float(shifted > 0.0)
    return _sigmoid(shifted / temperature)


def unfinished(phrase_logprobs_K: Sequence[float]) -> tuple[float, ...]:
    """For each token of the phrase the logarithm of the probability that the phrase is not finished after it; -inf for the last."""
    left = [math.fsum(phrase_logprobs_K[place:]) for place in range(1, len(phrase_logprobs_K))]
    return (*(_log_of_rest(total) for total in left), -math.inf)


def slope(phrase_logprobs_K: Sequence[float], bias: float, asked: bool, among_few: bool = False) -> float:
    """What multiplies ∇ log p in the gradient of a response's log-probability. `among_few`: where it does not ask, it is one of a few
    answers, among which the phrase is not; its tokens' log-probabilities leave nothing out."""
    own = min(_SUREST, log_odds(phrase_logprobs_K))
    unasked = 0.0 if among_few else _sigmoid(own)
    return ((1.0 if asked else unasked) - ask_probability(own, bias)) / _sigmoid(-own)


def unsure(draft_logprobs_N: Sequence[float]) -> float:
    """u: the mean of -log π (nats)."""
    return -math.fsum(draft_logprobs_N) / len(draft_logprobs_N) if draft_logprobs_N else 0.0


def _log_of_rest(total: float) -> float:
    rest = -math.expm1(min(0.0, total))
    return math.log(rest) if rest > 0.0 else -math.inf


def _sigmoid(value: float) -> float:
    if value >= 0.0:
        return 1.0 / (1.0 + math.exp(-value))
    return math.exp(value) / (1.0 + math.exp(value))

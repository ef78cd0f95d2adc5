"""What a router classifier looks at, as numbers. Knows questions and local responses; knows nothing of weights or thresholds."""

from __future__ import annotations

import math
import re
from hashlib import blake2b

from edge.core.types import LocalResponse, TaskItem

HASHED_WORDS = 64
NUMBERS = ("help_log_odds", "decision_reached", "mean_logprob", "least_logprob", "log_response_tokens", "log_question_characters")
FEATURES = len(NUMBERS) + HASHED_WORDS
VERSION = "1"
"""Changes with the meaning of any feature; a classifier made for another version is refused."""
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def features(item: TaskItem, response: LocalResponse) -> list[float]:
    """NUMBERS in their order, then the share of the question's words in each of HASHED_WORDS bins (a number is one word)."""
    logprobs = response.logprobs or (0.0,)
    odds = response.help_log_odds
    numbers = [
        0.0 if odds is None else max(-20.0, min(20.0, odds)),
        float(odds is not None),
        math.fsum(logprobs) / len(logprobs),
        max(-20.0, min(logprobs)),
        math.log1p(len(response.token_ids)),
        math.log1p(len(item.question)),
    ]
    return numbers + _hashed(item.question)


def _hashed(question: str) -> list[float]:
    words = ["0" if word.isdigit() else word.casefold() for word in _WORD.findall(question)]
    bins = [0.0] * HASHED_WORDS
    for word in words:
        bins[blake2b(word.encode(), digest_size=2).digest()[0] % HASHED_WORDS] += 1.0 / len(words)
    return bins

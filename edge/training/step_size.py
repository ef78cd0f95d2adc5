"""How large a learning step may be, so that it takes about half a minute at a measured speed.

    T = B·P/p + B·G·C/d + B·(P + G·C)/t

for G responses of C tokens to each of B prompts of P tokens, with p, d and t tokens/s of reading a prompt, of generating with all rows, and
of an update. Cloud calls, given answers and the gate are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

STEP_S, LONG_STEP_S = 30.0, 180.0
"""What a step should take, and what is said before it begins."""
FEWEST_PROMPTS, FEWEST_RESPONSES = 4, 4
"""Fewer make gradients that are mostly noise."""
FEWER_TOKENS = (192, 128)
"""Limits of a response that are tried where the fewest responses take too long; the reasoned form needs about 100."""
TIMES_EXPECTED = 3
"""A step samples at most so many times the tokens that it was expected to, or that STEP_S was enough for."""


@dataclass(frozen=True, slots=True)
class StepSpeed:
    """Tokens/s: of prompts, of `rows` responses together, and of an update."""

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    training_tokens_per_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class StepTexts:
    """What a step's texts are like: the mean length of prompts, the lengths of some responses, and the most that a response of their form
    can have, in tokens. `are_sorted`: every answer is one of few options."""

    prompt_tokens: float
    response_tokens: tuple[int, ...]
    longest: int
    are_sorted: bool = False

    def response_mean(self, max_tokens: int) -> float:
        """C under a limit."""
        return sum(min(length, max_tokens) for length in self.response_tokens) / len(self.response_tokens)


@dataclass(frozen=True, slots=True)
class StepSize:
    """B, G and the limit of a response in tokens."""

    prompts: int
    group_size: int
    max_tokens: int

    def sampled_tokens(self, texts: StepTexts) -> float:
        """Tokens that a step is expected to sample."""
        return self.prompts * self.group_size * texts.response_mean(self.max_tokens)

    def seconds(self, texts: StepTexts, speed: StepSpeed) -> float:
        """T."""
        read, sampled = self.prompts * texts.prompt_tokens, self.sampled_tokens(texts)
        sampling = read / speed.prefill_tokens_per_s + sampled / speed.decode_tokens_per_s
        return sampling + (read + sampled) / speed.training_tokens_per_s

    def most_tokens(self, texts: StepTexts, speed: StepSpeed) -> int:
        """The step's limit of sampled tokens; 0: none, since its responses cannot have so many."""
        in_time = STEP_S / (1 / speed.decode_tokens_per_s + 1 / speed.training_tokens_per_s)
        most = TIMES_EXPECTED * max(in_time, self.sampled_tokens(texts))
        return 0 if most >= self.prompts * self.group_size * min(self.max_tokens, texts.longest) else round(most)


def fitting_size(usual: StepSize, texts: StepTexts, speed: StepSpeed, given: Sequence[str] = ()) -> StepSize:
    """The largest size up to the usual one that takes at most STEP_S, with more prompts rather than more responses to each, so that more
    groups have an advantage; the least one where none does. The fields named in `given` stay as they are."""
    for max_tokens in (usual.max_tokens, *(fewer for fewer in FEWER_TOKENS if "max_tokens" not in given)):
        sizes = [StepSize(*size, min(max_tokens, usual.max_tokens)) for size in _counts(usual, given)]
        if fitting := [size for size in sizes if size.seconds(texts, speed) <= STEP_S]:
            return max(fitting, key=lambda size: (size.prompts, size.group_size))
    return min(sizes, key=lambda size: size.prompts * size.group_size)


def _counts(usual: StepSize, given: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Prompts and responses to each."""
    fewest = {"prompts": FEWEST_PROMPTS, "group_size": FEWEST_RESPONSES}
    prompts, responses = (
        [most] if name in given else range(min(least, most), most + 1)
        for name, least in fewest.items()
        for most in [int(getattr(usual, name))]
    )
    return ((one, other) for one in prompts for other in responses)

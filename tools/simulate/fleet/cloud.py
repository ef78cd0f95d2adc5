"""A simulated cloud LLM behind the coordinator."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass

from coordinator.providers.provider import ProviderDelta, ProviderError, ProviderRequest, ProviderResult
from edge.core.rng import stream
from edge.core.types import TokenUsage
from tools.simulate.fleet.backend import THINKING, boxed, right_answer, wrong_answer
from tools.simulate.fleet.mind import Nature, SimulatedQuestion, cloud_right
from tools.simulate.fleet.scenario import CloudPart, TokensPart

MOST_SIGMAS = 3.0
MOST_MEANS = 5.3
TURN_TOKENS = 16


@dataclass(frozen=True, slots=True)
class Askers:
    """What the cloud knows of those who ask: how long their prompts and answers are, and how often it is right."""

    tokens: TokensPart
    nature: Nature


def most_tokens(tokens: TokensPart) -> int:
    """The output tokens that a call asks for at most: three standard deviations above the median, and as much longer as one question in
    two hundred is."""
    longer = 1.0 + MOST_MEANS * tokens.prompt_further / tokens.prompt
    return math.ceil(tokens.cloud * longer * math.exp(MOST_SIGMAS * tokens.cloud_spread))


class SimulatedCloud:
    """Implements `CloudProvider`. `under_way` counts calls; `most_under_way` and `most_waiting` are since they were last set back;
    `executed` counts by billing key."""

    name = "simulated"

    def __init__(self, part: CloudPart, asked_by: Callable[[int], Askers], waiting: Callable[[], int], seed: int) -> None:
        """`asked_by`: who asks the question of this number. `waiting`: how many calls wait for their turn here."""
        self._part = part
        self._asked_by = asked_by
        self._waiting = waiting
        self._seed = seed
        self.down = False
        self.under_way = 0
        self.most_under_way = 0
        self.most_waiting = 0
        self.executed: Counter[str] = Counter()
        self.errors: Counter[str] = Counter()

    async def start(self) -> None:
        """Nothing to start."""

    async def aclose(self) -> None:
        """Nothing to close."""

    def input_token_bound(self, request: ProviderRequest) -> int:
        """The prompt's tokens, as they will be billed."""
        question = _question(request)
        return self._asked_by(question.number).tokens.prompt + question.further + TURN_TOKENS

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Answer in the time it takes. Raises ProviderError."""
        async for delta in self.stream(request):
            if delta.result is not None:
                return delta.result
        raise AssertionError("a stream ends with its result")

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """The beginning with the first token, the rest with the last one. Raises ProviderError."""
        question, draws = _question(request), stream(self._seed, "cloud", request.idempotency_key)
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        self.most_waiting = max(self.most_waiting, self._waiting())
        try:
            self._refuse(draws)
            result, first_s, rest_s = self._answer(request, question, draws)
            for piece, seconds in ((THINKING, first_s), (result.text[len(THINKING) :], rest_s)):
                await self._sleep(seconds, request.deadline_s - (first_s if piece is not THINKING else 0.0))
                yield ProviderDelta(piece)
            self.executed[request.idempotency_key] += 1
            yield ProviderDelta("", result)
        finally:
            self.under_way -= 1

    def _refuse(self, draws: random.Random) -> None:
        if self.down:
            self.errors["down"] += 1
            raise ProviderError("the upstream is down", kind="http_503", executed=False)
        if draws.random() < self._part.error_rate:
            self.errors["refused"] += 1
            raise ProviderError("the upstream refused", kind="http_500", executed=False)

    def _answer(
        self, request: ProviderRequest, question: SimulatedQuestion, draws: random.Random
    ) -> tuple[ProviderResult, float, float]:
        asked = self._asked_by(question.number)
        median = asked.tokens.cloud * (1.0 + question.further / asked.tokens.prompt)
        wished = median * math.exp(asked.tokens.cloud_spread * draws.gauss(0.0, 1.0))
        tokens = min(request.max_output_tokens, max(1, round(wished)))
        first_s = self._part.first_token_s * math.exp(self._part.spread * draws.gauss(0.0, 1.0))
        is_right = stream(self._seed, "cloud right", question.number).random() < cloud_right(asked.nature, question.difficulty)
        text = THINKING + boxed(right_answer(question) if is_right else wrong_answer(question))
        usage = TokenUsage(asked.tokens.prompt + question.further, tokens)
        return ProviderResult(text, usage, "simulated", "stop"), first_s, (tokens - 1) / self._part.tokens_per_s

    async def _sleep(self, seconds: float, left_s: float) -> None:
        await asyncio.sleep(min(seconds, max(0.0, left_s)))
        if seconds > left_s:
            self.errors["deadline"] += 1
            raise ProviderError("no answer in time", kind="deadline", executed=None)


def _question(request: ProviderRequest) -> SimulatedQuestion:
    return SimulatedQuestion.read(request.messages[-1].content)

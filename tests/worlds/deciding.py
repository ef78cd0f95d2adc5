"""A world whose model decides at log-odds of its own, which a help bias moves, and which drift as it learns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edge.core.rng import stream
from edge.core.types import Message, PromptGroup, Sampling
from edge.dagrpo.dual import HelpBiasRule, help_rate
from edge.learning.components import AgentSettings
from edge.testing.backend import ScriptedBackend
from tests.worlds.agent import BROKEN_HELP, HELP, World, local_answer, number_in


@dataclass(frozen=True)
class Decider:
    """z = drift(adapter version) + a question's own part + a response's own part. `undecided`: share of responses that reach no decision,
    `invalid`: share of the requests that are none. Half of the local answers are right."""

    drift: Callable[[int], float] = lambda version: -3.0
    undecided: float = 0.0
    invalid: float = 0.0

    def log_odds(self, number: int, seed: int, version: int) -> float | None:
        if stream(seed, "undecided").random() < self.undecided:
            return None
        return self.drift(version) + stream(number, "question").gauss(0.0, 1.5) + stream(seed, "response").gauss(0.0, 0.5)

    def response(self, number: int, seed: int, log_odds: float | None, bias: float) -> str:
        if log_odds is None:
            return "no format at all"
        if stream(seed, "asks").random() < help_rate([log_odds], bias):
            return BROKEN_HELP if stream(seed, "invalid").random() < self.invalid else HELP
        return local_answer(number + 1 + (stream(seed, "right").random() < 0.5))


class DecidingBackend(ScriptedBackend):
    """Reports the log-odds that its decider has, before the bias."""

    def __init__(self, decider: Decider) -> None:
        self._decider = decider
        super().__init__(self._write)

    async def sample_group(
        self, messages: Sequence[Message], sampling: Sampling, seeds: Sequence[int], *priority: Any
    ) -> PromptGroup:
        group = await super().sample_group(messages, sampling, seeds, *priority)
        pairs = zip(group.responses, seeds, strict=True)
        responses = [replace(response, help_log_odds=self._log_odds(messages, seed)) for response, seed in pairs]
        return replace(group, responses=tuple(responses))

    def _write(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        return self._decider.response(_number(messages), seed, self._log_odds(messages, seed), sampling.help_bias)

    def _log_odds(self, messages: Sequence[Message], seed: int) -> float | None:
        return self._decider.log_odds(_number(messages), seed, self.adapter_version)


@dataclass
class DecidingWorld(World):
    """Its rollouts have a help bias by `rule`."""

    decider: Decider = Decider()
    rule: HelpBiasRule | None = "solved"
    estimates_dual: bool = False

    def settings(self, run_id: str) -> AgentSettings:
        return replace(super().settings(run_id), help_bias_rule=self.rule, estimates_dual=self.estimates_dual)

    async def _open_backend(self) -> ScriptedBackend:
        self.serving = self.rollouts = DecidingBackend(self.decider)
        return self.serving


def _number(messages: Sequence[Message]) -> int:
    text = messages[-1].content
    return number_in(text[text.index("What is") :])

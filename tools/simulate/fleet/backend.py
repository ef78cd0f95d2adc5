"""A model without weights: a mind in place of the SLM, on a simulated machine.

The contract is that of every engine: at temperature 0 the question alone decides, at 1 the seed does too; the bias moves the decision to
ask, and what it has moved is told. Token ids stand for what the response did, so that a learner reads it from the training group alone.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from edge.core.errors import AdapterError
from edge.core.rng import stream
from edge.core.types import (
    AdapterRef,
    DialOverride,
    FinishReason,
    LocalResponse,
    Message,
    PromptGroup,
    Sampling,
    TextDelta,
    ToolConversation,
)
from edge.core.worker import Priority
from edge.dagrpo.prompts import HELP_PHRASE
from edge.testing.backend import ScriptedBackend
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.mind import Mind, MindOutcome, Nature, SimulatedQuestion, help_log_odds, right_log_odds, sigmoid
from tools.simulate.fleet.scenario import TokensPart

THINKING = "<think>\nStep 1: work it out\n</think>\n"
ASKING = THINKING + HELP_PHRASE
BROKEN = "Words without a form."
MIND_FILE = "mind.json"
OUTCOMES: tuple[MindOutcome, ...] = ("asked", "right", "wrong", "broken")
"""A response's token ids are all 1 + its outcome's place here."""
SCALE = 1_000_000
SHIFT = 100 * SCALE


@dataclass(frozen=True, slots=True)
class Decision:
    """What a response does: its outcome, the help log-odds (nats; None where none were reached), and what the bias made of it."""

    outcome: MindOutcome
    log_odds: float | None
    overridden: DialOverride = ""


class SimulatedBackend(ScriptedBackend):
    """Implements `InferenceBackend` with a mind."""

    def __init__(self, machine: Machine, mind: Mind, nature: Nature, tokens: TokensPart, seed: int) -> None:
        super().__init__(lambda messages, sampling, seed: self._script(messages, sampling, seed))
        self._machine = machine
        self._bare = self._mind = mind
        self._nature = nature
        self._tokens = tokens
        self._seed = seed

    @property
    def mind(self) -> Mind:
        """θ of the adapter in use."""
        return self._mind

    async def sample_group(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority = Priority.ROLLOUT,
    ) -> PromptGroup:
        """Responses at temperature 1 after the prompt was read, as rows beside those of other groups. See `InferenceBackend`."""
        self._require_open()
        question, version = SimulatedQuestion.read(messages[-1].content), self._adapter_version
        responses = tuple(self._respond_to(question, sampling, seed, version) for seed in seeds)
        await self._machine.compute(self._prompt_tokens(question) / self._machine.speed.prefill_tokens_per_s)
        await self._machine.decode(sum(len(response.token_ids) for response in responses), len(responses))
        return PromptGroup(prompt_ids(question), responses)

    async def stream(
        self, messages: Sequence[Message] | ToolConversation, sampling: Sampling, seed: int, prefix: str = ""
    ) -> AsyncIterator[TextDelta]:
        """The beginning with the first token, the rest with the last one. See `InferenceBackend`."""
        self._require_open()
        messages = messages.messages if isinstance(messages, ToolConversation) else messages
        question = SimulatedQuestion.read(messages[-1].content)
        response = self._respond_to(question, sampling, seed, self._adapter_version, prefix)
        speed, prompt_tokens = self._machine.speed, self._prompt_tokens(question)
        read_s = 0.0 if prefix else speed.read_s(prompt_tokens)
        cut = min(len(response.text), len("<think>\n"))
        with self._machine.serving():
            await self._machine.serve(read_s + speed.token_s)
            yield TextDelta(response.text[:cut])
            await self._machine.serve(speed.shown_s(len(response.token_ids)))
        yield TextDelta(response.text[cut:])
        yield TextDelta("", response, prompt_tokens)

    async def swap_adapter(self, adapter: AdapterRef | None) -> None:
        """Use the θ that lies in the adapter's folder. Raises AdapterError where there is none."""
        self._require_open()
        self._mind = self._bare if adapter is None or not adapter.folder else read_mind(Path(adapter.folder))
        self._adapter_version = 0 if adapter is None else adapter.version

    def _script(self, messages: Sequence[Message], sampling: Sampling, seed: int) -> str:
        question = SimulatedQuestion.read(messages[-1].content)
        return _text(question, decide(self._mind, self._nature, question, sampling, self._draws(question, sampling, seed)))

    def _prompt_tokens(self, question: SimulatedQuestion) -> int:
        return self._tokens.prompt + question.further

    def _draws(self, question: SimulatedQuestion, sampling: Sampling, seed: int) -> random.Random:
        """Chance: the question's own at temperature 0, the seed's beyond."""
        if sampling.temperature == 0.0:
            return stream(self._seed, "greedy", question.number)
        return random.Random(seed)

    def _respond_to(
        self, question: SimulatedQuestion, sampling: Sampling, seed: int, version: int, prefix: str = ""
    ) -> LocalResponse:
        draws = self._draws(question, sampling, seed)
        decision = decide(self._mind, self._nature, question, sampling, draws)
        count = self._length(decision, draws, prefix)
        finish, count = (FinishReason.EOS, count) if count <= sampling.max_tokens else (FinishReason.LENGTH, sampling.max_tokens)
        ids = (1 + OUTCOMES.index(decision.outcome),) * count
        text = _text(question, decision)
        text = text.removeprefix(prefix) if text.startswith(prefix) else text.removeprefix(THINKING)
        return LocalResponse(text, ids, (-0.5,) * count, finish, version, decision.log_odds, overridden=decision.overridden)

    def _length(self, decision: Decision, draws: random.Random, prefix: str) -> int:
        tokens = self._tokens
        whole = tokens.local * math.exp(tokens.local_spread * draws.gauss(0.0, 1.0))
        said = tokens.asking_share * whole
        if decision.outcome == "asked":
            return max(1, round(said))
        return max(1, round(whole - said if prefix else whole))


def decide(mind: Mind, nature: Nature, question: SimulatedQuestion, sampling: Sampling, draws: random.Random) -> Decision:
    """What the model does: at temperature 0 where the log-odds lie above 0, else at their chance."""
    broken, asking, right = draws.random() < nature.broken, draws.random(), draws.random()
    if broken:
        return Decision("broken", None)
    log_odds = help_log_odds(mind, nature, question.difficulty, question.ask_noise)
    biased, rightly = log_odds + sampling.help_bias, right_log_odds(mind, nature, question.difficulty)
    if sampling.temperature == 0.0:
        wishes, asks, is_right = log_odds > 0.0, biased > 0.0, rightly + question.right_noise > 0.0
    else:
        wishes, asks = asking < sigmoid(log_odds), asking < sigmoid(biased)
        is_right = right < sigmoid(rightly)
    if sampling.suppress_help:
        return Decision("right" if is_right else "wrong", log_odds)
    overridden: DialOverride = "" if wishes == asks else "to ask" if asks else "not to ask"
    return Decision("asked" if asks else "right" if is_right else "wrong", log_odds, overridden)


def prompt_ids(question: SimulatedQuestion) -> tuple[int, ...]:
    """A question as ids, from which `question_of` reads it again."""
    parts = (question.difficulty, question.ask_noise, question.right_noise)
    return (question.number, *(round(part * SCALE) + SHIFT for part in parts))


def question_of(ids: Sequence[int]) -> SimulatedQuestion:
    """The question that `prompt_ids` wrote."""
    difficulty, ask_noise, right_noise = ((part - SHIFT) / SCALE for part in ids[1:4])
    return SimulatedQuestion(ids[0], difficulty, ask_noise, right_noise)


def right_answer(question: SimulatedQuestion) -> str:
    """What is in the box of a right answer; a wrong one has a minus before it."""
    return str(question.number)


def wrong_answer(question: SimulatedQuestion) -> str:
    """What is in the box of a wrong one."""
    return f"-{question.number + 1}"


def read_mind(folder: Path) -> Mind:
    """θ of an adapter's or a learner's folder. Raises AdapterError."""
    try:
        return Mind(**json.loads((folder / MIND_FILE).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise AdapterError(f"{folder}: no simulated adapter: {error}") from error


def write_mind(folder: Path, mind: Mind) -> None:
    """Keep θ in an existing folder."""
    (folder / MIND_FILE).write_text(json.dumps(mind.model_dump()), encoding="utf-8")


def _text(question: SimulatedQuestion, decision: Decision) -> str:
    match decision.outcome:
        case "asked":
            return ASKING
        case "broken":
            return BROKEN
        case "right":
            return THINKING + boxed(right_answer(question))
        case _:
            return THINKING + boxed(wrong_answer(question))


def boxed(answer: str) -> str:
    """The answer part of a response."""
    return f"<answer>\\boxed{{{answer}}}</answer>"

"""Where an evaluation gets its cloud answers, and what asking for every item may cost.

Answers come from the coordinator, from the coordinator into a recording, or from a recording alone (edge.rpc.cassette): a replay needs no
coordinator, key or network.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from edge.cloud.group_calls import CloudOutcome
from edge.config.schema import CoordinatorConfig
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError
from edge.core.events import EventSink
from edge.core.formatting import PRACTICE_CLOUD, counted, money
from edge.core.types import TokenUsage
from edge.core.units import BUDGET_UNITS
from edge.evaluation.judging import Candidate, RolloutSettings
from edge.rpc.cassette import RecordedAnswer, answer_digest, append_answer, open_for_recording, read_cassette
from edge.rpc.client import BudgetSnapshot, CloudCall, CloudCompletion, CoordinatorClient
from edge.state.events import Notice

NOT_RECORDED = "the recording holds no answer to this question"


class CloudAnswers(Protocol):
    """Answers a call, or gives the reason why not; never raises CoordinatorError."""

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """The outcome of one call."""
        ...


class ReplayedAnswers:
    """Answers from a recording."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigError: the file cannot be read, or FILE:LINE of a damaged line."""
        self._answers = read_cassette(path)

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """The recorded answer, else a failure."""
        answer = self._answers.get(digest_of(call))
        return CloudOutcome(None, reason=NOT_RECORDED) if answer is None else CloudOutcome(_completion(call, answer))

    def asked_as(self, settings: RolloutSettings) -> RolloutSettings:
        """The settings with the alias, output limit and prompt form of the recording (its last line counts)."""
        last = next(reversed(self._answers.values()), None)
        if last is None:
            return settings
        return replace(
            settings,
            model_alias=last.model,
            max_output_tokens=last.max_output_tokens,
            cloud_prompt_form=last.prompt_form,
        )


class RecordingAnswers:
    """Asks `source` and appends every answer to a file; what the file already holds is not asked again. Failures are not recorded."""

    def __init__(self, path: Path, source: CloudAnswers, prompt_form: str) -> None:
        """`prompt_form` is that of the calls. Raises ConfigError when the file is no recording or cannot be written."""
        self._prompt_form = prompt_form
        self._path = path
        self._source = source
        self._answers = open_for_recording(path)
        self._asking: dict[str, asyncio.Lock] = {}

    async def ask(self, call: CloudCall) -> CloudOutcome:
        """The recorded answer, else the source's, recorded. Calls of the same content wait for one another."""
        digest = digest_of(call)
        async with self._asking.setdefault(digest, asyncio.Lock()):
            if (answer := self._answers.get(digest)) is not None:
                return CloudOutcome(_completion(call, answer))
            outcome = await self._source.ask(call)
            if outcome.completion is not None:
                answer = self._answers[digest] = self._answer(call, outcome.completion)
                append_answer(self._path, digest, answer)
            return outcome

    def _answer(self, call: CloudCall, completion: CloudCompletion) -> RecordedAnswer:
        return RecordedAnswer(
            completion.text,
            completion.usage,
            charged_uusd=completion.charged_uusd,
            cached=completion.cached,
            model=call.model_alias,
            max_output_tokens=call.max_output_tokens,
            prompt_form=self._prompt_form,
        )


def digest_of(call: CloudCall) -> str:
    """What an answer to this call is recorded under; the cloud LLM is known by its alias."""
    return answer_digest(call.messages, call.model_alias, call.max_output_tokens, call.temperature)


def _completion(call: CloudCall, answer: RecordedAnswer) -> CloudCompletion:
    usage = answer.usage or TokenUsage(0, 0)
    return CloudCompletion(call.call_key, answer.text, usage, answer.charged_uusd, answer.cached, model=call.model_alias)


async def announce_cost(
    client: CoordinatorClient, candidates: Sequence[Candidate], config: CoordinatorConfig, sink: EventSink, clock: Clock
) -> None:
    """A notice with the number of calls and the most they can cost, and one with the budget of each task."""
    sink.emit(Notice(cost_line(len(candidates), config), clock.now()))
    for task, items in Counter(candidate.item.task for candidate in candidates).items():
        try:
            line = budget_line(task, items, await client.get_budget(task))
        except CoordinatorError as error:
            line = f"budget of {task}: not known ({error})"
        sink.emit(Notice(line, clock.now()))


def cost_line(items: int, config: CoordinatorConfig) -> str:
    """E.g. `asking the cloud LLM for all 400 items: at most 400 calls and 204800 output tokens, at most 0.31 USD for these`."""
    tokens = items * config.max_output_tokens
    price = config.embedded.price_out_uusd_per_mtok if config.address is None else None
    cost = "" if price is None else f", at most {money(tokens * price / 1e6)} for these"
    cost += f" ({PRACTICE_CLOUD})" if config.address is None and config.embedded.upstream == "bundled" else ""
    which = "one item" if items == 1 else f"all {items} items"
    return f"asking the cloud LLM for {which}: at most {counted(items, 'call')} and {counted(tokens, 'output token')}{cost}"


def budget_line(task: str, items: int, budget: BudgetSnapshot) -> str:
    """What is used and allowed, and whether it can suffice."""
    limits = [
        f"{unit.word} {unit.number(getattr(budget, unit.name))} of {unit.number(limit)}"
        for unit in BUDGET_UNITS
        if (limit := getattr(budget, unit.limit)) is not None
    ]
    short = budget.calls_limit is not None and budget.calls_limit - budget.calls < items
    return f"budget of {task}: {', '.join(limits) or 'no limit'}" + (
        f"; not enough for {counted(items, 'call')}" if short else ""
    )

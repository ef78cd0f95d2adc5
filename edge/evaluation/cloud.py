"""Where an evaluation gets its cloud answers: from the coordinator, from the coordinator into a recording, or from a recording alone.

Knows cassettes (edge.rpc.cassette); knows nothing of items or scores. A replay needs no coordinator, key or network.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from edge.cloud.group_calls import CloudOutcome
from edge.core.types import TokenUsage
from edge.evaluation.judging import RolloutSettings
from edge.rpc.cassette import RecordedAnswer, answer_digest, append_answer, open_for_recording, read_cassette
from edge.rpc.client import CloudCall, CloudCompletion

NOT_RECORDED = "the recording holds no answer to this question"


class CloudAnswers(Protocol):
    """Answers a call, or says why not; never raises CoordinatorError."""

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
        """The settings with the alias, output limit and prompt form of the recording, where it tells them (its last line counts)."""
        last = next(reversed(self._answers.values()), None)
        if last is None:
            return settings
        return replace(
            settings,
            model_alias=last.model or settings.model_alias,
            max_output_tokens=last.max_output_tokens or settings.max_output_tokens,
            cloud_prompt_form=last.prompt_form or settings.cloud_prompt_form,
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
        self.found = len(self._answers)

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

"""Raw texts continued and read for programs.

A raw text is no question to the agent: nothing is decided, nothing leaves the machine and nothing is learned from it, so there is no record
to explain it with. It is served all the same: learning waits for it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

from edge.core.concurrency import closing
from edge.core.precedence import ServingPrecedence
from edge.core.types import Sampling, ScoredToken, TextDelta
from edge.inference.raw_text import RawPrompt, RawText, TokenizerInfo


class ServedTexts:
    """`RawText` of the agent's model, at the precedence of people."""

    def __init__(self, texts: RawText, precedence: ServingPrecedence) -> None:
        self._texts = texts
        self._precedence = precedence

    async def continue_text(self, prompt: RawPrompt, sampling: Sampling, seed: int) -> AsyncGenerator[TextDelta, None]:
        """Stream the continuation of a raw prompt; see `RawText`."""
        with self._precedence.serving():
            async with closing(self._texts.continue_text(prompt, sampling, seed)) as deltas:
                async for delta in deltas:
                    yield delta

    async def read(self, prompt: RawPrompt, top_logprobs: int = 0) -> tuple[ScoredToken, ...]:
        """How likely the tokens of a text are; see `RawText`."""
        with self._precedence.serving():
            return await self._texts.read(prompt, top_logprobs)

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a text."""
        return self._texts.text_tokens(text)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text that ids stand for. Raises UsageError."""
        return self._texts.text_of(token_ids)

    @property
    def tokenizer(self) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        return self._texts.tokenizer

"""The part of an inference backend that works without the chat template.

What it promises beyond the docstrings stands in edge/inference/backend.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from edge.core.types import Sampling, ScoredToken, TextDelta

RawPrompt = str | Sequence[int]
"""A prompt that no chat template touches: a text, or the ids themselves."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """How texts become ids: the chat template's source, the special tokens as they are written ("" where there is none).

    `adds_bos`: the raw text of a prompt gets `bos` before it. `context_tokens`: what a prompt and its continuation may have together.
    """

    chat_template: str
    bos: str
    eos: str
    adds_bos: bool
    vocab_size: int
    context_tokens: int


class RawText(Protocol):
    """Continues and reads texts as they stand."""

    def continue_text(self, prompt: RawPrompt, sampling: Sampling, seed: int) -> AsyncIterator[TextDelta]:
        """Stream the continuation of a raw prompt, behind people's answers. Raises ContextOverflow, UsageError for an empty prompt."""
        ...

    async def read(self, prompt: RawPrompt, top_logprobs: int = 0) -> tuple[ScoredToken, ...]:
        """The tokens of a raw text, each with its log-probability behind those before it; behind people's answers."""
        ...

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a raw text, without a beginning-of-text token."""
        ...

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text that ids stand for, control tokens written out. Raises UsageError for an id that the model does not know."""
        ...

    @property
    def tokenizer(self) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        ...

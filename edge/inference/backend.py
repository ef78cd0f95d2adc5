"""The role of an inference backend.

Contract (tests/contracts/test_inference_backend.py):
- `sample_group` returns exactly G responses in order; response i depends only on (model, adapter, messages, sampling, seeds[i]).
- `logprobs` are the behaviour log-probabilities at temperature 1 of exactly the sampled ids, EOS included (with `help_bias` or
  `suppress_help` set they are those of the biased distribution).
- `stream` yields text as it is decoded; the joined text equals the final response's text.
- `swap_adapter` is atomic: on failure AdapterError is raised and the adapter in use stays. Responses carry the version they were
  sampled with.
- A raw prompt is continued as it is: a text (control tokens in it are control tokens) or token ids, without the chat template.
- With stop strings the text ends before the first of them, and generation with it. With `top_logprobs`, the reported tokens are those of
  the text and the tokens of a stream join to those of its response.
- With a grammar a stream's text is one of its texts, unless the response ended for its length; the engine may refuse with Unsupported.
- `read` reports how likely each token of a text is after those before it, as the engine reads a prompt.
- A prompt that begins as an earlier conversation did may go on from there; `TextDelta.cached_tokens` says how much was not read again.
  An answer at temperature 0 is then the same up to what the shape of a batch does to the last bits of sums. Of sampled groups all is read.
- Cancelling the awaiting task stops generation soon and leaks nothing.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from edge.core.forms import ResponseForm
from edge.core.tool_calls import CallFormat
from edge.core.types import (
    AdapterRef,
    Message,
    PromptGroup,
    Sampling,
    ScoredToken,
    TextDelta,
    ToolConversation,
    Turn,
)
from edge.core.worker import Priority

RawPrompt = str | Sequence[int]
"""A prompt that no chat template touches: a text, or the ids themselves."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The model that is loaded."""

    name: str
    architecture: str
    parameters: int
    context_tokens: int
    """The context that it was trained for; the context that is served is in `TokenizerInfo`."""
    file_bytes: int
    sha256: str
    """Of the file."""
    prompt_form: str = "full"
    """"compact" when the model's own chat template carries the system prompt (the bundled models), else "full"."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """How texts become ids: the chat template's source, the special tokens as they are written ("" where there is none).

    `adds_bos`: the raw text of a prompt gets `bos` before it. `context_tokens`: what a prompt and its continuation may have together;
    `rollout_tokens`: the same of sampled groups. `calls`: how the template, which reads tools, writes calls of them; None where it does
    not, or in no known form.
    """

    chat_template: str
    bos: str
    eos: str
    adds_bos: bool
    vocab_size: int
    context_tokens: int
    rollout_tokens: int
    calls: CallFormat | None = None


class RawText(Protocol):
    """The part of a backend that works without the chat template: continues and reads texts as they are."""

    def continue_text(self, prompt: RawPrompt, sampling: Sampling, seed: int) -> AsyncIterator[TextDelta]:
        """Stream the continuation of a raw prompt, at a lower priority than people's answers.

        Raises ContextOverflow, UsageError for an empty prompt.
        """
        ...

    async def read(self, prompt: RawPrompt, top_logprobs: int = 0) -> tuple[ScoredToken, ...]:
        """The tokens of a raw text, each with its log-probability given those before it, at a lower priority than people's answers."""
        ...

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a raw text, without a beginning-of-text token."""
        ...

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, control tokens written out. Raises UsageError for an id that the model does not know."""
        ...

    @property
    def tokenizer(self) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        ...


@runtime_checkable
class ThreadedBackend(Protocol):
    """A backend that computes with threads of the processor, whose number can be changed while it runs."""

    def use_threads(self, threads: int) -> None:
        """Compute with this many from the next decode on; returns immediately, also while it computes."""
        ...


@dataclass(slots=True)
class RolloutCounts:
    """What an engine has sampled for rollouts and examinations since it was opened; counted while it computes."""

    responses: int = 0
    """Finished ones."""
    tokens: int = 0
    """Of all of them, what a form writes included."""


@runtime_checkable
class CountingBackend(Protocol):
    """A backend that shows how far it has come inside responses that nobody watches."""

    @property
    def rollout_counts(self) -> RolloutCounts:
        """The counts of now."""
        ...


class InferenceBackend(RawText, Protocol):
    """Samples from the SLM with the adapter in use."""

    @property
    def model(self) -> ModelInfo:
        """The model that is loaded."""
        ...

    @property
    def adapter_version(self) -> int:
        """Version of the adapter in use; 0 is the bare model."""
        ...

    async def sample_group(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority = Priority.ROLLOUT,
    ) -> PromptGroup:
        """Sample len(seeds) responses to one prompt. Concurrent calls share the batch (continuous batching)."""
        ...

    def stream(
        self, messages: Sequence[Message] | ToolConversation, sampling: Sampling, seed: int, prefix: str = ""
    ) -> AsyncIterator[TextDelta]:
        """Stream one answer at serving priority; `prefix` is text of the assistant's turn so far, to be continued.

        A conversation with tools is for templates that know them (`TokenizerInfo.calls`).
        """
        ...

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """The ids of a prompt, as `sample_group` reports them. Raises ContextOverflow where they leave no room in its rows."""
        ...

    def served_ids(self, messages: Sequence[Message] | ToolConversation, prefix: str = "") -> tuple[int, ...]:
        """The ids of a prompt and of what its answer begins with, as `stream` reads them; also of one that is too long for it."""
        ...

    def response_tokens(self, text: str) -> tuple[int, ...]:
        """The ids of a text as if the model had sampled it for its whole turn, the token that ends the turn included.

        Control tokens spelt in the text stay text, but for those that the texts of responses show.
        """
        ...

    def guided_turn(self, text: str, form: ResponseForm, max_tokens: int) -> Turn | None:
        """A text of a form as if the model had written it under guidance; None where it is not written like that, or is too long."""
        ...

    async def swap_adapter(self, adapter: AdapterRef | None) -> None:
        """Use this adapter from the next request on (None: the bare model)."""
        ...

    async def aclose(self) -> None:
        """Release the engine. Safe to call twice."""
        ...

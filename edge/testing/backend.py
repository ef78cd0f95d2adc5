"""A backend without a model: a script defines what it answers.

For tests, the simulator and dry runs. Token ids (one per word, with the white space before it) and log-probabilities are made up
deterministically from the text and the seed.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from edge.core.errors import AdapterError, ContextOverflow, EdgeError, UsageError
from edge.core.forms import ResponseForm
from edge.core.rng import stream
from edge.core.tool_calls import CallFormat
from edge.core.types import (
    AdapterRef,
    FinishReason,
    LocalResponse,
    Message,
    PromptGroup,
    Sampling,
    ScoredToken,
    TextDelta,
    TokenChance,
    ToolConversation,
    Turn,
)
from edge.core.worker import Priority
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.backend import ModelInfo, RawPrompt, TokenizerInfo
from edge.inference.decisions import first_decision, opens_step
from edge.inference.detokenizer import Detokenizer

Script = Callable[[Sequence[Message], Sampling, int], str]
"""(messages, sampling, seed) -> the text of the response."""

EOS = 0
VOCABULARY_SIZE = 32_768
_TOKEN = re.compile(r"\s*\S+|\s+\Z")
_HELP_AT_DECISION = re.compile(rf"((?:</think>|<answer>)\s*){re.escape(HELP_PHRASE.rstrip('.'))}\.?", re.IGNORECASE)


class ScriptedBackend:
    """Implements `InferenceBackend` from a script: a function, or a list of texts of which a seed picks number seed mod length.

    The contract holds whatever the script returns: `max_tokens` and `max_steps` cut the text, `suppress_help` removes a request for
    help. `seconds_per_token` makes a group take as long as its longest response (virtual time works).
    """

    def __init__(
        self,
        script: Script | Sequence[str],
        *,
        seconds_per_token: float = 0.0,
        prompt_form: str = "compact",
        calls: CallFormat | None = None,
        context_tokens: int = 1 << 20,
    ) -> None:
        self._script = script if callable(script) else _picker(tuple(script))
        self._seconds_per_token = seconds_per_token
        self._calls = calls
        self._info = ModelInfo("scripted", "scripted", 0, context_tokens, 0, "", prompt_form)
        self._adapter_version = 0
        self._closed = False
        self._words: dict[int, str] = {EOS: ""}

    @property
    def model(self) -> ModelInfo:
        """A model of no size."""
        return self._info

    @property
    def adapter_version(self) -> int:
        """Version of the adapter in use; 0 is the bare model."""
        return self._adapter_version

    async def sample_group(
        self,
        messages: Sequence[Message],
        sampling: Sampling,
        seeds: Sequence[int],
        priority: Priority = Priority.ROLLOUT,
    ) -> PromptGroup:
        """One scripted response per seed; see `InferenceBackend`."""
        self._require_open()
        prompt_ids = self.prompt_ids(messages)
        responses = tuple(self._respond(messages, sampling, seed) for seed in seeds)
        await asyncio.sleep(self._seconds_per_token * max((len(response.token_ids) for response in responses), default=0))
        return PromptGroup(prompt_ids, responses)

    async def stream(
        self, messages: Sequence[Message] | ToolConversation, sampling: Sampling, seed: int, prefix: str = ""
    ) -> AsyncIterator[TextDelta]:
        """The scripted response word by word; a `prefix` that the script repeats is left out. See `InferenceBackend`.

        What a grammar wants is the script's to write.
        """
        self._require_open()
        messages = messages.messages if isinstance(messages, ToolConversation) else messages
        prompt = self.prompt_ids(messages)
        response = self._respond(messages, sampling, seed, prefix)
        for piece, tokens in _pieces_of(response):
            await asyncio.sleep(self._seconds_per_token)
            yield TextDelta(piece, tokens=tokens)
        yield TextDelta("", response, len(prompt))

    async def continue_text(self, prompt: RawPrompt, sampling: Sampling, seed: int) -> AsyncIterator[TextDelta]:
        """What the script answers to the prompt as a user's only message. See `InferenceBackend`."""
        ids = self._raw_ids(prompt)
        async for delta in self.stream([Message("user", self.text_of(ids))], sampling, seed):
            yield replace(delta, prompt_tokens=len(ids)) if delta.response else delta

    async def read(self, prompt: RawPrompt, top_logprobs: int = 0) -> tuple[ScoredToken, ...]:
        """Made-up log-probabilities of the words of a text."""
        ids = self._raw_ids(prompt)
        words = [self._words[token] for token in ids]
        scored = _spoken("".join(words), words, ids, Sampling(top_logprobs=top_logprobs), 0).tokens
        return (replace(scored[0], logprob=None, greedy=False, top=()), *scored[1:])

    def text_tokens(self, text: str) -> tuple[int, ...]:
        """One made-up id for each word."""
        return tuple(self._learn(word) for word in _TOKEN.findall(text))

    def prompt_ids(self, messages: Sequence[Message]) -> tuple[int, ...]:
        """Made-up ids, as those of a sampled group. Raises ContextOverflow where they leave no room for a response."""
        ids = self.served_ids(messages)
        if len(ids) >= self._info.context_tokens:
            raise ContextOverflow(f"the prompt is too long: {len(ids)} tokens, the context {self._info.context_tokens}")
        return ids

    def served_ids(self, messages: Sequence[Message] | ToolConversation, prefix: str = "") -> tuple[int, ...]:
        """The same of an answer to people, whatever their number; an answer's beginning counts nothing."""
        return prompt_tokens(messages.messages if isinstance(messages, ToolConversation) else messages)

    def response_tokens(self, text: str) -> tuple[int, ...]:
        """The words and the end."""
        return (*self.text_tokens(text), EOS)

    def guided_turn(self, text: str, form: ResponseForm, max_tokens: int) -> Turn | None:
        """As free: what is scripted is in its format already."""
        return Turn(self.response_tokens(text))

    def text_of(self, token_ids: Sequence[int]) -> str:
        """The words that `text_tokens` gave these ids. Raises UsageError for others."""
        unknown = next((token for token in token_ids if token not in self._words), None)
        if unknown is not None:
            raise UsageError(f"{unknown} is no token id of this model")
        return "".join(self._words[token] for token in token_ids)

    @property
    def tokenizer(self) -> TokenizerInfo:
        """No chat template, and an end of text that is written as nothing."""
        tokens = self._info.context_tokens
        return TokenizerInfo("", "", "", False, VOCABULARY_SIZE, tokens, tokens, self._calls)

    def _raw_ids(self, prompt: RawPrompt) -> tuple[int, ...]:
        self._require_open()
        ids = self.text_tokens(prompt) if isinstance(prompt, str) else tuple(prompt)
        self.text_of(ids)
        if not ids:
            raise UsageError("the prompt is empty")
        return ids

    def _learn(self, word: str) -> int:
        token = word_token(word)
        self._words.setdefault(token, word)
        return token

    async def swap_adapter(self, adapter: AdapterRef | None) -> None:
        """Use this version from now on. Raises AdapterError when its folder does not exist."""
        self._require_open()
        if adapter is not None:
            _require_folder(adapter)
        self._adapter_version = 0 if adapter is None else adapter.version

    async def aclose(self) -> None:
        """Refuse further requests. Safe to call twice."""
        self._closed = True

    def _require_open(self) -> None:
        if self._closed:
            raise EdgeError("the inference engine is closed")

    def _respond(self, messages: Sequence[Message], sampling: Sampling, seed: int, prefix: str = "") -> LocalResponse:
        if sampling.max_tokens < 1:
            raise UsageError(f"max_tokens must be at least 1, not {sampling.max_tokens}")
        text = self._script(messages, sampling, seed).removeprefix(prefix)
        if sampling.suppress_help:
            text = _without_help(text, prefix)
        text, finish = _cut_steps(text, sampling.max_steps)
        words = _TOKEN.findall(text)
        if len(words) + (finish is FinishReason.EOS) > sampling.max_tokens:
            words, finish = words[: sampling.max_tokens], FinishReason.LENGTH
        ids = tuple(self._learn(word) for word in words) + ((EOS,) if finish is FinishReason.EOS else ())
        spoken = _spoken(text, [*words, ""][: len(ids)], ids, sampling, seed, prefix)
        if spoken.stopped:
            finish, ids = FinishReason.STOP, ids[: spoken.count]
        logprobs, log_odds = made_up_logprobs(text, seed, len(ids)), made_up_log_odds(prefix + spoken.text)
        return LocalResponse(spoken.text, ids, logprobs, finish, self._adapter_version, log_odds, spoken.tokens, stop=spoken.stop)


def _spoken(text: str, words: Sequence[str], ids: Sequence[int], sampling: Sampling, seed: int, prefix: str = "") -> Detokenizer:
    """The words up to the first stop string, with made-up chances where they are asked for."""
    spoken, top = Detokenizer(sampling, prefix, None), sampling.top_logprobs
    for number, (word, token, logprob) in enumerate(zip(words, ids, made_up_logprobs(text, seed, len(ids)), strict=True), 1):
        piece = word.encode()
        chances = tuple(TokenChance(token + other, piece, logprob - other) for other in range(top or 0))
        scored = None if top is None else ScoredToken(token, piece, logprob, True, chances)
        if spoken.add(piece, scored, number == len(ids)):
            break
    return spoken


def _pieces_of(response: LocalResponse) -> Iterator[tuple[str, tuple[ScoredToken, ...]]]:
    """The text word by word, each with the tokens that end in it."""
    end, reported = 0, 0
    for word in _TOKEN.findall(response.text) or ([""] if response.tokens else []):
        end += len(word)
        last = end == len(response.text)
        count = len(response.tokens) if last else sum(token.end <= end for token in response.tokens)
        yield word, response.tokens[reported:count]
        reported = count


def _require_folder(adapter: AdapterRef) -> None:
    bare = adapter.version == 0 and not adapter.folder
    if not bare and not Path(adapter.folder).is_dir():
        raise AdapterError(f"{adapter.folder}: no such adapter folder")


def prompt_tokens(messages: Sequence[Message]) -> tuple[int, ...]:
    """Made-up ids of a conversation, one per word."""
    return tuple(word_token(word) for message in messages for word in (message.role, *_TOKEN.findall(message.content)))


def word_token(word: str) -> int:
    """A made-up id for a word, never EOS."""
    return 1 + zlib.crc32(word.encode()) % (VOCABULARY_SIZE - 1)


def made_up_logprobs(text: str, seed: int, count: int) -> tuple[float, ...]:
    """Log-probabilities between -1.5 and 0 nats from the text and the seed."""
    random = stream(seed, "scripted", text)
    return tuple(-1.5 * random.random() for _ in range(count))


def made_up_log_odds(text: str) -> float | None:
    """+2 where the text asks for help at its first decision point, -2 where it does not, None where it has none."""
    point = first_decision(text)
    if point is None:
        return None
    return 2.0 if text[point:].casefold().startswith(HELP_PHRASE.casefold().rstrip(".")) else -2.0


def _picker(texts: tuple[str, ...]) -> Script:
    if not texts:
        raise UsageError("a scripted backend needs at least one text")
    return lambda _messages, _sampling, seed: texts[seed % len(texts)]


def _without_help(text: str, prefix: str) -> str:
    """The text with every request for help at a decision point left out; the tags and the rest stay."""
    return _HELP_AT_DECISION.sub(r"\1", prefix + text)[len(prefix) :]


def _cut_steps(text: str, max_steps: int | None) -> tuple[str, FinishReason]:
    end = None if max_steps is None else opens_step(text, max_steps + 1)
    return (text, FinishReason.EOS) if end is None else (text[:end], FinishReason.STEP_LIMIT)

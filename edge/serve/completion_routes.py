"""POST /v1/completions, and the model's tokenizer for clients that count tokens.

The tokenizer's routes have the form that vLLM gave them: evaluation harnesses use them, and need no tokenizer of their own then."""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Request
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, WrapValidator, model_validator
from starlette.responses import Response, StreamingResponse

from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.types import FinishReason, Sampling, ScoredToken, TokenChance
from edge.inference.backend import RawPrompt, RawText
from edge.serve.chat_routes import EVENT_STREAM, NO_STORE
from edge.serve.chat_schemas import known_model
from edge.serve.errors import invalid_value
from edge.serve.schemas import (
    MAX_TOKENS,
    Count,
    JSONAnswer,
    RequestBody,
    ResponseBody,
    SamplingFields,
    Text,
    TokenId,
    Unsupported,
    Usage,
    explain,
    field_error,
    usage_body,
)
from edge.serve.streaming import SSE_DONE, choice_seed, first_of, side_by_side, sse, unless_gone

_MAX_PROMPTS, _DEFAULT_TOKENS = 128, 16
_LOCAL = ("edge", "edge-local")
_SomeText = Annotated[Text, Field(min_length=1)]
_Ids = Annotated[list[TokenId], Field(min_length=1)]
_ONE_PROMPT: TypeAdapter[Any] = TypeAdapter(_SomeText | _Ids, config=ConfigDict(strict=True))


def _check_prompt(value: Any, inner: Callable[[Any], Any]) -> Any:
    try:
        return inner(value)
    except ValidationError as error:
        wrong = ""
        if isinstance(value, list) and value and not isinstance(value[0], int):
            wrong = next((f"[{index}]" for index, one in enumerate(value) if not _is_prompt(one)), "")
        message = f"must be a text, a list of token ids, or a list of at most {_MAX_PROMPTS} of these; none may be empty"
        raise field_error(wrong, message) from error


def _is_prompt(value: Any) -> bool:
    try:
        _ONE_PROMPT.validate_python(value)
    except ValidationError:
        return False
    return True


class CompletionRequest(SamplingFields):
    """The body of POST /v1/completions."""

    prompt: Annotated[
        _SomeText | _Ids | Annotated[list[_SomeText | _Ids], Field(min_length=1, max_length=_MAX_PROMPTS)],
        WrapValidator(_check_prompt),
    ]
    max_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    echo: bool | None = None
    logprobs: Annotated[
        bool | Annotated[int, Field(ge=0, le=5)] | None, explain("must be a whole number from 0 to 5, or true or false")
    ] = None
    ignore_eos: bool | None = None
    best_of: Any = Field(None, description="Only the value of n.")
    suffix: Unsupported = None
    prompt_embeds: Unsupported = None

    @model_validator(mode="after")
    def _fits_together(self) -> CompletionRequest:
        if self.best_of not in (None, self.choices):
            raise field_error("best_of", "only the value of n is supported", "unsupported_value")
        if len(self.prompts) * self.choices > _MAX_PROMPTS:
            raise field_error("n", f"prompts times n may be {_MAX_PROMPTS} at most")
        if self.max_tokens == 0 and not self.echo:
            raise field_error("max_tokens", "0 needs echo: there would be nothing to answer")
        self.check_stream_options()
        return self

    @property
    def prompts(self) -> tuple[RawPrompt, ...]:
        """Each a text or ids."""
        if isinstance(self.prompt, str):
            return (self.prompt,)
        if isinstance(self.prompt[0], int):
            return (tuple(one for one in self.prompt if isinstance(one, int)),)
        return tuple(one if isinstance(one, str) else tuple(one) for one in self.prompt if not isinstance(one, int))

    @property
    def alternatives(self) -> int | None:
        """How many alternatives to each token are reported, None for no log-probabilities at all."""
        if isinstance(self.logprobs, bool):
            return 1 if self.logprobs else None
        return self.logprobs

    def check_model(self, loaded_model: str) -> None:
        """Raises RequestProblem where the name is not one of this machine's."""
        if self.model in ("edge-cloud", "edge-auto", "edge-prefer-local"):
            message = f"{self.model} answers conversations; plain completions are local, with the model edge"
            raise invalid_value("model", message, "unsupported_value")
        known_model(self.model, {known: None for known in (*_LOCAL, loaded_model) if known})

    def sampling(self) -> Sampling:
        """How the text is continued; max_tokens 0 leaves it as it is."""
        wishes = self.sampling_wishes()
        return Sampling(
            temperature=1.0 if self.temperature is None else self.temperature,
            max_tokens=_DEFAULT_TOKENS if self.max_tokens is None else min(self.max_tokens, MAX_TOKENS),
            top_p=wishes.top_p,
            presence_penalty=wishes.presence_penalty,
            frequency_penalty=wishes.frequency_penalty,
            stops=wishes.stops,
            ignore_eos=bool(self.ignore_eos),
            top_logprobs=self.alternatives,
        )


class TextChoice(ResponseBody):
    """One continued text."""

    index: Count
    text: str
    logprobs: dict[str, Any] | None
    finish_reason: Literal["stop", "length"]


class Completion(ResponseBody):
    """All of them."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: Annotated[list[TextChoice], Field(min_length=1)]
    usage: Usage


class TokenizeRequest(RequestBody):
    """A text whose ids are wanted, as a prompt of this model begins or without its first token."""

    prompt: Text
    add_special_tokens: Any = True


class Tokens(ResponseBody):
    """The ids of a text."""

    tokens: list[Count]
    count: Count
    max_model_len: Count


class DetokenizeRequest(RequestBody):
    """Ids whose text is wanted."""

    tokens: _Ids


class Detokenized(ResponseBody):
    """The text of ids."""

    prompt: str


class Tokenizer(ResponseBody):
    """The special tokens and the chat template."""

    vocab_size: Count
    chat_template: str | None


def completion_body(
    request: CompletionRequest, answer_id: str, created: int, choices: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """A `text_completion` object: the whole of it, or one piece of a stream."""
    head = {"id": f"cmpl-{answer_id}", "object": "text_completion", "created": created, "model": request.model}
    return {**head, "choices": list(choices), **more}


def logprobs_body(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """Tokens in the form of the completions API.

    The token itself is always among its alternatives. Of two alternatives that are written alike the likelier one is reported.
    """
    return {
        "tokens": [_written(token.piece) for token in tokens],
        "token_logprobs": [token.logprob for token in tokens],
        "top_logprobs": [None if token.logprob is None else _alternatives(token, token.logprob) for token in tokens],
        "text_offset": [token.start for token in tokens],
    }


def _alternatives(token: ScoredToken, logprob: float) -> dict[str, float]:
    found: dict[str, float] = {}
    for chance in (*token.top, TokenChance(token.token_id, token.piece, logprob)):
        found.setdefault(_written(chance.piece), chance.logprob)
    return found


def _written(piece: bytes) -> str:
    """A token's text; the bytes of one that is no whole text."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of one choice; the last one is `over`, with how it ended (None: nothing was generated) and the tokens read and written."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()
    over: bool = False
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0


Pieces = AsyncGenerator[_Piece, None]
Serving = Callable[[], AbstractContextManager[None]]
"""What is held while a person is served."""


def add_completion_routes(
    app: FastAPI,
    texts: RawText,
    serving: Serving,
    clock: Clock,
    loaded_model: str,
    error_event: Callable[[Exception], Mapping[str, Any]],
) -> None:
    """The routes, over one model's raw texts. `error_event` is what is sent of an error in the middle of a stream.

    A raw text is no question to the agent: nothing is decided, nothing leaves the machine, nothing is learned from it or recorded.
    """

    @app.post("/v1/completions", response_model=Completion, responses={200: {"content": EVENT_STREAM}, 404: {}})
    async def complete(request: Request, body: CompletionRequest) -> Response:
        """Continue plain texts on this machine, whole or streamed."""
        body.check_model(loaded_model)
        pieces = side_by_side(_choices(texts, serving, body))
        answer_id, created, headers = secrets.token_hex(8), int(clock.now()), {"x-edge-source": "local"}
        if not body.stream:
            choices, usage = await unless_gone(request, _whole(body, pieces))
            return JSONAnswer(completion_body(body, answer_id, created, choices, usage=usage, **_edge(body)), headers=headers)
        first = await unless_gone(request, first_of(pieces))
        stream = _stream(body, answer_id, created, first, pieces, error_event)
        return StreamingResponse(stream, media_type="text/event-stream", headers={**headers, **NO_STORE})

    @app.post("/tokenize", response_model=Tokens)
    async def tokenize(body: TokenizeRequest) -> Response:
        """The ids of a text."""
        info, ids = texts.tokenizer, texts.text_tokens(body.prompt)
        if body.add_special_tokens is not False and info.adds_bos:
            ids = (*texts.text_tokens(info.bos), *ids)
        return JSONAnswer({"tokens": list(ids), "count": len(ids), "max_model_len": info.context_tokens})

    @app.post("/detokenize", response_model=Detokenized)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text of these ids."""
        return JSONAnswer({"prompt": texts.text_of(body.tokens)})

    @app.get("/tokenizer_info", response_model=Tokenizer)
    async def tokenizer_info() -> Response:
        """The special tokens and the chat template."""
        info = texts.tokenizer
        special = {
            "bos_token": info.bos or None,
            "eos_token": info.eos or None,
            "pad_token": None,
            "add_bos_token": info.adds_bos,
        }
        about = {"tokenizer_class": "edge", "vocab_size": info.vocab_size, "chat_template": info.chat_template or None}
        return JSONAnswer({**about, **special})


def _choices(texts: RawText, serving: Serving, wanted: CompletionRequest) -> list[Pieces]:
    """The choices of all prompts in order, each with a seed of its own."""
    seed = secrets.randbits(62) if wanted.seed is None else abs(wanted.seed)
    return [
        _choice(texts, serving, wanted, prompt, choice_seed(seed, number))
        for prompt in wanted.prompts
        for number in range(wanted.choices)
    ]


async def _choice(texts: RawText, serving: Serving, wanted: CompletionRequest, prompt: RawPrompt, seed: int) -> Pieces:
    echo, read, sampling = _Piece(""), 0, wanted.sampling()
    if wanted.echo:
        with serving():
            echo, read = await _echo(texts, wanted, prompt)
        yield echo
    if sampling.max_tokens == 0:
        yield _Piece("", over=True, prompt_tokens=read)
        return
    with serving():
        async with closing(texts.continue_text(prompt, sampling, seed)) as deltas:
            async for delta in deltas:
                tokens, response = _moved(delta.tokens, len(echo.text)), delta.response
                if response is None:
                    yield _Piece(delta.text, tokens)
                else:
                    counts = delta.prompt_tokens, delta.cached_tokens, len(response.token_ids)
                    yield _Piece(delta.text, tokens, True, response.finish, *counts)


async def _echo(texts: RawText, wanted: CompletionRequest, prompt: RawPrompt) -> tuple[_Piece, int]:
    """The prompt as a piece of the answer, scored where that was asked for, and its number of tokens."""
    if wanted.alternatives is None:
        ids = texts.text_tokens(prompt) if isinstance(prompt, str) else tuple(prompt)
        text = texts.text_of(ids)
        return _Piece(prompt if isinstance(prompt, str) else text), len(ids)
    tokens = await texts.read(prompt, wanted.alternatives)
    text = texts.text_of([token.token_id for token in tokens])
    if isinstance(prompt, str):  # a beginning-of-text token was put before it
        tokens = _moved(tokens, len(prompt) - len(text))
        text = prompt
    return _Piece(text, tokens), len(tokens)


async def _stream(
    wanted: CompletionRequest,
    answer_id: str,
    created: int,
    first: tuple[int, _Piece],
    pieces: AsyncGenerator[tuple[int, _Piece], None],
    error_event: Callable[[Exception], Mapping[str, Any]],
) -> AsyncIterator[bytes]:
    ended, usage = dict[int, _Piece](), {"usage": None} if wanted.include_usage else {}
    async with aclosing(pieces):
        try:
            index, piece = first
            while True:
                ended[index] = piece
                edge = _edge(wanted) if piece.over else {}
                yield sse(completion_body(wanted, answer_id, created, [_choice_of(wanted, index, piece)], **usage, **edge))
                if (following := await anext(pieces, None)) is None:
                    break
                index, piece = following
            if wanted.include_usage:
                yield sse(completion_body(wanted, answer_id, created, [], usage=_usage(wanted, ended)))
        except Exception as error:
            yield sse(error_event(error))
    yield SSE_DONE


async def _whole(
    wanted: CompletionRequest, pieces: AsyncGenerator[tuple[int, _Piece], None]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All choices and the usage object."""
    wholes = {index: _Piece("") for index in range(len(wanted.prompts) * wanted.choices)}
    async with aclosing(pieces):
        async for index, piece in pieces:
            before = wholes[index]
            wholes[index] = replace(piece, text=before.text + piece.text, tokens=before.tokens + piece.tokens)
    return [_choice_of(wanted, index, whole) for index, whole in wholes.items()], _usage(wanted, wholes)


def _edge(wanted: CompletionRequest) -> dict[str, Any]:
    return {"edge": {"source": "local", "ignored_parameters": list(wanted.ignored)}}


def _usage(wanted: CompletionRequest, ended: Mapping[int, _Piece]) -> dict[str, Any]:
    """The usage object, from the last piece of each choice: a prompt counts once, whatever the number of its choices."""
    firsts = [piece for index, piece in ended.items() if index % wanted.choices == 0]
    read, cached = sum(piece.prompt_tokens for piece in firsts), sum(piece.cached_tokens for piece in firsts)
    return usage_body(read, sum(piece.completion_tokens for piece in ended.values()), cached)


def _moved(tokens: tuple[ScoredToken, ...], offset: int) -> tuple[ScoredToken, ...]:
    return tuple(replace(token, start=max(0, token.start + offset)) for token in tokens) if offset else tokens


def _choice_of(wanted: CompletionRequest, index: int, piece: _Piece) -> dict[str, Any]:
    logprobs = None if wanted.alternatives is None else logprobs_body(piece.tokens)
    reason = None if not piece.over else "stop" if piece.finish in (FinishReason.EOS, FinishReason.STOP) else "length"
    return {"index": index, "text": piece.text, "logprobs": logprobs, "finish_reason": reason}

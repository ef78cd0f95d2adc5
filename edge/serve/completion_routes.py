"""POST /v1/completions, and the model's tokenizer for clients that count tokens.

The tokenizer's routes have the form that vLLM gave them: evaluation harnesses look for them, and need no tokenizer of their own then.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.types import FinishReason, ScoredToken, TextDelta
from edge.inference.backend import RawPrompt, RawText
from edge.serve.chat_routes import EVENT_STREAM, NO_STORE
from edge.serve.completion_schemas import (
    Completion,
    CompletionRequest,
    Detokenized,
    DetokenizeRequest,
    Tokenizer,
    TokenizeRequest,
    Tokens,
    choice_body,
    completion_body,
    logprobs_body,
    tokenizer_body,
)
from edge.serve.schemas import usage_body
from edge.serve.streaming import SSE_DONE, choice_seed, first_of, side_by_side, sse, unless_gone


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of one choice; the last one is `over`, with how it ended (None: nothing was generated) and the tokens read and written."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()
    over: bool = False
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


Pieces = AsyncGenerator[_Piece, None]


def add_completion_routes(
    app: FastAPI, texts: RawText, clock: Clock, loaded_model: str, error_event: Callable[[Exception], Mapping[str, Any]]
) -> None:
    """The routes, over one model's raw texts. `error_event` is what is sent of an error in the middle of a stream."""

    @app.post("/v1/completions", response_model=Completion, responses={200: {"content": EVENT_STREAM}, 404: {}})
    async def complete(request: Request, body: CompletionRequest) -> Response:
        """Continue plain texts on this machine, whole or streamed."""
        body.check_model(loaded_model)
        pieces = side_by_side(_choices(texts, body))
        answer_id, created, headers = secrets.token_hex(8), int(clock.now()), {"x-edge-source": "local"}
        if not body.stream:
            choices, usage = await unless_gone(request, _whole(body, pieces))
            edge = {"source": "local", "ignored_parameters": list(body.ignored)}
            return JSONResponse(completion_body(body, answer_id, created, choices, usage=usage, edge=edge), headers=headers)
        first = await unless_gone(request, first_of(pieces))
        stream = _stream(body, answer_id, created, first, pieces, error_event)
        return StreamingResponse(stream, media_type="text/event-stream", headers={**headers, **NO_STORE})

    @app.post("/tokenize", response_model=Tokens)
    async def tokenize(body: TokenizeRequest) -> Response:
        """The ids of a text."""
        info, ids = texts.tokenizer, texts.text_tokens(body.prompt)
        if body.add_special_tokens is not False and info.adds_bos:
            ids = (*texts.text_tokens(info.bos), *ids)
        return JSONResponse({"tokens": list(ids), "count": len(ids), "max_model_len": info.context_tokens})

    @app.post("/detokenize", response_model=Detokenized)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """The text that ids stand for."""
        return JSONResponse({"prompt": texts.text_of(body.tokens)})

    @app.get("/tokenizer_info", response_model=Tokenizer)
    async def tokenizer_info() -> Response:
        """The special tokens and the chat template."""
        return JSONResponse(tokenizer_body(texts.tokenizer))


def _choices(texts: RawText, wanted: CompletionRequest) -> list[Pieces]:
    """The choices of all prompts in order, each with a seed of its own."""
    seed = secrets.randbits(62) if wanted.seed is None else abs(wanted.seed)
    return [
        _choice(texts, wanted, prompt, choice_seed(seed, number)) for prompt in wanted.prompts for number in range(wanted.choices)
    ]


async def _choice(texts: RawText, wanted: CompletionRequest, prompt: RawPrompt, seed: int) -> Pieces:
    echo, read, sampling = _Piece(""), 0, wanted.sampling()
    if wanted.echo:
        echo, read = await _echo(texts, wanted, prompt)
        yield echo
    if sampling.max_tokens == 0:
        yield _Piece("", over=True, prompt_tokens=read)
        return
    async with closing(texts.continue_text(prompt, sampling, seed)) as deltas:
        async for delta in deltas:
            yield _piece_of(delta, len(echo.text))


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
    tally, usage = _Tally(wanted), {"usage": None} if wanted.include_usage else {}
    async with aclosing(pieces):
        try:
            index, piece = first
            while True:
                tally.add(index, piece)
                yield sse(completion_body(wanted, answer_id, created, [_choice_of(wanted, index, piece)], **usage))
                if (following := await anext(pieces, None)) is None:
                    break
                index, piece = following
            if wanted.include_usage:
                yield sse(completion_body(wanted, answer_id, created, [], usage=tally.usage()))
        except Exception as error:
            yield sse(error_event(error))
    yield SSE_DONE


class _Tally:
    """Counts the tokens of a request: a prompt once, whatever the number of its choices."""

    def __init__(self, wanted: CompletionRequest) -> None:
        self._choices = wanted.choices
        self._prompt = self._completion = 0

    def add(self, index: int, piece: _Piece) -> None:
        """Count a piece of a choice."""
        if piece.over:
            self._prompt += piece.prompt_tokens if index % self._choices == 0 else 0
            self._completion += piece.completion_tokens

    def usage(self) -> dict[str, int]:
        """The usage object."""
        return usage_body(self._prompt, self._completion)


async def _whole(
    wanted: CompletionRequest, pieces: AsyncGenerator[tuple[int, _Piece], None]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All choices and the usage object."""
    tally, wholes = _Tally(wanted), [_Piece("") for _ in range(len(wanted.prompts) * wanted.choices)]
    async with aclosing(pieces):
        async for index, piece in pieces:
            tally.add(index, piece)
            before = wholes[index]
            wholes[index] = replace(piece, text=before.text + piece.text, tokens=before.tokens + piece.tokens)
    return [_choice_of(wanted, index, whole) for index, whole in enumerate(wholes)], tally.usage()


def _piece_of(delta: TextDelta, offset: int) -> _Piece:
    tokens = _moved(delta.tokens, offset)
    response = delta.response
    if response is None:
        return _Piece(delta.text, tokens)
    return _Piece(delta.text, tokens, True, response.finish, delta.prompt_tokens, len(response.token_ids))


def _moved(tokens: tuple[ScoredToken, ...], offset: int) -> tuple[ScoredToken, ...]:
    return tuple(replace(token, start=max(0, token.start + offset)) for token in tokens) if offset else tokens


def _choice_of(wanted: CompletionRequest, index: int, piece: _Piece) -> dict[str, Any]:
    logprobs = None if wanted.alternatives is None else logprobs_body(piece.tokens)
    return choice_body(index, piece.text, logprobs, piece.finish, over=piece.over)

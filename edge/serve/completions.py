"""POST /v1/completions, and the model's tokenizer for clients that count tokens. Knows requests and raw texts; knows nothing of answers.

The tokenizer's routes have the form that vLLM gave them: evaluation harnesses look for them, and need no tokenizer of their own then.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from edge.core.clock import Clock
from edge.core.concurrency import closing
from edge.core.types import FinishReason, ScoredToken, TextDelta
from edge.inference.raw_text import RawPrompt, RawText
from edge.serve import completions_wire as wire
from edge.serve.choices import choice_seed, side_by_side
from edge.serve.openai_wire import SSE_DONE, sse
from edge.serve.presence import unless_gone


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of one choice; the last one is `over` and says how it ended (None: nothing was generated) and what was read and written."""

    text: str
    tokens: tuple[ScoredToken, ...] = ()
    over: bool = False
    finish: FinishReason | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0


Pieces = AsyncGenerator[_Piece, None]


def completion_routes(
    texts: RawText, clock: Clock, loaded_model: str, told: Callable[[Exception], dict[str, Any]]
) -> list[Route]:
    """The routes. `told` is the body that tells a client of an error in the middle of a stream."""
    endpoint = _Completions(texts, clock, loaded_model, told)
    return [
        Route("/v1/completions", endpoint.complete, methods=["POST"]),
        Route("/tokenize", endpoint.tokenize, methods=["POST"]),
        Route("/detokenize", endpoint.detokenize, methods=["POST"]),
        Route("/tokenizer_info", endpoint.tokenizer_info),
    ]


class _Completions:
    """The handlers, over one model's raw texts."""

    def __init__(self, texts: RawText, clock: Clock, loaded_model: str, told: Callable[[Exception], dict[str, Any]]) -> None:
        self._texts = texts
        self._clock = clock
        self._loaded_model = loaded_model
        self._told = told

    async def complete(self, request: Request) -> Response:
        """Continue plain texts, whole or streamed. What fails before the first text has its HTTP status."""
        wanted = wire.parse_completion_request(await request.body(), self._loaded_model)
        answer_id, created = secrets.token_hex(8), int(self._clock.now())
        pieces = side_by_side(self._choices(wanted))
        headers = {"x-edge-source": "local"}
        if not wanted.stream:
            choices, usage = await unless_gone(request, _whole(wanted, pieces))
            edge = {"source": "local", "ignored_parameters": list(wanted.ignored)}
            body = wire.completion_body(wanted, answer_id, created, choices, usage=usage, edge=edge)
            return JSONResponse(body, headers=headers)
        first = await unless_gone(request, _next(pieces))
        stream = self._stream(wanted, answer_id, created, first, pieces)
        return StreamingResponse(stream, media_type="text/event-stream", headers={**headers, "cache-control": "no-store"})

    async def tokenize(self, request: Request) -> Response:
        """The ids of a text."""
        text, whole = wire.parse_tokenize_request(await request.body())
        info = self._texts.tokenizer
        ids = self._texts.text_tokens(text)
        if whole and info.adds_bos:
            ids = (*self._texts.text_tokens(info.bos), *ids)
        return JSONResponse(wire.tokens_body(ids, info.context_tokens))

    async def detokenize(self, request: Request) -> Response:
        """The text that ids stand for."""
        ids = wire.parse_detokenize_request(await request.body())
        return JSONResponse({"prompt": self._texts.text_of(ids)})

    async def tokenizer_info(self, request: Request) -> Response:
        """The special tokens and the chat template."""
        return JSONResponse(wire.tokenizer_body(self._texts.tokenizer))

    def _choices(self, wanted: wire.CompletionRequest) -> list[Pieces]:
        """The choices of all prompts in order, each with a seed of its own."""
        seed = secrets.randbits(62) if wanted.seed is None else abs(wanted.seed)
        return [
            self._choice(wanted, prompt, choice_seed(seed, number))
            for prompt in wanted.prompts
            for number in range(wanted.choices)
        ]

    async def _choice(self, wanted: wire.CompletionRequest, prompt: RawPrompt, seed: int) -> Pieces:
        echo, read = _Piece(""), 0
        if wanted.echo:
            echo, read = await self._echo(wanted, prompt)
            yield echo
        if wanted.sampling.max_tokens == 0:
            yield _Piece("", over=True, prompt_tokens=read)
            return
        async with closing(self._texts.continue_text(prompt, wanted.sampling, seed)) as deltas:
            async for delta in deltas:
                yield _piece_of(delta, len(echo.text))

    async def _echo(self, wanted: wire.CompletionRequest, prompt: RawPrompt) -> tuple[_Piece, int]:
        """The prompt as a piece of the answer, scored where that was asked for, and its number of tokens."""
        if wanted.logprobs is None:
            ids = self._texts.text_tokens(prompt) if isinstance(prompt, str) else tuple(prompt)
            text = self._texts.text_of(ids)
            return _Piece(prompt if isinstance(prompt, str) else text), len(ids)
        tokens = await self._texts.read(prompt, wanted.logprobs)
        text = self._texts.text_of([token.token_id for token in tokens])
        if isinstance(prompt, str):  # a beginning-of-text token was put before it
            tokens = _moved(tokens, len(prompt) - len(text))
            text = prompt
        return _Piece(text, tokens), len(tokens)

    async def _stream(
        self,
        wanted: wire.CompletionRequest,
        answer_id: str,
        created: int,
        first: tuple[int, _Piece],
        pieces: AsyncGenerator[tuple[int, _Piece], None],
    ) -> AsyncIterator[bytes]:
        tally, usage = _Tally(wanted), {"usage": None} if wanted.include_usage else {}
        async with aclosing(pieces):
            try:
                index, piece = first
                while True:
                    tally.add(index, piece)
                    yield sse(wire.completion_body(wanted, answer_id, created, [_choice_of(wanted, index, piece)], **usage))
                    if (following := await anext(pieces, None)) is None:
                        break
                    index, piece = following
                if wanted.include_usage:
                    yield sse(wire.completion_body(wanted, answer_id, created, [], usage=tally.usage()))
            except Exception as error:
                yield sse(self._told(error))
        yield SSE_DONE


class _Tally:
    """Counts the tokens of a request: a prompt once, whatever the number of its choices."""

    def __init__(self, wanted: wire.CompletionRequest) -> None:
        self._choices = wanted.choices
        self._prompt = self._completion = 0

    def add(self, index: int, piece: _Piece) -> None:
        """Count a piece of a choice."""
        if piece.over:
            self._prompt += piece.prompt_tokens if index % self._choices == 0 else 0
            self._completion += piece.completion_tokens

    def usage(self) -> dict[str, int]:
        """The usage object."""
        return wire.usage_body(self._prompt, self._completion)


async def _whole(
    wanted: wire.CompletionRequest, pieces: AsyncGenerator[tuple[int, _Piece], None]
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """All choices and the usage object."""
    tally, wholes = _Tally(wanted), [_Piece("") for _ in range(len(wanted.prompts) * wanted.choices)]
    async with aclosing(pieces):
        async for index, piece in pieces:
            tally.add(index, piece)
            told = wholes[index]
            wholes[index] = replace(piece, text=told.text + piece.text, tokens=told.tokens + piece.tokens)
    return [_choice_of(wanted, index, whole) for index, whole in enumerate(wholes)], tally.usage()


async def _next(pieces: AsyncGenerator[tuple[int, _Piece], None]) -> tuple[int, _Piece]:
    return await anext(pieces)


def _piece_of(delta: TextDelta, offset: int) -> _Piece:
    tokens = _moved(delta.tokens, offset)
    response = delta.response
    if response is None:
        return _Piece(delta.text, tokens)
    return _Piece(delta.text, tokens, True, response.finish, delta.prompt_tokens, len(response.token_ids))


def _moved(tokens: tuple[ScoredToken, ...], offset: int) -> tuple[ScoredToken, ...]:
    return tuple(replace(token, start=max(0, token.start + offset)) for token in tokens) if offset else tokens


def _choice_of(wanted: wire.CompletionRequest, index: int, piece: _Piece) -> dict[str, Any]:
    logprobs = None if wanted.logprobs is None else wire.logprobs_body(piece.tokens)
    return wire.choice_body(index, piece.text, logprobs, piece.finish, over=piece.over)

"""Several answers or texts of one request, side by side, as whole answers or as server-sent events; work ends when the client goes away."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

from edge.core.rng import derive_seed
from edge.core.types import ScoredToken
from edge.inference.channels import ChannelText
from edge.serve.errors import RequestProblem
from edge.serve.ports import AnswerNote
from edge.serve.reasoning import Reading

T = TypeVar("T")
Event = ChannelText | AnswerNote

MOST_AT_ONCE = 4
"""How many answers or texts of one request are computed together: the other rows are for other people."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
SSE_DONE = b"data: [DONE]\n\n"


def sse(value: Mapping[str, Any]) -> bytes:
    """One server-sent event."""
    return b"data: " + _encode(value).encode() + b"\n\n"


def sse_named(value: Mapping[str, Any]) -> bytes:
    """One server-sent event under the name of its type."""
    return b"event: " + str(value["type"]).encode() + b"\n" + sse(value)


async def unless_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled as soon as the client goes away. Raises ClientDisconnect then."""

    async def until_gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(until_gone())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for unfinished in (task, gone):
            unfinished.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def first_of(events: AsyncGenerator[T, None]) -> T:
    """The first event. What fails before it has its HTTP status."""
    return await anext(events)


@dataclass(frozen=True, slots=True)
class StreamedChoice:
    """One whole answer."""

    note: AnswerNote
    content: str
    reasoning: str
    tokens: tuple[ScoredToken, ...]


def choice_seed(seed: int, index: int) -> int:
    """The seed of one of several answers; that of the first is the request's own."""
    return seed if index == 0 else derive_seed(seed, "choice", index) >> 1


async def collect(reading: Reading) -> StreamedChoice:
    """The whole of one answer. Raises RequestProblem when it ends without its record."""
    text, tokens = {"reasoning": "", "content": ""}, list[ScoredToken]()
    async with aclosing(reading):
        async for event in reading:
            if isinstance(event, AnswerNote):
                return StreamedChoice(event, text["content"], text["reasoning"], tuple(tokens))
            text[event.channel] += event.text
            tokens += event.tokens
    raise RequestProblem(500, "the answer ended without its record", code="internal")


async def collect_all(readings: Sequence[Reading]) -> list[StreamedChoice]:
    """The whole answers, computed side by side, a few at a time; when one fails the others are given up."""
    if len(readings) == 1:
        return [await collect(readings[0])]
    room = asyncio.Semaphore(MOST_AT_ONCE)

    async def in_turn(reading: Reading) -> StreamedChoice:
        async with room:
            return await collect(reading)

    tasks = [asyncio.ensure_future(in_turn(reading)) for reading in readings]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def side_by_side(readings: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """The events of several answers as they come, a few at a time, with the number of the answer. Closing it closes them all."""
    if len(readings) == 1:
        async with aclosing(readings[0]) as reading:
            async for event in reading:
                yield 0, event
        return
    events: asyncio.Queue[tuple[int, T] | None] = asyncio.Queue()
    room = asyncio.Semaphore(MOST_AT_ONCE)
    tasks = [asyncio.create_task(_forward(index, reading, events, room)) for index, reading in enumerate(readings)]
    try:
        for _ in tasks:
            while (numbered := await events.get()) is not None:
                yield numbered
        for task in tasks:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _forward(
    index: int, reading: AsyncGenerator[T, None], events: asyncio.Queue[tuple[int, T] | None], room: asyncio.Semaphore
) -> None:
    try:
        async with room, aclosing(reading):
            async for event in reading:
                events.put_nowait((index, event))
    finally:
        events.put_nowait(None)

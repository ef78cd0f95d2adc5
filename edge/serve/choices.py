"""The answers to one chat request, one or several. Knows readings and the wire's shapes; knows nothing of sockets or engines."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from edge.core.rng import derive_seed
from edge.core.types import ScoredToken
from edge.serve import openai_wire as wire
from edge.serve.chat_logprobs import logprobs_body
from edge.serve.failures import RequestProblem
from edge.serve.ports import AnswerNote, Question
from edge.serve.reasoning import ChannelText, Reading

T = TypeVar("T")
Event = ChannelText | AnswerNote

MOST_AT_ONCE = 4
"""Of the answers or texts of one request, so many are computed together: the rows beside them are for other people."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One whole answer."""

    note: AnswerNote
    content: str
    reasoning: str
    tokens: tuple[ScoredToken, ...]


def questions_of(chat: wire.ChatRequest) -> list[Question]:
    """A question for each answer that is asked for, with an id and a seed of its own; several are answered on this machine, and say why."""
    if chat.choices == 1:
        return [chat.question]
    seed, why = chat.question.seed or 0, chat.question.no_cloud
    if not why and chat.question.mode != "local-only":
        why = f"n is {chat.choices}: several answers are made on this device"
    return [
        replace(chat.question, id=f"{chat.question.id}-{index}", mode="local-only", no_cloud=why, seed=choice_seed(seed, index))
        for index in range(chat.choices)
    ]


def choice_seed(seed: int, index: int) -> int:
    """The seed of one of several answers; that of the first is the request's own."""
    return seed if index == 0 else derive_seed(seed, "choice", index) >> 1


async def collect(reading: Reading) -> Choice:
    """The whole of one answer. Raises RequestProblem when it ends without its record."""
    text, tokens = {"reasoning": "", "content": ""}, list[ScoredToken]()
    async with aclosing(reading):
        async for event in reading:
            if isinstance(event, AnswerNote):
                return Choice(event, text["content"], text["reasoning"], tuple(tokens))
            text[event.channel] += event.text
            tokens += event.tokens
    raise RequestProblem(500, "the answer ended without its record", code="internal")


async def collect_all(readings: Sequence[Reading]) -> list[Choice]:
    """The whole answers, computed side by side, a few at a time; when one fails the others are given up."""
    if len(readings) == 1:
        return [await collect(readings[0])]
    room = asyncio.Semaphore(MOST_AT_ONCE)
    tasks = [asyncio.ensure_future(_collect_in_turn(reading, room)) for reading in readings]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _collect_in_turn(reading: Reading, room: asyncio.Semaphore) -> Choice:
    async with room:
        return await collect(reading)


def whole_body(chat: wire.ChatRequest, choices: Sequence[Choice], created: int) -> dict[str, Any]:
    """The `chat.completion` object. With several answers each choice carries its own `edge` object."""
    bodies = [wire.completion_body(chat, one.note, one.content, one.reasoning, created, _logprobs(chat, one)) for one in choices]
    body = bodies[0]
    if len(bodies) > 1:
        body["choices"] = [{**one["choices"][0], "index": index, "edge": one["edge"]} for index, one in enumerate(bodies)]
        body["usage"] = _usage([one.note for one in choices])
    return {**body, "id": wire.completion_id(chat.question.id)}


def _logprobs(chat: wire.ChatRequest, choice: Choice) -> dict[str, Any] | None:
    told = chat.question.wishes.top_logprobs is not None and choice.note.source != "cloud"
    return logprobs_body(choice.tokens) if told else None


async def side_by_side(readings: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """What several answers say as it comes, a few at a time, with the number of the answer. Closing it closes them all."""
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


class ChunkWriter:
    """The chunks of one streamed request."""

    def __init__(self, chat: wire.ChatRequest, created: int) -> None:
        self._chat = chat
        self._created = created
        self._id = wire.completion_id(chat.question.id)
        self._notes: list[AnswerNote] = []

    def opening(self) -> Iterator[dict[str, Any]]:
        """One chunk for each answer that says who speaks."""
        for index in range(self._chat.choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def of(self, index: int, event: Event) -> Iterator[dict[str, Any]]:
        """The chunks of one event; behind the last answer comes the usage, where it was asked for."""
        if isinstance(event, ChannelText):
            field = "reasoning_content" if event.channel == "reasoning" else "content"
            yield self._chunk(index, {field: event.text}, tokens=event.tokens)
            return
        self._notes.append(event)
        for delta in wire.tool_call_deltas(event):
            yield self._chunk(index, delta)
        yield self._chunk(index, {}, event.finish, edge=wire.edge_of(self._chat, event))
        if self._chat.include_usage and len(self._notes) == self._chat.choices:
            last = wire.usage_chunk(self._chat, self._id, self._created, event)
            yield {**last, "usage": _usage(self._notes)}

    def _chunk(
        self, index: int, delta: dict[str, Any], finish: str | None = None, tokens: tuple[ScoredToken, ...] = (), **more: Any
    ) -> dict[str, Any]:
        body = wire.chunk_body(self._chat, self._id, self._created, delta, finish, **more)
        body["choices"][0]["index"] = index
        if tokens:
            body["choices"][0]["logprobs"] = logprobs_body(tokens)
        return body


def _usage(notes: Sequence[AnswerNote]) -> dict[str, int]:
    """The prompt was read once, whatever the number of answers."""
    return wire.usage_body(replace(notes[0], completion_tokens=sum(note.completion_tokens for note in notes)))

"""Plain completions, several answers and log-probabilities over real sockets, with the official client and a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import aiohttp
import openai
import pytest

from edge.core.concurrency import ServingPrecedence
from edge.core.types import ScoredToken, TextDelta, TokenChance
from edge.serve.endpoint import build_app
from edge.serve.ports import AnswerNote, AnswerPiece
from edge.serve.server import serving
from edge.serve.streaming import MOST_AT_ONCE
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.endpoint import ScriptedAnswers, ScriptedControl

TEXTS = ("One two three. Four five.", "Six seven eight.", "naïve ☕ nine")


class TokenAnswers(ScriptedAnswers):
    """Scripted answers of which every piece is a token."""

    async def answer(self, question: Any) -> AsyncIterator[AnswerPiece]:
        start = 0
        async for piece in super().answer(question):
            chance = TokenChance(7, piece.text.encode(), -0.25)
            token = ScoredToken(7, piece.text.encode(), -0.25, True, (chance,), start, start + len(piece.text))
            start += len(piece.text)
            scored = question.wishes.top_logprobs is not None and piece.note is None
            yield AnswerPiece(piece.text, piece.note, (token,) if scored else ())


class CountingBackend(ScriptedBackend):
    """Counts the texts that are continued concurrently. With `held` each waits for it after its first piece."""

    running = most = 0
    held: asyncio.Event | None = None

    async def continue_text(self, *given: Any) -> AsyncIterator[TextDelta]:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            async with aclosing(super().continue_text(*given)) as deltas:  # type: ignore[type-var]
                async for delta in deltas:
                    yield delta
                    if self.held is not None:
                        await self.held.wait()
        finally:
            self.running -= 1


@pytest.fixture
def answers() -> ScriptedAnswers:
    return TokenAnswers(
        ["<think>", "\nso\n", "</think>", "\n", "The", " answer", "."],
        note=AnswerNote("", "local", prompt_tokens=5, completion_tokens=7),
    )


@pytest.fixture
def precedence() -> ServingPrecedence:
    return ServingPrecedence(ManualClock())


@pytest.fixture
def backend() -> CountingBackend:
    return CountingBackend(TEXTS)


@pytest.fixture
async def url(answers: ScriptedAnswers, precedence: ServingPrecedence, backend: CountingBackend) -> AsyncIterator[str]:
    app = build_app(
        answers,
        ScriptedControl(answers),
        ManualClock(1000.0),
        loaded_model="nano-edge",
        texts=backend,
        serving=precedence.serving,
    )
    async with serving(app, "127.0.0.1", 0) as base:
        yield base


@pytest.fixture
async def client(url: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        yield client


async def test_a_completion_has_the_openai_shape(client: openai.AsyncOpenAI, precedence: ServingPrecedence) -> None:
    raw = await client.completions.with_raw_response.create(model="edge", prompt="Count:", seed=0)
    done = raw.parse()
    assert (done.object, done.model, done.created, done.id[:5]) == ("text_completion", "edge", 1000, "cmpl-")
    assert [(choice.text, choice.index, choice.finish_reason, choice.logprobs) for choice in done.choices] == [
        (TEXTS[0], 0, "stop", None)
    ]
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (1, 6, 7)
    assert raw.headers["x-edge-source"] == "local"
    assert not precedence.busy


async def test_parameters_without_effect_are_named_whole_and_streamed(client: openai.AsyncOpenAI) -> None:
    foreign = {"min_p": 0.05, "repeat_penalty": 1.1}
    whole: Any = await client.completions.create(model="edge", prompt="Count:", seed=0, user="me", extra_body=foreign)
    assert sorted(whole.edge["ignored_parameters"]) == ["min_p", "repeat_penalty", "user"]
    streamed = await client.completions.create(model="edge", prompt="Count:", n=2, stream=True, extra_body=foreign)
    ends: list[Any] = [chunk async for chunk in streamed if chunk.choices and chunk.choices[0].finish_reason]
    assert [end.edge["ignored_parameters"] for end in ends] == [list(foreign)] * 2


async def test_many_prompts_of_one_request_run_a_few_at_a_time(client: openai.AsyncOpenAI, backend: CountingBackend) -> None:
    prompts = [f"prompt {number}" for number in range(30)]
    stream = await client.completions.create(model="edge-local", prompt=prompts, seed=1, stream=True)
    assert {choice.index async for chunk in stream for choice in chunk.choices} == set(range(30))
    assert backend.most == MOST_AT_ONCE


async def test_a_prompt_is_echoed_and_scored_without_a_continuation(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model="nano-edge", prompt="to be or", max_tokens=0, echo=True, logprobs=2)
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason) == ("to be or", "length")
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens == ["to", " be", " or"]
    assert logprobs.text_offset == [0, 2, 5]
    assert logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert logprobs.top_logprobs is not None
    assert logprobs.top_logprobs[0] is None
    assert logprobs.top_logprobs[1][" be"] == logprobs.token_logprobs[1]  # type: ignore[index]


async def test_echo_with_a_continuation_scores_both_in_one_list(client: openai.AsyncOpenAI) -> None:
    done = await client.completions.create(model="edge", prompt="to be", max_tokens=2, echo=True, logprobs=0, seed=0)
    (choice,) = done.choices
    assert (choice.text, choice.finish_reason) == ("to beOne two", "length")
    assert choice.logprobs is not None
    assert choice.logprobs.tokens == ["to", " be", "One", " two"]
    assert choice.logprobs.text_offset == [0, 2, 5, 8]


async def test_token_ids_are_accepted_as_prompts(client: openai.AsyncOpenAI, url: str) -> None:
    async with aiohttp.ClientSession() as http:
        async with http.post(f"{url}/tokenize", json={"prompt": "to be", "add_special_tokens": False}) as reply:
            found = await reply.json()
        assert found["count"] == len(found["tokens"]) == 2
        async with http.post(f"{url}/detokenize", json={"tokens": found["tokens"]}) as reply:
            assert await reply.json() == {"prompt": "to be"}
        async with http.get(f"{url}/tokenizer_info") as reply:
            assert "eos_token" in await reply.json()
    for prompt in (found["tokens"], [found["tokens"]]):
        done = await client.completions.create(model="edge", prompt=prompt, echo=True, max_tokens=1, seed=0)
        assert done.choices[0].text == "to beOne"


async def test_a_stream_joins_to_the_whole_and_ends_with_the_usage(client: openai.AsyncOpenAI) -> None:
    ask: dict[str, Any] = {"model": "edge", "prompt": ["a", "b"], "n": 2, "seed": 2, "logprobs": 1, "echo": True}
    whole = await client.completions.create(**ask)
    texts, tokens, finishes, usage = [""] * 4, [[] for _ in range(4)], [None] * 4, None  # type: ignore[var-annotated]
    async for chunk in await client.completions.create(**ask, stream=True, stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            tokens[choice.index] += choice.logprobs.tokens if choice.logprobs else []
            finishes[choice.index] = choice.finish_reason or finishes[choice.index]  # type: ignore[call-overload]
    assert texts == [choice.text for choice in whole.choices]
    assert tokens == [choice.logprobs.tokens for choice in whole.choices if choice.logprobs]
    assert finishes == [choice.finish_reason for choice in whole.choices]
    assert usage == whole.usage


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": "edge-cloud"}, "model"),
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": ["a", 3]}, "prompt[1]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 100, "n": 2}, "n"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"suffix": "x"}, "suffix"),
        ({"best_of": 3}, "best_of"),
        ({"n": 9}, "n"),
    ],
)
async def test_unsupported_completion_is_refused_by_name(url: str, fields: dict[str, Any], param: str) -> None:
    body = {"model": "edge", "prompt": "x", **fields}
    async with aiohttp.ClientSession() as http, http.post(f"{url}/v1/completions", json=body) as reply:
        assert reply.status in (400, 404)
        assert (await reply.json())["error"]["param"] == param


async def test_unknown_token_ids_are_refused_before_streaming(client: openai.AsyncOpenAI) -> None:
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError):
            await client.completions.create(model="edge", prompt=[2**30], stream=stream)


async def test_closing_a_streamed_completion_ends_it(
    client: openai.AsyncOpenAI, precedence: ServingPrecedence, backend: CountingBackend
) -> None:
    backend.held = asyncio.Event()
    stream = await client.completions.create(model="edge", prompt="x", stream=True)
    async for _ in stream:
        break
    assert precedence.busy and backend.running == 1
    await stream.close()
    async with asyncio.timeout(120):
        await precedence.idle()
    assert backend.running == 0


async def test_each_of_several_chat_answers_reports_its_source(client: openai.AsyncOpenAI, answers: ScriptedAnswers) -> None:
    done = await client.chat.completions.create(model="edge", messages=[{"role": "user", "content": "?"}], n=3, seed=5)
    assert [choice.index for choice in done.choices] == [0, 1, 2]
    assert {choice.message.content for choice in done.choices} == {"The answer."}
    assert [question.mode for question in answers.asked] == ["local-only"] * 3
    assert len({question.seed for question in answers.asked}) == 3
    assert len({choice.model_extra["edge"]["id"] for choice in done.choices if choice.model_extra}) == 3
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (5, 21)


async def test_several_streamed_chat_answers_have_distinct_indices(client: openai.AsyncOpenAI) -> None:
    texts, finishes, usages = ["", ""], [], []
    stream = await client.chat.completions.create(
        model="edge", messages=[{"role": "user", "content": "?"}], n=2, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in stream:
        usages += [chunk.usage] if chunk.usage else []
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
            finishes += [choice.finish_reason] if choice.finish_reason else []
    assert texts == ["The answer."] * 2
    assert finishes == ["stop"] * 2
    assert [usage.completion_tokens for usage in usages] == [14]


@pytest.mark.parametrize("streamed", [False, True])
async def test_chat_log_probabilities_cover_the_content(client: openai.AsyncOpenAI, streamed: bool) -> None:
    ask: dict[str, Any] = {"model": "edge", "messages": [{"role": "user", "content": "?"}], "logprobs": True, "top_logprobs": 1}
    if streamed:
        chunks = [chunk async for chunk in await client.chat.completions.create(**ask, stream=True)]
        entries = [entry for chunk in chunks for choice in chunk.choices if choice.logprobs for entry in choice.logprobs.content]
        assert all(choice.logprobs is None for chunk in chunks for choice in chunk.choices if not choice.delta.content)
    else:
        entries = (await client.chat.completions.create(**ask)).choices[0].logprobs.content
    assert [entry.token for entry in entries] == ["The", " answer", "."]
    assert [bytes(entry.bytes) for entry in entries] == [b"The", b" answer", b"."]
    assert {entry.top_logprobs[0].logprob for entry in entries} == {-0.25}


async def test_cloud_text_has_no_log_probabilities(client: openai.AsyncOpenAI, answers: ScriptedAnswers) -> None:
    answers.note = AnswerNote("", "cloud")
    done = await client.chat.completions.create(model="edge", messages=[{"role": "user", "content": "?"}], logprobs=True)
    assert done.choices[0].logprobs is None


async def test_failure_of_one_of_several_answers_ends_the_request(client: openai.AsyncOpenAI, answers: ScriptedAnswers) -> None:
    answers.failure, answers.fail_after = RuntimeError("broken"), 2
    with pytest.raises(openai.InternalServerError):
        await client.chat.completions.create(model="edge", messages=[{"role": "user", "content": "?"}], n=3)
    assert answers.closed == 3

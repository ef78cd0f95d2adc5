"""The bundled cloud LLM on real llama.cpp: determinism under concurrency, deadlines, prompt injection, bad files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.config import UpstreamConfig
from coordinator.providers.bundled import BundledProvider
from coordinator.providers.provider import ProviderError, ProviderRequest
from edge.core.types import Message
from tests.worlds.tiny_gguf import CHAT_TEMPLATE, write_tiny_model

QUESTIONS = [f"How much is {number} and {number * 37 % 11}? " * (1 + number % 5) for number in range(24)]


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("bundled") / "tiny.gguf", scale=6.0).path


@pytest.fixture
async def provider(model_path: Path) -> AsyncIterator[BundledProvider]:
    provider = bundled(model_path, 6)
    await provider.start()
    yield provider
    await provider.aclose()


def bundled(path: Path, rows: int) -> BundledProvider:
    return BundledProvider(UpstreamConfig(path=str(path), max_concurrency=rows), "test")


def asks(content: str, *, key: str = "d1|k|1", **changes: object) -> ProviderRequest:
    request = ProviderRequest((Message("user", content),), "m", 24, 0.0, 60.0, key)
    return replace(request, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_answer_does_not_depend_on_concurrent_requests(
    provider: BundledProvider, model_path: Path, temperature: float
) -> None:
    requests = [
        asks(question, key=question, temperature=temperature, max_output_tokens=8 + index)
        for index, question in enumerate(QUESTIONS)
    ]
    alone = [await provider.complete(request) for request in requests]
    together = await asyncio.gather(*(provider.complete(request) for request in requests))
    assert together == alone
    assert len({result.text for result in alone}) > 12
    for rows in (1, 4096):  # one at a time, and more than llama.cpp has
        other = bundled(model_path, rows)
        assert [await other.complete(request) for request in requests[:3]] == alone[:3]
        await other.aclose()


async def test_idempotency_key_seeds_sampling(provider: BundledProvider) -> None:
    texts = [(await provider.complete(asks("x", key=key, temperature=1.0))).text for key in ("a", "a", "b")]
    assert texts[0] == texts[1] != texts[2]


async def test_usage_counts_input_and_output_tokens(provider: BundledProvider) -> None:
    request = asks("How much?", max_output_tokens=5)
    result = await provider.complete(request)
    assert result.usage is not None
    assert result.usage.input_tokens == provider.input_token_bound(request)
    assert (result.usage.output_tokens, result.finish) == (5, "length")


async def test_prompt_longer_than_the_context_is_reported_as_not_executed(provider: BundledProvider) -> None:
    with pytest.raises(ProviderError) as failed:
        await provider.complete(asks("word " * 2_000))
    assert (failed.value.kind, failed.value.executed) == ("too_long", False)


async def test_oversized_prompt_is_refused_without_being_tokenised(
    provider: BundledProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("llama_cpp.llama_tokenize")
    with pytest.raises(ProviderError) as failed:
        await provider.complete(asks("<think>" * 50_000))
    assert (failed.value.kind, failed.value.executed) == ("too_long", False)


async def test_a_generation_stops_at_the_end_of_the_context(provider: BundledProvider) -> None:
    result = await provider.complete(asks("a " * 200, max_output_tokens=10_000))
    assert result.finish in ("length", "stop")
    assert result.usage is not None
    assert result.usage.input_tokens + result.usage.output_tokens <= 512 + 1


async def test_call_that_times_out_in_the_queue_was_not_executed_but_a_started_one_was(provider: BundledProvider) -> None:
    running = [asyncio.create_task(provider.complete(asks("go on", max_output_tokens=400, deadline_s=1.0))) for _ in range(6)]
    await asyncio.sleep(0.05)
    waiting = asyncio.create_task(provider.complete(asks("too late", deadline_s=0.01)))
    failures = [(await asyncio.gather(task, return_exceptions=True))[0] for task in (waiting, running[0])]
    assert isinstance(failures[0], ProviderError)
    assert (failures[0].kind, failures[0].executed) == ("deadline", False)
    if isinstance(failures[1], ProviderError):  # a fast machine may have finished it
        assert (failures[1].kind, failures[1].executed) == ("deadline", True)
    await asyncio.gather(*running, return_exceptions=True)


async def test_cancelled_calls_free_their_rows(provider: BundledProvider) -> None:
    running = [asyncio.create_task(provider.complete(asks("go on", max_output_tokens=450))) for _ in range(12)]
    await asyncio.sleep(0.05)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert (await provider.complete(asks("and now?", max_output_tokens=3, deadline_s=20.0))).finish


async def test_close_ends_running_calls(model_path: Path) -> None:
    provider = bundled(model_path, 2)
    await provider.start()
    running = [asyncio.create_task(provider.complete(asks("go on", max_output_tokens=450))) for _ in range(5)]
    await asyncio.sleep(0.02)
    await provider.aclose()
    outcomes = await asyncio.gather(*running, return_exceptions=True)
    assert all(not isinstance(outcome, BaseException) or isinstance(outcome, ProviderError) for outcome in outcomes)


async def test_a_template_that_refuses_a_conversation_executes_nothing(tmp_path: Path) -> None:
    template = "{{ raise_exception('users begin') if messages[0]['role'] == 'assistant' }}" + CHAT_TEMPLATE
    path = write_tiny_model(tmp_path / "m.gguf", chat_template=template).path
    provider = bundled(path, 1)
    with pytest.raises(ProviderError, match="users begin") as failed:
        await provider.complete(asks("", messages=(Message("assistant", "x"),)))
    assert (failed.value.kind, failed.value.executed) == ("bad_request", False)
    await provider.aclose()

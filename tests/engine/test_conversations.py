"""Conversations that are served: longer than the rows of rollouts, read once, answered as by an engine that keeps nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import llama_cpp
import pytest

from edge.core.errors import ContextOverflow
from edge.core.types import Message, Sampling, TextDelta
from edge.core.worker import EngineWorker, Priority
from edge.inference.batched import SERVED_SHARE, SERVED_TOKENS, ServingMemory, serving_memory
from edge.inference.llamacpp import LlamaCppBackend
from tests.worlds.batched_engine import concurrent, one_by_one
from tests.worlds.made_up_lora import write_adapter
from tests.worlds.tiny_gguf import TinyModel, write_tiny_model

GREEDY = Sampling(temperature=0.0, max_tokens=24, ignore_eos=True, top_logprobs=5)
MOST_NATS = 0.3
"""By which the shape of a batch changes a log-probability of a random model whose activations are rounded to 8 bits (measured: 0.12). A
row that held something else would be off by nats."""
ROW_TOKENS = 384
MEMORY = ServingMemory(1536, 3072)


@pytest.fixture(scope="module", params=["llama-Q8_0", "qwen2-F32"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, kind = request.param.split("-")
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", architecture, quantised=kind == "Q8_0")


@pytest.fixture
async def open_model(tiny: TinyModel, worker: EngineWorker) -> AsyncIterator[Any]:
    opened: list[LlamaCppBackend] = []

    def open_one(serving: ServingMemory = MEMORY, **further: Any) -> LlamaCppBackend:
        options: dict[str, Any] = {**further, "n_threads": 1, "n_ctx": ROW_TOKENS, "max_rows": 4, "gpu_layers": 0}
        opened.append(LlamaCppBackend(tiny.path, worker, serving=serving, **options))
        return opened[-1]

    yield open_one
    for backend in opened:
        await backend.aclose()


async def told(backend: LlamaCppBackend, turns: Sequence[Message], sampling: Sampling = GREEDY) -> TextDelta:
    """The last piece of an answer, with its response."""
    deltas = [delta async for delta in backend.stream(turns, sampling, 0)]
    assert deltas[-1].response is not None
    return deltas[-1]


def same(one: TextDelta, other: TextDelta) -> bool:
    """Whether both go on from the same text: the chances of their first tokens are alike."""
    assert one.response is not None and other.response is not None
    some, others = ({chance.token_id: chance.logprob for chance in each.tokens[0].top} for each in (one.response, other.response))
    shared = some.keys() & others.keys()
    return len(shared) >= 3 and all(abs(some[token] - others[token]) < MOST_NATS for token in shared)


def opening(topic: str, words: int = 60) -> list[Message]:
    return [Message("user", f"{topic}: " + "and so on, " * words)]


def going_on(turns: Sequence[Message], answer: TextDelta, question: str) -> list[Message]:
    assert answer.response is not None
    return [*turns, Message("assistant", answer.response.text), Message("user", question)]


async def test_a_chat_reads_each_turn_once_and_answers_as_if_it_had_read_all(open_model: Any) -> None:
    backend, forgetful = open_model(), open_model()
    turns, read = opening("A walk"), 0
    for number in range(5):
        answer = await told(backend, turns)
        assert answer.cached_tokens == 0 if number == 0 else answer.cached_tokens >= read, number
        read = answer.prompt_tokens
        await forgetful.swap_adapter(None)  # what was read is void
        fresh = await told(forgetful, turns)
        assert fresh.cached_tokens == 0 and same(answer, fresh), number
        turns = going_on(turns, answer, f"And question {number}, which is another one?")
    assert read > ROW_TOKENS


async def test_a_new_adapter_voids_what_was_read_and_answers_from_the_first_token_on(
    open_model: Any, tiny: TinyModel, tmp_path: Path
) -> None:
    backend, fresh = open_model(), open_model()
    adapter = write_adapter(tmp_path / "adapter", tiny, 3, seed=3)
    bare = await told(backend, opening("A walk"))
    await backend.swap_adapter(adapter)
    answer = await told(backend, opening("A walk"))
    assert answer.cached_tokens == 0
    await fresh.swap_adapter(adapter)  # before its first answer
    expected = await told(fresh, opening("A walk"))
    assert same(answer, expected) and answer.response is not None and answer.response.adapter_version == 3
    assert not same(answer, bare)
    assert (await told(backend, opening("A walk"))).cached_tokens == answer.prompt_tokens - 1


async def test_an_answer_that_is_left_early_leaves_a_row_that_can_be_gone_on_from(open_model: Any) -> None:
    backend, fresh = open_model(), open_model()
    stream = backend.stream(opening("A walk"), Sampling(temperature=0.0, max_tokens=200, ignore_eos=True), 0)
    async for _ in stream:
        break
    await stream.aclose()
    answer, expected = await told(backend, opening("A walk")), await told(fresh, opening("A walk"))
    assert answer.cached_tokens == answer.prompt_tokens - 1
    assert same(answer, expected)


async def test_a_prompt_that_is_withdrawn_while_it_is_read_does_no_harm(open_model: Any) -> None:
    backend, fresh = open_model(), open_model()
    long = opening("A walk", 120)
    reading = asyncio.create_task(told(backend, long))
    await asyncio.sleep(0.005)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    answer, expected = await told(backend, long), await told(fresh, long)
    assert same(answer, expected)


async def test_two_chats_and_learning_between_their_turns_do_not_displace_each_other(open_model: Any) -> None:
    backend = open_model()
    for number in range(2):
        for topic in ("A walk", "The sea"):
            answer = await told(backend, opening(topic))
            assert (answer.cached_tokens > 100) is (number > 0), (topic, number)
            await concurrent(backend, Sampling(max_tokens=20), range(4), range(6))


async def test_what_was_used_longest_ago_goes_where_there_is_no_room(open_model: Any) -> None:
    backend = open_model(ServingMemory(1024, 1024))
    topics = ["A walk", "The sea", "A song", "The moon"]
    for topic in topics:
        assert (await told(backend, opening(topic, 80))).cached_tokens < 30, topic
    latest = await told(backend, opening(topics[-1], 80))
    assert latest.cached_tokens == latest.prompt_tokens - 1
    assert (await told(backend, opening(topics[0], 80))).cached_tokens < 30


async def test_more_people_than_there_is_room_for_are_all_answered_as_if_alone(open_model: Any) -> None:
    topics = [f"Topic {number}" for number in range(8)]
    crowded, alone = open_model(ServingMemory(1024, 1024)), open_model()
    answers = await asyncio.gather(*(told(crowded, opening(topic, 70)) for topic in topics))
    for topic, answer in zip(topics, answers, strict=True):
        expected = await told(alone, opening(topic, 70))
        assert same(answer, expected), topic


async def test_rollouts_are_the_same_bits_with_and_without_conversations(open_model: Any) -> None:
    quiet, busy = open_model(), open_model()
    await told(busy, opening("A walk", 100))
    sampling = Sampling(max_tokens=32)
    assert await concurrent(busy, sampling, range(5), range(3)) == await one_by_one(quiet, sampling, range(5), range(3))


async def test_conversations_have_a_context_of_their_own(open_model: Any) -> None:
    backend = open_model()
    long, longer = opening("A walk", 100), opening("A walk", 500)
    assert (backend.tokenizer.context_tokens, backend.tokenizer.rollout_tokens) == (MEMORY.context_tokens, ROW_TOKENS)
    assert (await told(backend, long)).prompt_tokens > ROW_TOKENS
    counted = len(backend.served_ids(longer))
    with pytest.raises(ContextOverflow, match=f"the prompt is too long: {counted} tokens, the context {MEMORY.context_tokens}"):
        await told(backend, longer)
    with pytest.raises(ContextOverflow, match=str(ROW_TOKENS)):
        await backend.sample_group(long, GREEDY, [0])
    deltas = [delta async for delta in backend.continue_text("and so on, " * 100, GREEDY, 0)]
    assert deltas[-1].prompt_tokens > ROW_TOKENS
    assert len(await backend.read("and so on, " * 100)) == deltas[-1].prompt_tokens


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens of each llama.cpp context that is opened."""
    opened: list[int] = []
    real = llama_cpp.llama_init_from_model

    def counted(model: Any, params: Any) -> Any:
        opened.append(params.n_ctx)
        return real(model, params)

    monkeypatch.setattr(llama_cpp, "llama_init_from_model", counted)
    return opened


async def test_memory_for_conversations_is_taken_when_the_first_one_comes(open_model: Any, opened: list[int]) -> None:
    backend = open_model()
    await backend.sample_group(opening("A walk", 5), GREEDY, [0], Priority.ROLLOUT)
    assert MEMORY.held_tokens not in opened
    await told(backend, opening("A walk"))
    await told(backend, opening("The sea"))
    assert opened.count(MEMORY.held_tokens) == 1


async def test_of_a_model_with_a_running_state_all_is_read_again(open_model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llama_cpp, "llama_model_is_hybrid", lambda model: True)
    backend = open_model()
    before, again = await told(backend, opening("A walk")), await told(backend, opening("A walk"))
    assert again.cached_tokens == 0 and same(before, again)


async def test_an_idle_engine_gives_back_the_memory_of_conversations_and_takes_it_again(
    open_model: Any, opened: list[int]
) -> None:
    backend = open_model(unload_after_s=0.01)
    before = await told(backend, opening("A walk"))
    while (again := await told(backend, opening("A walk"))).cached_tokens > 0:
        await asyncio.sleep(0.1)  # idle for longer than that, with time for the engine's thread
    assert same(before, again)
    assert opened.count(MEMORY.held_tokens) >= 2


@pytest.mark.parametrize(
    ("wanted", "trained", "free", "expected"),
    [
        (None, 8192, 2**36, (8192, 16384, "model")),
        (None, 131072, 2**36, (SERVED_TOKENS, 2 * SERVED_TOKENS, "default")),
        (None, 1024, 2**36, (1024, SERVED_TOKENS, "model")),
        (None, 0, 2**36, (SERVED_TOKENS, 2 * SERVED_TOKENS, "model")),
        (None, 8192, 4096 * 20000 / SERVED_SHARE, (4096, 4096, "memory")),
        (None, 8192, 0, (1024, 1024, "memory")),
        (16384, 131072, 0, (16384, 16384, "setting")),
        (16384, 8192, 2**36, (8192, 16384, "model")),
        (512, 8192, 2**36, (512, 1024, "setting")),
    ],
)
def test_the_context_is_what_the_model_was_made_for_and_memory_allows(
    wanted: int | None, trained: int, free: float, expected: tuple[int, int, str]
) -> None:
    found = serving_memory(wanted, trained, 20000, int(free))
    assert (found.context_tokens, found.held_tokens, found.limited_by) == expected

"""The contract of inference backends (edge/inference/backend.py), run for each of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from edge.core.errors import AdapterError, EdgeError, UsageError
from edge.core.types import AdapterRef, FinishReason, LocalResponse, Message, PromptGroup, Sampling, ScoredToken, TextDelta
from edge.core.worker import EngineWorker, Priority
from edge.inference.backend import InferenceBackend, ModelInfo
from edge.inference.batcher import in_common
from edge.inference.llamacpp import LlamaCppBackend
from edge.testing.backend import ScriptedBackend
from tests.worlds.made_up_lora import write_adapter
from tests.worlds.mlx_engines import mlx_backend
from tests.worlds.onnx_engines import onnx_backend
from tests.worlds.tiny_gguf import TinyModel, write_tiny_model

MakeAdapter = Callable[[int], AdapterRef]
SAMPLING = Sampling(max_tokens=20)
MOST_NATS = 0.3
"""By which the shape of a batch may change a served token's log-probability."""
TEXTS = (
    "<think>\nStep 1: 2 + 3 = 5.\nStep 2: done.\nStep 3: more.\n</think>\n<answer>\\boxed{5}</answer>",
    "<think>\nStep 1: hard.\n</think>\nI need external assistance.",
    "",
    "naïve café ☕ " * 30,
)


def question(text: str = "What is 2 + 3?") -> list[Message]:
    return [Message("user", text)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(params=["scripted", "llamacpp", "mlx", "onnx"])
async def backend(request: pytest.FixtureRequest, tiny: TinyModel) -> AsyncIterator[InferenceBackend]:
    if request.param == "scripted":
        yield ScriptedBackend(TEXTS)
        return
    worker = EngineWorker()
    backend: InferenceBackend
    if request.param == "mlx":
        backend = mlx_backend(tiny.path, worker)
    elif request.param == "onnx":
        backend = onnx_backend(tiny.path, worker)
    else:
        backend = LlamaCppBackend(tiny.path, worker, n_threads=1, n_ctx=256, max_rows=6)
    yield backend
    await backend.aclose()
    worker.close()


@pytest.fixture
def make_adapter(tiny: TinyModel, tmp_path: Path) -> MakeAdapter:
    return lambda version: write_adapter(tmp_path / f"adapter-{version}", tiny, version, seed=version)


async def read(stream: AsyncIterator[TextDelta]) -> tuple[str, LocalResponse]:
    """The joined text and the final response of a stream, of which only the last piece carries a response."""
    deltas = [delta async for delta in stream]
    assert all(delta.response is None for delta in deltas[:-1])
    assert deltas[-1].response is not None
    assert deltas[-1].prompt_tokens > 0
    return "".join(delta.text for delta in deltas), deltas[-1].response


async def generate(backend: InferenceBackend, messages: list[Message], sampling: Sampling, seed: int = 0) -> LocalResponse:
    """One response at serving priority."""
    group = await backend.sample_group(messages, sampling, [seed], Priority.SERVING)
    return group.responses[0]


async def test_a_group_has_one_response_per_seed_in_order(backend: InferenceBackend) -> None:
    group = await backend.sample_group(question(), SAMPLING, [3, 1, 2, 3])
    assert len(group.responses) == 4
    assert group.responses[0] == group.responses[3]
    assert group.prompt_ids
    for seed, response in zip([3, 1, 2], group.responses, strict=False):
        assert (await backend.sample_group(question(), SAMPLING, [seed])).responses == (response,)
    assert (await backend.sample_group(question(), SAMPLING, [])).responses == ()


async def test_response_does_not_depend_on_other_requests_in_flight(backend: InferenceBackend) -> None:
    prompts = [question(f"{number} " * number) for number in range(1, 8)]
    together = await asyncio.gather(*(backend.sample_group(prompt, SAMPLING, range(5)) for prompt in prompts))
    for prompt, group in zip(prompts, together, strict=True):
        assert await backend.sample_group(prompt, SAMPLING, range(5)) == group


async def test_every_token_has_a_finite_log_probability_and_the_limits_hold(backend: InferenceBackend) -> None:
    group = await backend.sample_group(question(), SAMPLING, range(12))
    for response in group.responses:
        assert 1 <= len(response.token_ids) == len(response.logprobs) <= SAMPLING.max_tokens
        assert all(-math.inf < value <= 0.0 for value in response.logprobs)
        assert (response.finish is FinishReason.LENGTH) <= (len(response.token_ids) == SAMPLING.max_tokens)
        assert response.adapter_version == 0


async def test_greedy_responses_do_not_depend_on_the_seed(backend: InferenceBackend) -> None:
    if isinstance(backend, ScriptedBackend):
        pytest.skip("a script draws nothing")
    greedy = replace(SAMPLING, temperature=0.0)
    responses = (await backend.sample_group(question(), greedy, [1, 2, 3])).responses
    assert len(set(responses)) == 1
    narrow = await generate(backend, question(), replace(SAMPLING, top_p=1e-6), 1)
    assert narrow.token_ids == responses[0].token_ids, "drawing from the likeliest only is greedy, too"


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
async def test_streamed_text_joins_to_the_text_of_the_response(backend: InferenceBackend, seed: int) -> None:
    text, response = await read(backend.stream(question(), SAMPLING, seed))
    assert text == response.text
    await backend.swap_adapter(None)  # else what was read would be read in other lots
    assert response == await generate(backend, question(), SAMPLING, seed)


async def test_a_prefix_is_continued_and_not_repeated(backend: InferenceBackend) -> None:
    prefix = "<think>\nStep 1: 2 + 3"
    text, response = await read(backend.stream(question(), SAMPLING, 0, prefix=prefix))
    assert text == response.text
    assert not text.startswith(prefix)


async def test_leaving_a_stream_early_ends_it(backend: InferenceBackend) -> None:
    stream = backend.stream(question(), Sampling(max_tokens=150), 3)
    assert (await anext(stream)).response is None
    await stream.aclose()  # type: ignore[attr-defined]
    assert (await generate(backend, question(), SAMPLING, 3)).token_ids


async def test_a_cancelled_group_leaks_nothing(backend: InferenceBackend) -> None:
    expected = await backend.sample_group(question(), SAMPLING, range(6))
    for _ in range(5):
        task = asyncio.create_task(backend.sample_group(question("long"), Sampling(max_tokens=200), range(20)))
        await asyncio.sleep(0.003)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert await backend.sample_group(question(), SAMPLING, range(6)) == expected


async def test_serving_and_rollouts_run_concurrently(backend: InferenceBackend) -> None:
    rollouts = asyncio.create_task(backend.sample_group(question("long"), Sampling(max_tokens=100), range(30)))
    served = await asyncio.gather(*(generate(backend, question(), SAMPLING, seed) for seed in range(5)))
    alone = await backend.sample_group(question(), SAMPLING, range(5), Priority.SERVING)
    for some, other in zip(served, alone.responses, strict=True):
        common = in_common(some.token_ids, other.token_ids)
        assert common >= min(
            3, len(some.token_ids)
        )  # a draw next to the border between two tokens may then fall on the other side
        assert some.logprobs[:common] == pytest.approx(other.logprobs[:common], abs=MOST_NATS)
    assert len((await rollouts).responses) == 30


async def test_responses_carry_the_adapter_version_they_were_sampled_with(
    backend: InferenceBackend, make_adapter: MakeAdapter
) -> None:
    await backend.swap_adapter(make_adapter(4))
    assert backend.adapter_version == 4
    assert (await generate(backend, question(), SAMPLING)).adapter_version == 4
    await backend.swap_adapter(None)
    assert backend.adapter_version == 0
    assert (await generate(backend, question(), SAMPLING)).adapter_version == 0


async def test_a_failed_swap_leaves_the_adapter_in_use(
    backend: InferenceBackend, make_adapter: MakeAdapter, tmp_path: Path
) -> None:
    await backend.swap_adapter(make_adapter(4))
    before = await generate(backend, question(), SAMPLING)
    with pytest.raises(AdapterError):
        await backend.swap_adapter(AdapterRef(5, str(tmp_path / "missing")))
    assert backend.adapter_version == 4
    assert await generate(backend, question(), SAMPLING) == before


async def test_the_model_is_described(backend: InferenceBackend) -> None:
    assert isinstance(backend.model, ModelInfo)
    assert backend.model.prompt_form == "compact"
    assert backend.model.context_tokens > 0
    assert backend.tokenizer.vocab_size > max(backend.text_tokens(PROMPT))


async def test_closed_backend_refuses_work_and_can_be_closed_twice(backend: InferenceBackend) -> None:
    await backend.aclose()
    await backend.aclose()
    with pytest.raises(EdgeError):
        await backend.sample_group(question(), SAMPLING, [1])
    with pytest.raises(EdgeError):
        await backend.swap_adapter(None)


async def test_closing_ends_what_is_in_flight(backend: InferenceBackend) -> None:
    task = asyncio.create_task(backend.sample_group(question(), Sampling(max_tokens=200), range(40)))
    await asyncio.sleep(0.003)
    await backend.aclose()
    async with asyncio.timeout(60):
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, EdgeError | PromptGroup)


PROMPT = "The apples in 3 boxes of 4 are"
EVERYTHING = Sampling(max_tokens=20, top_logprobs=3)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
async def test_raw_prompt_as_text_and_as_token_ids_give_the_same_continuation(backend: InferenceBackend, seed: int) -> None:
    ids = backend.text_tokens(PROMPT)
    assert backend.text_of(ids) == PROMPT
    from_text = await read(backend.continue_text(PROMPT, SAMPLING, seed))
    assert from_text == await read(backend.continue_text(ids, SAMPLING, seed))
    assert from_text[0] == from_text[1].text


async def test_encoded_text_ends_with_the_end_token_of_a_response(backend: InferenceBackend) -> None:
    scripted = isinstance(backend, ScriptedBackend)
    group = await backend.sample_group(question(), SAMPLING, [1])
    end = group.responses[0].token_ids[-1] if scripted else backend.text_tokens("<|im_end|>")[0]
    for text in TEXTS:
        assert backend.response_tokens(text) == (*backend.text_tokens(text), end)
        assert backend.text_of(backend.response_tokens(text)[:-1]) == text
    spelt = backend.response_tokens("a<|im_end|>b")
    assert spelt[-1] == end and end not in spelt[:-1]
    assert backend.text_of(spelt[:-1]) == "a<|im_end|>b"


async def test_empty_and_unknown_prompts_and_nonsense_sampling_are_refused(backend: InferenceBackend) -> None:
    with pytest.raises(UsageError):
        await backend.sample_group(question(), Sampling(max_tokens=0), [1])
    for prompt in ("", (), (1 << 40,), (-1,)):
        with pytest.raises(UsageError):
            await read(backend.continue_text(prompt, SAMPLING, 0))
        with pytest.raises(UsageError):
            await backend.read(prompt)


async def test_scored_text_has_a_log_probability_for_each_token_but_the_first(backend: InferenceBackend) -> None:
    tokens = await backend.read(PROMPT, top_logprobs=2)
    assert tuple(token.token_id for token in tokens) == backend.text_tokens(PROMPT)
    assert "".join(PROMPT[token.start : token.end] for token in tokens) == PROMPT
    assert tokens[0].logprob is None
    assert tokens[0].top == ()
    for token in tokens[1:]:
        check_chances(token, 2)
    assert await backend.read(backend.text_tokens(PROMPT), top_logprobs=2) == tokens


def check_chances(token: ScoredToken, count: int) -> None:
    """As many alternatives as asked for, the likeliest first, the chosen one among them with its own number if it is the likeliest."""
    assert token.logprob is not None
    assert -math.inf < token.logprob <= 0.0
    assert len(token.top) == count
    chances = [chance.logprob for chance in token.top]
    assert chances == sorted(chances, reverse=True)
    assert token.greedy == (token.logprob == chances[0])
    assert all(chance.logprob == token.logprob for chance in token.top if chance.token_id == token.token_id)


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
async def test_response_tokens_are_returned_with_alternatives(backend: InferenceBackend, seed: int) -> None:
    deltas = [delta async for delta in backend.stream(question(), EVERYTHING, seed)]
    response = deltas[-1].response
    assert response is not None
    assert tuple(token for delta in deltas for token in delta.tokens) == response.tokens
    assert tuple(token.token_id for token in response.tokens) == response.token_ids
    assert tuple(token.logprob for token in response.tokens) == response.logprobs
    assert "".join(response.text[token.start : token.end] for token in response.tokens) == response.text
    for token in response.tokens:
        check_chances(token, 3)
    plain = await generate(backend, question(), SAMPLING, seed)
    assert plain.tokens == ()
    assert replace(response, tokens=()) == plain


async def test_scoring_a_sampled_response_gives_the_sampled_log_probabilities(backend: InferenceBackend) -> None:
    if isinstance(backend, ScriptedBackend):
        pytest.skip("a script's numbers are made up")
    ids = backend.text_tokens(PROMPT)
    _, response = await read(backend.continue_text(ids, Sampling(max_tokens=12, ignore_eos=True), 5))
    again = await backend.read((*ids, *response.token_ids))
    assert [token.logprob for token in again[len(ids) :]] == pytest.approx(response.logprobs, abs=5e-3)


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5, 6])
async def test_stop_string_ends_text_and_generation_at_any_token_boundary(backend: InferenceBackend, seed: int) -> None:
    sampling = Sampling(max_tokens=40, top_logprobs=0)
    whole = await generate(backend, question(), sampling, seed)
    assert await generate(backend, question(), replace(sampling, stops=("never generated",)), seed) == whole
    for start in range(0, len(whole.text) - 3, 5):
        stop = whole.text[start : start + 3]
        stopping = replace(sampling, stops=(stop, "never generated"))
        text, stopped = await read(backend.stream(question(), stopping, seed))
        assert text == stopped.text == whole.text[: whole.text.index(stop)]
        assert stopped.finish is FinishReason.STOP
        assert stopped.token_ids == whole.token_ids[: len(stopped.token_ids)]
        assert all(token.start < len(text) for token in stopped.tokens)
        reached = whole.tokens[len(stopped.token_ids) - 1].end
        assert reached >= len(text) + 3
        assert whole.tokens[len(stopped.token_ids) - 2].end < len(text) + 3 or len(stopped.token_ids) == 1


async def test_penalty_prevents_repeated_tokens(backend: InferenceBackend) -> None:
    if isinstance(backend, ScriptedBackend):
        pytest.skip("a script has no penalties")
    strict = replace(SAMPLING, presence_penalty=50.0, ignore_eos=True)
    response = await generate(backend, question(), strict, 2)
    assert len(set(response.token_ids)) == len(response.token_ids) == SAMPLING.max_tokens


async def test_scoring_serving_and_rollouts_run_concurrently(backend: InferenceBackend) -> None:
    alone = await backend.read(PROMPT), await backend.sample_group(question(), SAMPLING, range(9))
    together = await asyncio.gather(
        backend.sample_group(question(), SAMPLING, range(9)), *(backend.read(PROMPT) for _ in range(4))
    )
    assert together == [alone[1], *(alone[0] for _ in range(4))]

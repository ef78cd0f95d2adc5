"""What every inference backend promises (edge/inference/backend.py), run over each of them."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from edge.core.errors import AdapterError, EdgeError, UsageError
from edge.core.types import AdapterRef, FinishReason, LocalResponse, Message, PromptGroup, Sampling, TextDelta
from edge.core.worker import EngineWorker, Priority
from edge.inference.backend import InferenceBackend, ModelInfo, generate
from edge.inference.llamacpp import LlamaCppBackend
from edge.inference.scripted import ScriptedBackend
from tests.engine.made_up_lora import write_adapter
from tests.engine.mlx_engines import mlx_backend
from tests.engine.onnx_engines import onnx_backend
from tests.engine.tiny_gguf import TinyModel, write_tiny_model

MakeAdapter = Callable[[int], AdapterRef]
SAMPLING = Sampling(max_tokens=20)
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


async def test_a_group_has_one_response_per_seed_in_order(backend: InferenceBackend) -> None:
    group = await backend.sample_group(question(), SAMPLING, [3, 1, 2, 3])
    assert len(group.responses) == 4
    assert group.responses[0] == group.responses[3]
    assert group.prompt_ids
    for seed, response in zip([3, 1, 2], group.responses, strict=False):
        assert (await backend.sample_group(question(), SAMPLING, [seed])).responses == (response,)


async def test_no_seeds_give_no_responses(backend: InferenceBackend) -> None:
    assert (await backend.sample_group(question(), SAMPLING, [])).responses == ()


async def test_a_response_depends_on_nothing_else_in_flight(backend: InferenceBackend) -> None:
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
    greedy = Sampling(temperature=0.0, max_tokens=20)
    if isinstance(backend, ScriptedBackend):
        backend = ScriptedBackend(lambda messages, sampling, seed: "the same")
        texts = {response.text for response in (await backend.sample_group(question(), greedy, [1, 2])).responses}
        assert texts == {"the same"}
        return
    group = await backend.sample_group(question(), greedy, [1, 2, 3])
    assert len(set(group.responses)) == 1


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
async def test_streamed_text_joins_to_the_text_of_the_response(backend: InferenceBackend, seed: int) -> None:
    text, response = await read(backend.stream(question(), SAMPLING, seed))
    assert text == response.text
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


async def test_serving_and_rollouts_run_side_by_side(backend: InferenceBackend) -> None:
    rollouts = asyncio.create_task(backend.sample_group(question("long"), Sampling(max_tokens=100), range(30)))
    served = await asyncio.gather(*(generate(backend, question(), SAMPLING, seed) for seed in range(5)))
    alone = await backend.sample_group(question(), SAMPLING, range(5), Priority.SERVING)
    assert tuple(served) == alone.responses
    assert len((await rollouts).responses) == 30


async def test_an_adapter_marks_what_is_sampled_with_it(backend: InferenceBackend, make_adapter: MakeAdapter) -> None:
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


async def test_nonsense_sampling_is_refused(backend: InferenceBackend) -> None:
    with pytest.raises(UsageError):
        await backend.sample_group(question(), Sampling(max_tokens=0), [1])


async def test_a_closed_backend_refuses_work_and_closes_twice(backend: InferenceBackend) -> None:
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
    async with asyncio.timeout(10):
        (outcome,) = await asyncio.gather(task, return_exceptions=True)
    assert isinstance(outcome, EdgeError | PromptGroup)

"""The llama.cpp backend is bit-reproducible: a sample depends on its seed only, never on other requests in flight."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from edge.core.types import Message, Sampling
from edge.core.worker import EngineWorker
from edge.inference.batched import KV_BYTES, rows_that_fit
from edge.inference.llama_engine import LlamaEngine
from edge.inference.llamacpp import LlamaCppBackend
from edge.inference.sampling import Floats
from tests.worlds.batched_engine import concurrent, one_by_one, question
from tests.worlds.made_up_lora import write_adapter
from tests.worlds.tiny_gguf import TinyModel, write_tiny_model

ROLLOUT = Sampling(max_tokens=48)
MOST_NATS = 0.3
"""By which the shape of a batch changes a log-probability of a random model whose activations are rounded to 8 bits (measured: 0.12)."""


@pytest.fixture(scope="module", params=["qwen2-Q8_0", "llama-Q8_0", "qwen2-F32"])
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> TinyModel:
    architecture, kind = request.param.split("-")
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", architecture, quantised=kind == "Q8_0")


@asynccontextmanager
async def opened(model: TinyModel, **options: int) -> AsyncIterator[LlamaCppBackend]:
    worker = EngineWorker()
    # on the processor: on a GPU the order of additions follows the number of rows
    backend = LlamaCppBackend(model.path, worker, **{"n_threads": 1, "n_ctx": 384, "max_rows": 8, "gpu_layers": 0, **options})
    try:
        yield backend
    finally:
        await backend.aclose()
        worker.close()


@pytest.mark.parametrize("adapted", [False, True], ids=["bare", "with an adapter"])
async def test_same_seeds_give_the_same_bits_alone_and_in_a_batch(tiny: TinyModel, tmp_path: Path, adapted: bool) -> None:
    async with opened(tiny) as backend:
        await backend.swap_adapter(write_adapter(tmp_path / "adapter", tiny, 1) if adapted else None)
        expected = await one_by_one(backend, ROLLOUT, range(6), range(4))
        assert await concurrent(backend, ROLLOUT, range(6), range(4)) == expected
        lengths = {len(response.token_ids) for group in expected for response in group.responses}
        assert len(lengths) > 2  # rows ended at different times, so rows were refilled and moved


async def test_number_of_rows_does_not_change_results(tiny: TinyModel) -> None:
    results = []
    for options in ({"max_rows": 8}, {"max_rows": 1, "serving_rows": 1}, {"max_rows": 3}):
        async with opened(tiny, **options) as backend:
            results.append(await concurrent(backend, ROLLOUT, range(4), range(5)))
    assert all(result == results[0] for result in results[1:])


async def test_number_of_threads_does_not_change_results(tiny: TinyModel) -> None:
    results = []
    for threads in (1, 2):
        async with opened(tiny, n_threads=threads) as backend:
            results.append(await backend.sample_group(question(1), Sampling(max_tokens=6), range(4)))
    assert results[0] == results[1]


async def test_scoring_gives_the_log_probabilities_of_sampling(tiny: TinyModel) -> None:
    async with opened(tiny) as backend:
        group = await backend.sample_group(question(2), ROLLOUT, range(6))
        noise = asyncio.create_task(backend.sample_group(question(5), ROLLOUT, range(6)))
        for response in group.responses:
            assert await backend.score(group.prompt_ids, response.token_ids) == response.logprobs
        await noise


async def test_sampled_frequencies_follow_the_scored_probabilities(tiny: TinyModel) -> None:
    async with opened(tiny) as backend:
        group = await backend.sample_group(question(1), Sampling(max_tokens=1), range(3000))
        firsts = np.array([response.token_ids[0] for response in group.responses])
        for token in np.unique(firsts)[:6].tolist():
            (logprob,) = await backend.score(group.prompt_ids, [token])
            assert np.mean(firsts == token) == pytest.approx(np.exp(logprob), abs=0.035)


async def test_a_prefix_that_ends_in_a_tag_is_a_decision_point(tiny: TinyModel) -> None:
    prefix = "<think>\nStep 1: a\n</think>\n"
    async with opened(tiny) as backend:

        async def last(sampling: Sampling, seed: int) -> tuple[str, float | None]:
            deltas = [delta async for delta in backend.stream(question(1), sampling, seed, prefix=prefix)]
            assert deltas[-1].response is not None
            return deltas[-1].response.text, deltas[-1].response.help_log_odds

        forced = [await last(Sampling(max_tokens=1, help_bias=30.0), seed) for seed in range(12)]
        forbidden = [await last(Sampling(max_tokens=1, suppress_help=True), seed) for seed in range(12)]
        assert {text.strip().casefold() for text, _ in forced} <= {"i", "i need external assistance."}
        assert "i" not in {text.strip().casefold() for text, _ in forbidden}
        found = [log_odds for _, log_odds in forced + forbidden if log_odds is not None]
        assert len(found) == 24
        assert max(found) - min(found) < MOST_NATS, "what was read before is not read in the same lots"


async def test_closing_the_worker_first_leaves_no_pending_caller(tiny: TinyModel) -> None:
    worker = EngineWorker()
    backend = LlamaCppBackend(tiny.path, worker, n_threads=1, n_ctx=256, max_rows=4)
    waiting = asyncio.create_task(backend.sample_group(question(1), Sampling(max_tokens=200), range(50)))
    await asyncio.sleep(0.01)
    worker.close()
    async with asyncio.timeout(60):
        (outcome,) = await asyncio.gather(waiting, return_exceptions=True)
    assert "closed" in str(outcome)
    await backend.aclose()


@pytest.mark.parametrize(
    ("row_bytes", "rows"),
    [(1, 128), (KV_BYTES // 128, 128), (KV_BYTES // 40, 40), (KV_BYTES // 8, 8), (KV_BYTES, 8), (0, 128)],
)
def test_rows_fit_memory_between_minimum_and_maximum(row_bytes: int, rows: int) -> None:
    assert rows_that_fit(row_bytes, graphics=True) == rows
    assert rows_that_fit(row_bytes) == min(32, rows)


@pytest.mark.parametrize("adapted", [False, True], ids=["bare", "with an adapter"])
async def test_what_prompts_have_in_common_is_read_once_with_the_same_bits(
    tmp_path: Path, adapted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prompt(number: int) -> list[Message]:
        return [Message("user", "Is the mood of this text positive, negative or neutral?\n\n" + f"text {number} " * number)]

    def prefill(self: LlamaEngine, row: int, ids: list[int], start: int = 0) -> Floats:
        read.append(len(ids))
        return of_engine(self, row, ids, start)

    model, of_engine, read, found = write_tiny_model(tmp_path / "tiny.gguf", quantised=True), LlamaEngine.prefill, list[int](), []
    monkeypatch.setattr(LlamaEngine, "prefill", prefill)
    for worth in (16, 10_000):
        monkeypatch.setattr("edge.inference.batcher.WORTH_COPYING", worth)
        async with opened(model) as backend:
            await backend.swap_adapter(write_adapter(tmp_path / "adapter", model, 1) if adapted else None)
            read.clear()
            groups = [await backend.sample_group(prompt(number), ROLLOUT, range(4)) for number in range(1, 6)]
            found.append((groups, sum(read)))
            read.clear()
            await backend.feed(groups[0].prompt_ids, (7,), 1)
            assert read == [len(groups[0].prompt_ids)], "what is measured is read as a whole"
    (shared, few), (alone, many) = found
    assert shared == alone
    assert few < 0.6 * many

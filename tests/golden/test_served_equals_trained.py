"""After training, export and swap, llama.cpp serves the very distribution that torch trained.

Each bound is checked to be sharp: an adapter with a wrong scale, or (llama architecture) with rows of q and k in torch's order, misses it.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge.core.forms import ReasonedForm
from edge.core.types import FORCED, AdapterRef, Message, Sampling, TrainingGroup
from edge.core.worker import EngineWorker
from edge.inference.adapters import write_gguf_adapter
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.decoder import load_decoder
from edge.training.learner import LearnerSettings
from edge.training.torch_learner import TorchLearner
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.trained_adapters import convert_adapter, other_row_order, random_groups, twice_the_scale
from tools.bench.table.models import make_random

BUNDLED = Path(__file__).parents[2] / "edge" / "models" / "files"
EXACT_NATS = 0.03
"""Worst |Δ log p| per token with float32 weights: what is left is the half-precision key/value cache."""
INT8_NATS = 0.06
"""Mean |Δ log p| per token with Q8_0 weights, whose products llama.cpp makes with activations rounded to 8 bits."""


@asynccontextmanager
async def _engines(path: Path):
    worker = EngineWorker()
    settings = LearnerSettings(learning_rate=2e-2, max_mismatch_nats=100.0, threads=1)
    learner = TorchLearner(load_decoder(path), worker, partial(convert_adapter, path), seed=5, settings=settings)
    backend = LlamaCppBackend(path, worker, n_threads=1, n_ctx=128, max_rows=4)
    try:
        yield learner, backend
    finally:
        await backend.aclose()
        worker.close()


async def _train(learner: TorchLearner, vocab: int) -> None:
    for step in range(4):
        report = await learner.update(random_groups(step, vocab))
        assert not report.skipped


async def _logprobs(score, groups: list[TrainingGroup]) -> np.ndarray:
    rows = [await score(group.prompt_ids, sample.token_ids) for group in groups for sample in group.samples]
    return np.array(rows)


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
async def test_served_equals_trained_within_cache_rounding(tmp_path, architecture) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=False)
    vocab, fresh = len(model.vocab), random_groups(99, len(model.vocab))
    async with _engines(model.path) as (learner, backend):
        base = await _logprobs(learner.logprobs, fresh)
        assert np.abs(await _logprobs(backend.score, fresh) - base).max() < EXACT_NATS
        await _train(learner, vocab)
        trained = await _logprobs(learner.logprobs, fresh)
        await backend.swap_adapter(await learner.export(tmp_path / "v1", 1))
        served = await _logprobs(backend.score, fresh)
        assert np.abs(trained - base).mean() > 50 * EXACT_NATS
        assert np.abs(served - trained).max() < EXACT_NATS
        for version, spoil in enumerate((twice_the_scale, other_row_order), start=2):
            wrong = await learner.export(tmp_path / f"v{version}", version)
            spoil(Path(wrong.folder), model)
            write_gguf_adapter(Path(wrong.folder), model.path, Path(wrong.folder) / "adapter.gguf")
            await backend.swap_adapter(AdapterRef(version, wrong.folder))
            assert np.abs(await _logprobs(backend.score, fresh) - trained).max() > 5 * EXACT_NATS, spoil.__name__


@pytest.mark.parametrize("name", ["nano-edge.gguf", "nano-edge-llama.gguf"])
async def test_the_bundled_model_serves_what_was_trained(tmp_path, name) -> None:
    path = BUNDLED / name
    if not path.exists():
        pytest.skip(f"{name} is not bundled yet")
    fresh = random_groups(99, 500)
    async with _engines(path) as (learner, backend):
        base = await _logprobs(learner.logprobs, fresh)
        await _train(learner, 500)
        trained = await _logprobs(learner.logprobs, fresh)
        await backend.swap_adapter(await learner.export(tmp_path / "v1", 1))
        served = await _logprobs(backend.score, fresh)
        assert np.abs(trained - base).mean() > 10 * INT8_NATS
        assert np.abs(served - trained).mean() < INT8_NATS
        await backend.swap_adapter(None)
        assert np.abs(await _logprobs(backend.score, fresh) - base).mean() < INT8_NATS


@pytest.mark.parametrize("name", ["nano-edge.gguf", "nano-edge-llama.gguf"])
async def test_sampler_and_trainer_score_guided_responses_alike(name) -> None:
    sampling = Sampling(1.0, 160, help_bias=1.0, form=ReasonedForm(4, line_tokens=24))
    async with _engines(BUNDLED / name) as (learner, backend):
        group = await backend.sample_group([Message("user", "What is 17 + 25?")], sampling, range(8))
        differences = []
        for response in group.responses:
            found = await learner.logprobs(group.prompt_ids, response.token_ids, response.allowed)
            free = {decision.place for decision in response.biased}
            chosen = [place for place, drawn_from in enumerate(response.allowed.places) if drawn_from != FORCED]
            assert len(found) == len(chosen) < len(response.token_ids)
            differences += [found[number] - response.logprobs[place] for number, place in enumerate(chosen) if place not in free]
        assert np.abs(differences).mean() < INT8_NATS


async def test_the_trainer_computes_with_the_weights_that_are_served_not_with_the_original_ones(tmp_path) -> None:
    original, served = make_random(tmp_path, "tiny", ["F16", "Q4_K_M"], transformers=False)
    fresh = random_groups(99, 300)
    async with _engines(served) as (learner, backend):
        by_sampler, by_trainer = await _logprobs(backend.score, fresh), await _logprobs(learner.logprobs, fresh)
    async with _engines(original) as (other, _):
        by_original = await _logprobs(other.logprobs, fresh)
    assert np.abs(by_original - by_sampler).mean() > 3 * np.abs(by_trainer - by_sampler).mean()

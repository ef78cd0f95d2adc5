"""On one file, MLX serves what MLX trained, MLX serves what torch trained, and both learners make the same step.

MLX computes with the file's own numbers in float32, so the bounds are those of rounding; each is checked to be sharp by an adapter with
the wrong scale, or with the rows of q and k in another order.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edge.core.rng import stream
from edge.core.types import AdapterRef, TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.models.decoder import load_decoder
from edge.training.learner import LearnerSettings
from edge.training.torch_learner import TorchLearner
from tests.worlds.mlx_engines import SPEC, mlx_backend, mlx_learner, require_mlx
from tests.worlds.tiny_gguf import TinyModel, write_tiny_model
from tests.worlds.trained_adapters import convert_adapter, other_row_order, twice_the_scale

EXACT_NATS = 2e-4
"""Worst |Δ log p| per token between two ways of adding up the same float32 products."""
BUNDLED = Path(__file__).parents[2] / "edge" / "models" / "files"


@pytest.fixture
def worker():
    require_mlx()
    worker = EngineWorker()
    yield worker
    worker.close()


@pytest.fixture(params=["qwen2-Q8_0", "qwen3-Q8_0", "llama-Q8_0", "llama-F32", "smollm3-Q8_0"])
def model(request, tmp_path) -> TinyModel:
    architecture, kind = request.param.split("-")
    return write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=kind == "Q8_0")


def torch_learner(path: Path, worker: EngineWorker, **settings) -> TorchLearner:
    chosen = LearnerSettings(
        **{"learning_rate": 1e-2, "tokens_per_slice": 48, "max_mismatch_nats": 100.0, "threads": 1, **settings}
    )
    return TorchLearner(load_decoder(path), worker, partial(convert_adapter, path), seed=5, lora_spec=SPEC, settings=chosen)


def groups_of(seed: int, vocab: int = 300) -> list[TrainingGroup]:
    draw = stream(seed, "golden")
    groups = []
    for _ in range(3):
        samples = [tuple(draw.randrange(vocab) for _ in range(draw.randint(1, 12))) for _ in range(3)]
        advantages = (0.7, -0.5, -0.2)
        scored = tuple(TrainingSample(ids, (-5.0,) * len(ids), value) for ids, value in zip(samples, advantages, strict=True))
        groups.append(TrainingGroup(tuple(draw.randrange(vocab) for _ in range(draw.randint(2, 9))), scored, 0.5))
    return groups


async def scores(score, groups: list[TrainingGroup]) -> np.ndarray:
    rows = [await score(group.prompt_ids, sample.token_ids) for group in groups for sample in group.samples]
    return np.concatenate(rows)


async def train(learner, steps: int = 4) -> None:
    for step in range(steps):
        report = await learner.update(groups_of(step))
        assert not report.skipped


async def test_mlx_serves_what_mlx_trained(worker, model, tmp_path) -> None:
    from edge.models.mlx_decoder import load_mlx_decoder

    decoder, fresh = load_mlx_decoder(model.path), groups_of(99)
    learner, backend = mlx_learner(model.path, worker, decoder), mlx_backend(model.path, worker, decoder)
    base = await scores(learner.logprobs, fresh)
    assert np.abs(await scores(backend.score, fresh) - base).max() < EXACT_NATS
    await train(learner)
    trained = await scores(learner.logprobs, fresh)
    assert np.abs(trained - base).mean() > 0.1
    assert np.abs(await scores(backend.score, fresh) - base).max() < EXACT_NATS  # the adapter in training is not the one in use
    await backend.swap_adapter(await learner.export(tmp_path / "v1", 1))
    assert np.abs(await scores(backend.score, fresh) - trained).max() < EXACT_NATS
    await backend.swap_adapter(None)
    assert np.abs(await scores(backend.score, fresh) - base).max() < EXACT_NATS
    await backend.aclose()


async def test_mlx_serves_what_torch_trained(worker, model, tmp_path) -> None:
    learner, backend, fresh = torch_learner(model.path, worker), mlx_backend(model.path, worker), groups_of(99)
    await train(learner)
    trained = await scores(learner.logprobs, fresh)
    await backend.swap_adapter(await learner.export(tmp_path / "v1", 1))
    assert np.abs(await scores(backend.score, fresh) - trained).max() < EXACT_NATS
    for version, spoil in enumerate((twice_the_scale, other_row_order), start=2):
        wrong = await learner.export(tmp_path / f"v{version}", version)
        spoil(Path(wrong.folder), model)
        await backend.swap_adapter(AdapterRef(version, wrong.folder))
        assert np.abs(await scores(backend.score, fresh) - trained).max() > 50 * EXACT_NATS, spoil.__name__
    await backend.aclose()


@pytest.mark.parametrize(("sharing", "tokens"), [("auto", 48), ("plain", 48), ("shared", 1000), ("plain", 1000)])
async def test_both_learners_make_the_same_steps_and_read_each_others_checkpoints(worker, tmp_path, sharing, tokens) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    settings = {"weight_decay": 0.01, "prefix_sharing": sharing}
    settings |= {"tokens_per_slice": tokens, "vocab_chunk_elements": 3000}
    ours, theirs = mlx_learner(model.path, worker, **settings), torch_learner(model.path, worker, **settings)
    await train(theirs, 2)
    await theirs.save(tmp_path)
    await ours.load(tmp_path)
    for step in (10, 11):
        report, expected = await ours.update(groups_of(step)), await theirs.update(groups_of(step))
        for field in ("tokens", "frac_reward_zero_std", "clipped_share", "learning_rate", "skipped"):
            assert getattr(report, field) == getattr(expected, field), field
        for field in ("loss", "grad_norm", "entropy", "mean_abs_logprob_diff", "kl", "effective_sample_share"):
            assert getattr(report, field) == pytest.approx(getattr(expected, field), rel=1e-3, abs=1e-6), field
    fresh = groups_of(99)
    reference = await scores(theirs.logprobs, fresh)
    assert np.abs(await scores(ours.logprobs, fresh) - reference).max() < 10 * EXACT_NATS
    await ours.save(tmp_path)
    again = torch_learner(model.path, worker, **settings)
    await again.load(tmp_path)
    assert again.step == 4
    assert np.abs(await scores(again.logprobs, fresh) - reference).max() < 10 * EXACT_NATS


@pytest.mark.parametrize("sharing", ["auto", "plain"])
async def test_both_learners_agree_on_off_policy_responses(worker, tmp_path, sharing) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf", "llama")
    ours = mlx_learner(model.path, worker, prefix_sharing=sharing)
    theirs = torch_learner(model.path, worker, prefix_sharing=sharing)
    await train(theirs, 1)
    await theirs.save(tmp_path)
    await ours.load(tmp_path)
    foreign = TrainingSample((7, 8, 9, 7, 8), (0.0,) * 5, 0.8, off_policy=True)
    given = TrainingSample((9, 9, 7), (0.0,) * 3, 1.0, imitated=True)
    groups = [replace(group, samples=(*group.samples, foreign, given)) for group in groups_of(10)]
    report, expected = await ours.update(groups), await theirs.update(groups)
    assert report.tokens == expected.tokens == sum(len(one.token_ids) for group in groups_of(10) for one in group.samples)
    for field in ("loss", "grad_norm", "entropy", "mean_abs_logprob_diff", "kl", "effective_sample_share"):
        assert getattr(report, field) == pytest.approx(getattr(expected, field), rel=1e-3, abs=1e-6), field


@pytest.mark.parametrize("name", ["nano-edge.gguf", "nano-edge-llama.gguf"])
async def test_the_bundled_models_have_the_same_logits_on_mlx_and_torch(worker, name) -> None:
    path = BUNDLED / name
    if not path.exists():
        pytest.skip(f"{name} is not bundled yet")
    learner, reference, fresh = mlx_learner(path, worker), torch_learner(path, worker), groups_of(99)
    assert np.abs(await scores(learner.logprobs, fresh) - await scores(reference.logprobs, fresh)).max() < EXACT_NATS

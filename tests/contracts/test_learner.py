"""The contract of learners (edge/training/learner.py)."""

from __future__ import annotations

import pytest
import torch

from edge.core.errors import NotFinite, StateError
from edge.core.types import TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.testing.learner import ScriptedLearner
from edge.training.lora_learner import STATE_FILE, read_state
from edge.training.memory import MicroBatch, probe_groups
from tests.worlds.mlx_engines import mlx_learner
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.tiny_learner import random_groups, tiny_learner


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(params=["torch", "scripted", "mlx"])
def make_learner(request, tiny):
    """Makes equal learners, as a restarted process would."""
    if request.param == "scripted":
        yield ScriptedLearner
        return
    worker = EngineWorker()
    yield (lambda: mlx_learner(tiny.path, worker)) if request.param == "mlx" else (lambda: tiny_learner(worker))
    worker.close()


@pytest.mark.parametrize("kind", ["torch", "mlx"])
async def test_update_with_non_finite_result_is_refused_before_writing(kind: str, tiny) -> None:
    worker = EngineWorker()
    absurd = {"learning_rate": 1e30}
    learner = mlx_learner(tiny.path, worker, **absurd) if kind == "mlx" else tiny_learner(worker, **absurd)
    with pytest.raises(NotFinite, match="update 1") as caught:
        await learner.update(random_groups(1))
    assert "learning_rate" in caught.value.hint
    worker.close()


def _dead_group() -> TrainingGroup:
    return TrainingGroup((1, 2), (TrainingSample((3, 4), (-3.9, -3.9), 0.0),) * 4, 1 / 3)


def _content(folder) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


async def _saved(learner, folder) -> dict[str, bytes]:
    folder.mkdir(exist_ok=True)
    await learner.save(folder)
    return _content(folder)


async def test_an_update_reports_groups_tokens_and_dropped_share(make_learner) -> None:
    live = random_groups(1, prompts=3)
    report = await make_learner().update([*live, _dead_group()])
    assert report.groups == 4
    assert report.frac_reward_zero_std == 0.25
    assert report.tokens == sum(len(sample.token_ids) for group in live for sample in group.samples)
    assert report.skipped == ""


async def test_an_update_changes_the_state(make_learner, tmp_path) -> None:
    learner = make_learner()
    before = await _saved(learner, tmp_path / "a")
    await learner.update(random_groups(1))
    assert await _saved(learner, tmp_path / "b") != before


@pytest.mark.parametrize("groups", [[], [_dead_group()]], ids=["empty", "dead"])
async def test_batch_without_signal_is_skipped_and_changes_nothing(make_learner, tmp_path, groups) -> None:
    learner = make_learner()
    before = await _saved(learner, tmp_path / "a")
    report = await learner.update(groups)
    assert report.skipped
    assert report.tokens == 0
    assert await _saved(learner, tmp_path / "b") == before


async def test_resumed_learner_equals_an_uninterrupted_one(make_learner, tmp_path) -> None:
    whole, stopped, resumed = make_learner(), make_learner(), make_learner()
    await stopped.update(random_groups(1))
    await _saved(stopped, tmp_path / "stop")
    await resumed.load(tmp_path / "stop")
    await whole.update(random_groups(1))
    assert await whole.update(random_groups(2)) == await resumed.update(random_groups(2))
    assert await _saved(whole, tmp_path / "a") == await _saved(resumed, tmp_path / "b")


async def test_scaled_step_is_as_much_shorter_and_the_optimiser_remembers_the_same(make_learner, tmp_path) -> None:
    full, quarter = make_learner(), make_learner()
    if isinstance(full, ScriptedLearner):
        pytest.skip("a learner without a model makes no steps of a length")
    await _saved(full, tmp_path / "before")
    quarter.scale_steps(0.25)
    reports = [await learner.update(random_groups(1)) for learner in (full, quarter)]
    assert reports[1].learning_rate == 0.25 * reports[0].learning_rate
    await _saved(full, tmp_path / "full")
    await _saved(quarter, tmp_path / "quarter")
    before, moved, scaled = (read_state(tmp_path / name / STATE_FILE)[0] for name in ("before", "full", "quarter"))
    for name, weights in scaled.items():
        wanted = before[name] + 0.25 * (moved[name] - before[name]) if name.startswith("adapter/") else moved[name]
        assert torch.allclose(weights, wanted, rtol=1e-5, atol=1e-7), name
    quarter.scale_steps(1.0)
    again = make_learner()
    await again.load(tmp_path / "quarter")
    assert await quarter.update(random_groups(2)) == await again.update(random_groups(2))
    assert await _saved(quarter, tmp_path / "a") == await _saved(again, tmp_path / "b"), "a share is no part of the state"


@pytest.mark.parametrize("updates_before", [0, 1])
async def test_probe_does_not_change_later_steps(make_learner, tmp_path, updates_before) -> None:
    plain, probed = make_learner(), make_learner()
    if isinstance(plain, ScriptedLearner):
        pytest.skip("a learner without a model has no memory to probe")
    for learner in (plain, probed):
        for seed in range(updates_before):
            await learner.update(random_groups(seed))
    before = await _saved(probed, tmp_path / "before")
    await probed.probe(probe_groups(MicroBatch(prompts=2, prompt_tokens=12, rows=5, response_tokens=9), vocab_size=48))
    assert await _saved(probed, tmp_path / "after") == before
    assert await plain.update(random_groups(7)) == await probed.update(random_groups(7))
    assert await _saved(plain, tmp_path / "a") == await _saved(probed, tmp_path / "b")


async def test_loading_garbage_or_a_missing_checkpoint_is_a_state_error(make_learner, tmp_path) -> None:
    learner = make_learner()
    with pytest.raises(StateError):
        await learner.load(tmp_path)
    for name in await _saved(learner, tmp_path):
        (tmp_path / name).write_bytes(b"\x00garbage")
    with pytest.raises(StateError):
        await learner.load(tmp_path)


async def test_export_creates_a_folder_with_its_version(make_learner, tmp_path) -> None:
    adapter = await make_learner().export(tmp_path / "deep" / "v7", 7)
    assert adapter.version == 7
    assert adapter.folder == str(tmp_path / "deep" / "v7")
    assert _content(tmp_path / "deep" / "v7")
    assert [entry.name for entry in (tmp_path / "deep").iterdir()] == ["v7"]


async def test_an_export_onto_an_existing_folder_is_refused_and_leaves_it_alone(make_learner, tmp_path) -> None:
    learner = make_learner()
    await learner.export(tmp_path / "v1", 1)
    before = _content(tmp_path / "v1")
    await learner.update(random_groups(1))
    with pytest.raises(StateError, match="exists"):
        await learner.export(tmp_path / "v1", 2)
    assert _content(tmp_path / "v1") == before

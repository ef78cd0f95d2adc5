"""A learner that was stopped and resumed equals one that ran through, bit for bit."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from edge.core.errors import StateError
from edge.training.lora_learner import read_state, write_state
from tests.engine.tiny_learner import random_groups, tiny_learner

FILE = "learner.safetensors"


async def _saved(learner, folder) -> bytes:
    folder.mkdir(exist_ok=True)
    await learner.save(folder)
    return (folder / FILE).read_bytes()


@pytest.mark.parametrize("stop_after", [0, 1, 3])
async def test_resuming_equals_an_uninterrupted_run_bit_for_bit(worker, tmp_path, stop_after) -> None:
    whole = tiny_learner(worker, weight_decay=0.01)
    for step in range(5):
        await whole.update(random_groups(step))
    first = tiny_learner(worker, weight_decay=0.01)
    for step in range(stop_after):
        await first.update(random_groups(step))
    await _saved(first, tmp_path / "stop")
    resumed = tiny_learner(worker, seed=99, weight_decay=0.01)
    await resumed.load(tmp_path / "stop")
    for step in range(stop_after, 5):
        report = await resumed.update(random_groups(step))
    assert resumed.step == whole.step == 5
    assert not report.skipped
    tensors = [await _tensors(learner, tmp_path / name) for learner, name in ((whole, "whole"), (resumed, "resumed"))]
    assert tensors[0].keys() == tensors[1].keys()
    assert all(torch.equal(tensor, tensors[1][name]) for name, tensor in tensors[0].items())
    assert any("exp_avg_sq" in name for name in tensors[0])


async def _tensors(learner, folder):
    await _saved(learner, folder)
    return load_file(folder / FILE)


async def test_loading_rolls_a_learner_back(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(0))
    before = await _saved(learner, tmp_path / "a")
    await learner.update(random_groups(1))
    assert await _saved(learner, tmp_path / "b") != before
    await learner.load(tmp_path / "a")
    assert await _saved(learner, tmp_path / "c") == before


async def test_an_older_checkpoint_is_replaced_and_no_draft_stays(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.save(tmp_path)
    await learner.update(random_groups(0))
    await learner.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    assert read_state(tmp_path / FILE)[1]["step"] == 1


@pytest.mark.parametrize("damage", ["missing", "cut", "garbage", "foreign"])
async def test_a_damaged_checkpoint_is_refused_with_the_learner_unchanged(worker, tmp_path, damage) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(0))
    before = await _saved(learner, tmp_path)
    {
        "missing": lambda file: file.unlink(),
        "cut": lambda file: file.write_bytes(before[: len(before) // 2]),
        "garbage": lambda file: file.write_bytes(b"\x80\x04not a checkpoint"),
        "foreign": lambda file: save_file({"x": torch.zeros(2)}, file),
    }[damage](tmp_path / FILE)
    with pytest.raises(StateError):
        await learner.load(tmp_path)
    assert await _saved(learner, tmp_path) == before


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda tensors, scalars: tensors.update({name: tensor * torch.nan for name, tensor in tensors.items()}), "finite"),
        (lambda tensors, scalars: tensors.update({name: tensor.to(torch.int8) for name, tensor in tensors.items()}), "32-bit"),
        (lambda tensors, scalars: scalars.update(step=-5), "-5"),
        (lambda tensors, scalars: scalars.update(step=True), "True"),
        (lambda tensors, scalars: scalars.update(step=10**30), "steps"),
    ],
    ids=["nan", "int8", "negative step", "no number", "absurd step"],
)
async def test_a_checkpoint_that_no_update_leaves_behind_is_refused(worker, tmp_path, change, complaint) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(0))
    before = await _saved(learner, tmp_path)
    tensors, scalars = read_state(tmp_path / FILE)
    change(tensors, scalars)
    (tmp_path / "odd").mkdir()
    write_state(tmp_path / "odd" / FILE, tensors, scalars)
    with pytest.raises(StateError, match=complaint):
        await learner.load(tmp_path / "odd")
    assert await _saved(learner, tmp_path) == before


async def test_a_header_nested_without_end_is_a_damaged_checkpoint(worker, tmp_path) -> None:
    save_file({"x": torch.zeros(2)}, tmp_path / FILE, metadata={"state": "[" * 100_000})
    with pytest.raises(StateError, match="cannot read"):
        await tiny_learner(worker).load(tmp_path)


@pytest.mark.parametrize("kind", ["adapter", "optimiser"])
async def test_a_checkpoint_with_a_tensor_missing_is_refused_with_the_learner_unchanged(worker, tmp_path, kind) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(0))
    before = await _saved(learner, tmp_path)
    tensors, scalars = read_state(tmp_path / FILE)
    del tensors[next(name for name in tensors if name.startswith(kind))]
    (tmp_path / "odd").mkdir()
    write_state(tmp_path / "odd" / FILE, tensors, scalars)
    with pytest.raises(StateError, match="fit"):
        await learner.load(tmp_path / "odd")
    assert await _saved(learner, tmp_path) == before

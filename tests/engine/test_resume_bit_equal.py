"""A stopped and resumed learner is bit-equal to an uninterrupted one; a checkpoint without an update is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from edge.core.errors import StateError
from edge.training.lora_learner import read_state, write_state
from tests.worlds.tiny_learner import equal, random_groups, saved, tiny_learner

FILE = "learner.safetensors"


@pytest.mark.parametrize("stop_after", [0, 1, 3])
async def test_resumed_run_is_bit_equal_to_an_uninterrupted_one(worker, tmp_path, stop_after) -> None:
    whole = tiny_learner(worker, weight_decay=0.01)
    for step in range(5):
        await whole.update(random_groups(step))
    first = tiny_learner(worker, weight_decay=0.01)
    for step in range(stop_after):
        await first.update(random_groups(step))
    await saved(first, tmp_path / "stop")
    resumed = tiny_learner(worker, seed=99, weight_decay=0.01)
    await resumed.load(tmp_path / "stop")
    for step in range(stop_after, 5):
        report = await resumed.update(random_groups(step))
    assert resumed.step == whole.step == 5
    assert not report.skipped
    one, other = [await _tensors(learner, tmp_path / name) for learner, name in ((whole, "whole"), (resumed, "resumed"))]
    assert one.keys() == other.keys() and any("exp_avg_sq" in name for name in one)
    assert equal(list(one.values()), [other[name] for name in one])


async def _tensors(learner, folder) -> dict[str, torch.Tensor]:
    await saved(learner, folder)
    return load_file(folder / FILE)


async def test_loading_restores_an_earlier_learner_state(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.update(random_groups(0))
    before = await saved(learner, tmp_path / "a")
    await learner.update(random_groups(1))
    assert await saved(learner, tmp_path / "b") != before
    await learner.load(tmp_path / "a")
    assert await saved(learner, tmp_path / "c") == before


async def test_older_checkpoint_is_replaced_without_temporary_files(worker, tmp_path) -> None:
    learner = tiny_learner(worker)
    await learner.save(tmp_path)
    await learner.update(random_groups(0))
    await learner.save(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == [FILE]
    assert read_state(tmp_path / FILE)[1]["step"] == 1


def _rewritten(change: Callable[[dict, dict], object]) -> Callable[[Path], None]:
    def damage(file: Path) -> None:
        tensors, scalars = read_state(file)
        change(tensors, scalars)
        write_state(file, tensors, scalars)

    return damage


def _each(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Path], None]:
    return _rewritten(lambda tensors, scalars: tensors.update({name: change(tensor) for name, tensor in tensors.items()}))


def _without(kind: str) -> Callable[[Path], None]:
    return _rewritten(lambda tensors, scalars: tensors.pop(next(name for name in tensors if name.startswith(kind))))


SPOILED: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda file: file.unlink(), FILE),
    "cut": (lambda file: file.write_bytes(file.read_bytes()[: file.stat().st_size // 2]), FILE),
    "garbage": (lambda file: file.write_bytes(b"\x80\x04not a checkpoint"), FILE),
    "foreign": (lambda file: save_file({"x": torch.zeros(2)}, file), FILE),
    "nested": (lambda file: save_file({"x": torch.zeros(2)}, file, metadata={"state": "[" * 100_000}), FILE),
    "no finite numbers": (_each(lambda tensor: tensor * torch.nan), "finite"),
    "int8": (_each(lambda tensor: tensor.to(torch.int8)), "32-bit"),
    "negative step": (_rewritten(lambda tensors, scalars: scalars.update(step=-5)), "-5"),
    "no number": (_rewritten(lambda tensors, scalars: scalars.update(step=True)), "True"),
    "absurd step": (_rewritten(lambda tensors, scalars: scalars.update(step=10**30)), "steps"),
    "no adapter": (_without("adapter"), "fit"),
    "no optimiser": (_without("optimiser"), "fit"),
}


@pytest.mark.parametrize("what", SPOILED)
async def test_checkpoint_without_an_update_is_refused_with_the_learner_unchanged(worker, tmp_path, what) -> None:
    damage, named = SPOILED[what]
    learner = tiny_learner(worker)
    await learner.update(random_groups(0))
    before = await saved(learner, tmp_path)
    damage(tmp_path / FILE)
    with pytest.raises(StateError, match=named):
        await learner.load(tmp_path)
    assert await saved(learner, tmp_path) == before

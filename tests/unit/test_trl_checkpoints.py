"""Which TRL checkpoint is complete, and from which one a run resumes. Needs no TRL."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.worlds.trl import write_checkpoint
from tools.integrations.trl.checkpoints import checkpoints, newest_whole


def steps(folder: Path) -> tuple[int | None, list[int]]:
    """The step from which a run resumes, and the newer incomplete checkpoints."""
    whole, broken = newest_whole(checkpoints(folder))
    return (None if whole is None else whole.step), [one.step for one in broken]


def test_newest_complete_checkpoint_is_used(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        write_checkpoint(tmp_path, step)
    (tmp_path / "checkpoint-final").mkdir()
    (tmp_path / "checkpoint-99").touch()
    assert steps(tmp_path) == (10, [])
    assert steps(tmp_path / "nowhere") == (None, [])


@pytest.mark.parametrize(
    "name",
    [
        "trainer_state.json",
        "adapter_config.json",
        "adapter_model.safetensors",
        "optimizer.pt",
    ],
)
@pytest.mark.parametrize("share", [0.0, 0.9])
def test_checkpoint_with_an_empty_or_truncated_file_is_skipped(name: str, share: float, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, 1)
    path = write_checkpoint(tmp_path, 2) / name
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    assert steps(tmp_path) == (1, [2])


def test_empty_checkpoint_or_one_of_another_step_is_skipped(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-3").mkdir()
    other = write_checkpoint(tmp_path, 4)
    (other / "trainer_state.json").write_text(json.dumps({"global_step": 2}))
    assert steps(tmp_path) == (None, [4, 3])


def test_sharded_model_needs_all_its_files(tmp_path: Path) -> None:
    path = write_checkpoint(tmp_path, 1)
    first, second = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    (path / "adapter_model.safetensors").rename(path / first)
    (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": first, "b": second}}))
    assert steps(tmp_path) == (None, [1])
    (path / second).write_bytes((path / first).read_bytes())
    assert steps(tmp_path) == (1, [])

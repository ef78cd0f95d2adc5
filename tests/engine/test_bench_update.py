"""The benchmark of an update, at a shape that takes no time."""

from __future__ import annotations

import pytest

from edge.training.learner import LearnerSettings
from tools.bench.update import PATHS, Workload, measure, random_batch

TINY = Workload(
    32, 16, layers=1, heads=2, kv_heads=1, ffn_width=16, prompts=2, group_size=2, prompt_tokens=(3, 5), response_tokens=(2, 6)
)


@pytest.mark.parametrize("path", PATHS)
async def test_an_update_is_measured_and_really_made(path) -> None:
    result = await measure(TINY, LearnerSettings(prefix_sharing=path, threads=1, max_mismatch_nats=1e9), repeats=1)
    assert result["path"] == path
    assert result["skipped"] == ""
    assert result["seconds_min"] > 0


def test_a_batch_has_the_shape_of_the_workload_and_centred_advantages() -> None:
    groups = random_batch(TINY, seed=3)
    assert [len(group.samples) for group in groups] == [2, 2]
    assert all(sum(sample.advantage for sample in group.samples) == pytest.approx(0.0) for group in groups)
    assert random_batch(TINY, seed=3) == groups != random_batch(TINY, seed=4)

"""The measured processes of our side, each on a tiny model: their results are enough for the rows of the table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench.harness import MeasuredPart
from tools.bench.part import main
from tools.bench.table import rows
from tools.bench.table.jobs import LEAN, Jobs
from tools.bench.table.models import gguf_file, make_random
from tools.bench.table.plan import RolloutLoad, Workload

WORK = Workload(2, 48, 6, 64, warmup=0, steps=2, rounds=1)


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    folder = tmp_path_factory.mktemp("bench")
    found = Jobs(folder, folder, 1)
    make_random(found.models, "tiny", ["Q8_0"], transformers=False)
    run(found.prompts(gguf_file(found.models, "tiny", "Q8_0"), WORK, None, wanted=4), folder)
    return found


def run(part: MeasuredPart, folder: Path) -> dict[str, Any]:
    """A part's process, in this one."""
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps({**part.job, "scratch": str(folder / "scratch")}), encoding="utf-8")
    main([part.command[-1], str(job), str(result)])
    return json.loads(result.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def learned(jobs: Jobs) -> dict[str, Any]:
    """Two steps of the real agent with its embedded coordinator."""
    model = gguf_file(jobs.models, "tiny", "Q8_0")
    part = jobs.agent(model, WORK, random_model=True, weights="streamed", serve=True, learning=LEAN)
    return run(part, jobs.out)


def test_agent_steps_are_complete_and_timed_by_part(learned: dict[str, Any]) -> None:
    assert len(learned["steps"]) == len(learned["counts"]) == 2
    for step, counts in zip(learned["steps"], learned["counts"], strict=True):
        assert counts == {"prompts": 2, "responses": 16, "prompt_tokens": 48.0, "response_tokens": 6.0}
        assert step["tokens"] == 16 * 6
        assert step["learner_skipped"] == ""
        assert step["frac_reward_zero_std"] == 0.0
        parts = sum(seconds for name, seconds in step["seconds_by_part"].items() if name != rows.OVERLAPPING)
        assert 0 < parts <= step["seconds"]
        assert step["gate"] == ""
    assert learned["checkpointing"] is True
    assert learned["notices"] == []


def test_memory_is_reported_by_part_including_the_coordinator(learned: dict[str, Any], jobs: Jobs) -> None:
    assert {"load", "rollout", "update", "close"} <= learned["memory_by_part"].keys()
    highest = max(found["rss_mib"] for found in learned["memory_by_part"].values())
    assert learned["peak_mib"] >= highest > 50
    assert learned["children_peak_mib"] > 20
    assert not (jobs.out / "scratch").exists()


def test_rollouts_are_measured_at_the_exact_requested_length(jobs: Jobs) -> None:
    load = RolloutLoad("tiny", 2, 24, 5, repeats=2)
    found = run(jobs.rollout(gguf_file(jobs.models, "tiny", "Q8_0"), load), jobs.out)
    assert found["tokens"] == 2 * 8 * 5
    assert len(found["seconds"]) == 2
    assert rows.tokens_per_s([found]).median > 0


def test_floor_is_computed_from_model_speeds(jobs: Jobs, learned: dict[str, Any]) -> None:
    model = gguf_file(jobs.models, "tiny", "Q8_0")
    found = run(jobs.speed({"tiny": model}, 0.01), jobs.out)
    row = rows.floor_row([found], {"a step": ([learned], "tiny", 16, 2.0)})
    assert row.verdicts[0].value > 0.0

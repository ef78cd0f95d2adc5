"""Our measured processes, each on a tiny model: what they write is what the rows of the table are made of."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.bench.harness import Part
from tools.bench.part import main
from tools.bench.table import rows
from tools.bench.table.jobs import LEAN, Places, agent_part, mismatch_part, prompts_part, rollout_part
from tools.bench.table.models import gguf_file, make_random
from tools.bench.table.plan import RolloutLoad, Workload

WORK = Workload(2, 48, 6, 64, warmup=0, steps=2, rounds=1)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Places:
    folder = tmp_path_factory.mktemp("bench")
    found = Places(folder, folder)
    make_random(found.models, "tiny", ["Q8_0"], transformers=False)
    run(prompts_part(found, gguf_file(found.models, "tiny", "Q8_0"), WORK, None, wanted=4), folder)
    return found


def run(part: Part, folder: Path) -> dict[str, Any]:
    """A part's process, in this one."""
    job, result = folder / "job.json", folder / "result.json"
    job.write_text(json.dumps(part.job), encoding="utf-8")
    main([part.command[-1], str(job), str(result)])
    return json.loads(result.read_text(encoding="utf-8"))


def test_the_agents_steps_are_made_in_full_and_timed_by_part(places: Places) -> None:
    """Two steps of the real agent with its embedded coordinator."""
    model = gguf_file(places.models, "tiny", "Q8_0")
    part = agent_part(places, "k", model, WORK, 1, random_model=True, weights="streamed", serve=True, learning=LEAN, profile=True)
    learned = run(part, places.out)
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
    assert {"load", "rollout", "update", "close"} <= learned["memory_by_part"].keys()
    assert learned["peak_mib"] >= max(found["rss_mib"] for found in learned["memory_by_part"].values()) > 50
    assert not places.scratch("k").exists()


def test_rollouts_are_measured_at_exactly_the_length_asked_for(places: Places) -> None:
    load = RolloutLoad("tiny", 2, 24, 5, repeats=2)
    found = run(rollout_part("k", gguf_file(places.models, "tiny", "Q8_0"), load, 1), places.out)
    assert found["tokens"] == 2 * 8 * 5
    assert len(found["seconds"]) == 2
    assert rows.tokens_per_s([found]).median > 0


def test_the_trainer_is_compared_with_the_sampler_on_the_file_and_on_the_original(places: Places) -> None:
    files = make_random(places.models / "four", "tiny", ["F16", "Q4_K_M"], transformers=False)
    items = places.items(gguf_file(places.models, "tiny", "Q8_0"), WORK)
    part = mismatch_part("k", files[1], files[0], items, prompts=2, tokens=6, context=64, threads=1, random=True)
    found = run(part, places.out)
    assert found["file"]["tokens"] == found["original"]["tokens"] == 2 * 8 * 6
    assert found["original"]["mean_abs_logprob_diff"] > 3 * found["file"]["mean_abs_logprob_diff"]
    assert sum(found["types"].values()) == pytest.approx(1.0, abs=0.01)

"""Very small runs of `learn` and `eval`: a run folder is written, a run resumes in it, and its adapter is found."""

from __future__ import annotations

import json
import os
from pathlib import Path

from tests.worlds.warm_commands import run_command

SETTINGS = ("learning.prompts_per_step=1", "learning.group_size=2", "learning.max_tokens=24", "gate.enabled=false")
SMALL = [word for setting in SETTINGS for word in ("--set", setting)]
THREADS = ["--set", "engine.threads=1", "--set", "learning.torch_threads=1"]


def edge_agent(*words: str) -> str:
    """Returns the output; `learn` normally restarts itself for its allocator settings, which is disabled here."""
    code, out, err = run_command("edge.cli", *words, environment={**os.environ, "EDGE_AGENT_ALLOCATOR": "tuned"})
    assert code == 0 and "Traceback" not in err, err
    return out


def test_learn_writes_a_run_folder_resumes_in_it_and_eval_finds_its_adapter(tmp_path: Path) -> None:
    run = tmp_path / "run"
    learn = ["learn", "--tasks", "practice:arith", "--out", str(run), "--seed", "3", "--target-rate", "0.2", *SMALL, *THREADS]

    assert f"run folder {run}" in edge_agent(*learn, "--steps", "1", "--eval-limit", "2")
    events = [json.loads(line) for line in edge_agent(*learn, "--steps", "2", "--eval-limit", "2", "--json").splitlines()]
    assert [event["step"] for event in events if event["kind"] == "step_finished"] == [2]
    assert events[-1]["kind"] == "run_finished"

    scores = [json.loads(line) for line in (run / "evals.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [(score["step"], score["adapter_version"], score["items"]) for score in scores] == [(0, 0, 2), (1, 1, 2), (2, 2, 2)]

    summary = json.loads((run / "summary.json").read_text(encoding="utf-8"))
    assert (summary["steps"], summary["reason"]) == (2, "done")
    assert len((run / "metrics.csv").read_text(encoding="utf-8").splitlines()) == 3
    assert {path.suffix for path in run.iterdir()} >= {".png", ".csv", ".jsonl", ".yaml", ".json"}

    body = json.loads(edge_agent("eval", "--run", str(run), "--limit", "3", "--local-only", "--json", *THREADS))
    assert (body["scores"]["items"], body["adapter"], body["with_cloud"]) == (3, str(run / "adapter"), False)

"""Very small runs of DA-GRPO on TRL's own trainer with the bundled model and an embedded coordinator."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import yaml

pytest.importorskip("trl", reason="trl is not installed: pip install -c constraints.txt -e '.[trl]'")

from safetensors.torch import load_file

pytestmark = pytest.mark.long
TIMEOUT_S = 300
SMALL = {
    "model": "bundled:nano-edge",
    "agent": {
        "learning": {
            "prompts_per_step": 3,
            "group_size": 4,
            "max_tokens": 96,
            "control": {"controller": "paper", "dual_lr": 0.1},
        },
        "phases": [{"source": "practice:arith", "target_rate": 0.3, "steps": 2}],
    },
    "trainer": {"rows_per_pass": 6, "checkpoint_every": 1},
}


def written(folder: Path, **changes: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({**SMALL, **changes, "out": str(folder / "run")}))
    return path


def command(config: Path, *words: str, processes: int = 1) -> list[str]:
    module = ["-m", "tools.integrations.trl", "run", str(config), *words]
    if processes == 1:
        return [sys.executable, *module]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes), *module]


def environment(processes: int = 1) -> dict[str, str]:
    connected = {"ACCELERATE_USE_CPU": "true"} if processes > 1 else {}
    return {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", **connected}


def run(config: Path, *words: str, processes: int = 1) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(config, *words, processes=processes),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env=environment(processes),
        check=False,
    )


def steps_of(folder: Path) -> list[dict[str, Any]]:
    return steps_in(folder / "run")


def steps_in(run_folder: Path) -> list[dict[str, Any]]:
    lines = (run_folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == "step_finished"]


def charged(folder: Path) -> dict[tuple[int, str], int]:
    """The charges in the embedded coordinator's ledger: calls by step and prompt."""
    path = folder / "run" / "state" / "coordinator" / "ledger.sqlite3"
    with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as database:
        rows = database.execute("SELECT step, prompt_id, sum(charged_calls) FROM call GROUP BY step, prompt_id").fetchall()
    return {(step, prompt): calls for step, prompt, calls in rows}


def test_run_learns_at_the_coordinators_lambda_and_writes_the_files_of_an_agent_run(tmp_path):
    done = run(written(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = steps_of(tmp_path)
    assert first["dual_before"] == 0.5
    for step in (first, second):
        assert step["dual_after"] == pytest.approx(max(0.0, step["dual_before"] + 0.1 * (step["assist_rate"] - 0.3)))
        assert (step["prompts"], step["responses"], step["masked"], step["offline"]) == (3, 12, 0, False)
        assert step["cloud_calls"] <= 3
        assert step["format_ok"] > 0.5
    assert second["dual_before"] == first["dual_after"]
    assert (second["grad_norm"] > 0.0) == (second["frac_reward_zero_std"] < 1.0)
    folder = tmp_path / "run"
    summary = json.loads((folder / "summary.json").read_text())
    assert (summary["steps"], summary["reason"], summary["cloud_calls"]) == (2, "done", second["total_cloud_calls"])
    assert (folder / "adapter" / "adapter.gguf").is_file()
    assert not list(folder.glob("*/training_args.bin"))
    assert sum(charged(tmp_path).values()) == summary["cloud_calls"]
    assert any(float(values.abs().max()) > 0 for name, values in adapter(folder).items() if "lora_B" in name)
    assert "What" not in done.stderr  # prompts are in no log
    assert done.stderr.count("means of the last 10 steps of the phase") == 1
    again = run(written(tmp_path), "--set", "agent.learning.group_size=8")
    assert (again.returncode, len(again.stderr.strip().splitlines())) == (2, 1)
    assert "holds a run with other settings (agent.learning.group_size 4 -> 8)" in again.stderr
    (folder / "trl" / "checkpoint-2" / "trainer_state.json").unlink()
    longer = run(written(tmp_path), "--set", "agent.phases.0.steps=3", "--set", "agent.budget.calls_limit=100")
    assert longer.returncode == 0, longer.stderr
    assert "trl/checkpoint-2: not written to the end; going on from trl/checkpoint-1" in longer.stderr
    assert [step["step"] for step in steps_of(tmp_path)] == [1, 2, 3]


def test_start_refused_by_trl_is_one_line_and_leaves_the_folder_free_for_other_settings(tmp_path):
    config, folder = written(tmp_path), tmp_path / "run"
    refused = run(config, "--set", 'trainer.options={"nonsense": 1}')
    assert (refused.returncode, len(refused.stderr.strip().splitlines())) == (2, 1)
    assert "trainer.options: nonsense is refused" in refused.stderr
    assert not folder.exists()
    nowhere = run(config, "--out", "/dev/null/run")
    assert (nowhere.returncode, len(nowhere.stderr.strip().splitlines())) == (2, 1)
    begun = run(config, "--set", 'trainer.options={"model_init_kwargs": {"dtype": "no-such-type"}}')
    assert (begun.returncode, len(begun.stderr.strip().splitlines())) == (2, 1)
    assert "TRL cannot begin" in begun.stderr
    assert not (folder / "config.yaml").exists()
    done = run(config, "--set", "agent.phases.0.steps=1", "--set", "agent.learning.group_size=2")
    assert done.returncode == 0, done.stderr
    (step,) = steps_of(tmp_path)
    assert (step["responses"], json.loads((folder / "summary.json").read_text())["steps"]) == (6, 1)


def adapter(folder: Path) -> dict[str, Any]:
    return load_file(folder / "trained" / "adapter_model.safetensors")


def test_killed_run_resumes_like_an_uninterrupted_one(tmp_path):
    agent = {**SMALL["agent"], "phases": [{"source": "practice:arith", "target_rate": 0.3, "steps": 3}]}
    trainer = {**SMALL["trainer"], "checkpoint_every": 2}
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(written(whole, agent=agent, trainer=trainer)).returncode == 0
    config = written(cut, agent=agent, trainer=trainer)
    kill_after_first_step(config, cut)
    assert len(steps_of(cut)) == 1
    done = run(config)
    assert done.returncode == 0, done.stderr
    rates = [
        [(step["step"], step["assist_rate"], step["dual_after"], step["reward_mean"]) for step in steps_of(f)]
        for f in (whole, cut)
    ]
    assert rates[0] == rates[1]
    assert "turned out otherwise" not in done.stderr
    ours, theirs = adapter(whole / "run"), adapter(cut / "run")
    assert all(bool((ours[name] == theirs[name]).all()) for name in ours)
    assert charged(cut) == charged(whole)


def kill_after_first_step(config: Path, folder: Path) -> None:
    """SIGKILL between the first step's record and the checkpoint after the second."""
    process = subprocess.Popen(command(config), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment())
    try:
        wait_for_a_step(process, folder)
    finally:
        process.kill()
        process.wait()


def wait_for_a_step(process: subprocess.Popen[Any], folder: Path) -> None:
    """Until the first step is in the record, or the process has ended."""
    for _ in range(TIMEOUT_S * 50):
        events = folder / "run" / "events.jsonl"
        if process.poll() is not None or (events.is_file() and '"step_finished"' in events.read_text()):
            return
        time.sleep(0.02)  # noqa: TID251 - a process of its own is watched


def test_run_ended_by_sigterm_sums_up_its_steps_and_names_no_adapter(tmp_path):
    phases = [{"source": "practice:arith", "target_rate": 0.3, "steps": 500}]
    config = written(tmp_path, agent={**SMALL["agent"], "phases": phases}, trainer={"rows_per_pass": 6})
    process = subprocess.Popen(command(config), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=environment())
    try:
        wait_for_a_step(process, tmp_path)
        process.terminate()
        _, output = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 143, output
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["reason"], summary["steps"], summary["adapter_version"]) == ("stopped", len(steps_of(tmp_path)), 0)
    (summary,) = [line for line in output.splitlines() if "stopped after step" in line]
    assert "adapter" not in summary
    assert "Traceback" not in output


def test_two_processes_make_one_run_with_groups_that_lie_across_both(tmp_path):
    done = run(written(tmp_path), processes=2)
    assert done.returncode == 0, done.stderr
    ranks = [f"rng_state_{rank}.pth" for rank in range(2)]
    assert sorted(path.name for path in (tmp_path / "run" / "trl" / "checkpoint-2").glob("rng_state*")) == ranks
    assert done.stderr.count("means of the last 10 steps of the phase") == 1
    steps = steps_of(tmp_path)
    assert [(step["step"], step["prompts"], step["responses"]) for step in steps] == [(1, 3, 12), (2, 3, 12)]
    assert steps[1]["dual_before"] == steps[0]["dual_after"]
    assert all(calls <= 1 for calls in charged(tmp_path).values())
    assert sum(charged(tmp_path).values()) == steps[-1]["total_cloud_calls"]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["steps"] == 2


def test_trl_and_the_agent_reach_the_same_lambda_and_rates_on_the_same_prompts(tmp_path):
    steps = 24
    learn = [
        "learn",
        "--tasks",
        "practice:arith",
        "--steps",
        str(steps),
        "--target-rate",
        "0.3",
        "--out",
        str(tmp_path / "agent"),
    ]
    learn += ["--state", str(tmp_path / "state"), "--set", "engine.threads=1", "--set", "learning.torch_threads=1"]
    learn += ["--set", "learning.control.controller=paper"]  # TRL's sampler has no help bias: there λ alone holds the rate
    own = subprocess.run(
        [sys.executable, "-m", "edge.cli", *learn], capture_output=True, text=True, timeout=1800, env=environment(), check=False
    )
    assert own.returncode == 0, own.stderr
    phases = [{"source": "practice:arith", "target_rate": 0.3, "steps": steps}]
    agent = {"phases": phases, "learning": {"control": {"controller": "paper"}}}
    config = written(tmp_path, agent=agent, trainer={"rows_per_pass": 64})
    theirs = subprocess.run(command(config), capture_output=True, text=True, timeout=1800, env=environment(), check=False)
    assert theirs.returncode == 0, theirs.stderr
    ours, trls = steps_in(tmp_path / "agent"), steps_of(tmp_path)
    assert [step["step"] for step in ours] == [step["step"] for step in trls] == list(range(1, steps + 1))
    for measure in ("assist_rate", "joint_accuracy", "reward_mean", "format_ok"):
        found = [theirs[measure] - own[measure] for own, theirs in zip(ours, trls, strict=True)]
        blocks = [mean(found[start : start + 4]) for start in range(0, steps, 4)]  # neighbouring steps share their weights
        assert abs(mean(blocks)) <= 5 * stdev(blocks) / len(blocks) ** 0.5, measure

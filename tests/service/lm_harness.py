"""lm-evaluation-harness as its users run it: its own command, tasks from local files, a model behind an OpenAI-compatible address."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.service.environments import environment

REQUIREMENTS = Path(__file__).with_name("lm_eval_requirements.txt")
TIMEOUT_S = 240


@dataclass(frozen=True)
class Evaluated:
    """What the harness found: its metrics, and what it noted of each item."""

    metrics: Mapping[str, Any]
    samples: Sequence[Mapping[str, Any]]


def evaluate(
    folder: Path, model: str, arguments: str, task: Mapping[str, Any], items: Sequence[Mapping[str, Any]], *more: str
) -> Evaluated:
    """Run one task over these items in a new folder. The harness installs itself at the first use and never asks a hub."""
    folder.mkdir()
    (folder / "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
    about = {
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "items.jsonl")}},
        "test_split": "test",
    }
    (folder / f"{task['task']}.yaml").write_text(yaml.safe_dump({**about, **task}))
    python = environment("lm-eval", REQUIREMENTS, sees_ours=True) / "bin" / "python"
    command = [str(python), "-m", "lm_eval", "--model", model, "--model_args", arguments, "--tasks", str(task["task"])]
    where = ["--include_path", str(folder), "--output_path", str(folder / "found"), "--log_samples", *more]
    offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [*command, *where], env={**environ, **offline}, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return _found(folder / "found", str(task["task"]))


def _found(folder: Path, task: str) -> Evaluated:
    (results,) = folder.rglob("results_*.json")
    (samples,) = folder.rglob("samples_*.jsonl")
    noted = [json.loads(line) for line in samples.read_text().splitlines()]
    return Evaluated(json.loads(results.read_text())["results"][task], sorted(noted, key=lambda sample: int(sample["doc_id"])))

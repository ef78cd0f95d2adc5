"""`edge-agent router train` with the bundled model, and an evaluation with the router."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long  # a router is trained, exported and asked


def command(*words: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "edge.cli", *words, "--set", "engine.threads=1", "--set", "engine.max_rows=16"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return done


def as_json(*words: str) -> dict[str, Any]:
    done = command(*words, "--json")
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    return result


def test_a_trained_router_decides_in_an_evaluation(tmp_path: Path) -> None:
    out, state = tmp_path / "router.onnx", str(tmp_path / "state")
    result = as_json("router", "train", str(out), "--tasks", "practice:arith", "--limit", "48", "--rate", "0.5", "--state", state)
    assert result["fitted"] + result["held_out"] <= 48
    assert 0 < result["failed"] < 1
    assert result["asked"] <= 0.5
    assert [path.name for path in tmp_path.iterdir()] == ["router.onnx"]  # no state folder is made

    router = ["--set", "routing.policy=router", "--set", f"routing.router={out}"]
    words = ["eval", "--tasks", "practice:arith", "--limit", "12", "--no-cloud", "--adapter", "none"]
    own, everything, nothing = (
        as_json(*words, *extra)
        for extra in ([], [*router, "--set", "routing.threshold=0"], [*router, "--set", "routing.threshold=1"])
    )
    assert own["policy"] == "self"
    assert everything["policy"].startswith("router ")
    assert (everything["scores"]["assist_rate"] > 0.8, nothing["scores"]["assist_rate"]) == (True, 0.0)
    assert everything["scores"]["forced_local_accuracy"] == nothing["scores"]["forced_local_accuracy"]

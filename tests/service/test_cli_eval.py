"""`eval` on the bundled models: recorded, replayed, killed, and with damaged adapters."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.worlds.made_up_lora import write_adapter
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.warm_commands import Ended, run_command

SMALL = ["--tasks", "practice:arith", "--set", "engine.threads=1"]


def evaluated(*words: str) -> Ended:
    code, out, err = run_command("edge.cli", "eval", *SMALL, *words)
    assert "Traceback" not in err
    return code, out, err


def report_of(*words: str) -> dict[str, Any]:
    code, out, err = evaluated("--json", *words)
    assert code == 0, err
    report: dict[str, Any] = json.loads(out)
    return report


def measured(report: dict[str, Any]) -> dict[str, Any]:
    """The report without the fields that may differ between repetitions."""
    return {key: value for key, value in report.items() if key not in ("cloud", "seconds")}


def test_a_replay_without_coordinator_or_state_gives_exactly_the_scores_of_the_recording(tmp_path: Path) -> None:
    recording, plot = tmp_path / "answers.jsonl", tmp_path / "curve.png"
    common = ["--limit", "6", "--cloud-all", "--plot", str(plot)]
    first = report_of(*common, "--state", str(tmp_path / "state"), "--record", str(recording))
    assert (first["cloud"], first["scores"]["cloud_answers"], first["extra"]["calls"] > 0) == ("coordinator", 6, True)
    curve = json.loads(plot.with_suffix(".json").read_text(encoding="utf-8"))
    assert plot.read_bytes().startswith(b"\x89PNG")

    again = report_of(*common, "--state", str(tmp_path / "unused"), "--replay", str(recording), "--coordinator", "127.0.0.1:1")
    assert measured(again) == measured(first)
    assert json.loads(plot.with_suffix(".json").read_text(encoding="utf-8")) == curve
    assert not (tmp_path / "unused").exists()

    lines = recording.read_text(encoding="utf-8").splitlines(keepends=True)
    recording.write_text("".join(lines[1:]), encoding="utf-8")
    code, out, err = evaluated(*common, "--replay", str(recording))
    assert code == 1 and "1 answer is not in the recording" in out
    assert "no curve: the cloud's answer is not known for 1 of 6 items" in err

    recording.write_text("".join(["nonsense\n", *lines]), encoding="utf-8")
    code, _, err = evaluated(*common, "--replay", str(recording))
    assert code == 1 and f"{recording}:1: not a cassette line" in err


LONG = ["--limit", "20", "--no-cloud", "--adapter", "none", "--set", "engine.max_rows=2"]


def test_killed_evaluation_resumes_where_it_was(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    partial = tmp_path / "report.json.partial.jsonl"
    killed = [sys.executable, "-m", "edge.cli", "eval", *SMALL, *LONG, "--json-out", str(out)]
    with subprocess.Popen(killed, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            while not (partial.exists() and len(partial.read_bytes().splitlines()) > 3):
                with suppress(subprocess.TimeoutExpired):
                    pytest.fail(f"it ended before it was killed: {process.wait(0.02)}")
        finally:
            process.kill()
    judged = len(partial.read_text(encoding="utf-8").splitlines()) - 1
    assert 3 <= judged < 20

    code, _, err = evaluated(*LONG, "--json-out", str(out))
    assert code == 0, err
    assert "items were judged before" in err
    assert not partial.exists()
    assert measured(json.loads(out.read_text(encoding="utf-8"))) == measured(report_of(*LONG))


def test_damaged_latest_adapter_is_replaced_by_the_previous_one_with_a_notice(tmp_path: Path) -> None:
    good, bad = (tmp_path / f"state/checkpoints/step-00000{step}/adapter" for step in (1, 2))
    model = write_tiny_model(tmp_path / "tiny.gguf")
    write_adapter(good, model, 1)
    bad.mkdir(parents=True)
    (bad / "adapter.gguf").write_bytes(b"GGUF but not really")
    words = ["--limit", "2", "--no-cloud", "--max-tokens", "96", "--model", str(model.path), "--state", str(tmp_path / "state")]
    words += ["--adapter", "latest"]
    code, out, err = evaluated(*words, "--json")
    assert code == 0, err
    report = json.loads(out)
    assert (report["adapter"], report["adapter_version"]) == (str(good), 1)
    assert f"measuring the one before, {good}" in err

    (good / "adapter.gguf").write_bytes(b"")
    code, _, err = evaluated(*words)
    assert code == 1 and "--adapter none" in err


def test_cloud_all_without_a_usable_cloud_fails_with_the_reason(tmp_path: Path) -> None:
    words = ["--limit", "2", "--adapter", "none", "--coordinator", "127.0.0.1:1", "--state", str(tmp_path / "state")]
    code, out, err = evaluated(*words, "--cloud-all", "--plot", str(tmp_path / "curve.png"))
    assert code == 1 and "2 items of practice:arith" in out
    assert "the cloud did not answer 2 of 2 items: no coordinator answers at 127.0.0.1:1" in err and "no curve" not in err

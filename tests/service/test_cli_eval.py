"""`eval` as a researcher runs it, with the bundled models: recorded, replayed, interrupted, and with damaged adapters."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.engine.made_up_lora import write_adapter
from tests.engine.tiny_gguf import write_tiny_model

SMALL = ["--tasks", "practice:arith", "--set", "engine.threads=1"]


def command(words: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "edge.cli", "eval", *words]


def evaluated(*words: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command([*SMALL, *words]), capture_output=True, text=True, timeout=300, check=False)
    assert "Traceback" not in done.stderr
    return done


def report_of(*words: str) -> dict[str, Any]:
    done = evaluated("--json", *words)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def measured(report: dict[str, Any]) -> dict[str, Any]:
    """The report without what a repetition may change."""
    return {key: value for key, value in report.items() if key not in ("cloud", "seconds")}


def test_a_replay_without_coordinator_or_state_gives_exactly_the_scores_of_the_recording(tmp_path: Path) -> None:
    recording, plot = tmp_path / "answers.jsonl", tmp_path / "curve.png"
    common = ["--limit", "12", "--cloud-all", "--plot", str(plot)]
    first = report_of(*common, "--state", str(tmp_path / "state"), "--record", str(recording))
    assert (first["cloud"], first["scores"]["cloud_answers"], first["extra"]["calls"] > 0) == ("coordinator", 12, True)
    curve = json.loads(plot.with_suffix(".json").read_text(encoding="utf-8"))
    assert plot.read_bytes().startswith(b"\x89PNG")

    again = report_of(*common, "--state", str(tmp_path / "unused"), "--replay", str(recording), "--coordinator", "127.0.0.1:1")
    assert measured(again) == measured(first)
    assert json.loads(plot.with_suffix(".json").read_text(encoding="utf-8")) == curve
    assert not (tmp_path / "unused").exists()

    lines = recording.read_text(encoding="utf-8").splitlines(keepends=True)
    recording.write_text("".join(lines[1:]), encoding="utf-8")
    incomplete = evaluated(*common, "--replay", str(recording))
    assert incomplete.returncode == 1
    assert "1 answer is not in the recording" in incomplete.stdout
    assert "no curve: the cloud's answer is not known for 1 of 12 items" in incomplete.stderr

    recording.write_text("".join(["nonsense\n", *lines]), encoding="utf-8")
    damaged = evaluated(*common, "--replay", str(recording))
    assert (damaged.returncode, f"{recording}:1: not a cassette line" in damaged.stderr) == (1, True)


LONG = ["--limit", "32", "--no-cloud", "--adapter", "none", "--set", "engine.max_rows=2"]


@pytest.fixture(scope="module")
def uninterrupted() -> dict[str, Any]:
    """The report of the evaluation that the others are interrupted in."""
    return report_of(*LONG)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)])
def test_an_interrupted_evaluation_goes_on_where_it_was(
    tmp_path: Path, uninterrupted: dict[str, Any], number: int, code: int
) -> None:
    out = tmp_path / "report.json"
    partial = tmp_path / "report.json.partial.jsonl"
    errors = _interrupt([*LONG, "--json-out", str(out)], partial, number, code)
    assert number == signal.SIGKILL or f"what was judged is in {partial}" in errors
    judged = len(partial.read_text(encoding="utf-8").splitlines()) - 1
    assert 3 <= judged < 32

    done = evaluated(*LONG, "--json-out", str(out))
    assert done.returncode == 0, done.stderr
    assert "items were judged before" in done.stderr
    assert not partial.exists()
    assert measured(json.loads(out.read_text(encoding="utf-8"))) == measured(uninterrupted)


def _interrupt(words: Sequence[str], partial: Path, number: int, code: int) -> str:
    """Send the signal when at least three items are judged; what was said on stderr."""
    process = subprocess.Popen(
        command([*SMALL, *words]),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored in what a script starts in the background
    )
    try:
        while not (partial.exists() and len(partial.read_bytes().splitlines()) > 3):
            with suppress(subprocess.TimeoutExpired):
                pytest.fail(f"it ended before it was interrupted: {process.wait(0.02)}")
        process.send_signal(number)
        errors = process.communicate(timeout=60)[1]
    finally:
        process.kill()
        process.wait()
    assert process.returncode == code
    assert "Traceback" not in errors
    return errors


def test_a_damaged_latest_adapter_gives_way_to_the_one_before_and_says_so(tmp_path: Path) -> None:
    good, bad = (tmp_path / f"state/checkpoints/step-00000{step}/adapter" for step in (1, 2))
    model = write_tiny_model(tmp_path / "tiny.gguf")
    write_adapter(good, model, 1)
    bad.mkdir(parents=True)
    (bad / "adapter.gguf").write_bytes(b"GGUF but not really")
    words = ["--limit", "2", "--no-cloud", "--max-tokens", "16", "--model", str(model.path), "--state", str(tmp_path / "state")]
    words += ["--adapter", "latest"]
    done = evaluated(*words, "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["adapter"], report["adapter_version"]) == (str(good), 1)
    assert f"measuring the one before, {good}" in done.stderr

    (good / "adapter.gguf").write_bytes(b"")
    none_left = evaluated(*words)
    assert none_left.returncode == 1
    assert next(line for line in none_left.stderr.splitlines() if line.startswith("error: ")).endswith("--adapter none")


def test_wanting_every_answer_of_a_cloud_that_cannot_be_asked_fails_and_says_why(tmp_path: Path) -> None:
    words = ["--limit", "2", "--adapter", "none", "--coordinator", "127.0.0.1:1", "--state", str(tmp_path / "state")]
    done = evaluated(*words, "--cloud-all", "--plot", str(tmp_path / "curve.png"))
    assert done.returncode == 1
    assert "the cloud did not answer 2 of 2 items: no coordinator answers at 127.0.0.1:1" in done.stderr
    assert "no curve" not in done.stderr
    assert "2 items of practice:arith" in done.stdout

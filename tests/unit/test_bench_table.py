"""The table of goals: comparisons, resuming, and processes that always end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.until import until
from tools.bench import __main__ as bench
from tools.bench import endpoint
from tools.bench.coordinator import __main__ as coordinator
from tools.bench.harness import BenchRow, MeasuredPart, Results, command, run_part
from tools.bench.processes import ProcessFailed, last_line, run_child
from tools.bench.table import __main__ as table
from tools.bench.table import rows
from tools.bench.table.batched_peer import seconds_of

# -- verdicts ----------------------------------------------------------------------------------------------------------------------


def test_goals_are_met_at_their_bound_and_missed_beyond_it() -> None:
    row = BenchRow("a", "b")
    row.at_least("a", "b", "c", 4.0, 4.0)
    row.at_least("a", "b", "c", 3.99, 4.0)
    row.at_most("a", "b", "c", 0.5, 0.5)
    row.at_most("a", "b", "c", 0.51, 0.5)
    row.without_goal("a", "b", "c")
    assert [line.met for line in row.verdicts] == [True, False, True, False, None]


def our_round(seconds: float, peak: float = 500.0) -> dict:
    step = {
        "seconds": seconds,
        "seconds_by_part": {"rollout": 0.6 * seconds, "update": 0.3 * seconds, "save": 0.1 * seconds, "close": 0.0, "swap": 0.0},
        "frac_reward_zero_std": 0.5,
        "learner_skipped": "",
    }
    return {
        "steps": [step, step],
        "counts": [{"prompts": 2, "responses": 16, "prompt_tokens": 320.0, "response_tokens": 128.0}] * 2,
        "peak_mib": peak,
        "once_mib": peak - 1.0,
        "children_peak_mib": 100.0,
        "memory_by_part": {"update": {"rss_mib": 400.0, "anon_mib": 300.0, "file_mib": 100.0}},
        "model": {"parameters": 2_300_000},
        "answers": 3,
        "checkpointing": False,
    }


def peer_round(seconds: float, peak: float) -> dict:
    step = {"seconds": seconds, "generate_s": seconds / 4}
    return {"steps": [step, step], "peak_mib": peak, "advantage_error": 1e-8, "versions": {"trl": "1.16.0"}}


def test_small_row_is_compared_with_fp32_and_the_peers_best_and_leanest() -> None:
    peers = {"fp32": [peer_round(6.2, 2000)], "defaults": [peer_round(2.5, 1100)], "tuned": [peer_round(3.0, 2500)]}
    row = rows.small_row([our_round(1.0)], [our_round(1.6, 600)], peers)
    assert "1.6x faster than its best" in next(line.measured for line in row.verdicts if "bundled cloud" in line.what)
    goals = {(line.against, line.goal): line for line in row.verdicts if line.met is not None}
    assert goals["TRL fp32", "≥ 6x"].met is True
    assert goals["TRL, its defaults (its best)", "≥ 4.5x"].met is False
    memory = goals["TRL, its defaults (its leanest)", "≤ 0.45x"]
    assert memory.value == pytest.approx(600 / 1100)
    assert memory.met is False


def test_a_public_models_step_is_compared_with_the_fastest_and_the_leanest_peer() -> None:
    peers = {"bf16": [peer_round(90.0, 3000)], "defaults": [peer_round(45.0, 9000)]}
    row = rows.smollm2_row([our_round(10.0, 800)], [our_round(7.0, 700)], peers)
    goals = {line.against: line for line in row.verdicts if line.met is not None}
    assert goals["TRL, its defaults (its best)"].value == pytest.approx(4.5) and goals["TRL, its defaults (its best)"].met is True
    leanest = goals["TRL bf16, checkpointing (its leanest)"]
    assert leanest.value == pytest.approx(900 / 3000) and leanest.met is True
    assert any("in their form, 320 + 128 tokens" in line.what for line in row.verdicts)


def test_floor_row_uses_the_best_rates_of_all_rounds() -> None:
    size = {
        "weights": 1_000_000,
        "block_weights": 1_000_000,
        "bytes_per_weight": 1.0,
        "kv_bytes_per_token": 1000.0,
        "bf16": False,
    }
    slow = {**size, "infer_flop_per_s": 1e9, "train_fp32_flop_per_s": 1e9, "train_bf16_flop_per_s": 9e9}
    fast = {**slow, "infer_flop_per_s": 2e9}
    speeds = [
        {"bytes_per_s": 2e9, "models": {"m": slow, "n": {**slow, "infer_flop_per_s": 4e9}}},
        {"bytes_per_s": 1e9, "models": {"m": fast, "n": slow}},
    ]
    row = rows.floor_row(speeds, {"a step": ([our_round(20.0)], "m", 16, 2.0)})

    def floor(infer: float) -> float:
        prefill = 2 * 1e6 * 2 * 320 / infer
        decode = 128 * max((1e6 + 16 * 1000 * (320 + 64)) / 2e9, 2 * 1e6 * 16 / infer)
        return prefill + decode + 4 * 1e6 * 0.5 * 2 * (320 + 8 * 128) / 1e9

    assert row.verdicts[0].value == pytest.approx(20.0 / floor(2e9))


# -- resuming ----------------------------------------------------------------------------------------------------------------------


def counting(calls: list[str], result: dict):
    def run(part: MeasuredPart, job: Path, raw: Path, note) -> float:
        calls.append(job.stem)
        raw.write_text(json.dumps(result), encoding="utf-8")
        return 1.0

    return run


def test_a_finished_part_is_read_back_and_another_job_is_measured_again(tmp_path: Path) -> None:
    calls: list[str] = []
    part = MeasuredPart(("python", "-m", "x"), {"steps": 1})
    first = Results(tmp_path, run=counting(calls, {"value": 1})).measure("row/a/1", part)
    again = Results(tmp_path, run=counting(calls, {"value": 2}))
    assert again.measure("row/a/1", part) == first
    assert first["value"] == 1
    assert again.measure("row/a/1", MeasuredPart(("python", "-m", "x"), {"steps": 2}))["value"] == 2
    assert calls == ["1", "1"]


def test_result_does_not_count_when_damaged_or_its_files_are_gone(tmp_path: Path) -> None:
    calls: list[str] = []
    made = tmp_path / "made"
    made.touch()
    part = MeasuredPart(("python",), {})
    results = Results(tmp_path, run=counting(calls, {"files": [str(made)]}))
    results.measure("models/a", part)
    results.measure("models/a", part)
    assert len(calls) == 1
    made.unlink()
    results.measure("models/a", part)
    (tmp_path / "parts" / "models" / "a.json").write_text("{", encoding="utf-8")
    results.measure("models/a", part)
    assert len(calls) == 3


# -- processes ---------------------------------------------------------------------------------------------------------------------


def test_part_receives_its_job_and_its_result_is_stored_with_its_time(tmp_path: Path) -> None:
    code = (
        "import json,os,sys; job=json.load(open(sys.argv[1]));"
        "json.dump({'twice': 2*job['n'], 'e': os.environ['E']}, open(sys.argv[2], 'w'))"
    )
    part = MeasuredPart((sys.executable, "-c", code), {"n": 21}, {"E": "set"})
    found = Results(tmp_path, run=run_part).measure("row/a/1", part)
    assert (found["twice"], found["e"]) == (42, "set")
    assert found["taken"]["key"] == "row/a/1"


def test_failed_part_prints_its_last_output(tmp_path: Path) -> None:
    code = "import sys; print('first'); print('the reason', file=sys.stderr); sys.exit(3)"
    with pytest.raises(ProcessFailed, match="ended with 3: the reason"):
        run_child([sys.executable, "-c", code], log=tmp_path / "log", environment=os.environ, folder=tmp_path)


def test_a_part_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    code = "import time; time.sleep(60)"
    with pytest.raises(ProcessFailed, match="no result after"):
        run_child([sys.executable, "-c", code], log=tmp_path / "log", environment=os.environ, folder=tmp_path, timeout_s=0.1)


async def test_part_and_its_children_are_ended_when_the_bench_exits(tmp_path: Path) -> None:
    code = (
        "import subprocess,sys,time; child=subprocess.Popen([sys.executable,'-c','import time; time.sleep(60)']);"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    log = tmp_path / "log"

    def leave_when_it_runs(_seconds: float, line: str) -> None:
        if line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_child([sys.executable, "-c", code], log=log, environment=os.environ, folder=tmp_path, on_line=leave_when_it_runs)
    child = int(last_line(log))
    await until(lambda: gone(child))


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_a_part_ends_when_the_bench_is_killed(tmp_path: Path) -> None:
    code = (
        "import os,sys; from pathlib import Path; from tools.bench.processes import run_child;"
        "run_child([sys.executable,'-c','import os,time; print(os.getpid(), flush=True); time.sleep(60)'],"
        "log=Path(sys.argv[1]), environment=os.environ, folder=Path('.'))"
    )
    log = tmp_path / "log"
    bench = subprocess.Popen([sys.executable, "-c", code, str(log)])
    try:
        await until(lambda: last_line(log))
        child = int(last_line(log))
    finally:
        bench.kill()
        bench.wait()
    await until(lambda: gone(child))


def gone(pid: int) -> bool:
    """No such process, or only its name is left."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# -- peers -------------------------------------------------------------------------------------------------------------------------


def test_batched_bench_counts_each_prompt_once_and_its_decodes_once() -> None:
    output = 'noise\n{"n_kv_max": 7168, "pp": 320, "tg": 127, "pl": 16, "t_pp": 0.5, "t_tg": 10.0, "speed": 1}\n'
    assert seconds_of(output, prefills=2) == 11.0
    with pytest.raises(ValueError, match="no measurement"):
        seconds_of("nothing", prefills=2)


# -- command line ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("play", "arguments", "names"),
    [
        (bench.main, ["tabel"], "tabel"),
        (table.main, ["--rows", "smal"], "smal"),
        (table.main, ["--rounds", "0"], "--rounds"),
        (table.main, ["--out", "{file}/out"], "--out {file}"),
        (table.main, ["--out", "{folder}", "--cache", "{file}/cache"], "--cache {file}"),
        (coordinator.main, ["--rows", "cals"], "cals"),
        (endpoint.main, ["--rounds", "0"], "--rounds"),
    ],
)
def test_wrong_use_is_refused_before_anything_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, play, arguments: list[str], names: str
) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # the command's handler of SIGTERM would outlive the test
    places = {"file": tmp_path / "file", "folder": tmp_path}
    places["file"].touch()
    try:
        code = command(lambda: play([each.format(**places) for each in arguments]))
    except SystemExit as end:
        code = end.code
    assert code == 2
    assert names.format(**places) in capsys.readouterr().err

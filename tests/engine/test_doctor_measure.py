"""`doctor --measure` on the bundled model: real numbers with units, a profile that is read back, and no leftovers of an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge.app.engines import installed, open_backend
from edge.app.settings import model_file
from edge.cli import doctor, main, measure
from edge.cli.doctor import llama_fault, trial_command
from edge.cli.measure import EngineRates, MachineMeasures
from edge.cli.settings import Settings
from edge.config.device_profile import MEASURED, Pick, pick_profile
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.clock import SystemClock
from edge.core.engines import ENGINES
from edge.core.machine import machine_facts
from edge.core.worker import EngineWorker
from edge.inference.batched import BatchedBackend
from edge.sizing import most_rows
from edge.training.floor import DeviceSpeed, ModelCost, StepWork, step_floor
from edge.training.memory import BatchAdvice
from tools.simulate.fleet.profiles import load_device

RATES = EngineRates(1.0, {1: 1.0}, 60.0, 288.0, sampled=False)
SMALL = [
    "learning.context_tokens=256",
    "engine.max_rows=3",
    "engine.threads=1",
    "learning.torch_threads=1",
    "learning.group_size=2",
]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the measurement, whose values do not matter here."""
    monkeypatch.setattr(measure, "POINT_S", 0.01)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, str, Path]:
    """JSON, progress and profile of one run of the command."""
    folder = tmp_path_factory.mktemp("doctor")
    profile, state = folder / "device.yaml", folder / "state"
    sets = [argument for text in SMALL for argument in ("--set", text)]
    command = ["doctor", "--measure", "--json", "--write-profile", str(profile), "--state", str(state), *sets]
    script = f"import edge.cli.measure as m; m.POINT_S = 0.01; from edge.cli import main; raise SystemExit(main({command!r}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not state.exists()
    return json.loads(done.stdout), done.stderr, profile


def test_every_measurement_is_present_with_its_unit(report: tuple[dict, str, Path]) -> None:
    result, progress, _ = report
    assert result["ok"] is True
    measured = result["measured"]
    for name in ("bandwidth_gb_per_s", "infer_gflop_per_s", "train_fp32_gflop_per_s", "train_bf16_gflop_per_s"):
        assert measured[name] > 0
    assert measured["dequantise_gweights_per_s"] > 0
    assert [rate["rows"] for rate in measured["decode"]] == [1, 3]
    assert result["all_rows_measured"] is True
    assert result["recommended"]["group_size"] == 2
    assert result["recommended"]["rows"] in (1, 3)
    assert "generation with 3 rows" in progress


def test_floor_equals_the_formula(report: tuple[dict, str, Path]) -> None:
    result, _, _ = report
    measured, advice, tasks, cost = result["measured"], result["recommended"], result["tasks"], ModelCost(**result["model"])
    decoded = 2e-9 * cost.weights * max(rate["tokens_per_s"] for rate in measured["decode"])
    reached = max(2e-9 * cost.block_weights * measured["prefill_tokens_per_s"], decoded)
    assert measured["infer_gflop_per_s"] == pytest.approx(reached, rel=1e-3)
    speed = DeviceSpeed(*(1e9 * measured[name] for name in ("bandwidth_gb_per_s", "infer_gflop_per_s", "train_fp32_gflop_per_s")))
    rows = min(advice["rows"], advice["prompts"] * 2)
    work = StepWork(advice["prompts"], 2, tasks["prompt_tokens"], tasks["response_tokens"], rows)
    assert result["floor"]["total_s"] == pytest.approx(step_floor(speed, cost, work).total_s)


def test_profile_is_used_by_run_and_simulation_on_the_matching_machine(report: tuple[dict, str, Path]) -> None:
    result, _, profile = report
    config = Settings(device_profile=profile).config()
    assert config.device.model_dump(mode="json") == result["measured"]
    advice = result["recommended"]
    assert (config.engine.max_rows, config.learning.prompts_per_step) == (advice["rows"], advice["prompts"])
    assert config.learning.memory.micro_batch_tokens == advice["micro_batch_tokens"]
    assert [path.name for path in profile.parent.iterdir()] == [profile.name]
    [row] = result["measured"]["speeds"]
    assert (row["model"], row["prefill_tokens_per_s"]) == ("nano-edge", result["measured"]["prefill_tokens_per_s"])
    assert load_device(str(profile)).training_tokens_per_s == row["training_tokens_per_s"] > 0
    assert result["measured"]["machine"] == machine_facts().fingerprint
    assert pick_profile([profile], profile.parent, machine_facts) == Pick(profile, MEASURED)
    lines = "\n".join(
        measure.measured_lines(MachineMeasures(config.device, ModelCost(**result["model"]), RATES, BatchAdvice(**advice), None))
    )
    assert "tokens/s" in lines and "floor of a step: not known" in lines


def test_an_interruption_leaves_nothing_behind(tmp_path: Path) -> None:
    profile, state = tmp_path / "device.yaml", tmp_path / "state"
    arguments = ["doctor", "--write-profile", str(profile), "--state", str(state), "--set", "engine.threads=1"]
    heard = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # in the background of a shell it is ignored
    )
    script = f"{heard}; from edge.cli import main; raise SystemExit(main({arguments!r}))"
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert any("generation with" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    rest = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in rest
    assert list(tmp_path.iterdir()) == []


def test_failed_check_is_reported_and_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "device.yaml"
    assert main(["doctor", "--write-profile", str(profile), "--model", str(tmp_path / "none.gguf")]) == 1
    assert "nothing was measured" in capsys.readouterr().err
    assert not profile.exists()


async def test_slow_machine_keeps_the_measurements_made_before_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SAMPLE_S", 0.0)
    monkeypatch.setattr(measure, "_SWEEP_S", 0.0)
    config = resolve(AgentConfig, sets=[*SMALL, "learning.max_tokens=77"]).config
    rates = await measure.engine_rates(config, model_file("nano-edge"), lambda stage: None, SystemClock())
    assert (rates.sampled, rates.response_tokens) == (False, 77), "a timeout counts as the longest allowed time"
    assert (list(rates.decode_tokens_per_s), rates.complete) == ([1], False)


async def test_onnx_engine_is_measured_like_the_others(tmp_path: Path) -> None:
    if not installed(ENGINES["onnx"]):
        pytest.skip("ONNX is not installed")
    sets = [*SMALL, "engine.backend=onnx", "learning.max_tokens=8", f"state_folder={tmp_path}"]
    config = resolve(AgentConfig, sets=sets).config
    rates = await measure.engine_rates(config, model_file("nano-edge"), lambda stage: None, SystemClock())
    assert list(rates.decode_tokens_per_s) == [1, 3]
    assert min(rates.prefill_tokens_per_s, *rates.decode_tokens_per_s.values()) > 0
    assert (rates.sampled, rates.response_tokens) == (True, 8)


@pytest.mark.parametrize("backend", ["llamacpp", "onnx"])
async def test_estimated_rows_equal_the_engines_rows(tmp_path: Path, backend: str) -> None:
    if backend == "onnx" and not installed(ENGINES["onnx"]):
        pytest.skip("ONNX is not installed")
    sets = [f"engine.backend={backend}", "learning.context_tokens=3000", f"state_folder={tmp_path}"]
    config, path, worker = resolve(AgentConfig, sets=sets).config, model_file("nano-edge"), EngineWorker()
    engine = await open_backend(config, path, worker)
    try:
        assert isinstance(engine, BatchedBackend)
        assert engine.rollout_rows == most_rows(config, path)
    finally:
        await engine.aclose()
        worker.close()


@pytest.mark.parametrize(
    ("offloads", "driver", "state"), [(True, True, "ok"), (False, True, "warn"), (True, False, "ok"), (False, False, "ok")]
)
def test_doctor_reports_an_unused_graphics_processor(
    monkeypatch: pytest.MonkeyPatch, offloads: bool, driver: bool, state: str
) -> None:
    monkeypatch.setattr("edge.inference.gguf_model.llama_offloads", lambda: offloads)
    monkeypatch.setattr("edge.core.machine.nvidia_driver", lambda: driver)
    finding = doctor.check_graphics()
    assert finding.state == state
    assert ("GGML_CUDA" in finding.hint) == (state == "warn")


def test_installed_llama_cpp_decodes_in_a_separate_process() -> None:
    assert llama_fault() == ("", False)
    fault, crashed = llama_fault(lambda: [*trial_command()[:-1], "/no/such/model.gguf"])
    assert ("does not decode: " in fault, crashed) == (True, False)

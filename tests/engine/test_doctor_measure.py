"""`doctor --measure` on the bundled model: real numbers with units, a profile that is read back, and nothing left of an interruption."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edge.app import installed, model_file, open_backend
from edge.cli import doctor, main, measure
from edge.cli.doctor import llama_fault, trial_command
from edge.cli.settings import Settings
from edge.config.device_profile import MEASURED, Pick, pick_profile
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.clock import SystemClock
from edge.core.engines import ENGINES
from edge.core.errors import EdgeError, UsageError
from edge.core.install import install_extra
from edge.core.machine import machine_facts, nvidia_driver
from edge.core.worker import EngineWorker
from edge.inference.batched import BatchedBackend
from edge.sizing import most_rows
from edge.state.folder import StateFolder
from edge.testing.clock import ManualClock
from edge.training.device import fastest, product_flop_per_s, read_bytes_per_s
from edge.training.floor import StepWork, step_floor
from tests.unit.test_console import step as finished_step
from tools.simulate.fleet.profiles import load_device

SMALL = ["model.context_tokens=256", "engine.max_rows=3", "engine.threads=1", "learning.torch_threads=1", "learning.group_size=2"]


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured is not the point here."""
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


def test_every_number_is_there_and_carries_its_unit(report: tuple[dict, str, Path]) -> None:
    told, progress, _ = report
    assert told["ok"] is True
    measured = told["measured"]
    for name in ("bandwidth_gb_per_s", "infer_gflop_per_s", "train_fp32_gflop_per_s", "train_bf16_gflop_per_s"):
        assert measured[name] > 0
    assert measured["dequantise_gweights_per_s"] > 0
    assert [rate["rows"] for rate in measured["decode"]] == [1, 3]
    assert told["all_rows_measured"] is True
    assert told["recommended"]["group_size"] == 2
    assert told["recommended"]["rows"] in (1, 3)
    for stage in ("memory bandwidth", "fp32 products", "generation with 3 rows", "training tokens/s"):
        assert f"measuring {stage} ..." in progress


def test_the_speed_of_inference_and_the_floor_are_those_of_the_formula(report: tuple[dict, str, Path]) -> None:
    told, _, _ = report
    measured, model, advice, tasks = told["measured"], told["model"], told["recommended"], told["tasks"]
    assert measured["infer_gflop_per_s"] == pytest.approx(
        2e-9 * model["block_weights"] * measured["prefill_tokens_per_s"], rel=1e-3
    )
    assert tasks["prompt_tokens"] > 10
    from edge.training.floor import DeviceSpeed, ModelCost

    speed = DeviceSpeed(*(1e9 * measured[name] for name in ("bandwidth_gb_per_s", "infer_gflop_per_s", "train_fp32_gflop_per_s")))
    rows = min(advice["rows"], advice["prompts"] * 2)
    work = StepWork(advice["prompts"], 2, tasks["prompt_tokens"], tasks["response_tokens"], rows)
    assert model["block_weights"] < model["weights"]
    cost = ModelCost(**model)
    assert told["floor"]["total_s"] == pytest.approx(step_floor(speed, cost, work).total_s)


def test_the_profile_is_what_run_reads(report: tuple[dict, str, Path]) -> None:
    told, _, profile = report
    config = Settings(device_profile=profile).config()
    assert config.device.model_dump(mode="json") == told["measured"]
    advice = told["recommended"]
    assert (config.engine.max_rows, config.learning.prompts_per_step) == (advice["rows"], advice["prompts"])
    assert config.learning.micro_batch_tokens == advice["micro_batch_tokens"]
    assert [path.name for path in profile.parent.iterdir()] == [profile.name]


def test_the_profile_has_a_row_that_a_simulation_reads_and_the_machine_it_holds_for(report: tuple[dict, str, Path]) -> None:
    told, _, profile = report
    [row] = told["measured"]["speeds"]
    assert row["model"] == "nano-edge"
    assert (row["prefill_tokens_per_s"], row["decode"]) == (told["measured"]["prefill_tokens_per_s"], told["measured"]["decode"])
    assert row["training_tokens_per_s"] > 0
    assert told["measured"]["machine"] == machine_facts().fingerprint
    assert load_device(str(profile)).training_tokens_per_s == row["training_tokens_per_s"]
    assert pick_profile([profile], profile.parent, machine_facts) == Pick(profile, MEASURED)


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


@pytest.mark.parametrize(("load", "told"), [(100.0, True), (0.0, False)])
def test_a_busy_machine_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], load: float, told: bool
) -> None:
    monkeypatch.setattr(doctor, "busy_cores", lambda config: load)
    monkeypatch.setattr(measure, "measure", lambda config, say: say("nothing"))
    doctor._measured(AgentConfig(), None)
    assert ("this machine is busy" in capsys.readouterr().err) == told


def test_a_failed_check_is_told_and_nothing_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    profile = tmp_path / "device.yaml"
    assert main(["doctor", "--write-profile", str(profile), "--model", str(tmp_path / "none.gguf")]) == 1
    assert "nothing was measured" in capsys.readouterr().err
    assert not profile.exists()


def test_lines_for_people_name_units_and_say_what_was_not_measured(report: tuple[dict, str, Path]) -> None:
    told, _, profile = report
    from edge.training.floor import ModelCost
    from edge.training.memory import BatchAdvice

    device = Settings(device_profile=profile).config().device
    rates = measure.EngineRates(1.0, {1: 1.0}, 60.0, 288.0, sampled=False)
    measured = measure.Measured(
        device.model_copy(update={"bandwidth_gb_per_s": None}),
        ModelCost(2_000_000, 1_500_000, 1.06, 96.0),
        rates,
        BatchAdvice(**told["recommended"]),
        None,
        measure.LastSteps(50, 2.0, 0.6, 0.35, 0.05, 2.7),
    )
    text = "\n".join(measure.measured_lines(measured))
    assert "50 steps" in text and "rollout 60.0 %, update 35.0 %, tail 5.0 %" in text and "2.7 times" in text
    assert "2.0 M weights of 1.06 bytes" in text
    assert "memory bandwidth     not measured" in text
    assert "floor of a step: not known" in text
    assert "tokens/s" in text
    assert "GFLOP/s" in text


def test_the_last_steps_of_a_folder_are_shared_out_among_their_parts(tmp_path: Path) -> None:
    assert measure.last_steps(tmp_path / "none") is None
    with StateFolder(tmp_path) as state, state.database:
        for number in (1, 2):
            event = finished_step(number)
            state.database.execute("INSERT INTO steps VALUES (?, ?, ?, ?)", (number, "math", number, json.dumps(event.to_json())))
    found = measure.last_steps(tmp_path)
    parts = finished_step(1).time.seconds_by_part
    assert found is not None and found.steps == 2
    assert found.rollout == pytest.approx(parts.rollout / finished_step(1).time.seconds)
    assert found.rollout + found.update + found.tail == pytest.approx(1.0)


async def test_answers_that_take_too_long_count_as_the_longest_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SAMPLE_S", 0.0)
    config = resolve(AgentConfig, sets=[*SMALL, "learning.max_tokens=77"]).config
    rates = await measure.engine_rates(config, model_file("nano-edge"), lambda stage: None, SystemClock())
    assert (rates.sampled, rates.response_tokens) == (False, 77)


async def test_a_slow_machine_keeps_what_was_measured_until_time_was_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_SWEEP_S", 0.0)
    config = resolve(AgentConfig, sets=SMALL).config
    rates = await measure.engine_rates(config, model_file("nano-edge"), lambda stage: None, SystemClock())
    assert (list(rates.decode_tokens_per_s), rates.complete) == ([1], False)


async def test_the_onnx_engine_is_measured_as_the_others_are(tmp_path: Path) -> None:
    if not installed(ENGINES["onnx"]):
        pytest.skip("ONNX is not installed")
    sets = [*SMALL, "engine.backend=onnx", "learning.max_tokens=8", f"state_folder={tmp_path}"]
    config = resolve(AgentConfig, sets=sets).config
    rates = await measure.engine_rates(config, model_file("nano-edge"), lambda stage: None, SystemClock())
    assert list(rates.decode_tokens_per_s) == [1, 3]
    assert min(rates.prefill_tokens_per_s, *rates.decode_tokens_per_s.values()) > 0
    assert (rates.sampled, rates.response_tokens) == (True, 8)


@pytest.mark.parametrize("backend", ["llamacpp", "onnx"])
async def test_rows_on_paper_are_those_of_the_engine(tmp_path: Path, backend: str) -> None:
    if backend == "onnx" and not installed(ENGINES["onnx"]):
        pytest.skip("ONNX is not installed")
    sets = [f"engine.backend={backend}", "model.context_tokens=3000", f"state_folder={tmp_path}"]
    config, path, worker = resolve(AgentConfig, sets=sets).config, model_file("nano-edge"), EngineWorker()
    engine = await open_backend(config, path, worker)
    try:
        assert isinstance(engine, BatchedBackend)
        assert engine.rollout_rows == most_rows(config, path)
    finally:
        await engine.aclose()
        worker.close()


async def test_feeding_decodes_in_all_rows_and_refuses_what_does_not_fit() -> None:
    config = resolve(AgentConfig, sets=SMALL).config
    worker = EngineWorker()
    backend = await open_backend(config, model_file("nano-edge"), worker)
    try:
        assert isinstance(backend, BatchedBackend)
        widths: list[int] = []
        decode = backend._engine.decode
        backend._engine.decode = lambda tokens, positions: widths.append(len(tokens)) or decode(tokens, positions)  # type: ignore[method-assign]
        await backend.feed([1, 2, 3], [4, 5, 6, 7], 3)
        assert widths == [3, 3, 3]  # the first of four tokens comes from the prompt
        for prompt, tokens in (([], [1]), ([1], []), ([1] * 200, [1] * 200)):
            with pytest.raises(UsageError):
                await backend.feed(prompt, tokens, 1)
    finally:
        await backend.aclose()
        worker.close()
    with pytest.raises(EdgeError):
        await backend.feed([1], [1], 1)


def test_the_fastest_repetition_counts_and_one_slow_call_is_enough() -> None:
    clock = ManualClock()
    durations = iter([3.0, 1.0, 2.0])
    assert fastest(lambda: clock.advance(next(durations)), clock, seconds=5.0) == 1.0
    slow = ManualClock()
    assert fastest(lambda: slow.advance(9.0), slow, seconds=0.5) == 9.0


def test_rates_are_what_was_read_and_computed_by_the_seconds_it_took() -> None:
    import torch

    class Ticking(ManualClock):
        """A quarter of a second between two looks."""

        def monotonic(self) -> float:
            self.advance(0.25)
            return super().monotonic()

    assert read_bytes_per_s(Ticking(), 0.1, buffer_bytes=4000) == 4000 / 0.25
    rate = product_flop_per_s([(3, 5), (3, 5), (5, 2)], 7, torch.float32, Ticking(), 0.1)
    assert rate == pytest.approx(2 * 7 * (15 + 15 + 10) / (3 * 0.25))


def test_the_doctor_tells_versions_of_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {"llama-cpp-python": "9.9", "onnxruntime": "8.8"}
    monkeypatch.setattr(doctor, "_version", versions.get)
    found = {finding.name: finding.text for finding in doctor.check_backends()}
    assert found["llama.cpp"] == "llama-cpp-python 9.9"
    assert found["ONNX"] == "onnxruntime 8.8"
    assert found["torch"] == f"not installed ({install_extra('train')})"


@pytest.mark.parametrize(
    ("offloads", "driver", "state", "hint"),
    [(True, True, "ok", ""), (False, True, "warn", "GGML_CUDA"), (True, False, "ok", ""), (False, False, "ok", "")],
)
def test_the_doctor_says_when_a_graphics_processor_lies_idle(
    monkeypatch: pytest.MonkeyPatch, offloads: bool, driver: bool, state: str, hint: str
) -> None:
    monkeypatch.setattr("edge.inference.gguf_model.llama_offloads", lambda: offloads)
    monkeypatch.setattr("edge.core.machine.nvidia_driver", lambda: driver)
    finding = doctor.check_graphics()
    assert finding.state == state
    assert hint in finding.hint
    assert ("serves on it" in finding.text) == offloads


def test_an_nvidia_driver_is_seen_by_its_files(tmp_path: Path) -> None:
    assert not nvidia_driver(tmp_path)
    (tmp_path / "proc/driver/nvidia").mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/version").write_text("NVRM")
    assert nvidia_driver(tmp_path)


def test_the_installed_llama_cpp_decodes_in_a_process_of_its_own() -> None:
    assert llama_fault() == ("", False)
    fault, crashed = llama_fault(lambda: [*trial_command()[:-1], "/no/such/model.gguf"])
    assert ("does not decode: " in fault, crashed) == (True, False)

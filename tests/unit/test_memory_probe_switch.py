"""When the longest micro-batch is probed before learning, and its size: the configuration's limits with the model's own sizes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from edge.app.engines import probe_memory
from edge.app.settings import model_file
from edge.config.loader import resolve
from edge.config.schema import AgentConfig
from edge.core.errors import EdgeError, ModelFileError
from edge.core.types import TrainingGroup
from edge.sizing import device_speed, model_cost, model_shape, most_rows, probe_plan, step_measure
from edge.training.floor import PASSES, PASSES_WITH_CHECKPOINTING
from edge.training.memory import OutOfMemory, ProbePlan, TrainingSetting, does_not_fit, make_fit, memory_need, worst_micro_batch

MODEL = model_file("nano-edge")


class Recorder:
    """A learner that only records its probes, and runs out of memory unless it recomputes, if so configured."""

    def __init__(self, short: bool = False) -> None:
        self.tried: list[Sequence[TrainingGroup]] = []
        self.ways: list[bool] = []
        self.short = short

    @property
    def checkpointing(self) -> bool:
        return self.ways[-1]

    def use_checkpointing(self, on: bool) -> None:
        self.ways.append(on)

    async def probe(self, groups: Sequence[TrainingGroup]) -> None:
        self.tried.append(groups)
        if self.short and not self.checkpointing:
            raise does_not_fit("it was tried")


def config(*sets: str) -> AgentConfig:
    return resolve(AgentConfig, sets=["engine.backend=llamacpp", "learning.context_tokens=128", *sets]).config


async def tried(monkeypatch: pytest.MonkeyPatch, free_mib: int, *sets: str) -> list[Sequence[TrainingGroup]]:
    monkeypatch.setattr("edge.models.weights.available_memory", lambda: free_mib << 20)
    learner = Recorder()
    await probe_memory(config("engine.weights=resident", *sets), MODEL, learner)
    return learner.tried


@pytest.mark.parametrize(
    ("setting", "free_mib", "times"), [("auto", 100_000, 0), ("auto", 800, 1), ("on", 100_000, 1), ("off", 1, 0)]
)
async def test_probe_runs_where_the_fit_is_uncertain(
    monkeypatch: pytest.MonkeyPatch, setting: str, free_mib: int, times: int
) -> None:
    assert len(await tried(monkeypatch, free_mib, f"learning.memory.memory_probe={setting}")) == times


@pytest.mark.parametrize(("setting", "ways"), [("auto", [False, True]), ("on", [True]), ("off", [False])])
async def test_activations_are_computed_again_only_where_they_do_not_fit_otherwise(
    monkeypatch: pytest.MonkeyPatch, setting: str, ways: list[bool]
) -> None:
    monkeypatch.setattr("edge.models.weights.available_memory", lambda: 100_000 << 20)
    learner = Recorder(short=True)
    chosen = config(
        "learning.memory.memory_probe=on", f"learning.memory.gradient_checkpointing={setting}", "engine.weights=resident"
    )
    if setting == "off":
        with pytest.raises(OutOfMemory, match="it was tried"):
            await probe_memory(chosen, MODEL, learner)
    else:
        await probe_memory(chosen, MODEL, learner)
    assert learner.ways == ways


async def test_configuration_that_fits_only_with_recomputation_is_not_probed_without(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = probe_plan(config("engine.weights=resident", "learning.memory.micro_batch_tokens=8192"), MODEL, estimated=True)
    kept, again = (_missing(replace(plan.setting, checkpointing=on), plan) for on in (False, True))
    assert again < kept
    learner = Recorder()
    await make_fit(learner, plan, lambda: (kept + again) // 2)
    assert (learner.ways, len(learner.tried)) == ([False, True], 1)


def _missing(setting: TrainingSetting, plan: ProbePlan) -> int:
    worst = worst_micro_batch(plan.shape, plan.limits, setting)
    return memory_need(plan.shape, worst, setting).total - plan.held_bytes


async def test_without_an_estimate_one_mode_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = Recorder(short=True)
    with pytest.raises(OutOfMemory):
        await make_fit(learner, probe_plan(config(), MODEL, estimated=False), lambda: 1)
    assert (learner.ways, len(learner.tried)) == ([False], 1)
    roomy = Recorder(short=True)
    await make_fit(roomy, probe_plan(config(), MODEL, estimated=False), lambda: 1 << 50)
    assert (roomy.ways, roomy.tried) == ([False], [])


def test_bare_on_or_off_is_read_as_text(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("learning: {memory: {gradient_checkpointing: on, memory_probe: off}}")
    learning = resolve(AgentConfig, files=[tmp_path / "config.yaml"]).config.learning
    assert (learning.memory.gradient_checkpointing, learning.memory.memory_probe) == ("on", "off")


async def test_probe_fills_the_context(monkeypatch: pytest.MonkeyPatch) -> None:
    (groups,) = await tried(monkeypatch, 100_000, "learning.memory.memory_probe=on", "learning.memory.micro_batch_tokens=200")
    lengths = {len(group.prompt_ids) + len(sample.token_ids) for group in groups for sample in group.samples}
    assert lengths == {128}


async def test_too_little_memory_is_refused_before_probing(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(EdgeError, match="does not fit in memory"):
        await tried(monkeypatch, 1)


def test_fewer_rows_stay_float32_and_are_budgeted_as_such() -> None:
    def of(engine: str, rows: int) -> AgentConfig:
        return config(
            "learning.context_tokens=1000", "engine.weights=resident", f"engine.backend={engine}", f"engine.max_rows={rows}"
        )

    assert most_rows(of("onnx", 0), MODEL) < most_rows(of("llamacpp", 0), MODEL)
    half, single = (probe_plan(of(engine, 4), MODEL, estimated=True).held_bytes for engine in ("llamacpp", "onnx"))
    assert single - half == 4 * 1000 * model_shape(MODEL).kv_bytes_per_token


def test_the_floor_needs_bandwidth_and_both_speeds() -> None:
    full = ["device.bandwidth_gb_per_s=10", "device.infer_gflop_per_s=50", "device.train_fp32_gflop_per_s=80"]
    measure = step_measure(config(*full), MODEL)
    assert measure is not None
    assert (measure.device.bytes_per_s, measure.device.infer_flop_per_s, measure.device.train_flop_per_s) == (10e9, 50e9, 80e9)
    again = step_measure(config(*full), MODEL, checkpointing=True)
    assert (measure.passes, again and again.passes) == (PASSES, PASSES_WITH_CHECKPOINTING)
    both = device_speed(config(*full, "device.train_bf16_gflop_per_s=300").device, bf16=True)
    assert both and both.train_flop_per_s == 300e9, "of the type that training computes in"
    for missing in range(3):
        assert step_measure(config(*full[:missing], *full[missing + 1 :]), MODEL) is None


def test_model_costs_are_read_from_its_file() -> None:
    shape, cost = model_shape(MODEL), model_cost(MODEL)
    assert 0.99 * shape.parameters < cost.weights < shape.parameters, "norms and biases do not count, the tied output once"
    assert cost.weights - cost.block_weights == shape.vocab_size * shape.width
    assert 1.0 < cost.bytes_per_weight < 1.2  # Q8_0: 34 bytes for 32 weights
    assert cost.kv_bytes_per_token == 4 * shape.layers * shape.kv_heads * shape.head_dim


def test_a_folder_is_sized_by_its_configuration_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    text = (
        '{"model_type": "llama", "max_position_embeddings": 64, "rms_norm_eps": 1e-6, "hidden_size": 8, "num_hidden_layers": 2, '
        '"num_attention_heads": 4, "num_key_value_heads": 2, '
        '"vocab_size": 50, "intermediate_size": 16, "tie_word_embeddings": true}'
    )
    (tmp_path / "config.json").write_text(text)
    assert model_shape(tmp_path).parameters == 2 * (2 * 8 * 8 + 2 * 8 * 4 + 3 * 8 * 16 + 2 * 8) + 8 + 50 * 8
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match=r"config\.json"):
        model_shape(tmp_path)

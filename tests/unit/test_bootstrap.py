"""The choice of the serving and training engine, by configuration, packages, machine and model format; what else is built from the
configuration."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from edge.app import engines, openers, settings
from edge.app.agents import build_agent
from edge.app.judging import build_verifier
from edge.app.settings import model_file
from edge.cli import doctor
from edge.config.agent import resolve_agent_config
from edge.config.schema import AgentConfig, EngineConfig, LearningConfig, ObjectiveConfig, ProgramsConfig
from edge.core.engines import ENGINES, EngineInfo
from edge.core.errors import ConfigError, ModelFileError, UsageError
from edge.core.events import FanOutSink
from edge.core.types import AnswerKind, Message, PromptGroup, Sampling, TaskItem, TrainingGroup, TrainingSample
from edge.core.worker import EngineWorker
from edge.testing.learner import ScriptedLearner
from edge.training.learner import Learner

FILE = Path("model.gguf")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    def make(*, apple: bool, missing: str = "") -> None:
        monkeypatch.setattr(engines, "apple_silicon", lambda: apple)
        monkeypatch.setattr(engines, "installed", lambda engine: engine.name != missing)

    return make


def config(backend: str) -> AgentConfig:
    return AgentConfig(engine=EngineConfig(backend=backend))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("apple", "missing", "backend", "folder", "chosen"),
    [
        (True, "", "auto", False, "mlx"),
        (True, "mlx", "auto", False, "llamacpp"),
        (False, "", "auto", False, "llamacpp"),
        (False, "", "auto", True, "mlx"),  # the one that reads folders
        (True, "", "llamacpp", False, "llamacpp"),
        (False, "", "mlx", False, "mlx"),
        (False, "", "onnx", False, "onnx"),
    ],
)
def test_configured_engine_is_used_and_auto_is_mlx_on_apple_silicon_where_installed(
    machine, apple: bool, missing: str, backend: str, folder: bool, chosen: str, tmp_path: Path
) -> None:
    machine(apple=apple, missing=missing)
    assert engines.choose_engine(config(backend), tmp_path if folder else FILE).name == chosen


@pytest.mark.parametrize(
    ("missing", "backend", "folder", "message", "hint"),
    [
        ("", "llamacpp", True, "GGUF", ""),
        ("", "onnx", True, "GGUF", ""),
        ("mlx", "mlx", False, "MLX is not installed", ".[mlx]"),
        ("mlx", "auto", True, "MLX is not installed", ".[mlx]"),
        ("onnx", "onnx", False, "ONNX is not installed", ".[onnx]"),
    ],
)
def test_unusable_engine_is_refused_with_advice(
    machine, missing: str, backend: str, folder: bool, message: str, hint: str, tmp_path: Path
) -> None:
    machine(apple=True, missing=missing)
    with pytest.raises(UsageError, match=message) as caught:
        engines.choose_engine(config(backend), tmp_path if folder else FILE)
    assert hint in (caught.value.hint or "")


ABACUS = EngineInfo(
    "abacus",
    "Abacus",
    "the abacus serves and trains",
    "abacus",
    "abacus",
    open_backend=f"{__name__}:abacus_backend",
    open_learner=f"{__name__}:abacus_learner",
    reads_folders=True,
)


def abacus_backend(config: AgentConfig, path: Path, worker: EngineWorker, weights: openers.SharedWeights, rows: int | None):
    return "backend", path, weights.get(lambda path: ["beads of", path]), rows


def abacus_learner(config: AgentConfig, path: Path, worker: EngineWorker, weights: openers.SharedWeights) -> ScriptedLearner:
    assert weights.get(lambda path: ["other beads of", path]) == ["beads of", path]
    return ScriptedLearner()


async def test_one_table_row_is_all_that_an_engine_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(ENGINES, "abacus", ABACUS)  # type: ignore[arg-type]
    monkeypatch.setattr("edge.app.engines.probe_memory", _nothing_to_probe)
    engine = EngineConfig(max_rows=3).model_copy(update={"backend": "abacus"})
    chosen, weights = AgentConfig().model_copy(update={"engine": engine}), openers.SharedWeights(tmp_path)
    worker = EngineWorker()
    assert engines.choose_engine(chosen, tmp_path) is ABACUS
    assert doctor.check_engine(chosen).text == ABACUS.about
    backend = await engines.open_backend(chosen, tmp_path, worker, weights)
    assert backend == ("backend", tmp_path, ["beads of", tmp_path], 3)
    assert isinstance(await engines.open_learner(chosen, tmp_path, worker, weights), ScriptedLearner)
    monkeypatch.setattr(engines, "installed", lambda engine: engine is not ABACUS)
    with pytest.raises(UsageError, match="Abacus is not installed") as caught:
        engines.choose_engine(chosen, FILE)
    assert ".[abacus]" in caught.value.hint
    worker.close()


async def _nothing_to_probe(*_: object) -> None:
    return None


@pytest.mark.parametrize(
    ("apple", "missing", "backend", "state", "words"),
    [
        (True, "", "auto", "ok", "MLX"),
        (True, "mlx", "auto", "warn", "MLX"),
        (False, "mlx", "auto", "ok", "llama.cpp"),
        (False, "mlx", "mlx", "fail", "MLX"),
    ],
)
def test_doctor_names_the_engine(machine, apple: bool, missing: str, backend: str, state: str, words: str) -> None:
    machine(apple=apple, missing=missing)
    finding = doctor.check_engine(config(backend))
    assert (finding.state, words in finding.text) == (state, True)
    assert (state == "ok") != (".[mlx]" in finding.hint)


def test_the_doctor_fails_an_onnx_runtime_that_cannot_be_loaded(machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine(apple=False)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # type: ignore[arg-type]
    finding = doctor.check_engine(config("onnx"))
    assert (finding.state, ".[onnx]" in finding.hint) == ("fail", True)


ASKED = [Message("user", "What is 2 + 3?")], Sampling(max_tokens=4), [1, 2]


async def update_gap(learner: Learner, group: PromptGroup) -> float:
    """An update with two responses of a group; returns how far the learner's log-probabilities are from the sampler's."""
    samples = [
        TrainingSample(response.token_ids, response.logprobs, advantage)
        for response, advantage in zip(group.responses, (0.5, -0.5), strict=True)
    ]
    report = await learner.update([TrainingGroup(group.prompt_ids, tuple(samples), 1.0)])
    assert report.skipped == ""
    return report.mean_abs_logprob_diff


async def test_mlx_serves_and_trains_on_one_copy_of_the_weights(tmp_path: Path) -> None:
    if not engines.installed(ENGINES["mlx"]):
        pytest.skip("MLX is not installed: it has wheels for Apple silicon and Linux only")
    from edge.inference.mlx_backend import MlxBackend
    from edge.training.mlx_learner import MlxLearner

    chosen = AgentConfig(engine=EngineConfig(backend="mlx", max_rows=2), learning=LearningConfig(context_tokens=128))
    path = settings.model_file(chosen.model.path)
    worker, weights = EngineWorker(), openers.SharedWeights(path)
    backend = await engines.open_backend(chosen, path, worker, weights)
    learner = await engines.open_learner(chosen, path, worker, weights)
    assert isinstance(backend, MlxBackend)
    assert isinstance(learner, MlxLearner)
    served, trained = backend._engine._decoder, learner._decoder  # type: ignore[attr-defined]
    assert served.module.model.layers[0].mlp.up_proj.weight is trained.module.model.layers[0].mlp.up_proj.base.weight
    assert (
        await update_gap(learner, await backend.sample_group(*ASKED)) < 1e-4
    )  # the sampler's log-probabilities are the trainer's
    adapter = await learner.export(tmp_path / "v1", 1)
    assert (tmp_path / "v1" / "adapter.gguf").stat().st_size > 0
    await backend.swap_adapter(adapter)
    assert backend.adapter_version == 1
    await backend.aclose()
    worker.close()


async def test_onnx_serves_what_torch_trains_and_rolls_out_in_one_session(tmp_path: Path) -> None:
    if not engines.installed(ENGINES["onnx"]):
        pytest.skip("ONNX Runtime is not installed")
    from edge.inference.onnx_backend import OnnxBackend
    from edge.training.torch_learner import TorchLearner

    state = tmp_path / "state"
    engine = EngineConfig(backend="onnx", max_rows=2, threads=1)
    chosen = AgentConfig(engine=engine, learning=LearningConfig(context_tokens=128), state_folder=str(state))
    path = settings.model_file(chosen.model.path)
    worker, weights = EngineWorker(), openers.SharedWeights(path)
    backend = await engines.open_backend(chosen, path, worker, weights, serves_only=True)
    (graph,) = (state / "onnx").iterdir()
    made = graph.stat().st_mtime_ns
    rollouts = await engines.open_rollouts(chosen, backend)
    learner = await engines.open_learner(chosen, path, worker, weights)
    assert isinstance(backend, OnnxBackend)
    assert isinstance(rollouts, OnnxBackend)
    assert isinstance(learner, TorchLearner)
    assert rollouts._model.graph is backend._model.graph
    group = await rollouts.sample_group(*ASKED)
    assert await backend.sample_group(*ASKED) == group
    assert await update_gap(learner, group) < 1e-3  # the same float32 weights on both sides
    await rollouts.swap_adapter(await learner.export(tmp_path / "v1", 1))
    assert (backend.adapter_version, rollouts.adapter_version) == (0, 1)
    assert await backend.sample_group(*ASKED) == group
    await rollouts.aclose()
    assert await backend.sample_group(*ASKED) == group
    await backend.aclose()
    again = await engines.open_backend(chosen, path, worker, weights)
    assert [file.stat().st_mtime_ns for file in (state / "onnx").iterdir()] == [made]
    await again.aclose()
    worker.close()


PROGRAM = TaskItem("p", "code", "f", 1, "train", "q", "assert f() == 1", AnswerKind.PROGRAM, 6)
FRACTION = TaskItem("m", "math", "f", 1, "train", "q", "0.5", AnswerKind.MATH, 4)


ABSENT = ProgramsConfig(sandbox="bubblewrap" if sys.platform == "darwin" else "sandbox-exec")
"""A sandbox that this platform cannot have."""


def test_measuring_and_learning_use_the_configured_sandbox(tmp_path: Path) -> None:
    config = AgentConfig(state_folder=str(tmp_path), mode="local-only", programs=ABSENT)
    for verifier in (build_verifier(config), build_agent(config, FanOutSink([])).components.verifier):
        with pytest.raises(UsageError, match="sandbox"):
            verifier.is_correct(PROGRAM, "```python\ndef f():\n    return 1\n```")


@pytest.mark.parametrize("key", ["api_key_env=NOT_SET_HERE", "api_key=env:NOT_SET_HERE"])
def test_unset_key_is_reported_before_anything_starts_where_a_cloud_may_be_asked(tmp_path: Path, key: str) -> None:
    cloud = ["upstream=openai_compatible", "base_url=https://example.org/v1", "model=m", key]
    sets = [f"state_folder={tmp_path}", *(f"coordinator.embedded.{setting}" for setting in cloud)]
    with pytest.raises(ConfigError, match="NOT_SET_HERE is not set"):
        build_agent(resolve_agent_config(sets=sets).config, FanOutSink([]))
    build_agent(resolve_agent_config(sets=[*sets, "mode=local-only"]).config, FanOutSink([])).components.state.close()


@pytest.mark.parametrize(("match", "right"), [("exact", False), ("equivalent", True)])
def test_configured_math_comparison_is_used(match: str, right: bool) -> None:
    pytest.importorskip("math_verify", reason="math-verify comes with the lab extra")
    verifier = build_verifier(AgentConfig(learning=LearningConfig(objective=ObjectiveConfig(answer_match=match))))  # type: ignore[arg-type]
    assert verifier.is_correct(FRACTION, "\\boxed{\\frac{1}{2}}") is right


@pytest.mark.parametrize("name", ["a" * 5000, "~nobody-of-that-name/x.gguf", "x\0y"])
def test_impossible_model_name_is_refused_in_one_short_line(name: str) -> None:
    with pytest.raises(ModelFileError, match="no such model file") as refusal:
        model_file(name)
    assert len(str(refusal.value)) < 200

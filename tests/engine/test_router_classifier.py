"""The router baseline: fitted, exported to ONNX, and run by ONNX Runtime at its calibrated rate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from edge.core.engines import CPU, choose_providers
from edge.core.errors import ModelFileError, UsageError
from edge.core.rng import stream
from edge.core.types import AnswerKind, FinishReason, LocalResponse, TaskItem
from edge.routing.classifier import FEATURES, Logistic, ThresholdRouter, export, features, fit, threshold_for


def item(question: str) -> TaskItem:
    return TaskItem("1", "math", "arith", 1, "test", question, "5", AnswerKind.MATH, 4)


def response(surprise: float, odds: float | None = -1.0) -> LocalResponse:
    return LocalResponse("text", (1, 2, 3), (-surprise, -0.1, -0.2), FinishReason.EOS, help_log_odds=odds)


def labelled(count: int, seed: int) -> tuple[list[tuple[TaskItem, LocalResponse]], np.ndarray]:
    """Questions about pears mostly fail, and so do surprised responses."""
    draw = stream(seed, "router")
    pairs, failed = [], []
    for _ in range(count):
        hard, surprise = draw.random() < 0.4, draw.random() * 3
        pairs.append((item(f"How many {'pears' if hard else 'apples'} are {draw.randrange(99)} and 4?"), response(surprise)))
        failed.append(draw.random() < 1 / (1 + np.exp(-(4 * hard + 2 * surprise - 5))))
    return pairs, np.array(failed)


def rows(pairs: list[tuple[TaskItem, LocalResponse]]) -> np.ndarray:
    return np.array([features(*pair) for pair in pairs])


@pytest.fixture(scope="module")
def trained() -> Logistic:
    pairs, failed = labelled(600, 1)
    return fit(rows(pairs), failed)


def test_useless_training_data_is_refused_and_ties_round_towards_fewer_requests() -> None:
    assert threshold_for(np.array([0.5, 0.5, 0.5, 0.1]), 0.5) == 0.5
    with pytest.raises(UsageError):
        threshold_for(np.array([0.5]), 1.5)
    with pytest.raises(UsageError, match="failed"):
        fit(np.zeros((5, FEATURES)), np.ones(5, dtype=bool))


def test_classifier_separates_failures_from_successes(trained: Logistic) -> None:
    pairs, failed = labelled(400, 2)
    p = trained.probabilities(rows(pairs))
    ranks = p[failed][:, None] > p[~failed][None, :]
    assert ranks.mean() > 0.85


@pytest.mark.parametrize("rate", [0.0, 0.1, 0.3, 1.0])
def test_exported_router_asks_at_its_calibrated_rate(trained: Logistic, tmp_path: Path, rate: float) -> None:
    pairs, _ = labelled(200, 3)
    p = trained.probabilities(rows(pairs))
    export(trained, threshold_for(p, rate), tmp_path / "router.onnx")
    router = ThresholdRouter(tmp_path / "router.onnx")
    assert [router.probability(*pair) for pair in pairs[:20]] == pytest.approx(p[:20].tolist(), abs=1e-5)
    assert sum(router.wants_cloud(*pair) for pair in pairs) == pytest.approx(rate * 200, abs=2)
    assert [path.name for path in tmp_path.iterdir()] == ["router.onnx"]


def test_a_response_without_a_decision_has_features_too() -> None:
    reached, not_reached = features(item("2 + 3?"), response(1.0)), features(item("2 + 3?"), response(1.0, None))
    assert len(reached) == len(not_reached) == FEATURES
    assert (reached[:2], not_reached[:2]) == ([-1.0, 1.0], [0.0, 0.0])
    assert features(item("7 + 11?"), response(1.0))[6:] == reached[6:]
    assert all(np.isfinite(features(item(""), LocalResponse("", (), (), FinishReason.EOS))))


def test_files_that_are_no_router_are_refused(trained: Logistic, tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="no such router"):
        ThresholdRouter(tmp_path / "missing.onnx")
    (tmp_path / "junk.onnx").write_bytes(b"junk")
    with pytest.raises(ModelFileError, match="cannot use it"):
        ThresholdRouter(tmp_path / "junk.onnx")
    export(replace(trained, mean=np.zeros(3), scale=np.ones(3), weights=np.zeros(3)), 0.5, tmp_path / "other.onnx")
    with pytest.raises(ModelFileError, match="not a router for these features"):
        ThresholdRouter(tmp_path / "other.onnx")


def test_missing_providers_fall_back_to_the_cpu_and_are_reported(trained: Logistic, tmp_path: Path) -> None:
    export(trained, 0.5, tmp_path / "router.onnx")
    router = ThresholdRouter(tmp_path / "router.onnx", providers=("CoreML",))
    assert 0.0 <= router.probability(item("2 + 3?"), response(1.0)) <= 1.0
    choice = choose_providers(["TensorRT", "cuda", "CoreML"], ["CUDAExecutionProvider", CPU])
    assert choice.used == ("CUDAExecutionProvider", CPU)
    assert "TensorRT, CoreML" in choice.summary

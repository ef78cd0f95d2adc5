"""The router baseline: a classifier on "will the local model fail", run by ONNX Runtime, asks above a threshold.

It is fitted to labelled examples; others set the threshold and measure it. The file holds the standardisation of the features, the
weights, the threshold and the version of the features.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edge.core.engines import choose_providers
from edge.core.errors import ModelFileError, UsageError
from edge.core.files import write_atomically
from edge.core.types import LocalResponse, TaskItem
from edge.dagrpo.ranking import area_under_curve

HASHED_WORDS = 64
NUMBERS = ("help_log_odds", "decision_reached", "mean_logprob", "least_logprob", "log_response_tokens", "log_question_characters")
FEATURES = len(NUMBERS) + HASHED_WORDS
VERSION = "1"
"""Changes with the meaning of any feature; a classifier made for another version is rejected."""
_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s]")


def features(item: TaskItem, response: LocalResponse) -> list[float]:
    """NUMBERS in their order, then the share of the question's words in each of HASHED_WORDS bins (a number is one word)."""
    logprobs = response.logprobs or (0.0,)
    odds = response.help_log_odds
    numbers = [
        0.0 if odds is None else max(-20.0, min(20.0, odds)),
        float(odds is not None),
        math.fsum(logprobs) / len(logprobs),
        max(-20.0, min(logprobs)),
        math.log1p(len(response.token_ids)),
        math.log1p(len(item.question)),
    ]
    return numbers + _hashed(item.question)


def _hashed(question: str) -> list[float]:
    words = ["0" if word.isdigit() else word.casefold() for word in _WORD.findall(question)]
    bins = [0.0] * HASHED_WORDS
    for word in words:
        bins[blake2b(word.encode(), digest_size=2).digest()[0] % HASHED_WORDS] += 1.0 / len(words)
    return bins


Doubles = NDArray[np.float64]
_NEWTON_STEPS = 25


@dataclass(frozen=True, slots=True)
class Logistic:
    """p(fail) = sigmoid(weights · (x - mean) / scale + bias); vectors of FEATURES numbers."""

    mean: Doubles
    scale: Doubles
    weights: Doubles
    bias: float

    def probabilities(self, features_NF: Doubles) -> Doubles:
        """p(fail) of each row, [N]."""
        return _sigmoid((features_NF - self.mean) / self.scale @ self.weights + self.bias)


def fit(features_NF: Doubles, failed_N: NDArray[np.bool_], ridge: float = 1.0) -> Logistic:
    """Ridge-regularised logistic regression by Newton steps; the bias is not regularised. Raises UsageError unless both outcomes occur."""
    if failed_N.all() or not failed_N.any():
        raise UsageError("a router needs responses that failed and responses that did not", hint="take more or other items")
    mean, scale = features_NF.mean(axis=0), features_NF.std(axis=0)
    scale = np.where(scale > 1e-9, scale, 1.0)
    x = np.column_stack([(features_NF - mean) / scale, np.ones(len(features_NF))])
    penalty = np.append(np.full(features_NF.shape[1], ridge), 1e-6)
    weights = np.zeros(x.shape[1])
    for _ in range(_NEWTON_STEPS):
        p = _sigmoid(x @ weights)
        gradient = x.T @ (p - failed_N) + penalty * weights
        hessian = (x * (p * (1.0 - p))[:, None]).T @ x + np.diag(penalty)
        weights -= np.linalg.solve(hessian, gradient)
    return Logistic(mean, scale, weights[:-1], float(weights[-1]))


def threshold_for(probabilities_N: Doubles, rate: float) -> float:
    """The threshold above which a share of at most `rate` lies, as near to it as ties allow. Raises UsageError on a rate outside [0, 1]."""
    if not 0.0 <= rate <= 1.0:
        raise UsageError(f"the rate must lie in [0, 1], not {rate}")
    falling = np.sort(probabilities_N)[::-1]
    asked = int(rate * len(falling) + 1e-9)
    return float(falling[asked]) if asked < len(falling) else 0.0


HELD_OUT_EVERY = 4
"""Every fourth example sets the threshold and measures; the others are fitted."""


@dataclass(frozen=True, slots=True)
class RouterQuality:
    """What a router does on its held-out examples.

    `failed` is the local model's share of failures, `asked` the share the router hands over, `kept_accuracy` the share right of those it
    keeps (None: it keeps none), `auc` the chance that a failure ranks above a success (None: one of the two is missing).
    """

    fitted: int
    held_out: int
    failed: float
    asked: float
    kept_accuracy: float | None
    auc: float | None


@dataclass(frozen=True, slots=True)
class CalibratedRouter:
    """A classifier with the threshold at which it hands over at most the share it was calibrated to."""

    model: Logistic
    threshold: float
    quality: RouterQuality


def calibrate(features_NF: Doubles, failed_N: NDArray[np.bool_], rate: float) -> CalibratedRouter:
    """Fit on three quarters of the examples, set the threshold for `rate` on the rest. Raises UsageError for too few or one-sided ones."""
    held_out = np.arange(len(failed_N)) % HELD_OUT_EVERY == HELD_OUT_EVERY - 1
    if not held_out.any():
        raise UsageError(f"{len(failed_N)} examples are too few to fit and calibrate a router", hint="take more items")
    model = fit(features_NF[~held_out], failed_N[~held_out])
    probabilities, failed = model.probabilities(features_NF[held_out]), failed_N[held_out]
    threshold = threshold_for(probabilities, rate)
    kept = probabilities <= threshold
    quality = RouterQuality(
        fitted=int((~held_out).sum()),
        held_out=int(held_out.sum()),
        failed=float(failed.mean()),
        asked=float((~kept).mean()),
        kept_accuracy=float((~failed[kept]).mean()) if kept.any() else None,
        auc=area_under_curve(probabilities[failed].tolist(), probabilities[~failed].tolist()),
    )
    return CalibratedRouter(model, threshold, quality)


def export(model: Logistic, threshold: float, out: Path) -> None:
    """Write the classifier as ONNX: `features` [N, FEATURES] to `probability` [N]; `out` appears complete or not at all."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    constants = {
        "mean": model.mean,
        "scale": model.scale,
        "weights": model.weights[:, None],
        "bias": np.array([model.bias]),
    }
    weights = [numpy_helper.from_array(values.astype(np.float32), name) for name, values in constants.items()]
    weights.append(numpy_helper.from_array(np.array([1], dtype=np.int64), "last"))
    nodes = [
        helper.make_node("Sub", ["features", "mean"], ["centred"]),
        helper.make_node("Div", ["centred", "scale"], ["scaled"]),
        helper.make_node("Gemm", ["scaled", "weights", "bias"], ["logit"]),
        helper.make_node("Sigmoid", ["logit"], ["column"]),
        helper.make_node("Squeeze", ["column", "last"], ["probability"]),
    ]
    given = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["N", len(model.mean)])
    result = helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["N"])
    graph = helper.make_graph(nodes, "router", [given], [result], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    helper.set_model_props(proto, {"threshold": repr(threshold), "features": VERSION})
    onnx.checker.check_model(proto)
    write_atomically(out, proto.SerializeToString())


class ThresholdRouter:
    """Implements `OffloadPolicy`: wants the cloud where the classifier's p(fail) exceeds the threshold, whatever the response is.

    `providers` are wished for in this order and fall back to the CPU. `threshold` None takes the file's. Raises ModelFileError for a file
    that is no router of these features.
    """

    def __init__(self, path: Path, *, providers: Sequence[str] = (), threshold: float | None = None) -> None:
        self._session = _open(path, providers)
        stored = self._session.get_modelmeta().custom_metadata_map
        if stored.get("features") != VERSION or self._session.get_inputs()[0].shape[1] != FEATURES:
            raise ModelFileError(f"{path}: not a router for these features", hint="train it again")
        self.threshold = float(stored["threshold"]) if threshold is None else threshold

    def probability(self, item: TaskItem, response: LocalResponse) -> float:
        """p(fail) of one response."""
        row = np.array([features(item, response)], dtype=np.float32)
        return float(self._session.run(None, {"features": row})[0][0])

    def wants_cloud(self, item: TaskItem, response: LocalResponse) -> bool:
        """True when the classifier expects the local response to be wrong."""
        return self.probability(item, response) > self.threshold


def _open(path: Path, preferred: Sequence[str]) -> Any:
    import onnxruntime

    if not path.is_file():
        raise ModelFileError(f"{path}: no such router file", hint="check the path")
    choice = choose_providers(preferred, onnxruntime.get_available_providers())
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = (
        1  # a few hundred products: threads would cost more than they bring
    )
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=list(choice.used))
    except Exception as error:  # the runtime's own exceptions share no base class
        reason = " ".join(str(error).split())[:200]
        raise ModelFileError(f"{path}: ONNX Runtime cannot use it ({reason})", hint="train it again") from error


def _sigmoid(x: Doubles) -> Doubles:
    result: Doubles = 0.5 * (1.0 + np.tanh(0.5 * x))
    return result

"""A router classifier from labelled examples, with its threshold set and its quality measured on examples it was not fitted to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edge.core.errors import UsageError
from edge.routing.classifier import Doubles, Logistic, fit, threshold_for

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
        auc=area_under_curve(probabilities, failed),
    )
    return CalibratedRouter(model, threshold, quality)


def area_under_curve(probabilities_N: Doubles, failed_N: NDArray[np.bool_]) -> float | None:
    """The chance that a failure has the higher probability of a random pair, ties counted half; None without both outcomes."""
    failures, successes = probabilities_N[failed_N], np.sort(probabilities_N[~failed_N])
    if not len(failures) or not len(successes):
        return None
    below, up_to = (np.searchsorted(successes, failures, side=side) for side in ("left", "right"))
    return float((below + up_to).mean() / (2 * len(successes)))

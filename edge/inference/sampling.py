"""Sampling maths on raw logits.

All functions work on a whole batch at once (axes: R rows, V vocabulary) and treat each row independently of the others, so that a
row's result is the same bit for bit in any company. Logits are float32, sums are carried in float64 over blocks of the vocabulary:
the log-probability of a token is exact to about 1e-6 nats.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from edge.core.errors import NotFinite

Floats: TypeAlias = NDArray[np.float32]
Doubles: TypeAlias = NDArray[np.float64]
Ids: TypeAlias = NDArray[np.intp]
_SHARED_FROM = 1 << 20
"""Logits from which on rows are shared out among threads: 8 rows of a vocabulary of 150,000 take 2 ms on one core."""
_LEAST_TEMPERATURE = 1e-30
"""Divided by less, differences of logits leave the range of float32, while the likeliest token has all the mass already."""
_DIVERGED = "where an adapter is in use, go back with edge-agent adapters rollback VERSION; otherwise fetch the model again"


class RowSampler:
    """Draws one token per row by inverse CDF and gives its log-probability at temperature 1; owns the scratch memory.

    The CDF is searched in two levels (blocks, then within one block), which touches the vocabulary three times in float32 instead
    of building a float64 cumulative sum of it.
    """

    def __init__(self, vocab_size: int, max_rows: int, threads: int = 1) -> None:
        self.vocab_size = vocab_size
        self._block = block_width(vocab_size)
        blocks = -(-vocab_size // self._block)
        self._mass = np.zeros((max_rows, blocks * self._block), dtype=np.float32)
        self.use_threads(threads)

    def use_threads(self, threads: int) -> None:
        """Divide large batches among this many threads from now on; not while one is sampled."""
        self._threads = ThreadPoolExecutor(threads, "sampling")

    def sample(
        self,
        logits_RV: Floats,
        temperatures_R: Doubles,
        uniforms_R: Doubles,
        forced_R: Ids | None = None,
        shares_R: Doubles | None = None,
    ) -> tuple[Ids, Doubles]:
        """Ids [R] and their log-probabilities [R] (nats, temperature 1).

        Temperature 0, or one so small that it is the same, is the arg max (first of equals): `uniforms_R` in [0, 1) is not read. Where
        `forced_R` is not negative that id is taken instead of a drawn one. Where `shares_R` is below 1 only the likeliest tokens that
        together reach that share are drawn from. A logit of -inf is never drawn; a row whose logits are all -inf or hold a nan raises
        NotFinite.
        """
        peak_R, sums_RB = self._weigh(logits_RV)
        if not np.isfinite(peak_R).all():
            raise NotFinite("the model's scores are not finite numbers", hint=_DIVERGED)
        mass_RV = self._mass[: len(logits_RV)]
        log_total_R = np.log(sums_RB.sum(axis=1))
        temperatures_R = np.where(temperatures_R < _LEAST_TEMPERATURE, 0.0, temperatures_R)
        if (temperatures_R == 0.0).all():
            ids_R = logits_RV.argmax(axis=1)
        else:
            ids_R = self._draw(mass_RV, sums_RB, uniforms_R)
            self._draw_other_temperatures(ids_R, logits_RV, peak_R, temperatures_R, uniforms_R, shares_R)
        if forced_R is not None:
            ids_R = np.where(forced_R >= 0, forced_R, ids_R)
        chosen_R = logits_RV[np.arange(len(ids_R)), ids_R].astype(np.float64)
        return ids_R, chosen_R - peak_R - log_total_R

    def _weigh(self, logits_RV: Floats) -> tuple[Floats, Doubles]:
        """Peaks [R] and block sums [R, B], with exp(logit - peak) in the scratch memory; many rows at once are shared out among threads."""
        peak_R = np.empty(len(logits_RV), dtype=np.float32)
        sums_RB = np.empty((len(logits_RV), self._mass.shape[1] // self._block))

        def weigh(part: slice) -> None:
            peak_R[part] = logits_RV[part].max(axis=1)
            with np.errstate(invalid="ignore"):  # the caller rejects peaks that are not finite
                sums_RB[part] = self._block_sums(self._exponentials(logits_RV[part], peak_R[part], part))

        if logits_RV.size < _SHARED_FROM:
            weigh(slice(0, len(logits_RV)))
        else:
            list(self._threads.map(weigh, (slice(row, row + 1) for row in range(len(logits_RV)))))  # a row at a time fits a cache
        return peak_R, sums_RB

    def _exponentials(self, logits_RV: Floats, peak_R: Floats, part: slice) -> Floats:
        """exp(logit - peak) in these rows of the scratch memory, zeros after the vocabulary."""
        live = self._mass[part, : self.vocab_size]
        np.subtract(logits_RV, peak_R[:, None], out=live)
        np.exp(live, out=live)
        return self._mass[part]

    def _block_sums(self, mass_RV: Floats) -> Doubles:
        rows = len(mass_RV)
        sums_RB: Doubles = mass_RV.reshape(rows, -1, self._block).sum(axis=2).astype(np.float64)
        return sums_RB

    def _draw(self, mass_RV: Floats, sums_RB: Doubles, uniforms_R: Doubles) -> Ids:
        rows = np.arange(len(mass_RV))
        edges_RB = np.cumsum(sums_RB, axis=1)
        target_R = uniforms_R * edges_RB[:, -1]
        block_R = first_above(edges_RB, target_R)
        rest_R = np.maximum(target_R - (edges_RB[rows, block_R] - sums_RB[rows, block_R]), 0.0)
        columns = block_R[:, None] * self._block + np.arange(self._block)
        inner_RW = np.cumsum(mass_RV[rows[:, None], columns], axis=1, dtype=np.float64)
        return block_R * self._block + first_above(inner_RW, rest_R)

    def _draw_other_temperatures(
        self,
        ids_R: Ids,
        logits_RV: Floats,
        peak_R: Floats,
        temperatures_R: Doubles,
        uniforms_R: Doubles,
        shares_R: Doubles | None,
    ) -> None:
        """Overwrite the ids of rows whose temperature is not 1, or that are drawn from the likeliest tokens only."""
        for row in np.flatnonzero(temperatures_R == 0.0):
            ids_R[row] = logits_RV[row].argmax()
        narrow_R = False if shares_R is None else shares_R < 1.0
        for row in np.flatnonzero((temperatures_R != 0.0) & ((temperatures_R != 1.0) | narrow_R)):
            scaled = ((logits_RV[row] - peak_R[row]) / np.float32(temperatures_R[row]))[None]
            mass = self._exponentials(scaled, np.zeros(1, dtype=np.float32), slice(1))
            if shares_R is not None and shares_R[row] < 1.0:
                keep_likeliest(mass[0], float(shares_R[row]))
            ids_R[row] = self._draw(mass, self._block_sums(mass), uniforms_R[row : row + 1])[0]


def block_width(vocab_size: int) -> int:
    """A power of two near the square root of the vocabulary, at least 16."""
    width = 16
    while width * width < vocab_size:
        width *= 2
    return width


def first_above(edges_RN: Doubles, target_R: Doubles) -> Ids:
    """First index in each row whose (non-decreasing) edge exceeds the target.

    Rounding can leave the target at or above the last edge; then the last index at which the edge still rises is taken, so that an
    entry of zero mass is never chosen.
    """
    above_RN = edges_RN > np.minimum(target_R, np.nextafter(edges_RN[:, -1], -np.inf))[:, None]
    first_R: Ids = above_RN.argmax(axis=1)
    return first_R


def keep_likeliest(mass_V: Floats, share: float) -> None:
    """Set to zero, in place, all but the likeliest entries that together reach `share` of the mass; at least one stays.

    An entry that could not lift the rest above 1 - share even together with all that are no larger needs no sorting.
    """
    total = float(mass_V.sum(dtype=np.float64))
    small = mass_V < np.float32((1.0 - share) * total / len(mass_V))
    candidates = np.flatnonzero(~small)
    order = candidates[np.argsort(-mass_V[candidates], kind="stable")]
    reached = np.cumsum(mass_V[order], dtype=np.float64)
    likely = order[: int(np.searchsorted(reached, share * total)) + 1]
    rest = mass_V[likely]
    mass_V[:] = 0.0
    mass_V[likely] = rest


def log_probabilities(logits_TV: Floats, ids_T: Ids) -> Doubles:
    """Log-probabilities [T] (nats, temperature 1) of one id in each row. Raises NotFinite for a row without a finite peak."""
    peak_T = logits_TV.max(axis=1).astype(np.float64)
    if not np.isfinite(peak_T).all():
        raise NotFinite("the model's scores are not finite numbers", hint=_DIVERGED)
    totals_T = np.exp(logits_TV - peak_T[:, None]).sum(axis=1)
    found_T: Doubles = logits_TV[np.arange(len(ids_T)), ids_T].astype(np.float64) - peak_T - np.log(totals_T)
    return found_T


def likeliest(logits_V: Floats, count: int, reference: int) -> tuple[Ids, Doubles]:
    """The `count` likeliest ids of a row, the likeliest first, equals by id, and by how many nats each is likelier than `reference`.

    Ids that are impossible (-inf) are left out. The difference is exactly 0 for `reference` itself.
    """
    count = min(count, len(logits_V))
    ids = np.argpartition(logits_V, -count)[-count:] if count < len(logits_V) else np.arange(count)
    ids = ids[np.isfinite(logits_V[ids])]
    ids = ids[np.lexsort((ids, -logits_V[ids]))]
    return ids, logits_V[ids].astype(np.float64) - float(logits_V[reference])


def log_sum_exp(logits_V: Floats) -> float:
    """Logarithm of the sum of exponentials of one row, in nats."""
    peak = float(logits_V.max())
    return peak + float(np.log(np.exp(logits_V.astype(np.float64) - peak).sum()))


def log_odds_of(logits_V: Floats, tokens: Ids) -> float:
    """log p/(1-p) in nats, where p is the probability at temperature 1 that the next token is one of `tokens`.

    Finite by clipping to ±60 where one side has no mass to speak of; -60 for an empty set.
    """
    if len(tokens) == 0:
        return -60.0
    others = np.delete(logits_V, tokens)
    if len(others) == 0:
        return 60.0
    return float(np.clip(_safe_log_sum(logits_V[tokens]) - _safe_log_sum(others), -60.0, 60.0))


def _safe_log_sum(logits: Floats) -> float:
    return log_sum_exp(logits) if np.isfinite(logits.max()) else -np.inf

"""What one adapter does at each price that its prompts tell. Knows held-out verdicts by price; knows nothing of training."""

from __future__ import annotations

from collections.abc import Iterator

from tools.experiments.findings import Findings, Part, Runs, pooled
from tools.experiments.measures import accuracy, kept_accuracy, never, own_decision, rate
from tools.experiments.spec import priced
from tools.experiments.tables import MISSING, Table, with_half

_COLUMNS = (("asks", own_decision, rate), ("joint", own_decision, accuracy), ("kept", own_decision, kept_accuracy),
            ("forced local", never, accuracy))  # fmt: skip


def price_table(findings: Findings) -> list[Table]:
    """A row for each SLM, method, phase and price, all sources together."""
    spec = findings.spec
    rows = [
        row
        for model in spec.models
        for way in spec.ways
        for name, parts in spec.phases.items()
        for row in _rows(
            findings.runs(model, way, name), (model, way, name), spec.evaluate.sources, spec.evaluate.prices, len(parts)
        )
    ]
    header = ("SLM", "method", "phases", "price told", "seeds", *(f"{name}, %" for name, _, _ in _COLUMNS))
    return [Table("One adapter at several prices, held out, T = 0", header, tuple(rows))]


def _rows(
    runs: Runs, where: tuple[str, ...], sources: tuple[str, ...], prices: tuple[float, ...], phase: int
) -> Iterator[tuple[str, ...]]:
    for price in prices:
        parts = [Part(runs, priced(source, price), phase) for source in sources]
        found = [pooled(parts, rule, statistic) for _, rule, statistic in _COLUMNS]
        told = (MISSING if one is None else with_half(one) for one in found)
        yield (*where, f"{price:g}", runs.told, *told)

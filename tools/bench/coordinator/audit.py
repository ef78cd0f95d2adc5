"""The ledger compared with what happened: the journal, the upstream's log, and the clients' replies. Counts only, without judging.

Reads journal entries and uses no table: budgets are recomputed from holds and charges.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

RESOLVED = ("completed", "refunded", "failed", "in_doubt")
UNITS = 3


@dataclass(frozen=True, slots=True)
class Audit:
    """Numbers of calls, and counts that must be zero.

    `overspends`: entries after which a budget's committed + reserved is above its limit. `lost`: upstream requests without a resolved
    attempt, and acknowledged calls without a charge. `doubled`: attempts sent or resolved more than once, and groups charged twice.
    `undercharged`: completed attempts charged other than their usage costs. `differences`: what the ledger's own verification found.
    """

    entries: int
    upstream_requests: int
    acknowledged: int
    overspends: int
    lost: int
    doubled: int
    undercharged: int
    differences: int

    @property
    def wrong(self) -> int:
        """All that must be zero."""
        return self.overspends + self.lost + self.doubled + self.undercharged + self.differences

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {**asdict(self), "wrong": self.wrong}


class Books:
    """Balances and attempts computed from the journal, entry by entry."""

    def __init__(self) -> None:
        self.entries = 0
        self.overspends = 0
        self.resolved: Counter[str] = Counter()
        self.charges: dict[str, tuple[int, ...]] = {}
        self.charged_groups: Counter[tuple[Any, ...]] = Counter()
        self._open: dict[str, Mapping[str, Any]] = {}
        self._limits: dict[str, Sequence[int | None]] = {}
        self._used: dict[str, list[int]] = defaultdict(lambda: [0] * UNITS)

    def take(self, kind: str, data: Mapping[str, Any]) -> None:
        """One entry."""
        self.entries += 1
        if kind == "limits":
            self._limits[data["budget"]] = data["limits"]
        elif kind == "reserve":
            self._open[_billing_key(data)] = data
            self._add(data["budgets"], data["hold"])
        elif kind in RESOLVED:
            self._resolve(_billing_key(data), kind, data["charge"])

    def _resolve(self, billing: str, kind: str, charge: Sequence[int]) -> None:
        self.resolved[billing] += 1
        reserve = self._open.pop(billing, None)
        if reserve is None:
            return
        self._add(reserve["budgets"], [cost - held for cost, held in zip(charge, reserve["hold"], strict=True)])
        if kind == "completed":
            self.charges[billing] = tuple(charge)
            self.charged_groups[tuple(reserve[name] for name in ("device", "task", "step", "prompt_id"))] += 1

    def _add(self, budgets: Iterable[str], amount: Sequence[int]) -> None:
        for key in budgets:
            used = self._used[key]
            for unit in range(UNITS):
                used[unit] += amount[unit]
            limits = self._limits.get(key, ())
            self.overspends += any(limit is not None and value > limit for limit, value in zip(limits, used, strict=False))


def audit(ledger: Path, upstream_log: Sequence[str], acknowledged: Iterable[str], cost: tuple[int, ...]) -> Audit:
    """Compare journal, upstream log and replies. `acknowledged` are `device|key`; `cost` is the cost of each call."""
    from coordinator.ledger.stores.sqlite import open_read_only
    from coordinator.ledger.verify import verify_file

    books, acked = Books(), set(acknowledged)
    with open_read_only(ledger) as rows:
        for entry in rows.journal_after(0):
            books.take(entry.kind, entry.data())
    sent = Counter(upstream_log)
    paid = {billing.rpartition("|")[0] for billing in books.charges}
    return Audit(
        entries=books.entries,
        upstream_requests=len(upstream_log),
        acknowledged=len(acked),
        overspends=books.overspends,
        lost=sum(not books.resolved[billing] for billing in sent) + len(acked - paid),
        doubled=sum(count > 1 for tally in (sent, books.resolved, books.charged_groups) for count in tally.values()),
        undercharged=sum(charge != cost for charge in books.charges.values()),
        differences=verify_file(ledger).difference_count,
    )


def _billing_key(data: Mapping[str, Any]) -> str:
    return f"{data['device']}|{data['key']}|{data['attempt']}"

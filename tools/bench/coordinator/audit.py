"""The ledger compared with what happened: its own verification, the upstream's log, and the clients' replies. Counts only, without judging.

`spent_by` compares any service with the upstream's log alone. Verification proves every row from the journal, so the rows are counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

WRONG = ("lost", "doubled", "undercharged", "differences")


@dataclass(frozen=True, slots=True)
class Audit:
    """Numbers of calls, of attempts charged as in doubt, and counts that must be zero.

    `lost`: upstream requests without a resolved attempt, and acknowledged calls without a charge. `doubled`: attempts sent more than once,
    and groups charged twice. `undercharged`: completed attempts charged other than their usage costs. `differences`: what the ledger's own
    verification found, a budget above its limit and an attempt resolved twice among it.
    """

    entries: int
    upstream_requests: int
    acknowledged: int
    in_doubt: int
    lost: int
    doubled: int
    undercharged: int
    differences: int

    @property
    def wrong(self) -> int:
        """All that must be zero."""
        return sum(getattr(self, name) for name in WRONG)

    def to_json(self) -> dict[str, Any]:
        """Everything."""
        return {**asdict(self), "wrong": self.wrong}


def audit(ledger: Path, upstream_log: Sequence[str], acknowledged: Iterable[str], cost: tuple[int, ...]) -> Audit:
    """Compare ledger, upstream log and replies. `acknowledged` are `device|key`; `cost` is the cost of each call."""
    from coordinator.ledger.accounts import Amount, CallState
    from coordinator.ledger.stores.sqlite import open_read_only
    from coordinator.ledger.tables import ATTEMPT, CALL
    from coordinator.ledger.verify import verify

    with open_read_only(ledger) as rows:
        report = verify(rows)
        attempts = list(rows.all(ATTEMPT))
        groups = Counter(
            (call.device, call.task, call.step, call.prompt_id)
            for call in rows.all(CALL)
            if call.state is CallState.COMPLETED and not call.source_key
        )
    sent, acked = Counter(upstream_log), set(acknowledged)
    resolved = {attempt.billing_key for attempt in attempts if attempt.state is not CallState.DISPATCHED}
    paid = [attempt for attempt in attempts if attempt.state is CallState.COMPLETED]
    return Audit(
        entries=report.entries,
        upstream_requests=len(upstream_log),
        acknowledged=len(acked),
        in_doubt=sum(attempt.state is CallState.IN_DOUBT for attempt in attempts),
        lost=len(sent.keys() - resolved) + len(acked - {f"{attempt.device}|{attempt.key}" for attempt in paid}),
        doubled=sum(count > 1 for tally in (sent, groups) for count in tally.values()),
        undercharged=sum(attempt.charged != Amount(*cost) for attempt in paid),
        differences=report.difference_count,
    )


@dataclass(frozen=True, slots=True)
class Spent:
    """What the upstream saw of a service that holds calls to a budget, against what the clients were told.

    `overspent_uusd`: what the upstream's requests cost beyond the limit. `lost`: requests that the upstream got and whose client got no
    answer, and answers that the upstream never gave. `doubled`: calls that were sent more than once.
    """

    sent: int
    answered: int
    refused: int
    failed: int
    spent_uusd: int
    overspent_uusd: int
    lost: int
    doubled: int


def spent_by(
    asked: Sequence[str], answered: Iterable[str], *, refused: int, failed: int, cost_uusd: int, limit_uusd: int
) -> Spent:
    """`asked`: how the upstream's requests begin, in order; `answered`: how those begin whose clients got an answer."""
    sent, got = Counter(asked), set(answered)
    spent = len(asked) * cost_uusd
    return Spent(
        sent=len(asked),
        answered=len(got),
        refused=refused,
        failed=failed,
        spent_uusd=spent,
        overspent_uusd=max(0, spent - limit_uusd),
        lost=len(sent.keys() ^ got),
        doubled=sum(count > 1 for count in sent.values()),
    )

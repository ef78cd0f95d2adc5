"""Many calls at once against a budget that fits half of them: what the upstream saw of it, against the limit.

The upstream takes a second, as an LLM does, so that all calls are under way before the first is settled. Then calls come one after the
other until one is refused: how much of the budget can be used at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from tools.bench.coordinator.audit import audit, spent_by
from tools.bench.coordinator.load import name_of
from tools.bench.coordinator.measure import loaded, upstream_log
from tools.bench.coordinator.services import COST, started
from tools.bench.processes import scratch_folder

PHASE = "burst"


def measure(job: Mapping[str, Any]) -> dict[str, Any]:
    """One burst at one service; its first caller alone makes all calls."""
    with scratch_folder(job) as scratch:
        with started(job, scratch) as service:
            phase = {"phase": PHASE, "kind": PHASE, "count": job["count"], "rest_s": job["rest_s"]}
            found = loaded(service.with_one_caller(), phase, scratch)
            asked, log = upstream_log(service, "/asked"), upstream_log(service, "/log")
        books = audit(service.ledger, log, found["acked"], COST).to_json() if service.ledger is not None else None
    spent = spent_by(
        asked,
        [name_of(PHASE, number) for number in found["answered"]],
        refused=len(found["refused"]),
        failed=sum(found["errors"].values()),
        cost_uusd=COST[2],
        limit_uusd=job["limit_uusd"],
    )
    kept = {name: found[name] for name in ("answered_at_once", "seconds", "errors")}
    return {**asdict(spent), **kept, "limit_uusd": job["limit_uusd"], "audit": books}

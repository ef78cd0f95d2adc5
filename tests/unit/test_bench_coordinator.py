"""The coordinator's bench: its audit finds violations, and its rows compare figures with goals."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from coordinator.ledger.accounts import Amount, AmountLimits, BudgetTerms, Reserved
from coordinator.ledger.journal import GENESIS, next_entry
from coordinator.ledger.stores.sqlite import SqliteLedgerStore, open_read_only
from tests.worlds.ledger_requests import FLEET, NOW, reserve_request, settlement
from tools.bench.coordinator import overspend, profile, profiled, rows, services
from tools.bench.coordinator.audit import WRONG, audit, spent_by
from tools.bench.processes import REPOSITORY

COST = (1, 100, 300)
LIMITS = BudgetTerms(FLEET, AmountLimits(calls=5))


async def _ledger(path: Path, keys: list[str], **changes: object) -> list[str]:
    """A closed ledger with these calls answered; the billing keys sent upstream."""
    store = await SqliteLedgerStore.open(path, NOW)
    sent = []
    for key in keys:
        reserved = await store.reserve(reserve_request(key, budgets=[LIMITS], **changes))
        assert isinstance(reserved, Reserved)
        sent.append(reserved.billing_key)
        await store.settle(settlement(key, charge=Amount(*COST)))
    await store.aclose()
    return sent


async def test_ledger_that_agrees_with_upstream_and_clients_shows_no_error(tmp_path: Path) -> None:
    sent = await _ledger(tmp_path / "ledger.sqlite3", ["a", "b"])
    found = audit(tmp_path / "ledger.sqlite3", sent, ["d1|a", "d1|b"], COST)
    assert (found.upstream_requests, found.acknowledged, found.wrong) == (2, 2, 0)


@pytest.mark.parametrize(
    ("seen", "acknowledged", "cost", "wrong"),
    [
        (["d1|a|1", "d1|a|1"], ["d1|a"], COST, {"doubled": 1}),
        (["d1|a|1", "d1|x|1"], ["d1|a"], COST, {"lost": 1}),
        (["d1|a|1"], ["d1|a", "d1|y"], COST, {"lost": 1}),
        (["d1|a|1"], ["d1|a"], (1, 100, 301), {"undercharged": 1}),
    ],
)
async def test_each_kind_of_disagreement_is_counted(
    tmp_path: Path, seen: list[str], acknowledged: list[str], cost: tuple[int, ...], wrong: dict[str, int]
) -> None:
    await _ledger(tmp_path / "ledger.sqlite3", ["a"])
    found = audit(tmp_path / "ledger.sqlite3", seen, acknowledged, cost).to_json()
    assert {name: found[name] for name in WRONG if found[name]} == wrong


def _lower_limit(path: Path, calls: int) -> None:
    """As if the ledger had held its budget to `calls` calls from the beginning: the journal's chain and the tables agree."""
    with open_read_only(path) as rows:
        journal = list(rows.journal_after(0))
    previous = GENESIS
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        connection.execute("DROP TRIGGER IF EXISTS journal_keeps")
        connection.execute("UPDATE budget SET asked_calls = ?, limit_calls = ?", (calls, calls))
        for entry in journal:
            lowered = [calls, None, None]
            data = entry.data() | ({"asked": lowered, "limits": lowered} if entry.kind == "limits" else {})
            forged = next_entry(entry.seq - 1, previous, entry.at_ms, entry.kind, data)
            new = (forged.body, forged.previous, forged.hash, forged.seq)
            connection.execute("UPDATE journal SET body = ?, previous = ?, hash = ? WHERE seq = ?", new)
            previous = forged.hash


async def test_budget_above_its_limit_is_a_difference_at_every_such_entry(tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite3"
    sent = await _ledger(path, ["a", "b"])
    _lower_limit(path, 2)
    assert audit(path, sent, [], COST).wrong == 0
    _lower_limit(path, 1)
    found = audit(path, sent, [], COST)
    assert (found.differences, found.wrong) == (2, 2)


async def test_two_charges_for_one_group_are_counted(tmp_path: Path) -> None:
    sent = await _ledger(tmp_path / "ledger.sqlite3", ["a", "b"], prompt_id="p")
    found = audit(tmp_path / "ledger.sqlite3", sent, [], COST)
    assert (found.doubled, found.wrong) == (1, 1)


async def test_an_attempt_that_was_doubted_is_no_loss(tmp_path: Path) -> None:
    store = await SqliteLedgerStore.open(tmp_path / "ledger.sqlite3", NOW)
    for key in ("cut", "open"):
        await store.reserve(reserve_request(key))
    await store.doubt("d1", "cut", 1, "cut", NOW)
    await store.aclose()
    found = audit(tmp_path / "ledger.sqlite3", ["d1|cut|1"], [], COST)
    assert (found.in_doubt, found.wrong) == (1, 0)
    assert audit(tmp_path / "ledger.sqlite3", ["d1|open|1"], [], COST).lost == 1


def _round(**spent: float) -> dict[str, Any]:
    phase = {"ms": {"p50": 7.0, "p99": 9.0}, "direct_ms": {"p50": 6.0}, "calls": 3000, "memory_mib": 90.0, "errors": {}}
    phase["spent_s"] = {"service": 1.0, "upstream": 0.1, "wall": 2.0, **spent}
    books = {"upstream_requests": 3000, **dict.fromkeys(WRONG, 0)}
    return {"start_s": 0.5, "phases": dict.fromkeys(("latency", "calls", "serving", "budget", "close"), phase), "audit": books}


def test_rates_are_per_cpu_second_and_latencies_exclude_the_upstream() -> None:
    slow = _round(service=20.0)
    own = {"ours": [_round()], "endpoint": [_round(service=2.0)]}
    row = rows.calls_row({**own, "litellm": [slow], "echo": [_round(service=0.5)], "http_echo": [_round(service=0.25)]})
    verdicts = {verdict.what: verdict for verdict in row.verdicts}
    assert verdicts["Complete per core"].value == 0.5
    assert verdicts["Complete per core, times more"].value == 20.0
    assert verdicts["added p50, one call at a time"].value == 1.0
    assert verdicts["GetBudget per core"].met is False
    assert row.missed
    shares = [verdict.measured for verdict in row.verdicts if verdict.what == "HTTP endpoint, calls per core"]
    assert shares == ["1500 calls/s (1500-1500): 10.0x", "0.12"]
    assert verdicts["HTTP endpoint, calls per core"].against == "the bare aiohttp echo"


@pytest.mark.parametrize("service", ["echo", "http_echo"])
def test_the_echoes_answer_what_the_load_asks(service: str, tmp_path: Path) -> None:
    from tools.bench.coordinator.measure import loaded

    phase = {"phase": "calls", "kind": "calls", "concurrency": 2, "calls": 20, "seconds": 0.0, "warmup_s": 0.0}
    with services.started({"service": service}, tmp_path) as started:
        result = loaded(started, phase, tmp_path)
    assert result["calls"] >= 20
    assert result["errors"] == {}
    assert result["ms"]["p50"] > 0.0


def test_what_was_spent_is_what_the_upstream_saw() -> None:
    found = spent_by(["b 0", "b 1", "b 1", "b 2"], ["b 0", "b 1", "b 3"], refused=4, failed=1, cost_uusd=300, limit_uusd=900)
    assert (found.sent, found.answered, found.spent_uusd, found.overspent_uusd) == (4, 3, 1200, 300)
    assert (found.lost, found.doubled) == (2, 1), "b 2 was paid and not given, b 3 given and not paid; b 1 was sent twice"
    assert spent_by([], [], refused=9, failed=0, cost_uusd=300, limit_uusd=900).overspent_uusd == 0


def test_the_endpoint_stays_within_a_budget_that_many_calls_want(tmp_path: Path) -> None:
    job = {"service": "endpoint", "delay_s": 0.2, "count": 12, "rest_s": 0.1, "limit_uusd": 6 * services.COST[2]}
    found = overspend.measure({**job, "scratch": str(tmp_path / "scratch")})
    assert (found["overspent_uusd"], found["lost"], found["doubled"], found["failed"]) == (0, 0, 0, 0)
    assert (found["audit"]["wrong"], found["errors"]) == (0, {})
    assert 0 < found["answered_at_once"] <= found["answered"] < 6
    assert rows.overspend_row({"endpoint": [found]}).missed is False


def test_a_profile_divides_a_call_by_threads_and_the_main_one_by_groups() -> None:
    threads = {"MainThread": 3.0, "ledger-writer": 1.0}
    found = profile.divided({"threads": threads, "groups": {"broker": 0.5, "transport": 1.5}}, 400.0)["us"]
    assert found == {
        "broker": 75.0,
        "transport": 225.0,
        "writer thread: commits": 100.0,
        "threads of libraries and others": 0.0,
    }


def test_every_group_of_the_profile_has_a_file() -> None:
    files = [str(path) for root in ("coordinator", "edge") for path in (REPOSITORY / root).rglob("*.py")]
    own = [part for _, parts in profiled.GROUPS for part in parts if not part.startswith("/") or part == "/providers/"]
    assert [part for part in own if part != "google/protobuf/" and not any(part in file for file in files)] == []
    assert profiled.group_of("/somewhere/asyncio/events.py") is None


LOOK = [30, 9, 15, 90.0]


@pytest.mark.parametrize(
    ("last", "missed"),
    [
        (LOOK, ""),
        ([60, 9, 15, 90.0], "descriptors"),
        ([30, 19, 15, 90.0], "threads"),
        ([30, 9, 40, 90.0], "tasks"),
        ([30, 9, 15, 120.0], "MiB"),
    ],
)
def test_soak_fails_when_something_grows(last: list[float], missed: str) -> None:
    result = {"looks": [LOOK, LOOK, LOOK, last], "rested": True, "outcomes": {"answered": 500, "left": 3}, "asked": 400}
    row = rows.soak_row({**result, "differences": 0, "open": 0})
    assert [missed in verdict.what for verdict in row.verdicts if verdict.met is False] == [True] * bool(missed)
    assert rows.soak_row({**result, "differences": 1, "open": 0}).missed
    assert rows.soak_row({**result, "rested": False, "differences": 0, "open": 0}).missed

"""Converts results to rows of the table with their goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.bench.coordinator.audit import WRONG
from tools.bench.harness import BenchRow, Rounds, Spread, spread

UNSATURATED = 0.5
"""Share of a core below which the mock cloud LLM was certainly not what was waited for."""


def calls_row(measured: Mapping[str, Rounds]) -> BenchRow:
    """Latency, and calls per second of processor time, compared with LiteLLM and the baselines."""
    ours, peer = measured["ours"], measured.get("litellm", ())
    row = BenchRow("calls", "calls", {name: list(rounds) for name, rounds in measured.items()})
    _latencies(row, ours, peer)
    _throughputs(row, measured)
    _books(row, [result["audit"] for result in ours])
    row.without_goal("bare grpc.aio echo", "baseline", _per_core(measured["echo"], "calls").text("calls/s per core", 0))
    spent = [phase["spent_s"] for result in [*ours, *peer] for phase in result["phases"].values()]
    busiest = max(each.get("upstream", 0.0) / each["wall"] for each in spent)
    row.without_goal("mock cloud LLM, busiest phase", "baseline", f"{100 * busiest:.0f} % of a core")
    start = spread(result["start_s"] for result in ours)
    theirs = f"LiteLLM {spread(result['start_s'] for result in peer).text('s')}" if peer else ""
    row.at_most("start to SERVING", theirs, start.text("s"), start.median, 2.0, " s")
    busy = [] if busiest < UNSATURATED else ["the mock cloud LLM was busy: its latency is in the figures"]
    row.notes = [*_error_notes(measured), *busy]
    return row


def memory_row(ours: Rounds, peer: Rounds) -> BenchRow:
    """Memory after many calls."""
    result, row = ours[0], BenchRow("memory", "memory", {"ours": list(ours)})
    sizes = [phase["memory_mib"] for phase in result["phases"].values()]
    calls = sum(phase["calls"] for phase in result["phases"].values())
    growth = sizes[-1] - sizes[len(sizes) // 4]
    theirs = "" if not peer else f"LiteLLM {spread(one['phases']['calls']['memory_mib'] for one in peer).text('MiB')} after fewer"
    text = f"{sizes[-1]:.0f} MiB after {calls} calls; idle {result['idle_mib']:.0f}"
    row.at_most("memory after many calls", theirs, text, sizes[-1], 143, " MiB")
    trend = ", ".join(f"{size:.0f}" for size in sizes)
    row.at_most("its growth over the last three quarters", "", f"{growth:.1f} MiB ({trend})", growth, 5.0, " MiB")
    _books(row, [result["audit"]])
    return row


def idle_row(rounds: Rounds) -> BenchRow:
    """Many idle devices."""
    row = BenchRow("idle", "idle devices", {"ours": list(rounds)})
    memory = spread(result["memory_mib"] for result in rounds)
    devices = rounds[0]["devices"]
    row.at_most(f"memory with {devices} idle devices", "", memory.text("MiB"), memory.median, 572, " MiB")
    slowed = spread(
        result["ms"]["beside"]["p50"] / ((result["ms"]["alone"]["p50"] + result["ms"]["after"]["p50"]) / 2) for result in rounds
    )
    row.at_most("p50 with them", "p50 without them", slowed.text("x"), slowed.median, 1.1)
    resting = spread(100 * result["cpu_share_idle"] for result in rounds)
    row.without_goal("processor while they only watch", "", resting.text("% of a core"))
    return row


def recovery_row(rounds: Rounds, holds: int) -> BenchRow:
    """After SIGKILL."""
    row = BenchRow("recovery", "recovery", {"ours": list(rounds)})
    start = spread(result["start_s"] for result in rounds)
    entries = rounds[0]["audit"]["entries"]
    what = f"SERVING after SIGKILL, {entries} journal entries, {holds} open holds"
    row.at_most(what, "", start.text("s"), start.median, 2.0, " s")
    unresolved = sum(abs(holds - result["audit"]["in_doubt"]) for result in rounds)
    row.at_most("open holds not charged as in doubt", "", str(unresolved), unresolved, 0, "")
    differences = sum(result["audit"]["differences"] for result in rounds)
    row.at_most("differences and overspends afterwards", "", str(differences), differences, 0, "")
    return row


def soak_row(result: Mapping[str, Any]) -> BenchRow:
    """Growth between the sample after the first quarter and the last one; descriptors, threads and tasks at rest."""
    row, samples = BenchRow("soak", "soak", {"ours": [result]}), result["looks"]
    first, last = samples[max(0, len(samples) // 4 - 1)], samples[-1]
    bounds = (8, 4, 8, 16.0)
    for at, (name, bound) in enumerate(zip(("descriptors", "threads", "tasks", "MiB of memory"), bounds, strict=True)):
        trend = ", ".join(f"{each[at]:.0f}" for each in samples)
        row.at_most(f"growth under load with faults: {name}", "", trend, last[at] - first[at], bound, "")
    wrong = result["differences"] + result["open"] + (not result["rested"])
    row.at_most("differences, open holds and calls without end", "", str(wrong), wrong, 0, "")
    answered = result["outcomes"].get("answered", 0)
    row.at_least("answered requests", "", str(answered), answered, 100, "")
    others = ", ".join(f"{name} {count}" for name, count in sorted(result["outcomes"].items()))
    row.notes = [f"{result['asked']} upstream requests; {others}"]
    return row


def _latencies(row: BenchRow, ours: Rounds, peer: Rounds) -> None:
    for name, bound, times_bound in (
        ("p50", 2.0, 6.0),
        ("p99", 6.0, 3.0),
    ):
        mine = spread(_added(ours, name))
        row.at_most(f"added {name}, one call at a time", "the upstream's p50", mine.text("ms"), mine.median, bound, " ms")
        if peer:
            other = spread(_added(peer, name))
            times = other.median / mine.median
            row.at_least(f"added {name}, times lower", f"LiteLLM {other.text('ms')}", f"{times:.1f}x", times, times_bound)


def _throughputs(row: BenchRow, measured: Mapping[str, Rounds]) -> None:
    ours, peer, echo = measured["ours"], measured.get("litellm", ()), _per_core(measured["echo"], "calls")
    for phase, name, share in (("calls", "Complete", 1 / 3), ("close", "CloseStep", 0.5), ("budget", "GetBudget", 0.75)):
        rate = _per_core(ours, phase)
        text = f"{rate.text('calls/s', 0)}: {rate.median / echo.median:.2f}"
        row.at_least(f"{name} per core", "the bare echo", text, rate.median / echo.median, share)
    if peer:
        unary, other = _per_core(ours, "calls"), _per_core(peer, "calls")
        times = unary.median / other.median
        against = f"LiteLLM {other.text('calls/s', 0)}"
        row.at_least("Complete per core, times more", against, f"{times:.1f}x", times, 14.0)


def _books(row: BenchRow, audits: Sequence[Mapping[str, Any]]) -> None:
    calls = sum(audit["upstream_requests"] for audit in audits)
    wrong = {name: sum(audit[name] for audit in audits) for name in WRONG}
    text = ", ".join(f"{count} {name}" for name, count in wrong.items())
    total = sum(wrong.values())
    row.at_most(f"books of {calls} calls against the upstream's log", "", text, total, 0, "")


def _added(rounds: Rounds, name: str) -> list[float]:
    """The latency above the upstream's median."""
    phases = [result["phases"]["latency"] for result in rounds]
    return [phase["ms"][name] - phase["direct_ms"]["p50"] for phase in phases]


def _per_core(rounds: Rounds, phase: str) -> Spread:
    found = [result["phases"][phase] for result in rounds]
    return spread(each["calls"] / max(each["spent_s"]["service"], 0.01) for each in found)


def _error_notes(measured: Mapping[str, Rounds]) -> list[str]:
    found = [
        f"{name}, {key}: {count} x {text}"
        for name, rounds in measured.items()
        for result in rounds
        for key, phase in result["phases"].items()
        for text, count in phase["errors"].items()
    ]
    return found[:10]

"""Converts results to rows of the table with their goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tools.bench.coordinator.audit import WRONG
from tools.bench.harness import BenchRow, Rounds, Spread, spread

PEERS = {"litellm": "LiteLLM without a budget", "litellm_budget": "with a reserved budget of its key"}
OVERSPENDERS = {
    "endpoint": "HTTP endpoint",
    "litellm_key": "LiteLLM, budget of a key (custom_auth, common checks, fail_closed_budget_enforcement)",
    "litellm_deployment": "LiteLLM, budget of a deployment (max_budget, budget_duration)",
}
UNSATURATED = 0.5
"""Share of a core below which the mock cloud LLM was certainly not what was waited for."""


def calls_row(measured: Mapping[str, Rounds]) -> BenchRow:
    """Latency, and calls per second of processor time, compared with LiteLLM and the baselines."""
    ours, peer = measured["ours"], measured.get("litellm", ())
    row = BenchRow("calls", "calls", {name: list(rounds) for name, rounds in measured.items()})
    _latencies(row, ours, peer)
    _throughputs(row, measured)
    _endpoint(row, measured)
    _books(row, [result["audit"] for result in (*ours, *measured["endpoint"])])
    for name, what in (("echo", "bare grpc.aio echo"), ("http_echo", "bare aiohttp echo")):
        row.without_goal(what, "baseline", _per_core(measured[name], "calls").text("calls/s per core", 0))
    spent = [phase["spent_s"] for result in [*ours, *peer] for phase in result["phases"].values()]
    busiest = max(each.get("upstream", 0.0) / each["wall"] for each in spent)
    row.without_goal("mock cloud LLM, busiest phase", "baseline", f"{100 * busiest:.0f} % of a core")
    start = spread(result["start_s"] for result in ours)
    theirs = f"LiteLLM {spread(result['start_s'] for result in peer).text('s')}" if peer else ""
    row.at_most("start to SERVING", theirs, start.text("s"), start.median, 2.0, " s")
    busy = [] if busiest < UNSATURATED else ["the mock cloud LLM was busy: its latency is in the figures"]
    row.notes = [*_error_notes(measured), *busy]
    return row


def overspend_row(measured: Mapping[str, Rounds]) -> BenchRow:
    """Many calls at once against a budget that fits half of them."""
    row = BenchRow("overspend", "overspend", {name: list(rounds) for name, rounds in measured.items()})
    for name, rounds in measured.items():
        about = f"spent of {rounds[0]['limit_uusd'] / 1e6:.4f} USD by many calls at once"
        row.without_goal(about, OVERSPENDERS[name], "; ".join(map(_spent_text, rounds)))
    ours = measured["endpoint"]
    row.at_most("overspent, HTTP endpoint", "the upstream's log", *_worst(ours, "overspent_uusd"), 0, " micro-USD")
    wrong = [sum(result[name] for name in ("lost", "doubled", "failed")) + result["audit"]["wrong"] for result in ours]
    row.at_most("lost, doubled and failed calls, differences in the ledger", "", str(max(wrong)), max(wrong), 0, "")
    return row


def profile_row(measured: Mapping[str, Rounds]) -> BenchRow:
    """Where the processor time of a call goes, at both doors; medians of the rounds."""
    row = BenchRow("profile", "profile of a call", {name: list(rounds) for name, rounds in measured.items()})
    names = dict.fromkeys(name for rounds in measured.values() for result in rounds for name in result["us"])
    per_call = {door: spread(result["per_call_us"] for result in rounds).median for door, rounds in measured.items()}
    row.without_goal("processor time of a call, sampled", "", ", ".join(f"{door} {us:.0f} us" for door, us in per_call.items()))
    for name in names:
        parts = {door: spread(result["us"].get(name, 0.0) for result in rounds).median for door, rounds in measured.items()}
        text = ", ".join(f"{door} {us:.0f} us ({100 * us / per_call[door]:.0f} %)" for door, us in parts.items())
        row.without_goal(f"  {name}", "", text)
    return row


def cores_row(measured: Mapping[str, Rounds]) -> BenchRow:
    """What a second core is worth to one process; the load and the mock cloud are on that core, too."""
    row = BenchRow("cores", "cores", {name: list(rounds) for name, rounds in measured.items()})
    for name, rounds in measured.items():
        phases = [next(iter(result["phases"].values())) for result in rounds]
        rate = spread(phase["calls"] / phase["spent_s"]["wall"] for phase in phases)
        cost = spread(1e6 * phase["spent_s"]["service"] / phase["calls"] for phase in phases)
        share = spread(100 * phase["spent_s"]["service"] / phase["spent_s"]["wall"] for phase in phases)
        others = spread(
            100 * (phase["spent_s"]["load"] + phase["spent_s"]["upstream"]) / phase["spent_s"]["wall"] for phase in phases
        )
        busy = f"{share.median:.0f} % of a core; load and mock cloud {others.median:.0f} %"
        row.without_goal(name, "", f"{rate.text('calls/s', 0)}, {cost.text('us a call', 0)}, {busy}")
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


def _endpoint(row: BenchRow, measured: Mapping[str, Rounds]) -> None:
    """The HTTP endpoint beside LiteLLM's proxy, without and with a budget that its key is held to."""
    ours = measured["endpoint"]
    peers = {words: measured[name] for name, words in PEERS.items() if measured.get(name)}

    def beside(what: str, of: Callable[[Rounds], Spread], unit: str, digits: int) -> None:
        mine = of(ours)
        theirs = {words: of(rounds) for words, rounds in peers.items()}
        times = ", ".join(f"{max(mine.median / each.median, each.median / mine.median):.1f}x" for each in theirs.values())
        against = "; ".join(f"{words} {each.text(unit, digits)}" for words, each in theirs.items())
        row.without_goal(f"HTTP endpoint, {what}", against, mine.text(unit, digits) + (f": {times}" if times else ""))

    beside("added p50, one call at a time", lambda rounds: spread(_added(rounds, "p50")), "ms", 2)
    beside("added p99, one call at a time", lambda rounds: spread(_added(rounds, "p99")), "ms", 2)
    beside("calls per core", lambda rounds: _per_core(rounds, "calls"), "calls/s", 0)
    beside("calls in all", lambda rounds: _per_second(rounds, "calls"), "calls/s", 0)
    share = _per_core(ours, "calls").median / _per_core(measured["http_echo"], "calls").median
    row.without_goal("HTTP endpoint, calls per core", "the bare aiohttp echo", f"{share:.2f}")
    row.without_goal("Complete outside learning steps", "", _per_core(measured["ours"], "serving").text("calls/s per core", 0))


def _spent_text(result: Mapping[str, Any]) -> str:
    return (
        f"answered {result['answered_at_once']} at once, {result['answered']} in all, refused {result['refused']}, "
        f"failed {result['failed']}; spent {result['spent_uusd'] / 1e6:.4f}, over the limit {result['overspent_uusd'] / 1e6:.4f}, "
        f"lost {result['lost']}, doubled {result['doubled']}, {result['seconds']:.1f} s"
    )


def _worst(rounds: Rounds, name: str) -> tuple[str, float]:
    worst = max(result[name] for result in rounds)
    return str(worst), worst


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


def _per_second(rounds: Rounds, phase: str) -> Spread:
    found = [result["phases"][phase] for result in rounds]
    return spread(each["calls"] / each["spent_s"]["wall"] for each in found)


def _error_notes(measured: Mapping[str, Rounds]) -> list[str]:
    found = [
        f"{name}, {key}: {count} x {text}"
        for name, rounds in measured.items()
        for result in rounds
        for key, phase in result["phases"].items()
        for text, count in phase["errors"].items()
    ]
    return found[:10]

"""Results to rows of the table. Knows what is held against which goal; starts nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tools.bench.coordinator.plan import GOALS
from tools.bench.table.spread import Spread, spread
from tools.bench.table.verdicts import Lines, Row

Rounds = Sequence[Mapping[str, Any]]
UNSATURATED = 0.5
"""Share of a core below which the mock cloud LLM was certainly not what was waited for."""


def calls_row(measured: Mapping[str, Rounds]) -> Row:
    """Latency, and calls per second of processor time, beside LiteLLM and the baselines."""
    ours, peer, lines = measured["ours"], measured.get("litellm", ()), Lines()
    _latencies(lines, ours, peer)
    _throughputs(lines, measured)
    _books(lines, [result["audit"] for result in ours])
    grpc, http = measured["echo-grpc"], measured["echo-http"]
    lines.told("bare grpc.aio echo", "baseline", _rate_text(_per_core(grpc, "calls"), "calls/s per core"))
    lines.told("bare grpc.aio echo, bidi stream", "baseline", _rate_text(_per_core(grpc, "batch"), "messages/s per core"))
    lines.told("bare HTTP echo", "baseline", _rate_text(_per_core(http, "calls"), "calls/s per core"))
    busiest = max(_upstream_shares([*ours, *peer]))
    lines.told("mock cloud LLM, busiest phase", "baseline", f"{100 * busiest:.0f} % of a core")
    start = spread(result["start_s"] for result in ours)
    lines.at_most("start to SERVING", _peer_text(peer, "start_s", "s"), _text(start, "s"), start.median, GOALS.start_s, " s")
    notes = _error_notes(measured) + (
        [] if busiest < UNSATURATED else ["the mock cloud LLM was busy: its latency is in the figures"]
    )
    return Row(
        "calls", "calls", tuple(lines.verdicts), {name: list(rounds) for name, rounds in measured.items()}, (), tuple(notes)
    )


def memory_row(ours: Rounds, peer: Rounds) -> Row:
    """Memory after many calls."""
    result, lines = ours[0], Lines()
    sizes = [phase["memory_mib"] for phase in result["phases"].values()]
    calls = sum(phase["calls"] for phase in result["phases"].values())
    growth = sizes[-1] - sizes[len(sizes) // 4]
    beside = f"LiteLLM {_text(spread(_phase(peer, 'calls', 'memory_mib')), 'MiB')} after fewer" if peer else ""
    told = f"{sizes[-1]:.0f} MiB after {calls} calls; idle {result['idle_mib']:.0f}"
    lines.at_most("memory after many calls", beside, told, sizes[-1], round(GOALS.memory_mib), " MiB")
    trend = ", ".join(f"{size:.0f}" for size in sizes)
    lines.at_most("its growth over the last three quarters", "", f"{growth:.1f} MiB ({trend})", growth, GOALS.growth_mib, " MiB")
    _books(lines, [result["audit"]])
    return Row("memory", "memory", tuple(lines.verdicts), {"ours": list(ours)}, (), ())


def idle_row(rounds: Rounds) -> Row:
    """Many idle devices."""
    lines = Lines()
    memory = spread(result["memory_mib"] for result in rounds)
    devices = rounds[0]["devices"]
    lines.at_most(f"memory with {devices} idle devices", "", _text(memory, "MiB"), memory.median, round(GOALS.idle_mib), " MiB")
    slowed = spread(
        result["ms"]["beside"]["p50"] / ((result["ms"]["alone"]["p50"] + result["ms"]["after"]["p50"]) / 2) for result in rounds
    )
    lines.at_most("p50 beside them", "p50 without them", _text(slowed, "x"), slowed.median, GOALS.idle_p50_times)
    resting = spread(100 * result["cpu_share_idle"] for result in rounds)
    lines.told("processor while they only watch", "", _text(resting, "% of a core"))
    return Row("idle", "idle devices", tuple(lines.verdicts), {"ours": list(rounds)}, (), ())


def recovery_row(rounds: Rounds, holds: int) -> Row:
    """After SIGKILL."""
    lines = Lines()
    start = spread(result["start_s"] for result in rounds)
    entries = rounds[0]["audit"]["entries"]
    what = f"SERVING after SIGKILL, {entries} journal entries, {holds} open holds"
    lines.at_most(what, "", _text(start, "s"), start.median, GOALS.recovery_s, " s")
    unresolved = sum(abs(holds - result["in_doubt"]) for result in rounds)
    lines.at_most("open holds not charged as in doubt", "", str(unresolved), unresolved, 0, "")
    differences = sum(result["audit"]["differences"] + result["audit"]["overspends"] for result in rounds)
    lines.at_most("overspends and differences afterwards", "", str(differences), differences, 0, "")
    return Row("recovery", "recovery", tuple(lines.verdicts), {"ours": list(rounds)}, (), ())


def soak_row(result: Mapping[str, Any]) -> Row:
    """What grew between the look after the first quarter and the last one; descriptors, threads and tasks at rest."""
    lines, looks = Lines(), result["looks"]
    first, last = looks[max(0, len(looks) // 4 - 1)], looks[-1]
    bounds = (GOALS.soak_descriptors, GOALS.soak_threads, GOALS.soak_tasks, GOALS.soak_growth_mib)
    for at, (name, bound) in enumerate(zip(("descriptors", "threads", "tasks", "MiB of memory"), bounds, strict=True)):
        trend = ", ".join(f"{each[at]:.0f}" for each in looks)
        lines.at_most(f"growth under load with faults: {name}", "", trend, last[at] - first[at], bound, "")
    wrong = result["differences"] + result["open"] + (not result["rested"])
    lines.at_most("differences, open holds and calls without end", "", str(wrong), wrong, 0, "")
    answered = result["outcomes"].get("answered", 0)
    lines.at_least("answered requests", "", str(answered), answered, 100, "")
    others = ", ".join(f"{name} {count}" for name, count in sorted(result["outcomes"].items()))
    return Row("soak", "soak", tuple(lines.verdicts), {"ours": [result]}, (), (f"{result['asked']} upstream requests; {others}",))


def profile_lines(profile: Mapping[str, Any]) -> list[str]:
    """Where our processor time goes, by thread."""
    lines = []
    threads: Mapping[str, float] = profile["threads_s"]
    total = sum(threads.values()) or 1.0
    lines.append("processor time: " + ", ".join(f"{name} {100 * value / total:.0f} %" for name, value in threads.items()))
    for name in ("loop", "ledger"):
        shares = ", ".join(f"{function} {100 * share:.0f} %" for function, share in list(profile[name]["ours"].items())[:14])
        lines.append(f"{name} thread, on the stack: {shares}")
    return lines


def _latencies(lines: Lines, ours: Rounds, peer: Rounds) -> None:
    for name, bound, times_bound in (
        ("p50", GOALS.added_p50_ms, GOALS.added_p50_times),
        ("p99", GOALS.added_p99_ms, GOALS.added_p99_times),
    ):
        mine = spread(_added(ours, name))
        lines.at_most(f"added {name}, one call at a time", "the upstream's p50", _text(mine, "ms"), mine.median, bound, " ms")
        if peer:
            other = spread(_added(peer, name))
            times = other.median / mine.median
            lines.at_least(f"added {name}, times lower", f"LiteLLM {_text(other, 'ms')}", f"{times:.1f}x", times, times_bound)


def _throughputs(lines: Lines, measured: Mapping[str, Rounds]) -> None:
    ours, peer = measured["ours"], measured.get("litellm", ())
    unary = _per_core(ours, "calls")
    lines.at_least("Complete per core", "", _rate_text(unary, "calls/s"), unary.median, GOALS.calls_per_core_s, "/s")
    if peer:
        other = _per_core(peer, "calls")
        times = unary.median / other.median
        against = f"LiteLLM {_rate_text(other, 'calls/s')}"
        lines.at_least("Complete per core, times more", against, f"{times:.1f}x", times, GOALS.calls_times)
    wanted = (
        ("batch", "CompleteBatch", GOALS.batch_per_core_s),
        ("close", "CloseStep", GOALS.controls_per_core_s),
        ("budget", "GetBudget", GOALS.controls_per_core_s),
    )
    for phase, name, bound in wanted:
        rate = _per_core(ours, phase)
        lines.at_least(f"{name} per core", "", _rate_text(rate, "calls/s"), rate.median, bound, "/s")


def _books(lines: Lines, audits: Sequence[Mapping[str, Any]]) -> None:
    calls = sum(audit["upstream_requests"] for audit in audits)
    wrong = {
        name: sum(audit[name] for audit in audits) for name in ("overspends", "lost", "doubled", "undercharged", "differences")
    }
    told = ", ".join(f"{count} {name}" for name, count in wrong.items())
    total = sum(wrong.values())
    lines.at_most(f"books of {calls} calls against the upstream's log", "", told, total, 0, "")


def _added(rounds: Rounds, name: str) -> list[float]:
    """Above what the upstream itself takes, by its median."""
    phases = [result["phases"]["latency"] for result in rounds]
    return [phase["ms"][name] - phase["direct_ms"]["p50"] for phase in phases]


def _per_core(rounds: Rounds, phase: str) -> Spread:
    found = [result["phases"][phase] for result in rounds]
    return spread(each["calls"] / max(each["spent_s"]["service"], 0.01) for each in found)


def _upstream_shares(rounds: Rounds) -> list[float]:
    phases = [phase for result in rounds for phase in result["phases"].values()]
    return [phase["spent_s"].get("upstream", 0.0) / phase["spent_s"]["wall"] for phase in phases]


def _phase(rounds: Rounds, phase: str, name: str) -> list[float]:
    return [result["phases"][phase][name] for result in rounds]


def _peer_text(peer: Rounds, name: str, unit: str) -> str:
    return f"LiteLLM {_text(spread(result[name] for result in peer), unit)}" if peer else ""


def _error_notes(measured: Mapping[str, Rounds]) -> list[str]:
    found = [
        f"{name}, {key}: {count} x {text}"
        for name, rounds in measured.items()
        for result in rounds
        for key, phase in result["phases"].items()
        for text, count in phase["errors"].items()
    ]
    return found[:10]


def _text(found: Spread, unit: str) -> str:
    first, third = found.quartiles
    return f"{found.median:.2f} {unit} ({first:.2f}-{third:.2f})"


def _rate_text(found: Spread, unit: str) -> str:
    first, third = found.quartiles
    return f"{found.median:.0f} {unit} ({first:.0f}-{third:.0f})"

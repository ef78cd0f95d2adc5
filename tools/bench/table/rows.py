"""Converts measured parts to rows of the table: comparisons and goals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from edge.training.floor import PASSES, PASSES_WITH_CHECKPOINTING, DeviceSpeed, Floor, ModelCost, StepWork, step_floor
from tools.bench.harness import BenchRow, Rounds, Spread, spread

RATES = ("infer_flop_per_s", "train_fp32_flop_per_s", "train_bf16_flop_per_s")
OVERLAPPING = "cloud"
"""The one entry of a step's seconds that is no part of its own: it runs during the rollouts."""
SAME_CLOUD = "the cloud of both sides answers at once: ours through the coordinator and its ledger, the peer's by assumption"
NO_GATE = "our steps are those of `edge-agent learn`, without a promotion gate; the peer has none"
MEMORY_GOALS = {"qwen2.5-0.5b": 1.6, "qwen2.5-1.5b": 3.0}
"""GB (10^9 bytes) of one process that serves, rolls out and trains."""
MEMORY_GOAL = "Q4_K_M, lean"
TRL_NAMES = {
    "fp32": "TRL fp32",
    "defaults": "TRL, its defaults",
    "tuned": "TRL fp32, allocator tuned",
    "bf16": "TRL bf16, checkpointing",
}


def step_seconds(rounds: Rounds) -> Spread:
    """Seconds of all steps after the warm-up, over all rounds."""
    return spread(step["seconds"] for result in rounds for step in result["steps"])


def peak_mib(rounds: Rounds) -> Spread:
    """Peak memory of the processes, one a round; of ours with the processes it has started."""
    return spread(result["peak_mib"] + result.get("children_peak_mib", 0.0) for result in rounds)


def faster(mine: Spread, other: Spread) -> tuple[float, str]:
    """How many times our seconds are in theirs, and both as text."""
    found = other.median / mine.median
    return found, f"{found:.1f}x faster: {mine.text('s')} against {other.text('s')}"


def of_it(mine: Spread, other: Spread) -> tuple[float, str]:
    """The share that our memory is of theirs, and both as text."""
    share = mine.median / other.median
    return share, f"{share:.2f} of it: {mine.median:.0f} MiB against {other.median:.0f} MiB"


def parts_of(rounds: Rounds) -> dict[str, Spread]:
    """Seconds of the parts of our steps."""
    steps = [step["seconds_by_part"] for result in rounds for step in result["steps"]]
    return {name: spread(step[name] for step in steps) for name in steps[0] if name != OVERLAPPING}


def small_row(ours: Rounds, with_cloud: Rounds, peers: Mapping[str, Rounds]) -> BenchRow:
    """One step of the bundled model against TRL in three settings; also `with_cloud`, whose cloud LLM runs on the same cores."""
    mine, memory = step_seconds(ours), peak_mib(ours)
    seconds = {name: step_seconds(rounds) for name, rounds in peers.items()}
    memories = {name: peak_mib(rounds) for name, rounds in peers.items()}
    best = min(seconds, key=lambda name: seconds[name].median)
    lean = min(memories, key=lambda name: memories[name].median)
    what = f"one DA-GRPO step, {ours[0]['model']['parameters'] / 1e6:.1f} M parameters, {_batch(ours)}"
    row = BenchRow(
        "small",
        "one step of the bundled model",
        {"ours": list(ours), "peers": dict(peers)},
        profile=(*time_profile(ours), *memory_profile(ours)),
        notes=(_advantages(peers), NO_GATE, SAME_CLOUD, *_notices(ours)),
    )
    for name, bound in dict.fromkeys((("fp32", 6.0), (best, 4.5))):
        found, text = faster(mine, seconds[name])
        row.at_least(what, TRL_NAMES[name] + (" (its best)" if name == best else ""), text, found, bound)
    share, text = of_it(memory, memories[lean])
    row.at_most("its peak memory, coordinator included", f"{TRL_NAMES[lean]} (its leanest)", text, share, 0.45)
    for name in peers:
        if name not in ("fp32", best):
            found, _ = faster(mine, seconds[name])
            row.without_goal(what, TRL_NAMES[name], f"{found:.1f}x faster, {memories[name].median:.0f} MiB")
    step, both = step_seconds(with_cloud), peak_mib(with_cloud)
    found, _ = faster(step, seconds[best])
    text = f"{found:.1f}x faster than its best: {step.text('s')}, {both.median:.0f} MiB"
    row.without_goal(f"{what}, the bundled cloud LLM answering on the same cores", TRL_NAMES[best], text)
    return row


def large_row(ours: Mapping[str, Rounds], peer: Rounds, shape: str) -> BenchRow:
    """One step of the real shape against TRL in bf16 with checkpointing; with and without checkpointing on our side."""
    row = _row_of("large", f"one step at the {shape} shape", next(iter(ours.values())), {"bf16": peer})
    row.data = {"ours": dict(ours), "peers": {"bf16": list(peer)}}
    for name, rounds in ours.items():
        what = f"one step at the {shape} shape, {name}, {_batch(rounds)}"
        found, text = faster(step_seconds(rounds), step_seconds(peer))
        row.at_least(what, TRL_NAMES["bf16"], text, found, 4.0)
        share, text = of_it(peak_mib(rounds), peak_mib(peer))
        row.at_most(f"its peak memory, coordinator included ({name})", TRL_NAMES["bf16"], text, share, round(1 / 3, 3))
    return row


def smollm2_row(ours: Rounds, guided: Rounds, peers: Mapping[str, Rounds]) -> BenchRow:
    """One step of a public model against TRL: seconds against its fastest setting, memory against its leanest. `guided` is our step with
    responses in their form, which the peer has not."""
    row = _row_of("smollm2", "one step of SmolLM2-135M", ours, peers)
    row.data = {"ours": list(ours), "guided": list(guided), "peers": dict(peers)}
    best = min(peers, key=lambda name: step_seconds(peers[name]).median)
    lean = min(peers, key=lambda name: peak_mib(peers[name]).median)
    what = f"one DA-GRPO step of SmolLM2-135M, word problems, {_batch(ours)}, {_tokens(ours)}"
    found, text = faster(step_seconds(ours), step_seconds(peers[best]))
    row.at_least(what, f"{TRL_NAMES[best]} (its best)", text, found, 4.0)
    share, text = of_it(peak_mib(ours), peak_mib(peers[lean]))
    row.at_most("its peak memory, coordinator included", f"{TRL_NAMES[lean]} (its leanest)", text, share, round(1 / 3, 3))
    for name in peers:
        if name not in (best, lean):
            row.without_goal(
                what, TRL_NAMES[name], f"{step_seconds(peers[name]).median:.0f} s, {peak_mib(peers[name]).median:.0f} MiB"
            )
    text = f"{step_seconds(guided).text('s')}, {peak_mib(guided).median:.0f} MiB"
    row.without_goal(f"the same with responses in their form, {_tokens(guided)}", "-", text)
    return row


def _row_of(name: str, title: str, ours: Rounds, peers: Mapping[str, Rounds]) -> BenchRow:
    notes = (_advantages(peers), *(_generation_share(peer) for peer in peers.values()), NO_GATE, *_notices(ours))
    return BenchRow(name, title, profile=(*time_profile(ours), *memory_profile(ours)), notes=notes)


def rollout_row(measured: Mapping[str, tuple[Rounds, Rounds, Rounds]]) -> BenchRow:
    """Rollout tokens/s against the batched bench; every entry is (ours, theirs with shared prompts, theirs without)."""
    data: dict[str, Any] = {}
    profile: list[str] = []
    row = BenchRow("rollout", "rollout tokens/s", data, profile)
    for name, (ours, shared, alone) in measured.items():
        mine, other = tokens_per_s(ours), tokens_per_s(shared)
        for theirs, way, goal in ((other, "shared prompts (-pps)", 0.95), (tokens_per_s(alone), "every row its own prompt", 1.3)):
            ratio = mine.median / theirs.median
            text = f"{ratio:.2f}: {mine.text('tokens/s', 0)} against {theirs.median:.0f} {theirs.range()}"
            row.at_least(f"rollout tokens/s, {name}", f"llama.cpp's batched bench, {way}", text, ratio, goal, unit="")
        data[name] = {"ours": list(ours), "shared": list(shared), "alone": list(alone)}
        lost = (
            1000 * (1 / mine.median - 1 / other.median) * int(name.rpartition(", ")[2].split()[0])
        )  # of `nano-edge Q8_0, 32 rows`
        profile.append(f"{name}: {lost:.2f} ms more a decode than the bench, which neither samples nor keeps log-probabilities")
    return row


def tokens_per_s(rounds: Rounds) -> Spread:
    """Of all repeats of all rounds."""
    return spread(result["tokens"] / seconds for result in rounds for seconds in result["seconds"])


def floor_row(speeds: Rounds, steps: Mapping[str, tuple[Rounds, str, int, float]]) -> BenchRow:
    """Whole steps against the floor. Every entry is (our rounds, the model's name in `speeds`, rows at most, the goal).

    The rates are the best that any round reached with this very model, as `edge-agent doctor --measure` takes them.
    """
    bytes_per_s, models = max(result["bytes_per_s"] for result in speeds), _best(speeds)
    data: dict[str, Any] = {"speeds": list(speeds)}
    profile: list[str] = []
    notes = (f"BW {bytes_per_s / 1e9:.1f} GB/s", *(_rates_text(name, rates) for name, rates in models.items()))
    row = BenchRow("floor", "a step against its floor", data, profile, notes)
    for name, (rounds, model, most_rows, goal) in steps.items():
        rates = models[model]
        train = rates["train_bf16_flop_per_s"] if rates["bf16"] else rates["train_fp32_flop_per_s"]
        speed = DeviceSpeed(bytes_per_s, rates["infer_flop_per_s"], train)
        found = [step_against_floor(result, rates, most_rows, speed) for result in rounds]
        factors = spread(value for factors, _ in found for value in factors)
        row.at_most(
            f"whole step, {name}", "the floor of section 6", f"{factors.median:.1f}x {factors.range(1)}", factors.median, goal
        )
        floors = [floor for _, floors in found for floor in floors]
        data[name] = {"times_floor": factors.samples, "floor": _floor_parts(floors)}
        profile += floor_profile(name, rounds, floors)
    return row


def step_against_floor(
    result: Mapping[str, Any], model: Mapping[str, Any], most_rows: int, speed: DeviceSpeed
) -> tuple[list[float], list[Floor]]:
    """Achieved time / floor of every step, and the floors."""
    cost = ModelCost(model["weights"], model["block_weights"], model["bytes_per_weight"], model["kv_bytes_per_token"])
    factors, floors = [], []
    for step, counts in zip(result["steps"], result["counts"], strict=True):
        work = StepWork(
            prompts=counts["prompts"],
            group_size=counts["responses"] / counts["prompts"],
            prompt_tokens=counts["prompt_tokens"],
            response_tokens=counts["response_tokens"],
            rows=min(most_rows, counts["responses"]),
            dropped_share=step["frac_reward_zero_std"],
            passes=PASSES_WITH_CHECKPOINTING if result["checkpointing"] else PASSES,
        )
        floors.append(step_floor(speed, cost, work))
        factors.append(step["seconds"] / floors[-1].total_s)
    return factors, floors


def memory_row(measured: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> BenchRow:
    """Peak memory of one process that serves, rolls out and trains, by shape and by quantisation and settings."""
    profile: list[str] = []
    notes = (
        "lean is gradient checkpointing, micro-batches of 512 tokens, engine.repack off and EDGE_AGENT_ALLOCATOR=lean",
        "weights are mapped by the engine and by the learner: their pages are one copy and counted once, or as often as they are mapped",
        "as in `edge-agent run` a promotion gate judges the step, on 2 anchors; its second engine is counted",
    )
    data = {shape: dict(by_setting) for shape, by_setting in measured.items()}
    row = BenchRow("memory", "memory of one process", data, profile, notes)
    for shape, by_setting in measured.items():
        for setting, result in by_setting.items():
            gigabytes, mapped_twice = (mebibytes * (1 << 20) / 1e9 for mebibytes in (result["once_mib"], result["peak_mib"]))
            what = f"peak memory at the {shape} shape, {setting}: serving, rollouts and training in one process"
            step = f"a step of {step_seconds([result]).median:.0f} s, {result['answers']} answers served meanwhile"
            text = f"{gigabytes:.2f} GB ({mapped_twice:.2f} as mapped); {step}"
            if setting == MEMORY_GOAL and shape in MEMORY_GOALS:
                row.at_most(what, "-", text, gigabytes, MEMORY_GOALS[shape], unit=" GB")
            else:
                row.without_goal(what, "-", text)
            profile += [f"{shape} {setting}, {entry}" for entry in memory_profile([result])]
    return row


# -- where it goes -------------------------------------------------------------------------------------------------------------------


def time_profile(ours: Rounds) -> list[str]:
    """Median seconds and share of every part of our steps."""
    total, parts = step_seconds(ours).median, parts_of(ours)
    shares = [f"{name} {part.median:.2f} s ({part.median / total:.0%})" for name, part in parts.items()]
    rest = total - sum(part.median for part in parts.values())
    return [f"time of a step {total:.2f} s: {', '.join(shares)}, between steps {max(0.0, rest):.2f} s"]


def memory_profile(ours: Rounds) -> list[str]:
    """Resident memory at the fullest moment of every part, of the last round."""
    entries = []
    for name, found in ours[-1]["memory_by_part"].items():
        entries.append(
            f"{name}: {found['rss_mib']:.0f} MiB ({found['anon_mib']:.0f} allocated, {found['file_mib']:.0f} mapped files)"
        )
    return [f"memory by part: {'; '.join(entries)}"]


def floor_profile(name: str, ours: Rounds, floors: Sequence[Floor]) -> list[str]:
    """Our parts compared with the floor's."""
    parts, floor = parts_of(ours), _floor_parts(floors)
    rollout, update = parts["rollout"].median, parts["update"].median
    rest = max(0.0, step_seconds(ours).median - rollout - update)
    return [
        f"{name}: rollout {rollout:.2f} s, floor {floor['prefill_s'] + floor['decode_s']:.2f} s (prompts {floor['prefill_s']:.2f}, "
        f"decoding {floor['decode_s']:.2f}, bound by {floors[0].decode_bound}); update {update:.2f} s, floor {floor['training_s']:.2f} s; "
        f"all else {rest:.2f} s, floor 0"
    ]


def _floor_parts(floors: Sequence[Floor]) -> dict[str, float]:
    return {
        name: spread(getattr(floor, name) for floor in floors).median
        for name in ("prefill_s", "decode_s", "training_s", "total_s")
    }


def _best(speeds: Rounds) -> dict[str, dict[str, Any]]:
    """The best of every rate over the rounds, by model."""
    models: dict[str, dict[str, Any]] = {}
    for result in speeds:
        for name, rates in result["models"].items():
            known = models.setdefault(name, dict(rates))
            known |= {rate: max(known[rate], rates[rate]) for rate in RATES}
    return models


def _rates_text(name: str, rates: Mapping[str, Any]) -> str:
    infer, fp32, half = (rates[rate] / 1e9 for rate in RATES)
    return f"{name}: F_i {infer:.0f}, F_t {fp32:.0f} (fp32) and {half:.0f} (bf16) GFLOP/s"


def _advantages(peers: Mapping[str, Rounds]) -> str:
    error = max(result["advantage_error"] for rounds in peers.values() for result in rounds)
    versions = next(iter(peers.values()))[0]["versions"]
    return f"TRL {versions['trl']}: its advantages are r - λc centred in the group at every step (largest difference {error:.1e})"


def _generation_share(peer: Rounds) -> str:
    shares = spread(step["generate_s"] / step["seconds"] for result in peer for step in result["steps"])
    return f"TRL generates for {shares.median:.0%} of its step"


def _notices(ours: Rounds) -> list[str]:
    """Notices of the agent that make a measurement doubtful: refused updates."""
    refused = {step["learner_skipped"] for result in ours for step in result["steps"] if step["learner_skipped"]}
    return [f"an update was left out: {reason}" for reason in sorted(refused)]


def _tokens(ours: Rounds) -> str:
    """`180 + 100 tokens`, of a prompt and of a response."""
    counts = ours[0]["counts"][0]
    return f"{counts['prompt_tokens']:.0f} + {counts['response_tokens']:.0f} tokens"


def _batch(ours: Rounds) -> str:
    """`16 prompts x G=8`."""
    counts = ours[0]["counts"][0]
    return f"{counts['prompts']:g} prompts x G={counts['responses'] / counts['prompts']:g}"

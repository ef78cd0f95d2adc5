"""`edge-agent doctor --measure`: what this machine reaches with the chosen model, and what follows from it.

The numbers come from the engine itself, from torch, and from the formulas of edge.training. Nothing is written (but the graph of an ONNX
engine where there is none) and nothing stays open, also when it is interrupted.
"""

from __future__ import annotations

import asyncio
import importlib.util
import platform
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from edge import sizing
from edge.app import engines, settings
from edge.config.device import DecodeRate, DeviceConfig, SpeedConfig
from edge.config.schema import AgentConfig
from edge.core.clock import Clock, SystemClock
from edge.core.errors import ContextOverflow, EdgeError, UsageError
from edge.core.formatting import counted, percent
from edge.core.machine import battery_wh, cpu_name, drawn_w, machine_facts, usable_cores
from edge.core.types import Message, Sampling
from edge.core.worker import EngineWorker
from edge.dagrpo.prompts import prompt_messages
from edge.state.reader import reading
from edge.tasks.registry import open_source
from edge.training.floor import PASSES, PASSES_WITH_CHECKPOINTING, Floor, ModelCost, StepWork, step_floor
from edge.training.memory import BatchAdvice, MicroBatch, batch_advice, probe_groups, rows_worth

if TYPE_CHECKING:
    from edge.inference.batched import BatchedBackend

Say = Callable[[str], None]
POINT_S = 1.0
"""About how long one number is measured."""
_PREFILL_TOKENS, _DECODE_PROMPT_TOKENS, _FIRST_CALLS, _FEWEST_CALLS, _MOST_CALLS = 256, 16, 4, 12, 96
_ROWS_FROM = 8
"""After a single row, measuring goes on with this many: fewer are never recommended by default (edge.inference.batched)."""
_HARDLY_FASTER, _TRIES = 1.1, 2
_SWEEP_S = 20.0
_SAMPLE_S, _SAMPLE_PROMPTS = 8.0, 2
_TRAINING_TOKENS = 1024
_PRACTICE = "practice:group1"
BUDGET_S = 10.0
"""No further batch is learned after this many seconds."""
_SHORTEST_TOKENS, _PROMPT_TOKENS = 16, 32


@dataclass(frozen=True, slots=True)
class EngineRates:
    """What the engine reached: tokens/s of one prompt, and of all rows together by number of rows, after a short prompt.

    `prompt_tokens` and `response_tokens` are means over the configured tasks; `sampled` is false where responses took too long to sample
    and the longest allowed length is used instead. `complete` is false where time was up before all numbers of rows were measured.
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: dict[int, float]
    prompt_tokens: float
    response_tokens: float
    sampled: bool
    complete: bool = True


@dataclass(frozen=True, slots=True)
class LastSteps:
    """What the last learning steps of the state folder took: seconds a step, and the shares of its parts.

    `tail` is what follows the update: checkpoint, report, gate and the change of adapters. `times_floor`: how many times the floor of
    their own batches (None: not known on this device).
    """

    steps: int
    seconds: float
    rollout: float
    update: float
    tail: float
    times_floor: float | None


@dataclass(frozen=True, slots=True)
class MachineMeasures:
    """Everything: `device` is what a profile holds; the floor is that of a step with the recommended batch (None: torch is not there).
    `last_steps`: of this agent's own learning (None: it has none)."""

    device: DeviceConfig
    cost: ModelCost
    rates: EngineRates
    advice: BatchAdvice
    floor: Floor | None
    last_steps: LastSteps | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data with units in the names."""
        floor = None if self.floor is None else {**asdict(self.floor), "total_s": self.floor.total_s}
        lengths = {"prompt_tokens": self.rates.prompt_tokens, "response_tokens": self.rates.response_tokens}
        return {
            "measured": self.device.model_dump(mode="json"),
            "model": asdict(self.cost),
            "tasks": {**lengths, "responses_sampled": self.rates.sampled},
            "all_rows_measured": self.rates.complete,
            "recommended": asdict(self.advice),
            "floor": floor,
            "last_steps": self.last_steps and asdict(self.last_steps),
        }

    def settings(self) -> dict[str, dict[str, Any]]:
        """The recommendation as sections of a configuration."""
        memory: dict[str, Any] = {"micro_batch_tokens": self.advice.micro_batch_tokens}
        if self.advice.gradient_checkpointing:
            memory["gradient_checkpointing"] = "on"
        return {"engine": {"max_rows": self.advice.rows}, "learning": {"prompts_per_step": self.advice.prompts, "memory": memory}}


def measure(config: AgentConfig, say: Say) -> MachineMeasures:
    """Measure the configured model on this machine; `say` gets each stage as it begins. Raises ModelFileError, UsageError."""
    clock, path, idle_w = SystemClock(), settings.model_file(config.model.path), drawn_w()
    last = last_steps(settings.state_folder(config))  # first, since a folder that cannot be read ends it
    config = engines.with_its_device(config, path)
    rates = asyncio.run(engine_rates(config, path, say, clock))
    power = _power(idle_w, drawn_w())
    trainer = _trainer_rates(config, path, say, clock)
    training = asyncio.run(training_tokens_per_s(config, path, rates.response_tokens, say))
    cost, shape, cores = sizing.model_cost(path), sizing.model_shape(path), usable_cores()
    prefill = _rounded(rates.prefill_tokens_per_s)
    decode = tuple(DecodeRate(rows=rows, tokens_per_s=_rounded(rate)) for rows, rate in rates.decode_tokens_per_s.items())
    products = max(cost.block_weights * rates.prefill_tokens_per_s, cost.weights * max(rates.decode_tokens_per_s.values()))
    speed = SpeedConfig(
        model=path.stem,
        prefill_tokens_per_s=prefill,
        decode=decode,
        training_tokens_per_s=None if training is None else _rounded(training),
    )
    device = DeviceConfig(
        name=f"{cpu_name() or platform.machine()}, {cores} cores",
        measured_on=datetime.fromtimestamp(clock.now(), UTC).date().isoformat(),
        backend=engines.choose_engine(config, path).name,
        cores=cores,
        memory_mib=psutil.virtual_memory().total >> 20,
        infer_gflop_per_s=_rounded(2e-9 * products),
        model=path.stem,
        prefill_tokens_per_s=prefill,
        decode=decode,
        machine=machine_facts().fingerprint,
        speeds=(speed,),
        **power,
        **trainer,
    )
    rows = rows_worth(rates.decode_tokens_per_s)
    setting = replace(sizing.training_setting(config, path), rows=rows)
    advice = batch_advice(shape, sizing.batch_limits(config, path), setting, rows, sizing.training_memory(config))
    floor = None
    if device.bandwidth_gb_per_s and (reached := sizing.device_speed(device, sizing.trains_in_bf16(config, shape.parameters))):
        work = StepWork(
            prompts=advice.prompts,
            group_size=advice.group_size,
            prompt_tokens=rates.prompt_tokens,
            response_tokens=rates.response_tokens,
            rows=min(advice.rows, advice.prompts * advice.group_size),
            passes=PASSES_WITH_CHECKPOINTING if advice.gradient_checkpointing else PASSES,
        )
        floor = step_floor(reached, cost, work)
    return MachineMeasures(device, cost, rates, advice, floor, last)


_LAST_STEPS = 50


def last_steps(folder: Path) -> LastSteps | None:
    """Where the time of the last steps in a state folder went."""
    with reading(folder) as state:
        times = [step.time for step in state.steps(last=_LAST_STEPS)] if state is not None else []
    total = sum(time.seconds for time in times)
    if not total:
        return None
    rollout, update = (sum(getattr(time.seconds_by_part, part) for time in times) / total for part in ("rollout", "update"))
    floored = [time for time in times if time.floor_s]
    floor_s = sum(time.floor_s or 0.0 for time in floored)
    times_floor = sum(time.seconds for time in floored) / floor_s if floor_s else None
    return LastSteps(len(times), total / len(times), rollout, update, 1.0 - rollout - update, times_floor)


def _rounded(value: float) -> float:
    """To four digits: more is noise."""
    return float(f"{value:.4g}")


def _power(idle_w: float | None, busy_w: float | None) -> dict[str, float]:
    """Watts before and right after the engine worked, where a battery's gauge reports both and they make sense; and its capacity."""
    full_wh = battery_wh()
    power = {} if full_wh is None else {"battery_wh": _rounded(full_wh)}
    if idle_w is not None and busy_w is not None and idle_w < busy_w:
        power |= {"idle_w": _rounded(idle_w), "busy_w": _rounded(busy_w)}
    return power


# -- the engine --------------------------------------------------------------------------------------------------------------------


async def engine_rates(config: AgentConfig, path: Path, say: Say, clock: Clock) -> EngineRates:
    """Open the engine as `run` would, measure it, and close it again."""
    from edge.inference.batched import BatchedBackend

    with closing(EngineWorker()) as worker:
        say(f"opening {path.stem}")
        async with aclosing(await engines.open_backend(config, path, worker)) as backend:
            if not isinstance(backend, BatchedBackend):
                raise UsageError("this engine has no rows to measure")
            context = sizing.row_tokens(config, path)
            messages = _messages(config, backend)
            prompts: list[Sequence[int]] = []
            for one in messages:
                with suppress(ContextOverflow):  # it leaves no room for an answer
                    prompts.append(backend.prompt_ids(one))
            prompts = prompts or [(1,)]
            ids = list(islice(cycle(prompts[0]), context))
            say("prompt tokens/s")
            length = max(1, min(_PREFILL_TOKENS, context - 2))
            prefill_s = max(1e-9, await _quickest(partial(backend.feed, ids[:length], ids[:1], 1), clock))
            decode, complete = await _decode_rates(backend, ids, say, clock)
            say("lengths of answers")
            response_tokens = await _response_tokens(config, backend, messages)
            longest = min(config.learning.max_tokens, context)
            prompt_tokens, sampled = sum(map(len, prompts)) / len(prompts), response_tokens is not None
            return EngineRates(length / prefill_s, decode, prompt_tokens, response_tokens or longest, sampled, complete)


def _messages(config: AgentConfig, backend: BatchedBackend) -> list[tuple[Message, ...]]:
    """The first tasks as the model reads them."""
    form = settings.local_prompt_form(config)
    form = backend.model.prompt_form if form == "auto" else form
    try:
        items = list(
            islice(open_source(config.phases[0].source, config.phases[0].columns).train(config.learning.seed), _SAMPLE_PROMPTS)
        )
    except EdgeError:  # a data set that is not here yet is no reason not to measure
        items = list(islice(open_source(_PRACTICE).train(config.learning.seed), _SAMPLE_PROMPTS))
    return [prompt_messages(item, form) for item in items]


async def _decode_rates(backend: BatchedBackend, ids: Sequence[int], say: Say, clock: Clock) -> tuple[dict[int, float], bool]:
    """Tokens/s for growing numbers of rows (1, 8, 16, 32 ...), up to all or until more are hardly faster twice running; false when time
    was up before. One row is measured again with more calls."""
    say("generation with 1 row")
    call_s = await _call_s(backend, ids, _FIRST_CALLS, 1, clock)
    rates, to_try, hardly = {1: 1 / call_s}, [1], 0
    while (following := max(_ROWS_FROM, 2 * to_try[-1])) < backend.rollout_rows:
        to_try.append(following)
    try:
        async with asyncio.timeout(_SWEEP_S):
            for rows in dict.fromkeys([*to_try, backend.rollout_rows]):
                if rows > 1:
                    say(f"generation with {rows} rows")
                best = max(rates.values())
                call_s = await _call_s(backend, ids, max(_FEWEST_CALLS, round(POINT_S / _TRIES / call_s)), rows, clock)
                rates[rows] = rows / call_s
                hardly = hardly + 1 if rows > 1 and rates[rows] < _HARDLY_FASTER * best else 0
                if hardly == _TRIES:
                    break
    except TimeoutError:
        return rates, False
    return rates, True


async def _call_s(backend: BatchedBackend, ids: Sequence[int], calls: int, rows: int, clock: Clock) -> float:
    """Seconds of one decode of this many rows: what many tokens take beyond the prompt and the first one, which comes from the prompt."""
    prompt = ids[: min(_DECODE_PROMPT_TOKENS, len(ids) // 2)]
    calls = max(1, min(calls, _MOST_CALLS, len(ids) - len(prompt) - 1))
    short, long = [await _quickest(partial(backend.feed, prompt, ids[:count], rows), clock) for count in (1, calls + 1)]
    return max(long - short, long / 2, 1e-9) / calls  # the prompt is short: more than half of it is never the prompt


async def _quickest(call: Callable[[], Awaitable[None]], clock: Clock) -> float:
    """Seconds of the faster of two calls, or of a single long one."""
    seconds: list[float] = []
    while len(seconds) < _TRIES and sum(seconds) < POINT_S:
        before = clock.monotonic()
        await call()
        seconds.append(clock.monotonic() - before)
    return min(seconds)


async def _response_tokens(config: AgentConfig, backend: BatchedBackend, messages: Sequence[tuple[Message, ...]]) -> float | None:
    """Mean length of sampled answers; None where they take too long."""
    sampling, seeds = Sampling(max_tokens=config.learning.max_tokens), range(config.learning.group_size)
    try:
        async with asyncio.timeout(_SAMPLE_S):
            groups = await asyncio.gather(*(backend.sample_group(one, sampling, seeds) for one in messages))
    except (TimeoutError, ContextOverflow):
        return None
    lengths = [len(response.token_ids) for group in groups for response in group.responses]
    return sum(lengths) / len(lengths) if lengths else None


# -- the trainer ---------------------------------------------------------------------------------------------------------------------


def _trainer_rates(config: AgentConfig, path: Path, say: Say, clock: Clock) -> dict[str, float]:
    """Bandwidth, products and dequantisation in torch; {} without it, and no rates of products where another engine trains."""
    from edge.models.gguf_reader import open_gguf
    from edge.models.streamed import stored_matrix

    if importlib.util.find_spec("torch") is None:
        return {}
    import torch

    from edge.training.device import BUFFER_BYTES, fastest, product_flop_per_s, read_bytes_per_s

    if config.learning.torch_threads:
        torch.set_num_threads(config.learning.torch_threads)
    say("memory bandwidth")
    device = sizing.training_device(config)
    buffer_bytes = min(BUFFER_BYTES, sizing.training_memory(config) // 8)
    rates = {"bandwidth_gb_per_s": 1e-9 * read_bytes_per_s(clock, POINT_S, buffer_bytes, device)}
    if engines.choose_engine(config, path).trains_in_torch:
        sizes = list(sizing.model_shape(path).linear_sizes().values())
        for name, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
            say(f"{name} products")
            speed = product_flop_per_s(sizes, _TRAINING_TOKENS, dtype, clock, 2 * POINT_S, device)
            rates[f"train_{name}_gflop_per_s"] = 1e-9 * speed
        say("dequantising")
        file = open_gguf(path)
        matrix = stored_matrix(file, "model.layers.0.mlp.down_proj.weight", file.decoder_spec())
        weights_per_s = matrix.shape[0] * matrix.shape[1] / fastest(matrix.dense, clock, POINT_S / 2)
        rates["dequantise_gweights_per_s"] = 1e-9 * weights_per_s
    return {name: _rounded(value) for name, value in rates.items()}


async def training_tokens_per_s(config: AgentConfig, path: Path, response_tokens: float, say: Say) -> float | None:
    """Tokens/s of an update, prompts counted once a group, of the longest batch that there is time for, or of a shorter one that was
    faster; None where nothing trains this model here, which `say` gets."""
    if engines.choose_engine(config, path).trains_in_torch and importlib.util.find_spec("torch") is None:
        return None
    say("training tokens/s")
    with closing(EngineWorker()) as worker:
        try:
            learner = await engines.open_learner(config, path, worker)
            spent, best, vocabulary = 0.0, 0.0, sizing.model_shape(path).vocab_size
            for batch in batches(config, response_tokens):
                report = await learner.update(probe_groups(batch, vocabulary))
                spent += report.seconds
                tokens = batch.prompts * batch.prompt_tokens + batch.rows * batch.response_tokens
                best = max(best, tokens / max(report.seconds, 1e-9))
                if spent > BUDGET_S:
                    break
            return best
        except EdgeError as error:
            say(f"no training ({error})")
            return None


def batches(config: AgentConfig, response_tokens: float) -> Iterator[MicroBatch]:
    """One group, its responses twice as long each time up to the mean of the tasks, the last one twice."""
    longest = max(1, min(round(response_tokens), config.learning.max_tokens, config.learning.context_tokens - _PROMPT_TOKENS))
    lengths, length = [longest, longest], _SHORTEST_TOKENS
    while length < longest:
        lengths.insert(-2, length)
        length *= 2
    for tokens in lengths:
        yield MicroBatch(prompts=1, prompt_tokens=_PROMPT_TOKENS, rows=config.learning.group_size, response_tokens=tokens)


# -- for a person --------------------------------------------------------------------------------------------------------------------


def measured_lines(measured: MachineMeasures) -> Iterator[str]:
    """The result in lines, every number with its unit."""
    device, rates, advice, floor, last = measured.device, measured.rates, measured.advice, measured.floor, measured.last_steps
    size = measured.cost.weights / 1e6
    yield f"measured with {device.model} ({size:.1f} M weights of {measured.cost.bytes_per_weight:.2f} bytes) on {device.name}"
    yield _line("memory bandwidth", device.bandwidth_gb_per_s, "GB/s")
    yield _line("arithmetic of inference", device.infer_gflop_per_s, "GFLOP/s")
    yield _line("prompt", device.prefill_tokens_per_s, "tokens/s")
    for rate in device.decode:
        yield _line(f"generation, {counted(rate.rows, 'row')}", rate.tokens_per_s, "tokens/s")
    yield _line("training, fp32", device.train_fp32_gflop_per_s, "GFLOP/s")
    yield _line("training, bf16", device.train_bf16_gflop_per_s, "GFLOP/s")
    yield _line("dequantising", device.dequantise_gweights_per_s, "G weights/s")
    for speed in device.speeds:
        yield _line("training, an update", speed.training_tokens_per_s, "tokens/s")
    yield "recommended"
    cut = "" if rates.complete else "; time was up before more were measured: is the machine busy?"
    yield _line("rows together", advice.rows, f"(engine.max_rows{cut})")
    prompts = "prompt" if advice.prompts == 1 else "prompts"
    batch = f"{prompts} x {counted(advice.group_size, 'response')} (learning.prompts_per_step, learning.group_size)"
    yield _line("batch", advice.prompts, batch)
    again = ", gradient checkpointing on" if advice.gradient_checkpointing else ""
    yield _line("micro-batch", advice.micro_batch_tokens, f"tokens{again} (learning.memory.micro_batch_tokens)")
    fits = "" if advice.fits else ", more than half of what is free: take a smaller model or a shorter context"
    yield _line("memory of learning", round(advice.memory_bytes / 2**20), f"MiB{fits}")
    if last is not None:
        floors = f", {last.times_floor:.1f} times the floor of their batches" if last.times_floor else ""
        shares = ", ".join(f"{part} {percent(getattr(last, part))}" for part in ("rollout", "update", "tail"))
        yield f"the last {counted(last.steps, 'step')} here: {last.seconds:.1f} s each ({shares}){floors}"
    if floor is None:
        yield "floor of a step: not known where torch does not train"
        return
    answers = f"{'' if rates.sampled else 'at most '}{rates.response_tokens:.0f}"
    yield f"least time of such a learning step (prompts of {rates.prompt_tokens:.0f} tokens, answers of {answers})"
    yield _line("prompts", floor.prefill_s, "s")
    bound = "memory bandwidth" if floor.decode_bound == "bandwidth" else "arithmetic"
    yield _line("generation", floor.decode_s, f"s (bound by {bound})")
    yield _line("update", floor.training_s, "s")
    yield _line("together", floor.total_s, "s")


def _line(name: str, value: float | None, unit: str) -> str:
    if value is None:
        return f"  {name:<20} not measured"
    return f"  {name:<20} {f'{value:,.0f}' if value >= 1000 else f'{value:.4g}':>10} {unit}"

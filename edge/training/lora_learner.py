"""What every learner of a LoRA adapter shares: the order of an update, when it is rejected, its report, and its files.

An engine (torch_learner.py, mlx_learner.py) adds the gradient and the optimiser. All work runs as jobs of slices on the shared engine
worker. The files are the same for every engine (a peft folder, and a state file under torch's parameter names), so a run can go on with
either; files go through torch, computing need not.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from edge.core.clock import Clock, SystemClock
from edge.core.errors import AdapterError, StateError
from edge.core.files import replacing, replacing_folder
from edge.core.limits import MOST_STEPS
from edge.core.types import GGUF_ADAPTER, AdapterRef, AllowedTokens, Demonstration, KeptAnswer, TrainingGroup
from edge.core.worker import EngineWorker, Job, Priority
from edge.training.batching import Reference, Row, imitated_rows, is_live, kept_rows, live_rows, next_rows
from edge.training.learner import (
    CHECKED_EVERY,
    KEPT_AT_ONCE,
    KNOWN_NATS,
    LIKELIEST,
    MOST_IMITATIONS,
    ROWS_AT_ONCE,
    Imitation,
    LearnerReport,
    LearnerSettings,
    LoraSpec,
)
from edge.training.lora import write_peft_folder
from edge.training.loss import NO_TOKENS, MismatchSums
from edge.training.memory import does_not_fit

AdapterConverter = Callable[[Path, Path], None]
"""Writes the GGUF form of a peft folder: (peft_folder, gguf_file)."""
Slices = Generator[None, None, None]
Readings = dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[float, Reference | None]]
"""log π (nats, summed over learned tokens) of responses, and what the model holds of each place, by prompt and tokens."""

STATE_FILE = "learner.safetensors"
FORMAT = 1
_HEADER = "state"
_OLDER = "go back to an older checkpoint"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
"""AdamW's state of a parameter: the count of updates (a scalar) and two tensors of the parameter's shape."""
_ADAPTER, _OPTIMISER = "adapter/", "optimiser/"


class Tally:
    """What an update adds up over its micro-batches."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.seconds = 0.0
        self.sums: MismatchSums = NO_TOKENS

    def add(self, loss: float, sums: MismatchSums) -> None:
        """Count one micro-batch."""
        self.loss += loss
        self.sums += sums


class LoraLearner(ABC):
    """See edge/training/learner.py for the contract. The methods without a body are what an engine brings.

    `step`: optimiser steps made so far; rejected and empty updates do not count.
    """

    def __init__(
        self,
        worker: EngineWorker,
        convert: AdapterConverter,
        *,
        seed: int,
        settings: LearnerSettings,
        lora_spec: LoraSpec | None,
        clock: Clock | None,
    ) -> None:
        self._worker, self._convert, self._clock = worker, convert, clock or SystemClock()
        self._spec = lora_spec or LoraSpec()
        self._settings = settings
        self._seed = seed
        self._imitating = False
        self._step_share = 1.0
        self.step = 0
        self._progress: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def progress(self) -> tuple[int, int]:
        """How much of how much of the work under way is done; see `CountingLearner`."""
        return self._progress()

    def scale_steps(self, share: float) -> None:
        """Make optimiser steps with this share of the configured learning rate from now on."""
        self._step_share = share

    @property
    def learning_rate(self) -> float:
        """That of the next optimiser step."""
        settings = self._settings
        return (settings.imitation_rate if self._imitating else settings.learning_rate) * self._step_share

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """One optimiser step, or as many as the rule allows; several are reported as the first with the seconds of all.

        Raises ValueError on samples that are not finite or whose lengths disagree, UsageError for a rule that the engine lacks.
        """
        return await self._worker.run(self._update_job(tuple(groups)), Priority.TRAINING)

    async def nats(self, demonstrations: Sequence[Demonstration]) -> list[float]:
        """The negative log-likelihood of each demonstration after its prompt."""
        return await self._worker.run(self._nats(demonstrations, Tally()), Priority.TRAINING)

    async def imitate(self, demonstrations: Sequence[Demonstration], kept: Sequence[KeptAnswer] = ()) -> Imitation:
        """Supervised updates on right responses until they are known (edge/training/learner.py)."""
        return await self._worker.run(self._imitate_job(tuple(demonstrations), tuple(kept)), Priority.TRAINING)

    async def probe(self, groups: Sequence[TrainingGroup]) -> None:
        """The passes of an update, while as much memory is held as the optimiser will take. Raises EdgeError when it runs out."""
        await self._worker.run(self._probe_job(tuple(groups)), Priority.TRAINING)

    async def export(self, folder: Path, version: int) -> AdapterRef:
        """Write adapter_model.safetensors, adapter_config.json and adapter.gguf as a new folder, all or nothing."""
        await self._worker.run(self._export_job(folder), Priority.TRAINING)
        return AdapterRef(version, str(folder))

    async def save(self, folder: Path) -> None:
        """Write `learner.safetensors` into an existing folder, replacing an older one atomically."""
        await self._worker.call(lambda: write_state(folder / STATE_FILE, *self._state()), Priority.TRAINING)

    async def load(self, folder: Path) -> None:
        """Restore adapter, optimiser and step. Raises StateError, with nothing changed, when the file does not fit."""
        await self._worker.call(lambda: self._restore(*read_state(folder / STATE_FILE)), Priority.TRAINING)

    async def logprobs(
        self, prompt_ids: Sequence[int], token_ids: Sequence[int], allowed: AllowedTokens | None = None
    ) -> tuple[float, ...]:
        """log π (nats) of the response tokens that the model chose, under the current adapter."""
        row = Row(tuple(prompt_ids), tuple(token_ids), (0.0,) * len(token_ids), 0.0, allowed=allowed)
        return await self._worker.call(lambda: self._score(row), Priority.TRAINING)

    # -- what an engine brings -----------------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def checkpointing(self) -> bool:
        """Whether blocks are computed again in the backward pass."""

    @abstractmethod
    def use_checkpointing(self, on: bool) -> None:
        """Compute blocks again in the backward pass, or keep them; not during an update. Raises UsageError where it cannot."""

    @abstractmethod
    def _gradient(self, rows: Sequence[Row], tally: Tally) -> Slices:
        """Add up the gradient of all rows' loss, a micro-batch per slice, and each micro-batch's loss and mismatch in `tally`."""

    @abstractmethod
    def _read(self, rows: Sequence[Row], most: int, into: Readings) -> Slices:
        """Of each row log π of its learned tokens, and of the `most` likeliest ones at their places; a micro-batch per slice."""

    @abstractmethod
    def _gradient_norm(self) -> float:
        """Norm over all of the gradient; it may be infinite or not a number."""

    @abstractmethod
    def _optimise(self, factor: float) -> None:
        """One step of AdamW on the gradient times `factor`. Raises NotFinite (`check_weights`) when the adapter diverged."""

    @abstractmethod
    def _discard_gradient(self) -> None:
        """Forget the gradient; called at the end of every update and probe, however it ended."""

    @abstractmethod
    def _score(self, row: Row) -> tuple[float, ...]:
        """log π of a row's learned tokens."""

    @abstractmethod
    def _adapter(self) -> dict[str, Tensor]:
        """A copy of the adapter on the CPU under peft's names."""

    @abstractmethod
    def _set_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        """Overwrite the adapter. Raises AdapterError, with nothing changed, when it does not fit."""

    @abstractmethod
    def _moments(self) -> dict[str, Tensor]:
        """The optimiser's state as `PARAMETER/MOMENT`, see `parameter_name` and MOMENTS; {} before the first step."""

    @abstractmethod
    def _set_moments(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the optimiser's state by what `_moments` gave; names and shapes are checked already."""

    def _slice(self) -> AbstractContextManager[None]:
        """The engine's settings for the length of one slice."""
        return nullcontext()

    def _memory_to_come(self) -> object:
        """Holds as much memory as the optimiser will take at its first step."""
        return None

    # -- update --------------------------------------------------------------------------------------------------------------------

    def _update_job(self, groups: Sequence[TrainingGroup]) -> Job[LearnerReport]:
        """As many updates as the rule sets; here one."""
        return self._one_update(groups)

    def _one_update(self, groups: Sequence[TrainingGroup]) -> Job[LearnerReport]:
        rows, tally = live_rows(groups), Tally()
        tokens = sum(len(row.learned) for row in rows if not row.off_policy)
        self._progress = lambda: (tally.sums.tokens, tokens)
        return self._updated_on(rows, groups, tally)

    def _updated_on(self, rows: Sequence[Row], groups: Sequence[TrainingGroup], tally: Tally) -> Job[LearnerReport]:
        if not rows:
            return self._report(groups, tally, 0.0, skipped="no group with an advantage")
        try:
            yield from self._timed(self._gradient(rows, tally), tally)
            started = self._clock.monotonic()
            grad_norm, skipped = self._optimise_once(tally)
            tally.seconds += self._clock.monotonic() - started
            return self._report(groups, tally, grad_norm, skipped)
        finally:
            self._discard_gradient()

    def _imitate_job(self, demonstrations: Sequence[Demonstration], kept: Sequence[KeptAnswer]) -> Job[Imitation]:
        time, updates = Tally(), 0
        self._progress = lambda: (updates, MOST_IMITATIONS)
        before = now = yield from self._nats(demonstrations, time)
        rows = kept_rows(kept)
        yield from self._timed(self._read(rows, LIKELIEST, as_before := Readings()), time)
        to_keep = [replace(row, reference=as_before[row.prompt_ids, row.token_ids][1]) for row in rows]
        self._imitating = True
        try:
            while updates < MOST_IMITATIONS and (not updates or max(now) > KNOWN_NATS):
                if to_keep:
                    held = next_rows(to_keep, updates, KEPT_AT_ONCE, 1.0 / len(demonstrations))
                    yield from self._timed(self._gradient(held, of_kept := Tally()), of_kept)
                    time.seconds += of_kept.seconds
                report = yield from self._updated_on(imitated_rows(demonstrations, updates, ROWS_AT_ONCE), (), Tally())
                time.seconds += report.seconds
                updates += 1
                if report.skipped:
                    break
                if updates % CHECKED_EVERY == 0:
                    now = yield from self._nats(demonstrations, time)
        finally:
            self._imitating = False
            self._discard_gradient()
        return Imitation(updates, _mean(before), _mean(now), time.seconds)

    def _nats(self, demonstrations: Sequence[Demonstration], time: Tally) -> Job[list[float]]:
        """The negative log-likelihood of each demonstration at its prompt."""
        rows = kept_rows([KeptAnswer(one.prompt_ids, one.turn) for one in demonstrations])
        yield from self._timed(self._read(rows, 0, found := Readings()), time)
        return [-found[row.prompt_ids, row.token_ids][0] for row in rows]

    def _optimise_once(self, tally: Tally) -> tuple[float, str]:
        """Step the optimiser; (gradient norm, ""), or (norm or 0, the reason) with the weights untouched."""
        grad_norm = self._gradient_norm()
        if not math.isfinite(grad_norm):
            return 0.0, "non-finite gradient"
        mismatch, bound = tally.sums.per_token(tally.sums.abs_diff), self._settings.max_mismatch_nats
        if not mismatch <= bound:
            return grad_norm, f"mismatch {mismatch:.3g} nats per token between sampler and trainer (bound {bound:g})"
        limit = self._settings.max_grad_norm
        factor = limit / grad_norm if limit and grad_norm > limit else 1.0
        self._optimise(factor)
        self.step += 1
        return grad_norm, ""

    def _report(self, groups: Sequence[TrainingGroup], tally: Tally, grad_norm: float, skipped: str) -> LearnerReport:
        sums = tally.sums
        dropped = sum(not is_live(group) for group in groups)
        return LearnerReport(
            groups=len(groups),
            frac_reward_zero_std=dropped / len(groups) if groups else 0.0,
            tokens=sums.tokens,
            loss=_finite(tally.loss),
            grad_norm=grad_norm,
            entropy=_finite(sums.per_token(sums.entropy)),
            mean_abs_logprob_diff=_finite(sums.per_token(sums.abs_diff)),
            kl=_finite(sums.per_token(sums.kl)),
            effective_sample_share=_finite(sums.effective_sample_share),
            clipped_share=sums.per_token(sums.clipped),
            learning_rate=self.learning_rate,
            seconds=tally.seconds,
            skipped=skipped,
        )

    def _timed(self, slices: Slices, tally: Tally) -> Slices:
        """Run slices with the engine's settings, counting only the time inside them."""
        while True:
            started = self._clock.monotonic()
            with self._slice():
                over = next(slices, True)
            tally.seconds += self._clock.monotonic() - started
            if over:
                return
            yield

    def _probe_job(self, groups: Sequence[TrainingGroup]) -> Job[None]:
        shortage: BaseException | None = None
        try:
            yield from self._passes_of(groups)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            shortage = error.with_traceback(None)  # whose frames hold the memory in question
        finally:
            self._discard_gradient()
        if shortage is not None:
            raise does_not_fit("the longest micro-batch was tried") from shortage

    def _passes_of(self, groups: Sequence[TrainingGroup]) -> Slices:
        """An update without its end."""
        held, tally = self._memory_to_come(), Tally()
        yield from self._timed(self._gradient(live_rows(groups), tally), tally)
        del held

    # -- files ---------------------------------------------------------------------------------------------------------------------

    def _export_job(self, folder: Path) -> Job[None]:
        if folder.exists():
            raise StateError(f"{folder.name} exists already", hint="export into a folder that does not exist yet")
        with replacing_folder(folder) as draft:
            write_peft_folder(self._adapter(), self._spec, draft)
            yield
            self._convert(draft, draft / GGUF_ADAPTER)
            yield

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {_ADAPTER + name: tensor for name, tensor in self._adapter().items()}
        tensors |= {_OPTIMISER + name: tensor for name, tensor in self._moments().items()}
        return tensors, {"step": self.step, "seed": self._seed, "lora": _as_json(self._spec)}

    def _restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        if scalars.get("lora") != _as_json(self._spec) or not isinstance(scalars.get("step"), int):
            raise StateError(f"the checkpoint's adapter is {scalars.get('lora')}, this run's is {_as_json(self._spec)}")
        moments = _under(_OPTIMISER, tensors)
        expected = {
            f"{parameter_name(name)}/{moment}": torch.Size() if moment == "step" else tensor.shape
            for name, tensor in self._adapter().items()
            for moment in (MOMENTS if scalars["step"] else ())
        }
        if {name: tensor.shape for name, tensor in moments.items()} != expected:
            raise StateError("the checkpoint's optimiser state does not fit the adapter")
        try:
            self._set_adapter(_under(_ADAPTER, tensors))
        except AdapterError as error:
            raise StateError(str(error), hint=error.hint) from error
        self._set_moments(moments)
        self.step = scalars["step"]


def parameter_name(name: str) -> str:
    """The name under which a state file has the moments of a tensor that peft stores as `name`: that of peft's torch module."""
    return name.removeprefix("base_model.model.").replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up; on a CPU torch, and MLX anywhere, write it in a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "allocate" in str(error) or "out of memory" in str(error)


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _as_json(spec: LoraSpec) -> dict[str, Any]:
    return {**asdict(spec), "targets": list(spec.targets)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0


# A state file is one safetensors file: tensors by name, and in its header one JSON object with the scalars. One file renamed into place is
# never half old and half new. Nothing here is ever pickled.


def write_state(path: Path, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
    """Replace the state file atomically. `scalars` must be plain JSON without NaN."""
    header = json.dumps({"format": FORMAT, **scalars}, sort_keys=True, allow_nan=False)
    with replacing(path) as draft:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, draft, metadata={_HEADER: header})


def read_state(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and scalars of a state file. Raises StateError when it is missing, damaged, of another format, or left by no update."""
    try:
        with safe_open(path, framework="pt") as file:
            scalars = json.loads((file.metadata() or {})[_HEADER])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError, KeyError, ValueError, RecursionError) as error:
        raise StateError(f"cannot read {path.name}: {error}", hint=_OLDER) from error
    if not isinstance(scalars, dict) or scalars.get("format") != FORMAT:
        raise StateError(f"{path.name} was written by another version")
    for name, tensor in tensors.items():
        if tensor.dtype != torch.float32 or not bool(torch.isfinite(tensor).all()):
            raise StateError(f"{path.name}: {name} is not made of finite 32-bit numbers", hint=_OLDER)
    step = scalars.get("step")
    if type(step) is not int or not 0 <= step <= MOST_STEPS:
        raise StateError(f"{path.name}: {step!r} is no number of steps", hint=_OLDER)
    return tensors, scalars

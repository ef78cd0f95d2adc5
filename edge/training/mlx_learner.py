"""The learner on MLX. Knows the order of an update and what makes it refuse; nothing of equations or files.

The counterpart of torch_learner.py on the very quantised weights that the MLX backend serves: gradients flow through them to the adapter
and to nothing else. Its files are the torch learner's own (peft folder, state file with the same names), so a run can go on with
either; files go through torch, computing does not.

The decoder and the converter to GGUF come through the constructor. All work runs as jobs of slices on the shared engine worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

from edge.core.clock import Clock, SystemClock
from edge.core.errors import AdapterError, StateError, UsageError
from edge.core.rng import derive_seed
from edge.core.types import GGUF_ADAPTER, AdapterRef, TrainingGroup
from edge.core.worker import EngineWorker, Job, Priority
from edge.training.batching import Row, is_live, live_rows, plain_chunks
from edge.training.checkpoint import new_folder, read_state, write_state
from edge.training.learner import LearnerReport, check_weights
from edge.training.lora import write_peft_folder
from edge.training.loss import NO_TOKENS, MismatchSums
from edge.training.memory import does_not_fit
from edge.training.mlx_loss import FlatTargets, mismatch_sums, policy_loss, token_scores, weights_of
from edge.training.mlx_passes import HiddenStates, chunks_by_prompt, plain_hidden, shared_hidden
from edge.training.settings import LearnerSettings, LoraSpec, UpdateRule

AdapterConverter = Callable[[Path, Path], None]
"""Writes the GGUF form of a peft folder: (peft_folder, gguf_file)."""
Arrays = dict[str, mx.array]
HiddenOf = Callable[[HiddenStates, Sequence[Row]], mx.array]

STATE_FILE = "learner.safetensors"
_ADAPTER, _OPTIMISER = "adapter/", "optimiser/"


class TrainableDecoder(HiddenStates, Protocol):
    """What the learner needs of a model (edge.models.mlx_decoder.MlxDecoder)."""

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., V] in float32."""
        ...

    def add_lora(self, rank: int, scale: float, targets: Sequence[str]) -> None:
        """Put a zero adapter beside the target layers."""
        ...

    def lora(self) -> Arrays:
        """The adapter under peft's names."""
        ...

    def set_lora(self, tensors: Mapping[str, mx.array]) -> None:
        """Overwrite the adapter. Raises AdapterError, with nothing changed, when it does not fit."""
        ...


class MlxLearner:
    """Trains a LoRA adapter on an MLX decoder of its own; see edge/training/learner.py for the contract.

    A fresh adapter, drawn from `seed`, is added to the decoder in place. Of the settings, `precision` and `threads` mean
    nothing here: the decoder's type is the precision, and MLX chooses its threads.
    """

    def __init__(
        self,
        decoder: TrainableDecoder,
        worker: EngineWorker,
        convert: AdapterConverter,
        *,
        seed: int,
        lora_spec: LoraSpec | None = None,
        settings: LearnerSettings | None = None,
        clock: Clock | None = None,
    ) -> None:
        self._spec = lora_spec or LoraSpec()
        self._settings = settings or LearnerSettings()
        if self._settings.rule != UpdateRule():
            raise UsageError(
                "on MLX one update is made of a batch, of the policy's objective",
                hint="set learning.method to da-grpo, edge-only or gapg, or engine.backend to llamacpp",
            )
        self._worker, self._convert, self._clock = worker, convert, clock or SystemClock()
        self._seed = seed
        self._decoder = decoder
        decoder.add_lora(self._spec.rank, self._spec.alpha / self._spec.rank, self._spec.targets)
        decoder.set_lora(fresh_lora(decoder.lora(), seed))
        self._moments: dict[str, tuple[mx.array, mx.array]] = {}
        self._step = 0

    @property
    def step(self) -> int:
        """Optimiser steps made so far; refused and empty updates do not count."""
        return self._step

    @property
    def checkpointing(self) -> bool:
        """Never: prompts hand their keys and values on beside the layers' outputs."""
        return False

    def use_checkpointing(self, on: bool) -> None:
        """Raises UsageError when it is to be on."""
        if on:
            raise UsageError(
                "gradient checkpointing is not there for MLX",
                hint="lower learning.micro_batch_tokens, or set engine.backend to llamacpp",
            )

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """One optimiser step. Raises ValueError on samples that are not finite or whose lengths disagree."""
        return await self._worker.run(self._update_job(tuple(groups)), Priority.TRAINING)

    async def probe(self, groups: Sequence[TrainingGroup]) -> None:
        """The passes of an update; nothing of them is kept. Raises EdgeError when memory runs out."""
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

    async def logprobs(self, prompt_ids: Sequence[int], token_ids: Sequence[int]) -> tuple[float, ...]:
        """log π (nats) of the given response tokens under the current adapter."""
        row = Row(tuple(prompt_ids), tuple(token_ids), (0.0,) * len(token_ids), 0.0)
        return await self._worker.call(lambda: self._score(row), Priority.TRAINING)

    # -- update ------------------------------------------------------------------------------------------------------------------

    def _update_job(self, groups: Sequence[TrainingGroup]) -> Job[LearnerReport]:
        rows = live_rows(groups)
        tally = _Tally()
        if not rows:
            return self._report(groups, tally, 0.0, skipped="no group with an advantage")
        gradient = yield from self._gradient(rows, tally)
        started = self._clock.monotonic()
        grad_norm, skipped = self._apply(gradient, tally)
        tally.seconds += self._clock.monotonic() - started
        return self._report(groups, tally, grad_norm, skipped)

    def _gradient(self, rows: Sequence[Row], tally: _Tally) -> Generator[None, None, Arrays]:
        """The gradient of all rows' loss, a micro-batch per slice."""
        gradient: Arrays = {}
        shared = self._settings.prefix_sharing != "plain"
        for chunk in (chunks_by_prompt if shared else plain_chunks)(rows, self._settings.tokens_per_slice):
            started = self._clock.monotonic()
            gradient = self._add_gradient(gradient, chunk, tally, shared_hidden if shared else plain_hidden)
            tally.seconds += self._clock.monotonic() - started
            yield
        return gradient

    def _probe_job(self, groups: Sequence[TrainingGroup]) -> Job[None]:
        shortage: BaseException | None = None
        try:
            yield from self._gradient(live_rows(groups), _Tally())
        except (MemoryError, RuntimeError) as error:  # MLX says so in words only
            if "allocate" not in str(error) and not isinstance(error, MemoryError):
                raise
            shortage = error.with_traceback(None)  # whose frames hold the memory in question
        if shortage is not None:
            raise does_not_fit("the longest micro-batch was tried") from shortage

    def _add_gradient(self, sofar: Arrays, chunk: Sequence[Row], tally: _Tally, hidden_of: HiddenOf) -> Arrays:
        """`sofar` and the gradient of the chunk's loss, computed before this returns."""
        targets = flat_targets(chunk)
        before = self._decoder.lora()

        def objective(adapter: Arrays) -> tuple[mx.array, mx.array, mx.array]:
            self._decoder.set_lora(adapter)
            logprobs_N, entropy_N = self._scores(hidden_of(self._decoder, chunk), targets.ids_N)
            cap, kind = self._settings.importance_cap, self._settings.importance
            weights_N = weights_of(kind, logprobs_N, targets, len(chunk), cap)
            return policy_loss(logprobs_N, targets.coefficients_N, weights_N), logprobs_N, entropy_N

        try:
            (loss, logprobs_N, entropy_N), gradient = mx.value_and_grad(objective)(before)
        finally:
            self._decoder.set_lora(before)
        total = {name: grad + sofar[name] if sofar else grad for name, grad in gradient.items()}
        mx.eval(total, loss, logprobs_N, entropy_N)
        tally.add(_number(loss), mismatch_sums(logprobs_N, entropy_N, targets, self._settings.importance_cap))
        return total

    def _scores(self, hidden_ND: mx.array, ids_N: mx.array) -> tuple[mx.array, mx.array]:
        """log π of the tokens and the entropy at them [N], from the hidden states that predict them."""
        vocab_size, elements = self._decoder.shape.vocab_size, self._settings.vocab_chunk_elements
        return token_scores(self._decoder.logits, hidden_ND, ids_N, vocab_size, elements)

    def _apply(self, gradient: Arrays, tally: _Tally) -> tuple[float, str]:
        """Step the optimiser; (gradient norm, ""), or (norm or 0, the reason) with the weights untouched."""
        grad_norm = math.sqrt(sum(_number(mx.square(grad).sum()) for grad in gradient.values()))
        if not math.isfinite(grad_norm):
            return 0.0, "non-finite gradient"
        mismatch, bound = tally.sums.per_token(tally.sums.abs_diff), self._settings.max_mismatch_nats
        if not mismatch <= bound:
            return grad_norm, f"mismatch {mismatch:.3g} nats per token between sampler and trainer (bound {bound:g})"
        limit = self._settings.max_grad_norm
        factor = limit / grad_norm if limit and grad_norm > limit else 1.0
        self._adamw({name: grad * factor for name, grad in gradient.items()})
        self._step += 1
        return grad_norm, ""

    def _adamw(self, gradient: Arrays) -> None:
        """θ ← θ(1 - ηω) - η m̂ / (√v̂ + ε), as torch.optim.AdamW (decoupled weight decay ω, bias-corrected moments)."""
        settings, count = self._settings, self._step + 1
        lr, (beta1, beta2) = settings.learning_rate_at(self._step), settings.betas
        root = math.sqrt(1.0 - beta2**count)
        adapter, moments = self._decoder.lora(), {}
        for name, grad in gradient.items():
            first, second = self._moments.get(name, (mx.zeros_like(grad), mx.zeros_like(grad)))
            first, second = beta1 * first + (1.0 - beta1) * grad, beta2 * second + (1.0 - beta2) * grad * grad
            moments[name] = first, second
            change = first / (mx.sqrt(second) / root + settings.eps)
            adapter[name] = adapter[name] * (1.0 - lr * settings.weight_decay) - (lr / (1.0 - beta1**count)) * change
        mx.eval(adapter, moments)
        check_weights(max(_number(mx.abs(values).max()) for values in adapter.values()), count)
        self._decoder.set_lora(adapter)
        self._moments = moments

    def _report(self, groups: Sequence[TrainingGroup], tally: _Tally, grad_norm: float, skipped: str) -> LearnerReport:
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
            learning_rate=self._settings.learning_rate_at(self._step if skipped else self._step - 1),
            seconds=tally.seconds,
            skipped=skipped,
        )

    def _score(self, row: Row) -> tuple[float, ...]:
        logprobs_N, _ = self._scores(plain_hidden(self._decoder, [row]), mx.array(row.token_ids))
        return tuple(_as_numpy(logprobs_N).tolist())

    # -- files -------------------------------------------------------------------------------------------------------------------

    def _export_job(self, folder: Path) -> Job[None]:
        with new_folder(folder) as draft:
            write_peft_folder(_as_torch(self._decoder.lora()), self._spec, draft)
            yield
            self._convert(draft, draft / GGUF_ADAPTER)
            yield

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {_ADAPTER + name: tensor for name, tensor in _as_torch(self._decoder.lora()).items()}
        for name, (first, second) in self._moments.items():
            key = _OPTIMISER + _torch_parameter(name)
            tensors |= _as_torch({f"{key}/exp_avg": first, f"{key}/exp_avg_sq": second})
            tensors[f"{key}/step"] = torch.tensor(float(self._step))
        return tensors, {"step": self._step, "seed": self._seed, "lora": _as_json(self._spec)}

    def _restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        if scalars.get("lora") != _as_json(self._spec) or not isinstance(scalars.get("step"), int):
            raise StateError(f"the checkpoint's adapter is {scalars.get('lora')}, this run's is {_as_json(self._spec)}")
        moments = self._stored_moments(_under(_OPTIMISER, tensors), empty=scalars["step"] == 0)
        try:
            self._decoder.set_lora(_as_mlx(_under(_ADAPTER, tensors)))
        except AdapterError as error:
            raise StateError(str(error), hint=error.hint) from error
        self._moments, self._step = moments, scalars["step"]

    def _stored_moments(self, tensors: Mapping[str, Tensor], empty: bool) -> dict[str, tuple[mx.array, mx.array]]:
        """AdamW's state by tensor. Raises StateError unless it covers exactly the adapter (or nothing, before the first step)."""
        shapes: dict[str, tuple[int, ...]] = {}
        for name, tensor in self._decoder.lora().items():
            key = _torch_parameter(name)
            shapes |= {f"{key}/step": (), f"{key}/exp_avg": tuple(tensor.shape), f"{key}/exp_avg_sq": tuple(tensor.shape)}
        if {key: tuple(tensor.shape) for key, tensor in tensors.items()} != ({} if empty else shapes):
            raise StateError("the checkpoint's optimiser state does not fit the adapter")
        if empty:
            return {}
        arrays = _as_mlx(tensors)
        keys = {name: _torch_parameter(name) for name in self._decoder.lora()}
        return {name: (arrays[f"{key}/exp_avg"], arrays[f"{key}/exp_avg_sq"]) for name, key in keys.items()}


class _Tally:
    """What an update adds up over its micro-batches."""

    def __init__(self) -> None:
        self.loss = 0.0
        self.seconds = 0.0
        self.sums: MismatchSums = NO_TOKENS

    def add(self, loss: float, sums: MismatchSums) -> None:
        """Count one micro-batch."""
        self.loss += loss
        self.sums += sums


def fresh_lora(shapes: Mapping[str, mx.array], seed: int) -> Arrays:
    """A zero B and an A uniform in ±1/√inputs, drawn from `seed` in the order of names."""
    draw = np.random.Generator(np.random.Philox(derive_seed(seed, "lora")))
    fresh: Arrays = {}
    for name, tensor in sorted(shapes.items()):
        bound = 0.0 if ".lora_B." in name else 1.0 / math.sqrt(tensor.shape[1])
        fresh[name] = mx.array(draw.uniform(-bound, bound, tuple(tensor.shape)).astype(np.float32))
    return fresh


def flat_targets(rows: Sequence[Row]) -> FlatTargets:
    """The response tokens of the rows, flat, with what the loss needs for each."""
    lengths = [len(row.token_ids) for row in rows]
    return FlatTargets(
        mx.array([token for row in rows for token in row.token_ids]),
        mx.array([value for row in rows for value in row.behaviour_logprobs], dtype=mx.float32),
        mx.array(np.repeat(np.array([row.coefficient for row in rows], dtype=np.float32), lengths)),
        mx.array(np.repeat(np.arange(len(rows), dtype=np.int32), lengths)),
        mx.array(np.repeat([row.off_policy for row in rows], lengths)) if any(row.off_policy for row in rows) else None,
    )


def _torch_parameter(name: str) -> str:
    """The torch learner's name of a tensor that peft stores under `name`."""
    return name.removeprefix("base_model.model.").replace(".lora_A.", ".lora_A.default.").replace(".lora_B.", ".lora_B.default.")


def _as_torch(arrays: Mapping[str, mx.array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(_as_numpy(array)) for name, array in arrays.items()}


def _as_mlx(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: mx.array(tensor.float().numpy()) for name, tensor in tensors.items()}


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _as_json(spec: LoraSpec) -> dict[str, Any]:
    return {**asdict(spec), "targets": list(spec.targets)}


def _number(scalar: mx.array) -> float:
    return float(_as_numpy(scalar))


def _as_numpy(array: mx.array) -> Any:
    """Computed first: reading an array that is not holds Python's lock while it waits, and what it waits for may need that lock."""
    mx.eval(array)
    return np.array(array)


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0

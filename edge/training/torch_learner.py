"""The learner on torch and peft. Knows the order of an update and what makes it refuse; nothing of equations or files.

The decoder and the converter to GGUF come through the constructor. All work runs as jobs of slices on the shared engine worker, so
global torch settings (determinism, autocast) are set when a slice begins and put back when it ends.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from edge.core.clock import Clock, SystemClock
from edge.core.errors import AdapterError, StateError
from edge.core.types import GGUF_ADAPTER, AdapterRef, TrainingGroup
from edge.core.worker import EngineWorker, Job, Priority
from edge.training import lora
from edge.training.adapted import round_frozen
from edge.training.batching import Row, Targets, is_live, live_rows, plain_chunks, targets_of
from edge.training.checkpoint import new_folder, read_state, write_state
from edge.training.learner import LearnerReport, check_weights
from edge.training.loss import (
    NO_TOKENS,
    CopiedProjection,
    DenseProjection,
    MismatchSums,
    Projection,
    TokenScores,
    clipped_loss,
    importance_weights,
    mismatch_sums,
    policy_loss,
    sequence_mask_weights,
    shaped_weights,
    token_scores,
)
from edge.training.memory import does_not_fit
from edge.training.passes import CausalDecoder, gradient_slices, plain_hidden
from edge.training.precision import choose_dtype, has_fast_bf16
from edge.training.repeated import SequenceLogprobs, all_rows, held_back
from edge.training.settings import LearnerSettings, LoraSpec

AdapterConverter = Callable[[Path, Path], None]
"""Writes the GGUF form of a peft folder: (peft_folder, gguf_file)."""

STATE_FILE = "learner.safetensors"
_ADAPTER, _OPTIMISER = "adapter/", "optimiser/"
_MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TorchLearner:
    """Trains a LoRA adapter on a decoder; see edge/training/learner.py for the contract.

    `decoder` is an nn.Module that also satisfies CausalDecoder; a fresh adapter, drawn from `seed`, is added to it in place.
    """

    def __init__(
        self,
        decoder: nn.Module,
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
        self._worker, self._convert, self._clock = worker, convert, clock or SystemClock()
        self._seed = seed
        self._module = decoder
        self._decoder: CausalDecoder = decoder  # type: ignore[assignment]
        self._projection = projection_of(self._decoder.lm_head)
        self._decoder.checkpointing = self._settings.gradient_checkpointing
        lora.inject_lora(decoder, self._spec, seed)
        self._parameters = lora.lora_parameters(decoder)
        self._optimiser = self._fresh_optimiser()
        self._step = 0
        device = next(iter(self._parameters.values())).device
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        self._dtype = choose_dtype(self._settings.precision, parameters, has_fast_bf16(device))
        round_frozen(decoder, self._dtype)

    @property
    def step(self) -> int:
        """Optimiser steps made so far; refused and empty updates do not count."""
        return self._step

    @property
    def checkpointing(self) -> bool:
        """Whether blocks are computed again in the backward pass."""
        return self._decoder.checkpointing

    def use_checkpointing(self, on: bool) -> None:
        """Compute blocks again in the backward pass, or keep them; not while an update is under way."""
        self._decoder.checkpointing = on

    async def update(self, groups: Sequence[TrainingGroup]) -> LearnerReport:
        """One optimiser step, or as many as the rule says; several are reported as the first with the seconds of all.

        Raises ValueError on samples that are not finite or whose lengths disagree.
        """
        return await self._worker.run(self._update_job(tuple(groups)), Priority.TRAINING)

    async def probe(self, groups: Sequence[TrainingGroup]) -> None:
        """The passes of an update, with as much memory beside them as the optimiser will take. Raises EdgeError when it runs out."""
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
        rule, tally, before = self._settings.rule, _Tally(), SequenceLogprobs()
        further = rule.updates - 1
        if further and rule.objective == "gvpo":
            yield from self._timed(self._score_all(groups, before), tally)
        first = report = yield from self._one_update(groups)
        tally.seconds += first.seconds
        while further and not report.skipped:
            further -= 1
            report = yield from self._one_update((yield from self._moved(groups, before, tally)))
            tally.seconds += report.seconds
        return replace(first, seconds=tally.seconds)

    def _moved(self, groups: Sequence[TrainingGroup], before: SequenceLogprobs, tally: _Tally) -> Job[Sequence[TrainingGroup]]:
        """The batch for one more update."""
        rule, now = self._settings.rule, SequenceLogprobs()
        if rule.objective != "gvpo":
            return groups
        yield from self._timed(self._score_all(groups, now), tally)
        return held_back(groups, before, now, rule.gvpo_beta)

    def _score_all(self, groups: Sequence[TrainingGroup], into: SequenceLogprobs) -> Generator[None, None, None]:
        """log π of every response under the adapter of now, a micro-batch per slice."""
        for chunk in plain_chunks(all_rows(groups), self._settings.tokens_per_slice):
            with torch.no_grad():
                hidden_ND = plain_hidden(self._decoder, chunk)
                targets = targets_of(chunk, hidden_ND.device)
                logprobs_N = self._scores(hidden_ND, targets).logprobs_N
                sums_R = torch.zeros(len(chunk), device=logprobs_N.device).index_add_(0, targets.row_N, logprobs_N)
            into.add(chunk, sums_R.tolist())
            yield

    def _one_update(self, groups: Sequence[TrainingGroup]) -> Job[LearnerReport]:
        rows = live_rows(groups)
        if not rows:
            return self._report(groups, _Tally(), 0.0, skipped="no group with an advantage")
        tally = _Tally()
        try:
            yield from self._timed(self._gradient(rows, tally), tally)
            started = self._clock.monotonic()
            grad_norm, skipped = self._apply(tally)
            tally.seconds += self._clock.monotonic() - started
            return self._report(groups, tally, grad_norm, skipped)
        finally:
            self._optimiser.zero_grad(set_to_none=True)

    def _probe_job(self, groups: Sequence[TrainingGroup]) -> Job[None]:
        shortage: BaseException | None = None
        try:
            yield from self._try_out(groups)
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            shortage = error.with_traceback(None)  # whose frames hold the memory in question
        finally:
            self._optimiser.zero_grad(set_to_none=True)
        if shortage is not None:
            raise does_not_fit("the longest micro-batch was tried") from shortage

    def _try_out(self, groups: Sequence[TrainingGroup]) -> Generator[None, None, None]:
        """An update without its end."""
        moments, tally = self._moments_to_come(), _Tally()
        yield from self._timed(self._gradient(live_rows(groups), tally), tally)
        del moments

    def _moments_to_come(self) -> list[Tensor]:
        """Memory that AdamW takes at its first step, really taken; nothing once it has it."""
        if self._optimiser.state:
            return []
        return [torch.ones_like(parameter) for parameter in self._parameters.values() for _ in range(2)]

    def _gradient(self, rows: Sequence[Row], tally: _Tally) -> Generator[None, None, None]:
        shared = self._settings.prefix_sharing == "shared" or (self._settings.prefix_sharing == "auto" and worth_sharing(rows))
        yield from gradient_slices(self._decoder, rows, self._objective(tally), self._settings.tokens_per_slice, shared)

    def _objective(self, tally: _Tally) -> Callable[[Tensor, Targets], Tensor]:
        def objective(hidden_ND: Tensor, targets: Targets) -> Tensor:
            scores = self._scores(hidden_ND, targets)
            loss = self._loss(scores, targets)
            sampled, behaviour_N = _sampled(scores, targets)
            tally.add(float(loss.detach()), mismatch_sums(sampled, behaviour_N, self._settings.importance_cap))
            return loss

        return objective

    def _loss(self, scores: TokenScores, targets: Targets) -> Tensor:
        rule = self._settings.rule
        if targets.off_policy_N is not None and rule.objective != "policy":
            raise ValueError(f"objective {rule.objective} cannot learn from responses that its policy did not sample")
        if rule.objective == "clipped":
            return clipped_loss(scores.logprobs_N, targets.behaviour_N, targets.coefficients_N, rule.ratio_clip)
        weights_N = self._importance(scores, targets)
        if targets.off_policy_N is not None:
            weights_N = torch.where(targets.off_policy_N, shaped_weights(scores.logprobs_N), weights_N)
        return policy_loss(scores.logprobs_N, targets.coefficients_N, weights_N)

    def _scores(self, hidden_ND: Tensor, targets: Targets) -> TokenScores:
        return token_scores(hidden_ND, self._projection, targets.ids_N, self._settings.vocab_chunk_elements, self._dtype)

    def _importance(self, scores: TokenScores, targets: Targets) -> Tensor:
        if self._settings.importance == "none" or self._settings.rule.objective == "gvpo":
            return torch.ones_like(targets.behaviour_N)
        if self._settings.importance == "token":
            return importance_weights(scores.logprobs_N, targets.behaviour_N, self._settings.importance_cap)
        return sequence_mask_weights(scores.logprobs_N, targets.behaviour_N, targets.row_N, self._settings.importance_cap)

    def _apply(self, tally: _Tally) -> tuple[float, str]:
        """Step the optimiser; (gradient norm, ""), or (norm or 0, the reason) with the weights untouched."""
        grad_norm = self._gradient_norm()
        if not math.isfinite(grad_norm):
            return 0.0, "non-finite gradient"
        mismatch, bound = tally.sums.per_token(tally.sums.abs_diff), self._settings.max_mismatch_nats
        if not mismatch <= bound:
            return grad_norm, f"mismatch {mismatch:.3g} nats per token between sampler and trainer (bound {bound:g})"
        self._clip(grad_norm)
        for group in self._optimiser.param_groups:
            group["lr"] = self._settings.learning_rate_at(self._step)
        self._optimiser.step()
        self._require_sane_weights()
        self._step += 1
        return grad_norm, ""

    def _gradient_norm(self) -> float:
        grads = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads))

    def _require_sane_weights(self) -> None:
        """Raises NotFinite, before anything of the update is written, when a weight is no number or beyond all sense."""
        largest = float(torch.nn.utils.get_total_norm(list(self._parameters.values()), norm_type=math.inf))
        check_weights(largest, self._step + 1)

    def _clip(self, grad_norm: float) -> None:
        bound = self._settings.max_grad_norm
        if bound and grad_norm > bound:
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(bound / grad_norm)

    def _report(self, groups: Sequence[TrainingGroup], tally: _Tally, grad_norm: float, skipped: str) -> LearnerReport:
        sums = tally.sums
        dropped = sum(not is_live(group) for group in groups)
        last_step = self._step if skipped else self._step - 1
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
            learning_rate=self._settings.learning_rate_at(last_step),
            seconds=tally.seconds,
            skipped=skipped,
        )

    def _timed(self, slices: Generator[None, None, None], tally: _Tally) -> Generator[None, None, None]:
        """Run slices with the engine's settings, counting only the time inside them."""
        while True:
            started = self._clock.monotonic()
            with self._engine():
                over = next(slices, True)
            tally.seconds += self._clock.monotonic() - started
            if over:
                return
            yield

    @contextlib.contextmanager
    def _engine(self) -> Iterator[None]:
        """Threads, determinism and number format for the length of one slice."""
        before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        if self._settings.threads and torch.get_num_threads() != self._settings.threads:
            torch.set_num_threads(self._settings.threads)
        _set_determinism(True, fill=False)
        device = self._decoder.lm_head.weight.device
        try:
            with torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32):
                yield
        finally:
            _set_determinism(before[0], fill=before[1])

    def _score(self, row: Row) -> tuple[float, ...]:
        with torch.no_grad(), self._engine():
            hidden_ND = plain_hidden(self._decoder, [row])
            targets = torch.tensor(row.token_ids, device=hidden_ND.device)
            scores = token_scores(hidden_ND, self._projection, targets, self._settings.vocab_chunk_elements, self._dtype)
            return tuple(scores.logprobs_N.tolist())

    # -- files -------------------------------------------------------------------------------------------------------------------

    def _export_job(self, folder: Path) -> Job[None]:
        with new_folder(folder) as draft:
            lora.write_peft_folder(lora.lora_state(self._module), self._spec, draft)
            yield
            self._convert(draft, draft / GGUF_ADAPTER)
            yield

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors = {_ADAPTER + name: tensor for name, tensor in lora.lora_state(self._module).items()}
        for name, parameter in self._parameters.items():
            for moment, tensor in self._optimiser.state.get(parameter, {}).items():
                tensors[f"{_OPTIMISER}{name}/{moment}"] = tensor.detach().to("cpu", copy=True)
        return tensors, {"step": self._step, "seed": self._seed, "lora": _as_json(self._spec)}

    def _restore(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any]) -> None:
        if scalars.get("lora") != _as_json(self._spec) or not isinstance(scalars.get("step"), int):
            raise StateError(f"the checkpoint's adapter is {scalars.get('lora')}, this run's is {_as_json(self._spec)}")
        moments = self._moments(_under(_OPTIMISER, tensors), empty=scalars["step"] == 0)
        try:
            lora.set_lora_state(self._module, _under(_ADAPTER, tensors))
        except AdapterError as error:
            raise StateError(str(error), hint=error.hint) from error
        self._optimiser = self._fresh_optimiser()
        self._optimiser.state.update(moments)
        self._step = scalars["step"]

    def _moments(self, tensors: Mapping[str, Tensor], empty: bool) -> dict[Tensor, dict[str, Tensor]]:
        """AdamW's state by parameter. Raises StateError unless it covers exactly the adapter (or nothing, before the first step)."""
        shapes = {
            f"{name}/{moment}": torch.Size() if moment == "step" else parameter.shape
            for name, parameter in self._parameters.items()
            for moment in _MOMENTS
        }
        if {key: tensor.shape for key, tensor in tensors.items()} != ({} if empty else shapes):
            raise StateError("the checkpoint's optimiser state does not fit the adapter")
        if empty:
            return {}
        return {
            parameter: {moment: _placed(tensors[f"{name}/{moment}"], moment, parameter) for moment in _MOMENTS}
            for name, parameter in self._parameters.items()
        }

    def _fresh_optimiser(self) -> torch.optim.AdamW:
        settings = self._settings
        return torch.optim.AdamW(
            self._parameters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )


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


def projection_of(head: nn.Linear) -> Projection:
    """The output projection: rows of the file where the layer leaves its weights there, else its weight in memory."""
    stored: Projection | None = getattr(head, "stored", None)
    if stored is None:
        return DenseProjection(head.weight.detach())
    return stored if head.weight.device.type == "cpu" else CopiedProjection(stored, head.weight.device)


def _sampled(scores: TokenScores, targets: Targets) -> tuple[TokenScores, Tensor]:
    """Scores and behaviour log-probabilities of the sampler's own tokens, which alone can be compared."""
    if targets.off_policy_N is None:
        return scores, targets.behaviour_N
    own_N = ~targets.off_policy_N
    return TokenScores(scores.logprobs_N[own_N], scores.entropy_N[own_N]), targets.behaviour_N[own_N]


def out_of_memory(error: BaseException) -> bool:
    """Whether an allocator gave up; on a CPU torch says so in a plain RuntimeError."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return "allocate memory" in str(error) or "out of memory" in str(error)


def worth_sharing(rows: Sequence[Row]) -> bool:
    """Whether computing prompts once saves work: some prompt has several responses.

    Measured at the nano shape (prompts and responses of 60 tokens, G = 8): 1.1 s shared, 1.8 s plain.
    """
    return len({row.prompt_ids for row in rows}) < len(rows)


def _set_determinism(deterministic: bool, fill: bool) -> None:
    """`fill` would write NaN into every fresh buffer: some 5 % of an update."""
    torch.use_deterministic_algorithms(deterministic, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def _under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _placed(tensor: Tensor, moment: str, parameter: Tensor) -> Tensor:
    return tensor if moment == "step" else tensor.to(parameter.device)


def _as_json(spec: LoraSpec) -> dict[str, Any]:
    return {**asdict(spec), "targets": list(spec.targets)}


def _finite(value: float) -> float:
    return value if math.isfinite(value) else 0.0

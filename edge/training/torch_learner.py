"""The learner on torch: the gradient and the optimiser of edge/training/lora_learner.py.

Global torch settings (determinism, autocast) are set when a slice begins and put back when it ends.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from edge.core.clock import Clock
from edge.core.types import TrainingGroup
from edge.core.worker import EngineWorker, Job
from edge.dagrpo.baselines import gvpo_weights
from edge.training import lora
from edge.training.batching import Reference, Row, Targets, plain_chunks
from edge.training.device import choose_dtype, has_fast_bf16
from edge.training.learner import LearnerReport, LearnerSettings, LoraSpec, check_weights
from edge.training.lora import round_frozen
from edge.training.lora_learner import MOMENTS, AdapterConverter, LoraLearner, Readings, Slices, Tally, parameter_name
from edge.training.loss import (
    CopiedProjection,
    DenseProjection,
    Projection,
    TokenScores,
    clipped_loss,
    divergence,
    importance_weights,
    likeliest,
    logprobs_of,
    mismatch_sums,
    policy_loss,
    shaped_weights,
    token_scores,
    with_help_bias,
)
from edge.training.passes import CausalDecoder, gradient_slices, plain_hidden, with_root

SequenceLogprobs = dict[tuple[tuple[int, ...], tuple[int, ...]], float]
"""log π (nats, summed over tokens) of responses, by prompt and tokens."""


class TorchLearner(LoraLearner):
    """Trains a LoRA adapter on a decoder.

    `decoder` is an nn.Module that also satisfies CausalDecoder; a fresh adapter, drawn from `seed`, is added to it in place.
    """

    def __init__(
        self,
        decoder: nn.Module,
        worker: EngineWorker,
        convert: AdapterConverter,
        *,
        seed: int,
        settings: LearnerSettings,
        lora_spec: LoraSpec | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(worker, convert, seed=seed, settings=settings, lora_spec=lora_spec, clock=clock)
        self._module = decoder
        self._decoder: CausalDecoder = decoder  # type: ignore[assignment]
        self._projection = projection_of(self._decoder.lm_head)
        self._decoder.checkpointing = self._settings.gradient_checkpointing
        lora.inject_lora(decoder, self._spec, seed)
        self._parameters = lora.lora_parameters(decoder)
        self._optimiser = self._fresh_optimiser()
        device = next(iter(self._parameters.values())).device
        parameters = sum(parameter.numel() for parameter in decoder.parameters())
        self._threads = self._settings.threads
        self._dtype = choose_dtype(self._settings.precision, parameters, has_fast_bf16(device))
        round_frozen(decoder, self._dtype)

    def use_threads(self, threads: int) -> None:
        """Compute with this many from the next slice on; the order of additions follows their number."""
        self._threads = threads

    @property
    def checkpointing(self) -> bool:
        """Whether blocks are computed again in the backward pass."""
        return self._decoder.checkpointing

    def use_checkpointing(self, on: bool) -> None:
        """Compute blocks again in the backward pass, or keep them; not while an update is under way."""
        self._decoder.checkpointing = on

    # -- several updates of one batch ----------------------------------------------------------------------------------------------

    def _update_job(self, groups: Sequence[TrainingGroup]) -> Job[LearnerReport]:
        rule, tally = self._settings.rule, Tally()
        before: SequenceLogprobs = {}
        moves = rule.updates > 1 and rule.objective == "gvpo"
        if moves:
            yield from self._timed(self._score_all(groups, before), tally)
        first = report = yield from self._one_update(groups)
        tally.seconds += first.seconds
        for _ in range(rule.updates - 1):
            if report.skipped:
                break
            batch, now = groups, SequenceLogprobs()
            if moves:
                yield from self._timed(self._score_all(groups, now), tally)
                batch = held_back(groups, before, now, rule.gvpo_beta)
            report = yield from self._one_update(batch)
            tally.seconds += report.seconds
        return replace(first, seconds=tally.seconds)

    def _score_all(self, groups: Sequence[TrainingGroup], into: SequenceLogprobs) -> Slices:
        """log π of every response under the adapter of now, with or without an advantage, a micro-batch per slice."""
        rows = [
            Row(group.prompt_ids, one.token_ids, one.behaviour_logprobs, 0.0, allowed=one.allowed)
            for group in groups
            for one in group.samples
            if one.token_ids  # empty ones have nothing to score
        ]
        found: Readings = {}
        yield from self._read(rows, 0, found)
        into.update({key: logprob for key, (logprob, _) in found.items()})

    def _read(self, rows: Sequence[Row], most: int, into: Readings) -> Slices:
        distinct = [*{(row.prompt_ids, row.token_ids): row for row in rows}.values()]
        if not distinct:
            return
        with torch.no_grad():
            root, rest = with_root(self._decoder, distinct)
        whole = dict(zip(map(id, rest), distinct, strict=True))
        for chunk in plain_chunks(rest, self._settings.tokens_per_slice):
            with torch.no_grad():
                hidden_ND, targets = plain_hidden(self._decoder, chunk, root)
                logprobs_N = self._scores(hidden_ND, targets).logprobs_N
                sums_R = torch.zeros(len(chunk), device=logprobs_N.device).index_add_(0, targets.row_N, logprobs_N)
                references: Sequence[Reference | None] = [None] * len(chunk)
                if most:
                    references = self._references(hidden_ND, targets, logprobs_N, most, len(chunk))
            for row, logprob, reference in zip(chunk, sums_R.tolist(), references, strict=True):
                into[whole[id(row)].prompt_ids, row.token_ids] = logprob, reference
            yield

    def _references(self, hidden_ND: Tensor, targets: Targets, logprobs_N: Tensor, count: int, rows: int) -> list[Reference]:
        """What the model holds of the targets' places, row by row."""
        elements = self._settings.vocab_chunk_elements
        ids_NK = likeliest(hidden_ND, self._projection, count, targets.allowed, elements)
        logprobs_NK = logprobs_of(ids_NK, logprobs_N, hidden_ND, self._projection, targets.ids_N)
        lengths = torch.bincount(targets.row_N, minlength=rows).tolist()
        return [Reference(*pair) for pair in zip(torch.split(ids_NK, lengths), torch.split(logprobs_NK, lengths), strict=True)]

    # -- the gradient --------------------------------------------------------------------------------------------------------------

    def _gradient(self, rows: Sequence[Row], tally: Tally) -> Slices:
        def objective(hidden_ND: Tensor, targets: Targets) -> Tensor:
            scores, behaviour_N = self._scores(hidden_ND, targets), targets.behaviour_N
            if targets.biased is not None:
                biased_N = with_help_bias(scores.logprobs_N, hidden_ND, self._projection, targets.ids_N, targets.biased)
                scores = scores._replace(logprobs_N=biased_N)
            loss = (
                self._loss(scores, targets)
                if targets.reference is None
                else self._divergence(hidden_ND, scores, targets, targets.reference)
            )
            if targets.off_policy_N is not None:  # only the sampler's own tokens can be compared
                own_N = ~targets.off_policy_N
                scores, behaviour_N = TokenScores(scores.logprobs_N[own_N], scores.entropy_N[own_N]), behaviour_N[own_N]
            tally.add(float(loss.detach()), mismatch_sums(scores, behaviour_N, self._settings.importance_cap))
            return loss

        # Prompts computed once save work where some prompt has several responses. Measured at the nano shape (prompts and responses of 60
        # tokens, G = 8): 1.1 s shared, 1.8 s plain.
        worth_sharing = len({row.prompt_ids for row in rows}) < len(rows)
        shared = self._settings.prefix_sharing == "shared" or (self._settings.prefix_sharing == "auto" and worth_sharing)
        yield from gradient_slices(self._decoder, rows, objective, self._settings.tokens_per_slice, shared)

    def _divergence(self, hidden_ND: Tensor, scores: TokenScores, targets: Targets, reference: Reference) -> Tensor:
        """How far the model is from the references, a mean over rows."""
        logprobs_NK = logprobs_of(reference.ids_NK, scores.logprobs_N, hidden_ND, self._projection, targets.ids_N)
        return (targets.coefficients_N * divergence(logprobs_NK, reference)).sum()

    def _loss(self, scores: TokenScores, targets: Targets) -> Tensor:
        rule = self._settings.rule
        logprobs_N, behaviour_N = scores.logprobs_N, targets.behaviour_N
        objective = rule.objective if targets.imitated_N is None else "policy"
        if targets.off_policy_N is not None and objective != "policy":
            raise ValueError(f"objective {objective} cannot learn from responses that its policy did not sample")
        if objective == "clipped":
            return clipped_loss(logprobs_N, behaviour_N, targets.coefficients_N, rule.ratio_clip)
        if objective == "gvpo":
            weights_N = torch.ones_like(behaviour_N)
        else:
            weights_N = importance_weights(logprobs_N, behaviour_N, self._settings.importance_cap)
        if targets.off_policy_N is not None:
            weights_N = torch.where(targets.off_policy_N, shaped_weights(logprobs_N), weights_N)
        if targets.imitated_N is not None:
            weights_N = weights_N.masked_fill(targets.imitated_N, 1.0)
        return policy_loss(logprobs_N, targets.coefficients_N, weights_N)

    def _scores(self, hidden_ND: Tensor, targets: Targets) -> TokenScores:
        """Of hidden states that predict the targets."""
        elements = self._settings.vocab_chunk_elements
        return token_scores(hidden_ND, self._projection, targets.ids_N, elements, self._dtype, targets.allowed)

    def _score(self, row: Row) -> tuple[float, ...]:
        with torch.no_grad(), self._slice():
            return tuple(self._scores(*plain_hidden(self._decoder, [row])).logprobs_N.tolist())

    @contextlib.contextmanager
    def _slice(self) -> Iterator[None]:
        """Threads, determinism and number format for the length of one slice."""
        before = torch.are_deterministic_algorithms_enabled(), torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
        if self._threads and torch.get_num_threads() != self._threads:
            torch.set_num_threads(self._threads)
        device = self._decoder.lm_head.weight.device
        _set_determinism(True, fill=False, warn_only=device.type != "cuda")
        try:
            with (
                torch.autocast(device.type, self._dtype, enabled=self._dtype != torch.float32),
                sdpa_kernel(_ATTENTION_KERNELS),
            ):
                yield
        finally:
            _set_determinism(before[0], fill=before[1])

    # -- the optimiser -------------------------------------------------------------------------------------------------------------

    def _gradient_norm(self) -> float:
        grads = [parameter.grad for parameter in self._parameters.values() if parameter.grad is not None]
        return float(torch.nn.utils.get_total_norm(grads))

    def _optimise(self, factor: float) -> None:
        if factor != 1.0:
            for parameter in self._parameters.values():
                if parameter.grad is not None:
                    parameter.grad.mul_(factor)
        for parameters in self._optimiser.param_groups:
            parameters["lr"] = self.learning_rate
        self._optimiser.step()
        largest = float(torch.nn.utils.get_total_norm(list(self._parameters.values()), norm_type=math.inf))
        check_weights(largest, self.step + 1)

    def _discard_gradient(self) -> None:
        self._optimiser.zero_grad(set_to_none=True)

    def _memory_to_come(self) -> object:
        """AdamW's moments; nothing once it has them."""
        if self._optimiser.state:
            return None
        return [torch.ones_like(parameter) for parameter in self._parameters.values() for _ in range(2)]

    def _fresh_optimiser(self) -> torch.optim.AdamW:
        settings = self._settings
        return torch.optim.AdamW(
            self._parameters.values(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )

    # -- state ---------------------------------------------------------------------------------------------------------------------

    def _adapter(self) -> dict[str, Tensor]:
        return lora.lora_state(self._module)

    def _set_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        lora.set_lora_state(self._module, tensors)

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"{parameter_name(name)}/{moment}": tensor.detach().to("cpu", copy=True)
            for name, parameter in self._parameters.items()
            for moment, tensor in self._optimiser.state.get(parameter, {}).items()
        }

    def _set_moments(self, tensors: Mapping[str, Tensor]) -> None:
        self._optimiser = self._fresh_optimiser()
        for name, parameter in self._parameters.items() if tensors else ():
            found = {moment: tensors[f"{parameter_name(name)}/{moment}"] for moment in MOMENTS}
            self._optimiser.state[parameter] = {
                moment: tensor if moment == "step" else tensor.to(parameter.device) for moment, tensor in found.items()
            }


def projection_of(head: nn.Linear) -> Projection:
    """The output projection: rows of the file where the layer leaves its weights there, else its weight in memory."""
    stored: Projection | None = getattr(head, "stored", None)
    if stored is None:
        return DenseProjection(head.weight.detach())
    return stored if head.weight.device.type == "cpu" else CopiedProjection(stored, head.weight.device)


_ATTENTION_KERNELS = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
"""All but cuDNN's, which makes a plan for every new shape of a micro-batch."""


def _set_determinism(deterministic: bool, fill: bool, warn_only: bool = True) -> None:
    """`fill` would write NaN into every fresh buffer: some 5 % of an update. With `warn_only` CUDA's attention is not deterministic."""
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]


def held_back(
    groups: Sequence[TrainingGroup], before: SequenceLogprobs, now: SequenceLogprobs, beta: float
) -> list[TrainingGroup]:
    """The groups with GVPO's weights: A_i - β(ℓ_i - mean ℓ), ℓ_i what log π gained from `before` to `now` (0 for an empty response)."""
    moved = []
    for group in groups:
        keys = [(group.prompt_ids, one.token_ids) for one in group.samples]
        gained_G = [now[key] - before[key] if key[1] else 0.0 for key in keys]
        weights_G = gvpo_weights([one.advantage for one in group.samples], gained_G, beta)
        samples = tuple(replace(one, advantage=weight) for one, weight in zip(group.samples, weights_G, strict=True))
        moved.append(replace(group, samples=samples))
    return moved

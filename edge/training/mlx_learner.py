"""The learner on MLX: the gradient and the optimiser of edge/training/lora_learner.py, and the objective of edge/training/loss.py.

It trains on the quantised weights that the MLX backend serves: gradients flow through them to the adapter and to nothing else.

There are two ways to the same hidden states: whole rows, or every prompt of a micro-batch computed once and shared by its responses.
Gradients flow through both. A micro-batch holds responses to few prompts, so that a prompt is computed about once a step (torch's way, once
in any case, would keep the graphs of all prompts of a bundle alive over many micro-batches).

Axes: R rows (responses), Q prompts, T tokens, N response tokens of all rows in a flat list, D model width, V vocabulary, K key/value heads.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

from edge.core.clock import Clock
from edge.core.errors import UsageError
from edge.core.rng import derive_seed
from edge.core.worker import EngineWorker
from edge.training.batching import Reference, Row, plain_chunks, targets_of
from edge.training.learner import LearnerSettings, LoraSpec, UpdateRule, check_weights
from edge.training.lora_learner import AdapterConverter, LoraLearner, Readings, Slices, Tally, parameter_name
from edge.training.loss import EXCLUDED, NO_REST, SHAPING, MismatchSums

Arrays = dict[str, mx.array]


class MlxLearner(LoraLearner):
    """Trains a LoRA adapter on an MLX decoder of its own (edge.models.mlx_decoder.MlxDecoder).

    A fresh adapter, drawn from `seed`, is added to the decoder in place. Of the settings, `precision` and `threads` mean
    nothing here: the decoder's type is the precision, and MLX chooses its threads.
    """

    def __init__(
        self,
        decoder: Any,
        worker: EngineWorker,
        convert: AdapterConverter,
        *,
        seed: int,
        settings: LearnerSettings,
        lora_spec: LoraSpec | None = None,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(worker, convert, seed=seed, settings=settings, lora_spec=lora_spec, clock=clock)
        if self._settings.rule != UpdateRule():
            raise UsageError(
                "on MLX one update is made of a batch, of the policy's objective",
                hint="set learning.method to da-grpo, edge-only or gapg, or engine.backend to llamacpp",
            )
        self._decoder = decoder
        decoder.add_lora(self._spec.rank, self._spec.alpha / self._spec.rank, self._spec.targets)
        decoder.set_lora(fresh_lora(decoder.lora(), seed))
        self._sum: Arrays = {}
        self._averages: dict[str, tuple[mx.array, mx.array]] = {}

    @property
    def checkpointing(self) -> bool:
        """Never: prompts hand on their keys and values in addition to the layers' outputs."""
        return False

    def use_checkpointing(self, on: bool) -> None:
        """Raises UsageError when it is to be on."""
        if on:
            raise UsageError(
                "gradient checkpointing is not there for MLX",
                hint="lower learning.memory.micro_batch_tokens, or set engine.backend to llamacpp",
            )

    # -- the gradient --------------------------------------------------------------------------------------------------------------

    def _gradient(self, rows: Sequence[Row], tally: Tally) -> Slices:
        shared = self._settings.prefix_sharing != "plain"
        for chunk in (chunks_by_prompt if shared else plain_chunks)(rows, self._settings.tokens_per_slice):
            self._add_gradient(chunk, tally, shared_hidden if shared else plain_hidden)
            yield

    def _add_gradient(self, chunk: Sequence[Row], tally: Tally, hidden_of: Callable[[Any, Sequence[Row]], mx.array]) -> None:
        """Add the gradient of the chunk's loss, computed before this returns."""
        targets, before, settings = FlatTargets.of(chunk), self._decoder.lora(), self._settings

        def objective(adapter: Arrays) -> tuple[mx.array, mx.array, mx.array]:
            self._decoder.set_lora(adapter)
            hidden_ND = targets.of_learned(hidden_of(self._decoder, chunk))
            logprobs_N, entropy_N = self._scores(hidden_ND, targets)
            if targets.biased is not None:
                logprobs_N = with_help_bias(logprobs_N, self._decoder.logits, hidden_ND, targets.ids_N, targets.biased)
            if targets.reference is not None:
                divergence_N = divergence(
                    self._logprobs_of(targets.reference.ids_NK, hidden_ND, targets.allowed), targets.reference
                )
                return (targets.coefficients_N * divergence_N).sum(), logprobs_N, entropy_N
            weights_N = importance_weights(logprobs_N, targets, settings.importance_cap)
            return -(targets.coefficients_N * weights_N * logprobs_N).sum(), logprobs_N, entropy_N

        try:
            (loss, logprobs_N, entropy_N), gradient = mx.value_and_grad(objective)(before)
        finally:
            self._decoder.set_lora(before)
        self._sum = {name: grad + self._sum[name] if self._sum else grad for name, grad in gradient.items()}
        mx.eval(self._sum, loss, logprobs_N, entropy_N)
        tally.add(_number(loss), mismatch_sums(logprobs_N, entropy_N, targets, settings.importance_cap))

    def _scores(self, hidden_ND: mx.array, targets: FlatTargets) -> tuple[mx.array, mx.array]:
        """log π of the targets and the entropy at them [N], from the hidden states that predict them."""
        vocab_size, elements = self._decoder.shape.vocab_size, self._settings.vocab_chunk_elements
        return token_scores(self._decoder.logits, hidden_ND, targets.ids_N, vocab_size, elements, targets.allowed)

    def _logprobs_of(self, ids_NK: mx.array, hidden_ND: mx.array, allowed: FlatAllowed | None) -> mx.array:
        """log π of several tokens at each place [N, K]."""
        rows = max(1, self._settings.vocab_chunk_elements // self._decoder.shape.vocab_size)
        chunk = mx.checkpoint(lambda hidden, ids, excluded: _logprobs_of_chunk(self._decoder.logits(hidden), ids, excluded))
        places = [slice(start, start + rows) for start in range(0, len(ids_NK), rows)]
        return mx.concatenate([chunk(hidden_ND[here], ids_NK[here], self._excluded(allowed, here)) for here in places])

    def _excluded(self, allowed: FlatAllowed | None, here: slice) -> mx.array:
        """What the targets of a chunk were not drawn from."""
        if allowed is None:
            return mx.array(False)
        return allowed.excluded_KV[allowed.set_N[here], : self._decoder.shape.vocab_size]

    def _read(self, rows: Sequence[Row], most: int, into: Readings) -> Slices:
        distinct = {(row.prompt_ids, row.token_ids): row for row in rows}
        for chunk in plain_chunks(distinct.values(), self._settings.tokens_per_slice):
            targets = FlatTargets.of(chunk)
            hidden_ND = targets.of_learned(plain_hidden(self._decoder, chunk))
            logprobs_N = _as_numpy(self._scores(hidden_ND, targets)[0])
            ends = np.cumsum([len(row.learned) for row in chunk])[:-1]
            references: Iterable[Reference | None] = itertools.repeat(None)
            if most:
                ids_NK = self._likeliest(hidden_ND, most, targets.allowed)
                found_NK = _as_numpy(self._logprobs_of(mx.array(ids_NK), hidden_ND, targets.allowed))
                parts = zip(np.split(ids_NK, ends), np.split(found_NK, ends), strict=True)
                references = [Reference(torch.from_numpy(ids), torch.from_numpy(found)) for ids, found in parts]
            for row, own_N, reference in zip(chunk, np.split(logprobs_N, ends), references, strict=False):
                into[row.prompt_ids, row.token_ids] = float(own_N.sum()), reference
            yield

    def _likeliest(self, hidden_ND: mx.array, count: int, allowed: FlatAllowed | None) -> Any:
        """The ids [N, K] of the allowed tokens with the greatest logits, -1 where there are fewer."""
        size, vocab_size = self._settings.vocab_chunk_elements, self._decoder.shape.vocab_size
        rows, found, count = max(1, size // vocab_size), [], min(count, vocab_size)
        for start in range(0, len(hidden_ND), rows):
            here = slice(start, start + rows)
            logits_NV = mx.where(self._excluded(allowed, here), EXCLUDED, self._decoder.logits(hidden_ND[here]))
            ids_NK = mx.argpartition(logits_NV, kth=vocab_size - count, axis=-1)[:, vocab_size - count :]
            best_NK = mx.take_along_axis(logits_NV, ids_NK, axis=-1)
            found.append(_as_numpy(mx.where(best_NK <= EXCLUDED, -1, ids_NK.astype(mx.int32))))
        return np.concatenate(found)

    def _score(self, row: Row) -> tuple[float, ...]:
        targets = FlatTargets.of([row])
        logprobs_N, _ = self._scores(targets.of_learned(plain_hidden(self._decoder, [row])), targets)
        return tuple(_as_numpy(logprobs_N).tolist())

    # -- the optimiser -------------------------------------------------------------------------------------------------------------

    def _gradient_norm(self) -> float:
        return math.sqrt(sum(_number(mx.square(grad).sum()) for grad in self._sum.values()))

    def _optimise(self, factor: float) -> None:
        """θ ← θ(1 - ηω) - η m̂ / (√v̂ + ε), as torch.optim.AdamW (decoupled weight decay ω, bias-corrected moments)."""
        settings, count = self._settings, self.step + 1
        lr, (beta1, beta2) = self.learning_rate, settings.betas
        root = math.sqrt(1.0 - beta2**count)
        adapter, averages = self._decoder.lora(), {}
        for name, unscaled in self._sum.items():
            grad = unscaled * factor
            first, second = self._averages.get(name, (mx.zeros_like(grad), mx.zeros_like(grad)))
            first, second = beta1 * first + (1.0 - beta1) * grad, beta2 * second + (1.0 - beta2) * grad * grad
            averages[name] = first, second
            change = first / (mx.sqrt(second) / root + settings.eps)
            adapter[name] = adapter[name] * (1.0 - lr * settings.weight_decay) - (lr / (1.0 - beta1**count)) * change
        mx.eval(adapter, averages)
        check_weights(max(_number(mx.abs(values).max()) for values in adapter.values()), count)
        self._decoder.set_lora(adapter)
        self._averages = averages

    def _discard_gradient(self) -> None:
        self._sum = {}

    # -- state ---------------------------------------------------------------------------------------------------------------------

    def _adapter(self) -> dict[str, Tensor]:
        return _as_torch(self._decoder.lora())

    def _set_adapter(self, tensors: Mapping[str, Tensor]) -> None:
        self._decoder.set_lora(_as_mlx(tensors))

    def _moments(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, (first, second) in self._averages.items():
            key = parameter_name(name)
            tensors |= _as_torch({f"{key}/exp_avg": first, f"{key}/exp_avg_sq": second})
            tensors[f"{key}/step"] = torch.tensor(float(self.step))
        return tensors

    def _set_moments(self, tensors: Mapping[str, Tensor]) -> None:
        arrays = _as_mlx(tensors)
        keys = {name: parameter_name(name) for name in self._decoder.lora()} if arrays else {}
        self._averages = {name: (arrays[f"{key}/exp_avg"], arrays[f"{key}/exp_avg_sq"]) for name, key in keys.items()}


def fresh_lora(shapes: Mapping[str, mx.array], seed: int) -> Arrays:
    """A zero B and an A uniform in ±1/√inputs, drawn from `seed` in the order of names."""
    draw = np.random.Generator(np.random.Philox(derive_seed(seed, "lora")))
    fresh: Arrays = {}
    for name, tensor in sorted(shapes.items()):
        bound = 0.0 if ".lora_B." in name else 1.0 / math.sqrt(tensor.shape[1])
        fresh[name] = mx.array(draw.uniform(-bound, bound, tuple(tensor.shape)).astype(np.float32))
    return fresh


def _as_torch(arrays: Mapping[str, mx.array]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(_as_numpy(array)) for name, array in arrays.items()}


def _as_mlx(tensors: Mapping[str, Tensor]) -> Arrays:
    return {name: mx.array(tensor.float().numpy()) for name, tensor in tensors.items()}


def _number(scalar: mx.array) -> float:
    return float(_as_numpy(scalar))


def _as_numpy(array: mx.array) -> Any:
    """Computed first: reading an array that is not holds Python's lock while it waits, and what it waits for may need that lock."""
    mx.eval(array)
    return np.array(array)


# --- the objective ---


class FlatBiased(NamedTuple):
    """edge.training.batching.BiasedTargets on MLX."""

    place_M: mx.array
    bias_M: mx.array
    help_ids_MH: mx.array


class FlatAllowed(NamedTuple):
    """edge.training.batching.AllowedTargets on MLX."""

    excluded_KV: mx.array
    set_N: mx.array


class FlatReference(NamedTuple):
    """edge.training.batching.Reference on MLX."""

    ids_NK: mx.array
    logprobs_NK: mx.array


class FlatTargets(NamedTuple):
    """edge.training.batching.Targets on MLX."""

    ids_N: mx.array
    behaviour_N: mx.array
    coefficients_N: mx.array
    off_policy_N: mx.array | None = None
    imitated_N: mx.array | None = None
    biased: FlatBiased | None = None
    learned_N: mx.array | None = None
    allowed: FlatAllowed | None = None
    reference: FlatReference | None = None

    @classmethod
    def of(cls, rows: Sequence[Row]) -> FlatTargets:
        """The learned tokens of the rows with what the loss needs for each."""
        found = targets_of(rows, torch.device("cpu"))
        return cls(
            _flat(found.ids_N),
            _flat(found.behaviour_N),
            _flat(found.coefficients_N),
            None if found.off_policy_N is None else _flat(found.off_policy_N),
            None if found.imitated_N is None else _flat(found.imitated_N),
            None if found.biased is None else FlatBiased(*map(_flat, found.biased)),
            None if found.learned_N is None else _flat(found.learned_N),
            None if found.allowed is None else FlatAllowed(*map(_flat, found.allowed)),
            None if found.reference is None else FlatReference(*map(_flat, found.reference)),
        )

    def of_learned(self, hidden_MD: mx.array) -> mx.array:
        """Of the hidden states that predict all tokens of responses those of the learned ones."""
        return hidden_MD if self.learned_N is None else hidden_MD[self.learned_N]


def _flat(tensor: Tensor) -> mx.array:
    return mx.array(tensor.numpy())


def token_scores(
    logits: Callable[[mx.array], mx.array],
    hidden_ND: mx.array,
    ids_N: mx.array,
    vocab_size: int,
    chunk_elements: int,
    allowed: FlatAllowed | None = None,
) -> tuple[mx.array, mx.array]:
    """log softmax(logits)[target] over the allowed tokens and the distribution's entropy, both [N] in nats; the entropy carries no
    gradient.

    About `chunk_elements` logits are held at once; the backward pass computes a chunk's logits again.
    """
    rows = max(1, chunk_elements // vocab_size)
    chunk = mx.checkpoint(lambda hidden, ids, excluded: _scores_of_chunk(logits(hidden), ids, excluded))
    parts = []
    for start in range(0, len(ids_N), rows):
        here = slice(start, start + rows)
        excluded = mx.array(False) if allowed is None else allowed.excluded_KV[allowed.set_N[here], :vocab_size]
        parts.append(chunk(hidden_ND[here], ids_N[here], excluded))
    logprobs_N, entropy_N = (mx.concatenate(list(column)) for column in zip(*parts, strict=True))
    return logprobs_N, mx.stop_gradient(entropy_N)


def _scores_of_chunk(logits_NV: mx.array, ids_N: mx.array, excluded_NV: mx.array) -> tuple[mx.array, mx.array]:
    logits_NV = mx.where(mx.stop_gradient(excluded_NV), EXCLUDED, logits_NV)
    normaliser_N = mx.logsumexp(logits_NV, axis=-1)
    columns_N1 = mx.stop_gradient(ids_N)[:, None]  # a checkpoint differentiates by all of its arguments
    chosen_N = mx.take_along_axis(logits_NV, columns_N1, axis=-1)[:, 0]
    probs_NV = mx.exp(logits_NV - normaliser_N[:, None])
    return chosen_N - normaliser_N, normaliser_N - (probs_NV * logits_NV).sum(axis=-1)


def _logprobs_of_chunk(logits_NV: mx.array, ids_NK: mx.array, excluded_NV: mx.array) -> mx.array:
    logits_NV = mx.where(mx.stop_gradient(excluded_NV), EXCLUDED, logits_NV)
    ids_NK = mx.stop_gradient(ids_NK)
    chosen_NK = mx.take_along_axis(logits_NV, mx.maximum(ids_NK, 0), axis=-1) - mx.logsumexp(logits_NV, axis=-1, keepdims=True)
    return mx.where(ids_NK < 0, -mx.inf, chosen_NK)


def divergence(logprobs_NK: mx.array, reference: FlatReference) -> mx.array:
    """KL(p ‖ π) per token (edge.training.loss.divergence)."""
    known_NK = reference.ids_NK >= 0
    p_NK = mx.exp(reference.logprobs_NK)
    differences_NK = mx.where(known_NK, reference.logprobs_NK - mx.where(known_NK, logprobs_NK, 0.0), 0.0)
    rest_p_N, rest_N = (mx.maximum(1.0 - probs_NK.sum(-1), NO_REST) for probs_NK in (p_NK, mx.exp(logprobs_NK)))
    return (mx.where(known_NK, p_NK * differences_NK, 0.0)).sum(-1) + rest_p_N * (mx.log(rest_p_N) - mx.log(rest_N))


def with_help_bias(
    logprobs_N: mx.array, logits: Callable[[mx.array], mx.array], hidden_ND: mx.array, ids_N: mx.array, biased: FlatBiased
) -> mx.array:
    """log π_b from log π (edge.training.loss.with_help_bias)."""
    logits_MV = logits(hidden_ND[biased.place_M])
    known_MH = biased.help_ids_MH >= 0
    chosen_MH = mx.take_along_axis(logits_MV, mx.maximum(biased.help_ids_MH, 0), axis=-1)
    log_help_M = mx.logsumexp(mx.where(known_MH, chosen_MH, -mx.inf), axis=-1) - mx.logsumexp(logits_MV, axis=-1)
    help_M = mx.minimum(mx.exp(log_help_M), 1.0 - 1e-6)
    asks_M = (biased.help_ids_MH == ids_N[biased.place_M][:, None]).any(axis=-1)
    change_M = mx.where(asks_M, biased.bias_M, 0.0) - mx.log1p(mx.expm1(biased.bias_M) * help_M)
    return logprobs_N.at[biased.place_M].add(change_M)


def importance_weights(logprobs_N: mx.array, targets: FlatTargets, cap: float) -> mx.array:
    """ρ = min(π_θ/μ, C) per token, without gradient; of other authors' tokens f'(π) π (edge.training.loss.shaped_weights), or 1."""
    logprobs_N = mx.stop_gradient(logprobs_N)
    own_N = mx.minimum(mx.exp(logprobs_N - targets.behaviour_N), cap)
    if targets.off_policy_N is None:
        return own_N
    probs_N = mx.exp(logprobs_N)
    weights_N = mx.where(targets.off_policy_N, SHAPING * probs_N / mx.square(probs_N + SHAPING), own_N)
    return weights_N if targets.imitated_N is None else mx.where(targets.imitated_N, 1.0, weights_N)


def mismatch_sums(logprobs_N: mx.array, entropy_N: mx.array, targets: FlatTargets, cap: float) -> MismatchSums:
    """Compare trainer and sampler on the sampler's tokens; KL(μ‖π) by the estimator ρ - 1 - log ρ, which is never negative."""
    own_N = slice(None) if targets.off_policy_N is None else ~np.array(targets.off_policy_N)
    log_ratio_N = np.array(logprobs_N).astype(np.float64)[own_N] - np.array(targets.behaviour_N)[own_N]
    with np.errstate(over="ignore"):
        ratio_N = np.exp(log_ratio_N)
        return MismatchSums(
            tokens=len(log_ratio_N),
            abs_diff=float(np.abs(log_ratio_N).sum()),
            kl=float((np.expm1(log_ratio_N) - log_ratio_N).sum()),
            ratio=float(ratio_N.sum()),
            ratio_squared=float(np.square(ratio_N).sum()),
            clipped=int((ratio_N > cap).sum()),
            entropy=float(np.array(entropy_N).astype(np.float64)[own_N].sum()),
        )


# --- hidden states ---


def chunks_by_prompt(rows: Iterable[Row], tokens: int) -> Iterator[tuple[Row, ...]]:
    """Micro-batches of responses, those to one prompt together, within a budget of padded tokens of distinct prompts and responses.

    The longest prompts come first, and of a prompt the longest responses. A single row may exceed the budget.
    """
    ordered = sorted(rows, key=lambda row: (len(row.prompt_ids), row.prompt_ids, len(row.token_ids)), reverse=True)
    chunk: list[Row] = []
    for row in ordered:
        if chunk and _padded_tokens([*chunk, row]) > tokens:
            yield tuple(chunk)
            chunk = []
        chunk.append(row)
    if chunk:
        yield tuple(chunk)


def plain_hidden(decoder: Any, rows: Sequence[Row]) -> mx.array:
    """Hidden states [N, D] that predict the response tokens, computed over whole rows."""
    states_RTD = decoder.hidden_states(_pad([(*row.prompt_ids, *row.token_ids[:-1]) for row in rows]))
    return _picked(states_RTD, [(len(row.prompt_ids) - 1, len(row.token_ids)) for row in rows])


def shared_hidden(decoder: Any, rows: Sequence[Row]) -> mx.array:
    """Hidden states [N, D] that predict the response tokens, each distinct prompt computed once."""
    prompts = list(dict.fromkeys(row.prompt_ids for row in rows))
    recorded = [_Recorder() for _ in range(decoder.shape.layers)]
    states_QTD = decoder.hidden_states(_pad(prompts), recorded)
    number = {prompt: index for index, prompt in enumerate(prompts)}
    which_R = mx.array([number[row.prompt_ids] for row in rows])
    lengths_R = mx.array([len(row.prompt_ids) for row in rows])
    first_RD: mx.array = states_QTD[which_R, lengths_R - 1]
    if max(len(row.token_ids) for row in rows) == 1:
        return first_RD
    continued = [_Continued(layer.keys[which_R], layer.values[which_R], lengths_R) for layer in recorded]
    states_RTD = decoder.hidden_states(_pad([row.token_ids[:-1] for row in rows]), continued)
    return _picked(mx.concatenate([first_RD[:, None], states_RTD], axis=1), [(0, len(row.token_ids)) for row in rows])


class _Recorder:
    """The cache role of mlx_lm's layers for prompts from position 0 on; keeps what later tokens attend to."""

    offset = 0
    keys: Any = None
    values: Any = None

    def make_mask(self, length: int, **_: Any) -> str | None:
        """Plain causal: rows are padded on the right, so no real token can attend to padding."""
        return "causal" if length > 1 else None

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Keep [Q, K, T, d]."""
        self.keys, self.values = keys, values
        return keys, values


class _Continued:
    """The cache role of mlx_lm's layers for responses after right-padded prompts of several lengths."""

    def __init__(self, keys: mx.array, values: mx.array, lengths_R: mx.array) -> None:
        self._keys, self._values, self.offset = keys, values, lengths_R

    def make_mask(self, length: int, **_: Any) -> mx.array:
        """True for the real tokens of a row's prompt and the response up to here, [R, 1, T, prompt + T]."""
        rows, places = self._keys.shape[0], self._keys.shape[2]
        prompt = mx.arange(places) < self.offset[:, None]
        causal = mx.arange(length)[:, None] >= mx.arange(length)
        parts = (
            mx.broadcast_to(prompt[:, None, None], (rows, 1, length, places)),
            mx.broadcast_to(causal[None, None], (rows, 1, length, length)),
        )
        return mx.concatenate(list(parts), axis=-1)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """The prompt's keys and values with [R, K, T, d] appended."""
        return mx.concatenate([self._keys, keys], axis=2), mx.concatenate([self._values, values], axis=2)


def _padded_tokens(rows: Sequence[Row]) -> int:
    prompts = {row.prompt_ids for row in rows}
    return len(prompts) * max(map(len, prompts)) + len(rows) * max(len(row.token_ids) for row in rows)


def _pad(sequences: Sequence[Sequence[int]]) -> mx.array:
    """Right-padded with id 0 to the longest, [rows, T]."""
    ids = np.zeros((len(sequences), max(map(len, sequences))), dtype=np.int32)
    for index, sequence in enumerate(sequences):
        ids[index, : len(sequence)] = sequence
    return mx.array(ids)


def _picked(states_RTD: mx.array, spans: Sequence[tuple[int, int]]) -> mx.array:
    """The states of each row's span (start, count), laid end to end."""
    longest = states_RTD.shape[1]
    places = np.concatenate([np.arange(count) + row * longest + start for row, (start, count) in enumerate(spans)])
    return states_RTD.reshape(-1, states_RTD.shape[-1])[mx.array(places.astype(np.int32))]

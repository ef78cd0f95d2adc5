"""The learner on MLX: the gradient and the optimiser of edge/training/lora_learner.py.

It trains on the quantised weights that the MLX backend serves: gradients flow through them to the adapter and to nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import mlx.core as mx
import numpy as np
import torch
from torch import Tensor

from edge.core.clock import Clock
from edge.core.errors import UsageError
from edge.core.rng import derive_seed
from edge.core.worker import EngineWorker
from edge.training.batching import Row, biased_targets, plain_chunks
from edge.training.learner import check_weights
from edge.training.lora_learner import AdapterConverter, LoraLearner, Slices, Tally, parameter_name
from edge.training.mlx_loss import FlatBiased, FlatTargets, mismatch_sums, policy_loss, token_scores, weights_of, with_help_bias
from edge.training.mlx_passes import HiddenStates, chunks_by_prompt, plain_hidden, shared_hidden
from edge.training.settings import LearnerSettings, LoraSpec, UpdateRule

Arrays = dict[str, mx.array]
HiddenOf = Callable[[HiddenStates, Sequence[Row]], mx.array]


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


class MlxLearner(LoraLearner):
    """Trains a LoRA adapter on an MLX decoder of its own.

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
        super().__init__(worker, convert, seed=seed, lora_spec=lora_spec, settings=settings, clock=clock)
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
        """Never: prompts hand their keys and values on beside the layers' outputs."""
        return False

    def use_checkpointing(self, on: bool) -> None:
        """Raises UsageError when it is to be on."""
        if on:
            raise UsageError(
                "gradient checkpointing is not there for MLX",
                hint="lower learning.micro_batch_tokens, or set engine.backend to llamacpp",
            )

    # -- the gradient --------------------------------------------------------------------------------------------------------------

    def _gradient(self, rows: Sequence[Row], tally: Tally) -> Slices:
        shared = self._settings.prefix_sharing != "plain"
        for chunk in (chunks_by_prompt if shared else plain_chunks)(rows, self._settings.tokens_per_slice):
            self._add_gradient(chunk, tally, shared_hidden if shared else plain_hidden)
            yield

    def _add_gradient(self, chunk: Sequence[Row], tally: Tally, hidden_of: HiddenOf) -> None:
        """Add the gradient of the chunk's loss, computed before this returns."""
        targets = flat_targets(chunk)
        before = self._decoder.lora()

        def objective(adapter: Arrays) -> tuple[mx.array, mx.array, mx.array]:
            self._decoder.set_lora(adapter)
            hidden_ND = hidden_of(self._decoder, chunk)
            logprobs_N, entropy_N = self._scores(hidden_ND, targets.ids_N)
            if targets.biased is not None:
                logprobs_N = with_help_bias(logprobs_N, self._decoder.logits, hidden_ND, targets.ids_N, targets.biased)
            cap, kind = self._settings.importance_cap, self._settings.importance
            weights_N = weights_of(kind, logprobs_N, targets, len(chunk), cap)
            return policy_loss(logprobs_N, targets.coefficients_N, weights_N), logprobs_N, entropy_N

        try:
            (loss, logprobs_N, entropy_N), gradient = mx.value_and_grad(objective)(before)
        finally:
            self._decoder.set_lora(before)
        self._sum = {name: grad + self._sum[name] if self._sum else grad for name, grad in gradient.items()}
        mx.eval(self._sum, loss, logprobs_N, entropy_N)
        tally.add(_number(loss), mismatch_sums(logprobs_N, entropy_N, targets, self._settings.importance_cap))

    def _scores(self, hidden_ND: mx.array, ids_N: mx.array) -> tuple[mx.array, mx.array]:
        """log π of the tokens and the entropy at them [N], from the hidden states that predict them."""
        vocab_size, elements = self._decoder.shape.vocab_size, self._settings.vocab_chunk_elements
        return token_scores(self._decoder.logits, hidden_ND, ids_N, vocab_size, elements)

    def _score(self, row: Row) -> tuple[float, ...]:
        logprobs_N, _ = self._scores(plain_hidden(self._decoder, [row]), mx.array(row.token_ids))
        return tuple(_as_numpy(logprobs_N).tolist())

    # -- the optimiser -------------------------------------------------------------------------------------------------------------

    def _gradient_norm(self) -> float:
        return math.sqrt(sum(_number(mx.square(grad).sum()) for grad in self._sum.values()))

    def _optimise(self, learning_rate: float, factor: float) -> None:
        """θ ← θ(1 - ηω) - η m̂ / (√v̂ + ε), as torch.optim.AdamW (decoupled weight decay ω, bias-corrected moments)."""
        settings, count = self._settings, self._step + 1
        lr, (beta1, beta2) = learning_rate, settings.betas
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
            tensors[f"{key}/step"] = torch.tensor(float(self._step))
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


def flat_targets(rows: Sequence[Row]) -> FlatTargets:
    """The response tokens of the rows, flat, with what the loss needs for each."""
    lengths = [len(row.token_ids) for row in rows]
    biased = biased_targets(rows, torch.device("cpu"))
    return FlatTargets(
        mx.array([token for row in rows for token in row.token_ids]),
        mx.array([value for row in rows for value in row.behaviour_logprobs], dtype=mx.float32),
        mx.array(np.repeat(np.array([row.coefficient for row in rows], dtype=np.float32), lengths)),
        mx.array(np.repeat(np.arange(len(rows), dtype=np.int32), lengths)),
        mx.array(np.repeat([row.off_policy for row in rows], lengths)) if any(row.off_policy for row in rows) else None,
        None if biased is None else FlatBiased(*(mx.array(tensor.numpy()) for tensor in biased)),
    )


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

"""Recomputed blocks in the backward pass give bit-equal gradients with less memory."""

from __future__ import annotations

import gc
import weakref
from pathlib import Path

import pytest
import torch

from edge.core.worker import EngineWorker
from edge.models.streamed import open_streamed
from edge.training import lora
from edge.training.learner import LORA_TARGETS, LoraSpec
from edge.training.memory import BatchLimits, ModelShape, OutOfMemory, ProbePlan, TrainingSetting, make_fit
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.tiny_learner import VOCAB, adapter_of, equal, policy_gradients, random_groups, tiny_decoder, tiny_learner


def _gradients(decoder, *, checkpointing: bool, shared: bool, bf16: bool = False) -> dict[str, torch.Tensor]:
    decoder.checkpointing = checkpointing
    return policy_gradients(decoder, random_groups(2), shared=shared, tokens_per_slice=40, bf16=bf16)


@pytest.mark.parametrize(
    ("weights", "shared", "bf16"),
    [
        ("resident", True, False),
        ("resident", False, False),
        ("resident", True, True),
        ("resident", False, True),
        ("streamed", True, False),
    ],
)
def test_gradients_are_bit_equal(tmp_path: Path, weights: str, shared: bool, bf16: bool) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf").path
    opened = (tiny_decoder() if weights == "resident" else open_streamed(path) for _ in range(2))
    kept, again = (
        _gradients(decoder, checkpointing=on, shared=shared, bf16=bf16) for decoder, on in zip(opened, (False, True), strict=True)
    )
    assert all(gradient.abs().max() > 0 for gradient in kept.values())
    assert all(torch.equal(kept[name], again[name]) for name in kept)


async def test_updates_are_bit_equal_and_leave_the_random_state_unchanged(worker: EngineWorker) -> None:
    plain, again = tiny_learner(worker), tiny_learner(worker, gradient_checkpointing=True)
    assert (plain.checkpointing, again.checkpointing) == (False, True)
    before = torch.get_rng_state()
    for seed in range(3):
        assert await plain.update(random_groups(seed)) == await again.update(random_groups(seed))
    assert equal(adapter_of(plain), adapter_of(again))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "plain"])
def test_checkpointing_keeps_less_memory_between_forward_and_backward(shared: bool) -> None:
    assert _most_kept(checkpointing=True, shared=shared) < 0.6 * _most_kept(checkpointing=False, shared=shared)


@pytest.mark.parametrize("shared", [True, False], ids=["shared", "plain"])
def test_the_last_product_of_a_block_is_not_taken_again(tmp_path: Path, shared: bool) -> None:
    decoder = open_streamed(write_tiny_model(tmp_path / "tiny.gguf").path)
    mlp, made = decoder.model.layers[0].mlp, {"gate_proj": 0, "down_proj": 0}
    for name in made:
        base = getattr(mlp, name)

        def counted(dtype: torch.dtype, name: str = name, matrix=base.matrix) -> torch.Tensor:
            made[name] += 1
            return matrix(dtype)

        base.matrix = counted
    _gradients(decoder, checkpointing=True, shared=shared)
    assert made["gate_proj"] * 2 == made["down_proj"] * 3, "forward, again, backward; and forward, backward"


def test_in_bf16_the_layers_behind_a_norm_keep_one_copy_of_its_output() -> None:
    decoder = tiny_decoder()
    lora.inject_lora(decoder, LoraSpec(rank=4), seed=1)
    alive: list[torch.Tensor] = []
    ids = torch.arange(2 * 40).view(2, 40) % VOCAB
    with torch.autograd.graph.saved_tensors_hooks(lambda one: alive.append(one) or one, lambda one: one), torch.autocast("cpu"):
        decoder.hidden_states(ids)
    inputs = {one.untyped_storage().data_ptr() for one in alive if one.dtype == torch.bfloat16 and one.shape == (80, 32)}
    assert len(inputs) == 2 * 3, "of each layer what q, k and v get, what o gets, and what gate and up get"


def _most_kept(*, checkpointing: bool, shared: bool) -> int:
    """Bytes of distinct storage that autograd packs while one forward pass is made."""
    decoder = tiny_decoder()
    lora.inject_lora(decoder, LoraSpec(rank=4), seed=1)
    decoder.checkpointing = checkpointing
    frozen = {parameter.untyped_storage().data_ptr() for parameter in decoder.parameters()}
    alive: list[torch.Tensor] = []

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        alive.append(tensor)
        return tensor

    ids = torch.arange(2 * 40).view(2, 40) % VOCAB
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        decoder.hidden_states(ids, torch.ones(2, 40, dtype=torch.bool), use_cache=shared)
    sizes = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in alive}
    return sum(size for place, size in sizes.items() if place not in frozen)


async def test_learner_short_of_memory_switches_to_recomputation(worker: EngineWorker) -> None:
    learner = tiny_learner(worker)
    made: list[weakref.ref[torch.Tensor]] = []
    left_over: list[int] = []

    def short_of_memory(module, _inputs, outputs) -> None:
        if learner.checkpointing:
            gc.collect()
            left_over.append(sum(tensor() is not None for tensor in made))
            return
        made.append(weakref.ref(outputs[0]))
        torch.empty(1 << 60)

    hook = learner._module.model.layers[-1].register_forward_hook(short_of_memory)
    await make_fit(learner, _plan(), lambda: 1 << 40)
    assert learner.checkpointing
    assert made and left_over[0] == 0
    hook.remove()
    fresh = tiny_learner(worker)
    assert await learner.update(random_groups(4)) == await fresh.update(random_groups(4))


async def test_model_that_does_not_fit_either_way_is_refused_in_one_line(worker: EngineWorker) -> None:
    learner = tiny_learner(worker)
    learner._module.model.layers[-1].register_forward_hook(lambda *_: torch.empty(1 << 60) and None)
    with pytest.raises(OutOfMemory, match="the longest micro-batch was tried") as caught:
        await make_fit(learner, _plan(), lambda: 1 << 40)
    assert "\n" not in str(caught.value)
    assert "learning.memory.micro_batch_tokens" in caught.value.hint
    assert all(parameter.grad is None for parameter in learner._parameters.values())


def _plan() -> ProbePlan:
    shape = ModelShape(20_000, VOCAB, width=32, layers=2, heads=4, kv_heads=2, head_dim=8, ffn_width=48)
    limits = BatchLimits(context_tokens=32, max_tokens=8, prompts=2, group_size=2, tokens_per_slice=48)
    return ProbePlan(shape, limits, TrainingSetting(4, LORA_TARGETS), held_bytes=0, probe="on")

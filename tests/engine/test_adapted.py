"""The hand-written products and gradients of the decoder, compared with autograd on the plain expressions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model
from torch import Tensor

from edge.core.errors import AdapterError
from edge.core.rng import derive_seed
from edge.models.decoder import FeedForward, RMSNorm, attention, attention_mask
from edge.models.spec import DecoderSpec
from edge.training import lora
from edge.training.lora import round_frozen
from tests.worlds.tiny_learner import SPEC, VOCAB, tiny_decoder


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).requires_grad_()


def gradients(output: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = torch.linspace(-1.0, 1.0, output.numel()).view(output.shape)
    return list(torch.autograd.grad((output.float() * weights).sum(), inputs))


def assert_near(mine: list[Tensor], theirs: list[Tensor], relative: float = 1e-5) -> None:
    for own, other in zip(mine, theirs, strict=True):
        assert own.dtype == other.dtype
        assert float((own - other).detach().float().norm()) <= relative * float(other.detach().float().norm())


def pefts_decoder() -> torch.nn.Module:
    """The tiny decoder with a fresh adapter of peft's, drawn from the same seed as `inject_lora` does."""
    decoder = tiny_decoder().requires_grad_(False)
    targets = list(SPEC.targets)
    config = LoraConfig(r=SPEC.rank, lora_alpha=SPEC.alpha, target_modules=targets, lora_dropout=0.0, bias="none")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(3, "lora") % 2**63)
        inject_adapter_in_model(config, decoder)
    return decoder


def adapted(ours: bool) -> torch.nn.Module:
    """The tiny decoder with an adapter that is not fresh, ours or peft's."""
    decoder = tiny_decoder() if ours else pefts_decoder()
    if ours:
        lora.inject_lora(decoder, SPEC, 3)
    draw = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in lora.lora_parameters(decoder).values():
            parameter.normal_(0.0, 0.1, generator=draw)
    return decoder


def test_fresh_adapter_is_bit_equal_to_peft() -> None:
    decoder = tiny_decoder()
    lora.inject_lora(decoder, SPEC, 3)
    mine, theirs = lora.lora_state(decoder), get_peft_model_state_dict(pefts_decoder(), save_embedding_layers=False)
    assert mine.keys() == {f"base_model.model.{name}" for name in theirs}
    assert all(torch.equal(mine[f"base_model.model.{name}"], tensor) for name, tensor in theirs.items())


def test_unknown_target_modules_are_refused() -> None:
    with pytest.raises(AdapterError, match="no layer named query or key"):
        lora.inject_lora(tiny_decoder(), replace(SPEC, targets=("query", "key")), 3)


IDS = torch.arange(18).view(2, 9) % VOCAB
MASK = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])


def states_and_gradients(ours: bool, half: bool) -> list[Tensor]:
    decoder = adapted(ours)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        states = decoder.hidden_states(IDS, MASK).states_BTD[MASK]
    return [states.detach(), *gradients(states, list(lora.lora_parameters(decoder).values()))]


def test_fused_base_and_adapter_product_matches_peft_states_and_gradients() -> None:
    mine = states_and_gradients(ours=True, half=False)
    assert_near(mine, states_and_gradients(ours=False, half=False))
    assert all(float(gradient.abs().max()) > 0 for gradient in mine[1:])


def test_fused_bf16_product_is_as_close_to_fp32_as_pefts_three_products() -> None:
    exact = states_and_gradients(ours=False, half=False)
    errors = []
    for ours in (True, False):
        found = states_and_gradients(ours, half=True)
        errors.append([float((own - other).norm() / other.norm()) for own, other in zip(found, exact, strict=True)])
    mine, pefts = errors
    assert sum(mine) < 1.1 * sum(pefts) < 0.1 * len(exact)


def test_only_matrices_under_adapters_are_rounded_and_other_products_keep_autocast_results() -> None:
    ids = torch.arange(9)[None]
    plain, rounded = adapted(True), adapted(True)
    round_frozen(rounded, torch.bfloat16)
    kinds = {name: parameter.dtype for name, parameter in rounded.named_parameters() if parameter.dtype != torch.float32}
    assert len(kinds) == 2 * len(SPEC.targets)
    assert all(name.endswith("base_layer.weight") for name in kinds)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(plain.hidden_states(ids).states_BTD, rounded.hidden_states(ids).states_BTD)


@pytest.mark.parametrize("lengths", [(9, 6), (1, 9), (4, 4)])
def test_padded_rows_have_the_states_of_the_rows_alone_and_no_layer_computes_padding(lengths: tuple[int, ...]) -> None:
    decoder, seen = adapted(True), []
    decoder.model.layers[1].mlp.down_proj.register_forward_pre_hook(
        lambda _layer, given: seen.append(given[0].shape[:-1].numel())
    )
    mask = torch.arange(9) < torch.tensor(lengths)[:, None]
    states = decoder.hidden_states(IDS, mask).states_BTD
    assert seen == [sum(lengths)]
    for row, length in enumerate(lengths):
        alone = decoder.hidden_states(IDS[row : row + 1, :length]).states_BTD[0]
        assert_near([states[row, :length]], [alone])


@pytest.mark.parametrize("places", [[(0, 3), (1, 5)], [(0, 8)], [(1, 0), (1, 1), (0, 2)], []])
def test_wanted_states_and_their_gradients_are_those_of_all_and_the_last_block_computes_no_others(
    places: list[tuple[int, int]],
) -> None:
    decoder, seen = adapted(True), []
    for layer in decoder.model.layers:
        layer.mlp.gate_proj.register_forward_pre_hook(lambda _layer, given: seen.append(len(given[0])))
    wanted = torch.zeros_like(MASK)
    for place in places:
        wanted[place] = True
    parameters = list(lora.lora_parameters(decoder).values())
    found = decoder.hidden_states(IDS, MASK, wanted_BT=wanted).states_BTD[wanted]
    assert seen == [15, len(places) or 15]
    expected = decoder.hidden_states(IDS, MASK).states_BTD[wanted]
    assert_near([found], [expected])
    if places:
        assert_near(gradients(found, parameters), gradients(expected, parameters))


@pytest.mark.parametrize(("heads", "kv_heads", "cached"), [(4, 2, 0), (4, 2, 5), (6, 2, 3), (3, 3, 4), (4, 1, 2)])
def test_grouped_attention_agrees_with_the_fused_kernel(heads: int, kv_heads: int, cached: int) -> None:
    rows, length, width = 3, 7, 8
    q, k, v = (
        random(rows, count, size, width, seed=seed)
        for seed, (count, size) in enumerate(((heads, length), (kv_heads, cached + length), (kv_heads, cached + length)))
    )
    mask = torch.ones(rows, cached + length, dtype=torch.bool)
    mask[1, :2], mask[2, -1] = False, False
    if cached == 0:
        mask = torch.ones_like(mask)
    attend = attention_mask(torch.zeros(rows, length, dtype=torch.long), mask, cached)
    repeats = heads // kv_heads
    whole = F.scaled_dot_product_attention(
        q, k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1), attn_mask=attend, is_causal=attend is None
    )
    mine = attention(q, k, v, attend)
    assert_near([mine, *gradients(mine, [q, k, v])], [whole, *gradients(whole, [q, k, v])])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_frozen_norm_has_the_gradient_of_a_trained_one(dtype: torch.dtype) -> None:
    norm, x = RMSNorm(16, 1e-6), random(3, 5, 16, seed=4, dtype=dtype)
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(0.5, 2.0, 16))
    trained = norm(x)
    expected = [trained, *gradients(trained, [x])]
    norm.requires_grad_(False)
    frozen = norm(x)
    assert_near([frozen, *gradients(frozen, [x])], expected, relative=1e-5 if dtype == torch.float32 else 0.01)


def test_recomputed_gate_gives_the_same_gradient() -> None:
    layer, x = FeedForward(DecoderSpec("qwen2", VOCAB, 16, 1, 2, 2, 8, 24)), random(2, 5, 16, seed=5)
    plain = layer.down_proj(F.silu(layer.gate_proj(x)) * layer.up_proj(x))
    weights = [x, layer.gate_proj.weight, layer.up_proj.weight, layer.down_proj.weight]
    mine = layer(x)
    assert_near([mine, *gradients(mine, weights)], [plain, *gradients(plain, weights)])

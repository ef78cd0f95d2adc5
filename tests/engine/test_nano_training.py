"""Training of the bundled models: resumed runs equal uninterrupted ones, and batches follow from the seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from edge.models.decoder import Architecture, Decoder, DecoderSpec
from tools.nano.grow import grow_into
from tools.nano.recipes import Recipe
from tools.nano.tokenizer import bundled_tokenizer
from tools.nano.train import TrainOptions, initialise, train

TINY = Recipe("nano-edge", "qwen2", width=32, layers=1, heads=2, kv_heads=1, ffn_width=32, steps=4, head_dim=16, warmup_steps=2)


"""The first batch with habits."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return bundled_tokenizer()


def test_a_resumed_run_ends_with_the_weights_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, parts = TrainOptions(tmp_path / "whole"), TrainOptions(tmp_path / "parts")
    constant = replace(TINY, decay_share=1e-9)
    train(constant, whole)
    train(constant, replace(parts, steps=2))
    train(constant, parts)
    expected = torch.load(tmp_path / "whole" / "final.pt", weights_only=True)
    resumed = torch.load(tmp_path / "parts" / "final.pt", weights_only=True)
    assert resumed["step"] == expected["step"] == 4
    for name, values in expected["weights"].items():
        assert torch.equal(values, resumed["weights"][name]), name


def _random_decoder(seed: int, architecture: Architecture = "qwen2", **sizes: int) -> Decoder:
    torch.manual_seed(seed)
    shape = {"width": 32, "layers": 2, "heads": 2, "kv_heads": 2, "ffn_width": 48} | sizes
    bias = architecture == "qwen2"
    decoder = initialise(Decoder(DecoderSpec(architecture=architecture, vocab_size=90, head_dim=16, qkv_bias=bias, **shape)))
    with torch.no_grad():
        for parameter in decoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return decoder


def test_grown_decoder_computes_the_same_and_every_new_weight_gets_a_gradient() -> None:
    small, large = _random_decoder(1), _random_decoder(2, width=48, layers=3, heads=3, kv_heads=3, ffn_width=64)
    ids = torch.randint(0, 90, (2, 11))
    expected = small(ids)
    assert not torch.allclose(large(ids), expected, atol=0.1)
    grown = grow_into(large, small)
    torch.testing.assert_close(grown(ids), expected, atol=1e-4, rtol=1e-4)
    optimiser = torch.optim.SGD(grown.parameters(), lr=0.1)
    before = {name: parameter.detach().clone() for name, parameter in grown.named_parameters()}
    for _ in range(3):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(grown(ids).flatten(0, 1), ids.flatten()).backward()
        optimiser.step()
    for name, parameter in grown.named_parameters():
        moved = parameter != before[name]
        if name.endswith("k_proj.bias"):
            continue  # attention is all but invariant to what is added to every key
        assert moved[..., -1].any() and (parameter.dim() == 1 or moved[-1].any()), name

"""Training of the bundled models: resumed runs equal whole ones, batches follow from the seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from edge.dagrpo.format import check_format
from tools.nano.data import EDGE_STAGES, POOL_BATCHES, ExampleSource
from tools.nano.recipes import Recipe
from tools.nano.tokenizer import bundled_tokenizer
from tools.nano.train import TrainOptions, train

TINY = Recipe("nano-edge", "qwen2", width=32, layers=1, heads=2, kv_heads=1, ffn_width=32, steps=4, head_dim=16, warmup_steps=2)
PRACTICE = EDGE_STAGES[-1].first_pool * POOL_BATCHES
"""The first batch of practice questions."""


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


def test_batches_follow_from_seed_and_cursor(tokenizer: Tokenizer) -> None:
    source = ExampleSource("nano-edge", tokenizer, seed=7)
    first = list(islice(source.batches(0), 5))
    later = list(islice(source.batches(3), 2))
    for expected, batch in zip(first[3:], later, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(expected, batch, strict=True))
    other = next(ExampleSource("nano-edge", tokenizer, seed=8).batches(0))
    assert other.ids_BT.shape != first[0].ids_BT.shape or not torch.equal(other.ids_BT, first[0].ids_BT)


def test_the_loss_covers_responses_which_keep_the_format(tokenizer: Tokenizer) -> None:
    for batch in islice(ExampleSource("nano-edge", tokenizer, seed=0).batches(PRACTICE), 4):
        for ids, wanted in zip(batch.ids_BT, batch.loss_BT, strict=True):
            response = tokenizer.decode(ids[wanted].tolist(), skip_special_tokens=False)
            assert response.endswith("<|im_end|>")
            assert check_format(response.removesuffix("<|im_end|>"), 6).ok

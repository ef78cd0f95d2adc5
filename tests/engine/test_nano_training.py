"""Training of the bundled models: resumed runs equal uninterrupted ones, and batches follow from the seed."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from random import Random

import pytest
import torch
from tokenizers import Tokenizer

from edge.cli.exits import ending
from edge.dagrpo.format import check_format
from edge.models.decoder import Architecture, Decoder, DecoderSpec
from tools.nano.__main__ import main
from tools.nano.data import (
    EDGE_STAGES,
    POOL_BATCHES,
    ExampleSource,
)
from tools.nano.exercises import draw_exercise
from tools.nano.grow import grow_into
from tools.nano.recipes import Recipe
from tools.nano.tokenizer import bundled_tokenizer
from tools.nano.train import TrainOptions, initialise, train

TINY = Recipe("nano-edge", "qwen2", width=32, layers=1, heads=2, kv_heads=1, ffn_width=32, steps=4, head_dim=16, warmup_steps=2)
PRACTICE = EDGE_STAGES[-1].first_pool * POOL_BATCHES
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


def test_batches_depend_on_seed_and_cursor_only(tokenizer: Tokenizer) -> None:
    source = ExampleSource("nano-edge", tokenizer, seed=7)
    first = list(islice(source.batches(0), 5))
    later = list(islice(source.batches(3), 2))
    for expected, batch in zip(first[3:], later, strict=True):
        assert all(torch.equal(left, right) for left, right in zip(expected, batch, strict=True))
    other = next(ExampleSource("nano-edge", tokenizer, seed=8).batches(0))
    assert other.ids_BT.shape != first[0].ids_BT.shape or not torch.equal(other.ids_BT, first[0].ids_BT)


def test_every_word_of_an_exercise_follows_from_its_question() -> None:
    draw = Random(3)
    for question, response in (draw_exercise(draw) for _ in range(300)):
        assert set(response.replace(".", "").split()) <= set(question.replace(".", "").split())


def test_loss_covers_well_formed_responses_only(tokenizer: Tokenizer) -> None:
    for batch in islice(ExampleSource("nano-edge", tokenizer, seed=0).batches(PRACTICE), 4):
        for ids, wanted in zip(batch.ids_BT, batch.loss_BT, strict=True):
            response = tokenizer.decode(ids[wanted].tolist(), skip_special_tokens=False)
            assert response.endswith("<|im_end|>")
            assert check_format(response.removesuffix("<|im_end|>"), 6).ok


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


def test_decoder_of_the_other_architecture_starts_with_equal_weights_without_biases() -> None:
    source, target = _random_decoder(1), _random_decoder(2, "llama")
    with torch.no_grad():
        for name, parameter in source.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    ids = torch.randint(0, 90, (2, 11))
    torch.testing.assert_close(grow_into(target, source)(ids), source(ids), atol=1e-4, rtol=1e-4)


def test_a_decoder_grows_only_into_a_larger_one_of_its_kind() -> None:
    for sizes in ({"width": 16}, {"layers": 1}):
        with pytest.raises(ValueError, match="cannot be grown"):
            grow_into(_random_decoder(2, **sizes), _random_decoder(1))
    with pytest.raises(ValueError, match="one key/value head"):
        grow_into(_random_decoder(2, heads=4, kv_heads=2), _random_decoder(1, heads=2, kv_heads=2))


@pytest.mark.parametrize(
    ("words", "next_step"),
    [
        (("export", "nano-edge", "--weights", "{}/final.pt"), "python -m tools.nano train nano-edge"),
        (("passes", "{}/model.gguf"), "edge/models/files"),
        (("train", "nano-edge", "--folder", "{}/run", "--grow-from", "{}/model.gguf"), "model.gguf"),
    ],
)
def test_a_file_that_is_missing_or_of_another_kind_is_one_line(
    words: tuple[str, ...], next_step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["tools.nano", *(word.format(tmp_path) for word in words)])
    assert ending(main) in (1, 2)
    [line] = capsys.readouterr().err.splitlines()
    assert str(tmp_path) in line and next_step in line

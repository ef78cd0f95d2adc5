"""What sets the architectures apart is computed: layers without rotation, windows, post-norms, scales. Transformers' own models and
llama.cpp agree, in rows longer than a window too, and learning's ways to a gradient agree with each other."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from edge.core.architectures import ARCHITECTURES, Architecture
from edge.core.errors import ModelFileError, NotComputed
from edge.core.types import Message, Sampling
from edge.core.worker import EngineWorker
from edge.inference.llamacpp import LlamaCppBackend
from edge.models import decoder as decoders
from edge.models.convert import convert
from edge.models.decoder import Decoder, load_decoder
from edge.models.gguf_reader import open_gguf
from edge.models.spec import DecoderSpec
from edge.training.learner import LearnerSettings
from edge.training.torch_learner import TorchLearner
from tests.worlds.changed_gguf import changed, putting
from tests.worlds.hf_folder import write_hf_folder
from tests.worlds.tiny_gguf import WINDOW, write_tiny_model
from tests.worlds.tiny_learner import policy_gradients, random_groups
from tests.worlds.trained_adapters import convert_adapter

SUMS_NATS = 1e-4
"""Worst |Δ log p| between two ways of adding up float32 products."""
CACHE_NATS = 0.03
"""The same against llama.cpp, whose keys and values are in half precision."""
IDS = [(7 * place * place + 11 * place) % 300 for place in range(12 * WINDOW)]


def log_probabilities(logits_TV: torch.Tensor) -> np.ndarray:
    return torch.log_softmax(logits_TV.double(), -1).numpy()


def computed(decoder: Decoder) -> np.ndarray:
    with torch.no_grad():
        return log_probabilities(decoder(torch.tensor([IDS]))[0])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_transformers_computes_a_folder_as_we_compute_the_file_made_of_it(tmp_path: Path, architecture: Architecture) -> None:
    from transformers import AutoModelForCausalLM

    folder = write_hf_folder(tmp_path / "hf", architecture)
    convert(folder.path, tmp_path / "out.gguf", "f32")
    theirs = AutoModelForCausalLM.from_pretrained(folder.path, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = log_probabilities(theirs(torch.tensor([IDS])).logits[0])
    assert np.abs(computed(load_decoder(tmp_path / "out.gguf")) - expected).max() < SUMS_NATS


DIFFERENCES: dict[str, tuple[str, dict[str, Any], Callable[[pytest.MonkeyPatch], object] | None]] = {
    "a layer without rotation": (
        "smollm3",
        {"layers": 4},
        lambda patch: patch.setattr(DecoderSpec, "is_rotated", lambda *_: True),
    ),
    "the window": ("gemma3", {"window": 400}, None),
    "one token of the window": ("gemma3", {"window": WINDOW + 1}, None),
    "the local base": ("gemma3", {"local_rope_base": 900.0}, None),
    "the divisor of positions": ("gemma3", {"rope_divisor": 1.0}, None),
}


@pytest.mark.parametrize("named", DIFFERENCES)
async def test_llama_cpp_agrees_and_would_not_without(
    tmp_path: Path, named: str, llama: Callable[..., LlamaCppBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture, changes, patch = DIFFERENCES[named]
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=False).path
    served = np.array(await llama(path).score(IDS[:3], IDS[3:]))
    places = np.arange(2, len(IDS) - 1), IDS[3:]
    decoder = load_decoder(path)
    assert np.abs(computed(decoder)[places] - served).max() < CACHE_NATS
    if patch is not None:
        patch(monkeypatch)
    source = open_gguf(path)
    other = Decoder(replace(source.decoder_spec(), **changes))
    other.load_state_dict(decoder.state_dict())
    assert np.abs(computed(other)[places] - served).max() > 3 * CACHE_NATS


@pytest.mark.parametrize("architecture", ["smollm3", "gemma3"])
def test_rows_that_continue_a_padded_cache_are_the_same_as_whole_rows(tmp_path: Path, architecture: str) -> None:
    decoder = load_decoder(write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=False).path)
    beginnings, ends = ([IDS[:20], IDS[20:23]], [IDS[30:39], IDS[40:52]])

    def padded(rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return ids, torch.tensor([[place < len(row) for place in range(width)] for row in rows])

    with torch.no_grad():
        (ids, mask), (more_ids, more_mask) = padded(beginnings), padded(ends)
        past = decoder.hidden_states(ids, mask, use_cache=True).past
        continued = decoder.hidden_states(more_ids, torch.cat((mask, more_mask), dim=1), past).states_BTD
        for row, (beginning, end) in enumerate(zip(beginnings, ends, strict=True)):
            whole = decoder.hidden_states(torch.tensor([beginning + end])).states_BTD[0, len(beginning) :]
            assert torch.allclose(continued[row, : len(end)], whole, atol=2e-5)


@pytest.mark.parametrize("architecture", ["smollm3", "gemma3"])
def test_every_way_to_a_gradient_agrees(tmp_path: Path, architecture: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=False).path
    beginning = tuple(IDS[:20])
    groups = [replace(group, prompt_ids=(*beginning, *group.prompt_ids)) for group in random_groups(4)]

    def gradients(*, checkpointing: bool, shared: bool) -> dict[str, torch.Tensor]:
        decoder = load_decoder(path)
        decoder.checkpointing = checkpointing
        return policy_gradients(decoder, groups, shared=shared, tokens_per_slice=60)

    plain = gradients(checkpointing=False, shared=False)
    ways = [
        gradients(checkpointing=checkpointing, shared=shared)
        for checkpointing, shared in ((True, False), (False, True), (True, True))
    ]
    monkeypatch.setattr(decoders, "MAX_PLAIN_SCORES", 0)  # torch's own attention, with autograd's gradient
    ways.append(gradients(checkpointing=False, shared=False))
    for name, gradient in plain.items():
        assert gradient.abs().max() > 0
        for other in ways:
            assert torch.allclose(other[name], gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())), name


@pytest.mark.parametrize("architecture", ["smollm3", "gemma3"])
async def test_sampler_and_trainer_score_rollouts_alike(
    tmp_path: Path, architecture: str, worker: EngineWorker, llama: Callable[..., LlamaCppBackend]
) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=False).path
    learner = TorchLearner(
        load_decoder(path), worker, partial(convert_adapter, path), seed=5, settings=LearnerSettings(1e-3, threads=1)
    )
    backend = llama(path, n_ctx=128, max_rows=4)
    for words in ("a prompt much longer than the window", "a prompt much longer, which goes on from its beginning"):
        group = await backend.sample_group([Message("user", words)], Sampling(max_tokens=40), range(6))
        assert len(group.prompt_ids) > 3 * WINDOW
        differences = []
        for response in group.responses:
            scored = await learner.logprobs(group.prompt_ids, response.token_ids)
            differences += [abs(one - other) for one, other in zip(scored, response.logprobs, strict=True)]
        assert len(differences) > 60 and max(differences) < CACHE_NATS


OTHERWISE: list[tuple[Architecture, dict[str, object], str]] = [
    ("smollm3", {"no_rope_layers": [1, 0, 1, 0]}, "no_rope_layers"),
    ("smollm3", {"no_rope_layer_interval": 2, "no_rope_layers": None}, "no_rope_layer_interval"),
    ("smollm3", {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "llama3"),
    ("gemma3", {"layer_types": ["full_attention"] * 6}, "layer_types"),
    ("gemma3", {"sliding_window_pattern": 3}, "sliding_window_pattern"),
    ("gemma3", {"query_pre_attn_scalar": 100}, "query_pre_attn_scalar"),
    ("gemma3", {"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
    ("gemma3", {"use_bidirectional_attention": True}, "use_bidirectional_attention"),
    ("gemma3", {"hidden_activation": "gelu"}, "'gelu'"),
    ("gemma3", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "'yarn'"),
    ("gemma3", {"sliding_window": None}, "sliding_window"),
    ("gemma3", {"model_type": "gemma3"}, "'gemma3'"),
]


@pytest.mark.parametrize(("architecture", "changes", "words"), OTHERWISE, ids=[words for *_, words in OTHERWISE])
def test_a_configuration_that_a_file_cannot_state_is_refused(
    tmp_path: Path, architecture: Architecture, changes: dict[str, object], words: str
) -> None:
    folder = write_hf_folder(tmp_path / "hf", architecture).path
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelFileError) as caught:
        convert(folder, tmp_path / "out.gguf")
    assert words in str(caught.value) and not (tmp_path / "out.gguf").exists()


def test_newer_rotary_settings_of_gemma_are_read_as_the_older_ones(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf", "gemma3").path
    config = json.loads((folder / "config.json").read_text())
    convert(folder, tmp_path / "old.gguf", "f32")
    base = config.pop("rope_theta")
    config["rope_parameters"] = {
        "full_attention": config.pop("rope_scaling") | {"rope_theta": base},
        "sliding_attention": {"rope_type": "default", "rope_theta": config.pop("rope_local_base_freq")},
    }
    (folder / "config.json").write_text(json.dumps(config))
    convert(folder, tmp_path / "new.gguf", "f32")
    assert (tmp_path / "new.gguf").read_bytes() == (tmp_path / "old.gguf").read_bytes()


@pytest.mark.parametrize(
    ("key", "kind", "value"),
    [
        ("final_logit_softcapping", "f32", 30.0),
        ("attention.sliding_window_pattern", "u32", 3),
        ("rope.scaling.attn_factor", "f32", 2.0),
        ("attention.scale", "f32", 0.1),
    ],
)
def test_a_gemma_file_that_asks_for_more_is_not_learned(tmp_path: Path, key: str, kind: str, value: object) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", "gemma3").path
    path = changed(plain, tmp_path / "odd.gguf", putting({f"gemma3.{key}": (kind, value)}))
    with pytest.raises(NotComputed, match=key):
        load_decoder(path)


def test_the_27b_shape_scales_scores_by_its_width() -> None:
    shape = DecoderSpec("gemma3", 100, width=5376, layers=62, heads=32, kv_heads=16, head_dim=128, ffn_width=64, window=1024)
    assert shape.score_scale == pytest.approx(168**-0.5)
    assert replace(shape, layers=48).score_scale == pytest.approx(128**-0.5)

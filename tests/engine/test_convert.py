"""A converted model folder equals the original in torch and in llama.cpp, and token for token with the real tokenizers."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from edge.core.errors import EdgeError, ModelFileError, UsageError
from edge.core.gguf_header import read_header
from edge.inference.gguf_model import GgufModel
from edge.models.convert import convert
from edge.models.decoder import load_decoder
from edge.models.gguf_reader import open_gguf
from tests.shared_data import shared_data
from tests.worlds.hf_folder import LLAMA3_ROPE, tokenizer_json, write_hf_folder

ARCHITECTURES = ("qwen2", "qwen3", "llama", "smollm3", "gemma3")
IDS = [5, 40, 7, 300, 12, 99, 3, 17, 256, 8, 41, 60]
EXACT_NATS = 0.03
"""As in tests/golden: what the half-precision key/value cache leaves with float32 weights."""


def logprobs_of(decoder: torch.nn.Module, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        logits = decoder(torch.tensor([ids]))[0].double()
    return torch.log_softmax(logits, -1).numpy()


def longer(ids: list[int]) -> list[int]:
    """Long enough that Llama 3's rotary factors matter."""
    return (ids * 12)[:140]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
async def test_converted_model_is_equal_in_torch_and_llama_cpp(tmp_path: Path, architecture, llama) -> None:
    folder = write_hf_folder(tmp_path / "hf", architecture, rope=LLAMA3_ROPE if architecture == "llama" else None)
    out = tmp_path / "out.gguf"
    written = convert(folder.path, out, "f32")
    direct, ids = folder.decoder(), longer(IDS)
    plain = logprobs_of(direct, ids)
    if architecture == "llama":
        direct.inverse_freqs = stretched(direct.inverse_freqs)
    expected = logprobs_of(direct, ids)
    assert np.array_equal(logprobs_of(load_decoder(out), ids), expected)
    chosen = expected[np.arange(2, len(ids) - 1), ids[3:]]
    served = await llama(out, n_ctx=256).score(ids[:3], ids[3:])
    assert np.abs(np.array(served) - chosen).max() < EXACT_NATS
    if architecture == "llama":
        assert np.abs(expected - plain).max() > 5 * EXACT_NATS
    assert (written.architecture, written.parameters) == (architecture, sum(value.numel() for value in folder.state.values()))


def stretched(frequencies: torch.Tensor) -> torch.Tensor:
    """Llama 3's rotary scaling, one frequency at a time."""
    rope, out = LLAMA3_ROPE, []
    for frequency in frequencies.double().tolist():
        length, original = 2 * math.pi / frequency, rope["original_max_position_embeddings"]
        if length < original / rope["high_freq_factor"]:
            out.append(frequency)
        elif length > original / rope["low_freq_factor"]:
            out.append(frequency / rope["factor"])
        else:
            smooth = (original / length - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            out.append((1 - smooth) * frequency / rope["factor"] + smooth * frequency)
    factors = (frequencies.double() / torch.tensor(out, dtype=torch.float64)).float()
    return frequencies / factors


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_bf16_f16_and_sharded_weights_are_bit_equal_and_a_missing_shard_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    folder = write_hf_folder(tmp_path / "hf", "llama", dtype=dtype, shards=3)
    convert(folder.path, tmp_path / "out.gguf", "f32")
    source = open_gguf(tmp_path / "out.gguf")
    read = dict(source.decoder_state(source.decoder_spec()))
    assert all(torch.equal(read[name], folder.state[name].float()) for name in folder.state)
    (folder.path / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ModelFileError, match=r"model-00002-of-00003\.safetensors"):
        convert(folder.path, tmp_path / "other.gguf")


@pytest.mark.parametrize(("type_name", "bound"), [("f16", 0.02), ("bf16", 0.1), ("q8_0", 0.3)])
def test_narrower_types_stay_close(tmp_path: Path, type_name: str, bound: float) -> None:
    folder = write_hf_folder(tmp_path / "hf", "qwen3")
    convert(folder.path, tmp_path / "out.gguf", type_name)
    kinds = {tensor.kind.name for tensor in open_gguf(tmp_path / "out.gguf").tensors.values()}
    assert kinds == {type_name.upper(), "F32"}
    difference = np.abs(logprobs_of(load_decoder(tmp_path / "out.gguf"), IDS) - logprobs_of(folder.decoder(), IDS)).max()
    assert 0.0 < difference < bound


def test_rows_that_fit_no_block_stay_half_precision_and_are_reported(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf", "qwen2", ffn_width=72)
    written = convert(folder.path, tmp_path / "out.gguf", "q8_0")
    assert written.kept_wider == ("model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight")
    assert open_gguf(tmp_path / "out.gguf").tensors["blk.0.ffn_down.weight"].kind.name == "F16"


def test_a_tied_model_needs_no_output_and_drops_a_copy_of_it(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf", "qwen2", tied_embeddings=True)
    convert(folder.path, tmp_path / "out.gguf", "f32")
    assert "output.weight" not in open_gguf(tmp_path / "out.gguf").tensors
    assert np.array_equal(logprobs_of(load_decoder(tmp_path / "out.gguf"), IDS), logprobs_of(folder.decoder(), IDS))


def test_special_tokens_template_and_padding_rows_are_carried_over(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf", "qwen2", vocab_size=360)
    (folder.path / "chat_template.jinja").write_text("{{ messages[0]['content'] }}!")
    convert(folder.path, tmp_path / "out.gguf", "f32")
    model = GgufModel(tmp_path / "out.gguf")
    try:
        assert model.metadata("tokenizer.chat_template") == "{{ messages[0]['content'] }}!"
        assert model.vocabulary.size == 360
        assert set(model.vocabulary.control_ids) == {"<|endoftext|>", "<|im_start|>", "<|im_end|>"}
        assert model.vocabulary.text_of(model.vocabulary.eos) == "<|im_end|>"
        assert not model.vocabulary.adds_bos
    finally:
        model.close()


@pytest.mark.long
@pytest.mark.parametrize(
    ("vocabulary", "pre", "architecture", "bos", "eos"),
    [
        ("qwen2", "qwen2", "qwen2", None, "<|endoftext|>"),
        ("llama-bpe", "llama-bpe", "llama", "<|begin_of_text|>", "<|end_of_text|>"),
    ],
)
def test_the_real_tokenizers_give_the_published_token_ids(tmp_path: Path, vocabulary, pre, architecture, bos, eos) -> None:
    source = shared_data(f"vocab/ggml-vocab-{vocabulary}.gguf")
    keys = [f"tokenizer.ggml.{key}" for key in ("tokens", "token_type", "merges")]
    tokens, types, merges = map(read_header(source, keys).metadata.__getitem__, keys)
    special = [index for index, kind in enumerate(types) if kind != gguf.TokenType.NORMAL]
    tokenizer = tokenizer_json(tokens, special, merges, pre)
    if bos:
        tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": bos, "type_id": 0}}]}
    shape = {"vocab_size": len(tokens) + 5, "width": 32, "heads": 2, "kv_heads": 1, "head_dim": 16, "ffn_width": 32, "layers": 1}
    folder = write_hf_folder(tmp_path / "hf", architecture, tokenizer=tokenizer, tied_embeddings=True, **shape)
    (folder.path / "tokenizer_config.json").write_text(json.dumps({"bos_token": bos, "eos_token": eos}))
    convert(folder.path, tmp_path / "out.gguf", "q8_0")
    texts = source.with_name(source.name + ".inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
    expected = source.with_name(source.name + ".out").read_text().splitlines()
    assert texts.pop() == "" and len(texts) == len(expected) > 40
    model = GgufModel(tmp_path / "out.gguf")
    try:
        ids = [model.vocabulary.tokenise(text) for text in texts]
        assert ids == [[int(number) for number in line.split()] for line in expected]
        assert model.vocabulary.adds_bos is (bos is not None)
        assert model.vocabulary.text_of(model.vocabulary.eos) == eos
    finally:
        model.close()


def _config(**values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | values))

    return change


def _no(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).unlink()


def _other_pattern(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("{L}+|", "{L}*|"))


WEIGHTS = "model.safetensors"
REFUSED: list[tuple[Callable[[Path], object], str]] = [
    (lambda folder: (folder / WEIGHTS).rename(folder / "pytorch_model.bin"), "pickled"),
    (lambda folder: (folder / WEIGHTS).write_bytes((folder / WEIGHTS).read_bytes()[:-100]), "not a readable safetensors file"),
    (_no("config.json"), "no config.json"),
    (_no("tokenizer.json"), "no tokenizer.json"),
    (_no(WEIGHTS), "no model.safetensors"),
    (_config(model_type="gpt_neox"), "'gpt_neox'"),
    (_config(num_hidden_layers=3), "no tensor model.layers.2"),
    (_config(num_hidden_layers=1), "has no place"),
    (_config(intermediate_size=95), "expects (95, 64)"),
    (_config(rope_parameters={"rope_type": "yarn", "factor": 4.0}), "'yarn'"),
    (_config(use_sliding_window=True), "sliding-window"),
    (_config(quantization_config={"bits": 4}), "quantised already"),
    (_config(hidden_act="gelu"), "'gelu'"),
    (_config(rms_norm_eps=None), "incomplete"),
    (_other_pattern, "unknown way to split text"),
]


@pytest.mark.parametrize(("spoil", "words"), REFUSED, ids=[words for _, words in REFUSED])
def test_unconvertible_model_is_refused_in_one_line_and_leaves_nothing(
    tmp_path: Path, spoil: Callable[[Path], object], words: str
) -> None:
    folder = write_hf_folder(tmp_path / "hf").path
    spoil(folder)
    with pytest.raises(ModelFileError) as caught:
        convert(folder, tmp_path / "out.gguf")
    assert words in str(caught.value) and "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["hf"]


def test_values_beyond_half_precision_are_refused_and_the_existing_file_stays(tmp_path: Path) -> None:
    folder = write_hf_folder(tmp_path / "hf")
    folder.state["model.layers.0.mlp.up_proj.weight"][0, 0] = 1e5
    save_file(folder.state, folder.path / "model.safetensors")
    out = tmp_path / "out.gguf"
    out.write_text("precious")
    with pytest.raises(UsageError, match="exists already"):
        convert(folder.path, out)
    with pytest.raises(EdgeError, match="too large for f16"):
        convert(folder.path, out, force=True)
    assert out.read_text() == "precious"
    convert(folder.path, out, "bf16", force=True)
    assert replace(open_gguf(out).decoder_spec(), norm_eps=folder.spec.norm_eps) == folder.spec
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hf", "out.gguf"]

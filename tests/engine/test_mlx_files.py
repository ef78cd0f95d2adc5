"""Weights on MLX are those of the file: exact where a format has the same form, close where not; bad files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from edge.core.errors import AdapterError, ModelFileError
from tests.engine.tiny_gguf import TinyModel, write_tiny_model

mx = pytest.importorskip("mlx.core", reason="MLX has no wheel for this platform")
pytest.importorskip("mlx_lm", reason="MLX has no wheel for this platform")

from edge.models import mlx_decoder  # noqa: E402
from edge.models.convert import add_shape  # noqa: E402
from edge.models.mlx_decoder import GgufFile, MlxDecoder, Packed, load_mlx_decoder  # noqa: E402  # noqa: E402
from edge.models.spec import DecoderSpec, parameter_shapes, stored_name  # noqa: E402

IDS = [[1, 2, 3, 10, 11, 250]]


def logits(decoder: MlxDecoder) -> np.ndarray:
    return np.array(decoder.logits(decoder.hidden_states(mx.array(IDS))))


def unpacked(packed: Packed) -> np.ndarray:
    return np.array(mx.dequantize(packed.words, packed.scales, packed.biases, group_size=32, bits=packed.bits))


def one_matrix(folder: Path, kind: gguf.GGMLQuantizationType, values: np.ndarray) -> Packed:
    """What MLX makes of a matrix stored in this type."""
    path, (rows, width) = folder / "one.gguf", values.shape
    spec = DecoderSpec("llama", rows, width, layers=1, heads=2, kv_heads=2, head_dim=width // 2, ffn_width=32, qkv_bias=False)
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer, spec)
    for name, shape in parameter_shapes(spec).items():
        if name == "model.embed_tokens.weight":
            writer.add_tensor(stored_name(name), quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored_name(name), np.ones(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    stored = dict(GgufFile(path).stored())["model.embed_tokens.weight"]
    assert isinstance(stored, Packed)
    return stored


@pytest.fixture
def values() -> np.ndarray:
    random = np.random.Generator(np.random.Philox(1))
    scales = np.exp(random.normal(size=(24, 1)) * 3)
    return (random.normal(size=(24, 96)) * scales).astype(np.float32)


@pytest.mark.parametrize(("name", "bits"), [("Q8_0", 8), ("Q4_0", 4), ("Q4_1", 4)])
def test_a_type_of_the_same_form_is_held_exactly(tmp_path: Path, values: np.ndarray, name: str, bits: int) -> None:
    kind = gguf.GGMLQuantizationType[name]
    packed = one_matrix(tmp_path, kind, values)
    assert packed.bits == bits
    assert np.array_equal(unpacked(packed), dequantize(quantize(values, kind), kind))
    assert not np.array_equal(unpacked(packed), values)


def test_another_type_is_quantised_again_to_within_half_a_step_of_its_group(tmp_path: Path, values: np.ndarray) -> None:
    kind = gguf.GGMLQuantizationType.Q5_0
    stored = dequantize(quantize(values, kind), kind)
    packed = one_matrix(tmp_path, kind, values)
    groups = stored.reshape(24, 3, 32)
    ranges = groups.max(-1) - groups.min(-1)
    differences = np.abs(unpacked(packed) - stored).reshape(24, 3, 32).max(-1)
    assert packed.bits == 8
    assert (differences <= ranges / 255).all()


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama"])
@pytest.mark.parametrize("quantised", [False, True])
def test_every_parameter_has_the_values_of_the_file(tmp_path: Path, architecture: str, quantised: bool) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=quantised)
    decoder = load_mlx_decoder(tiny.path)
    seen = set()
    for path, module in decoder.module.named_modules():
        for name in ("weight", "bias"):
            if name not in module:
                continue
            found = np.array(module[name])
            if name == "weight" and "scales" in module:
                found = unpacked(Packed(module.weight, module.scales, module.biases, module.bits))
            assert np.array_equal(found, tiny.state[f"{path}.{name}"]), path
            seen.add(f"{path}.{name}")
    assert seen == tiny.state.keys()
    assert decoder.shape.parameters == sum(values.size for values in tiny.state.values())


def test_a_twin_shares_the_weights_and_has_an_adapter_of_its_own(tmp_path: Path) -> None:
    decoder = load_mlx_decoder(write_tiny_model(tmp_path / "tiny.gguf").path)
    bare, twin = logits(decoder), decoder.twin()
    twin.add_lora(4, 2.0)
    assert np.array_equal(logits(twin), bare)  # B is zero
    twin.set_lora({name: mx.ones(tensor.shape) * 0.05 for name, tensor in twin.lora().items()})
    assert np.abs(logits(twin) - bare).max() > 0.01
    assert np.array_equal(logits(decoder), bare)
    assert decoder.lora() == {}
    layers = decoder.module.model.layers[0].mlp.up_proj, twin.module.model.layers[0].mlp.up_proj.base
    assert layers[0].weight is layers[1].weight
    assert np.array_equal(logits(twin.twin()), bare)


def test_an_adapter_that_does_not_fit_is_named_and_changes_nothing(tmp_path: Path) -> None:
    decoder = load_mlx_decoder(write_tiny_model(tmp_path / "tiny.gguf").path)
    decoder.add_lora(4, 2.0)
    before = {name: np.array(tensor) for name, tensor in decoder.lora().items()}
    wrong = {name: mx.ones((*tensor.shape[:-1], 7)) for name, tensor in decoder.lora().items()}
    with pytest.raises(AdapterError, match="lora_"):
        decoder.set_lora(wrong)
    assert all(np.array_equal(tensor, before[name]) for name, tensor in decoder.lora().items())
    bare = decoder.twin()
    with pytest.raises(AdapterError):
        bare.adopt_lora(wrong, 4, 2.0)
    assert bare.lora() == {}


def test_half_precision_changes_logits_by_no_more_than_its_rounding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_tiny_model(tmp_path / "tiny.gguf").path
    exact = logits(load_mlx_decoder(path))
    monkeypatch.setattr(mlx_decoder, "FLOAT16_FROM_PARAMETERS", 0)
    rounded = logits(load_mlx_decoder(path))
    assert 0 < np.abs(exact - rounded).max() < 0.05
    assert rounded.dtype == np.float32


def write_folder(folder: Path, model: TinyModel, **changes: object) -> Path:
    """The model as a folder of config.json and safetensors, as mlx_lm reads it."""
    folder.mkdir()
    config = {
        "model_type": model.architecture, "hidden_size": model.width, "num_hidden_layers": model.layers,
        "intermediate_size": model.ffn_width, "num_attention_heads": model.heads, "num_key_value_heads": model.kv_heads,
        "rms_norm_eps": model.norm_eps, "vocab_size": len(model.vocab), "max_position_embeddings": model.context_length,
        "rope_theta": model.rope_base, "tie_word_embeddings": False,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config | changes))
    mx.save_safetensors(str(folder / "model.safetensors"), {name: mx.array(value) for name, value in model.state.items()})
    return folder


@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_a_folder_gives_the_logits_of_the_file(tmp_path: Path, architecture: str) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf", architecture, quantised=False)
    from_folder = load_mlx_decoder(write_folder(tmp_path / "folder", tiny))
    assert from_folder.shape == load_mlx_decoder(tiny.path).shape
    assert np.abs(logits(from_folder) - logits(load_mlx_decoder(tiny.path))).max() < 1e-4


def refusal(path: Path) -> str:
    with pytest.raises(ModelFileError) as caught:
        load_mlx_decoder(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_or_foreign_file_or_folder_is_refused(tmp_path: Path) -> None:
    assert "no such model file" in refusal(tmp_path / "none.gguf")
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04")
    assert "not a GGUF file" in refusal(tmp_path / "zip.gguf")
    assert "config.json" in refusal(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    assert "cannot be loaded" in refusal(tmp_path)


@pytest.mark.parametrize("kept", [6, 40, 3000, 60_000, -200])
def test_a_file_cut_short_is_refused(tmp_path: Path, kept: int) -> None:
    whole = write_tiny_model(tmp_path / "whole.gguf").path.read_bytes()
    (tmp_path / "cut.gguf").write_bytes(whole[:kept])
    assert str(tmp_path / "cut.gguf") in refusal(tmp_path / "cut.gguf")


def test_an_architecture_that_is_not_supported_is_named(tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "whole.gguf").path.read_bytes()
    (tmp_path / "other.gguf").write_bytes(whole.replace(b"qwen2", b"qvvn2"))
    assert "unsupported architecture 'qvvn2'" in refusal(tmp_path / "other.gguf")


def test_weights_without_a_place_in_the_model_are_refused(tmp_path: Path) -> None:
    tiny = write_tiny_model(tmp_path / "tiny.gguf", "qwen2")
    (tmp_path / "odd.gguf").write_bytes(tiny.path.read_bytes().replace(b"blk.0.attn_q.bias", b"blk.0.attn_z.bias"))
    assert "'blk.0.attn_k.bias' is not computed" in refusal(tmp_path / "odd.gguf")

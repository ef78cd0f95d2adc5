"""Weights on MLX equal those of the file: exactly where a format has the same layout, closely elsewhere; bad files are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from edge.core.errors import ModelFileError
from tests.worlds.tiny_gguf import write_tiny_model

mx = pytest.importorskip("mlx.core", reason="MLX has no wheel for this platform")
pytest.importorskip("mlx_lm", reason="MLX has no wheel for this platform")

from edge.models.convert import add_shape  # noqa: E402
from edge.models.mlx_decoder import GgufFile, MlxDecoder, Packed, load_mlx_decoder  # noqa: E402
from edge.models.spec import DecoderSpec, parameter_shapes, stored_name  # noqa: E402

IDS = [[1, 2, 3, 10, 11, 250]]


def logits(decoder: MlxDecoder) -> np.ndarray:
    return np.array(decoder.logits(decoder.hidden_states(mx.array(IDS))))


def unpacked(packed: Packed) -> np.ndarray:
    return np.array(mx.dequantize(packed.words, packed.scales, packed.biases, group_size=32, bits=packed.bits))


def one_matrix(folder: Path, kind: gguf.GGMLQuantizationType, values: np.ndarray) -> Packed:
    """The MLX form of a matrix stored in this type."""
    path, (rows, width) = folder / "one.gguf", values.shape
    spec = DecoderSpec("llama", rows, width, layers=1, heads=2, kv_heads=2, head_dim=width // 2, ffn_width=32, qkv_bias=False)
    writer = gguf.GGUFWriter(path, "llama")
    add_shape(writer, spec)
    for name, shape in parameter_shapes(spec).items():
        if name == "model.embed_tokens.weight":
            writer.add_tensor(stored_name(name, spec), quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(stored_name(name, spec), np.ones(shape, dtype=np.float32))
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
def test_type_with_the_same_layout_is_stored_exactly(tmp_path: Path, values: np.ndarray, name: str, bits: int) -> None:
    kind = gguf.GGMLQuantizationType[name]
    packed = one_matrix(tmp_path, kind, values)
    assert packed.bits == bits
    assert np.array_equal(unpacked(packed), dequantize(quantize(values, kind), kind))
    assert not np.array_equal(unpacked(packed), values)


def test_other_types_are_requantised_within_half_a_step_of_their_group(tmp_path: Path, values: np.ndarray) -> None:
    kind = gguf.GGMLQuantizationType.Q5_0
    stored = dequantize(quantize(values, kind), kind)
    packed = one_matrix(tmp_path, kind, values)
    groups = stored.reshape(24, 3, 32)
    ranges = groups.max(-1) - groups.min(-1)
    differences = np.abs(unpacked(packed) - stored).reshape(24, 3, 32).max(-1)
    assert packed.bits == 8
    assert (differences <= ranges / 255).all()


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3"])
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


def test_second_model_shares_the_weights_and_has_its_own_adapter(tmp_path: Path) -> None:
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


UNUSABLE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "a zip file": (lambda whole: b"PK\x03\x04", "not a GGUF file"),
    "an architecture that is not supported": (lambda whole: whole.replace(b"qwen2", b"qvvn2"), "'qvvn2'"),
    "weights without a place": (lambda whole: whole.replace(b"blk.0.attn_q.bias", b"blk.0.attn_z.bias"), "'blk.0.attn_k.bias'"),
    **{f"cut at {end}": (lambda whole, end=end: whole[:end], "odd.gguf") for end in (6, 40, 3000, 60_000, -200)},
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_an_unusable_file_is_refused_in_one_line(tmp_path: Path, what: str) -> None:
    change, words = UNUSABLE[what]
    path = tmp_path / "odd.gguf"
    path.write_bytes(change(write_tiny_model(tmp_path / "whole.gguf").path.read_bytes()))
    with pytest.raises(ModelFileError, match=words) as caught:
        load_mlx_decoder(path)
    assert "\n" not in str(caught.value)


def test_folder_that_is_no_model_is_refused(tmp_path: Path) -> None:
    for path, words in ((tmp_path / "none.gguf", "no such model file"), (tmp_path, "config.json")):
        with pytest.raises(ModelFileError, match=words):
            load_mlx_decoder(path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="cannot be loaded"):
        load_mlx_decoder(tmp_path)

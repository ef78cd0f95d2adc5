"""Streamed weights: ggml's dequantisers, and logits and gradients equal to those with weights in memory."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from torch import nn

from edge.core.errors import ModelFileError
from edge.models.decoder import load_decoder
from edge.models.ggml import ggml_type
from edge.models.streamed import StoredMatrix, open_streamed
from edge.models.weights import available_memory, choose_weights
from edge.training.memory import ModelShape, resident_bytes
from tests.worlds.tiny_gguf import write_tiny_model
from tests.worlds.tiny_learner import assert_near, policy_gradients, random_groups

UNREADABLE = {"Q8_1", "Q8_K", "I8", "I16", "I32", "I64", "F64"}
"""Types that ggml itself has no way to turn into floats: they hold activations, or whole numbers."""


def _plain_dequantiser(kind: GGMLQuantizationType, raw: np.ndarray) -> np.ndarray | None:
    """The gguf package's dequantisation of the blocks, None for an unsupported type."""
    try:
        with np.errstate(all="ignore"):
            return gguf.quants.dequantize(raw, kind).reshape(-1).astype(np.float32)
    except NotImplementedError:
        return None


@pytest.mark.parametrize("kind", GGMLQuantizationType, ids=lambda kind: kind.name)
def test_ggml_dequantisers_match_the_gguf_package_on_random_blocks(kind: GGMLQuantizationType) -> None:
    if kind.name in UNREADABLE:
        with pytest.raises(ModelFileError, match="cannot turn"):
            ggml_type(int(kind))
        return
    ours = ggml_type(int(kind))
    assert (ours.block_size, ours.block_bytes) == gguf.GGML_QUANT_SIZES[kind]
    raw = np.random.default_rng(int(kind)).integers(0, 256, (64, ours.block_bytes), dtype=np.uint8)
    made = np.empty(64 * ours.block_size, dtype=np.float32)
    ours.dequantise(raw.ctypes.data, made.ctypes.data, made.size)
    expected = _plain_dequantiser(kind, raw)
    if expected is not None:
        np.testing.assert_array_equal(made, expected)  # equal values; NaN equals NaN, and -0 equals 0
    assert made.any()


def _stored(rows: int, width: int) -> tuple[StoredMatrix, torch.Tensor]:
    values = np.random.default_rng(3).normal(size=(rows, width)).astype(np.float32)
    data = gguf.quants.quantize(values, GGMLQuantizationType.Q8_0)
    plain = torch.from_numpy(gguf.quants.dequantize(data, GGMLQuantizationType.Q8_0).reshape(rows, width))
    return StoredMatrix(data, data.ctypes.data, ggml_type(int(GGMLQuantizationType.Q8_0)), rows, width), plain


@pytest.mark.parametrize("threads", [1, 3])
def test_stored_matrix_returns_all_rows_blocks_and_single_rows(threads: int) -> None:
    stored, plain = _stored(1001, 96)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert torch.equal(stored.dense(), plain)
        assert torch.equal(stored.dense(torch.bfloat16), plain.bfloat16())
        assert torch.equal(stored.block(990, 2000), plain[990:])
        ids = torch.tensor([[5, 1000, 5], [0, 7, 7]])
        assert torch.equal(stored.gather(ids), plain[ids])
    finally:
        torch.set_num_threads(before)


def test_missing_tensor_cannot_be_read() -> None:
    with pytest.raises(ModelFileError, match="999"):
        ggml_type(999)
    with pytest.raises(ValueError, match="blocks of 32"):
        ggml_type(int(GGMLQuantizationType.Q8_0)).row_bytes(40)
    stored, _ = _stored(10, 32)
    for ids in ([10], [-1]):
        with pytest.raises(IndexError, match=r"0\.\.9"):
            stored.gather(torch.tensor(ids))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
@pytest.mark.parametrize("quantised", [True, False], ids=["Q8_0", "F32"])
def test_streamed_and_resident_weights_are_bit_equal(tmp_path: Path, architecture: str, quantised: bool) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", architecture, quantised=quantised).path
    resident, streamed = load_decoder(path), open_streamed(path)
    ids = torch.randint(0, resident.spec.vocab_size, (3, 17), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert torch.equal(resident(ids), streamed(ids))


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
@pytest.mark.parametrize("vocab_chunk", [1 << 22, 700], ids=["whole vocabulary", "in blocks"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared prompts", "whole rows"])
def test_streamed_and_resident_gradients_agree(tmp_path: Path, architecture: str, vocab_chunk: int, shared: bool) -> None:
    path = write_tiny_model(tmp_path / "model.gguf", architecture).path
    expected = policy_gradients(load_decoder(path), random_groups(3), shared=shared)
    assert_near(policy_gradients(open_streamed(path), random_groups(3), shared=shared, vocab_chunk=vocab_chunk), expected)


def test_in_bf16_streamed_and_resident_weights_differ_by_rounding_only(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf").path
    resident, streamed = load_decoder(path), open_streamed(path)
    ids = torch.randint(0, 250, (2, 9), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        resident_BTD, streamed_BTD = (decoder.hidden_states(ids).states_BTD.float() for decoder in (resident, streamed))
    assert (resident_BTD - streamed_BTD).norm() <= 0.02 * resident_BTD.norm()


def test_streamed_layers_hold_no_weights(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf").path
    held = {decoder: _held_bytes(decoder) for decoder in (load_decoder(path), open_streamed(path))}
    resident, streamed = held.values()
    assert streamed < resident / 20


def _held_bytes(decoder: nn.Module) -> int:
    storages = {parameter.untyped_storage().data_ptr(): parameter.untyped_storage() for parameter in decoder.parameters()}
    return sum(storage.nbytes() for storage in storages.values())


def test_matrix_with_another_shape_is_refused(tmp_path: Path) -> None:
    path = write_tiny_model(tmp_path / "model.gguf").path
    path.write_bytes(path.read_bytes().replace(b"qwen2.feed_forward_length", b"qwen2.feed_forward_lengtX"))
    with pytest.raises(ModelFileError):
        open_streamed(path)


def test_small_models_stay_in_memory_and_large_ones_are_streamed() -> None:
    gib, mb = 1 << 30, 1_000_000
    assert choose_weights("auto", 8 * mb, 16 * gib) == "resident"
    assert choose_weights("auto", 2000 * mb, 16 * gib) == "streamed"
    assert choose_weights("auto", 80 * mb, gib // 4) == "streamed"
    assert choose_weights("resident", 2000 * mb, gib) == "resident"
    assert choose_weights("streamed", 8 * mb, 16 * gib) == "streamed"
    assert choose_weights("auto", 2000 * mb, 8 * gib, own_memory=True) == "resident"
    assert choose_weights("auto", 6000 * mb, 8 * gib, own_memory=True) == "streamed"


@pytest.mark.parametrize("architecture", ["qwen2", "qwen3", "llama", "smollm3", "gemma3"])
def test_matrices_of_blocks_are_held_in_the_type_they_are_loaded_in_and_all_else_in_float32(
    tmp_path: Path, architecture: str
) -> None:
    decoder = load_decoder(write_tiny_model(tmp_path / "tiny.gguf", architecture).path, torch.bfloat16)
    for name, parameter in decoder.named_parameters():
        in_block = ".layers." in name and parameter.dim() == 2
        assert parameter.dtype == (torch.bfloat16 if in_block else torch.float32), name


def test_what_is_held_counts_in_the_type_that_is_trained_in() -> None:
    """SmolLM2's 135 million weights stay in memory in bf16; in float32 they would be streamed."""
    shape = ModelShape(134_515_008, 49_152, 576, 30, 9, 3, 64, 1536)
    held = [choose_weights("auto", resident_bytes(shape, width), 16 << 30) for width in (2, 4)]
    assert held == ["resident", "streamed"]


def control_group(folder: Path, names: tuple[str, str], limit: int | str, used: int, stat: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(stat)


SECOND, FIRST = ("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")


def test_smallest_limit_of_nested_control_groups_applies(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("0::/outer/inner\n")
    assert available_memory(lambda: 5000, root, own) == 5000
    control_group(root / "outer", SECOND, 700, 500, "inactive_file 100\n")  # page cache that nobody uses is free
    control_group(root / "outer/inner", SECOND, "max", 400)
    assert available_memory(lambda: 5000, root, own) == 300
    control_group(root / "outer/inner", SECOND, 450, 400)
    assert available_memory(lambda: 5000, root, own) == 50
    assert available_memory(lambda: 20, root, own) == 20
    own.write_text("0::/../elsewhere\n")
    assert available_memory(lambda: 5000, root, own) == 5000


def test_control_groups_version_1_are_read(tmp_path: Path) -> None:
    root, own = tmp_path / "cgroup", tmp_path / "own"
    own.write_text("5:cpu,cpuacct:/x\n4:memory:/a/b\n")
    control_group(root / "memory", FIRST, 2**63 - 4096, 10)
    control_group(root / "memory/a", FIRST, 900, 800, "inactive_file 1\ntotal_inactive_file 300\n")
    assert available_memory(lambda: 5000, root, own) == 400

"""Architecture options that the decoder does not support are refused for learning, ONNX and MLX; only llama.cpp serves such a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from edge.core.errors import ModelFileError
from edge.core.types import Message, Sampling
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.decoder import load_decoder
from edge.models.streamed import open_streamed
from tests.worlds.changed_gguf import Parts, changed, putting
from tests.worlds.tiny_gguf import write_tiny_model

IDS = torch.tensor([[1, 2, 3, 10, 11]])


def without(name: str) -> Callable[[Parts], object]:
    def change(parts: Parts) -> None:
        parts.tensors = [tensor for tensor in parts.tensors if tensor.name != name]

    return change


def in_every_layer(name: str, *dims: int) -> Callable[[Parts], object]:
    return lambda parts: [parts.add(f"blk.{layer}.{name}", *dims) for layer in range(2)]


REFUSED: dict[str, tuple[str, Callable[[Parts], object]]] = {
    "rope.scaling.type": (
        "qwen2",
        putting({"qwen2.rope.scaling.type": ("text", "yarn"), "qwen2.rope.scaling.factor": ("f32", 4.0)}),
    ),
    "rope.scaling.factor": ("llama", putting({"llama.rope.scaling.factor": ("f32", 4.0)})),
    "rope.scale_linear": ("qwen3", putting({"qwen3.rope.scale_linear": ("f32", 4.0)})),
    "attention.causal": ("qwen2", putting({"qwen2.attention.causal": ("bool", False)})),
    "attention.sliding_window": ("llama", putting({"llama.attention.sliding_window": ("u32", 8)})),
    "attention.scale": ("llama", putting({"llama.attention.scale": ("f32", 0.01)})),
    "logit_scale": ("qwen2", putting({"qwen2.logit_scale": ("f32", 0.1)})),
    "final_logit_softcapping": ("qwen2", putting({"qwen2.final_logit_softcapping": ("f32", 30.0)})),
    "embedding_scale": ("llama", putting({"llama.embedding_scale": ("f32", 12.0)})),
    "residual_scale": ("llama", putting({"llama.residual_scale": ("f32", 0.2)})),
    "expert_count": ("llama", putting({"llama.expert_count": ("u32", 8)})),
    "a_key_nobody_knows": ("qwen2", putting({"qwen2.a_key_nobody_knows": ("u32", 1)})),
    "blk.0.attn_output.bias": ("llama", in_every_layer("attn_output.bias", 64)),
    "blk.0.ffn_down.bias": ("llama", in_every_layer("ffn_down.bias", 64)),
    "output.bias": ("qwen2", lambda parts: parts.add("output.bias", 309)),
    "blk.0.attn_q.scale": ("qwen2", in_every_layer("attn_q.scale", 1)),
    "blk.0.attn_k.bias": ("qwen2", without("blk.0.attn_q.bias")),
    "blk.1.attn_q.bias": ("qwen2", without("blk.1.attn_q.bias")),
    "rope_freqs.weight": ("llama", lambda parts: parts.add("rope_freqs.weight", 1, value=3.0)),
    "blk.0.attn_q_norm.weight": ("llama", in_every_layer("attn_q_norm.weight", 16)),
}


def onnx(path: Path) -> None:
    pytest.importorskip("onnx", reason="the extra onnx is not installed")
    from edge.models.onnx_decoder import export_onnx

    export_onnx(path, path.with_suffix(".onnx"))


def mlx(path: Path) -> None:
    pytest.importorskip("mlx_lm", reason="MLX has no wheel for this platform")
    from edge.models.mlx_decoder import load_mlx_decoder

    load_mlx_decoder(path)


@pytest.mark.parametrize("opened", [load_decoder, open_streamed, onnx, mlx], ids=["resident", "streamed", "onnx", "mlx"])
@pytest.mark.parametrize("named", list(REFUSED))
def test_unsupported_architecture_option_is_refused_by_name(tmp_path: Path, named: str, opened: Callable[[Path], object]) -> None:
    architecture, change = REFUSED[named]
    path = changed(write_tiny_model(tmp_path / "plain.gguf", architecture).path, tmp_path / "odd.gguf", change)
    with pytest.raises(ModelFileError) as caught:
        opened(path)
    assert named in str(caught.value) and str(path) in str(caught.value)
    assert "\n" not in str(caught.value) and caught.value.hint
    assert not path.with_suffix(".onnx").exists()


NEUTRAL = putting({
    "llama.rope.scaling.type": ("text", "none"), "llama.rope.scaling.factor": ("f32", 1.0), "llama.attention.causal": ("bool", True),
    "llama.attention.sliding_window": ("u32", 512), "llama.logit_scale": ("f32", 0.0), "llama.expert_count": ("u32", 0),
})  # fmt: skip


@pytest.mark.parametrize("opened", [load_decoder, open_streamed])
def test_option_without_effect_is_accepted(tmp_path: Path, opened) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", "llama").path
    path = changed(plain, tmp_path / "neutral.gguf", NEUTRAL)
    with torch.no_grad():
        assert torch.equal(opened(path)(IDS), opened(plain)(IDS))


@pytest.mark.parametrize("opened", [load_decoder, open_streamed])
def test_llama_3_rotary_factors_are_supported(tmp_path: Path, opened) -> None:
    plain = write_tiny_model(tmp_path / "plain.gguf", "llama").path
    path = changed(plain, tmp_path / "slow.gguf", lambda parts: parts.add("rope_freqs.weight", 8, value=3.0))
    assert torch.allclose(3.0 * opened(path).inverse_freqs, opened(plain).inverse_freqs)


@pytest.mark.parametrize("named", ["rope.scaling.type", "blk.0.attn_output.bias", "rope.scale_linear"])
async def test_untrainable_model_is_still_served_by_llama_cpp(
    tmp_path: Path, llama: Callable[..., LlamaCppBackend], named: str
) -> None:
    architecture, change = REFUSED[named]
    path = changed(write_tiny_model(tmp_path / "plain.gguf", architecture).path, tmp_path / "odd.gguf", change)
    group = await llama(path).sample_group([Message("user", "a b")], Sampling(max_tokens=4), [1])
    assert group.responses[0].token_ids

"""A decoder on MLX: mlx_lm's model classes over a GGUF file or an MLX folder, with LoRA beside its linear layers.

`twin` makes a second decoder over the very same weight arrays, so that serving and training each have an adapter of their own and the
weights are in memory once.

Adapters keep peft's names and shapes: A [rank, in], B [out, rank], y = W x + scale * B A x with scale = alpha / rank. Rows of q and k are
in half-split rotary order here as in peft, whatever the file's architecture, so nothing is permuted or transposed.

Axes: B rows, T tokens, D model width, V vocabulary. Activations are float32 up to 100 M parameters and float16 beyond; logits are
always computed in float32. What is left to be computed belongs to the thread that wrote it down, so loading computes everything.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

from edge.core.errors import AdapterError, ModelFileError
from edge.models.mlx_files import GROUP_SIZE, GgufFile, Packed

FOLDER_ARCHITECTURES = ("qwen2", "llama", "qwen3")
FLOAT16_FROM_PARAMETERS = 100_000_000
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PEFT_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class DecoderShape:
    """What others need to know of a decoder; `dtype` is the type of its activations."""

    architecture: str
    parameters: int
    vocab_size: int
    layers: int
    kv_heads: int
    head_dim: int
    context_tokens: int
    dtype: mx.Dtype


class MlxDecoder:
    """mlx_lm's module with the shape of its model. Not for use on two threads at a time."""

    def __init__(self, module: Any, shape: DecoderShape) -> None:
        self.module, self.shape, self.dtype = module, shape, shape.dtype

    def twin(self) -> MlxDecoder:
        """A decoder over the same weight arrays whose modules are its own, without an adapter."""
        shared = {id(part): part for _, part in tree_flatten(self.module) if isinstance(part, mx.array)}
        twin = MlxDecoder(copy.deepcopy(self.module, shared), self.shape)
        twin.remove_lora()
        return twin

    def hidden_states(self, ids_BT: mx.array, cache: Sequence[Any] | None = None) -> mx.array:
        """Hidden states [B, T, D] after the last norm. `cache` holds one of mlx_lm's cache roles per layer; None is plain causal."""
        states_BTD: mx.array = self.module.model(ids_BT, cache)
        return states_BTD

    def logits(self, hidden: mx.array) -> mx.array:
        """Logits [..., V] in float32."""
        wide = hidden.astype(mx.float32)
        head = self.module.get("lm_head")
        logits: mx.array = self.module.model.embed_tokens.as_linear(wide) if head is None else head(wide)
        return logits.astype(mx.float32)

    # --- adapter ---

    def add_lora(self, rank: int, scale: float, targets: Sequence[str] = LINEARS) -> None:
        """Put a zero adapter beside the target layers of every block, in place of one that is there."""
        self.remove_lora()
        for parent, name in self._linears(targets):
            parent[name] = LoraLinear(parent[name], rank, scale)

    def remove_lora(self) -> None:
        """Make the decoder the bare model again."""
        for parent, name in self._linears(LINEARS):
            if isinstance(parent[name], LoraLinear):
                parent[name] = parent[name].base

    def lora(self) -> dict[str, mx.array]:
        """The adapter's tensors under peft's names, A [rank, in] and B [out, rank], sorted; empty without one."""
        return {name: getattr(*place) for name, place in sorted(self._places().items())}

    def set_lora(self, tensors: Mapping[str, mx.array]) -> None:
        """Overwrite the adapter. Raises AdapterError, with nothing changed, unless names and shapes are the adapter's."""
        places = self._places()
        expected = {name: tuple(getattr(*place).shape) for name, place in places.items()}
        given = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        if expected != given:
            odd = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))[0]
            raise AdapterError(
                f"the adapter does not fit the model: {odd} is {given.get(odd, 'absent')}, expected {expected.get(odd, 'absent')}",
                hint="use the base model and the rank the adapter was trained with",
            )
        for name, (layer, part) in places.items():
            setattr(layer, part, tensors[name].astype(mx.float32))

    def adopt_lora(self, tensors: Mapping[str, mx.array], rank: int, scale: float) -> None:
        """Take over a stored adapter, whichever layers it covers. Raises AdapterError, with the bare model left, when it does not fit."""
        targets = {match[1] for name in tensors if (match := re.search(r"\.(\w+)\.lora_[AB]\.", name))}
        self.add_lora(rank, scale, sorted(targets))
        try:
            self.set_lora(tensors)
        except AdapterError:
            self.remove_lora()
            raise

    def _linears(self, targets: Sequence[str]) -> list[tuple[Any, str]]:
        return [
            (part, name)
            for layer in self.module.model.layers
            for part in (layer.self_attn, layer.mlp)
            for name in targets
            if name in part
        ]

    def _places(self) -> dict[str, tuple[LoraLinear, str]]:
        """Where each tensor of the adapter is, by peft's name."""
        places: dict[str, tuple[LoraLinear, str]] = {}
        for path, layer in self.module.named_modules():
            if isinstance(layer, LoraLinear):
                places[f"{_PEFT_PREFIX}{path}.lora_A.weight"] = (layer, "lora_a")
                places[f"{_PEFT_PREFIX}{path}.lora_B.weight"] = (layer, "lora_b")
        return places


class LoraLinear(nn.Module):
    """A frozen linear layer with scale * B A beside it, computed in float32 and added in the layer's own type."""

    def __init__(self, base: nn.Module, rank: int, scale: float) -> None:
        super().__init__()
        outputs, columns = base.weight.shape
        inputs = columns * 32 // base.bits if "scales" in base else columns  # a quantised matrix is packed into words
        self.base = base
        self.lora_a = mx.zeros((rank, inputs))
        self.lora_b = mx.zeros((outputs, rank))
        self._scale = scale

    def __call__(self, x: mx.array) -> mx.array:
        """[..., in] -> [..., out]."""
        y: mx.array = self.base(x)
        beside = (x.astype(mx.float32) @ self.lora_a.T) @ self.lora_b.T
        return y + (self._scale * beside).astype(y.dtype)


class FileRope(nn.Module):
    """Rotary embedding with the file's own factors, in the half-split pairing."""

    def __init__(self, dims: int, base: float, factors: mx.array) -> None:
        super().__init__()
        self._dims = dims
        self._freqs = base ** (mx.arange(0, dims, 2, dtype=mx.float32) / dims) * factors

    def __call__(self, x: mx.array, offset: int | mx.array = 0) -> mx.array:
        """[B, H, T, d] rotated from position `offset` on, one number or one per row."""
        return mx.fast.rope(x, self._dims, traditional=False, base=None, scale=1.0, offset=offset, freqs=self._freqs)


def load_mlx_decoder(path: str | Path) -> MlxDecoder:
    """The decoder of a GGUF file or of a folder with config.json and safetensors. Raises ModelFileError."""
    path = Path(path)
    decoder = _from_folder(path) if path.is_dir() else _from_gguf(GgufFile(path))
    mx.eval(decoder.module.parameters(), [layer.self_attn.rope.get("_freqs", []) for layer in decoder.module.model.layers])
    return decoder


def _from_gguf(file: GgufFile) -> MlxDecoder:
    from mlx_lm.models import llama, qwen2, qwen3

    architecture: Any = {"qwen2": qwen2, "qwen3": qwen3, "llama": llama}[file.config["model_type"]]
    module = architecture.Model(architecture.ModelArgs.from_dict(file.config))  # random weights that nobody has computed yet
    shape = _shape_of(file.config, module)
    stored = dict(file.stored())
    packed = {name.removesuffix(".weight"): value for name, value in stored.items() if isinstance(value, Packed)}
    layout = {name: {"group_size": GROUP_SIZE, "bits": value.bits, "mode": "affine"} for name, value in packed.items()}
    nn.quantize(module, class_predicate=lambda name, _: layout.get(name, False))
    weights = {name: value.astype(shape.dtype) for name, value in stored.items() if isinstance(value, mx.array)}
    for name, value in packed.items():
        weights |= {
            f"{name}.weight": value.words,
            f"{name}.scales": value.scales.astype(shape.dtype),
            f"{name}.biases": value.biases.astype(shape.dtype),
        }
    module.load_weights(list(weights.items()))
    factors = file.rope_factors()
    if factors is not None:
        for layer in module.model.layers:
            layer.self_attn.rope = FileRope(file.config["head_dim"], file.config["rope_theta"], mx.array(factors))
    return MlxDecoder(module, shape)


def _from_folder(folder: Path) -> MlxDecoder:
    from mlx_lm.utils import load_model

    if not (folder / "config.json").is_file():
        raise ModelFileError(f"{folder}: no config.json in it", hint="give a GGUF file or a folder as mlx_lm writes it")
    try:
        module, config = load_model(folder, lazy=True)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise ModelFileError(f"{folder}: cannot be loaded ({reason})", hint="give a folder as mlx_lm writes it") from error
    if config.get("model_type") not in FOLDER_ARCHITECTURES:
        hint = f"supported: {', '.join(FOLDER_ARCHITECTURES)}"
        raise ModelFileError(f"unsupported architecture {config.get('model_type')!r} in {folder}", hint=hint)
    shape = _shape_of(config, module)
    module.set_dtype(shape.dtype)
    return MlxDecoder(module, shape)


def _shape_of(config: Mapping[str, Any], module: Any) -> DecoderShape:
    from mlx_lm.utils import get_total_parameters

    heads, parameters = int(config["num_attention_heads"]), int(get_total_parameters(module))
    return DecoderShape(
        architecture=str(config["model_type"]),
        parameters=parameters,
        vocab_size=int(config["vocab_size"]),
        layers=int(config["num_hidden_layers"]),
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or config["hidden_size"] // heads),
        context_tokens=int(config.get("max_position_embeddings") or 0),
        dtype=mx.float16 if parameters >= FLOAT16_FROM_PARAMETERS else mx.float32,
    )

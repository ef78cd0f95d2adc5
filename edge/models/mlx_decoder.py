"""A decoder on MLX: mlx_lm's model classes over a GGUF file or an MLX folder, with LoRA on its linear layers.

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten
from numpy.typing import NDArray

from edge.core.engines import ENGINES
from edge.core.errors import AdapterError, ModelFileError
from edge.models.gguf_reader import ROPE_FACTORS, MappedTensor, open_gguf
from edge.models.spec import parameter_shapes, rotated_heads, stored_name, unpermute_rows

FLOAT16_FROM_PARAMETERS = 100_000_000
GROUP_SIZE = 32
_PLAIN = ("F32", "F16", "BF16")
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
        """Add a zero adapter to the target layers of every block, in place of one that is there."""
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
    """A frozen linear layer plus scale * B A, which is computed in float32 and added in the layer's own type."""

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
        adapted = (x.astype(mx.float32) @ self.lora_a.T) @ self.lora_b.T
        return y + (self._scale * adapted).astype(y.dtype)


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
    from mlx_lm.models import llama, qwen2, qwen3, smollm3

    architecture: Any = {"qwen2": qwen2, "qwen3": qwen3, "llama": llama, "smollm3": smollm3}[file.config["model_type"]]
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
    supported = ENGINES["mlx"].architectures
    if config.get("model_type") not in supported:
        hint = f"supported: {', '.join(supported)}"
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


# --- GGUF files as MLX arrays ---
#
# MLX stores a quantised matrix as unsigned integers q with a scale and a bias per group: w = scale * q + bias. Three GGUF types have
# that very form in groups of 32, so their weights are exact here: Q8_0 (8 bits, scale d, bias -128 d), Q4_0 (4 bits, d, -8 d) and
# Q4_1 (4 bits, d, m). F32, F16 and BF16 matrices stay plain. Every other type is dequantised and quantised again to 8 bits in
# groups of 32, which moves a weight by at most some 1/500 of the range of its group: a Q4_K file takes twice its size in memory, and its
# weights are not exactly those that llama.cpp serves.


@dataclass(frozen=True, slots=True)
class Packed:
    """A quantised matrix [out, in]: words [out, in * bits / 32], scales and biases [out, in / 32]."""

    words: mx.array
    scales: mx.array
    biases: mx.array
    bits: int


Stored = Packed | mx.array


class GgufFile:
    """One open GGUF file: its shape as mlx_lm's model arguments, and its tensors by their Hugging Face names."""

    def __init__(self, path: Path) -> None:
        self._file = open_gguf(path)
        self._spec = spec = self._file.computed_spec(ENGINES["mlx"])
        if spec.architecture == "qwen2" and spec.head_dim * spec.heads != spec.width:
            raise ModelFileError(
                f"{path}: heads of width {spec.head_dim} are not supported for qwen2 on MLX", hint="use llama.cpp"
            )
        self.config: dict[str, Any] = {
            "model_type": spec.architecture,
            "hidden_size": spec.width,
            "num_hidden_layers": spec.layers,
            "intermediate_size": spec.ffn_width,
            "num_attention_heads": spec.heads,
            "num_key_value_heads": spec.kv_heads,
            "head_dim": spec.head_dim,
            "rms_norm_eps": spec.norm_eps,
            "vocab_size": spec.vocab_size,
            "max_position_embeddings": spec.context_length,
            "rope_theta": spec.rope_base,
            "tie_word_embeddings": spec.tied_embeddings,
        }

    def rope_factors(self) -> NDArray[np.float32] | None:
        """What the file divides its rotary frequencies by, [head_dim / 2], or None."""
        return _floats(self._file.tensors[ROPE_FACTORS]) if ROPE_FACTORS in self._file.tensors else None

    def stored(self) -> Iterator[tuple[str, Stored]]:
        """The decoder's parameters by name (`model.layers.0.mlp.up_proj.weight`), rows in half-split rotary order."""
        for name, shape in parameter_shapes(self._spec).items():
            tensor, heads = self._file.tensor(stored_name(name, self._spec)), rotated_heads(name, self._spec)
            pack = _PACKERS.get(tensor.kind.name) if len(shape) == 2 else None
            rows: NDArray[Any] = _floats(tensor) if pack is None else np.asarray(tensor.data)
            rows = unpermute_rows(rows, heads) if heads else rows
            if pack is not None:
                yield name, pack(rows)
            elif len(shape) == 1 or tensor.kind.name in _PLAIN:
                yield name, mx.array(rows)
            else:
                yield name, requantised(rows)


def _floats(tensor: MappedTensor) -> NDArray[np.float32]:
    values = np.empty(tensor.shape, dtype=np.float32)
    tensor.dequantise(values.ctypes.data)
    return values


def requantised(values: NDArray[np.float32]) -> Stored:
    """8 bits in groups of 32, where the rows can be cut so; else the plain matrix."""
    if values.shape[1] % GROUP_SIZE:
        return mx.array(values)
    words, scales, biases = mx.quantize(mx.array(values), group_size=GROUP_SIZE, bits=8)
    return Packed(words, scales, biases, 8)


def _pack_q8_0(rows: NDArray[np.uint8]) -> Packed:
    """Blocks of 34 bytes: d (float16) and 32 signed numbers."""
    blocks = rows.reshape(rows.shape[0], -1, 34)
    scales = _float16(blocks[..., :2])
    unsigned = (blocks[..., 2:].view(np.int8).astype(np.int16) + 128).astype(np.uint8)
    words = np.ascontiguousarray(unsigned).reshape(rows.shape[0], -1).view(np.uint32)
    return Packed(mx.array(words), mx.array(scales), mx.array(scales * -128), 8)


def _pack_q4_0(rows: NDArray[np.uint8]) -> Packed:
    """Blocks of 18 bytes: d (float16) and 16 bytes, the first 16 numbers in their low halves and the others in the high ones."""
    blocks = rows.reshape(rows.shape[0], -1, 18)
    scales = _float16(blocks[..., :2])
    return Packed(_nibbles(blocks[..., 2:]), mx.array(scales), mx.array(scales * -8), 4)


def _pack_q4_1(rows: NDArray[np.uint8]) -> Packed:
    """Blocks of 20 bytes: d and m (float16) and 16 bytes as in Q4_0."""
    blocks = rows.reshape(rows.shape[0], -1, 20)
    return Packed(_nibbles(blocks[..., 4:]), mx.array(_float16(blocks[..., :2])), mx.array(_float16(blocks[..., 2:4])), 4)


_PACKERS = {"Q8_0": _pack_q8_0, "Q4_0": _pack_q4_0, "Q4_1": _pack_q4_1}


def _float16(pairs: NDArray[np.uint8]) -> NDArray[np.float32]:
    return np.ascontiguousarray(pairs).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(halves: NDArray[np.uint8]) -> mx.array:
    """[out, groups, 16] bytes of GGUF order as MLX's words: consecutive numbers side by side, the first in the lowest bits."""
    numbers = np.concatenate([halves & 15, halves >> 4], axis=-1).reshape(halves.shape[0], -1)
    return mx.array(np.ascontiguousarray(numbers[:, ::2] | numbers[:, 1::2] << 4).view(np.uint32))

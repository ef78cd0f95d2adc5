"""Reads peft LoRA adapters, and writes them as llama.cpp and MLX adapters.

peft keeps `lora_A` [r, in] and `lora_B` [out, r] per linear layer and scales their product by alpha/r (or alpha/sqrt(r), rsLoRA);
llama.cpp scales by `adapter.lora.alpha` / r, so the file's alpha is peft's scaling times r. Files of some architectures hold the
rows of q and k in another order (rotary pairs side by side), so the rows of their `lora_B` are put in that order too: forgetting
this is silent.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from numpy.typing import NDArray

from edge.core.architectures import FAMILIES, Architecture, Family
from edge.core.errors import AdapterError, ModelFileError
from edge.core.files import replacing
from edge.core.gguf_header import read_header
from edge.core.types import GGUF_ADAPTER

_PREFIX = "base_model.model."
_PARTS = ("lora_A", "lora_B")
_ANOTHER = "go back to another version"


@dataclass(frozen=True, slots=True)
class _Base:
    """What the conversion needs to know of the base model."""

    architecture: str
    blocks: int
    heads: int
    kv_heads: int


def write_gguf_adapter(peft_folder: Path, base_gguf: Path, out: Path) -> None:
    """Convert the adapter in `peft_folder` (adapter_config.json, adapter_model.safetensors) for the base model; `out` appears atomically.

    Raises AdapterError for an adapter that is not plain LoRA on linear layers of the blocks, ModelFileError for an unusable base.
    """
    adapter, base = read_peft_adapter(peft_folder), _read_base(base_gguf)
    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    if base.architecture not in kinds:
        raise ModelFileError(f"no tensor names are known for the architecture {base.architecture!r}")
    names = gguf.get_tensor_name_map(kinds[base.architecture], base.blocks)
    family = FAMILIES.get(cast(Architecture, base.architecture), Family())
    permuted = {"q_proj": base.heads, "k_proj": base.kv_heads} if family.interleaved else {}
    with replacing(out) as draft:
        writer = gguf.GGUFWriter(draft, base.architecture)
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, adapter.scaling * adapter.rank)
        for module, (lora_a, lora_b) in adapter.tensors.items():
            stored = names.get_name(module)  # model.layers.0.mlp.up_proj -> blk.0.ffn_up
            if stored is None or not stored.startswith("blk."):
                raise AdapterError(
                    f"{module}: no such linear layer in the blocks of the base model ({base.architecture}, {base.blocks} blocks)"
                )
            heads = permuted.get(module.rpartition(".")[2])
            writer.add_tensor(f"{stored}.weight.lora_a", np.ascontiguousarray(lora_a))
            in_file_order = lora_b if heads is None else interleave_rotary_rows(lora_b, heads)
            writer.add_tensor(f"{stored}.weight.lora_b", np.ascontiguousarray(in_file_order))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()


@dataclass(frozen=True, slots=True)
class PeftAdapter:
    """A plain LoRA adapter: lora_A [rank, in] and lora_B [out, rank] by module name, and the factor on their product B A."""

    tensors: Mapping[str, tuple[NDArray[np.float32], NDArray[np.float32]]]
    rank: int
    scaling: float

    def by_peft_name(self) -> dict[str, NDArray[np.float32]]:
        """Every tensor under peft's name, without an adapter's name in it."""
        return {
            f"{_PREFIX}{module}.{part}.weight": tensor
            for module, pair in self.tensors.items()
            for part, tensor in zip(_PARTS, pair, strict=True)
        }


def read_peft_adapter(folder: Path) -> PeftAdapter:
    """The adapter in a peft folder (adapter_config.json, adapter_model.safetensors), modules in the order of their names.

    Raises AdapterError for one that is missing, damaged, not plain LoRA, not finite, or of another rank than it states.
    """
    config = _read_config(folder / "adapter_config.json")
    parts: dict[str, dict[str, NDArray[np.float32]]] = {}
    for name, tensor in sorted(_read_safetensors(folder / "adapter_model.safetensors").items()):
        module, part = _module_and_part(name)
        if not np.isfinite(tensor).all():
            raise AdapterError(f"{name}: holds values that are not finite")
        if tensor.ndim != 2 or tensor.shape[part == "lora_B"] != config["r"]:
            raise AdapterError(f"{folder}: expected tensors of rank {config['r']}, found {name} {tensor.shape}")
        parts.setdefault(module, {})[part] = tensor
    for module, pair in parts.items():
        if pair.keys() != set(_PARTS):
            raise AdapterError(f"{folder}: {module} has only half of its tensors")
    tensors = {module: (pair["lora_A"], pair["lora_B"]) for module, pair in parts.items()}
    return PeftAdapter(tensors, config["r"], lora_scaling(config))


def check_adapter(folder: Path) -> None:
    """Read an adapter folder through: peft's files, and adapter.gguf where there is one. Raises AdapterError."""
    read_peft_adapter(folder)
    if (folder / GGUF_ADAPTER).exists():
        check_gguf_adapter(folder / GGUF_ADAPTER)


def check_gguf_adapter(path: Path) -> None:
    """Raises AdapterError for a file that llama.cpp would load and then answer nothing sensible with."""
    try:
        reader = gguf.GGUFReader(path)
        field = reader.get_field("adapter.lora.alpha")
        alpha = None if field is None else float(field.contents())
        finite = all(np.isfinite(gguf.quants.dequantize(tensor.data, tensor.tensor_type)).all() for tensor in reader.tensors)
    except Exception as error:  # the reader raises whatever its parsing runs into
        raise AdapterError(f"{path}: damaged ({type(error).__name__})", hint=_ANOTHER) from error
    if not reader.tensors:
        raise AdapterError(f"{path}: holds no tensors", hint=_ANOTHER)
    if not finite:
        raise AdapterError(f"{path}: holds values that are not finite", hint=_ANOTHER)
    if alpha is None or not 0 < alpha < math.inf:
        raise AdapterError(f"{path}: adapter.lora.alpha must be a positive number, not {alpha}", hint=_ANOTHER)
    if reader.get_field("adapter.alora.invocation_tokens") is not None:
        raise AdapterError(f"{path}: is switched on by tokens (aLoRA), which is not supported", hint=_ANOTHER)


def write_mlx_adapter(peft_folder: Path, out: Path) -> None:
    """Write mlx-lm's two files, adapters.safetensors and adapter_config.json, into an existing folder.

    mlx-lm computes W x + scale (x A) B with A [in, rank] and B [rank, out]: peft's transposed, and scale = alpha / rank. Its adapters cover
    the same layers in every one of the last `num_layers` blocks. Raises AdapterError.
    """
    import safetensors.numpy

    adapter = read_peft_adapter(peft_folder)
    keys, blocks = _mlx_layers(adapter.tensors)
    turned: dict[str, NDArray[np.float32]] = {}
    for module, (lora_a, lora_b) in adapter.tensors.items():
        turned[f"{module}.lora_a"] = np.ascontiguousarray(lora_a.T)
        turned[f"{module}.lora_b"] = np.ascontiguousarray(lora_b.T)
    lora = {"rank": adapter.rank, "scale": adapter.scaling, "dropout": 0.0, "keys": keys}
    described = {"fine_tune_type": "lora", "num_layers": blocks, "lora_parameters": lora}
    safetensors.numpy.save_file(turned, out / "adapters.safetensors", metadata={"format": "mlx"})
    (out / "adapter_config.json").write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")


def _mlx_layers(modules: Iterable[str]) -> tuple[list[str], int]:
    """The layers inside a block that an adapter covers, and in how many blocks. Raises AdapterError unless all blocks are alike."""
    by_block: dict[int, set[str]] = {}
    for module in modules:
        prefix, _, rest = module.partition("layers.")
        block, _, inner = rest.partition(".")
        if prefix != "model." or not block.isdecimal():
            raise AdapterError(f"{module}: not a layer of a block, so MLX cannot have it")
        by_block.setdefault(int(block), set()).add(inner)
    covered = sorted(by_block)
    if covered != list(range(len(covered))) or len({frozenset(inner) for inner in by_block.values()}) != 1:
        raise AdapterError("the adapter covers other layers in some blocks than in others, which MLX's format cannot express")
    return sorted(by_block[0]), len(covered)


def lora_norms(folder: Path) -> dict[str, dict[str, float]]:
    """Frobenius norms of A, B and the whole change scale B A for each layer of a peft folder. Raises AdapterError."""
    adapter = read_peft_adapter(folder)
    norms = {}
    for module, (lora_a, lora_b) in adapter.tensors.items():
        a, b = lora_a.astype(np.float64), lora_b.astype(np.float64)
        product = math.sqrt(max(0.0, float(np.sum((b.T @ b) * (a @ a.T)))))  # ‖BA‖² = tr((BᵀB)(AAᵀ)), without making B A
        norms[module] = {
            "a": float(np.linalg.norm(lora_a)),
            "b": float(np.linalg.norm(lora_b)),
            "change": adapter.scaling * product,
        }
    return norms


def lora_scaling(config: Mapping[str, Any]) -> float:
    """The factor on lora_B @ lora_A that a peft configuration means."""
    rank, alpha = config["r"], float(config["lora_alpha"])
    return alpha / math.sqrt(rank) if config.get("use_rslora") else alpha / rank


def interleave_rotary_rows(weight: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows [heads * d, ...] from half-split rotary order (row j turns with j + d/2) to llama.cpp's pairs (2j with 2j + 1)."""
    rows = weight.shape[0]
    halves = weight.reshape(heads, 2, rows // heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"{path}: not a readable adapter configuration ({error})") from error
    if not isinstance(config, dict) or config.get("peft_type") != "LORA":
        raise AdapterError(f"{path}: not a LoRA adapter")
    for key in ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out"):
        if config.get(key):
            raise AdapterError(f"{path}: {key} is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{path}: trained biases are not supported")
    if not isinstance(config.get("r"), int) or config["r"] < 1 or not isinstance(config.get("lora_alpha"), int | float):
        raise AdapterError(f"{path}: r and lora_alpha must be numbers")
    return config


def _read_base(path: Path) -> _Base:
    try:
        stat = path.stat()
        return _read_base_once(path, stat.st_mtime_ns, stat.st_size)
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read as the adapter's base model ({error})") from error
    except KeyError as error:
        raise ModelFileError(f"{path}: cannot be an adapter's base model: no {error.args[0]} in its header") from error


@lru_cache(maxsize=4)
def _read_base_once(path: Path, _modified_ns: int, _size: int) -> _Base:
    """Read the header once per version of a file: stepping over a large vocabulary takes a moment."""
    header = read_header(path)

    def number(key: str, default: int | None = None) -> int:
        value = header.of_architecture(key, default)
        if not isinstance(value, int):
            raise KeyError(f"{header.architecture}.{key}")
        return value

    heads = number("attention.head_count")
    return _Base(header.architecture, number("block_count"), heads, number("attention.head_count_kv", heads))


def _read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    import safetensors

    try:
        entries: list[tuple[str, dict[str, Any]]] = safetensors.deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise AdapterError(f"{path}: not a readable safetensors file ({error})") from error
    if not entries:
        raise AdapterError(f"{path}: holds no tensors")
    return {name: _as_float32(path, name, entry) for name, entry in entries}


def _as_float32(path: Path, name: str, entry: Mapping[str, Any]) -> NDArray[np.float32]:
    data, shape = bytes(entry["data"]), entry["shape"]
    if entry["dtype"] == "BF16":
        wide = np.frombuffer(data, dtype=np.uint16).astype(np.uint32) << 16
        return wide.view(np.float32).reshape(shape)
    kinds = {"F32": np.float32, "F16": np.float16, "F64": np.float64}
    if entry["dtype"] not in kinds:
        raise AdapterError(f"{path}: {name} has the type {entry['dtype']}, expected a floating point type")
    return np.frombuffer(data, dtype=kinds[entry["dtype"]]).astype(np.float32).reshape(shape)


def _module_and_part(name: str) -> tuple[str, str]:
    """`base_model.model.M.lora_A[.adapter].weight` -> (M, "lora_A")."""
    for part in _PARTS:
        module, found, _ = name.removeprefix(_PREFIX).partition(f".{part}.")
        if found and name.startswith(_PREFIX):
            return module, part
    raise AdapterError(f"{name}: not a LoRA tensor")

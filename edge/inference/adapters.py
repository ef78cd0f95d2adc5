"""From a peft LoRA adapter to a llama.cpp adapter file. Knows both formats; knows nothing of training, and does not need torch.

peft keeps `lora_A` [r, in] and `lora_B` [out, r] per linear layer and scales their product by alpha/r (or alpha/sqrt(r), rsLoRA);
llama.cpp scales by `adapter.lora.alpha` / r, so the file's alpha is peft's scaling times r. Files of the llama architecture hold the
rows of q and k in another order (rotary pairs side by side), so the rows of their `lora_B` are put in that order too: forgetting
this is silent.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from edge.core.errors import AdapterError, ModelFileError

_PREFIX = "base_model.model."
_PARTS = {"lora_A": "lora_a", "lora_B": "lora_b"}
_PEFT_PARTS = {part: name for name, part in _PARTS.items()}


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
    config = _read_config(peft_folder / "adapter_config.json")
    base = _read_base(base_gguf)
    tensors = _read_safetensors(peft_folder / "adapter_model.safetensors")
    renamed = dict(_converted(name, tensor, base) for name, tensor in sorted(tensors.items()))
    ranks = {tensor.shape[0] for name, tensor in renamed.items() if name.endswith(".lora_a")}
    if ranks != {config["r"]}:
        raise AdapterError(f"{peft_folder}: expected tensors of rank {config['r']}, found {sorted(ranks)}")
    _write(renamed, base.architecture, lora_scaling(config) * config["r"], out)


def read_peft_folder(folder: Path) -> tuple[dict[str, Any], dict[str, NDArray[np.float32]]]:
    """Configuration and tensors (peft's names, without an adapter's name in them) of a peft folder.

    Raises AdapterError for one that is missing, damaged, not plain LoRA, not finite, or of another rank than it says.
    """
    config = _read_config(folder / "adapter_config.json")
    tensors: dict[str, NDArray[np.float32]] = {}
    for name, tensor in _read_safetensors(folder / "adapter_model.safetensors").items():
        module, part = _module_and_part(name)
        if not np.isfinite(tensor).all():
            raise AdapterError(f"{name}: holds values that are not finite")
        if tensor.ndim != 2 or tensor.shape[part == "lora_b"] != config["r"]:
            raise AdapterError(f"{folder}: expected tensors of rank {config['r']}, found {name} {tensor.shape}")
        tensors[f"{_PREFIX}{module}.{_PEFT_PARTS[part]}.weight"] = tensor
    return config, tensors


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
    unsupported = ("use_dora", "rank_pattern", "alpha_pattern", "modules_to_save", "fan_in_fan_out")
    for key in unsupported:
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
        return _read_base_once(str(path), stat.st_mtime_ns, stat.st_size)
    except (OSError, ValueError, KeyError) as error:
        raise ModelFileError(f"{path}: cannot be read as the adapter's base model ({error})") from error


@lru_cache(maxsize=4)
def _read_base_once(path: str, _modified_ns: int, _size: int) -> _Base:
    """Read the header once per version of a file: parsing a large vocabulary takes seconds."""
    fields = gguf.GGUFReader(path).fields

    def value(key: str) -> Any:
        return fields[key].contents()

    architecture = str(value("general.architecture"))
    heads = int(value(f"{architecture}.attention.head_count"))
    kv_key = f"{architecture}.attention.head_count_kv"
    return _Base(
        architecture, int(value(f"{architecture}.block_count")), heads, int(value(kv_key)) if kv_key in fields else heads
    )


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


def _converted(name: str, tensor: NDArray[np.float32], base: _Base) -> tuple[str, NDArray[np.float32]]:
    """A peft tensor under its name in the file, its rows in the file's order."""
    module, part = _module_and_part(name)
    target = _tensor_names(base.architecture, base.blocks).get_name(module)
    if target is None or not target.startswith("blk."):
        raise AdapterError(
            f"{name}: no such linear layer in the blocks of the base model ({base.architecture}, {base.blocks} blocks)"
        )
    if not np.isfinite(tensor).all():
        raise AdapterError(f"{name}: holds values that are not finite")
    if base.architecture == "llama" and part == "lora_b" and module.endswith(("q_proj", "k_proj")):
        tensor = interleave_rotary_rows(tensor, base.heads if module.endswith("q_proj") else base.kv_heads)
    return f"{target}.weight.{part}", tensor


def _module_and_part(name: str) -> tuple[str, str]:
    """`base_model.model.M.lora_A[.adapter].weight` -> (M, "lora_a")."""
    for peft_part, part in _PARTS.items():
        module, found, _ = name.removeprefix(_PREFIX).partition(f".{peft_part}.")
        if found and name.startswith(_PREFIX):
            return module, part
    raise AdapterError(f"{name}: not a LoRA tensor")


@lru_cache(maxsize=8)
def _tensor_names(architecture: str, blocks: int) -> Any:
    for kind, known in gguf.MODEL_ARCH_NAMES.items():
        if known == architecture:
            return gguf.get_tensor_name_map(kind, blocks)
    raise ModelFileError(f"no tensor names are known for the architecture {architecture!r}")


def _write(tensors: Mapping[str, NDArray[np.float32]], architecture: str, alpha: float, out: Path) -> None:
    unfinished = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    try:
        writer = gguf.GGUFWriter(unfinished, architecture)
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
        for name, tensor in tensors.items():
            writer.add_tensor(name, np.ascontiguousarray(tensor))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        unfinished.replace(out)
    finally:
        unfinished.unlink(missing_ok=True)

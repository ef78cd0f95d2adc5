"""ggml's own dequantisers, called through ctypes.

llama-cpp-python ships them in `libggml-base`; `ggml_get_type_traits(type)->to_float` is public. They work for every type that ggml has,
give the same bits as the engine that serves, and release the interpreter's lock, so that rows can be split over threads.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edge.core.errors import EdgeError, ModelFileError

F32, F16, BF16 = 0, 1, 30
"""Type numbers of ggml that are plain floats."""

_TO_FLOAT = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
_LIBRARY = {"darwin": "libggml-base.dylib", "win32": "ggml-base.dll"}.get(sys.platform, "libggml-base.so")


class _Traits(ctypes.Structure):
    """struct ggml_type_traits."""

    _fields_ = (
        ("type_name", ctypes.c_char_p),
        ("block_size", ctypes.c_int64),
        ("block_size_interleave", ctypes.c_int64),
        ("type_size", ctypes.c_size_t),
        ("is_quantized", ctypes.c_bool),
        ("to_float", ctypes.c_void_p),
        ("from_float_ref", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True)
class GgmlType:
    """One type of ggml: `block_size` weights take `block_bytes` bytes. `to_float(source, target, count)` takes addresses."""

    number: int
    name: str
    block_size: int
    block_bytes: int
    to_float: Any

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` weights. Raises ValueError when blocks do not fill it."""
        blocks, rest = divmod(width, self.block_size)
        if rest:
            raise ValueError(f"rows of {width} weights do not fit {self.name}'s blocks of {self.block_size}")
        return blocks * self.block_bytes

    def dequantise(self, source: int, target: int, count: int) -> None:
        """Write `count` float32 weights to the address `target` from blocks at the address `source`."""
        if self.to_float is None:
            ctypes.memmove(target, source, 4 * count)
        else:
            self.to_float(source, target, count)


@lru_cache(maxsize=64)
def ggml_type(number: int) -> GgmlType:
    """The type with this number. Raises ModelFileError for one this build of ggml cannot turn into floats."""
    import gguf

    library = _library()
    if not 0 <= number <= max(gguf.GGMLQuantizationType):  # ggml looks beyond its table for a number that is not in it
        raise ModelFileError(f"unknown ggml type {number}", hint="update llama-cpp-python")
    traits = library.ggml_get_type_traits(number).contents
    name = (traits.type_name or b"").decode() or f"type {number}"
    if traits.block_size < 1 or not traits.type_size or (not traits.to_float and number != F32):
        raise ModelFileError(f"ggml cannot turn {name} into floats", hint="use another quantisation of the model")
    to_float = _TO_FLOAT(traits.to_float) if traits.to_float else None
    return GgmlType(number, name, traits.block_size, traits.type_size, to_float)


@lru_cache(maxsize=1)
def _library() -> Any:
    import llama_cpp

    path = Path(llama_cpp.__file__).parent / "lib" / _LIBRARY
    try:
        library: Any = ctypes.CDLL(str(path))
    except OSError as error:
        raise EdgeError(f"{path.name} of llama-cpp-python cannot be loaded", hint="install llama-cpp-python again") from error
    library.ggml_get_type_traits.restype = ctypes.POINTER(_Traits)
    library.ggml_get_type_traits.argtypes = (ctypes.c_int,)
    return library

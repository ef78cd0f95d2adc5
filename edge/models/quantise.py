"""Makes a GGUF file smaller through llama.cpp's own quantiser.

llama.cpp reports what it does only through its log, one process-wide callback: progress and the reason of a failure are read from there.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from edge.core.errors import ModelFileError, UsageError
from edge.core.gguf_header import GgufHeader, check_shape, read_header
from edge.models.new_file import check_free, new_file

Progress = Callable[[int, int, str], None]
"""Called before each tensor: how many are done, of how many, and the tensor's name."""
TYPES = (
    "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K",
    "IQ4_XS", "IQ4_NL", "F16", "BF16",
)  # fmt: skip
"""Types that need no importance matrix, most of them best first."""
_TENSOR = re.compile(r"\[\s*(\d+)/\s*(\d+)\]\s+(\S+)")
_FALLBACK = re.compile(r"falling back|fallback quantization")
_GUESSED = 1024
"""llama.cpp's mark on a file type that it guessed."""
_ERROR_LEVEL, _CONTINUED_LEVEL = 4, 5


@dataclass(frozen=True, slots=True)
class Quantised:
    """What was written. `fallbacks` counts tensors that got another type because their rows do not fit the type's blocks."""

    path: Path
    type_name: str
    bytes_before: int
    bytes_after: int
    fallbacks: int


def quantise(
    source: Path,
    out: Path,
    type_name: str,
    *,
    force: bool = False,
    requantise: bool = False,
    threads: int = 0,
    progress: Progress | None = None,
) -> Quantised:
    """Quantise a GGUF file of full-width weights, or with `requantise` of any. Raises UsageError or ModelFileError; nothing half-written is
    left."""
    type_name = type_name.upper()
    if type_name not in TYPES:
        raise UsageError(f"unknown type {type_name!r}", hint=f"choose one of {', '.join(TYPES)}")
    import llama_cpp

    number = int(getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{type_name}"))
    header = read_header(source)
    check_shape(header)
    if _has_type(header, number, type_name):
        raise UsageError(f"{source}: is {type_name} already", hint="choose another type with --type")
    if out.exists() and out.resolve() == source.resolve():
        raise UsageError(f"{out}: is the file that is read", hint="give another name")
    check_free(out, force=force)
    with new_file(out, force=force) as partial, _Messages(progress).installed() as messages:
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = number
        params.nthread = threads
        params.allow_requantize = requantise
        code = llama_cpp.llama_model_quantize(str(source).encode(), str(partial).encode(), ctypes.byref(params))
        if code != 0:
            reason = messages.reason or f"code {code}"
            hint = (
                "start from an f16, bf16 or f32 file, or give --allow-requantize"
                if "requantiz" in reason
                else "check the file with `edge-agent models show`"
            )
            raise ModelFileError(f"{source}: llama.cpp could not quantise it ({reason})", hint=hint)
        written = read_header(partial)
    return Quantised(out, type_name, header.file_bytes, written.file_bytes, messages.fallbacks)


def _has_type(header: GgufHeader, number: int, type_name: str) -> bool:
    """Whether the file is of this type by its metadata, or where they lack it, all its matrices are."""
    recorded = header.metadata.get("general.file_type")
    if type(recorded) is int:
        return recorded & ~_GUESSED == number
    import gguf

    kinds = {tensor.type_id for tensor in header.tensors if len(tensor.shape) > 1}
    return kinds == {int(kind) for kind in gguf.GGMLQuantizationType if kind.name == type_name}


class _Messages:
    """Reads llama.cpp's log while one file is quantised."""

    def __init__(self, progress: Progress | None) -> None:
        self.reason = ""
        self.fallbacks = 0
        self._progress = progress
        self._level = 0

    @contextmanager
    def installed(self) -> Iterator[_Messages]:
        """Route llama.cpp's messages here, and nowhere afterwards."""
        import llama_cpp

        callback = llama_cpp.llama_log_callback(self._take)
        llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
        try:
            yield self
        finally:
            llama_cpp.llama_log_set(_dropping(), ctypes.c_void_p(0))

    def _take(self, level: int, text: bytes, _data: Any) -> None:
        self._level = self._level if level == _CONTINUED_LEVEL else level
        line = text.decode("utf-8", "replace")
        if self._level == _ERROR_LEVEL and line.strip() and not self.reason:
            self.reason = " ".join(line.rpartition(": ")[2].split())
        self.fallbacks += bool(_FALLBACK.search(line))
        if self._progress is not None and (found := _TENSOR.search(line)):
            self._progress(int(found[1]) - 1, int(found[2]), found[3])


@lru_cache(maxsize=1)
def _dropping() -> Any:
    """A callback that drops messages; made once and never freed, because llama.cpp holds the pointer."""
    import llama_cpp

    return llama_cpp.llama_log_callback(lambda _level, _text, _data: None)

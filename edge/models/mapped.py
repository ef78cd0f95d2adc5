"""A GGUF file mapped into memory: its metadata, and each tensor's bytes where they lie.

Every way in which a file can be unusable ends in ModelFileError with one line that names the file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from edge.core.errors import ModelFileError
from edge.core.gguf_header import ArrayLength, GgufHeader, TensorEntry, read_header


@dataclass(frozen=True, slots=True)
class MappedTensor:
    """One tensor in the file: its shape as torch has it (rows first), and its bytes [rows..., bytes of a row]."""

    name: str
    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    data: NDArray[np.uint8]

    @property
    def elements(self) -> int:
        """How many weights it holds."""
        return int(np.prod(self.shape))

    @property
    def address(self) -> int:
        """Where its bytes begin in memory."""
        return int(self.data.ctypes.data)


class MappedFile:
    """One GGUF file, its header read and its weights mapped. Raises ModelFileError when it is missing, not GGUF, or damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.header: GgufHeader = read_header(path)
        try:
            self._bytes: NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r")
            self.tensors = {entry.name: self._tensor(entry) for entry in self.header.tensors}
        except (ValueError, OverflowError, OSError) as error:
            raise damaged(path, error) from error

    def metadata(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key, or `default`; an array is read from the file now, as a list."""
        value = self.header.metadata.get(key, default)
        if isinstance(value, ArrayLength):
            return list(read_header(self.path, arrays={key}).metadata[key])
        return value

    @cached_property
    def weight_bytes(self) -> int:
        """Bytes of all weights in the file."""
        return sum(tensor.data.nbytes for tensor in self.tensors.values())

    def _tensor(self, entry: TensorEntry) -> MappedTensor:
        kind = GGMLQuantizationType(entry.type_id)
        block, block_bytes = GGML_QUANT_SIZES[kind]
        *rows, width = entry.shape or (1,)
        if width % block:
            raise ValueError(f"rows of {width} weights do not fit {kind.name}'s blocks of {block}")
        shape = (*rows, width // block * block_bytes)
        start = self.header.data_start + entry.offset
        end = start + int(np.prod(shape))
        if end > self.header.file_bytes:
            raise ValueError(f"tensor {entry.name} ends beyond the file")
        return MappedTensor(entry.name, entry.shape, kind, self._bytes[start:end].reshape(shape))


def damaged(path: Path, cause: Exception) -> ModelFileError:
    """What to raise for a file that ends early or makes no sense."""
    return ModelFileError(f"{path}: a damaged or truncated GGUF file ({cause})", hint="fetch or convert it again")

"""GGUF files with arbitrary bytes: the header of a real file is taken apart, changed and written again."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader

_KINDS = {"u32": (4, "<I"), "i32": (5, "<i"), "f32": (6, "<f"), "bool": (7, "<?"), "u64": (10, "<Q")}


@dataclass
class Tensor:
    """Dimensions in the file's order (innermost first); `offset` None is where it belongs."""

    name: str
    dims: list[int]
    kind: int
    data: bytes
    offset: int | None = None

    def fill(self, value: float) -> None:
        """Write float32 numbers that are all the same."""
        self.data = np.full(len(self.data) // 4, value, dtype=np.float32).tobytes()


@dataclass
class Parts:
    """A file in parts: values as they are written, tensors in order."""

    values: list[tuple[str, bytes]] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)

    def put(self, key: str, kind: str, value: Any) -> None:
        """Set a value, or add it."""
        self.drop(key)
        self.values.append((key, value_bytes(kind, value)))

    def drop(self, key: str) -> None:
        """Remove a value."""
        self.values = [(name, data) for name, data in self.values if name != key]

    def add(self, name: str, *dims: int, value: float = 0.1) -> None:
        """Append a float32 tensor."""
        self.tensors.append(Tensor(name, list(dims), 0, np.full(int(np.prod(dims)), value, dtype=np.float32).tobytes()))

    def write(self, path: Path) -> Path:
        """Put it together."""
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), len(self.values))
        head += b"".join(text_bytes(key) + data for key, data in self.values)
        body = b""
        for tensor in self.tensors:
            offset = len(body) if tensor.offset is None else tensor.offset
            head += text_bytes(tensor.name) + struct.pack(f"<I{len(tensor.dims)}Q", len(tensor.dims), *tensor.dims)
            head += struct.pack("<IQ", tensor.kind, offset)
            body += tensor.data + bytes(-len(tensor.data) % 32)
        path.write_bytes(head + bytes(-len(head) % 32) + body)
        return path


def parts_of(path: Path) -> Parts:
    """A real file in parts."""
    reader, parts = GGUFReader(path), Parts()
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF."):
            parts.values.append((key, b"".join(part.tobytes() for part in entry.parts[2:])))
    for tensor in reader.tensors:
        parts.tensors.append(Tensor(tensor.name, [int(n) for n in tensor.shape], int(tensor.tensor_type), tensor.data.tobytes()))
    return parts


def changed(source: Path, out: Path, change: Callable[[Parts], object]) -> Path:
    """The file with a change, at `out`."""
    parts = parts_of(source)
    change(parts)
    return parts.write(out)


def text_bytes(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def value_bytes(kind: str, value: Any) -> bytes:
    """A value with its type before it; "text", "raw" (as it is), or a number's type."""
    if kind == "raw":
        return bytes(value)
    if kind == "text":
        return struct.pack("<I", 8) + text_bytes(value)
    number, form = _KINDS[kind]
    return struct.pack("<I", number) + struct.pack(form, value)


def putting(values: Mapping[str, tuple[str, Any]]) -> Callable[[Parts], object]:
    """A change that sets values."""

    def change(parts: Parts) -> None:
        for key, (kind, value) in values.items():
            parts.put(key, kind, value)

    return change

"""The header of a GGUF file: metadata, the table of tensors, and whether its numbers can be those of a model, all of which is in the file.

No weights are read and no package is needed. Arrays are counted, and kept only when asked for: a vocabulary of 150,000 tokens is skipped in
a fraction of a second. Every way in which a file can be unusable ends in ModelFileError with one line that names the file. llama.cpp
checks the numbers of a model by assertions that end the process, and loops over them as often as they state; so they are checked before.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from edge.core.architectures import ARCHITECTURES
from edge.core.errors import ModelFileError
from edge.core.files import open_regular
from edge.core.formatting import shown
from edge.core.limits import MOST_LAYERS

MAGIC = b"GGUF"
VERSIONS = (2, 3)
_MOST_ENTRIES = 1 << 20
_MOST_TEXTS = 1 << 22
"""More than any vocabulary or list of merges has; they are stepped over one by one."""
_LONGEST_TEXT = 1 << 26
_READ_OVER = 4096
"""Bytes up to which reading is faster than seeking."""
_ALIGNMENT = 32
"""Bytes, where a file does not state it."""
_LARGEST_ALIGNMENT = 1 << 20
_MOST_WEIGHTS = 1 << 63
BLOCKS: Mapping[int, tuple[int, int]] = {
    0: (1, 4), 1: (1, 2), 2: (32, 18), 3: (32, 20), 6: (32, 22), 7: (32, 24), 8: (32, 34), 9: (32, 40), 10: (256, 84),
    11: (256, 110), 12: (256, 144), 13: (256, 176), 14: (256, 210), 15: (256, 292), 16: (256, 66), 17: (256, 74), 18: (256, 98),
    19: (256, 50), 20: (32, 18), 21: (256, 110), 22: (256, 82), 23: (256, 136), 24: (1, 1), 25: (1, 2), 26: (1, 4), 27: (1, 8),
    28: (1, 8), 29: (256, 56), 30: (1, 2), 34: (256, 54), 35: (256, 66), 39: (32, 17), 40: (64, 36), 41: (128, 18),
}  # fmt: skip
"""Weights and bytes of a block by ggml's number for the type; newer types are not in it."""
_STRING, _ARRAY = 8, 9
_SCALARS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ArrayLength:
    """In the metadata, an array of which only the length is kept."""

    length: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's name, its shape (rows first, as torch has it), ggml's number for its type, and its offset from `data_start` in bytes."""

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int

    @property
    def elements(self) -> int:
        """How many weights it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """The header of a GGUF file. `data_start` is where its weights begin, `file_bytes` the size of the whole file."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: tuple[TensorEntry, ...]
    data_start: int
    file_bytes: int

    @property
    def architecture(self) -> str:
        """`general.architecture`, or "" when the file does not state it."""
        return str(self.metadata.get("general.architecture", ""))

    @property
    def parameters(self) -> int:
        """Number of weights in all tensors."""
        return sum(tensor.elements for tensor in self.tensors)

    def of_architecture(self, key: str, default: Any = None) -> Any:
        """The value of `{architecture}.{key}`."""
        return self.metadata.get(f"{self.architecture}.{key}", default)


def read_header(path: Path, arrays: Collection[str] = ()) -> GgufHeader:
    """The header of a GGUF file, with the metadata arrays named in `arrays` as tuples.

    Raises ModelFileError when it is missing, not GGUF, or damaged.
    """
    try:
        with open_regular(path) as file:
            return _header(path, _Reader(file), arrays)
    except FileNotFoundError as error:
        raise ModelFileError(f"{path}: no such model file", hint="check the path or name of the model") from error
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", hint="check its permissions") from error
    except UnicodeDecodeError as error:
        raise _damaged(path, "a text that is not UTF-8") from error
    except (struct.error, ValueError, OverflowError) as error:
        raise _damaged(path, str(error)) from error


def _damaged(path: Path, why: str) -> ModelFileError:
    return ModelFileError(f"{path}: a damaged or truncated GGUF file ({why})", hint="fetch or convert it again")


class _Reader:
    """An open file and how many bytes it has: nothing is read, nor counted, beyond them."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0

    def exactly(self, count: int) -> bytes:
        """The next bytes. Raises ValueError when there are fewer."""
        self._advance(count)
        data = self._file.read(count)
        if len(data) != count:
            raise ValueError("the file ends early")
        return data

    def skip(self, count: int) -> None:
        """Step over bytes. Raises ValueError when there are fewer."""
        if count <= _READ_OVER:
            self.exactly(count)
        else:
            self._advance(count)
            self._file.seek(count, os.SEEK_CUR)

    def numbers(self, form: str) -> tuple[Any, ...]:
        """The next values in a form of struct."""
        return struct.unpack(form, self.exactly(struct.calcsize(form)))

    def text(self) -> str:
        """A text with its length before it."""
        return self.exactly(self.text_length()).decode("utf-8")

    def text_length(self) -> int:
        """The length of the text that follows, in bytes."""
        length: int = self.numbers("<Q")[0]
        if length > _LONGEST_TEXT:
            raise ValueError("a text longer than any model has")
        return length

    def array_head(self) -> tuple[int, int]:
        """Kind and length of the array that follows. Raises ValueError for a length that the rest of the file cannot hold."""
        kind, length = self.numbers("<IQ")
        if kind != _STRING and kind not in _SCALARS:
            raise ValueError("an array of an unknown kind")
        least = 8 if kind == _STRING else struct.calcsize(_SCALARS[kind])
        if length > (self.size - self.position) // least or (kind == _STRING and length > _MOST_TEXTS):
            raise ValueError(f"an array of {length} values")
        return kind, length

    def _advance(self, count: int) -> None:
        if count > self.size - self.position:
            raise ValueError("the file ends early")
        self.position += count


def _header(path: Path, file: _Reader, arrays: Collection[str]) -> GgufHeader:
    if file.size < len(MAGIC) or file.exactly(4) != MAGIC:
        raise ModelFileError(f"{path}: not a GGUF file", hint="convert the model to GGUF, or download a GGUF version of it")
    version, tensor_count, entry_count = file.numbers("<IQQ")
    if version not in VERSIONS:
        raise ModelFileError(f"{path}: GGUF version {version} is not supported", hint="supported: 2 and 3, little endian")
    if max(tensor_count, entry_count) > _MOST_ENTRIES:
        raise ValueError("more entries than any model has")
    metadata: dict[str, Any] = {}
    for _ in range(entry_count):
        key = file.text()
        if key in metadata:
            raise ValueError(f"the key {shown(key)!r} twice")
        metadata[key] = _value(file, file.numbers("<I")[0], keep=key in arrays)
    tensors = tuple(_tensor(file) for _ in range(tensor_count))
    end = _end_of(tensors)
    alignment = metadata.get("general.alignment", _ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= _LARGEST_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError("an alignment that is no power of two up to 1 MiB")
    start = -(-file.position // alignment) * alignment
    if end and start + end > file.size:  # a file of a vocabulary alone ends with its header
        raise ValueError(f"{file.size} bytes, but its tensors end at {start + end}")
    return GgufHeader(path, metadata, tensors, start, file.size)


def _end_of(tensors: Sequence[TensorEntry]) -> int:
    """Where the last tensor ends, counted from `data_start`. Raises ValueError unless every tensor has a name and bytes of its own."""
    names: set[str] = set()
    end = 0
    for tensor in sorted(tensors, key=lambda entry: entry.offset):
        if tensor.name in names:
            raise ValueError(f"the tensor {shown(tensor.name)!r} twice")
        names.add(tensor.name)
        if tensor.elements and tensor.offset < end:
            raise ValueError(f"the tensor {shown(tensor.name)!r} lies over another one")
        weights, size = BLOCKS.get(
            tensor.type_id, (max(1, tensor.elements), 1)
        )  # at least a byte of a type that is not known here
        end = max(end, tensor.offset + -(-tensor.elements // weights) * size)
    return end


def _tensor(file: _Reader) -> TensorEntry:
    name, (dimensions,) = file.text(), file.numbers("<I")
    if dimensions > 8:
        raise ValueError("a tensor of too many dimensions")
    sizes = file.numbers(f"<{dimensions}Q")
    if math.prod(sizes) >= _MOST_WEIGHTS:
        raise ValueError(f"the tensor {shown(name)!r} of more weights than can be counted")
    type_id, offset = file.numbers("<IQ")
    return TensorEntry(name, sizes[::-1], type_id, offset)


def _value(file: _Reader, kind: int, *, keep: bool) -> Any:
    if kind == _STRING:
        return file.text()
    if kind == _ARRAY:
        return _array(file) if keep else _skipped_array(file)
    if kind not in _SCALARS:
        raise ValueError("an unknown kind of value")
    return file.numbers(_SCALARS[kind])[0]


def _array(file: _Reader) -> tuple[Any, ...]:
    kind, length = file.array_head()
    if kind == _STRING:
        return tuple(file.text() for _ in range(length))
    form = _SCALARS[kind]
    return tuple(value for (value,) in struct.iter_unpack(form, file.exactly(length * struct.calcsize(form))))


def _skipped_array(file: _Reader) -> ArrayLength:
    kind, length = file.array_head()
    if kind == _STRING:
        for _ in range(length):
            file.skip(file.text_length())
    else:
        file.skip(length * struct.calcsize(_SCALARS[kind]))
    return ArrayLength(length)


MOST_WIDTH = 1 << 20
MOST_HEADS = 1 << 14
MOST_HEAD_WIDTH = 1 << 13
MOST_VOCABULARY = 1 << 24
MOST_CONTEXT = (1 << 31) - 1
_HINT = "fetch or convert the model again"


def check_shape(header: GgufHeader) -> None:
    """Raises ModelFileError for a header with a number that no model has. All numbers of the architectures computed here are checked, of
    others, which llama.cpp may serve, only those that every model has."""
    whole, senseless = partial(_whole, header), partial(_senseless, header)
    whole("block_count", 1, MOST_LAYERS)
    for name in ("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.freq_base_swa"):
        value = header.of_architecture(name)
        if value is not None and not (_is_number(value) and value > 0):
            raise senseless(name, value, "a positive number is expected")
    if header.architecture not in ARCHITECTURES:
        return
    whole("context_length", 0, MOST_CONTEXT)
    whole("vocab_size", 0, MOST_VOCABULARY)
    whole("attention.sliding_window", 0, MOST_CONTEXT)
    whole("feed_forward_length", 1, MOST_WIDTH)
    width = whole("embedding_length", 1, MOST_WIDTH)
    heads = whole("attention.head_count", 1, MOST_HEADS)
    kv_heads = whole("attention.head_count_kv", 1, MOST_HEADS)
    if heads and kv_heads and heads % kv_heads:
        raise senseless("attention.head_count_kv", kv_heads, f"{heads} heads are no multiple of it")
    whole("attention.value_length", 1, MOST_HEAD_WIDTH)
    key = whole("attention.key_length", 1, MOST_HEAD_WIDTH)
    if key is None and width and heads:
        key = width // heads
    if key is not None and (key < 2 or key % 2):
        raise senseless("attention.key_length", key, "it must be even")
    factor = header.of_architecture("rope.scaling.factor")
    if factor is not None and not (_is_number(factor) and factor >= 0):
        raise senseless("rope.scaling.factor", factor, "a number is expected")
    rotated = whole("rope.dimension_count", 1, MOST_HEAD_WIDTH)
    if rotated is not None and key is not None and rotated != key:
        raise senseless("rope.dimension_count", rotated, f"heads are {key} wide")


def _whole(header: GgufHeader, key: str, least: int, most: int) -> int | None:
    """A whole number of the architecture in the range; an absent one is None, for whoever needs it to miss. Raises ModelFileError."""
    value = header.of_architecture(key)
    if value is None or (isinstance(value, ArrayLength) and header.architecture not in ARCHITECTURES):
        return None
    if type(value) is not int:
        raise _senseless(header, key, value, "a whole number is expected")
    if not least <= value <= most:
        raise _senseless(header, key, value, f"expected {least} to {most}")
    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _senseless(header: GgufHeader, key: str, value: Any, why: str) -> ModelFileError:
    found = f"{value.length} values" if isinstance(value, ArrayLength) else repr(value)[:80]
    return ModelFileError(f"{header.path}: {header.architecture}.{key} is {found}, which makes no sense ({why})", hint=_HINT)

"""Reads GGUF files: metadata, and dequantised weights under the decoder's parameter names.

Every way in which a file can be unusable ends in ModelFileError with one line that names the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from edge.models.computed import ROPE_FACTORS, check_computed, check_tensor, header_spec
from edge.models.ggml import ggml_type
from edge.models.mapped import MappedFile, MappedTensor, damaged
from edge.models.spec import DecoderSpec, parameter_shapes, rope_frequencies, rotated_heads, stored_name, unpermute_rows
from edge.models.stored import StoredMatrix

_INCOMPLETE = (ValueError, KeyError, IndexError, OverflowError, TypeError)
"""What missing or senseless metadata raises."""


def open_gguf(path: str | Path) -> GGUFModel:
    """Open a GGUF file. Raises ModelFileError when it is missing, not GGUF, or damaged."""
    return GGUFModel(MappedFile(Path(path)))


class GGUFModel:
    """One open GGUF file, memory-mapped."""

    def __init__(self, file: MappedFile) -> None:
        self.path = file.path
        self._header = file.header
        self.tensors = file.tensors
        self.parameters = file.header.parameters
        self.weight_bytes = file.weight_bytes
        self.metadata = file.metadata

    # --- shape ---

    def decoder_spec(self) -> DecoderSpec:
        """The decoder's shape. Raises ModelFileError on an architecture the decoder does not have, or missing keys."""
        return header_spec(self._header)

    def computed_spec(self) -> DecoderSpec:
        """The decoder's shape where it computes all that the file asks for. Raises ModelFileError where it does not."""
        spec = self.decoder_spec()
        check_computed(self._header, spec)
        return spec

    def rope_frequencies(self, spec: DecoderSpec) -> Tensor:
        """Angular frequencies [head_dim / 2], divided by the file's own factors where it brings some."""
        frequencies = rope_frequencies(spec)
        if ROPE_FACTORS in self.tensors:
            frequencies = frequencies / self.dequantised(ROPE_FACTORS)
        return frequencies

    # --- weights ---

    def dequantised(self, name: str) -> Tensor:
        """One tensor in float32, in the shape torch gives it (rows are outputs). Raises ModelFileError for a type ggml cannot read."""
        tensor = self.tensors[name]
        values = torch.empty(tensor.shape)
        ggml_type(int(tensor.kind)).dequantise(tensor.address, values.data_ptr(), values.numel())
        return values

    def decoder_state(self, spec: DecoderSpec) -> Iterator[tuple[str, Tensor]]:
        """The decoder's parameters by name, without the tied output. Raises ModelFileError on a missing or misshapen one."""
        for name in parameter_shapes(spec):
            yield name, self.parameter(name, spec)

    def parameter(self, name: str, spec: DecoderSpec) -> Tensor:
        """One of the decoder's parameters in float32, its rows in the decoder's order. Raises ModelFileError."""
        tensor = self._checked(name, spec)
        try:
            values = self.dequantised(tensor.name)
        except _INCOMPLETE as error:
            raise damaged(self.path, error) from error
        return self._in_neox_order(name, values, spec)

    def stored_matrix(self, name: str, spec: DecoderSpec) -> StoredMatrix:
        """One of the decoder's matrices where it lies in the file. Raises ModelFileError."""
        tensor = self._checked(name, spec)
        rows, width = tensor.shape
        order = partial(self._in_neox_order, name, spec=spec) if rotated_heads(name, spec) else None
        try:
            return StoredMatrix(tensor.data, tensor.address, ggml_type(int(tensor.kind)), rows, width, order)
        except _INCOMPLETE as error:
            raise damaged(self.path, error) from error

    def _checked(self, name: str, spec: DecoderSpec) -> MappedTensor:
        stored = stored_name(name)
        tensor = self.tensors.get(stored)
        check_tensor(self._header, stored, None if tensor is None else tensor.shape, parameter_shapes(spec)[name])
        return self.tensors[stored]

    def _in_neox_order(self, name: str, values: Tensor, spec: DecoderSpec) -> Tensor:
        """Undo the row order of q and k in llama-architecture files; other tensors and architectures pass unchanged."""
        heads = rotated_heads(name, spec)
        return cast(Tensor, unpermute_rows(values, heads)) if heads else values

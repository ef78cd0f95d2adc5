"""Matrices that stay in the GGUF file: memory-mapped blocks, turned into floats when they are needed and forgotten after.

The pages are the file's own in the page cache, the same ones that llama.cpp maps, so a model that serves and trains is in memory once.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from edge.models.ggml import GgmlType

ROWS_BYTES = 1 << 18
"""Floats that one thread makes before they are converted to a narrower type: small enough to stay in its cache."""
WORTH_A_THREAD = 1 << 16
"""Weights for which handing rows to another thread pays."""


class StoredMatrix:
    """A matrix [rows, width] of a file that is mapped as long as `owner` lives. Immutable.

    `order` puts the file's rows into the order in which the decoder has them (None: as they are).
    """

    def __init__(
        self, owner: Any, address: int, kind: GgmlType, rows: int, width: int, order: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self._owner = owner
        self._address = address
        self._kind = kind
        self._row_bytes = kind.row_bytes(width)
        self._order = order
        self.rows = rows
        self.width = width

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, width)."""
        return self.rows, self.width

    @property
    def file_bytes(self) -> int:
        """Bytes in the file."""
        return self.rows * self._row_bytes

    def dense(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The whole matrix, [rows, width]."""
        matrix = self._made(0, self.rows, dtype)
        return matrix if self._order is None else self._order(matrix)

    def block(self, start: int, stop: int, dtype: torch.dtype | None = None) -> Tensor:
        """Rows start..stop-1, in float32 unless given. Raises ValueError for a matrix whose rows have an order of their own."""
        if self._order is not None:
            raise ValueError("single rows of a reordered matrix cannot be read")
        return self._made(start, min(stop, self.rows), dtype or torch.float32)

    def gather(self, ids: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The rows `ids` [...] as [..., width]. Raises IndexError for an id that is not there."""
        wanted, places = torch.unique(ids.cpu(), return_inverse=True)
        if len(wanted) and not 0 <= int(wanted[0]) <= int(wanted[-1]) < self.rows:
            raise IndexError(f"ids must lie in 0..{self.rows - 1}")
        found = torch.empty(len(wanted), self.width)
        for place, row in enumerate(wanted.tolist()):
            self._fill(found[place : place + 1], row)
        return found.to(dtype)[places]

    def _made(self, start: int, stop: int, dtype: torch.dtype) -> Tensor:
        made = torch.empty(stop - start, self.width, dtype=dtype)
        parts = _threads() if made.numel() >= WORTH_A_THREAD else 1
        size = -(-(stop - start) // parts)
        jobs = [(made[begin : begin + size], start + begin) for begin in range(0, stop - start, size)]
        if len(jobs) > 1:
            list(_pool(parts).map(lambda job: self._converted(*job), jobs))
        elif jobs:
            self._converted(*jobs[0])
        return made

    def _converted(self, target: Tensor, row: int) -> None:
        """Rows from `row` on into the target [n, width] of any type."""
        if target.dtype == torch.float32:
            self._fill(target, row)
            return
        size = max(1, ROWS_BYTES // (4 * self.width))
        floats = torch.empty(min(size, len(target)), self.width)
        for begin in range(0, len(target), size):
            piece = target[begin : begin + size]
            self._fill(floats[: len(piece)], row + begin)
            piece.copy_(floats[: len(piece)])

    def _fill(self, target: Tensor, row: int) -> None:
        self._kind.dequantise(self._address + row * self._row_bytes, target.data_ptr(), target.numel())


def _threads() -> int:
    return max(1, torch.get_num_threads())


@lru_cache(maxsize=4)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="dequantise")

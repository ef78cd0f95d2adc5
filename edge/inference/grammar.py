"""What a grammar leaves of a model's choices: llama.cpp follows the text, one token after another."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np

from edge.core.errors import Unsupported
from edge.inference.sampling import Floats

if TYPE_CHECKING:
    from edge.inference.gguf_model import Vocabulary

_CANDIDATE = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
"""llama_token_data."""


class Grammar:
    """Implements `TokenFilter` for one response. Raises Unsupported for a grammar that llama.cpp does not take.

    Control tokens are not allowed, and no bytes that are not UTF-8: llama.cpp reads both as text.
    """

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        self._vocabulary = vocabulary
        self._pending = b""
        """Bytes of a character that has begun."""
        self._sampler = llama_cpp.llama_sampler_init_grammar(vocabulary.handle, text.encode(), b"root")
        if not self._sampler:
            raise Unsupported("llama.cpp cannot follow this form of answer", parameter="grammar", hint="use a simpler schema")

    def __del__(self) -> None:
        if self._sampler:
            llama_cpp.llama_sampler_free(self._sampler)

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        vocabulary = self._vocabulary
        if not vocabulary.ends[token]:
            if not vocabulary.pieces[token]:
                return False
            try:
                (self._pending + vocabulary.pieces[token]).decode()
            except UnicodeDecodeError as error:
                if error.reason != "unexpected end of data":
                    return False
        candidate = np.zeros(1, dtype=_CANDIDATE)
        candidate["id"] = token
        self._apply(candidate)
        return bool(np.isfinite(candidate["logit"][0]))

    def restrict(self, logits_V: Floats) -> None:
        """Make impossible, in place, what the grammar does not take next."""
        candidates = np.zeros(len(logits_V), dtype=_CANDIDATE)
        candidates["id"] = np.arange(len(logits_V))
        self._apply(candidates)
        logits_V[~np.isfinite(candidates["logit"])] = -np.inf

    def accept(self, token: int) -> None:
        """The next token is this one, which is allowed."""
        if self._vocabulary.ends[token]:
            return
        llama_cpp.llama_sampler_accept(self._sampler, token)
        self._pending += self._vocabulary.pieces[token]
        try:
            self._pending.decode()
        except UnicodeDecodeError as error:
            self._pending = self._pending[error.start :]
        else:
            self._pending = b""

    def _apply(self, candidates: np.ndarray) -> None:
        pointer = ctypes.cast(candidates.ctypes.data, ctypes.POINTER(llama_cpp.llama_token_data))
        array = llama_cpp.llama_token_data_array(pointer, len(candidates), -1, False)
        llama_cpp.llama_sampler_apply(self._sampler, ctypes.byref(array))

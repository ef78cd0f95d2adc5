"""A few tokens of a model decoded with llama.cpp, in a process that may die of it."""

from __future__ import annotations

_PROMPT_TOKENS = 64
"""Enough for the products of whole matrices, which are other code than those of one token."""


def decode_some(model: str) -> None:
    """Read a short prompt and one token more. A build for another processor ends the process here, by a signal."""
    from llama_cpp import Llama

    llama = Llama(model, n_ctx=256, n_threads=1, verbose=False)
    llama.eval([1] * _PROMPT_TOKENS)
    llama.eval([2])
    llama.close()

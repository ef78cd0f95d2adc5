"""Very long prompts, and prompts made to be slow to tokenise, do not block other requests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

import edge.models
from edge.core.errors import ContextOverflow
from edge.core.types import Message, Sampling
from edge.inference.gguf_model import GgufModel
from edge.inference.llamacpp import LlamaCppBackend

NANO = Path(edge.models.__file__).parent / "files" / "nano-edge.gguf"
LONG = (Message("user", "the cat sat " * 5000),)
PIECES = ("<think>", "</think>", "<answer>", " ", "\n", "a", " b", "Step 1:", "12", "é", "<", "think>")


def watched(monkeypatch: pytest.MonkeyPatch, before: Callable[[bytes], None]) -> None:
    """Call `before` with every text that llama.cpp's tokenizer is given."""
    real = llama_cpp.llama_tokenize

    def tokenize(vocab: Any, data: bytes, *more: Any) -> int:
        before(data)
        return int(real(vocab, data, *more))

    monkeypatch.setattr(llama_cpp, "llama_tokenize", tokenize)


@pytest.fixture
def backend(llama: Callable[..., LlamaCppBackend]) -> LlamaCppBackend:
    return llama(NANO, n_ctx=256)


def test_text_with_very_many_tags_is_tokenised_in_parts_with_equal_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    model = GgufModel(NANO, vocab_only=True)
    try:
        given: list[bytes] = []
        watched(monkeypatch, given.append)
        text = "".join(np.random.default_rng(5).choice(PIECES, 8000)) + " "
        ids = model.vocabulary.tokenise(text)
        assert b"".join(given).decode() == text
        assert max(part.count(b"<think>") + part.count(b"</think>") + part.count(b"<answer>") for part in given) <= 256
        room = (llama_cpp.llama_token * (len(text) * 2))()
        data = text.encode()
        count = llama_cpp.llama_tokenize(model.vocabulary.handle, data, len(data), room, len(room), False, False)
        assert ids == room[:count]
    finally:
        model.close()


async def ask(backend: LlamaCppBackend) -> None:
    async for _ in backend.stream(LONG, Sampling(max_tokens=1), 0):
        pass


async def test_a_long_prompt_is_not_read_on_the_event_loop(backend: LlamaCppBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    watched(monkeypatch, lambda data: threads.append(threading.get_ident()))
    with pytest.raises(ContextOverflow, match="context 256"):
        await ask(backend)
    assert threads
    assert threading.get_ident() not in threads


async def test_an_engine_is_closed_only_when_no_prompt_is_being_read(
    backend: LlamaCppBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def wait(data: bytes) -> None:
        begun.set()
        go_on.wait(30)

    watched(monkeypatch, wait)
    asking = asyncio.create_task(ask(backend))
    await asyncio.to_thread(begun.wait, 30)
    asking.cancel()
    closing = asyncio.create_task(backend.aclose())
    await asyncio.wait({asking})
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert not closing.done()
    go_on.set()
    await closing

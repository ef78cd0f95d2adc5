"""Model files that cannot be used: one clear line, and nothing printed by llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.core.errors import ContextOverflow, EdgeError, ModelFileError
from edge.core.types import Message, Sampling
from edge.core.worker import EngineWorker
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.quantise import quantise
from tests.engine.tiny_gguf import write_tiny_model


def refusal(path: Path, worker: EngineWorker) -> str:
    with pytest.raises(ModelFileError) as caught:
        LlamaCppBackend(path, worker, n_threads=1)
    assert "\n" not in str(caught.value)
    assert caught.value.hint
    return str(caught.value)


def test_a_missing_file(worker: EngineWorker, tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf", worker) == f"{tmp_path / 'none.gguf'}: no such model file"


def test_a_folder(worker: EngineWorker, tmp_path: Path) -> None:
    assert "not a file" in refusal(tmp_path, worker)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a zip file"])
def test_something_else_than_a_gguf(worker: EngineWorker, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert "not a GGUF file" in refusal(path, worker)


@pytest.mark.parametrize("kept", [6, 40, 3000, 60_000, -200])
def test_a_file_cut_short(worker: EngineWorker, tmp_path: Path, kept: int, capfd: pytest.CaptureFixture[str]) -> None:
    whole = write_tiny_model(tmp_path / "whole.gguf").path.read_bytes()
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:kept])
    message = refusal(path, worker)
    assert str(path) in message
    assert "gave no reason" not in message
    assert capfd.readouterr().err == ""


def test_an_architecture_that_llama_cpp_does_not_know(worker: EngineWorker, tmp_path: Path) -> None:
    whole = write_tiny_model(tmp_path / "whole.gguf").path.read_bytes()
    path = tmp_path / "other.gguf"
    path.write_bytes(whole.replace(b"qwen2", b"qvvn2"))
    assert "unknown model architecture" in refusal(path, worker)


def test_a_model_without_a_chat_template_that_knows_chatml_is_served(worker: EngineWorker, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "plain.gguf", chat_template=None, prompt_form=None)
    backend = LlamaCppBackend(model.path, worker, n_threads=1, n_ctx=128, max_rows=1)
    assert backend.model.prompt_form == "full"
    assert backend.prompt_ids([Message("user", "a")])[0] == model.vocab.index("<|im_start|>")
    worker.close()


def test_a_broken_chat_template_is_named(worker: EngineWorker, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "broken.gguf", chat_template="{% for x in %}")
    with pytest.raises(ModelFileError, match="chat template"):
        LlamaCppBackend(model.path, worker, n_threads=1)


async def test_a_template_that_refuses_the_conversation_is_an_error_of_one_line(worker: EngineWorker, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "strict.gguf", chat_template="{{ raise_exception('no system\nturns') }}")
    backend = LlamaCppBackend(model.path, worker, n_threads=1, n_ctx=128, max_rows=1)
    with pytest.raises(EdgeError, match="no system turns"):
        await backend.sample_group([Message("system", "a")], Sampling(), [1])
    await backend.aclose()


async def test_a_prompt_longer_than_the_context_is_refused(worker: EngineWorker, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    backend = LlamaCppBackend(model.path, worker, n_threads=1, n_ctx=64, max_rows=1)
    with pytest.raises(ContextOverflow, match="context 64"):
        await backend.sample_group([Message("user", "a b c d " * 40)], Sampling(), [1])
    response = (await backend.sample_group([Message("user", "a b")], Sampling(max_tokens=500), [1])).responses[0]
    assert len(response.token_ids) < 64
    await backend.aclose()


async def test_without_the_rearranged_copy_four_bit_weights_say_the_same(worker: EngineWorker, tmp_path: Path) -> None:
    path = tmp_path / "four-bit.gguf"
    quantise(write_tiny_model(tmp_path / "full.gguf", quantised=False).path, path, "Q4_0", threads=1)
    found = []
    for repack in (True, False):
        backend = LlamaCppBackend(path, worker, n_threads=1, n_ctx=128, max_rows=2, repack=repack)
        group = await backend.sample_group([Message("user", "What is 12 + 7?")], Sampling(temperature=0.0, max_tokens=24), [1])
        await backend.aclose()
        found.append(group.responses[0])
    copied, plain = found
    assert copied.token_ids == plain.token_ids
    assert copied.logprobs == pytest.approx(plain.logprobs, abs=0.02)

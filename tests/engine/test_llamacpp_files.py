"""Unusable model files: one clear line, and no output of llama.cpp."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edge.core.errors import ContextOverflow, EdgeError, ModelFileError
from edge.core.types import Message, Sampling
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.catalogue import bundled_folder
from edge.models.quantise import quantise
from tests.worlds.tiny_gguf import CHAT_TEMPLATE, write_tiny_model

OpenLlama = Callable[..., LlamaCppBackend]
UNUSABLE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda whole: b"", "not a GGUF file"),
    "a zip file": (lambda whole: b"PK\x03\x04 a zip file", "not a GGUF file"),
    "an architecture that nobody knows": (lambda whole: whole.replace(b"qwen2", b"qvvn2"), "unknown model architecture"),
    **{f"cut at {end}": (lambda whole, end=end: whole[:end], "model.gguf") for end in (6, 40, 3000, 60_000, -200)},
}


@pytest.mark.parametrize("what", ["missing", "a folder", *UNUSABLE])
def test_an_unusable_file_is_one_line_and_llama_cpp_prints_nothing(
    llama: OpenLlama, tmp_path: Path, what: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path, (change, words) = tmp_path / "model.gguf", UNUSABLE.get(what, (None, "model.gguf"))
    if change is not None:
        path.write_bytes(change(write_tiny_model(tmp_path / "whole.gguf").path.read_bytes()))
    elif what == "a folder":
        path.mkdir()
    with pytest.raises(ModelFileError, match=words) as caught:
        llama(path)
    assert "\n" not in str(caught.value) and "gave no reason" not in str(caught.value)
    assert caught.value.hint
    assert capfd.readouterr().err == ""


def test_chatml_model_without_a_template_is_served(llama: OpenLlama, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "plain.gguf", chat_template=None, prompt_form=None)
    backend = llama(model.path)
    assert backend.model.prompt_form == "full"
    assert backend.prompt_ids([Message("user", "a")])[0] == model.vocab.index("<|im_start|>")


def test_a_broken_chat_template_is_named(llama: OpenLlama, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "broken.gguf", chat_template="{% for x in %}")
    with pytest.raises(ModelFileError, match="chat template"):
        llama(model.path)


def test_a_chat_template_that_refuses_everything_is_named_when_it_is_opened(llama: OpenLlama, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "strict.gguf", chat_template="{{ raise_exception('no\nturns') }}")
    with pytest.raises(ModelFileError, match=r"strict\.gguf: .*chat template .*no turns") as caught:
        llama(model.path)
    assert caught.value.hint


async def test_template_that_refuses_the_conversation_is_a_one_line_error(llama: OpenLlama, tmp_path: Path) -> None:
    user_first = "{% if messages[0].role == 'assistant' %}{{ raise_exception('users\nbegin') }}{% endif %}"
    backend = llama(write_tiny_model(tmp_path / "strict.gguf", chat_template=user_first + CHAT_TEMPLATE).path)
    with pytest.raises(EdgeError, match="users begin"):
        await backend.sample_group([Message("assistant", "a")], Sampling(), [1])


async def test_a_prompt_longer_than_the_context_is_refused(llama: OpenLlama, tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny.gguf")
    backend = llama(model.path, n_ctx=64)
    with pytest.raises(ContextOverflow, match="context 64"):
        await backend.sample_group([Message("user", "a b c d " * 40)], Sampling(), [1])
    response = (await backend.sample_group([Message("user", "a b")], Sampling(max_tokens=500), [1])).responses[0]
    assert len(response.token_ids) < 64


async def test_four_bit_weights_give_the_same_results_without_repacking(llama: OpenLlama, tmp_path: Path) -> None:
    path = tmp_path / "four-bit.gguf"
    quantise(write_tiny_model(tmp_path / "full.gguf", quantised=False).path, path, "Q4_0", threads=1)
    found = []
    for repack in (True, False):
        backend = llama(path, repack=repack)
        group = await backend.sample_group([Message("user", "What is 12 + 7?")], Sampling(temperature=0.0, max_tokens=24), [1])
        found.append(group.responses[0])
    copied, plain = found
    assert copied.token_ids == plain.token_ids
    assert copied.logprobs == pytest.approx(plain.logprobs, abs=0.02)


DECODES_AROUND_AN_UPDATE = """
import sys
import torch
from pathlib import Path
from edge.inference.gguf_model import GgufModel
from edge.inference.llama_engine import LlamaEngine
model = GgufModel(Path(sys.argv[1]))
engine = LlamaEngine(model, rows=2, n_ctx=64, n_threads=1)
before = engine.prefill(0, [7] * 40)
rounded = torch.ones(512, 512, dtype=torch.bfloat16)
rounded @ rounded
assert (engine.prefill(1, [7] * 40) == before).all()
"""


def test_a_product_of_torch_on_the_same_thread_does_not_disturb_llama_cpp() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DECODES_AROUND_AN_UPDATE, str(bundled_folder() / "nano-edge.gguf")], check=False
    )
    assert ended.returncode == 0

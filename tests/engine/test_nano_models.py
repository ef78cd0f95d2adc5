"""The bundled model files: llama.cpp and torch read the same tokens and the same weights from them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

from edge.core.errors import ModelFileError
from edge.core.types import Message, Sampling
from edge.dagrpo.format import check_format
from edge.dagrpo.prompts import prompt_messages
from edge.inference.llamacpp import LlamaCppBackend
from edge.models.decoder import load_decoder
from edge.models.gguf_reader import open_gguf
from edge.tasks.practice import FAMILIES
from tools.nano.data import prompt_text
from tools.nano.passes import is_right
from tools.nano.recipes import RECIPES
from tools.nano.tokenizer import tokenizer_from

MODELS = Path(str(resources.files("edge.models") / "files"))
SIZE_LIMITS = {"nano-edge": 4e6, "nano-edge-llama": 4e6, "nano-cloud": 10e6}
QUESTION = "Maya has 14 marbles. She's found 23 more!\n\nWhat is ((14 + 23) * 3) - 8?"
ANSWER = "<think>\nStep 1: 14 + 23 = 37\n</think>\n<answer>\\boxed{37}</answer>"
TEXTS = (QUESTION, ANSWER, "</think>\nI need external assistance.", "héllo wörld 日本語 🙂  a   b\r\n\tx 1234.5e-6")


@pytest.fixture(params=SIZE_LIMITS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def path(name: str) -> Path:
    return MODELS / f"{name}.gguf"


@pytest.fixture
def tokenizer(path: Path) -> Tokenizer:
    model = open_gguf(path)
    return tokenizer_from(model.metadata("tokenizer.ggml.tokens"), model.metadata("tokenizer.ggml.merges"))


@pytest.fixture
def engine(path: Path, llama: Callable[..., LlamaCppBackend]) -> LlamaCppBackend:
    return llama(path, n_ctx=512)


def test_nano_file_is_small_and_describes_itself(name: str, path: Path) -> None:
    model = open_gguf(path)
    assert path.stat().st_size <= SIZE_LIMITS[name]
    assert (model.metadata("general.name"), model.metadata("general.license")) == (name, "apache-2.0")
    architecture = model.metadata("general.architecture")
    assert architecture == RECIPES[name].architecture
    assert model.metadata(f"{architecture}.context_length") == 1024


def test_it_is_served_with_the_tokens_and_the_prompt_of_its_training(engine: LlamaCppBackend, tokenizer: Tokenizer) -> None:
    for text in TEXTS:
        assert list(engine.text_tokens(text)) == tokenizer.encode(text).ids
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        assert len(engine.text_tokens(tag)) == 1
    (end,) = tokenizer.encode("<|im_end|>").ids
    assert engine.response_tokens(ANSWER) == (*engine.text_tokens(ANSWER), end)
    asked = Message("user", QUESTION)
    for messages in ([asked], [Message("system", "Be brief."), asked]):  # other system texts are dropped
        assert list(engine.prompt_ids(messages)) == tokenizer.encode(prompt_text(QUESTION)).ids


async def test_torch_and_llama_cpp_give_the_same_log_probabilities(path: Path, engine: LlamaCppBackend) -> None:
    prompt, response = engine.prompt_ids([Message("user", QUESTION)]), engine.response_tokens(ANSWER)
    with torch.inference_mode():
        logits = load_decoder(path)(torch.tensor([[*prompt, *response]]))[0, len(prompt) - 1 : -1].double()
    ours = torch.log_softmax(logits, -1)[torch.arange(len(response)), torch.tensor(response)].numpy()
    theirs = np.array(await engine.score(prompt, response))
    assert np.abs(np.exp(ours) - np.exp(theirs)).max() < 0.05
    assert np.median(np.abs(ours - theirs)) < 0.02


async def test_responses_keep_the_format_and_cloud_answers_are_right(name: str, engine: LlamaCppBackend) -> None:
    for family in FAMILIES.values():
        items = [family.generate(seed, "test", level) for level in family.levels for seed in range(4)]
        sampling = Sampling(temperature=0.0, max_tokens=320)
        groups = [engine.sample_group(prompt_messages(item, "compact"), sampling, [0]) for item in items]
        texts = [group.responses[0].text for group in await asyncio.gather(*groups)]
        limit = max(max(each.levels) for each in FAMILIES.values()) if name == "nano-cloud" else family.max_steps
        assert sum(check_format(text, limit).ok for text in texts) >= 0.9 * len(texts), family.name
        if name == "nano-cloud":
            right = sum(is_right(item, text) for text, item in zip(texts, items, strict=True))
            assert right >= 0.85 * len(items), family.name


WHOLE = (MODELS / "nano-edge.gguf").read_bytes()


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "no such model file"),
        (b"not a model", "not a GGUF file"),
        (WHOLE.replace(b"qwen2", b"whale", 1), "architecture 'whale' is not computed"),
        *((WHOLE[: int(len(WHOLE) * share)], "damaged or truncated") for share in (0.0005, 0.005, 0.05, 0.5, 0.999)),
    ],
    ids=["missing", "foreign", "architecture", *(f"cut at {share}" for share in (0.0005, 0.005, 0.05, 0.5, 0.999))],
)
def test_untrainable_file_is_a_model_file_error(tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelFileError, match=complaint):
        load_decoder(path)

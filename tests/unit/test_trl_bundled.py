"""A bundled model as a Hugging Face folder: the same logits as the project's own decoder, the same tokens as llama.cpp."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("transformers", reason="transformers is not installed: pip install -c constraints.txt -e '.[trl]'")

from transformers import AutoModelForCausalLM, AutoTokenizer

from edge.app.settings import model_file
from edge.core.errors import UsageError
from edge.core.types import FinishReason, LocalResponse, TaskItem
from edge.dagrpo.prompts import prompt_messages
from edge.inference.gguf_model import GgufModel
from edge.inference.model_tokenizer import gguf_tokenizer
from edge.models.decoder import load_decoder
from edge.tasks.practice import FAMILIES
from tools.integrations.trl.bundled import folder_name, write_hf_folder
from tools.integrations.trl.plans import messages
from tools.integrations.trl.steps import reader_of

MODELS = ("nano-edge", "nano-edge-llama")


@pytest.fixture(scope="module", params=MODELS)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    gguf = model_file(request.param)
    return gguf, write_hf_folder(gguf, tmp_path_factory.mktemp("hf") / request.param)


def practice_items(each: int) -> list[TaskItem]:
    return [item for family in FAMILIES.values() for item in islice(family.stream(3, "train"), each)]


def prompt_ids(tokenizer: Any, item: TaskItem) -> list[int]:
    rendered = tokenizer.apply_chat_template(
        messages(item, "compact"), add_generation_prompt=True, tokenize=True, return_dict=True
    )
    return list(rendered["input_ids"])


def test_transformers_computes_the_decoders_logits_on_real_prompts(written):
    gguf, folder = written
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer, decoder = AutoTokenizer.from_pretrained(folder), load_decoder(gguf).eval()
    for item in practice_items(2):
        ids = torch.tensor([prompt_ids(tokenizer, item) + tokenizer(item.solution)["input_ids"]])
        with torch.no_grad():
            assert torch.allclose(model(ids).logits, decoder(ids), atol=2e-4)


def test_prompts_are_the_ids_that_llama_cpp_reads(written):
    gguf, folder = written
    tokenizer, model = AutoTokenizer.from_pretrained(folder), GgufModel(gguf, vocab_only=True)
    template = gguf_tokenizer(model).template
    for item in practice_items(25):
        assert prompt_ids(tokenizer, item) == template.prompt_ids(prompt_messages(item, "compact"))
        assert tokenizer(item.solution)["input_ids"] == model.vocabulary.tokenise(item.solution)
    model.close()


def test_response_is_decoded_as_by_the_engine_with_tags_and_without_control_tokens(written):
    _, folder = written
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "<think>\nStep 1: 2 + 3 = 5\n</think>\n<answer>\\boxed{5}</answer>"
    ended = [*tokenizer(text)["input_ids"], tokenizer.eos_token_id]
    reader = reader_of(tokenizer, [tokenizer.eos_token_id])
    assert reader.read(ended) == LocalResponse(text, tuple(ended), (0.0,) * len(ended), FinishReason.EOS)
    assert reader.read(ended[:-1]).finish is FinishReason.LENGTH


def test_existing_folder_is_kept_with_everything_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (tmp_path / "model.partial").mkdir()
    (tmp_path / "model.partial" / "letter").write_text("Dear")
    write_hf_folder(model_file("nano-edge"), folder)
    (folder / "note").touch()
    write_hf_folder(model_file("nano-edge"), folder)
    assert (folder / "note").exists()
    assert (tmp_path / "model.partial" / "letter").read_text() == "Dear"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model", "model.partial"]


def other_weights(folder: Path) -> Path:
    """nano-edge's shape with one weight changed."""
    content = bytearray(model_file("nano-edge").read_bytes())
    content[-1] ^= 1
    path = folder / "mine.gguf"
    path.write_bytes(content)
    return path


def test_a_model_of_the_same_shape_with_other_weights_is_another_model(tmp_path: Path) -> None:
    mine = other_weights(tmp_path)
    write_hf_folder(model_file("nano-edge"), tmp_path / "model")
    with pytest.raises(UsageError, match="holds another model"):
        write_hf_folder(mine, tmp_path / "model")
    assert folder_name(mine) != folder_name(model_file("nano-edge"))


def test_folder_with_foreign_files_is_refused_and_left_unchanged(tmp_path: Path) -> None:
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "letter").write_text("Dear")
    with pytest.raises(UsageError, match="holds other files"):
        write_hf_folder(model_file("nano-edge"), folder)
    assert (folder / "letter").read_text() == "Dear"

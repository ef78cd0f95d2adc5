"""The words of a model that an engine other than llama.cpp computes. Knows GGUF vocabularies and tokenizer folders; knows no weights.

Words come from where the weights came from: a GGUF file's vocabulary and template are read by llama.cpp without its weights, a
folder's from tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edge.inference.batcher import TokenTable
from edge.inference.chat_template import ChatTemplate
from edge.inference.gguf_model import GgufModel
from edge.inference.llamacpp import template_of


@dataclass(frozen=True, slots=True)
class Words:
    """What turns messages into ids and ids into text, with the model's name and prompt form as its files tell them."""

    tokens: TokenTable
    template: ChatTemplate
    name: str
    prompt_form: str
    close: Callable[[], None]


def words_of(path: Path, vocab_size: int) -> Words:
    """The words of a model file or folder. Raises ModelFileError."""
    return _of_folder(path, vocab_size) if path.is_dir() else _of_gguf(path)


def _of_folder(path: Path, vocab_size: int) -> Words:
    from edge.inference.folder_words import FolderVocabulary

    vocabulary = FolderVocabulary(path, vocab_size)
    specials = {"bos_token": vocabulary.text_of(vocabulary.bos), "eos_token": vocabulary.text_of(vocabulary.eos)}
    template = ChatTemplate(vocabulary.chat_template, vocabulary, specials)
    return Words(vocabulary, template, path.resolve().name, vocabulary.prompt_form, lambda: None)


def _of_gguf(path: Path) -> Words:
    model = GgufModel(path, vocab_only=True)
    try:
        template = template_of(model)
    except BaseException:
        model.close()
        raise
    name, form = model.metadata("general.name") or path.stem, model.metadata("edge_agent.prompt_form") or "full"
    return Words(model.vocabulary, template, name, form, model.close)

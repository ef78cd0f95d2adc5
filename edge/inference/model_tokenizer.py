"""Chat template, tokens, name and description of a model, whichever engine computes it.

They come from where the weights came from: a GGUF file's vocabulary and template are read by llama.cpp without its weights, a folder's
from tokenizer.json (byte-level BPE, as Qwen2, Qwen3 and Llama 3 have it). Errors: ModelFileError with one line that names the folder.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edge.core.errors import ModelFileError
from edge.inference.backend import ModelInfo
from edge.inference.batcher import TokenTable
from edge.inference.chat_template import ChatTemplate
from edge.inference.gguf_model import RENDERED_CONTROL, GgufModel, Vocabulary, sha256_of

_ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>")


class FolderVocabulary:
    """What gguf_model.Vocabulary is of a GGUF file, for `vocab_size` ids of which the last ones may be unused."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        from tokenizers import Tokenizer

        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelFileError(f"{folder}: no tokenizer.json in it", hint="copy the tokenizer's files into the folder")
        if "ByteLevel" not in json.dumps(_json(file).get("decoder") or {}):
            raise ModelFileError(f"{folder}: the tokenizer is not byte-level BPE", hint="use a GGUF file of this model")
        try:
            self._tokenizer = Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises plain Exception
            raise ModelFileError(f"{file}: cannot be read ({' '.join(str(error).split())})") from error
        self._config = _json(folder / "tokenizer_config.json")
        self.size = vocab_size
        added = self._tokenizer.get_added_tokens_decoder()
        self.control_ids = {token.content: number for number, token in added.items() if token.special}
        self._texts_of_added = {number: token.content for number, token in added.items()}
        self.bos, self.eos = self._id_of("bos_token"), self._id_of("eos_token")
        self.adds_bos = self.bos >= 0 and self._tokenizer.encode("", add_special_tokens=True).ids[:1] == [self.bos]
        self._tokenizer.encode_special_tokens = True
        named = _json(folder / "generation_config.json").get("eos_token_id", _json(folder / "config.json").get("eos_token_id"))
        ends = {self.control_ids[text] for text in _ENDS if text in self.control_ids} | {self.eos}
        ends = (ends | set(named if isinstance(named, list) else [named])) - {None, -1}
        self.ends = [token in ends for token in range(vocab_size)]
        silent = {*self.control_ids.values(), *ends} - {self.control_ids.get(text) for text in RENDERED_CONTROL}
        self.pieces = [b"" if token in silent else self._piece(token) for token in range(vocab_size)]
        self.texts = [piece.decode("utf-8", "replace") for piece in self.pieces]
        template = folder / "chat_template.jinja"
        stated = self._config.get("chat_template") or ""
        if isinstance(stated, list):  # several by name
            stated = next((each["template"] for each in stated if each["name"] == "default"), "")
        self.chat_template = template.read_text(encoding="utf-8") if template.is_file() else str(stated)
        self.prompt_form = str(self._config.get("edge_agent_prompt_form") or "full")

    def text_of(self, token: int) -> str:
        """How a token is written in templates; "" for -1."""
        return self._texts_of_added.get(token, "") if token >= 0 else ""

    def tokenise(self, text: str) -> list[int]:
        """Ids of plain text: nothing in it becomes a control token, and no token is added at the start or end."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def _piece(self, token: int) -> bytes:
        if token in self._texts_of_added:
            return str(self._texts_of_added[token]).encode()
        letters = self._tokenizer.id_to_token(token)
        return b"" if letters is None else bytes(_BYTES[letter] for letter in letters)

    def _id_of(self, key: str) -> int:
        named = self._config.get(key)
        text = named.get("content") if isinstance(named, dict) else named
        found = self._tokenizer.token_to_id(text) if text else None
        return -1 if found is None else int(found)


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ModelFileError(f"{path}: not readable JSON ({error})") from error
    return content if isinstance(content, dict) else {}


def _byte_letters() -> dict[str, int]:
    """Byte-level BPE's printable character for each byte: visible Latin-1 characters for themselves, the rest from U+0100 on."""
    visible = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + index): byte for index, byte in enumerate(hidden)}


_BYTES = _byte_letters()


@dataclass(frozen=True, slots=True)
class ModelTokenizer:
    """What turns messages into ids and ids into text, with the model's name and prompt form from its files."""

    tokens: TokenTable
    template: ChatTemplate
    name: str
    prompt_form: str
    close: Callable[[], None] | None = None

    def describe(self, path: Path, architecture: str, parameters: int, context_tokens: int) -> ModelInfo:
        """What is loaded, of a GGUF file or a folder."""
        files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
        file_bytes = sum(file.stat().st_size for file in files)
        about = architecture, parameters, context_tokens, file_bytes
        return ModelInfo(self.name, *about, sha256_of(files[0]), self.prompt_form)


def tokenizer_of(path: Path, vocab_size: int) -> ModelTokenizer:
    """The tokenizer of a model file or folder. Raises ModelFileError."""
    if path.is_dir():
        vocabulary = FolderVocabulary(path, vocab_size)
        template = _template(path, vocabulary.chat_template, vocabulary, vocabulary.prompt_form)
        return ModelTokenizer(vocabulary, template, path.resolve().name, vocabulary.prompt_form)
    model = GgufModel(path, vocab_only=True)
    try:
        return gguf_tokenizer(model)
    except BaseException:
        model.close()
        raise


def gguf_tokenizer(model: GgufModel) -> ModelTokenizer:
    """The tokenizer of a model that llama.cpp has loaded. Raises ModelFileError."""
    form = model.metadata("edge_agent.prompt_form") or "full"
    template = _template(model.path, model.metadata("tokenizer.chat_template"), model.vocabulary, form)
    return ModelTokenizer(model.vocabulary, template, model.path.stem, form, model.close)


def _template(path: Path, source: str, vocabulary: FolderVocabulary | Vocabulary, prompt_form: str) -> ChatTemplate:
    """The template of a model; one of the compact form writes a system text of its own."""
    specials = {"bos_token": vocabulary.text_of(vocabulary.bos), "eos_token": vocabulary.text_of(vocabulary.eos)}
    try:
        return ChatTemplate(source, vocabulary, specials, own_system=prompt_form == "compact")
    except ModelFileError as error:
        raise ModelFileError(f"{path}: {error}", hint=error.hint) from error

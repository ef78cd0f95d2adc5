"""A chat model in a GGUF file: weights, vocabulary and chat template.

Only the template may write control tokens: messages stand in the rendered text as placeholders, so that whatever a message contains is
tokenised as plain text.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import llama_cpp
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edge.core.errors import InvalidRequest, ModelFileError
from edge.core.types import Message

_PLACEHOLDER = "\ue000{}\ue001"
_PLACEHOLDERS = re.compile("\ue000(\\d+)\ue001")
_ERROR_LEVEL = 3
_complaints: list[str] = []


def _take_log(level: int, text: bytes, _data: Any) -> None:
    """llama.cpp has one log per process: errors are kept for our messages, the rest is dropped."""
    if level == _ERROR_LEVEL and text.strip():
        _complaints[:] = [*_complaints[-7:], " ".join(text.decode("utf-8", "replace").split())]


_log_callback = llama_cpp.llama_log_callback(_take_log)


class ChatModel:
    """Weights mapped into memory, with what is needed to get from messages to token ids and back."""

    def __init__(self, path: Path) -> None:
        _check_file(path)
        llama_cpp.llama_log_set(_log_callback, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        _complaints.clear()
        parameters = llama_cpp.llama_model_default_params()
        parameters.n_gpu_layers = 0
        self.path = path
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.handle:
            raise ModelFileError(
                f"{path}: {engine_complaint('cannot be loaded')}", hint="get the file again, or choose another model"
            )
        self._vocabulary = llama_cpp.llama_model_get_vocab(self.handle)
        self.vocabulary_size = int(llama_cpp.llama_vocab_n_tokens(self._vocabulary))
        self.trained_context = int(llama_cpp.llama_model_n_ctx_train(self.handle))
        self._template = self._compile_template()
        self._pieces: dict[int, bytes] = {}
        self.longest_piece = max(len(self._piece(token, special=True)) for token in range(self.vocabulary_size))
        """Bytes that one token stands for at most."""

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation up to the start of the assistant's turn. Raises InvalidRequest when the template refuses it."""
        turns = [{"role": turn.role, "content": _PLACEHOLDER.format(index)} for index, turn in enumerate(messages)]
        try:
            rendered = self._template.render(messages=turns, add_generation_prompt=True, **self._special_texts())
        except TemplateError as error:
            raise InvalidRequest(f"the model's chat template refused the conversation: {' '.join(str(error).split())}") from error
        parts = _PLACEHOLDERS.split(rendered)
        ids = self._tokens(parts[0], parse_special=True)
        for index, following in zip(parts[1::2], parts[2::2], strict=True):
            ids += self._tokens(messages[int(index)].content, parse_special=False)
            ids += self._tokens(following, parse_special=True)
        bos = llama_cpp.llama_vocab_bos(self._vocabulary)
        if llama_cpp.llama_vocab_get_add_bos(self._vocabulary) and ids[:1] != [bos]:
            ids.insert(0, bos)
        return ids

    def is_end(self, token: int) -> bool:
        """Whether this token ends a generation."""
        return bool(llama_cpp.llama_vocab_is_eog(self._vocabulary, token))

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the text; none for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            known = self._pieces[token] = self._piece(token, special=False)
        return known

    def close(self) -> None:
        """Free the weights. Safe to call twice."""
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None

    def _compile_template(self) -> Any:
        source = llama_cpp.llama_model_chat_template(self.handle, None)
        if not source:
            raise ModelFileError(f"{self.path}: holds no chat template", hint="use an instruct model whose GGUF carries one")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals["raise_exception"] = _refuse
        try:
            return environment.from_string(source.decode("utf-8"))
        except (TemplateError, UnicodeDecodeError) as error:
            raise ModelFileError(f"{self.path}: its chat template cannot be read ({' '.join(str(error).split())})") from error

    def _special_texts(self) -> dict[str, str]:
        ids = {
            "bos_token": llama_cpp.llama_vocab_bos(self._vocabulary),
            "eos_token": llama_cpp.llama_vocab_eos(self._vocabulary),
        }
        return {
            name: self._piece(token, special=True).decode("utf-8", "replace") if token >= 0 else "" for name, token in ids.items()
        }

    def _tokens(self, text: str, *, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        if not data:
            return []
        room = len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self._vocabulary, data, len(data), ids, room, False, parse_special)
        if count < 0:
            raise InvalidRequest(f"the model's tokenizer failed on {len(data)} bytes of text")
        return list(ids[:count])

    def _piece(self, token: int, *, special: bool) -> bytes:
        size = 32
        while True:
            buffer = ctypes.create_string_buffer(size)
            written = int(llama_cpp.llama_token_to_piece(self._vocabulary, token, buffer, size, 0, special))
            if written >= 0:
                return buffer.raw[:written]
            size = -written


def engine_complaint(otherwise: str) -> str:
    """llama.cpp's first error line since the last operation, or `otherwise`."""
    return _complaints[0] if _complaints else otherwise


def forget_complaints() -> None:
    """Start collecting anew, before an operation whose errors matter."""
    _complaints.clear()


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ModelFileError(f"{path}: no such model file", hint="give the path of a .gguf file, or none for the bundled model")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelFileError(f"{path}: not a GGUF file", hint="download a GGUF version of the model")


def _refuse(message: Any = "") -> NoReturn:
    raise TemplateError(str(message))

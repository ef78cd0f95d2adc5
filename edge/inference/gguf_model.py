"""A loaded GGUF model and its vocabulary.

Errors: ModelFileError with one line for a file that is missing, not a GGUF, cut short, or of an architecture llama.cpp lacks.
llama.cpp's own messages are collected (the first error goes into ours) instead of being printed.
"""

from __future__ import annotations

import ctypes
import hashlib
import re
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp

from edge.core.errors import ModelFileError
from edge.core.gguf_header import GgufHeader, check_shape, read_header

_ALL_LAYERS = -1
_ERROR_LEVEL = 4
_CONTINUED_LEVEL = 5
_WHOLE_AT_ONCE = 256
"""Tokens that the vocabulary takes whole, in the longest part of a text that llama.cpp is given."""
RENDERED_CONTROL = ("<think>", "</think>", "<answer>", "</answer>", "<tool_call>", "</tool_call>")


class EngineLog:
    """Collects what llama.cpp would print to stderr; the library has one log per process, so there is one of these."""

    def __init__(self) -> None:
        self._errors: deque[str] = deque(maxlen=8)
        self._level = 0
        self._callback = llama_cpp.llama_log_callback(self._take)

    def install(self) -> None:
        """Route llama.cpp's messages here from now on."""
        llama_cpp.llama_log_set(self._callback, ctypes.c_void_p(0))

    def forget(self) -> None:
        """Drop what was collected, before an operation whose errors matter."""
        self._errors.clear()

    def last_error(self) -> str:
        """The most specific error line since `forget`: the first one, without llama.cpp's function names; "" when there is none."""
        if not self._errors:
            return ""
        return self._errors[0].strip().partition(": ")[2] or self._errors[0].strip()

    def _take(self, level: int, text: bytes, _data: Any) -> None:
        self._level = self._level if level == _CONTINUED_LEVEL else level
        if self._level == _ERROR_LEVEL and text.strip():
            self._errors.append(text.decode("utf-8", "replace").strip())


ENGINE_LOG = EngineLog()


GGML_BF16 = 30
PLAIN_FLOATS = (0, 1, GGML_BF16)
"""Type numbers of ggml that are plain floats."""


def has_tiles() -> bool:
    """Whether this build of llama.cpp multiplies repacked matrices with AMX's tiles.

    It shapes the tiles once a thread, and torch's products shape them again: the next decode on that thread would end the process.
    """
    return b"AMX_INT8 = 1" in llama_cpp.llama_print_system_info()


class GgufModel:
    """The weights of one GGUF file, mapped into memory by llama.cpp, with its metadata and vocabulary.

    With `vocab_only` there are no weights and no shape, for an engine that reads these by itself. `repack`: llama.cpp keeps a second copy
    of 4-bit matrices, rearranged for its faster products. `gpu_layers` go to the graphics processor where llama.cpp was built for one
    (None: all of them); a build for the processor alone takes no notice.
    """

    def __init__(self, path: Path, *, gpu_layers: int | None = None, vocab_only: bool = False, repack: bool = True) -> None:
        self.header = check_gguf_file(path)
        self.parameters = self.header.parameters
        ENGINE_LOG.install()
        ENGINE_LOG.forget()
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = _ALL_LAYERS if gpu_layers is None else gpu_layers
        params.vocab_only = vocab_only
        params.use_extra_bufts = repack and not has_tiles()
        self.path, self.on_graphics = path, on_graphics(gpu_layers)
        self.handle = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        if not self.handle:
            raise _load_failure(path)
        if not llama_cpp.llama_model_has_decoder(self.handle) or llama_cpp.llama_model_is_recurrent(self.handle):
            self.close()
            raise ModelFileError(
                f"{path}: not a decoder-only transformer", hint="use a Qwen2-, Qwen3- or Llama-architecture GGUF"
            )
        self.vocabulary = Vocabulary(self.handle)

    def metadata(self, key: str) -> str:
        """A metadata value as text, "" when absent."""
        return str(self.header.metadata.get(key, ""))

    @property
    def rounds_activations(self) -> bool:
        """Whether products are made with activations rounded to 8 bits, as llama.cpp does for quantised matrices on the processor."""
        return not self.on_graphics and any(tensor.type_id not in PLAIN_FLOATS for tensor in self.header.tensors)

    @property
    def trained_context_tokens(self) -> int:
        """Context length the model was trained for."""
        return int(llama_cpp.llama_model_n_ctx_train(self.handle))

    @property
    def kv_bytes_per_token(self) -> int:
        """Key/value memory of one token over all layers, in half precision."""
        heads, kv_heads = (int(count(self.handle)) for count in (llama_cpp.llama_model_n_head, llama_cpp.llama_model_n_head_kv))
        stated = self.header.of_architecture("attention.key_length")
        head_width = int(stated or int(llama_cpp.llama_model_n_embd(self.handle)) // max(1, heads))
        return 2 * 2 * int(llama_cpp.llama_model_n_layer(self.handle)) * kv_heads * head_width

    def close(self) -> None:
        """Free the weights. Safe to call twice."""
        if self.handle:
            llama_cpp.llama_model_free(self.handle)
            self.handle = None


class Vocabulary:
    """Token ids, their bytes, and the tokenizer. Tables are built once, so that a piece costs one list look-up.

    `bos` and `eos` are the tokens that begin and end a text, -1 where there is none; `adds_bos`: every prompt starts with `bos`.
    """

    def __init__(self, model_handle: Any) -> None:
        self.handle = llama_cpp.llama_model_get_vocab(model_handle)
        if llama_cpp.llama_vocab_type(self.handle) == llama_cpp.LLAMA_VOCAB_TYPE_NONE:
            raise ModelFileError("the model file holds no tokenizer", hint="use a GGUF that was converted with its tokenizer")
        self.size = int(llama_cpp.llama_vocab_n_tokens(self.handle))
        self.bos, self.eos = int(llama_cpp.llama_vocab_bos(self.handle)), int(llama_cpp.llama_vocab_eos(self.handle))
        self.adds_bos = self.bos >= 0 and bool(llama_cpp.llama_vocab_get_add_bos(self.handle))
        control = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN
        controls = [token for token in range(self.size) if self._has(token, control)]
        self.control_ids = {self._raw_piece(token, special=True).decode("utf-8", "replace"): token for token in controls}
        self.control_ids.pop("", None)
        self.ends = [bool(llama_cpp.llama_vocab_is_eog(self.handle, token)) for token in range(self.size)]
        # Control tokens and those that end a text have no bytes in a response, but for the tags of the response format.
        rendered = {self.control_ids[text] for text in RENDERED_CONTROL if text in self.control_ids}
        silent = {*controls, *(token for token in range(self.size) if self.ends[token])} - rendered
        self.pieces = [
            b"" if token in silent else self._raw_piece(token, special=token in rendered) for token in range(self.size)
        ]
        self.texts = [piece.decode("utf-8", "replace") for piece in self.pieces]
        whole = {
            self.text_of(token): token for token in range(self.size) if self._has(token, llama_cpp.LLAMA_TOKEN_ATTR_USER_DEFINED)
        }
        patterns = [  # with the white space that a token swallows
            re.escape(text) + (r"[ \t-\r]*" if self._has(whole[text], llama_cpp.LLAMA_TOKEN_ATTR_RSTRIP) else "")
            for text in sorted(whole, key=len, reverse=True)
            if text
        ]
        self._whole = re.compile("|".join(patterns)) if patterns else None

    def text_of(self, token: int) -> str:
        """How a token is written in templates, special tokens included; "" for -1."""
        return self._raw_piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    def tokenise(self, text: str) -> list[int]:
        """Ids of plain text: nothing in it becomes a control token, and no token is added at the start or end.

        llama.cpp cuts a text at the tokens that its vocabulary takes whole in a time that grows with the square of their number, so
        that a text with very many of them is given to it in parts. A part ends after such a token, where llama.cpp begins again.
        """
        ids: list[int] = []
        for part in self._parts(text):
            data = part.encode("utf-8")
            room = len(data) + 16
            found = (llama_cpp.llama_token * room)()
            count = llama_cpp.llama_tokenize(self.handle, data, len(data), found, room, False, False)
            if count < 0:
                raise ModelFileError(f"the model's tokenizer failed on {len(data)} bytes of text")
            ids += found[:count]
        return ids

    def _parts(self, text: str) -> Iterator[str]:
        start = 0
        for number, found in enumerate(self._whole.finditer(text) if self._whole else (), 1):
            if number % _WHOLE_AT_ONCE == 0:
                yield text[start : found.end()]
                start = found.end()
        if start < len(text) or not text:
            yield text[start:]

    def _has(self, token: int, attribute: int) -> bool:
        return bool(llama_cpp.llama_vocab_get_attr(self.handle, token) & attribute)

    def _raw_piece(self, token: int, *, special: bool) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = llama_cpp.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        if size < 0:
            buffer = ctypes.create_string_buffer(-size)
            size = llama_cpp.llama_token_to_piece(self.handle, token, buffer, len(buffer), 0, special)
        return buffer.raw[: max(size, 0)]


def llama_offloads() -> bool:
    """Whether llama.cpp was built for a graphics processor (CUDA, Metal, Vulkan ...), and sees one."""
    ENGINE_LOG.install()  # else it prints what it finds
    return bool(llama_cpp.llama_supports_gpu_offload())


def on_graphics(gpu_layers: int | None) -> bool:
    """Whether a model opened with this setting computes on a graphics processor."""
    return gpu_layers != 0 and llama_offloads()


def check_gguf_file(path: Path) -> GgufHeader:
    """The header of a model file, without numbers on which llama.cpp would end the process. Raises ModelFileError for any other file."""
    if not path.exists():
        raise ModelFileError(
            f"{path}: no such model file", hint="check the path, or leave the model unset to use the bundled one"
        )
    header = read_header(path)
    check_shape(header)
    return header


def sha256_of(path: Path) -> str:
    """Hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _load_failure(path: Path) -> ModelFileError:
    """llama.cpp's complaint in one line, with what to do about it."""
    reason = ENGINE_LOG.last_error()
    reason = reason.removeprefix("error loading model: ").removeprefix("error loading model architecture: ")
    if "unknown model architecture" in reason:
        return ModelFileError(f"{path}: {reason}", hint="use a Qwen2-, Qwen3- or Llama-architecture GGUF")
    if "not within the file bounds" in reason or "failed to read" in reason:
        return ModelFileError(f"{path}: cut short or corrupt ({reason})", hint="download or copy the file again")
    hint = "download or copy the file again"
    if "alloc" in reason and "buffer" in reason:
        hint = (
            "it does not fit: set engine.gpu_layers lower (0 keeps it off the graphics processor), or take a smaller quantisation"
        )
    return ModelFileError(f"{path}: cannot be loaded ({reason or 'llama.cpp gave no reason'})", hint=hint)

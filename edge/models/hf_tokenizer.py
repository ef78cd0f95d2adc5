"""From a Hugging Face `tokenizer.json` to the tokenizer keys of a GGUF file.

llama.cpp splits text before merging by rules that a GGUF file can only name (`tokenizer.ggml.pre`). The name is found by the very pattern
in `tokenizer.json`; an unknown pattern is refused, because a wrong name gives wrong tokens without a word. Unicode normalisation
(Qwen composes accents, NFC) is not in a GGUF file: text that is not composed tokenises otherwise, as in every GGUF.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf

from edge.core.errors import ModelFileError
from edge.models.hf_config import read_json

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS: Mapping[str, str] = {
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST: "qwen2",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST: "llama-bpe",
}
"""llama.cpp's name for each pattern by which text is split before merging."""
GPT2 = "gpt-2"


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """What a GGUF file holds of a tokenizer. `tokens` by id; ids None where the model names no such token."""

    pre: str
    tokens: tuple[str, ...]
    types: tuple[gguf.TokenType, ...]
    merges: tuple[str, ...]
    bos: int | None
    eos: int | None
    pad: int | None
    adds_bos: bool
    chat_template: str | None


def read_tokenizer(folder: Path, config: Mapping[str, Any], rows: int) -> GgufTokenizer:
    """The tokenizer of a model folder, padded to the embedding's `rows`. Raises ModelFileError when it is none that can be stored."""
    path = folder / "tokenizer.json"
    raw = read_json(path)
    settings = read_json(folder / "tokenizer_config.json") if (folder / "tokenizer_config.json").is_file() else {}
    try:
        return _tokenizer(path, raw, settings, config, rows)
    except (OSError, KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise ModelFileError(f"{path}: incomplete ({error})", hint="download the folder again") from error


def _tokenizer(
    path: Path, raw: Mapping[str, Any], settings: Mapping[str, Any], config: Mapping[str, Any], rows: int
) -> GgufTokenizer:
    model = raw["model"]
    if model.get("type", "BPE") != "BPE" or model.get("byte_fallback"):
        raise ModelFileError(
            f"{path}: not a byte-level BPE tokenizer ({model.get('type')})",
            hint="supported: the tokenizers of Qwen2, Qwen3 and Llama 3",
        )
    tokens, types = _token_list(path, model["vocab"], raw.get("added_tokens") or [], rows)
    ids = {token: index for index, token in enumerate(tokens)}
    bos = _token_id("bos", settings, config, ids)
    return GgufTokenizer(
        pre=pre_tokenizer_name(path, raw.get("pre_tokenizer")),
        tokens=tokens,
        types=types,
        merges=tuple(pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]),
        bos=bos,
        eos=_token_id("eos", settings, config, ids),
        pad=_token_id("pad", settings, config, ids),
        adds_bos=bos is not None and _adds(tokens[bos], raw, settings),
        chat_template=_chat_template(path.parent, settings),
    )


def pre_tokenizer_name(path: Path, pre_tokenizer: Any) -> str:
    """llama.cpp's name for how a tokenizer splits text before merging. Raises ModelFileError when there is none."""
    parts = _parts(pre_tokenizer)
    splits = [part["pattern"].get("Regex") or part["pattern"].get("String") for part in parts if part["type"] == "Split"]
    byte_level = [part for part in parts if part["type"] == "ByteLevel"]
    known = {"Split", "ByteLevel"}.issuperset(part["type"] for part in parts)
    if known and not splits and len(byte_level) == 1 and byte_level[0].get("use_regex", True):
        return GPT2
    if known and len(splits) == 1 and splits[0] in PATTERNS and len(byte_level) == 1 and not byte_level[0].get("use_regex", True):
        return PATTERNS[splits[0]]
    raise ModelFileError(
        f"{path}: an unknown way to split text before merging ({splits or [part['type'] for part in parts]})",
        hint="supported: the tokenizers of Qwen2, Qwen3, Llama 3 and GPT-2",
    )


def _parts(pre_tokenizer: Any) -> Sequence[Mapping[str, Any]]:
    if not pre_tokenizer:
        return ()
    return tuple(pre_tokenizer["pretokenizers"]) if pre_tokenizer["type"] == "Sequence" else (pre_tokenizer,)


def _token_list(
    path: Path, vocab: Mapping[str, int], added: Sequence[Mapping[str, Any]], rows: int
) -> tuple[tuple[str, ...], tuple[gguf.TokenType, ...]]:
    """Tokens and their types by id; ids that nobody uses are filled up, as many as the embedding has rows."""
    tokens = [f"[PAD{index}]" for index in range(rows)]
    types = [gguf.TokenType.UNUSED] * rows
    kinds = {False: gguf.TokenType.USER_DEFINED, True: gguf.TokenType.CONTROL}
    entries = [(token, index, gguf.TokenType.NORMAL) for token, index in vocab.items()]
    entries += [(entry["content"], entry["id"], kinds[bool(entry.get("special"))]) for entry in added]
    for token, index, kind in entries:
        if not 0 <= index < rows:
            raise ModelFileError(
                f"{path}: token {index} ({token!r}) lies beyond the model's {rows} embeddings",
                hint="is it this model's tokenizer?",
            )
        tokens[index], types[index] = token, kind
    return tuple(tokens), tuple(types)


def _token_id(role: str, settings: Mapping[str, Any], config: Mapping[str, Any], ids: Mapping[str, int]) -> int | None:
    """The id of the beginning, end or padding token: the tokenizer's own word first, then the model's."""
    named = settings.get(f"{role}_token")
    text = named.get("content") if isinstance(named, Mapping) else named
    if isinstance(text, str) and text in ids:
        return ids[text]
    listed = config.get(f"{role}_token_id")
    first = listed[0] if isinstance(listed, list) and listed else listed
    return first if isinstance(first, int) and 0 <= first < len(ids) else None


def _adds(bos: str, raw: Mapping[str, Any], settings: Mapping[str, Any]) -> bool:
    """Whether prompts begin with the beginning token: said outright, or by the post-processor's template."""
    if isinstance(settings.get("add_bos_token"), bool):
        return bool(settings["add_bos_token"])
    processor = raw.get("post_processor") or {}
    processors = processor.get("processors", [processor])
    templates = [part.get("single") or [] for part in processors if part.get("type") == "TemplateProcessing"]
    return any(template and template[0].get("SpecialToken", {}).get("id") == bos for template in templates)


def _chat_template(folder: Path, settings: Mapping[str, Any]) -> str | None:
    """`chat_template.jinja` first, then the tokenizer's settings, where it is a text or a list of named ones."""
    if (folder / "chat_template.jinja").is_file():
        return (folder / "chat_template.jinja").read_text(encoding="utf-8")
    template = settings.get("chat_template")
    if isinstance(template, list):
        named = {entry["name"]: entry["template"] for entry in template}
        return named.get("default")
    return template if isinstance(template, str) else None

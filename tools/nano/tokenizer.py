"""The tokenizer of the bundled models: byte-level BPE of 1,536 tokens, digits one by one.

It was trained once, on questions and solutions of the practice world's first edition, and is kept in the models' files. The splitting
pattern is the one GGUF calls `qwen2`, so that llama.cpp and the `tokenizers` library give the same ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from edge.models.catalogue import bundled_folder
from edge.models.gguf_reader import open_gguf

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""Never part of a response's text."""
TAG_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
"""One token each, and rendered as text."""
QWEN2_PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def bundled_tokenizer() -> Tokenizer:
    """The tokenizer of the bundled models, read from nano-cloud's file."""
    source = open_gguf(bundled_folder() / "nano-cloud.gguf")
    return tokenizer_from(source.metadata("tokenizer.ggml.tokens"), source.metadata("tokenizer.ggml.merges"))


def tokenizer_from(tokens: Sequence[str], merges: Iterable[str]) -> Tokenizer:
    """The tokenizer of a GGUF file's `tokenizer.ggml.tokens` and `tokenizer.ggml.merges`."""
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    split = pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAG_TOKENS])
    return tokenizer

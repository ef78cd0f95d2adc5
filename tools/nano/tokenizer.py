"""The tokenizer of the bundled models: byte-level BPE, digits one by one, trained on the practice corpus.

Knows merges and special tokens; knows nothing of models. The splitting pattern is the one GGUF calls `qwen2`, so that llama.cpp
and the `tokenizers` library give the same ids.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from edge.dagrpo.prompts import HELP_PHRASE
from edge.tasks.practice import FAMILIES
from tools.nano.data import SYSTEM_TEXT, shown_question

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CONTROL_TOKENS = (END_OF_TEXT, TURN_START, TURN_END)
"""Never part of a response's text."""
TAG_TOKENS = ("<think>", "</think>", "<answer>", "</answer>")
"""One token each, and rendered as text."""
MAX_VOCAB_SIZE = 1536
QWEN2_PATTERN = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CORPUS_ITEMS = 6_000


def train_tokenizer(seed: int) -> Tokenizer:
    """A tokenizer trained on `CORPUS_ITEMS` practice questions of each family; the same seed gives the same tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=MAX_VOCAB_SIZE,
        special_tokens=[*CONTROL_TOKENS, *TAG_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    _add_pipeline(tokenizer)
    tokenizer.train_from_iterator(corpus(seed), trainer)
    _add_tokens(tokenizer)
    return tokenizer


def corpus(seed: int) -> Iterator[str]:
    """Texts as the models meet them, without tags: questions, steps, the help phrase, words of the chat template."""
    yield from [f"system\n{SYSTEM_TEXT}", "user\n", "assistant\n", HELP_PHRASE, "\\boxed{"] * 500
    rng = random.Random(f"corpus/{seed}")
    for family in FAMILIES.values():
        for _ in range(CORPUS_ITEMS):
            drawn = family.draw(rng, "train", rng.choice(family.levels))
            yield shown_question(drawn)
            yield drawn.detailed.text.replace("<think>", "").replace("</think>", "")


def tokenizer_from(tokens: Sequence[str], merges: Iterable[str]) -> Tokenizer:
    """The tokenizer of a GGUF file's `tokenizer.ggml.tokens` and `tokenizer.ggml.merges`."""
    vocab = {token: index for index, token in enumerate(tokens)}
    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    _add_pipeline(tokenizer)
    _add_tokens(tokenizer)
    return tokenizer


def _add_pipeline(tokenizer: Tokenizer) -> None:
    split = pre_tokenizers.Split(Regex(QWEN2_PATTERN), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    tokenizer.decoder = decoders.ByteLevel()


def _add_tokens(tokenizer: Tokenizer) -> None:
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in CONTROL_TOKENS])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in TAG_TOKENS])

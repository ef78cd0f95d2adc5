"""The returned tokens of a chat answer: those of the content, each once, for any pieces of text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from edge.answering.draft import AnswerTokens
from edge.core.types import ScoredToken
from edge.inference.channels import AnswerReader

TEXT = "<think>\nStep 1: 2+2 is 4\n</think>\n<answer>The sum is \\boxed{4} <b</answer>"
CONTENT = "The sum is \\boxed{4} <b"


def tokens_of(pieces: Sequence[str]) -> list[ScoredToken]:
    """A token for each piece, with its place in the whole text."""
    tokens, start = [], 0
    for number, piece in enumerate(pieces):
        tokens.append(ScoredToken(number, piece.encode(), -1.0, start=start, end=start + len(piece)))
        start += len(piece)
    return tokens


def cut(text: str, sizes: Sequence[int]) -> list[str]:
    pieces, at = [], 0
    for size in [*sizes, len(text)]:
        pieces.append(text[at : at + size])
        at += size
    return [piece for piece in pieces if piece]


SIZES = st.lists(st.integers(1, 9), max_size=40)


@given(SIZES, st.booleans())
def test_returned_tokens_are_those_of_the_content_in_order(sizes: list[int], one_piece: bool) -> None:
    tokens, reader = tokens_of(cut(TEXT, sizes)), AnswerReader()
    feeds = [(TEXT, tokens)] if one_piece else [(token.piece.decode(), [token]) for token in tokens]
    parts = [part for text, piece_tokens in feeds for part in reader.feed(text, piece_tokens)] + reader.finish()
    assert "".join(part.text for part in parts if part.channel == "content") == CONTENT
    assert all(not part.tokens for part in parts if part.channel == "reasoning")
    begin = TEXT.index(CONTENT)
    expected = [token for token in tokens if token.start < begin + len(CONTENT) and token.end > begin]
    assert [token for part in parts for token in part.tokens] == expected


def test_partial_character_token_is_returned_with_the_character() -> None:
    halves = [ScoredToken(0, b"\xc3", -1.0, start=0, end=0), ScoredToken(1, b"\xa9", -1.0, start=0, end=1)]
    reader = AnswerReader()
    assert reader.feed("", halves[:1]) == []
    assert [part.tokens for part in reader.feed("é", halves[1:])] == [tuple(halves)]


def test_tokens_of_withdrawn_text_are_dropped() -> None:
    line = AnswerTokens()
    line.begin()
    line.add(tokens_of(["ab", "I need"]))
    assert [token.piece for token in line.until(2)] == [b"ab"]
    line.begin(2)
    line.add(tokens_of(["cd", "ef"]))
    assert line.until(3) == ()
    assert [(token.piece, token.start, token.end) for token in line.until(6)] == [(b"cd", 2, 4), (b"ef", 4, 6)]

"""Splitting a stream into reasoning and answer does not depend on the position of the cuts, nor do the returned tokens."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.answering.draft import AnswerTokens
from edge.core.types import ScoredToken
from edge.inference.channels import AnswerReader, readable_answer

PARTS = [
    "<think>",
    "</think>",
    "<answer>",
    "</answer>",
    "<",
    "</",
    "<answer",
    "<Answer >",
    "\\boxed{",
    "think",
    ">",
    "a",
    " ",
    "\n",
]
WORDS = st.lists(st.sampled_from([*PARTS, "STOP", "ST"]), max_size=12)


def read(pieces: list[str], stops: tuple[str, ...] = ()) -> dict[str, str]:
    reader = AnswerReader(stops)
    parts = [part for piece in pieces for part in reader.feed(piece)] + reader.finish()
    joined = {"reasoning": "", "content": ""}
    for part in parts:
        joined[part.channel] += part.text
    return joined


def cut(text: str, places: list[int]) -> list[str]:
    marks = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in pairwise(marks)]


def test_think_part_is_reasoning_and_answer_part_is_content() -> None:
    assert read(["plain ", "words"]) == {"reasoning": "", "content": "plain words"}
    assert read(["<think>Step 1: 2 <"]) == {"reasoning": "Step 1: 2 <", "content": ""}
    assert read(["<think>\nStep 1: 2\n</think>\n<answer>\\boxed{2}</answer>"]) == {
        "reasoning": "Step 1: 2\n",
        "content": "\\boxed{2}",
    }


THOUGHT = "<think>\nStep 1: 2\n</think>\n"


@pytest.mark.parametrize(
    ("text", "content", "answer"),
    [
        ("no tags at all, 1 < 2", "no tags at all, 1 < 2", "no tags at all, 1 < 2"),
        (THOUGHT + "<answer>4", "4", "4"),
        (THOUGHT + "<answer>\\boxed{4}</", "\\boxed{4}", "4"),
        (THOUGHT + "<answer>\\boxed{4</answer>", "\\boxed{4", "4"),
        (THOUGHT + "<answer>4</answer>\nUser: and 5?", "4", "4"),
        (THOUGHT + "<answer>4</answer> no: <answer>5</answer>", "4\n5", "5"),
        (THOUGHT + "<answer>4</answer> no: <answer>5", "4\n5", "5"),
        (THOUGHT + "<answer></answer>4", "4", "4"),
        (THOUGHT + "The sum:<answer>4</answer>", "The sum:\n4", "4"),
        (THOUGHT + "4</answer></answer>", "4", "4"),
        (THOUGHT + "4", "4", "4"),
        ("<think>\nStep 1: 2\n<answer>4</answer>", "4", "4"),
        ("Step 1: 2\n</think>\n<answer>4</answer>", "Step 1: 2\n4", "4"),
        (THOUGHT + "<Answer >4</answer >", "4", "4"),
        (THOUGHT + "<answer\n4</answer", "4", "4"),
        (THOUGHT + "<answer\\boxed{4}</answer</think>", "\\boxed{4}", "4"),
        (THOUGHT + "<answer></answer>", "", ""),
        (THOUGHT, "", ""),
        ("<think>\nStep", "", ""),
        ("<thi", "", ""),
    ],
)
def test_a_broken_response_is_shown_by_its_best_reading(text: str, content: str, answer: str) -> None:
    assert (read([text])["content"].strip(), readable_answer(text)) == (content, answer)


def test_a_stop_string_cut_in_two_ends_the_content() -> None:
    assert read(["one ST", "OP two", " three"], ("STOP",))["content"] == "one "


@given(WORDS, st.lists(st.integers(0, 200), max_size=8))
def test_the_result_does_not_depend_on_the_cuts(words: list[str], places: list[int]) -> None:
    text = "".join(words)
    assert read(cut(text, places), ("STOP",)) == read([text], ("STOP",))


@given(st.text(alphabet="<>/thinkanswer ", max_size=30))
def test_tags_never_reach_a_channel(text: str) -> None:
    channels = read(list("<think>" + text + "</think>"))
    assert "<think>" not in channels["reasoning"]
    assert "</think>" not in channels["reasoning"] + channels["content"]


TEXT = "<think>\nStep 1: 2+2 is 4\n</think>\n<answer>The sum is \\boxed{4} <b</answer>"
CONTENT = "The sum is \\boxed{4} <b"


def tokens_of(pieces: Sequence[str]) -> list[ScoredToken]:
    """A token for each piece, with its place in the whole text."""
    tokens, start = [], 0
    for number, piece in enumerate(pieces):
        tokens.append(ScoredToken(number, piece.encode(), -1.0, start=start, end=start + len(piece)))
        start += len(piece)
    return tokens


def pieces_of(text: str, sizes: Sequence[int]) -> list[str]:
    pieces, at = [], 0
    for size in [*sizes, len(text)]:
        pieces.append(text[at : at + size])
        at += size
    return [piece for piece in pieces if piece]


SIZES = st.lists(st.integers(1, 9), max_size=40)


@given(SIZES, st.booleans())
def test_returned_tokens_are_those_of_the_content_in_order(sizes: list[int], one_piece: bool) -> None:
    tokens, reader = tokens_of(pieces_of(TEXT, sizes)), AnswerReader()
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

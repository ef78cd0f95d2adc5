"""Splitting a stream into reasoning and answer does not depend on the position of the cuts."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

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

"""A stream of text: neither its split into reasoning and answer, nor the end at a stop string, nor the returned tokens depend on the cuts;
stop strings are found in the answer only, never in a request for help."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.answering.draft import AnswerTokens
from edge.core.types import Sampling, ScoredToken
from edge.inference.channels import AnswerReader, readable_answer
from edge.inference.detokenizer import Detokenizer, text_of

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


TEXTS = st.text("ab<c", max_size=30)


def stopped(pieces: list[str], sampling: Sampling, before: str = "") -> tuple[str, Detokenizer]:
    """The pieces that a listener received, and the final text."""
    heard: list[str] = []
    spoken = Detokenizer(sampling, before, lambda text, tokens: heard.append(text))
    for number, piece in enumerate(pieces, 1):
        if spoken.add(piece.encode(), None, number == len(pieces)):
            break
    return "".join(heard), spoken


def in_pieces(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(TEXTS, st.lists(st.integers(0, 30), max_size=6), st.lists(st.text("ab<c", min_size=1, max_size=4), min_size=1, max_size=3))
def test_text_ends_before_the_first_stop_string_whatever_the_pieces(text: str, cuts: list[int], stops: list[str]) -> None:
    heard, spoken = stopped(in_pieces(text, cuts), Sampling(stops=tuple(stops)))
    pieces = in_pieces(text, cuts)
    reached = "".join(pieces[: spoken.count])
    found = [at for at in (reached.find(stop) for stop in stops) if at >= 0]
    expected = reached[: min(found)] if found else text
    assert heard == spoken.text == expected
    assert spoken.stopped == any(stop in text for stop in stops)


@given(
    st.text("aé—漢🙂<", min_size=1, max_size=12), st.integers(1, 3), st.integers(1, 40), st.sampled_from([(), ("漢",), ("🙂<",)])
)
def test_a_character_that_the_end_cuts_is_left_out(text: str, size: int, tokens: int, stops: tuple[str, ...]) -> None:
    data = text.encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)][:tokens]
    heard: list[str] = []
    spoken = Detokenizer(Sampling(stops=stops), "", lambda text, tokens: heard.append(text))
    for number, piece in enumerate(pieces, 1):
        if spoken.add(piece, None, number == len(pieces)):
            break
    whole = b"".join(pieces).decode(errors="ignore")
    assert text_of(pieces) == whole
    assert "".join(heard) == spoken.text == whole[: min([whole.find(stop) for stop in stops if stop in whole], default=None)]


def test_bytes_that_are_no_text_are_shown_as_such_and_only_a_cut_character_is_not() -> None:
    for pieces, text in (([b"a\xff", b"b"], "a\ufffdb"), ([b"\xf0\x9f", b"a"], "\ufffda"), ([b"a", b"\xf0", b"\x9f\x99"], "a")):
        assert text_of(pieces) == text
        spoken = Detokenizer(Sampling(top_logprobs=0), "", None)
        for number, piece in enumerate(pieces):
            spoken.add(piece, ScoredToken(number, piece, 0.0), number + 1 == len(pieces))
        assert spoken.text == text
        assert len(spoken.tokens) == len(pieces), "a token without text stays a token"


REASONING = "<think>\nStep 1: 2 + 3 = 5.\n</think>\n<answer>\nThe sum. It is \\boxed{5}\n</answer>"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("stop", "kept"),
    [
        (".", REASONING.partition(" It")[0].removesuffix(".")),
        ("\n", REASONING.removesuffix("\n</answer>")),
        ("Step", REASONING),
        ("2 + 3", REASONING),
        ("The", REASONING.partition("The")[0]),
        ("<answer>", REASONING),
    ],
)
def test_in_a_chat_the_answer_is_cut_and_never_the_reasoning(stop: str, kept: str, size: int) -> None:
    pieces = [REASONING[at : at + size] for at in range(0, len(REASONING), size)]
    heard, spoken = stopped(pieces, Sampling(stops=(stop,), stops_in_answer=True))
    assert heard == spoken.text == kept


@pytest.mark.parametrize("size", [1, 4, 100])
@pytest.mark.parametrize("stop", [".", "assistance", "I", "need external"])
def test_help_request_is_never_cut(stop: str, size: int) -> None:
    text = "<think>\nStep 1: hard.\n</think>\nI need external assistance."
    heard, spoken = stopped(
        [text[at : at + size] for at in range(0, len(text), size)], Sampling(stops=(stop,), stops_in_answer=True)
    )
    assert heard == spoken.text == text


def test_text_that_only_starts_like_a_help_request_is_an_answer() -> None:
    text = "<think>\nhard\n</think>\nI need a pen. And paper."
    heard, _ = stopped(list(text), Sampling(stops=("I need",), stops_in_answer=True))
    assert heard == "<think>\nhard\n</think>\n"
    heard, _ = stopped(list(text.partition(" a pen")[0]), Sampling(stops=("need",), stops_in_answer=True))
    assert heard == "<think>\nhard\n</think>\nI "


def test_continued_turn_resumes_where_the_answer_was() -> None:
    heard, _ = stopped(["It ", "is 5", ". So."], Sampling(stops=(".",), stops_in_answer=True), "<think>\nStep 1: a.\n</think>\n")
    assert heard == "It is 5"
    assert stopped(list("Hello. There"), Sampling(stops=(".",), stops_in_answer=True))[0] == "Hello", "without tags all is answer"
    heard, _ = stopped(["b.\n", "</think>", "It is. No"], Sampling(stops=(".",), stops_in_answer=True), "<think>\nStep 1: a.\n")
    assert heard == "b.\n</think>It is"


def test_tokens_are_sent_with_the_text_they_end_in_and_cut_ones_are_not() -> None:
    heard: list[tuple[str, list[int]]] = []
    spoken = Detokenizer(Sampling(stops=("cd",)), "", lambda text, tokens: heard.append((text, [one.token_id for one in tokens])))
    for number, piece in enumerate((b"a", b"\xc3", b"\xa9c", b"x", b"c", b"de")):
        spoken.add(piece, ScoredToken(number, piece, -1.0), False)
    assert heard == [("a", [0]), ("", [1]), ("é", []), ("cx", [2, 3])]
    assert [(token.token_id, token.start, token.end) for token in spoken.tokens] == [(0, 0, 1), (1, 1, 1), (2, 1, 3), (3, 3, 4)]

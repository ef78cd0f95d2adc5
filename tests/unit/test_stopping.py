"""Stop strings in a text that arrives in pieces: found across pieces, in the answer only, never in a request for help."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.core.types import Sampling, ScoredToken
from edge.inference.detokenizer import Detokenizer

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


def test_tokens_are_sent_with_the_text_they_end_in_and_cut_ones_are_not() -> None:
    heard: list[tuple[str, list[int]]] = []
    spoken = Detokenizer(Sampling(stops=("cd",)), "", lambda text, tokens: heard.append((text, [one.token_id for one in tokens])))
    for number, piece in enumerate((b"a", b"\xc3", b"\xa9c", b"x", b"c", b"de")):
        spoken.add(piece, ScoredToken(number, piece, -1.0), False)
    assert heard == [("a", [0]), ("", [1]), ("é", []), ("cx", [2, 3])]
    assert [(token.token_id, token.start, token.end) for token in spoken.tokens] == [(0, 0, 1), (1, 1, 1), (2, 1, 3), (3, 3, 4)]

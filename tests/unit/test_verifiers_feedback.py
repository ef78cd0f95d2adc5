"""A person's thumbs as verdicts."""

from __future__ import annotations

import pytest

from edge.core.types import AnswerKind, TaskItem
from edge.verifiers.by_kind import VerifierByKind
from edge.verifiers.feedback import FeedbackAnswer, Rating, Ratings, Thumb, response_digest

ITEM = TaskItem("ask-7", "chat", "asked", 0, "train", "Write a haiku.", "", AnswerKind.FEEDBACK, 4)


def test_a_thumb_up_is_right_and_a_thumb_down_wrong() -> None:
    for thumb, right in ((Thumb.UP, True), (Thumb.DOWN, False)):
        judge = FeedbackAnswer(Ratings((Rating("ask-7", thumb),)))
        assert judge.is_correct(ITEM, "a haiku") is right
        assert judge.is_rated(ITEM, "a haiku")


def test_what_nobody_rated_is_not_right_and_says_so() -> None:
    judge = FeedbackAnswer(Ratings((Rating("other", Thumb.UP),)))
    assert not judge.is_correct(ITEM, "a haiku")
    assert not judge.is_rated(ITEM, "a haiku")


def test_a_thumb_for_one_response_says_nothing_about_another() -> None:
    judge = FeedbackAnswer(Ratings((Rating("ask-7", Thumb.UP, response_digest("good")),)))
    assert judge.is_correct(ITEM, " good\n")
    assert not judge.is_correct(ITEM, "bad") and not judge.is_rated(ITEM, "bad")


def test_a_response_of_its_own_thumb_ignores_the_item_s() -> None:
    book = Ratings((Rating("ask-7", Thumb.UP), Rating("ask-7", Thumb.DOWN, response_digest("bad"))))
    judge = FeedbackAnswer(book)
    assert judge.is_correct(ITEM, "anything") and not judge.is_correct(ITEM, "bad")


def test_a_later_thumb_replaces_an_earlier_one() -> None:
    book = Ratings((Rating("ask-7", Thumb.UP),))
    book.rate(Rating("ask-7", Thumb.DOWN))
    assert not FeedbackAnswer(book).is_correct(ITEM, "a haiku")


@pytest.mark.parametrize("response", ["", "\ud800", "x" * 100_000])
def test_no_text_breaks_it(response: str) -> None:
    assert not FeedbackAnswer(Ratings()).is_correct(ITEM, response)


def test_items_of_kind_feedback_are_judged_where_there_are_ratings() -> None:
    assert VerifierByKind(ratings=Ratings((Rating("ask-7", Thumb.UP),))).is_correct(ITEM, "a haiku")

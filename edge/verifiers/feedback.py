"""Judges answers by a person's thumbs. Knows ratings; knows nothing of where they are given or kept.

A thumb belongs to one response: with G responses to a prompt, a thumb up for one says nothing about the others. A thumb given to an
item or request as a whole counts for every response that has none of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from edge.core.types import TaskItem


class Thumb(StrEnum):
    """What a person thought of an answer."""

    UP = "up"
    DOWN = "down"


@dataclass(frozen=True, slots=True)
class Rating:
    """One thumb. `id` is an item's or a served request's; `response_digest` the response it was given to ("": the item as a whole)."""

    id: str
    thumb: Thumb
    response_digest: str = ""


class RatingBook(Protocol):
    """Where ratings are looked up."""

    def thumb(self, id: str, response_digest: str) -> Thumb | None:
        """The newest thumb for this response, else for the item or request as a whole, else None."""
        ...


class Ratings:
    """A RatingBook in memory."""

    def __init__(self, ratings: tuple[Rating, ...] = ()) -> None:
        self._thumbs = {(rating.id, rating.response_digest): rating.thumb for rating in ratings}

    def rate(self, rating: Rating) -> None:
        """Note a rating; a later one for the same response replaces it."""
        self._thumbs[(rating.id, rating.response_digest)] = rating.thumb

    def thumb(self, id: str, response_digest: str) -> Thumb | None:
        """The newest thumb for this response, else for the item or request as a whole, else None."""
        return self._thumbs.get((id, response_digest), self._thumbs.get((id, "")))


class FeedbackAnswer:
    """Right when a person's thumb is up. What nobody has rated is not right; `is_rated` tells the two apart."""

    def __init__(self, book: RatingBook) -> None:
        self._book = book

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when this response, or the item as a whole, has a thumb up."""
        return self._thumb(item, response) is Thumb.UP

    def is_rated(self, item: TaskItem, response: str) -> bool:
        """Whether a person has judged this response; what is not rated should be left out rather than counted wrong."""
        return self._thumb(item, response) is not None

    def _thumb(self, item: TaskItem, response: str) -> Thumb | None:
        return self._book.thumb(item.id, response_digest(response))


def response_digest(response: str) -> str:
    """How a rating names a response without keeping its text; surrounding blanks do not matter."""
    return hashlib.sha256(response.strip().encode("utf-8", "surrogatepass")).hexdigest()[:32]

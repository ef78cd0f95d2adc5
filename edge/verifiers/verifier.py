"""The role of a verifier: whether an answer is right."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from edge.core.types import TaskItem


class Verifier(Protocol):
    """Judges the composed response of one item. Never raises on any text: what cannot be judged is wrong."""

    def is_correct(self, item: TaskItem, response: str) -> bool:
        """True when the response's final answer is right."""
        ...


@runtime_checkable
class PartialVerifier(Verifier, Protocol):
    """A verifier that does not know of every response whether it is right."""

    def is_rated(self, item: TaskItem, response: str) -> bool:
        """Whether it knows. What it does not know must be left out of learning, not counted wrong."""
        ...

"""Exercises for the first part of a training: repeat a list, look things up in a list of pairs, follow a chain.

Copying and looking up are what nearly every step of a worked solution does. Shown bare, so that every token of a response follows from
the question, a small decoder forms them much earlier (tools/experiments/LOG.md).
"""

from __future__ import annotations

import itertools
import random

from edge.tasks.practice.science import THEMES

WORDS = tuple(thing for theme in THEMES for thing in theme.things)
MAX_REPEATED = 8
MAX_PAIRS = 6


def draw_exercise(rng: random.Random) -> tuple[str, str]:
    """A question and its response."""
    return rng.choice((repeat, look_up, follow))(rng)


def repeat(rng: random.Random) -> tuple[str, str]:
    """A list of words and numbers, given back."""
    text = " ".join(draw_thing(rng) for _ in range(rng.randint(3, MAX_REPEATED)))
    return f"Repeat: {text}", f" {text}"


def look_up(rng: random.Random) -> tuple[str, str]:
    """Pairs in one order, asked in another, some of them twice."""
    pairs = [(word, draw_thing(rng)) for word in rng.sample(WORDS, rng.randint(3, MAX_PAIRS))]
    asked = [*rng.sample(pairs, len(pairs)), *rng.sample(pairs, 2)]
    return f"{listed(pairs)} Asked: {' '.join(word for word, _ in asked)}", "".join(f" {a} {b}." for a, b in asked)


def follow(rng: random.Random) -> tuple[str, str]:
    """Pairs that form a chain, given in mixed order, followed from its start to its end."""
    words = rng.sample(WORDS, rng.randint(4, MAX_PAIRS + 1))
    pairs = list(itertools.pairwise(words))
    return f"{listed(rng.sample(pairs, len(pairs)))} Start: {words[0]}", "".join(f" {a} {b}." for a, b in pairs)


def draw_thing(rng: random.Random) -> str:
    """A word, or a number of one to three digits."""
    return rng.choice(WORDS) if rng.random() < 0.7 else str(rng.randint(1, 10 ** rng.randint(1, 3) - 1))


def listed(pairs: list[tuple[str, str]]) -> str:
    """`lamp pump. fan 31.`"""
    return " ".join(f"{a} {b}." for a, b in pairs)

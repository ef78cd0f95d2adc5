"""Finger exercises for the first part of a training: repeat a list, look things up in a list, follow a chain, pick options.

Knows how to draw them from the words of the practice world; knows nothing of models. Copying and looking up are what nearly every step of
a worked solution does; shown bare, in dense form, a small decoder forms them much earlier (tools/experiments/LOG.md).
"""

from __future__ import annotations

import itertools
import random

from edge.tasks.practice.facts import PEOPLE, TOWNS
from edge.tasks.practice.science import THEMES

WORDS = tuple(dict.fromkeys([*(thing for theme in THEMES for thing in theme.things), *PEOPLE, *TOWNS]))
MAX_REPEATED = 8
MAX_PAIRS = 5


def draw_exercise(rng: random.Random) -> tuple[str, str]:
    """A question and its response."""
    return rng.choice((repeat, look_up, follow, pick))(rng)


def repeat(rng: random.Random) -> tuple[str, str]:
    """A list of words and numbers, given back."""
    text = " ".join(draw_thing(rng) for _ in range(rng.randint(3, MAX_REPEATED)))
    return f"Repeat: {text}", f" {text}"


def look_up(rng: random.Random) -> tuple[str, str]:
    """Pairs in one order, asked in another."""
    pairs = draw_pairs(rng)
    asked = rng.sample(pairs, len(pairs))
    return listed(pairs), "".join(f" {a} {b}." for a, b in asked)


def follow(rng: random.Random) -> tuple[str, str]:
    """Pairs that form a chain, told in mixed order, followed from its start to its end."""
    words = rng.sample(WORDS, rng.randint(3, MAX_PAIRS))
    pairs = list(itertools.pairwise(words))
    told = rng.sample(pairs, len(pairs))
    return f"{listed(told)} Start: {words[0]}.", "".join(f" {a} {b}." for a, b in pairs)


def pick(rng: random.Random) -> tuple[str, str]:
    """Lettered options, each of them named with its letter, in another order."""
    options = rng.sample(WORDS, rng.randint(3, MAX_PAIRS))
    lettered = [(chr(ord("A") + index), option) for index, option in enumerate(options)]
    told = "".join(f" {option}, \\boxed{{{letter}}}" for letter, option in rng.sample(lettered, len(lettered)))
    return "\n".join(["Name the options.", *(f"{letter}. {option}" for letter, option in lettered)]), told


def draw_pairs(rng: random.Random) -> list[tuple[str, str]]:
    """Different words, each with a word or number."""
    return [(word, draw_thing(rng)) for word in rng.sample(WORDS, rng.randint(3, MAX_PAIRS))]


def draw_thing(rng: random.Random) -> str:
    """A word, or a number of one to three digits."""
    return rng.choice(WORDS) if rng.random() < 0.5 else str(rng.randint(1, 10 ** rng.randint(1, 3) - 1))


def listed(pairs: list[tuple[str, str]]) -> str:
    """`lamp pump. fan 31.`"""
    return " ".join(f"{a} {b}." for a, b in pairs)

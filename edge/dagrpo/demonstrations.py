"""Given answers as responses that the model could have written, to be learned from where it never samples a right one; and questions
like theirs, on which the model is held to what it knows."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence

from edge.core.answer_key import OwnKey
from edge.core.choices import reference_option
from edge.core.types import AnswerKind, TaskItem

_NUMBER, _WORD = re.compile(r"\d+"), re.compile(r"[^\W\d_]+")


def demonstration(item: TaskItem) -> str:
    """A right response in the response format: the worked solution, else the given answer alone; "" where neither is known."""
    if item.solution or not item.answer or item.kind is AnswerKind.PROGRAM:
        return item.solution
    if item.kind is AnswerKind.CHOICE:
        chosen = reference_option(item.question, item.answer, item.options)
        return "" if chosen is None else given_answer(chr(ord("A") + chosen), reason=item.options[chosen])
    if item.kind is AnswerKind.FEEDBACK:
        key = OwnKey.from_json(item.answer)
        return given_answer(key.right[-1], short=key.closed) if key and key.right else ""
    return given_answer(item.answer)


def with_words_left_out(question: str, rng: random.Random) -> str:
    """The question with about half of the words of a line, and all that have a digit; one at least. The line is the first one, or of
    several paragraphs the first of the last: what is asked about a text stands before it, and is the same for all.

    An answer that is learned with such questions, too, is found by other wordings: of ten of five corrections nano-edge got eight right,
    and four with the one wording alone (tools/experiments/LOG.md).
    """
    before, gap, last = question.rpartition("\n\n")
    first, newline, rest = last.partition("\n")
    words = first.split()
    left = [word for word in words if _NUMBER.search(word) or rng.random() < 0.5] or words[-1:]
    return before + gap + " ".join(left) + newline + rest


def similar_question(question: str, rng: random.Random, others: Sequence[str], rarity: Callable[[str], tuple[int, ...]]) -> str:
    """The question with another number in its first line, or another of its rarer words: one that has an answer of its own.

    `others`: words to take. `rarity` of a word grows as it gets rarer; the rarer half shows what a question is about.
    """
    first, newline, rest = question.partition("\n")
    words = first.split()
    numbers = [place for place, word in enumerate(words) if _NUMBER.search(word)]
    rarest = sorted(range(len(words)), key=lambda place: rarity(words[place]), reverse=True)[: (len(words) + 1) // 2]
    names = [place for place in rarest if place not in numbers and _WORD.search(words[place])]
    for place in rng.sample(numbers, rng.randint(1, len(numbers))) if numbers else ():
        words[place] = _NUMBER.sub(lambda found: _other_number(found[0], rng), words[place])
    if names and others and (not numbers or rng.random() < 0.25):
        for place in rng.sample(names, rng.choice((1, rng.randint(1, len(names))))):
            words[place] = _WORD.sub(rng.choice(others), words[place], count=1)
    return " ".join(words) + newline + rest


def _other_number(number: str, rng: random.Random) -> str:
    """One digit changed, or any number of about this length."""
    if rng.random() < 0.5:
        return str(rng.randrange(1, 10 ** rng.randint(1, max(2, len(number)))))
    place = rng.randrange(len(number))
    return number[:place] + rng.choice("123456789".replace(number[place], "")) + number[place + 1 :]


def given_answer(answer: str, *, short: bool = True, reason: str = "") -> str:
    """An answer in the response format, with one step that states it (or the `reason`); one that is not `short` is not repeated.

    Words around it in the step would have to be learned, too: "The answer is Rex." takes nano-edge three times the updates of "Rex".
    """
    step = reason or answer if short else "This is known."
    final = f"\\boxed{{{answer}}}" if short else answer
    return f"<think>\nStep 1: {step}\n</think>\n<answer>{final}</answer>"

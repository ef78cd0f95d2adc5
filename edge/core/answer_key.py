"""What is known of the answers to a question: the key of a person's own question, and how answers of each form are distinguished."""

from __future__ import annotations

import json
import re
import unicodedata
from dataclasses import asdict, dataclass
from typing import Literal

Form = Literal["math", "choice", "text"]
MOST_SHORT_WORDS = 8
_MOST_NUMBER_CHARS = 80
_NUMBER = re.compile(
    r"""[$€£]?\s*[+-]?[\d.,]*\d[\d.,]*\s*%?                                        # $12.50, 30 %
    |[+-]?[\d.,]*\d[\d.,]*e[+-]?\d+                                                # 1e16, 6.02E-23
    |[+-]?[\d.,]*\d\s*[a-zµ°]{1,3}(/[a-z]{1,3})?                                   # 3 kg, 25 km/h
    |.*\\[a-z]+.*                                                                  # \frac{1}{2}
    |(?!.*[a-z]([a-z]|\d))[-+*/^()\d\s.,=a-z]*\d[-+*/^()\d\s.,=a-z]*               # 2x + 3, but no word and no name as B12""",
    re.IGNORECASE | re.VERBOSE,
)


@dataclass(frozen=True, slots=True)
class OwnKey:
    """What is known of a question's answers. Without a right one it can only be known which are wrong. `options`: a choice's.

    `closed`: another short answer is wrong too. Of an open question (a letter, an essay) another text may be as good.
    """

    form: Form
    right: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()
    closed: bool = True
    options: tuple[str, ...] = ()

    def to_json(self) -> str:
        """As the `answer` of an item."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> OwnKey | None:
        """From what `to_json` made; None for anything else."""
        try:
            fields = json.loads(text)
            return cls(
                fields["form"], tuple(fields["right"]), tuple(fields["wrong"]), bool(fields["closed"]), tuple(fields["options"])
            )
        except (ValueError, TypeError, KeyError, RecursionError):
            return None


def is_number(answer: str) -> bool:
    """Whether it is read as mathematics: a number, an amount, a short formula."""
    return len(answer) <= _MOST_NUMBER_CHARS and _NUMBER.fullmatch(without_invisible(answer).strip()) is not None


def is_short(answer: str) -> bool:
    """Whether it is a word or a few, so that another answer is another meaning."""
    return "\n" not in answer.strip() and 0 < len(answer.split()) <= MOST_SHORT_WORDS


def without_invisible(text: str) -> str:
    """The text without characters that nobody sees: zero-width blanks and joiners, soft hyphens, marks of direction, byte order marks."""
    return text if text.isascii() else "".join(char for char in text if unicodedata.category(char) != "Cf")


def plain_words(text: str) -> str:
    """The text as it is compared: one form of each character, none that is invisible, no case, single blanks, no full stop at the end."""
    folded = unicodedata.normalize("NFKC", without_invisible(text)).casefold()
    return " ".join(folded.split()).rstrip(".! ")

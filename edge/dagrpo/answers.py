"""Final answers inside a response: \\boxed, <answer> and Python blocks."""

from __future__ import annotations

import re

_BOX = re.compile(r"\\boxed(?![^\W\d_])")  # not the start of another command: \boxedfoo
_BARE = re.compile(r"\s+([^\s$<{}]+)")
_BRACE = re.compile(r"\s*(?=\{)")
_IS_ANSWER = re.compile(r"[0-9]|\\(?!boxed)[A-Za-z]")
_WORD = re.compile(r"[^\W\d_]{2}")
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_THINK_PART = re.compile(r"<think>.*?(?:</think>|\Z)", re.DOTALL)
_PYTHON_BLOCK = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}`, braces balanced (escaped braces do not count), surrounding blanks removed.

    `\\boxed 7` (no braces) gives "7". A `\\boxed` that is only mentioned, as in "put it in \\boxed and stop", is no box.
    None when there is no box or the last one is not closed.
    """
    for found in reversed(list(_BOX.finditer(text))):
        if brace := _BRACE.match(text, found.end()):
            return _braced(text, brace.end())
        bare = _BARE.match(text, found.end())
        if bare and _is_answer(bare[1]):
            return bare[1].rstrip(".,;:")
    return None


def judged_answer(text: str, *, plain: bool) -> str | None:
    """What is compared with a reference: the boxed answer; of a `plain` turn without a box all of it."""
    boxed = last_boxed(text)
    return text.strip() if boxed is None and plain else boxed


def answer_part(text: str) -> str | None:
    """The text between the last `<answer>` and its `</answer>`, blanks removed; None when there is no such pair."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def last_python_block(text: str) -> str | None:
    """The code of the last closed ```python block, or None. The last block of a response counts."""
    blocks = _PYTHON_BLOCK.findall(text)
    return blocks[-1] if blocks else None


def shown_answer(text: str) -> str:
    """What a person wants to read first: the boxed answer, else the answer part, else the whole text."""
    return last_boxed(text) or answer_part(text) or text.strip()


def final_answer(response: str) -> str:
    """What a response answers, without its reasoning: the boxed answer, else the answer part, else what follows the reasoning."""
    return shown_answer(_THINK_PART.sub("", response))


def _is_answer(bare: str) -> bool:
    """Whether what follows a `\\boxed` without braces is an answer (7, x, -\\pi) and not a word of the sentence or a full stop."""
    if _IS_ANSWER.search(bare):
        return True
    return any(map(str.isalpha, bare)) and not _WORD.search(bare)


def _braced(text: str, start: int) -> str | None:
    """The content of the braces that open at `start`; None when they are not closed."""
    depth, index = 0, start
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[start + 1 : index].strip()
        index += 1
    return None

"""Final answers inside a response. Knows \\boxed, <answer> and Python blocks; knows nothing of what is right."""

from __future__ import annotations

import re

_BOXED = "\\boxed"
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_PYTHON_BLOCK = re.compile(r"```(?:python|py)[^\S\n]*\n(.*?)```", re.DOTALL | re.IGNORECASE)


def last_boxed(text: str) -> str | None:
    """The content of the last `\\boxed{...}`, braces balanced (escaped braces do not count), surrounding blanks removed.

    `\\boxed 7` (no braces) gives "7". None when there is no box or the last one is not closed.
    """
    start = _last_box_start(text)
    if start is None:
        return None
    rest = text[start:].lstrip()
    if rest.startswith("{"):
        return _braced(rest)
    bare = re.match(r"[^\s$<{}]+", rest)
    return bare.group(0).rstrip(".,;:") if bare and text[start : start + 1].isspace() else None


def answer_part(text: str) -> str | None:
    """What stands between the last `<answer>` and its `</answer>`, blanks removed; None when there is no such pair."""
    found = _ANSWER.findall(text)
    return found[-1].strip() if found else None


def last_python_block(text: str) -> str | None:
    """The code of the last closed ```python block, or None. The last block of a response counts."""
    blocks = _PYTHON_BLOCK.findall(text)
    return blocks[-1] if blocks else None


def shown_answer(text: str) -> str:
    """What a person wants to read first: the boxed answer, else the answer part, else the whole text."""
    return last_boxed(text) or answer_part(text) or text.strip()


def _last_box_start(text: str) -> int | None:
    """Index right after the last `\\boxed` that is a command of its own (not `\\boxedfoo`)."""
    end = len(text)
    while (found := text.rfind(_BOXED, 0, end)) >= 0:
        after = found + len(_BOXED)
        if not text[after : after + 1].isalpha():
            return after
        end = found
    return None


def _braced(text: str) -> str | None:
    depth, index = 0, 0
    while index < len(text):
        character = text[index]
        if character == "\\":
            index += 2
            continue
        depth += (character == "{") - (character == "}")
        if depth == 0:
            return text[1:index].strip()
        index += 1
    return None

"""The response format: tags, step lines and the request for help.

    <think>
    Step 1: ...
    Step 2: ...
    </think>
    <answer>\\boxed{...}</answer>           or, in the answer's place or alone inside <answer>: I need external assistance.

A response of the plain form is its answer, or the help phrase alone. Structure only: a missing \\boxed is a wrong answer, not a format
violation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from edge.core.forms import PlainForm
from edge.core.types import FinishReason, LocalResponse
from edge.dagrpo.prompts import HELP_PHRASE

_STEP_LINE = re.compile(r"^[ \t]*Step ([0-9]+):", re.MULTILINE)
_HELP = f"(?ai:{re.escape(HELP_PHRASE.rstrip('.'))})"  # without (?a) the letter ſ would match an s
_BARE_HELP = re.compile(rf"\s*{_HELP}\.?\s*")
_TRIGGER = re.compile(rf"</think>\s*(?:<answer>\s*)?({_HELP}\.?)\s*(?:</answer>\s*)?\Z")
UNFINISHED = (FinishReason.LENGTH, FinishReason.STEP_LIMIT, FinishReason.CANCELLED)
"""How a response ends that is cut short: a format violation."""
_TAGS = ("<think>", "</think>", "<answer>", "</answer>")


@dataclass(frozen=True, slots=True)
class FormatVerdict:
    """`ok`: the structure holds. `asks_help`: a valid request for help (implies ok). `steps`: step lines found. `reason`: why not ok."""

    ok: bool
    asks_help: bool
    steps: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Parts:
    thinking: str
    rest: str


def check_format(text: str, max_steps: int) -> FormatVerdict:
    """Judge the structure of a local response. `max_steps` >= 1 is the task's step limit; more steps are a violation.

    Raises ValueError when max_steps is not a positive whole number.
    """
    if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"max_steps must be a positive whole number, not {max_steps!r}")
    parts = _split(text)
    if parts is None:
        return FormatVerdict(False, False, _count_steps(text), "expected <think>...</think> once, at the start")
    steps = _count_steps(parts.thinking)
    problem = _steps_problem(parts.thinking, max_steps)
    if problem:
        return FormatVerdict(False, False, steps, problem)
    if _asks_help(parts.rest):
        return FormatVerdict(True, True, steps)
    if _has_answer(parts.rest):
        return FormatVerdict(True, False, steps)
    return FormatVerdict(
        False, False, steps, "expected one <answer>...</answer> or the help phrase after </think>, and nothing else"
    )


def asks_help(response: LocalResponse, max_steps: int) -> bool:
    """Whether a response validly asks for help: it ended by itself, and is well formed."""
    if response.finish is not FinishReason.EOS:
        return False
    if isinstance(response.form, PlainForm):
        return response.text == HELP_PHRASE
    return check_format(response.text, max_steps).asks_help


def is_well_formed(response: LocalResponse, max_steps: int) -> bool:
    """Whether a response that was not cut short has the structure of its form. A plain one may be cut at its limit of tokens: it begins
    with the answer, and what follows the first sentence is not judged."""
    if isinstance(response.form, PlainForm):
        return bool(response.text.strip()) and (response.finish not in UNFINISHED or response.finish is FinishReason.LENGTH)
    return response.finish not in UNFINISHED and check_format(response.text, max_steps).ok


def help_trigger_span(text: str) -> tuple[int, int] | None:
    """Start and end of the help phrase where a response asks: as its whole text, or bare at the end, after `</think>` or inside
    `<answer>`. None when there is none."""
    if text == HELP_PHRASE:
        return 0, len(text)
    found = _TRIGGER.search(text)
    if found is None or text.count("</think>") != 1:
        return None
    if ("<answer>" in found.group(0)) != ("</answer>" in found.group(0)):
        return None
    return found.span(1)


def _split(text: str) -> _Parts | None:
    """The thinking and what follows it, or None when the think tags are missing, repeated or misplaced."""
    if text.count("<think>") != 1 or text.count("</think>") != 1:
        return None
    before, _, after = text.partition("<think>")
    thinking, closed, rest = after.partition("</think>")
    if before.strip() or not closed or any(tag in thinking for tag in _TAGS):
        return None
    return _Parts(thinking, rest)


def _count_steps(text: str) -> int:
    return len(_STEP_LINE.findall(text))


def _steps_problem(thinking: str, max_steps: int) -> str:
    numbers = [number.lstrip("0") for number in _STEP_LINE.findall(thinking)]  # compared as text: a number may have any length
    if not numbers or not _STEP_LINE.match(thinking.lstrip()):
        return 'thinking must begin with "Step 1:"'
    if numbers != [str(number) for number in range(1, len(numbers) + 1)]:
        return "steps must be numbered 1, 2, 3, ... without gaps"
    if len(numbers) > max_steps:
        return f"{len(numbers)} steps, at most {max_steps} are allowed"
    return ""


def _asks_help(rest: str) -> bool:
    inside = _answer_content(rest)
    return _BARE_HELP.fullmatch(rest if inside is None else inside) is not None


def _has_answer(rest: str) -> bool:
    return _answer_content(rest) is not None


def _answer_content(rest: str) -> str | None:
    """The text inside the one `<answer>` pair that fills `rest`, or None."""
    stripped = rest.strip()
    if not (stripped.startswith("<answer>") and stripped.endswith("</answer>")):
        return None
    if stripped.count("<answer>") != 1 or stripped.count("</answer>") != 1:
        return None
    return stripped[len("<answer>") : -len("</answer>")]

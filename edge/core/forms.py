"""Response forms: structures that the engine holds a response to, so that its format holds by construction.

The reasoned form is the paper's format (edge/dagrpo/format.py), written as

    <think>
    Step 1: ...
    </think>
    <answer>\\boxed{...}</answer>           or, in the answer's place: I need external assistance.

The model writes the lines and the content of the answer; it chooses after each line whether another step follows, and after `</think>`
whether it asks. Everything else is the only possibility and is written without asking the model. So the decision to ask exists once in
every response, as a choice between two tokens. The policy that is sampled and learned is the one over allowed tokens.

In the plain form the whole turn is the answer, as in any chat, and the decision is taken before it, by how likely the help phrase is as the
beginning of the turn (edge/dagrpo/turn_start.py).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

THINKING_ENDS = "</think>\n"

_PLAIN = r"([^{}\\\n]|\\[^\n])"
_BOXED = f"/({_PLAIN}|\\{{({_PLAIN}|\\{{({_PLAIN}|\\{{{_PLAIN}*\\}})*\\}})*\\}})+/"
"""Braces in pairs, three deep; those after a backslash are text."""
_PROGRAM = r"/([^`\n]*\n)+/"
_GRAMMAR = r"""start: WHOLE
WHOLE: CONTENT "{end}"
CONTENT: {content} & ~/(.|\n)*<\/?(think|answer)>(.|\n)*/
"""


@dataclass(frozen=True, slots=True)
class PlainForm:
    """The whole turn is the answer."""

    options: tuple[str, ...] = ()
    """The possible answers, to be chosen from; (): any text."""

    def outline(self, help_phrase: str) -> str:
        """The form as a person reads it."""
        answer = " | ".join(self.options) or "..."
        return f"{answer}\nor, decided before the answer begins: {help_phrase}"


@dataclass(frozen=True, slots=True)
class ReasonedForm:
    """The reasoned form for one kind of question."""

    max_steps: int
    """The limit of reasoning steps."""
    program: bool = False
    """The answer is a program in a code block, not a boxed result."""
    line_tokens: int = 48
    """Most tokens that a reasoning line is written with; it is ended there."""
    answer_tokens: int = 48
    """Most tokens that the content of an answer is written with; it is ended there."""

    @property
    def begins_answer(self) -> str:
        """What comes before the content of an answer."""
        return "<answer>\n```python\n" if self.program else "<answer>\\boxed{"

    @property
    def ends_answer(self) -> str:
        """What comes after the content of an answer."""
        return "```\n</answer>" if self.program else "}</answer>"

    @property
    def closers(self) -> tuple[str, ...]:
        """What ends the content of an answer that has reached its limit: the first of these that is possible."""
        return ("```", "`", "\n") if self.program else ("}",)

    @staticmethod
    def begins_line(step: int) -> str:
        """What comes before the text of a step."""
        return f"Step {step}:" if step > 1 else "<think>\nStep 1:"

    def outline(self, help_phrase: str) -> str:
        """The form as a person reads it, `...` where the model writes."""
        steps = f"up to {self.max_steps} steps of at most {self.line_tokens} tokens"
        answer = f"at most {self.answer_tokens} tokens"
        return (
            f"{self.begins_line(1)} ...          ({steps})\n{THINKING_ENDS}{self.begins_answer}...{self.ends_answer}          ({answer})\n"
            f"or in the answer's place: {help_phrase}"
        )

    def parts(self, text: str) -> list[str]:
        """A response in this form that answers, cut where the form's own texts and what the model writes meet; [] for any other text."""
        found = re.fullmatch(f"(?s)(.*?\n)</think>\\s*{re.escape(self.begins_answer)}(.+){re.escape(self.ends_answer)}\\s*", text)
        steps = re.split(r"(?m)^(?:<think>\s*)?Step \d+:", found[1]) if found else [""]
        if found is None or steps[0] or len(steps) == 1:
            return []
        lines = [part for number, line in enumerate(steps[1:], 1) for part in (self.begins_line(number), line.rstrip() + "\n")]
        return [*lines, THINKING_ENDS, self.begins_answer, found[2], self.ends_answer]

    @property
    def line_grammar(self) -> str:
        """The text of a step with its end, in llguidance's dialect of Lark."""
        return _GRAMMAR.format(content=r"/[^\n]+/", end=r"\n")

    @property
    def answer_grammar(self) -> str:
        """The content of an answer with what ends it, in llguidance's dialect of Lark."""
        return _GRAMMAR.format(content=_PROGRAM if self.program else _BOXED, end=self.ends_answer.replace("\n", r"\n"))


ResponseForm = ReasonedForm | PlainForm

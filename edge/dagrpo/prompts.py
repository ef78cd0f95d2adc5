"""What the SLM is shown.

The bundled models carry a compact system prompt in their own chat template and read the bare question. Every other model reads a
conversation as it is, or SYSTEM_PROMPT and a templated user prompt where the answer is to be reasoned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edge.core.choices import first_number, listed_options
from edge.core.types import AnswerKind, Message, TaskItem

HELP_PHRASE = "I need external assistance."
"""The trigger: a response that ends in it, bare, asks for help."""

SYSTEM_PROMPT = f"""You solve problems by short, numbered reasoning.
Put your reasoning between <think> and </think>. Begin every reasoning line with the exact prefix "Step k:", where k counts 1, 2, 3, \
and use no other numbering. Use few steps for an easy problem and more, finer steps for a hard one.
After </think>, put the answer between <answer> and </answer>, with the final result inside \\boxed{{}}.
If you have reasoned through enough steps and still cannot solve the problem on your own, reply with exactly this sentence after \
</think> in place of an answer: {HELP_PHRASE}"""
"""The full system prompt, for models that do not carry one in their chat template."""


def user_prompt(item: TaskItem) -> str:
    """The user turn for one item, worded for its kind of answer; a person's own question is asked as it came."""
    options, instruction = "", item.kind.instruction
    if item.form == "reasoned":
        instruction = instruction or AnswerKind.MATH.instruction
    if item.kind is AnswerKind.CHOICE:
        options = _options(item)
        if first_number(item.question, item.options) is not None:
            instruction = instruction.replace("letter", "number")
    return "\n".join(filter(None, [item.question, options, instruction]))


def plain_prompt(item: TaskItem) -> str:
    """The user turn for one item whose answer is a plain turn: as a person would ask it, with the possible answers where they are few.

    They come first: questions of one kind have them in common, and what prompts have in common at their beginnings is read once.
    """
    if (listed := listed_options(item.question)) is not None and listed.options == item.options:
        return item.question
    return "\n\n".join(filter(None, [_one_of(item.options), item.question]))


def _one_of(options: Sequence[str]) -> str:
    return f"Answer with one of: {', '.join(options)}." if options else ""


MOST_TEXT_CHARS = 2000
"""Of a text that a task's question is put to: about 500 tokens of English. The middle of a longer one is left out, in learning and in
serving, so that it fits into the rows that learn."""
_GAP, _END_CHARS = " ... ", 500


@dataclass(frozen=True, slots=True)
class TextQuestion:
    """What a task asks about each of its texts, as into which folder a mail goes. It stands before the text, so that it is read once for
    many texts."""

    ask: str = ""
    """The question; "": the text alone is put."""
    options: tuple[str, ...] = ()
    """The possible answers; (): any."""

    def about(self, text: str) -> str:
        """The question about one text, without the options; also of a text next to which somebody has put the question already."""
        text = self._text_alone(text)
        if len(text) > MOST_TEXT_CHARS:
            text = text[: MOST_TEXT_CHARS - _END_CHARS - len(_GAP)] + _GAP + text[-_END_CHARS:]
        return "\n\n".join(filter(None, [self.ask, text]))

    def is_put_to(self, text: str) -> bool:
        """Whether a person has put this question before or after a text."""
        whole, alone = self._without_options(text), self._text_alone(text)
        return bool(self.ask) and alone not in (whole, "")

    def prompt(self, text: str, prompt_form: str, *, plain: bool) -> str:
        """The user's turn about one text, as in learning (`prompt_messages`)."""
        kind = AnswerKind.CHOICE if self.options else AnswerKind.TEXT
        item = TaskItem("", "", "", 0, "train", self.about(text), "", kind, 1, self.options, form="plain")
        return prompt_messages(item, prompt_form, plain=plain)[-1].content

    def _text_alone(self, text: str) -> str:
        without = self._without_options(text)
        rest = without.removeprefix(self.ask)
        if rest != without and rest[:1].isspace():
            return rest.strip()
        rest = without.removesuffix(self.ask)
        return rest.strip() if rest != without and rest[-1:].isspace() else "" if without == self.ask else without

    def _without_options(self, text: str) -> str:
        return text.strip().removeprefix(_one_of(self.options)).lstrip()


def prompt_messages(item: TaskItem, prompt_form: str, *, plain: bool = False) -> tuple[Message, ...]:
    """The conversation for one item: the bare question for "compact" models, system and user turns for "full" ones. `plain`: the answer
    is a plain turn, and the conversation holds nothing else."""
    if plain:
        return (*item.context, Message("user", plain_prompt(item)))
    if prompt_form == "compact":
        return local_messages((Message("user", compact_question(item)),), prompt_form)
    return local_messages((*item.context, Message("user", user_prompt(item))), prompt_form)


def local_messages(
    messages: Sequence[Message], prompt_form: str, system: str = SYSTEM_PROMPT, form_note: str = ""
) -> tuple[Message, ...]:
    """What the SLM reads of a conversation: the last question alone for "compact" models, else all of it under the system prompt, which
    comes before the conversation's own and a `form_note`; compact models know no other words than those of questions."""
    if prompt_form == "compact":
        return (messages[-1],)
    return with_system(messages, system, form_note)


def with_system(messages: Sequence[Message], before: str = "", after: str = "") -> tuple[Message, ...]:
    """A conversation whose system messages are one, between two notes; where there is nothing of these it is as it was."""
    if not before and not after:
        return tuple(messages)
    own = [message.content for message in messages if message.role == "system"]
    whole = "\n\n".join(filter(None, [before, *own, after]))
    return (Message("system", whole), *(message for message in messages if message.role != "system"))


def compact_question(item: TaskItem) -> str:
    """The question with its options, if any, and nothing else."""
    options = _options(item)
    return f"{item.question}\n{options}" if options else item.question


def _options(item: TaskItem) -> str:
    """The lettered options, to be put after the question; "" where there are none, or the question lists them itself."""
    if not item.options or ((listed := listed_options(item.question)) is not None and listed.options == item.options):
        return ""
    return "\n".join(f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(item.options))

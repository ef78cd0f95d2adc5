"""What the SLM is told. Knows wording; knows nothing of chat templates or of which model reads it.

The bundled models carry a compact system prompt in their own chat template and read the bare question; every other model gets
SYSTEM_PROMPT and a templated user prompt.
"""

from __future__ import annotations

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
    if item.kind is AnswerKind.FEEDBACK:
        return item.question
    if item.kind is AnswerKind.CHOICE:
        return f"{item.question}\n{_options(item.options)}\nThink step by step, then box the letter of the right option."
    if item.kind is AnswerKind.PROGRAM:
        return f"{item.question}\nThink step by step, then give the whole program in one ```python code block."
    return f"{item.question}\nThink step by step, then box the final result."


def prompt_messages(item: TaskItem, prompt_form: str) -> tuple[Message, ...]:
    """The conversation for one item: the bare question for "compact" models, system and user turns for "full" ones."""
    if prompt_form == "compact":
        return (Message("user", compact_question(item)),)
    return (Message("system", SYSTEM_PROMPT), Message("user", user_prompt(item)))


def compact_question(item: TaskItem) -> str:
    """The question with its options, if any, and nothing else."""
    return f"{item.question}\n{_options(item.options)}" if item.options else item.question


def _options(options: tuple[str, ...]) -> str:
    return "\n".join(f"{chr(ord('A') + index)}. {option}" for index, option in enumerate(options))

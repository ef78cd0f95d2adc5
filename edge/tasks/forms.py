"""What a record of a task file asks and holds to be right, in each of its forms.

| form | fields |
|---|---|
| question and answer | `question`, `answer` |
| prompt and completion | `prompt`, `completion` |
| conversation, as OpenAI-compatible services take it for fine-tuning | `messages`, a list of {"role": ..., "content": ...} |

Of a conversation the last message is the answer, and the user's before it the question; a system message and earlier turns, also the
assistant's, are the context in which it is asked. What only a service with tools can learn from is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from edge.core.answer_key import is_number, is_short
from edge.core.choices import chosen_option, listed_options
from edge.core.errors import TaskFileError
from edge.core.types import AnswerKind, Message, Role, joined_parts
from edge.dagrpo.answers import final_answer
from edge.tasks.record import Record

Form = Literal["question", "prompt", "messages"]
_ANSWERS: dict[Form, str] = {"question": "answer", "prompt": "completion", "messages": "messages"}
FORM_KEYS = {*_ANSWERS, *_ANSWERS.values()}
_TOOLS = ("tools", "functions", "tool_choice", "parallel_tool_calls")
_CALLS = ("tool_calls", "function_call")
_ROLES: dict[str, Role] = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}
_NO_TOOLS = "remove the line, or its tools and their turns"


@dataclass(frozen=True, slots=True)
class Exchange:
    """One question with the answer that is held right (None: none is given). `answer_key` is the field of the answer.

    `written` is the whole text of a completion, of which `answer` may be the boxed part; "" where the form has only an answer.
    """

    form: Form
    question: str
    answer: object
    answer_key: str
    context: tuple[Message, ...] = ()
    written: str = ""


def exchange_of(record: Record) -> Exchange:
    """What the record asks. Raises TaskFileError."""
    given = [form for form in _ANSWERS if form in record.fields]
    if len(given) > 1:
        raise record.bad(given[1], f'is given together with "{given[0]}": give one of them')
    form: Form = given[0] if given else "question"
    if foreign := [key for other, key in _ANSWERS.items() if other != form and key in record.fields]:
        raise record.bad(foreign[0], f'does not go with "{form}", whose answer is "{_ANSWERS[form]}"')
    if form == "messages":
        return _last_exchange(record)
    question, answer = record.text(form), record.fields.get(_ANSWERS[form])
    if form == "question" or not isinstance(answer, str):
        return Exchange(form, question, answer, _ANSWERS[form])
    return Exchange(form, question.strip(), final_answer(answer), _ANSWERS[form], written=answer.strip())


def refuse_tools(record: Record) -> None:
    """Raises TaskFileError for a conversation that is about tools."""
    if used := next((key for key in _TOOLS if key in record.fields), ""):
        raise TaskFileError(f'{record.where}: "{used}" cannot be learned: the model calls no tools', hint=_NO_TOOLS)


def _last_exchange(record: Record) -> Exchange:
    turns = record.fields["messages"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise record.bad("messages", 'must be a list of {"role": ..., "content": ...}')
    if turns and turns[-1].get("weight") == 0:
        raise record.bad("messages", "ends with a message of weight 0, so that there is nothing to learn: remove the line")
    messages = [_message(record, number, turn) for number, turn in enumerate(turns, 1)]
    if len(messages) < 2 or (messages[-2].role, messages[-1].role) != ("user", "assistant"):
        raise record.bad("messages", "must end with the user's question and the assistant's answer")
    *context, question, answer = messages
    for number, message in ((len(messages) - 1, question), (len(messages), answer)):
        if not message.content.strip():
            raise record.bad("messages", f"has an empty text in message {number}")
    written = answer.content.strip()
    earlier = tuple(message for message in context if message.content.strip())
    return Exchange("messages", question.content.strip(), final_answer(written), "messages", earlier, written)


def _message(record: Record, number: int, turn: Mapping[str, Any]) -> Message:
    role, content = turn.get("role"), turn.get("content")
    if role in ("tool", "function") or any(turn.get(key) for key in _CALLS):
        raise TaskFileError(f"{record.where}: message {number} calls a tool, which the model cannot learn", hint=_NO_TOOLS)
    if role not in _ROLES:
        raise record.bad("messages", f"has in message {number} no role of {', '.join(_ROLES)}")
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None for part in content]
        content = joined_parts(cast(list[str], parts)) if all(isinstance(part, str) for part in parts) else None
    if not isinstance(content, str):
        raise record.bad("messages", f"has in message {number} something else than text")
    return Message(_ROLES[role], content)


def fitting_kind(question: str, answer: str, options: Sequence[str]) -> tuple[AnswerKind, tuple[str, ...]]:
    """How an answer of which nobody stated the kind is judged, and the options of a choice: given, or listed in the question.

    A number or formula as mathematics, what names one of several options as a choice, a few words as text. A longer text is open
    (kind feedback): another one may be as good, so nobody can judge it.
    """
    if options:
        return AnswerKind.CHOICE, tuple(options)
    listed = listed_options(question)
    if listed is not None and chosen_option(answer, listed.options, listed.first_number) is not None:
        return AnswerKind.CHOICE, listed.options
    if is_number(answer):
        return AnswerKind.MATH, ()
    return AnswerKind.TEXT if is_short(answer) else AnswerKind.FEEDBACK, ()

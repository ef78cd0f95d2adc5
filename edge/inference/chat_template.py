"""From messages to prompt ids through the model's own chat template.

Templates differ in the conversations that they take. Which one a template takes is found out once, when the model is opened, by
rendering some (`Reading`), and every conversation is arranged accordingly.

Injection: only the template may write control tokens. Every control token spelled out in a message (`<|im_end|>` in a user's text) is
masked while the template is rendered, so that the search for control tokens cannot find it, and is tokenised as the plain text
it is.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import Any, Literal, NoReturn, Protocol, get_args

from jinja2 import Template, TemplateError, nodes, pass_context
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edge.core.clock import Clock, SystemClock, local_day
from edge.core.errors import EdgeError, ModelFileError, Unsupported
from edge.core.tool_calls import CALL_FORMATS, CallFormat
from edge.core.types import Message, ToolConversation
from edge.inference.backend import TokenizerInfo

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Used for models that know ChatML's control tokens and carry no template."""

MOST_STEPS = 1_000_000
"""Turns of loops, calls and repeated elements in one rendering: at most some seconds. Long conversations take some thousands."""
MOST_CHARACTERS = 16 << 20
"""Of one rendering; no context holds this many."""
_PRIVATE_USE = range(0xE000, 0xF900)
_TURN = "A turn of the model."
SystemTurns = Literal["anywhere", "first", "none"]
Turn = Mapping[str, Any]
"""A turn as templates read it: `role`, `content` (a text), and what tools need."""


class Tokeniser(Protocol):
    """What rendering needs of a vocabulary (gguf_model.Vocabulary)."""

    control_ids: dict[str, int]
    bos: int
    adds_bos: bool

    def tokenise(self, text: str) -> list[int]:
        """Ids of plain text."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Which conversations a template takes."""

    system: SystemTurns = "anywhere"
    """Where it takes system turns. Where it takes none, their text begins the first user's turn."""
    repeats: bool = True
    """Whether neighbouring turns may have one role; else they are joined into one."""
    parts: bool = False
    """Whether content is a list of parts and not a text."""

    def arranged(self, turns: Sequence[Turn]) -> list[Turn]:
        """The conversation as the template takes it."""
        arranged = list(turns)
        if self.system != "anywhere" and any(turn["role"] == "system" for turn in turns):
            arranged = [turn for turn in turns if turn["role"] != "system"]
            text = _paragraphs(*(turn["content"] for turn in turns if turn["role"] == "system"))
            # Templates that keep the system text for a later turn write nothing where no turn follows.
            role = "system" if self.system == "first" and arranged else "user"
            arranged = [*_joined([{"role": role, "content": text}, *arranged[:1]]), *arranged[1:]]
        if not self.repeats:
            arranged = _joined(arranged)
        return [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in arranged] if self.parts else arranged


def _joined(turns: Sequence[Turn]) -> list[Turn]:
    """With neighbouring turns of one role in one, but for calls of tools and their results."""
    joined: list[Turn] = []
    for turn in turns:
        before = joined[-1] if joined else {"role": ""}
        if turn["role"] != before["role"] or turn["role"] == "tool" or "tool_calls" in before or "tool_calls" in turn:
            joined.append(turn)
        else:
            joined[-1] = {**before, "content": _paragraphs(before["content"], turn["content"])}
    return joined


def _paragraphs(*texts: str) -> str:
    return "\n\n".join(filter(None, texts))


def _turns(*messages: tuple[str, str]) -> tuple[Turn, ...]:
    return tuple({"role": role, "content": content} for role, content in messages)


# Conversations that show how a template reads: every text in them occurs once, and hardly in a template. Some templates take words of
# the system text for switches, such as /think, and cut them out; so it holds the tags of our own.
_RULE, _NOTE = ("system", "Write on birds between <think> and </think>."), ("system", "The lake is frozen by now.")
_ASKED, _ADDED = ("user", "Where do swifts sleep?"), ("user", "I saw none of them in trees.")
_SAID, _WENT_ON = ("assistant", "High up in the air."), ("assistant", "They seldom land at all.")
_LAST = ("user", "And the herons?")
_PROBES = (("probe", '{"a": 1}'), ("probe", '{"b": "x"}'))
_SHORT_ID = 9
_WITH_A_NOTE = _turns(_RULE, _ASKED, _SAID, _NOTE, _LAST)
_WITH_REPEATS = _turns(_RULE, _ASKED, _ADDED, _SAID, _WENT_ON, _LAST)


class ChatTemplate:
    """The chat template of one model. `special_texts` are the template's variables such as `bos_token`.

    `own_system`: the template writes a system text of its own and may leave out the conversation's. `clock` gives the date that some
    templates write into a prompt. Raises ModelFileError for a template that cannot be read, refuses plain conversations, leaves out what
    users or the model wrote, or does not end.
    """

    def __init__(
        self,
        source: str,
        tokeniser: Tokeniser,
        special_texts: Mapping[str, str],
        *,
        own_system: bool = False,
        clock: Clock | None = None,
    ) -> None:
        self._tokeniser, self._own_system = tokeniser, own_system
        self._special_texts = dict(special_texts)
        longest_first = sorted(tokeniser.control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        if not source and not {"<|im_start|>", "<|im_end|>"}.issubset(tokeniser.control_ids):
            raise ModelFileError("the model file holds no chat template", hint="use an instruct model whose GGUF carries one")
        self.source = source or CHATML
        try:
            self._template = _Environment(clock or SystemClock()).compiled(self.source)
        except Exception as error:  # a template is a program, and some of it is computed here
            raise ModelFileError(f"the model's chat template cannot be read: {_one_line(error)}", hint=_OTHER_FILE) from error
        self._reading = self._found_reading()
        opening = re.search(r"<think>\s*$", self._run(self._reading.arranged(_WITH_A_NOTE)))
        self._opening = opening.group() if opening else ""
        """What the template writes of the model's reasoning. It is left out: here the tag is part of every response."""
        self._id_length = 0
        self.calls = self._found_calls()

    def _found_reading(self) -> Reading:
        """How the template reads conversations. Raises ModelFileError where no way is found."""
        faults: dict[Reading, str] = {}
        for reading in [Reading(system, parts=parts) for parts in (False, True) for system in get_args(SystemTurns)]:
            faults[reading] = self._fault(_WITH_A_NOTE, reading)
            if not faults[reading]:
                return replace(reading, repeats=not self._fault(_WITH_REPEATS, reading))
        problem = f"the model's chat template cannot be used: {faults[Reading('none')]}"
        raise ModelFileError(problem, hint=_OTHER_FILE)

    def _fault(self, turns: Sequence[Turn], reading: Reading) -> str:
        """Why the template cannot read turns in this way; "" where it writes the words of them all, those of users and model in order."""
        try:
            text = self._run(reading.arranged(turns))
        except _Refused as refused:
            return str(refused)
        except _Endless as error:  # other ways would take as long
            raise ModelFileError(f"the model's chat template {error}", hint=_OTHER_FILE) from error
        if reading.parts and "'type': 'text'" in text:
            return "it writes parts of a content as Python does"
        end = 0
        for role, content in ((turn["role"], turn["content"]) for turn in turns):
            if role == "system":  # some templates put it before the last question
                found = self._own_system or content in text
            else:
                found = (begin := text.find(content, end)) >= 0
                end = begin + len(content)
            if not found:
                return f"it leaves out the text of {_WHOSE[role]} turn"
        return ""

    def _found_calls(self) -> CallFormat | None:
        """How the template writes calls of tools; None where it leaves out tools or results, or writes calls in no known form.

        A family that takes one call a turn is found without `between`. Mistral's templates take ids of 9 letters and digits alone.
        """
        for self._id_length in (0, _SHORT_ID):
            for known in CALL_FORMATS:
                if self._writes(known, _PROBES[:1]):
                    return known if self._writes(known, _PROBES) else replace(known, between="")
        self._id_length = 0
        return None

    def _writes(self, known: CallFormat, calls: Sequence[tuple[str, str]]) -> bool:
        """Whether the template shows a tool, these calls in this form, and their results."""
        function = {"name": "probe", "description": "a description", "parameters": {"type": "object"}}
        listed, results = [], []
        for number, (name, arguments) in enumerate(calls):
            key = f"call_of_an_answer_{number}"
            listed.append({"id": key, "type": "function", "function": {"name": name, "arguments": json.loads(arguments)}})
            results.append({"role": "tool", "name": name, "tool_call_id": key, "content": f"the result {number}"})
        asked, called = {"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": listed}
        tools = ({"type": "function", "function": function},)
        try:
            text = self._render(ToolConversation((), (asked, called, *results), tools), self._masks([]))
            found = known.written(calls).search(text)
            if found is None or "a description" not in text or any(result["content"] not in text for result in results):
                return False
            if known.mark:
                return True
            said = {"role": "assistant", "content": found.group()}  # without a mark the calls are all of the turn
            return text == self._render(ToolConversation((), (asked, said, *results), tools), self._masks([]))
        except EdgeError:
            return False

    def prompt_ids(self, messages: Sequence[Message] | ToolConversation, prefix: str = "") -> list[int]:
        """Ids of the conversation up to where the assistant's turn goes on, `prefix` being what it has written already."""
        if isinstance(messages, ToolConversation):
            texts = [json.dumps([messages.turns, messages.tools], ensure_ascii=False)]
        else:
            texts = [message.content for message in messages]
        masks = self._masks([*texts, prefix])
        mark = self.calls.mark if self.calls and isinstance(messages, ToolConversation) else ""
        shown = self._control.findall(mark) if self._control else ()  # such as Mistral's [TOOL_CALLS]
        text = self._render(messages, masks).removesuffix(self._opening) + self._masked(prefix, masks, shown)
        return self._with_bos(self._tokenise(text, {masked: plain for plain, masked in masks.items()}))

    def plain_ids(self, text: str, *, bos: bool = True) -> list[int]:
        """Ids of a raw text, in which control tokens are control tokens; with `bos` before it where the model wants one."""
        ids = self._tokenise(text, {})
        return self._with_bos(ids) if bos else ids

    def response_ids(self, text: str, shown: Collection[str]) -> list[int]:
        """Ids of a text as the model's own turn, without its end; of control tokens spelt in it only those of `shown` are such."""
        masks = self._masks([text])
        hidden = self._masked(text, masks, shown)
        return self._tokenise(hidden, {masked: plain for plain, masked in masks.items()})

    def turn_end(self) -> int | None:
        """The first control token that the template writes after a turn of the model; None where it writes none, or fails."""
        turns = [Message("user", "?"), Message("assistant", _TURN)]
        try:
            _, found, rest = self._render(turns, self._masks([]), open_turn=False).rpartition(_TURN)
        except EdgeError:
            return None
        written = self._control.search(rest) if self._control and found else None
        return None if written is None else self._tokeniser.control_ids[written.group()]

    def _with_bos(self, ids: list[int]) -> list[int]:
        wanted = self._tokeniser.adds_bos and ids[:1] != [self._tokeniser.bos]
        return [self._tokeniser.bos, *ids] if wanted else ids

    def tokenizer_info(self, vocab_size: int, context_tokens: int, rollout_tokens: int) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        specials = self._special_texts
        bos, eos = specials.get("bos_token", "") if self._tokeniser.adds_bos else "", specials.get("eos_token", "")
        contexts = context_tokens, rollout_tokens
        return TokenizerInfo(self.source, bos, eos, self._tokeniser.adds_bos, vocab_size, *contexts, self.calls)

    def _masks(self, texts: Sequence[str]) -> dict[str, str]:
        """A private-use character for each first letter of a control token, none of which occurs in the texts.

        Raises EdgeError where the texts use nearly all of these characters.
        """
        taken, letters = set("".join(texts)), sorted({text[0] for text in self._tokeniser.control_ids})
        spare = (character for character in map(chr, _PRIVATE_USE) if character not in taken)
        masks = dict(zip(letters, spare, strict=False))
        if len(masks) < len(letters):
            raise EdgeError("the conversation uses too many private-use characters to be read safely", hint="remove them")
        return masks

    def _masked(self, text: str, masks: Mapping[str, str], shown: Collection[str] = ()) -> str:
        if self._control is None:
            return text
        return self._control.sub(
            lambda found: found.group() if found.group() in shown else masks[found.group()[0]] + found.group()[1:], text
        )

    def _render(self, messages: Sequence[Message] | ToolConversation, masks: Mapping[str, str], *, open_turn: bool = True) -> str:
        """What the template makes of a conversation. Raises Unsupported where it refuses it.

        One that is refused as the template was found to read is rendered with the system text as a user's: before a first turn of the
        model it makes the turns alternate.
        """
        if isinstance(messages, ToolConversation):
            turns, tools = self._masked_in(self._with_ids(messages.turns), masks), self._masked_in(messages.tools, masks)
        else:
            turns, tools = [{"role": each.role, "content": self._masked(each.content, masks)} for each in messages], None
        try:
            return self._run(self._reading.arranged(turns), tools, open_turn=open_turn)
        except _Endless as error:
            problem = f"the model's chat template {error} for this conversation"
            raise Unsupported(problem, parameter="messages", hint="make the conversation shorter") from error
        except _Refused:
            strictest = replace(self._reading, system="none", repeats=False)
        try:
            return self._run(strictest.arranged(turns), tools, open_turn=open_turn)
        except _Refused as refused:
            problem = f"the model's chat template refuses this conversation: {refused}"
            hint = "begin it with a user's turn, and let the model's turns follow user's turns"
            raise Unsupported(problem, parameter="messages", hint=hint) from refused

    def _with_ids(self, turns: Sequence[Turn]) -> Sequence[Turn]:
        """The turns with ids of calls as the template takes them."""
        if not self._id_length:
            return turns

        def short(given: Mapping[str, Any], key: str) -> dict[str, Any]:
            if not isinstance(given.get(key), str):
                return dict(given)
            return {**given, key: hashlib.sha256(given[key].encode()).hexdigest()[: self._id_length]}

        shortened = [short(turn, "tool_call_id") for turn in turns]
        for turn in shortened:
            if turn.get("tool_calls"):
                turn["tool_calls"] = [short(call, "id") for call in turn["tool_calls"]]
        return shortened

    def _run(self, turns: Sequence[Turn], tools: Any = None, *, open_turn: bool = True) -> str:
        """What the template makes of turns as they are. Raises _Refused where that fails, _Endless where it does not end."""
        given = {"messages": turns, "tools": tools, "documents": None, "add_generation_prompt": open_turn, **self._special_texts}
        pieces: list[str] = []
        size = 0
        try:
            for piece in self._template.generate(**given, **{_STEPS: _Steps()}):
                pieces.append(piece)
                size += len(piece)
                if size > MOST_CHARACTERS:
                    raise _Endless(f"writes more than {MOST_CHARACTERS} characters")
        except _Endless:
            raise
        except Exception as error:  # a template is a program
            raise _Refused(_one_line(error)) from error
        return "".join(pieces)

    def _masked_in(self, value: Any, masks: Mapping[str, str]) -> Any:
        """A JSON value with all its texts masked."""
        if isinstance(value, str):
            return self._masked(value, masks)
        if isinstance(value, Mapping):
            return {self._masked(str(name), masks): self._masked_in(each, masks) for name, each in value.items()}
        return [self._masked_in(each, masks) for each in value] if isinstance(value, list | tuple) else value

    def _tokenise(self, text: str, unmasks: Mapping[str, str]) -> list[int]:
        unmask = str.maketrans(dict(unmasks))
        ids: list[int] = []
        start = 0
        for found in self._control.finditer(text) if self._control else ():
            if start < found.start():
                ids += self._tokeniser.tokenise(text[start : found.start()].translate(unmask))
            ids.append(self._tokeniser.control_ids[found.group()])
            start = found.end()
        return ids + self._tokeniser.tokenise(text[start:].translate(unmask)) if start < len(text) else ids


_OTHER_FILE = "use a file of this model with another chat template"
_WHOSE = {"system": "a system", "user": "a user's", "assistant": "the model's"}


class _Refused(Exception):
    """Why the template makes nothing of a conversation, in one line."""


class _Endless(Exception):
    """How the template exceeds a limit."""


_STEPS = "_steps"


class _Steps:
    """The steps that one rendering has left. Templates cannot reach names that begin with an underscore."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left = MOST_STEPS

    def _spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise _Endless(f"does not end within {MOST_STEPS} steps")


def _spend(context: Context, steps: int) -> None:
    context.parent[_STEPS]._spend(steps)  # what a template sets lies elsewhere in the context


class _Environment(ImmutableSandboxedEnvironment):
    """What templates are written for, transformers' names and options, in a sandbox that ends each rendering after MOST_STEPS.

    Steps are counted and not seconds, so that a conversation is never refused because the machine was busy. A template that doubles
    a text again and again is not kept from filling the memory.
    """

    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, clock: Clock) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])
        del self.globals["lipsum"]  # random text without end
        self.globals["raise_exception"] = _raise
        self.globals["strftime_now"] = lambda form: date.fromisoformat(local_day(clock.now())).strftime(form)
        self.filters["tojson"] = _to_json
        self.filters[_counted.__name__] = _counted

    def compiled(self, source: str) -> Template:
        """The template, with the turns of its loops counted."""
        tree = self.parse(source)
        for loop in list(tree.find_all(nodes.For)):
            loop.iter = nodes.Filter(loop.iter, _counted.__name__, [], [], None, None, lineno=loop.lineno)
        tree.set_environment(self)
        return self.from_string(tree)

    def call(self, context: Context, called: Any, /, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        """Call a function, method or macro; a range costs as many steps as it has numbers."""
        _spend(context, 1)
        result = super().call(context, called, *args, **kwargs)
        if isinstance(result, range):
            _spend(context, len(result))
        return result

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """A product costs as many steps as it has elements, or bits. There are no powers: few characters of them have no end."""
        if operator == "**":
            raise SecurityError("powers are not available")
        if isinstance(left, int) and isinstance(right, int):
            _spend(context, left.bit_length() * right.bit_length())
        else:
            for repeated, times in ((left, right), (right, left)):
                if isinstance(repeated, str | list | tuple) and isinstance(times, int):
                    _spend(context, len(repeated) * max(0, times))
        return super().call_binop(context, operator, left, right)


@pass_context
def _counted(context: Context, iterable: Any) -> Any:
    """What a loop runs over, its steps spent."""
    sized = iterable if hasattr(iterable, "__len__") else list(iterable)
    _spend(context, len(sized))
    return sized


class _Generation(Extension):
    """`{% generation %}` ... `{% endgeneration %}`, with which templates mark what the model writes; to a prompt it adds nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        """The marked part as it is, with variables of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def _raise(message: Any = "") -> NoReturn:
    raise TemplateError(str(message))


_NOT_ASCII = re.compile(r"[^\x00-\x7f\ue000-\uf8ff]")
"""Without the characters of private use: a mask must stay one."""


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As templates are written for: Jinja's own would escape quotes and angle brackets for HTML."""
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    return _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text) if ensure_ascii else text


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__

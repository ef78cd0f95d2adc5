"""From messages to prompt ids through the model's own chat template.

Injection: only the template may write control tokens. Every control token spelled out in a message (`<|im_end|>` in a user's text) is
masked while the template is rendered, so that the search for control tokens cannot find it, and is tokenised as the plain text
it is.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NoReturn, Protocol

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edge.core.errors import EdgeError, ModelFileError
from edge.core.types import CALL_CLOSING, CALL_OPENING, Message, ToolConversation
from edge.inference.backend import TokenizerInfo

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
"""Used for models that know ChatML's control tokens and carry no template."""

_PRIVATE_USE = range(0xE000, 0xF900)
_TURN = "A turn of the model."


class Tokeniser(Protocol):
    """What rendering needs of a vocabulary (gguf_model.Vocabulary)."""

    control_ids: dict[str, int]
    bos: int
    adds_bos: bool

    def tokenise(self, text: str) -> list[int]:
        """Ids of plain text."""
        ...


class ChatTemplate:
    """The chat template of one model. `special_texts` are the template's variables such as `bos_token`."""

    def __init__(self, source: str, tokeniser: Tokeniser, special_texts: Mapping[str, str]) -> None:
        self._tokeniser = tokeniser
        self._special_texts = dict(special_texts)
        longest_first = sorted(tokeniser.control_ids, key=len, reverse=True)
        self._control = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        environment.globals["raise_exception"] = _raise
        environment.filters["tojson"] = _to_json
        if not source and not {"<|im_start|>", "<|im_end|>"}.issubset(tokeniser.control_ids):
            raise ModelFileError("the model file holds no chat template", hint="use an instruct model whose GGUF carries one")
        self.source = source or CHATML
        try:
            self._template = environment.from_string(self.source)
        except TemplateError as error:
            raise ModelFileError(f"the model's chat template cannot be read: {_one_line(error)}") from error
        self.calls_tools = self._writes_calls()

    def _writes_calls(self) -> bool:
        """Whether the template shows tools, and calls of them as CALL_OPENING says; other families have other forms in the same tags."""
        function = {"name": "probe", "description": "a description", "parameters": {"type": "object"}}
        call = {"type": "function", "function": {"name": "probe", "arguments": {"a": 1}}}
        turns = ({"role": "user", "content": "?"}, {"role": "assistant", "content": "", "tool_calls": [call]})
        try:
            text = self._render(ToolConversation((), turns, ({"type": "function", "function": function},)), self._masks([]))
        except Exception:  # a template is a program
            return False
        written = f'{CALL_OPENING}{{"name": "probe", "arguments": {{"a": 1}}}}{CALL_CLOSING}'
        return "a description" in text and written in text

    def prompt_ids(self, messages: Sequence[Message] | ToolConversation, prefix: str = "") -> list[int]:
        """Ids of the conversation up to where the assistant's turn goes on, `prefix` being what it has written already."""
        if isinstance(messages, ToolConversation):
            texts = [json.dumps([messages.turns, messages.tools], ensure_ascii=False)]
        else:
            texts = [message.content for message in messages]
        masks = self._masks([*texts, prefix])
        text = self._render(messages, masks) + self._masked(prefix, masks)
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
        """The first control token that the template writes behind a turn of the model; None where it writes none, or fails."""
        turns = [Message("user", "?"), Message("assistant", _TURN)]
        try:
            behind = self._render(turns, self._masks([]), open_turn=False).rpartition(_TURN)[2]
        except EdgeError:
            return None
        written = self._control.search(behind) if self._control else None
        return None if written is None else self._tokeniser.control_ids[written.group()]

    def _with_bos(self, ids: list[int]) -> list[int]:
        wanted = self._tokeniser.adds_bos and ids[:1] != [self._tokeniser.bos]
        return [self._tokeniser.bos, *ids] if wanted else ids

    def tokenizer_info(self, vocab_size: int, context_tokens: int) -> TokenizerInfo:
        """What a client that prepares prompts itself has to know."""
        specials = self._special_texts
        bos, eos = specials.get("bos_token", "") if self._tokeniser.adds_bos else "", specials.get("eos_token", "")
        return TokenizerInfo(self.source, bos, eos, self._tokeniser.adds_bos, vocab_size, context_tokens, self.calls_tools)

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
        if isinstance(messages, ToolConversation):
            given = self._masked_in({"messages": messages.turns, "tools": messages.tools}, masks)
        else:
            given = {"messages": [{"role": each.role, "content": self._masked(each.content, masks)} for each in messages]}
        try:
            return self._template.render(**given, add_generation_prompt=open_turn, **self._special_texts)
        except TemplateError as error:
            raise EdgeError(f"the model's chat template rejected the conversation: {_one_line(error)}") from error

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


def _raise(message: Any = "") -> NoReturn:
    raise TemplateError(str(message))


def _to_json(value: Any, indent: int | None = None, **_: Any) -> str:
    """As templates are written for: Jinja's own would escape quotes and angle brackets for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())

"""Anthropic's Messages API on the wire: the request, as a chat request too, and the bodies of its answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from edge.core.types import joined_parts
from edge.serve.chat_schemas import ChatRequest, chat_request, edge_metadata, needed_text, part_text, renamed, text_of
from edge.serve.errors import RequestProblem, invalid_value
from edge.serve.ports import AnswerNote
from edge.serve.schemas import Count, NamesIgnored, ResponseBody, Text, Unsupported, explain

_CHAT_NAMES = (
    (r"response_format\.json_schema\.schema", "output_config.format.schema"),
    (r"response_format(\.json_schema)?", "output_config.format"),
    (r"(tools\[\d+\])\.function\.parameters", r"\1.input_schema"),
    (r"(tools\[\d+\])\.function", r"\1"),
    (r"tool_choice\.function", "tool_choice"),
    (r"messages(\[\d+\])?", "messages"),
    (r"max_completion_tokens", "max_tokens"),
    (r"reasoning_effort", "thinking"),
    (r"stop(?=$|\[)", "stop_sequences"),
)
"""What a chat request's parameters are called in this one; one message here may be several there, so they lose their numbers."""
_ROLES = ("user", "assistant", "system")
_CHOICES: Mapping[str, str] = {"auto": "auto", "any": "required", "none": "none"}
_OWN_METADATA = ("task", "form", "no_cloud")
"""What is read of `metadata`; Anthropic's own field in it, `user_id`, is nobody's business here."""


class OutputConfig(NamesIgnored):
    """The form of the answer."""

    format: dict[str, Any] | None = None


class Thinking(NamesIgnored):
    """Whether the model thinks before it answers, and whether that is shown."""

    type: str
    budget_tokens: Any = None


class ToolSelection(NamesIgnored):
    """Whether tools are called, and which."""

    type: Annotated[Literal["auto", "any", "tool", "none"], explain("must be one of auto, any, tool, none", "unsupported_value")]
    name: Text | None = None
    disable_parallel_tool_use: bool | None = None


class MessagesRequest(NamesIgnored):
    """The body of POST /v1/messages and of POST /v1/messages/count_tokens. Without `max_tokens` the agent's own limit holds."""

    model: str = "edge"
    messages: Annotated[list[dict[str, Any]], Field(min_length=1, max_length=256)]
    system: Text | list[dict[str, Any]] | None = None
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    stop_sequences: Annotated[list[str], Field(max_length=16)] | None = None
    stream: bool | None = None
    temperature: Any = None
    top_p: Any = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: ToolSelection | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    metadata: dict[str, Any] | None = None
    mcp_servers: Unsupported = None
    container: Unsupported = None

    @property
    def shows_thinking(self) -> bool:
        """Whether the client reads thinking; from others it is kept back, as Anthropic's API does."""
        return self.thinking is not None and self.thinking.type != "disabled"

    def as_chat(self) -> ChatRequest:
        """The same as a chat request. Raises RequestProblem in this request's words."""
        choice, tools = self.tool_choice, [_chat_tool(number, tool) for number, tool in enumerate(self.tools or ())]
        form = self.output_config.format if self.output_config else None
        named = {name: self.metadata[name] for name in _OWN_METADATA if name in self.metadata} if self.metadata else {}
        return chat_request(
            {
                "model": self.model,
                "messages": self._messages(),
                "max_completion_tokens": self.max_tokens,
                "stop": self.stop_sequences or None,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "metadata": named or None,
                "tools": tools or None,
                "tool_choice": _chat_choice(choice),
                "parallel_tool_calls": False if choice and choice.disable_parallel_tool_use else None,
                "reasoning_effort": "medium" if self.thinking and self.thinking.type == "enabled" else None,
                "response_format": None if form is None else _chat_format(form),
                "stream": self.stream,
            },
            name_of,
        )

    def _messages(self) -> list[dict[str, Any]]:
        """The messages of a chat.

        Each result of a tool is one of its own, and comes before the text that came with it. A system message within the conversation,
        which few models know, is the user's, and comes before the text that it followed: what a person asked stays last.
        """
        found: list[dict[str, Any]] = [{"role": "system", "content": text_of(self.system, "system")}] if self.system else []
        for number, message in enumerate(self.messages):
            place, role, content = f"messages[{number}]", message.get("role"), message.get("content")
            if role not in _ROLES:
                raise invalid_value(f"{place}.role", f"must be one of {', '.join(_ROLES)}")
            if role == "system":
                follows = bool(found) and found[-1]["role"] == "user"
                found.insert(len(found) - follows, {"role": "user", "content": text_of(content, f"{place}.content")})
                continue
            if not isinstance(content, list):
                found.append({"role": role, "content": text_of(content, f"{place}.content")})
                continue
            texts, calls, results = list[str](), list[dict[str, Any]](), list[dict[str, Any]]()
            for index, block in enumerate(content):
                at, kind = f"{place}.content[{index}]", block.get("type") if isinstance(block, dict) else None
                if kind == "tool_use" and role == "assistant":
                    calls.append(_chat_call(block, at))
                elif kind == "tool_result" and role == "user":
                    results.append(_chat_result(block, at))
                elif kind not in ("thinking", "redacted_thinking") or role != "assistant":  # earlier thoughts are not read again
                    texts.append(part_text(block, at))
            found += results
            if calls:
                found.append({"role": role, "content": joined_parts(texts) or None, "tool_calls": calls})
            elif texts or not results:
                found.append({"role": role, "content": joined_parts(texts)})
        return found


def name_of(chat_parameter: str) -> str:
    """What a chat request's parameter is called in this one."""
    return renamed(chat_parameter, _CHAT_NAMES)


def _chat_call(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    arguments = json.dumps(block.get("input") or {}, ensure_ascii=False)
    function = {"name": needed_text(block, "name", place), "arguments": arguments}
    return {"id": needed_text(block, "id", place), "type": "function", "function": function}


def _chat_result(block: Mapping[str, Any], place: str) -> dict[str, Any]:
    """A result as a tool's message, which has no mark for a failure: the text says so."""
    content = block.get("content")
    text = text_of(content, f"{place}.content") if content else ""
    failed = "The tool failed: " if block.get("is_error") else ""
    return {"role": "tool", "tool_call_id": needed_text(block, "tool_use_id", place), "content": failed + text}


def _chat_tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if (kind := tool.get("type") or "custom") != "custom":
        message = f"{str(kind)[:40]!r} is not served here; only tools of the client's own are"
        raise invalid_value(f"tools[{number}].type", message, "unsupported_value")
    fields = {"name": "name", "description": "description", "parameters": "input_schema", "strict": "strict"}
    return {"type": "function", "function": {name: tool[own] for name, own in fields.items() if tool.get(own) is not None}}


def _chat_choice(choice: ToolSelection | None) -> Any:
    if choice is None or choice.type != "tool":
        return _CHOICES[choice.type] if choice else None
    return {"type": "function", "function": {"name": choice.name or ""}}


def _chat_format(form: Mapping[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        raise invalid_value("output_config.format.type", "must be json_schema", "unsupported_value")
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": form.get("schema")}}


class MessagesUsage(ResponseBody):
    """Tokens of the prompt and of the answer."""

    input_tokens: Count
    output_tokens: Count


class AnthropicMessage(ResponseBody):
    """A whole answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[dict[str, Any]]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal"] | None
    stop_sequence: str | None
    usage: MessagesUsage


class CountedTokens(ResponseBody):
    """What is put to the model."""

    input_tokens: Count


class AnthropicErrorDetails(ResponseBody):
    """What went wrong, of which kind, and in which field."""

    type: str
    message: str
    code: str | None
    param: str | None


class AnthropicError(ResponseBody):
    """The error object of Anthropic's API."""

    type: Literal["error"]
    error: AnthropicErrorDetails


def message_head(request: MessagesRequest, answer_id: str) -> dict[str, Any]:
    """What is known of a message before there is one."""
    return {
        "id": f"msg_{answer_id}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(0, 0),
    }


def message_end(request: MessagesRequest, chat: ChatRequest, note: AnswerNote) -> dict[str, Any]:
    """What is known of it at the end: `stop_reason`, `stop_sequence`, `usage` and `edge`."""
    reasons = {"tool_calls": "tool_use", "length": "max_tokens", "content_filter": "refusal"}
    reason = "refusal" if note.refusal else reasons.get(note.finish, "end_turn")
    edge = edge_metadata(chat, note)
    return {
        "stop_reason": "stop_sequence" if note.stop else reason,
        "stop_sequence": note.stop or None,
        "usage": _usage(note.prompt_tokens, note.completion_tokens, note.prompt_cached),
        "edge": {**edge, "ignored_parameters": [*map(name_of, edge["ignored_parameters"]), *request.ignored]},
    }


def _usage(prompt_tokens: int, completion_tokens: int, cached_tokens: int = 0) -> dict[str, int]:
    """Anthropic's `input_tokens` are those of the prompt that were read anew."""
    return {
        "input_tokens": prompt_tokens - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": completion_tokens,
    }


def tool_use_block(call: Mapping[str, Any]) -> dict[str, Any]:
    """A call in OpenAI's form as a block. Raises RequestProblem for arguments, of a cloud LLM, that are no JSON object."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function.get("arguments") or "{}")
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        raise RequestProblem(
            502, "the cloud LLM called a tool with arguments that are no JSON object", code="invalid_cloud_answer"
        )
    return {"type": "tool_use", "id": call.get("id", ""), "name": function.get("name", ""), "input": arguments}

"""OpenAI's Responses API on the wire: the request, as a chat request too, and the objects of an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from edge.serve.chat_schemas import ChatRequest, chat_request, edge_metadata, needed_text, renamed, text_of
from edge.serve.errors import RequestProblem, invalid_value
from edge.serve.ports import AnswerNote
from edge.serve.schemas import NamesIgnored, ResponseBody, StreamOptions, Text, Unsupported, explain, field_error

_TEXTS = ("input_text", "output_text", "text", "refusal")
_ROLES = ("user", "assistant", "system", "developer")
_CHAT_NAMES = (
    (r"response_format\.json_schema\.schema", "text.format.schema"),
    (r"response_format(\.json_schema)?", "text.format"),
    (r"(tools\[\d+\])\.function", r"\1"),
    (r"tool_choice\.function", "tool_choice"),
    (r"messages(\[\d+\])?", "input"),
    (r"max_completion_tokens", "max_output_tokens"),
    (r"reasoning_effort", "reasoning.effort"),
)
"""What a chat request's parameters are called in this one."""
Message = dict[str, Any]


class TextOptions(NamesIgnored):
    """The form of the text."""

    format: dict[str, Any] | None = None


class Reasoning(NamesIgnored):
    """How much the model reasons before it answers."""

    effort: Any = None


class ResponsesRequest(NamesIgnored):
    """The body of POST /v1/responses."""

    model: str = "edge"
    input: Annotated[
        Text | Annotated[list[dict[str, Any]], Field(min_length=1, max_length=256)],
        explain("must be a text or a list of at least one item"),
    ]
    instructions: Text | None = None
    previous_response_id: Text | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    text: TextOptions | None = None
    reasoning: Reasoning | None = None
    max_output_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    temperature: Any = None
    top_p: Any = None
    metadata: Any = None
    tools: Annotated[list[dict[str, Any]], Field(max_length=128)] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    background: Unsupported = None
    conversation: Unsupported = None
    prompt: Unsupported = None

    @model_validator(mode="after")
    def _fits_together(self) -> ResponsesRequest:
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "only together with stream")
        return self

    def as_chat(self, history: Sequence[Message]) -> ChatRequest:
        """The same as a chat request, after the messages of earlier turns. Raises RequestProblem in this request's words."""
        tools = [_chat_tool(number, tool) for number, tool in enumerate(self.tools or ())]
        form = self.text.format if self.text else None
        fields = {
            "model": self.model,
            "messages": [*self.opening(), *history, *self.messages()],
            "max_completion_tokens": self.max_output_tokens,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "metadata": self.metadata,
            "reasoning_effort": self.reasoning.effort if self.reasoning else None,
            "tools": tools or None,
            "tool_choice": _chat_choice(self.tool_choice) if tools else None,
            "parallel_tool_calls": self.parallel_tool_calls if tools else None,
            "response_format": None if form is None else _chat_format(form),
            "stream": self.stream,
        }
        return chat_request(fields, name_of)

    def opening(self) -> list[Message]:
        """The instructions, which hold for this turn alone."""
        return [{"role": "system", "content": self.instructions}] if self.instructions else []

    def messages(self) -> list[Message]:
        """The input as messages of a chat. Raises RequestProblem."""
        if isinstance(self.input, str):
            return [{"role": "user", "content": self.input}]
        found: list[Message] = []
        for number, item in enumerate(self.input):
            place, kind = f"input[{number}]", item.get("type", "message")
            if kind == "message":
                if item.get("role") not in _ROLES:
                    raise invalid_value(f"{place}.role", f"must be one of {', '.join(_ROLES)}")
                found.append({"role": item["role"], "content": text_of(item.get("content"), f"{place}.content", _TEXTS)})
            elif kind == "function_call":
                _add_call(found, item, place)
            elif kind == "function_call_output":
                output = text_of(item.get("output"), f"{place}.output", _TEXTS)
                found.append({"role": "tool", "tool_call_id": needed_text(item, "call_id", place), "content": output})
            elif kind != "reasoning":  # thoughts of earlier turns are not read again
                raise invalid_value(f"{place}.type", f"{str(kind)[:40]!r} is not supported", "unsupported_value")
        return found


def name_of(chat_parameter: str) -> str:
    """What a chat request's parameter is called in this one."""
    return renamed(chat_parameter, _CHAT_NAMES)


def _add_call(found: list[Message], item: Mapping[str, Any], place: str) -> None:
    """Calls that follow one another are one message of the assistant."""
    function = {"name": needed_text(item, "name", place), "arguments": item.get("arguments") or "{}"}
    call = {"id": needed_text(item, "call_id", place), "type": "function", "function": function}
    if found and found[-1]["role"] == "assistant":
        found[-1].setdefault("tool_calls", []).append(call)
    else:
        found.append({"role": "assistant", "content": None, "tool_calls": [call]})


def _chat_tool(number: int, tool: Mapping[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        kind = str(tool.get("type"))[:40]
        raise invalid_value(f"tools[{number}].type", f"{kind!r} is not served here; only functions are", "unsupported_value")
    kept = {name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None}
    return {"type": "function", "function": kept}


def _chat_choice(choice: Any) -> Any:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _chat_format(form: Mapping[str, Any]) -> dict[str, Any]:
    if form.get("type") != "json_schema":
        return {"type": form.get("type")}
    named = {name: form[name] for name in ("name", "description", "schema", "strict") if form.get(name) is not None}
    return {"type": "json_schema", "json_schema": named}


class Response(ResponseBody):
    """An answer."""

    id: str
    object: Literal["response"]
    created_at: float
    status: Literal["completed", "incomplete", "in_progress", "failed"]
    model: str
    output: list[dict[str, Any]]


class Deleted(ResponseBody):
    """It is no longer stored."""

    id: str
    object: Literal["response"]
    deleted: bool


class InputItems(ResponseBody):
    """What was asked."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    has_more: bool


def response_id(answer_id: str) -> str:
    """The id of an answer as clients of this API expect it."""
    return f"resp_{answer_id}"


def response_head(request: ResponsesRequest, answer_id: str, created: int) -> dict[str, Any]:
    """What is known of a response before there is one: `in_progress`."""
    form = (request.text.format if request.text else None) or {"type": "text"}
    return {
        "id": response_id(answer_id),
        "object": "response",
        "created_at": created,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "metadata": request.metadata or {},
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "previous_response_id": request.previous_response_id,
        "store": request.store is not False,
        "temperature": request.temperature,
        "text": {"format": form},
        "tool_choice": request.tool_choice or "auto",
        "tools": request.tools or [],
        "top_p": request.top_p,
        "truncation": "disabled",
        "usage": None,
    }


def finished(
    head: Mapping[str, Any], output: Sequence[Mapping[str, Any]], note: AnswerNote, chat: ChatRequest, ignored: Sequence[str]
) -> dict[str, Any]:
    """The whole response."""
    cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(note.finish)
    usage = {
        "input_tokens": note.prompt_tokens,
        "input_tokens_details": {"cached_tokens": note.prompt_cached},
        "output_tokens": note.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": note.prompt_tokens + note.completion_tokens,
    }
    edge = edge_metadata(chat, note)
    unheard = [*map(name_of, edge["ignored_parameters"]), *ignored]
    return {
        **head,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": list(output),
        "usage": usage,
        "edge": {**edge, "ignored_parameters": unheard},
    }


def problem_body(problem: RequestProblem) -> dict[str, Any]:
    """The error of a response that failed."""
    return {"code": problem.code or "server_error", "message": str(problem)}

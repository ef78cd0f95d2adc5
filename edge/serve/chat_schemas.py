"""Chat completions on the wire: the request as pydantic reads it, what of it the agent is asked, and the bodies of the answers."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, ValidationError, WrapValidator, model_validator

from edge.core.limits import TASK_LABEL_FORM, is_task_label
from edge.core.tool_calls import HERMES, CallFormat
from edge.core.types import (
    AnswerForm,
    BeyondText,
    FormName,
    Message,
    Mode,
    Role,
    ScoredToken,
    ToolConversation,
    ToolUse,
    joined_parts,
)
from edge.serve.answer_forms import answer_form, tool_use, turns_of
from edge.serve.errors import RequestProblem, invalid_request, invalid_value
from edge.serve.ports import MODELS, AnswerNote
from edge.serve.schemas import (
    MAX_TOKENS,
    Count,
    Passed,
    ResponseBody,
    SamplingFields,
    Text,
    Unsupported,
    Usage,
    explain,
    field_error,
)
from edge.state.answer_record import AnswerRequest, TaskStanding

FUNCTION_NAME = "[A-Za-z0-9_-]{1,64}"
MAX_BYTES = 1 << 20
"""What a coordinator takes of tools and messages."""
_ROLES: Mapping[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "user",
}
_MODEL_DESCRIPTIONS: Mapping[Mode | None, str] = {
    None: "answers as the agent is set up",
    "auto": "answers on this device and asks the cloud where the model wishes to and the budget allows",
    "prefer-local": "asks the cloud only where its own answer is unusable",
    "local-only": "never asks the cloud",
    "cloud-only": "asks the cloud for every answer",
}
ANSWER_HEADERS = {
    "x-edge-source": ("source", "local, cloud or local-fallback; not of a stream, whose last chunk has it."),
    "x-edge-answer-id": ("id", "The answer's number, for edge-agent why."),
    "x-edge-adapter-version": ("adapter_version", "The adapter that answered."),
    "x-edge-task": ("task", "The task's label, whose budget and dial apply."),
    "x-edge-help-log-odds": ("help_log_odds", "How much the model wished to ask, in nats; not of a stream."),
    "x-edge-dual": ("dual", "λ, the cost of asking."),
    "x-edge-assist-rate": ("assist_rate", "The realised share of answers that asked."),
    "x-edge-target-rate": ("target_rate", "τ, the share that may ask."),
    "x-edge-calls-left": ("calls_left", "Calls that the budget still allows."),
    "x-edge-tokens-left": ("tokens_left", "Tokens that the budget still allows."),
    "x-edge-spend-left-uusd": ("spend_left_uusd", "Spend that the budget still allows, in micro-USD."),
}
"""Response headers, each with the field of the answer's metadata that it shows."""


class TextPart(Passed):
    """A part of a message."""

    type: Literal["text"]
    text: Text


class RefusalPart(Passed):
    """A part with the reason why a model did not answer."""

    type: Literal["refusal"]
    refusal: Text

    @property
    def text(self) -> str:
        """The same, as other parts have it."""
        return self.refusal


def _check_content(value: Any, inner: Callable[[Any], Any]) -> Any:
    try:
        return inner(value)
    except ValidationError as error:
        if any(one["type"] == "field_error" for one in error.errors()):
            raise field_error("", "is not valid Unicode text") from error
        kinds = [part.get("type") for part in value if isinstance(part, dict)] if isinstance(value, list) else []
        if other := [kind[:40] for kind in kinds if isinstance(kind, str) and kind not in ("text", "refusal")]:
            message = f"a part of type {other[0]!r} is not supported; this model reads text"
            raise field_error("", message, "unsupported_value") from error
        raise field_error("", "must be a string or a list of text parts") from error


Content = Annotated[Text | Annotated[list[TextPart | RefusalPart], Field(min_length=1)], WrapValidator(_check_content)]


class CalledTool(Passed):
    """The tool that is called, and its arguments."""

    name: Text


class ToolCall(Passed):
    """A call of a tool, as it was answered."""

    id: str
    type: Literal["function", "custom"] = "function"
    function: CalledTool | None = None
    custom: CalledTool | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> ToolCall:
        if self.called is None:
            raise ValueError(self.type)
        return self

    @property
    def called(self) -> CalledTool | None:
        """What is called."""
        return self.function if self.type == "function" else self.custom

    def in_words(self) -> str:
        """The call as the SLM reads it."""
        extra = (self.called and self.called.model_extra) or {}
        given = extra.get("arguments", extra.get("input", ""))
        return f"{self.called and self.called.name} with {given if isinstance(given, str) else json.dumps(given)}"


class ChatMessage(Passed):
    """One message of the conversation."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Content | None = None
    refusal: Text | None = None
    tool_calls: list[Annotated[ToolCall, explain("must have an id, a type and a name")]] | None = None
    tool_call_id: str | None = None

    @model_validator(mode="after")
    def _is_complete(self) -> ChatMessage:
        if self.role == "tool" and not self.tool_call_id:
            raise field_error("tool_call_id", "must name the call that is answered")
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.refusal)):
            raise field_error("content", "must be a string or a list of text parts")
        return self

    @property
    def has_tools(self) -> bool:
        """Whether it has calls of tools, which plain text cannot hold."""
        return self.role == "tool" or bool(self.tool_calls)

    @property
    def text(self) -> str:
        """The text of the content, in one piece; where there is none, the refusal in its place."""
        content = self.content or self.refusal or ""
        return content if isinstance(content, str) else joined_parts(part.text for part in content)

    def in_words(self) -> Message:
        """The message as the SLM reads it; calls of tools become sentences."""
        text = self.text
        if self.role == "tool":
            text = f"The tool answered: {text}"
        if self.role == "assistant" and self.tool_calls:
            text = "\n".join(filter(None, [text, *(f"I call the tool {call.in_words()}." for call in self.tool_calls)]))
        return Message(_ROLES[self.role], text)


class NamedTool(Passed):
    """A function or another tool."""

    name: Annotated[str, Field(pattern=f"^{FUNCTION_NAME}$")]
    parameters: dict[str, Any] | None = None


class Tool(Passed):
    """A tool that may be called."""

    type: Annotated[Literal["function", "custom"], explain("must be one of function, custom", "unsupported_value")]
    function: NamedTool | None = None
    custom: NamedTool | None = None

    @model_validator(mode="after")
    def _has_what_its_type_says(self) -> Tool:
        if (self.function if self.type == "function" else self.custom) is None:
            raise field_error(f"{self.type}.name", "must be 1 to 64 letters, digits, _ or -")
        return self


class ToolChoice(Passed):
    """The tool that is to be called."""

    type: str


class ResponseFormat(Passed):
    """The form that the answer is to have."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> ResponseFormat:
        if self.type == "json_schema":
            if self.json_schema is None:
                raise field_error("json_schema", "must be an object")
            if not re.fullmatch(FUNCTION_NAME, str(self.json_schema.get("name", ""))):
                raise field_error("json_schema.name", "must be 1 to 64 letters, digits, _ or -")
            if not isinstance(self.schema_, dict | None):
                raise field_error("json_schema.schema", "must be an object")
        return self

    @property
    def schema_(self) -> Any:
        """The schema; None where any JSON object will do."""
        return (self.json_schema or {}).get("schema") if self.type == "json_schema" else None


_Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[Text, Field(max_length=512)]],
    Field(max_length=16),
    explain("must be an object of at most 16 texts of at most 512 characters"),
]


class ChatRequest(SamplingFields):
    """The body of POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], Field(min_length=1, max_length=256)]
    max_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    max_completion_tokens: Annotated[int, Field(ge=1, lt=2**31)] | None = None
    metadata: _Metadata | None = None
    tools: Annotated[list[Tool], Field(max_length=128)] | None = None
    tool_choice: Annotated[
        Literal["none", "auto", "required"] | ToolChoice | None,
        explain("must be one of none, auto, required, or an object that names a tool"),
    ] = None
    parallel_tool_calls: bool | None = None
    response_format: (
        Annotated[ResponseFormat, explain("must be an object whose type is one of text, json_object, json_schema")] | None
    ) = None
    reasoning_effort: Annotated[
        Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
        Field(description="From low on the local model reasons first, as with the form `reasoned` of metadata."),
    ] = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None
    audio: Unsupported = None
    functions: Annotated[Unsupported, Field(description="The older form, not supported; use tools.")] = None
    function_call: Annotated[Unsupported, Field(description="The older form, not supported; use tool_choice.")] = None

    @model_validator(mode="after")
    def _fits_together(self) -> ChatRequest:
        if _ROLES[self.messages[-1].role] != "user":
            raise field_error("messages", "the last message must come from the user or a tool")
        if self.top_logprobs and not self.logprobs:
            raise field_error("top_logprobs", "only together with logprobs: true")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise field_error("tool_choice", "only together with tools")
        self.check_stream_options()
        return self

    @property
    def ignored(self) -> tuple[str, ...]:
        """Also stop strings where the content has a form, which they may not cut, and reasoning where that or tools hold the answer."""
        held, form = self.has_form or self._may_call, (self.metadata or {}).get("form")
        unreasoned = held and form == "reasoned"
        return (
            *super().ignored,
            *(("reasoning_effort",) if self._effort_reasons and (held or form) else ()),
            *(("stop",) if self.stop and self.has_form else ()),
            *(("metadata.form",) if unreasoned else ()),
        )

    def question(
        self,
        answer_id: str,
        models: Mapping[str, Mode | None] = MODELS,
        task_header: str = "",
        name_of: Callable[[str], str] = str,
        calls: CallFormat = HERMES,
    ) -> AnswerRequest:
        """What the agent is asked, under this id. `task_header`: the task's label where a header names it. `name_of`: how the client
        calls a parameter of this body, for errors. `calls`: how the local model writes calls of tools. Raises RequestProblem."""
        mode = models[known_model(self.model, models)]
        if self.choices > 1 and mode == "cloud-only":
            message = "only 1 with the model edge-cloud: a request makes one cloud call at most"
            raise invalid_value("n", message, "unsupported_value")
        no_cloud = " ".join((self.metadata or {}).get("no_cloud", "").split())
        if no_cloud and mode == "cloud-only":
            raise invalid_value("metadata.no_cloud", "forbids what the model edge-cloud demands")
        answer_form = (self.metadata or {}).get("form", "reasoned" if self._effort_reasons else "plain")
        if answer_form not in get_args(FormName):
            raise invalid_value("metadata.form", f"must be one of {', '.join(get_args(FormName))}")
        max_tokens = self.max_completion_tokens or self.max_tokens
        form = self._form(name_of)
        return AnswerRequest(
            id=answer_id,
            messages=tuple(message.in_words() for message in self.messages),
            mode="local-only" if no_cloud else mode,
            max_tokens=None if max_tokens is None else min(max_tokens, MAX_TOKENS),
            temperature=self.temperature,
            seed=self.seed,
            task=self._task(task_header),
            beyond=self._beyond_text(name_of),
            wishes=self.sampling_wishes((self.top_logprobs or 0) if self.logprobs else None),
            no_cloud=no_cloud,
            form=form,
            reasoned=answer_form == "reasoned",
            tools=None if mode == "cloud-only" else self._tool_use(form, name_of, calls),
        )

    @property
    def has_form(self) -> bool:
        """Whether the content is to be JSON, which no stop string may cut."""
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def _effort_reasons(self) -> bool:
        return self.reasoning_effort not in (None, "none", "minimal")

    @property
    def _may_call(self) -> bool:
        return bool(self.tools) and self.tool_choice != "none"

    def _form(self, name_of: Callable[[str], str]) -> AnswerForm | None:
        if self.response_format is None or not self.has_form:
            return None
        return answer_form(
            self.response_format.schema_, name_of("response_format"), name_of("response_format.json_schema.schema")
        )

    def _tool_use(self, form: AnswerForm | None, name_of: Callable[[str], str], calls: CallFormat) -> ToolUse | None:
        if not self._may_call or not self.tools:
            return None
        tools = [tool.model_dump(exclude_unset=True) for tool in self.tools]
        words = tuple(message.in_words() for message in self.messages)
        conversation = ToolConversation(words, turns_of(self.messages), tuple(tools))
        choice = self.tool_choice.model_dump() if isinstance(self.tool_choice, ToolChoice) else self.tool_choice
        places = [name_of(f"tools[{number}].function.parameters") for number in range(len(tools))]
        parallel = self.parallel_tool_calls is not False
        return tool_use(tools, choice, conversation, form, places, parallel=parallel, written=calls)

    def _task(self, header: str) -> str | None:
        """The task's label, from OpenAI's metadata or from a header of our own."""
        named = (self.metadata or {}).get("task", "")
        if named and header and named != header:
            raise invalid_value("metadata.task", "is another one than in the header x-edge-task")
        task = named or header or None
        if task is not None and not is_task_label(task):
            raise invalid_value("metadata.task" if named else "x-edge-task", f"must be {TASK_LABEL_FORM}")
        return task

    def _beyond_text(self, name_of: Callable[[str], str]) -> BeyondText:
        """What of the request goes to the cloud LLM as it came: tools, the answer's form, messages with calls of tools."""
        fields = {
            "tools": self.tools or None,
            "tool_choice": self.tool_choice if self.tools else None,
            "parallel_tool_calls": self.parallel_tool_calls if self.tools else None,
            "response_format": self.response_format if self.has_form else None,
            "messages": self.messages if any(message.has_tools for message in self.messages) else None,
        }
        wanted = {name for name, value in fields.items() if value is not None}
        return BeyondText(self._as_it_came(wanted) if wanted else "", (name_of("tools"),) if self._may_call else ())

    def _as_it_came(self, fields: set[str]) -> str:
        try:
            given = self.model_dump(include=fields, exclude_unset=True)
            text = json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            size = len(text.encode())
        except (ValueError, RecursionError) as error:
            raise RequestProblem(400, "tools or messages hold what is not plain JSON text", code="invalid_json") from error
        if size > MAX_BYTES:
            raise RequestProblem(413, f"tools and messages together are larger than {MAX_BYTES} bytes", code="request_too_large")
        return text


def chat_request(fields: Mapping[str, Any], name_of: Callable[[str], str]) -> ChatRequest:
    """A chat request from what another API's request asks for; a field that is None is left out. `name_of`: how the client calls a
    parameter of the chat request. Raises RequestProblem in the client's words."""
    try:
        return ChatRequest.model_validate({name: value for name, value in fields.items() if value is not None})
    except ValidationError as error:
        problem = invalid_request([{**each, "loc": ("body", *each["loc"])} for each in error.errors()])
        message = str(problem).partition(": ")[2]
        raise invalid_value(name_of(problem.param or ""), message, problem.code or "invalid_value") from error


def renamed(chat_parameter: str, names: Sequence[tuple[str, str]]) -> str:
    """What another API calls a chat request's parameter: the first of the patterns in `names` that begins it is replaced."""
    for pattern, name in names:
        found, count = re.subn(f"^{pattern}", name, chat_parameter)
        if count:
            return found
    return chat_parameter


def text_of(content: Any, place: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of a content in another API's parts, in one piece; a part of a type that is not among `kinds` is refused. `place` is the
    client's name of the content. Raises RequestProblem."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        raise invalid_value(place, "must be a text or a list of text parts")
    return joined_parts(part_text(part, f"{place}[{number}]", kinds) for number, part in enumerate(content))


def part_text(part: Any, place: str, kinds: Sequence[str] = ("text",)) -> str:
    """The text of one of these parts. Raises RequestProblem."""
    kind = part.get("type") if isinstance(part, dict) else None
    text = part.get("refusal" if kind == "refusal" else "text") if isinstance(part, dict) else None
    if kind not in kinds:
        message = f"a part of type {str(kind)[:40]!r} is not supported; this model reads text"
        raise invalid_value(f"{place}.type", message, "unsupported_value")
    if not isinstance(text, str):
        raise invalid_value(f"{place}.text", "must be a text")
    return text


def needed_text(item: Mapping[str, Any], name: str, place: str) -> str:
    """A text that a part of another API's request must have. `place` is the client's name of the part. Raises RequestProblem."""
    value = item.get(name)
    if not isinstance(value, str) or not value:
        raise invalid_value(f"{place}.{name}", "must be a text")
    return value


class EdgeMetadata(ResponseBody):
    """Where an answer came from and what it cost: the fields of `AnswerNote` that the answer does not have elsewhere."""

    id: str
    source: Literal["local", "cloud", "local-fallback"]
    reason: str
    help_log_odds: float | None
    dual: float | None
    calls_left: Count | None
    spend_left_uusd: Count | None
    tokens_left: Count | None
    cloud_tokens: Count
    spend_uusd: Count
    adapter_version: Count
    latency_s: float
    final: str
    task: str
    assist_rate: float | None
    target_rate: float | None
    asked: bool
    model_asked: bool
    ignored_parameters: list[str]


class TokenAlternative(ResponseBody):
    """One token that is possible at a place."""

    token: str
    bytes: list[int]
    logprob: float | None


class TokenLogprob(TokenAlternative):
    """The token that does, and the likeliest ones."""

    top_logprobs: list[TokenAlternative]


class Logprobs(ResponseBody):
    """The tokens of the content; the first of a text, which nothing predicts, cannot be among them."""

    content: list[TokenLogprob]
    refusal: str | None


class AnswerMessage(ResponseBody):
    """The answer."""

    role: Literal["assistant"]
    content: str | None
    refusal: str | None
    reasoning_content: str | None = None
    tool_calls: list[dict[str, Any]] | None = None


class ChatChoice(ResponseBody):
    """One of the answers. With several each has its own `edge` object."""

    index: Count
    message: AnswerMessage
    logprobs: Logprobs | None
    finish_reason: Literal["stop", "length", "tool_calls", "content_filter"]
    edge: EdgeMetadata | None = None


class ChatCompletion(ResponseBody):
    """A whole answer."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: Annotated[list[ChatChoice], Field(min_length=1)]
    usage: Usage
    edge: EdgeMetadata


class AboutModel(ResponseBody):
    """What a model name means."""

    mode: Mode | None
    description: str
    context_length: Count | None


class Model(ResponseBody):
    """A model that can be asked."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    edge: AboutModel


class Models(ResponseBody):
    """All of them."""

    object: Literal["list"]
    data: list[Model]


def completion_id(answer_id: str) -> str:
    """The id of an answer as OpenAI clients expect it."""
    return f"chatcmpl-{answer_id}"


def edge_metadata(request: ChatRequest, note: AnswerNote) -> dict[str, Any]:
    """Where the answer came from, and which parameters had no effect."""
    return {**note.to_json(), "ignored_parameters": list(request.ignored)}


def answer_headers(note: AnswerNote | TaskStanding, answer_id: str = "") -> dict[str, str]:
    """The metadata as response headers, for clients that drop unknown fields; of a stream what is known before it begins."""
    known: Mapping[str, Any] = {"id": answer_id, **note.to_json()}
    values = {name: known.get(field) for name, (field, _) in ANSWER_HEADERS.items()}
    return {
        name: f"{value:.4f}" if isinstance(value, float) else str(value)
        for name, value in values.items()
        if value not in (None, "")
    }


def logprobs_body(tokens: Sequence[ScoredToken]) -> dict[str, Any]:
    """The tokens of the content in the form of the chat API."""

    def alternative(piece: bytes, logprob: float | None) -> dict[str, Any]:
        return {"token": piece.decode("utf-8", "replace"), "bytes": list(piece), "logprob": logprob}

    content = [
        {
            **alternative(token.piece, token.logprob),
            "top_logprobs": [alternative(chance.piece, chance.logprob) for chance in token.top],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def known_model(name: str, models: Mapping[str, Mode | None]) -> str:
    """The name, if there is such a model. Raises RequestProblem."""
    if name not in models:
        message = f"the model {name[:80]!r} does not exist; there are {', '.join(models)}"
        raise RequestProblem(404, message, code="model_not_found", param="model")
    return name


def model_body(name: str, created: int, models: Mapping[str, Mode | None], context_tokens: int | None) -> dict[str, Any]:
    """One model. Raises RequestProblem when there is none of this name."""
    mode = models[known_model(name, models)]
    about = {"mode": mode, "description": _MODEL_DESCRIPTIONS[mode], "context_length": context_tokens}
    return {"id": name, "object": "model", "created": created, "owned_by": "edge-agent", "edge": about}

"""OpenAI's chat request as a cloud call. What a call cannot carry is refused by name, or listed as ignored."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec

from coordinator.calls.broker import MAX_KEY_CHARS, MAX_TEMPERATURE
from edge.core.errors import InvalidRequest
from edge.core.limits import OWN_LABEL, TASK_LABEL_FORM, is_task_label
from edge.core.types import Message, joined_parts
from edge.rpc.client import CloudCall, digest
from edge.rpc.openai_fields import FIELDS, openai_fields

USER_FORM = "1 to 128 letters, digits and . _ @ + -"
_USER = re.compile(r"[A-Za-z0-9._@+-]{1,128}")


class BadParameter(InvalidRequest):
    """A field that cannot be taken as it is; `param` is its name as the client wrote it."""

    def __init__(self, param: str, message: str) -> None:
        super().__init__(f"{param}: {message}")
        self.param = param


class _TextPart(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text"]
    text: str


class _Turn(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[_TextPart]

    @property
    def message(self) -> Message:
        """As a turn whose content is one text."""
        text = self.content if isinstance(self.content, str) else joined_parts(part.text for part in self.content)
        return Message("system" if self.role == "developer" else self.role, text)


class _StreamOptions(msgspec.Struct):
    include_usage: bool = False


_Tokens = Annotated[int, msgspec.Meta(ge=1)]
_ONE = Annotated[int, msgspec.Meta(ge=1, le=1)]
_READ: Mapping[str, Any] = {
    "model": str,
    "stream": bool | None,
    "stream_options": _StreamOptions | None,
    "max_tokens": _Tokens | None,
    "max_completion_tokens": _Tokens | None,
    "temperature": Annotated[float, msgspec.Meta(ge=0.0, le=MAX_TEMPERATURE)] | None,
}
"""What is read here, by type; the other FIELDS go on byte for byte."""
_ONLY_AS: Mapping[str, Any] = {"n": _ONE | None, "logprobs": Literal[False] | None, "modalities": list[Literal["text"]] | None}
"""What has just one value that a call can carry."""
_NEVER = ("functions", "function_call", "audio", "prediction", "web_search_options")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_turns = msgspec.json.Decoder(list[_Turn])
_decoders = {name: msgspec.json.Decoder(kind) for name, kind in {**_READ, **_ONLY_AS}.items()}


@dataclass(frozen=True, slots=True)
class Asked:
    """A chat request: the call it makes, and how its answer is to be sent."""

    call: CloudCall
    stream: bool
    include_usage: bool
    """A stream ends with a chunk of the usage."""
    fresh: bool
    """Another call's stored answer is no answer to it: without a temperature OpenAI's clients expect a new one each time."""
    ignored: tuple[str, ...]
    """Fields without effect."""
    named: bool = True
    """The caller chose its key, so that the same request is the same call."""


def random_key() -> str:
    """A key that no other call has."""
    return f"http-{secrets.token_hex(12)}"


def read_request(
    body: bytes, *, task: str, key: str, user: str, most_tokens: Mapping[str, int], new_key: Callable[[], str] = random_key
) -> Asked:
    """The call that a chat request makes. Raises BadParameter, InvalidRequest.

    `task`: the label that its header names, "" for the model alias. `key`: its Idempotency-Key, "" for none; keys of different users of a
    device are different. `most_tokens`: by alias what a request without a limit may use, which is what is held for it. `new_key`: makes the
    key of a request without one.
    """
    fields = _decoded(body)
    values = {name: _value(name, fields.pop(name)) for name in _decoders if name in fields}
    for name in _NEVER:
        if fields.pop(name, b"null") != b"null":
            raise BadParameter(name, "is not supported by this endpoint")
    alias = values.get("model") or ""
    if not alias:
        raise BadParameter("model", "is missing")
    if "messages" not in fields:
        raise BadParameter("messages", "is missing")
    messages, beyond = _messages(fields["messages"])
    passed = {name: raw for name in FIELDS if (raw := bytes(fields.pop(name, b"null"))) != b"null" and name != "messages"}
    fields.pop("messages", None)
    if beyond is not None:
        passed["messages"] = beyond
    most = most_tokens.get(alias, 1)
    limit_name = "max_completion_tokens" if values.get("max_completion_tokens") else "max_tokens"  # the newer name wins
    limit = values.get(limit_name) or most
    if limit > most and alias in most_tokens:
        raise BadParameter(limit_name, f"is at most {most} for model {alias!r}")
    temperature = values.get("temperature")
    call_key = _call_key(key, user) if key else new_key()
    options = values.get("stream_options")
    call = CloudCall(
        call_key=call_key,
        task=label_of(task, alias),
        step=-1,
        prompt_id=call_key,
        help_units=1,
        messages=messages,
        max_output_tokens=limit,
        model_alias=alias,
        temperature=temperature,
        openai_json=_checked("{" + ",".join(f'"{name}":{raw.decode()}' for name, raw in passed.items()) + "}") if passed else "",
    )
    streamed = bool(values.get("stream"))
    with_usage = bool(options and options.include_usage)
    return Asked(call, streamed, with_usage, temperature is None, tuple(sorted(fields)), named=bool(key))


def label_of(task: str, alias: str) -> str:
    """The task label of a request: what its header says, else the model alias. Raises BadParameter."""
    if task and not is_task_label(task):
        raise BadParameter("x-edge-task", f"must be {TASK_LABEL_FORM}")
    return task or (alias if is_task_label(alias) else OWN_LABEL)


def require_user(user: str, header: str) -> str:
    """The person whom a front end names. Raises InvalidRequest for what nobody may be called."""
    if not _USER.fullmatch(user):
        raise unnamed(header)
    return user


def unnamed(header: str) -> InvalidRequest:
    """Nobody is named, so that nobody's limit would hold."""
    return InvalidRequest(
        f"the header {header} must name the person who asks, by {USER_FORM}",
        hint=f"let the front end send {header}, or take auth.devices.NAME.user_header out of the coordinator's configuration",
    )


def _checked(openai_json: str) -> str:
    """The same. Raises InvalidRequest in the client's words, which the broker's are not."""
    try:
        openai_fields(openai_json)
    except InvalidRequest as error:
        raise InvalidRequest(
            str(error).replace(" of openai_json", "").replace("openai_json", "the request"), hint=error.hint
        ) from None
    return openai_json


def _call_key(key: str, user: str) -> str:
    most = MAX_KEY_CHARS - len(digest([""])[:16]) - 1
    if not (len(key) <= most and key.isprintable()):
        raise BadParameter("idempotency-key", f"must be at most {most} printable characters")
    return f"{digest([user])[:16]}.{key}" if user else key


def _decoded(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        body.decode()
        return _fields.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"the body is no JSON object ({error})") from error


def _value(name: str, raw: msgspec.Raw) -> Any:
    try:
        return _decoders[name].decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        what = "only 1 is supported" if name == "n" else str(error).replace("`", "")
        raise BadParameter(name, what) from error


def _messages(raw: msgspec.Raw) -> tuple[tuple[Message, ...], bytes | None]:
    """The conversation as plain turns, and as it came where it holds more than they do."""
    try:
        turns = _turns.decode(raw)
        if turns:
            return tuple(turn.message for turn in turns), None
    except (msgspec.MsgspecError, RecursionError):
        pass
    return (Message("user", ""),), bytes(raw)

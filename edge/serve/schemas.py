"""What all request bodies share: strict pydantic models, checks that name the field at fault, and fields of several routes.

The ranges are defined here once. FastAPI checks requests by them and describes them at /openapi.json.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WrapValidator
from pydantic_core import PydanticCustomError
from starlette.responses import JSONResponse

from edge.core.formatting import shown
from edge.core.limits import TASK_LABEL_FORM, is_task_label
from edge.core.rates import rate_of
from edge.core.types import SamplingWishes

MAX_TOKENS = 32_768
MAX_CHOICES = 8


def _dumped(body: Any) -> Any:
    """A model within what is encoded."""
    return body.model_dump(mode="json")


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_dumped).encode
_LEAST_TOP_P = 1e-9
"""A top_p of 0 is the likeliest token alone."""


def field_error(field: str, message: str, code: str = "invalid_value") -> PydanticCustomError:
    """An error in `field` of the model that is checked, with the `code` of the API ("" is the checked value itself)."""
    return PydanticCustomError("field_error", "{message}", {"message": message, "field": field, "code": code})


def explain(message: str, code: str = "invalid_value") -> WrapValidator:
    """One sentence instead of pydantic's error for each member of a union. Errors that name a field of their own stay."""

    def check(value: Any, inner: Callable[[Any], Any]) -> Any:
        try:
            return inner(value)
        except ValidationError as error:
            if any(one["type"] == "field_error" for one in error.errors()):
                raise
            raise field_error("", message, code) from error

    return WrapValidator(check)


def _encodable(text: str) -> str:
    """JSON allows half of a surrogate pair; no tokenizer does."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise field_error("", "is not valid Unicode text") from error
    return text


def _task_label(name: str) -> str:
    if name and not is_task_label(name):
        raise field_error("", f"must be {TASK_LABEL_FORM}")
    return name


def _plain_number(value: Any) -> Any:
    """Digits with at most one point: a query has neither signs nor exponents nor spaces."""
    if isinstance(value, str) and not (value.isascii() and value.replace(".", "", 1).isdigit() and len(value) <= 20):
        raise field_error("", "must be a number of digits")
    return value


def _as_written(value: Any) -> Any:
    """Text is read as people write rates, also in a list; for a number above 1 the error suggests what may be meant."""
    if isinstance(value, list):
        return [_as_written(one) for one in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    try:
        return rate_of(value) if isinstance(value, str) or (is_number and value > 1) else value
    except ValueError as error:
        raise field_error("", str(error)) from error


def _refused(value: Any) -> Any:
    if value not in (None, False, [], "none", "", 0):
        raise field_error("", "not supported by this endpoint", "unsupported_parameter")
    return value


Text = Annotated[str, AfterValidator(_encodable)]
TaskLabel = Annotated[str, AfterValidator(_task_label), Field(description=f"{TASK_LABEL_FORM}, or empty")]
Share = Annotated[float, Field(ge=0, le=1)]
AS_WRITTEN = BeforeValidator(_as_written)
"""Shares may come as text: 30 %."""
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=0)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
DIGITS = BeforeValidator(_plain_number)
QueryInt = Annotated[int, Field(ge=0, lt=10**12), DIGITS]
Unsupported = Annotated[Any, AfterValidator(_refused), Field(description="Not supported.")]
_StopText = Annotated[str, Field(min_length=1, max_length=256)]
Stop = Annotated[
    _StopText | Annotated[list[_StopText], Field(max_length=16)] | None,
    explain("must be a string of 1 to 256 characters, or a list of at most 16 of them"),
]


class RequestBody(BaseModel):
    """A JSON object of a request: values are never converted, fields of other names are left aside."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, extra="ignore")


class Passed(RequestBody):
    """A part of a request that goes on as it came, with the fields that nobody here reads."""

    model_config = ConfigDict(extra="allow")


class ResponseBody(BaseModel):
    """A JSON object of a response, maybe with further fields; read from JSON, or from a value with fields of these names."""

    model_config = ConfigDict(extra="allow", from_attributes=True)


_ASKS_NOTHING: tuple[Any, ...] = (None, {}, [], "disabled")
"""Values that a field without effect may have unnamed; "disabled" is what OpenAI's `truncation` is by default."""


class NamesIgnored(RequestBody):
    """A request for text, or a part of one: fields of other names have no effect, which edge.ignored_parameters of the answer lists."""

    model_config = ConfigDict(extra="allow")

    @property
    def ignored(self) -> tuple[str, ...]:
        """The names of the fields without effect that ask for something; those in a part have its name before them."""
        names = [shown(name) for name, value in (self.model_extra or {}).items() if value not in _ASKS_NOTHING]
        for part, value in self:
            if isinstance(value, NamesIgnored):
                names += [f"{part}.{name}" for name in value.ignored]
        return tuple(names)


class StreamOptions(NamesIgnored):
    """Options of a streamed answer."""

    include_usage: bool | None = None


class SamplingFields(NamesIgnored):
    """What chat and plain completions have in common."""

    model: str = "edge"
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Share | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None
    stop: Stop = None
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None

    @property
    def choices(self) -> int:
        """How many answers are asked for, to each prompt."""
        return self.n or 1

    @property
    def stops(self) -> tuple[str, ...]:
        """The stop strings."""
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def include_usage(self) -> bool:
        """Whether the tokens are reported at the end of a stream."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling_wishes(self, top_logprobs: int | None = None) -> SamplingWishes:
        """What is asked of the sampling of local text."""
        return SamplingWishes(
            top_p=1.0 if self.top_p is None else max(self.top_p, _LEAST_TOP_P),
            presence_penalty=self.presence_penalty or 0.0,
            frequency_penalty=self.frequency_penalty or 0.0,
            stops=self.stops,
            top_logprobs=top_logprobs,
        )

    def check_stream_options(self) -> None:
        """Raises where there are options of a stream that is not asked for."""
        if self.stream_options is not None and not self.stream:
            raise field_error("stream_options", "only together with stream")


class JSONAnswer(JSONResponse):
    """A JSON response whose encoder is made once."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return _encode(content).encode()


class PromptDetails(ResponseBody):
    """How much of the prompt this device had read for an earlier conversation."""

    cached_tokens: Count


class Usage(ResponseBody):
    """Tokens of the prompt and of the answer."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptDetails


def usage_body(prompt_tokens: int, completion_tokens: int, cached_tokens: int) -> dict[str, Any]:
    """The usage with its total."""
    total = prompt_tokens + completion_tokens
    counts = {"prompt_tokens": prompt_tokens, "completion_tokens": completion_tokens, "total_tokens": total}
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached_tokens}}


class ErrorDetails(ResponseBody):
    """What went wrong, of which kind, and in which field."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(ResponseBody):
    """The error object of the OpenAI API."""

    error: ErrorDetails

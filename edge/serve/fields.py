"""Fields of request bodies, checked one by one. Knows JSON values and limits; knows nothing of what the fields are for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from edge.core.types import SamplingWishes
from edge.serve.failures import RequestProblem

MAX_TOKENS = 32_768
_MOST_STOPS, _MOST_STOP_CHARS = 16, 256
_LEAST_SHARE = 1e-9
"""A top_p of 0 is the likeliest token alone."""


def parse_json(body: bytes) -> Mapping[str, Any]:
    """A JSON object. Raises RequestProblem otherwise."""
    try:
        value = json.loads(body, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise RequestProblem(400, f"the body is not JSON ({type(error).__name__})", code="invalid_json") from error
    if not isinstance(value, dict):
        raise RequestProblem(400, "the body must be a JSON object", code="invalid_json")
    return value


def bad(param: str, message: str, code: str = "invalid_value") -> RequestProblem:
    """A field that cannot be taken as it is."""
    return RequestProblem(400, f"{param}: {message}", code=code, param=param)


def encodable(param: str, text: str) -> str:
    """The text, if it has bytes at all: JSON allows half of a surrogate pair; no tokenizer does. Raises RequestProblem."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise bad(param, "is not valid Unicode text") from error
    return text


def integer(value: Mapping[str, Any], name: str, low: int, high: int) -> int | None:
    """A whole number from low to high, None where it is not given. Raises RequestProblem."""
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int) or not low <= number <= high:
        raise bad(name, f"must be a whole number from {low} to {high}")
    return number


def number(value: Mapping[str, Any], name: str, low: float, high: float) -> float | None:
    """A number from low to high, None where it is not given. Raises RequestProblem."""
    number = value.get(name)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, int | float) or not low <= number <= high:
        raise bad(name, f"must be a number from {low:g} to {high:g}")
    return float(number)


def boolean(value: Mapping[str, Any], name: str) -> bool:
    """True or false; false where it is not given. Raises RequestProblem."""
    flag = value.get(name)
    if flag is not None and not isinstance(flag, bool):
        raise bad(name, "must be true or false")
    return bool(flag)


def include_usage(value: Mapping[str, Any], stream: bool) -> bool:
    """Whether stream_options asks for the tokens at the end of a stream. Raises RequestProblem."""
    options = value.get("stream_options")
    if options is None:
        return False
    if not isinstance(options, dict) or not stream:
        raise bad("stream_options", "only an object, and only together with stream")
    return boolean(options, "include_usage")


def stops(value: Any) -> tuple[str, ...]:
    """The stop strings: one, or a list of them. Raises RequestProblem."""
    stops: Sequence[Any] = [value] if isinstance(value, str) else [] if value is None else value
    if not isinstance(stops, list) or len(stops) > _MOST_STOPS:
        raise bad("stop", f"must be a string or a list of at most {_MOST_STOPS}")
    if any(not isinstance(stop, str) or not 0 < len(stop) <= _MOST_STOP_CHARS for stop in stops):
        raise bad("stop", f"each must be a string of 1 to {_MOST_STOP_CHARS} characters")
    return tuple(stops)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def sampling_wishes(value: Mapping[str, Any], top_logprobs: int | None = None) -> SamplingWishes:
    """What the body asks of the sampling of local text. Raises RequestProblem."""
    top_p = number(value, "top_p", 0.0, 1.0)
    return SamplingWishes(
        top_p=1.0 if top_p is None else max(top_p, _LEAST_SHARE),
        presence_penalty=number(value, "presence_penalty", -2.0, 2.0) or 0.0,
        frequency_penalty=number(value, "frequency_penalty", -2.0, 2.0) or 0.0,
        stops=stops(value.get("stop")),
        top_logprobs=top_logprobs,
    )

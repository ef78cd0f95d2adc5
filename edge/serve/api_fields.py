"""Fields of requests to the agent's own routes. Knows names, ranges and what is said of a wrong one; knows nothing of routes.

Every function raises RequestProblem that names the field at fault.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request

from edge.cloud.sent import SENT_KINDS, Choice
from edge.core.limits import TASK_LABEL_FORM, is_task_label
from edge.serve.failures import RequestProblem
from edge.serve.fields import encodable, parse_json
from edge.state.feedback import MOST_CORRECTION_CHARS, steers

_MOST_SENT = 500
_LAST, _MOST_ANSWERS, _MOST_RATES = 1000, 100_000, 64
_MOST_DIGITS = 12


def feedback_of(body: bytes) -> tuple[str, str, str | None]:
    """{"id": ID, "verdict": "good"|"bad"|"none", "correction": TEXT|null}."""
    given = parse_json(body)
    answer_id, verdict, correction = given.get("id"), given.get("verdict"), given.get("correction")
    if not isinstance(answer_id, str) or not answer_id:
        raise _invalid("id", "must be the id of an answer")
    if verdict not in ("good", "bad", "none"):
        raise _invalid("verdict", 'must be "good", "bad" or "none"')
    if not isinstance(correction, str | None):
        raise _invalid("correction", "must be a text or null")
    return encodable("id", answer_id).removeprefix("chatcmpl-"), verdict, _correction(correction)


def _correction(text: str | None) -> str | None:
    if text is None:
        return None
    if len(text) > MOST_CORRECTION_CHARS:
        raise _invalid("correction", f"must have at most {MOST_CORRECTION_CHARS} characters")
    if steers(encodable("correction", text)):
        raise _invalid("correction", "holds control characters; only line ends and tabs may stand in it")
    return text


def dial_of(body: bytes) -> tuple[str | None, float | None]:
    """{"task": label, or null for every task, "target_rate": share, or null for none}."""
    given = parse_json(body)
    if "target_rate" not in given:
        raise _invalid("target_rate", 'is missing, as in {"target_rate": 0.15}')
    return label_of(given) or None, None if given["target_rate"] is None else share_of(given["target_rate"])


def task_of(body: bytes) -> str:
    """{"task": label}."""
    if not (task := label_of(parse_json(body))):
        raise _invalid("task", 'is missing, as in {"task": "math"}')
    return task


def rates_of(body: bytes) -> tuple[list[float], str, int]:
    """{"target_rate": share, or a list of them; "task": label; "last": how many answers}."""
    given = parse_json(body)
    rate, last = given.get("target_rate"), given.get("last", _LAST)
    rates = [share_of(one) for one in (rate if isinstance(rate, list) else [rate])]
    if not 1 <= len(rates) <= _MOST_RATES:
        raise _invalid("target_rate", f"must be one rate, or from 1 to {_MOST_RATES} of them")
    if isinstance(last, bool) or not isinstance(last, int) or not 1 <= last <= _MOST_ANSWERS:
        raise _invalid("last", f"must be a whole number from 1 to {_MOST_ANSWERS}")
    return rates, label_of(given), last


def paused_of(body: bytes) -> bool:
    """{"paused": true|false}."""
    paused = parse_json(body).get("paused")
    if not isinstance(paused, bool):
        raise _invalid("paused", 'must be true or false, as in {"paused": true}')
    return paused


def version_of(body: bytes) -> int:
    """{"version": N}."""
    try:
        version = json.loads(body)["version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        version = None
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version < 10**_MOST_DIGITS:
        raise _invalid("version", 'must be a whole number, as in {"version": 12}')
    return version


def choice_of(request: Request) -> Choice:
    """?limit=&before=&since=&kind=&answer= of what left."""
    asked = request.query_params
    kind = asked.get("kind") or None
    if kind is not None and kind not in SENT_KINDS:
        raise _invalid("kind", f"must be one of {', '.join(SENT_KINDS)}")
    limit = number_of(request, "limit", 50)
    if not 1 <= limit <= _MOST_SENT:
        raise _invalid("limit", f"must lie between 1 and {_MOST_SENT}")
    before = number_of(request, "before", 0) or None
    since = float(number_of(request, "since", 0)) or None
    return Choice(limit, before, since, kind, asked.get("answer", "").removeprefix("chatcmpl-") or None)


def since_of(request: Request) -> float:
    """?since= in seconds since the epoch; 0 where it is not given."""
    text = request.query_params.get("since", "0")
    if len(text) > 20 or not text.isascii() or not text.replace(".", "", 1).isdigit():
        raise _invalid("since", "must be seconds since the epoch")
    return float(text)


def number_of(request: Request, name: str, otherwise: int) -> int:
    """A whole number of the query."""
    return _whole(name, request.query_params.get(name, str(otherwise)))


def entry_of(request: Request) -> int:
    """The number of an entry, of the path."""
    return _whole("entry_id", request.path_params["entry_id"])


def share_of(value: Any, name: str = "target_rate") -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0.0 <= value <= 1.0:
        raise _invalid(name, "must be a number from 0 to 1")
    return float(value)


def label_of(given: Mapping[str, Any]) -> str:
    """The label of a task; "" where it is not given."""
    value = given.get("task")
    if value in (None, ""):
        return ""
    if not isinstance(value, str) or not is_task_label(value):
        raise _invalid("task", f"must be {TASK_LABEL_FORM}")
    return value


def _whole(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > _MOST_DIGITS:
        raise _invalid(name, "must be a whole number")
    return int(text)


def _invalid(param: str, message: str) -> RequestProblem:
    return RequestProblem(400, f"{param}: {message}", code="invalid_value", param=param)

"""The description of the endpoint that programs read, at /openapi.json. Knows OpenAPI's form; what is described stands in openapi_routes.py
and openapi_shapes.py. It is written by hand beside the parsers, which say more in one line than a schema could make them say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from edge import __version__

Shape = Mapping[str, Any]
_BEARER = "token"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path. `answer` and `body` name a shape, or are one; `stream`: the answer may also be server-sent events.

    `parameters` are OpenAPI's. `failures` are the status codes of refusals that this route has beside those of all;
    `also` are further answers that are none. `open`: it needs no token.
    """

    method: str
    path: str
    summary: str
    answer: str | Shape
    body: str | Shape | None = None
    parameters: Sequence[Shape] = ()
    failures: Sequence[int] = ()
    stream: bool = False
    answer_headers: Mapping[str, str] = field(default_factory=dict)
    also: Mapping[int, str] = field(default_factory=dict)
    open: bool = False


ALWAYS = (400, 403, 408, 413, 415, 429, 431, 500)
"""What the guard refuses at any route: a GET may come with a body too."""


def document(operations: Sequence[Operation], shapes: Mapping[str, Shape], *, token: bool) -> dict[str, Any]:
    """The whole OpenAPI document. `token`: the endpoint asks for one."""
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, token)
    components: dict[str, Any] = {"schemas": dict(shapes)}
    if token:
        components["securitySchemes"] = {_BEARER: {"type": "http", "scheme": "bearer"}}
    info = {"title": "edge-agent", "version": __version__, "description": "A small language model on this machine."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def _described(operation: Operation, token: bool) -> dict[str, Any]:
    described: dict[str, Any] = {"summary": operation.summary, "responses": _responses(operation, token)}
    if operation.parameters:
        described["parameters"] = list(operation.parameters)
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": _shape(operation.body)}}}
    if token and not operation.open:
        described["security"] = [{_BEARER: []}]
    return described


def _responses(operation: Operation, token: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"application/json": {"schema": _shape(operation.answer)}}
    if operation.stream:
        content["text/event-stream"] = {"schema": {"description": "Each event a chunk as OpenAI's, then [DONE]."}}
    good: dict[str, Any] = {"description": "As asked for", "content": content}
    if operation.answer_headers:
        told = {name: {"description": text, "schema": {"type": "string"}} for name, text in operation.answer_headers.items()}
        good["headers"] = told
    failures = {*ALWAYS, *operation.failures, *((401,) if token else ())}
    others = {**dict.fromkeys(sorted(failures), "Error"), **operation.also}
    return {"200": good, **{str(code): _other(code, shape) for code, shape in others.items()}}


def _other(code: int, shape: str) -> dict[str, Any]:
    return {"description": HTTPStatus(code).phrase, "content": {"application/json": {"schema": _shape(shape)}}}


def _shape(named: str | Shape) -> Shape:
    return {"$ref": f"#/components/schemas/{named}"} if isinstance(named, str) else named

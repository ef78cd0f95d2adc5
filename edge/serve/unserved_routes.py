"""Routes of OpenAI's and Anthropic's APIs that are not served here: each answers so, and names what is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from edge.serve.errors import RequestProblem

_NO_PLACE = "nothing is kept or run for clients here"
_WHY: Mapping[str, str] = {
    "embeddings": "the model on this device writes texts, it makes no embeddings",
    "moderations": "the model on this device judges no texts",
    "images": "the model on this device reads and writes texts",
    "audio": "the model on this device reads and writes texts",
    "videos": "the model on this device reads and writes texts",
    "realtime": "answers are streamed over HTTP alone",
    "rerank": "the model on this device ranks no texts",
    **dict.fromkeys(
        (
            "files",
            "uploads",
            "batches",
            "fine_tuning",
            "assistants",
            "threads",
            "vector_stores",
            "conversations",
            "containers",
            "evals",
            "messages/batches",
        ),
        _NO_PLACE,
    ),
}
_SERVED = "/v1/chat/completions, /v1/responses, /v1/messages, /v1/completions and /v1/models are"
_METHODS = ("GET", "POST", "DELETE")


def unserved_routes() -> Iterator[Route]:
    """The routes. 404 is what a client of OpenAI's does not try again."""
    for name in _WHY:
        for path in (f"/v1/{name}", f"/v1/{name}/{{rest:path}}"):
            yield Route(path, _refuse, methods=_METHODS, include_in_schema=False)


async def _refuse(request: Request) -> Response:
    path = request.url.path
    why = next(why for name, why in _WHY.items() if f"{path}/".startswith(f"/v1/{name}/"))
    raise RequestProblem(404, f"{path[:80]} is not served here: {why}; {_SERVED}", code="route_not_served")

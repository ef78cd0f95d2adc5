"""/metrics of an agent, read by Prometheus's own parser, and OpenAI routes that are not served."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import openai
import pytest

from edge.testing.coordinator import ScriptedTerms
from tests.worlds.agent import World
from tests.worlds.metrics_page import Sample, samples_of
from tests.worlds.openai_agent import TOKEN, Served, ask, client_of, scripted
from tests.worlds.served_agent import in_a_thread

SECRET = "the-colour-of-my-house"


def get(url: str, token: str = "") -> tuple[int, str, str]:
    """Status, media type and text."""
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.headers["content-type"], answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, "", ""


def scraped(url: str, token: str = "") -> Sample:
    status, kind, text = get(f"{url}/metrics", token)
    assert (status, kind) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert SECRET not in text and TOKEN not in text
    return samples_of(text)


def value(samples: Any, name: str, **labels: str) -> float:
    return samples[f"edge_agent_{name}", frozenset(labels.items())]


async def learned(world: World) -> None:
    async with world.agent() as agent:
        await agent.learn(2)


def test_requests_answers_tokens_learning_and_the_budget_are_reported(tmp_path: Path) -> None:
    world = World(tmp_path / "state", terms=ScriptedTerms(calls_limit=50))
    asyncio.run(learned(world))
    world.script, world.client = scripted, world.client
    served = Served(world)
    with in_a_thread(served.open) as url, client_of(url) as client:
        cloud, local = ask(client, metadata={"task": "math"}), ask(client, model="edge-local")
        list(ask(client, model="edge-local", stream=True))
        client.responses.create(model="edge-local", input=SECRET)
        with pytest.raises(openai.NotFoundError):
            ask(client, model=SECRET)
        assert get(f"{url}/{SECRET}")[0] == 404
        with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):  # it lists the served routes
            client.embeddings.create(model="edge", input=SECRET)
        seen, again = scraped(url), scraped(url)
    chat = {"method": "POST", "route": "/v1/chat/completions"}
    assert [value(seen, "http_requests_total", **chat, status=status) for status in ("200", "404")] == [3, 1]
    assert value(seen, "http_requests_total", method="POST", route="/v1/responses", status="200") == 1
    assert value(seen, "http_requests_total", method="GET", route="other", status="404") == 1
    assert value(again, "http_requests_total", method="GET", route="/metrics", status="200") == 1
    assert value(seen, "http_request_seconds_count", route="/v1/chat/completions") == 4
    assert value(seen, "answers_total", source="cloud", finish="stop") == 1
    assert value(seen, "answers_total", source="local", finish="stop") == 3
    assert value(seen, "answer_seconds_count", source="local") == 3
    assert value(seen, "answer_tokens_total", source="cloud", direction="output") == cloud.usage.completion_tokens
    assert value(seen, "answer_tokens_total", source="local", direction="input") > local.usage.prompt_tokens
    assert (value(seen, "learning_steps_total"), value(seen, "adapter_version"), value(seen, "coordinator_reached")) == (2, 2, 1)
    assert value(seen, "cloud_calls_total", purpose="serving") == 1
    assert value(seen, "budget_limit", unit="calls") == 50
    assert value(seen, "budget_used", unit="calls") + value(seen, "budget_left", unit="calls") == 50
    assert value(seen, "dual", task="math") >= 0 and value(seen, "assist_rate", task="math") > 0


def test_metrics_want_the_token_and_name_no_caller(tmp_path: Path) -> None:
    served = Served(World(tmp_path / "state", script=scripted), TOKEN)
    with in_a_thread(served.open) as url:
        assert get(f"{url}/metrics")[0] == 401
        assert get(f"{url}/metrics", SECRET)[0] == 401
        seen = scraped(url, TOKEN)
    assert value(seen, "http_requests_total", method="GET", route="other", status="401") == 2


def test_abandoned_request_is_counted_as_abandoned(tmp_path: Path) -> None:
    served = Served(World(tmp_path / "state", script=scripted, seconds_per_token=0.2))
    with in_a_thread(served.open) as url:
        with client_of(url, timeout=0.3) as client, pytest.raises(openai.APITimeoutError):
            ask(client, model="edge-local")
        assert served.idle()
        seen = scraped(url)
    assert value(seen, "http_requests_total", method="POST", route="/v1/chat/completions", status="499") == 1

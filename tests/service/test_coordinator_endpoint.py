"""The coordinator's OpenAI-compatible endpoint: OpenAI's own client against it, limits of devices and of people, credentials, errors."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from coordinator.app import Coordinator
from coordinator.calls.admission import Gate
from coordinator.config import AuthConfig
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.providers.provider import ProviderResult
from coordinator.service import http_listener, http_server
from coordinator.service.tokens import TokenAuthority, TokenStore
from edge.core.clock import SystemClock
from edge.core.errors import PermissionDenied
from edge.core.types import TokenUsage
from tests.until import until
from tests.worlds.coordinator import (
    CALLED,
    Held,
    ProgrammedProvider,
    answer,
    call,
    connected,
    failing,
    fleet_use,
    running_coordinator,
)
from tests.worlds.secure_fleet import SecureFleet

QUESTION: list[Any] = [{"role": "user", "content": "what is 2+2?"}]
TOOL: Any = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CHARGE_UUSD = 10 + 2 * 5
_OPEN: list[openai.AsyncOpenAI] = []


@asynccontextmanager
async def serving(folder: Path, provider: ProgrammedProvider | None = None, **config: Any) -> AsyncIterator[Coordinator]:
    """A coordinator with the endpoint on a free port; it closes the clients that were made meanwhile."""
    async with running_coordinator(folder, provider or ProgrammedProvider(), openai_listen="127.0.0.1:0", **config) as it:
        try:
            yield it
        finally:
            while _OPEN:
                await _OPEN.pop().close()


def key_for(folder: Path, name: str, *tasks: str, role: str = "client") -> str:
    """A token, as `edge-coordinator token issue` makes it."""
    return TokenAuthority(TokenStore(folder), AuthConfig(), SystemClock()).issue(role, name, tasks)


def client_of(it: Coordinator, key: str, **settings: Any) -> openai.AsyncOpenAI:
    """OpenAI's client, which sends nothing twice unless told so."""
    client = openai.AsyncOpenAI(base_url=it.serving.openai_url, api_key=key, **{"max_retries": 0, **settings})
    _OPEN.append(client)
    return client


async def ask(client: openai.AsyncOpenAI, content: str = "what is 2+2?", **fields: Any) -> Any:
    """One chat completion of at most 20 tokens."""
    messages: list[Any] = [{"role": "user", "content": content}]
    return await client.chat.completions.create(**{"model": "default", "messages": messages, "max_tokens": 20, **fields})


def under(key: str) -> dict[str, Any]:
    """An Idempotency-Key."""
    return {"extra_headers": {"Idempotency-Key": key}}


async def test_openais_client_asks_whole_and_streamed_and_is_charged_as_over_grpc(tmp_path) -> None:
    store = MemoryLedgerStore()
    async with serving(tmp_path, store=store) as it, connected(tmp_path) as grpc_client:
        client = client_of(it, key_for(tmp_path, "webui"))
        whole = await ask(client)
        assert whole.choices[0].message.content == "WHAT IS 2+2?" and whole.choices[0].finish_reason == "stop"
        assert whole.usage.model_dump(include={"prompt_tokens", "completion_tokens"}) == {
            "prompt_tokens": 10,
            "completion_tokens": 5,
        }
        assert whole.edge["charged_uusd"] == CHARGE_UUSD and not whole.edge["cached"]
        stream = await ask(client, stream=True, stream_options={"include_usage": True})
        chunks = [chunk async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "WHAT IS 2+2?"
        assert chunks[-1].usage.total_tokens == 15 and chunks[-2].choices[0].finish_reason == "stop"
        await grpc_client.complete(call("k1"), 10.0)
        assert await fleet_use(store) == ((3, 3 * CHARGE_UUSD), (0, 0))
        assert [model.id async for model in client.models.list()] == ["default"]
        assert (await client.models.retrieve("default")).owned_by == "edge-coordinator"


def test_the_blocking_client_works_as_well(tmp_path) -> None:
    async def main() -> str:
        async with serving(tmp_path) as it:
            key = key_for(tmp_path, "script")

            def work() -> str:
                with openai.OpenAI(base_url=it.serving.openai_url, api_key=key, max_retries=0) as client:
                    return asked(client)

            def asked(client: openai.OpenAI) -> str:
                stream = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=20, stream=True)
                streamed = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
                whole = client.chat.completions.create(model="default", messages=QUESTION, max_tokens=20)
                return f"{streamed} {whole.choices[0].message.content}"

            return await asyncio.to_thread(work)

    assert asyncio.run(main()) == "WHAT IS 2+2? WHAT IS 2+2?"


async def test_a_repeated_key_gets_the_same_answer_and_one_charge(tmp_path) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with serving(tmp_path, provider, store=store) as it, connected(tmp_path, "webui") as grpc_client:
        client = client_of(it, key_for(tmp_path, "webui"))
        both = await asyncio.gather(ask(client, **under("k1")), ask(client, **under("k1")))
        again = await ask(client, **under("k1"), stream=True)
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in again])
        assert {text, *(one.choices[0].message.content for one in both)} == {"WHAT IS 2+2?"}
        assert (await grpc_client.get_call("k1")).text == text  # the same call over the other protocol
        with pytest.raises(openai.ConflictError, match="other content"):
            await ask(client, "another question", **under("k1"))
        assert len(provider.requests) == 1 and await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


async def test_openais_own_retries_under_one_key_are_charged_once(tmp_path) -> None:
    times = 0

    async def busy_twice(request) -> ProviderResult:
        nonlocal times
        times += 1
        return await (failing("http_503", retry_after_s=0.0)(request) if times <= 2 else answer(request))

    store = MemoryLedgerStore()
    async with serving(tmp_path, ProgrammedProvider(busy_twice), store=store) as it:
        client = client_of(it, key_for(tmp_path, "webui"), max_retries=5)
        assert (await ask(client, **under("k1"))).edge["charged_uusd"] == CHARGE_UUSD
    assert times == 3 and await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


async def test_a_question_without_a_key_is_a_new_one_each_time_unless_it_wants_the_likeliest_answer(tmp_path) -> None:
    provider = ProgrammedProvider()
    async with serving(tmp_path, provider) as it:
        client = client_of(it, key_for(tmp_path, "webui"))
        assert [(await ask(client)).edge["cached"] for _ in range(2)] == [False, False]
        assert [(await ask(client, temperature=0)).edge["cached"] for _ in range(2)] == [False, True]
    assert len(provider.requests) == 3


async def test_a_used_up_budget_is_429_with_its_name_and_when_it_opens(tmp_path) -> None:
    budgets = {"device": {"calls_limit": 1, "window": "day"}}
    async with serving(tmp_path, budgets=budgets) as it:
        client = client_of(it, key_for(tmp_path, "webui"), max_retries=3)
        await ask(client)
        with pytest.raises(openai.RateLimitError) as refused:
            await ask(client)
        assert await ask(client_of(it, key_for(tmp_path, "other")))
        with pytest.raises(openai.RateLimitError):  # before the first event, so that it has a status
            await ask(client, stream=True)
        error: Any = refused.value.body
        assert error["code"] == "budget_exhausted" and error["budget"].startswith("device[device:webui]@")
        assert error["type"] == "insufficient_quota" and error["opens_at"].endswith("T00:00:00Z")
        headers = refused.value.response.headers
        assert headers["x-should-retry"] == "false" and 0 < int(headers["retry-after"]) <= 86400
        usage = await client.get("/usage", cast_to=dict[str, Any])
        device = next(row for row in usage["budgets"] if row["scope"] == "device")
        assert device["calls"] == {"used": 1, "limit": 1} and device["opens_at"] == error["opens_at"]
        assert {row["scope"] for row in usage["budgets"]} == {"device"}


async def test_people_whom_a_front_end_names_have_budgets_answers_and_keys_of_their_own(tmp_path) -> None:
    auth = {"devices": {"webui": {"user_header": "X-OpenWebUI-User-Id"}}}
    budgets = {"user": {"calls_limit": 2}, "device": {"calls_limit": 4}}
    provider = ProgrammedProvider()
    async with serving(tmp_path, provider, auth=auth, budgets=budgets) as it:
        key = key_for(tmp_path, "webui")

        def of(user: str) -> openai.AsyncOpenAI:
            return client_of(it, key, default_headers={"X-OpenWebUI-User-Id": user})

        ann, bob, eve = of("ann@example.org"), of("bob"), of("eve")
        await ask(ann, "my secret", temperature=0, **under("k1"))
        assert not (await ask(bob, "my secret", temperature=0, **under("k1"))).edge["cached"]
        assert (await ask(ann, "my secret", temperature=0)).edge["cached"]
        await ask(ann)
        with pytest.raises(openai.RateLimitError, match=r"user\[device:webui/user:ann@example.org\]"):
            await ask(ann)
        await ask(bob)
        with pytest.raises(openai.RateLimitError, match=r"budget device\[device:webui\]"):
            await ask(eve)
        usage = await bob.get("/usage?task=default", cast_to=dict[str, Any])
        assert {row["scope"]: row["calls"]["used"] for row in usage["budgets"]}["user"] == 2 and usage["user"] == "bob"
        for nobody in ("", "a b", "x" * 200):
            with pytest.raises(openai.BadRequestError, match="must name the person"):
                await ask(of(nobody))
        spoof = client_of(it, key_for(tmp_path, "laptop"), default_headers={"X-OpenWebUI-User-Id": "zoe"})
        await ask(spoof)  # of another device the header means nothing
        nobody = await client_of(it, key).get("/usage", cast_to=dict[str, Any])
        assert nobody["user"] is None and {row["scope"] for row in nobody["budgets"]} == {"device"}
        async with aiohttp.ClientSession() as session:
            headers = [("authorization", f"Bearer {key}"), *[("X-OpenWebUI-User-Id", user) for user in ("ann", "bob")]]
            body = {"model": "default", "messages": QUESTION}
            async with session.post(f"{it.serving.openai_url}/chat/completions", json=body, headers=headers) as reply:
                assert reply.status == 400 and "more than once" in (await reply.json())["error"]["message"]
        async with connected(tmp_path, "webui") as grpc_client:
            with pytest.raises(PermissionDenied, match="names people"):
                await grpc_client.complete(call("k2"), 10.0)
            with pytest.raises(PermissionDenied, match="names people"):
                await grpc_client.get_call("k1")
    assert len(provider.requests) == 5


async def test_without_a_key_a_request_of_this_machine_is_local_and_no_other_device(tmp_path) -> None:
    store = MemoryLedgerStore()
    async with serving(tmp_path, store=store) as it, aiohttp.ClientSession() as session:
        body, headers = {"model": "default", "messages": QUESTION}, {"device-id": "webui"}
        async with session.post(f"{it.serving.openai_url}/chat/completions", json=body, headers=headers) as reply:
            assert reply.status == 200
        keys = {row.key for row in await store.list_budgets_after("", 100, with_steps=True)}
        assert "device[device:local]" in keys and "device[device:webui]" not in keys


async def test_the_label_is_the_alias_or_the_headers_and_a_token_is_held_to_its_tasks(tmp_path) -> None:
    budgets = {"device_task": {"calls_limit": 1}}
    async with serving(tmp_path, budgets=budgets) as it:
        client, math = client_of(it, key_for(tmp_path, "webui")), client_of(it, key_for(tmp_path, "pupil", "math"))
        await ask(client)
        with pytest.raises(openai.RateLimitError, match="task:default"):
            await ask(client)
        labelled = {"extra_headers": {"X-Edge-Task": "math"}}
        await ask(client, **labelled)
        with pytest.raises(openai.PermissionDeniedError, match="may not work on task 'default'"):
            await ask(math)
        await ask(math, **labelled)
        with pytest.raises(openai.BadRequestError, match="x-edge-task"):
            await ask(client, extra_headers={"X-Edge-Task": "two words"})


async def test_credentials_are_as_over_grpc(tmp_path) -> None:
    async with serving(tmp_path) as it:
        good = key_for(tmp_path, "webui")
        await ask(client_of(it, good))
        await ask(client_of(it, key_for(tmp_path, "lamp", role="device")))
        with pytest.raises(openai.AuthenticationError, match="malformed"):
            await ask(client_of(it, "sk-123"))
        for role in ("admin", "console", "metrics"):
            with pytest.raises(openai.PermissionDeniedError, match=f"role {role} may not ask"):
                await ask(client_of(it, key_for(tmp_path, "eve", role=role)))
        TokenAuthority(TokenStore(tmp_path), AuthConfig(), SystemClock()).revoke("client", "webui")
        async with asyncio.timeout(60):
            while not await _is_refused(it, good):
                await asyncio.sleep(0.05)
        async with aiohttp.ClientSession() as session:
            url = f"{it.serving.openai_url}/chat/completions"
            body = json.dumps({"model": "default", "messages": QUESTION, "max_tokens": 20})
            answered = {}
            for name, headers in {
                "local": {"content-type": "application/json"},
                "form": {"content-type": "text/plain"},
                "rebound": {"content-type": "application/json", "host": "evil.example"},
                "page": {"content-type": "application/json", "sec-fetch-site": "cross-site"},
            }.items():
                async with session.post(url, data=body, headers=headers) as reply:
                    answered[name] = reply.status
        assert answered == {"local": 200, "form": 400, "rebound": 403, "page": 403}


async def _is_refused(it: Coordinator, key: str) -> bool:
    try:
        await ask(client_of(it, key))
    except openai.AuthenticationError as error:
        return "revoked" in str(error)
    return False


async def test_over_tls_a_client_shows_its_token_and_a_device_its_certificate(tmp_path) -> None:
    fleet = SecureFleet(tmp_path)
    of_device = fleet.client_certificate("lamp")
    async with fleet.running(openai_listen="127.0.0.1:0") as (it, _), aiohttp.ClientSession() as session:
        assert it.serving.openai_url.startswith("https://")

        async def status(key: str = "", *, certificate: bool = False) -> int:
            context = ssl.create_default_context(cafile=str(fleet.ca))
            if certificate:
                context.load_cert_chain(of_device.certificate, of_device.key)
            body = {"model": "default", "messages": QUESTION, "max_tokens": 20}
            headers = {"authorization": f"Bearer {key}"} if key else {}
            url = f"{it.serving.openai_url}/chat/completions"
            async with session.post(url, json=body, headers=headers, ssl=context) as reply:
                return reply.status

        assert await status(key_for(tmp_path, "webui")) == 200
        assert await status() == 401
        device_key = key_for(tmp_path, "lamp", role="device")
        assert (await status(device_key), await status(certificate=True), await status(device_key, certificate=True)) == (
            401,
            200,
            200,
        )


@pytest.mark.parametrize(
    ("fields", "param", "why"),
    [
        ({"model": None}, "model", "is missing"),
        ({"messages": None}, "messages", "is missing"),
        ({"n": 2}, "n", "only 1 is supported"),
        ({"max_tokens": 0}, "max_tokens", "int >= 1"),
        ({"temperature": "hot"}, "temperature", "Expected float"),
        ({"logprobs": True}, "logprobs", ""),
        ({"audio": {"voice": "x"}}, "audio", "not supported"),
        ({"stream": "yes"}, "stream", "Expected bool"),
        ({"messages": []}, None, "at least one message"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            None,
            "other than text",
        ),
        ({"max_tokens": 5000}, "max_tokens", "at most 1000"),
        ({"temperature": 9}, "temperature", "<= 4.0"),
        ({"messages": [{"role": "robot", "content": ""}]}, None, "message 0 has no role"),
        ({"model": "gpt-4o"}, None, "no model is called"),
    ],
)
async def test_what_a_call_cannot_carry_is_refused_in_one_line_and_costs_nothing(tmp_path, fields, param, why) -> None:
    store, provider = MemoryLedgerStore(), ProgrammedProvider()
    async with serving(tmp_path, provider, store=store) as it, aiohttp.ClientSession() as session:
        body = {"model": "default", "messages": QUESTION, "max_tokens": 20, **fields}
        body = {name: value for name, value in body.items() if value is not None}
        async with session.post(f"{it.serving.openai_url}/chat/completions", json=body) as reply:
            error = (await reply.json())["error"]
        assert reply.status in (400, 404) and error["param"] == param and why in error["message"] and "\n" not in error["message"]
        assert not provider.requests


async def test_malformed_http_is_refused_in_openais_form_and_not_as_a_failure(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr(http_server, "IDLE_S", 0.5)
    async with serving(tmp_path, service={"max_message_bytes": 2048}) as it, aiohttp.ClientSession() as session:
        url = f"{it.serving.openai_url}/chat/completions"

        async def status(method: str = "POST", path: str = "", data: Any = b"{}", **headers: str) -> tuple[int, str]:
            sent = {"content-type": "application/json", **{name.replace("_", "-"): value for name, value in headers.items()}}
            async with session.request(method, url + path, data=data, headers=sent) as reply:
                return reply.status, (await reply.json())["error"]["code"]

        assert await status("DELETE") == (405, "method_not_allowed")
        assert await status(path="/more") == (404, "not_found")
        assert await status(data=b"x" * 4096) == (413, "request_too_large")
        assert await status(data=b"no gzip", content_encoding="gzip") == (415, "invalid_request")
        assert await status(data=b"\xff") == (400, "invalid_request")
        async with session.get(f"{it.serving.openai_url}/models/gpt-4o") as reply:
            assert reply.status == 404 and "no model is called 'gpt-4o'" in (await reply.json())["error"]["message"]
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.split(":")[2].split("/")[0]))
        head = (
            "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"
        )
        writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
        answered = await asyncio.wait_for(reader.read(), 60.0)  # the body never ends
        assert answered.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 408 ")
        writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_tools_sampling_and_parts_go_on_as_they_came_and_the_rest_is_named(tmp_path) -> None:
    provider = ProgrammedProvider()
    async with serving(tmp_path, provider) as it:
        client = client_of(it, key_for(tmp_path, "webui"))
        reply = await ask(client, tools=[TOOL], tool_choice="auto", user="ann", metadata={"a": "b"})
        assert reply.choices[0].finish_reason == "tool_calls" and reply.choices[0].message.content is None
        assert reply.choices[0].message.tool_calls[0].function.name == "add"
        assert reply.edge["ignored_parameters"] == ["metadata", "user"]
        stream = await ask(client, tools=[TOOL], stream=True)
        calls = [chunk.choices[0].delta.tool_calls async for chunk in stream if chunk.choices[0].delta.tool_calls]
        assert calls[0][0].id == json.loads(CALLED)["tool_calls"][0]["id"]
        await ask(
            client, top_p=0.5, stop=["\n"], seed=3, messages=[{"role": "user", "content": [{"type": "text", "text": "hi"}]}]
        )
    sent = provider.requests[-1]
    assert json.loads(sent.openai_json) == {"top_p": 0.5, "stop": ["\n"], "seed": 3} and sent.messages[0].content == "hi"
    assert json.loads(provider.requests[0].openai_json) == {"tools": [TOOL], "tool_choice": "auto"}


async def test_a_client_that_leaves_is_charged_for_what_was_sent_and_not_for_what_waited(tmp_path) -> None:
    held, store = Held(), MemoryLedgerStore()
    async with serving(tmp_path, ProgrammedProvider(held), store=store, alias_settings={"gate": Gate("default", 1, 8)}) as it:
        client = client_of(it, key_for(tmp_path, "webui"))
        sent = asyncio.create_task(ask(client, "sent"))
        await held.reached.wait()
        waiting = asyncio.create_task(ask(client, "waits"))
        await until(lambda: it.in_flight == 2)
        for task in (sent, waiting):
            task.cancel()
        await until(lambda: it.in_flight == 1)  # who waited for a slot is gone
        held.release.set()
        await until(lambda: it.in_flight == 0)
        assert await fleet_use(store) == ((1, CHARGE_UUSD), (0, 0))


async def test_a_failure_in_a_stream_is_its_last_event_and_is_charged_as_in_doubt(tmp_path) -> None:
    class Breaking(ProgrammedProvider):
        async def stream(self, request):
            async for delta in super().stream(request):
                yield delta
                break
            await failing("broken", None)(request)

    async with serving(tmp_path, Breaking()) as it:
        client = client_of(it, key_for(tmp_path, "webui"))
        chunks = aiter(await ask(client, stream=True))
        assert [(await anext(chunks)).choices[0].delta.content for _ in range(2)] == ["", "W"]
        with pytest.raises(openai.APIError, match="was charged"):
            await anext(chunks)


async def test_a_failed_call_says_whether_to_send_it_again(tmp_path) -> None:
    wanted = {
        "http_503": (False, 502, "upstream_failed", "true"),
        "deadline": (None, 502, "outcome_unknown", "false"),
        "http_400": (False, 400, "upstream_rejected", "false"),
        "too_long": (False, 400, "context_length_exceeded", "false"),
    }
    for kind, (executed, status, code, again) in wanted.items():
        folder = tmp_path / kind
        folder.mkdir()
        async with serving(folder, ProgrammedProvider(failing(kind, executed))) as it:
            with pytest.raises(openai.APIStatusError) as failed:
                await ask(client_of(it, key_for(folder, "webui")))
        error: Any = failed.value.body
        assert (failed.value.status_code, error["code"], failed.value.response.headers["x-should-retry"]) == (status, code, again)


async def test_a_draining_coordinator_settles_what_runs_and_refuses_the_rest(tmp_path) -> None:
    held = Held()
    async with serving(tmp_path, ProgrammedProvider(held)) as it:
        client = client_of(it, key_for(tmp_path, "webui"))
        running = asyncio.create_task(ask(client))
        await held.reached.wait()
        it.begin_drain(20.0)
        with pytest.raises(openai.InternalServerError, match="stopping"):
            await ask(client)
        held.release.set()
        assert (await running).choices[0].message.content == "WHAT IS 2+2?"


async def test_rate_limits_hold_for_both_protocols_together(tmp_path) -> None:
    rates = {"device": {"calls_per_min": 1, "burst": 2}}
    async with serving(tmp_path, rates=rates) as it, connected(tmp_path, "webui") as grpc_client:
        client = client_of(it, key_for(tmp_path, "webui"))
        await ask(client)
        await grpc_client.complete(call("k1"), 10.0)
        with pytest.raises(openai.RateLimitError) as refused:
            await ask(client)
        error: Any = refused.value.body
        assert error["code"] == "rate_limited" and int(refused.value.response.headers["retry-after"]) > 0


async def test_a_slow_answer_outlives_the_closing_of_idle_connections(tmp_path, monkeypatch) -> None:
    async def slow(request) -> ProviderResult:
        await asyncio.sleep(1.5)
        return ProviderResult("LATE", TokenUsage(10, 5), "up-1", "stop")

    monkeypatch.setattr(http_listener, "IDLE_S", 0.2)
    async with serving(tmp_path, ProgrammedProvider(slow)) as it:
        assert (await ask(client_of(it, key_for(tmp_path, "webui")))).choices[0].message.content == "LATE"

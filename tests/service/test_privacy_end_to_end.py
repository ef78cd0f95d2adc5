"""No planted secret arrives upstream: a real HTTP server that a real coordinator process calls records every byte it receives."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import pytest
from aiohttp import web

from edge.cloud.egress import EgressClient
from edge.cloud.group_calls import GroupCalls
from edge.cloud.hints import with_hint
from edge.cloud.sent import Keep, SentChoice, SentLog, SentReader, decoded
from edge.core.errors import Withheld
from edge.core.types import Message
from edge.privacy.registry import PrivacyRegistry
from edge.rpc import codec
from edge.rpc.client import StepUnits
from edge.rpc.grpc_client import GrpcCoordinatorClient
from edge.state.folder import StateFolder
from edge.testing.clock import ManualClock
from tests.worlds.coordinator import call
from tests.worlds.coordinator_process import coordinator_process, settings_for
from tests.worlds.upstream_server import Upstream, good_reply, running_upstream
from tools.experiments.privacy import TERMS, corpus, is_revealed

REGISTRY = PrivacyRegistry(terms=TERMS, never_send=["the vault code"])


@dataclass
class Wire:
    """Everything between a guarded client and the upstream."""

    client: EgressClient
    upstream: Upstream
    state: StateFolder
    bodies: list[bytes] = field(default_factory=list)
    refuse_next: int = 0

    async def keep(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.read())
        if self.refuse_next:
            self.refuse_next -= 1
            return web.Response(status=429, headers={"Retry-After": "0"})
        body = json.loads(self.bodies[-1])
        if not body.get("stream"):
            return await good_reply(request)
        return await _streamed(request, body["messages"][-1]["content"])

    @property
    def seen(self) -> str:
        return b"\n".join(self.bodies).decode() + "\n" + "\n".join(str(json.loads(body)) for body in self.bodies)


async def _streamed(request: web.Request, text: str) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
    await response.prepare(request)
    for place in range(0, len(text), 3):
        choice = {"index": 0, "delta": {"content": text[place : place + 3]}, "finish_reason": None}
        await response.write(b"data: " + json.dumps({"id": "u", "choices": [choice]}).encode() + b"\n\n")
    last = {
        "id": "u",
        "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 9, "completion_tokens": 9},
    }
    await response.write(b"data: " + json.dumps(last).encode() + b"\n\ndata: [DONE]\n\n")
    return response


@asynccontextmanager
async def guarded_wire(folder: Path) -> AsyncIterator[Wire]:
    async with running_upstream() as upstream, coordinator_process(folder, settings_for(upstream)) as child:
        inner = GrpcCoordinatorClient(child.address)
        with StateFolder(folder / "agent") as state:
            wire = Wire(EgressClient(inner, REGISTRY, SentLog(state.database, ManualClock(), Keep())), upstream, state)
            upstream.reply = wire.keep
            try:
                yield wire
            finally:
                await wire.client.aclose()


def planted(count: int):
    return list(islice((one for one in corpus(seed=11, count=count) if one.in_reach and one.region is None), 400))


async def test_planted_secrets_never_arrive_from_answers_streams_hints_learning_or_retries(tmp_path: Path) -> None:
    secrets = planted(4)
    async with guarded_wire(tmp_path) as wire:
        for number, one in enumerate(secrets[::3]):
            wire.refuse_next = 1 if number % 10 == 0 else 0
            completion = await wire.client.complete(
                call(f"a{number}", one.text, prompt_id=f"a{number}", max_output_tokens=900), 30.0
            )
            if one.disguise == "plain":
                assert _is_in(one.secret, completion.text)
        for number, one in enumerate(secrets[1::3]):
            hint = with_hint((Message("user", "What is it?"),), one.text, 400, REGISTRY.cut)
            await wire.client.complete(call(f"h{number}", prompt_id=f"h{number}", messages=hint, max_output_tokens=900), 30.0)
        for number, one in enumerate(secrets[2::12]):
            asked = call(f"s{number}", one.text, prompt_id=f"s{number}", max_output_tokens=900)
            text = "".join([delta.text async for delta in wire.client.stream_complete(asked, 30.0)])
            assert one.disguise != "plain" or _is_in(one.secret, text)
        await _learned(wire, secrets[2::3])
        leaked = [(one.kind, one.disguise, one.secret) for one in secrets if is_revealed(one.secret, wire.seen)]
        assert leaked == [] and len(wire.bodies) > len(secrets) // 2
        _check_entries(wire)


def _is_in(secret: str, text: str) -> bool:
    """Also in a JSON text; the upstream answers in capitals."""
    return any(form.lower() in text.lower() for form in (secret, json.dumps(secret, ensure_ascii=False)[1:-1]))


async def _learned(wire: Wire, secrets) -> None:
    await wire.client.open_step("math", 0, 10 * len(secrets), 4, 0.3)
    calls = [
        call(f"l{n}", one.text, step=0, prompt_id=f"{n}:{one.secret}", max_output_tokens=900) for n, one in enumerate(secrets)
    ]
    asking = GroupCalls(wire.client, 30.0)
    outcomes = await asyncio.gather(*(asking.ask(each) for each in calls))
    assert {outcome.reason for outcome in outcomes} == {""}
    await wire.client.close_step("math", 0, StepUnits(4 * len(secrets), len(secrets)))


def _check_entries(wire: Wire) -> None:
    """Every body that the upstream received equals an entry."""
    reader = SentReader(wire.state.database)
    entries = [reader.entry(entry.id) for entry in reader.entries(SentChoice(limit=10_000))]
    texts = {
        message["content"] for entry, payload in entries for message in (decoded(entry.method, payload) or {}).get("messages", ())
    }
    assert {turn["content"] for body in wire.bodies for turn in json.loads(body)["messages"]} <= texts
    assert not any(is_revealed(one.secret, text) for one in planted(4) for text in texts)


async def test_rule_blocked_text_is_never_sent_and_an_entry_has_the_bytes_of_its_request(tmp_path: Path) -> None:
    async with guarded_wire(tmp_path) as wire:
        with pytest.raises(Withheld):
            await wire.client.complete(call("k1", "The  VAULT code is 1"), 10.0)
        assert wire.bodies == [] and SentReader(wire.state.database).entries(SentChoice()) == []
        await wire.client.complete(call("k2", "write to jo@x.org"), 10.0)
        _, payload = SentReader(wire.state.database).entry(1)
        assert payload == codec.encode_call(call("k2", "write to [EMAIL_1]")).SerializeToString()

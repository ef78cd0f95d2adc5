"""Fault worlds in which devices chat: how their client retries, which deaths it survives, and what the checker makes of a wrong log."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from tests.worlds.fleet import in_virtual_time
from tools.simulate.faults.chats import ChatClient, ChatReply, ChatRequest
from tools.simulate.faults.checker import check
from tools.simulate.faults.fold import Rules
from tools.simulate.faults.log import ChatParts, DeviceEvent, DeviceLog
from tools.simulate.faults.scenario import POINTS, Fault, FaultScenario
from tools.simulate.faults.terms import DrawnTaskTerms, DrawnTerms, History
from tools.simulate.faults.upstream import INPUT_BOUND, MAX_OUTPUT_TOKENS
from tools.simulate.faults.world import World, play
from tools.simulate.virtual.chat import Head
from tools.simulate.virtual.loop import SeededLoop
from tools.simulate.virtual.network import rpc_error

CALM = FaultScenario(
    seed=7,
    devices=2,
    tasks=("math",),
    steps=6,
    prompts=4,
    slots=4,
    max_queue=8,
    terms=DrawnTerms(tasks={"math": DrawnTaskTerms()}),
    begins_s=0.0,
    chats=True,
    people=2,
)
LOST, LATE = rpc_error(grpc.StatusCode.UNAVAILABLE, "gone"), rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "late")
BEGUN = Head(200)
CHUNK = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'


def refusal(code: str, status: int, again: str) -> Head:
    return Head(status, {"x-should-retry": again, "retry-after": "2"}, {"error": {"code": code}})


class ScriptedChannel:
    """Answers each request with the next script: heads and events in turn, an error where it breaks."""

    def __init__(self, scripts: Sequence[Sequence[Any]]) -> None:
        self.scripts = [*scripts]
        self.sent: list[tuple[bytes, Any]] = []

    def unary_stream(self, path: str, *_: Any) -> Callable[..., AsyncGenerator[bytes, None]]:
        async def replies(body: bytes, timeout: float, metadata: Any) -> AsyncGenerator[bytes, None]:
            self.sent.append((body, metadata))
            for piece in self.scripts.pop(0):
                if isinstance(piece, Exception):
                    raise piece
                yield piece if isinstance(piece, bytes) else msgspec.json.encode(piece)

        return replies


@pytest.mark.parametrize(
    ("scripts", "sent", "outcome"),
    [
        ([[refusal("overloaded", 503, "true")], [refusal("key_reused", 409, "false")]], 2, "KEY_REUSED"),
        ([[refusal("budget_exhausted", 429, "false")]], 1, "BUDGET_EXHAUSTED"),
        ([[LOST], [refusal("not_found", 404, "false")]], 2, "NOT_FOUND"),
        ([[LATE], [LATE], [LATE]], 3, "TIMED_OUT"),
        ([[BEGUN, CHUNK, LOST]], 1, "CONNECTION_LOST"),
        ([[BEGUN, CHUNK, b"data: [DONE]\n\n"]], 1, "BROKEN"),
    ],
    ids=[
        "may be sent again",
        "may not",
        "connection lost",
        "three times too late",
        "cut in its stream",
        "a stream without an end",
    ],
)
def test_the_client_sends_again_what_openais_would_with_the_same_key_and_body(
    scripts: list[list[Any]], sent: int, outcome: str
) -> None:
    channel, log = ScriptedChannel(scripts), list[DeviceEvent]()

    async def main(loop: SeededLoop) -> ChatReply:
        client = ChatClient(channel, DeviceLog(log, "d0"), random.Random(0), 1)  # type: ignore[arg-type]
        return await client.ask("chat", ChatRequest("math", "why?", "ann", "k", streamed=True), 5.0)

    assert in_virtual_time(main).outcome == outcome
    assert len(channel.sent) == sent and len(set(channel.sent)) == 1
    assert dict(channel.sent[0][1])["idempotency-key"] == "k" and json.loads(channel.sent[0][0])["stream"]
    assert [event.outcome == "asked" for event in log] == [True, False] * sent


@pytest.mark.parametrize("people", [0, 2])
@pytest.mark.parametrize("point", POINTS)
def test_a_coordinator_that_dies_around_a_chat_charges_it_once(point: str, people: int) -> None:
    dies = [Fault(at, "kill_at", detail=point, amount=1) for at in (1.0, 4.0, 7.0)]
    outcome = play(replace(CALM, people=people, faults=tuple(dies)))
    assert outcome.verdict.violations == []
    assert outcome.injected[f"killed at {point}"] > 0
    assert outcome.verdict.met["chat whole"] + outcome.verdict.met["chat streamed"] > 10


def test_people_are_held_to_budgets_of_their_own() -> None:
    outcome = play(replace(CALM, terms=replace(CALM.terms, caps={"user": (2, None, None)})))
    assert outcome.verdict.violations == []
    assert outcome.verdict.met["person refused by their own budget"] > 0


@pytest.mark.parametrize(
    ("completed", "wrong", "invariant"),
    [
        (True, {"text": "answer 0 to another question for d0"}, "I9"),
        (True, {"question": "another question"}, "I5"),
        (True, {"charged_uusd": 1_000_000}, "I5"),
        (True, {"cached": True}, "I5"),
        (True, {"call_key": "unheard of"}, "I9"),
        (True, {"asker": "zoe"}, "I1"),
        (True, {"status": 500}, "I9"),
        (False, {"status": 500}, "I9"),
        (False, {"again": True}, "I9"),
    ],
    ids=str,
)
def test_a_reply_that_is_not_as_it_was_is_noticed(completed: bool, wrong: dict[str, Any], invariant: str, tmp_path: Path) -> None:
    world = World(replace(CALM, terms=replace(CALM.terms, caps={"user": (2, None, None)})), tmp_path)
    assert world.run().ok
    journal = [json.loads(entry.to_json()) for entry in world.disk.tables.journal]
    rules = Rules(History(world.terms), None, 0.5, (INPUT_BOUND, MAX_OUTPUT_TOKENS))
    assert check(journal, world.upstream.log, world.log, rules).ok
    outcome = "completed" if completed else "BUDGET_EXHAUSTED"
    place = next(n for n, event in enumerate(world.log) if (event.what, event.outcome) == ("chat", outcome))
    event = world.log[place]
    world.log[place] = replace(event, reply=ChatParts(*event.reply)._replace(**wrong))
    violations = check(journal, world.upstream.log, world.log, rules).violations
    assert invariant in {line.partition(":")[0] for line in violations}, violations

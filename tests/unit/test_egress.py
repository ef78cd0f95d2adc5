"""The egress layer, through which everything is sent: rules, redaction, leak test, the entry on disk before sending, and restoring."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edge.cloud.client import WatchedClient
from edge.cloud.egress import EgressClient
from edge.cloud.group_calls import GroupCalls
from edge.cloud.sent import EgressRequest, Keep, SentChoice, SentLog, SentReader, entry_json
from edge.core.errors import CoordinatorUnavailable, Withheld
from edge.core.events import MemorySink
from edge.core.types import Message
from edge.evaluation.judging import RolloutSettings
from edge.learning.methods import DaGrpo
from edge.learning.rollout import Rollout
from edge.privacy.registry import PrivacyRegistry
from edge.routing.policy import SelfOffload
from edge.rpc import codec
from edge.rpc.client import CloudCall, StepUnits
from edge.state.answer_record import AnswerRequest
from edge.state.folder import StateFolder
from edge.testing.backend import ScriptedBackend
from edge.testing.clock import ManualClock
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.verifiers.math_answer import ExactMathAnswer
from tests.worlds.agent import HELP, World, batch_of, item, local_answer, number_in
from tests.worlds.coordinator import call
from tests.worlds.trained import training_groups

REGISTRY = PrivacyRegistry(terms=["Project Falcon"], never_send=["top secret"])


def echo(asked: CloudCall) -> str:
    return f"You wrote: {asked.messages[-1].content}"


class Egress:
    """An egress client over a scripted coordinator, with its entries."""

    def __init__(self, folder: Path, client: ScriptedCoordinatorClient, keep: Keep | None = None) -> None:
        self.state = StateFolder(folder)
        self.clock = ManualClock()
        self.inner = client
        self.log = SentLog(self.state.database, self.clock, keep or Keep())
        self.client = EgressClient(client, REGISTRY, self.log)

    def entries(self, **choice: object):
        return SentReader(self.state.database).entries(SentChoice(**choice))

    def payload(self, number: int) -> bytes:
        return SentReader(self.state.database).entry(number)[1]


@pytest.fixture
def egress(tmp_path: Path):
    made = Egress(tmp_path, ScriptedCoordinatorClient(echo))
    yield made
    made.state.close()


async def test_call_is_sent_redacted_and_its_answer_is_restored(egress: Egress) -> None:
    completion = await egress.client.complete(call("k1", "write to jo@x.org about Project Falcon"), 5.0)
    assert egress.inner.calls[0].messages[0].content == "write to [EMAIL_1] about [TERM_1]"
    assert completion.text == "You wrote: write to jo@x.org about Project Falcon"
    assert (await egress.client.get_call("k1")).text == completion.text


async def test_entry_with_the_exact_bytes_is_on_disk_before_sending(tmp_path: Path) -> None:
    seen: list[tuple] = []

    def check(asked: CloudCall) -> str:
        with sqlite3.connect(tmp_path / "agent.sqlite") as other:
            seen.extend(other.execute("SELECT kind, payload, replaced FROM sent WHERE call_key = 'k1'").fetchall())
        return "yes"

    egress = Egress(tmp_path, ScriptedCoordinatorClient(check))
    await egress.client.complete(call("k1", "to jo@x.org"), 5.0)
    assert seen == [("answering", codec.encode_call(egress.inner.calls[0]).SerializeToString(), '{"email": 1}')]
    assert egress.entries()[0].bytes == len(seen[0][1]) and egress.entries()[0].answer_id == "p1"
    assert entry_json(*SentReader(egress.state.database).entry(1))["payload"]["messages"] == [
        {"role": "ROLE_USER", "content": "to [EMAIL_1]"}
    ]
    egress.state.close()


async def test_stream_is_restored_with_a_cut_placeholder(egress: Egress) -> None:
    deltas = [delta async for delta in egress.client.stream_complete(call("k1", "jo@x.org"), 5.0)]
    assert "".join(delta.text for delta in deltas) == "You wrote: jo@x.org" == deltas[-1].completion.text
    assert all("EMAIL" not in delta.text for delta in deltas)


async def test_text_forbidden_by_a_rule_is_withheld_without_an_entry(egress: Egress) -> None:
    for asked in (
        egress.client.complete(call("k1", "a TOP secret"), 5.0),
        anext(egress.client.stream_complete(call("k2", "Top  Secret"), 5.0)),
    ):
        with pytest.raises(Withheld, match="rule 1") as caught:
            await asked
        assert "top secret" not in str(caught.value).lower()
    assert egress.inner.calls == [] and egress.entries() == []


async def test_detected_leak_is_withheld(tmp_path: Path) -> None:
    class Careless(PrivacyRegistry):
        def redacted(self, texts, json=""):
            return PrivacyRegistry(enabled=False).redacted(texts, json)

    egress = Egress(tmp_path, ScriptedCoordinatorClient(echo))
    client = EgressClient(egress.inner, Careless(), egress.log)
    with pytest.raises(Withheld, match="leak test found email"):
        await client.complete(call("k1", "to jo@x.org"), 5.0)
    assert egress.inner.calls == [] and egress.entries() == []
    egress.state.close()


async def test_nothing_is_sent_that_cannot_be_recorded(egress: Egress) -> None:
    egress.state.database.execute("PRAGMA query_only = ON")
    with pytest.raises(Withheld, match="written down"):
        await egress.client.complete(call("k1"), 5.0)
    with pytest.raises(Withheld, match="written down"):
        await anext(egress.client.stream_complete(call("k2"), 5.0))
    assert egress.inner.calls == []


async def test_one_withheld_call_does_not_hinder_concurrent_ones(egress: Egress) -> None:
    calls = [call(f"k{number}", f"ask p{number}@x.org", prompt_id=f"p{number}") for number in range(8)]
    calls[3] = call("k3", "top secret", prompt_id="p3")
    outcomes = await asyncio.gather(*(egress.client.complete(each, 5.0) for each in calls), return_exceptions=True)
    assert isinstance(outcomes[3], Withheld) and len(egress.inner.calls) == 7
    assert outcomes[5].text == "You wrote: ask p5@x.org"
    assert all("@" not in sent.messages[0].content for sent in egress.inner.calls)
    assert len(egress.entries()) == 7


async def test_undelivered_entry_is_marked(egress: Egress) -> None:
    egress.inner.fail_next("complete", CoordinatorUnavailable("away", reason="UNREACHABLE"))
    with pytest.raises(CoordinatorUnavailable):
        await egress.client.complete(call("k1"), 5.0)
    assert "nothing left" in egress.entries()[0].outcome


async def test_registration_steps_and_inquiries_are_entries_too_and_repeats_are_counted(egress: Egress) -> None:
    await egress.client.register("1.0", ["math"])
    await egress.client.open_step("math", 0, 4, 8, 0.3)
    await egress.client.close_step("math", 0, StepUnits(32, 4))
    for _ in range(3):
        await egress.client.get_budget("math")
    await egress.client.aclose()
    assert [(entry.kind, entry.method, entry.times) for entry in egress.entries()] == [
        ("inquiry", "GetBudget", 3),
        ("step report", "CloseStep", 1),
        ("step report", "OpenStep", 1),
        ("registration", "RegisterDevice", 1),
    ]


async def test_private_prompt_id_is_sent_as_a_digest_and_learning_is_distinguished_from_answering(egress: Egress) -> None:
    await egress.client.open_step("math", 0, 4, 8, 0.3)
    await egress.client.complete(call("k1", step=0, prompt_id="0:jo@x.org", help_units=3), 5.0)
    assert egress.inner.calls[0].prompt_id.startswith("digest:")
    [entry, _] = egress.entries()
    assert entry.kind == "learning" and "step 1 of task math" in entry.why and "3 responses" in entry.why


def test_old_or_excess_entries_are_dropped_and_reported(state: StateFolder) -> None:
    clock = ManualClock()
    one = EgressRequest("inquiry", "why", "GetBudget", b"")
    log = SentLog(state.database, clock, Keep(days=1, entries=100))
    for _ in range(5):
        log.write(one)
    first = clock.now()
    clock.advance(2 * 86400)
    log = SentLog(state.database, clock, Keep(days=1, entries=100))
    log.write(one)
    dropped = SentReader(state.database).dropped()
    assert (dropped.entries, dropped.until) == (5, first)
    for _ in range(8):
        log.write(one)
    SentLog(state.database, clock, Keep(days=1, entries=3)).write(one)
    assert SentReader(state.database).dropped().entries == 5 + 7
    assert [entry.id for entry in SentReader(state.database).entries(SentChoice(limit=9))] == [15, 14, 13]


async def test_withheld_call_does_not_change_the_coordinators_state(egress: Egress) -> None:
    watched = WatchedClient(egress.client, MemorySink(), egress.clock)
    watched.lost("away")
    with pytest.raises(Withheld):
        await watched.complete(call("k1", "top secret"), 5.0)
    assert not watched.online


async def test_a_withheld_question_is_answered_locally_with_the_reason(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=lambda messages, sampling, seed: local_answer(4) if sampling.suppress_help else HELP)
    inner = world.client
    with StateFolder(tmp_path / "sent") as sent:
        world.client = EgressClient(inner, REGISTRY, SentLog(sent.database, world.clock, Keep()))
        async with world.agent() as agent:
            record = await agent.answerer.answer(AnswerRequest((Message("user", "What is 3 + 1? It is top secret"),)))
    assert record.source == "local-fallback" and "never-send rule 1" in record.reason
    assert inner.calls == []


async def test_withheld_group_is_masked_and_never_counted_as_a_refusal(egress: Egress) -> None:
    await egress.client.open_step("math", 0, 2, 4, 0.5)
    guarded = EgressClient(egress.inner, PrivacyRegistry(never_send=["what is 2 + 1"]), egress.log)
    backend = ScriptedBackend(
        lambda messages, sampling, seed: HELP if seed % 2 else local_answer(number_in(messages[-1].content) + 1)
    )
    settings = RolloutSettings("run", 7, 16, 1.0, 64, "compact", "compact", 64)
    rollout = Rollout(backend, GroupCalls(guarded, 5.0), ExactMathAnswer(), SelfOffload(), egress.clock, settings)
    withheld, sent = await rollout.collect(batch_of(item(2), item(3)))
    assert withheld.completion is None and sent.completion is not None and len(egress.inner.calls) == 1
    asked = [scored for scored in withheld.responses if scored.asked]
    assert asked and all(scored.masked and scored.cost == 0 for scored in asked)
    kept = len(withheld.responses) - len(asked)
    trained = training_groups(DaGrpo(), [withheld, sent])
    assert [len(group.samples) for group in trained] == [kept, 16]
    assert all(sample.advantage == 0.0 for sample in trained[0].samples), "equally right answers, and nothing for having asked"


async def test_tools_and_their_calls_are_sent_redacted_and_restored(tmp_path: Path) -> None:
    class Calling(ScriptedCoordinatorClient):
        async def complete(self, asked, deadline_s):
            completion = await super().complete(asked, deadline_s)
            arguments = json.dumps({"to": "[EMAIL_1]", "file": "[PATH_1]"})
            calls = {"finish_reason": "tool_calls", "tool_calls": [{"function": {"name": "send", "arguments": arguments}}]}
            return replace(completion, openai_json=json.dumps(calls))

    egress = Egress(tmp_path, Calling(echo))
    messages = [{"role": "user", "content": "send C:\\Users\\jo\\x.txt to jo@x.org"}]
    tools = json.dumps({"messages": messages, "tools": [{"type": "function", "function": {"name": "send"}}]})
    completion = await egress.client.complete(call("k1", "send C:\\Users\\jo\\x.txt to jo@x.org", openai_json=tools), 5.0)
    sent = json.loads(egress.inner.calls[0].openai_json)
    assert sent["messages"][0]["content"] == "send [PATH_1] to [EMAIL_1]" == egress.inner.calls[0].messages[0].content
    arguments = json.loads(completion.openai_json)["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"to": "jo@x.org", "file": "C:\\Users\\jo\\x.txt"}
    forbidden = call("k2", "hi", openai_json=json.dumps({"tools": [{"function": {"description": "Top secret"}}]}))
    with pytest.raises(Withheld):
        await egress.client.complete(forbidden, 5.0)
    egress.state.close()


async def test_plain_call_without_private_text_is_sent_unchanged(egress: Egress) -> None:
    asked = call("k1", "What is 2 + 2?", openai_json='{ "tools": [] }')
    await egress.client.complete(asked, 5.0)
    assert egress.inner.calls == [asked]


@pytest.mark.parametrize(("task", "why"), [("Project Falcon", "a term"), ("Top  secret", "rule 1"), ("jo@x.org", "an? email")])
async def test_private_task_name_is_sent_with_nothing(egress: Egress, task: str, why: str) -> None:
    for asked in (
        egress.client.complete(replace(call("k1"), task=task), 5.0),
        anext(egress.client.stream_complete(replace(call("k2"), task=task), 5.0)),
        egress.client.get_budget(task),
        anext(egress.client.watch_budget(task)),
        egress.client.register("1", ["math", task]),
        egress.client.open_step(task, 1, 1, 1, 0.1),
        egress.client.close_step(task, 1, StepUnits(1, 1)),
    ):
        with pytest.raises(Withheld, match=f"{why}.*") as caught:
            await asked
        assert "name" in str(caught.value)
    assert egress.inner.calls == [] and egress.entries() == []


async def test_text_too_long_to_check_is_withheld_and_a_long_one_is_checked_on_a_thread(
    egress: Egress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.privacy.registry.MOST_CHARS", 9_000)
    with pytest.raises(Withheld, match=r"too long to be checked for private data: 9,001 characters of at most 9,000"):
        await egress.client.complete(call("k1", "x" * 9_001), 5.0)
    threads: list[bool] = []
    broken_rule = PrivacyRegistry.broken_rule

    def noted(self: PrivacyRegistry, texts, json: str = "") -> int:
        threads.append(threading.current_thread() is threading.main_thread())
        return broken_rule(self, texts, json)

    monkeypatch.setattr(PrivacyRegistry, "broken_rule", noted)
    await egress.client.complete(call("k2", "x " * 2_000), 5.0)
    await anext(egress.client.stream_complete(call("k3", "y " * 2_000), 5.0))
    assert threads and not any(threads)
    await egress.client.complete(call("k4", "short"), 5.0)
    assert any(threads)

"""The seam through which everything leaves: rules, redaction, leak test, the entry on disk before the bytes, and the way back."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from edge.answering.answerer import Answerer
from edge.answering.ask_cloud import CloudQuestions
from edge.answering.recorder import AnswerRecorder
from edge.cloud.client import WatchedClient
from edge.cloud.egress import GuardedClient
from edge.cloud.group_calls import GroupCalls
from edge.cloud.sent import Choice, Departure, Keep, SentLog, SentReader, entry_json, reading_sent
from edge.core.clock import ManualClock
from edge.core.errors import CoordinatorUnavailable, NotFound, Withheld
from edge.core.events import MemorySink
from edge.core.types import Message
from edge.evaluation.judging import RolloutSettings
from edge.learning.methods import DaGrpo, StepTerms
from edge.learning.rollout import Batch, Rollout
from edge.privacy.registry import Registry
from edge.routing.policy import SelfOffload
from edge.rpc import codec
from edge.rpc.client import CloudCall
from edge.state.answer_record import AnswerRequest
from edge.state.folder import StateFolder
from edge.testing.backend import ScriptedBackend
from edge.testing.coordinator import ScriptedCoordinatorClient
from edge.verifiers.math_answer import ExactMathAnswer
from tests.service.in_process import call
from tests.unit.agent_world import HELP, World, item, local_answer, number_in

REGISTRY = Registry(terms=["Project Falcon"], never_send=["top secret"])


def echo(asked: CloudCall) -> str:
    return f"You wrote: {asked.messages[-1].content}"


class Seam:
    """A guarded client over a scripted coordinator, with its entries."""

    def __init__(self, folder: Path, client: ScriptedCoordinatorClient, keep: Keep | None = None) -> None:
        self.state = StateFolder(folder)
        self.clock = ManualClock()
        self.inner = client
        self.log = SentLog(self.state.database, self.clock, keep or Keep())
        self.client = GuardedClient(client, REGISTRY, self.log)
        self.commits: list[str] = []
        self.state.database.set_trace_callback(lambda text: self.commits.append(text) if text == "COMMIT" else None)

    def entries(self, **choice: object):
        return SentReader(self.state.database).entries(Choice(**choice))  # type: ignore[arg-type]

    def payload(self, number: int) -> bytes:
        return SentReader(self.state.database).entry(number)[1]


@pytest.fixture
def seam(tmp_path: Path):
    made = Seam(tmp_path, ScriptedCoordinatorClient(echo))
    yield made
    made.state.close()


async def replies_of(client, calls, deadline_s: float = 5.0):
    async def one_by_one():
        for each in calls:
            yield each

    return {reply.call_key: reply.outcome async for reply in client.complete_batch(one_by_one(), deadline_s)}


async def test_a_call_leaves_redacted_and_its_answer_comes_back_restored(seam: Seam) -> None:
    completion = await seam.client.complete(call("k1", "write to jo@x.org about Project Falcon"), 5.0)
    assert seam.inner.calls[0].messages[0].content == "write to [EMAIL_1] about [TERM_1]"
    assert completion.text == "You wrote: write to jo@x.org about Project Falcon"
    assert (await seam.client.get_call("k1")).text == completion.text


async def test_the_entry_is_on_disk_with_the_very_bytes_before_they_leave(tmp_path: Path) -> None:
    seen: list[tuple] = []

    def look(asked: CloudCall) -> str:
        with sqlite3.connect(tmp_path / "agent.sqlite") as other:
            seen.extend(other.execute("SELECT kind, payload, replaced FROM sent WHERE call_key = 'k1'").fetchall())
        return "yes"

    seam = Seam(tmp_path, ScriptedCoordinatorClient(look))
    await seam.client.complete(call("k1", "to jo@x.org"), 5.0)
    assert seen == [("answering", codec.encode_call(seam.inner.calls[0]).SerializeToString(), '{"email": 1}')]
    assert seam.entries()[0].bytes == len(seen[0][1]) and seam.entries()[0].answer_id == "p1"
    assert entry_json(*SentReader(seam.state.database).entry(1))["payload"]["messages"] == [
        {"role": "ROLE_USER", "content": "to [EMAIL_1]"}
    ]
    seam.state.close()


async def test_a_stream_is_restored_though_the_placeholder_is_cut(seam: Seam) -> None:
    deltas = [delta async for delta in seam.client.stream_complete(call("k1", "jo@x.org"), 5.0)]
    assert "".join(delta.text for delta in deltas) == "You wrote: jo@x.org" == deltas[-1].completion.text
    assert all("EMAIL" not in delta.text for delta in deltas)


async def test_what_a_rule_forbids_is_withheld_and_leaves_no_entry(seam: Seam) -> None:
    for asked in (
        seam.client.complete(call("k1", "a TOP secret"), 5.0),
        anext(seam.client.stream_complete(call("k2", "Top  Secret"), 5.0)),
    ):
        with pytest.raises(Withheld, match="rule 1") as caught:
            await asked
        assert "top secret" not in str(caught.value).lower()
    assert seam.inner.calls == [] and seam.entries() == []


async def test_what_the_leak_test_finds_is_withheld(tmp_path: Path) -> None:
    class Careless(Registry):
        def redacted(self, texts, json=""):
            return Registry(enabled=False).redacted(texts, json)

    seam = Seam(tmp_path, ScriptedCoordinatorClient(echo))
    client = GuardedClient(seam.inner, Careless(), seam.log)
    with pytest.raises(Withheld, match="leak test found email"):
        await client.complete(call("k1", "to jo@x.org"), 5.0)
    assert seam.inner.calls == [] and seam.entries() == []
    seam.state.close()


async def test_nothing_leaves_that_cannot_be_written_down(seam: Seam) -> None:
    seam.state.database.execute("PRAGMA query_only = ON")
    with pytest.raises(Withheld, match="written down"):
        await seam.client.complete(call("k1"), 5.0)
    assert isinstance((await replies_of(seam.client, [call("k2")]))["k2"], Withheld)
    assert seam.inner.calls == []


async def test_a_batch_is_written_in_one_transaction_and_one_withheld_call_hinders_no_other(seam: Seam) -> None:
    calls = [call(f"k{number}", f"ask p{number}@x.org", prompt_id=f"p{number}") for number in range(8)]
    calls[3] = call("k3", "top secret", prompt_id="p3")
    outcomes = await replies_of(seam.client, calls)
    assert isinstance(outcomes["k3"], Withheld) and len(seam.inner.calls) == 7
    assert outcomes["k5"].text == "You wrote: ask p5@x.org"
    assert all("@" not in sent.messages[0].content for sent in seam.inner.calls)
    assert len(seam.entries()) == 7 and len(seam.commits) < 7


async def test_a_batch_that_fails_as_a_whole_fails_and_leaves_no_task(seam: Seam) -> None:
    seam.inner.fail_next("complete_batch", CoordinatorUnavailable("away"))
    before = asyncio.all_tasks()
    with pytest.raises(CoordinatorUnavailable):
        await replies_of(seam.client, [call("k1")])
    assert asyncio.all_tasks() == before


async def test_what_could_not_be_delivered_says_so(seam: Seam) -> None:
    seam.inner.fail_next("complete", CoordinatorUnavailable("away", reason="UNREACHABLE"))
    with pytest.raises(CoordinatorUnavailable):
        await seam.client.complete(call("k1"), 5.0)
    assert "nothing left" in seam.entries()[0].outcome


async def test_registration_steps_and_inquiries_are_entries_too_and_repeats_are_counted(seam: Seam) -> None:
    await seam.client.register("1.0", ["math"])
    await seam.client.open_step("math", 0, 4, 8, 0.3)
    await seam.client.close_step("math", 0, 32, 4)
    for _ in range(3):
        await seam.client.get_budget("math")
    await seam.client.aclose()
    assert [(entry.kind, entry.method, entry.times) for entry in seam.entries()] == [
        ("inquiry", "GetBudget", 3),
        ("step report", "CloseStep", 1),
        ("step report", "OpenStep", 1),
        ("registration", "RegisterDevice", 1),
    ]


async def test_a_private_prompt_id_leaves_as_a_digest_and_learning_is_told_from_answering(seam: Seam) -> None:
    await seam.client.open_step("math", 0, 4, 8, 0.3)
    await seam.client.complete(call("k1", step=0, prompt_id="0:jo@x.org", help_units=3), 5.0)
    assert seam.inner.calls[0].prompt_id.startswith("digest:")
    assert (seam.entries()[0].kind, seam.entries()[0].why) == ("learning", "step 1 of task math: 3 responses asked for help")


def test_what_is_too_old_or_too_much_is_dropped_and_told(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as state:
        clock = ManualClock()
        one = Departure("inquiry", "why", "GetBudget", b"")
        SentLog(state.database, clock, Keep(days=1, entries=100)).before_leaving([one] * 5)
        first = clock.now()
        clock.advance(2 * 86400)
        SentLog(state.database, clock, Keep(days=1, entries=100)).before_leaving([one])
        dropped = SentReader(state.database).dropped()
        assert (dropped.entries, dropped.until) == (5, first)
        SentLog(state.database, clock, Keep(days=1, entries=3)).before_leaving([one] * 9)
        assert SentReader(state.database).dropped().entries == 5 + 7
        assert [entry.id for entry in SentReader(state.database).entries(Choice(limit=9))] == [15, 14, 13]


def test_pages_of_the_listing_follow_one_another(tmp_path: Path) -> None:
    with StateFolder(tmp_path) as state:
        SentLog(state.database, ManualClock(), Keep()).before_leaving([Departure("inquiry", "w", "GetBudget", b"x")] * 5)
        first = SentReader(state.database).listing(Choice(limit=3))
        rest = SentReader(state.database).listing(Choice(limit=3, before=first["next_before"]))
        assert [entry["id"] for entry in [*first["sent"], *rest["sent"]]] == [5, 4, 3, 2, 1] and rest["next_before"] is None
        with pytest.raises(NotFound):
            SentReader(state.database).entry(9)
        with reading_sent(tmp_path) as reader:
            assert reader is not None and len(reader.entries(Choice())) == 5


async def test_a_withheld_question_is_answered_locally_with_the_reason_and_the_coordinator_counts_as_before(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "state", script=lambda messages, sampling, seed: local_answer(4) if sampling.suppress_help else HELP)
    async with world.agent() as agent:
        sink = MemorySink()
        state = agent.components.state
        guarded = GuardedClient(world.client, REGISTRY, SentLog(state.database, world.clock, Keep()))
        watched = WatchedClient(guarded, sink, world.clock)
        watched.lost("away")
        access, settings = agent.access, world.answer_settings()
        recorder = AnswerRecorder(world.serving, state, access, sink, world.clock)
        asker = CloudQuestions(watched, access, recorder.record, world.clock, state.run_id, settings)
        answerer = Answerer(world.serving, agent.gate, access, asker, recorder, world.clock, settings)
        record = await answerer.answer(AnswerRequest((Message("user", "What is 3 + 1? It is top secret"),)))
    assert record.source == "local-fallback" and "nothing was sent (never-send rule 1 forbids it)" in record.reason
    assert world.client.calls == [] and not watched.online


async def test_a_withheld_group_is_masked_and_never_taken_for_a_refusal(seam: Seam) -> None:
    await seam.client.open_step("math", 0, 2, 4, 0.5)
    guarded = GuardedClient(seam.inner, Registry(never_send=["what is 2 + 1"]), seam.log)
    backend = ScriptedBackend(
        lambda messages, sampling, seed: HELP if seed % 2 else local_answer(number_in(messages[-1].content) + 1)
    )
    settings = RolloutSettings("run", 7, 16, 1.0, 64, "compact", "compact", 64)
    rollout = Rollout(backend, GroupCalls(guarded, 5.0), ExactMathAnswer(), SelfOffload(), seam.clock, settings)
    withheld, sent = await rollout.collect(Batch(1, "math", 0, (item(2), item(3))))
    assert withheld.completion is None and sent.completion is not None and len(seam.inner.calls) == 1
    asked = [scored for scored in withheld.responses if scored.asked]
    assert asked and all(scored.masked and not scored.refused and scored.cost == 0 for scored in asked)
    kept = len(withheld.responses) - len(asked)
    trained = DaGrpo().training_groups([withheld, sent], StepTerms(1, "sums", 0.5, 0.3))
    assert [len(group.samples) for group in trained] == [kept, 16]
    assert all(sample.advantage == 0.0 for sample in trained[0].samples), "equally right answers, and nothing for having asked"


async def test_tools_and_their_calls_leave_redacted_and_come_back_restored(tmp_path: Path) -> None:
    class Calling(ScriptedCoordinatorClient):
        async def complete(self, asked, deadline_s):
            completion = await super().complete(asked, deadline_s)
            arguments = json.dumps({"to": "[EMAIL_1]", "file": "[PATH_1]"})
            told = {"finish_reason": "tool_calls", "tool_calls": [{"function": {"name": "send", "arguments": arguments}}]}
            return replace(completion, openai_json=json.dumps(told))

    seam = Seam(tmp_path, Calling(echo))
    messages = [{"role": "user", "content": "send C:\\Users\\jo\\x.txt to jo@x.org"}]
    tools = json.dumps({"messages": messages, "tools": [{"type": "function", "function": {"name": "send"}}]})
    completion = await seam.client.complete(call("k1", "send C:\\Users\\jo\\x.txt to jo@x.org", openai_json=tools), 5.0)
    sent = json.loads(seam.inner.calls[0].openai_json)
    assert sent["messages"][0]["content"] == "send [PATH_1] to [EMAIL_1]" == seam.inner.calls[0].messages[0].content
    arguments = json.loads(completion.openai_json)["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"to": "jo@x.org", "file": "C:\\Users\\jo\\x.txt"}
    forbidden = call("k2", "hi", openai_json=json.dumps({"tools": [{"function": {"description": "Top secret"}}]}))
    with pytest.raises(Withheld):
        await seam.client.complete(forbidden, 5.0)
    seam.state.close()


async def test_a_plain_call_without_anything_private_leaves_as_it_is(seam: Seam) -> None:
    asked = call("k1", "What is 2 + 2?", openai_json='{ "tools": [] }')
    await seam.client.complete(asked, 5.0)
    assert seam.inner.calls == [asked]


@pytest.mark.parametrize(("task", "why"), [("Project Falcon", "a term"), ("Top  secret", "rule 1"), ("jo@x.org", "an? email")])
async def test_a_tasks_name_that_tells_something_private_leaves_with_nothing(seam: Seam, task: str, why: str) -> None:
    for asked in (
        seam.client.complete(replace(call("k1"), task=task), 5.0),
        seam.client.get_budget(task),
        anext(seam.client.watch_budget(task)),
        seam.client.register("1", ["math", task]),
        seam.client.open_step(task, 1, 1, 1, 0.1),
        seam.client.close_step(task, 1, 1, 1),
    ):
        with pytest.raises(Withheld, match=f"{why}.*") as caught:
            await asked
        assert "name" in str(caught.value)
    assert isinstance((await replies_of(seam.client, [replace(call("k2"), task=task)]))["k2"], Withheld)
    assert seam.inner.calls == [] and seam.entries() == []


async def test_what_is_too_long_to_be_looked_through_is_withheld_and_a_long_text_is_looked_through_elsewhere(
    seam: Seam, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.privacy.registry.MOST_CHARS", 9_000)
    with pytest.raises(Withheld, match=r"too long to be looked through: 9,001 characters of at most 9,000"):
        await seam.client.complete(call("k1", "x" * 9_001), 5.0)
    threads: list[bool] = []
    broken_rule = Registry.broken_rule

    def noted(self: Registry, texts, json: str = "") -> int:
        threads.append(threading.current_thread() is threading.main_thread())
        return broken_rule(self, texts, json)

    monkeypatch.setattr(Registry, "broken_rule", noted)
    await seam.client.complete(call("k2", "x " * 2_000), 5.0)
    await replies_of(seam.client, [call("k3", "y " * 2_000)])
    assert threads and not any(threads)
    await seam.client.complete(call("k4", "short"), 5.0)
    assert any(threads)

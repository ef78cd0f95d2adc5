"""Sampling options of a client (stop strings and log-probabilities), with decisions, cloud and fallback."""

from __future__ import annotations

from pathlib import Path

import pytest

from edge.core.errors import CoordinatorUnavailable
from edge.core.types import Mode, Sampling, SamplingWishes
from edge.state.answer_record import AnswerDelta, AnswerRecord
from tests.worlds.agent import HELP, World

LONG = "<think>\nStep 1: 4 + 1. is 5\n</think>\n<answer>It is 5. Or maybe 6.</answer>"


def asks_unless_suppressed(messages: object, sampling: Sampling, seed: int) -> str:
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
    world = World(tmp_path / "state", script=asks_unless_suppressed)
    world.client.fail_next("stream_complete", CoordinatorUnavailable("away"))
    record, pieces = await world.ask(wishes=SamplingWishes(top_logprobs=0))
    assert record.source == "local-fallback"
    assert "external" not in text_of(pieces, record)
    assert text_of(pieces, record).endswith("\\boxed{5}</answer>")

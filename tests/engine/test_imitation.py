"""Supervised updates on demonstrations with a real learner: demonstrations become likely under every method, and updates stop then."""

from __future__ import annotations

import asyncio

import pytest

from edge.core.types import Demonstration, KeptAnswer, Turn
from edge.core.worker import EngineWorker
from edge.training.batching import kept_rows
from edge.training.learner import MOST_IMITATIONS, UpdateRule
from tests.worlds.tiny_learner import random_groups, tiny_learner

PROMPT, OTHER, ANSWER = (1, 2, 3), (1, 3), (10, 11, 12, 0)


@pytest.mark.parametrize("objective", ["policy", "clipped", "gvpo"])
async def test_the_loss_is_the_mean_negative_log_likelihood_and_falls(worker: EngineWorker, objective: str) -> None:
    learner = tiny_learner(worker, rule=UpdateRule(objective=objective))  # type: ignore[arg-type]
    shown = [Demonstration(PROMPT, Turn(ANSWER), (OTHER,)), Demonstration(OTHER, Turn(ANSWER[1:]))]
    rows = [(PROMPT, ANSWER), (OTHER, ANSWER), (OTHER, ANSWER[1:])]
    by_hand = -sum([sum(await learner.logprobs(*row)) for row in rows]) / len(rows)
    imitation = await learner.imitate(shown)
    assert imitation.nats_before == pytest.approx(by_hand, rel=1e-4)
    assert imitation.nats < imitation.nats_before
    assert learner.step == imitation.updates == MOST_IMITATIONS


async def test_learner_shows_how_much_of_its_work_is_done(worker: EngineWorker) -> None:
    learner = tiny_learner(worker)
    assert learner.progress == (0, 0)
    groups, seen = random_groups(1), set[tuple[int, int]]()
    update = asyncio.create_task(learner.update(groups))
    while not update.done():
        seen.add(learner.progress)
        await asyncio.sleep(0)
    tokens = (await update).tokens
    assert tokens > 0 and learner.progress == (tokens, tokens)
    assert seen <= {(0, 0), *((done, tokens) for done in range(tokens + 1))}
    imitation = await learner.imitate([Demonstration(PROMPT, Turn(ANSWER))], most=3)
    assert learner.progress == (imitation.updates, 3)


async def test_sufficiently_likely_demonstration_gets_only_one_update(
    worker: EngineWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("edge.training.lora_learner.ENOUGH_NATS", 2.0)  # a random decoder cannot be surer
    learner, shown = tiny_learner(worker), [Demonstration(PROMPT, Turn(ANSWER))]
    first = await learner.imitate(shown)
    while first.nats > 2.0:
        first = await learner.imitate(shown)
    assert (await learner.imitate(shown)).updates == 1
    report = await learner.update(random_groups(1))
    assert not report.skipped, "an ordinary update continues from there"


async def test_kept_answers_stay_likelier_than_without_them(worker: EngineWorker) -> None:
    kept = [KeptAnswer(OTHER, Turn((20, 21, 0))), KeptAnswer((1, 4, 3), Turn((22, 0)))]
    likely = []
    for rehearsed in ([], kept):
        learner = tiny_learner(worker)
        imitation = await learner.imitate([Demonstration(PROMPT, Turn(ANSWER))], rehearsed)
        likely.append(sum([sum(await learner.logprobs(one.prompt_ids, one.turn.token_ids)) for one in kept]))
    assert likely[1] > likely[0] + 1.0
    assert imitation.nats < imitation.nats_before, "the loss that is reported is that of the demonstrations"


def test_each_update_takes_the_next_kept_answers() -> None:
    kept = [KeptAnswer((number,), Turn((number, 0))) for number in range(5)]
    taken = [[row.token_ids[0] for row in kept_rows(kept, update, 3)] for update in range(3)]
    assert taken == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert [row.coefficient for row in kept_rows(kept[:2], 0, 3)] == [0.5, 0.5]

"""Supervised updates with a real learner: demonstrations become likely, updates stop then, and what is kept keeps its probabilities."""

from __future__ import annotations

import asyncio

import pytest
import torch

from edge.core.types import FORCED, AllowedTokens, Demonstration, KeptAnswer, Turn
from edge.core.worker import EngineWorker
from edge.training.batching import Reference, imitated_rows, kept_rows, next_rows
from edge.training.learner import MOST_IMITATIONS, UpdateRule
from edge.training.loss import DenseProjection, divergence, likeliest, logprobs_of, token_scores
from tests.worlds.tiny_learner import VOCAB, random_groups, tiny_learner

PROMPT, OTHER, ANSWER = (1, 2, 3), (1, 3), (10, 11, 12, 0)


@pytest.mark.parametrize("objective", ["policy", "clipped", "gvpo"])
async def test_a_response_is_read_as_it_is_scored_and_becomes_likelier(worker: EngineWorker, objective: str) -> None:
    learner = tiny_learner(worker, rule=UpdateRule(objective=objective))  # type: ignore[arg-type]
    shown = [Demonstration(PROMPT, Turn(ANSWER), (OTHER,)), Demonstration(OTHER, Turn(ANSWER[1:]))]
    by_hand = [-sum(await learner.logprobs(one.prompt_ids, one.turn.token_ids)) for one in shown]
    assert await learner.nats(shown) == pytest.approx(by_hand, rel=1e-4)
    imitation = await learner.imitate(shown)
    assert imitation.nats_before == pytest.approx(sum(by_hand) / 2, rel=1e-4)
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
    imitation = await learner.imitate([Demonstration(PROMPT, Turn(ANSWER))])
    assert learner.progress == (imitation.updates, MOST_IMITATIONS)


async def test_updates_stop_once_each_demonstration_is_known(worker: EngineWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edge.training.lora_learner.KNOWN_NATS", 4.0)  # a random decoder cannot be surer
    learner = tiny_learner(worker)
    shown = [Demonstration(PROMPT, Turn(ANSWER)), Demonstration(OTHER, Turn((30, 0)))]
    imitation = await learner.imitate(shown)
    assert imitation.updates < MOST_IMITATIONS
    assert max(await learner.nats(shown)) <= 4.0
    report = await learner.update(random_groups(1))
    assert not report.skipped, "an ordinary update continues from there"


async def test_kept_answers_keep_their_probabilities_whatever_these_are(worker: EngineWorker) -> None:
    kept = [KeptAnswer(OTHER, Turn((20, 21, 0))), KeptAnswer((1, 4, 3), Turn((22, 0)))]
    moved = []
    for held in ([], kept):
        learner = tiny_learner(worker)
        before = [await learner.logprobs(one.prompt_ids, one.turn.token_ids) for one in kept]
        imitation = await learner.imitate([Demonstration(PROMPT, Turn(ANSWER))], held)
        after = [await learner.logprobs(one.prompt_ids, one.turn.token_ids) for one in kept]
        pairs = [pair for row in zip(before, after, strict=True) for pair in zip(*row, strict=True)]
        moved.append(sum(abs(was - now) for was, now in pairs))
        assert imitation.nats < imitation.nats_before, "the loss that is reported is that of the demonstrations"
    assert moved[1] < 0.5 * moved[0]


def test_the_divergence_is_that_of_the_distributions_where_all_tokens_are_held() -> None:
    draw = torch.Generator().manual_seed(2)
    weight_VD, hidden_ND, other_ND = (torch.randn(rows, 6, generator=draw) for rows in (VOCAB, 5, 5))
    projection, targets_N = DenseProjection(weight_VD), torch.arange(5)
    ids_NK = likeliest(other_ND, projection, VOCAB - 1, None, 2 * VOCAB)
    scores = token_scores(other_ND, projection, targets_N)
    reference = Reference(ids_NK, logprobs_of(ids_NK, scores.logprobs_N, other_ND, projection, targets_N))
    leaf_ND = hidden_ND.clone().requires_grad_()
    own_N = token_scores(leaf_ND, projection, targets_N).logprobs_N
    divergence(logprobs_of(ids_NK, own_N, leaf_ND, projection, targets_N), reference).sum().backward()
    whole_ND = hidden_ND.clone().requires_grad_()
    p, log_q = (other_ND @ weight_VD.T).softmax(-1), (whole_ND @ weight_VD.T).log_softmax(-1)
    torch.nn.functional.kl_div(log_q, p, reduction="sum").backward()
    assert torch.allclose(leaf_ND.grad, whole_ND.grad, atol=1e-4)


async def test_what_a_form_excludes_is_no_part_of_what_is_held(worker: EngineWorker) -> None:
    learner = tiny_learner(worker)
    six_and_seven = bytes([0b11000000, 0, 0, 0, 0, 0])
    allowed = AllowedTokens((0, FORCED), (six_and_seven,))
    kept = [KeptAnswer(OTHER, Turn((6, 0), allowed))]
    imitation = await learner.imitate([Demonstration(PROMPT, Turn(ANSWER))], kept)
    assert imitation.nats < imitation.nats_before
    held, of_the_form = await learner.logprobs(OTHER, (6, 0), allowed), await learner.logprobs(OTHER, (7, 0), allowed)
    assert torch.tensor([*held, *of_the_form]).exp().sum() == pytest.approx(1.0), "the forced end has no probability of its own"


def test_each_update_takes_the_next_kept_answers() -> None:
    rows = kept_rows([KeptAnswer((number,), Turn((number, 0))) for number in range(5)])
    taken = [[row.token_ids[0] for row in next_rows(rows, update, 3, 0.25)] for update in range(3)]
    assert taken == [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    assert [row.coefficient for row in next_rows(rows[:2], 0, 3, 0.25)] == [0.25, 0.25]


def test_the_fewer_demonstrations_the_more_wordings_of_each_are_taken() -> None:
    def prompts(count: int, update: int, variants: int = 3) -> list[tuple[int, ...]]:
        some = tuple((2, number) for number in range(variants))
        rows = imitated_rows([Demonstration((1,), Turn(ANSWER), some)] * count, update, rows=8)
        assert sum(row.coefficient for row in rows) == pytest.approx(1.0)
        return [row.prompt_ids for row in rows]

    assert prompts(8, update=0) == [(1,), (2, 0)] * 8, "one wording at least"
    assert prompts(3, update=4) == [(1,), (2, 1)] * 3, "the next ones in each update"
    assert prompts(2, update=0) == [(1,), (2, 0), (2, 1), (2, 2)] * 2
    assert prompts(2, update=1) == [(1,), (2, 0), (2, 1), (2, 2)] * 2
    assert prompts(1, update=0) == [(1,), (2, 0), (2, 1), (2, 2)], "each wording once"
    assert prompts(2, update=0, variants=0) == [(1,)] * 2

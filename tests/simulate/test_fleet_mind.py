"""The simulated model and its learner: what the bias moves, what is suppressed, and that θ follows the advantages of the groups alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from edge.core.types import LocalResponse, Message, Sampling, TrainingGroup, TrainingSample
from tools.simulate.fleet.backend import ASKING, SimulatedBackend, prompt_ids, read_mind
from tools.simulate.fleet.hardware import SimulatedSpeed
from tools.simulate.fleet.learner import SimulatedLearner
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.mind import Mind, Nature, Rates, SimulatedQuestion, help_log_odds, sigmoid
from tools.simulate.fleet.scenario import TokensPart
from tools.simulate.virtual.loop import SeededLoop

SPEED = SimulatedSpeed("d", "m", 1000.0, ((1, 100.0),), 100.0, 1.0, 11.0)
GREEDY = Sampling(temperature=0.0)
QUESTIONS = [SimulatedQuestion.of(number, 0.5, 3) for number in range(60)]


class Bench:
    """A backend and a learner on one machine."""

    def __init__(self, mind: Mind | None = None, nature: Nature | None = None) -> None:
        self.loop = SeededLoop(0)
        self.machine = Machine(self.loop, SPEED)
        mind, nature = mind or Mind(), nature or Nature()
        self.backend = SimulatedBackend(self.machine, mind, nature, TokensPart(), 3)
        self.learner = SimulatedLearner(self.machine, mind, nature, Rates())

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work, limit_s=1e6)

    def answer(self, question: SimulatedQuestion, sampling: Sampling, prefix: str = "", seed: int = 0) -> LocalResponse:
        async def last() -> LocalResponse:
            texts = ""
            async for delta in self.backend.stream([Message("user", question.text)], sampling, seed, prefix):
                texts += delta.text
                if delta.response is not None:
                    assert delta.response.text == texts
                    return delta.response
            raise AssertionError

        response: LocalResponse = self.run(last())
        return response


def test_greedy_answers_follow_the_log_odds_and_the_bias_moves_them() -> None:
    bench = Bench(Mind(ask=0.0))
    for question in QUESTIONS[:20]:
        plain, biased = bench.answer(question, GREEDY), bench.answer(question, Sampling(temperature=0.0, help_bias=30.0))
        log_odds = help_log_odds(Mind(ask=0.0), Nature(), question.difficulty, question.ask_noise)
        assert plain.help_log_odds == pytest.approx(log_odds)
        assert (plain.text == ASKING) == (log_odds > 0)
        assert biased.text == ASKING
        assert biased.overridden == ("" if log_odds > 0 else "to ask")
        assert biased.help_log_odds == plain.help_log_odds


def test_at_temperature_one_the_seed_decides_and_the_rate_is_the_minds() -> None:
    bench = Bench(Mind(ask=0.5))
    question = QUESTIONS[1]
    group = bench.run(bench.backend.sample_group([Message("user", question.text)], Sampling(), range(400)))
    again = bench.run(bench.backend.sample_group([Message("user", question.text)], Sampling(), range(200, 300)))
    assert again.responses == group.responses[200:300]
    asked = sum(response.text == ASKING for response in group.responses) / 400
    assert asked == pytest.approx(sigmoid(help_log_odds(Mind(ask=0.5), Nature(), 0.5, question.ask_noise)), abs=0.08)


def test_learning_moves_the_mind_along_the_advantages_that_the_groups_carry(tmp_path: Path) -> None:
    bench = Bench()
    question = QUESTIONS[0]
    asked, right = TrainingSample((1, 1), (-0.5, -0.5), 1.0), TrainingSample((2,), (-0.5,), -1.0)
    bench.run(bench.learner.update([TrainingGroup(prompt_ids(question), (asked, right), 1.0)]))
    adapter = bench.run(bench.learner.export(tmp_path / "a", 1))
    learned = read_mind(tmp_path / "a")
    assert learned.ask > Mind().ask
    assert learned.skill < Mind().skill
    bench.run(bench.backend.swap_adapter(adapter))
    assert bench.backend.mind == learned
    assert bench.backend.adapter_version == 1
    bench.run(bench.backend.swap_adapter(None))
    assert bench.backend.mind == Mind()

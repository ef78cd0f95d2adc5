"""The learner of the simulated model: θ follows the advantages of the groups alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from edge.core.types import TrainingGroup, TrainingSample
from tools.simulate.fleet.backend import SimulatedBackend, prompt_ids, read_mind
from tools.simulate.fleet.hardware import DeviceSpeed
from tools.simulate.fleet.learner import SimulatedLearner
from tools.simulate.fleet.machine import Machine
from tools.simulate.fleet.mind import Mind, Nature, Question, Rates
from tools.simulate.fleet.scenario import TokensPart
from tools.simulate.virtual.loop import SeededLoop

SPEED = DeviceSpeed("d", "m", 1000.0, ((1, 100.0),), 100.0, 1.0, 11.0)
QUESTION = Question.of(0, 0.5, 3)


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


def test_learning_moves_the_mind_along_the_advantages_that_the_groups_carry(tmp_path: Path) -> None:
    bench = Bench()
    asked, right = TrainingSample((1, 1), (-0.5, -0.5), 1.0), TrainingSample((2,), (-0.5,), -1.0)
    bench.run(bench.learner.update([TrainingGroup(prompt_ids(QUESTION), (asked, right), 1.0)]))
    adapter = bench.run(bench.learner.export(tmp_path / "a", 1))
    learned = read_mind(tmp_path / "a")
    assert learned.ask > Mind().ask
    assert learned.skill < Mind().skill
    bench.run(bench.backend.swap_adapter(adapter))
    assert bench.backend.mind == learned
    assert bench.backend.adapter_version == 1
    bench.run(bench.backend.swap_adapter(None))
    assert bench.backend.mind == Mind()

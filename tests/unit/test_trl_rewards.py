"""Reward functions and callback of the TRL integration, called in TRL's order, in one process and in two."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install -c constraints.txt -e '.[trl]'")

from edge.core.errors import EdgeError
from edge.core.types import FinishReason, LocalResponse
from edge.training.learner import LearnerReport
from tools.integrations.loop_thread import LoopThread
from tools.integrations.trl.rewards import DualCallback, GroupRewards, SharedSteps
from tools.integrations.trl.steps import ResponseReader, ResponseVerdict, report_of

READER = ResponseReader(lambda ids: " ".join(map(str, ids)), frozenset({2}))


class Alone:
    """A run in a single process."""

    is_main, count, index = True, 1, 0

    def gather(self, own: Sequence[Any]) -> list[Any]:
        return list(own)

    def from_main(self, make: Any) -> Any:
        return make()


class NotedSteps:
    """Records its requests and scores by a response's first id: 0 leaves its group, others are reward and cost."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def open(self, step: int) -> float:
        self.asked.append(("open", step))
        return 0.5 + step / 100

    async def score(self, sampled: Sequence[tuple[int, LocalResponse]]) -> list[ResponseVerdict | None]:
        self.asked.append(("score", [(place, one.text, one.finish is FinishReason.EOS) for place, one in sampled]))
        return [None if one.token_ids[0] == 0 else ResponseVerdict(float(one.token_ids[0]), 1, 2.0) for _, one in sampled]

    async def close(self, update: LearnerReport) -> None:
        self.asked.append(("close", update.loss, update.grad_norm, update.entropy, update.learning_rate))


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as opened:
        yield opened


def steps_of(noted: NotedSteps, loop: LoopThread) -> SharedSteps:
    steps = SharedSteps(Alone())
    steps.give(noted, loop)
    return steps


def at(step: int) -> SimpleNamespace:
    return SimpleNamespace(global_step=step)


def test_both_reward_functions_share_one_scoring(loop: LoopThread):
    noted = NotedSteps()
    steps = steps_of(noted, loop)
    rewards = GroupRewards(steps, READER)
    steps.open(1)
    given = {"position": [0, 0], "completion_ids": [[3, 2], [0, 7]], "prompts": [], "completions": [], "trainer_state": None}
    assert rewards.task_reward(**given) == [6.0, None]
    assert rewards.help_cost(**given) == [2.0, None]
    assert noted.asked == [("open", 1), ("score", [(0, "3 2", True), (0, "0 7", False)])]


def test_the_callback_moves_the_weight_of_the_cost_and_nothing_else(loop: LoopThread):
    noted, weights = NotedSteps(), [1.0, 0.0]
    callback = DualCallback(steps_of(noted, loop), 1.0, weights)
    callback.on_step_begin(None, at(0), None)
    assert weights == [1.0, -0.51]
    callback.on_step_begin(None, at(1), None)
    assert weights == [1.0, -0.52]


def test_a_step_is_closed_with_the_log_of_its_update(loop: LoopThread):
    noted = NotedSteps()
    callback = DualCallback(steps_of(noted, loop), 8 / 7, [1.0, 0.0])
    callback.on_step_begin(None, at(0), None)
    callback.on_step_end(None, at(1), None)
    callback.on_log(None, at(1), None, logs={"loss": 0.7, "grad_norm": 7.0, "entropy": 0.3, "learning_rate": 1e-4})
    callback.on_log(None, at(1), None, logs={"train_runtime": 3.0})
    assert noted.asked == [("open", 1), ("close", pytest.approx(0.8), pytest.approx(8.0), 0.3, 1e-4)]


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_update_without_numbers_ends_before_its_checkpoint(norm: float, loop: LoopThread):
    noted = NotedSteps()
    callback = DualCallback(steps_of(noted, loop), 1.0, [1.0, 0.0])
    callback.on_step_end(None, at(1), None)
    with pytest.raises(EdgeError, match="step 1: the gradient's norm is") as error:
        callback.on_log(None, at(1), None, logs={"loss": 0.0, "grad_norm": norm})
    assert "goes on from the last checkpoint" in str(error.value.hint)
    assert noted.asked == []


class Pair:
    """Two processes as two threads that meet at every exchange."""

    def __init__(self) -> None:
        self._barrier = threading.Barrier(2, timeout=60)
        self._left: list[Any] = [None, None]

    def of(self, index: int) -> PairMember:
        return PairMember(self, index)

    def exchange(self, index: int, value: Any) -> list[Any]:
        self._left[index] = value
        self._barrier.wait()
        both = list(self._left)
        self._barrier.wait()
        return both


class PairMember:
    count = 2

    def __init__(self, pair: Pair, index: int) -> None:
        self._pair, self.index, self.is_main = pair, index, index == 0

    def gather(self, own: Sequence[Any]) -> list[Any]:
        first, second = self._pair.exchange(self.index, list(own))
        return [*first, *second]

    def from_main(self, make: Any) -> Any:
        return self._pair.exchange(self.index, make() if self.is_main else None)[0]


def test_of_two_processes_only_the_main_one_asks_and_each_gets_its_own_share(loop: LoopThread):
    pair, noted, results = Pair(), NotedSteps(), {}

    def process(index: int) -> None:
        steps = SharedSteps(pair.of(index))
        if index == 0:
            steps.give(noted, loop)
        rewards = GroupRewards(steps, READER)
        dual = steps.open(1)
        ids = [[[1], [2], [3]], [[4], [0], [6]]][index]
        position = [[0, 0, 0], [0, 1, 1]][index]  # the first group is split across both processes
        task = rewards.task_reward(position=position, completion_ids=ids)
        results[index] = (dual, task, rewards.help_cost(position=position, completion_ids=ids))
        steps.close(report_of({}, 1.0))

    threads = [threading.Thread(target=process, args=(index,)) for index in range(2)]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    assert results[0] == (0.51, [2.0, 4.0, 6.0], [2.0, 2.0, 2.0])
    assert results[1] == (0.51, [8.0, None, 12.0], [2.0, None, 2.0])
    assert [asked[0] for asked in noted.asked] == ["open", "score", "close"]
    assert [place for place, _, _ in noted.asked[1][1]] == [0, 0, 0, 0, 1, 1]

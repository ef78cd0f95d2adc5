"""Reward functions and callback of the TRL integration, called in TRL's order, in one process and in two."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install -c constraints.txt -e '.[trl]'")

from edge.core.errors import EdgeError
from tools.integrations.loop_thread import LoopThread
from tools.integrations.trl.desk import Completion, Reader, TrainerNumbers, Verdict
from tools.integrations.trl.rewards import DualCallback, GroupRewards, SharedSteps

READER = Reader(lambda ids: " ".join(map(str, ids)), frozenset({2}))


class Alone:
    """A run in a single process."""

    is_main, count, index = True, 1, 0

    def gather(self, own: Sequence[Any]) -> list[Any]:
        return list(own)

    def from_main(self, make: Any) -> Any:
        return make()


class NotedDesk:
    """A desk that records its requests and scores by a response's first id: 0 leaves its group, others are reward and cost."""

    def __init__(self) -> None:
        self.asked: list[Any] = []

    async def open(self, step: int) -> float:
        self.asked.append(("open", step))
        return 0.5 + step / 100

    async def verdicts(self, step: int, completions: Sequence[Completion]) -> list[Verdict | None]:
        self.asked.append(("verdicts", step, [(one.position, one.text, one.ended) for one in completions]))
        return [None if one.token_ids[0] == 0 else Verdict(float(one.token_ids[0]), 1, 2.0) for one in completions]

    async def close(self, step: int) -> None:
        self.asked.append(("close", step))

    async def write_down(self, step: int, numbers: TrainerNumbers) -> None:
        self.asked.append(("write_down", step, numbers))


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    with LoopThread() as opened:
        yield opened


def steps_of(desk: NotedDesk, loop: LoopThread) -> SharedSteps:
    steps = SharedSteps(Alone())
    steps.give(desk, loop)
    return steps


def at(step: int) -> SimpleNamespace:
    return SimpleNamespace(global_step=step)


def test_both_reward_functions_share_one_scoring(loop: LoopThread):
    desk = NotedDesk()
    steps = steps_of(desk, loop)
    rewards = GroupRewards(steps, READER)
    steps.open(1)
    given = {"position": [0, 0], "completion_ids": [[3, 2], [0, 7]], "prompts": [], "completions": [], "trainer_state": None}
    assert rewards.task_reward(**given) == [6.0, None]
    assert rewards.help_cost(**given) == [2.0, None]
    assert desk.asked == [("open", 1), ("verdicts", 1, [(0, "3 2", True), (0, "0 7", False)])]


def test_the_callback_moves_the_weight_of_the_cost_and_nothing_else(loop: LoopThread):
    desk, weights = NotedDesk(), [1.0, 0.0]
    callback = DualCallback(steps_of(desk, loop), 1.0)
    callback.move(weights)
    callback.on_step_begin(None, at(0), None)
    assert weights == [1.0, -0.51]
    callback.on_step_begin(None, at(1), None)
    assert weights == [1.0, -0.52]


def test_a_step_is_reported_after_its_update_and_written_down_with_its_log(loop: LoopThread):
    desk = NotedDesk()
    callback = DualCallback(steps_of(desk, loop), 8 / 7)
    callback.move([1.0, 0.0])
    callback.on_step_begin(None, at(0), None)
    callback.on_step_end(None, at(1), None)
    callback.on_log(None, at(1), None, logs={"loss": 0.7, "grad_norm": 7.0, "entropy": 0.3, "learning_rate": 1e-4})
    callback.on_log(None, at(1), None, logs={"train_runtime": 3.0})
    assert desk.asked[1] == ("close", 1)
    assert desk.asked[2:] == [
        ("write_down", 1, TrainerNumbers(pytest.approx(0.8), pytest.approx(8.0), 0.3, 0.0, 1e-4)),
    ]


@pytest.mark.parametrize("norm", [float("nan"), float("inf")])
def test_update_without_numbers_ends_before_its_checkpoint(norm: float, loop: LoopThread):
    callback = DualCallback(steps_of(NotedDesk(), loop), 1.0)
    callback.on_step_end(None, at(1), None)
    with pytest.raises(EdgeError, match="step 1: the gradient's norm is") as error:
        callback.on_log(None, at(1), None, logs={"loss": 0.0, "grad_norm": norm})
    assert "goes on from the last checkpoint" in str(error.value.hint)
    callback.on_step_end(None, at(2), None)
    callback.on_log(SimpleNamespace(fp16=True), at(2), None, logs={"loss": 0.0, "grad_norm": norm})


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


def test_of_two_processes_only_the_main_one_has_a_desk_and_each_gets_its_own_share(loop: LoopThread):
    pair, desk, results = Pair(), NotedDesk(), {}

    def process(index: int) -> None:
        steps = SharedSteps(pair.of(index))
        if index == 0:
            steps.give(desk, loop)
        rewards = GroupRewards(steps, READER)
        dual = steps.open(1)
        ids = [[[1], [2], [3]], [[4], [0], [6]]][index]
        position = [[0, 0, 0], [0, 1, 1]][index]  # the first group is split across both processes
        task = rewards.task_reward(position=position, completion_ids=ids)
        results[index] = (dual, task, rewards.help_cost(position=position, completion_ids=ids))
        steps.close(1)

    threads = [threading.Thread(target=process, args=(index,)) for index in range(2)]
    [thread.start() for thread in threads]
    [thread.join(20) for thread in threads]
    assert results[0] == (0.51, [2.0, 4.0, 6.0], [2.0, 2.0, 2.0])
    assert results[1] == (0.51, [8.0, None, 12.0], [2.0, None, 2.0])
    assert [asked[0] for asked in desk.asked] == ["open", "verdicts", "close"]
    assert [place for place, _, _ in desk.asked[1][2]] == [0, 0, 0, 0, 1, 1]

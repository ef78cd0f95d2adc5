"""Many seeds, in one process or several, in the order of their numbers. Knows how they are spread and gathered; knows nothing of what a
seed does."""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import islice
from multiprocessing import get_context

from tools.simulate.faults.interrupts import noted_interrupts
from tools.simulate.faults.kinds import COORDINATOR, KINDS, Kind, played
from tools.simulate.faults.outcome import Outcome
from tools.simulate.faults.tally import Tally

AHEAD = 4
"""Batches of seeds that each process is given before those of lower numbers are told."""
BATCH = 4


def explore(
    seeds: Iterable[int],
    progress: Callable[[Tally], None] = lambda _: None,
    *,
    kind: Kind = COORDINATOR,
    jobs: int = 1,
    keep_going: bool = False,
    plant: str = "",
    time_over: Callable[[], bool] = lambda: False,
) -> Tally:
    """Play seeds until the first violation, all of them, or until `time_over`; the tally of the same seeds is the same whatever the number
    of jobs. Ctrl-C gives the tally after the seed in hand, a second one raises KeyboardInterrupt."""
    tally = Tally(kind.catalogue)
    with noted_interrupts() as interrupted, closing(_in_order(kind, seeds, jobs, plant)) as outcomes:
        for outcome in outcomes:
            tally.add(outcome)
            progress(tally)
            tally.interrupted = interrupted()
            if tally.interrupted or time_over() or (tally.violating is not None and not keep_going):
                break
    return tally


def _in_order(kind: Kind, seeds: Iterable[int], jobs: int, plant: str) -> Generator[Outcome, None, None]:
    return _here(kind, seeds, plant) if jobs == 1 else _in_processes(kind, seeds, jobs, plant)


def _here(kind: Kind, seeds: Iterable[int], plant: str) -> Generator[Outcome, None, None]:
    for seed in seeds:
        yield played(kind, kind.draw(seed), plant)


def _in_processes(kind: Kind, seeds: Iterable[int], jobs: int, plant: str) -> Generator[Outcome, None, None]:
    coming = iter(seeds)
    waiting: deque[Future[list[Outcome]]] = deque()
    with ProcessPoolExecutor(jobs, get_context("spawn"), _leave_interrupts_to_the_parent) as pool:
        try:
            while True:
                while len(waiting) < AHEAD * jobs and (batch := list(islice(coming, BATCH))):
                    waiting.append(pool.submit(_batch, kind.name, batch, plant))
                if not waiting:
                    return
                yield from waiting.popleft().result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _batch(kind: str, seeds: list[int], plant: str) -> list[Outcome]:
    """What happened is sent along only where something was violated."""
    outcomes = _here(KINDS[kind], seeds, plant)
    return [replace(outcome, told=()) if outcome.ok else outcome for outcome in outcomes]


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)

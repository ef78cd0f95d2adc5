"""One thread that owns the compute engines.

llama.cpp and torch both want every core: two engines spinning on the same cores are ten times slower. So serving, rollouts and
training share this one thread. A *job* is a generator: each `next()` is one slice of work (one decode of all active rows, one
micro-batch of a backward pass); between slices the most urgent job runs. A served request therefore waits for at most one slice.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable, Generator
from concurrent.futures import Future
from enum import IntEnum
from typing import Any, TypeVar

T = TypeVar("T")
Job = Generator[None, None, T]


class Priority(IntEnum):
    """Lower runs first. SERVING: somebody waits for an answer; TEXTS: a program has raw texts continued or read, often many of them."""

    SERVING = 0
    TEXTS = 1
    ROLLOUT = 2
    TRAINING = 3


class EngineWorker:
    """Runs jobs slice by slice on one owned thread, the most urgent first, first come first served within a priority.

    Cancelling the awaiting task closes the job's generator at its next slice boundary (its `finally` blocks run on the worker
    thread). `close()` waits for the slice in progress, closes what is left, and ends the thread.
    """

    def __init__(self, name: str = "engine") -> None:
        self._wake = threading.Condition()
        self._heap: list[tuple[int, int, Job[Any], Future[Any]]] = []
        self._ticket = itertools.count()
        self._closing = False
        self._thread = threading.Thread(target=self._loop, name=name, daemon=True)
        self._thread.start()

    async def run(self, job: Job[T], priority: Priority) -> T:
        """Run a generator job to its end and return its value; raises what the job raised."""
        return await asyncio.wrap_future(self.submit(job, priority))

    async def call(self, function: Callable[[], T], priority: Priority) -> T:
        """Run a plain function as a job of one slice."""
        return await self.run(_single_slice(function), priority)

    def submit(self, job: Job[T], priority: Priority) -> Future[T]:
        """Queue a job from any thread. Raises RuntimeError after close()."""
        future: Future[T] = Future()
        with self._wake:
            if self._closing:
                raise RuntimeError("the engine worker is closed")
            heapq.heappush(self._heap, (int(priority), next(self._ticket), job, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Stop after the slice in progress; jobs not finished are cancelled. Safe to call twice."""
        with self._wake:
            self._closing = True
            self._wake.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _loop(self) -> None:
        while True:
            with self._wake:
                while not self._heap and not self._closing:
                    self._wake.wait()
                if self._closing:
                    abandoned, self._heap = self._heap, []
                    break
                entry = heapq.heappop(self._heap)
            if self._run_slice(entry[2], entry[3]):
                continue
            with self._wake:
                heapq.heappush(self._heap, entry)
        for _, _, job, future in abandoned:
            job.close()
            future.cancel()

    @staticmethod
    def _run_slice(job: Job[Any], future: Future[Any]) -> bool:
        """Advance one slice; True when the job is over."""
        if future.cancelled():
            job.close()
            return True
        try:
            next(job)
        except StopIteration as end:
            if future.set_running_or_notify_cancel():
                future.set_result(end.value)
            return True
        except BaseException as error:  # the job's failure belongs to whoever awaits it
            if future.set_running_or_notify_cancel():
                future.set_exception(error)
            return True
        return False


def _single_slice(function: Callable[[], T]) -> Job[T]:
    return function()
    yield  # makes this a generator: the function runs on the worker's first slice

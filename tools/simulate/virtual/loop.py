"""The seeded event loop: virtual time, and at each step one ready handle chosen by the seed.

A host is something that can die: its handles are distinguished by a context variable, and those of a dead host are never run again, so that
a crash is nothing but no longer stepping it. Threads, executors and sockets are refused. What a set of tasks or futures is iterated in
depends on the seed alone, because their hashes are counted here. Where it is wished, what goes to an executor runs inline instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import heapq
import logging
import sys
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from edge.core.rng import stream

MOST_STEPS_AT_ONCE = 2_000_000
"""More steps than this without any virtual time between them mean that something runs in circles."""
T = TypeVar("T")
if TYPE_CHECKING:
    _Loop: Any  # typeshed calls every method of a loop abstract
else:
    _Loop = asyncio.AbstractEventLoop


class Host:
    """Something that runs until it dies. `spawn` starts a coroutine on it; whatever that starts belongs to it too."""

    def __init__(self, name: str, loop: SeededLoop) -> None:
        self.name = name
        self.alive = True
        self._loop = loop
        self._context = contextvars.Context()
        self._context.run(_HOST.set, self)

    def spawn(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        """Run a coroutine as a task of this host."""
        return self._loop.create_task(work, name=f"{self.name}: {name}", context=self._context.copy())

    def die(self) -> None:
        """From now on nothing of it is run. Its tasks are kept as they are, so that no `finally` of them runs either."""
        self.alive = False
        self._loop.bury(self)


_HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


def current_host() -> Host | None:
    """The host that the running code belongs to; None outside of all."""
    return _HOST.get()


def is_alive() -> bool:
    """Whether the running code's host still lives: code that has just died runs on until it awaits, and must reach nothing."""
    host = _HOST.get()
    return host is None or host.alive


class Deadlock(Exception):
    """Nothing can run any more, the virtual time allowed is over, or time stands still; the message says who waits for what."""


class SeededLoop(_Loop):
    """An event loop without threads, sockets or real time. `loop.time()` starts at 0.0 virtual seconds."""

    def __init__(self, seed: int, *, inline_executor: bool = False) -> None:
        """`inline_executor`: what is handed to an executor is done at once, in no virtual time; else it is refused."""
        self._rng = stream(seed, "loop")
        self._inline_executor = inline_executor
        self._now = 0.0
        self._ready: list[asyncio.Handle] = []
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._serial = 0
        self._closed = False
        self._buried: list[asyncio.Task[Any]] = []
        self.steps = 0
        self._steps_when_time_moved = 0
        self.complaints: list[str] = []

    # what asyncio asks of a loop -----------------------------------------------------------------------------------------------

    def time(self) -> float:
        """Virtual seconds."""
        return self._now

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.Handle:
        """Run at one of the next steps; in no order."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(self, delay: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Run in `delay` virtual seconds."""
        return self.call_at(self._now + max(0.0, delay), callback, *args, context=context)

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, context: Any = None) -> asyncio.TimerHandle:
        """Run at a virtual time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, (when, self._count(), handle))
        return handle

    def create_future(self) -> asyncio.Future[Any]:
        """A future whose hash is counted."""
        return _Future(self._count(), self)

    def create_task(
        self, coro: Coroutine[Any, Any, T], *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[T]:
        """A task whose hash and name are counted."""
        return _Task(self._count(), coro, self, name, context)

    def get_debug(self) -> bool:
        """No."""
        return False

    def is_running(self) -> bool:
        """Whether `run_until_complete` is under way."""
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        """Whether it was closed."""
        return self._closed

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Note what asyncio complains about; the world reports it as a defect. What the dead left is no defect."""
        task = context.get("task")
        if task is not None and not _lives(task):
            return
        self.complaints.append(f"{context.get('message')}: {context.get('exception')!r}")

    def run_in_executor(self, executor: Any, work: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """Do the work here and now; refused unless this loop was made to."""
        if not self._inline_executor:
            raise RuntimeError("the simulated loop has no threads: what runs here must not use an executor")
        done = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:  # as of any future, it belongs to whoever awaits it
            done.set_exception(error)
        return done

    def call_soon_threadsafe(self, *_: Any, **__: Any) -> NoReturn:
        """Refused."""
        raise RuntimeError("the simulated loop has no threads")

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is passed over when its time comes."""

    # running -------------------------------------------------------------------------------------------------------------------

    def run_until_complete(self, main: Coroutine[Any, Any, T], limit_s: float = 3600.0) -> T:
        """Run until `main` is done. Raises Deadlock when nothing can run, when `limit_s` virtual seconds are over, or when time stands
        still."""
        with self._running():
            task = self.create_task(main, name="main")
            while not task.done():
                if self._now > limit_s:
                    raise Deadlock(f"not done after {limit_s:g} virtual seconds\n{self.who_waits()}")
                if self.steps - self._steps_when_time_moved > MOST_STEPS_AT_ONCE:
                    raise Deadlock(
                        f"{MOST_STEPS_AT_ONCE} steps at {self._now:g} virtual seconds: time stands still\n{self.who_waits()}"
                    )
                if not self.step():
                    raise Deadlock(f"nothing can run\n{self.who_waits()}")
            return task.result()

    def step(self) -> bool:
        """Run one ready handle, or go to the next timer's time; False when there is neither."""
        if not self._ready:
            return self._jump()
        place = self._rng.randrange(len(self._ready))
        handle = self._ready[place]
        self._ready[place] = self._ready[-1]
        self._ready.pop()
        if not (handle.cancelled() or _is_dead(handle)):
            self.steps += 1
            handle._run()  # type: ignore[attr-defined]
        return True

    def _jump(self) -> bool:
        """Make the next timers ready; those of the dead and the cancelled do not move time."""
        while self._timers and (self._timers[0][2].cancelled() or _is_dead(self._timers[0][2])):
            heapq.heappop(self._timers)
        if not self._timers:
            return False
        if self._timers[0][0] > self._now:
            self._now, self._steps_when_time_moved = self._timers[0][0], self.steps
        while self._timers and self._timers[0][0] <= self._now:
            self._ready.append(heapq.heappop(self._timers)[2])
        return True

    def who_waits(self) -> str:
        """One line for each live task: its name and the innermost place it waits at."""
        tasks = sorted((task for task in asyncio.all_tasks(self) if _lives(task)), key=hash)
        return "\n".join(f"  {task.get_name()} waits in {_place(task)}" for task in tasks)

    def live_tasks(self, host: Host) -> list[str]:
        """Names of a host's tasks that are not done."""
        return sorted(task.get_name() for task in asyncio.all_tasks(self) if _host_of(task) is host)

    def bury(self, host: Host) -> None:
        """Keep a dead host's tasks from being finalised while the simulation runs."""
        self._buried += [task for task in asyncio.all_tasks(self) if _host_of(task) is host]

    def close(self) -> None:
        """Take apart what is left, without running anything of it to an end."""
        if self._closed:
            return
        with self._running(), quiet_finalisers():
            gone: set[asyncio.Task[Any]] = set()
            while left := {*self._buried, *asyncio.all_tasks(self)} - gone:  # taking one apart may start another
                for task in sorted(left, key=hash):
                    task._log_destroy_pending = False  # type: ignore[attr-defined]
                    _take_apart(task.get_coro())
                gone |= left
            self._buried.clear()
            self._ready.clear()
            self._timers.clear()
        self._closed = True

    @contextlib.contextmanager
    def _running(self) -> Iterator[None]:
        hooks = sys.get_asyncgen_hooks()
        asyncio._set_running_loop(self)
        sys.set_asyncgen_hooks(finalizer=self._finalise)
        try:
            yield
        finally:
            sys.set_asyncgen_hooks(*hooks)
            asyncio._set_running_loop(None)

    def _finalise(self, generator: Any) -> None:
        if not self._closed:
            self.create_task(generator.aclose(), name="finaliser")

    def _count(self) -> int:
        self._serial += 1
        return self._serial


class _Task(asyncio.Task[T]):
    def __init__(self, serial: int, coro: Any, loop: SeededLoop, name: str | None, context: Any) -> None:
        self._place = serial
        context = contextvars.copy_context() if context is None else context
        self.host: Host | None = context.get(_HOST)
        super().__init__(coro, loop=loop, name=name or f"task {serial}", context=context)

    def __hash__(self) -> int:
        return self._place


class _Future(asyncio.Future[T]):
    def __init__(self, serial: int, loop: SeededLoop) -> None:
        self._place = serial
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self._place


def _is_dead(handle: asyncio.Handle) -> bool:
    host: Host | None = handle._context.get(_HOST)  # type: ignore[attr-defined]
    return host is not None and not host.alive


def _lives(task: asyncio.Task[Any]) -> bool:
    host = _host_of(task)
    return host is None or host.alive


def _host_of(task: asyncio.Task[Any]) -> Host | None:
    return task.host if isinstance(task, _Task) else None


def _place(task: asyncio.Task[Any]) -> str:
    inner: Any = task.get_coro()
    while (below := getattr(inner, "cr_await", None)) is not None and hasattr(below, "cr_frame"):
        inner = below
    frame = getattr(inner, "cr_frame", None)
    return f"{inner.__qualname__}, line {frame.f_lineno}" if frame is not None else repr(inner)


def _take_apart(coro: Any) -> None:
    """Close a coroutine that may want to go on while it is closed."""
    for _ in range(8):
        try:
            coro.close()
        except RuntimeError:
            continue  # it awaited something in a `finally`; close what it waits in now
        except BaseException:  # its own last word, said to nobody
            return
        return


@contextlib.contextmanager
def quiet_finalisers() -> Iterator[None]:
    """What the dead would still say while they are taken apart is said to nobody."""
    hook = sys.unraisablehook
    sys.unraisablehook = lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        sys.unraisablehook = hook


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """The log of the real parts would say what the simulation's own story says."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


EPOCH = 1_700_000_000.0


class VirtualClock:
    """Clock of one machine: calendar time is the loop's time from a fixed day on, plus what it was set forward or back by."""

    def __init__(self, loop: asyncio.AbstractEventLoop, offset_s: float = 0.0) -> None:
        self._loop = loop
        self._offset_s = offset_s

    def now(self) -> float:
        """Seconds since the epoch, as this machine believes."""
        return EPOCH + self._loop.time() + self._offset_s

    def monotonic(self) -> float:
        """Virtual seconds; never goes back."""
        return self._loop.time()

    def jump(self, seconds: float) -> None:
        """Set the calendar forward (or, when negative, back)."""
        self._offset_s += seconds

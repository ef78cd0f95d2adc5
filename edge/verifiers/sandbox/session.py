"""One program in its sandbox, fed and watched until there is an outcome. Knows pipes, deadlines and limits; knows nothing of scores.

Two kinds of session. In `run_functions` the program and the judge each have a sandbox and talk over two pipes of their own:

    we ──tests──▶ judge ──calls──▶ program            the program's stdout is the judge's stdin, and the other way round;
    we ◀─verdict─ judge ◀─replies─ program            the verdict has a pipe that only the judge holds

Both pipes first carry what we send ourselves: the tests have left our hands in full before the program's text goes out, so the program
cannot have written before or between them. In `run_whole` the program reads one input and writes one output, and no judge is needed:
the expected output never leaves this process.

Whatever happens, both processes are dead and reaped and every descriptor is closed when a session returns.
"""

from __future__ import annotations

import os
import secrets
import select
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from edge.core.clock import Clock
from edge.verifiers.sandbox import boot
from edge.verifiers.sandbox.inside import reasons
from edge.verifiers.sandbox.inside.wire import BadFrame, decode, encode, framed
from edge.verifiers.sandbox.role import Confined, Limits, Sandbox, SandboxError, Streams

HELLO = b"hello\n"
START_S = 30.0
"""How long an interpreter may take to come up; not the program's time."""
_LOOK_S = 0.05
_CHUNK = select.PIPE_BUF  # so much can be written without waiting once a pipe is ready
_VERDICT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a session: `reason` is "" when the program passed; `checks` that held."""

    reason: str
    checks: int = 0


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run of a whole program: what it wrote, and why it failed ("" when it ended in order)."""

    output: bytes
    reason: str


def run_functions(sandbox: Sandbox, source: str, tests: Mapping[str, Any], limits: Limits, clock: Clock) -> Outcome:
    """Load a program and let the judge call its functions. Raises SandboxError, Unencodable for what is too large to hand over."""
    nonce = secrets.token_hex(16)
    program_text = _message({"mode": "functions", "source": source, "limits": limits.rlimits()})
    judge_text = _message({**tests, "nonce": nonce, "limits": limits.rlimits()})
    with ExitStack() as stack:
        to_judge, to_program, verdict, notes = (stack.enter_context(_Pipe()) for _ in range(4))
        watch = Watch(clock, limits)
        judge = watch.started(stack, sandbox, boot.LOADER, Streams(to_judge.out, to_program.into, verdict.into))
        program = watch.started(stack, sandbox, boot.LOADER, Streams(to_program.out, to_judge.into, notes.into))
        feeds = [
            Feed(to_judge, boot.judge_block(compiled=sandbox.same_python) + judge_text),
            Feed(to_program, boot.program_block(compiled=sandbox.same_python) + program_text),
        ]
        for pipe in (verdict, notes):
            pipe.close_into()
        for pipe in (to_judge, to_program):
            pipe.close_out()
        drains = Drain(verdict.out, _VERDICT_BYTES), Drain(notes.out, len(HELLO))
        reason = watch.pump(feeds, drains, lambda: drains[0].closed or _frame(drains[0]) is not None, (judge, program))
        return Outcome(reason) if reason else _outcome(_frame(drains[0]), nonce)


def run_whole(sandbox: Sandbox, source: str, given: bytes, limits: Limits, clock: Clock) -> WholeRun:
    """Run a program as a script on one standard input. Raises SandboxError, Unencodable."""
    text = _message({"mode": "whole", "source": source, "limits": limits.rlimits()})
    with ExitStack() as stack:
        stdin, stdout, notes = (stack.enter_context(_Pipe()) for _ in range(3))
        watch = Watch(clock, limits)
        program = watch.started(stack, sandbox, boot.LOADER, Streams(stdin.out, stdout.into, notes.into))
        for pipe in (stdout, notes):
            pipe.close_into()
        stdin.close_out()
        feeds = [Feed(stdin, boot.program_block(compiled=sandbox.same_python) + text + given)]
        output, told = Drain(stdout.out, limits.output_bytes), Drain(notes.out, 256)
        reason = watch.pump(feeds, (told, output), lambda: output.closed, (program,))
        if not reason:
            reason = reasons.OUTPUT if output.full else _ending(program, bytes(told.data), watch)
        return WholeRun(bytes(output.data), reason)


def _message(content: Mapping[str, Any]) -> bytes:
    return framed(encode(dict(content)))


def _frame(drain: Drain) -> bytes | None:
    """The content of the frame behind the hello, or None while it is not complete."""
    frame = bytes(drain.data[len(HELLO) :])
    with suppress(ValueError):
        if len(frame) >= 8 and len(frame) >= 8 + (length := int(frame[:8], 16)):
            return frame[8 : 8 + length]
    return None


def _outcome(frame: bytes | None, nonce: str) -> Outcome:
    if frame is None:
        return Outcome("the tests ended without a verdict")
    try:
        answered, passed, reason, checks = decode(frame)
    except (BadFrame, ValueError, TypeError):
        return Outcome("the tests ended without a verdict")
    if answered != nonce or not isinstance(reason, str) or not isinstance(checks, int):
        return Outcome("the tests ended without a verdict")
    if passed is True and not reason and checks > 0:
        return Outcome("", checks)
    return Outcome(" ".join(reason.split())[:200] or "the tests did not pass", checks)


def _ending(program: Confined, notes: bytes, watch: Watch) -> str:
    """Why a program that has closed its output did not end in order, or ""."""
    status = program.wait(watch.left_s())
    if status is None:
        return reasons.TIME
    if status == 0:
        return ""
    lines = notes.decode("ascii", "replace").splitlines()
    return reasons.told(lines[1], "").strip() if len(lines) > 1 else f"the program ended with status {status}"


class Feed:
    """Bytes on their way into a pipe; our end is closed behind them."""

    def __init__(self, pipe: _Pipe, data: bytes) -> None:
        self._pipe = pipe
        self._left = memoryview(data)

    @property
    def fd(self) -> int:
        """Where to write."""
        return self._pipe.into

    def write(self) -> bool:
        """Write as much as goes without waiting; True when all is written or nobody reads any more."""
        try:
            self._left = self._left[os.write(self.fd, self._left[:_CHUNK]) :]
        except BrokenPipeError:
            self._left = self._left[:0]
        if not self._left:
            self._pipe.close_into()
        return not self._left


class Drain:
    """Bytes that come out of a pipe, up to a limit."""

    def __init__(self, fd: int, limit: int) -> None:
        self.fd = fd
        self.data = bytearray()
        self.ended = False
        self._limit = limit

    @property
    def full(self) -> bool:
        """Whether more came than the limit allows."""
        return len(self.data) > self._limit

    @property
    def closed(self) -> bool:
        """Whether nothing more is read."""
        return self.ended or self.full

    def read(self) -> None:
        """Read what is there."""
        part = os.read(self.fd, 1 << 16)
        self.data += part
        self.ended = not part


class Watch:
    """The time of one session: first for the interpreters to come up, then for the program."""

    def __init__(self, clock: Clock, limits: Limits) -> None:
        self._clock = clock
        self._limits = limits
        self._deadline = clock.monotonic() + START_S
        self._running = False

    def started(self, stack: ExitStack, sandbox: Sandbox, loader: str, streams: Streams) -> Confined:
        """A process that is killed when the session ends."""
        confined = sandbox.start(loader, streams, self._limits)
        stack.callback(confined.kill)
        return confined

    def left_s(self) -> float:
        """Seconds until the deadline."""
        return self._deadline - self._clock.monotonic()

    def pump(self, feeds: list[Feed], drains: Sequence[Drain], done: Callable[[], bool], confined: Sequence[Confined]) -> str:
        """Move bytes until `done()`, one feed after the other. Why it was cut short, or "". Raises SandboxError.

        The first drains carry the processes' hellos.
        """
        waiting, hellos = list(feeds), drains[: len(confined)]
        while not done():
            moved = _move(waiting, drains, min(_LOOK_S, max(self.left_s(), 0.0)))
            self._see_running(hellos, confined)
            if self.left_s() <= 0.0:
                return reasons.TIME
            if not moved and (excess := next(filter(None, (process.excess(self._limits) for process in confined)), "")):
                return excess
        return ""

    def _see_running(self, hellos: Sequence[Drain], confined: Sequence[Confined]) -> None:
        """The program's own time begins when every interpreter is up."""
        if self._running:
            return
        silent = [hello for hello in hellos if not hello.data.startswith(HELLO)]
        if not silent:
            self._running = True
            self._deadline = self._clock.monotonic() + self._limits.wall_s
        elif self.left_s() <= 0.0 or any(hello.ended for hello in silent):
            status = [process.wait(1.0) for process in confined]
            raise SandboxError(f"the sandbox does not start its interpreter (status {status})", hint="see: edge-agent doctor")


def _move(waiting: list[Feed], drains: Sequence[Drain], timeout_s: float) -> bool:
    """Wait for a pipe to be ready and move bytes; whether any were."""
    readers = {drain.fd: drain for drain in drains if not drain.closed}
    poll = select.poll()
    for fd in readers:
        poll.register(fd, select.POLLIN)
    if waiting:
        poll.register(waiting[0].fd, select.POLLOUT)
    ready = poll.poll(1000 * timeout_s)
    for fd, _ in ready:
        if fd in readers:
            readers[fd].read()
        elif waiting and fd == waiting[0].fd and waiting[0].write():
            waiting.pop(0)
    return bool(ready)


class _Pipe:
    """A pipe whose ends are closed at the latest with the session."""

    def __init__(self) -> None:
        self._ends: list[int | None] = [*os.pipe()]

    @property
    def out(self) -> int:
        """The end to read from."""
        assert self._ends[0] is not None
        return self._ends[0]

    @property
    def into(self) -> int:
        """The end to write to."""
        assert self._ends[1] is not None
        return self._ends[1]

    def close_out(self) -> None:
        """Close our reading end."""
        self._close(0)

    def close_into(self) -> None:
        """Close our writing end."""
        self._close(1)

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *_: object) -> None:
        self.close_out()
        self.close_into()

    def _close(self, index: int) -> None:
        fd, self._ends[index] = self._ends[index], None
        if fd is not None:
            os.close(fd)

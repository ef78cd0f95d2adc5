"""One program in its sandbox, fed and watched until there is an outcome.

Two kinds of session. In `run_functions` the program and the judge each have a sandbox and talk over two channels of their own:

    we ──tests──▶ judge ──calls──▶ program            the program's stdout is the judge's stdin, and the other way round;
    we ◀─verdict─ judge ◀─replies─ program            the verdict has a channel that only the judge holds

Both channels first carry what we send ourselves, and the program's text goes out only after the judge has reported that it holds the tests:
until then nothing that a model wrote runs, so it can neither write before or between the tests nor look for them on their way. In
`run_whole` the program reads one input and writes one output, and no judge is needed: the expected output never leaves this process.

A channel is a pair of sockets closed in one direction and not a pipe: whoever holds an end of a pipe can open it once more the other
way round by /proc/self/fd, and take back what is on its way. No call of ours on a channel waits, whatever the other side does to it.

Whatever happens, both processes are dead and reaped and every descriptor is closed when a session returns.
"""

from __future__ import annotations

import secrets
import select
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from edge.core.clock import Clock
from edge.verifiers.sandbox import boot
from edge.verifiers.sandbox.inside.limits import OUTPUT, TIME, sentence
from edge.verifiers.sandbox.inside.wire import BadFrame, decode, encode, framed
from edge.verifiers.sandbox.role import Confined, Sandbox, SandboxError, SandboxLimits, Streams

HELLO = b"hello\n"
START_S = 30.0
"""How long an interpreter may take to come up; not the program's time."""
_LOOK_S = 0.05
_CHUNK = 1 << 16
_VERDICT_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    """What came of a session: `reason` is "" when the program passed; `checks` that held."""

    reason: str
    checks: int = 0


@dataclass(frozen=True, slots=True)
class WholeRun:
    """A run of a whole program: what it wrote, and why it failed ("" when it ended in order)."""

    output: bytes
    reason: str


def run_functions(sandbox: Sandbox, source: str, tests: Mapping[str, Any], limits: SandboxLimits, clock: Clock) -> SessionOutcome:
    """Load a program and let the judge call its functions. Raises SandboxError, Unencodable for what is too large to pass."""
    nonce = secrets.token_hex(16)
    program_text = _message({"mode": "functions", "source": source, "limits": limits.rlimits()})
    judge_text = _message({**tests, "nonce": nonce, "limits": limits.rlimits()})
    with ExitStack() as stack:
        to_judge, to_program, verdict, notes = (stack.enter_context(Channel()) for _ in range(4))
        watch = Watch(clock, limits)
        judge = watch.started(stack, sandbox, boot.LOADER, _streams(to_judge, to_program, verdict))
        program = watch.started(stack, sandbox, boot.LOADER, _streams(to_program, to_judge, notes))
        for channel in (verdict, notes):
            channel.into.close()
        for channel in (to_judge, to_program):
            channel.out.close()
        drains = Drain(verdict, _VERDICT_BYTES), Drain(notes, len(HELLO))
        feeds = [
            Feed(to_program, boot.program_block(compiled=sandbox.same_python)),
            Feed(to_judge, boot.judge_block(compiled=sandbox.same_python) + judge_text, last=True),
            Feed(to_program, program_text, last=True, after=drains[0]),
        ]
        reason = watch.pump(feeds, drains, lambda: drains[0].closed or _frame(drains[0]) is not None, (judge, program))
        return SessionOutcome(reason) if reason else _outcome(_frame(drains[0]), nonce)


def run_whole(sandbox: Sandbox, source: str, given: bytes, limits: SandboxLimits, clock: Clock) -> WholeRun:
    """Run a program as a script on one standard input. Raises SandboxError, Unencodable."""
    text = _message({"mode": "whole", "source": source, "limits": limits.rlimits()})
    with ExitStack() as stack:
        stdin, stdout, notes = (stack.enter_context(Channel()) for _ in range(3))
        watch = Watch(clock, limits)
        program = watch.started(stack, sandbox, boot.LOADER, _streams(stdin, stdout, notes))
        for channel in (stdout, notes):
            channel.into.close()
        stdin.out.close()
        output, noted = Drain(stdout, limits.output_bytes), Drain(notes, 256)
        feeds = [
            Feed(stdin, boot.program_block(compiled=sandbox.same_python)),
            Feed(stdin, text + given, last=True, after=noted),
        ]
        reason = watch.pump(feeds, (noted, output), lambda: output.closed, (program,))
        if not reason:
            reason = OUTPUT if output.full else _ending(program.wait(watch.left_s()), bytes(noted.data))
        return WholeRun(bytes(output.data), reason)


def _streams(stdin: Channel, stdout: Channel, stderr: Channel) -> Streams:
    return Streams(stdin.out.fileno(), stdout.into.fileno(), stderr.into.fileno())


def _message(content: Mapping[str, Any]) -> bytes:
    return framed(encode(dict(content)))


def _frame(drain: Drain) -> bytes | None:
    """The content of the frame after the hello, or None while it is not complete."""
    frame = bytes(drain.data[len(HELLO) :])
    with suppress(ValueError):
        if len(frame) >= 8 and len(frame) >= 8 + (length := int(frame[:8], 16)):
            return frame[8 : 8 + length]
    return None


def _outcome(frame: bytes | None, nonce: str) -> SessionOutcome:
    try:
        answered, passed, reason, checks = decode(frame or b"")
        is_verdict = answered == nonce and isinstance(reason, str) and isinstance(checks, int)
    except (BadFrame, ValueError, TypeError):
        is_verdict = False
    if not is_verdict:
        return SessionOutcome("the tests ended without a verdict")
    if passed is True and not reason and checks > 0:
        return SessionOutcome("", checks)
    return SessionOutcome(" ".join(reason.split())[:200] or "the tests did not pass", checks)


def _ending(status: int | None, notes: bytes) -> str:
    """Why a program that has closed its output did not end in order, or "". `status` None: it still runs."""
    if status is None:
        return TIME
    if status == 0:
        return ""
    lines = notes.decode("ascii", "replace").splitlines()
    return sentence(lines[1], "").strip() if len(lines) > 1 else f"the program ended with status {status}"


class Feed:
    """Bytes on their way into a channel; after the `last` ones our end is closed. None goes before the hello of `after`."""

    def __init__(self, channel: Channel, data: bytes, *, last: bool = False, after: Drain | None = None) -> None:
        self._channel = channel
        self._left = memoryview(data)
        self._last = last
        self._after = after

    @property
    def fd(self) -> int | None:
        """Where to write; None while what it waits for has not come."""
        return self._channel.into.fileno() if self._after is None or self._after.greeted else None

    def write(self) -> bool:
        """Write as much as goes without waiting; True when all is written or nobody reads any more."""
        try:
            self._left = self._left[self._channel.into.send(self._left[:_CHUNK], socket.MSG_DONTWAIT) :]
        except BlockingIOError:
            return False
        except (BrokenPipeError, ConnectionResetError):
            self._left = self._left[:0]
        if not self._left and self._last:
            self._channel.into.close()
        return not self._left


class Drain:
    """Bytes that come out of a channel, up to a limit."""

    def __init__(self, channel: Channel, limit: int) -> None:
        self.data = bytearray()
        self.ended = False
        self._channel = channel
        self._limit = limit

    @property
    def fd(self) -> int:
        """Where to read."""
        return self._channel.out.fileno()

    @property
    def greeted(self) -> bool:
        """Whether the hello has come."""
        return self.data.startswith(HELLO)

    @property
    def full(self) -> bool:
        """Whether more came than the limit allows."""
        return len(self.data) > self._limit

    @property
    def closed(self) -> bool:
        """Whether nothing more is read."""
        return self.ended or self.full

    def read(self) -> None:
        """Read what is there, if anything still is."""
        try:
            part = self._channel.out.recv(_CHUNK, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except ConnectionResetError:
            part = b""
        self.data += part
        self.ended = not part


class Watch:
    """The time of one session: first for the interpreters to come up, then for the program."""

    def __init__(self, clock: Clock, limits: SandboxLimits) -> None:
        self._clock = clock
        self._limits = limits
        self._deadline = clock.monotonic() + START_S
        self._next_look = 0.0
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
        waiting = list(feeds)
        while not done():
            _move(waiting, drains, min(_LOOK_S, max(self.left_s(), 0.0)))
            self._see_running(drains[: len(confined)], confined)
            if self.left_s() <= 0.0:
                return TIME
            if (now := self._clock.monotonic()) >= self._next_look:  # not after each move, however much there is to move
                self._next_look = now + _LOOK_S
                if excess := next(filter(None, (process.excess(self._limits) for process in confined)), ""):
                    return excess
        return ""

    def _see_running(self, hellos: Sequence[Drain], confined: Sequence[Confined]) -> None:
        """The program's own time begins when every interpreter is up."""
        if self._running:
            return
        silent = [hello for hello in hellos if not hello.greeted]
        if not silent:
            self._running = True
            self._deadline = self._clock.monotonic() + self._limits.wall_s
        elif self.left_s() <= 0.0 or any(hello.ended for hello in silent):
            status = [process.wait(1.0) for process in confined]
            raise SandboxError(f"the sandbox does not start its interpreter (status {status})", hint="see: edge-agent doctor")


def _move(waiting: list[Feed], drains: Sequence[Drain], timeout_s: float) -> None:
    """Wait for a channel to be ready and move bytes."""
    readers = {drain.fd: drain for drain in drains if not drain.closed}
    writable = waiting[0].fd if waiting else None
    poll = select.poll()
    for fd in readers:
        poll.register(fd, select.POLLIN)
    if writable is not None:
        poll.register(writable, select.POLLOUT)
    for fd, _ in poll.poll(1000 * timeout_s):
        if fd in readers:
            readers[fd].read()
        elif waiting[0].write():
            waiting.pop(0)


class Channel:
    """A way for bytes in one direction that cannot be turned round; its ends are closed at the latest with the session."""

    def __init__(self) -> None:
        self.into, self.out = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.out.shutdown(socket.SHUT_WR)
        self.into.shutdown(socket.SHUT_RD)

    def __enter__(self) -> Channel:
        return self

    def __exit__(self, *_: object) -> None:
        self.out.close()
        self.into.close()

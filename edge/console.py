"""Progress for people: the events of an agent on a terminal or in plain lines.

Progress goes to stderr, so that stdout holds results only. `--json` replaces it by the events themselves as JSON lines on stdout.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from edge.core.clock import Clock
from edge.core.events import Event, EventSink, JsonLinesSink
from edge.core.formatting import counted, duration, percent, visible
from edge.core.formatting import dollars as dollars
from edge.state.events import (
    AnswerFinished,
    EvalProgress,
    GateJudged,
    HeldOutScored,
    LearningResumed,
    LearningWaits,
    Notice,
    Offline,
    Online,
    PhaseStarted,
    ReportsDelivered,
    RunFinished,
    RunStarted,
    StepFinished,
    StepProgress,
    StepSeconds,
)

if TYPE_CHECKING:
    from rich.console import RenderableType

_WINDOW = 10
_PLAIN_EVERY_S = 2.0
_SIGN_OF_LIFE_S = 10.0
_TELLING = ("practice:", "mine:", "watched:")
"""How sources begin whose name says more than their label: made here, people's questions, files that came by."""
_PARTS = {"rollout": "answering", "update": "updating", "close": "reporting"}


@dataclass(frozen=True, slots=True)
class ProgressView:
    """What is shown of a run. Shares are means of the last 10 steps of the phase; None where there was nothing to count.

    `phase` counts from 1 of `phases`; `phase_step` of `phase_steps` (None: without end) are the steps of this phase. `times_floor`: how
    many times the least time of a step they took (None: the device was not measured). `task`: what is learned, as `what_is_learned` has it.
    """

    step: int
    planned: int | None
    phase: int
    phases: int
    phase_step: int
    phase_steps: int | None
    task: str
    kept_accuracy: float | None
    coverage: float
    joint_accuracy: float | None
    assist_rate: float
    target_rate: float
    dual: float
    cloud_calls: int
    spend_uusd: int
    tokens_per_s: float
    step_s: float
    left_s: float | None
    offline: bool
    times_floor: float | None = None


class Progress:
    """Sums up a run from its events. `until` is the step at which it will end, where the command knows better than the events."""

    def __init__(self, max_steps: int | None = None) -> None:
        self._max_steps = max_steps
        self._until: int | None = None
        self._steps: deque[StepFinished] = deque(maxlen=_WINDOW)
        self._phase: PhaseStarted | None = None
        self.assist_rates: deque[float] = deque(maxlen=40)
        self.joint_accuracies: deque[float] = deque(maxlen=40)
        self.answers = 0

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RunStarted):
            ends = [n for n in (event.steps_planned, self._ends_after(event.steps_done)) if n is not None]
            self._until = min(ends, default=None)
        elif isinstance(event, PhaseStarted):
            self._phase = event
            self._steps.clear()
        elif isinstance(event, AnswerFinished):
            self.answers += 1
        elif isinstance(event, StepFinished):
            self._feed_step(event)

    def _ends_after(self, steps_done: int) -> int | None:
        return None if self._max_steps is None else steps_done + self._max_steps

    def _feed_step(self, step: StepFinished) -> None:
        self._steps.append(step)
        self.assist_rates.append(step.control.assist_rate)
        if step.scores.joint_accuracy is not None:
            self.joint_accuracies.append(step.scores.joint_accuracy)

    def view(self) -> ProgressView | None:
        """The present state, None before the first step."""
        if not self._steps:
            return None
        last, steps = self._steps[-1], tuple(self._steps)
        planned = self._until if self._until is not None else last.steps_planned
        step_s = sum(whole_seconds(step.time.seconds_by_part) for step in steps) / len(steps)
        return ProgressView(
            step=last.step,
            planned=planned,
            phase=last.phase + 1,
            phases=self._phase.phases if self._phase else 1,
            phase_step=last.phase_step,
            phase_steps=self._phase.steps if self._phase else None,
            task=what_is_learned(last),
            kept_accuracy=_mean([(step.scores.kept_accuracy, step.scores.coverage) for step in steps]),
            coverage=_mean([(step.scores.coverage, 1.0) for step in steps]) or 0.0,
            joint_accuracy=_mean([(step.scores.joint_accuracy, 1.0) for step in steps]),
            assist_rate=_mean([(step.control.assist_rate, 1.0) for step in steps]) or 0.0,
            target_rate=last.control.target_rate,
            dual=last.control.dual_after,
            cloud_calls=last.cloud.total_cloud_calls,
            spend_uusd=last.cloud.total_spend_uusd,
            tokens_per_s=_mean([(step.time.tokens_per_s, 1.0) for step in steps]) or 0.0,
            step_s=step_s,
            left_s=None if planned is None else max(0, planned - last.step) * step_s,
            offline=last.control.offline,
            times_floor=_times_floor(steps),
        )


class PlainConsole:
    """One line per step of two seconds or more, of shorter ones one every two seconds, one at the end of a phase, one inside a long step
    every ten, and whatever else a person should know.
    """

    def __init__(self, stream: TextIO, clock: Clock, progress: Progress, *, legend: str = "") -> None:
        """`legend` is said once, before the first line of progress."""
        self._stream = stream
        self._legend = legend
        self._clock = clock
        self._progress = progress
        self._last_line_at = self._last_sign_at = self._step_began_at = clock.monotonic()

    def emit(self, event: Event) -> None:
        """Write a line where the event deserves one."""
        self._progress.feed(event)
        if isinstance(event, StepProgress):
            self._write_sign_of_life(event)
        elif isinstance(event, (StepFinished, EvalProgress)):
            self._write_progress(event)
        elif line := spoken(event):
            self.say(line)
        if isinstance(event, (PhaseStarted, StepFinished)):
            self._step_began_at = self._clock.monotonic()

    def say(self, line: str) -> None:
        """Write one line."""
        self._stream.write(line + "\n")
        self._stream.flush()

    def _write_sign_of_life(self, event: StepProgress) -> None:
        now = self._clock.monotonic()
        if now - max(self._last_line_at, self._last_sign_at, self._step_began_at) >= _SIGN_OF_LIFE_S:
            self._last_sign_at = now
            self.say(inside_step(event))

    def _write_progress(self, event: StepFinished | EvalProgress) -> None:
        now = self._clock.monotonic()
        began_at = min(self._last_line_at, self._step_began_at) if isinstance(event, StepFinished) else self._last_line_at
        if now - began_at < _PLAIN_EVERY_S and not self._is_last(event):
            return
        self._last_line_at = now
        if self._legend:
            self.say(self._legend)
            self._legend = ""
        self.say(self._progress_line(event))

    def _progress_line(self, event: StepFinished | EvalProgress) -> str:
        if isinstance(event, EvalProgress):
            return f"evaluated {event.done} of {event.of}"
        view = self._progress.view()
        return progress_line(view) if view else ""

    def _is_last(self, event: StepFinished | EvalProgress) -> bool:
        if isinstance(event, EvalProgress):
            return event.done == event.of
        view = self._progress.view()
        return view is not None and (view.step == view.planned or view.phase_step == view.phase_steps)


class ProblemLines:
    """Only what a person must know while waiting for one answer: that the cloud is away, and notices."""

    def __init__(self, stream: TextIO, *, offline: bool = True) -> None:
        """`offline`: say that the cloud is away; not where the failure that follows says it."""
        self._stream = stream
        self._told = (Offline, Notice) if offline else (Notice,)

    def emit(self, event: Event) -> None:
        """Write a line for a problem."""
        if isinstance(event, self._told):
            self._stream.write(spoken(event) + "\n")
            self._stream.flush()


class LiveConsole:
    """A block at the bottom of the terminal that is redrawn; lines said meanwhile scroll above it."""

    def __init__(self, stream: TextIO, progress: Progress) -> None:
        from rich.console import Console
        from rich.live import Live

        self._progress = progress
        self._state = "starting"
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(get_renderable=self._render, console=self._console, refresh_per_second=4, redirect_stdout=False)

    def __enter__(self) -> LiveConsole:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def emit(self, event: Event) -> None:
        """Redraw, and say what deserves a line."""
        self._progress.feed(event)
        if isinstance(event, EvalProgress):
            self._state = f"evaluated {event.done} of {event.of} {bar(event.done / max(event.of, 1))}"
        elif isinstance(event, StepProgress):
            self._state = inside_step(event)
        elif isinstance(event, StepFinished):
            self._state = f"step {event.step} done"
        elif isinstance(event, RunStarted):
            self._state = "preparing to learn"
        elif line := spoken(event):
            self.say(line)

    def say(self, line: str) -> None:
        """Write one line above the block."""
        self._console.print(line)

    def becomes(self, state: str) -> None:
        """What the block says is going on, until an event says otherwise."""
        self._state = state

    def _render(self) -> RenderableType:
        from rich.text import Text

        view = self._progress.view()
        if view is None:
            return Text(f"{self._state} ...", style="dim")
        return Text("\n").join([Text(line) for line in self._block(view)])

    def _block(self, view: ProgressView) -> list[str]:
        rates, joints = tuple(self._progress.assist_rates), tuple(self._progress.joint_accuracies)
        share_done = "" if view.planned is None else bar(view.step / max(view.planned, 1), width=10)
        return [
            f"{view.task}  {_of(view.step, view.planned)} steps {share_done}  {timing(view)}   {self._state}",
            *([f"  phase  {phase_line(view)}"] if view.phases > 1 else []),
            f"  asks   {percent(view.assist_rate):>6} of {percent(view.target_rate)} allowed   λ {view.dual:.3f}   {spark(rates)}",
            f"  right  {percent(view.joint_accuracy):>6} in the end, {accuracy(view)}   {spark(joints)}",
            f"  cloud  {cloud(view)}" + (f"   answered {self._progress.answers}" if self._progress.answers else ""),
        ]


class Console:
    """What commands talk to: a sink for events, a line to say, and results on stdout."""

    def __init__(self, sink: EventSink, say: PlainConsole | LiveConsole | None = None) -> None:
        self.sink = sink
        self._say = say

    def say(self, line: str) -> None:
        """A line for a person; nothing under --json."""
        if self._say is not None:
            self._say.say(line)

    def becomes(self, state: str) -> None:
        """What goes on now, where that is shown all the time."""
        if isinstance(self._say, LiveConsole):
            self._say.becomes(state)


@contextmanager
def open_console(
    clock: Clock, *, json_lines: bool = False, quiet: bool = False, max_steps: int | None = None
) -> Iterator[Console]:
    """The console that fits: JSON lines on stdout, a live block on a terminal, plain lines elsewhere (both on stderr).

    `quiet` says problems only, for commands whose result is one JSON object.
    """
    if json_lines or quiet:
        yield Console(JsonLinesSink(sys.stdout) if json_lines else ProblemLines(sys.stderr))
        return
    progress = Progress(max_steps)
    if not sys.stderr.isatty():
        plain = PlainConsole(sys.stderr, clock, progress)
        yield Console(plain, plain)
        return
    with LiveConsole(sys.stderr, progress) as live:
        yield Console(live, live)


def whole_seconds(parts: StepSeconds) -> float:
    """How long a step took from end to end; cloud calls overlap with answering."""
    return parts.rollout + parts.update + parts.save + parts.close + parts.swap + parts.gate


def _times_floor(steps: tuple[StepFinished, ...]) -> float | None:
    """Time taken / floor over the steps whose floor is known."""
    known = [(step.time.seconds, step.time.floor_s) for step in steps if step.time.floor_s]
    return sum(seconds for seconds, _ in known) / sum(floor for _, floor in known) if known else None


def what_is_learned(step: StepFinished) -> str:
    """A step's source where its name tells where the questions are from, else its label."""
    return step.source if step.source.startswith(_TELLING) else step.task


def what_lines_say() -> str:
    """What the numbers of progress lines are taken over."""
    return (
        f"each line: shares and speed are means of the last {_WINDOW} steps of the phase (of fewer at first), "
        "calls and dollars are totals of the run"
    )


def progress_line(view: ProgressView) -> str:
    """One plain line."""
    phase = f" (phase {view.phase}/{view.phases}, {_of(view.phase_step, view.phase_steps)})" if view.phases > 1 else ""
    parts = [
        f"step {_of(view.step, view.planned)} {view.task}{phase}",
        accuracy(view),
        f"right in the end {percent(view.joint_accuracy)}",
        f"asks {percent(view.assist_rate)} (target {percent(view.target_rate)})",
        f"λ {view.dual:.3f}",
        cloud(view),
        timing(view),
    ]
    return ", ".join(parts)


def inside_step(event: StepProgress) -> str:
    """What a step is at, and how far where there is more than one of it."""
    count = f" {event.done} of {event.of}" if event.of > 1 else ""
    return f"step {event.step}: {_PARTS[event.part]}{count}"


def spoken(event: Event) -> str:
    """The line an event deserves, or "". Reasons that came over the network steer no terminal."""
    return visible(_told(event))


def _told(event: Event) -> str:
    match event:
        case PhaseStarted():
            return phase_begins(event)
        case HeldOutScored():
            return held_out_line(event)
        case Offline():
            return f"offline: {event.reason}; answering and learning go on locally"
        case Online():
            return "online again"
        case ReportsDelivered():
            return f"{event.reports} waiting step reports of {event.task} delivered; λ is {event.dual:.3f}"
        case GateJudged(verdict="promoted"):
            return f"adapter {event.step} has passed the gate and serves now"
        case Notice():
            return event.text
        case LearningWaits():
            return f"learning is {event.reason}"
        case LearningResumed():
            return "learning goes on"
        case AnswerFinished():
            return f"answered {event.id} from {event.source} in {event.latency_s:.1f} s ({event.reason})"
        case RunFinished():
            ended = "stopped" if event.reason == "stopped" else "done"
            adapter = f"adapter {event.adapter_version}, " if event.adapter_version else ""
            return (
                f"{ended} after step {event.steps_done} in {duration(event.seconds)}: {adapter}"
                f"{event.total_cloud_calls} cloud calls, {dollars(event.total_spend_uusd)}"
            )
    return ""


def phase_begins(event: PhaseStarted) -> str:
    """What is learned now, for how long, and that it is another task than before."""
    what = f"learning {event.source} at a target rate of {percent(event.target_rate)}"
    if event.phases == 1:
        return what
    length = "without end" if event.steps is None else f"for {counted(event.steps, 'step')}"
    begun = f", from step {event.phase_step} on" if event.phase_step > 1 else ""
    switch = "switching tasks: " if event.phase and event.phase_step == 1 else ""
    return f"{switch}phase {event.phase + 1} of {event.phases}: {what}, {length}{begun}"


def held_out_line(event: HeldOutScored) -> str:
    """The result on held-out items, each accuracy with its coverage."""
    return (
        f"after step {event.step}, {event.items} held-out items of {event.source}: forced local "
        f"{percent(event.forced_local_accuracy)} right, local accuracy {percent(event.kept_accuracy)}, "
        f"answered locally {percent(event.coverage)}"
    )


def phase_line(view: ProgressView) -> str:
    """Which phase of how many, and how far it is."""
    if view.phase_steps is None:
        return f"{view.phase} of {view.phases}, step {view.phase_step}, without end"
    done = view.phase_step / max(view.phase_steps, 1)
    return f"{view.phase} of {view.phases}, step {view.phase_step} of {view.phase_steps} {bar(done)}{switch_in(view)}"


def switch_in(view: ProgressView) -> str:
    """How long until the next phase; nothing in the last one."""
    if view.phase_steps is None or view.phase == view.phases:
        return ""
    return f"  next phase in {duration(max(0, view.phase_steps - view.phase_step) * view.step_s)}"


def accuracy(view: ProgressView) -> str:
    """Accuracy of kept answers, never without its coverage."""
    return f"local accuracy {percent(view.kept_accuracy)}, answered locally {percent(view.coverage)}"


def cloud(view: ProgressView) -> str:
    """Calls and money so far."""
    return f"{counted(view.cloud_calls, 'call')}, {dollars(view.spend_uusd)}" + (" (offline)" if view.offline else "")


def timing(view: ProgressView) -> str:
    """Speed and what is left."""
    left = "" if view.left_s is None else f", {duration(view.left_s)} left"
    floor = "" if view.times_floor is None else f" ({view.times_floor:.1f} x floor)"
    return f"{view.tokens_per_s:.0f} tokens/s, {view.step_s:.1f} s/step{floor}{left}"


def bar(share: float, width: int = 20) -> str:
    """A bar of `width` characters for a share in [0, 1]."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "━" * filled + "╌" * (width - filled)


def spark(shares: tuple[float, ...]) -> str:
    """Shares in [0, 1] as a small curve."""
    return "".join("▁▂▃▄▅▆▇█"[min(int(min(max(share, 0.0), 1.0) * 8), 7)] for share in shares)


def _of(step: int, planned: int | None) -> str:
    return f"{step}" if planned is None else f"{step}/{planned}"


def _mean(weighted: list[tuple[float | None, float]]) -> float | None:
    """Mean of (value, weight) pairs without the None values."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None

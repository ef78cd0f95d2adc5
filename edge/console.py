"""Progress for people: the events of an agent on a terminal or in plain lines.

Progress goes to stderr, so that stdout holds results only. `--json` replaces it by the events themselves as JSON lines on stdout.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TextIO

from edge.core.clock import Clock
from edge.core.events import Event, EventSink, JsonLinesSink
from edge.core.formatting import counted, duration, money, percent, shown, visible
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
    OwnUseThrough,
    PhaseStarted,
    ReportsDelivered,
    RunFinished,
    RunStarted,
    StepFinished,
    StepProgress,
)
from edge.tasks.registry import is_own

if TYPE_CHECKING:
    from rich.console import RenderableType

_WINDOW, _CURVE = 10, 40
_PLAIN_EVERY_S = 2.0
_SIGN_OF_LIFE_S = 10.0
_OWN_USE = ("mine:", "watched:")
_NAMED_SOURCES = ("practice:", *_OWN_USE)
"""Prefixes of sources whose name is more informative than their label: made here, people's questions, watched files."""
_PARTS = {
    "rollout": "answering",
    "given": "looking at given answers",
    "update": "updating",
    "imitation": "learning given answers",
    "close": "reporting",
    "gate": "examining the adapter",
}


@dataclass(frozen=True, slots=True)
class ProgressView:
    """What is shown of a run: its last step and means of the last 10 steps of the phase that were about the same source (shares are None
    where there was nothing to count). `assist_rates` and `overall_accuracies` are the last 40 of that source.

    `phase` counts from 1 of `phases`, `phase_steps` is None without end. `times_floor`: how many times the least time of a step they took
    (None: the device was not measured). `task`: the source where its name shows where the questions are from, else the label.
    """

    last: StepFinished
    planned: int | None
    phase: int
    phases: int
    phase_steps: int | None
    task: str
    local_accuracy: float | None
    coverage: float
    overall_accuracy: float | None
    assist_rate: float
    tokens_per_s: float
    step_s: float
    left_s: float | None
    times_floor: float | None
    assist_rates: tuple[float, ...] = ()
    overall_accuracies: tuple[float, ...] = ()


@dataclass(slots=True)
class _Window:
    """The last steps about one source, and its curves."""

    steps: deque[StepFinished] = field(default_factory=lambda: deque(maxlen=_WINDOW))
    assist_rates: deque[float] = field(default_factory=lambda: deque(maxlen=_CURVE))
    overall_accuracies: deque[float] = field(default_factory=lambda: deque(maxlen=_CURVE))

    def add(self, step: StepFinished) -> None:
        """One step more."""
        self.steps.append(step)
        self.assist_rates.append(step.control.assist_rate)
        if step.scores.joint_accuracy is not None:
            self.overall_accuracies.append(step.scores.joint_accuracy)


class Progress:
    """Sums up a run from its events; `max_steps`: after how many steps the command ends it, where that is sooner than planned."""

    def __init__(self, max_steps: int | None = None) -> None:
        self._max_steps = max_steps
        self._until: int | None = None
        self._last: StepFinished | None = None
        self._windows: dict[str, _Window] = {}
        self._seconds: deque[float] = deque(maxlen=_WINDOW)
        self._phase: PhaseStarted | None = None
        self.answers = 0

    def feed(self, event: Event) -> None:
        """Take one event."""
        if isinstance(event, RunStarted):
            ends = [event.steps_planned, None if self._max_steps is None else event.steps_done + self._max_steps]
            self._until = min((end for end in ends if end is not None), default=None)
        elif isinstance(event, PhaseStarted):
            self._phase, self._last = event, None
            self._seconds.clear()
            for window in self._windows.values():
                window.steps.clear()
        elif isinstance(event, AnswerFinished):
            self.answers += 1
        elif isinstance(event, StepFinished):
            self._last = event
            self._windows.setdefault(event.source, _Window()).add(event)
            self._seconds.append(event.time.seconds_by_part.total)

    def view(self) -> ProgressView | None:
        """The present state, None before the first step."""
        last = self._last
        if last is None:
            return None
        window = self._windows[last.source]
        steps = tuple(window.steps)
        planned = self._until if self._until is not None else last.steps_planned
        step_s = sum(self._seconds) / len(self._seconds)
        floors = [(step.time.seconds, step.time.floor_s) for step in steps if step.time.floor_s]
        return ProgressView(
            last,
            planned,
            phase=last.phase + 1,
            phases=self._phase.phases if self._phase else 1,
            phase_steps=self._phase.steps if self._phase else None,
            task=last.source if last.source.startswith(_NAMED_SOURCES) else last.task,
            local_accuracy=_mean([(step.scores.kept_accuracy, step.scores.coverage) for step in steps]),
            coverage=_mean([(step.scores.coverage, 1.0) for step in steps]) or 0.0,
            overall_accuracy=_mean([(step.scores.joint_accuracy, 1.0) for step in steps]),
            assist_rate=_mean([(step.control.assist_rate, 1.0) for step in steps]) or 0.0,
            tokens_per_s=_mean([(step.time.tokens_per_s, 1.0) for step in steps]) or 0.0,
            step_s=step_s,
            left_s=None if planned is None else max(0, planned - last.step) * step_s,
            times_floor=sum(seconds for seconds, _ in floors) / sum(floor for _, floor in floors) if floors else None,
            assist_rates=tuple(window.assist_rates),
            overall_accuracies=tuple(window.overall_accuracies),
        )


def _mean(weighted: list[tuple[float | None, float]]) -> float | None:
    """Mean of (value, weight) pairs without the None values."""
    known = [(value, weight) for value, weight in weighted if value is not None and weight > 0]
    total = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / total if total else None


class OwnSteps:
    """The lines of steps on one's own questions that are written however fast the steps are: each source's first one and its last."""

    def __init__(self) -> None:
        self._seen: set[str] = set()
        self._unwritten: dict[str, str] = {}

    def is_first(self, step: StepFinished) -> bool:
        """Whether the step is the first of a source of one's own."""
        is_first = is_own(step.source) and step.source not in self._seen
        self._seen.add(step.source)
        return is_first

    def keep(self, step: StepFinished, line: str, *, written: bool) -> None:
        """A step has this line, which may be the last of its source."""
        self._unwritten.pop(step.source, None)
        if is_own(step.source) and not written:
            self._unwritten[step.source] = line

    def ended(self, event: Event) -> list[str]:
        """The last lines that were not written, where the event ends what they are about."""
        if isinstance(event, OwnUseThrough) and event.source:
            line = self._unwritten.pop(event.source, "")
            return [line] if line else []
        if not isinstance(event, (OwnUseThrough, PhaseStarted, RunFinished)):
            return []
        lines = list(self._unwritten.values())
        self._unwritten.clear()
        return lines


class Console:
    """What commands talk to: a sink for events and lines for a person. This one prints nothing, for --json."""

    def __init__(self, sink: EventSink) -> None:
        self.sink = sink

    def say(self, line: str) -> None:
        """Write one line."""

    def becomes(self, state: str) -> None:
        """The current activity, where that is shown all the time, until an event changes it."""


class PlainConsole(Console):
    """One line per step of two seconds or more, of shorter ones one every two seconds, one at the end of a phase, one inside a long step
    every ten, the first and the last step on one's own questions, and whatever else a person should know.
    """

    def __init__(self, stream: TextIO, clock: Clock, progress: Progress, *, legend: str = "") -> None:
        """`legend` is written once, before the first line of progress."""
        super().__init__(self)
        self._stream = stream
        self._legend = legend
        self._clock = clock
        self._progress = progress
        self._own = OwnSteps()
        self._last_line_at = self._last_sign_at = self._step_began_at = clock.monotonic()

    def emit(self, event: Event) -> None:
        """Write a line where the event deserves one."""
        self._progress.feed(event)
        for line in self._own.ended(event):
            self.say(line)
        if isinstance(event, StepProgress):
            now = self._clock.monotonic()
            if now - max(self._last_line_at, self._last_sign_at, self._step_began_at) >= _SIGN_OF_LIFE_S:
                self._last_sign_at = now
                self.say(inside_step(event))
        elif isinstance(event, (StepFinished, EvalProgress)):
            self._write_progress(event)
        elif line := spoken(event):
            self.say(line)
        if isinstance(event, (PhaseStarted, StepFinished)):
            self._step_began_at = self._clock.monotonic()

    def say(self, line: str) -> None:
        self._stream.write(line + "\n")
        self._stream.flush()

    def _write_progress(self, event: StepFinished | EvalProgress) -> None:
        now, began_at, view = self._clock.monotonic(), self._last_line_at, self._progress.view()
        if isinstance(event, EvalProgress):
            line, must = f"evaluated {event.done} of {event.of}", event.done == event.of
        else:
            assert view is not None  # there is a step
            ends_phase = event.phase_step == view.phase_steps and not event.source.startswith(_OWN_USE)
            line, must = progress_line(view), self._own.is_first(event) or event.step == view.planned or ends_phase
            began_at = min(began_at, self._step_began_at)
        is_due = must or now - began_at >= _PLAIN_EVERY_S
        if isinstance(event, StepFinished):
            self._own.keep(event, line, written=is_due)
        if not is_due:
            return
        self._last_line_at = now
        if self._legend:
            self.say(self._legend)
            self._legend = ""
        self.say(line)


class ProblemLines:
    """Only what a person must know while waiting for one answer: that the cloud is away, and notices."""

    def __init__(self, stream: TextIO, *, offline: bool = True) -> None:
        """`offline`: write that the cloud is away; not where the failure that follows states it."""
        self._stream = stream
        self._problems = (Offline, Notice) if offline else (Notice,)

    def emit(self, event: Event) -> None:
        """Write a line for a problem."""
        if isinstance(event, self._problems):
            self._stream.write(spoken(event) + "\n")
            self._stream.flush()


class LiveConsole(Console):
    """A block at the bottom of the terminal that is redrawn; other lines scroll above it."""

    def __init__(self, stream: TextIO, progress: Progress) -> None:
        from rich.console import Console as Terminal
        from rich.live import Live

        super().__init__(self)
        self._progress = progress
        self._own = OwnSteps()
        self._state = "starting"
        self._terminal = Terminal(file=stream, highlight=False, markup=False, emoji=False)
        self._live = Live(get_renderable=self._render, console=self._terminal, refresh_per_second=4, redirect_stdout=False)

    def __enter__(self) -> LiveConsole:
        """Begin to draw."""
        self._live.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Leave the last state on the screen."""
        self._live.stop()

    def emit(self, event: Event) -> None:
        """Redraw, and write what deserves a line."""
        self._progress.feed(event)
        for line in self._own.ended(event):
            self.say(line)
        if isinstance(event, EvalProgress):
            self._state = f"evaluated {event.done} of {event.of} {bar(event.done / max(event.of, 1))}"
        elif isinstance(event, StepProgress):
            self._state = inside_step(event)
        elif isinstance(event, StepFinished):
            self._state = f"step {event.step} done"
            view = self._progress.view()
            assert view is not None  # there is a step
            line, is_first = progress_line(view), self._own.is_first(event)
            self._own.keep(event, line, written=is_first)
            if is_first:
                self.say(line)
        elif isinstance(event, RunStarted):
            self._state = "preparing to learn"
        elif line := spoken(event):
            self.say(line)

    def say(self, line: str) -> None:
        self._terminal.print(line)

    def becomes(self, state: str) -> None:
        self._state = state

    def _render(self) -> RenderableType:
        from rich.text import Text

        view = self._progress.view()
        if view is None:
            return Text(f"{self._state} ...", style="dim")
        control, answers = view.last.control, self._progress.answers
        rates, accuracies = spark(view.assist_rates), spark(view.overall_accuracies)
        done = "" if view.planned is None else bar(view.last.step / max(view.planned, 1), width=10)
        lines = [f"{view.task}  {_of(view.last.step, view.planned)} steps {done}  {timing(view)}   {self._state}"]
        if view.phases > 1:
            lines.append(f"  phase  {phase_line(view)}")
        asked = f"{percent(view.assist_rate):>6} of {percent(control.target_rate)} allowed"
        lines += [
            f"  asks   {asked}   λ {control.dual_after:.3f}   {rates}",
            f"  right  {percent(view.overall_accuracy):>6} in the end, {accuracy(view)}   {accuracies}",
            f"  cloud  {cloud(view)}" + (f"   answered {answers}" if answers else ""),
        ]
        return Text("\n").join([Text(line) for line in lines])


@contextmanager
def open_console(
    clock: Clock, *, json_lines: bool = False, quiet: bool = False, max_steps: int | None = None
) -> Iterator[Console]:
    """The console that fits: JSON lines on stdout, a live block on a terminal, plain lines elsewhere (both on stderr).

    `quiet` reports problems only, for commands whose result is one JSON object.
    """
    if json_lines or quiet:
        yield Console(JsonLinesSink(sys.stdout) if json_lines else ProblemLines(sys.stderr))
    elif not sys.stderr.isatty():
        yield PlainConsole(sys.stderr, clock, Progress(max_steps))
    else:
        with LiveConsole(sys.stderr, Progress(max_steps)) as live:
            yield live


def what_lines_say() -> str:
    """What the numbers of progress lines are taken over."""
    return (
        f"each line: shares and speed are means of the last {_WINDOW} steps of the phase (of fewer at first), "
        "calls and spend are totals of the run"
    )


def progress_line(view: ProgressView) -> str:
    """One plain line."""
    last, control = view.last, view.last.control
    phase = f" (phase {view.phase}/{view.phases}, {_of(last.phase_step, view.phase_steps)})" if view.phases > 1 else ""
    parts = [
        f"step {_of(last.step, view.planned)} {view.task}{phase}",
        accuracy(view),
        f"right in the end {percent(view.overall_accuracy)}",
        f"asks {percent(view.assist_rate)} (target {percent(control.target_rate)})",
        f"λ {control.dual_after:.3f}",
        cloud(view),
        timing(view),
    ]
    return ", ".join(parts)


def inside_step(progress: StepProgress) -> str:
    """What a step is at, and how far it has come where that is known."""
    part, done, of = progress.part, progress.done, progress.of
    count = f"{done} of {of} responses" if of > 1 else counted(done, "response") if done else ""
    if part == "update":
        count = percent(done / of) if done and of > 1 else ""
    elif part == "imitation":
        count = f"update {done} of at most {of}" if of > 1 else ""
    doing = (
        f"{_PARTS[part]} {count}" if count and part in ("rollout", "update") else ", ".join(filter(None, (_PARTS[part], count)))
    )
    tokens = counted(progress.tokens, "token") if progress.tokens else ""
    left = "" if progress.left_s is None else f"{'at most ' if part == 'imitation' else ''}{duration(progress.left_s)} left"
    return f"step {progress.step}: {', '.join(filter(None, (doing, tokens, left)))}"


def spoken(event: Event) -> str:
    """The line an event deserves, or "". Reasons that came over the network steer no terminal."""
    line = ""
    match event:
        case PhaseStarted():
            line = f"learning {event.source} at a target rate of {percent(event.target_rate)}"
            if event.phases > 1:
                length = "without end" if event.steps is None else f"for {counted(event.steps, 'step')}"
                begun = f", from step {event.phase_step} on" if event.phase_step > 1 else ""
                switch = "switching tasks: " if event.phase and event.phase_step == 1 else ""
                line = f"{switch}phase {event.phase + 1} of {event.phases}: {line}, {length}{begun}"
        case HeldOutScored():
            line = (
                f"after step {event.step}, {event.items} held-out items of {event.source}: forced local "
                f"{percent(event.forced_local_accuracy)} right, local accuracy {percent(event.kept_accuracy)}, "
                f"answered locally {percent(event.coverage)}"
            )
        case Offline():
            line = f"offline: {event.reason}; answering and learning go on locally"
        case Online():
            line = "online again"
        case ReportsDelivered():
            line = f"{event.reports} waiting step reports of {event.task} delivered; λ is {event.dual:.3f}"
        case GateJudged(verdict="promoted"):
            line = f"adapter {event.step} is promoted and active now"
        case Notice():
            line = event.text
        case OwnUseThrough(source=""):
            learned = event.questions - event.not_learned
            some = "" if not event.not_learned else f"{learned} of "
            line = (
                f"{some}your own {counted(event.questions, 'question')} {'was' if learned == 1 else 'were'} learned from "
                f"{counted(event.passes, 'time')}{' each' if event.questions > 1 else ''}; "
            )
            if not event.is_served:
                line += "an older adapter than the newest answers (edge-agent adapters list says why); "
            if event.not_learned:
                example = shown(visible(" ".join(event.example.split())))
                line += f'not learned {"is" if event.not_learned == 1 else "are"} {event.not_learned}, for example "{example}"; '
            line += "no more steps go to them until you add or correct one, or raise use.passes"
        case LearningWaits():
            line = f"learning is {event.reason}"
        case LearningResumed():
            line = "learning goes on"
        case AnswerFinished():
            line = f"answered {event.id} from {event.source} in {event.latency_s:.1f} s ({event.reason})"
        case RunFinished():
            ended = "stopped" if event.reason == "stopped" else "done"
            adapter = f"adapter {event.adapter_version}, " if event.adapter_version else ""
            line = (
                f"{ended} after step {event.steps_done} in {duration(event.seconds)}: {adapter}"
                f"{event.total_cloud_calls} cloud calls, {money(event.total_spend_uusd)}"
            )
    return visible(line)


def phase_line(view: ProgressView) -> str:
    """Which phase of how many, how far it is, and how long until the next one."""
    step, steps = view.last.phase_step, view.phase_steps
    if steps is None:
        return f"{view.phase} of {view.phases}, step {step}, without end"
    following = "" if view.phase == view.phases else f"  next phase in {duration(max(0, steps - step) * view.step_s)}"
    return f"{view.phase} of {view.phases}, step {step} of {steps} {bar(step / max(steps, 1))}{following}"


def accuracy(view: ProgressView) -> str:
    """Accuracy of local answers, never without its coverage."""
    return f"local accuracy {percent(view.local_accuracy)}, answered locally {percent(view.coverage)}"


def cloud(view: ProgressView) -> str:
    """Calls and money so far."""
    spent = f"{counted(view.last.cloud.total_cloud_calls, 'call')}, {money(view.last.cloud.total_spend_uusd)}"
    return spent + (" (offline)" if view.last.control.offline else "")


def timing(view: ProgressView) -> str:
    """Speed and what is left."""
    left = "" if view.left_s is None else f", {duration(view.left_s)} left"
    floor = "" if view.times_floor is None else f" ({view.times_floor:.1f} x floor)"
    return f"{view.tokens_per_s:.0f} tokens/s, {view.step_s:.1f} s/step{floor}{left}"


def bar(share: float, width: int = 20) -> str:
    """A bar of `width` characters for a share in [0, 1]."""
    filled = round(min(max(share, 0.0), 1.0) * width)
    return "━" * filled + "╌" * (width - filled)


def spark(shares: Iterable[float]) -> str:
    """Shares in [0, 1] as a small curve."""
    return "".join("▁▂▃▄▅▆▇█"[min(int(min(max(share, 0.0), 1.0) * 8), 7)] for share in shares)


def _of(step: int, planned: int | None) -> str:
    return f"{step}" if planned is None else f"{step}/{planned}"

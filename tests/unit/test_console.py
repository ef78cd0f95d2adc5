"""The console output of a run: means with their coverage, time left, and a readable number of lines."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import pytest

from edge.console import LiveConsole, PlainConsole, Progress, inside_step, open_console, spark
from edge.core.events import Event
from edge.core.formatting import duration, money, percent
from edge.state.events import (
    EvalProgress,
    HeldOutScored,
    Notice,
    Offline,
    OwnUseThrough,
    PhaseStarted,
    RunFinished,
    RunStarted,
    StepFinished,
    StepProgress,
)
from edge.testing.clock import ManualClock
from tests.worlds.steps import step


def plain(max_steps: int | None = None) -> tuple[PlainConsole, io.StringIO, ManualClock]:
    stream, clock = io.StringIO(), ManualClock()
    return PlainConsole(stream, clock, Progress(max_steps)), stream, clock


def test_local_accuracy_is_weighted_by_local_answers() -> None:
    progress = Progress()
    progress.feed(step(1, kept=1.0, coverage=0.1))
    progress.feed(step(2, kept=0.5, coverage=0.9))
    progress.feed(step(3, kept=None, coverage=0.0))
    view = progress.view()
    assert view is not None
    assert (view.local_accuracy, view.coverage) == (pytest.approx(0.55), pytest.approx(1 / 3))
    progress.feed(PhaseStarted(1, "practice:code", "code", 0.5, None, 0))
    progress.feed(step(4, kept=0.25))
    view = progress.view()
    assert view is not None and view.local_accuracy == 0.25, "a new phase starts new means"


NUMBERS = ("1/4", "local accuracy 50.0 %", "20.0 %", "30.0 %", "λ 0.480", "7 calls, 0.00123 USD", "6 s left")
"""Of the first step: accuracy, rate and target, λ, spend and time left, each of which a person is shown."""


def test_fast_steps_give_a_line_every_two_seconds_and_the_last_one() -> None:
    console, stream, clock = plain(max_steps=100)
    console.emit(RunStarted("r", "m", 0, None, 0, 0.0))
    for number in range(1, 101):
        clock.advance(0.25)
        console.emit(step(number))
    lines = stream.getvalue().splitlines()
    assert len(lines) == 13
    assert lines[-1].startswith("step 100/100")


def test_slow_step_prints_progress_and_always_its_own_line() -> None:
    console, stream, clock = plain(max_steps=100)
    for number in range(1, 4):
        for done in range(1, 9):
            clock.advance(2)
            console.emit(StepProgress(number, "rollout", done, 8))
        clock.advance(4.5)
        console.emit(StepProgress(number, "close", 0, 1))
        console.emit(step(number))
    lines = stream.getvalue().splitlines()
    assert [line.split()[1] for line in lines if "right in the end" in line] == ["1", "2", "3"]
    assert [line for line in lines if "answering" in line] == [
        f"step {number}: answering 5 of 8 responses" for number in range(1, 4)
    ]


def test_notices_are_printed_immediately() -> None:
    console, stream, _ = plain()
    console.emit(Offline("connection refused", 0.0))
    console.emit(Notice("step skipped", 0.0))
    console.emit(EvalProgress(9, 9))
    console.emit(HeldOutScored("r", 150, "practice:group1", "group1", 150, 200, 0.62, (0.55, 0.69), 0.8, 0.7, 0.3, 0.0))
    console.emit(RunFinished("r", "stopped", 3, 0, 1, 2, 3_000_000, 61.0, 0.0))
    console.emit(RunFinished("r", "stopped", 3, 3, 1, 2, 3_000_000, 61.0, 0.0))
    parts = ["connection refused", "step skipped", "9 of 9", "62.0 %", "3.00 USD", "adapter 3"]
    for line, part in zip(stream.getvalue().splitlines(), parts, strict=True):
        assert part in line


def test_the_live_block_shows_rate_accuracy_spend_and_time_left() -> None:
    stream, progress = io.StringIO(), Progress(max_steps=4)
    with LiveConsole(stream, progress) as live:
        live.emit(RunStarted("r", "m", 0, None, 0, 0.0))
        live.emit(step(1, offline=True))
        live.say("[not] markup")
    assert [part for part in (*NUMBERS, "[not] markup", "offline") if part not in stream.getvalue()] == []


def test_without_a_terminal_progress_goes_to_stderr_and_stdout_stays_clean(capsys: pytest.CaptureFixture[str]) -> None:
    with open_console(ManualClock()) as console:
        console.say("hello")
    assert capsys.readouterr() == ("", "hello\n")


def test_json_is_one_event_a_line_on_stdout_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    with open_console(ManualClock(), json_lines=True) as console:
        console.say("hello")
        console.sink.emit(step(1))
    out, err = capsys.readouterr()
    assert err == ""
    assert json.loads(out)["kind"] == "step_finished"


def test_numbers_are_formatted_for_people() -> None:
    assert [percent(None), percent(0.3125)] == ["-", "31.2 %"]
    assert [money(0), money(1_500), money(2_500_000)] == ["0.00 USD", "0.0015 USD", "2.50 USD"]
    assert [duration(59.4), duration(200), duration(7500)] == ["59 s", "3 min 20 s", "2 h 05 min"]
    assert spark((0.0, 0.5, 1.0, 2.0)) == "▁▅██"


def own(number: int, source: str = "mine:chat", **fields: float) -> StepFinished:
    return replace(step(number, **fields), source=source, task="chat")


@pytest.mark.parametrize("source", ["mine:chat", "watched:geo", "/home/jo/facts.jsonl", "facts.csv#geo"])
@pytest.mark.parametrize("end", [OwnUseThrough("", 3, 4, 0.0), RunFinished("r", "stopped", 30, 0, 1, 2, 3, 61.0, 0.0)])
def test_first_and_last_step_on_own_questions_always_have_a_line(source: str, end: Event) -> None:
    console, stream, clock = plain()
    clock.advance(5)
    console.emit(step(1))
    for number in range(2, 20):
        clock.advance(0.1)
        console.emit(own(number, source) if number % 4 == 0 else step(number))
    console.emit(end)
    console.emit(end)
    lines = [line for line in stream.getvalue().splitlines() if line.startswith("step")]
    assert [int(line.split()[1]) for line in lines] == [1, 4, 16]


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (StepProgress(7, "rollout", 0, 32), "step 7: answering 0 of 32 responses"),
        (StepProgress(7, "rollout", 12, 32, 1840, 14.2), "step 7: answering 12 of 32 responses, 1840 tokens, 14 s left"),
        (StepProgress(7, "given", 1, 0, 40), "step 7: looking at given answers, 1 response, 40 tokens"),
        (StepProgress(7, "given", 0, 0), "step 7: looking at given answers"),
        (StepProgress(7, "update", 0, 400), "step 7: updating"),
        (StepProgress(7, "update", 300, 400, 0, 200.0), "step 7: updating 75.0 %, 3 min 20 s left"),
        (
            StepProgress(7, "imitation", 3, 16, 0, 40.0),
            "step 7: learning given answers, update 3 of at most 16, at most 40 s left",
        ),
        (StepProgress(7, "gate", 5, 0, 90), "step 7: examining the adapter, 5 responses, 90 tokens"),
        (StepProgress(7, "close", 0, 1), "step 7: reporting"),
    ],
)
def test_a_line_inside_a_step_says_what_it_is_at_and_what_is_known_of_its_end(progress: StepProgress, line: str) -> None:
    assert inside_step(progress) == line

"""The stream and the steps of a validation in virtual time: facts decide what happens, paces how long it takes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tools.simulate.fleet.backend import Pace
from tools.simulate.validation.fitting import CloudPace, LocalPace, fit_mind
from tools.simulate.validation.replay import Lessons, Replay, replayed_steps, replayed_stream
from tools.simulate.validation.seen import Answered, Facts, Sampled, Taken

PROFILE = """\
device:
  name: test
  speeds:
  - {model: m, prefill_tokens_per_s: 1000, decode: [{rows: 1, tokens_per_s: 100}, {rows: 8, tokens_per_s: 400}],
     training_tokens_per_s: 500, answer_overhead_s: 0.004, token_overhead_s: 0.001}
"""
LINK = "link: {name: socket, rtt_ms: 0, up_mbit_per_s: 1000000, down_mbit_per_s: 1000000}\n"
EVEN = (Pace(),)
SHY, EAGER = Facts(60, 40, 21, -2.0, 50), Facts(80, 30, 26, 1.0, 50)
TOKEN_S = 0.011
TERMS = {"target_rate": 0.3, "dual_init": 0.5, "dual_lr": 0.1}


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    profile, link = tmp_path / "profile.yaml", tmp_path / "link.yaml"
    profile.write_text(PROFILE, encoding="utf-8")
    link.write_text(LINK, encoding="utf-8")
    return profile, link


def replay(*facts: Facts, every_s: float = 10.0) -> Replay:
    arrivals = tuple(every_s * (1 + number) for number in range(len(facts)))
    return Replay(arrivals, facts, LocalPace(0.004, 0.001, 0.0, EVEN), CloudPace(0.2, 100.0, EVEN), 1)


def played(
    what: Replay, files: tuple[Path, Path], folder: Path, dial: float | None = None, name: str = "world"
) -> tuple[Answered, ...]:
    return replayed_stream(what, *files, dial, folder / name)


def local_s(facts: Facts, tokens: int) -> float:
    return 0.004 + facts.prompt_tokens / 1000.0 + tokens * TOKEN_S


def test_an_answer_takes_the_time_of_its_own_tokens_at_the_speed_of_the_profile(files: tuple[Path, Path], tmp_path: Path) -> None:
    short, long = played(replay(SHY, replace(SHY, local_tokens=90)), files, tmp_path)
    assert (short.source, long.source) == ("local", "local")
    assert short.total_s == pytest.approx(local_s(SHY, 40))
    assert long.total_s == pytest.approx(local_s(SHY, 90))
    assert [short.first_s, long.first_s] == [pytest.approx(local_s(SHY, 1))] * 2


def test_a_question_that_asks_takes_its_reasoning_and_then_the_cloud_at_its_calibrated_pace(
    files: tuple[Path, Path], tmp_path: Path
) -> None:
    (seen,) = played(replay(EAGER), files, tmp_path)
    assert (seen.source, seen.asked, seen.local_tokens) == ("cloud", True, 26)
    assert seen.total_s == pytest.approx(local_s(EAGER, 26) + 0.2 + 49 / 100.0, rel=1e-3)
    assert seen.first_s == pytest.approx(local_s(EAGER, 1))


def test_the_real_dial_steers_the_replayed_model(files: tuple[Path, Path], tmp_path: Path) -> None:
    facts = [replace(SHY, log_odds=-3.0 + 0.05 * (7 * number % 40)) for number in range(60)]
    shares = []
    for place, dial in enumerate((None, 0.0, 0.3, 1.0)):
        answers = played(replay(*facts), files, tmp_path, dial, f"world-{place}")
        shares.append(sum(each.asked for each in answers) / len(answers))
    assert shares[0] == shares[1] == 0.0
    assert 0.2 <= shares[2] <= 0.4
    assert shares[3] == 1.0


def test_the_same_seed_gives_the_same_answers_and_paces_spread_them(files: tuple[Path, Path], tmp_path: Path) -> None:
    even = replay(*[SHY] * 12)
    uneven = replace(even, local=LocalPace(0.004, 0.001, 0.0, (Pace(1.0, 1.0), Pace(2.0, 3.0))))
    once, again = (played(uneven, files, tmp_path, name=name) for name in ("once", "again"))
    assert once == again
    assert {round(each.first_s / local_s(SHY, 1), 6) for each in once} == {1.0, 2.0}


def taken(files: tuple[Path, Path], folder: Path, asks: float, right: int = 4, steps: int = 6) -> tuple[Taken, ...]:
    samples = [Sampled(0, right, 8 - right, 0, asks, 60, 50.0)] * 4
    lessons = Lessons(steps, 4, 8, TERMS, 1)
    return replayed_steps(lessons, fit_mind(samples), CloudPace(0.2, 100.0, EVEN), *files, folder)


def test_learning_steps_move_the_dual_by_the_controllers_own_rule(files: tuple[Path, Path], tmp_path: Path) -> None:
    steps = taken(files, tmp_path / "world", asks=0.3)
    before = 0.5
    for step in steps:
        assert step.dual == pytest.approx(max(0.0, before + 0.1 * (step.assist_rate - 0.3)))
        assert step.seconds > 0.0
        before = step.dual
    assert len(steps) == 6

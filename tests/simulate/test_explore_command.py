"""`python -m tools.simulate explore`."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.simulate.__main__ import main
from tools.simulate.faults.explore import KINDS, Kind, explore, noted_interrupts, read_replay, shrink, write_replay
from tools.simulate.faults.planted import find_bug
from tools.simulate.faults.scenario import smaller, without_some, words

BUG = "a time-out is refunded"


def test_a_clean_run_prints_its_counts_and_ends_with_0(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--seeds", "12", "--start", "5"]) == 0
    said = capsys.readouterr().out
    assert "12 seeds" in said
    assert "0 violations" in said
    assert "met: message held: " in said


def test_a_planted_bug_is_found_with_its_seed_the_smallest_world_and_its_story(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    smallest = tmp_path / "smallest.json"
    assert main(["explore", "--seeds", "100", "--plant", BUG, "--write", str(smallest)]) == 1
    said = capsys.readouterr().out
    seed = re.findall(r"--start (\d+) --seeds 1 --plant", said)[0]
    assert f"seed {seed} violates I4" in said
    assert "was executed and refunded" in said
    assert "tasks ('math',), prompts 1, " in said and "devices 1, steps 1, " in said
    key = re.findall(r"I4: \w+\|([\w-]+)\|", said)[0]
    story = said.split("what happened to it:\n")[1].split("\nmade smaller")[0].splitlines()
    assert any(key in line for line in story)

    assert main(["explore", "--seeds", "1", "--start", seed, "--plant", BUG, "--write", str(smallest)]) == 1
    capsys.readouterr()
    assert main(["explore", "--replay", str(smallest)]) == 1
    again = capsys.readouterr().out
    assert again.split("what happened to it:\n")[1].splitlines() == story

    found = read_replay(smallest)
    write_replay(smallest, found.scenario, frozenset({"I4"}), "")
    assert main(["explore", "--replay", str(smallest)]) == 0, "without the bug nothing is violated"


def test_all_seeds_are_counted_when_it_is_to_go_on(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explore", "--seeds", "6", "--plant", BUG, "--keep-going"]) == 1
    said = capsys.readouterr().out
    assert "6 seeds" in said
    seeds = re.findall(r"^seed \d+: I\d+: ", said, re.MULTILINE)
    assert len(seeds) > 1
    [(violations, violating)] = re.findall(r"^I4: (\d+) violations in (\d+) seeds$", said, re.MULTILINE)
    assert int(violations) >= int(violating) == len(seeds)


@pytest.mark.parametrize(
    "words",
    [
        ["--plant", "the moon is missing"],
        ["--replay", "no-json"],
        ["--replay", "no-scenario"],
        ["--replay", "missing"],
    ],
)
def test_an_unknown_bug_or_scenario_is_refused_in_one_line(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("no-json").write_text("")
    Path("no-scenario").write_text('{"format": 2, "violates": [], "plant": "", "scenario": {"seed": 1}}')
    assert main(["explore", *words]) == 2
    refusal = capsys.readouterr().err
    assert words[1] in refusal and len(refusal.splitlines()) == 1


def test_a_scenario_in_a_file_is_the_same_scenario(tmp_path: Path) -> None:
    for kind in KINDS.values():
        for seed in range(40):
            scenario = kind.draw(seed)
            write_replay(tmp_path / "one.json", scenario, frozenset({"I1"}), "")
            assert read_replay(tmp_path / "one.json").scenario == scenario


def test_several_processes_find_the_same_first_seed_and_the_same_sums() -> None:
    bug = find_bug("a hold is taken without looking").name
    alone = explore(range(60), plant=bug)
    together = explore(range(60), plant=bug, jobs=2)
    assert alone.violating is not None
    assert together.violating is not None
    assert together.violating.seed == alone.violating.seed
    assert together.violating.story == alone.violating.story
    assert (together.line(), together.table()) == (alone.line(), alone.table())


def test_an_interrupt_prints_the_counts_so_far() -> None:
    program = [sys.executable, "-u", "-c", _INTERRUPTED_AFTER_A_FEW]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(program, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment) as exploring:
        assert exploring.stdout is not None
        assert exploring.stdout.readline() == "playing\n"
        exploring.send_signal(signal.SIGINT)
        said = exploring.stdout.read()
        assert exploring.wait(timeout=60) == 130
    assert re.search(r"\d+ seeds, .* 0 violations \(interrupted\)", said)


def test_a_second_interrupt_ends_it_at_once() -> None:
    with noted_interrupts() as interrupted:
        signal.raise_signal(signal.SIGINT)
        assert interrupted()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


# what is left of a violating world ------------------------------------------------------------------------------------------------

Items = tuple[int, ...]


@given(st.lists(st.integers(0, 9), max_size=12), st.sets(st.integers(0, 9), max_size=3))
def test_what_is_left_violates_and_nothing_of_it_can_be_left_out(items: list[int], culprits: set[int]) -> None:
    def violates(some: Items) -> bool:
        return culprits <= set(some)

    if not violates(tuple(items)):
        return
    smallest = shrink(tuple(items), without_some, violates, 10_000)
    assert smallest.exhausted
    assert sorted(smallest.scenario) == sorted(culprits)


def test_it_stops_after_so_many_tries_with_the_smallest_so_far() -> None:
    smallest = shrink(tuple(range(64)), without_some, lambda some: {3, 60} <= set(some), 7)
    assert (smallest.tries, smallest.exhausted) == (7, False)
    assert {3, 60} <= set(smallest.scenario) < set(range(64))


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_every_smaller_scenario_is_another_one_and_the_smallest_has_nothing_smaller(kind: Kind) -> None:
    for seed in range(30):
        scenario = kind.draw(seed)
        assert scenario not in list(smaller(scenario))
        smallest = shrink(scenario, smaller, lambda _: True, 10_000)
        assert smallest.exhausted
        assert smallest.scenario.faults == ()
        assert words(smallest.scenario)


_INTERRUPTED_AFTER_A_FEW = """
import sys
from tools.simulate.__main__ import main
from tools.simulate.faults import explore as command
real = command.explore
def explore(seeds, progress, **more):
    return real(seeds, lambda tally: tally.seeds == 3 and print("playing", flush=True), **more)
command.explore = explore
if __name__ == "__main__":
    sys.exit(main(["explore", "--seeds", "1000000"]))
"""

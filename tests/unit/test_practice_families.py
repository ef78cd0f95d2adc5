"""All practice families: deterministic, disjoint, well formed, solvable as shown; and which method is right in which band."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import last_boxed, last_python_block
from edge.dagrpo.format import check_format
from edge.tasks.practice import FAMILIES, GROUPS, code, facts, group_stream, science
from edge.tasks.practice.family import Drawn, Family, Solution, format_help, split_of
from edge.verifiers.by_kind import VerifierByKind

KNOWN = {
    "arith": (
        "Sara brings 69 eggs. They are shared equally by 3 tables and we look at one table. Chloe brings 12 more. "
        "How many eggs are there now?",
        (),
        "35",
    ),
    "science": (
        "The rod warms the kettle. Heat flows from the kettle to the wire. The tank warms the brick. The pan warms the tank. "
        "The pan gets hot. Which thing gets warm last?",
        ("wire", "brick", "kettle", "rod"),
        "B",
    ),
    "facts": (
        "Start with Mirel. Take the teacher, then the teacher. What do you reach?",
        ("Nevan", "Vesna", "Silas", "Zelda"),
        "D",
    ),
    "code": (
        "I need a Python function solve(xs, n) for a list of numbers xs and a number n. First add n to every number, but before that "
        "double the numbers above 8.",
        (),
        "assert solve([4, 7, 14, 13, -4, -2, 20, -9], 2) == [6, 9, 30, 28, -2, 0, 42, -7]\n"
        "assert solve([16, 14, -9, -8, 5], 3) == [35, 31, -6, -5, 8]\n"
        "assert solve([12, 5, 14, -9, -9, 10], 2) == [26, 7, 30, -7, -7, 22]\nassert solve([9, -4, -3, -2, -7], 7) == [25, 3, 4, 5, 0]\n",
    ),
}


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[str(request.param)]


def take(family: Family, count: int, split: str = "train", seed: int = 3) -> list[TaskItem]:
    return list(itertools.islice(family.stream(seed, split), count))  # type: ignore[arg-type]


def drawn_at_each_level(family: Family, count: int) -> list[Drawn]:
    rng = random.Random(11)
    return [family.draw(rng, "train", level) for level in family.levels for _ in range(count)]


def outcome(program: str, call: str) -> object:
    """The result of a call after running one of the family's own programs."""
    scope: dict[str, object] = {}
    exec(program, scope)
    return eval(call, scope)


def passes(program: str, tests: str) -> bool:
    calls = [line.removeprefix("assert ").split(" == ") for line in tests.splitlines()]
    return all(outcome(program, call) == eval(expected) for call, expected in calls)


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_item_never_changes(name: str) -> None:
    item = FAMILIES[name].generate(1, "test", 2)
    assert (item.question, item.options, item.answer) == KNOWN[name]


def test_train_and_test_never_share_a_question(family: Family) -> None:
    train = {item.question for item in take(family, 800, "train")}
    test = {item.question for item in take(family, 200, "test")}
    assert not train & test
    assert all(split_of(question) == "test" for question in test)


def test_solutions_are_well_formed_right_and_within_the_step_limit(family: Family) -> None:
    for item in take(family, 600):
        verdict = check_format(item.solution, item.max_steps)
        assert verdict.ok
        assert not verdict.asks_help
        assert verdict.steps == min(item.level, family.max_steps)
        if family.kind is not AnswerKind.PROGRAM:
            assert VerifierByKind().is_correct(item, item.solution)


def right(family: Family, drawn: Drawn, solution: Solution) -> bool:
    """Whether a solution keeps to the format and is right."""
    if not check_format(solution.text, family.max_steps).ok:
        return False
    if family.kind is AnswerKind.PROGRAM:
        return passes(last_python_block(solution.text) or "", drawn.answer)
    return VerifierByKind().is_correct(family.as_item(drawn, "train"), solution.text)


def test_the_habit_is_right_where_known_and_the_careful_way_where_learnable_too(family: Family) -> None:
    expected = {"known": (True, True), "learnable": (False, True), "beyond": (False, False)}
    for drawn in drawn_at_each_level(family, 25):
        ways = right(family, drawn, drawn.habit), right(family, drawn, drawn.careful)
        assert ways == expected[family.bands[drawn.level]], drawn
        assert check_format(drawn.habit.text, family.max_steps).ok and check_format(drawn.careful.text, family.max_steps).ok
        asking = check_format(format_help(drawn.habit.lines), family.max_steps)
        assert asking.ok and asking.asks_help
        assert check_format(drawn.detailed.text, max(family.levels)).steps == drawn.level
        assert drawn.detailed.answer == drawn.solution.answer
        if drawn.options:
            assert {last_boxed(drawn.habit.text), last_boxed(drawn.careful.text)} <= set(drawn.options), "no way is given away"


def test_groups_conflict_with_each_other() -> None:
    for group, habit_is in (("group1", "shorter"), ("group2", "longer")):
        for name in GROUPS[group]:
            family = FAMILIES[name]
            for drawn in drawn_at_each_level(family, 10):
                if family.bands[drawn.level] == "learnable":
                    difference = len(drawn.habit.lines) - len(drawn.careful.lines)
                    assert difference < 0 if habit_is == "shorter" else difference > 0


def test_choices_have_four_different_options_with_the_answer_at_every_place() -> None:
    for family in (science.SCIENCE, facts.FACTS):
        items = take(family, 1200)
        assert all(len(set(item.options)) == 4 for item in items)
        shares = Counter(item.answer for item in items)
        assert all(shares[letter] / 1200 == pytest.approx(0.25, abs=0.06) for letter in "ABCD")


def test_code_solutions_pass_their_tests_and_every_operation_matters() -> None:
    rng = random.Random(6)
    for level in code.CODE.levels:
        for _ in range(15):
            program, cases = code.draw_program(rng, level)
            tests = code.tests_of(program, cases)
            assert passes(program.text(), tests)
            for index in range(level):
                without = [*program.operations[:index], *program.operations[index + 1 :]]
                assert not passes(program.text(without), tests)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_mixes_its_families_evenly_under_one_label(group: str) -> None:
    items = list(itertools.islice(group_stream(group, "train", 0), 200))
    assert Counter(item.family for item in items) == dict.fromkeys(GROUPS[group], 100)
    assert {item.task for item in items} == {group}


def test_an_unknown_level_or_group_is_refused() -> None:
    with pytest.raises(ValueError, match="levels 1 to 7"):
        FAMILIES["arith"].generate(0, "train", 8)
    with pytest.raises(ValueError, match="no group 'group3'"):
        next(group_stream("group3", "train", 0))

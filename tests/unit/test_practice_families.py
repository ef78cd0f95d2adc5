"""All practice families: deterministic, disjoint, well formed, solvable as shown; and which method is right in which band."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter
from fractions import Fraction

import pytest

from edge.core.types import AnswerKind, TaskItem
from edge.dagrpo.answers import last_boxed, last_python_block
from edge.dagrpo.format import check_format
from edge.tasks.practice import FAMILIES, GROUPS, arith, code, facts, group_stream, science
from edge.tasks.practice.arith import ARITH
from edge.tasks.practice.family import Drawn, Family, Solution, format_help
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


def test_items_id_is_that_of_its_question(family: Family) -> None:
    items = take(family, 500)
    assert len({item.id for item in items}) == len({(item.question, item.options) for item in items})


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_item_never_changes(name: str) -> None:
    item = FAMILIES[name].generate(1, "test", 2)
    assert (item.question, item.options, item.answer) == KNOWN[name]


def test_levels_are_drawn_by_their_weights(family: Family) -> None:
    counts = Counter(item.level for item in take(family, 2500))
    assert sum(family.level_weights.values()) == pytest.approx(1)
    for level, weight in family.level_weights.items():
        assert counts[level] / 2500 == pytest.approx(weight, abs=0.03)
    hardest = max(family.levels)
    assert {item.level for item in itertools.islice(family.stream(0, "train", {hardest: 1.0}), 20)} == {hardest}


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


def test_science_question_states_every_link_of_its_chain_and_the_answer_is_its_end() -> None:
    rng = random.Random(4)
    for level in science.SCIENCE.levels:
        for _ in range(50):
            drawn = science.draw(rng, level)
            sources = [line.split()[1] for line in drawn.detailed.lines]
            end = drawn.options[ord(drawn.answer) - ord("A")]
            assert end not in sources and drawn.detailed.lines[-1].endswith(end)
            for a, b in itertools.pairwise([*sources, drawn.detailed.lines[-1].split()[-1]]):
                assert any({a, b} <= set(sentence.split()) for sentence in drawn.question.replace("?", ".").split(". "))


def test_every_line_of_a_facts_solution_is_a_fact_of_the_world() -> None:
    facts_known = {
        f"{facts.RELATIONS[name].of.format(x=x)} is {y}" for name, pairs in facts.WORLD.items() for x, y in pairs.items()
    }
    for drawn in drawn_at_each_level(facts.FACTS, 30):
        assert set(drawn.detailed.lines) <= facts_known
        assert drawn.detailed.lines[-1].endswith(drawn.options[ord(drawn.answer) - ord("A")])


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


def test_every_operation_matches_its_code() -> None:
    rng = random.Random(7)
    drawers = {*code.KINDS_OF_STEP, code.draw_closing}
    for draw in drawers:
        for _ in range(40):
            operation = draw(rng)
            text = code.Program("f", (operation,)).text()
            for xs in ([], [3], [5, -2, 9, 9, 0, 14, -7]):
                call = f"f({xs}, 4)" if operation.uses_n else f"f({xs})"
                assert outcome(text, call) == code.run([operation], xs, 4)


@pytest.mark.parametrize("group", GROUPS)
def test_a_group_mixes_its_families_evenly_under_one_label(group: str) -> None:
    items = list(itertools.islice(group_stream(group, "train", 0), 200))
    assert Counter(item.family for item in items) == dict.fromkeys(GROUPS[group], 100)
    assert {item.task for item in items} == {group}


def exact(expression: str) -> Fraction:
    """The value of an arithmetic expression in exact fractions."""
    assert re.fullmatch(r"[\d+*/() -]+", expression)
    return eval(re.sub(r"(\d+)", r"Fraction(\1)", expression), {"Fraction": Fraction})


def test_sums_stay_in_their_ranges_and_revert_no_operation() -> None:
    rng = random.Random(0)
    for level in ARITH.levels:
        for _ in range(300):
            problem = arith.draw_problem(rng, level)
            assert all(1 <= value <= arith.MAX_VALUE for value in problem.values)
            for before, operation in zip(problem.values, problem.operations, strict=False):
                assert 2 <= operation.operand <= (arith.MAX_FACTOR if operation.operator in "*/" else arith.MAX_ADDEND)
                assert operation.operator != "/" or before % operation.operand == 0
            assert not any(arith.undoes(after, before) for before, after in itertools.pairwise(problem.operations))


def test_bare_expressions_have_the_stated_answer() -> None:
    bare = [item for item in take(ARITH, 3000) if "(" in item.question or " = ?" in item.question]
    assert len(bare) > 300
    for item in bare:
        expression = re.search(r"[(\d][\d+*/() -]*[\d)]", item.question)
        assert expression is not None
        assert exact(expression.group()) == int(item.answer)


def test_stories_state_every_operand() -> None:
    rng = random.Random(2)
    for level in ARITH.levels:
        for _ in range(200):
            problem = arith.draw_problem(rng, level)
            question = arith.word_problem(rng, problem)
            stated = Counter(re.findall(r"\d+", question))
            halves = len(re.findall(r"[Dd]ouble|twice|[Hh]alf|[Hh]alve", question))
            wanted = Counter(str(n) for n in (problem.start, *(operation.operand for operation in problem.operations)))
            assert not stated - wanted
            assert wanted - stated == Counter({"2": halves} if halves else {})


def test_every_line_of_a_sums_solution_is_a_chain_of_equal_expressions() -> None:
    for text in [item.solution for item in take(ARITH, 2000)] + [one.detailed.text for one in drawn_at_each_level(ARITH, 200)]:
        for line in text.splitlines():
            if line.startswith("Step "):
                assert len({exact(part) for part in line.split(": ", 1)[1].split(" = ")}) == 1


def test_an_unknown_level_or_group_is_refused() -> None:
    with pytest.raises(ValueError, match="levels 1 to 7"):
        FAMILIES["arith"].generate(0, "train", 8)
    with pytest.raises(ValueError, match="no group 'group3'"):
        next(group_stream("group3", "train", 0))

"""Practice family `code`: write a short Python function from a specification of 1 to 8 operations; its tests judge it.

The level is the number of operations; the step limit is 4, so from level 5 on one operation a step does not reach the end. By habit
an SLM goes on where one or two operations are asked for: it adds one of its own accord.
Difficulty also comes from order (`Reverse the list, but before that ...`), conditions, accumulators and a second argument.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from edge.core.types import AnswerKind
from edge.tasks.practice.family import Drawn, Family, Solution, joined_beyond

MAX_STEPS = 4
HABIT_ADDS_UP_TO = 2
"""The highest level at which the habit adds an operation."""
LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.17, 2: 0.17, 3: 0.19, 4: 0.19, 5: 0.07, 6: 0.07, 7: 0.07, 8: 0.07}
TESTS = 4
SWAPPED_SHARE = 0.25
"""How often the wording names an operation after the one that follows it."""
NAMES = ("tidy", "solve", "work", "change", "pick", "blend", "scan", "mend")

Result = int | list[int]


@dataclass(frozen=True, slots=True)
class ListOperation:
    """One operation on the list `xs` (and the number `n`), drawn with its constants.

    `wordings` come after "then": `keep only the even numbers`. `step` is how a reasoning line puts it. `code` are the lines of the
    function's body. `apply` does it; a closing operation returns a number, all others a list. `uses_n`: needs the second argument.
    """

    wordings: tuple[str, ...]
    step: str
    code: tuple[str, ...]
    apply: Callable[[list[int], int], Result]
    uses_n: bool = False
    closing: bool = False


def mapped(
    expression: str, wordings: tuple[str, ...], apply: Callable[[int, int], int], *, uses_n: bool = False
) -> ListOperation:
    """Every number x becomes `expression`."""
    code = (f"xs = [{expression} for x in xs]",)
    return ListOperation(wordings, expression, code, lambda xs, n: [apply(x, n) for x in xs], uses_n)


def kept(condition: str, wordings: tuple[str, ...], holds: Callable[[int, int], bool], *, uses_n: bool = False) -> ListOperation:
    """Only the numbers x with `condition` stay."""
    code = (f"xs = [x for x in xs if {condition}]",)
    return ListOperation(wordings, f"if {condition}", code, lambda xs, n: [x for x in xs if holds(x, n)], uses_n)


def whole(expression: str, wordings: tuple[str, ...], step: str, apply: Callable[[list[int]], list[int]]) -> ListOperation:
    """The whole list becomes `expression`."""
    return ListOperation(wordings, step, (f"xs = {expression}",), lambda xs, n: apply(xs))


def closing(expression: str, wordings: tuple[str, ...], apply: Callable[[list[int]], int]) -> ListOperation:
    """The result is the number `expression`."""
    return ListOperation(wordings, f"return {expression}", (f"return {expression}",), lambda xs, n: apply(xs), closing=True)


# --- operations -----------------------------------------------------------------------------------------------------------


def draw_shift(rng: random.Random) -> ListOperation:
    """Add, subtract or multiply by a constant."""
    k = rng.randint(2, 9)
    return rng.choice(
        (
            mapped(f"x + {k}", (f"add {k} to every number", f"raise each number by {k}"), lambda x, n: x + k),
            mapped(f"x - {k}", (f"subtract {k} from every number", f"lower each number by {k}"), lambda x, n: x - k),
            mapped(f"x * {k}", (f"multiply every number by {k}",), lambda x, n: x * k),
            mapped("x * 2", ("double every number",), lambda x, n: x * 2),
            mapped("x * x", ("square every number",), lambda x, n: x * x),
            mapped("-x", ("flip the sign of every number",), lambda x, n: -x),
        )
    )


def draw_second(rng: random.Random) -> ListOperation:
    """Something with the second argument n."""
    return rng.choice(
        (
            mapped("x + n", ("add n to every number",), lambda x, n: x + n, uses_n=True),
            mapped("x * n", ("multiply every number by n",), lambda x, n: x * n, uses_n=True),
            kept("x > n", ("keep only the numbers above n",), lambda x, n: x > n, uses_n=True),
            kept("x != n", ("drop every number equal to n",), lambda x, n: x != n, uses_n=True),
        )
    )


def draw_filter(rng: random.Random) -> ListOperation:
    """Keep or drop by a condition."""
    k = rng.randint(2, 9)
    return rng.choice(
        (
            kept("x % 2 == 0", ("keep only the even numbers", "drop the odd numbers"), lambda x, n: x % 2 == 0),
            kept("x % 2 == 1", ("keep only the odd numbers", "drop the even numbers"), lambda x, n: x % 2 == 1),
            kept(f"x > {k}", (f"keep only the numbers above {k}",), lambda x, n: x > k),
            kept(f"x < {k}", (f"keep only the numbers below {k}",), lambda x, n: x < k),
            kept("x >= 0", ("drop the negative numbers",), lambda x, n: x >= 0),
        )
    )


def draw_condition(rng: random.Random) -> ListOperation:
    """A change of some of the numbers only."""
    k, m = rng.randint(2, 9), rng.randint(2, 9)
    return rng.choice(
        (
            mapped(f"x * 2 if x > {k} else x", (f"double the numbers above {k}",), lambda x, n: x * 2 if x > k else x),
            mapped(
                f"x + {m} if x < {k} else x",
                (f"add {m} to the numbers below {k}",),
                lambda x, n: x + m if x < k else x,
            ),
            mapped(
                f"x - {m} if x % 2 == 0 else x",
                (f"subtract {m} from the even numbers",),
                lambda x, n: x - m if x % 2 == 0 else x,
            ),
            mapped(
                f"x - {m} if x > {k} else x + {m}",
                (f"subtract {m} from the numbers above {k} and add {m} to the others",),
                lambda x, n: x - m if x > k else x + m,
            ),
        )
    )


def draw_order(rng: random.Random) -> ListOperation:
    """Order and parts of the list."""
    k = rng.randint(2, 3)
    return rng.choice(
        (
            whole("xs[::-1]", ("reverse the list",), "reverse", lambda xs: xs[::-1]),
            whole("sorted(xs)", ("sort the list",), "sort", sorted),
            whole(f"xs[{k}:]", (f"drop the first {k} numbers",), f"from {k}", lambda xs: xs[k:]),
            whole("xs[:-1]", ("drop the last number",), "without the last", lambda xs: xs[:-1]),
        )
    )


def draw_running(_: random.Random) -> ListOperation:
    """An accumulator over the list."""
    wordings = ("replace the list by its running totals", "turn the list into running totals")
    return whole("[sum(xs[:i + 1]) for i in range(len(xs))]", wordings, "running totals", running_totals)


def running_totals(xs: Sequence[int]) -> list[int]:
    """The sums of the first 1, 2, 3, ... numbers."""
    totals: list[int] = []
    for x in xs:
        totals.append(x + (totals[-1] if totals else 0))
    return totals


def draw_closing(rng: random.Random) -> ListOperation:
    """A number instead of a list."""
    k = rng.randint(2, 9)
    return rng.choice(
        (
            closing("sum(xs)", ("return the sum", "add up what is left"), sum),
            closing("len(xs)", ("return how many numbers are left", "count the numbers"), len),
            closing("max(xs, default=0)", ("return the largest number, or 0 if there is none",), lambda xs: max(xs, default=0)),
            closing(f"sum(xs) % {k}", (f"return the sum modulo {k}",), lambda xs: sum(xs) % k),
        )
    )


KINDS_OF_STEP = (
    draw_shift,
    draw_shift,
    draw_filter,
    draw_filter,
    draw_condition,
    draw_condition,
    draw_order,
    draw_second,
    draw_running,
)
CLOSING_SHARE = 0.5


# --- programs -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Program:
    """A function made of operations, in the order in which they are carried out."""

    name: str
    operations: tuple[ListOperation, ...]

    @property
    def uses_n(self) -> bool:
        """Whether it takes a second argument."""
        return any(operation.uses_n for operation in self.operations)

    def text(self, operations: Sequence[ListOperation] | None = None) -> str:
        """The Python function; of some of the operations when they are given."""
        used = self.operations if operations is None else operations
        body = [line for operation in used for line in operation.code]
        if not used or not used[-1].closing:
            body.append("return xs")
        lines = "".join(f"    {line}\n" for line in body)
        return f"def {self.name}({self.parameters}):\n{lines}"

    @property
    def parameters(self) -> str:
        """The function's parameters."""
        return "xs, n" if self.uses_n else "xs"


def run(operations: Sequence[ListOperation], xs: Sequence[int], n: int) -> Result:
    """What the operations make of a list."""
    value: Result = list(xs)
    for operation in operations:
        if isinstance(value, int):
            raise ValueError("only the last operation may return a number")
        value = operation.apply(value, n)
    return value


Case = tuple[list[int], int, Result]


def draw_program(rng: random.Random, level: int) -> tuple[Program, list[Case]]:
    """A program of `level` operations in which each one matters to the tests, and its test cases. Short ones return a list, so that
    an operation can be added to them."""
    while True:
        ends = level > HABIT_ADDS_UP_TO and rng.random() < CLOSING_SHARE
        operations = [rng.choice(KINDS_OF_STEP)(rng) for _ in range(level - ends)]
        operations += [draw_closing(rng)] if ends else []
        program = Program(rng.choice(NAMES), tuple(operations))
        cases = draw_cases(rng, program.operations)
        shows = ends or any(result for _, _, result in cases)
        if shows and small_enough(cases) and all(matters(program.operations, index, cases) for index in range(level)):
            return program, cases


def draw_cases(rng: random.Random, operations: Sequence[ListOperation]) -> list[Case]:
    """Random lists with what the operations make of them."""
    cases = []
    for _ in range(TESTS):
        xs, n = [rng.randint(-9, 20) for _ in range(rng.randint(5, 8))], rng.randint(2, 9)
        cases.append((xs, n, run(operations, xs, n)))
    return cases


def small_enough(cases: Sequence[Case]) -> bool:
    """Whether no result has grown beyond what a person would still read."""
    return all(abs(x) < 10**6 for _, _, result in cases for x in (result if isinstance(result, list) else [result]))


def matters(operations: Sequence[ListOperation], index: int, cases: Sequence[Case]) -> bool:
    """Whether leaving out one operation would fail a test."""
    without = [*operations[:index], *operations[index + 1 :]]
    return any(run(without, xs, n) != result for xs, n, result in cases)


def draw_added(rng: random.Random, program: Program, cases: Sequence[Case]) -> ListOperation:
    """One operation more than asked for, with which the tests fail."""
    while True:
        added = rng.choice(KINDS_OF_STEP)(rng)
        if (program.uses_n or not added.uses_n) and any(run([*program.operations, added], xs, n) != r for xs, n, r in cases):
            return added


def tests_of(program: Program, cases: Sequence[Case]) -> str:
    """The assertions that judge a program."""
    calls = [(f"{program.name}({xs}, {n})" if program.uses_n else f"{program.name}({xs})", result) for xs, n, result in cases]
    return "".join(f"assert {call} == {result}\n" for call, result in calls)


def specification(rng: random.Random, program: Program) -> str:
    """The question in plain English; now and then an operation is named after the one that follows it."""
    lead = rng.choice(
        (
            "Write a Python function {f} that takes a list of numbers xs{n}.",
            "Write {f} in Python for a list of numbers xs{n}.",
            "I need a Python function {f} for a list of numbers xs{n}.",
        )
    )
    head = lead.format(f=f"{program.name}({program.parameters})", n=" and a number n" if program.uses_n else "")
    wordings = [rng.choice(operation.wordings) for operation in program.operations]
    sentences, index = [], 0
    while index < len(wordings):
        if index + 1 < len(wordings) and rng.random() < SWAPPED_SHARE:
            sentences.append(f"{opener(index)}{wordings[index + 1]}, but before that {wordings[index]}.")
            index += 2
        else:
            sentences.append(f"{opener(index)}{wordings[index]}.")
            index += 1
    return " ".join([head, *(sentence[0].upper() + sentence[1:] for sentence in sentences)])


def opener(index: int) -> str:
    """How the sentence for the operation at `index` begins."""
    return "first " if index == 0 else "then "


def draw(rng: random.Random, level: int) -> Drawn:
    """A question with `level` operations."""
    program, cases = draw_program(rng, level)
    operations = program.operations
    lines = tuple(operation.step for operation in operations)

    def written(steps: Sequence[ListOperation]) -> Solution:
        return Solution(tuple(step.step for step in steps), block(program.text(steps)))

    careful = written(operations[:MAX_STEPS])
    return Drawn(
        level=level,
        question=specification(rng, program),
        answer=tests_of(program, cases),
        solution=Solution(joined_beyond(lines, MAX_STEPS, "; "), block(program.text())),
        detailed=written(operations),
        careful=careful,
        habit=written([*operations, draw_added(rng, program, cases)]) if level <= HABIT_ADDS_UP_TO else careful,
    )


def block(code: str) -> str:
    """A fenced Python block."""
    return f"\n```python\n{code}```\n"


CODE = Family(
    name="code",
    task="code",
    kind=AnswerKind.PROGRAM,
    max_steps=MAX_STEPS,
    level_weights=LEVEL_WEIGHTS,
    draw_any=draw,
    about="a short Python function from a specification of 1 to 8 operations, judged by its tests",
    bands={1: "learnable", 2: "learnable", 3: "known", 4: "known", 5: "beyond", 6: "beyond", 7: "beyond", 8: "beyond"},
)

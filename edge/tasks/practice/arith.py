"""Practice family `arith`: arithmetic in several steps, as a person would put it.

A problem is a start value and a chain of 1 to 7 operations on the running value, which stays an integer in 1..999. The level is
the number of operations; the step limit is 4, so levels 5 to 7 cannot be worked through one operation at a time. By habit an SLM
stops after two operations, also where more are asked for.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from edge.core.types import AnswerKind
from edge.tasks.practice.family import Drawn, Family, Solution, boxed

Operator = Literal["+", "-", "*", "/"]

MAX_STEPS = 4
HABIT_STEPS = 2
LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.19, 2: 0.19, 3: 0.17, 4: 0.17, 5: 0.10, 6: 0.09, 7: 0.09}

MAX_VALUE = 999
MAX_ADDEND = 99
MAX_FACTOR = 9
MAX_MULTIPLICAND = 99
"""Also the largest quotient: products and quotients stay within the multiplication of a two-digit number by one digit."""


@dataclass(frozen=True, slots=True)
class ArithOperation:
    """One operation on the running value."""

    operator: Operator
    operand: int

    def apply(self, value: int) -> int:
        """The new running value; division is exact by construction."""
        match self.operator:
            case "+":
                return value + self.operand
            case "-":
                return value - self.operand
            case "*":
                return value * self.operand
            case "/":
                return value // self.operand


@dataclass(frozen=True, slots=True)
class ArithProblem:
    """A start value and the operations on it, in order."""

    start: int
    operations: tuple[ArithOperation, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """The running value before the first and after each operation."""
        running = [self.start]
        for operation in self.operations:
            running.append(operation.apply(running[-1]))
        return tuple(running)

    @property
    def answer(self) -> int:
        """The value after the last operation."""
        return self.values[-1]


# --- problems -------------------------------------------------------------------------------------------------------------


def draw_problem(rng: random.Random, level: int) -> ArithProblem:
    """A random chain of `level` operations whose running value stays in 1..999; stopping too early does not give its answer."""
    while True:
        start = rng.randint(2, 99)
        value = start
        operations: list[ArithOperation] = []
        for _ in range(level):
            operation = draw_operation(rng, value)
            while operations and undoes(operation, operations[-1]):
                operation = draw_operation(rng, value)
            operations.append(operation)
            value = operation.apply(value)
        problem = ArithProblem(start, tuple(operations))
        if problem.answer not in (problem.values[steps] for steps in (HABIT_STEPS, MAX_STEPS) if steps < level):
            return problem


def undoes(operation: ArithOperation, before: ArithOperation) -> bool:
    """Whether `operation` takes back what `before` did; no natural story does that."""
    return operation.operand == before.operand and {operation.operator, before.operator} in ({"+", "-"}, {"*", "/"})


def draw_operation(rng: random.Random, value: int) -> ArithOperation:
    """One operation that `value` allows, each operator first drawn with equal probability among the possible ones."""
    choices: list[tuple[Operator, Sequence[int]]] = [("+", range(2, min(MAX_ADDEND, MAX_VALUE - value) + 1))]
    choices.append(("-", range(2, min(MAX_ADDEND, value - 1) + 1)))
    if value <= MAX_MULTIPLICAND:
        choices.append(("*", range(2, MAX_FACTOR + 1)))
    choices.append(("/", exact_divisors(value)))
    operator, operands = rng.choice([choice for choice in choices if choice[1]])
    return ArithOperation(operator, rng.choice(operands))


def exact_divisors(value: int) -> list[int]:
    """Divisors of 2..9 that divide `value` exactly with a quotient of at most two digits."""
    return [d for d in range(2, MAX_FACTOR + 1) if value % d == 0 and value // d <= MAX_MULTIPLICAND]


# --- wording --------------------------------------------------------------------------------------------------------------

NAMES = {
    "she": ("Maya", "Lena", "Ruth", "Aisha", "Nora", "Julia", "Priya", "Chloe", "Sara", "Mei", "Elena", "Hana"),
    "he": ("Tom", "Omar", "Ben", "Luis", "Ivan", "Paul", "Ravi", "Karl", "Sam", "Hugo", "Emil", "Jack"),
}
OBJECT_PRONOUN = {"she": "her", "he": "him"}


@dataclass(frozen=True, slots=True)
class StoryTheme:
    """The sentences of one kind of story.

    `{n}` is the number of the sentence, `{thing}` what is counted, `{Name}` and `{friend}` people, `{they}` and `{them}` the
    pronouns of `{Name}` (`{They}` at the start of a sentence). `double` and `half` replace `*` and `/` by 2 now and then;
    `each` opens a story whose first operation is a multiplication, `{k}` groups of `{n}`.
    """

    things: tuple[str, ...]
    opening: tuple[str, ...]
    add: tuple[str, ...]
    subtract: tuple[str, ...]
    multiply: tuple[str, ...]
    divide: tuple[str, ...]
    double: tuple[str, ...]
    half: tuple[str, ...]
    question: tuple[str, ...]
    each: tuple[str, ...] = ()

    def sentences(self, operator: Operator) -> tuple[str, ...]:
        """The templates that express `operator`."""
        return {"+": self.add, "-": self.subtract, "*": self.multiply, "/": self.divide}[operator]


COLLECTION = StoryTheme(
    things=("marbles", "stickers", "coins", "shells", "stamps", "cards", "buttons", "beads", "pencils", "badges"),
    opening=("{Name} has {n} {thing}.", "{Name} starts with {n} {thing}.", "{Name} owns {n} {thing}."),
    each=("{Name} has {k} boxes with {n} {thing} in each.", "{Name} fills {k} bags with {n} {thing} each."),
    add=(
        "{They} finds {n} more.",
        "{They} buys {n} more {thing}.",
        "{friend} gives {them} {n} more.",
        "{They} wins {n} {thing}.",
    ),
    subtract=("{They} gives {n} to {friend}.", "{They} loses {n} of them.", "{They} sells {n} {thing}."),
    multiply=("{They} trades each one for {n} new ones.", "Soon {they} has {n} times as many."),
    divide=(
        "{They} makes {n} equal piles and keeps one pile.",
        "{They} shares them equally among {n} people and keeps one share.",
    ),
    double=("{They} doubles the number of {thing}.", "Soon {they} has twice as many."),
    half=("{They} gives half of them to {friend}.", "{They} keeps only half of them."),
    question=("How many {thing} does {Name} have now?", "How many {thing} does {they} have in the end?"),
)
KITCHEN = StoryTheme(
    things=("apples", "rolls", "cookies", "pears", "eggs", "muffins", "plums", "pies"),
    opening=("There are {n} {thing} in the kitchen.", "{Name} brings {n} {thing}.", "A shop starts the day with {n} {thing}."),
    each=("There are {k} trays with {n} {thing} on each.", "A shop gets {k} crates with {n} {thing} in each."),
    add=("{friend} brings {n} more.", "Then {n} more arrive.", "Another {n} {thing} are added."),
    subtract=("The guests eat {n} of them.", "Then {n} {thing} are sold.", "{friend} takes {n} away."),
    multiply=("The next day there are {n} times as many.", "A new order makes it {n} times as many."),
    divide=(
        "They are packed equally into {n} boxes and one box is kept.",
        "They are shared equally by {n} tables and we look at one table.",
    ),
    double=("The next day there are twice as many.",),
    half=("Half of them are given away.",),
    question=("How many {thing} are there now?", "How many {thing} are left?"),
)
MONEY = StoryTheme(
    things=("dollars", "euros", "pounds"),
    opening=("{Name} has {n} {thing}.", "{Name} begins the week with {n} {thing}.", "{Name} has saved {n} {thing}."),
    each=("{Name} works {k} hours for {n} {thing} an hour.", "{Name} gets {n} {thing} on each of {k} days."),
    add=("{They} earns {n} {thing}.", "{friend} pays {them} {n} {thing}.", "{They} gets {n} more."),
    subtract=("{They} spends {n} {thing}.", "{They} lends {friend} {n} {thing}.", "{They} pays {n} for lunch."),
    multiply=("{They} saves until {they} has {n} times as much.", "{They} makes it {n} times as much."),
    divide=(
        "{They} splits the money into {n} equal parts and keeps one part.",
        "{They} shares it equally among {n} people and keeps one share.",
    ),
    double=("{They} doubles the money.",),
    half=("{They} spends half of the money.",),
    question=("How many {thing} does {Name} have now?", "How much money is left?"),
)
GAME = StoryTheme(
    things=("points",),
    opening=("{Name} scores {n} points.", "{Name} starts the game with {n} points."),
    each=("{Name} plays {k} rounds and scores {n} points in each.",),
    add=("{They} gains {n} points.", "{They} scores {n} more.", "A lucky card adds {n} points."),
    subtract=("{They} loses {n} points.", "A foul costs {them} {n} points."),
    multiply=("A bonus multiplies the score by {n}.", "A star makes the score {n} times as high."),
    divide=("A trap divides the score by {n}.", "A penalty divides the score by {n}."),
    double=("A bonus doubles the score.",),
    half=("A penalty halves the score.",),
    question=("What is the score now?", "How many points does {Name} have?"),
)
RIDDLE = StoryTheme(
    things=("",),
    opening=("Start with {n}.", "Take the number {n}.", "Think of {n}."),
    add=("Add {n}.", "Then add {n}."),
    subtract=("Subtract {n}.", "Take away {n}."),
    multiply=("Multiply by {n}.", "Then multiply by {n}."),
    divide=("Divide by {n}.", "Then divide by {n}."),
    double=("Double it.",),
    half=("Halve it.",),
    question=("What do you get?", "What is the result?"),
)
THEMES = (COLLECTION, KITCHEN, MONEY, GAME, RIDDLE)
BARE = ("What is {e}?", "Calculate {e}.", "Work out {e}.", "Evaluate {e}.", "Find the value of {e}.", "{e} = ?")
BARE_SHARE = 0.3
WORD_FOR_TWO_SHARE = 0.5
"""How often a multiplication or division by 2 is worded as doubling or halving."""
EACH_SHARE = 0.5
"""How often a story that begins with a multiplication opens with equal groups."""


def word_problem(rng: random.Random, problem: ArithProblem) -> str:
    """The question: a bare expression or a short story."""
    if rng.random() < BARE_SHARE:
        return rng.choice(BARE).format(e=expression(str(problem.start), problem.operations))
    return tell_story(rng, rng.choice(THEMES), problem)


def expression(start: str, operations: Sequence[ArithOperation]) -> str:
    """`((14 + 23) * 3) - 8`: every operation but the last in brackets."""
    text = start
    for index, operation in enumerate(operations):
        left = f"({text})" if index else text
        text = f"{left} {operation.operator} {operation.operand}"
    return text


def tell_story(rng: random.Random, theme: StoryTheme, problem: ArithProblem) -> str:
    """The sentences of `theme` for `problem`, ending with its question."""
    words = draw_cast(rng, theme)
    operations = list(problem.operations)
    if theme.each and operations[0].operator == "*" and rng.random() < EACH_SHARE:
        sentences = [rng.choice(theme.each).format(n=problem.start, k=operations.pop(0).operand, **words)]
    else:
        sentences = [rng.choice(theme.opening).format(n=problem.start, **words)]
    sentences += [tell_operation(rng, theme, operation, words) for operation in operations]
    return " ".join([*sentences, rng.choice(theme.question).format(**words)])


def draw_cast(rng: random.Random, theme: StoryTheme) -> dict[str, str]:
    """Who and what the story is about: the fields of the sentence templates."""
    they = rng.choice(("she", "he"))
    name = rng.choice(NAMES[they])
    friend = rng.choice([other for names in NAMES.values() for other in names if other != name])
    pronouns = {"they": they, "They": they.capitalize(), "them": OBJECT_PRONOUN[they]}
    return {"Name": name, "friend": friend, "thing": rng.choice(theme.things), **pronouns}


def tell_operation(rng: random.Random, theme: StoryTheme, operation: ArithOperation, words: Mapping[str, str]) -> str:
    """One sentence for one operation."""
    if operation.operand == 2 and operation.operator in "*/" and rng.random() < WORD_FOR_TWO_SHARE:
        return rng.choice(theme.double if operation.operator == "*" else theme.half).format(**words)
    return rng.choice(theme.sentences(operation.operator)).format(n=operation.operand, **words)


# --- worked solutions -----------------------------------------------------------------------------------------------------


def plain_lines(problem: ArithProblem) -> list[str]:
    """One equation for each operation: `14 + 23 = 37`."""
    values = problem.values
    return [
        f"{values[i]} {operation.operator} {operation.operand} = {values[i + 1]}"
        for i, operation in enumerate(problem.operations)
    ]


def merged_lines(problem: ArithProblem, max_steps: int = MAX_STEPS) -> list[str]:
    """As `plain_lines`, but at most `max_steps`: the last one takes all the remaining operations at once."""
    if len(problem.operations) <= max_steps:
        return plain_lines(problem)
    done = max_steps - 1
    rest = expression(str(problem.values[done]), problem.operations[done:])
    return [*plain_lines(problem)[:done], f"{rest} = {problem.answer}"]


def detailed_lines(problem: ArithProblem) -> list[str]:
    """One line for each operation with its intermediate results: `37 * 3 = 90 + 21 = 111`."""
    values = problem.values
    return [" = ".join(detailed_chain(values[i], operation, values[i + 1])) for i, operation in enumerate(problem.operations)]


def detailed_chain(value: int, operation: ArithOperation, result: int) -> list[str]:
    """The expressions that are equal, from the operation to its result, each a small change of the one before."""
    operator, operand = operation.operator, operation.operand
    chain = [f"{value} {operator} {operand}"]
    tens, ones = operand - operand % 10, operand % 10
    if operator in "+-" and tens and ones:
        chain.append(f"{ArithOperation(operator, tens).apply(value)} {operator} {ones}")
    elif operator == "*" and value > 10 and value % 10:
        chain.append(f"{(value - value % 10) * operand} + {value % 10 * operand}")
    elif operator == "/" and result > 10 and result % 10:
        whole = (result - result % 10) * operand
        chain.append(f"{whole} / {operand} + {value - whole} / {operand}")
        chain.append(f"{result - result % 10} + {result % 10}")
    return [*chain, str(result)]


def draw(rng: random.Random, level: int) -> Drawn:
    """A question with a chain of `level` operations."""
    problem = draw_problem(rng, level)
    answer = boxed(problem.answer)
    detailed = tuple(detailed_lines(problem))

    def after(steps: int) -> Solution:
        return Solution(detailed[:steps], boxed(problem.values[min(steps, level)]))

    return Drawn(
        level=level,
        question=word_problem(rng, problem),
        answer=str(problem.answer),
        solution=Solution(detailed if level <= MAX_STEPS else tuple(merged_lines(problem)), answer),
        detailed=Solution(detailed, answer),
        careful=after(MAX_STEPS),
        habit=after(HABIT_STEPS),
    )


ARITH = Family(
    name="arith",
    task="math",
    kind=AnswerKind.MATH,
    max_steps=MAX_STEPS,
    level_weights=LEVEL_WEIGHTS,
    draw_any=draw,
    about="arithmetic in 1 to 7 steps, as short stories or bare expressions",
    bands={1: "known", 2: "known", 3: "learnable", 4: "learnable", 5: "beyond", 6: "beyond", 7: "beyond"},
)

"""Practice family `facts`: multiple choice over a synthetic world that a model must know by heart.

The world is who teaches whom, who lives where, and which town comes next on the ring road. It is fixed: it does
not depend on any seed a user chooses.

The level is the number of facts to put together; the step limit is 4, so at levels 5 and 6 one fact a step does not reach the end.
By habit an SLM goes on where one or two facts are asked for: it adds a fact of its own accord. What is reached after four steps, and
by the added fact, is always among the options.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from edge.core.types import AnswerKind
from edge.tasks.practice.family import Drawn, Family, Solution, boxed, joined_beyond, letter_of

MAX_STEPS = 4
HABIT_ADDS_UP_TO = 2
"""The highest level at which the habit adds a fact."""
LEVEL_WEIGHTS: Mapping[int, float] = {1: 0.17, 2: 0.17, 3: 0.19, 4: 0.19, 5: 0.14, 6: 0.14}
OPTIONS = 4
WORLD_SEED = "world/1"

PEOPLE = (
    "Adan", "Brisa", "Corin", "Delva", "Edda", "Faron", "Gisel", "Hesper", "Ilka", "Joram", "Kesta", "Lorin", "Mirel", "Nevan", "Osric",
    "Petra", "Quill", "Rhona", "Silas", "Tamsin", "Ulric", "Vesna", "Wynn", "Xenia", "Yoric", "Zelda", "Alaric", "Bettan",
)  # fmt: skip
TOWNS = (
    "Arden", "Bravik", "Caldor", "Dunmor", "Elsby", "Fenwick", "Gralin", "Hexton", "Ivarra", "Jarvik", "Kelmar", "Lunde", "Morvan", "Norby",
    "Ostrel", "Pellam", "Quarn", "Rosel", "Selwick", "Tolva", "Umber", "Varsk", "Wexley", "Yarrow", "Zell", "Ashmere", "Birken", "Corran",
)  # fmt: skip
TRADES = ("baker", "smith", "weaver", "sailor", "doctor", "carpenter", "painter", "miller")
GOODS = ("cheese", "salt", "wool", "glass", "honey", "silver", "paper", "pottery")


@dataclass(frozen=True, slots=True)
class Relation:
    """A kind of fact from one type of thing to another: `of` puts it around a noun phrase, `own` after a possessive."""

    source: str
    target: str
    of: str
    own: str


RELATIONS: Mapping[str, Relation] = {
    "teacher": Relation("person", "person", "the teacher of {x}", "teacher"),
    "home": Relation("person", "town", "the home town of {x}", "home town"),
    "mayor": Relation("town", "person", "the mayor of {x}", "mayor"),
    "next": Relation("town", "town", "the town after {x}", "next town"),
    "trade": Relation("person", "trade", "the trade of {x}", "trade"),
    "goods": Relation("town", "goods", "the pride of {x}", "pride"),
}
KINDS: Mapping[str, tuple[str, ...]] = {"person": PEOPLE, "town": TOWNS, "trade": TRADES, "goods": GOODS}
ONE_MORE = {"person": "teacher", "town": "next"}
"""The fact that the habit adds to an answer of each kind."""
ASKING = {"person": "Who is", "town": "Which town is", "trade": "What is", "goods": "What is"}


def build_world() -> Mapping[str, Mapping[str, str]]:
    """Every fact: relation -> thing -> thing. A person is taught by another one; the ring road passes every town once."""
    rng = random.Random(WORLD_SEED)
    return {
        "teacher": ring(rng, PEOPLE),
        "home": pairing(rng, PEOPLE, TOWNS),
        "mayor": pairing(rng, TOWNS, PEOPLE),
        "next": ring(rng, TOWNS),
        "trade": {person: rng.choice(TRADES) for person in PEOPLE},
        "goods": {town: rng.choice(GOODS) for town in TOWNS},
    }


def ring(rng: random.Random, things: Sequence[str]) -> dict[str, str]:
    """A random cycle through all of `things`."""
    order = rng.sample(things, len(things))
    return dict(zip(order, [*order[1:], order[0]], strict=True))


def pairing(rng: random.Random, sources: Sequence[str], targets: Sequence[str]) -> dict[str, str]:
    """A random one-to-one map."""
    return dict(zip(sources, rng.sample(targets, len(targets)), strict=True))


WORLD = build_world()


def draw(rng: random.Random, level: int) -> Drawn:
    """A question that puts `level` facts together."""
    relations, things = draw_path(rng, level)
    added = ONE_MORE.get(RELATIONS[relations[-1]].target) if level <= HABIT_ADDS_UP_TO else None
    beyond = WORLD[added][things[-1]] if added else things[min(level, MAX_STEPS)]
    options = draw_options(rng, relations, things, beyond)
    lines = fact_lines(relations, things)
    answer = boxed(things[-1])
    careful = Solution(lines[:MAX_STEPS], boxed(things[min(level, MAX_STEPS)]))
    return Drawn(
        level=level,
        question=ask(rng, relations, things[0]),
        answer=letter_of(options, things[-1]),
        solution=Solution(joined_beyond(lines, MAX_STEPS, ", "), answer),
        detailed=Solution(lines, answer),
        careful=careful,
        habit=Solution(fact_lines([*relations, added], [*things, beyond]), boxed(beyond)) if added else careful,
        options=options,
    )


def fact_lines(relations: Sequence[str], things: Sequence[str]) -> tuple[str, ...]:
    """One line a fact: `the mayor of Lunde is Petra`. `things` are one more than `relations`."""
    return tuple(f"{RELATIONS[r].of.format(x=x)} is {y}" for r, x, y in zip(relations, things, things[1:], strict=False))


def draw_path(rng: random.Random, level: int) -> tuple[list[str], list[str]]:
    """`level` relations and the things they lead through, none of them twice.

    Trades and goods only end a path of three or four facts: a shorter one can go on to a thing of the answer's type, and of a longer
    one, what four facts reach must be of that type.
    """
    while True:
        thing, kind = (rng.choice(PEOPLE), "person") if rng.random() < 0.5 else (rng.choice(TOWNS), "town")
        relations, things, kinds = [], [thing], [kind]
        for step in range(level):
            last = step == level - 1 and HABIT_ADDS_UP_TO < level <= MAX_STEPS
            names = [name for name, r in RELATIONS.items() if r.source == kinds[-1] and (last or r.target in ("person", "town"))]
            relations.append(rng.choice(names))
            things.append(WORLD[relations[-1]][things[-1]])
            kinds.append(RELATIONS[relations[-1]].target)
        if len(set(things)) == len(things) and (level <= MAX_STEPS or kinds[MAX_STEPS] == kinds[-1]):
            return relations, things


def draw_options(rng: random.Random, relations: Sequence[str], things: Sequence[str], reached: str) -> tuple[str, ...]:
    """The answer among others of its type, in random order: what the habit reaches, what one fact less reaches, and strangers."""
    kind = RELATIONS[relations[-1]].target
    on_the_way = [thing for thing in things[1:-1] if thing in KINDS[kind]][-1:]
    chosen = list(dict.fromkeys([things[-1], reached, *on_the_way]))
    others = [thing for thing in KINDS[kind] if thing not in chosen and thing != things[0]]
    chosen += rng.sample(others, OPTIONS - len(chosen))
    rng.shuffle(chosen)
    return tuple(chosen)


def ask(rng: random.Random, relations: Sequence[str], start: str) -> str:
    """The question: nested (`the teacher of the mayor of Lunde`), possessive (`Lunde's mayor's teacher`), or a walk."""
    asking = ASKING[RELATIONS[relations[-1]].target]
    form = rng.random()
    if form < 0.4:
        phrase = start
        for name in relations:
            phrase = RELATIONS[name].of.format(x=phrase)
        return f"{asking} {phrase}?"
    owned = [RELATIONS[name].own for name in relations]
    if form < 0.7:
        return f"{asking} {start}'s {possessives(owned)}?"
    return f"Start with {start}. Take the {', then the '.join(owned)}. What do you reach?"


def possessives(owned: Sequence[str]) -> str:
    """`mayor's teacher's home town`."""
    return " ".join([*(f"{name}'s" for name in owned[:-1]), owned[-1]])


FACTS = Family(
    name="facts",
    task="qa",
    kind=AnswerKind.CHOICE,
    max_steps=MAX_STEPS,
    level_weights=LEVEL_WEIGHTS,
    draw_any=draw,
    about="multiple choice over a small synthetic world, 1 to 6 facts put together",
    bands={1: "learnable", 2: "learnable", 3: "known", 4: "known", 5: "beyond", 6: "beyond"},
)

"""What a scenario can state about its own run, as sentences. Knows the language; knows nothing of results.

    FIGURE [of SOURCE answers] [of GROUP] COMPARISON VALUE [after warm-up]      p95 of local answers <= 800 ms
    FIGURE [of GROUP] within TOLERANCE of VALUE [after warm-up]                 rate of laptops within 0.03 of 0.2
    no COUNT [of GROUP]                                                         no lost answers

FIGURE: `p95` (any percentile), `median` or `mean latency` of the time to the whole answer, with `first token` to the first letter; `rate`,
`training rate`, `joint accuracy` (or `accuracy`), `local accuracy`, `share` of a source's answers, `online`, `coordinator up` (shares:
0.7 or 70 %); `spend`, `spend per answer` ($3.50); `calls`, `answers`, `learning steps`, `refusals`, `lost answers`, `queue`, `in flight`,
`cloud errors`, `ledger violations` (counts); `λ`, `fairness` (Jain's index of calls by device); `energy` (200 Wh); `battery empty` (2 h).
SOURCE: local, cloud, local-fallback. GROUP: a group's name, or `each group`: then every one of them must do. COMPARISON: < <= > >= =.
VALUE: a number with its unit; `budget` for spend and calls, which is judged at every moment of the run; `τ` for rates, for each group its
own, and for learning the coordinator's. TOLERANCE: in the figure's unit; of shares, per cent are points, of anything else a part of the
value. Figures without a group are of the whole fleet; `tau` and `lambda` are understood, too. `after warm-up` goes with rates, λ and joint
accuracy; against a τ that changes, every stretch of one τ is judged for itself and has a warm-up of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from edge.core.errors import UsageError
from tools.simulate.reports.quantities import QUANTITIES, Quantity, Unit, quantile
from tools.simulate.reports.result import SOURCES

EXAMPLES = (
    "p95 < 4 s",
    "p50 of local answers <= 800 ms",
    "p95 first token of jetsons < 2 s",
    "p99 of cloud answers of phones < 20 s",
    "p95 of each group < 10 s",
    "median < 2 s",
    "mean latency < 3 s",
    "spend <= budget",
    "spend < $3.50",
    "spend of laptops < $1.20",
    "spend per answer < $0.001",
    "calls <= budget",
    "calls < 5000",
    "rate within 0.05 of τ after warm-up",
    "rate of laptops within 0.03 of 0.2",
    "rate < 30 %",
    "training rate within 0.05 of τ after warm-up",
    "joint accuracy > 70 %",
    "local accuracy > 60 %",
    "accuracy of phones >= 0.6",
    "fairness >= 0.9",
    "queue <= 200",
    "in flight <= 64",
    "answers >= 1000",
    "share of local-fallback answers < 5 %",
    "learning steps >= 100",
    "λ within 0.1 of 0.5",
    "energy of laptops < 200 Wh",
    "battery empty of phones < 2 h",
    "online > 95 %",
    "coordinator up > 99 %",
    "no lost answers",
    "no ledger violations",
    "no cloud errors",
    "no refusals",
)
EACH = "each group"
_ALIASES = {
    "median": "p50",
    "assist rate": "rate",
    "training assist rate": "training rate",
    "accuracy": "joint accuracy",
    "lambda": "λ",
    "dual": "λ",
    "price": "λ",
    "jain": "fairness",
    "errors": "cloud errors",
    "lost": "lost answers",
    "steps": "learning steps",
}
_SENTENCE = re.compile(
    r"(?P<figure>.+?)(?P<of>(?: of .+?)*) ?(?:(?P<op><=|>=|==|=|<|>) ?(?P<value>.+?)|within (?P<tolerance>.+?) of (?P<aim>.+?))"
    r"(?P<settled> after (?:the )?warm-?up)?",
    re.IGNORECASE,
)
_NONE = re.compile(r"no (?P<figure>.+?)(?: of (?P<group>.+))?", re.IGNORECASE)
_OF_SOURCE = re.compile(rf" of ({'|'.join(sorted(SOURCES, key=len, reverse=True))}) answers", re.IGNORECASE)
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d+)?|100)( (?:to the )?first (?:token|letter))?(?: latency)?")
_NUMBER = re.compile(r"(?P<dollar>\$ ?)?(?P<number>\d[\d,_]*(?:\.\d+)?|\.\d+) ?(?P<unit>%|[a-zA-Z]*)")
_FACTORS = {
    Unit.SECONDS: {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0},
    Unit.SHARE: {"": 1.0, "%": 0.01},
    Unit.DOLLARS: {"$": 1.0, "usd": 1.0},
    Unit.COUNT: {"": 1.0},
    Unit.WATT_HOURS: {"wh": 1.0, "kwh": 1000.0, "mwh": 1e6},
    Unit.NUMBER: {"": 1.0},
}
_SIGNS = str.maketrans({"≤": "<=", "≥": ">=", "\u2009": " ", "\xa0": " "})


@dataclass(frozen=True, slots=True)
class Aim:
    """What a figure is held against: a number in the figure's own unit, the fleet's `budget`, or each group's `τ`."""

    number: float | None = None
    word: str = ""


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence, understood. `op` is a comparison, or "within" with its `tolerance`; `group` "" is the fleet."""

    sentence: str
    quantity: Quantity
    op: str
    aim: Aim
    group: str = ""
    source: str = ""
    tolerance: float = 0.0
    settled: bool = False


class NotUnderstood(Exception):
    """Why a sentence means nothing here, in a few words."""


def check_sentences(sentences: Sequence[str], groups: Sequence[str] | None = None) -> None:
    """Raises UsageError for the first sentence that is not understood, with the nearest valid form; with `groups`, for an unknown group."""
    for sentence in sentences:
        claim = parse(sentence)
        if groups is not None and claim.group not in ("", EACH, *groups):
            raise UsageError(f'assertion "{sentence}": no group is called {claim.group!r}', hint=f"groups: {', '.join(groups)}")


def parse(sentence: str) -> Claim:
    """What a sentence states. Raises UsageError with the nearest valid form."""
    try:
        return _parsed(sentence)
    except NotUnderstood as error:
        raise UsageError(
            f'assertion "{sentence}" is not understood: {error}', hint=f'nearest valid form: "{nearest(sentence)}"'
        ) from None


def nearest(sentence: str) -> str:
    """The example that looks most like it."""
    plain = _plain(sentence).casefold()
    return max(EXAMPLES, key=lambda example: _likeness(plain, example.casefold()))


def _likeness(sentence: str, example: str) -> float:
    whole = SequenceMatcher(None, sentence, example, autojunk=False).ratio()
    return whole + SequenceMatcher(None, sentence.split(" ")[0], example.split(" ")[0], autojunk=False).ratio()


def _plain(sentence: str) -> str:
    return " ".join(sentence.translate(_SIGNS).split()).removesuffix(".")


def _parsed(sentence: str) -> Claim:
    plain = _plain(sentence)
    if (found := _SENTENCE.fullmatch(plain)) is not None:
        return _compared(sentence, found)
    if (found := _NONE.fullmatch(plain)) is not None:
        return _none(sentence, found)
    raise NotUnderstood("it compares nothing")


def _none(sentence: str, found: re.Match[str]) -> Claim:
    quantity = _quantity(found["figure"])
    if quantity.unit is not Unit.COUNT:
        raise NotUnderstood(f'"no" goes with a count, and {quantity.name} is {quantity.unit}')
    return _fitting(Claim(sentence, quantity, "=", Aim(0.0), group=found["group"] or ""))


def _compared(sentence: str, found: re.Match[str]) -> Claim:
    source, group = _scope(found["of"])
    quantity, settled = _quantity(found["figure"]), found["settled"] is not None
    if found["op"] is None:
        aim = _aim(quantity, found["aim"])
        tolerance = _tolerance(quantity, aim, found["tolerance"])
        return _fitting(Claim(sentence, quantity, "within", aim, group, source, tolerance, settled))
    aim, op = _aim(quantity, found["value"]), "=" if found["op"] == "==" else found["op"]
    if aim.word == "budget" and op != "<=":
        raise NotUnderstood("a budget is kept with <=")
    return _fitting(Claim(sentence, quantity, op, aim, group, source, settled=settled))


def _fitting(claim: Claim) -> Claim:
    quantity = claim.quantity
    if claim.source and not quantity.of_sources:
        raise NotUnderstood(f"{quantity.name} is not told by source")
    if claim.group and not quantity.of_groups:
        raise NotUnderstood(f"{quantity.name} is of the whole fleet, not of a group")
    if claim.settled and not quantity.settles:
        raise NotUnderstood(f"{quantity.name} is not told after the warm-up alone")
    if claim.aim.word == "budget" and claim.group:
        raise NotUnderstood("the budget is the fleet's, not a group's")
    return claim


def _scope(text: str) -> tuple[str, str]:
    """(source, group), "" where none is said."""
    source = ""
    if (found := _OF_SOURCE.match(text)) is not None:
        source, text = found[1].lower(), text[found.end() :]
    return source, text.removeprefix(" of ").removeprefix("group ")


def _quantity(text: str) -> Quantity:
    name = text.casefold()
    name = _ALIASES.get(name, name)
    if name.startswith("median "):
        name = f"p50 {name.removeprefix('median ')}"
    if (found := _PERCENTILE.fullmatch(name)) is not None:
        return quantile(float(found[1]) / 100, first=found[2] is not None)
    if name not in QUANTITIES:
        raise NotUnderstood(f"no figure is called {text!r}")
    return QUANTITIES[name]


def _aim(quantity: Quantity, text: str) -> Aim:
    word = text.casefold()
    if word in ("budget", "the budget"):
        if quantity.name not in ("spend", "calls"):
            raise NotUnderstood("a budget limits spend and calls")
        return Aim(word="budget")
    if word in ("τ", "tau"):
        if quantity.name not in ("rate", "training rate"):
            raise NotUnderstood("τ is the aim of rate and training rate")
        return Aim(word="τ")
    return Aim(_value(quantity, text))


def _tolerance(quantity: Quantity, aim: Aim, text: str) -> float:
    if aim.word == "budget":
        raise NotUnderstood("a budget is kept with <=")
    if text.endswith("%") and quantity.unit is not Unit.SHARE and aim.number is not None:
        return abs(aim.number) * _value(QUANTITIES["share"], text)
    return _value(quantity, text)


def _value(quantity: Quantity, text: str) -> float:
    found = _NUMBER.fullmatch(text)
    unit = "" if found is None else "$" if found["dollar"] else found["unit"].casefold()
    factor = _FACTORS[quantity.unit].get(unit)
    if found is None or factor is None or (found["dollar"] and found["unit"]):
        raise NotUnderstood(f"{quantity.name} is {quantity.unit}, not {text!r}")
    value = float(found["number"].replace(",", "").replace("_", "")) * factor
    if quantity.unit is Unit.SHARE and value > 1:
        raise NotUnderstood(f"{text} is no share: did you mean {found['number']} %?")
    return value

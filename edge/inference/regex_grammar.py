"""Regular expressions, and sets of characters, as grammars of llama.cpp (GBNF) within a JSON string."""

from __future__ import annotations

import json
import re
import re._constants as codes  # type: ignore[import-not-found]
import re._parser as parser  # type: ignore[import-not-found]
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

Ranges = tuple[tuple[int, int], ...]
PLAIN: Ranges = ((0x20, 0x21), (0x23, 0x5B), (0x5D, 0xD7FF), (0xE000, 0x10FFFF))
"""The characters that a JSON string contains unescaped."""
_EVERYTHING: Ranges = ((0, 0xD7FF), (0xE000, 0x10FFFF))
_LINE_ENDS = (0x0A, 0x0D, 0x2028, 0x2029)
_BLOCK = 1000
"""llama.cpp takes a rule at most 2000 times in a row."""
_KNOWN = {"digit": "0-9", "word": "A-Za-z0-9_", "space": r"\t\n\v\f\r "}


@dataclass(frozen=True, slots=True)
class RegexRule:
    """What a regular expression matches, as GBNF, and its fewest and most characters (None: any number)."""

    rule: str
    least: int
    most: int | None


def literal(text: str) -> str:
    """A literal text."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


def class_of(ranges: Ranges) -> str:
    """One character of these."""
    return "[" + "".join(f"\\U{low:08X}-\\U{high:08X}" for low, high in ranges) + "]"


def without(ranges: Ranges, points: Iterable[int]) -> Ranges:
    """The ranges but for some characters."""
    for point in points:
        cut = [
            part
            for low, high in ranges
            for part in (((low, point - 1), (point + 1, high)) if low <= point <= high else ((low, high),))
        ]
        ranges = tuple((low, high) for low, high in cut if low <= high)
    return ranges


def repeated(rule: str, least: int, most: int | None) -> str:
    """A rule several times in a row. Of a large `most` a little less may be taken."""
    blocks, least = divmod(least, _BLOCK) if least > _BLOCK else (0, least)
    before = f"( {rule}{{{_BLOCK}}} ){{{blocks}}} " if blocks else ""
    if most is None:
        return f"{before}{rule}*" if least == 0 else f"{before}{rule}{{{least},}}"
    most -= blocks * _BLOCK
    if most <= 2 * _BLOCK:
        return f"{before}{rule}{{{least},{most}}}"
    return f"{before}{rule}{{{least},{_BLOCK}}} ( {rule}{{{_BLOCK}}} ){{0,{min(most // _BLOCK - 1, _BLOCK)}}}"


def from_regex(pattern: str) -> RegexRule:
    """The texts in which the pattern is found. Raises ValueError where that cannot be written as a grammar."""
    try:
        parsed = parser.parse(pattern)
    except re.error as error:
        raise ValueError(f"cannot be read ({error})") from error
    if parsed.state.flags & ~re.UNICODE:
        raise ValueError("flags are not supported")
    branches: Any = [parsed]
    if len(parsed) == 1 and parsed[0][0] is codes.BRANCH:
        branches = parsed[0][1][1]
    rules, open_ended = [], False
    for branch in branches:
        parts = list(branch)
        begins = bool(parts) and parts[0] in ((codes.AT, codes.AT_BEGINNING), (codes.AT, codes.AT_BEGINNING_STRING))
        ends = bool(parts) and parts[-1] in ((codes.AT, codes.AT_END), (codes.AT, codes.AT_END_STRING))
        open_ended = open_ended or not (begins and ends)
        body = _sequence(parts[begins : len(parts) - ends])
        rules.append(" ".join(filter(None, ["" if begins else "char*", body, "" if ends else "char*"])))
    least, most = parsed.getwidth()
    unbounded = open_ended or most >= int(codes.MAXREPEAT)
    return RegexRule(f"( {' | '.join(rule or literal('') for rule in rules)} )", least, None if unbounded else most)


def _sequence(parts: Sequence[Any]) -> str:
    return " ".join(_part(*part) for part in parts)


def _part(code: Any, value: Any) -> str:
    if code is codes.LITERAL:
        return _character(((value, value),))
    if code is codes.NOT_LITERAL:
        return _character(without(_EVERYTHING, [value]))
    if code is codes.ANY:
        return _character(without(_EVERYTHING, _LINE_ENDS))
    if code is codes.IN:
        return _character(_set(value))
    if code is codes.BRANCH:
        return f"( {' | '.join(_sequence(branch) or literal('') for branch in value[1])} )"
    if code is codes.SUBPATTERN and not value[1] and not value[2]:
        return f"( {_sequence(value[3]) or literal('')} )"
    if code in (codes.MAX_REPEAT, codes.MIN_REPEAT):
        least, most, inner = value
        return repeated(f"( {_sequence(inner)} )", least, None if most is codes.MAXREPEAT else most)
    raise ValueError(f"{str(code).lower().replace('_', ' ')} is not supported")


def _set(members: Sequence[Any]) -> Ranges:
    negated = bool(members) and members[0][0] is codes.NEGATE
    found: list[tuple[int, int]] = []
    for code, value in members[negated:]:
        if code is codes.LITERAL:
            found.append((value, value))
        elif code is codes.RANGE:
            found.append(value)
        else:
            name = str(value).lower().removeprefix("category_")
            inside = re.compile(f"[{'^' if name.startswith('not_') else ''}{_KNOWN[name.removeprefix('not_')]}]")
            found += [(point, point) for point in range(128) if inside.match(chr(point))]  # readers differ beyond ASCII
    if not negated:
        return tuple(found)
    kept: list[tuple[int, int]] = []
    for low, high in _EVERYTHING:
        for first, last in sorted(found):
            if first > low:
                kept.append((low, min(high, first - 1)))
            low = max(low, last + 1)
        if low <= high:
            kept.append((low, high))
    return tuple((low, high) for low, high in kept if low <= high)


def _character(ranges: Ranges) -> str:
    """One character of these as a JSON string contains it: escaped where it must be."""
    plain = tuple(
        (max(low, first), min(high, last)) for low, high in ranges for first, last in PLAIN if max(low, first) <= min(high, last)
    )
    special = [point for point in (*range(0x20), 0x22, 0x5C) if any(low <= point <= high for low, high in ranges)]
    shown = [class_of(plain)] if plain else []
    shown += [literal(json.dumps(chr(point))[1:-1]) for point in special]
    if not shown:
        raise ValueError("holds no character")
    return shown[0] if len(shown) == 1 else f"( {' | '.join(shown)} )"

"""JSON schemas as grammars of llama.cpp (GBNF): every text of the grammar is JSON that fits the schema.

A grammar may hold less than its schema allows: properties come in the order of the schema, an object has no others unless
`additionalProperties` allows them, numbers have at most 16 digits, 29 February is no date. It never holds more. What it cannot hold is
refused by the keyword's name and place. llama-cpp-python's own converter ignores such keywords, and lets strings hold line ends.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

from edge.core.errors import Unsupported
from edge.inference.regex_grammar import PLAIN, class_of, from_regex, literal, repeated, without

MOST_SCHEMA_BYTES, MOST_LEVELS, MOST_RULES = 64 << 10, 100, 20_000
_TYPES = ("object", "array", "string", "number", "boolean", "null")
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset({"properties", "required", "additionalProperties", "minProperties", "maxProperties"}),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
}
_HELD = frozenset({"type", "const", "enum", "anyOf", "oneOf", "allOf", "$ref"}).union(*_OF_TYPE.values())
_NOT_HELD = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems", "multipleOf"),
        *("dependentRequired", "dependentSchemas", "dependencies", "patternProperties", "propertyNames", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef", "$id"),
    }
)
"""What restricts values in a way that no grammar here has, or what other words mean (`$id`, but for the whole schema's). Every other word
is an annotation."""
_ASSERTED = frozenset(
    {
        *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"),
        *("uri-reference", "uri-template"),
    }
)
"""Formats of the standard that are not held. Every other one that is not in _FORMATS is an annotation."""
_LARGER = {"minLength", "minItems", "minProperties", "minimum", "exclusiveMinimum"}
_SMALLER = {"maxLength", "maxItems", "maxProperties", "maximum", "exclusiveMaximum"}
_EXACT_DIGITS = 15
"""Decimal digits that a double holds: with no more, a number stays on its side of a bound."""
_UNBOUNDED = 10**9
"""How far numbers with a fraction go where there is no bound."""
_DATE = (
    '[0-9]{4} "-" ( ( "01" | "03" | "05" | "07" | "08" | "10" | "12" ) "-" ( "0" [1-9] | [12] [0-9] | "3" [01] ) '
    '| ( "04" | "06" | "09" | "11" ) "-" ( "0" [1-9] | [12] [0-9] | "30" ) | "02-" ( "0" [1-9] | "1" [0-9] | "2" [0-8] ) )'
)
_CLOCK = '( [01] [0-9] | "2" [0-3] ) ":" [0-5] [0-9]'
_TIME = f'{_CLOCK} ":" [0-5] [0-9] ( "." [0-9]{{1,6}} )? ( "Z" | [+-] {_CLOCK} )'
_LABEL = "[a-zA-Z0-9] ( [a-zA-Z0-9-]{0,30} [a-zA-Z0-9] )?"
_BYTE = '( "25" [0-5] | "2" [0-4] [0-9] | "1" [0-9] [0-9] | [1-9] [0-9] | [0-9] )'
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f'{_DATE} "T" {_TIME}',
    "duration": '"P" ( [0-9]{1,4} "D" | ( [0-9]{1,4} "D" )? "T" ( [0-9]{1,4} "H" | [0-9]{1,4} "M" | [0-9]{1,4} "S" ) )',
    "uuid": '[0-9a-fA-F]{8} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{4} "-" [0-9a-fA-F]{12}',
    "email": f'[a-zA-Z0-9]{{1,16}} ( [._+-] [a-zA-Z0-9]{{1,16}} ){{0,2}} "@" {_LABEL} ( "." {_LABEL} ){{0,3}} "." [a-zA-Z]{{2,10}}',
    "hostname": f'{_LABEL} ( "." {_LABEL} ){{0,5}}',
    "ipv4": f'{_BYTE} "." {_BYTE} "." {_BYTE} "." {_BYTE}',
    "ipv6": '( [0-9a-fA-F]{1,4} ":" ){7} [0-9a-fA-F]{1,4}',
    "uri": f'( "https" | "http" ) "://" {_LABEL} ( "." {_LABEL} ){{1,5}} ( "/" [a-zA-Z0-9._~-]{{0,64}} ){{0,8}}',
}
_RULES: Mapping[str, str] = {
    "ws": r'( " " | "\n" [ \t]{0,8} )?',
    "char": class_of(PLAIN) + r' | "\\" ( ["\\/bfnrt] | "u" ( [0-9a-cA-CefEF] [0-9a-fA-F]{3} | [dD] [0-7] [0-9a-fA-F]{2} ) )',
    "string": r'"\"" char* "\""',
    "integer": '"-"? ( "0" | [1-9] [0-9]{0,14} )',
    "number": 'integer ( "." [0-9]{1,15} )? ( [eE] [+-]? [0-9]{1,2} )?',
    "boolean": '"true" | "false"',
    "null": '"null"',
    "object": r'"{" ws ( string ":" ws any ( "," ws string ":" ws any )* ws )? "}"',
    "array": '"[" ws ( any ( "," ws any )* ws )? "]"',
    "any": "object | array | string | number | boolean | null",
}


class MalformedSchema(ValueError):
    """What is no JSON schema; `place` names the part at fault."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


def object_grammar() -> str:
    """The grammar of any JSON object."""
    return _text({"root": "object"})


def schema_grammar(schema: Any, place: str) -> str:
    """The grammar of a schema. `place` is the name that whoever sent it has for it.

    Raises Unsupported, whose `parameter` is the place of a keyword that cannot be enforced, and MalformedSchema.
    """
    return grammar_of({"root": Schema(schema, place)}, "root")


class Schema:
    """A schema with the name that its sender has for it."""

    def __init__(self, schema: Any, place: str) -> None:
        """Raises MalformedSchema for one that is nested too deeply to be read, or has a number that JSON has not."""
        level = [schema]
        for _ in range(MOST_LEVELS):
            level = [
                inner
                for each in level
                for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            ]
        if level:
            raise MalformedSchema(place, f"has more than {MOST_LEVELS} levels")
        try:
            self.size = len(json.dumps(schema, allow_nan=False))
        except ValueError as error:
            raise MalformedSchema(place, "has a number that is not finite") from error
        self.schema, self.place = schema, place


def grammar_of(schemas: Mapping[str, Schema], root: str, rules: Mapping[str, str] | None = None) -> str:
    """A grammar in which the values of each schema are the rule of its name; `rules` are further ones, `root` the first of all.

    Raises as `schema_grammar` does.
    """
    found: dict[str, str] = {}
    for name, each in schemas.items():
        if each.size > MOST_SCHEMA_BYTES:
            raise Unsupported(f"{each.place}: a schema has at most {MOST_SCHEMA_BYTES} bytes here", parameter=each.place)
        try:
            found[name] = _Converter(each, found).value(each.schema, each.place)
            TopologicalSorter({rule: found.keys() & set(body.split(" | ")) for rule, body in found.items()}).prepare()
        except RecursionError as error:
            raise Unsupported(f"{each.place}: nested too deeply", parameter=each.place) from error
        except CycleError:
            _refuse(f"{each.place}.$ref", "refers to itself")
    return _text({"root": root, **found, **(rules or {})} if root != "root" else found)


def _text(rules: Mapping[str, str]) -> str:
    return "\n".join(f"{name} ::= {body}" for name, body in {**rules, **_RULES}.items())


class _Converter:
    """Turns one schema into rules. A schema that occurs again, also within itself, is the rule that it already has."""

    def __init__(self, root: Schema, rules: dict[str, str]) -> None:
        self._root, self._rules = root, rules
        self._names: dict[str, str] = {}

    def value(self, schema: Any, place: str) -> str:
        """The rule of the values that fit."""
        if schema is True or schema == {}:
            return "any"
        if schema is False:
            _refuse(place, "no value fits false")
        if not isinstance(schema, dict):
            raise MalformedSchema(place, "must be an object, true or false")
        key = json.dumps(schema)
        if key not in self._names:
            if len(self._rules) > MOST_RULES:
                _refuse(self._root.place, "has too many parts")
            self._names[key] = name = f"v{len(self._rules)}"
            self._rules[name] = ""
            body = self._body(schema, place)
            if body == name:
                _refuse(f"{place}.$ref", "refers to itself")
            self._rules[name] = body
        return self._names[key]

    def _body(self, schema: dict[str, Any], place: str) -> str:
        for word in schema:
            is_idle = (word == "uniqueItems" and schema[word] is False) or (word == "$id" and schema is self._root.schema)
            if word in _NOT_HELD and not is_idle:
                _refuse(f"{place}.{word}", "cannot be enforced while a local model writes")
        rest = {word: held for word, held in schema.items() if word in _HELD}
        if "$ref" in rest:
            reference = rest.pop("$ref")
            target = self._target(reference, f"{place}.$ref")
            return self.value(self._merged([target, rest], place) if rest else target, place)
        if "allOf" in rest:
            return self.value(self._merged([rest, *_schemas(rest.pop("allOf"), f"{place}.allOf")], place), place)
        for word in ("anyOf", "oneOf"):
            if word in rest:
                return self._alternatives(word, rest, place)
        if "const" in rest or "enum" in rest:
            return self._values(rest, place)
        types = _types(rest, place)
        return " | ".join(self._typed(kind, rest, place) for kind in types)

    def _alternatives(self, word: str, rest: dict[str, Any], place: str) -> str:
        branches = _schemas(rest.pop(word), f"{place}.{word}")
        if word == "oneOf":
            plain = [self._merged([branch], place) for branch in branches]
            for index, one in enumerate(plain):
                if any(_may_overlap(one, other) for other in plain[:index]):
                    _refuse(f"{place}.oneOf", "two of these may fit one value; use anyOf, or a const that distinguishes them")
        wanted = [self._merged([rest, branch], place) if rest else branch for branch in branches if branch is not False]
        return " | ".join(self.value(each, f"{place}.{word}[{index}]") for index, each in enumerate(wanted))

    def _values(self, rest: dict[str, Any], place: str) -> str:
        word = "const" if "const" in rest else "enum"
        values = [rest["const"]] if word == "const" else rest["enum"]
        if not isinstance(values, list) or not values:
            raise MalformedSchema(f"{place}.enum", "must be a list of at least one value")
        if other := next((name for name in rest if name not in ("const", "enum", "type")), ""):
            _refuse(f"{place}.{other}", f"cannot be enforced together with {word}")
        if word == "const" and "enum" in rest:
            values = [each for each in values if each in rest["enum"]]
        if "type" in rest:
            kinds = _types(rest, place)
            values = [each for each in values if any(_is_of(kind, each) for kind in kinds)]
        if not values:
            _refuse(f"{place}.{word}", "no value of it fits the rest")
        return " | ".join(literal(json.dumps(each, ensure_ascii=False)) for each in values)

    def _typed(self, kind: str, schema: dict[str, Any], place: str) -> str:
        if kind == "object":
            return self._object(schema, place)
        if kind == "array":
            return self._array(schema, place)
        if kind == "string":
            return self._string(schema, place)
        if kind in ("number", "integer"):
            return _number(schema, place, whole=kind == "integer")
        return kind

    def _string(self, schema: dict[str, Any], place: str) -> str:
        least, most = _size(schema, "minLength", place) or 0, _size(schema, "maxLength", place)
        form = schema.get("format", "")
        if form in _FORMATS or form in _ASSERTED:
            if other := next((word for word in ("pattern", "minLength", "maxLength") if word in schema), ""):
                _refuse(f"{place}.{other}", "cannot be enforced together with format")
            if form not in _FORMATS:
                _refuse(f"{place}.format", f"{form!r} cannot be enforced; only {', '.join(_FORMATS)}")
            return rf'"\"" {_FORMATS[form]} "\""'
        if "pattern" in schema:
            try:
                found = from_regex(str(schema["pattern"]))
            except ValueError as error:
                _refuse(f"{place}.pattern", str(error))
            if least > found.least or (most is not None and (found.most is None or found.most > most)):
                _refuse(
                    f"{place}.{'minLength' if least > found.least else 'maxLength'}",
                    "cannot be enforced together with this pattern",
                )
            return rf'"\"" {found.rule} "\""'
        if most is not None and least > most:
            _refuse(f"{place}.minLength", "is above maxLength")
        return rf'"\"" {repeated("char", least, most)} "\""' if least or most is not None else "string"

    def _array(self, schema: dict[str, Any], place: str) -> str:
        least, most = _size(schema, "minItems", place) or 0, _size(schema, "maxItems", place)
        items, first = schema.get("items", True), schema.get("prefixItems", [])
        if isinstance(items, list):  # as it was before 2020
            items, first = schema.get("additionalItems", True), items
        if not isinstance(first, list):
            raise MalformedSchema(f"{place}.prefixItems", "must be a list of schemas")
        listed = [self.value(each, f"{place}.prefixItems[{index}]") for index, each in enumerate(first[:most])]
        room = None if most is None else most - len(listed)
        if items is False or (first and "items" not in schema and least <= len(listed)):
            room = 0
        needed = max(0, least - len(listed))
        if room is not None and needed > room:
            _refuse(f"{place}.minItems", "there cannot be this many")
        if room == 0:
            return f'"[" ws {_joined(listed)} ws "]"' if listed else '"[" ws "]"'
        item = self.value(items, f"{place}.items")
        another = f'( "," ws {item} )'
        if listed:
            return f'"[" ws {_joined(listed)} {repeated(another, needed, room)} ws "]"'
        more = repeated(another, max(0, needed - 1), None if room is None else room - 1)
        return f'"[" ws {item} {more} ws "]"' if needed else f'"[" ws ( {item} {more} ws )? "]"'

    def _object(self, schema: dict[str, Any], place: str) -> str:
        named, required = schema.get("properties", {}), schema.get("required", [])
        if not isinstance(named, dict):
            raise MalformedSchema(f"{place}.properties", "must be an object")
        if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
            raise MalformedSchema(f"{place}.required", "must be a list of names")
        additional = schema.get("additionalProperties", "properties" not in schema and not required)
        unnamed = [name for name in required if name not in named]
        named = {**named, **{name: schema.get("additionalProperties", True) for name in unnamed}}
        if lost := next((name for name in required if named[name] is False), ""):
            _refuse(f"{place}.required", f"{lost[:40]!r} is not allowed")
        pairs = []
        for name, each in named.items():
            if each is not False:
                value = self.value(each, f"{place}.properties.{name}")
                pairs.append((f'{literal(json.dumps(name, ensure_ascii=False))} ":" ws {value}', name in required))
        self._check_counts(schema, place, len(set(required)), None if additional is not False else len(pairs))
        more = ""
        if additional is not False:
            value = self.value(additional, f"{place}.additionalProperties")
            more = f'{_other_key(named)} ":" ws {value}'
        return self._pairs(pairs, more)

    def _pairs(self, pairs: Sequence[tuple[str, bool]], more: str) -> str:
        """The object of these pairs in order, each with whether it must be there, and of any number of `more`."""
        rest = f'( "," ws {more} )* ws "}}"' if more else 'ws "}"'
        alternatives: list[str] = ['"}"', *([f"{more} {rest}"] if more else [])]
        for pair, needed in reversed(pairs):
            rule = f"v{len(self._rules)}"
            self._rules[rule] = f"{pair} {rest}"
            alternatives = [rule] if needed else [rule, *alternatives]
            rest = f'"," ws {rule}' if needed else f'( "," ws {rule} | {rest} )'
            if not needed:
                after = f"v{len(self._rules)}"
                self._rules[after], rest = rest, after
        return f'"{{" ws ( {" | ".join(alternatives)} )'

    def _check_counts(self, schema: dict[str, Any], place: str, fewest: int, most: int | None) -> None:
        least, bound = _size(schema, "minProperties", place), _size(schema, "maxProperties", place)
        if least is not None and least > fewest:
            _refuse(f"{place}.minProperties", "cannot be enforced above the number of required properties")
        if bound is not None and (most is None or bound < most):
            _refuse(f"{place}.maxProperties", "cannot be enforced below the number of properties")

    def _target(self, reference: Any, place: str) -> Any:
        if not isinstance(reference, str) or not (reference == "#" or reference.startswith("#/")):
            _refuse(place, "only refers to parts of the same schema (#/...)")
        found: Any = self._root.schema
        for step in reference[1:].split("/")[1:]:
            step = re.sub("%([0-9A-Fa-f]{2})", lambda code: chr(int(code[1], 16)), step).replace("~1", "/").replace("~0", "~")
            if isinstance(found, list) and step.isdecimal() and int(step) < len(found):
                found = found[int(step)]
            elif isinstance(found, dict) and step in found:
                found = found[step]
            else:
                raise MalformedSchema(place, f"{reference[:80]!r} is not there")
            if isinstance(found, dict) and isinstance(found.get("$id"), str):
                _refuse(place, "refers to a part with an $id of its own")
        return found

    def _merged(self, parts: Iterable[Any], place: str) -> Any:
        """One schema for what fits all of these."""
        plain: list[dict[str, Any]] = []
        waiting, seen = list(parts), set[str]()
        while waiting:
            part = waiting.pop(0)
            if part is False:
                return False
            if part is True:
                continue
            part = dict(part)
            if (reference := part.pop("$ref", None)) is not None:
                if reference in seen:
                    _refuse(f"{place}.$ref", "refers to itself")
                seen.add(reference)
                waiting.insert(0, self._target(reference, f"{place}.$ref"))
            waiting += _schemas(part.pop("allOf"), f"{place}.allOf") if "allOf" in part else []
            plain.append({word: held for word, held in part.items() if word in _HELD | _NOT_HELD})
        merged: dict[str, Any] = {}
        for part in plain:
            for word, held in part.items():
                merged[word] = _both(word, merged[word], held, place) if word in merged else held
        return _closed(merged, plain, place)


def _both(word: str, one: Any, other: Any, place: str) -> Any:
    """A keyword that two parts have."""
    if one == other:
        return one
    if word == "type":
        kinds = [kind for kind in _listed(one) if kind in _listed(other) or (kind == "integer" and "number" in _listed(other))]
        kinds += ["integer"] if "number" in _listed(one) and "integer" in _listed(other) and "integer" not in kinds else []
        return kinds or _refuse(f"{place}.type", "no type fits all of these")
    if word == "required":
        return [*one, *(name for name in other if name not in one)]
    if word == "properties":
        return {**one, **{name: {"allOf": [one[name], each]} if name in one else each for name, each in other.items()}}
    if word == "enum":
        return [each for each in one if each in other] or _refuse(f"{place}.enum", "no value fits all of these")
    if word in _LARGER | _SMALLER:
        return max(one, other) if word in _LARGER else min(one, other)
    return _refuse(f"{place}.{word}", "cannot be enforced twice for one value")


def _closed(merged: dict[str, Any], parts: Sequence[dict[str, Any]], place: str) -> dict[str, Any]:
    """The merged schema without the properties that a part's additionalProperties rules out."""
    for part in parts:
        others = merged.get("properties", {}).keys() - part.get("properties", {}).keys()
        additional = part.get("additionalProperties", True)
        if not others or additional is True:
            continue
        if additional is not False:
            _refuse(f"{place}.additionalProperties", "cannot be enforced together with properties of another part")
        kept = {name: each for name, each in merged["properties"].items() if name not in others}
        merged = {**merged, "properties": kept}
    return merged


def _may_overlap(one: Any, other: Any) -> bool:
    """Whether a value may fit both, as far as types, constants and a required constant property show."""
    if not isinstance(one, dict) or not isinstance(other, dict):
        return one is not False and other is not False
    kinds, others = _kinds(one), _kinds(other)
    if not kinds & others:
        return False
    constants = [_constants(each) for each in (one, other)]
    if all(each is not None for each in constants):
        return any(value in (constants[1] or ()) for value in constants[0] or ())
    if kinds & others == {"object"}:
        shared = set(one.get("required", [])) & set(other.get("required", []))
        for name in shared:
            values = [_constants(each.get("properties", {}).get(name)) for each in (one, other)]
            if all(each is not None for each in values) and not any(value in (values[1] or ()) for value in values[0] or ()):
                return False
    return True


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _kinds(schema: dict[str, Any]) -> set[str]:
    values = _constants(schema)
    if values is not None:
        return {kind for kind in _TYPES if any(_is_of(kind, value) for value in values)}
    return {"number" if kind == "integer" else kind for kind in _listed(schema.get("type", list(_TYPES)))}


def _types(schema: dict[str, Any], place: str) -> list[str]:
    """The types of a schema; where it names none, those that its keywords speak of, else all."""
    if "type" not in schema:
        return [kind for kind in _TYPES if schema.keys() & _OF_TYPE.get(kind, frozenset())] or list(_TYPES)
    kinds = _listed(schema["type"])
    if not kinds or any(kind not in (*_TYPES, "integer") for kind in kinds):
        raise MalformedSchema(f"{place}.type", f"must be one or several of {', '.join((*_TYPES, 'integer'))}")
    return [kind for kind in dict.fromkeys(kinds) if kind != "integer" or "number" not in kinds]


def _listed(kinds: Any) -> list[Any]:
    return kinds if isinstance(kinds, list) else [kinds]


def _schemas(value: Any, place: str) -> list[Any]:
    if not isinstance(value, list) or not value or not all(isinstance(each, dict | bool) for each in value):
        raise MalformedSchema(place, "must be a list of at least one schema")
    return value


def _size(schema: dict[str, Any], word: str, place: str) -> int | None:
    size = schema.get(word)
    if size is None:
        return None
    if isinstance(size, bool) or not isinstance(size, int | float) or size != int(size) or size < 0:
        raise MalformedSchema(f"{place}.{word}", "must be a whole number of at least 0")
    return int(size)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "null": lambda value: value is None,
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
    "integer": lambda value: isinstance(value, int | float) and not isinstance(value, bool) and value == int(value),
}


def _is_of(kind: str, value: Any) -> bool:
    return _CHECKS[kind](value)


def _joined(rules: Sequence[str]) -> str:
    return ' "," ws '.join(rules)


def _other_key(names: Iterable[str]) -> str:
    """A key that is none of these names. It has no escapes, so that it cannot spell one of them in another way."""
    tree: dict[str, Any] = {}
    for name in names:
        node = tree
        for letter in name:
            node = node.setdefault(letter, {})
        node[""] = {}

    def rest(node: dict[str, Any]) -> str:
        letters = [letter for letter in node if letter]
        others = f"{class_of(without(PLAIN, map(ord, letters)))} {class_of(PLAIN)}*"
        found = [rf'{others} "\""', *(f"{literal(letter)} {rest(node[letter])}" for letter in letters)]
        return f"( {' | '.join(found if '' in node else [literal(chr(34)), *found])} )"

    return rf'"\"" {rest(tree)}'


def _number(schema: dict[str, Any], place: str, *, whole: bool) -> str:
    """Numbers within bounds, digit by digit."""
    bounds: dict[str, Decimal] = {}
    for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
        if word in schema:
            bound = schema[word]
            if isinstance(bound, bool):
                _refuse(f"{place}.{word}", "must be a number (as since draft 6)")
            if not isinstance(bound, int | float):
                raise MalformedSchema(f"{place}.{word}", "must be a number")
            bounds[word] = Decimal(repr(bound))
    if not bounds:
        return "integer" if whole else "number"
    low, low_out = _tighter(bounds, "minimum", "exclusiveMinimum", max)
    high, high_out = _tighter(bounds, "maximum", "exclusiveMaximum", min)
    places = 0 if whole else max(0, *(-int(bound.normalize().as_tuple().exponent) for bound in bounds.values()))
    named = next(iter(bounds))
    if places > 9 or any(abs(bound).scaleb(places) >= 10**_EXACT_DIGITS for bound in bounds.values()):
        _refuse(f"{place}.{named}", f"bounds have at most {_EXACT_DIGITS} digits here")
    scaled_low = None if low is None else math.ceil(low.scaleb(places))
    scaled_high = None if high is None else math.floor(high.scaleb(places))
    if whole:
        scaled_low = scaled_low + 1 if scaled_low is not None and low_out and scaled_low == low else scaled_low
        scaled_high = scaled_high - 1 if scaled_high is not None and high_out and scaled_high == high else scaled_high
        low_out = high_out = False
    found = _above_zero(scaled_low, scaled_high, low_out, high_out, places, whole)
    mirrored = [None if bound is None else -bound for bound in (scaled_high, scaled_low)]
    if mirrored[1] is None or mirrored[1] > 0:  # below zero; zero itself is in the other half
        beyond = mirrored[0] is None or mirrored[0] <= 0
        start, out = (0, True) if beyond else (mirrored[0], high_out)
        if beyond and whole:
            start, out = 1, False
        found += [f'"-" {each}' for each in _above_zero(start, mirrored[1], out, low_out, places, whole)]
    if not found:
        _refuse(f"{place}.{named}", "no number lies within the bounds")
    return f"( {' | '.join(found)} )"


def _tighter(
    bounds: Mapping[str, Decimal], closed: str, open_end: str, pick: Callable[[Decimal, Decimal], Decimal]
) -> tuple[Decimal | None, bool]:
    """The bound that counts, and whether it is itself outside."""
    one, other = bounds.get(closed), bounds.get(open_end)
    if one is None or other is None:
        return (one, False) if other is None else (other, True)
    return (other, True) if pick(one, other) == other else (one, False)


def _above_zero(low: int | None, high: int | None, low_out: bool, high_out: bool, places: int, whole: bool) -> list[str]:
    """Alternatives for the numbers from max(low, 0) to high, both times 10^places; `*_out`: the bound itself is not one of them."""
    if low is None or low < 0:
        low, low_out = 0, False
    larger: list[str] = []
    if high is None:
        most = 10**_EXACT_DIGITS - 1
        high, high_out = most if whole or low >= _UNBOUNDED else _UNBOUNDED * 10**places, not whole
        larger = [] if whole or high == most else ["[1-9] [0-9]{9,14}"]
    if low > high or (low == high and (low_out or high_out)):
        return larger
    if whole:
        return [_digits(span, 0) for span in _spans(low, high, 1)]
    width, room = places + 1, _EXACT_DIGITS - len(str(high))
    fraction = ("[0-9]" + f"{{0,{room}}}" if places else f'( "." [0-9]{{1,{room}}} )?') if room > 0 else ""
    ends = [bound for bound, out in ((low, low_out), (high, high_out)) if not out]
    found = [_digits(span, places) for bound in dict.fromkeys(ends) for span in _spans(bound, bound, width)]
    if ends == [low, high] and low == high:
        return found
    if low < high and room > 3:  # above the lower bound by less than the next number
        point = '"." ' if not places else ""
        found += [f"{_digits(span, places)} {point}[0]{{0,2}} [1-9] [0-9]{{0,{room - 4}}}" for span in _spans(low, low, width)]
    if low + 1 < high:
        found += [f"{_digits(span, places)} {fraction}" for span in _spans(low + 1, high - 1, width)]
    return found + larger


def _spans(low: int, high: int, width: int) -> list[list[tuple[str, str]]]:
    """The numbers from low to high, of at least `width` digits, as lists of digits, each from one to another."""
    found: list[list[tuple[str, str]]] = []
    while low <= high:
        size = max(width, len(str(low)))
        end = min(high, 10**size - 1)
        found += _same_width(str(low).zfill(size), str(end).zfill(size))
        low = end + 1
    return found


def _same_width(low: str, high: str) -> list[list[tuple[str, str]]]:
    if not low or (set(low) == {"0"} and set(high) == {"9"}):
        return [[("0", "9")] * len(low)]
    if low[0] == high[0]:
        return [[(low[0], low[0]), *rest] for rest in _same_width(low[1:], high[1:])]
    size = len(low) - 1
    first, last = int(low[0]), int(high[0])
    found: list[list[tuple[str, str]]] = []
    if set(low[1:]) - {"0"}:
        found += [[(low[0], low[0]), *rest] for rest in _same_width(low[1:], "9" * size)]
        first += 1
    if set(high[1:]) - {"9"}:
        found += [[(high[0], high[0]), *rest] for rest in _same_width("0" * size, high[1:])]
        last -= 1
    return found + ([[(str(first), str(last)), *[("0", "9")] * size]] if first <= last else [])


def _digits(span: Sequence[tuple[str, str]], places: int) -> str:
    """A span with its decimal point."""
    shown = [f'"{low}"' if low == high else f"[{low}-{high}]" for low, high in span]
    return " ".join([*shown[:-places], '"."', *shown[-places:]] if places else shown)


def _refuse(place: str, message: str) -> NoReturn:
    raise Unsupported(f"{place}: {message}", parameter=place, hint="leave it out, or ask the model edge-cloud")

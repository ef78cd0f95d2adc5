"""JSON schemas as grammars of llguidance: every text of the grammar is JSON that fits the schema.

A schema is rewritten before llguidance reads it, so that its texts stay short and safe to read: properties come in the order of the schema,
an object has no others unless `additionalProperties` allows them, numbers have at most 15 digits before the point, 9 after it and no
exponent, 29 February is no date. The result may hold less than the schema allows, never more. What cannot be held is refused by the
keyword's name and place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

from llguidance import LLMatcher

from edge.core.errors import Unsupported

MOST_SCHEMA_BYTES, MOST_LEVELS, MOST_PARTS = 64 << 10, 100, 5_000
_OF_TYPE: Mapping[str, frozenset[str]] = {
    "object": frozenset(
        {"properties", "required", "additionalProperties", "patternProperties", "minProperties", "maxProperties"}
    ),
    "array": frozenset({"items", "prefixItems", "additionalItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
}
_JSON_TYPES = {dict: "object", list: "array", str: "string", int: "number", float: "number", bool: "boolean", type(None): "null"}
_ALTERNATIVES = ("anyOf", "oneOf")
_HELD = frozenset({"type", "const", "enum", "allOf", "$ref", *_ALTERNATIVES}).union(*_OF_TYPE.values())
_NOT_HELD = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "uniqueItems", "unevaluatedItems"),
        *("dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "unevaluatedProperties"),
        *("$dynamicRef", "$recursiveRef", "$id"),
    }
)
"""What restricts values in a way that llguidance does not follow, or what other words mean (`$id`, but for the whole schema's). Every other
word is an annotation."""
_ASSERTED = frozenset(
    {
        *("idn-email", "idn-hostname", "iri", "iri-reference", "json-pointer", "regex", "relative-json-pointer"),
        *("uri-reference", "uri-template"),
    }
)
"""Formats of the standard that are not held. Every other one that is not in _FORMATS is an annotation."""
_DIGITS, _PLACES = 15, 9
"""Decimal digits that a double holds, with no more a number stays on its side of a bound; and most of them after the point."""
_DATE = "[0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]{{1,6}})?(Z|[+-]{_CLOCK})"
_LABEL = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,30}[a-zA-Z0-9])?"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_FORMATS: Mapping[str, str] = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}T{_TIME}",
    "duration": "P([0-9]{1,4}D|([0-9]{1,4}D)?T[0-9]{1,4}[HMS])",
    "uuid": "[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": rf"[a-zA-Z0-9]{{1,16}}([._+-][a-zA-Z0-9]{{1,16}}){{0,2}}@{_LABEL}(\.{_LABEL}){{0,3}}\.[a-zA-Z]{{2,10}}",
    "hostname": rf"{_LABEL}(\.{_LABEL}){{0,5}}",
    "ipv4": rf"{_BYTE}(\.{_BYTE}){{3}}",
    "ipv6": "([0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}",
    "uri": rf"https?://{_LABEL}(\.{_LABEL}){{1,5}}(/[a-zA-Z0-9._~-]{{0,64}}){{0,8}}",
}
_SPACE = r"[ \t-\r]"
_NOT_STANDARD = re.compile(r"\[[^\]]*(\[|&&|--|~~)|\(\?[a-zA-Z^-]")
"""What llguidance takes in patterns, or takes otherwise than the standard."""
_NUMBER = {"type": "number", "minimum": 1 - 10**_DIGITS, "maximum": 10**_DIGITS - 1, "multipleOf": 10**-_PLACES}
_ANY_REF = {"$ref": "#/$defs/any"}
_ANY_OBJECT = {"type": "object", "additionalProperties": _ANY_REF}
_ANY = {"anyOf": [_ANY_OBJECT, {"type": "array", "items": _ANY_REF}, _NUMBER, {"type": ["string", "boolean", "null"]}]}
_OPTIONS = {"whitespace_pattern": r"( |\n[ \t]{0,8})?", "coerce_one_of": True}
"""`oneOf` is read as `anyOf`: only alternatives that exclude each other are let through."""


class MalformedSchema(ValueError):
    """What is no JSON schema; `place` names the part at fault."""

    def __init__(self, place: str, message: str) -> None:
        super().__init__(message)
        self.place = place


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


def object_grammar() -> str:
    """The grammar of any JSON object."""
    return schema_grammar({"type": "object"}, "")


def schema_grammar(schema: Any, place: str) -> str:
    """The grammar of a schema. `place` is the name that whoever sent it has for it.

    Raises Unsupported, whose `parameter` is the place of a keyword that cannot be enforced, and MalformedSchema.
    """
    return grammar_of({"root": Schema(schema, place)}, "root")


def grammar_of(schemas: Mapping[str, Schema], root: str, rules: Mapping[str, str] | None = None) -> str:
    """A grammar in which the values of each schema are the rule of its name; `rules` are further ones in llguidance's dialect of Lark,
    `root` what a text is. Raises as `schema_grammar` does.
    """
    found = {name: f"%json {_Rewriting(each).text()}" for name, each in schemas.items()}
    return _lark({"start": root, **found, **(rules or {})})


def literal(text: str) -> str:
    """A text in a rule."""
    return json.dumps(text, ensure_ascii=False)


def _lark(rules: Mapping[str, str]) -> str:
    return "\n".join(f"{name}: {body}" for name, body in rules.items())


class _Rewriting:
    """One schema in the words that llguidance follows. Parts that are referred to become definitions of their own."""

    def __init__(self, root: Schema) -> None:
        self._root, self._parts = root, 0
        self._definitions: dict[str, Any] = {"any": _ANY}
        self._named: dict[str, str] = {"#": "root"}
        self._same: dict[str, set[str]] = {}
        """Of each definition those whose values are its own values."""
        self._done: list[tuple[str, Any]] = []
        """Each part with its place, inner ones first."""

    def text(self) -> str:
        """The schema for llguidance. Raises Unsupported, MalformedSchema."""
        root, place = self._root, self._root.place
        if root.size > MOST_SCHEMA_BYTES:
            raise Unsupported(f"{place}: a schema has at most {MOST_SCHEMA_BYTES} bytes here", parameter=place)
        try:
            self._definitions["root"] = self._value(root.schema, place, "root")
            TopologicalSorter(self._same).prepare()
        except RecursionError as error:
            raise Unsupported(f"{place}: nested too deeply", parameter=place) from error
        except CycleError:
            _refuse(f"{place}.$ref", "refers to itself")
        if self._fault(self._definitions["root"]):
            self._name_the_fault()
        return self._shown({"$ref": "#/$defs/root"})

    def _shown(self, schema: Any) -> str:
        return json.dumps({**schema, "$defs": self._definitions, "x-guidance": _OPTIONS})

    def _fault(self, schema: Any) -> str:
        """What llguidance does not take in a schema."""
        if isinstance(schema, bool):
            return "" if schema else "no value fits false"
        message = str(LLMatcher.validate_grammar(_lark({"start": f"%json {self._shown(schema)}"})))
        return message.partition("JSON schema: ")[2].partition("\n   1 |")[0] or message

    def _name_the_fault(self) -> NoReturn:
        """Refuse by the innermost part that llguidance does not take, and its last word without which it would."""
        faults = ((place, schema, self._fault(schema)) for place, schema in self._done)
        place, schema, fault = next((each for each in faults if each[2]), (self._root.place, {}, "no value fits false"))
        lines = fault.splitlines()
        message = lines[-1].removeprefix("error: ") if lines[0].startswith("regex parse") else lines[0]
        words = [word for word in reversed(schema) if word != "type"]
        for gone in (*([word] for word in words), *(words[:count] for count in range(2, len(words)))):
            if not self._fault({word: held for word, held in schema.items() if word not in gone}):
                place = f"{place}.{gone[-1]}"
                break
        _refuse(place, message[:200])

    def _value(self, schema: Any, place: str, owner: str = "") -> Any:
        """What fits; `owner`: the definition whose values these are, "" where they are within one."""
        if schema is False:
            return False
        if schema is True or not schema:
            return _ANY_REF
        if not isinstance(schema, dict):
            raise MalformedSchema(place, "must be an object, true or false")
        parts = list(self._all_of(schema, place))
        open_parts = [self._part(part, place, owner, alone=len(parts) == 1) for part in parts]
        found = _rest(open_parts) if parts else _ANY_REF
        if len(parts) == 1:
            found = {**open_parts[0], **found}
        elif parts:
            found = {"allOf": [*open_parts, *([found] if found else [])]}
        self._done.append((place, found))
        return found

    def _all_of(self, schema: dict[str, Any], place: str, seen: frozenset[str] = frozenset()) -> Iterator[dict[str, Any]]:
        """What a value must fit all at once: the schema, what it refers to besides other words, and its allOf."""
        self._parts += 1
        if self._parts > MOST_PARTS:
            _refuse(self._root.place, "has too many parts")
        for word in schema:
            is_idle = (word == "uniqueItems" and schema[word] is False) or (word == "$id" and schema is self._root.schema)
            if word in _NOT_HELD and not is_idle:
                _refuse(f"{place}.{word}", "cannot be enforced while a local model writes")
        own = {word: held for word, held in schema.items() if word in _HELD}
        if own.keys() == {"$ref"} and not seen:
            yield own
            return
        reference, others = own.pop("$ref", None), own.pop("allOf", [])
        if own:
            yield own
        if reference is not None:
            if reference in seen:
                _refuse(f"{place}.$ref", "refers to itself")
            target = self._target(reference, f"{place}.$ref")
            others, seen = [target, *others], seen | {reference}
        for each in others:
            if each is False:
                _refuse(place, "no value fits false")
            if isinstance(each, dict):
                yield from self._all_of(each, place, seen | {""})

    def _part(self, part: dict[str, Any], place: str, owner: str, *, alone: bool) -> dict[str, Any]:
        """One part without what other parts have a say in."""
        if "$ref" in part:
            return {"$ref": self._reference(part["$ref"], f"{place}.$ref", owner)}
        found = {word: held for word, held in part.items() if word != "additionalItems"}
        self._check_exclusive(part.get("oneOf", []), f"{place}.oneOf")
        for word in _ALTERNATIVES:
            if word in part:
                inner = [(each, f"{place}.{word}[{index}]") for index, each in enumerate(part[word])]
                closed = alone and part.keys() <= {word, "type"}
                found[word] = [
                    self._value(each, where, owner) if closed else self._open(each, where, owner) for each, where in inner
                ]
        for word in ("properties", "patternProperties"):
            if word in part:
                found[word] = {name: self._value(each, f"{place}.{word}.{name}") for name, each in part[word].items()}
        for word in ("additionalProperties", "items"):
            if word in part and not isinstance(part[word], list):
                found[word] = self._value(part[word], f"{place}.{word}")
        if part.get("minProperties", 0) > max(1, len(set(part.get("required", [])))):  # a text may have a name twice
            _refuse(f"{place}.minProperties", "cannot be enforced above the number of required properties")
        names = {*part.get("properties", {}), *part.get("required", [])}
        has_others = part.get("additionalProperties", False) is not False or part.keys() & {*_ALTERNATIVES, "patternProperties"}
        if alone and not has_others and 0 < len(names) <= part.get("maxProperties", 0):
            del found["maxProperties"]  # llguidance does not count optional properties
        first = "items" if isinstance(part.get("items"), list) else "prefixItems"
        if first in part:
            found["prefixItems"] = [self._value(each, f"{place}.{first}[{index}]") for index, each in enumerate(part[first])]
            rest = part.get("additionalItems", True) if first == "items" else part.get("items", True)
            room = part.get("minItems", 0) > len(part[first])
            found["items"] = self._value(rest if rest is not True or room else False, f"{place}.items")
        elif "items" not in part and "array" in _kinds(part):
            found["items"] = _ANY_REF
        return self._string(_number(found, place), place)

    def _open(self, schema: Any, place: str, owner: str) -> Any:
        """An alternative that other words hold as well."""
        if isinstance(schema, bool):
            return schema
        return {"allOf": [self._part(part, place, owner, alone=False) for part in self._all_of(schema, place, frozenset({""}))]}

    def _check_exclusive(self, alternatives: Sequence[Any], place: str) -> None:
        """Refuse alternatives of which two may fit one value."""
        shapes = [
            [] if each is True else list(self._all_of(each, f"{place}[{index}]", frozenset({""})))
            for index, each in enumerate(alternatives)
            if each is not False
        ]
        for index, one in enumerate(shapes):
            if any(_may_overlap(one, other) for other in shapes[:index]):
                _refuse(place, "two of these may fit one value; use anyOf, or a const that distinguishes them")

    def _string(self, found: dict[str, Any], place: str) -> dict[str, Any]:
        if "pattern" in found:
            if _NOT_STANDARD.search(found["pattern"]):
                _refuse(f"{place}.pattern", "flags, and sets within sets, are not supported")
            found["pattern"] = re.sub(r"(?s)\\(.)", lambda code: _SPACE if code[1] == "s" else code[0], found["pattern"])
        form = found.pop("format", None)
        if form in _ASSERTED:
            _refuse(f"{place}.format", f"{form!r} cannot be enforced; only {', '.join(_FORMATS)}")
        if form not in _FORMATS:
            return found
        pattern = f"^({_FORMATS[form]})$"
        return {**found, "allOf": [{"pattern": pattern}]} if "pattern" in found else {**found, "pattern": pattern}

    def _reference(self, reference: Any, place: str, owner: str) -> str:
        target = self._target(reference, place)
        if reference not in self._named:
            self._named[reference] = name = f"d{len(self._named)}"
            self._definitions[name] = self._value(target, place, name)
        name = self._named[reference]
        if owner:
            self._same.setdefault(owner, set()).add(name)
        return f"#/$defs/{name}"

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


def _rest(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What parts leave open together: the types that their words speak of, and that an object has no other properties."""
    if len(parts) == 1 and parts[0].keys() & set(_ALTERNATIVES) and parts[0].keys() <= {*_ALTERNATIVES, "type"}:
        return {}  # each alternative is closed by itself
    every = [inner for part in parts for inner in _nested(part)]
    found: dict[str, Any] = {}
    if not any(part.keys() & {"type", "const", "enum", "$ref", *_ALTERNATIVES} for part in parts):
        found["type"] = [kind for kind, words in _OF_TYPE.items() if any(part.keys() & words for part in every)]
    if not any("object" in _kinds(part) for part in every):
        return found
    if any(part.keys() & {"additionalProperties", "patternProperties"} for part in every):
        return found
    own = parts[0].get("properties", {}) if len(parts) == 1 else {}
    named = {name: own.get(name, True) for part in every for name in part.get("properties", {})}
    named |= {name: _ANY_REF for part in every for name in part.get("required", []) if name not in named}
    has_names = any(part.keys() & {"properties", "required"} for part in every)
    return found | ({"properties": named, "additionalProperties": False} if has_names else {"additionalProperties": _ANY_REF})


def _nested(part: Any) -> Iterator[Mapping[str, Any]]:
    """A part, and what it holds the same values to."""
    if isinstance(part, dict):
        yield part
        for word in ("allOf", *_ALTERNATIVES):
            for each in part.get(word, []):
                yield from _nested(each)


def _may_overlap(one: Sequence[Mapping[str, Any]], other: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a value may fit all of these parts and those, as far as types, constants and a required constant property show."""
    types = set(_JSON_TYPES.values()).intersection(*(_types(part) for part in (*one, *other)))
    if not types or _differ(one, other):
        return False
    if types != {"object"}:
        return True
    required = [{name for part in parts for name in part.get("required", [])} for parts in (one, other)]
    return not any(_differ(_property(name, one), _property(name, other)) for name in required[0] & required[1])


def _property(name: str, parts: Sequence[Mapping[str, Any]]) -> list[Any]:
    return [part["properties"][name] for part in parts if name in part.get("properties", {})]


def _differ(schemas: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether constants show that no value fits all of these schemas and those."""
    constants = [[found for each in some if (found := _constants(each)) is not None] for some in (schemas, others)]
    return any(all(value not in theirs for value in ours) for ours in constants[0] for theirs in constants[1])


def _constants(schema: Any) -> list[Any] | None:
    if not isinstance(schema, dict):
        return None
    return [schema["const"]] if "const" in schema else schema.get("enum")


def _types(part: Mapping[str, Any]) -> set[str]:
    """The types that values may have."""
    if (constants := _constants(part)) is not None:
        return {_JSON_TYPES[type(value)] for value in constants}
    kinds = part.get("type", [*_JSON_TYPES.values()])
    return {"number" if kind == "integer" else kind for kind in (kinds if isinstance(kinds, list) else [kinds])}


def _number(found: dict[str, Any], place: str) -> dict[str, Any]:
    """Bounds as the smallest and largest number with few digits."""
    kinds = _kinds(found)
    if found.keys() & {"const", "enum"} or not {"number", "integer"} & set(kinds):
        return found
    bounds = {word: found.pop(word) for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum") if word in found}
    for word, bound in bounds.items():
        if isinstance(bound, bool):
            _refuse(f"{place}.{word}", "must be a number (as since draft 6)")
        if abs(bound) >= 10**_DIGITS:
            _refuse(f"{place}.{word}", f"bounds have at most {_DIGITS} digits here")
    whole = "number" not in kinds
    places = 0 if whole else min((_PLACES, *(_DIGITS - len(str(abs(int(bound)))) for bound in bounds.values())))
    scaled = {word: Decimal(repr(bound)).scaleb(places) for word, bound in bounds.items()}
    most = (10**_DIGITS - 1) * 10**places
    low, high = [-most], [most]
    low += [math.ceil(scaled["minimum"])] if "minimum" in scaled else []
    low += [math.floor(scaled["exclusiveMinimum"]) + 1] if "exclusiveMinimum" in scaled else []
    high += [math.floor(scaled["maximum"])] if "maximum" in scaled else []
    high += [math.ceil(scaled["exclusiveMaximum"]) - 1] if "exclusiveMaximum" in scaled else []
    if max(low) > min(high):
        _refuse(f"{place}.{next(iter(bounds))}", "no number lies within the bounds")
    least, largest = (bound // 10**places if bound % 10**places == 0 else bound / 10**places for bound in (max(low), min(high)))
    step = {} if whole else {"multipleOf": found.get("multipleOf", 10**-places)}
    return {**found, "minimum": least, "maximum": largest, **step}


def _kinds(part: Mapping[str, Any]) -> list[str]:
    """The types that a part is about."""
    kinds = part.get("type", [kind for kind, words in _OF_TYPE.items() if part.keys() & words])
    return kinds if isinstance(kinds, list) else [kinds]


def _refuse(place: str, message: str) -> NoReturn:
    raise Unsupported(f"{place}: {message}", parameter=place, hint="leave it out, or ask the model edge-cloud")

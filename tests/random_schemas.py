"""Random JSON schemas: of every kind that local answers can be constrained to, each with at least one valid value; and invalid ones."""

from __future__ import annotations

from random import Random
from typing import Any

FORMATS = ("date", "time", "date-time", "duration", "uuid", "email", "hostname", "ipv4", "ipv6", "uri")
PATTERNS = (
    r"^[A-Z]{2}-\d{3}$",
    r"^(yes|no)$",
    r"^[^\"\\]{1,6}$",
    r"a.b",
    r"^\s?\w+$",
    r"^(ab|c?){2,3}$",
    r'^"[\\/]$',
    r"^a|b$",
    r"^\D{2}\S$",
)
KEYWORDS = (
    *("type", "const", "enum", "anyOf", "oneOf", "allOf", "$ref", "$id", "$schema", "$defs", "examples", "format", "pattern"),
    *(
        "properties",
        "required",
        "additionalProperties",
        "minProperties",
        "maxProperties",
        "propertyNames",
        "unevaluatedProperties",
    ),
    *("items", "prefixItems", "additionalItems", "minItems", "maxItems", "contains", "uniqueItems", "unevaluatedItems"),
    *("minLength", "maxLength", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("not", "if", "then", "else", "minContains", "maxContains", "dependentRequired", "dependentSchemas", "patternProperties"),
)
VALUES: tuple[Any, ...] = (
    *(5, -1, 2.5, 1e300, 10**400, float("inf"), float("nan"), None, True, False, [], {}, [1], [{}], ["a"], ["a", "a"], {"a": 5}),
    *("a", "", "#", "#/enum", "#/examples/0", "#/$defs/a", "http://a/b", "(", "date", "path", "\ud800"),
    *("string", "integer", "object", "array", ["string", "null"], {"type": "string"}, {"required": 5}, {"type": [{}]}),
)
WORDS = ("name", "age", "a b", 'say "it"', "tag", "größe", "n", "back\\slash", "unit", "items")


def random_schema(random: Random, depth: int = 3, root: bool = True) -> dict[str, Any]:
    """A schema with small strings and arrays, so that answers stay short."""
    definitions = {"leaf": _leaf(random)}
    if root and random.random() < 0.2:
        tree = {
            "type": "object",
            "properties": {"v": _leaf(random), "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}},
        }
        definitions["tree"] = {**tree, "required": ["v"], "additionalProperties": False}
    found = _object(random, depth, definitions)
    return {"$defs": definitions, **found} if root else found


def with_a_false_keyword(random: Random, schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with the value false for one keyword of one of its parts."""
    parts, found = [schema], list[dict[str, Any]]()
    while parts:
        part = parts.pop()
        found += [part] if "type" in part else []
        inner = [*part.get("properties", {}).values(), part.get("items"), *part.get("prefixItems", [])]
        parts += [each for each in inner if isinstance(each, dict)]
    random.choice(found)[random.choice(KEYWORDS)] = False
    return schema


def what_is_hardly_a_schema(random: Random, depth: int = 3) -> Any:
    """Keywords with values of any kind."""
    if depth == 0 or random.random() < 0.25:
        return random.choice(VALUES)
    found: dict[str, Any] = {}
    for keyword in random.sample(KEYWORDS, random.randint(1, 4)):
        inner = [what_is_hardly_a_schema(random, depth - 1) for _ in range(random.randint(1, 3))]
        found[keyword] = random.choice([inner[0], inner[0], inner, {"a": inner[0]}])
    return found


def _any(random: Random, depth: int, definitions: dict[str, Any]) -> Any:
    if depth <= 0:
        return _leaf(random)
    choice = random.randrange(12)
    if choice < 3:
        return _leaf(random)
    if choice < 6:
        return _object(random, depth, definitions)
    if choice < 8:
        return _array(random, depth, definitions)
    if choice == 8:
        return {"anyOf": [_any(random, depth - 1, definitions) for _ in range(random.randint(1, 3))], "title": "one of these"}
    if choice == 9:
        return {"$ref": f"#/$defs/{random.choice(list(definitions))}", "description": "elsewhere"}
    if choice == 10:
        parts = [{"type": "object", "properties": {name: _leaf(random)}, "required": [name]} for name in random.sample(WORDS, 2)]
        return {"allOf": parts, "properties": {"own": _leaf(random)}}
    kinds = {
        kind: {"type": "object", "properties": {"kind": {"const": kind}, kind: _leaf(random)}, "required": ["kind", kind]}
        for kind in ("cat", "dog")
    }
    return {"oneOf": [*kinds.values(), {"type": "null"}]}


def _object(random: Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    names = random.sample(WORDS, random.randint(1, 4))
    schema: dict[str, Any] = {"type": "object", "properties": {name: _any(random, depth - 1, definitions) for name in names}}
    if random.random() < 0.8:
        schema["required"] = random.sample(names, random.randint(1, len(names))) + (["extra"] if random.random() < 0.1 else [])
    more = random.random()
    if more < 0.3 and "extra" not in schema.get("required", []):
        schema["additionalProperties"] = False
    elif more < 0.4:
        schema["additionalProperties"] = {"type": "integer", "minimum": 0}
    return schema


def _array(random: Random, depth: int, definitions: dict[str, Any]) -> dict[str, Any]:
    if random.random() < 0.2:
        first = [_any(random, depth - 1, definitions) for _ in range(random.randint(1, 3))]
        return {"type": "array", "prefixItems": first, "items": False, "minItems": len(first)}
    least = random.randint(0, 2)
    bounds = {"minItems": least} if random.random() < 0.5 else {}
    return {"type": "array", "items": _any(random, depth - 1, definitions), **bounds, "maxItems": least + random.randint(0, 2)}


def _leaf(random: Random) -> dict[str, Any]:
    choice = random.randrange(10)
    if choice == 0:
        least = random.randint(0, 4)
        return {"type": "string", "minLength": least, "maxLength": least + random.randint(0, 8)}
    if choice == 1:
        return {"type": "string", "pattern": random.choice(PATTERNS)}
    if choice == 2:
        return {"type": "string", "format": random.choice(FORMATS)}
    if choice == 3:
        return {"enum": random.sample(["red", 'a "b"', 3, 2.5, None, True, [1, {"x": "\n"}], "grün"], random.randint(1, 5))}
    if choice == 4:
        return {"const": random.choice(["x\\y", 7, False, {"a": [None]}])}
    if choice == 5:
        return {"type": random.choice(["boolean", "null", "integer"])}
    if choice == 6:
        return {"type": ["string", "null"], "maxLength": random.randint(0, 12)}
    bounds: dict[str, Any] = {}
    low = random.choice([-1000, -7, -0.5, 0, 0.25, 3, 99, 1234.5])
    if random.random() < 0.7:
        bounds[random.choice(["minimum", "exclusiveMinimum"])] = low
    if random.random() < 0.7:
        bounds[random.choice(["maximum", "exclusiveMaximum"])] = low + random.choice([1.5, 2, 9, 10, 1000, 12345.75])
    return {"type": random.choice(["number", "number", "integer"]), **bounds}

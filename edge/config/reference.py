"""The reference of a configuration: every key with its type, range, default and description, read from the schema itself; and a
file to begin with, of the keys that people set first.

NAME in a path means a name of one's own choice, `[]` for any element of a list.
"""

from __future__ import annotations

import difflib
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

from edge.core.errors import UsageError

ANY_NAME, ANY_ELEMENT = "NAME", "[]"
WIDTH = 100
INDENT = "    "
MOST_NEAR = 3
_BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum", "minLength", "maxLength")
_WORDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "date": "date",
    "date-time": "date and time",
    "object": "section of any keys",
}
_PLURALS = {"text": "texts", "section": "sections", "list of sections": "lists of sections"}

Node = Mapping[str, Any]
Row = tuple[str, Any, str]
"""A set key, its value, and where that came from."""


@dataclass(frozen=True, slots=True)
class Key:
    """One key, or a section of them. `bounds` are named as in JSON Schema; `about` is what holds for several keys of a section
    together: its docstring after the first paragraph.
    """

    path: str
    type: str
    nullable: bool
    choices: tuple[str, ...]
    bounds: Mapping[str, float]
    required: bool
    default: Any
    description: str
    about: str = ""

    @property
    def is_section(self) -> bool:
        """Whether it is one section, which is only there or not."""
        return self.type == "section"

    @property
    def has_keys(self) -> bool:
        """Whether it is a section or several, whose keys follow."""
        return "section" in self.type

    @property
    def name(self) -> str:
        """How it is called in its section."""
        return self.path.rpartition(".")[2]

    @property
    def parent(self) -> str:
        """The path of the section it is in; "" at the top."""
        return self.path.rpartition(".")[0]

    def to_json(self) -> dict[str, Any]:
        """For machines; a section's own default is that of its keys, and is left out."""
        rest = {} if self.required or (self.is_section and not self.nullable) else {"default": self.default}
        return {
            "key": self.path,
            "type": self.type,
            "nullable": self.nullable,
            **({"choices": list(self.choices)} if self.choices else {}),
            **self.bounds,
            "required": self.required,
            **rest,
            "description": self.description,
            **({"about": self.about} if self.about else {}),
        }


def keys_of(schema: type[BaseModel]) -> tuple[Key, ...]:
    """Every key of a configuration in the schema's order, each section before its keys."""
    document = schema.model_json_schema()
    return tuple(_keys(document, document.get("$defs", {}), ""))


def keys_under(keys: Sequence[Key], prefix: str) -> tuple[Key, ...]:
    """The keys that a prefix names: a section and what is in it, or where there is none, names of one section that begin alike.

    Names of one's own and element numbers may be written as they are (`upstreams.big.prices.0`). Raises UsageError, with names near it.
    """
    wanted = _parts(prefix)
    found = tuple(key for key in keys if _agree(_parts(key.path), wanted))
    if not found:
        *above, last = wanted or ("",)
        same_depth = ((key, _parts(key.path)) for key in keys if len(_parts(key.path)) == len(wanted))
        found = tuple(key for key, path in same_depth if _agree(path, above) and path[-1].startswith(last))
    if not found:
        raise UsageError(f"there is no key {prefix}", hint=_near_text(keys, prefix))
    return found


def rows_under(rows: Sequence[Row], keys: Sequence[Key], prefix: str) -> list[Row]:
    """The set keys that a prefix names, as `keys_under` takes it. Raises UsageError for one that names none of the `keys`."""
    under = [row for row in rows if not prefix or row[0] == prefix or row[0].startswith(f"{prefix}.")]
    if under:
        return under
    named = keys_under(keys, prefix)
    return [row for row in rows if any(_agree(_parts(key.path), _parts(row[0])) for key in named)]


def keys_beside(schema: type[BaseModel], path: Sequence[object]) -> list[Key]:
    """The keys of the section that a path of a configuration lies in, as (upstreams, big, prices, 0, in_uusd_per_mtok)."""
    section = tuple(map(str, path))[:-1]
    at_depth = ((key, _parts(key.path)) for key in keys_of(schema))
    return [key for key, parts in at_depth if len(parts) == len(path) and _agree(parts, section)]


def keys_below(schema: type[BaseModel], path: Sequence[object]) -> list[str]:
    """The paths of the keys that have the name of `path`, in the sections below the one that it lies in."""
    *section, name = map(str, path)
    return [key.path for key in keys_of(schema) if key.name == name and _agree(_parts(key.path), section)]


def text_of(keys: Sequence[Key]) -> str:
    """The keys for people, at most WIDTH columns wide; what holds for several sections alike is printed at the first."""
    shown, lines = set[str](), list[str]()
    before: Key | None = None
    for key in keys:
        # An empty line where a section begins, or has ended.
        if before is not None and (key.has_keys or (key.parent != before.parent and not before.has_keys)):
            lines.append("")
        lines += textwrap.wrap(f"{key.path}: {terms(key)}", WIDTH, subsequent_indent=INDENT, break_long_words=False)
        for paragraph in (key.description, *("" if key.about in shown else key.about).split("\n\n")):
            lines += textwrap.wrap(" ".join(paragraph.split()), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT)
        shown.add(key.about)
        before = key
    return "\n".join(lines)


def _keys(section: Node, definitions: Node, path: str) -> Iterator[Key]:
    required = section.get("required", ())
    for name, raw in section["properties"].items():
        here = f"{path}.{name}" if path else name
        node, nullable, about = _resolved(raw, definitions)
        summary, _, about = about.partition("\n\n")
        yield Key(
            path=here,
            type=_type(node, definitions),
            nullable=nullable,
            choices=_choices(node),
            bounds={bound: node[bound] for bound in _BOUNDS if bound in node},
            required=name in required,
            default=raw.get("default"),
            description=raw.get("description", summary),
            about=about,
        )
        yield from _keys_below(node, definitions, here)


def _keys_below(node: Node, definitions: Node, path: str) -> Iterator[Key]:
    if "properties" in node:
        yield from _keys(node, definitions, path)
    elif isinstance(element := node.get("additionalProperties"), Mapping):
        yield from _keys_below(_resolved(element, definitions)[0], definitions, f"{path}.{ANY_NAME}")
    elif "items" in node:
        yield from _keys_below(_resolved(node["items"], definitions)[0], definitions, path + ANY_ELEMENT)


def _resolved(raw: Node, definitions: Node) -> tuple[Node, bool, str]:
    """What a value is, whether it may be null as well, and what the docstring of its section, or of that of its elements."""
    others = [each for each in raw.get("anyOf", ()) if each.get("type") != "null"]
    node, nullable = others[0] if len(others) == 1 else raw, len(others) < len(raw.get("anyOf", ()))
    if "$ref" in node:
        node = definitions[node["$ref"].rpartition("/")[2]]
        return node, nullable, node.get("description", "")
    element = node.get("items") or node.get("additionalProperties")
    about = _resolved(element, definitions)[2] if isinstance(element, Mapping) else ""
    return node, nullable, about


def _type(node: Node, definitions: Node) -> str:
    if "properties" in node:
        return "section"
    if isinstance(element := node.get("additionalProperties"), Mapping):
        return f"{_plural(_type(_resolved(element, definitions)[0], definitions))} by name"
    if "items" in node:
        return f"list of {_plural(_type(_resolved(node['items'], definitions)[0], definitions))}"
    if _choices(node):
        return "choice"
    if "anyOf" in node:
        return " or ".join(_type(each, definitions) for each in node["anyOf"] if each.get("type") != "null")
    return f"list of {len(node['prefixItems'])} values" if "prefixItems" in node else _WORDS[node.get("format", node["type"])]


def _plural(words: str) -> str:
    return _PLURALS.get(words, f"{words}s")


def _choices(node: Node) -> tuple[str, ...]:
    if "items" in node:
        return _choices(node["items"])
    return tuple(map(str, node.get("enum", (node["const"],) if "const" in node else ())))


def terms(key: Key) -> str:
    """What a key may be set to, as `number, above 0, or null; default 60`."""
    choices = ", ".join(choice or '""' for choice in key.choices)
    kind = f"{'any' if key.type.startswith('list') else 'one'} of {choices}" if choices else key.type
    bounds = _bounds_text(key.bounds)
    kind += (f", {bounds}" if bounds else "") + ((", or null" if bounds or key.choices else " or null") if key.nullable else "")
    if key.required:
        return f"{kind}; required"
    return kind if key.is_section and not key.nullable else f"{kind}; default {_value_text(key.default)}"


def _bounds_text(bounds: Mapping[str, float]) -> str:
    if "minLength" in bounds or "maxLength" in bounds:
        if "maxLength" not in bounds:
            return "not empty" if bounds["minLength"] == 1 else f"at least {_number(bounds['minLength'])} characters"
        return f"{bounds.get('minLength', 0)} to {_number(bounds['maxLength'])} characters"
    if "minimum" in bounds and "maximum" in bounds:
        return f"{_number(bounds['minimum'])} to {_number(bounds['maximum'])}"
    words = {"minimum": "at least", "exclusiveMinimum": "above", "maximum": "at most", "exclusiveMaximum": "below"}
    return " and ".join(f"{word} {_number(bounds[name])}" for name, word in words.items() if name in bounds)


def _number(value: float) -> str:
    """Whole numbers without a point; a high power of two, or one less, as such."""
    if value != int(value):
        return str(value)
    for less in (0, 1):
        power = int(value) + less
        if power >= 2**31 and power & (power - 1) == 0:
            return f"2^{power.bit_length() - 1}" + ("-1" if less else "")
    return str(int(value))


def _value_text(value: Any) -> str:
    if isinstance(value, float):
        return _number(value)
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


def _parts(path: str) -> tuple[str, ...]:
    """`aliases.NAME[].weight` as (aliases, NAME, [], weight); elements are also written `.0` and `[0]`."""
    return tuple(ANY_ELEMENT if part.startswith("[") else part for part in re.findall(r"\[[^\]]*\]|[^.\[]+", path))


def _agree(path: Sequence[str], wanted: Sequence[str]) -> bool:
    """Whether a key's path is what is wanted, or below it."""
    return len(path) >= len(wanted) and all(
        part in (ANY_NAME, want) or (part == ANY_ELEMENT and want.isdigit()) for part, want in zip(path, wanted, strict=False)
    )


def _near_text(keys: Sequence[Key], prefix: str) -> str:
    """Keys that somebody who wrote `prefix` may have meant, or the sections there are."""
    paths = [key.path for key in keys]
    wanted = prefix.lower().strip(".")
    last = wanted.rpartition(".")[2]
    close = difflib.get_close_matches(last, {key.name for key in keys}, n=MOST_NEAR, cutoff=0.75)
    near = [
        *difflib.get_close_matches(wanted, paths, n=1, cutoff=0.85),
        *(key.path for name in close for key in keys if key.name == name),
    ]
    near = near or [key.path for key in keys if last and last in key.name]
    near = near or difflib.get_close_matches(wanted, paths, n=MOST_NEAR, cutoff=0.6)
    if near:
        return f"did you mean {' or '.join(list(dict.fromkeys(near))[:MOST_NEAR])}?"
    return f"sections: {', '.join(key.path for key in keys if key.has_keys and not key.parent)}"


FIRST_KEYS = (
    "mode",
    "state_folder",
    "model.path",
    "model.context_tokens",
    "engine.threads",
    "engine.gpu_layers",
    "learning.enabled",
    "learning.device",
    "coordinator.address",
    "coordinator.embedded.upstream",
    "coordinator.embedded.model",
    "coordinator.embedded.base_url",
    "coordinator.embedded.api_key",
    "serve.port",
    "serve.temperature",
    "serve.max_tokens",
    "budget.calls_limit",
    "budget.spend_limit_uusd",
    "budget.dial",
    "chat.history",
)
"""In the schema's order, so that each section appears once."""
_HEAD = """\
# Configuration of edge-agent: what people set first. Every value here is the default; what is left out keeps it, too.
# All keys: edge-agent config keys. Is it right: edge-agent config check FILE. Use it: edge-agent run --config FILE.
# Keys of cloud services do not belong in here: say where they lie, env:NAME or file:/PATH.
"""


def starter_text(keys: Sequence[Key]) -> str:
    """The file's text. Raises KeyError when one of the first keys is not among `keys`."""
    by_path = {key.path: key for key in keys}
    lines, before = list[str](), list[str]()
    for path in FIRST_KEYS:
        *sections, name = path.split(".")
        lines += [""] if not sections or sections[:1] != before[:1] else []
        for depth, section in enumerate(sections):
            if before[: depth + 1] != sections[: depth + 1]:
                indent = "  " * depth
                lines += _comment(by_path[".".join(sections[: depth + 1])].description, indent)
                lines.append(f"{indent}{section}:")
        key, indent = by_path[path], "  " * len(sections)
        lines += _comment(f"{key.description} ({terms(key)})", indent)
        # A text as it is where YAML reads it so, everything else as JSON, which YAML reads, too.
        is_plain = isinstance(key.default, str) and key.default.replace("-", "").replace("_", "").isalpha()
        lines.append(f"{indent}{name}: {key.default if is_plain else json.dumps(key.default, ensure_ascii=False)}")
        before = sections
    return _HEAD + "\n".join(lines) + "\n"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")

"""Loading a configuration in layers, with the origin of each value.

Defaults < device profile < file < `--set key=value` < flags: each layer is nested data with a name, later ones win key by key (lists
as a whole). The schema class is given, so that the agent and the coordinator share this module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from edge.config.reference import keys_below, keys_beside
from edge.config.yaml_lines import KeyPath, LinedData, load_yaml, parse_value
from edge.core.errors import ConfigError, UsageError
from edge.core.formatting import counted

ConfigT = TypeVar("ConfigT", bound=BaseModel)
DEFAULT_ORIGIN = "default"


class ValueAt(ValueError):
    """What a validator of a whole section raises about one value inside it: `path` below that section."""

    def __init__(self, path: KeyPath, message: str) -> None:
        super().__init__(message)
        self.path = path


class UnknownKey(ConfigError):
    """A key that the schema does not have; `section` is the section it is in, as `edge.config.reference` writes paths ("" at the top)."""

    def __init__(self, place: str, key: str, suggestion: str, section: str) -> None:
        super().__init__(f"{place}: unknown key {key}{suggestion}")
        self.place = place
        self.key = key
        self.section = section


class OptionError(UsageError, ConfigError):
    """A value that cannot be used and was given on the command line: wrong usage. The message starts with the option, as in
    `--set KEY`."""


def refusal(message: str, hint: str = "") -> ConfigError:
    """What to raise for a message that starts with the place of the value at fault: an OptionError where that is an option."""
    kind = OptionError if message.startswith("--") else ConfigError
    return kind(message, hint=hint)


@dataclass(frozen=True, slots=True)
class Flag:
    """A command-line option that sets one value: its dotted key, the value, and how it is written (`--target-rate`)."""

    key: str
    value: Any
    name: str


@dataclass(frozen=True, slots=True)
class Resolved(Generic[ConfigT]):
    """The configuration and where each value came from: dotted key -> `default`, `FILE:LINE`, `--set` or the flag's name."""

    config: ConfigT
    origins: Mapping[str, str]

    def rows(self) -> list[tuple[str, Any, str]]:
        """(dotted key, value, origin) of every leaf, in the schema's order; for `config show`."""
        data = self.config.model_dump(mode="json")
        return [(dotted(path), value, self._origin(path)) for path, value in leaves(data)]

    def placed(self, error: ConfigError) -> ConfigError:
        """The error with the place of the value in front, where its text begins with the dotted key of one that a layer has set.

        It is an OptionError for an option; not where the system refused, for which a port that is taken is no wrong usage.
        """
        path = tuple(str(error).partition(" ")[0].rstrip(":").split("."))
        origin = self._origin(path)
        if origin == DEFAULT_ORIGIN:
            return error
        text = f"{origin}: {error}"
        return ConfigError(text, hint=error.hint) if isinstance(error.__cause__, OSError) else refusal(text, error.hint)

    def to_yaml(self) -> str:
        """The resolved configuration as a YAML file that gives the same configuration again."""
        return yaml.safe_dump(self.config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)

    def _origin(self, path: KeyPath) -> str:
        above = (dotted(path[:length]) for length in range(len(path), 0, -1))
        return next((self.origins[key] for key in above if key in self.origins), DEFAULT_ORIGIN)


def resolve(
    schema: type[ConfigT],
    *,
    files: Sequence[Path] = (),
    sets: Sequence[str] = (),
    flags: Sequence[Flag] = (),
    example: str = "learning.group_size=8",
    keys_command: str = "",
) -> Resolved[ConfigT]:
    """Merge the layers and validate. `files` from the weakest (device profile) to the strongest; `sets` are `key=value` texts, and
    `example` is one that the schema knows. `keys_command` lists the keys of a section named after it, if there is such a command.

    Raises ConfigError with one line that starts with the place of the offending value; OptionError where that is an option.
    """
    merged = _Merged(schema)
    try:
        for layer in [load_yaml(path) for path in files]:
            for unknown in _unknown_keys(schema, layer):
                raise unknown
            merged.merge(layer.data, layer)
        for text in sets:
            merged.put(*_parse_set(text, example))
        for flag in flags:
            merged.put(flag.key, flag.value, flag.name)
        return merged.validated()
    except ConfigError as error:
        message = str(error)
        if isinstance(error, UnknownKey) and keys_command:
            command = f"{keys_command} {error.section.removesuffix('[]')}".rstrip()
            message += f"{' ' if message.endswith('?') else '; '}`{command}` describes what there is"
        raise refusal(message, error.hint) from error


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a configuration: where (`FILE:LINE`, an option, or "" where nobody set it), its dotted key, the line to show."""

    place: str
    key: str
    text: str

    @property
    def line(self) -> int | None:
        """The line in its file, from 1."""
        number = self.place.rpartition(":")[2]
        return int(number) if number.isdigit() else None


def problems(schema: type[BaseModel], *, files: Sequence[Path] = (), sets: Sequence[str] = ()) -> list[Problem]:
    """All that is wrong with the layers, in the order of their lines, where `resolve` raises for the first.

    Of a file that is no YAML only the first problem is found.
    """
    merged, found = _Merged(schema), list[Problem]()
    for path in files:
        try:
            layer = load_yaml(path)
        except ConfigError as error:
            found.append(problem_of(error, str(path)))
            continue
        found += [Problem(unknown.place, unknown.key, str(unknown)) for unknown in _unknown_keys(schema, layer)]
        merged.merge(layer.data, layer)
    for text in sets:
        try:
            merged.put(*_parse_set(text, text))
        except ConfigError as error:
            found.append(problem_of(error, ""))
    # Files before options, each by its lines.
    return sorted(
        dict.fromkeys([*found, *merged.problems()]),
        key=lambda problem: (problem.line is None, problem.place.rpartition(":")[0], problem.line or 0),
    )


def problem_of(error: ConfigError, name: str) -> Problem:
    """A problem that has its place in its words alone."""
    line = str(error).removeprefix(f"{name}:").partition(":")[0]
    return Problem(f"{name}:{line}" if line.isdigit() else name, "", str(error))


def dotted(path: KeyPath) -> str:
    """`phases.0.target_rate`"""
    return ".".join(str(part) for part in path)


def leaves(data: Any, path: KeyPath = ()) -> Iterator[tuple[KeyPath, Any]]:
    """Every value that is not a non-empty mapping or list of mappings, with its path."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from leaves(value, (*path, key))
    elif isinstance(data, (list, tuple)) and any(isinstance(value, Mapping) for value in data):
        for index, value in enumerate(data):
            yield from leaves(value, (*path, index))
    else:
        yield path, data


class _Merged(Generic[ConfigT]):
    """The growing configuration: nested data plus the origin of each path that a layer has set."""

    def __init__(self, schema: type[ConfigT]) -> None:
        self._schema = schema
        self._data: dict[str, Any] = schema.model_construct().model_dump(mode="json", warnings=False)
        self._origins: dict[KeyPath, str] = {}

    def merge(self, source: Mapping[str, Any], layer: LinedData, path: KeyPath = ()) -> None:
        """Put what the layer has below a path over what is there; its nested data becomes a part of the merged data."""
        target: Any = self._data
        for part in path:
            target = target[part]
        for key, value in source.items():
            here = (*path, key)
            if isinstance(value, Mapping) and isinstance(target.get(key), dict):
                self.merge(value, layer, here)
            else:
                target[key] = value
                self._note(here, layer.place(here))
                for inner, _ in leaves(value, here):
                    self._note(inner, layer.place(inner))

    def put(self, key: str, value: Any, origin: str) -> None:
        """Set one dotted key. List elements are addressed by number."""
        path = tuple(int(part) if part.isdecimal() else part for part in key.split("."))
        alone = value
        for part in reversed(path):  # a position in a list as a list of one, good enough to check names
            alone = [alone] if isinstance(part, int) else {part: alone}
        for unknown in _unknown_keys(self._schema, LinedData(origin, alone)):
            raise unknown
        target: Any = self._data
        for length, part in enumerate(path, 1):
            if isinstance(target, list) and (not isinstance(part, int) or part >= len(target)):
                there = f"there are {len(target)} elements, counted from 0"
                raise ConfigError(f"{origin}: {dotted(path[:length])} does not exist; {there}")
            if length == len(path):
                target[part] = value
                break
            if not isinstance(target, list) and not isinstance(target.get(part), (dict, list)):
                target[part] = {}
            target = target[part]
        self._note(path, origin)

    def validated(self) -> Resolved[ConfigT]:
        try:
            config = self._schema.model_validate(self._data)
        except ValidationError as error:
            raise ConfigError(self._problem(error.errors(include_url=False)[0]).text) from error
        return Resolved(config, {dotted(path): origin for path, origin in self._origins.items()})

    def problems(self) -> list[Problem]:
        """What the schema finds wrong, unknown keys aside."""
        try:
            self._schema.model_validate(self._data)
        except ValidationError as error:
            return [self._problem(one) for one in error.errors(include_url=False) if one["type"] != "extra_forbidden"]
        return []

    def _note(self, path: KeyPath, origin: str) -> None:
        for known in [known for known in self._origins if known[: len(path)] == path]:
            del self._origins[known]
        self._origins[path] = origin

    def _problem(self, error: ErrorDetails) -> Problem:
        path = tuple(part for part in error["loc"] if not (isinstance(part, str) and "[" in part))
        cause = error.get("ctx", {}).get("error")
        at: KeyPath = (*path, *cause.path) if isinstance(cause, ValueAt) else path
        above = (at[:length] for length in range(len(at), 0, -1))
        below = (known for known in self._origins if known[: len(at)] == at)
        nearest = next((known for known in (*above, *below) if known in self._origins), None)
        place = "" if nearest is None else self._origins[nearest]
        wanted = next((key.type for key in keys_beside(self._schema, path) if key.name == path[-1]), "")
        complaint = _complaint(error, wanted)
        if place.startswith("--") and not place.startswith("--set") and self._origins.get(path) == place:
            return Problem(place, dotted(path), f"{place} {complaint}")  # an option sets its key
        text = f"{dotted(path)} {complaint}" if path else complaint
        return Problem(place, dotted(path), f"{place}: {text}" if place else text)


_SCALARS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "string": "text",
    "date": "a date, as 2026-01-31",
}
_UNREADABLE = frozenset({"type", "parsing", "parsing_size", "from_float", "from_datetime_parsing", "from_datetime_inexact"})
_SECTIONS = frozenset({"model_type", "dict_type", "mapping_type"})
_LISTS = frozenset({"tuple_type", "list_type"})


_COMPLAINTS = {
    "greater_than_equal": "must be at least {ge}, not {value!r}",
    "greater_than": "must be greater than {gt}, not {value!r}",
    "less_than_equal": "must be at most {le}, not {value!r}",
    "less_than": "must be less than {lt}, not {value!r}",
    "literal_error": "must be {expected}, not {value!r}",
    "enum": "must be {expected}, not {value!r}",
    "string_too_short": "must have a length of at least {min_length}, not {length}",
    "string_too_long": "must have a length of at most {max_length}, not {length}",
    "too_short": "must have at least {elements}, not {actual_length}",
    "string_pattern_mismatch": "must match {pattern}, not {value!r}",
    "missing": "is required",
    "value_error": "{error}",
}


def _complaint(error: ErrorDetails, wanted: str) -> str:
    """What is wrong with a value, to be printed after its key; `wanted` is its type in the reference's words."""
    kind, value, context = error["type"], error["input"], error.get("ctx", {})
    if kind in _COMPLAINTS:
        length, elements = len(value) if isinstance(value, str) else 0, counted(context.get("min_length", 0), "element")
        return _COMPLAINTS[kind].format(**context, value=value, length=length, elements=elements)
    scalar, _, trouble = kind.partition("_")
    if kind in _LISTS:
        expected = f"a {wanted}" if wanted.startswith("list") else "a list"
    elif kind in _SECTIONS:
        expected = wanted if wanted.endswith("by name") and " or " not in wanted else "a section of keys"
    elif scalar in _SCALARS and trouble in _UNREADABLE:
        expected = _SCALARS[scalar]
    else:
        expected = error["msg"].removeprefix("Input should be ")
    return f"must be {expected}, not {value!r}"


def _parse_set(text: str, example: str) -> tuple[str, Any, str]:
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise ConfigError(f"--set {text}: expected key=value, e.g. {example}")
    origin = f"--set {key.strip()}"
    return key.strip(), parse_value(value, origin), origin


def _unknown_keys(schema: type[BaseModel], layer: LinedData) -> list[UnknownKey]:
    """Every key of a layer that its section does not have, by their lines."""
    try:
        schema.model_validate(layer.data)
    except ValidationError as error:
        paths = [one["loc"] for one in error.errors(include_url=False) if one["type"] == "extra_forbidden"]
    else:
        return []
    found = []
    for path in sorted(paths, key=lambda path: layer.lines.get(path, 0)):
        known = keys_beside(schema, path)
        suggestion = _suggestion(str(path[-1]), [key.name for key in known], keys_below(schema, path))
        found.append(UnknownKey(layer.place(path), dotted(path), suggestion, known[0].parent))
    return found


def _suggestion(key: str, known: Sequence[str], below: Sequence[str]) -> str:
    """What may have been meant: the one key of this name in the sections `below`, or one of the `known` in the same section."""
    if len(below) == 1:
        return f"; did you mean {below[0]}?"
    squeezed = {name.replace("_", ""): name for name in known}
    near = difflib.get_close_matches(key.replace("_", "").replace("-", "").lower(), squeezed, n=1, cutoff=0.6)
    return f"; did you mean {squeezed[near[0]]}?" if near else f"; known: {', '.join(sorted(known))}"

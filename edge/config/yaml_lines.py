"""YAML with the line number of each value.

Rejects what silently loses data (duplicate keys, keys that are not text, several documents) and what no configuration needs but keeps a
reader busy without end: aliases, and files over MOST_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from edge.core.errors import ConfigError

KeyPath = tuple[str | int, ...]
MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LinedData:
    """Nested plain data, what it is called in messages, and the line (from 1) of each key path."""

    name: str
    data: dict[str, Any]
    lines: Mapping[KeyPath, int] = field(default_factory=dict)

    def place(self, path: KeyPath) -> str:
        """`file.yaml:12` of the path or its nearest known parent; just the name where no line is known."""
        above = (path[:length] for length in range(len(path), 0, -1))
        return next((f"{self.name}:{self.lines[known]}" for known in above if known in self.lines), self.name)


def load_yaml(path: Path) -> LinedData:
    """Read a mapping from a YAML file. Raises ConfigError (FILE:LINE: ...) when it cannot be read or is no mapping."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
        if len(content) > MOST_BYTES:
            raise ConfigError(f"{path}: larger than {MOST_BYTES >> 20} MiB, which no configuration is")
        text = content.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError(f"{path}: cannot read the configuration: {reason}") from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, name: str) -> LinedData:
    """Parse YAML text called `name`; an empty text is an empty mapping. Raises ConfigError."""
    try:
        loader = _Loader(text)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigError(f"{name}:{line}: a character that YAML does not allow (U+{ord(text[error.position]):04X})") from error
    try:
        node = loader.get_single_node()
        if node is None:
            return LinedData(name, {})
        reader = _Reader(loader, name)
        data = reader.read(node, ())
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        place = f"{name}:{mark.line + 1}" if mark else name
        if isinstance(error, yaml.composer.ComposerError):  # it is YAML, and not one that is taken
            raise ConfigError(f"{place}: {problem}") from error
        raise ConfigError(f"{place}: not valid YAML ({problem})", hint=_YAML_HINT) from error
    except RecursionError as error:
        raise ConfigError(f"{name}: nested too deeply") from error
    except (ValueError, OverflowError) as error:  # an escape that is no character
        raise ConfigError(f"{name}: {' '.join(str(error).split())}") from error
    finally:
        loader.dispose()  # type: ignore[no-untyped-call]
    if not isinstance(data, dict):
        raise ConfigError(f"{name}:1: expected `key: value` lines, found {type(data).__name__}")
    return LinedData(name, data, reader.lines)


def parse_value(text: str, name: str) -> Any:
    """One value written on a command line, read as YAML (`0.3`, `true`, `null`, `[q_proj, v_proj]`). Raises ConfigError."""
    return parse_yaml(f"value: {text}\n", name).data["value"]


_YAML_HINT = "check quotes, brackets and indentation up to there"


class _Loader(yaml.SafeLoader):
    """Rejects aliases: a few lines of them can expand to more values than there is memory."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """The next node. Raises ComposerError at an alias."""
        if self.check_event(yaml.AliasEvent):  # type: ignore[no-untyped-call]
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "an alias (*name); write the value out", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        return node


class _Reader:
    """Turns YAML nodes into plain data and notes the line of every path."""

    def __init__(self, loader: yaml.SafeLoader, name: str) -> None:
        self._loader = loader
        self._name = name
        self.lines: dict[KeyPath, int] = {}

    def read(self, node: yaml.Node, path: KeyPath) -> Any:
        """The node as plain data."""
        self.lines.setdefault(path, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._read_mapping(node, path)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, (*path, index)) for index, child in enumerate(node.value)]
        try:
            return self._loader.construct_object(node, deep=True)  # type: ignore[no-untyped-call]
        except (ValueError, OverflowError) as error:  # a date or number that is written like one but is none
            key, line = ".".join(map(str, path)), node.start_mark.line + 1
            raise ConfigError(f"{self._name}:{line}: {key} cannot be read: {' '.join(str(error).split())}") from error

    def _read_mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, Any]:
        mapping: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key, line = key_node.value, key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ConfigError(f"{self._name}:{line}: a key must be plain text")
            if key in mapping:
                raise ConfigError(f"{self._name}:{line}: key {'.'.join(map(str, (*path, key)))} is given twice")
            self.lines[(*path, key)] = line
            mapping[key] = self.read(value_node, (*path, key))
        return mapping

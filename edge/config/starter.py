"""A configuration file to begin with: the keys that people set first, each with its description, range and default.

Knows which keys those are; what it says of them is the reference's, read from the schema. Every value in it is the default.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from edge.config.reference import WIDTH, Key, terms

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
"""In the schema's order, so that each section stands once."""
_HEAD = """\
# Configuration of edge-agent: what people set first. Every value here is the default; what is left out keeps it, too.
# All keys: edge-agent config keys. Is it right: edge-agent config check FILE. Use it: edge-agent run --config FILE.
# Keys of cloud services do not belong in here: say where they lie, env:NAME or file:/PATH.
"""


def starter_text(keys: Sequence[Key]) -> str:
    """The file's text. Raises KeyError when one of the first keys is not among `keys`."""
    by_path = {key.path: key for key in keys}
    lines, open_sections = list[str](), list[str]()
    for path in FIRST_KEYS:
        *sections, name = path.split(".")
        lines += [""] if not sections or sections[:1] != open_sections[:1] else []
        lines += _headers(by_path, sections, open_sections)
        lines += _entry(by_path[path], name, "  " * len(sections))
        open_sections = sections
    return _HEAD + "\n".join(lines) + "\n"


def _headers(by_path: dict[str, Key], sections: Sequence[str], before: Sequence[str]) -> Iterator[str]:
    for depth, section in enumerate(sections):
        if list(before[: depth + 1]) != list(sections[: depth + 1]):
            indent = "  " * depth
            yield from _comment(by_path[".".join(sections[: depth + 1])].description, indent)
            yield f"{indent}{section}:"


def _entry(key: Key, name: str, indent: str) -> Iterator[str]:
    yield from _comment(f"{key.description} ({terms(key)})", indent)
    yield f"{indent}{name}: {_value(key.default)}"


def _comment(text: str, indent: str) -> list[str]:
    return textwrap.wrap(" ".join(text.split()), WIDTH, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")


def _value(default: Any) -> str:
    """A text as it is where YAML reads it so, everything else as JSON, which YAML reads, too."""
    plain = isinstance(default, str) and default.replace("-", "").replace("_", "").isalpha()
    return str(default) if plain else json.dumps(default, ensure_ascii=False)

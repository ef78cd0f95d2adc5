"""Lazy registries of implementations by role and name; nothing is imported until it is asked for.

Built-ins and third parties are resolved alike: a registry maps a name to "package.module:attribute", and packages add theirs through
entry points in the group "edge_agent.<role>".
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from importlib.metadata import entry_points
from typing import Any

from edge.core.errors import UsageError


def load(name: str) -> Any:
    """The object called "package.module:attribute"."""
    module, _, attribute = name.partition(":")
    return getattr(importlib.import_module(module), attribute)


class Registry:
    """Names of one role, e.g. `Registry("backend", {"llamacpp": "edge.inference.llamacpp:LlamaCppBackend"})`."""

    def __init__(self, role: str, builtin: Mapping[str, str]) -> None:
        self.role = role
        self._builtin = dict(builtin)

    def names(self) -> list[str]:
        """All known names, sorted."""
        return sorted({*self._builtin, *(point.name for point in self._entry_points())})

    def load(self, name: str) -> Any:
        """The object that a name refers to. Raises UsageError naming the known ones when there is none."""
        for point in self._entry_points():
            if point.name == name:
                return point.load()
        if name not in self._builtin:
            raise UsageError(f"unknown {self.role} {name!r}; known: {', '.join(self.names())}")
        return load(self._builtin[name])

    def _entry_points(self) -> Any:
        return entry_points(group=f"edge_agent.{self.role}")

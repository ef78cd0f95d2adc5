"""Command-line options that several commands share: the fields of one dataclass, given to a command by a decorator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, wraps
from typing import Any, TypeVar, get_type_hints

Result = TypeVar("Result")


@cache
def _hints(group: Any) -> Mapping[str, Any]:
    """The annotations of a group's fields; reading them takes a while, and every command has some."""
    return get_type_hints(group, include_extras=True)


def with_options(group: Any, names: Sequence[str]) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Give a command the options that these fields of the dataclass `group` describe. In its help they appear where its parameter
    `settings` is declared, and they reach the command there as one `group`."""
    hints, defaults = _hints(group), {field.name: field.default for field in fields(group)}
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=defaults[name], annotation=hints[name]) for name in names
    ]

    def decorate(command: Callable[..., Result]) -> Callable[..., Result]:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            own = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)]
            parameters += shared if parameter.name == "settings" else own

        @wraps(command)
        def called(**given: Any) -> Result:
            settings = group(**{parameter.name: given.pop(parameter.name) for parameter in shared})
            return command(settings=settings, **given)

        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        called.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return called

    return decorate


def keys_of_options(group: Any) -> dict[str, str]:
    """The configuration key that each option sets: what follows the option in the field's annotation."""
    hints = _hints(group)
    return {name: hint.__metadata__[1] for name, hint in hints.items() if len(getattr(hint, "__metadata__", ())) > 1}

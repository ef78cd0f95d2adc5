"""Resource limits of the process that sets them, and why a program failed, in words of our own."""

from __future__ import annotations

import builtins
import resource

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

ENDED = "the program ended before the tests did"
ENDED_EARLY = "the program ended while it was loaded"
MEMORY = "memory limit"
TIME = "time limit"
OUTPUT = "output limit"
THREADS = "too many threads"


def set_limits(limits: Mapping[str, int]) -> None:
    """Apply limits by the names of the resource module's constants, e.g. {"RLIMIT_AS": 2**29}. What a platform lacks is left out."""
    for name, value in limits.items():
        kind = getattr(resource, name, None)
        if kind is None:
            continue
        _, hard = resource.getrlimit(kind)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (ValueError, OSError):
            if name != "RLIMIT_AS":  # macOS refuses this one
                raise


def failure(error: BaseException) -> str:
    """The nearest built-in class of an exception, with the line of a syntax error: "ValueError", "SyntaxError 3"."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind is getattr(builtins, kind.__name__, None)]
    name = names[0] if names else "Exception"
    return f"{name} {error.lineno or 0}" if isinstance(error, SyntaxError) else name


def sentence(failed: object, when: str) -> str:
    """A sentence for what `failure` made, or for whatever a program sent in its place. "" for ""."""
    if failed == "":
        return ""
    name, _, line = failed.partition(" ") if isinstance(failed, str) else ("", "", "")
    if name in ("SyntaxError", "IndentationError", "TabError"):
        return (
            f"syntax error line {line}" if line.isascii() and line.isdigit() and line != "0" and len(line) < 9 else "syntax error"
        )
    if name == "MemoryError":
        return MEMORY
    return f"the program raised {name if exception_class(name) else 'an exception'} {when}"


def exception_class(name: str) -> type[BaseException] | None:
    """The built-in exception of this name, or None."""
    kind = getattr(builtins, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, BaseException) else None

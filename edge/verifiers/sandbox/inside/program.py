"""The program's side of a sandbox: runs the program and answers calls of its functions, its classes and their instances.

Nothing here is a safeguard: the program shares this interpreter and can change all of it. The safeguards are the sandbox around the
process and the judge, which believes nothing but the values it gets.
"""

from __future__ import annotations

import _operator
import builtins
import posix
import sys

from edge.verifiers.sandbox.inside.limits import failure, set_limits
from edge.verifiers.sandbox.inside.wire import (
    SHARED_MODULES,
    Ended,
    Unencodable,
    containers_in,
    decode,
    encode,
    framed,
    held_at,
    read_frame,
    write_all,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_O_RDWR = 2


def main() -> None:
    """Send the hello, read what to do from fd 0, and do it: answer calls, or run as a whole program on the rest of fd 0."""
    notes = _quiet_stderr()
    write_all(notes, b"hello\n")
    request = decode(read_frame(0, notes))
    set_limits(request["limits"])
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment] # what the missing `site` would have added
    if request["mode"] == "functions":
        posix.close(notes)
        _serve(request["source"])
    else:
        _run_whole(request["source"], notes)


def _quiet_stderr() -> int:
    """Move fd 2 aside and put nothing in its place."""
    aside = posix.dup(2)
    _silence(2)
    return aside


def _silence(fd: int) -> None:
    empty = posix.open("/dev/null", _O_RDWR)
    posix.dup2(empty, fd)
    posix.close(empty)


def _module(name: str) -> Any:
    module = type(sys)(name)
    sys.modules[name] = module
    return module


def _run_whole(source: str, notes: int) -> None:
    """Run the program as `__main__`. A note holds why it could not start or ended."""
    try:
        code = compile(source, "program.py", "exec", dont_inherit=True)
        exec(code, _module("__main__").__dict__)  # noqa: S102 - this is the place for it
    except BaseException as error:
        if not isinstance(error, SystemExit):
            write_all(notes, failure(error).encode("ascii", "replace") + b"\n")
        raise


def _serve(source: str) -> None:
    """Load the program, then answer one call after the other until the judge closes."""
    calls, replies = posix.dup(0), posix.dup(1)
    _silence(0)
    _silence(1)
    module = _module("program")
    try:
        exec(compile(source, "program.py", "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - this is the place for it
        loaded = ""
    except BaseException as error:
        loaded = failure(error)
    write_all(replies, framed(encode(("loaded", loaded))))
    while not loaded:
        try:
            token, kind, name, arguments, keywords = decode(read_frame(calls), lambda handle: _handed(module, handle))
        except Ended:
            return
        write_all(replies, framed(_answer(module, token, kind, name, arguments, keywords)))


_objects: list[Any] = []
"""What the tests hold a handle of: instances of the program's classes, and the classes."""
_MUTABLE = (list, dict, set, bytearray)
_OWN_NAMES, _LONGEST_ARGUMENTS = 8, 4096


def _answer(module: Any, token: Any, kind: str, name: str, arguments: Any, keywords: Any) -> bytes:
    """The reply to one request.

    `name`: look a name up. `call`, `run`: a function, whose value is wanted or not. `method`, `send`: likewise a method of the first
    argument. `build`: an instance of the first argument, a class. `do`: the operation of this name.
    """
    try:
        if kind == "name":
            return encode((token, *_look_up(module, name)), _mark)
        if kind == "do":
            return encode((token, *_done(name, arguments)), _mark)
        if kind == "build":
            return encode((token, "built", _built(arguments[0](*arguments[1:], **keywords))), _mark)
        if kind in ("method", "send"):
            target, *arguments = arguments
        containers = containers_in((*arguments, *keywords.values()))
        if kind in ("method", "send"):
            value = getattr(target, name)(*arguments, **keywords)
        else:
            value = _found(module, name)(*arguments, **keywords)
        if (value is None or kind in ("run", "send")) and any(type(one) in _MUTABLE for _, _, one in containers):
            return encode((token, "changed", (value, list(arguments), keywords, _in_place(containers))), _mark)
        return encode((token, "value", value), _mark)
    except Unencodable as error:
        return encode((token, "unencodable", str(error)))
    except BaseException as error:
        return encode((token, "raised", _raised(error)))


def _in_place(containers: list[tuple[int, Any, Any]]) -> list[int]:
    """The numbers of the containers that are still where they were before the call."""
    kept: set[int] = set()
    for number, (holder, place, one) in enumerate(containers):
        if holder < 0 or (holder in kept and held_at(containers[holder][2], place) is one):
            kept.add(number)
    return sorted(kept)


def _raised(error: BaseException) -> tuple[str, list[str], Any]:
    """The nearest built-in class, the names of the program's own classes before it, and the arguments where they are plain."""
    try:
        own, arguments = _own_names(type(error)), tuple(error.args)
        return failure(error), own, arguments if len(encode(arguments)) < _LONGEST_ARGUMENTS else None
    except BaseException:
        return failure(error), [], None


def _own_names(kind: type) -> list[str]:
    """The names of the program's own classes of an exception's class, the nearest first."""
    names = [str(one.__name__)[:100] for one in kind.__mro__ if _is_own(one)]
    return [name for name in names if name.isidentifier()][:_OWN_NAMES]


def _mark(value: Any) -> Any:
    """The handle of an instance of the program's classes, or of such a class; None for all that is not the program's own."""
    is_class = isinstance(value, type)
    if not _is_own(value if is_class else type(value)):
        return None
    _objects.append(value)
    return (len(_objects) - 1, "class" if is_class else "object")


def _is_own(kind: Any) -> bool:
    return getattr(kind, "__module__", "") == "program"


def _handed(module: Any, handle: list[Any]) -> Any:
    """What the tests hand over by its handle: an object by its number, a function of the program by its name."""
    return _objects[handle[0]] if isinstance(handle[0], int) else _found(module, handle[0])


def _built(value: Any) -> tuple[Any, ...]:
    """The number of a new instance; of one that is a plain value at the same time (a named tuple, say) also that value."""
    _objects.append(value)
    try:
        return len(_objects) - 1, encode(value)
    except Unencodable:
        return (len(_objects) - 1,)


def _done(name: str, arguments: Any) -> tuple[str, Any]:
    """One operation on objects. What can be called, and is no object of the program's own, is a method."""
    if name == "getattr":
        found = getattr(*arguments)
        return ("method", None) if callable(found) and _mark(found) is None else ("value", found)
    operation = _OPERATIONS.get(name) or getattr(_operator, name)
    return "value", operation(*arguments)


_OPERATIONS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (setattr, delattr, len, bool, hash, str, repr, list, next, isinstance, issubclass, format, int, float)
}


def _look_up(module: Any, name: str) -> tuple[str, Any]:
    """What a name of the program is: a function, a class, an exception, what it imported, a plain value, or nothing."""
    found = _found(module, name)
    if type(found) is type(sys) and found.__name__ in SHARED_MODULES:
        return "module", found.__name__
    for shared in SHARED_MODULES if found is not None else ():
        if shared in sys.modules and getattr(sys.modules[shared], name, None) is found:
            return "imported", shared
    if isinstance(found, type) and issubclass(found, BaseException) and _is_own(found):
        base = next(one.__name__ for one in found.__mro__ if one is getattr(builtins, one.__name__, None))
        return "exception", (base, _own_names(found))
    if isinstance(found, type) and _is_own(found):
        return "value", found
    if callable(found) and not _is_own(type(found)):
        return "function", None
    return ("missing", None) if found is None and not hasattr(module, name) else ("value", found)


def _found(module: Any, name: str) -> Any:
    """The module's own name, else the method of a fresh `Solution()`."""
    if hasattr(module, name):
        return getattr(module, name)
    solution = getattr(module, "Solution", None)
    return getattr(solution(), name) if isinstance(solution, type) and hasattr(solution, name) else None

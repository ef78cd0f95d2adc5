"""The program's side of a sandbox: runs the program and answers calls of its functions.

Nothing here is a safeguard: the program shares this interpreter and can change all of it. The safeguards are the sandbox around the
process and the judge, which believes nothing but the values it gets.
"""

from __future__ import annotations

import builtins
import posix
import sys

from edge.verifiers.sandbox.inside.limits import failure, set_limits
from edge.verifiers.sandbox.inside.wire import Ended, Unencodable, decode, encode, framed, read_frame, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_O_RDWR = 2


def main() -> None:
    """Say hello, read what to do from fd 0, and do it: answer calls, or run as a whole program on the rest of fd 0."""
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
            token, kind, name, arguments, keywords = decode(read_frame(calls))
        except Ended:
            return
        write_all(replies, framed(_answer(module, token, kind, name, arguments, keywords)))


def _answer(module: Any, token: Any, kind: str, name: str, arguments: Any, keywords: Any) -> bytes:
    try:
        if kind == "name":
            return encode((token, *_look_up(module, name)))
        return encode((token, "value", _found(module, name)(*arguments, **keywords)))
    except Unencodable as error:
        return encode((token, "unencodable", str(error)))
    except BaseException as error:
        return encode((token, "raised", failure(error)))


def _look_up(module: Any, name: str) -> tuple[str, Any]:
    """What a name of the program stands for: a function, a plain value, or nothing."""
    found = _found(module, name)
    if callable(found):
        return "function", None
    return ("missing", None) if found is None and not hasattr(module, name) else ("value", found)


def _found(module: Any, name: str) -> Any:
    """The module's own name, else the method of a fresh `Solution()`."""
    if hasattr(module, name):
        return getattr(module, name)
    solution = getattr(module, "Solution", None)
    return getattr(solution(), name) if isinstance(solution, type) and hasattr(solution, name) else None

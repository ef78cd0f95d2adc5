"""The judge's side: runs the tests, calls the program over a pipe, and gives the verdict.

The program is only ever a peer that returns plain values. Asserts, comparisons and the count of checks live here, in a process the
program cannot reach. Whatever goes wrong between the two is final: a test that catches the exception does not turn it into a pass.

A name that the tests use and do not define is looked up in this order: the tests' own preamble (functions with a body; a stub that is
only a docstring or `pass` is what the program was asked to write), Python's built-ins, the program. Arguments are sent as copies: what
the program does to them in place is not seen by the tests.
"""

from __future__ import annotations

import builtins
import posix
import sys

from edge.verifiers.sandbox.inside.limits import ENDED, ENDED_EARLY, MEMORY, exception_class, sentence, set_limits
from edge.verifiers.sandbox.inside.wire import BadFrame, Ended, Unencodable, decode, encode, framed, read_frame, write_all

TYPE_CHECKING = False
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from typing import Any

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast
_CHECKED, _CAUGHT = "__edge_checked__", "__edge_caught__"
_CALLS, _REPLIES = 1, 0
# Raised in a generator or a map(), these would end a loop over the tests early and quietly.
_NOT_PASSED_ON = ("StopIteration", "StopAsyncIteration")
_RAISED = "raised by the program"
_WITH_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "UnicodeDecodeError": ("utf-8", b"?", 0, 1, _RAISED),
    "UnicodeEncodeError": ("utf-8", "?", 0, 1, _RAISED),
    "UnicodeTranslateError": ("?", 0, 1, _RAISED),
    "ExceptionGroup": (_RAISED, [RuntimeError(_RAISED)]),
}


def main() -> None:
    """Read the tests from fd 0, say hello, judge, and write the verdict to what was fd 2.

    The hello lets the program's text go out to its sandbox: from then on the tests are in no channel any more.
    """
    verdicts = posix.dup(2)
    request = decode(read_frame(_REPLIES))
    write_all(verdicts, b"hello\n")
    set_limits(request["limits"])
    link = Link(posix.dup(_REPLIES), posix.dup(_CALLS))
    empty = posix.open("/dev/null", 2)
    for fd in (0, 1, 2):
        posix.dup2(empty, fd)
    verdict = judge(link, request)
    write_all(verdicts, framed(encode((request["nonce"], *verdict))))
    posix._exit(0)


class ProgramFailed(BaseException):
    """The program is gone or does not keep to the protocol; no test can catch it as an Exception."""


class Link:
    """The way to the program. `failed` is why it can no longer be used, or ""; once set it stays. `answered`: values that came."""

    def __init__(self, replies: int, calls: int) -> None:
        self._replies, self._calls = replies, calls
        self._number = 0
        self.failed = ""
        self.answered = 0
        self.raised: BaseException | None = None

    def load(self) -> str:
        """Wait until the program has loaded; why it has not, or ""."""
        try:
            word, failure = decode(read_frame(self._replies))
        except (Ended, BadFrame, ValueError, TypeError):
            self.failed = ENDED_EARLY
            return self.failed
        self.failed = sentence(failure if word == "loaded" else None, "while it was loaded")
        return self.failed

    def ask(
        self, kind: str, name: str, arguments: tuple[Any, ...] = (), keywords: dict[str, Any] | None = None
    ) -> tuple[str, Any]:
        """One request and its reply (word, content). Raises ProgramFailed, TypeError for an argument that cannot be handed over."""
        if self.failed:
            raise ProgramFailed
        self._number += 1
        token = f"{self._number}:{posix.urandom(8).hex()}"
        try:
            request = framed(encode((token, kind, name, arguments, keywords or {})))
        except Unencodable as error:
            raise TypeError(f"an argument cannot be handed over: {error}") from None
        try:
            write_all(self._calls, request)
            answered, word, content = decode(read_frame(self._replies))
        except Ended:
            raise self._fail(ENDED) from None
        except (BadFrame, ValueError, TypeError):
            raise self._fail("the program sent something that is no reply") from None
        if type(answered) is not str or answered != token:
            raise self._fail("the program replied to another call")
        return word, content

    def _fail(self, reason: str) -> ProgramFailed:
        self.failed = reason
        return ProgramFailed()

    def call(self, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """The value a function of the program returns; raises what it raised, as the nearest built-in exception."""
        word, content = self.ask("call", name, arguments, keywords)
        self.answered += 1
        if word == "value":
            return content
        if word == "raised" and type(content) is str:
            raise self._raised(content.partition(" ")[0])
        if word == "unencodable":
            self.raised = TypeError("the program returned what cannot be judged")
            raise self.raised
        raise self._fail("the program sent something that is no reply")

    def _raised(self, name: str) -> BaseException:
        if name == "SystemExit":
            return self._fail(ENDED)
        kind = exception_class(name)
        if kind is None or not issubclass(kind, Exception) or name in _NOT_PASSED_ON:
            kind = RuntimeError
        self.raised = kind(*_WITH_ARGUMENTS.get(name, (_RAISED,)))
        return self.raised


class RemoteFunction:
    """A function of the program, as the tests see it."""

    def __init__(self, link: Link, name: str) -> None:
        self._link, self.__name__ = link, name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it there."""
        return self._link.call(self.__name__, arguments, keywords)


class Names(dict):  # type: ignore[type-arg]
    """The globals of the tests: a name they do not define is the preamble's, a built-in, or the program's."""

    def __init__(self, link: Link, given: dict[str, Any]) -> None:
        super().__init__(given)
        self._link = link

    def __missing__(self, name: str) -> Any:
        """Look the name up in the program. Raises KeyError, which Python turns into NameError."""
        if hasattr(builtins, name) or (name.startswith("__") and name.endswith("__")):
            raise KeyError(name)
        word, content = self._link.ask("name", name)
        if word == "function":
            self[name] = RemoteFunction(self._link, name)
        elif word == "value":
            self[name] = content
            self._link.answered += 1
        else:
            raise KeyError(name)
        return self[name]


class Builtins(dict):  # type: ignore[type-arg]
    """The built-ins of the tests: the body of a class looks here, and not in `Names`, for a name that it does not find."""

    def __init__(self, names: Names) -> None:
        super().__init__(builtins.__dict__)
        self._names = names

    def __missing__(self, name: str) -> Any:
        """Look the name up in the program. Raises KeyError."""
        return self._names[name]


def judge(link: Link, request: dict[str, Any]) -> tuple[bool, str, int]:
    """(passed, reason, checks that held)."""
    checks = Checks(link)
    try:
        if link.load():
            return False, link.failed, 0
        run = _run_cases if request["form"] == "cases" else _run_tests
        reason = run(link, request, checks)
    except ProgramFailed:
        reason = link.failed
    except BaseException as error:
        reason = _reason(error, link, checks)
    reason = link.failed or reason or checks.complaint(link.answered)
    return not reason, reason, checks.held


class Checks:
    """How many checks held, of tests that have `asserts` places with one (none: they are counted as calls)."""

    def __init__(self, link: Link) -> None:
        self.held = 0
        self.asserts = 0
        self._link = link

    def caught(self) -> None:
        """One more, when what the tests have just caught is what the program raised."""
        raised = self._link.raised
        if raised is not None and raised is sys.exception():
            self.hold()

    def hold(self) -> None:
        """One more."""
        self.held += 1

    def complaint(self, answered: int) -> str:
        """What is missing for a pass, or ""."""
        if not self.asserts:
            self.held = answered
        if not answered:
            return "the tests never called the program"
        return "" if self.held else "no check was executed"


def _run_tests(link: Link, request: dict[str, Any], checks: Checks) -> str:
    """Execute the tests; "" when they come to their end."""
    try:
        tree = compile(request["tests"], "tests", "exec", _ONLY_AST, dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"the tests cannot be read: {type(error).__name__}"
    checks.asserts = _count_expected(tree) + _count_asserts(tree)
    names = Names(link, _preamble_names(request["preamble"]))
    names.update({"__name__": "tests", "__builtins__": Builtins(names), _CHECKED: checks.hold, _CAUGHT: checks.caught})
    if "random" in request["tests"]:
        import random

        random.seed(request["seed"])  # noqa: TID251 - the tests of a data set draw from the global generator
    exec(compile(tree, "tests", "exec", dont_inherit=True), names)  # noqa: S102 - this is the place for it
    return ""


def _count_asserts(tree: ast.AST) -> int:
    """Put a call that counts behind every assert; how many there are."""
    found = 0
    for block in list(_blocks(tree)):
        for index in range(len(block) - 1, -1, -1):
            if type(block[index]).__name__ == "Assert":
                block.insert(index + 1, _counting_call(block[index], _CHECKED))
                found += 1
    return found


def _count_expected(tree: ast.AST) -> int:
    """Put a call that counts into every handler of a `try` that fails unless its call raises; how many there are."""
    found = 0
    for block in list(_blocks(tree)):
        for node in block:
            if type(node).__name__ == "Try" and any(map(_always_fails, [*node.body, *node.orelse])):
                for handler in node.handlers:
                    if not any(type(child).__name__ == "Assert" for child in handler.body):  # which counts itself
                        handler.body.insert(0, _counting_call(handler, _CAUGHT))
                        found += 1
    return found


def _always_fails(node: Any) -> bool:
    """`assert False` and its like, or `raise`."""
    if type(node).__name__ != "Assert":
        return type(node).__name__ == "Raise"
    return type(node.test).__name__ == "Constant" and not node.test.value


def _blocks(node: ast.AST) -> Iterator[list[Any]]:
    """Every list of statements in a tree."""
    waiting = [node]
    while waiting:
        for field in waiting.pop().__dict__.values():
            items = field if isinstance(field, list) else [field]
            children = [item for item in items if hasattr(item, "_fields")]
            waiting.extend(children)
            if isinstance(field, list) and any(type(child).__name__ in ("Assert", "Try") for child in children):
                yield field


def _counting_call(node: Any, function: str) -> Any:
    place = {key: getattr(node, key) for key in ("lineno", "col_offset", "end_lineno", "end_col_offset")}
    import _ast

    name = _ast.Name(function, _ast.Load(), **place)
    return _ast.Expr(_ast.Call(name, [], [], **place), **place)


def _preamble_names(preamble: str) -> dict[str, Any]:
    """What the question itself gives, run here so that the program cannot change it; stubs are left to the program."""
    if not preamble.strip():
        return {}
    tree: Any = compile(preamble, "preamble", "exec", _ONLY_AST, dont_inherit=True)
    tree.body = [node for node in tree.body if not _is_stub(node)]
    names: dict[str, Any] = {"__name__": "preamble"}
    exec(compile(tree, "preamble", "exec", dont_inherit=True), names)  # noqa: S102 - this is the place for it
    return {name: value for name, value in names.items() if not name.startswith("__")}


def _is_stub(node: Any) -> bool:
    """A function or class with an empty body: docstring, `pass`, `...`, `raise NotImplementedError`."""
    kind = type(node).__name__
    if kind == "ClassDef":
        return node.name == "Solution" or all(_is_stub(child) or _is_empty(child) for child in node.body)
    return kind in ("FunctionDef", "AsyncFunctionDef") and all(map(_is_empty, node.body))


def _is_empty(node: Any) -> bool:
    kind = type(node).__name__
    return kind in ("Pass", "Raise") or (kind == "Expr" and type(node.value).__name__ == "Constant")


def _run_cases(link: Link, request: dict[str, Any], checks: Checks) -> str:
    """Call one function with each list of arguments; "" when every result is the expected one."""
    checks.asserts = len(request["cases"])
    function = RemoteFunction(link, request["function"])
    for arguments, expected in request["cases"]:
        if not _same(function(*arguments), expected):
            return f"tests failed: case {checks.held + 1}"
        checks.hold()
    return ""


def _same(found: Any, expected: Any) -> bool:
    """Equal as JSON sees values; an expected result may stand in a list of one."""
    found, expected = _as_json(found), _as_json(expected)
    return bool(found == expected or (type(expected) is list and len(expected) == 1 and found == expected[0]))


def _as_json(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _as_json(item) for key, item in value.items()}
    return value


def _reason(error: BaseException, link: Link, checks: Checks) -> str:
    """Why the tests did not come to their end."""
    number = checks.held + 1
    if error is link.raised:
        name = type(error).__name__
        return MEMORY if name == "MemoryError" else f"tests failed: the program raised {name} in assertion {number}"
    if isinstance(error, AssertionError):
        return f"tests failed: assertion {number}"
    return f"tests failed: the tests raised {type(error).__name__} in assertion {number}"

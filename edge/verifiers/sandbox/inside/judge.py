"""The judge's side: runs the tests, calls the program over a pipe, and gives the verdict.

The program is only ever a peer that returns plain values. Asserts, comparisons and the count of checks live here, in a process the
program cannot reach. Whatever goes wrong between the two is final: a test that catches the exception does not turn it into a pass.

A name that the tests use and do not define is looked up in this order: the tests' own preamble (functions with a body; a stub that is
only a docstring or `pass` is what the program was asked to write), Python's built-ins, the program. What the program has imported from the
standard library under this name, the tests import themselves.

Arguments are sent as copies. What the program did to them in place is copied back where a call is made for that: it is a statement of its
own, or returned None. Instances of the program's classes stay with the program, and the tests have handles of them. A handle is never
equal to a plain value, and what it reports of itself decides nothing that a plain value could not. How much the program learns about
plain values depends on where the handle comes from: what a function returned may take the place of a string or a list, so it is asked
about none; what the tests reached through an object or class that they name, about none by a method that plain values have
(`startswith`); what they built of a class, about all, except by comparisons.
"""

from __future__ import annotations

import builtins
import posix
import sys

from edge.verifiers.sandbox.inside.limits import ENDED, ENDED_EARLY, MEMORY, exception_class, sentence, set_limits
from edge.verifiers.sandbox.inside.wire import (
    SHARED_MODULES,
    BadFrame,
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
    import ast
    from collections.abc import Iterator
    from typing import Any

_ONLY_AST = 0x400  # ast.PyCF_ONLY_AST, without importing ast
_CHECKED, _CAUGHT, _ALONE = "__edge_checked__", "__edge_caught__", "__edge_alone__"
_CALLS, _REPLIES = 1, 0
# Raised in a generator or a map(), these would end a loop over the tests early and quietly.
_NOT_PASSED_ON = ("StopIteration", "StopAsyncIteration")
_RETURNED, _REACHED, _BUILT = range(3)
"""Where the tests have a handle from: a function's result; an object or class of a name, or what one of these gave; built by them of a
class that has a capital letter, so that operations with plain values are asked for and not smuggled in as the result of a function."""
_COMPARISONS = frozenset(f"__{name}__" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_OPERATIONS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or", "xor", "lshift", "rshift")
_BY_OPERATORS = _COMPARISONS.union(f"__{side}{name}__" for side in ("", "r") for name in _OPERATIONS)
"""What a test that names it means as a method: the handle's own may return NotImplemented, which is true."""
_WITHOUT_VALUE = {
    *("append", "extend", "insert", "remove", "reverse", "sort", "clear", "add", "discard", "update"),
    *("difference_update", "intersection_update", "symmetric_difference_update"),
}
_OF_PLAIN_VALUES = frozenset(
    name
    for kind in (str, bytes, bytearray, int, float, complex, list, tuple, dict, set, frozenset, range)
    for name in dir(kind)
    if name not in _WITHOUT_VALUE
)
"""Methods by which tests ask a plain value about another one."""
_RAISED = "raised by the program"
_WITH_ARGUMENTS: dict[str, tuple[Any, ...]] = {
    "UnicodeDecodeError": ("utf-8", b"?", 0, 1, _RAISED),
    "UnicodeEncodeError": ("utf-8", "?", 0, 1, _RAISED),
    "UnicodeTranslateError": ("?", 0, 1, _RAISED),
    "ExceptionGroup": (_RAISED, [RuntimeError(_RAISED)]),
}


def main() -> None:
    """Read the tests from fd 0, send the hello, judge, and write the verdict to what was fd 2.

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
        self.raised_name = ""
        self._exceptions: dict[str, type[BaseException]] = {}

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
        self,
        kind: str,
        name: str,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
        origin: int = _RETURNED,
    ) -> tuple[str, Any]:
        """One request and its reply (word, content), whose handles have this origin. Raises ProgramFailed, TypeError for an argument that
        cannot be handed over."""
        if self.failed:
            raise ProgramFailed
        self._number += 1
        token = f"{self._number}:{posix.urandom(8).hex()}"
        try:
            request = framed(encode((token, kind, name, arguments, keywords or {}), _handle_of, marks_first=True))
        except Unencodable as error:
            raise TypeError(f"an argument cannot be handed over: {error}") from None
        try:
            write_all(self._calls, request)
            answered, word, content = decode(read_frame(self._replies), lambda handle: self._remote(handle, origin))
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

    def check_asked(
        self, target: Remote, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any], *, is_alone: bool = False
    ) -> None:
        """Raises ProgramFailed where an object is asked about a plain value that its answer could decide about. `is_alone`: nobody wants
        the answer."""
        if all(isinstance(value, Remote | RemoteFunction) for value in (*arguments, *keywords.values())):
            return
        is_own = name not in _OF_PLAIN_VALUES and (is_alone or target._origin == _REACHED)
        if name in _COMPARISONS or not (is_own or target._origin == _BUILT):
            raise self._fail("the program returned an object where the tests ask about a plain value")

    def call(
        self,
        name: str,
        arguments: tuple[Any, ...],
        keywords: dict[str, Any],
        target: Remote | None = None,
        *,
        is_alone: bool = False,
    ) -> Any:
        """The value a function of the program returns, or a method of `target`; raises what it raised. What it did to its arguments in
        place is done here where the call is a statement of its own or returned None."""
        kind = (("call", "run") if target is None else ("method", "send"))[is_alone]
        origin = _RETURNED if target is None or name == "__call__" else min(target._origin, _REACHED)
        word, content = self.ask(kind, name, arguments if target is None else (target, *arguments), keywords, origin)
        if word == "changed" and type(content) is tuple and len(content) == 4:
            value, now, named, kept = content
            is_form = type(now) is list and len(now) == len(arguments) and type(named) is dict and type(kept) is list
            if is_form and named.keys() == keywords.keys():
                self.answered += 1
                _take_over((*arguments, *keywords.values()), (*now, *(named[key] for key in keywords)), kept)
                return value
        return self._value(word, content)

    def do(self, operation: str, *arguments: Any) -> Any:
        """The value of an operation on objects of the program; raises what it raised."""
        origins = [value._origin for value in arguments if isinstance(value, Remote)]
        return self._value(*self.ask("do", operation, arguments, origin=min(_REACHED, *origins)))

    def build(self, kind: RemoteClass, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        """A new instance."""
        word, content = self.ask("build", "", (kind, *arguments), keywords)
        if word != "built":
            return self._value(word, content)
        if type(content) is not tuple or not content or type(content[0]) is not int or len(content) > 2:
            raise self._fail("the program sent something that is no reply")
        self.answered += 1
        try:
            plain = tuple(decode(part) for part in content[1:])
        except (BadFrame, TypeError):
            raise self._fail("the program sent something that is no reply") from None
        return RemoteObject(self, content[0], kind._origin, plain)

    def attribute(self, target: Remote, name: str) -> Any:
        """An attribute of an object of the program; a method can be called."""
        word, content = self.ask("do", "getattr", (target, name), origin=min(_REACHED, target._origin))
        if word == "method":
            return RemoteFunction(self, name, target)
        return self._value(word, content)

    def exception(self, base: Any, names: Any) -> type[BaseException]:
        """The tests' side of an exception class of the program: its own classes by name, the nearest first, over a built-in one."""
        kind = exception_class(base.partition(" ")[0]) if type(base) is str else None
        if kind is None or type(names) is not list or not all(type(name) is str and name.isidentifier() for name in names):
            raise self._fail("the program sent something that is no reply")
        if not issubclass(kind, Exception) or kind.__name__ in _NOT_PASSED_ON:
            kind = RuntimeError
        for name in reversed(names):
            known = self._exceptions.get(name)
            kind = self._exceptions[name] = known if known is not None and issubclass(known, kind) else type(name, (kind,), {})
        return kind

    def _value(self, word: str, content: Any) -> Any:
        self.answered += 1
        if word == "value":
            return content
        if word == "raised" and type(content) is tuple and len(content) == 3:
            raise self._raised(*content)
        if word == "unencodable":
            self.raised, self.raised_name = TypeError("the program returned what cannot be judged"), "TypeError"
            raise self.raised
        raise self._fail("the program sent something that is no reply")

    def _raised(self, failure: Any, names: Any, arguments: Any) -> BaseException:
        name = failure.partition(" ")[0] if type(failure) is str else ""
        if name == "SystemExit":
            return self._fail(ENDED)
        kind = self.exception(name if exception_class(name) else "RuntimeError", names)
        given = _WITH_ARGUMENTS.get(name, arguments if type(arguments) is tuple else (_RAISED,))
        try:
            self.raised = kind(*given)
        except Exception:
            self.raised = kind(_RAISED)
        self.raised_name = next(one.__name__ for one in kind.__mro__ if one is exception_class(one.__name__))
        return self.raised

    def _remote(self, handle: list[Any], origin: int) -> Any:
        """What a handle that the program sent refers to here. Raises ValueError for what is none."""
        if len(handle) != 2 or type(handle[0]) is not int or handle[1] not in ("object", "class"):
            raise ValueError("no handle")
        return (RemoteClass if handle[1] == "class" else RemoteObject)(self, handle[0], origin)


def _take_over(arguments: tuple[Any, ...], now: tuple[Any, ...], kept: list[Any]) -> None:
    """Change plain containers, also those in others, to what the program made of its copies. `kept`: the numbers of those that are where
    they were; what was put elsewhere is taken over as a copy."""
    theirs: dict[int, Any] = {}
    inside: dict[int, dict[Any, Any]] = {}
    mine = containers_in(arguments)
    in_place = frozenset(number for number in kept if type(number) is int)
    for number, (holder, place, one) in enumerate(mine):
        if holder < 0:
            theirs[number] = now[place]
        elif number in in_place and holder in theirs and type(found := held_at(theirs[holder], place)) is type(one):
            theirs[number] = found
            inside.setdefault(holder, {})[place] = one
    for number in reversed(theirs):
        _, _, one = mine[number]
        _change(one, theirs[number], inside.get(number, {}))


def _change(mine: Any, theirs: Any, inside: dict[Any, Any]) -> None:
    """Change one plain container; what it holds `inside`, by index or key, stays the same object."""
    if type(mine) is not type(theirs) or type(mine) not in (list, dict, set, bytearray):
        return
    if isinstance(mine, list):
        mine[:] = [inside.get(place, value) for place, value in enumerate(theirs)]
    elif isinstance(mine, bytearray):
        mine[:] = theirs
    else:
        mine.clear()
        mine.update({key: inside.get(key, value) for key, value in theirs.items()} if isinstance(theirs, dict) else theirs)


class RemoteFunction:
    """A function of the program as the tests see it, or a method of an object of the program. `is_alone`: nobody wants its value."""

    def __init__(self, link: Link, name: str, target: Remote | None = None, *, is_alone: bool = False) -> None:
        self._link, self.__name__, self._target, self._is_alone = link, name, target, is_alone

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it there."""
        if self._target is not None:
            self._link.check_asked(self._target, self.__name__, arguments, keywords, is_alone=self._is_alone)
        return self._link.call(self.__name__, arguments, keywords, self._target, is_alone=self._is_alone)

    def alone(self) -> RemoteFunction:
        """The same in a statement of its own."""
        return RemoteFunction(self._link, self.__name__, self._target, is_alone=True)


def _handle_of(value: Any) -> Any:
    """How what belongs to the program is handed back to it; None for all else."""
    if isinstance(value, Remote):
        return (object.__getattribute__(value, "_number"),)
    return (value.__name__,) if type(value) is RemoteFunction and value._target is None else None


class Remote:
    """An object that stays with the program. `_origin`: where the tests have it from. `_plain`: its value, where it is one as well."""

    __slots__ = ("_link", "_number", "_origin", "_plain")

    def __init__(self, link: Link, number: int, origin: int, plain: tuple[Any, ...] = ()) -> None:
        for name, value in (("_link", link), ("_number", number), ("_origin", origin), ("_plain", plain)):
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        """An operator's method that the tests name is the program's; Python itself looks for them in the class."""
        if name in _BY_OPERATORS:
            return RemoteFunction(self._link, name, self)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        """Asked of the program."""
        return self._link.attribute(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set there."""
        self._link.do("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        """Deleted there."""
        self._link.do("delattr", self, name)

    def __eq__(self, other: object) -> Any:
        """Two objects as the program compares them; an object is no plain value, unless it is one."""
        if isinstance(other, Remote):
            return self._link.do("eq", self, other) is True
        return self._plain[0] == other if self._plain else NotImplemented

    def __hash__(self) -> int:
        """As the program has it."""
        return hash(self._link.do("hash", self))

    def __repr__(self) -> str:
        """As the program has it."""
        return self._text("repr")

    def __str__(self) -> str:
        """As the program has it."""
        return self._text("str")

    def _text(self, operation: str) -> str:
        text = self._link.do(operation, self)
        return text if type(text) is str else ""


class RemoteClass(Remote):
    """A class of the program."""

    __slots__ = ()

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Make an instance there."""
        return self._link.build(self, arguments, keywords)

    def __instancecheck__(self, instance: Any) -> bool:
        """Whether an object is an instance, by the program's word; a plain value is none."""
        return isinstance(instance, Remote) and self._link.do("isinstance", instance, self) is True

    def __subclasscheck__(self, other: Any) -> bool:
        """Whether another class of the program is derived from it."""
        return isinstance(other, Remote) and self._link.do("issubclass", other, self) is True

    def __iter__(self) -> Iterator[Any]:
        """Of an enumeration its members."""
        return iter(self._link.do("list", self))

    def __getitem__(self, key: Any) -> Any:
        """Of an enumeration a member by its name."""
        return self._link.do("getitem", self, key)

    def __len__(self) -> int:
        """Of an enumeration how many members."""
        return int(self._link.do("len", self))


class RemoteObject(Remote):
    """An instance of a class of the program. Its operators are added below."""

    __slots__ = ()

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """For `isinstance`: of an instance that is a plain value as well, that value's class."""
        return type(self._plain[0]) if self._plain else RemoteObject

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call it there."""
        self._link.check_asked(self, "__call__", arguments, keywords)
        return self._link.call("__call__", arguments, keywords, self)

    def __iter__(self) -> Iterator[Any]:
        """All that it yields."""
        return iter(self._link.do("list", self))

    def __next__(self) -> Any:
        """What it yields next."""
        return self._link.do("next", self)

    def __len__(self) -> int:
        """Its length there."""
        return int(self._link.do("len", self))

    def __bool__(self) -> bool:
        """Its truth there."""
        return self._link.do("bool", self) is True

    def __getitem__(self, key: Any) -> Any:
        """An item."""
        self._link.check_asked(self, "getitem", (key,), {})
        return self._link.do("getitem", self, key)

    def __setitem__(self, key: Any, value: Any) -> None:
        """Set an item there."""
        self._link.do("setitem", self, key, value)

    def __delitem__(self, key: Any) -> None:
        """Delete an item there."""
        self._link.do("delitem", self, key)

    def __contains__(self, value: Any) -> bool:
        """As the program has it of what the tests made; of another object by looking through it here."""
        if self._origin == _BUILT or isinstance(value, Remote):
            return self._link.do("contains", self, value) is True
        return any(value == item for item in self)

    def __enter__(self) -> Any:
        """Enter it there."""
        return self._link.call("__enter__", (), {}, self)

    def __exit__(self, *_: object) -> None:
        """Leave it there, whatever happened here; no word of the program's makes it good."""
        self._link.call("__exit__", (None, None, None), {}, self)


def _operator(name: str, *, reflected: bool = False, is_comparison: bool = False) -> Any:
    def method(self: RemoteObject, other: Any) -> Any:
        if not isinstance(other, Remote) and (is_comparison or self._origin != _BUILT):
            return NotImplemented
        value = self._link.do(name, other, self) if reflected else self._link.do(name, self, other)
        if type(value) is RemoteObject and self._origin == _BUILT:
            object.__setattr__(value, "_origin", _BUILT)
        return value

    return method


def _unary(name: str) -> Any:
    return lambda self: self._link.do(name, self)


for _name in _OPERATIONS:
    _called = f"{_name}_" if _name in ("and", "or") else _name
    setattr(RemoteObject, f"__{_name}__", _operator(_called))
    setattr(RemoteObject, f"__r{_name}__", _operator(_called, reflected=True))
for _name in ("lt", "le", "gt", "ge"):
    setattr(RemoteObject, f"__{_name}__", _operator(_name, is_comparison=True))
for _name in ("neg", "pos", "invert", "abs"):
    setattr(RemoteObject, f"__{_name}__", _unary(_name))


class Names(dict):  # type: ignore[type-arg]
    """The globals of the tests: a name they do not define is the preamble's, a built-in, or the program's."""

    def __init__(self, link: Link, given: dict[str, Any]) -> None:
        super().__init__(given)
        self._link = link

    def __missing__(self, name: str) -> Any:
        """Look the name up in the program. Raises KeyError, which Python turns into NameError."""
        if hasattr(builtins, name) or (name.startswith("__") and name.endswith("__")):
            raise KeyError(name)
        word, content = self._link.ask("name", name, origin=_REACHED)
        if word == "function":
            self[name] = RemoteFunction(self._link, name)
        elif word in ("module", "imported") and content in SHARED_MODULES:
            module = __import__(content, fromlist=["*"])
            self[name] = module if word == "module" else getattr(module, name)
        elif word == "exception" and type(content) is tuple and len(content) == 2:
            self[name] = self._link.exception(*content)
        elif word == "value" and isinstance(content, RemoteClass):
            object.__setattr__(content, "_origin", _BUILT if name[:1].isupper() else _REACHED)
            self[name] = content
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
    _mark_calls_that_stand_alone(tree)
    checks.asserts = _count_expected(tree) + _count_asserts(tree)
    names = Names(link, _preamble_names(request["preamble"]))
    names.update({"__name__": "tests", "__builtins__": Builtins(names), _CHECKED: checks.hold, _CAUGHT: checks.caught})
    names[_ALONE] = lambda function: function.alone() if type(function) is RemoteFunction else function
    if "random" in request["tests"]:
        import random

        random.seed(request["seed"])  # noqa: TID251 - the tests of a data set draw from the global generator
    exec(compile(tree, "tests", "exec", dont_inherit=True), names)  # noqa: S102 - this is the place for it
    return ""


def _count_asserts(tree: ast.AST) -> int:
    """Put a call that counts after every assert, and return their number."""
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


def _mark_calls_that_stand_alone(tree: ast.AST) -> None:
    """Let every statement that is a call report to the function, and those before it in a chain, that nobody wants its value."""
    import _ast

    for block in _blocks(tree, ("Expr",)):
        for node in block:
            if type(node).__name__ == "Expr" and type(node.value).__name__ == "Call":
                place, call = _place(node), node.value
                while type(call).__name__ == "Call":
                    function = call.func
                    call.func = _ast.Call(_ast.Name(_ALONE, _ast.Load(), **place), [function], [], **place)
                    call = getattr(function, "value", None)


def _always_fails(node: Any) -> bool:
    """`assert False` and its like, or `raise`."""
    if type(node).__name__ != "Assert":
        return type(node).__name__ == "Raise"
    return type(node.test).__name__ == "Constant" and not node.test.value


def _blocks(node: ast.AST, kinds: tuple[str, ...] = ("Assert", "Try")) -> Iterator[list[Any]]:
    """Every list of statements in a tree that has one of these kinds."""
    waiting = [node]
    while waiting:
        for field in waiting.pop().__dict__.values():
            items = field if isinstance(field, list) else [field]
            children = [item for item in items if hasattr(item, "_fields")]
            waiting.extend(children)
            if isinstance(field, list) and any(type(child).__name__ in kinds for child in children):
                yield field


def _counting_call(node: Any, function: str) -> Any:
    import _ast

    place = _place(node)
    name = _ast.Name(function, _ast.Load(), **place)
    return _ast.Expr(_ast.Call(name, [], [], **place), **place)


def _place(node: Any) -> dict[str, int]:
    return {key: getattr(node, key) for key in ("lineno", "col_offset", "end_lineno", "end_col_offset")}


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
    """Equal as JSON sees values; an expected result may be wrapped in a list of one."""
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
        name = link.raised_name
        return MEMORY if name == "MemoryError" else f"tests failed: the program raised {name} in assertion {number}"
    if isinstance(error, AssertionError):
        return f"tests failed: assertion {number}"
    return f"tests failed: the tests raised {type(error).__name__} in assertion {number}"

"""Which tests of a program no right program could pass, because of what cannot cross from the program to its judge (docs/sandbox.md)."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

_OUTPUT = {"redirect_stdout", "capsys", "capfd"}


def why_not_judged(tests: str, preamble: str = "") -> str:
    """Why the tests cannot be judged here, as "they import numpy", or ""; also "" for pairs of input and output. What the preamble
    defines with a body is the tests' own (edge.verifiers.sandbox.inside.judge)."""
    try:
        tree, given = ast.parse(tests), ast.parse(preamble)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    given.body = [node for node in given.body if not _is_stub(node)]
    return next(_reasons(tree, given), "")


def _reasons(tree: ast.AST, given: ast.AST) -> Iterator[str]:
    functions = _functions(tree) | _functions(given)
    own = (_bound(tree) | _bound(given) | set(dir(builtins))) - _program_under_test(tree, given)
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names) if foreign := [one.name for one in names if not _is_standard(one.name)]:
                yield f"they import {foreign[0]}, which is not there"
            case ast.ImportFrom(module=str(module), level=0) if not _is_standard(module):
                yield f"they import {module}, which is not there"
            case ast.AsyncFunctionDef() | ast.Await():
                yield "they await the program's coroutines"
            case ast.Name(id=name) if name in _OUTPUT:
                yield "they look at what is printed"
            case ast.Attribute(attr="stdout", value=ast.Name(id="sys")) | ast.Attribute(attr="redirect_stdout"):
                yield "they look at what is printed"
            case ast.ClassDef(bases=bases) if any(isinstance(base, ast.Name) and base.id not in own for base in bases):
                yield "they derive a class from one of the program's"
            case ast.Call(func=ast.Name(id=name)) if name not in own and any(
                isinstance(one, ast.Lambda) or (isinstance(one, ast.Name) and one.id in functions) for one in _handed_over(node)
            ):
                yield "they hand functions of their own to the program"


def _is_stub(node: ast.AST) -> bool:
    """What the judge leaves to the program: `Solution`, and functions and classes without a body."""
    match node:
        case ast.ClassDef(name="Solution") | ast.Pass() | ast.Raise() | ast.Expr(value=ast.Constant()):
            return True
        case ast.ClassDef(body=body) | ast.FunctionDef(body=body) | ast.AsyncFunctionDef(body=body):
            return all(map(_is_stub, body))
    return False


def _handed_over(call: ast.Call) -> Iterator[ast.expr]:
    """The arguments of a call, and the elements of lists, tuples and dictionaries among them."""
    waiting: list[ast.expr | None] = [*call.args, *(keyword.value for keyword in call.keywords)]
    while waiting:
        match waiting.pop():
            case ast.List(elts=inner) | ast.Tuple(elts=inner) | ast.Set(elts=inner) | ast.Dict(values=inner):
                waiting += inner
            case ast.Starred(value=one):
                waiting.append(one)
            case ast.expr() as one:
                yield one


def _functions(tree: ast.AST) -> set[str]:
    """The names of functions that a tree defines, by `def` or as a named lambda."""
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.Assign(targets=[ast.Name(id=name)], value=ast.Lambda()):
                found.add(name)
    return found


def _program_under_test(tree: ast.AST, given: ast.AST) -> set[str]:
    """The parameters that are a function of the program, as `candidate` in `def check(candidate): ...` with `check(f)`."""
    bound = _bound(tree) | _bound(given) | set(dir(builtins))
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    found: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(id=name), args=arguments) if name in defined:
                parameters = defined[name].args.posonlyargs + defined[name].args.args
                pairs = zip(parameters, arguments, strict=False)
                found |= {one.arg for one, value in pairs if isinstance(value, ast.Name) and value.id not in bound}
    return found


def _bound(tree: ast.AST) -> set[str]:
    """The names that the tests bind themselves."""
    bound: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name) | ast.arg(arg=name):
                bound.add(name)
            case ast.Name(id=name, ctx=ast.Store()):
                bound.add(name)
            case ast.alias(name=name, asname=alias):
                bound.add(alias or name.partition(".")[0])
    return bound


def _is_standard(module: str) -> bool:
    return module.partition(".")[0] in sys.stdlib_module_names

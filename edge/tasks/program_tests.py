"""Which tests of a program no right program could pass, because of what cannot cross from the program to its judge (docs/sandbox.md)."""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator

_OUTPUT = {"redirect_stdout", "capsys", "capfd"}


def why_not_judged(tests: str) -> str:
    """Why the tests cannot be judged here, as "they import numpy", or ""; also "" for pairs of input and output."""
    try:
        tree = ast.parse(tests)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    return next(_reasons(tree), "")


def _reasons(tree: ast.AST) -> Iterator[str]:
    functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    own = _bound(tree) | set(dir(builtins))
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
            case ast.Call(func=ast.Name(id=name), args=given) if name not in own and any(
                isinstance(one, ast.Lambda) or (isinstance(one, ast.Name) and one.id in functions) for one in given
            ):
                yield "they hand functions of their own to the program"


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

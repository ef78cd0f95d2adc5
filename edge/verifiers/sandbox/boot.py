"""What is sent into a sandbox before anything else: the modules of `inside` as one block of bytes."""

from __future__ import annotations

import functools
import marshal
from collections.abc import Sequence
from pathlib import Path
from types import CodeType

_PACKAGE = "edge.verifiers.sandbox.inside"
_FOLDER = Path(__file__).with_name("inside")
# Who started it may be killed meanwhile, and a judge and a program left alone would wait for each other without end: their fd 2 leads
# to nobody but us, so it is watched during the reading until the program's text is there (`inside.program` goes on with that).
# Each module is put where an import statement of the next one finds it. The block travels from us to the sandbox only.
LOADER = """
import marshal, posix, select, sys
both = select.poll()
both.register(0, select.POLLIN)
both.register(2, 0)
def read(size):
    parts = b""
    while len(parts) < size:
        if any(fd == 2 for fd, _ in both.poll()): posix._exit(96)
        part = posix.read(0, size - len(parts))
        if not part: posix._exit(96)
        parts += part
    return parts
modules, entry = marshal.loads(read(int(read(8), 16)))
for name, code in modules:
    sys.modules[name] = module = type(sys)(name)
    exec(code, module.__dict__)
del modules, both
getattr(sys.modules[entry], "main")()
"""


@functools.cache
def confining() -> str:
    """A statement that defines `confine`, for our own interpreter; far shorter to start than its text."""
    return f"import marshal; exec(marshal.loads(bytes.fromhex({marshal.dumps(_code('confine')).hex()!r})))"


@functools.cache
def program_block(*, compiled: bool = True) -> bytes:
    """The program's side of a sandbox: runs the program and answers calls of its functions."""
    return _block(("wire", "limits", "program"), compiled)


@functools.cache
def judge_block(*, compiled: bool = True) -> bytes:
    """The judge's side."""
    return _block(("wire", "limits", "judge"), compiled)


@functools.cache
def _block(names: Sequence[str], compiled: bool) -> bytes:
    """Modules for the loader; as text for an interpreter of another version."""
    modules = [(f"{_PACKAGE}.{name}", _code(name) if compiled else _text(name)) for name in names]
    content = marshal.dumps((modules, f"{_PACKAGE}.{names[-1]}"), 4 if compiled else 2)
    return b"%08x" % len(content) + content


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.py").read_text(encoding="utf-8")


def _code(name: str) -> CodeType:
    return compile(_text(name), f"{name}.py", "exec", dont_inherit=True, optimize=0)

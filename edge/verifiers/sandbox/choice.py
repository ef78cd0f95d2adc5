"""Which sandbox is used here.

A backend counts as usable only after a probe ran under it: a program that works, and that finds no network, no file of this project, no
environment and no place to write. What merely seems to be installed is not enough.
"""

from __future__ import annotations

import functools
import platform
import secrets
from dataclasses import dataclass

from edge.core.clock import SystemClock
from edge.core.errors import EdgeError, UsageError
from edge.core.plugins import Registry
from edge.verifiers.sandbox.role import Sandbox, SandboxLimits

_PACKAGE = "edge.verifiers.sandbox"
SANDBOXES = Registry(
    "sandbox",
    {
        "bubblewrap": f"{_PACKAGE}.bubblewrap:Bubblewrap",
        "landlock": f"{_PACKAGE}.landlock:Landlock",
        "sandbox-exec": f"{_PACKAGE}.sandbox_exec:SandboxExec",
        "container": f"{_PACKAGE}.container:Container",
        "none": f"{_PACKAGE}.interpreter:Unconfined",
    },
)
_AUTOMATIC = {"Linux": ("bubblewrap", "landlock"), "Darwin": ("sandbox-exec",)}
_ADVICE = {"Linux": "install the package bubblewrap", "Darwin": "sandbox-exec is part of macOS; see: edge-agent doctor"}
_PROBE_PROGRAM = """
import os

def works():
    return [sum(range(10)), "ä"]

def reached(paths, suffix):
    found = [path for path in paths if readable(path) or writable(path + suffix)] + sorted(set(os.environ) - ALLOWED)
    try:
        import socket
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nothing_is_sent:
            nothing_is_sent.connect(("192.0.2.1", 9))
        return found + ["network"]
    except OSError:
        return found

ALLOWED = {"PYTHONHASHSEED", "MALLOC_ARENA_MAX", "LC_CTYPE", "PWD", "PATH", "HOSTNAME", "HOME", "__CF_USER_TEXT_ENCODING"}

def readable(path):
    try:
        with open(path, "rb"):
            return True
    except OSError:
        return False

def writable(path):
    try:
        with open(path, "xb"):
            os.unlink(path)
        return True
    except OSError:
        return False
"""


@dataclass(frozen=True, slots=True)
class Found:
    """One backend on this machine: usable, or why not."""

    name: str
    sandbox: Sandbox | None
    complaint: str = ""


def best_sandbox() -> Sandbox:
    """The first automatic backend that works here. Raises UsageError with what to do."""
    for name in _AUTOMATIC.get(platform.system(), ()):
        found = look_for(name)
        if found.sandbox is not None:
            return found.sandbox
    advice = _ADVICE.get(platform.system(), "use a machine with Linux or macOS")
    raise UsageError(
        "programs written by a model cannot be isolated on this machine",
        hint=f"{advice}, or accept the risk with --unsafe-programs",
    )


def choose_sandbox(name: str, *, unsafe: bool = False) -> Sandbox:
    """The backend of this name; `auto` is the best one. With `unsafe` `none` is allowed, and what `auto` ends in.

    Raises UsageError for one that cannot be used.
    """
    if name == "none" and not unsafe:
        raise UsageError("programs run without isolation only with --unsafe-programs")
    if name == "auto":
        try:
            return best_sandbox()
        except UsageError:
            if not unsafe:
                raise
            name = "none"
    found = look_for(name)
    if found.sandbox is None:
        raise UsageError(f"the sandbox {name} cannot be used: {found.complaint}")
    return found.sandbox


@functools.cache
def look_for(name: str) -> Found:
    """Try a backend once per process. Raises UsageError for an unknown name."""
    kind = SANDBOXES.load(name)
    try:
        sandbox: Sandbox = kind()
        complaint = probe(sandbox)
    except EdgeError as error:
        return Found(name, None, error.with_hint)
    return Found(name, None if complaint else sandbox, complaint)


def probe(sandbox: Sandbox) -> str:
    """Run a program under it that tries to get out; what is wrong, or "". Raises SandboxError when it does not start."""
    from edge.verifiers.sandbox.session import run_functions

    tests = "assert works() == [45, 'ä']\n"
    if sandbox.protection.isolates:
        paths = [__file__, "/etc/passwd", "/proc/1/environ", "/tmp/edge-agent", "/var/tmp/edge-agent"]  # noqa: S108 - nothing is written
        tests += f"assert reached({paths!r}, {'.' + secrets.token_hex(8)!r}) == []\n"
    request = {"form": "tests", "tests": tests, "preamble": "", "seed": 0}
    outcome = run_functions(sandbox, _PROBE_PROGRAM, request, SandboxLimits(wall_s=10.0), SystemClock())
    if not outcome.reason:
        return ""
    return "it does not isolate" if "assertion 2" in outcome.reason else f"a trial program did not run: {outcome.reason}"

"""The sandboxes that tests run on: every backend that works on this machine. Each test that takes `sandbox` runs on all of them."""

from __future__ import annotations

import sys

import pytest

from edge.core.clock import SystemClock
from edge.verifiers.program import ProgramTests, ProgramVerdict, judge_program
from edge.verifiers.sandbox.choice import look_for
from edge.verifiers.sandbox.role import Sandbox, SandboxLimits

ISOLATING = (
    *({"linux": ("bubblewrap", "landlock"), "darwin": ("sandbox-exec",)}.get(sys.platform, ())),
    pytest.param("container", marks=pytest.mark.long),
)
LIMITS = SandboxLimits(wall_s=10.0, memory_mib=256)
BRIEF = SandboxLimits(wall_s=0.6, memory_mib=256)


def usable_sandbox(name: str) -> Sandbox:
    """The backend of this name; skips the test with the reason where it cannot be used."""
    found = look_for(name)
    if found.sandbox is None:
        pytest.skip(f"the sandbox {name} cannot be used here: {found.complaint}")
    return found.sandbox


def judged(sandbox: Sandbox, code: str, tests: str, *, limits: SandboxLimits = LIMITS, preamble: str = "") -> ProgramVerdict:
    return judge_program(ProgramTests(code, tests, preamble), sandbox, limits, SystemClock())

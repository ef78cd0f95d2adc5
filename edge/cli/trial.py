"""Whether the installed llama.cpp computes on this processor, tried in a process of its own. Knows how it ends, and what to build instead.

llama.cpp is compiled for the processor at hand, or was, for another one; and what a compiler makes of AMX may fault at its first
instruction. Nothing can catch that in the process that it happens in.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence

from edge.core.exits import exit_name, has_crashed
from edge.core.install import pip_install
from edge.core.llama_build import FOR_ANY, WITHOUT_AMX
from edge.core.machine import cpu_flags

_TRIAL_S = 120.0


def trial_command() -> list[str]:
    """The process that decodes some tokens of the smallest bundled model."""
    from edge.models.catalogue import bundled_folder

    program = "import sys; from edge.inference.trial import decode_some; decode_some(sys.argv[1])"
    return [sys.executable, "-c", program, str(bundled_folder() / "nano-edge.gguf")]


def llama_fault(command: Callable[[], Sequence[str]] = trial_command, limit_s: float = _TRIAL_S) -> tuple[str, bool]:
    """What went wrong when llama.cpp computed ("": nothing), and whether it crashed, as it will in every process."""
    try:
        ended = subprocess.run(command(), stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return f"did not decode 65 tokens in {limit_s:g} s", False
    if ended.returncode == 0:
        return "", False
    if has_crashed(ended.returncode):
        return f"crashes on this processor ({exit_name(ended.returncode)})", True
    words = ended.stderr.decode(errors="replace").strip().splitlines()
    return f"does not decode: {words[-1][:300] if words else f'it ended with {exit_name(ended.returncode)}'}", False


def rebuild_hint(version: str) -> str:
    """How to build llama.cpp for this processor, the more careful way last."""
    ways = [WITHOUT_AMX, FOR_ANY] if "amx_int8" in cpu_flags() else [FOR_ANY]
    install = f"--force-reinstall --no-deps --no-cache-dir --no-binary llama-cpp-python llama-cpp-python=={version}"
    build = f'build it again: CMAKE_ARGS="{ways[0]}" {pip_install(install)}'
    return build + "".join(f'; if it crashes still, the same with CMAKE_ARGS="{way}"' for way in ways[1:])

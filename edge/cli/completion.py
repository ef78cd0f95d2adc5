"""`edge-agent completion SHELL`: the lines that make a shell complete the command. Knows shells' names; the lines are typer's."""

from __future__ import annotations

from edge.cli.completing import SHELLS
from edge.core.errors import UsageError
from edge.core.formatting import shown

PROGRAM = "edge-agent"


def completion(shell: str) -> int:
    """Print them. Raises UsageError for a shell there are none for."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise UsageError(f"{shown(shell)}: no completion for this shell", hint=f"there is one for {', '.join(SHELLS)}")
    print(get_completion_script(prog_name=PROGRAM, complete_var="_EDGE_AGENT_COMPLETE", shell=shell))
    return 0

"""`edge-agent completion SHELL`, and the words that a shell completes: modes, models, task sources, verdicts.

Each function gets what was typed of a word and gives the words that begin with it. A shell calls it at every press of a key: nothing
is loaded or asked over the network for it, and what fails is no word, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from edge.core.errors import UsageError
from edge.core.formatting import shown

MODES = ("auto", "prefer-local", "local-only", "cloud-only")
SHELLS = ("bash", "zsh", "fish")
VERDICTS = ("good", "bad", "none")


def modes(incomplete: str) -> list[str]:
    """Values of --mode."""
    return [mode for mode in MODES if mode.startswith(incomplete)]


def models(incomplete: str) -> list[str]:
    """Bundled models and those in the agent's models folder, by name."""
    return sorted({name for name in _models() if name.startswith(incomplete)})


def sources(incomplete: str) -> list[str]:
    """Task sources that `tasks list` shows."""
    return [source for source in _sources() if source.startswith(incomplete)]


def shells(incomplete: str) -> list[str]:
    """Shells that there is a completion for."""
    return [shell for shell in SHELLS if shell.startswith(incomplete)]


def verdicts(incomplete: str) -> list[str]:
    """What may be said of an answer."""
    return [verdict for verdict in VERDICTS if verdict.startswith(incomplete)]


def _models() -> Iterator[str]:
    from edge.models.catalogue import bundled_folder, models_folder

    for folder in (bundled_folder(), models_folder()):
        yield from (path.stem for path in folder.glob("*.gguf"))
        yield from (path.parent.name for path in folder.glob("*/config.json"))


def _sources() -> Iterator[str]:
    from edge.tasks.datasets.catalogue import DATA_SETS
    from edge.tasks.practice import FAMILIES, GROUPS

    yield from (f"practice:{name}" for name in (*FAMILIES, *GROUPS))
    yield from DATA_SETS


def command(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.", metavar="SHELL", autocompletion=shells)],
) -> int:
    """Print the lines that make a shell complete this command, e.g. for a file of its own; --install-completion puts them in place."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise UsageError(f"{shown(shell)}: no completion for this shell", hint=f"there is one for {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="edge-agent", complete_var="_EDGE_AGENT_COMPLETE", shell=shell))
    return 0

"""`edge-agent completion SHELL`, and the words that a shell completes: modes, models, task sources, ratings.

Each function gets what was typed of a word and gives the words that begin with it. A shell calls it at every press of a key: nothing
is loaded or asked over the network for it, and what fails is no word, never an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, get_args

from typer import Argument

from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.types import Mode

MODES: tuple[Mode, ...] = get_args(Mode)
SHELLS = ("bash", "zsh", "fish")
RATINGS = ("good", "bad", "none")


def modes(incomplete: str) -> list[str]:
    """Values of --mode."""
    return _beginning(incomplete, MODES)


def models(incomplete: str) -> list[str]:
    """Bundled models and those in the agent's models folder, by name."""
    from edge.models.catalogue import bundled_folder, models_folder

    folders = (bundled_folder(), models_folder())
    files = {path.stem for folder in folders for path in folder.glob("*.gguf")}
    return _beginning(
        incomplete, sorted(files | {path.parent.name for folder in folders for path in folder.glob("*/config.json")})
    )


def sources(incomplete: str) -> list[str]:
    """Task sources that `tasks list` shows, and the task files and folders whose paths begin like this."""
    from glob import escape, glob

    from edge.tasks.datasets.catalogue import DATA_SETS
    from edge.tasks.jsonl import SUFFIXES
    from edge.tasks.practice import FAMILIES, GROUPS

    paths = sorted(Path(found) for found in glob(f"{escape(incomplete)}*"))  # noqa: PTH207 - as it was typed
    files = [f"{path}/" if path.is_dir() else str(path) for path in paths if path.is_dir() or path.suffix.lower() in SUFFIXES]
    return _beginning(incomplete, [*(f"practice:{name}" for name in (*FAMILIES, *GROUPS)), *DATA_SETS, *files])


def shells(incomplete: str) -> list[str]:
    """Shells that there is a completion for."""
    return _beginning(incomplete, SHELLS)


def ratings(incomplete: str) -> list[str]:
    """Ratings of an answer."""
    return _beginning(incomplete, RATINGS)


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [word for word in words if word.startswith(incomplete)]


def command(shell: Annotated[str, Argument(help="bash, zsh or fish.", metavar="SHELL", autocompletion=shells)]) -> None:
    """Print the lines that make a shell complete this command, e.g. for a file of its own; --install-completion puts them in place."""
    from typer.completion import get_completion_script  # type: ignore[attr-defined]

    if shell not in SHELLS:
        raise UsageError(f"{shown(shell)}: no completion for this shell", hint=f"there is one for {', '.join(SHELLS)}")
    print(get_completion_script(prog_name="edge-agent", complete_var="_EDGE_AGENT_COMPLETE", shell=shell))

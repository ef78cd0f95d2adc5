"""What a shell completes: modes, models, task sources. Knows names that are to be had without loading anything; asks no hub.

Each function gets what was typed of a word and gives the words that begin with it. A shell calls it at every press of a key, so what
fails is no word, never an error.
"""

from __future__ import annotations

from collections.abc import Iterator

MODES = ("auto", "prefer-local", "local-only", "cloud-only")
SHELLS = ("bash", "zsh", "fish")


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
    return [verdict for verdict in ("good", "bad", "none") if verdict.startswith(incomplete)]


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

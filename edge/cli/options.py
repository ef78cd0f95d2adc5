"""Options that several commands have. Knows their names, bounds and help; knows nothing of commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edge.cli import completing
from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.limits import LARGEST_SEED, MOST_STEPS, TASK_LABEL_FORM, is_task_label

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="GGUF file, or the name of a bundled or pulled model.",
        metavar="NAME|PATH",
        autocompletion=completing.models,
    ),
]
Coordinator = Annotated[
    str | None,
    typer.Option(
        "--coordinator", help="Coordinator to ask; without one, an embedded one is started.", metavar="HOST:PORT|unix:PATH"
    ),
]
State = Annotated[Path | None, typer.Option("--state", help="State folder (default: the platform's).", metavar="DIR")]
Config = Annotated[Path | None, typer.Option("--config", help="YAML configuration file.", metavar="FILE")]
Sets = Annotated[
    list[str] | None, typer.Option("--set", help="Set one value, e.g. learning.group_size=8. Repeatable.", metavar="K=V")
]
DeviceProfile = Annotated[
    Path | None,
    typer.Option("--device-profile", help="Device profile, as `doctor --write-profile` writes it.", metavar="FILE"),
]
Mode = Annotated[
    str | None,
    typer.Option(
        "--mode",
        help="auto, prefer-local, local-only or cloud-only.",
        metavar="MODE",
        autocompletion=completing.modes,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        help="A source (edge-agent tasks list) or a .jsonl file. Repeatable: one phase each.",
        metavar="SOURCE",
        autocompletion=completing.sources,
    ),
]
TargetRate = Annotated[
    float | None,
    typer.Option("--target-rate", min=0.0, max=1.0, help="τ: share of responses that may ask for help.", metavar="TAU"),
]
Seed = Annotated[int | None, typer.Option("--seed", min=0, max=LARGEST_SEED, help="Seed of every random choice.", metavar="N")]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, max=MOST_STEPS, metavar="N", help="Learning steps; without it, go on until Ctrl-C."),
]
UnsafePrograms = Annotated[
    bool, typer.Option("--unsafe-programs", help="Run programs written by a model without isolation where there is none.")
]
Force = Annotated[bool, typer.Option("--force", help="Replace what is there.")]
NeverSend = Annotated[
    list[str] | None,
    typer.Option(
        "--never-send", help="Text, or like:PATTERN, that no request may hold; added to the configured rules.", metavar="TEXT"
    ),
]
Json = Annotated[bool, typer.Option("--json", help="JSON on stdout: one object, or one event a line.")]
Task = Annotated[str | None, typer.Option("--task", help="The task, whose budget and dial apply.", metavar="LABEL")]


def task_label(task: str | None) -> str | None:
    """The task's label as it was given. Raises UsageError for one that no task can have."""
    if task is not None and not is_task_label(task):
        raise UsageError(
            f"--task {shown(task)!r}: not {TASK_LABEL_FORM}", hint="edge-agent budget show lists the tasks that were used"
        )
    return task

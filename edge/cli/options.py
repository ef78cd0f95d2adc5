"""Options that several commands have, and how their values are read: rates, times, labels, ids of answers."""

from __future__ import annotations

import math
import re
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from edge.cli import completion
from edge.cli.output import one_line
from edge.core.clock import day_began
from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.limits import LARGEST_SEED, MOST_STEPS, TASK_LABEL_FORM, is_task_label

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="GGUF file, or the name of a bundled or pulled model.",
        metavar="NAME|PATH",
        autocompletion=completion.models,
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
        autocompletion=completion.modes,
    ),
]
Tasks = Annotated[
    list[str] | None,
    typer.Option(
        "--tasks",
        help="A source (edge-agent tasks list) or a .jsonl file. Repeatable: one phase each.",
        metavar="SOURCE",
        autocompletion=completion.sources,
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


LocalOnly = Annotated[bool, typer.Option("--local-only", help="Ask no cloud.")]


def task_label(task: str | None) -> str | None:
    """The task's label as it was given. Raises UsageError for one that no task can have."""
    if task is not None and not is_task_label(task):
        raise UsageError(
            f"--task {shown(task)!r}: not {TASK_LABEL_FORM}", hint="edge-agent budget show lists the tasks that were used"
        )
    return task


_SPAN = re.compile(r"(\d{1,6})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86_400, "w": 604_800}


def since_of(text: str, now: float) -> float:
    """Seconds since the epoch for yesterday, today, ever, 24h, 7d, 2026-03-01 or 2026-03-01T18:00 (local). Raises UsageError."""
    words = {"yesterday": day_began(now, days_before=1), "today": day_began(now), "ever": 0.0}
    if text in words:
        return words[text]
    if found := _SPAN.fullmatch(text):
        return max(0.0, now - int(found[1]) * _SECONDS[found[2]])
    try:
        moment = max(0.0, datetime.fromisoformat(text).astimezone().timestamp())
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"--since {one_line(text)}: no such time", hint="give yesterday, today, 24h, 7d, or 2026-03-01"
        ) from error
    if moment > now:
        raise UsageError(f"--since {one_line(text)}: lies in the future", hint="give yesterday, today, 24h, 7d, or 2026-03-01")
    return moment


_ID = re.compile(r"[A-Za-z0-9._:-]{1,100}")


def id_of(given: str) -> str:
    """The id without what OpenAI's clients have before it. Raises UsageError for what cannot be one."""
    bare = given.strip().removeprefix("chatcmpl-").removeprefix("cmpl-")
    if not _ID.fullmatch(bare):
        raise UsageError(f"{shown(given)!r} is no id of an answer", hint="give the id that stands beside an answer")
    return bare


def rate_of(text: str) -> float | None:
    """`15%` and `0.15` are 0.15, `off` is None. Raises UsageError for anything else."""
    word = text.strip().lower()
    if word == "off":
        return None
    try:
        value = float(word.removesuffix("%")) / (100.0 if word.endswith("%") else 1.0)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise UsageError(f"{text!r} is no rate", hint="write a share such as 15% or 0.15, or off")
    return value


def mode_of(mode: str | None, *, local_only: bool, cloud: bool) -> str | None:
    """The one mode that the options say. Raises UsageError where they say two."""
    given = dict.fromkeys([*(["local-only"] * local_only), *(["cloud-only"] * cloud), *([mode] if mode else [])])
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are two modes", hint="give one of --mode, --local-only and --cloud")
    return next(iter(given), None)

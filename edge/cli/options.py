"""Options that are no settings but that several commands have, and how values are read: rates, times, labels, ids of answers."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Annotated

from typer import Argument, Option

from edge.cli import completion
from edge.cli.output import one_line
from edge.core.clock import day_began
from edge.core.errors import UsageError
from edge.core.formatting import shown
from edge.core.limits import TASK_LABEL_FORM, is_task_label
from edge.core.rates import rate_of

Force = Annotated[bool, Option("--force", help="Replace what is there.")]
Json = Annotated[bool, Option("--json", help="JSON on stdout: one object, or one event a line.")]
Task = Annotated[str | None, Option("--task", help="The task, whose budget and dial apply.", metavar="LABEL")]
Sources = Annotated[
    list[str] | None,
    Argument(
        help="Your own questions (.jsonl, .csv) or another source, as --tasks takes it.",
        metavar="FILE",
        show_default=False,
        autocompletion=completion.sources,
    ),
]
LocalOnly = Annotated[bool, Option("--local-only", help="Ask no cloud.")]


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
    """The id without what OpenAI's and Anthropic's clients have before it. Raises UsageError for what cannot be one."""
    bare = given.strip().removeprefix("chatcmpl-").removeprefix("cmpl-").removeprefix("resp_").removeprefix("msg_")
    if not _ID.fullmatch(bare):
        raise UsageError(f"{shown(given)!r} is no id of an answer", hint="give the id shown with an answer")
    return bare


def rate_given(text: str, hint: str = "") -> float:
    """`15%`, `15 %` and `0.15` are 0.15. Raises UsageError for anything else."""
    try:
        return rate_of(text)
    except ValueError as error:
        raise UsageError(f"a rate {error}", hint=hint) from error


def rate_or_off(text: str) -> float | None:
    """Likewise, and `off` is None."""
    return None if text.strip().lower() == "off" else rate_given(text, "off lets the model decide")


def mode_of(mode: str | None, *, local_only: bool, cloud: bool) -> str | None:
    """The one mode that the options ask for. Raises UsageError where they ask for two."""
    given = dict.fromkeys([*(["local-only"] * local_only), *(["cloud-only"] * cloud), *([mode] if mode else [])])
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are two modes", hint="give one of --mode, --local-only and --cloud")
    return next(iter(given), None)

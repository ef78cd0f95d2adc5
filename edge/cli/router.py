"""`edge-agent router train`: a classifier on "will the local model fail", the baseline beside the model's own decision."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from edge import app
from edge.cli.evaluate import EvalOptions, adapter_folders
from edge.cli.saying import print_json, print_line
from edge.console import open_console
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, percent, shown
from edge.evaluation.plan import EvalPlan

if TYPE_CHECKING:
    from edge.cli.settings import Settings
    from edge.routing.calibration import RouterQuality


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """Where the router goes, what it learns from (`limit` training items of each source) and the share it may hand over (`rate`)."""

    out: Path
    sources: Sequence[str]
    limit: int
    rate: float
    adapter: str
    force: bool = False
    json: bool = False


def train(settings: Settings, options: RouterOptions) -> int:
    """Train, write and tell how good it is."""
    _require_place(options)
    config = settings.config()
    plan = EvalPlan(
        sources=tuple(dict.fromkeys(options.sources or [phase.source for phase in config.phases])),
        limit=options.limit,
        adapters=adapter_folders(EvalOptions(adapter=options.adapter), config),
        cloud="none",
    )
    with open_console(SystemClock(), quiet=options.json) as console:
        console.say(f"the local model answers {plan.limit} training items of {', '.join(plan.sources)}")
        quality = asyncio.run(app.train_router(config, console.sink, plan, options.rate, options.out))
    if options.json:
        print_json({"out": str(options.out), "rate": options.rate, **asdict(quality)})
        return 0
    print("\n".join(_lines(options.out, quality)))
    print_line(f"use it with --set routing.policy=router --set routing.router={options.out}")
    return 0


def _require_place(options: RouterOptions) -> None:
    out = options.out
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"{shown(str(out))}: no file can be written there", hint="name a file in an existing folder")
    if out.exists() and not options.force:
        raise UsageError(f"{shown(str(out))}: exists already", hint="give another name, or --force to replace it")


def _lines(out: Path, quality: RouterQuality) -> list[str]:
    auc = "unknown" if quality.auc is None else f"{quality.auc:.2f}"
    return [
        f"{out}: fitted to {counted(quality.fitted, 'answer')}, measured on {quality.held_out} others",
        f"the local model alone is right on {percent(1 - quality.failed)}; the router hands over {percent(quality.asked)} "
        f"and is right on {percent(quality.kept_accuracy)} of what it keeps (AUC {auc})",
    ]

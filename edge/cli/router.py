"""`edge-agent router train`: a classifier on "will the local model fail", the baseline for the model's own decision."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from typer import Argument, Option, Typer

from edge.cli import completion
from edge.cli.evaluate import adapter_folders, sources_of
from edge.cli.options import Force, Json, rate_given
from edge.cli.output import print_line, print_result
from edge.cli.settings import Settings, takes
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, percent, shown
from edge.core.limits import MOST_ITEMS

app = Typer(help="A classifier that decides what is handed over: the baseline.", no_args_is_help=True, rich_markup_mode=None)


@app.command("train")
@takes("question answer ask model state seed unsafe_programs")
def router_train(
    out: Annotated[Path, Argument(help="File to write.", metavar="OUT.onnx")],
    tasks: Annotated[
        list[str] | None,
        Option(
            "--tasks",
            help="A source of training items. Repeatable; default: the configuration's.",
            metavar="SOURCE",
            autocompletion=completion.sources,
        ),
    ] = None,
    limit: Annotated[int, Option("--limit", min=8, max=MOST_ITEMS, help="Training items of each source.", metavar="N")] = 400,
    rate: Annotated[str, Option("--rate", help="The largest share that is handed over, as 30% or 0.3.", metavar="TAU")] = "30%",
    adapter: Annotated[str, Option("--adapter", help="serving, latest, none or an adapter folder.", metavar="A")] = "serving",
    force: Force = False,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Train a router on the local model's own answers: will it fail on this one? Written as ONNX with its threshold."""
    from edge.app.measuring import train_router
    from edge.console import open_console
    from edge.evaluation.plan import EvalPlan

    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"{shown(str(out))}: no file can be written there", hint="name a file in an existing folder")
    if out.exists() and not force:
        raise UsageError(f"{shown(str(out))}: exists already", hint="give another name, or --force to replace it")
    share, config = rate_given(rate), settings.config()
    sources = sources_of(tasks, config)
    plan = EvalPlan(
        sources, limit, adapters=adapter_folders(adapter, config), cloud="none", columns=settings.columns_of(sources, config)
    )
    with open_console(SystemClock(), quiet=json) as console:
        console.say(f"the local model answers {plan.limit} training items of {', '.join(plan.sources)}")
        quality = asyncio.run(train_router(config, console.sink, plan, share, out))
    auc = "unknown" if quality.auc is None else f"{quality.auc:.2f}"
    lines = [
        f"{out}: fitted to {counted(quality.fitted, 'answer')}, measured on {quality.held_out} others",
        f"the local model alone is right on {percent(1 - quality.failed)}; the router hands over {percent(quality.asked)} "
        f"and is right on {percent(quality.kept_accuracy)} of what it keeps (AUC {auc})",
    ]
    print_result({"out": str(out), "rate": share, **asdict(quality)}, lines, as_json=json)
    if not json:
        print_line(f"use it with --set routing.policy=router --set routing.router={out}")

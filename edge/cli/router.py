"""`edge-agent router train`: a classifier on "will the local model fail", the baseline beside the model's own decision."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edge.cli import completion
from edge.cli.evaluate import EvalOptions, adapter_folders
from edge.cli.options import Config, Force, Json, Model, Seed, Sets, State, UnsafePrograms
from edge.cli.output import print_json, print_line
from edge.cli.settings import Settings
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.formatting import counted, percent, shown
from edge.core.limits import MOST_ITEMS

if TYPE_CHECKING:
    from edge.routing.classifier import RouterQuality

app = typer.Typer(
    help="A classifier that decides what is handed over: the baseline.", no_args_is_help=True, rich_markup_mode=None
)


@app.command("train")
def router_train(
    out: Annotated[Path, typer.Argument(help="File to write.", metavar="OUT.onnx")],
    tasks: Annotated[
        list[str] | None,
        typer.Option(
            "--tasks",
            help="A source of training items. Repeatable; default: the configuration's.",
            metavar="SOURCE",
            autocompletion=completion.sources,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=8, max=MOST_ITEMS, help="Training items of each source.", metavar="N")
    ] = 400,
    rate: Annotated[
        float, typer.Option("--rate", min=0.0, max=1.0, help="The largest share that is handed over.", metavar="TAU")
    ] = 0.3,
    adapter: Annotated[
        str, typer.Option("--adapter", help="serving, latest, none or an adapter folder.", metavar="A")
    ] = "serving",
    force: Force = False,
    model: Model = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    seed: Seed = None,
    unsafe_programs: UnsafePrograms = False,
    json: Json = False,
) -> int:
    """Train a router on the local model's own answers: will it fail on this one? Written as ONNX with its threshold."""
    from edge.app import train_router
    from edge.console import open_console
    from edge.evaluation.plan import EvalPlan

    _require_place(out, force=force)
    resolved = Settings(config, sets, model, state=state, seed=seed, unsafe_programs=unsafe_programs).config()
    plan = EvalPlan(
        sources=tuple(dict.fromkeys(tasks or [phase.source for phase in resolved.phases])),
        limit=limit,
        adapters=adapter_folders(EvalOptions(adapter=adapter), resolved),
        cloud="none",
    )
    with open_console(SystemClock(), quiet=json) as console:
        console.say(f"the local model answers {plan.limit} training items of {', '.join(plan.sources)}")
        quality = asyncio.run(train_router(resolved, console.sink, plan, rate, out))
    if json:
        print_json({"out": str(out), "rate": rate, **asdict(quality)})
        return 0
    print("\n".join(_lines(out, quality)))
    print_line(f"use it with --set routing.policy=router --set routing.router={out}")
    return 0


def _require_place(out: Path, *, force: bool) -> None:
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise UsageError(f"{shown(str(out))}: no file can be written there", hint="name a file in an existing folder")
    if out.exists() and not force:
        raise UsageError(f"{shown(str(out))}: exists already", hint="give another name, or --force to replace it")


def _lines(out: Path, quality: RouterQuality) -> list[str]:
    auc = "unknown" if quality.auc is None else f"{quality.auc:.2f}"
    return [
        f"{out}: fitted to {counted(quality.fitted, 'answer')}, measured on {quality.held_out} others",
        f"the local model alone is right on {percent(1 - quality.failed)}; the router hands over {percent(quality.asked)} "
        f"and is right on {percent(quality.kept_accuracy)} of what it keeps (AUC {auc})",
    ]

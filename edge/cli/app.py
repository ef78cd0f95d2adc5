"""The command line: every command and group by name, in the order that `edge-agent --help` shows.

Each command is one module of this package, with its options; a module loads what it works with only when it runs.
"""

from __future__ import annotations

from typing import Annotated

from typer import Exit, Option, Typer, echo

from edge.cli import (
    adapters,
    ask,
    budget,
    chat,
    completion,
    config,
    doctor,
    evaluate,
    feedback,
    hints,
    launch,
    learn,
    models,
    outbox,
    pause,
    privacy,
    report,
    router,
    run,
    serve_token,
    service,
    status,
    tasks,
    whatif,
    why,
)

app = Typer(
    name="edge-agent",
    help="A small language model on your own machine that answers, learns, and asks a cloud LLM within a budget.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, Option("--version", help="Show the version.", is_eager=True)] = False) -> None:
    if version:
        from edge import __version__

        echo(__version__)
        raise Exit


for _name, _command in {
    "run": run.command,
    "status": status.command,
    "learn": learn.command,
    "eval": evaluate.command,
    "ask": ask.command,
    "chat": chat.command,
    "launch": launch.command,
    "why": why.command,
    "feedback": feedback.command,
    "completion": completion.command,
    "doctor": doctor.command,
    "whatif": whatif.command,
    "report": report.command,
    "pause": pause.pause_command,
    "resume": pause.resume_command,
    "serve-token": serve_token.command,
}.items():
    app.command(_name)(_command)

for _group in (adapters, config, models, router, tasks, budget, service, outbox, privacy, hints):
    app.add_typer(_group.app, name=_group.__name__.rpartition(".")[2])

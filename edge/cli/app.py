"""The command line: every command and group by name, in the order that `edge-agent --help` shows.

Each command is one module of this package, with its options; a module loads what it works with only when it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

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

app = typer.Typer(
    name="edge-agent",
    help="A small language model on your own machine that answers, learns, and asks a cloud LLM within a budget.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def _root(version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False) -> None:
    if version:
        from edge import __version__

        typer.echo(__version__)
        raise typer.Exit


_COMMANDS: dict[str, Callable[..., int]] = {
    "run": run.command,
    "status": status.command,
    "learn": learn.command,
    "eval": evaluate.command,
    "ask": ask.command,
    "chat": chat.command,
    "why": why.command,
    "feedback": feedback.command,
    "completion": completion.command,
    "doctor": doctor.command,
    "whatif": whatif.command,
    "report": report.command,
    "pause": pause.pause_command,
    "resume": pause.resume_command,
    "serve-token": serve_token.command,
}
for _name, _command in _COMMANDS.items():
    app.command(_name)(_command)

for _name, _group in {
    "adapters": adapters.app,
    "config": config.app,
    "models": models.app,
    "router": router.app,
    "tasks": tasks.app,
    "budget": budget.app,
    "service": service.app,
    "outbox": outbox.app,
    "privacy": privacy.app,
    "hints": hints.app,
}.items():
    app.add_typer(_group, name=_name)

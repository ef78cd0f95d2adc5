"""The commands about the background service: names, options and help. Knows typer; loads what a command needs only when it runs."""

from __future__ import annotations

from typing import Annotated

import typer

from edge.cli.options import Config, Coordinator, DeviceProfile, Force, Json, Mode, Model, Sets, State
from edge.cli.settings import Settings
from edge.core.limits import MOST_ITEMS

app = typer.Typer(help="Run in the background from log-in on (systemd, launchd).", no_args_is_help=True, rich_markup_mode=None)


@app.command("install")
def service_install(
    model: Model = None,
    coordinator: Coordinator = None,
    state: State = None,
    mode: Mode = None,
    port: Annotated[int | None, typer.Option("--port", min=0, max=65535, help="Port on 127.0.0.1 (0: any free one).")] = None,
    no_learn: Annotated[bool, typer.Option("--no-learn", help="Serve only.")] = False,
    device_profile: DeviceProfile = None,
    config: Config = None,
    sets: Sets = None,
    print_only: Annotated[bool, typer.Option("--print", help="Print the unit, and change nothing.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
    force: Force = False,
) -> int:
    """Start `edge-agent run` with these options at every log-in, and now."""
    from edge.cli import service as command

    settings = Settings(config, sets, model, coordinator, state, mode, port=port, device_profile=device_profile)
    options = command.run_options(settings, learn=not no_learn)
    return command.install(
        settings, options, command.Plan(print_only=print_only, dry_run=dry_run, force=force, learns=not no_learn)
    )


@app.command("uninstall")
def service_uninstall(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be done, and do nothing.")] = False,
) -> int:
    """Stop the service and remove it; what the agent has learned stays."""
    from edge.cli import service as command

    return command.uninstall(command.Plan(dry_run=dry_run))


@app.command("status")
def service_status(json: Json = False) -> int:
    """Whether the service is installed and runs; exit code 0 when it runs, 3 when not."""
    from edge.cli import service as command

    return command.status(as_json=json)


@app.command("logs")
def service_logs(
    lines: Annotated[
        int, typer.Option("--lines", "-n", min=1, max=MOST_ITEMS, help="How many of the last lines.", metavar="N")
    ] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until Ctrl-C.")] = False,
) -> int:
    """What the service said."""
    from edge.cli import service as command

    return command.logs(lines, follow=follow)

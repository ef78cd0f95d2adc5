"""`edge-agent serve-token`: the token that clients show to the endpoint, made when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

from edge.cli.output import print_line
from edge.cli.settings import Settings, takes


@takes("state")
def command(new: Annotated[bool, Option("--new", help="Make another one in its place.")] = False, *, settings: Settings) -> None:
    """Print the token that clients show to the endpoint; make it first where there is none."""
    from edge.app.settings import state_folder
    from edge.serve.token_file import make_token, read_token

    config = settings.config()
    named = config.serve.token_file
    path = Path(named).expanduser() if named else state_folder(config) / "serve-token"
    print(make_token(path) if new or not path.exists() else read_token(path))
    if not named:
        print_line(f"stored in {path}; edge-agent run asks for it with --set serve.token_file={path}")
    elif new:
        print_line(f"stored in {path}; a running agent goes on with the old one until it is started again")

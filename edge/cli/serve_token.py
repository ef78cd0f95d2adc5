"""`edge-agent serve-token`: the token that clients show to the endpoint, made when there is none."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edge.app import state_folder
from edge.cli.output import print_line
from edge.serve.token import make_token, read_token

if TYPE_CHECKING:
    from edge.cli.settings import Settings


def serve_token(settings: Settings, *, new: bool) -> int:
    """Print the token alone on stdout, and on stderr what makes an agent ask for it."""
    config = settings.config()
    named = config.serve.token_file
    path = Path(named).expanduser() if named else state_folder(config) / "serve-token"
    token = make_token(path) if new or not path.exists() else read_token(path)
    print(token)
    if not named:
        print_line(f"kept in {path}; edge-agent run asks for it with --set serve.token_file={path}")
    elif new:
        print_line(f"kept in {path}; a running agent goes on with the old one until it is started again")
    return 0

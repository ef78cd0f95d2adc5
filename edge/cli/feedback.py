"""`edge-agent feedback ID good|bad|none`: a person's rating of an answer."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from edge.cli.completion import RATINGS, ratings
from edge.cli.options import Json, id_of
from edge.cli.output import noted_line, print_result
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes
from edge.core.errors import UsageError
from edge.core.formatting import shown


@takes("state")
def command(
    answer_id: Annotated[str, Argument(help="The id shown with an answer.", metavar="ID")],
    verdict: Annotated[str, Argument(help="good, bad, or none to take it back.", metavar="RATING", autocompletion=ratings)],
    settings: Settings,
    correction: Annotated[str | None, Argument(help="With bad: what would have been right.", metavar="CORRECTION")] = None,
    json: Json = False,
) -> None:
    """Say whether an answer was right."""
    if verdict not in RATINGS:
        raise UsageError(f"{shown(verdict)}: not a rating", hint=f"say {', '.join(RATINGS[:-1])} or {RATINGS[-1]}")
    config, judged = settings.config(), id_of(answer_id)
    noted = ask_agent(config, lambda agent: agent.feedback(judged, verdict, correction))
    print_result(noted, [noted_line(noted)], as_json=json)

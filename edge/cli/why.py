"""`edge-agent why [ID]`: where one answer came from."""

from __future__ import annotations

from typing import Annotated

from typer import Argument

from edge.cli.options import Json, id_of
from edge.cli.output import print_result, why_lines
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes


@takes("state")
def command(
    answer_id: Annotated[
        str | None,
        Argument(help="The id shown with an answer; without it, the last answer.", metavar="[ID]", show_default=False),
    ] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> None:
    """Explain where one answer, or the last one, came from."""
    from edge.state.reader import LAST_ANSWER

    config, wanted = settings.config(), LAST_ANSWER if answer_id is None else id_of(answer_id)
    record = ask_agent(config, lambda agent: agent.why(wanted))
    print_result(record, why_lines(record), as_json=json)

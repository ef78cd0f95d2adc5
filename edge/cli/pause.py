"""`edge-agent pause | resume`: stop learning for a while, whether an agent runs or not. Answers go on."""

from __future__ import annotations

from edge.cli.options import Json
from edge.cli.output import print_result
from edge.cli.remote import ask_agent
from edge.cli.settings import Settings, takes


@takes("state")
def pause_command(settings: Settings, json: Json = False) -> None:
    """Stop learning until `resume`, also over restarts; answers go on."""
    found = ask_agent(settings.config(), lambda agent: agent.pause_learning(True))
    text = "learning is paused: the step under way is finished, no other begins; edge-agent resume goes on"
    print_result(found, [text], as_json=json)


@takes("state")
def resume_command(settings: Settings, json: Json = False) -> None:
    """Go on learning after `pause`."""
    found = ask_agent(settings.config(), lambda agent: agent.pause_learning(False))
    print_result(found, ["learning goes on" + (f" ({found.waiting})" if found.waiting else "")], as_json=json)

"""`edge-agent privacy check`: what would leave of a text; nothing is sent."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from edge.cli.options import Config, Json, NeverSend, Sets, State
from edge.cli.outbox import replaced_text
from edge.cli.output import print_json, print_line, visible
from edge.cli.settings import Settings
from edge.core.errors import UsageError

app = typer.Typer(help="What is private, and stays here.", no_args_is_help=True, rich_markup_mode=None)


@app.command("check")
def privacy_check(
    text: Annotated[str | None, typer.Argument(help="The text; `-` or nothing reads stdin.")] = None,
    never_send: NeverSend = None,
    state: State = None,
    config: Config = None,
    sets: Sets = None,
    json: Json = False,
) -> int:
    """What would leave of a text; nothing is sent. Exit code 3: it would be kept here."""
    from edge.app import build_registry

    registry, text = build_registry(Settings(config, sets, state=state, never_send=never_send).config()), _text_of(text)
    rule = registry.broken_rule([text])
    redacted = registry.redacted([text])
    leaks = registry.leaks(redacted.texts, "", redacted.originals)
    found: dict[str, Any] = {
        "sent": not (rule or leaks),
        "text": redacted.texts[0],
        "replaced": dict(redacted.replaced),
        "placeholders": dict(redacted.originals),
        "never_send_rule": rule or None,
        "leaks": dict(leaks),
        "region": registry.region,
        "kinds": list(registry.kinds) if registry.enabled else [],
    }
    if json:
        print_json(found)
    else:
        print_line(_in_force(found))
        _print(found, enabled=registry.enabled)
    return 0 if found["sent"] else WITHHELD


WITHHELD = 3
"""Exit code of a text that would not be sent."""


def _in_force(found: dict[str, Any]) -> str:
    region = found["region"] or "no country (privacy.region sets one)"
    return f"looked for: {', '.join(found['kinds']) or 'nothing'}; telephone numbers without a prefix: {region}"


def _print(found: dict[str, Any], *, enabled: bool) -> None:
    if found["never_send_rule"]:
        print_line(f"it would not be sent: never-send rule {found['never_send_rule']} forbids it")
        return
    print(visible(found["text"]), flush=True)
    if found["leaks"]:
        print_line(f"it would not be sent: the leak test found {', '.join(sorted(found['leaks']))}")
    elif not enabled:
        print_line("sent as it is: privacy.enabled is false")
    else:
        print_line(f"replaced: {replaced_text(found['replaced']) or 'nothing'}")


def _text_of(text: str | None) -> str:
    if text in (None, "-"):
        if sys.stdin.isatty():
            raise UsageError("no text", hint='write edge-agent privacy check "Write to jo@example.org" or pipe one in')
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if not (text or "").strip():
        raise UsageError("the text is empty", hint='write edge-agent privacy check "Write to jo@example.org" or pipe one in')
    return _whole(text or "")


def _whole(text: str) -> str:
    """The text, where it can be sent at all. Raises UsageError for bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text is not UTF-8 (character {error.start + 1})", hint="give text; binary files cannot be read"
        ) from error
    return text

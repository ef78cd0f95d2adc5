"""`edge-agent privacy check`: what of a text would be sent; nothing is sent."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from typer import Argument, Typer

from edge.cli.options import Json
from edge.cli.outbox import replaced_text
from edge.cli.output import print_json, print_line, visible
from edge.cli.settings import Settings, takes
from edge.core.errors import UsageError

app = Typer(help="What is private, and stays here.", no_args_is_help=True, rich_markup_mode=None)

WITHHELD = 3
"""Exit code of a text that would not be sent."""


@app.command("check")
@takes("never_send state")
def privacy_check(
    text: Annotated[str | None, Argument(help="The text; `-` or nothing reads stdin.")] = None,
    *,
    settings: Settings,
    json: Json = False,
) -> int:
    """What would leave of a text; nothing is sent. Exit code 3: it would be kept here."""
    from edge.app.settings import build_registry

    registry, text = build_registry(settings.config()), _text_of(text)
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
    exit_code = 0 if found["sent"] else WITHHELD
    if json:
        print_json(found)
        return exit_code
    region = registry.region or "no country (privacy.region sets one)"
    print_line(f"searched for: {', '.join(found['kinds']) or 'nothing'}; telephone numbers without a prefix: {region}")
    if rule:
        print_line(f"it would not be sent: never-send rule {rule} forbids it")
        return exit_code
    print(visible(found["text"]), flush=True)
    if leaks:
        print_line(f"it would not be sent: the leak test found {', '.join(sorted(leaks))}")
    elif not registry.enabled:
        print_line("sent as it is: privacy.enabled is false")
    else:
        print_line(f"replaced: {replaced_text(found['replaced']) or 'nothing'}")
    return exit_code


def _text_of(given: str | None) -> str:
    """The text, or what is piped in. Raises UsageError for no text, and for bytes that are no UTF-8."""
    example = 'write edge-agent privacy check "Write to jo@example.org" or pipe one in'
    text = given or ""
    if given in (None, "-"):
        if sys.stdin.isatty():
            raise UsageError("no text", hint=example)
        text = sys.stdin.buffer.read().decode("utf-8", "surrogateescape")
    if not text.strip():
        raise UsageError("the text is empty", hint=example)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(
            f"the text is not UTF-8 (character {error.start + 1})", hint="give text; binary files cannot be read"
        ) from error
    return text

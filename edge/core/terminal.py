"""Text that came from elsewhere, on a terminal. Knows which characters steer one; knows nothing of where the text is printed."""

from __future__ import annotations

import re

STEERING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that steer a terminal or the direction of text, and what no terminal can be sent; line ends and tabs are not among them."""


def visible(text: str) -> str:
    """The text with escapes in place of characters that would steer the terminal; `\\r\\n` is a line end."""
    return STEERING.sub(lambda found: _escape(ord(found[0])), text.replace("\r\n", "\n"))


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"

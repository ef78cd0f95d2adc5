"""Holds back streamed text that may still become a request for help. Knows the help phrase; knows nothing of who streams."""

from __future__ import annotations

from edge.dagrpo.prompts import HELP_PHRASE


class HelpHoldBack:
    """Lets text pass, except what follows `</think>` while it may still become a help request."""

    def __init__(self) -> None:
        self._text = ""
        self.sent = 0
        """Characters let pass so far."""

    def feed(self, piece: str) -> str:
        """Take the next piece; returns what may be shown now."""
        self._text += piece
        return self._release(self._safe_end())

    def rest(self) -> str:
        """All that is held; for a response that turned out not to ask."""
        return self._release(len(self._text))

    def _release(self, end: int) -> str:
        start, self.sent = self.sent, max(self.sent, end)
        return self._text[start : self.sent]

    def _safe_end(self) -> int:
        closing = self._text.find("</think>")
        if closing < 0:
            return len(self._text)
        end = closing + len("</think>")
        return end if may_become_request(self._text[end:]) else len(self._text)


def may_become_request(tail: str) -> bool:
    """Text after `</think>` that is a beginning of a help request, or one already."""
    bare = tail.strip()
    if "<answer>".startswith(bare):
        return True
    words = bare.removeprefix("<answer>").strip().lower()
    phrase = HELP_PHRASE.rstrip(".").lower()
    return phrase.startswith(words) or words.startswith(phrase)

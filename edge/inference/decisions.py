"""Where a response may decide to ask for help, and where it opens a step.

A *decision point* is a position at which the text so far ends in `</think>` or `<answer>` plus optional white space: what comes next
either starts the help phrase or does not. The phrase is a request only after the one `</think>`, or in the `<answer>` right after it; at
other such places it is text. Token tables are computed once per vocabulary, so that following a response costs one
table look-up per token, and text is read only where a tag or a step line can end.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from edge.dagrpo.prompts import HELP_PHRASE

TAGS = ("</think>", "<answer>")
OPENINGS = ("<answer>", r"\boxed{")
"""What follows each tag in a response that answers."""
_AT_DECISION = re.compile(r"(?:</think>|<answer>)\s*\Z")
_FIRST_DECISION = re.compile(r"(?:</think>|<answer>)\s*")
_AFTER_THINKING = re.compile(r"</think>\s*(?:<answer>\s*)?\Z")
_TAIL_CHARACTERS = 48


def starts_help(text: str) -> bool:
    """True when `text` can be the start of the help phrase at a decision point: a prefix of it or longer, white space and case aside."""
    start, phrase = text.lstrip().casefold(), HELP_PHRASE.casefold().rstrip(".")
    return bool(start) and (phrase.startswith(start) or start.startswith(phrase))


def missing_tag_ends(text: str) -> tuple[str, ...]:
    """What is missing of a tag at the end of `text`: "" at a decision point, ">" after `</think`, and so on, the shortest first."""
    missing = [""] if _AT_DECISION.search(text) else []
    for tag in TAGS:
        missing += [tag[cut:] for cut in range(1, len(tag)) if text.endswith(tag[:cut])]
    return tuple(sorted(missing, key=len))


def first_decision(text: str) -> int | None:
    """Offset of the first decision point of a whole text, or None."""
    found = _FIRST_DECISION.search(text)
    return found.end() if found else None


@lru_cache(maxsize=64)
def _step_opening(step: int) -> re.Pattern[str]:
    return re.compile(rf"(?:\n|<think>)[ \t]*Step {step}:")


def opens_step(text: str, step: int) -> int | None:
    """Offset after the first line `Step {step}:` of the thinking of a whole text, or None."""
    found = _step_opening(step).search("\n" + text)
    if found is None or "</think>" in text[: found.start()]:
        return None
    return found.end() - 1


class HelpTokens:
    """The tokens that start the help phrase, by what is missing of the tag before it.

    `starts` maps "" to the tokens whose text, white space aside, starts the phrase, and e.g. ">" to those that close the tag and start
    the phrase in one piece. `is_space[id]` and `may_matter[id]` (the token can end a tag, or a part of one that another token
    completes together with the phrase's start) let a follower skip all other tokens. `may_open_step[id]`: the token holds a colon.
    `instead` maps each tag to the tokens that begin what the format wants after it in place of the phrase.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self.starts = _help_starts(texts)
        heads = tuple(tag.removesuffix(missing) for missing in self.starts if missing for tag in TAGS if tag.endswith(missing))
        self.is_space = [bool(text) and text.isspace() for text in texts]
        self.may_matter = [
            ">" in text or (bool(text) and any(text.endswith(head) or head.endswith(text) for head in heads)) for text in texts
        ]
        self.may_open_step = [":" in text for text in texts]
        bare = [text.lstrip() for text in texts]
        self.instead = {
            tag: tuple(
                token for token, text in enumerate(bare) if text and (opening.startswith(text) or text.startswith(opening))
            )
            for tag, opening in zip(TAGS, OPENINGS, strict=True)
        }


def _help_starts(texts: Sequence[str]) -> dict[str, tuple[int, ...]]:
    endings = {tag[cut:] for tag in TAGS for cut in range(1, len(tag))} | {""}
    initials = {ending[:1] for ending in endings} | {HELP_PHRASE[0], HELP_PHRASE[0].lower()}
    starts: dict[str, list[int]] = {"": []}
    for token, text in enumerate(texts):
        if text.lstrip()[:1] not in initials:
            continue
        for ending in endings:
            if text.startswith(ending) and starts_help(text[len(ending) :]):
                starts.setdefault(ending, []).append(token)
    return {ending: tuple(tokens) for ending, tokens in starts.items()}


def _more_closings(before: str, text: str) -> int:
    """How many `</think>` end in `text`."""
    return (before + text).count("</think>") - before.count("</think>")


class ResponseFollower:
    """Follows the text of one response token by token.

    `pending` is the key into `HelpTokens.starts` that applies to the next token, or None where no decision can be taken; `steps_over`
    becomes true when the step beyond `max_steps` is opened. `prefix` is text of the same turn written before.
    """

    __slots__ = ("_closings", "_limit", "_tail", "_tokens", "pending", "steps_over")

    def __init__(self, tokens: HelpTokens, max_steps: int | None, prefix: str = "") -> None:
        self._tokens = tokens
        self._limit = max_steps
        self._tail = ("\n" + prefix)[-_TAIL_CHARACTERS:]
        self._closings = prefix.count("</think>")
        self.steps_over = False
        self.pending = self._pending_now()

    def add(self, token: int, text: str) -> None:
        """Take the next token and its text."""
        tokens = self._tokens
        before = self._tail
        self._tail = (before + text)[-_TAIL_CHARACTERS:]
        if tokens.may_matter[token]:
            self._closings += _more_closings(before, text)
            self.pending = self._pending_now()
        elif not (tokens.is_space[token] and self.pending == ""):
            self.pending = None
        if self._limit is not None and tokens.may_open_step[token] and not self._closings:
            self.steps_over = _step_opening(self._limit + 1).search(before + text) is not None

    @property
    def may_ask(self) -> bool:
        """Whether the help phrase would be a request here, as edge.dagrpo.format has it: after the only `</think>`, or in the answer
        right after that. Elsewhere it would be text, which a person reads."""
        missing = self.pending or ""
        closings = self._closings + _more_closings(self._tail, missing)
        return closings == 1 and _AFTER_THINKING.search(self._tail + missing) is not None

    @property
    def request_text(self) -> str:
        """What makes a request for help of the response, where a decision can be taken now."""
        missing = self.pending or ""
        return missing + HELP_PHRASE + ("</answer>" if self.last_tag(missing) == "<answer>" else "")

    def last_tag(self, missing: str = "") -> str:
        """The tag that the decision follows, once `missing` is written."""
        return next((tag for tag in TAGS if (self._tail + missing).rstrip().endswith(tag)), TAGS[0])

    def _pending_now(self) -> str | None:
        for missing in missing_tag_ends(self._tail):
            if self._tokens.starts.get(missing):
                return missing
        return None

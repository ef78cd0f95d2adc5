"""Holds a response to its form or to a grammar: which tokens may come next, which must, and where the decision to ask is taken.

The form's own texts are written in the tokenizer's own way of writing them, so that the model reads what it would have written; between
them llguidance says which tokens a line or an answer may have. Lines and answers that reach the form's limits are ended, and so is
thinking that would leave no room for an answer: every response ends well formed within its limit of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Literal

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from edge.core.errors import EdgeError, Unsupported, UsageError
from edge.core.forms import THINKING_ENDS, ResponseForm
from edge.core.types import FORCED, AllowedTokens, Turn
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.sampling import Floats

Place = Literal["line", "next line", "decision", "answer", "end"]
_SLACK = 8
"""Tokens that ending a line or an answer may take: the rest of a character, braces that are open."""


class FormVocabulary:
    """What a guide needs of a vocabulary.

    `pieces`: the bytes of each token, b"" for those without a text. `tokenise`: ids of a text as a response has it. `end` ends a turn.
    """

    def __init__(self, pieces: Sequence[bytes], tokenise: Callable[[str], Sequence[int]], end: int) -> None:
        self.size, self.end, self._pieces, self._tokenise = len(pieces), end, pieces, tokenise
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Tokens(pieces, end)))
        self.bytes = -(-self.size // 8)
        """Of a set of tokens."""
        self._outside: dict[bytes, NDArray[np.bool_]] = {}

    def ids(self, text: str) -> list[int]:
        """Ids of a text that a form writes."""
        found = list(self._tokenise(text))
        written = b"".join(self._pieces[token] for token in found)
        # tokenizers that put a space before a text would write another one
        return found if written == text.encode() else list(self.tokenizer.greedy_tokenize(text))

    def matcher(self, grammar: str) -> LLMatcher:
        """What follows a grammar in llguidance's dialect of Lark. A text that the grammar forces may be spelt in any tokens."""
        return LLMatcher(self.tokenizer, f'%llguidance {{"no_forcing": true}}\n{grammar}', log_level=0)

    def outside(self, bits: bytes) -> NDArray[np.bool_]:
        """True for each token [V] that is not in a set given as bits, the first token's the lowest of the first byte."""
        if bits not in self._outside:
            inside = np.unpackbits(np.frombuffer(bits, dtype=np.uint8), count=self.size, bitorder="little")
            self._outside[bits] = inside == 0
        return self._outside[bits]


class _Tokens:
    """A vocabulary as llguidance reads one; tokens without a text are marked by a first byte that no text has."""

    def __init__(self, pieces: Sequence[bytes], end: int) -> None:
        self.eos_token_id, self.bos_token_id = end, None
        self.tokens = [piece or b"\xff<%d>" % token for token, piece in enumerate(pieces)]

    def __call__(self, text: bytes) -> list[int]:
        """Texts are not tokenised by it."""
        return []


class Grammar:
    """Implements `TokenFilter` for one response by a grammar in llguidance's dialect of Lark. Raises Unsupported for what is none."""

    def __init__(self, vocabulary: FormVocabulary, text: str) -> None:
        self._vocabulary = vocabulary
        self._matcher = vocabulary.matcher(text)
        if self._matcher.is_error():
            raise Unsupported("this form of answer cannot be followed", parameter="grammar", hint="use a simpler schema")

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        if token == self._vocabulary.end:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]))

    def restrict(self, logits_V: Floats) -> None:
        """Make impossible, in place, what the grammar does not take next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        logits_V[np.unpackbits(bits, count=self._vocabulary.size, bitorder="little") == 0] = -np.inf

    def accept(self, token: int) -> None:
        """The next token is this one, which is allowed."""
        if token != self._vocabulary.end:
            self._matcher.consume_token(token)


class Guide:
    """Follows one response.

    `opening` are the tokens that every response begins with; the guide begins after them. `forced` is the token that comes next whatever
    the model wants, -1 where there is a choice; `allowed` has what to choose from. `deciding`: that choice is the decision, between `ask`
    and `answer`. `rest`: the forced tokens to the end, once no choice is left.
    """

    def __init__(self, form: ResponseForm, vocabulary: FormVocabulary, max_tokens: int) -> None:
        self._form, self._vocabulary, self._left = form, vocabulary, max_tokens
        self._matchers = {
            place: vocabulary.matcher(grammar)
            for place, grammar in (("line", form.line_grammar), ("answer", form.answer_grammar))
        }
        self._help, self._answer = (vocabulary.ids(text) for text in (HELP_PHRASE, form.begins_answer))
        self._ending = vocabulary.ids(THINKING_ENDS)
        self.ask, self.answer = self._help[0], self._answer[0]
        self._place: Place = "line"
        self._step, self._written = 1, 0
        self._matcher = self._matchers["line"].deep_copy()
        self.opening = vocabulary.ids(form.begins_line(1))
        self._text: list[int] = []
        self._closer = -1
        self._left -= len(self.opening)
        least = len(self.opening) + _SLACK + self._reserve + 1
        if max_tokens < least:
            raise UsageError(f"a response of this form needs {least} tokens, not {max_tokens}", hint="raise max_tokens")

    def turn(self, text: str) -> Turn | None:
        """A text in this form as a turn of the model; None where it is not, or goes beyond a limit. The guide stays at the beginning."""
        places = [FORCED] * len(self.opening)
        ids, guide, sets = list(self.opening), self.fork(), dict[bytes, int]()
        written = self._form.parts(text)
        for token in [one for part in written or () for one in self._vocabulary.ids(part)][len(ids) :]:
            if guide.rest:
                break
            if guide.forced >= 0 and guide.forced != token:
                return None
            if guide.forced >= 0 or guide.deciding:
                places.append(FORCED)
            elif guide.outside(bits := guide.allowed())[token]:
                return None
            else:
                places.append(sets.setdefault(bits, len(sets)))
            ids.append(token)
            guide.accept(token)
        if not guide.rest:
            return None
        return Turn((*ids, *guide.rest), AllowedTokens((*places, *[FORCED] * len(guide.rest)), tuple(sets)))

    def fork(self) -> Guide:
        """One for another response, at the same place."""
        other = copy(self)
        other._matcher, other._text = self._matcher.deep_copy(), list(self._text)
        return other

    @property
    def forced(self) -> int:
        """The token that must come next, -1 where there is a choice."""
        return self._text[0] if self._text else self._closer

    @property
    def deciding(self) -> bool:
        """Whether the next token is the decision."""
        return self._place == "decision" and not self._text

    @property
    def rest(self) -> list[int]:
        """All that is left, where no choice is; else nothing."""
        return self._text if self._place == "end" else []

    def outside(self, bits: bytes) -> NDArray[np.bool_]:
        """True for each token [V] that is not in a set that `allowed` gave."""
        return self._vocabulary.outside(bits)

    def allowed(self) -> bytes:
        """The set of tokens that may come next, as bits."""
        if self._place == "next line":
            return self._set_of(self._next_line[0], self._ending[0])
        if self._place == "decision":
            return self._set_of(self.ask, self.answer)
        bits: bytes = self._matcher.compute_bitmask()
        return bits[: self._vocabulary.bytes]

    def accept(self, token: int) -> None:
        """The next token is this one: the forced one, or one that is allowed."""
        self._left -= 1
        if self._text:
            del self._text[0]
        elif self._place == "next line":
            if token == self._ending[0]:
                self._enter("decision", self._ending)
            else:
                text, self._step = self._next_line, self._step + 1
                self._enter("line", text)
        elif self._place == "decision":
            if token == self.ask:
                self._enter("end", [*self._help, self._vocabulary.end])
            else:
                self._enter("answer", self._answer)
        else:
            self._follow(token)
        if not self._text and self._place in self._matchers:
            self._closer = self._closing_token()

    @property
    def _next_line(self) -> list[int]:
        return self._vocabulary.ids(self._form.begins_line(self._step + 1))

    @property
    def _reserve(self) -> int:
        """Tokens that ending the thinking and answering take at the most."""
        return len(self._ending) + len(self._answer) + self._form.answer_tokens + self._closing

    @property
    def _closing(self) -> int:
        return len(self._vocabulary.ids(self._form.ends_answer)) + _SLACK + 1

    def _enter(self, place: Place, text: Sequence[int]) -> None:
        """Go on at a place, whose text has begun with its first token."""
        self._place, self._text, self._written, self._closer = place, list(text[1:]), 0, -1
        if place in self._matchers:
            self._matcher = self._matchers[place].deep_copy()

    def _follow(self, token: int) -> None:
        """A token of a line or of an answer's content."""
        if not self._matcher.consume_token(token):
            raise EdgeError(f"token {token} does not fit the response's form")
        self._written += 1
        if self._place == "line" and self._matcher.is_accepting():
            more = self._step < self._form.max_steps and self._left > self._reserve + self._form.line_tokens + _SLACK
            self._place, self._closer = "next line" if more else "decision", -1
            self._text = [] if more else list(self._ending)
        elif self._place == "answer" and (rest := self._matcher.compute_ff_bytes()):
            self._text = [*self._vocabulary.ids(rest.decode()), self._vocabulary.end]
            self._place, self._closer = "end", -1

    def _closing_token(self) -> int:
        """What ends a line or an answer that has reached its limit, as soon as the grammar lets it; -1 before."""
        in_line = self._place == "line"
        limit, kept = (self._form.line_tokens, self._reserve) if in_line else (self._form.answer_tokens, self._closing)
        if self._written < limit and self._left > kept + _SLACK:
            return -1
        outside = self._vocabulary.outside(self.allowed())
        closers = (self._vocabulary.ids(text)[0] for text in (("\n",) if in_line else self._form.closers))
        return next((token for token in closers if not outside[token]), -1)

    def _set_of(self, *tokens: int) -> bytes:
        bits = bytearray(self._vocabulary.bytes)
        for token in tokens:
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

"""Holds a response to its form or to a grammar: which tokens may come next, which must, and where the decision to ask is taken.

The form's own texts are written in the tokenizer's own way of writing them, so that the model reads what it would have written; between
them llguidance says which tokens a line or an answer may have. Lines and answers that reach the form's limits are ended, and so is
thinking that would leave no room for an answer: every response ends well formed within its limit of tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from functools import cached_property
from typing import Literal, Protocol

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper
from numpy.typing import NDArray

from edge.core.errors import EdgeError, Unsupported
from edge.core.forms import THINKING_ENDS, PlainForm, ReasonedForm
from edge.core.types import FORCED, AllowedTokens, Turn
from edge.dagrpo.prompts import HELP_PHRASE
from edge.inference.sampling import Floats

Place = Literal["line", "next line", "decision", "answer", "end"]
_LEAST_LINE = 16
"""Tokens that are left for another line where one begins."""
_SLACK = 8
"""Tokens that ending a line or an answer may take: the rest of a character, braces that are open."""


class FormVocabulary:
    """What guides and grammars need of a vocabulary.

    `pieces`: the bytes of each token, b"" for those without a text. `tokenise`: ids of a text as a response has it. `end` ends a turn;
    None for a model that has no such token.
    """

    def __init__(self, pieces: Sequence[bytes], tokenise: Callable[[str], Sequence[int]], end: int | None) -> None:
        self.size, self.pieces, self._tokenise = len(pieces), pieces, tokenise
        self.end = [] if end is None else [end]
        self._outside: dict[bytes, NDArray[np.bool_]] = {}

    @cached_property
    def tokenizer(self) -> LLTokenizer:
        """What grammars need of the vocabulary; it takes a while to make."""
        return LLTokenizer(TokenizerWrapper(_Tokens(self.pieces, self.end[0] if self.end else 0)))

    def ids(self, text: str) -> list[int]:
        """Ids of a text that a form writes. Raises Unsupported for a vocabulary that cannot spell it."""
        # the second way is for tokenizers that put a space before a text
        for found in (list(self._tokenise(text)), list(self.tokenizer.greedy_tokenize(text))):
            if self.text_of(found) == text.encode():
                return found
        raise Unsupported(
            f"the model's vocabulary cannot spell {text!r}", parameter="model.responses", hint="set model.responses to free"
        )

    def text_of(self, token_ids: Sequence[int]) -> bytes:
        """What tokens write; those that end a turn write nothing."""
        return b"".join(self.pieces[token] for token in token_ids)

    def set_of(self, tokens: Iterable[int]) -> bytes:
        """A set of tokens as bits, the first token's the lowest of the first byte."""
        bits = bytearray(-(-self.size // 8))
        for token in tokens:
            bits[token // 8] |= 1 << token % 8
        return bytes(bits)

    def matcher(self, grammar: str) -> LLMatcher:
        """What follows a grammar in llguidance's dialect of Lark. A text that the grammar forces may be spelt in any tokens."""
        return LLMatcher(self.tokenizer, f'%llguidance {{"no_forcing": true}}\n{grammar}', log_level=0)

    def outside(self, bits: bytes) -> NDArray[np.bool_]:
        """True for each token [V] that is not in a set."""
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
    """Implements `TokenFilter` for one response by a grammar in llguidance's dialect of Lark. Raises Unsupported for what is none, and for
    a model that cannot end its turn.
    """

    def __init__(self, vocabulary: FormVocabulary, text: str) -> None:
        self._vocabulary, self._matcher = vocabulary, vocabulary.matcher(text)
        if self._matcher.is_error():
            raise Unsupported("this form of answer cannot be followed", parameter="grammar", hint="use a simpler schema")
        if not vocabulary.end:
            raise Unsupported("the model has no token that ends a turn", parameter="grammar", hint="use free text")

    def allows(self, token: int) -> bool:
        """Whether this token may come next."""
        if token in self._vocabulary.end:
            return bool(self._matcher.is_accepting())
        return bool(self._matcher.validate_tokens([token]))

    def restrict(self, logits_V: Floats) -> None:
        """Make impossible, in place, what the grammar does not take next."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        logits_V[np.unpackbits(bits, count=self._vocabulary.size, bitorder="little") == 0] = -np.inf

    def accept(self, token: int) -> None:
        """The next token is this one, which is allowed."""
        if token not in self._vocabulary.end:
            self._matcher.consume_token(token)


class Guide(Protocol):
    """Follows one response of a form."""

    opening: Sequence[int]
    """What every response begins with; the guide begins after it."""
    ask: int
    """The token that asks, where the decision is taken; -1 for a form that decides before its first token."""
    least: int
    """The lowest limit of tokens that a response may have."""

    def turn(self, text: str, max_tokens: int) -> Turn | None:
        """A text in this form as a turn of the model; None where it is not, or goes beyond a limit. The guide stays at the beginning."""
        ...

    def fork(self, max_tokens: int) -> Guide:
        """One for a response of at most so many tokens, which are not fewer than `least`; at the same place."""
        ...

    @property
    def forced(self) -> int:
        """The token that must come next, -1 where there is a choice."""
        ...

    @property
    def deciding(self) -> bool:
        """Whether that choice is the decision to ask."""
        ...

    @property
    def rest(self) -> Sequence[int] | None:
        """The forced tokens to the end, once no choice is left; None before."""
        ...

    def allowed(self, *, may_ask: bool = True) -> bytes:
        """The set of tokens that may come next, as bits; where the decision is taken also without asking."""
        ...

    def outside(self, bits: bytes) -> NDArray[np.bool_]:
        """True for each token [V] that is not in a set that `allowed` gave."""
        ...

    def accept(self, token: int) -> None:
        """The next token is this one: the forced one, or one that is allowed."""
        ...


class OptionsGuide:
    """Of a plain response that is one of few answers."""

    def __init__(self, form: PlainForm, vocabulary: FormVocabulary) -> None:
        """Raises Unsupported where the tokens of an option are the beginning of another one's."""
        self._vocabulary = vocabulary
        self._left = [[*vocabulary.ids(text), *vocabulary.end] for text in dict.fromkeys(form.options)]
        self.opening: Sequence[int] = ()
        self.ask = -1
        self.least = max(map(len, self._left))
        self._written = 0
        for text in self._left:
            if any(other is not text and other[: len(text)] == text for other in self._left):
                raise Unsupported(
                    f"an option begins with another one, and the model has no token that ends a turn: {list(form.options)}",
                    parameter="model.responses",
                    hint="give the options other names, or set model.responses to free",
                )

    def turn(self, text: str, max_tokens: int) -> Turn | None:
        """One of the options as a turn of the model; None for any other text."""
        guide, places, sets = self.fork(max_tokens), list[int](), dict[bytes, int]()
        ids = [*self._vocabulary.ids(text), *self._vocabulary.end] if text else []
        if ids not in self._left or len(ids) > max_tokens:
            return None
        for token in ids:
            bits = guide.allowed()
            places.append(FORCED if guide.forced >= 0 else sets.setdefault(bits, len(sets)))
            guide.accept(token)
        return Turn(tuple(ids), AllowedTokens(tuple(places), tuple(sets)))

    def fork(self, max_tokens: int) -> OptionsGuide:
        """Another one at the same place."""
        other = copy(self)
        other._left = list(self._left)
        return other

    @property
    def forced(self) -> int:
        """The token that must come next, -1 where there is a choice."""
        following = self._following
        return next(iter(following)) if len(following) == 1 else -1

    @property
    def deciding(self) -> bool:
        """Never: the turn decides before it."""
        return False

    @property
    def rest(self) -> Sequence[int] | None:
        """All that is left, where no choice is; None before."""
        return self._left[0][self._written :] if len(self._left) == 1 and self._written else None

    def allowed(self, *, may_ask: bool = True) -> bytes:
        """The tokens with which the answers that are left go on."""
        return self._vocabulary.set_of(self._following)

    def outside(self, bits: bytes) -> NDArray[np.bool_]:
        """True for each token [V] that is not in a set that `allowed` gave."""
        return self._vocabulary.outside(bits)

    def accept(self, token: int) -> None:
        """The next token is this one."""
        self._left = [text for text in self._left if text[self._written : self._written + 1] == [token]]
        self._written += 1

    @property
    def _following(self) -> set[int]:
        return {text[self._written] for text in self._left if len(text) > self._written}


class ReasonedGuide:
    """Of a reasoned response: the decision is between `ask` and the first token of what begins an answer."""

    def __init__(self, form: ReasonedForm, vocabulary: FormVocabulary) -> None:
        self._form, self._vocabulary = form, vocabulary
        self._matchers = {
            place: vocabulary.matcher(grammar)
            for place, grammar in (("line", form.line_grammar), ("answer", form.answer_grammar))
        }
        self._help, self._answer = (vocabulary.ids(text) for text in (HELP_PHRASE, form.begins_answer))
        self._ending = vocabulary.ids(THINKING_ENDS)
        self.ask = self._help[0]
        self._place: Place = "line"
        self._step, self._written = 1, 0
        self._matcher = self._matchers["line"].deep_copy()
        self.opening: Sequence[int] = vocabulary.ids(form.begins_line(1))
        self._text: list[int] = []
        self._closer = -1
        self._closing = len(vocabulary.ids(form.ends_answer)) + _SLACK + 1
        """Tokens that ending the content of an answer takes at the most."""
        self._reserve = len(self._ending) + len(self._answer) + form.answer_tokens + self._closing
        """Tokens that ending the thinking and answering take at the most."""
        self.least = len(self.opening) + _SLACK + self._reserve + 1
        self._left = 0

    def turn(self, text: str, max_tokens: int) -> Turn | None:
        """A text in this form as a turn of the model; None where it is not, or goes beyond a limit. The guide stays at the beginning."""
        parts = self._form.parts(text)
        if not parts or max_tokens < self.least:
            return None
        places = [FORCED] * len(self.opening)
        ids, guide, sets = list(self.opening), self.fork(max_tokens), dict[bytes, int]()
        for token in [one for part in parts for one in self._vocabulary.ids(part)][len(ids) :]:
            if guide.rest is not None:
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
        if guide.rest is None or self._vocabulary.text_of([*ids, *guide.rest]) != "".join(parts).encode():
            return None
        return Turn((*ids, *guide.rest), AllowedTokens((*places, *[FORCED] * len(guide.rest)), tuple(sets)))

    def fork(self, max_tokens: int) -> ReasonedGuide:
        """One for a response of at most so many tokens, which are not fewer than `least`; at the same place."""
        other = copy(self)
        other._left = max_tokens - len(self.opening)
        other._matcher, other._text = self._matcher.deep_copy(), list(self._text)
        return other

    def after_thinking(self) -> ReasonedGuide:
        """One for a turn whose thinking is written already."""
        other = copy(self)
        other._place, other._text, other.opening = "decision", [], ()
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
    def rest(self) -> list[int] | None:
        """All that is left, where no choice is; None before."""
        return self._text if self._place == "end" else None

    def outside(self, bits: bytes) -> NDArray[np.bool_]:
        """True for each token [V] that is not in a set that `allowed` gave."""
        return self._vocabulary.outside(bits)

    def allowed(self, *, may_ask: bool = True) -> bytes:
        """The set of tokens that may come next, as bits; where the decision is taken also without asking."""
        if self._place == "next line":
            return self._vocabulary.set_of((self._next_line[0], self._ending[0]))
        if self._place == "decision":
            return self._vocabulary.set_of((self.ask, self._answer[0]) if may_ask else self._answer[:1])
        bits: bytes = self._matcher.compute_bitmask()
        return bits[: -(-self._vocabulary.size // 8)]

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
                self._enter("end", [*self._help, *self._vocabulary.end])
            else:
                self._enter("answer", self._answer)
        else:
            self._follow(token)
        if not self._text and self._place in self._matchers:
            self._closer = self._closing_token()

    @property
    def _next_line(self) -> list[int]:
        return self._vocabulary.ids(self._form.begins_line(self._step + 1))

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
            more = self._step < self._form.max_steps and self._left > self._reserve + _LEAST_LINE + _SLACK
            self._place, self._closer = "next line" if more else "decision", -1
            self._text = [] if more else list(self._ending)
        elif self._place == "answer" and ((rest := self._matcher.compute_ff_bytes()) or self._matcher.is_accepting()):
            self._text = [*self._vocabulary.ids(rest.decode()), *self._vocabulary.end]
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

"""Keys, tokens and passwords in a text.

Stricter than edge.core.secret_forms, which cuts rather too much out of logs: here a program must stay one, so that `token = s.split()`
is not a secret.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence

from edge.core.secret_forms import SECRET_FORMS
from edge.privacy.findings import PrivateSpan

_VENDORS = tuple(
    re.compile(form)
    for form in (
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
        r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{16}\b",
        r"\b(?:ghp|gho|ghu|ghs|ghr|github_pat|glpat|npm|pypi|dop_v1|shpat|sq0atp|hf|xai|gsk)[_-][A-Za-z0-9_-]{16,}",
        r"\b(?:sk|pk|rk)[-_](?:[a-z]{1,16}[-_]){0,3}[A-Za-z0-9_-]{16,}",
        r"\bxox[abeoprs]-[A-Za-z0-9-]{10,}",
        r"\bxapp-[A-Za-z0-9-]{10,}",
        r"https://hooks\.slack\.com/services/[A-Za-z0-9/_-]{10,}",
        r"\bAIza[A-Za-z0-9_-]{30,}",
        r"\bya29\.[A-Za-z0-9_-]{20,}",
        r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}",
        r"\b(?:AC|SK)[0-9a-f]{32}\b",
        r"\b[0-9a-f]{32}-us[0-9]{1,2}\b",
        r"\b[MNO][A-Za-z0-9_-]{23,25}\.[A-Za-z0-9_-]{6}\.[A-Za-z0-9_-]{27,38}(?![A-Za-z0-9_-])",
        r"(?<=AccountKey=)[A-Za-z0-9+/]{40,90}={0,2}",
    )
)
_BEARER = re.compile(r"(?i)\b(?:bearer|basic)\s+(?=[^\s\"']*[\d/+_=-])([A-Za-z0-9._~+/=-]{12,})")
_BEGINS = r"(?:(?<![^\W_])|(?-i:(?<=[a-z])(?=[A-Z])))"
"""Where a name begins, `my_` or `my` before it or not. No pattern walks over the text before it: that takes quadratic time."""
_NAME = (
    rf"{_BEGINS}(?:api[_-]?key|secret(?:[_-]?(?:access[_-]?)?key)?|access[_-]?key|(?:auth|access|refresh)[_-]?token|token|credential"
    r"|client[_-]?secret|private[_-]?key)"
)
_CALLED_PASSWORD = rf"{_BEGINS}(?:password|passwd|pass ?phrase|passwort|kennwort|pwd|pass(?=[\"']?[:=])|contraseña|mot de passe)"
_NAMED = re.compile(rf"(?i){_NAME}[\"']?\s{{0,8}}(?:[:=]|\bis\b)\s{{0,8}}[\"'`]?([A-Za-z0-9._~+/=!@#$%^&*-]{{8,}})")
_PASSWORDS = re.compile(
    rf"(?i){_CALLED_PASSWORD}[\"']?(?:\s{{0,8}}(?::=|[:=]|\b(?:is|was|ist|war|lautet)\b)|(?<=-password)|(?<=-passwd))\s{{0,8}}"
    r"(?:\"([^\"\n]{1,120})\"|'([^'\n]{1,120})'|`([^`\n]{1,120})`|([^\s\"'`,;()\[\]{}<>]{4,}))"
)
_PHRASES = re.compile(
    rf"(?i){_CALLED_PASSWORD}(?:\s{{0,8}}:[ \t]{{1,4}}|\s{{1,8}}(?:is|was|ist|war|lautet)\b:?[ \t]{{1,4}})"
    r"([^\W_][\w'’-]{0,30}(?:[ \t]{1,3}[^\W_][\w'’-]{0,30}){1,15})(?!\w)"
)
_CLAUSE_ENDS = re.compile(r"\s*(?:[.,;:!?)\n]|\Z|[-–—] )")
_PINS = re.compile(
    r"(?:\b(?i:pin)(?i: code| number)?\s{0,4}(?::|=|\b(?i:is|was|ist|war|lautet)\b)|\bPIN)\s{0,4}(\d(?:[ -]?\d){3,11})(?![\w.,]?\d)"
)
_GIVEN_TO_PROGRAMS = (
    re.compile(r"\b(?:mysql|mariadb|mysqldump|mysqladmin)\b[^\n|;]{0,200}?\s-p([^\s\"'|;]{3,64})"),
    re.compile(r"\b(?:curl|wget)\b[^\n|;]{0,200}?\s(?:-u|--user)[ =]?[\"']?[^\s:\"']{1,64}:([^\s\"']{1,120})"),
    re.compile(r"(?i)<(?:password|passwd|pwd|secret|token)>([^<>\n]{1,120})</"),
)
_NAMED_HEX = re.compile(r"(?i)(?<![^\W_])key[\"']?\s{0,8}[:=]\s{0,8}[\"']?([0-9a-f]{32,128})(?![0-9a-z])")


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_CODE_WORDS = _words("""
    str string int none null true false input getpass os.environ self undefined required optional text varchar bytes
    wrong correct incorrect secret hidden very quite strong weak not too the case stored valid invalid hashed encrypted
""")
_ARTICLES = _words("a an the der die das")
_CLAUSE_WORDS = _words("""
    and or but because since so if when while until unless as than then which who what where why how please thanks i i'm
    it it's we you they he she can can't cannot could should must may might will won't would und oder aber weil wenn
""")
"""After one of these a sentence goes on, and no password follows."""
_SENTENCE_WORDS = (
    _ARTICLES
    | _CLAUSE_WORDS
    | _words("""
    this that these those there here its is isn't are was were be been being has have had do does did doesn't don't no
    nor never also of in on at to from for with without by about into over under after before during using via per
    between still already again only needs nicht zu
    """)
)
"""A password of several words seldom begins so."""
_NEVER_FIRST = frozenset({"not", "too", "very", "quite"})
_FEWEST_WORDS_IN_DOUBT = 4
_LONG_WORD = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{32,}={0,2}(?![A-Za-z0-9+/_=-])")
_BASE64 = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{16,4096}={0,2}(?![A-Za-z0-9+/_=-])")
_BITS_OF_A_KEY, _BITS_OF_A_NAMED_KEY = 4.2, 3.0


def secrets_in(text: str) -> Iterator[PrivateSpan]:
    """Private keys, vendors' keys, tokens, passwords after their name, and words that can only be random."""
    for form in (*_VENDORS, *SECRET_FORMS):
        yield from (_found(match, 0) for match in form.finditer(text) if not _is_plain_words(match.group()))
    yield from (_found(match, 1) for match in _BEARER.finditer(text))
    for match in _NAMED.finditer(text):
        if _looks_random(match.group(1), _BITS_OF_A_NAMED_KEY):
            yield _found(match, 1)
    for form in (*_GIVEN_TO_PROGRAMS, _NAMED_HEX):
        yield from (_found(match, 1) for match in form.finditer(text))
    yield from _passwords(text)
    yield from _phrases(text)
    yield from (_found(match, 1) for match in _PINS.finditer(text))
    yield from (_found(match, 0) for match in _LONG_WORD.finditer(text) if _is_random_word(match.group()))


def encoded_texts(text: str) -> Iterator[tuple[int, int, str]]:
    """Words that are base64 of a readable text: start, end, and that text."""
    for match in _BASE64.finditer(text):
        if (plain := _decoded(match.group())) is not None:
            yield match.start(), match.end(), plain


def _passwords(text: str) -> Iterator[PrivateSpan]:
    for match in _PASSWORDS.finditer(text):
        group = match.lastindex or 4
        value = match.group(group)
        if group == 4 and (_is_code(value) or text[match.end() : match.end() + 1] in ("(", "[", "{")):
            continue
        if value.strip() and value.strip().lower() not in _CODE_WORDS:
            trimmed = len(value.rstrip(".!?:")) if group == 4 else len(value)
            if trimmed >= 3:
                yield PrivateSpan(match.start(group), match.start(group) + trimmed, "secret", value[:trimmed])


def _phrases(text: str) -> Iterator[PrivateSpan]:
    """Passwords of several words without quotes, up to where the clause ends or a sentence goes on."""
    for match in _PHRASES.finditer(text):
        words = list(re.finditer(r"\S+", match.group(1)))
        is_whole = _CLAUSE_ENDS.match(text, match.end()) is not None
        length = _words_of_password([word.group().lower() for word in words], is_whole=is_whole)
        if length > 1:
            start, end = match.start(1), match.start(1) + words[length - 1].end()
            yield PrivateSpan(start, end, "secret", text[start:end])


def _words_of_password(words: Sequence[str], *, is_whole: bool) -> int:
    """How many of some small words are a password; 0 where they describe it. `is_whole`: the clause ends there."""
    is_state = words[0] in _CODE_WORDS
    ending = _SENTENCE_WORDS if is_state or not words[0].isalpha() else _CLAUSE_WORDS
    length = next((place for place, word in enumerate(words) if place and word in ending), len(words))
    if words[0] in _ARTICLES:
        return length if length >= _FEWEST_WORDS_IN_DOUBT else 0
    if is_state:
        is_all = is_whole and length == len(words) >= _FEWEST_WORDS_IN_DOUBT
        return length if is_all and words[0] not in _NEVER_FIRST else 0
    return 0 if words[0] in _SENTENCE_WORDS else length


def _is_code(value: str) -> bool:
    """An unquoted value that a program would have there: a type, a constant, or something of an object."""
    return re.fullmatch(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+", value) is not None or value.rstrip(".!?:").lower() in _CODE_WORDS


def _is_plain_words(text: str) -> bool:
    """`sk-learn-style-names` are no keys: a key has a digit, or both cases in disorder."""
    return not any(char.isdigit() for char in text) and text.islower()


def _is_random_word(word: str) -> bool:
    classes = sum(any(test(char) for char in word) for test in (str.isdigit, str.isupper, str.islower))
    wordy = max(map(len, re.split(r"[/_+-]|(?<=[a-z])(?=[A-Z])", word))) < 6
    return classes == 3 and not wordy and _looks_random(word, _BITS_OF_A_KEY)


def _looks_random(text: str, bits: float) -> bool:
    """Shannon's entropy per character is at least this many bits, and it has a digit; names in a program have none."""
    if not any(char.isdigit() for char in text) or _is_code(text):
        return False
    return -sum(count / len(text) * math.log2(count / len(text)) for count in Counter(text).values()) >= bits


def _decoded(word: str) -> str | None:
    bare = word.rstrip("=")
    try:
        plain = base64.b64decode(bare + "=" * (-len(bare) % 4), altchars=b"-_" if "-" in bare or "_" in bare else None).decode(
            "utf-8"
        )
    except (binascii.Error, ValueError):
        return None
    return plain if all(char.isprintable() or char in "\r\n\t" for char in plain) else None


def _found(match: re.Match[str], group: int) -> PrivateSpan:
    return PrivateSpan(match.start(group), match.end(group), "secret", match.group(group))

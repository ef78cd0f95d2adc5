"""Numbers that belong to somebody: cards, bank accounts and telephones.

A number without a plus sign is a telephone's only where it is written as one, with brackets or single separators, or follows a word
such as `phone`; between operators, after a currency or in a longer row of numbers it is a quantity. Ten digits in one are a telephone's
where the plan of the region has them and the clause does not count, compare or number anything with them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from edge.privacy.findings import PrivateSpan

_CARD = re.compile(
    r"(?<![\w.,])(?:\d{13,19}|\d{4}(?:(?:[ \n.-]| {2,3})\d{4}){3}(?:[ \n-]\d{1,3})?|3[47]\d{2}[ \n-]\d{6}[ \n-]\d{5})(?![\w]|[.,]\d)"
)
_CARD_BRANDS = re.compile(
    r"4\d{12}(?:\d{3})?(?:\d{3})?|5[1-5]\d{14}|2(?:2[2-9]|[3-6]\d|7[01])\d{13}|2720\d{12}|3[47]\d{13}|3(?:0[0-5]|[68]\d)\d{11}"
    r"|6(?:011|5\d\d|4[4-9]\d)\d{12}|35\d{14}|62\d{14,17}|(?:5[06-9]|6\d)\d{10,17}"
)
_IBAN = re.compile(r"(?<![A-Za-z0-9])[A-Za-z]{2}\d{2}(?:[ \n-]?[A-Za-z0-9]{4}){2,7}(?:[ \n-]?[A-Za-z0-9]{1,4})?(?![A-Za-z0-9])")
_SHORTEST_IBAN, _LONGEST_IBAN = 15, 34
_FEWEST_DIGITS, _MOST_DIGITS = 7, 15
_PHONE_WORD = re.compile(
    r"(?i)(?<![a-z])(?:tel|telephone|telefon|phone|mobile|mobil|handy|cell|fax|whatsapp|signal|sms|call(?: (?:me|us|him|her|them))?"
    r"|dial|ring|hotline|tél|teléfono|telefono|(?:text|reach|message) (?:me|us|him|her|them)"
    r"|(?:my|his|her|our|their|contact|callback|office|home|work)(?: new| old| private| direct)? (?:number|line))"
    r"(?:\.|:| no\.?| number| nr\.?| is| at| on| under|=|[\"'`*_]| ){0,5}\s?$"
)
_AFTER_WORD = re.compile(r"\+?\(?\d[\d ()./-]{5,20}\d")
_SEVERAL = re.compile(r"\d[\d\s().+/-]{5,}\d")
_OPERATOR_BEFORE = re.compile(r"(?:[=+*/×÷^<>$€£%#]|[\d\])}]\s?,|[\d)\]] ?[-x])\s*$|[\d.]$|\d $")
_OPERATOR_AFTER = re.compile(r"^\s*(?:[=*×÷^<>%€£$]|\+\s?\d|[-/]\s+\d|,\d|\.\d|\s\d)")
_PLUS_AS_OPERATOR = re.compile(r"(?:[\d)\]}=]|\b[a-z]) *$")
_WRITTEN_AS_PHONE = re.compile(
    r"\(?\d{1,6}\)?(?:[ .-]|(?<=\)))\d{2,}(?:[ .-]?\d{2,}){0,4}|0\d{1,4}/\d{3,}[\d -]*|\d{1,2}(?:[ .-]\d{2,4}){2,5}"
)
_NORTH_AMERICAN = re.compile(r"(?<![\w.+-])(?:1[ .-])?(?:\(\d{3}\) ?|\d{3}[ .-])\d{3}[ .-]\d{4}(?!\w)")
"""Written in no other country so: recognised without knowing the region."""
_IN_ONE_ANYWHERE, _IN_ONE_IN_NORTH_AMERICA = re.compile(r"0\d{9,10}"), re.compile(r"1?[2-9]\d{9}")
_NORTH_AMERICA = 1
"""The country code."""
_LARGEST_INTEGERS = frozenset({"2147483647", "2147483648"})
"""Numbers of Dallas, by the plan."""
_COUNTED_BEFORE = re.compile(
    r"(?i)(?:\b(?:is|are|was|were|be|of|than|by|equals?|about|approximately|exactly|total|sum|product|result|answer|value|seed|hash|key|id|order"
    r"|invoice|ticket|account|item|part|serial|isbn|number|no\.?|nr\.?|code|version|times?|plus|minus|over|count|year|population|ha[sd]|have"
    r"|with|until|returns?|returned|prints?|gives?|gets?|got|makes?|made|input|output|stdin|timestamp|mod|modulo|only|each|all)\b:?"
    r"|[#=&/_\\{\[]|\w\(|[\d\"'`)\]}]:|_\w{1,16}:)"
    r"[\s\"'`*(]*$"
)
_CLAUSE_ENDS = re.compile(
    r"[\"'`*]{0,2}(?:\s*(?:$|[\n;|!?)])|[,.](?:\s|$)|\s(?:or|and|if|when|for|to|at|on|in|after|before|please|thanks|tonight|today|tomorrow"
    r"|now|asap|between|from|any ?time|during|so|but)\b(?! +\d))"
)
_DATE = re.compile(r"\d{4}[-./]\d{1,2}[-./]\d{1,2}|\d{1,2}[-./]\d{1,2}[-./]\d{4}")


def cards(text: str) -> Iterator[PrivateSpan]:
    """Card numbers of 13 to 19 digits with a known beginning and a right check digit, in one or in groups."""
    for match in _CARD.finditer(text):
        digits = _digits(match.group())
        if _CARD_BRANDS.fullmatch(digits) and passes_luhn(digits):
            yield PrivateSpan(match.start(), match.end(), "card", digits)


def ibans(text: str) -> Iterator[PrivateSpan]:
    """Bank accounts (IBAN) with right check digits, in one or in groups."""
    for match in _IBAN.finditer(text):
        for end in _ends_of_groups(match):
            account = re.sub(r"[ \n-]", "", text[match.start() : end]).upper()
            if _SHORTEST_IBAN <= len(account) <= _LONGEST_IBAN and _iban_checks(account):
                yield PrivateSpan(match.start(), end, "iban", account)
                break


def phones(text: str, region: str | None) -> Iterator[PrivateSpan]:
    """Telephone numbers: international ones, those of `region` (two letters; None: of no region), and any after a word such as "phone"."""
    if _SEVERAL.search(text) is None:
        return
    yield from _behind_a_word(text)
    yield from _of_north_america(text)
    yield from _of_a_plan(text, region)


def _behind_a_word(text: str) -> Iterator[PrivateSpan]:
    for match in _AFTER_WORD.finditer(text):
        digits = _digits(match.group())
        enough = _FEWEST_DIGITS <= len(digits) <= _MOST_DIGITS and not _DATE.fullmatch(match.group())
        if enough and _PHONE_WORD.search(text[max(0, match.start() - 32) : match.start()]):
            yield PrivateSpan(match.start(), match.end(), "phone", digits)


def _of_north_america(text: str) -> Iterator[PrivateSpan]:
    from phonenumbers import is_valid_number, parse

    for match in _NORTH_AMERICAN.finditer(text):
        if _is_alone(text, match.start(), match.end()) and is_valid_number(number := parse(match.group(), "US")):
            yield PrivateSpan(match.start(), match.end(), "phone", f"+{number.country_code}{number.national_number}")


def _of_a_plan(text: str, region: str | None) -> Iterator[PrivateSpan]:
    from phonenumbers import Leniency, PhoneNumberMatcher

    for match in PhoneNumberMatcher(text, region or "ZZ", leniency=Leniency.VALID, max_tries=65535):
        start, raw = match.start, match.raw_string
        if raw[:1] == "(" and raw[1:].isdigit():  # digits in one after a bracket that is not the number's
            start, raw = start + 1, raw[1:]
        if not raw[:1].isdigit() and raw[:1] not in "+(＋":
            continue
        code, end = match.number.country_code or 0, start + len(raw)
        international = raw.lstrip("(").startswith("+") and _PLUS_AS_OPERATOR.search(text[max(0, start - 8) : start]) is None
        written = not raw.startswith("+") and _WRITTEN_AS_PHONE.fullmatch(raw) is not None
        national = (written or _is_in_one(text, start, end, raw, code)) and _is_alone(text, start, end)
        if (international or national) and not _DATE.fullmatch(raw):
            yield PrivateSpan(start, end, "phone", f"+{code}{match.number.national_number}")


def _is_alone(text: str, start: int, end: int) -> bool:
    """Neither between operators nor in a row of numbers."""
    before, after = text[max(0, start - 8) : start], text[end : end + 8]
    return _OPERATOR_BEFORE.search(before) is None and _OPERATOR_AFTER.search(after) is None


def _is_in_one(text: str, start: int, end: int, raw: str, country_code: int) -> bool:
    """Digits in one that end a clause in which nothing is counted."""
    north_american = country_code == _NORTH_AMERICA and _IN_ONE_IN_NORTH_AMERICA.fullmatch(raw) is not None
    return (
        (north_american or _IN_ONE_ANYWHERE.fullmatch(raw) is not None)
        and raw not in _LARGEST_INTEGERS
        and _CLAUSE_ENDS.match(text, end) is not None
        and _COUNTED_BEFORE.search(text[max(0, start - 24) : start]) is None
    )


def _digits(text: str) -> str:
    return "".join(char for char in text if char.isdigit())


def passes_luhn(digits: str) -> bool:
    """Whether the last digit checks the others (Luhn), and they are not all the same."""
    doubled = (sum(divmod(2 * int(digit), 10)) for digit in digits[-2::-2])
    return (sum(map(int, digits[-1::-2])) + sum(doubled)) % 10 == 0 and len(set(digits)) > 1


def _ends_of_groups(match: re.Match[str]) -> Iterator[int]:
    """Where the account may end, longest first: words that follow in capitals look like further groups."""
    yield match.end()
    breaks = [match.start() + place.start() for place in re.finditer(r"[ \n-]", match.group())]
    yield from reversed(breaks)


def _iban_checks(account: str) -> bool:
    turned = account[4:] + account[:4]
    return int("".join(str(int(char, 36)) for char in turned)) % 97 == 1

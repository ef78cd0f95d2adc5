"""Red team of the privacy registry: how many planted secrets are found, and how many false alarms there are.

`python -m tools.experiments.privacy [--count N] [--seed S] [--data FOLDER]` prints two tables. All secrets are made up. A secret counts as
leaked when six tenths of it in one piece remain in the redacted text. Out-of-scope cases are measured too and marked: texts that must be
decoded or understood first.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
import quopri
import random
import string
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from urllib.parse import quote

from edge.core.rng import stream
from edge.privacy.findings import Kind
from edge.privacy.numbers import passes_luhn
from edge.privacy.registry import PrivacyRegistry

TERMS = ("Project Falcon", "Müller", "ACME", "Anneliese", "Blue Heron Ltd", "株式会社秘密")
REGIONS = ("US", "GB", "DE", "FR", "IT", "ES", "NL", "JP", "IN", "BR", "AU", "CH", "SE", "PL", "MX", "ZA")
_WORDS = [
    "meeting", "invoice", "sister", "garden", "report", "winter", "engine", "coffee", "travel", "budget", "lesson", "recipe", "doctor",
    "letter", "music",
]  # fmt: skip
_CLAUSE_ENDS = ["", ".", ", thanks", "\nUser: jo", " and I forgot the rest", "; help"]
_ALNUM = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class Planted:
    """One secret in a text: its kind, its disguise, and whether the registry is meant to find it."""

    kind: Kind
    disguise: str
    secret: str
    text: str
    region: str | None = None
    in_reach: bool = True


@dataclass(slots=True)
class DisguiseTally:
    """The outcomes for the secrets of one kind and disguise."""

    planted: int = 0
    replaced: int = 0
    in_reach: bool = True
    first_leak: str = ""

    @property
    def leaked(self) -> int:
        """Those still to be read."""
        return self.planted - self.replaced


def corpus(seed: int, count: int) -> Iterator[Planted]:
    """`count` texts of every kind and disguise."""
    for kind, make in MAKERS.items():
        for number in range(count):
            rng = stream(seed, "privacy", kind, number)
            secret, region = make(rng)
            yield from _disguised(rng, kind, secret, region)


def measure(planted: Iterator[Planted]) -> dict[tuple[str, str], DisguiseTally]:
    """Redact every text by itself and count."""
    registries: dict[str | None, PrivacyRegistry] = {}
    tallies: dict[tuple[str, str], DisguiseTally] = defaultdict(DisguiseTally)
    for one in planted:
        registry = registries.setdefault(one.region, PrivacyRegistry(terms=TERMS, region=one.region))
        redacted = registry.redacted([one.text])
        tally = tallies[one.kind, one.disguise]
        tally.planted += 1
        tally.in_reach = one.in_reach
        if is_revealed(one.secret, redacted.texts[0]):
            tally.first_leak = tally.first_leak or f"{one.text!r} -> {redacted.texts[0]!r}"
        else:
            tally.replaced += 1
    return tallies


def is_revealed(secret: str, text: str) -> bool:
    """Whether at least six tenths of a secret in one piece are in a text."""
    length = max(2, -(-len(secret) * 6 // 10))
    return any(secret[start : start + length] in text for start in range(len(secret) - length + 1))


def false_positives(texts: Sequence[str], registry: PrivacyRegistry) -> int:
    """Texts in which something is found; none of them holds anything private."""
    return sum(bool(registry.redacted([text]).replaced) for text in texts)


def email(rng: random.Random) -> tuple[str, None]:
    """An address, some with dots, digits, plus parts and long domains."""
    name = rng.choice(["jo", "anna.schmidt", "j.r.r", "kim_lee", "o'neil", "x", "dev-ops", "mia.42"]) + rng.choice(
        ["", "+news", "1987"]
    )
    domain = ".".join(rng.sample(_WORDS, rng.randint(1, 2)))
    return f"{name}@{domain}.{rng.choice(['com', 'org', 'de', 'co.uk', 'museum', 'io', 'xn--p1ai'])}", None


def phone(rng: random.Random) -> tuple[str, str]:
    """A number of one of many countries, in its national or international form."""
    import phonenumbers as plans

    region = rng.choice(REGIONS)
    kind = rng.choice([plans.PhoneNumberType.MOBILE, plans.PhoneNumberType.FIXED_LINE])
    number = plans.example_number_for_type(region, kind)
    assert number is not None
    number.national_number = _another_valid(rng, number, plans)
    form = rng.choice([plans.PhoneNumberFormat.INTERNATIONAL, plans.PhoneNumberFormat.NATIONAL, plans.PhoneNumberFormat.E164])
    return plans.format_number(number, form), region


def _another_valid(rng: random.Random, number: object, plans: object) -> int:
    text = str(number.national_number)  # type: ignore[attr-defined]
    for _ in range(20):
        number.national_number = int(text[:-3] + f"{rng.randrange(1000):03d}")  # type: ignore[attr-defined]
        if plans.is_valid_number(number):  # type: ignore[attr-defined]
            return int(number.national_number)  # type: ignore[attr-defined]
    return int(text)


def path(rng: random.Random) -> tuple[str, None]:
    """A path or a file's name, of one of the systems."""
    name = f"{rng.choice(_WORDS)}_{rng.randrange(100)}.{rng.choice(['pdf', 'docx', 'txt', 'py', 'csv', 'jpg', 'tar.gz'])}"
    user = rng.choice(["jo", "anna", "m.schmidt"])
    forms = [
        f"/home/{user}/{rng.choice(_WORDS)}/{name}", f"/Users/{user}/My Documents/{name}", f"~/{rng.choice(_WORDS)}/{name}",
        f"C:\\Users\\{user}\\{rng.choice(_WORDS)}\\{name}", f"D:/work/{name}", f"\\\\server{rng.randrange(9)}\\share\\{name}",
        f"file:///home/{user}/{name}", f"./{rng.choice(_WORDS)}/{name}", name, f"/var/lib/{user}/{rng.choice(_WORDS)}",
    ]  # fmt: skip
    return rng.choice(forms), None


def key(rng: random.Random) -> tuple[str, None]:
    """A key or token in a vendor's form, or a password after its name."""

    def some(length: int, signs: str = _ALNUM) -> str:
        return "".join(rng.choice(signs) for _ in range(length - 1)) + rng.choice(string.digits)

    capitals = string.ascii_uppercase + string.digits
    forms = [
        f"sk-{some(40)}", f"sk-proj-{some(48)}", f"ghp_{some(36)}", f"github_pat_{some(60)}", f"AKIA{some(16, capitals)}",
        f"xoxb-{some(12, string.digits)}-{some(24)}", f"AIza{some(35)}", f"glpat-{some(20)}", some(44),
        f"eyJhbGciOiJIUzI1NiJ9.{some(30)}.{some(43)}",
        f"-----BEGIN RSA PRIVATE KEY-----\n{some(64)}\n{some(64)}\n-----END RSA PRIVATE KEY-----",
    ]  # fmt: skip
    return rng.choice(forms), None


def password(rng: random.Random) -> tuple[str, None]:
    """A password that the text labels as one."""
    return rng.choice(["hunter", "Zq", "swordfish", "Tr0ub4dor"]) + rng.choice(["", "!"]) + str(
        rng.randrange(10, 10_000)
    ) + rng.choice(["", "$", "x"]), None


def card(rng: random.Random) -> tuple[str, None]:
    """A card number with a right check digit, plain or grouped."""
    start = rng.choice(["4", "51", "55", "2221", "6011"])
    digits = start + "".join(rng.choice(string.digits) for _ in range(15 - len(start)))
    check = next(digit for digit in string.digits if passes_luhn(digits + digit))
    groups = [(digits + check)[place : place + 4] for place in range(0, 16, 4)]
    return rng.choice([" ", "-", ""]).join(groups), None


def iban(rng: random.Random) -> tuple[str, None]:
    """A bank account with right check digits, plain or grouped."""
    country, length = rng.choice([("DE", 22), ("FR", 27), ("GB", 22), ("NL", 18), ("ES", 24)])
    account = "".join(rng.choice(string.digits) for _ in range(length - 4))
    check = 98 - int("".join(str(int(char, 36)) for char in f"{account}{country}00")) % 97
    whole = f"{country}{check:02d}{account}"
    return rng.choice([whole, " ".join(whole[place : place + 4] for place in range(0, length, 4))]), None


def ip(rng: random.Random) -> tuple[str, None]:
    """An address of version 4 or 6."""
    if rng.random() < 0.6:
        return ".".join(str(rng.randint(1, 223)) for _ in range(4)).replace("127.", "126.", 1), None
    groups = [f"{rng.randrange(0x1000, 0xFFFF):x}" for _ in range(8)]
    return rng.choice([":".join(["2001", "db8", *groups[2:]]), f"fe80::{groups[0]}:{groups[1]}", f"2001:db8::{groups[0]}"]), None


def term(rng: random.Random) -> tuple[str, None]:
    """One of the listed terms in some case."""
    chosen = rng.choice(TERMS)
    return rng.choice([chosen, chosen.upper(), chosen.lower()]), None


MAKERS: dict[Kind, Callable[[random.Random], tuple[str, str | None]]] = {
    "email": email, "phone": phone, "path": path, "secret": key, "card": card, "iban": iban, "ip": ip, "term": term,
}  # fmt: skip


def _disguised(rng: random.Random, kind: Kind, secret: str, region: str | None) -> Iterator[Planted]:
    for disguise, (change, kinds, in_reach) in DISGUISES.items():
        if kind in kinds:
            changed = change(rng, secret)
            yield Planted(kind, disguise, changed, _around(rng, changed), region, in_reach)
    if kind == "secret":
        chosen, _ = password(rng)
        name = rng.choice(["password: {}", "my password is {}", "PASSWORD={}", 'passwd = "{}"', "db_password: '{}'"])
        yield Planted(kind, "password after its name", chosen, _in_prose(rng, name.format(chosen)))
        phrase = " ".join(rng.sample(_WORDS, rng.randint(2, 5)))
        saying = rng.choice(["my password is {}", "password: {}", "the passphrase was {}", "My Passphrase is: {}"])
        yield Planted(
            kind, "password of several words", phrase, f"{rng.choice(_WORDS)}; {saying.format(phrase)}{rng.choice(_CLAUSE_ENDS)}"
        )
        pin = f"{rng.randrange(10_000):04d}"
        yield Planted(
            kind, "PIN after its name", pin, _in_prose(rng, rng.choice(["my PIN is {}", "pin: {}", "PIN {}"]).format(pin))
        )
    if kind == "phone":
        number = _north_american(rng)
        grouped = rng.choice(["{}-{}-{}", "({}) {}-{}", "{}.{}.{}", "1-{}-{}-{}"]).format(number[:3], number[3:6], number[6:])
        yield Planted(kind, "North American, region unknown", grouped, _in_prose(rng, grouped))
        sentence = rng.choice(
            ["Try {} tonight.", "Bob {}, Ann is out.", "Ann\n{}", "{}", "Write to {} or come.", "Jo's new one: ({})"]
        )
        yield Planted(kind, "ten digits in one, in prose", number, sentence.format(number), "US")


def _north_american(rng: random.Random) -> str:
    return f"{rng.choice(['415', '212', '604', '787'])}555{rng.randrange(10_000):04d}"


def _around(rng: random.Random, secret: str) -> str:
    """The secret in a sentence, JSON, code, Markdown or a table."""
    return rng.choice([_in_prose, _in_json, _in_code, _in_markdown, _in_table])(rng, secret)


def _in_prose(rng: random.Random, secret: str) -> str:
    before, after = rng.choice(_WORDS), rng.choice(_WORDS)
    return rng.choice(
        [
            f"About the {before}: {secret}, and the {after} is due.",
            f"Please note {secret} for the {before}.",
            f"{before}\n{secret}\n{after}",
        ]
    )


def _in_json(rng: random.Random, secret: str) -> str:
    return json.dumps({"name": rng.choice(_WORDS), "value": secret, "count": rng.randrange(9)}, ensure_ascii=False)


def _in_code(rng: random.Random, secret: str) -> str:
    return f'{rng.choice(_WORDS)} = load("{secret}")  # {rng.choice(_WORDS)}\nprint({rng.choice(_WORDS)})'


def _in_markdown(rng: random.Random, secret: str) -> str:
    return f"## {rng.choice(_WORDS)}\n\n- **{rng.choice(_WORDS)}**: `{secret}`\n- {rng.choice(_WORDS)}"


def _in_table(rng: random.Random, secret: str) -> str:
    return f"| {rng.choice(_WORDS)} | {secret} | {rng.randrange(90)} |"


def _zero_width(rng: random.Random, secret: str) -> str:
    place = rng.randrange(1, len(secret))
    return secret[:place] + rng.choice("\u200b\u200d\u2060\u00ad\ufeff") + secret[place:]


def _full_width(rng: random.Random, secret: str) -> str:
    return "".join(chr(ord(char) + 0xFEE0) if char.isascii() and char.isalnum() else char for char in secret)


def _look_alike(rng: random.Random, secret: str) -> str:
    return secret.translate(str.maketrans("aeopcx", "аеорсх"))


def _entities(rng: random.Random, secret: str) -> str:
    return secret.replace("@", "&#64;").replace(".", "&#x2e;")


_PLAIN = frozenset(MAKERS)
_WORDY: frozenset[Kind] = frozenset({"email", "term"})
_NUMBERS: frozenset[Kind] = frozenset({"phone", "card", "iban", "ip"})
DISGUISES: dict[str, tuple[Callable[[random.Random, str], str], frozenset[Kind], bool]] = {
    "plain": (lambda rng, secret: secret, _PLAIN, True),
    "zero-width character inside": (_zero_width, _WORDY | _NUMBERS, True),
    "full-width letters": (_full_width, _WORDY | _NUMBERS, True),
    "look-alike letters": (_look_alike, _WORDY, True),
    "percent-encoded": (lambda rng, secret: quote(secret, safe=""), _WORDY, True),
    "HTML entities": (_entities, frozenset({"email"}), True),
    "JSON escapes": (lambda rng, secret: "".join(f"\\u{ord(char):04x}" for char in secret), _WORDY, True),
    "base64": (lambda rng, secret: base64.b64encode(f"mail {secret} ok".encode()).decode(), frozenset({"email"}), True),
    "quoted-printable": (
        lambda rng, secret: quopri.encodestring(secret.replace("@", "=40").encode()).decode(),
        frozenset({"email"}),
        False,
    ),
    "spelled out": (lambda rng, secret: secret.replace("@", " at ").replace(".", " dot "), frozenset({"email"}), False),
    "letters apart": (lambda rng, secret: " ".join(secret), _WORDY, False),
}


def ordinary_texts(data: Path | None) -> Iterator[tuple[str, list[str]]]:
    """Texts that hold nothing private: practice items, and the real data sets that are there."""
    from edge.dagrpo.prompts import user_prompt
    from edge.tasks.registry import open_source

    for source in ("practice:group1", "practice:group2"):
        items = islice(open_source(source).train(0), 5000)
        yield source, [f"{user_prompt(item)}\n{item.solution}" for item in items]
    for name in ("gsm8k/test.jsonl", "gsm8k/train_first2000.jsonl", "mmlu_stem/test.jsonl", "humaneval/HumanEval.jsonl.gz"):
        file = None if data is None else data / name
        if file is not None and file.is_file():
            with (gzip.open if file.suffix == ".gz" else open)(file, "rt", encoding="utf-8") as lines:
                yield name, ["\n".join(map(str, json.loads(line).values())) for line in lines]


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=300, help="texts of every kind and disguise")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="folder of real data sets")
    parser.add_argument("--leaks", action="store_true", help="show the first leak of each row")
    options = parser.parse_args()
    print(f"{'kind':<8} {'disguise':<30} {'planted':>7} {'replaced':>8} {'leaked':>6}")
    for (kind, disguise), tally in measure(corpus(options.seed, options.count)).items():
        reach = "" if tally.in_reach else "  (out of reach)"
        print(f"{kind:<8} {disguise:<30} {tally.planted:>7} {tally.replaced:>8} {tally.leaked:>6}{reach}")
        if options.leaks and tally.in_reach and tally.first_leak:
            print(f"    {tally.first_leak}")
    print(f"\n{'texts without anything private':<32} {'texts':>6} {'found in':>8} {'per 1000':>8}")
    for name, texts in ordinary_texts(options.data):
        found = false_positives(texts, PrivacyRegistry(region="US"))
        print(f"{name:<32} {len(texts):>6} {found:>8} {1000 * found / len(texts):>8.2f}")


if __name__ == "__main__":
    main()

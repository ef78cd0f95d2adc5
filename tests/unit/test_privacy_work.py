"""The work of searching for private text grows with the text and not with its square, whatever it contains."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest

from edge.privacy.findings import PrivateSpan
from edge.privacy.known import Known
from edge.privacy.registry import PrivacyRegistry

GENEROUS_S = 120
"""Far beyond what any machine needs: one pattern that takes its square needs hours for these texts, and nothing else needs minutes."""
SIGNS = 'aA0-_.@/:+= "\\'
WORDS = (
    "sk-",
    "PN-",
    "a-c-g-t-",
    "xoxb-",
    "eyJaaaa-",
    "/home/a b ",
    "/home/a b/",
    "a+/",
    "password ",
    "myPassword",
    "jo@x.org ",
    "+1 ",
)
EACH = """
import sys
from edge.privacy.registry import PrivacyRegistry
registry = PrivacyRegistry(terms=["Project Falcon"], never_send=["like:a*b*c"], region="US")
for pattern in sys.stdin.read().split("\\0"):
    text = (pattern * 40_000)[:{length}]
    redacted = registry.redacted([text])
    registry.leaks(redacted.texts, "", redacted.originals)
    registry.cut(text[:4_000])
"""


def search_all(patterns: list[str], length: int) -> None:
    """In a separate process, so that a hanging pattern ends as a failure."""
    script = EACH.replace("{length}", str(length))
    subprocess.run([sys.executable, "-c", script], input="\0".join(patterns), text=True, check=True, timeout=GENEROUS_S)


def test_no_repeated_pair_of_characters_hangs_the_registry() -> None:
    search_all([first + second for first, second in product(SIGNS, repeat=2)], 3_000)


def test_no_repeated_known_trap_hangs_the_registry() -> None:
    search_all(list(WORDS), 20_000)


def test_long_list_of_contacts_is_replaced_completely() -> None:
    lines = [f"person{number}@x{number}.org +49 170 {1000000 + number}" for number in range(1_000)]
    redacted = PrivacyRegistry(region="DE").redacted(["\n".join(lines)])
    assert redacted.replaced == {"email": 1_000, "phone": 1_000}
    assert redacted.restored(redacted.texts[0]).splitlines() == lines


@pytest.mark.parametrize(
    ("kind", "original", "text", "places"),
    [
        ("email", "jo@x.org", "JO@x.org, xjo@x.org, jo@x.orgs, (jo@x.org)", ["JO@x.org", "jo@x.org"]),
        ("path", "/home/jo", "a/home/jo /home/jo", ["/home/jo"]),
        ("secret", "abc-12!", "abc-12!x abc-12!.", ["abc-12!"]),
        ("phone", "+49 30 123456", "4930123456 +49(30)123-456 14930123456 49301234567", ["4930123456", "+49(30)123-456"]),
        ("ip", "::1", "::1 is short", []),
        ("term", "Falcon", "Falcon", []),
    ],
)
def test_text_found_once_is_found_again_completely(kind: str, original: str, text: str, places: list[str]) -> None:
    known = Known([(PrivateSpan(0, len(original), kind, "v"), original)])  # type: ignore[arg-type]
    assert [text[one.start : one.end] for one in known.again(text)] == places

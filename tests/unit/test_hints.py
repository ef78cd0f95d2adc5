"""Which parts of a local attempt may be sent, and which not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.cloud.hints import hint_of, with_hint
from edge.config.schema import AgentConfig
from edge.core.types import Message
from edge.privacy.registry import MOST_DIGITS, private_cut

ASKED = (Message("system", "be brief"), Message("user", "What is 2+2?"))


@pytest.mark.parametrize(
    "private",
    [
        "jo.doe+x@mail.example.org",
        "sk-abcdefghijklmnopqrstuvwx",
        "ghp_abcdefghijklmnop1234",
        "eyJhbGciOi.eyJzdWIi.c2ln",
        "-----BEGIN PRIVATE KEY-----\nMIIB\n-----END PRIVATE KEY-----",
        "4111 1111 1111 1111",
        "4111-1111-1111-1111",
        "+49 170 1234567",
        "0049/170/1234567",
        "DE89370400440532013000",
        "123456789",
        "1,234,567,890",
        "AbCdEf0123456789AbCdEf01",
    ],
)
def test_addresses_keys_and_long_numbers_are_cut(private) -> None:
    text = private_cut(f"first {private} then")
    assert "[cut]" in text and text.startswith("first ") and text.endswith(" then")
    assert private.split("\n")[-1][-6:] not in text


@pytest.mark.parametrize("named", ["password: hunter2", "api_key=abc123", "Authorization: Bearer abcdef123456"])
def test_labelled_secrets_are_redacted(named) -> None:
    assert named[-5:] not in private_cut(f"take {named}")


@pytest.mark.parametrize("plain", ["Step 1: 123 + 4567 = 4690", "2024-11-22", "1/2 + 3/4 = 5/4", "3.14159", "x = 12345678"])
def test_ordinary_steps_stay(plain) -> None:
    assert private_cut(plain) == plain


@given(st.integers(min_value=10**MOST_DIGITS, max_value=10**40), st.text("abc .,", max_size=20))
def test_no_number_of_more_than_eight_digits_remains(number, around) -> None:
    assert str(number) not in private_cut(f"{around} {number} {around}")


def test_hint_is_the_text_before_the_help_request_without_tags() -> None:
    local = "<think>\nStep 1: 2 and 2\n</think>\nI need external assistance."
    assert hint_of(local, 100) == "Step 1: 2 and 2"


@given(st.text(max_size=300), st.integers(min_value=1, max_value=50))
def test_a_hint_is_never_longer_than_allowed(local, most) -> None:
    assert len(hint_of(local, most)) <= most


def test_hint_is_redacted_before_truncation() -> None:
    assert hint_of("call 123456789012 now", 12) == "call [cut] n"


def test_hints_are_off_by_default_and_an_empty_attempt_gives_none() -> None:
    assert AgentConfig().coordinator.hint_chars == 0
    assert with_hint(ASKED, "some steps", 0) == ASKED == with_hint(ASKED, "<think> </think>", 10)
    first, last = with_hint(ASKED, "some steps", 100)
    assert first == ASKED[0] and last.content.startswith("What is 2+2?\n\n") and last.content.endswith("\nsome steps")

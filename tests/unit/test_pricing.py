"""Prices in integers: never below what is due, never a whole micro-USD above, never less for more."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from coordinator.pricing import Price
from edge.core.types import TokenUsage

TOKENS = st.integers(0, 10**9)
PRICES = st.builds(Price, st.integers(0, 10**9), st.integers(0, 10**9))


@given(PRICES, TOKENS, TOKENS)
def test_a_charge_is_the_exact_price_rounded_up(price, tokens_in, tokens_out) -> None:
    exact = Fraction(tokens_in * price.in_uusd_per_mtok + tokens_out * price.out_uusd_per_mtok, 10**6)
    charge = price.charge(TokenUsage(tokens_in, tokens_out))
    assert exact <= charge.uusd < exact + 1
    assert (charge.calls, charge.tokens) == (1, tokens_in + tokens_out)


@given(PRICES, TOKENS, TOKENS, TOKENS, TOKENS)
def test_a_hold_for_more_tokens_covers_the_charge_for_fewer(price, tokens_in, tokens_out, more_in, more_out) -> None:
    charge = price.charge(TokenUsage(tokens_in, tokens_out))
    hold = price.charge(TokenUsage(tokens_in + more_in, tokens_out + more_out))
    assert hold.uusd >= charge.uusd and hold.tokens >= charge.tokens

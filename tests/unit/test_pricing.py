"""Integer prices: never below the exact amount, never a whole micro-USD above, never less for more."""

from __future__ import annotations

from datetime import UTC, date, datetime
from fractions import Fraction
from importlib.resources import files

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from coordinator.calls.prices import NEVER_PRICED, PRICE_FILE, DatedPrices, Price, published_prices, read_price_file
from edge.core.errors import ConfigError
from edge.core.types import TokenUsage
from tests.worlds.prices import price_from

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


def seconds(year: int, month: int, day: int, hour: int = 0) -> float:
    return datetime(year, month, day, hour, tzinfo=UTC).timestamp()


def test_a_price_holds_from_its_day_in_utc_until_the_next_one() -> None:
    old, new = Price(2, 3), Price(5, 7)
    prices = DatedPrices.of([price_from(date(2026, 10, 1), new), price_from(date(2026, 1, 1), old)])
    assert prices.at(seconds(2025, 12, 31, 23)) is None
    assert [prices.at(seconds(2026, 1, 1)), prices.at(seconds(2026, 9, 30, 23))] == [old, old]
    assert [prices.at(seconds(2026, 10, 1)), prices.at(seconds(2040, 1, 1))] == [new, new]


def test_the_price_file_names_its_day_and_source_and_only_whole_sensible_prices() -> None:
    about = yaml.safe_load(files("coordinator").joinpath(PRICE_FILE).read_text(encoding="utf-8"))
    assert date(2024, 1, 1) < about["as_of"] and len(about["source"]) > 20
    for (host, model), prices in published_prices().items():
        assert "." in host and model and prices.entries
        for entry in prices.entries:
            assert entry.from_day <= about["as_of"]
            assert 10_000 <= entry.in_uusd_per_mtok < entry.out_uusd_per_mtok <= 1_000_000_000


def test_published_price_is_found_only_for_the_exact_model_at_the_exact_host() -> None:
    published = published_prices()
    found = published.get(("api.openai.com", "gpt-4o-mini"))
    assert found is not None and found.at(seconds(2026, 1, 1)) == Price(150_000, 600_000)
    assert published.get(("api.openai.com", "gpt-4o-mini-x")) is None
    assert published.get(("my-gateway.example", "gpt-4o-mini")) is None


def test_expired_or_future_price_is_none_with_the_reason() -> None:
    summer = price_from(date(2026, 6, 1), Price(1, 2), until=date(2026, 8, 31))
    prices = DatedPrices.of([summer, price_from(date(2026, 10, 1), Price(3, 4))])
    assert prices.at(seconds(2026, 8, 31, 23)) == Price(1, 2) and prices.why_none(seconds(2026, 8, 31, 23)) == ""
    assert prices.at(seconds(2026, 9, 1)) is None and "2026-08-31" in prices.why_none(seconds(2026, 9, 1))
    assert prices.at(seconds(2026, 5, 31)) is None and "2026-06-01" in prices.why_none(seconds(2026, 5, 31))
    assert prices.at(seconds(2026, 10, 1)) == Price(3, 4)
    assert DatedPrices(()).why_none(0.0) == NEVER_PRICED and Price(1, 2).why_none(0.0) == ""


GOOD = "{from_day: 2026-01-01, in_uusd_per_mtok: 1, out_uusd_per_mtok: 2}"


@pytest.mark.parametrize(
    "rows",
    [
        GOOD.replace("2026-01-01", "soon"),
        GOOD.replace("2026-01-01", "2026-01-01 10:00:00"),
        GOOD.replace(": 1,", ": 1.5,"),
        GOOD.replace(": 1,", ": -1,"),
        GOOD.replace(": 1,", ": yes,"),
        GOOD.replace("}", ", cached: 1}"),
        GOOD.replace("}", ", until_day: 2025-01-01}"),
        f"{GOOD}, {GOOD}",
        f"{GOOD.replace('}', ', until_day: 2026-03-01}')}, {GOOD.replace('2026-01', '2026-02')}",
        "",
        "5",
    ],
)
def test_a_damaged_price_is_named_with_its_host_and_model(rows: str) -> None:
    def file(rows: str) -> str:
        return f"as_of: 2026-02-01\nsource: somewhere\nhosts: {{api.example: {{big: [{rows}]}}}}\n"

    assert ("api.example", "big") in read_price_file(file(GOOD))
    with pytest.raises(ConfigError, match=r"prices\.yaml is damaged") as damaged:
        read_price_file(file(rows))
    assert "\n" not in str(damaged.value)
    assert "api.example big" in str(damaged.value)


@pytest.mark.parametrize("text", ["a: [", "", "as_of: 1\nsource: x\nhosts: {}"])
def test_file_that_is_no_price_file_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"prices\.yaml is damaged"):
        read_price_file(text)

"""Which upstreams a call uses, in which order, and how failures count against them; upstreams, aliases and prices as configuration."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pytest

from coordinator.app import build_upstreams, tariff_of
from coordinator.calls.admission import Gate
from coordinator.calls.breaker import UpstreamOutcome
from coordinator.calls.prices import NO_PRICE, DatedPrices, Price
from coordinator.calls.upstreams import Upstream, UpstreamTable, may_go_elsewhere
from coordinator.config import LegConfig, ServerConfig, UpstreamConfig, resolve_coordinator_config
from coordinator.providers.anthropic import AnthropicProvider
from coordinator.providers.provider import ProviderError
from edge.core.errors import InvalidRequest, NotFound, Unpriced
from tests.worlds.coordinator import PRICE, ProgrammedProvider, call
from tests.worlds.prices import price_from

NOW = 1_790_000_000.0  # 2026-09-21


def leg(name: str, **more: Any) -> LegConfig:
    return LegConfig(upstream=name, **more)


def upstream(name: str, price=PRICE, deadline_s: float = 20.0, max_output_tokens: int = 1000) -> Upstream:
    return Upstream(name, ProgrammedProvider(), f"model-of-{name}", price, Gate(name, 8, 8), deadline_s, max_output_tokens)


def table(*legs: LegConfig, **upstreams: Upstream) -> UpstreamTable:
    named = {leg.upstream: upstream(leg.upstream) for leg in legs} | upstreams
    return UpstreamTable(named, {"smart": legs})


def names(chosen) -> list[str]:
    return [each.alias for each in chosen]


def test_an_upstream_is_an_alias_by_its_own_name() -> None:
    upstreams = table(leg("a"), leg("b"))
    assert names(upstreams.choose(call(model_alias="b"), "q", NOW)) == ["b"]
    assert upstreams.aliases == ("a", "b", "smart")


def test_order_of_a_route_takes_precedence_over_weights() -> None:
    upstreams = table(
        leg("last", weight=1000.0, order=2),
        leg("first", weight=0.001, order=0),
        leg("second", order=1),
    )
    for question in map(str, range(50)):
        assert names(upstreams.choose(call(model_alias="smart"), question, NOW)) == ["first", "second", "last"]


def test_upstreams_of_one_order_share_the_calls_by_weight() -> None:
    upstreams = table(leg("a", weight=3.0), leg("b", weight=1.0))
    first = Counter(names(upstreams.choose(call(model_alias="smart"), str(n), NOW))[0] for n in range(4000))
    assert 2850 < first["a"] < 3150  # 3000 expected, standard deviation 27


def test_same_question_goes_to_the_same_upstreams_again() -> None:
    legs = (leg("a"), leg("b"), leg("c"))
    one, other = table(*legs), table(*reversed(legs))
    for question in map(str, range(50)):
        assert names(one.choose(call(model_alias="smart"), question, NOW)) == names(
            other.choose(call("other", model_alias="smart"), question, NOW)
        )


def test_only_capable_upstreams_are_asked() -> None:
    upstreams = table(leg("small"), leg("large"), small=upstream("small", max_output_tokens=10))
    assert names(upstreams.choose(call(model_alias="smart"), "q", NOW)) == ["large"]
    with pytest.raises(InvalidRequest, match="at most 1000"):
        upstreams.choose(call(model_alias="smart", max_output_tokens=1001), "q", NOW)
    with pytest.raises(NotFound, match="known: large, small, smart"):
        upstreams.choose(call(model_alias="clever"), "q", NOW)


def test_only_upstreams_with_a_price_valid_today_are_asked() -> None:
    tomorrow = DatedPrices.of([price_from(date(2026, 9, 22), PRICE)])
    upstreams = table(
        leg("a"),
        leg("b"),
        leg("c"),
        a=upstream("a", NO_PRICE),
        b=upstream("b", tomorrow),
    )
    assert names(upstreams.choose(call(model_alias="smart"), "q", NOW)) == ["c"]
    with pytest.raises(Unpriced):
        upstreams.choose(call(model_alias="b"), "q", NOW)
    assert names(upstreams.choose(call(model_alias="b"), "q", NOW + 86_400)) == ["b"]


def test_quote_uses_its_day_and_covers_every_bound() -> None:
    dated = upstream(
        "a",
        DatedPrices.of([price_from(date(2026, 1, 1), Price(1_000_000, 0)), price_from(date(2026, 9, 22), Price(9_000_000, 0))]),
    )
    today, tomorrow = dated.quote(call(), NOW), dated.quote(call(), NOW + 86_400)
    assert tomorrow.hold.uusd == 9 * today.hold.uusd
    assert today.price == Price(1_000_000, 0)


@pytest.mark.parametrize(
    ("kind", "executed", "deadline_s", "outcome", "elsewhere"),
    [
        ("refused", False, 20.0, UpstreamOutcome.BAD, True),
        ("dns", False, 20.0, UpstreamOutcome.BAD, True),
        ("tls", False, 20.0, UpstreamOutcome.BAD, True),
        ("http_429", False, 20.0, UpstreamOutcome.BAD, True),
        ("http_401", False, 20.0, UpstreamOutcome.BAD, True),
        ("http_404", False, 20.0, UpstreamOutcome.BAD, True),
        ("http_500", None, 20.0, UpstreamOutcome.BAD, False),
        ("garbage", True, 20.0, UpstreamOutcome.BAD, False),
        ("deadline", None, 20.0, UpstreamOutcome.BAD, False),
        ("deadline", None, 1.0, UpstreamOutcome.NEUTRAL, False),
        ("connect_timeout", False, 20.0, UpstreamOutcome.BAD, True),
        ("connect_timeout", False, 0.1, UpstreamOutcome.NEUTRAL, True),
        ("http_400", False, 20.0, UpstreamOutcome.NEUTRAL, False),
        ("http_413", False, 20.0, UpstreamOutcome.NEUTRAL, False),
        ("http_422", False, 20.0, UpstreamOutcome.NEUTRAL, False),
        ("too_long", False, 20.0, UpstreamOutcome.NEUTRAL, False),
    ],
)
def test_a_failure_counts_against_its_upstream_unless_it_is_the_clients_own(
    kind, executed, deadline_s, outcome, elsewhere
) -> None:
    error = ProviderError("failed", kind=kind, executed=executed)
    assert upstream("a").verdict(error, deadline_s) is outcome
    assert may_go_elsewhere(error) is elsewhere


TWO = """
upstreams:
  cheap:
    provider: openai_compatible
    base_url: https://cheap.example/v1
    model: small
    prices:
      - {in_uusd_per_mtok: 100000, out_uusd_per_mtok: 200000}
      - {from_day: 2026-10-01, in_uusd_per_mtok: 300000, out_uusd_per_mtok: 400000}
  dear:
    provider: anthropic
    model: claude-sonnet-4-5-20250929
    api_key_env: SOME_KEY
    overloaded_is_refusal: true
    breaker: {failures_to_open: 2, first_pause_s: 1}
aliases:
  default:
    - {upstream: cheap, weight: 3}
    - {upstream: dear, order: 1}
"""


def at(year: int, month: int, day: int) -> float:
    return datetime(year, month, day, tzinfo=UTC).timestamp()


def resolved(tmp_path: Path, text: str) -> ServerConfig:
    (tmp_path / "c.yaml").write_text(text)
    return resolve_coordinator_config(tmp_path / "c.yaml").config


def test_a_file_with_dated_prices_and_an_alias_becomes_upstreams_and_a_route(tmp_path: Path) -> None:
    config = resolved(tmp_path, TWO)
    upstreams, routes = build_upstreams(config), config.aliases
    assert upstreams["cheap"].price_at(at(2020, 1, 1)) == Price(100_000, 200_000)
    assert upstreams["cheap"].price_at(at(2026, 10, 1)) == Price(300_000, 400_000)
    assert isinstance(upstreams["dear"].provider, AnthropicProvider)
    assert [(leg.upstream, leg.weight, leg.order) for leg in routes["default"]] == [("cheap", 3.0, 0), ("dear", 1.0, 1)]


def test_a_resolved_configuration_can_be_written_and_read_again(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(TWO)
    (tmp_path / "again.yaml").write_text(resolve_coordinator_config(tmp_path / "c.yaml").to_yaml())
    assert resolve_coordinator_config(tmp_path / "again.yaml").config == resolve_coordinator_config(tmp_path / "c.yaml").config


@pytest.mark.parametrize(
    ("settings", "price"),
    [
        ({}, Price(100_000, 400_000)),  # the bundled model's notional price
        ({"price_in_uusd_per_mtok": 1, "price_out_uusd_per_mtok": 2}, Price(1, 2)),
        ({"prices": [{"in_uusd_per_mtok": 3, "out_uusd_per_mtok": 4}]}, Price(3, 4)),
        (
            {"provider": "openai_compatible", "base_url": "https://api.openai.com/v1", "model": "gpt-4o-mini"},
            Price(150_000, 600_000),
        ),
        ({"provider": "anthropic", "api_key_env": "K", "model": "claude-3-haiku-20240307"}, Price(250_000, 1_250_000)),
        (
            {
                "provider": "anthropic",
                "api_key_env": "K",
                "model": "claude-3-haiku-20240307",
                "base_url": "https://proxy.example",
            },
            None,
        ),
        ({"provider": "openai_compatible", "base_url": "https://api.openai.com/v1", "model": "gpt-next"}, None),
        ({"provider": "openai_compatible", "base_url": "http://127.0.0.1:1/v1"}, None),
    ],
)
def test_cost_of_a_call_is_configured_published_or_unknown(settings, price) -> None:
    tariff = tariff_of(UpstreamConfig.model_validate(settings))
    assert tariff.at(at(2026, 6, 1)) == price

"""Upstreams, aliases and prices as configuration: what is accepted, what is refused, and the cost of a call."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from coordinator.app import build_upstreams, tariff_of
from coordinator.calls.prices import Price
from coordinator.config import ServerConfig, UpstreamConfig, resolve_coordinator_config
from coordinator.providers.anthropic import AnthropicProvider
from edge.core.errors import ConfigError

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


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("aliases: {default: [{upstream: gone}]}", "names upstream gone, which is not configured; known: default"),
        ("aliases: {smart: []}", "at least one upstream"),
        ("aliases: {smart: [{upstream: default}, {upstream: default}]}", "each only once"),
        ("aliases: {smart: [{upstream: default, weight: 0}]}", "greater than 0"),
        ("upstreams: {a: {provider: anthropic}}", "needs api_key or api_key_env"),
        (
            "upstreams: {a: {price_in_uusd_per_mtok: 1, prices: [{in_uusd_per_mtok: 1, out_uusd_per_mtok: 1}]}}",
            "give one of them",
        ),
        ("upstreams: {a: {provider: openai_compatible, base_url: 'http://h/v1', price_in_uusd_per_mtok: 1}}", "give both"),
        (
            "upstreams: {a: {prices: [{in_uusd_per_mtok: 1, out_uusd_per_mtok: 1}, {in_uusd_per_mtok: 2, out_uusd_per_mtok: 2}]}}",
            "two prices from the same day",
        ),
        ("upstreams: {a: {prices: [{in_uusd_per_mtok: 1}]}}", "out_uusd_per_mtok"),
        ("upstreams: {a: {prices: [{from: 2026-01-01, in_uusd_per_mtok: 1, out_uusd_per_mtok: 1}]}}", "from"),
    ],
)
def test_invalid_configuration_is_refused_in_one_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint) as refused:
        resolved(tmp_path, text)
    assert "\n" not in str(refused.value) and "c.yaml" in str(refused.value)

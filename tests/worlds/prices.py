"""Dated prices in the form of a configuration."""

from __future__ import annotations

from datetime import date

from coordinator.calls.prices import Price
from coordinator.config import PriceConfig


def price_from(day: date, price: Price, until: date | None = None) -> PriceConfig:
    """A price from a day on."""
    rates = {"in_uusd_per_mtok": price.in_uusd_per_mtok, "out_uusd_per_mtok": price.out_uusd_per_mtok}
    return PriceConfig(from_day=day, until_day=until, **rates)

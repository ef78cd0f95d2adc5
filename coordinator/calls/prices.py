"""What calls cost. Knows prices, the days they hold from, and token counts, in integers; knows nothing of budgets or providers.

A call is charged at the price of the day it was reserved on (UTC), however long it runs and whatever is configured meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from typing import Annotated

from pydantic import AfterValidator, Field, ValidationError

from coordinator.config import PriceConfig, check_days
from coordinator.ledger.accounts import Amount
from edge.config.section import Section
from edge.core.errors import ConfigError
from edge.core.types import TokenUsage

TOKENS_PER_PRICE_UNIT = 1_000_000
PRICE_FILE = "prices.yaml"
NEVER_PRICED = "none is configured, and none is published for its model at its host"


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-USD per million input and output tokens; as a Tariff, a price that always holds."""

    in_uusd_per_mtok: int
    out_uusd_per_mtok: int

    def charge(self, usage: TokenUsage) -> Amount:
        """One call with this usage, rounded up to whole micro-USD. Never more than the charge for a larger usage."""
        total = usage.input_tokens * self.in_uusd_per_mtok + usage.output_tokens * self.out_uusd_per_mtok
        return Amount(calls=1, tokens=usage.input_tokens + usage.output_tokens, uusd=-(-total // TOKENS_PER_PRICE_UNIT))

    def at(self, now: float) -> Price:
        """This price, always."""
        return self

    def why_none(self, now: float) -> str:
        """There always is one."""
        return ""


@dataclass(frozen=True, slots=True)
class DatedPrices:
    """Prices with the days they hold on."""

    entries: tuple[PriceConfig, ...]
    """In the order of their days, which do not contradict each other (`config.check_days`)."""

    @staticmethod
    def of(entries: Iterable[PriceConfig]) -> DatedPrices:
        """These prices, in whatever order they are given."""
        return DatedPrices(tuple(sorted(entries, key=lambda entry: entry.from_day)))

    def at(self, now: float) -> Price | None:
        """The price of the day that `now` (seconds since the epoch) lies in; None before the first one and after one that has ended."""
        entry, is_over = self._begun(now)
        return None if entry is None or is_over else Price(entry.in_uusd_per_mtok, entry.out_uusd_per_mtok)

    def why_none(self, now: float) -> str:
        """Why there is no price at `now`; "" when there is one."""
        entry, is_over = self._begun(now)
        if entry is None:
            return f"its first price holds from {self.entries[0].from_day} on" if self.entries else NEVER_PRICED
        return f"its price ended on {entry.until_day}" if is_over else ""

    def _begun(self, now: float) -> tuple[PriceConfig | None, bool]:
        """The latest that has begun, and whether it is over."""
        day = datetime.fromtimestamp(now, UTC).date()
        entry = next((entry for entry in reversed(self.entries) if entry.from_day <= day), None)
        return entry, entry is not None and entry.until_day is not None and day > entry.until_day


NO_PRICE = DatedPrices(())
Tariff = Price | DatedPrices
"""What holds at which time: one price for good, or several with their days."""


PublishedPrices = Mapping[tuple[str, str], DatedPrices]
"""By the host that serves a model and the model's name there; a model of a near name may cost something else."""


@cache
def published_prices() -> PublishedPrices:
    """The price file that comes with this package. Raises ConfigError when it is damaged."""
    return read_price_file(files("coordinator").joinpath(PRICE_FILE).read_text(encoding="utf-8"))


class _PriceFile(Section):
    as_of: date
    source: str
    hosts: dict[str, dict[str, Annotated[tuple[PriceConfig, ...], Field(min_length=1), AfterValidator(check_days)]]]


def read_price_file(text: str) -> PublishedPrices:
    """A price file's content. Raises ConfigError that names the entry that is none."""
    import yaml

    hint = "install the package again"
    try:
        file = _PriceFile.model_validate(yaml.safe_load(text))
    except yaml.YAMLError as error:
        raise ConfigError(f"{PRICE_FILE} is damaged: no YAML", hint=hint) from error
    except ValidationError as error:
        first = error.errors()[0]
        raise ConfigError(f"{PRICE_FILE} is damaged: {' '.join(map(str, first['loc']))}: {first['msg']}", hint=hint) from error
    return {(host, model): DatedPrices.of(rows) for host, models in file.hosts.items() for model, rows in models.items()}

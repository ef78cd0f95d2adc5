"""Which upstreams a call uses, in which order, and how failures count against them."""

from __future__ import annotations

from collections import Counter
from datetime import date
from typing import Any

import pytest

from coordinator.calls.admission import Gate
from coordinator.calls.breaker import UpstreamOutcome
from coordinator.calls.prices import NO_PRICE, DatedPrices, Price
from coordinator.calls.upstreams import Upstream, UpstreamTable, may_go_elsewhere
from coordinator.config import LegConfig
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

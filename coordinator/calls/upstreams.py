"""The upstreams by alias: a provider with its model, price, slots, breaker and deadline. Knows what a call may cost and in which order
upstreams are asked; knows nothing of the ledger.

An alias names one upstream, or a route over several. A call's first choice is drawn by weight from the question itself, so that the same
question meets the same upstream (and its stored answer) again, on every replica and in every replay.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from coordinator.calls.admission import Gate
from coordinator.calls.breaker import Breaker, UpstreamOutcome
from coordinator.calls.prices import Price, Tariff
from coordinator.config import LegConfig
from coordinator.ledger.accounts import Amount
from coordinator.providers.provider import CloudProvider, ProviderError, ProviderRequest, why_not_openai
from edge.core.errors import InvalidRequest, NotFound, Unpriced
from edge.core.types import TokenUsage
from edge.rpc.client import CloudCall

_OWN_FAULTS = frozenset({"http_400", "http_413", "http_414", "http_422", "bad_request", "too_long", "not_recorded", "too_large"})
_FULL_DEADLINE = 0.9
_TOOLS_HINT = "ask a model whose upstream is openai_compatible, or leave that out"


@dataclass(frozen=True, slots=True)
class Quote:
    """What one call costs at one upstream."""

    price: Price
    """Of the day the call was asked."""
    hold: Amount
    """The most it can cost."""

    def charge(self, usage: TokenUsage | None) -> Amount:
        """What the call costs by its usage; the hold where none is known, or one without input tokens, which no call has."""
        return self.price.charge(usage) if usage is not None and usage.input_tokens > 0 else self.hold


@dataclass(frozen=True, slots=True)
class Upstream:
    """One upstream."""

    alias: str
    provider: CloudProvider
    model: str
    price: Tariff
    """With NO_PRICE, or on a day without one, calls are refused."""
    gate: Gate
    deadline_s: float
    """For everything together."""
    max_output_tokens: int
    breaker: Breaker = field(default_factory=Breaker)

    def request(self, call: CloudCall, deadline_s: float, idempotency_key: str) -> ProviderRequest:
        """What the provider is asked for this call."""
        return ProviderRequest(
            messages=call.messages,
            model=self.model,
            max_output_tokens=call.max_output_tokens,
            temperature=call.temperature,
            deadline_s=deadline_s,
            idempotency_key=idempotency_key,
            openai_json=call.openai_json,
        )

    def why_not(self, call: CloudCall) -> str:
        """Why it cannot ask what this call holds, in one line; "" when it can."""
        return why_not_openai(self.provider, call.openai_json) if call.openai_json else ""

    def price_at(self, now: float) -> Price | None:
        """The price that holds at `now` (seconds since the epoch), or None."""
        return self.price.at(now)

    def why_unpriced(self, now: float) -> str:
        """Why it has no price at `now`; "" when it has one."""
        return self.price.why_none(now)

    def quote(self, call: CloudCall, now: float) -> Quote:
        """The most this call can cost at the price of `now` (seconds since the epoch). Raises Unpriced."""
        price = self.price_at(now)
        if price is None:
            raise _unpriced(self.alias, self.why_unpriced(now))
        bound = self.provider.input_token_bound(self.request(call, self.deadline_s, ""))
        return Quote(price, price.charge(TokenUsage(bound, call.max_output_tokens)))

    def verdict(self, error: ProviderError, deadline_s: float) -> UpstreamOutcome:
        """What a failure means for this upstream. A request it refuses for its content, or one that was given less time than the
        upstream may take, is the client's own fault.
        """
        hurried = error.kind in ("deadline", "connect_timeout") and deadline_s < _FULL_DEADLINE * self.deadline_s
        return UpstreamOutcome.NEUTRAL if hurried or error.kind in _OWN_FAULTS else UpstreamOutcome.BAD


def may_go_elsewhere(error: ProviderError) -> bool:
    """Whether another upstream may be asked instead: certainly not executed, and not for the request's own fault."""
    return error.executed is False and error.kind not in _OWN_FAULTS


class UpstreamTable:
    """Finds the upstreams of an alias. An alias without a route of its own is the upstream of that name."""

    def __init__(self, upstreams: Mapping[str, Upstream], routes: Mapping[str, Sequence[LegConfig]] | None = None) -> None:
        self._upstreams = dict(upstreams)
        self._routes = {alias: (LegConfig(upstream=alias),) for alias in upstreams} | {
            a: tuple(legs) for a, legs in (routes or {}).items()
        }

        self.most_tokens = {
            alias: max(upstreams[leg.upstream].max_output_tokens for leg in legs) for alias, legs in self._routes.items()
        }
        """By alias the most output tokens that one of its upstreams allows."""

    def all(self) -> tuple[Upstream, ...]:
        """Every upstream as it is now, by name."""
        return tuple(self._upstreams[name] for name in sorted(self._upstreams))

    @property
    def aliases(self) -> tuple[str, ...]:
        """What a call may name, sorted."""
        return tuple(sorted(self._routes))

    def has_choice(self, alias: str) -> bool:
        """Whether an alias has several upstreams, so that `choose` needs to know the question."""
        return len(self._routes.get(alias, ())) > 1

    def choose(self, call: CloudCall, question: str, now: float) -> tuple[Upstream, ...]:
        """The upstreams of a call in the order they are asked; those that can take it and have a price at `now`.

        `question` is a digest of what is asked. Raises NotFound on an unknown alias, InvalidRequest when the call wants more output than
        any of them allows or what none of them can ask, Unpriced.
        """
        legs = self._routes.get(call.model_alias)
        if legs is None:
            raise NotFound(f"no model is called {call.model_alias!r}; known: {', '.join(self.aliases)}")
        if len(legs) > 1:
            legs = tuple(sorted(legs, key=lambda leg: (leg.order, _place(leg, question))))
        ranked = [self._upstreams[leg.upstream] for leg in legs]
        roomy = [upstream for upstream in ranked if call.max_output_tokens <= upstream.max_output_tokens]
        if not roomy:
            most = max(upstream.max_output_tokens for upstream in ranked)
            raise InvalidRequest(f"max_output_tokens is at most {most} for model {call.model_alias!r}")
        able = roomy if not call.openai_json else [upstream for upstream in roomy if not upstream.why_not(call)]
        if not able:
            raise InvalidRequest(
                f"model {call.model_alias!r} does not take this request: {roomy[0].why_not(call)}", hint=_TOOLS_HINT
            )
        priced = tuple(upstream for upstream in able if upstream.price_at(now) is not None)
        if not priced:
            raise _unpriced(call.model_alias, able[0].why_unpriced(now))
        return priced

    def current(self, upstream: Upstream) -> Upstream:
        """An upstream as it is now; its price may have changed since it was chosen."""
        return self._upstreams.get(upstream.alias, upstream)

    def replace_prices(self, prices: Mapping[str, Tariff]) -> None:
        """Other prices for the upstreams named, for calls reserved from now on; a call that runs is settled at the price it was quoted."""
        for name in self._upstreams.keys() & prices.keys():
            self._upstreams[name] = replace(self._upstreams[name], price=prices[name])

    async def start(self) -> None:
        """Start every provider."""
        for upstream in self._upstreams.values():
            await upstream.provider.start()

    async def aclose(self) -> None:
        """Close every provider."""
        for upstream in self._upstreams.values():
            await upstream.provider.aclose()


def _unpriced(alias: str, why: str) -> Unpriced:
    return Unpriced(f"model {alias!r} has no price: {why}", hint="set the upstream's prices in the configuration")


def _place(leg: LegConfig, question: str) -> float:
    """A draw of an exponential variable with rate `weight`: sorted by it, legs come first in proportion to their weights."""
    drawn = hashlib.sha256(f"{question}|{leg.upstream}".encode()).digest()
    uniform = (int.from_bytes(drawn[:7], "big") + 1) / 2.0**56
    return -math.log(uniform) / leg.weight

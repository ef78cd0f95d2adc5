"""A CloudProvider that fails in ways drawn from a seed. `log` records what really happened, which may differ from what the call showed: a
time-out may hide an answer that was billed.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field, fields
from random import Random

from coordinator.providers.provider import (
    ProviderDelta,
    ProviderError,
    ProviderRequest,
    ProviderResult,
    bound_by_bytes,
    pieces_of,
)
from edge.core.types import TokenUsage

_WORDS = ("alpha", "beta", "gamma", "delta", "omega")
_MOST_LATE_S = 3600.0


@dataclass(frozen=True, slots=True)
class FaultRates:
    """The chance of each fault, in [0, 1], together at most 1; what is left is a proper answer. Raises ValueError.

    refuse                 the connection is refused: not executed
    busy                   status 429 with Retry-After: not executed
    rejected               status 400: not executed, for the request's own fault
    timeout_before         silence until the deadline; never executed, which nobody can know
    timeout_after          silence until the deadline; executed and billed
    server_error           status 500; executed and billed in half of the cases
    slow                   the answer comes in slow pieces, perhaps too slow for the deadline
    cut                    the connection breaks in the middle of the answer; executed and billed
    garbage                an answer that is none; executed and billed
    wrong_usage            a proper answer with a usage that is not the truth: above any bound, zero, or missing
    too_long               more output than was asked for, billed as such
    duplicate              the answer comes twice
    """

    refuse: float = 0.0
    busy: float = 0.0
    rejected: float = 0.0
    timeout_before: float = 0.0
    timeout_after: float = 0.0
    server_error: float = 0.0
    slow: float = 0.0
    cut: float = 0.0
    garbage: float = 0.0
    wrong_usage: float = 0.0
    too_long: float = 0.0
    duplicate: float = 0.0

    def __post_init__(self) -> None:
        chances = [getattr(self, name) for name in FAULTS]
        if min(chances) < 0.0 or sum(chances) > 1.0 + 1e-9:
            raise ValueError("chances of faults must lie in [0, 1] and sum up to at most 1")

    @staticmethod
    def evenly(total: float) -> FaultRates:
        """Every fault equally likely, `total` together."""
        return FaultRates(**dict.fromkeys(FAULTS, total / len(FAULTS)))

    def draw(self, random: Random) -> str:
        """The name of a fault, or "" for a proper answer."""
        left = random.random()
        for name in FAULTS:
            left -= getattr(self, name)
            if left < 0.0:
                return name
        return ""


FAULTS = tuple(each.name for each in fields(FaultRates))


@dataclass(slots=True)
class UpstreamEntry:
    """One request as the upstream sees it. `billed` is its real cost; None where it was not executed."""

    billing_key: str
    model: str
    fault: str
    billed: TokenUsage | None = None


@dataclass(slots=True)
class _Plan:
    """The faults of one request, all drawn in advance."""

    entry: UpstreamEntry
    text: str
    truth: TokenUsage
    reported: TokenUsage | None
    latency_s: float
    retry_after_s: float
    executed: bool
    pieces: list[str] = field(default_factory=list)


class FaultyProvider:
    """CloudProvider that fails as `rates` say. The same seed and request (billing key and content) meet the same fate, in whatever order
    requests come. `latency_s` is the usual time to answer; `log` lists every request that reached it, in order.
    """

    def __init__(self, seed: int, rates: FaultRates, *, latency_s: float = 0.5, name: str = "faulty") -> None:
        self.name = name
        self.rates = rates
        self.log: list[UpstreamEntry] = []
        self._seed = seed
        self._latency_s = latency_s

    async def start(self) -> None:
        """Nothing to start."""

    def input_token_bound(self, request: ProviderRequest) -> int:
        """A bound by bytes."""
        return bound_by_bytes(request.messages)

    async def complete(self, request: ProviderRequest) -> ProviderResult:
        """Answer or fail. Raises ProviderError."""
        async for delta in self.stream(request):
            if delta.result is not None:
                return delta.result
        raise AssertionError("a stream ends with a result or an error")

    async def stream(self, request: ProviderRequest) -> AsyncGenerator[ProviderDelta, None]:
        """Answer or fail, piece by piece. Raises ProviderError."""
        plan = self._plan(request)
        end = asyncio.get_running_loop().time() + request.deadline_s
        await _wait(plan.latency_s, end)
        _refuse(plan)
        if plan.executed:
            plan.entry.billed = plan.truth
        await _fail_late(plan, end)
        pause_s = 2.0 * self._latency_s if plan.entry.fault == "slow" else 0.0
        for number, piece in enumerate(plan.pieces):
            await _wait(pause_s, end)
            if plan.entry.fault == "cut" and number == len(plan.pieces) // 2:
                raise ProviderError("the upstream broke off its answer", kind="cut", executed=None)
            yield ProviderDelta(piece)
        result = ProviderResult(plan.text, plan.reported, f"up-{plan.entry.billing_key}", "stop")
        yield ProviderDelta("", result)
        if plan.entry.fault == "duplicate":
            yield ProviderDelta("", result)

    async def aclose(self) -> None:
        """Nothing to close."""

    def _plan(self, request: ProviderRequest) -> _Plan:
        random = Random(_seed_of(self._seed, self.name, request))
        fault = self.rates.draw(random)
        entry = UpstreamEntry(request.idempotency_key, request.model, fault)
        self.log.append(entry)
        words = 3 * request.max_output_tokens if fault == "too_long" else random.randint(1, min(request.max_output_tokens, 12))
        text = " ".join(random.choice(_WORDS) for _ in range(min(words, 1000)))
        truth = TokenUsage(random.randint(1, self.input_token_bound(request)), words)
        return _Plan(
            entry=entry,
            text=text,
            truth=truth,
            reported=_wrong(truth, random) if fault == "wrong_usage" else truth,
            latency_s=self._latency_s * random.uniform(0.5, 1.5),
            retry_after_s=float(random.randint(0, 5)),
            executed=fault != "timeout_before" and (fault != "server_error" or random.random() < 0.5),
            pieces=pieces_of(text),
        )


def _refuse(plan: _Plan) -> None:
    """Fail without executing. Raises ProviderError."""
    match plan.entry.fault:
        case "refuse":
            raise ProviderError("the upstream cannot be reached", kind="refused", executed=False)
        case "busy":
            message = "the upstream answered with HTTP status 429"
            raise ProviderError(message, kind="http_429", executed=False, retry_after_s=plan.retry_after_s)
        case "rejected":
            raise ProviderError("the upstream answered with HTTP status 400", kind="http_400", executed=False)


async def _fail_late(plan: _Plan, end: float) -> None:
    """Fail after a possible or certain execution, without an answer. Raises ProviderError."""
    match plan.entry.fault:
        case "timeout_before" | "timeout_after":
            await _wait(_MOST_LATE_S, end)
        case "server_error":
            raise ProviderError("the upstream answered with HTTP status 500", kind="http_500", executed=None)
        case "garbage":
            raise ProviderError("the upstream's answer is not what it should be", kind="garbage", executed=True)


async def _wait(seconds: float, end: float) -> None:
    """Wait, until the deadline at the latest. Raises ProviderError when that is first."""
    left_s = end - asyncio.get_running_loop().time()
    await asyncio.sleep(max(0.0, min(seconds, left_s)))
    if seconds > left_s:
        raise ProviderError("the upstream did not answer in time", kind="deadline", executed=None)


def _wrong(truth: TokenUsage, random: Random) -> TokenUsage | None:
    """A usage that is not the truth."""
    return random.choice([TokenUsage(truth.input_tokens + 10**9, truth.output_tokens), TokenUsage(0, 0), None])


def _seed_of(seed: int, name: str, request: ProviderRequest) -> int:
    turns = [(turn.role, turn.content) for turn in request.messages]
    key = repr((seed, name, request.idempotency_key, request.model, turns))
    return int.from_bytes(hashlib.sha256(key.encode("utf-8", "replace")).digest()[:8], "big")

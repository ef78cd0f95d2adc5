"""An alias over two upstreams, over real gRPC: which one is asked, what is held and charged, and the device's result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path

import pytest

from coordinator.app import Coordinator
from coordinator.calls.admission import Gate
from coordinator.calls.breaker import Breaker, BreakerState
from coordinator.calls.broker import Broker
from coordinator.calls.flights import FlightProgress
from coordinator.calls.prices import DatedPrices, Price
from coordinator.calls.upstreams import Upstream, UpstreamTable
from coordinator.config import BreakerConfig, BudgetsConfig, LegConfig, ServerConfig, TaskConfig
from coordinator.control.steps import StepController
from coordinator.ledger.accounts import CallState
from coordinator.ledger.budgets import BudgetBook
from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.ledger.verify import verify
from edge.core.errors import CoordinatorUnavailable, OutcomeUnknown
from edge.rpc.grpc_client import GrpcCoordinatorClient
from edge.testing.clock import ManualClock
from tests.until import until
from tests.worlds.coordinator import PRICE, Held, ProgrammedProvider, answer, call, connected, failing, fleet_use
from tests.worlds.prices import price_from

DEAR = Price(10_000_000, 20_000_000)  # ten times PRICE
HOLD = 10 + 4 * len("what is 2+2?") + 2 * 20
CHARGE = 10 + 2 * 5
ONCE = {"max_retries": 0}
BREAKER = BreakerConfig(failures_to_open=3, first_pause_s=30.0)


class Pair:
    """Upstreams of the alias "default": `first`, then `second` at ten times the price, and where a test wants it `third`."""

    def __init__(self, first, second=answer, *, slots: int = 8) -> None:
        self.third = ProgrammedProvider()
        self.first, self.second = ProgrammedProvider(first), ProgrammedProvider(second)
        self.store = MemoryLedgerStore()
        self.upstreams = {
            "first": self._upstream("first", self.first, PRICE, slots),
            "second": self._upstream("second", self.second, DEAR, slots),
            "third": self._upstream("third", self.third, DEAR, slots),
        }

    @staticmethod
    def _upstream(name: str, provider: ProgrammedProvider, price, slots: int) -> Upstream:
        return Upstream(name, provider, f"{name}-model", price, Gate(name, slots, 0), 20.0, 1000, Breaker(BREAKER))

    @asynccontextmanager
    async def serving(
        self, folder: Path, names: tuple[str, ...] = ("first", "second"), **config
    ) -> AsyncIterator[GrpcCoordinatorClient]:
        legs = [{"upstream": name, "order": order} for order, name in enumerate(names)]
        upstreams = {"upstreams": {"first": {}, "second": {}, "third": {}}, "aliases": {"default": legs}}
        listen = {"listen": (f"unix:{folder}/c.sock",), "state_dir": str(folder)}
        settings = ServerConfig.model_validate({**listen, **upstreams, **config})
        async with Coordinator(settings, store=self.store, upstreams=self.upstreams), connected(folder, **ONCE) as client:
            yield client

    def asked(self) -> tuple[int, ...]:
        """Requests that reached each of them."""
        return tuple(len(provider.requests) for provider in (self.first, self.second, self.third))

    async def fleet(self) -> tuple[int, int]:
        """Micro-USD committed and reserved over everything."""
        (_, committed), (_, reserved) = await fleet_use(self.store)
        return committed, reserved

    async def journal(self) -> list[tuple[str, dict]]:
        """(kind, body) of every entry about attempts."""
        entries = [(entry.kind, json.loads(entry.body)) for entry in await self.store.read_journal(0, 1000)]
        return [(kind, body) for kind, body in entries if "attempt" in body]


@pytest.mark.parametrize("kind", ["refused", "dns", "tls", "connect_timeout", "http_429", "http_401"])
async def test_unexecuted_call_goes_to_the_second_upstream_as_another_attempt(tmp_path, kind) -> None:
    pair = Pair(failing(kind))
    async with pair.serving(tmp_path) as client:
        completion = await client.complete(call(), 5.0)
        assert (completion.text, completion.model, completion.charged_uusd) == ("WHAT IS 2+2?", "second-model", 10 * CHARGE)
        assert await pair.fleet() == (10 * CHARGE, 0)
        attempts = await pair.journal()
    assert [(kind, body["attempt"]) for kind, body in attempts] == [
        ("reserve", 1),
        ("refunded", 1),
        ("reserve", 2),
        ("completed", 2),
    ]
    assert [body["hold"][2] for kind, body in attempts if kind == "reserve"] == [HOLD, 10 * HOLD]
    keys = [provider.requests[0].idempotency_key for provider in (pair.first, pair.second)]
    assert keys == ["local|k1|1", "local|k1|2"]
    assert verify(pair.store.tables).ok


@pytest.mark.parametrize(("kind", "executed"), [("http_500", None), ("deadline", None), ("cut", None), ("garbage", True)])
async def test_possibly_executed_call_goes_to_no_other_upstream(tmp_path, kind, executed) -> None:
    pair = Pair(failing(kind, executed))
    async with pair.serving(tmp_path) as client:
        with pytest.raises(OutcomeUnknown):
            await client.complete(call(), 5.0)
        assert await pair.fleet() == (HOLD, 0)
    assert pair.asked() == (1, 0, 0)


@pytest.mark.parametrize("kind", ["http_400", "http_413", "http_422", "too_long"])
async def test_client_error_goes_to_no_other_upstream_and_opens_no_breaker(tmp_path, kind) -> None:
    pair = Pair(failing(kind))
    async with pair.serving(tmp_path) as client:
        for number in range(2 * BREAKER.failures_to_open):
            with pytest.raises(CoordinatorUnavailable) as caught:
                await client.complete(call(f"k{number}", f"question {number}"), 5.0)
            assert caught.value.reason == "UPSTREAM_REJECTED"
        pair.first.behaviour = answer
        assert (await client.complete(call("good", "a good question"), 5.0)).model == "first-model"
    assert pair.asked()[1] == 0


async def test_at_most_one_extra_attempt_is_made(tmp_path) -> None:
    pair = Pair(failing(), failing("http_429", retry_after_s=7.0))
    async with pair.serving(tmp_path, ("first", "second", "third")) as client:
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call(), 5.0)
        assert await pair.fleet() == (0, 0)
    assert pair.asked() == (1, 1, 0)
    assert (caught.value.reason, caught.value.retry_after_s, caught.value.metadata["cause"]) == (
        "UPSTREAM_FAILED",
        7.0,
        "http_429",
    )


async def test_second_upstream_beyond_the_budget_is_not_asked(tmp_path) -> None:
    pair = Pair(failing())
    async with pair.serving(tmp_path, budgets={"fleet": {"spend_limit_uusd": 9 * HOLD}}) as client:
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call(), 5.0)
        assert caught.value.reason == "UPSTREAM_FAILED" and await pair.fleet() == (0, 0)
        pair.first.behaviour = answer
        assert (await client.complete(call(), 5.0)).charged_uusd == CHARGE
    assert pair.asked() == (2, 0, 0)


async def test_failing_upstream_is_skipped_and_costs_no_attempt(tmp_path) -> None:
    pair = Pair(failing())
    async with pair.serving(tmp_path) as client:
        for number in range(BREAKER.failures_to_open + 2):
            assert (await client.complete(call(f"k{number}", f"question {number}"), 5.0)).model == "second-model"
        assert pair.asked() == (BREAKER.failures_to_open, BREAKER.failures_to_open + 2, 0)
        last = [body for kind, body in await pair.journal() if kind == "reserve"][-1]
    assert last["attempt"] == 1 and last["model"] == "second-model"


async def test_with_all_upstreams_skipped_the_device_gets_a_retry_delay(tmp_path) -> None:
    pair = Pair(failing("http_429", retry_after_s=40.0), failing("http_429", retry_after_s=20.0))
    async with pair.serving(tmp_path) as client:
        with pytest.raises(CoordinatorUnavailable):
            await client.complete(call(), 5.0)
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call("k2", "another"), 5.0)
        assert caught.value.reason == "UPSTREAM_OPEN"
        assert caught.value.retry_after_s is not None and 15.0 < caught.value.retry_after_s <= 20.0
        assert await pair.fleet() == (0, 0)
    assert pair.asked() == (1, 1, 0)


async def test_stored_answer_is_returned_while_every_upstream_is_skipped(tmp_path) -> None:
    pair = Pair(answer)
    async with pair.serving(tmp_path) as client:
        first = await client.complete(call("k1"), 5.0)
        pair.first.behaviour, pair.second.behaviour = failing("http_500", None, 60.0), failing("http_500", None, 60.0)
        for number in range(2):
            with pytest.raises(OutcomeUnknown):
                await client.complete(call(f"bad{number}", f"question {number}"), 5.0)
        with pytest.raises(CoordinatorUnavailable) as caught:
            await client.complete(call("new", "a new question"), 5.0)
        assert caught.value.reason == "UPSTREAM_OPEN"
        assert (await client.complete(call("k1"), 5.0)).text == first.text
        with pytest.raises(OutcomeUnknown):
            await client.complete(call("bad0", "question 0"), 5.0)


async def test_a_recovered_upstream_is_probed_once_and_then_asked_again(tmp_path) -> None:
    pair = Pair(failing("http_429", retry_after_s=0.2))
    async with pair.serving(tmp_path) as client:
        assert (await client.complete(call("k1"), 5.0)).model == "second-model"
        pair.first.behaviour = answer
        breaker = pair.upstreams["first"].breaker
        await until(lambda: breaker.state(asyncio.get_running_loop().time()) is BreakerState.HALF_OPEN)
        assert (await client.complete(call("k2", "another"), 5.0)).model == "first-model"
        assert breaker.state(asyncio.get_running_loop().time()) is BreakerState.CLOSED


async def test_full_upstream_is_skipped(tmp_path) -> None:
    held = Held()
    pair = Pair(held, slots=1)
    async with pair.serving(tmp_path) as client:
        running = asyncio.create_task(client.complete(call("k1"), 10.0))
        await held.reached.wait()
        assert (await client.complete(call("k2", "another"), 5.0)).model == "second-model"
        held.release.set()
        assert (await running).model == "first-model"


async def test_stream_starts_once_after_a_fallback() -> None:
    pair, clock, progress = Pair(failing()), ManualClock(), FlightProgress()
    table = UpstreamTable(pair.upstreams, {"default": (LegConfig(upstream="first"), LegConfig(upstream="second", order=1))})
    broker = Broker(pair.store, table, StepController(pair.store, {"*": TaskConfig()}, clock), BudgetBook(BudgetsConfig()), clock)
    completion = await broker.complete("d1", call(), 10.0, progress)
    pieces = [progress.pieces.get_nowait() for _ in range(progress.pieces.qsize())]
    assert completion.model == "second-model" and pieces[0] == "" and pieces[-1] is None
    assert "".join(piece or "" for piece in pieces) == completion.text and pieces.count("") == 1


async def test_call_is_charged_at_the_price_of_its_reservation_day(tmp_path) -> None:
    clock, held = ManualClock(1_790_000_000.0), Held()  # 2026-09-21
    provider = ProgrammedProvider(held)
    prices = DatedPrices.of(
        [price_from(date.fromisoformat("2026-09-01"), PRICE), price_from(date.fromisoformat("2026-09-22"), DEAR)],
    )
    settings = ServerConfig.model_validate({"listen": (f"unix:{tmp_path}/c.sock",), "state_dir": str(tmp_path)})
    upstream = Upstream("default", provider, "m", prices, Gate("default", 8, 0), 20.0, 1000)
    store = MemoryLedgerStore()
    async with (
        Coordinator(settings, store=store, upstreams={"default": upstream}, clock=clock),
        connected(tmp_path, **ONCE) as client,
    ):
        running = asyncio.create_task(client.complete(call("k1"), 10.0))
        await held.reached.wait()
        clock.advance(86_400.0)
        held.release.set()
        assert (await running).charged_uusd == CHARGE
        assert (await client.complete(call("k2", "another day"), 5.0)).charged_uusd == 10 * CHARGE
    assert (await store.get_call("local", "k1")).state is CallState.COMPLETED

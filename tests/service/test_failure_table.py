"""The failure table of the operator's README, checked against a coordinator with a real HTTP upstream: each fault matches one row."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from random import Random

import pytest

from coordinator.ledger.stores.memory import MemoryLedgerStore
from coordinator.providers.http import HttpLimits
from edge.core.errors import CoordinatorError, InvalidRequest, NotFound
from tests.worlds.coordinator import TOOLS, call, connected, running_coordinator
from tests.worlds.http_api import brokered
from tests.worlds.upstream_server import (
    Behaviour,
    answers,
    completion,
    disconnects,
    hangs,
    sends,
)
from tools.simulate.faults.upstream import SimulatedUpstream, UpstreamMood

README = (Path(__file__).parents[2] / "coordinator" / "README.md").read_text(encoding="utf-8")


def row_with(text: str) -> list[str]:
    """The cells of the row with this first cell: the device's error, the state shown by `calls`, the charge."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in README.splitlines() if line.startswith("| ")]
    (found,) = [row for row in rows if len(row) == 5 and text in row[0]]
    return found


@pytest.mark.parametrize(
    ("row", "behaviour", "charged"),
    [
        ("answered with a usage", answers(completion()), 12 + 2 * 3),
        ("429 and other 4xx", answers({}, 429), 0),
        ("429 and other 4xx", answers({}, 404), 0),
        ("a redirect", answers({}, 302), 0),
        ("400, 413", answers({}, 400), 0),
        ("any 5xx", answers({}, 500), None),
        ("408, 499", answers({}, 408), None),
        ("silence until the deadline", hangs, None),
        ("a connection cut", disconnects, None),
        ("a connection cut", sends(b'{"choices": [', cut=True), None),
        ("a broken answer", answers(b"<html>busy</html>"), None),
        ("a broken answer", answers(completion(choices=[])), 12 + 2 * 3),
        ("too large", sends(forever=b"x" * 10_000), None),
    ],
)
async def test_every_fault_ends_as_the_failure_table_says(tmp_path, row: str, behaviour: Behaviour, charged: int | None) -> None:
    """`charged` in micro-USD; None: the hold."""
    _, reported, shown, cost, _ = row_with(row)
    async with brokered(tmp_path, behaviour, limits=HttpLimits(max_response_bytes=50_000)) as (client, store, _):
        reason = "the answer"
        try:
            await client.complete(call(), 1.0 if behaviour is hangs else 20.0)
        except CoordinatorError as error:
            reason = error.reason
    kept = await store.get_call("local", "k1")
    hold = next(entry.data()["hold"][2] for entry in store.tables.journal if entry.kind == "reserve")
    assert re.search(rf"\b{reason}\b", reported) and f"`{kept.state}`" in shown
    assert kept.charged.uusd == (hold if charged is None else charged)
    assert ("the hold" if charged is None else "usage" if charged else "nothing") in cost


async def test_tools_request_to_an_upstream_without_tools_ends_as_the_table_says(tmp_path) -> None:
    _, reported, shown, cost, _ = row_with("tools")
    store, provider = MemoryLedgerStore(), SimulatedUpstream(asyncio.get_running_loop(), Random(1), UpstreamMood({}))
    async with running_coordinator(tmp_path, provider, store=store), connected(tmp_path) as client:
        with pytest.raises(InvalidRequest, match="does not take this request: this upstream cannot call tools") as refused:
            await client.complete(call(openai_json=TOOLS), 5.0)
        assert "\n" not in str(refused.value) and refused.value.reason == reported
        with pytest.raises(NotFound):
            await client.get_call("k1")
        assert (shown, cost) == ("no call", "nothing") and provider.log == []
        assert not any(entry.kind == "reserve" for entry in store.tables.journal)
        assert (await client.complete(call(), 5.0)).text

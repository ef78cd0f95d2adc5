"""Requests of a scraper and of a browser to the coordinator's side ports."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

Sample = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def get(url: str, *, token: str = "", ssl: Any = True, **headers: str) -> tuple[int, str, dict[str, str]]:
    """Status, body and headers of one request."""
    sent = {**headers, **({"authorization": f"Bearer {token}"} if token else {})}
    async with aiohttp.ClientSession() as session, session.get(url, headers=sent, ssl=ssl) as reply:
        return reply.status, await reply.text(), {name.lower(): value for name, value in reply.headers.items()}


async def scraped(url: str) -> Sample:
    """Every sample of /metrics by name and labels, read by Prometheus's own parser."""
    status, text, headers = await get(url)
    assert (status, headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8"), text
    return samples_of(text)


def samples_of(text: str) -> Sample:
    """Every sample of a page of metrics."""
    families = text_string_to_metric_families(text)
    return {(each.name, frozenset(each.labels.items())): each.value for family in families for each in family.samples}


async def scraped_after(url: str, method: str, ended: int) -> Sample:
    """The same once `ended` RPCs of a method have ended: a caller may have its refusal a moment before that is counted."""
    async with asyncio.timeout(20):
        while True:
            seen = await scraped(url)
            counts = [
                count for (name, labels), count in seen.items() if name.endswith("rpcs_total") and ("method", method) in labels
            ]
            if sum(counts) == ended:
                return seen
            await asyncio.sleep(0.02)


def value(samples: Sample, name: str, **labels: str) -> float:
    """One sample of edge_coordinator_NAME. Raises KeyError."""
    return samples[f"edge_coordinator_{name}", frozenset(labels.items())]

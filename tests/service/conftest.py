"""Fixtures of several files: a cloud, a fleet with certificates and tokens, a browser, a client of OpenAI's."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from tests.worlds.browser import Browser, chromium
from tests.worlds.openai_agent import Served, client_of
from tests.worlds.secure_fleet import SecureFleet
from tests.worlds.served_agent import in_a_thread
from tests.worlds.upstream_server import Upstream, running_upstream


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running_upstream() as upstream:
        yield upstream


@pytest.fixture
def fleet(tmp_path: Path) -> SecureFleet:
    return SecureFleet(tmp_path)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with chromium() as browser:
        yield browser


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with in_a_thread(served.open) as url, client_of(url) as client:
        yield client

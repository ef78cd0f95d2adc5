"""The web console in a real browser: its content, the token prompt, behaviour without a coordinator, and keyboard use."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
import pytest_asyncio

from edge.core.errors import BudgetExhausted, CoordinatorError
from edge.rpc.client import StepUnits
from tests.worlds.browser import CHROMIUM
from tests.worlds.coordinator import ProgrammedProvider, call, connected, running_coordinator
from tests.worlds.secure_fleet import SecureFleet

pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium to test the console"),
    pytest.mark.asyncio(loop_scope="module"),
]
CONSOLE = {"console_listen": "127.0.0.1:0"}
SHOWN = "document.getElementById('updated').textContent !== ''"
LABEL = r"/^code: assist rate 12\.5 % at a target of 25\.0 %, λ 0\.49\d$/"
OVERFLOWS = "document.documentElement.scrollWidth > innerWidth"
SMALLEST = """[...document.querySelectorAll('svg text')].map((node) => node.getBoundingClientRect().height)"""
UNNAMED = """[...document.querySelectorAll('input, button, section, svg, table')].filter((node) =>
  !node.getAttribute('aria-label') && !node.getAttribute('aria-labelledby') && !node.labels?.length && !node.textContent.trim()).length"""


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser):
    async with browser.tab() as page:
        yield page


async def text_of(page, place: str) -> str:
    return re.sub(r"\s+", " ", await page.value(f"document.getElementById('{place}').innerText"))


PAPER = {"*": {"controller": "paper"}}


async def work(folder, device: str, calls: int, steps: int = 2) -> None:
    """A device that learns two tasks and asks until it is refused."""
    async with connected(folder, device, max_retries=0) as client:
        await client.register("1.2.3", ("math", "code"))
        for task in ("math", "code"):
            for step in range(steps):
                await client.open_step(task, step, 4, 4, 0.25)
                await client.close_step(task, step, StepUnits(16, 4 * step))
        for number in range(calls):
            await client.complete(call(f"k{number}", f"q{number}"), 10.0)


async def test_new_coordinator_shows_what_is_missing(tmp_path, page) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), **CONSOLE) as it:
        await page.open(it.serving.console_url)
        await page.until(SHOWN)
        assert await text_of(page, "headline") == "serving, 0 devices, 0 calls under way"
        assert "No device has called yet" in await text_of(page, "devices")


async def test_a_busy_coordinator_shows_devices_budgets_curves_and_refusals_live(tmp_path, page) -> None:
    budgets = {"device": {"calls_limit": 3}, "fleet": {"spend_limit_uusd": 1000}}
    async with running_coordinator(tmp_path, ProgrammedProvider(), budgets=budgets, tasks=PAPER, **CONSOLE) as it:
        await page.open(it.serving.console_url)
        await page.until(SHOWN)
        for device in ("anna", "bert", "cleo"):
            await work(tmp_path, device, 2)
        with pytest.raises(BudgetExhausted):
            await work(tmp_path, "dora", 4, steps=0)
        await page.until("document.getElementById('headline').textContent.includes('4 devices')")
        await page.until("document.getElementById('refusals').textContent.includes('BUDGET_EXHAUSTED')")
        await page.until("document.querySelectorAll('#tasks section').length === 2")
        assert "whole fleet in all" in await text_of(page, "budgets") and "of 0.001 USD" in await text_of(page, "budgets")
        assert "3 of 3" in await text_of(page, "budgets")
        devices = await text_of(page, "devices")
        assert (
            all(name in devices for name in ("anna", "bert", "cleo", "dora")) and "agent 1.2.3" in devices and "λ 0.5" in devices
        )
        assert "dora" in await text_of(page, "refusals")
        await page.until(f"{LABEL}.test(document.querySelector('#tasks svg').getAttribute('aria-label'))")
        assert "0.00018 USD" in await text_of(page, "spend-facts")
        for width in (1280, 400):
            await page.open(it.serving.console_url, width)
            await page.until("document.querySelectorAll('#tasks section').length === 2")
            assert not await page.value(OVERFLOWS)
            assert min(await page.value(SMALLEST)) >= 9 and await page.value(UNNAMED) == 0
        assert {urlsplit(url).netloc for url in page.requested} == {urlsplit(it.serving.console_url).netloc}
        assert page.complaints == []


async def test_device_names_never_become_markup(tmp_path, page) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), **CONSOLE) as it, connected(tmp_path, max_retries=0) as client:
        await client.register("<img src=x onerror=alert(1)>", ("math",))
        with pytest.raises(CoordinatorError):
            await client.complete(call(task="<b>no</b>"), 10.0)
        await page.open(it.serving.console_url)
        await page.until("document.getElementById('devices').textContent.includes('onerror')")
        assert await page.value("document.querySelectorAll('main img, main b').length") == 0


async def test_page_reports_a_lost_coordinator_and_keeps_its_data(tmp_path, page) -> None:
    async with running_coordinator(tmp_path, ProgrammedProvider(), **CONSOLE) as it:
        await work(tmp_path, "anna", 1)
        await page.open(it.serving.console_url)
        await page.until("document.getElementById('devices').textContent.includes('anna')")
    await page.until("document.getElementById('headline').className === 'alarm'")
    assert (await text_of(page, "headline")).startswith("the coordinator does not answer; this is how it was at ")
    assert "anna" in await text_of(page, "devices")


async def test_behind_tls_the_page_asks_for_a_token_and_accepts_it_by_keyboard(tmp_path, page) -> None:
    fleet = SecureFleet(tmp_path)
    await page.send("Security.setIgnoreCertificateErrors", ignore=True)
    async with fleet.running(console_listen="0.0.0.0:0") as (it, _):
        await page.open(it.serving.console_url.replace("0.0.0.0", "127.0.0.1"))
        await page.until("document.activeElement.id === 'token'")
        assert "no credential was shown" in await text_of(page, "headline")
        await page.type(fleet.tokens.issue("metrics", "me"))
        await page.press("Enter", 13)
        await page.until("document.getElementById('headline').textContent.includes('may not read')")
        await page.value("document.getElementById('token').focus()")
        await page.type(fleet.tokens.issue("console", "me"))
        await page.press("Enter", 13)
        await page.until(SHOWN)
        assert await page.value("document.getElementById('token-form').hidden")
        await page.press("Tab", 9)
        assert await page.value("document.activeElement !== null")

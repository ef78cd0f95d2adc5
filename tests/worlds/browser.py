"""A real headless Chromium, driven over its DevTools socket; only the browser itself must be installed."""

from __future__ import annotations

import asyncio
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
START_TIMEOUT_S = 60.0
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars")


class Page:
    """One page."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._loads: set[str] = set()
        self._a_load = asyncio.Event()

    async def read(self) -> None:
        """Process the browser's messages until it disconnects."""
        async for message in self._socket:
            reply = json.loads(message.data)
            if reply.get("method") in ("Log.entryAdded", "Runtime.exceptionThrown"):
                self.complaints.append(json.dumps(reply["params"]))
            if reply.get("method") == "Page.lifecycleEvent" and reply["params"]["name"] == "load":
                self._loads.add(reply["params"]["loaderId"])
                self._a_load.set()
            if reply.get("method") == "Network.requestWillBeSent":
                self.requested.append(reply["params"]["request"]["url"])
            if (answer := self._waiting.pop(reply.get("id", 0), None)) is not None:
                answer.set_result(reply)

    async def send(self, method: str, **parameters: Any) -> Any:
        """One DevTools command."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        reply = await asyncio.wait_for(answer, START_TIMEOUT_S)
        assert "error" not in reply, reply
        return reply["result"]

    async def open(self, url: str, width: int = 1280, height: int = 900) -> None:
        """Go there, in a window of this size."""
        await self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)
        began = await self.send("Page.navigate", url=url)
        await self._until_loaded(lambda: began["loaderId"] in self._loads)

    async def reload(self) -> None:
        """Load the same place anew."""
        before = set(self._loads)
        await self.send("Page.reload")
        await self._until_loaded(lambda: self._loads > before)

    async def value(self, script: str) -> Any:
        """The value of an expression in the page."""
        reply = await self._evaluate(script)
        assert "exceptionDetails" not in reply, reply
        return reply["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true; one that throws, as while an element is being drawn, is not true yet. Raises AssertionError
        with its last value."""
        reply: dict[str, Any] = {}
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while "exceptionDetails" in (reply := await self._evaluate(script)) or not reply["result"].get("value"):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"not true in {START_TIMEOUT_S} s: {script}; last: {reply}") from None

    async def _until_loaded(self, is_loaded: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                while not is_loaded():
                    self._a_load.clear()
                    await self._a_load.wait()
        except TimeoutError:
            raise AssertionError(f"not loaded in {START_TIMEOUT_S} s; asked for: {self.requested[-5:]}") from None

    async def _evaluate(self, script: str) -> dict[str, Any]:
        reply: dict[str, Any] = await self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        return reply

    async def press(self, key: str, code: int) -> None:
        """One key, down and up."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": "\r"} if key == "Enter" and kind == "keyDown" else {}
            await self.send("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, **text)

    async def type(self, text: str) -> None:
        """Text, as if typed."""
        await self.send("Input.insertText", text=text)


class Browser:
    """A running browser, by the port of its DevTools."""

    def __init__(self, port: str, session: aiohttp.ClientSession) -> None:
        self._base = f"http://127.0.0.1:{port}/json"
        self._session = session

    @asynccontextmanager
    async def tab(self) -> AsyncIterator[Page]:
        """A new tab with nothing kept in it, in front of the others; closed at the end."""
        async with self._session.put(f"{self._base}/new?about:blank") as reply:
            target = await reply.json()
        try:
            async with self._session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                page = Page(socket)
                reading = asyncio.create_task(page.read())
                for domain in ("Page", "Runtime", "Log", "Network"):
                    await page.send(f"{domain}.enable")
                await page.send("Page.setLifecycleEventsEnabled", enabled=True)
                await page.send("Page.bringToFront")
                yield page
                reading.cancel()
        finally:
            async with self._session.get(f"{self._base}/close/{target['id']}"):
                pass


@asynccontextmanager
async def chromium() -> AsyncIterator[Browser]:
    """A new browser with its own profile; both are removed at the end."""
    assert CHROMIUM is not None
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            *(CHROMIUM, *_FLAGS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"),
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            port = await _port_of(Path(profile))
            async with aiohttp.ClientSession() as session:
                yield Browser(port, session)
        finally:
            process.terminate()
            await process.wait()


async def _port_of(profile: Path) -> str:
    port_file = profile / "DevToolsActivePort"
    async with asyncio.timeout(START_TIMEOUT_S):
        while not (port_file.exists() and "\n" in port_file.read_text()):
            await asyncio.sleep(0.05)
    return port_file.read_text().split()[0]

"""A long chat at the agent's endpoint and at llama-cpp-python's own server: `python -m tools.bench chat --model MODEL [--turns 10]`.

`--llama-server FILE` takes the `llama-server` of a build of llama.cpp in its place.

Both serve the same file with the same threads and context, at temperature 0. Each turn of the chat sends the whole conversation, as every
client does, with a new question of some hundred words. The servers answer in turn, each goes on from its own replies. The output has, for
each turn, the tokens of the prompt, those that we had read before, seconds to the first letter on both sides and tokens a second after
it; then the medians of our multiples of theirs, the last turn as a multiple of the second one, and the memory of each server. On a busy
machine only the multiples mean something.

`--people N` measures something else: N chats at once at our server alone, without and with learning, each person waiting up to
`--pause` seconds between an answer and the next question. The output has the median and the 99th percentile of the seconds to the first
letter, tokens a second of all together, and the memory before and after. `--minutes M` goes on for so long, while it learns, each person
with a new conversation after `--turns`: then the memory of agent and coordinator is in the output minute by minute.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from edge.core.machine import physical_cores
from edge.models.catalogue import find_model
from tools.arguments import positive
from tools.bench.endpoint import our_server, text_of, their_server
from tools.bench.harness import command
from tools.bench.table.memory import memory_now

TEXT = """the harbour opens early and the boats come back with what the night has left them before the town wakes up
while somebody on the quay counts boxes and writes down which of them go to the market and which to the station"""
_TIMEOUT = aiohttp.ClientTimeout(total=1800)


@dataclass(frozen=True, slots=True)
class Turn:
    """One answer: seconds to its first letter and to its end, and the tokens that the server reports."""

    first_s: float
    total_s: float
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int

    @property
    def tokens_per_s(self) -> float:
        """After the first letter."""
        return (self.completion_tokens - 1) / max(self.total_s - self.first_s, 1e-9)


@dataclass(slots=True)
class Chat:
    """A conversation with one server as it grows."""

    base: str
    messages: list[dict[str, str]] = field(default_factory=list)
    turns: list[Turn] = field(default_factory=list)

    async def ask(self, http: aiohttp.ClientSession, question: str, max_tokens: int) -> None:
        """One more turn, streamed and timed here. The last event has the usage where the server reports one."""
        self.messages.append({"role": "user", "content": question})
        body = {"model": "edge", "temperature": 0, "max_tokens": max_tokens, "stream": True, "messages": self.messages}
        first, pieces, usage, start = 0.0, list[str](), dict[str, Any](), time.perf_counter()
        async with http.post(f"{self.base}/chat/completions", json={**body, "stream_options": {"include_usage": True}}) as reply:
            reply.raise_for_status()
            async for line in reply.content:
                if text := text_of(line):
                    pieces.append(text)
                    first = first or time.perf_counter() - start
                if line.startswith(b"data: {"):
                    usage = json.loads(line[6:]).get("usage") or usage
        total = time.perf_counter() - start
        self.messages.append({"role": "assistant", "content": "".join(pieces)})
        cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        written = usage.get("completion_tokens") or len(pieces)
        self.turns.append(Turn(first, total, usage.get("prompt_tokens") or 0, cached, written))


def question(number: int, words: int) -> str:
    """The next thing that is said: a text of this many words, another one each turn, and something to do with it."""
    known = TEXT.split()
    text = " ".join(known[(number * 7 + place * (number + 1)) % len(known)] for place in range(words))
    return f"Note {number}: {text}. Say in a few sentences what note {number} is about."


async def measure(bases: Mapping[str, str], turns: int, words: int, max_tokens: int) -> dict[str, list[Turn]]:
    """The same chat with each server, turn by turn."""
    chats = {name: Chat(base) for name, base in bases.items()}
    for base in bases.values():
        await warm(base)
    # llama.cpp's server closes a connection that is idle for some seconds.
    async with aiohttp.ClientSession(timeout=_TIMEOUT, connector=aiohttp.TCPConnector(force_close=True)) as http:
        for number in range(turns):
            for name in sorted(chats, reverse=bool(number % 2)):
                await chats[name].ask(http, question(number, words), max_tokens)
    return {name: chat.turns for name, chat in chats.items()}


async def warm(base: str) -> None:
    """A first short answer, with which what is loaded at need is loaded."""
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
        await Chat(base).ask(http, "Hello!", 4)


async def people(base: str, given: argparse.Namespace) -> list[Turn]:
    """Chats at once, one after the other of each person until the time is over; all turns of all of them."""
    found: list[Turn] = []
    end = time.perf_counter() + 60.0 * given.minutes

    async def talk(number: int, http: aiohttp.ClientSession) -> None:
        rng = random.Random(number)
        for begun in itertools.count():
            chat = Chat(base)
            for turn in range(given.turns):
                await asyncio.sleep(rng.uniform(0.0, given.pause))
                await chat.ask(
                    http, question((begun * given.people + number) * given.turns + turn, given.words), given.max_tokens
                )
                found.append(chat.turns[-1])
                print(f"person {number}, chat {begun}, turn {turn}: {found[-1].first_s:.1f} s", file=sys.stderr, flush=True)
            if time.perf_counter() >= end:
                return

    async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
        await asyncio.gather(*(talk(number, http) for number in range(given.people)))
    return found


async def watched(work: Awaitable[list[Turn]]) -> tuple[list[Turn], list[int]]:
    """What comes of the work, and the memory of our server and its children, MiB, at the beginning, each minute and at the end."""
    doing, memory = asyncio.ensure_future(work), list[int]()
    while not doing.done():
        memory.append(memory_of_all())
        await asyncio.wait([doing], timeout=60.0)
    return await doing, [*memory, memory_of_all()]


def memory_of_all() -> int:
    """Resident memory of all that was started here, MiB."""
    return round(sum(memory_now(child.pid).get("rss_mib", 0.0) for child in psutil.Process().children(recursive=True)))


def crowd(given: argparse.Namespace, learns: str) -> dict[str, Any]:
    """The chats of `--people` at our server while it learns a source, or nothing ("")."""
    with tempfile.TemporaryDirectory() as name:
        options = (Path(name), find_model(given.model), given.threads, given.context, learns)
        with our_server(*options) as base:
            asyncio.run(warm(base))
            before = server_memory()["ours"]
            turns, memory = asyncio.run(watched(people(base, given)))
            after = server_memory()["ours"]
            status = json.loads(urllib.request.urlopen(base.removesuffix("/v1") + "/api/status", timeout=60).read())
    firsts = sorted(turn.first_s for turn in turns)
    return {
        "learns": learns,
        "turns": len(turns),
        "first_p50_s": round(statistics.median(firsts), 2),
        "first_p99_s": round(firsts[min(len(firsts) - 1, int(0.99 * len(firsts)))], 2),
        "cached_share": round(sum(turn.cached_tokens for turn in turns) / sum(turn.prompt_tokens for turn in turns), 2),
        "tokens_per_s_each": round(statistics.median(turn.tokens_per_s for turn in turns), 1),
        "steps_done": status["steps_done"],
        "rss_mib_before": before,
        "rss_mib_after": after,
        "rss_mib_of_all_each_minute": memory,
    }


def summary(found: Mapping[str, Sequence[Turn]]) -> dict[str, Any]:
    """Medians over turns of our multiples of theirs (below 1: ours is faster), and whether turns stay equally long."""
    pairs = list(zip(found["ours"], found["theirs"], strict=True))
    return {
        "turns": len(pairs),
        "first_ratio": round(statistics.median(ours.first_s / theirs.first_s for ours, theirs in pairs), 3),
        "per_token_ratio": round(statistics.median(theirs.tokens_per_s / ours.tokens_per_s for ours, theirs in pairs), 3),
        "total_ratio": round(sum(ours.total_s for ours, _ in pairs) / sum(theirs.total_s for _, theirs in pairs), 3),
        **{
            f"{name}_last_to_second_first": round(turns[-1].first_s / turns[min(1, len(turns) - 1)].first_s, 2)
            for name, turns in found.items()
        },
    }


def server_memory() -> dict[str, float]:
    """Resident memory now of each server that was started here, MiB, in the order of their starts."""
    children = sorted(psutil.Process().children(), key=lambda child: child.create_time())
    return {name: round(memory_now(child.pid)["rss_mib"]) for name, child in zip(("ours", "theirs"), children, strict=False)}


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench chat", description="A long chat, compared with llama-cpp-python's."
    )
    parser.add_argument("--model", default="smollm2", help="a name that `models list` shows, or a file (default: %(default)s)")
    parser.add_argument("--turns", type=positive, default=10)
    parser.add_argument("--words", type=positive, default=300, help="of each question (default: %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=64)
    parser.add_argument("--threads", type=positive, default=physical_cores())
    parser.add_argument("--context", type=positive, default=8192)
    parser.add_argument("--llama-server", default="", metavar="FILE", help="compare with this server of llama.cpp")
    parser.add_argument("--people", type=positive, default=1, help="chats at once, at our server alone (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=0.0, help="go on with new chats for so long (default: one chat each)")
    parser.add_argument("--pause", type=float, default=10.0, help="most seconds between turns of a person (default: %(default)s)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start both servers, hold the chat, print a line of JSON for each turn and one for all."""
    given = parse(arguments)
    if given.people > 1:
        for learns in ["practice:science"] if given.minutes else ["", "practice:science"]:
            print(json.dumps(crowd(given, learns)), flush=True)
        return 0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = (folder, find_model(given.model), given.threads, given.context)
        ours = stack.enter_context(our_server(*options))
        theirs = stack.enter_context(their_server(*options, given.llama_server))
        bases = {"ours": ours, "theirs": theirs}
        found = asyncio.run(measure(bases, given.turns, given.words, given.max_tokens))
        for number, (our, their) in enumerate(zip(found["ours"], found["theirs"], strict=True), 1):
            seconds = {"ours_first_s": round(our.first_s, 3), "theirs_first_s": round(their.first_s, 3)}
            speed = {"ours_tokens_per_s": round(our.tokens_per_s, 1), "theirs_tokens_per_s": round(their.tokens_per_s, 1)}
            counts = {"prompt_tokens": our.prompt_tokens, "cached_tokens": our.cached_tokens}
            print(json.dumps({"turn": number, **counts, **seconds, **speed}))
        memory = {f"{name}_rss_mib": rss for name, rss in server_memory().items()}
        print(json.dumps({**summary(found), **memory}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(command(main))

"""The agent's endpoint compared with llama-cpp-python's own server: `python -m tools.bench endpoint [--rounds 7] [--model MODEL.gguf]`.

Both serve the same file with the same threads and context, one request at a time, streamed, at temperature 0. Rounds alternate, as does
the first server; every request has its own prompt, because either server may cache the last one. The output has medians over all requests
of the time to the first visible letter and to the end of the stream, and our medians as multiples of theirs. The replies are compared as
well: figures of different texts mean nothing, nor do those of a busy machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from edge.app.settings import bundled_models
from edge.core.machine import physical_cores
from tools.arguments import positive
from tools.bench.harness import command
from tools.bench.processes import answers, free_port, running

ROUTES = ("completions", "chat/completions")
WARM_UP = 3


@dataclass(frozen=True, slots=True)
class TimedReply:
    """One streamed reply: seconds to its first visible letter (tags and white space are none) and to its end."""

    first_s: float
    total_s: float
    text: str


@contextmanager
def our_server(folder: Path, model: Path, threads: int, context: int, learns: str = "") -> Iterator[str]:
    """`edge-agent run`, never asking for people; gives the base address. `learns`: a task source that it learns meanwhile, "": none."""
    state = folder / "state"
    limits = ["--set", f"engine.threads={threads}", "--set", f"model.context_tokens={context}"]
    options = ["--port", "0", "--mode", "local-only", "--model", str(model), "--state", str(state), "--json"]
    options += ["--tasks", learns, "--set", f"learning.torch_threads={threads}"] if learns else ["--no-learn"]
    started = [sys.executable, "-m", "edge.cli", "run", *options, *limits]
    with running(started, folder / "ours.log", ready=(state / "endpoint.json").is_file):
        yield str(json.loads((state / "endpoint.json").read_text())["url"]) + "/v1"


@contextmanager
def their_server(folder: Path, model: Path, threads: int, context: int, llama_server: str = "") -> Iterator[str]:
    """`python -m llama_cpp.server`, or this `llama-server` of llama.cpp, with flash attention, as ours has it."""
    base = f"http://127.0.0.1:{(port := free_port())}/v1"
    where = ["--model", str(model), "--host", "127.0.0.1", "--port", str(port)]
    if llama_server:
        limits = ["--ctx-size", str(context), "--threads", str(threads), "--parallel", "1", "--flash-attn", "on"]
        started = [llama_server, *where, *limits, "--alias", "edge"]
    else:
        limits = ["--n_ctx", str(context), "--n_threads", str(threads), "--n_threads_batch", str(threads), "--flash_attn", "true"]
        started = [sys.executable, "-m", "llama_cpp.server", *where, *limits, "--model_alias", "edge"]
    with running(started, folder / "theirs.log", ready=lambda: answers(f"{base}/models")):
        yield base


async def ask(http: aiohttp.ClientSession, base: str, route: str, number: int, max_tokens: int) -> TimedReply:
    """One streamed request, timed here."""
    question = f"Tom has {number} apples and buys {number % 7 + 2} boxes of {number % 5 + 3}. How many has he?"
    chat = {"messages": [{"role": "user", "content": question}]}
    prompt = f"<|im_start|>system\nThink in steps.<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    body = {"model": "edge", "temperature": 0, "max_tokens": max_tokens, "stream": True}
    first, pieces, start = 0.0, [], time.perf_counter()
    async with http.post(f"{base}/{route}", json={**body, **({"prompt": prompt} if route == "completions" else chat)}) as reply:
        reply.raise_for_status()
        async for line in reply.content:
            if text := text_of(line):
                pieces.append(text)
                first = first or (time.perf_counter() - start if _bare("".join(pieces)) else 0.0)
    return TimedReply(first, time.perf_counter() - start, "".join(pieces))


def text_of(line: bytes) -> str:
    """What one line of a stream of events adds to the reply."""
    if not line.startswith(b"data: {"):
        return ""
    choices = json.loads(line[6:])["choices"]
    choice: Mapping[str, Any] = choices[0] if choices else {}
    delta = choice.get("delta", {})
    return str(choice.get("text") or delta.get("reasoning_content") or delta.get("content") or "")


async def measure(
    bases: Mapping[str, str], route: str, rounds: int, requests: int, max_tokens: int
) -> dict[str, list[TimedReply]]:
    """Rounds of requests to each server in turn."""
    found: dict[str, list[TimedReply]] = {name: [] for name in bases}
    async with aiohttp.ClientSession() as http:
        for base in bases.values():
            for number in range(WARM_UP):
                await ask(http, base, route, 900 + number, max_tokens)
        for turn in range(rounds):
            for name in sorted(bases, reverse=bool(turn % 2)):
                for number in range(requests):
                    found[name].append(await ask(http, bases[name], route, turn * requests + number, max_tokens))
    return found


def summary(route: str, found: Mapping[str, Sequence[TimedReply]]) -> dict[str, Any]:
    """Medians in milliseconds, ours as multiples of theirs, and how many texts were the same on both sides."""
    medians = {
        f"{name}_{what}_ms": round(1e3 * statistics.median(getattr(one, f"{what}_s") for one in timed), 2)
        for name, timed in found.items()
        for what in ("first", "total")
    }
    ratios = {f"{what}_ratio": round(medians[f"ours_{what}_ms"] / medians[f"theirs_{what}_ms"], 3) for what in ("first", "total")}
    same = sum(_bare(ours.text) == _bare(theirs.text) for ours, theirs in zip(found["ours"], found["theirs"], strict=True))
    return {"route": route, "requests": len(found["ours"]), "same_texts": same, **medians, **ratios}


def _bare(text: str) -> str:
    """A text without the tags and the white space that a chat reply of ours takes out."""
    for tag in ("<think>", "</think>", "<answer>", "</answer>"):
        text = text.replace(tag, "")
    return "".join(text.split())


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.bench endpoint", description="Our endpoint compared with llama-cpp-python's."
    )
    parser.add_argument("--model", type=Path, default=bundled_models() / "nano-edge.gguf")
    parser.add_argument("--rounds", type=positive, default=7)
    parser.add_argument("--requests", type=positive, default=10, help="a round and server (default: %(default)s)")
    parser.add_argument("--max-tokens", type=positive, default=110)
    parser.add_argument("--threads", type=positive, default=physical_cores())
    parser.add_argument("--context", type=positive, default=512)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Start both servers, measure each route, print a line of JSON for each."""
    given = parse(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        options = (folder, given.model, given.threads, given.context)
        bases = {"ours": stack.enter_context(our_server(*options)), "theirs": stack.enter_context(their_server(*options))}
        sizes = (given.rounds, given.requests, given.max_tokens)
        for route in ROUTES:
            print(json.dumps(summary(route, asyncio.run(measure(bases, route, *sizes)))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(command(main))

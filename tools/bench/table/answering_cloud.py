"""A cloud LLM that answers at once and is always right: what the peer's reward takes its cloud to be.

    python -m tools.bench.table.answering_cloud ITEMS

Speaks the chat completions API on a loopback port of the system's choice, which is its first line of output. It stands in for a service
somewhere else, so neither its time (next to none) nor its memory belongs to a step.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tools.bench.processes import end_with_parent


@dataclass(frozen=True, slots=True)
class RunningCloud:
    """Where it listens, and its process."""

    base_url: str
    pid: int


@contextlib.contextmanager
def running_cloud(items: Path) -> Iterator[RunningCloud]:
    """A process of its own for as long as the context lasts. Raises RuntimeError when it does not start."""
    command = [sys.executable, "-m", "tools.bench.table.answering_cloud", str(items)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, preexec_fn=end_with_parent())
    try:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port.isdigit():
            raise RuntimeError("the answering cloud did not start")
        yield RunningCloud(f"http://127.0.0.1:{int(port)}/v1", process.pid)
    finally:
        process.terminate()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def answers_of(items: Path) -> dict[str, str]:
    """Question to answer, of a task file."""
    entries = (json.loads(line) for line in items.read_text(encoding="utf-8").splitlines() if line)
    return {entry["question"]: entry["answer"] for entry in entries}


def completion(answers: dict[str, str], request: dict[str, Any]) -> dict[str, Any]:
    """The answer to the question that the last message contains; an empty box where it is none of them."""
    asked = request["messages"][-1]["content"]
    found = next((answer for question, answer in answers.items() if question in asked), "")
    text = f"<think>\nStep 1: known.\n</think>\n<answer>\\boxed{{{found}}}</answer>"
    usage = {"prompt_tokens": len(asked.split()), "completion_tokens": len(text.split())}
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    return {
        "id": "answer",
        "object": "chat.completion",
        "model": "answering",
        "choices": [choice],
        "usage": usage | {"total_tokens": sum(usage.values())},
    }


class _Handler(BaseHTTPRequestHandler):
    """One connection, kept open."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    answers: dict[str, str]

    def do_POST(self) -> None:
        """Answer a completion."""
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body = json.dumps(completion(self.answers, request)).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def main(arguments: Sequence[str]) -> None:
    """Serve until ended."""
    handler = type("Handler", (_Handler,), {"answers": answers_of(Path(arguments[0]))})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])

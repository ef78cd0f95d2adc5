"""llama.cpp's own batched bench on the same workload.

It runs in two ways. With `shared` prompts (-pps) a prompt is decoded once and copied to its rows, as in our engine: B prompts take B times
the one prompt it reports. Without, every row's prompt is decoded. Then all rows are decoded together. The first token of a response comes
from the prompt's logits, so C tokens take C - 1 decodes on both sides.
"""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from tools.bench.processes import end_with_parent


def command_of(job: dict[str, Any]) -> list[str]:
    """The command line of one run."""
    rows = job["prompts"] * job["group_size"]
    numbers = {
        "-c": rows * job["context_tokens"],
        "-b": max(512, rows),
        "-ub": max(512, rows),
        "-npp": job["prompt_tokens"],
        "-ntg": job["max_tokens"] - 1,
        "-npl": rows,
        "-t": job["threads"],
        "-tb": job["threads"],
    }
    options = [text for name, value in numbers.items() for text in (name, str(value))]
    shared = ["-pps"] if job["shared"] else []
    return [job["program"], "-m", job["model"], *options, *shared, "-fa", "on", "--output-format", "jsonl"]


def seconds_of(output: str, prefills: int) -> float:
    """The time of the rollouts: `prefills` times its time for the prompts, then the decodes. Raises ValueError without a measurement."""
    for line in output.splitlines():
        if line.startswith("{") and '"t_tg"' in line:
            speeds = json.loads(line)
            return prefills * float(speeds["t_pp"]) + float(speeds["t_tg"])
    raise ValueError(f"no measurement in the bench's output: {output[-300:]!r}")


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Run it as often as the job requires."""
    seconds = []
    for _ in range(job["repeats"]):
        done = subprocess.run(command_of(job), capture_output=True, text=True, check=False, preexec_fn=end_with_parent())
        if done.returncode:
            raise SystemExit(f"{Path(job['program']).name} ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        seconds.append(seconds_of(done.stdout + done.stderr, job["prompts"] if job["shared"] else 1))
        print(f"{seconds[-1]:.2f} s", flush=True)
    tokens = job["prompts"] * job["group_size"] * job["max_tokens"]
    return {"seconds": seconds, "tokens": tokens}

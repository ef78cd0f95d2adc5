"""What this machine reaches: BW, F_i and F_t of ENGINE section 6, each the best of some repeats, because a floor wants the best.

    python -m tools.bench.table.device_speed JOB RESULT

BW is reading a buffer larger than the caches with torch's threads; F_t torch's matrix products in both types at training's shapes; F_i is
2 x weights x tokens/s of a prompt of 512 tokens in llama.cpp, for each model given.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

BUFFER_BYTES = 1 << 29
PRODUCTS = ((1024, 192, 576), (1024, 896, 4864), (2048, 1536, 8960))
"""(tokens, inputs, outputs)."""
PROMPT_TOKENS = 512


def best_seconds(work: Callable[[], object], repeats: int) -> float:
    """The shortest of some runs, after one to warm up."""
    work()
    found = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def bandwidth(repeats: int) -> float:
    """Bytes read per second."""
    import torch

    values = torch.ones(BUFFER_BYTES // 4)
    return BUFFER_BYTES / best_seconds(values.sum, repeats)


def train_speed(half: bool, repeats: int) -> float:
    """FLOP/s of the fastest product."""
    import torch

    dtype, found = torch.bfloat16 if half else torch.float32, 0.0
    for tokens, inputs, outputs in PRODUCTS:
        x, weight = torch.randn(tokens, inputs, dtype=dtype), torch.randn(outputs, inputs, dtype=dtype)
        seconds = best_seconds(lambda x=x, weight=weight: x @ weight.T, repeats)  # type: ignore[misc]
        found = max(found, 2 * tokens * inputs * outputs / seconds)
    return found


def infer_speed(path: Path, threads: int, repeats: int) -> dict[str, float]:
    """F_i and what belongs to it of one model."""
    from edge.inference.gguf_model import GgufModel
    from edge.inference.llama_engine import LlamaEngine

    model = GgufModel(path)
    engine = LlamaEngine(model, rows=2, n_ctx=PROMPT_TOKENS + 8, n_threads=threads)
    ids = [token % (model.vocabulary.size - 8) for token in range(PROMPT_TOKENS)]
    seconds = best_seconds(lambda: engine.prefill(0, ids), repeats)
    told = {
        "infer_flop_per_s": 2 * model.parameters * PROMPT_TOKENS / seconds,
        "prefill_tokens_per_s": PROMPT_TOKENS / seconds,
        "parameters": model.parameters,
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "bytes_per_weight": path.stat().st_size / model.parameters,
    }
    engine.close()
    model.close()
    return told


def main(paths: Sequence[str]) -> None:
    """Measure one thing after the other."""
    job: dict[str, Any] = json.loads(Path(paths[0]).read_text(encoding="utf-8"))
    models = {}
    for name, path in job["models"].items():
        print(f"prompts of {name}", flush=True)
        models[name] = infer_speed(Path(path), job["threads"], job["repeats"])
    import torch

    from edge.training.precision import has_fast_bf16

    torch.set_num_threads(job["threads"])
    print("memory and matrix products", flush=True)
    result = {
        "bytes_per_s": bandwidth(job["repeats"]),
        "train_fp32_flop_per_s": train_speed(False, job["repeats"]),
        "train_bf16_flop_per_s": train_speed(True, job["repeats"]),
        "fast_bf16": has_fast_bf16(torch.device("cpu")),
        "models": models,
    }
    Path(paths[1]).write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])

"""The speeds of this machine: BW, F_i and F_t of a step's floor, measured as `edge-agent doctor --measure` does, the best of some repeats.

The measurements themselves are edge.training.device's. F_i is 2 x weights of the blocks x tokens/s of a prompt
of 512 tokens in llama.cpp (the output projection is computed for the last token alone) and F_t the speed of torch's products at the
model's own sizes, for each model given; BW is the machine's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.core.clock import Clock

PROMPT_TOKENS, TRAINING_TOKENS = 512, 1024


def model_speeds(path: Path, threads: int, clock: Clock, seconds: float) -> dict[str, float]:
    """F_i, F_t in both types, and N, N_b, q and κ of one model."""
    import torch

    from edge.inference.gguf_model import GgufModel
    from edge.inference.llama_engine import LlamaEngine
    from edge.sizing import model_cost, model_shape
    from edge.training.device import fastest, product_flop_per_s

    cost, sizes = model_cost(path), list(model_shape(path).linear_sizes().values())
    model = GgufModel(path)
    engine = LlamaEngine(model, rows=2, n_ctx=PROMPT_TOKENS, n_threads=threads)
    ids = [token % (model.vocabulary.size - 8) for token in range(PROMPT_TOKENS)]
    prompt_s = fastest(lambda: engine.prefill(0, ids), clock, seconds)
    engine.close()
    model.close()
    return {
        "infer_flop_per_s": 2 * cost.block_weights * PROMPT_TOKENS / prompt_s,
        "prefill_tokens_per_s": PROMPT_TOKENS / prompt_s,
        "train_fp32_flop_per_s": product_flop_per_s(sizes, TRAINING_TOKENS, torch.float32, clock, seconds),
        "train_bf16_flop_per_s": product_flop_per_s(sizes, TRAINING_TOKENS, torch.bfloat16, clock, seconds),
        "weights": cost.weights,
        "block_weights": cost.block_weights,
        "kv_bytes_per_token": cost.kv_bytes_per_token,
        "bytes_per_weight": cost.bytes_per_weight,
    }


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """One thing after the other."""
    import torch

    from edge.config.schema import AgentConfig
    from edge.core.clock import SystemClock
    from edge.sizing import model_shape, trains_in_bf16
    from edge.training.device import read_bytes_per_s

    torch.set_num_threads(job["threads"])
    clock, models = SystemClock(), {}
    for name, path in job["models"].items():
        print(f"{name}: prompts and products", flush=True)
        speeds = model_speeds(Path(path), job["threads"], clock, job["seconds"])
        models[name] = {**speeds, "bf16": trains_in_bf16(AgentConfig(), model_shape(Path(path)).parameters)}
    print("memory", flush=True)
    return {"bytes_per_s": read_bytes_per_s(clock, job["seconds"]), "models": models}

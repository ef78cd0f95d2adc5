"""How far the trainer's log-probabilities are from the sampler's, with the served file's weights and with the original ones.

llama.cpp samples from the quantised file; torch scores the same ids. Figures are those of every training report: mean |Δ log p| in nats per
token, KL, effective sample share, share of ratios above the cap.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.core.types import PromptGroup

CAP = 2.0
ROWS = 4


async def sampled(job: dict[str, Any], questions: Sequence[str]) -> list[PromptGroup]:
    """The groups of all prompts."""
    from edge.core.types import Message, Sampling
    from edge.core.worker import EngineWorker
    from edge.inference.backend import InferenceBackend
    from edge.inference.llamacpp import LlamaCppBackend
    from tools.bench.table.agent_steps import endless

    worker = EngineWorker()
    backend: InferenceBackend = LlamaCppBackend(
        Path(job["model"]),
        worker,
        n_threads=job["threads"],
        n_ctx=job["context_tokens"],
        max_rows=job["prompts"] * job["group_size"],
    )
    backend = endless(backend) if job["random"] else backend
    sampling, seeds = Sampling(max_tokens=job["max_tokens"]), range(job["group_size"])
    try:
        return list(
            await asyncio.gather(*(backend.sample_group([Message("user", question)], sampling, seeds) for question in questions))
        )
    finally:
        await backend.aclose()
        worker.close()


def compared(path: Path, groups: Sequence[PromptGroup], half: bool) -> dict[str, float]:
    """The trainer on the weights of `path`, in bf16 or fp32, against the sampler."""
    import torch

    from edge.models.decoder import load_decoder
    from edge.training.batching import Row
    from edge.training.loss import NO_TOKENS, mismatch_sums, token_scores
    from edge.training.passes import plain_hidden

    decoder, sums = load_decoder(path), NO_TOKENS
    rows = [Row(group.prompt_ids, found.token_ids, found.logprobs, 0.0) for group in groups for found in group.responses]
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=half):
        for start in range(0, len(rows), ROWS):
            chunk = rows[start : start + ROWS]
            ids = torch.tensor([token for row in chunk for token in row.token_ids])
            behaviour = torch.tensor([value for row in chunk for value in row.behaviour_logprobs])
            scores = token_scores(plain_hidden(decoder, chunk)[0], decoder.lm_head.weight.detach(), ids, 1 << 23)
            sums += mismatch_sums(scores, behaviour, CAP)
            print(f"{path.name}: {start + len(chunk)} of {len(rows)} responses", flush=True)
    return {
        "tokens": sums.tokens,
        "mean_abs_logprob_diff": sums.per_token(sums.abs_diff),
        "kl": sums.per_token(sums.kl),
        "effective_sample_share": sums.effective_sample_share,
        "clipped_share": sums.per_token(sums.clipped),
        "entropy": sums.per_token(sums.entropy),
    }


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """Sample, then score with both weights."""
    import torch

    torch.set_num_threads(job["threads"])
    lines = Path(job["items"]).read_text(encoding="utf-8").splitlines()[: job["prompts"]]
    groups = asyncio.run(sampled(job, [json.loads(line)["question"] for line in lines]))
    result: dict[str, Any] = {"types": types_of(Path(job["model"])), "file": compared(Path(job["model"]), groups, half=False)}
    if job["random"]:
        result["file_bf16"] = compared(Path(job["model"]), groups, half=True)
    if job["original"]:
        result["original"] = compared(Path(job["original"]), groups, half=False)
    return result


def types_of(path: Path) -> dict[str, float]:
    """Share of the weights by ggml type, which shows what a quantisation's name means for this shape."""
    from edge.models.gguf_reader import open_gguf

    counts: dict[str, int] = {}
    for tensor in open_gguf(path).tensors.values():
        counts[tensor.kind.name] = counts.get(tensor.kind.name, 0) + math.prod(tensor.shape)
    total = sum(counts.values())
    return {name: round(count / total, 4) for name, count in sorted(counts.items(), key=lambda entry: -entry[1])}

"""Training of the bundled models, from nothing or from a smaller one of them. A run can be stopped at any moment and goes on from its
last checkpoint with the same batches it would have seen.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from edge.core.clock import SystemClock
from edge.core.files import replacing
from edge.models.catalogue import bundled_folder
from edge.models.decoder import Decoder, load_decoder
from tools.nano.data import ExampleSource, TokenBatch
from tools.nano.grow import grow_into
from tools.nano.recipes import Recipe
from tools.nano.tokenizer import bundled_tokenizer

Optimisers = tuple[torch.optim.Optimizer, ...]
CHECKPOINT_EVERY_S = 120.0
REPORT_EVERY_STEPS = 20


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """Options of a run of one recipe. `grow_from` is the initial model in place of the recipe's."""

    folder: Path
    seed: int = 0
    steps: int | None = None
    threads: int = 1
    grow_from: Path | None = None


@dataclass(slots=True)
class TrainProgress:
    """The progress of a run: optimiser steps done (also the data cursor), tokens seen, seconds spent, loss curve."""

    step: int = 0
    tokens: int = 0
    elapsed_s: float = 0.0
    losses: list[tuple[int, float]] = field(default_factory=list)


def train(recipe: Recipe, options: TrainOptions) -> Path:
    """Train `recipe`, or resume it; returns the path of the final weights (`final.pt`)."""
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.folder.mkdir(parents=True, exist_ok=True)
    tokenizer = run_tokenizer(options)
    decoder = started(recipe, tokenizer.get_vocab_size(), options.grow_from)
    optimisers = build_optimisers(decoder, recipe)
    progress = load_checkpoint(options.folder, decoder, optimisers)
    batches = ExampleSource(recipe.name, tokenizer, options.seed).batches(progress.step)
    run_steps(recipe, options, decoder, optimisers, batches, progress)
    save_checkpoint(options.folder, decoder, optimisers, progress)
    save_atomically({"weights": decoder.state_dict(), "step": progress.step}, options.folder / "final.pt")
    return options.folder / "final.pt"


def run_tokenizer(options: TrainOptions) -> Tokenizer:
    """The run's tokenizer, copied from the bundled models on its first start: they all share one."""
    path = options.folder / "tokenizer.json"
    if not path.exists():
        bundled_tokenizer().save(str(path))
    return Tokenizer.from_file(str(path))


def started(recipe: Recipe, vocab_size: int, grow_from: Path | None = None) -> Decoder:
    """The decoder before its first step. Raises ModelFileError or ValueError when the model it grows from is missing or does not fit."""
    decoder = initialise(Decoder(recipe.spec(vocab_size)))
    if grow_from is None and recipe.grown_from is None:
        return decoder
    return grow_into(decoder, load_decoder(grow_from or bundled_folder() / f"{recipe.grown_from}.gguf"))


def initialise(decoder: Decoder) -> Decoder:
    """Normal weights of deviation 0.02; projections into the residual stream scaled down by depth; biases zero."""
    residual = 0.02 / math.sqrt(2 * decoder.spec.layers)
    for name, parameter in decoder.named_parameters():
        if parameter.dim() == 2:
            deviation = residual if name.endswith(("o_proj.weight", "down_proj.weight")) else 0.02
            torch.nn.init.normal_(parameter, std=deviation)
        elif name.endswith("bias"):
            torch.nn.init.zeros_(parameter)
    return decoder


def build_optimisers(decoder: Decoder, recipe: Recipe) -> Optimisers:
    """Muon for the matrices within layers, AdamW for embeddings, norms and biases."""
    matrices = [p for p in decoder.model.layers.parameters() if p.dim() == 2]
    taken = {id(p) for p in matrices}
    others = [p for p in decoder.parameters() if id(p) not in taken]
    return (
        torch.optim.Muon(matrices, lr=recipe.matrix_lr, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=recipe.peak_lr, betas=(0.9, 0.98), weight_decay=0.0, fused=True),
    )


def rate_share(recipe: Recipe, steps: int, step: int) -> float:
    """The share of the peak learning rates at `step`: linear warm-up, constant, then a linear fall over the last `decay_share`."""
    warm = min(1.0, (step + 1) / recipe.warmup_steps)
    left = (steps - step) / (recipe.decay_share * steps)
    return warm * max(recipe.final_lr_share, min(1.0, left))


def set_rates(optimisers: Optimisers, recipe: Recipe, share: float) -> None:
    """Set both optimisers' learning rates to `share` of their peaks."""
    for optimiser, peak in zip(optimisers, (recipe.matrix_lr, recipe.peak_lr), strict=True):
        for group in optimiser.param_groups:
            group["lr"] = share * peak


def response_loss(decoder: Decoder, batch: TokenBatch) -> Tensor:
    """Mean negative log-likelihood (nats) of the response tokens."""
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states = decoder.hidden_states(batch.ids_BT[:, :-1]).states_BTD
        wanted = batch.loss_BT[:, 1:]
        logits = decoder.lm_head(states[wanted])
    return F.cross_entropy(logits.float(), batch.ids_BT[:, 1:][wanted])


def run_steps(
    recipe: Recipe,
    options: TrainOptions,
    decoder: Decoder,
    optimisers: Optimisers,
    batches: Iterator[TokenBatch],
    progress: TrainProgress,
) -> None:
    """Optimiser steps until the recipe's number is reached."""
    steps, clock = options.steps or recipe.steps, SystemClock()
    saved_s = last_s = clock.monotonic()
    window: list[float] = []
    while progress.step < steps:
        batch = next(batches)
        set_rates(optimisers, recipe, rate_share(recipe, steps, progress.step))
        window.append(optimiser_step(decoder, optimisers, batch, recipe.grad_clip))
        now_s = clock.monotonic()
        progress.step += 1
        progress.tokens += int(batch.mask_BT.sum())
        progress.elapsed_s, last_s = progress.elapsed_s + now_s - last_s, now_s
        if progress.step % REPORT_EVERY_STEPS == 0 or progress.step == steps:
            mean_loss = sum(window) / len(window)
            progress.losses.append((progress.step, mean_loss))
            window.clear()
            report(recipe, progress, steps)
        if now_s - saved_s > CHECKPOINT_EVERY_S:
            save_checkpoint(options.folder, decoder, optimisers, progress)
            saved_s = now_s


def optimiser_step(decoder: Decoder, optimisers: Optimisers, batch: TokenBatch, grad_clip: float) -> float:
    """One step on one batch; its loss."""
    loss = response_loss(decoder, batch)
    decoder.zero_grad(set_to_none=True)
    torch.autograd.backward(loss)
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), grad_clip)
    for optimiser in optimisers:
        optimiser.step()
    return loss.item()


def report(recipe: Recipe, progress: TrainProgress, steps: int) -> None:
    """One progress line."""
    left_s = progress.elapsed_s / progress.step * (steps - progress.step)
    print(
        f"{recipe.name} step {progress.step}/{steps}  loss {progress.losses[-1][1]:.4f}  "
        f"{progress.tokens / progress.elapsed_s:,.0f} tokens/s  {left_s / 60:.1f} min left",
        file=sys.stderr,
        flush=True,
    )


# --- files ----------------------------------------------------------------------------------------------------------------


def save_checkpoint(folder: Path, decoder: Decoder, optimisers: Optimisers, progress: TrainProgress) -> None:
    """Everything a resumed run needs, in one file that is replaced in one step."""
    state = {
        "weights": decoder.state_dict(),
        "optimisers": [optimiser.state_dict() for optimiser in optimisers],
        "torch_rng": torch.get_rng_state(),
        "progress": json.dumps([progress.step, progress.tokens, progress.elapsed_s, progress.losses]),
    }
    save_atomically(state, folder / "checkpoint.pt")


def load_checkpoint(folder: Path, decoder: Decoder, optimisers: Optimisers) -> TrainProgress:
    """Restore the run in `folder`; a fresh Progress when there is none."""
    path = folder / "checkpoint.pt"
    if not path.exists():
        return TrainProgress()
    state = torch.load(path, weights_only=True)
    decoder.load_state_dict(state["weights"])
    for optimiser, saved in zip(optimisers, state["optimisers"], strict=True):
        optimiser.load_state_dict(saved)
    torch.set_rng_state(state["torch_rng"])
    step, tokens, elapsed_s, losses = json.loads(state["progress"])
    return TrainProgress(step, tokens, elapsed_s, [(at, loss) for at, loss in losses])


def save_atomically(state: dict[str, Any], path: Path) -> None:
    """Write a file of tensors so that it is whole or absent."""
    with replacing(path) as partial:
        torch.save(state, partial)

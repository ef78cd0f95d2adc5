"""Two ways to the same gradient: whole rows, or every prompt computed once and shared by its responses.

Both ways are generators that yield after every micro-batch, add to the parameters' `.grad`, and agree to rounding
(tests/engine/test_torch_learner.py). Nothing global is held across a yield.

Sharing: the prompts of a bundle run once with gradient and their keys and values are cut off as leaves; each chunk of responses
attends to rows selected from the leaves and adds to the leaves' gradients; at the end one backward pass carries these through the
prompts. So a prompt costs one forward and one backward pass whatever G is, and chunks can be cut by length alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from edge.training.batching import Bundle, Row, Targets, pad_right, plain_chunks, shared_bundles, targets_of
from edge.training.lora import product_dtype

Objective = Callable[[Tensor, Targets], Tensor]
"""Loss of a chunk from the hidden states [N, D] that predict its targets."""
Slices = Generator[None, None, None]


class CausalDecoder(Protocol):
    """What a pass needs of a decoder: hidden states with an optional cache, right-padded rows, and a frozen output projection.

    `checkpointing`: blocks are computed again in the backward pass.
    """

    lm_head: nn.Linear
    checkpointing: bool

    def hidden_states(self, ids_BT: Tensor, mask_BS: Tensor | None = None, past: Any = None, use_cache: bool = False) -> Any:
        """An object with `states_BTD` [B, T, D] and `past` (per layer keys, values [B, K, S, d]); `mask_BS` covers the cache too."""
        ...


def gradient_slices(
    decoder: CausalDecoder, rows: Sequence[Row], objective: Objective, tokens_per_slice: int, shared: bool
) -> Slices:
    """Add the gradient of the summed objective of all rows, a micro-batch per slice."""
    if shared:
        for bundle in shared_bundles(rows, tokens_per_slice):
            yield from _shared_pass(decoder, bundle, objective)
        return
    for chunk in plain_chunks(rows, tokens_per_slice):
        objective(*plain_hidden(decoder, chunk)).backward()  # type: ignore[no-untyped-call]
        yield


def plain_hidden(decoder: CausalDecoder, rows: Sequence[Row]) -> tuple[Tensor, Targets]:
    """Hidden states [N, D] that predict the learned tokens of whole rows, and these."""
    padded = pad_right([(*row.prompt_ids, *row.token_ids[:-1]) for row in rows], _device(decoder))
    states_RTD: Tensor = decoder.hidden_states(padded.ids_RT, padded.mask_RT).states_BTD
    prompt_R = torch.tensor([len(row.prompt_ids) for row in rows], device=padded.ids_RT.device)
    places_T = torch.arange(padded.ids_RT.shape[1], device=padded.ids_RT.device)
    return _with_targets(states_RTD[padded.mask_RT & (places_T >= prompt_R[:, None] - 1)], rows)


def _with_targets(hidden_MD: Tensor, rows: Sequence[Row]) -> tuple[Tensor, Targets]:
    """Of the hidden states that predict all M tokens of responses those of the N that are learned; no logits are made for the others."""
    targets = targets_of(rows, hidden_MD.device)
    return hidden_MD if targets.learned_N is None else hidden_MD[targets.learned_N], targets


def _shared_pass(decoder: CausalDecoder, bundle: Bundle, objective: Objective) -> Slices:
    prompts = pad_right(bundle.prompts, _device(decoder))
    output = decoder.hidden_states(prompts.ids_RT, prompts.mask_RT, use_cache=True)
    ends_R = prompts.mask_RT.sum(-1) - 1
    last_RD = output.states_BTD[torch.arange(len(ends_R), device=ends_R.device), ends_R]
    roots = [last_RD, *(tensor for layer in output.past for tensor in layer)]
    leaves = [
        root.detach().float().requires_grad_() for root in roots
    ]  # their gradients are sums, which a narrow type would round
    yield
    for chunk in bundle.chunks:
        rows = [row for _, row in chunk]
        index_R = torch.tensor([prompt for prompt, _ in chunk], device=ends_R.device)
        hidden_MD = _continued_hidden(decoder, rows, index_R, prompts.mask_RT, leaves)
        objective(*_with_targets(hidden_MD, rows)).backward()  # type: ignore[no-untyped-call]
        yield
    reached = [(root, leaf.grad.to(root.dtype)) for root, leaf in zip(roots, leaves, strict=True) if leaf.grad is not None]
    torch.autograd.backward([root for root, _ in reached], [grad for _, grad in reached])
    yield


def _continued_hidden(
    decoder: CausalDecoder, rows: Sequence[Row], index_R: Tensor, prompt_mask: Tensor, leaves: Sequence[Tensor]
) -> Tensor:
    """Hidden states [M, D] that predict the response tokens of rows which continue the prompts `index_R` of the leaves."""
    first_RD = leaves[0].index_select(0, index_R)
    longest = max(len(row.token_ids) for row in rows)
    if longest == 1:
        return first_RD
    inputs = pad_right([row.token_ids[:-1] for row in rows], index_R.device)
    keys_values = [_shared(leaf, index_R) for leaf in leaves[1:]]
    past = tuple(zip(keys_values[::2], keys_values[1::2], strict=True))
    mask_RS = torch.cat((prompt_mask.index_select(0, index_R), inputs.mask_RT), dim=1)
    states_RTD = decoder.hidden_states(inputs.ids_RT, mask_RS, past=past).states_BTD
    first_mask = torch.ones(len(rows), 1, dtype=torch.bool, device=index_R.device)
    return torch.cat((first_RD[:, None], states_RTD), dim=1)[torch.cat((first_mask, inputs.mask_RT), dim=1)]


def _shared(leaf: Tensor, index_R: Tensor) -> Tensor:
    """Rows of a leaf, in the type of products."""
    rows: Tensor = _SharedRows.apply(leaf, index_R, product_dtype(leaf))  # type: ignore[no-untyped-call]
    return rows


class _SharedRows(torch.autograd.Function):
    """Rows by number, some of them several times, whose gradients are added in float32. A product adds them: index_add is slow where it has
    to be deterministic."""

    @staticmethod
    def forward(ctx: Any, leaf: Tensor, index_R: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(index_R)
        ctx.rows = len(leaf)
        return leaf.to(dtype).index_select(0, index_R)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        (index_R,) = ctx.saved_tensors
        takes_LR = (index_R == torch.arange(ctx.rows, device=grad.device)[:, None]).float()
        with torch.autocast(grad.device.type, enabled=False):
            summed = takes_LR @ grad.float().flatten(1)
        return summed.view(ctx.rows, *grad.shape[1:]), None, None


def _device(decoder: CausalDecoder) -> torch.device:
    return decoder.lm_head.weight.device

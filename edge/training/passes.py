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

    def hidden_states(
        self,
        ids_BT: Tensor,
        mask_BS: Tensor | None = None,
        past: Any = None,
        use_cache: bool = False,
        wanted_BT: Tensor | None = None,
    ) -> Any:
        """An object with `states_BTD` [B, T, D] and `past` (per layer keys, values [B, K, S, d]); `mask_BS` covers the cache too.

        States are needed where `wanted_BT` is true.
        """
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
    wanted_RT = _before_learned(rows, [len(row.prompt_ids) for row in rows], padded.mask_RT)
    states_RTD: Tensor = decoder.hidden_states(padded.ids_RT, padded.mask_RT, wanted_BT=wanted_RT).states_BTD
    return states_RTD[wanted_RT], targets_of(rows, padded.ids_RT.device)


def _before_learned(rows: Sequence[Row], starts: Sequence[int], mask_RT: Tensor) -> Tensor:
    """Where in padded rows, whose responses begin at `starts`, the token before a learned one is: its state predicts that."""
    wanted_RT = torch.zeros(mask_RT.shape, dtype=torch.bool)
    for row, start, wanted_T in zip(rows, starts, wanted_RT, strict=True):
        wanted_T[[start + place - 1 for place in row.learned if start + place]] = True
    return wanted_RT.to(mask_RT.device)


def _shared_pass(decoder: CausalDecoder, bundle: Bundle, objective: Objective) -> Slices:
    prompts = pad_right(bundle.prompts, _device(decoder))
    ends_R = prompts.mask_RT.sum(-1) - 1
    last_RT = torch.arange(prompts.mask_RT.shape[1], device=ends_R.device) == ends_R[:, None]
    output = decoder.hidden_states(prompts.ids_RT, prompts.mask_RT, use_cache=True, wanted_BT=last_RT)
    last_RD = output.states_BTD[torch.arange(len(ends_R), device=ends_R.device), ends_R]
    roots = [last_RD, *(tensor for layer in output.past for tensor in layer)]
    # Their gradients are sums, which a narrow type would round.
    leaves = [root.detach().float().requires_grad_() for root in roots]
    yield
    for chunk in bundle.chunks:
        rows = [row for _, row in chunk]
        index_R = torch.tensor([prompt for prompt, _ in chunk], device=ends_R.device)
        hidden_ND = _continued_hidden(decoder, rows, index_R, prompts.mask_RT, leaves)
        objective(hidden_ND, targets_of(rows, ends_R.device)).backward()  # type: ignore[no-untyped-call]
        yield
    reached = [(root, leaf.grad.to(root.dtype)) for root, leaf in zip(roots, leaves, strict=True) if leaf.grad is not None]
    torch.autograd.backward([root for root, _ in reached], [grad for _, grad in reached])
    yield


def _continued_hidden(
    decoder: CausalDecoder, rows: Sequence[Row], index_R: Tensor, prompt_mask: Tensor, leaves: Sequence[Tensor]
) -> Tensor:
    """Hidden states [N, D] that predict the learned tokens of rows which continue the prompts `index_R` of the leaves."""
    first_RD = leaves[0].index_select(0, index_R)
    first_R1 = torch.tensor([[0 in row.learned] for row in rows], device=index_R.device)
    longest = max(len(row.token_ids) for row in rows)
    if longest == 1:
        return first_RD[first_R1[:, 0]]
    inputs = pad_right([row.token_ids[:-1] for row in rows], index_R.device)
    keys_values = [_shared(leaf, index_R) for leaf in leaves[1:]]
    past = tuple(zip(keys_values[::2], keys_values[1::2], strict=True))
    mask_RS = torch.cat((prompt_mask.index_select(0, index_R), inputs.mask_RT), dim=1)
    wanted_RT = _before_learned(rows, [0] * len(rows), inputs.mask_RT)
    states_RTD = decoder.hidden_states(inputs.ids_RT, mask_RS, past=past, wanted_BT=wanted_RT).states_BTD
    return torch.cat((first_RD[:, None], states_RTD), dim=1)[torch.cat((first_R1, wanted_RT), dim=1)]


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

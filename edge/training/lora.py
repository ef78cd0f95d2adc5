"""The LoRA adapter of a torch decoder, by peft. Knows how to add, read, set and store it; knows nothing of losses or of GGUF.

On disk an adapter is what peft writes (`adapter_model.safetensors` with `base_model.model.` names, `adapter_config.json`), so any
peft tool can load it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model_state_dict, inject_adapter_in_model, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from edge.core.errors import AdapterError
from edge.core.rng import derive_seed
from edge.training.adapted import fuse
from edge.training.settings import LoraSpec

WEIGHTS_FILE = "adapter_model.safetensors"
CONFIG_FILE = "adapter_config.json"
_PREFIX = "base_model.model."


def lora_config(spec: LoraSpec) -> LoraConfig:
    """peft's description of the adapter: no dropout, no bias, B starts at zero."""
    return LoraConfig(
        r=spec.rank,
        lora_alpha=spec.alpha,
        target_modules=list(spec.targets),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def inject_lora(decoder: nn.Module, spec: LoraSpec, seed: int) -> None:
    """Add a fresh adapter in place and freeze everything else.

    B is zero, so the decoder computes what it did before; A is drawn from `seed` and the process's generator stays as it was.
    """
    decoder.requires_grad_(False)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "lora") % 2**63)
        inject_adapter_in_model(lora_config(spec), decoder)
    fuse(decoder)


def lora_parameters(decoder: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters by name, in the module's order."""
    return {name: parameter for name, parameter in decoder.named_parameters() if parameter.requires_grad}


def lora_state(decoder: nn.Module) -> dict[str, Tensor]:
    """A copy of the adapter's tensors on the CPU under the names peft stores."""
    state = get_peft_model_state_dict(decoder, save_embedding_layers=False)
    return {_PREFIX + name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in sorted(state.items())}


def check_fits(state: Mapping[str, Tensor], decoder: nn.Module) -> None:
    """Raise AdapterError unless names and shapes are those of the decoder's adapter."""
    expected = {name: tuple(tensor.shape) for name, tensor in lora_state(decoder).items()}
    given = {name: tuple(tensor.shape) for name, tensor in state.items()}
    if expected == given:
        return
    odd = sorted(name for name in expected.keys() | given.keys() if expected.get(name) != given.get(name))[0]
    raise AdapterError(
        f"the adapter does not fit the model: {odd} is {given.get(odd, 'absent')}, expected {expected.get(odd, 'absent')}",
        hint="use the base model and the rank the adapter was trained with",
    )


def set_lora_state(decoder: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Overwrite the adapter in place. Raises AdapterError, with nothing changed, when it does not fit."""
    check_fits(state, decoder)
    set_peft_model_state_dict(decoder, {name.removeprefix(_PREFIX): tensor for name, tensor in state.items()})


def write_peft_folder(state: Mapping[str, Tensor], spec: LoraSpec, folder: Path) -> None:
    """Write peft's two files into an existing folder; equal adapters give equal bytes."""
    save_file(dict(state), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    fields = {name: _plain(value) for name, value in lora_config(spec).to_dict().items()}
    fields["inference_mode"] = True
    (folder / CONFIG_FILE).write_text(json.dumps(fields, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_peft_folder(folder: Path) -> dict[str, Tensor]:
    """The tensors of a stored adapter. Raises AdapterError when the file is missing or damaged."""
    try:
        return dict(load_file(folder / WEIGHTS_FILE))
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"cannot read the adapter in {folder.name}: {error}") from error


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, set) else value

"""What a configured model costs on this machine: sizes, rows, how its weights are held, and the rates a device profile brings.

The formulas are in edge.training.floor and edge.training.memory. No weights are loaded and nothing is measured; torch, numpy and gguf are
imported inside the functions.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from edge.config.device import DeviceConfig
from edge.config.schema import AgentConfig, LearningConfig
from edge.core.engines import engine_named
from edge.dagrpo.hyperparameters import GVPO_UPDATES
from edge.models import weights
from edge.models.spec import parameter_count
from edge.training.floor import PASSES, PASSES_WITH_CHECKPOINTING, DeviceSpeed, ModelCost, StepMeasure
from edge.training.learner import LearnerSettings, LoraSpec, UpdateRule
from edge.training.memory import BatchLimits, ModelShape, ProbePlan, TrainingSetting, held_before_learning, resident_bytes

if TYPE_CHECKING:
    import torch

    from edge.inference.batched import ServingMemory


def learner_settings(config: AgentConfig) -> tuple[LoraSpec, LearnerSettings]:
    """The adapter's shape and the learner's settings as configured. Raises UsageError for a training device that is not there."""
    from edge.training.device import logits_at_once

    learning, adapter = config.learning, config.adapter
    return LoraSpec(adapter.rank, adapter.alpha, adapter.targets), LearnerSettings(
        learning_rate=learning.optimiser.learning_rate,
        imitation_rate=learning.imitation.imitation_rate,
        weight_decay=learning.optimiser.weight_decay,
        max_grad_norm=learning.optimiser.max_grad_norm,
        importance_cap=learning.objective.importance_cap,
        tokens_per_slice=learning.memory.micro_batch_tokens,
        vocab_chunk_elements=logits_at_once(training_device(config)),
        gradient_checkpointing=learning.memory.gradient_checkpointing == "on",
        threads=learning.torch_threads,
        rule=update_rule(learning),
    )


def update_rule(learning: LearningConfig) -> UpdateRule:
    """What the learner optimises for the configured method."""
    if learning.method == "grpo":
        return UpdateRule("clipped", learning.optimiser.updates_per_rollout or 1, ratio_clip=learning.objective.ratio_clip)
    if learning.method == "gvpo":
        return UpdateRule("gvpo", learning.optimiser.updates_per_rollout or GVPO_UPDATES, gvpo_beta=learning.objective.gvpo_beta)
    return UpdateRule()


def weights_held(config: AgentConfig, path: Path) -> Literal["resident", "streamed"]:
    """How torch would hold the weights of a GGUF file here and now. Raises ModelFileError."""
    from edge.training.device import graphics_memory

    shape, own = model_shape(path), graphics_memory(training_device(config)) is not None
    needed = resident_bytes(shape, 2 if trains_in_bf16(config, shape.parameters) else 4)
    return weights.choose_weights(config.engine.weights, needed, training_memory(config), own_memory=own)


def training_device(config: AgentConfig) -> torch.device:
    """Where torch trains. Raises UsageError for a device that is not there."""
    from edge.training.device import choose_device

    return choose_device(config.learning.device)


def training_memory(config: AgentConfig) -> int:
    """Bytes that learning could still take now, on the device where torch trains."""
    from edge.training.device import graphics_memory

    own = graphics_memory(training_device(config))
    return weights.available_memory() if own is None else own


def model_shape(path: Path) -> ModelShape:
    """The sizes that memory and time depend on, of a GGUF file or an MLX folder. Raises ModelFileError."""
    if path.is_dir():
        from edge.models.hf_folder import shape_of_folder

        spec = shape_of_folder(path)
        parameters = parameter_count(spec)
    else:
        from edge.models.gguf_reader import open_gguf

        file = open_gguf(path)
        spec, parameters = file.decoder_spec(), file.parameters
    heads = spec.heads, spec.kv_heads, spec.head_dim
    return ModelShape(parameters, spec.vocab_size, spec.width, spec.layers, *heads, spec.ffn_width)


def training_setting(config: AgentConfig, path: Path) -> TrainingSetting:
    """How the configured learner and sampler would hold this model. Raises ModelFileError."""
    shape, (spec, settings) = model_shape(path), learner_settings(config)
    context = row_tokens(config, path)
    return TrainingSetting(
        rank=spec.rank,
        targets=spec.targets,
        weights="streamed" if path.is_dir() else weights_held(config, path),
        value_bytes=2 if trains_in_bf16(config, shape.parameters) else 4,
        vocab_chunk_elements=settings.vocab_chunk_elements,
        rows=most_rows(config, path),
        context_tokens=context,
        row_value_bytes=engine_named(config.engine.backend).row_value_bytes,
    )


def batch_limits(config: AgentConfig, path: Path) -> BatchLimits:
    """What bounds a batch of this configuration."""
    learning = config.learning
    return BatchLimits(
        row_tokens(config, path),
        learning.max_tokens,
        learning.prompts_per_step,
        learning.group_size + (learning.objective.cloud_samples == "on"),
        learning.memory.micro_batch_tokens,
    )


def probe_plan(config: AgentConfig, path: Path, *, estimated: bool) -> ProbePlan:
    """What has to be made sure of before learning, with weights and rows in memory already. Raises ModelFileError."""
    shape, setting = model_shape(path), training_setting(config, path)
    held, learning = held_before_learning(shape, setting), config.learning
    limits = batch_limits(config, path)
    return ProbePlan(
        shape, limits, setting, held, learning.memory.memory_probe, learning.memory.gradient_checkpointing, estimated
    )


def row_tokens(config: AgentConfig, path: Path) -> int:
    """Context of one row of rollouts in tokens: the configured one, at most what a GGUF model was trained for."""
    apart = not path.is_dir() and engine_named(config.engine.backend).serves_apart
    tokens = config.learning.context_tokens if apart else shared_row_tokens(config)
    if path.is_dir():
        return tokens
    from edge.models.gguf_reader import open_gguf

    return min(tokens, open_gguf(path).decoder_spec().context_length or tokens)


def shared_row_tokens(config: AgentConfig) -> int:
    """Context of one row where the same rows learn and serve."""
    return max(config.learning.context_tokens, config.model.context_tokens or 0)


def serving_memory_of(config: AgentConfig, path: Path) -> ServingMemory:
    """How long served conversations may be here and now, with llama.cpp. Raises ModelFileError."""
    from edge.inference.batched import serving_memory
    from edge.models.catalogue import look_at

    about = look_at(path)
    free = weights.available_memory()
    return serving_memory(config.model.context_tokens, about.context_tokens, about.kv_bytes_per_token, free)


def most_rows(config: AgentConfig, path: Path) -> int:
    """Rows that rollouts may fill together. Raises ModelFileError."""
    from edge.inference.batched import rows_that_fit

    if config.engine.max_rows:
        return config.engine.max_rows
    engine = engine_named(config.engine.backend)
    # on Apple silicon MLX and llama.cpp both compute on graphics, so it does not matter which of them `auto` chooses
    on_graphics = path.is_dir() or engine.on_graphics == "always"
    if not on_graphics and engine.on_graphics == "as built" and importlib.util.find_spec("llama_cpp") is not None:
        from edge.inference import gguf_model

        on_graphics = gguf_model.on_graphics(config.engine.gpu_layers)
    row_bytes = model_shape(path).kv_bytes(engine.row_value_bytes) * row_tokens(config, path)
    return rows_that_fit(row_bytes, graphics=on_graphics)


def trains_in_bf16(config: AgentConfig, parameters: int) -> bool:
    """Whether the torch learner would compute in bf16 here."""
    import torch

    from edge.training.device import choose_dtype, has_fast_bf16

    return choose_dtype("auto", parameters, has_fast_bf16(training_device(config))) is torch.bfloat16


def step_measure(config: AgentConfig, path: Path, *, checkpointing: bool = False) -> StepMeasure | None:
    """What the floor of a step is computed from; None where the device was not measured. Raises ModelFileError."""
    shape = model_shape(path)
    speed = device_speed(config.device, trains_in_bf16(config, shape.parameters))
    if speed is None:
        return None
    rows = most_rows(config, path)
    return StepMeasure(speed, model_cost(path), rows, PASSES_WITH_CHECKPOINTING if checkpointing else PASSES)


def device_speed(device: DeviceConfig, bf16: bool) -> DeviceSpeed | None:
    """The rates of the formula; None unless all three were measured. A type that was not measured takes the other's rate."""
    fp32, half = device.train_fp32_gflop_per_s, device.train_bf16_gflop_per_s
    train = (half or fp32) if bf16 else (fp32 or half)
    if not (device.bandwidth_gb_per_s and device.infer_gflop_per_s and train):
        return None
    return DeviceSpeed(1e9 * device.bandwidth_gb_per_s, 1e9 * device.infer_gflop_per_s, 1e9 * train)


def model_cost(path: Path) -> ModelCost:
    """N, N_b, q and κ of a model file or folder. Raises ModelFileError."""
    shape = model_shape(path)
    if path.is_dir():
        stored = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    else:
        from edge.models.gguf_reader import open_gguf

        stored = open_gguf(path).weight_bytes
    return ModelCost(shape.token_weights, shape.block_weights, stored / shape.parameters, shape.kv_bytes_per_token)

"""What a person should know before a command begins to work."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from edge.config.loader import Resolved
    from edge.config.schema import AgentConfig

_WORDS = {
    "engine.max_rows": "{} rows",
    "learning.prompts_per_step": "{} prompts per step",
    "learning.micro_batch_tokens": "micro-batches of {} tokens",
    "learning.gradient_checkpointing": "gradient checkpointing {}",
}


def starting_lines(resolved: Resolved[AgentConfig], *, learns: bool) -> Iterator[str]:
    """One line for each such setting."""
    lines = [layers_line(resolved.config), hints_line(resolved.config), picked_line(resolved)]
    if learns:
        lines += [profile_line(resolved), length_line(resolved.config)]
    yield from (line for line in lines if line)


def profile_line(resolved: Resolved[AgentConfig]) -> str:
    """Which settings besides what was measured the device profile brings, or ""; of a picked one, `picked_line` tells."""
    said = [] if _pick_origin(resolved) else _brought(resolved)
    return f"device profile: {', '.join(said)}" if said else ""


def picked_line(resolved: Resolved[AgentConfig]) -> str:
    """Which device profile was picked by itself and what it brings, or why a kept one was not, or ""."""
    from edge.config.device_profile import NOT_PICKED

    profile, why = resolved.config.device_profile, _pick_origin(resolved)
    if not why:
        return ""
    if why.startswith(NOT_PICKED):
        return f"device profile {why}; edge-agent doctor --keep-profile measures this machine"
    brings = ", ".join(_brought(resolved)) or "no settings"
    return f"device profile {profile} ({why}; device_profile: none does without): {brings}"


def _pick_origin(resolved: Resolved[AgentConfig]) -> str:
    """Why a profile was picked or not; "" where there was nothing to pick from, or one is named."""
    from edge.config.device_profile import KNOWN, MEASURED, NOT_PICKED

    origin = resolved.origins.get("device_profile", "")
    return origin if origin in (KNOWN, MEASURED) or origin.startswith(NOT_PICKED) else ""


def _brought(resolved: Resolved[AgentConfig]) -> list[str]:
    profile = resolved.config.device_profile
    brought = [(key, value) for key, value, origin in resolved.rows() if origin.startswith(f"{profile}:")]
    return [_setting_text(key, value) for key, value in brought if not key.startswith("device.")]


def layers_line(config: AgentConfig) -> str:
    """That layers cannot go to a graphics processor though the configuration sends some there, or ""."""
    from edge.app import choose_engine, model_file

    layers = config.engine.gpu_layers
    if not layers or not choose_engine(config, model_file(config.model.path)).splits_layers:
        return ""
    from edge.inference.gguf_model import llama_offloads

    if llama_offloads():
        return ""
    return f"engine.gpu_layers is {layers}, but this llama.cpp is built for the processor alone: all layers stay on it"


def hints_line(config: AgentConfig) -> str:
    """That hints go along though nobody has measured here that they pay, or ""."""
    from edge.app import measured_hints

    if not config.coordinator.hint_chars:
        return ""
    kept = measured_hints(config)
    if kept is not None and kept["verdict"] == "pays":
        return ""
    said = "was not measured here" if kept is None else f"was measured: {kept['verdict']}"
    return f"hints of {config.coordinator.hint_chars} characters go to the cloud LLM; whether they pay {said} (edge-agent hints measure)"


def privacy_line(config: AgentConfig) -> str:
    """What happens to private data before a request leaves for a cloud LLM, or "" where none leaves this device."""
    from edge.app import switched_off

    coordinator, privacy = config.coordinator, config.privacy
    if switched_off(config) or (coordinator.address is None and coordinator.embedded.upstream == "bundled"):
        return ""
    if not privacy.enabled:
        return "what is private goes to the cloud LLM as it is (privacy.enabled is false); edge-agent outbox shows what left"
    terms = ["your terms"] if privacy.terms or privacy.terms_file else []
    found = ", ".join([*privacy.kinds, *terms]) or "nothing: privacy.kinds and privacy.terms are empty"
    return f"private data is replaced before a request leaves for the cloud LLM ({found}); edge-agent outbox shows what left"


def length_line(config: AgentConfig) -> str:
    """That responses end with the context, before the longest allowed length is reached, or ""."""
    from edge.app import model_file
    from edge.sizing import row_tokens

    context = row_tokens(config, model_file(config.model.path))
    if config.learning.max_tokens < context:
        return ""
    return (
        f"learning.max_tokens is {config.learning.max_tokens}, but prompt and response share {context} tokens (model.context_tokens): "
        "responses end where the context does"
    )


def _setting_text(key: str, value: Any) -> str:
    text = _WORDS[key].format(value) if key in _WORDS else f"{key} = {value}"
    return text.replace("prompts", "prompt").replace("rows", "row") if value == 1 else text

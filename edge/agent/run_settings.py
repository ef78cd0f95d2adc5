"""Whether a run folder's run can go on under the settings given now. Knows what a run's record depends on; knows
nothing of files.

What a person changes to be able to go on (money, machine, network, privacy, what is shown) may differ from one part of a run to the next.
All else says what was measured, so that a key that comes with a later version counts until it is named here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from edge.config.loader import dotted, leaves
from edge.config.schema import AgentConfig

_MAY_DIFFER = (
    "budget", "chat", "coordinator.address", "coordinator.allow_insecure", "coordinator.call_deadline_s",
    "coordinator.control_deadline_s", "coordinator.device_id", "coordinator.embedded.allow_plaintext", "coordinator.embedded.api_key",
    "coordinator.embedded.api_key_env", "coordinator.embedded.price_in_uusd_per_mtok",
    "coordinator.embedded.price_out_uusd_per_mtok", "coordinator.embedded.start_timeout_s", "coordinator.embedded.threads",
    "coordinator.tls", "coordinator.token_file", "device", "device_profile", "engine.gpu_layers", "engine.max_rows", "engine.repack",
    "engine.threads", "engine.weights", "learning.device", "learning.gradient_checkpointing", "learning.memory_probe",
    "learning.micro_batch_tokens", "learning.torch_threads", "learning.when", "privacy", "programs.sandbox", "programs.unsafe", "serve",
    "state_folder",
)  # fmt: skip
_MOST_NAMED = 3


def other_settings(then: AgentConfig, now: AgentConfig, *, under: str = "") -> str:
    """In one line what differs so that the record would be false, `target_rate 0.3 -> 0.7`; "" where the run can go on.

    It may grow: its last phase may be longer now, and phases may follow it. `under` is the section of a larger configuration that the
    agent's settings stand in, as `agent.`: keys are told with it and in full.
    """
    before, after = _record(then, len(then.phases)), _record(now, len(then.phases))
    names = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    one_phase = len(then.phases) == 1 and not under
    told = [under + _difference(name, before.get(name), after.get(name), one_phase=one_phase) for name in names]
    if not told and _ends_earlier(then, now):
        place = f"{under}phases.{len(then.phases) - 1}." if under else ""
        told = [f"{place}steps {_steps(then.phases[-1].steps)} -> {_steps(now.phases[len(then.phases) - 1].steps)}"]
    return ", ".join(told[:_MOST_NAMED]) + (f" and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else "")


def _record(config: AgentConfig, phases: int) -> dict[str, Any]:
    data = config.model_dump(mode="json")
    data["phases"] = data["phases"][:phases]
    if len(data["phases"]) == phases:
        del data["phases"][-1]["steps"]
    return dict(_counted(data))


def _counted(data: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for path, value in leaves(data):
        name = dotted(path)
        if not any(name == free or name.startswith(f"{free}.") for free in _MAY_DIFFER):
            yield name, value


def _ends_earlier(then: AgentConfig, now: AgentConfig) -> bool:
    last, same = then.phases[-1].steps, now.phases[len(then.phases) - 1].steps
    return same is not None and (last is None or same < last)


def _difference(name: str, before: Any, after: Any, *, one_phase: bool) -> str:
    short = name.removeprefix("phases.0.") if one_phase else name
    return f"{short} {_shown(before)} -> {_shown(after)}"


def _shown(value: Any) -> str:
    return "none" if value is None else str(value)


def _steps(steps: int | None) -> str:
    return "without end" if steps is None else str(steps)

"""The composition root of the agent: the only place that names concrete classes. Heavy imports happen inside the builders."""

from edge.app.agents import build_agent, build_components, build_conditions, build_own_use, check_inputs, check_serving
from edge.app.coordinator import build_client, build_credentials, build_embedded, coordinator_address, egress_client
from edge.app.device_profile import kept_profile, own_profile
from edge.app.engines import (
    apple_silicon,
    choose_engine,
    installed,
    open_backend,
    open_rollouts,
    require_onnx,
    sound_adapter,
    with_its_device,
)
from edge.app.judging import build_policy, build_verifier, policy_name, program_sandbox
from edge.app.measuring import eval_candidates, evaluate, measure_hints, measured_hints, train_router
from edge.app.openers import SharedWeights, onnx_graph
from edge.app.places import adapter_version, bundled_models, latest_adapters, model_file, serving_adapters, state_folder
from edge.app.privacy import build_registry, with_hint_cut
from edge.app.settings import NO_CLOUD, agent_settings, cloud_prompt_form, gate_rules, local_prompt_form, switched_off
from edge.app.training import Trainer, open_learner, probe_memory

__all__ = [
    "NO_CLOUD",
    "SharedWeights",
    "Trainer",
    "adapter_version",
    "agent_settings",
    "apple_silicon",
    "build_agent",
    "build_client",
    "build_components",
    "build_conditions",
    "build_credentials",
    "build_embedded",
    "build_own_use",
    "build_policy",
    "build_registry",
    "build_verifier",
    "bundled_models",
    "check_inputs",
    "check_serving",
    "choose_engine",
    "cloud_prompt_form",
    "coordinator_address",
    "egress_client",
    "eval_candidates",
    "evaluate",
    "gate_rules",
    "installed",
    "kept_profile",
    "latest_adapters",
    "local_prompt_form",
    "measure_hints",
    "measured_hints",
    "model_file",
    "onnx_graph",
    "open_backend",
    "open_learner",
    "open_rollouts",
    "own_profile",
    "policy_name",
    "probe_memory",
    "program_sandbox",
    "require_onnx",
    "serving_adapters",
    "sound_adapter",
    "state_folder",
    "switched_off",
    "train_router",
    "with_hint_cut",
    "with_its_device",
]

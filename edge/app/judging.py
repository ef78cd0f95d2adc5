"""Who judges answers and who decides that one is handed to the cloud."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from edge.app.engines import require_onnx
from edge.config.schema import AgentConfig
from edge.core.errors import ModelFileError

if TYPE_CHECKING:
    from edge.routing.policy import OffloadPolicy
    from edge.verifiers.sandbox.role import Sandbox
    from edge.verifiers.verifier import Verifier


def program_sandbox(config: AgentConfig) -> Sandbox:
    """The sandbox for programs that a model writes. Raises UsageError where there is none that may be used."""
    from edge.verifiers.sandbox.choice import choose_sandbox

    return choose_sandbox(config.programs.sandbox, unsafe=config.programs.unsafe)


def build_verifier(config: AgentConfig) -> Verifier:
    """What judges answers. The sandbox for programs is chosen when the first program comes.

    Raises UsageError when equivalence is asked for and math-verify is not installed.
    """
    from edge.verifiers.by_kind import VerifierByKind
    from edge.verifiers.math_answer import MathAnswer
    from edge.verifiers.program import ProgramJudge, ProgramVerifier
    from edge.verifiers.sandbox.role import SandboxLimits

    limits = SandboxLimits(wall_s=config.programs.timeout_s, memory_mib=config.programs.memory_mib)
    programs = ProgramVerifier(ProgramJudge(lambda: program_sandbox(config), limits))
    return VerifierByKind(math=MathAnswer(config.learning.objective.answer_match), programs=programs)


def build_policy(config: AgentConfig) -> OffloadPolicy:
    """Who decides that a response is handed to the cloud. Raises UsageError and ModelFileError for a router that cannot be run."""
    from edge.routing.policy import SelfOffload

    routing = config.routing
    if routing.policy == "self" or routing.router is None:
        return SelfOffload()
    require_onnx("routing.policy is router")
    from edge.routing.classifier import ThresholdRouter

    path = Path(routing.router).expanduser()
    return ThresholdRouter(path, providers=config.engine.onnx_providers, threshold=routing.threshold)


def policy_name(config: AgentConfig) -> str:
    """What `build_policy` builds, for reports: "self", or a router by its file's checksum and threshold. Raises ModelFileError."""
    routing = config.routing
    if routing.policy == "self" or routing.router is None:
        return "self"
    path = Path(routing.router).expanduser()
    try:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise ModelFileError(f"{path}: cannot be read ({error.strerror})", hint="train one: edge-agent router train") from error
    return f"router {digest[:16]}" + ("" if routing.threshold is None else f" above {routing.threshold}")

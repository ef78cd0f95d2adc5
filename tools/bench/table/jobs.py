"""The measured processes of every row, as commands and jobs, with the settings of each side."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edge.cli.allocator import LEAN_SETTINGS
from edge.cli.allocator import SETTINGS as ALLOCATOR
from edge.core.errors import EdgeError
from edge.core.install import install_extra
from tools.bench.harness import MeasuredPart, own_part, version_of
from tools.bench.table.models import identity
from tools.bench.table.plan import ALPHA, DUAL, DUAL_LR, GROUP_SIZE, LEARNING_RATE, RANK, TARGET_RATE, RolloutLoad, Workload

PEER_SCRIPT = Path(__file__).with_name("trl_peer.py")
FP32 = {"bf16": False, "gradient_checkpointing": False}
DEFAULTS: dict[str, Any] = {}
CHECKPOINTING = {"memory": {"gradient_checkpointing": "on"}}
LEAN = {"memory": {"gradient_checkpointing": "on", "micro_batch_tokens": 512}}
"""Our own settings for little memory."""
BF16 = {"bf16": True, "gradient_checkpointing": True, "model_init_kwargs": {"dtype": "bfloat16"}}
_AGENT_FLAG = "EDGE_AGENT_ALLOCATOR"
_NEUTRAL = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


@dataclass(frozen=True, slots=True)
class Jobs:
    """Makes parts. `cache` is kept between runs (models, peers), `out` belongs to one run; `threads` is the number for every competitor."""

    cache: Path
    out: Path
    threads: int

    @property
    def models(self) -> Path:
        """Folder of the made models."""
        return self.cache / "models"

    def items(self, model: Path, work: Workload) -> Path:
        """The task file of a workload."""
        return self.out / "prompts" / f"{model.stem}-{work.prompts}x{work.prompt_tokens or 'practice'}.jsonl"

    def model_files(self, shape: str, kinds: list[str], transformers: bool, source: Path | None = None) -> MeasuredPart:
        """Make a model's files; `source` is the bundled model where it is not a random one."""
        job: dict[str, Any] = {"folder": str(self.models), "shape": shape, "quantisations": kinds, "transformers": transformers}
        if source is not None:
            job |= {"source": str(source), "source_is": identity(source)}
        return own_part("table.models", job)

    def prompts(self, model: Path, work: Workload, source: str | None, wanted: int) -> MeasuredPart:
        """Make the prompts of a workload."""
        job = {"source": source, "prompt_tokens": work.prompt_tokens, "wanted": wanted, "items": str(self.items(model, work))}
        return own_part("table.prompts", {**_model(model), **job})

    def agent(
        self,
        model: Path,
        work: Workload,
        *,
        random_model: bool,
        weights: str = "auto",
        serve: bool = False,
        learning: Mapping[str, Any] | None = None,
        gate: Mapping[str, Any] | None = None,
        cloud: Literal["bundled", "answering"] = "answering",
        lean: bool = False,
        guided: bool = False,
    ) -> MeasuredPart:
        """Learning steps of our agent, with the allocator settings that `edge-agent run` gives itself.

        `learning` departs from its defaults; `gate` is the promotion gate's section, and without one there is no gate. The `cloud` answers
        immediately, as assumed of the peer's, or is the bundled LLM on the same cores. `lean` covers what is no setting of learning: the
        allocator, and no repacked second copy of weights. `guided`: responses are held to their form and end with it.
        """
        job = {
            **_model(model),
            "items": str(self.items(model, work)),
            "max_rows": work.prompts * GROUP_SIZE if random_model else 0,
            "weights": weights,
            "repack": not lean,
            "responses": "guided" if guided else "free",
            "endless": random_model and not guided,
            "serve": serve,
            "learning": dict(learning or {}),
            "cloud": cloud,
            "gate": dict(gate or {"enabled": False}),
            **self._step(work, random_model),
        }
        environment = self._environment({**(LEAN_SETTINGS if lean else ALLOCATOR), _AGENT_FLAG: "tuned"})
        return own_part("table.agent_steps", job, environment, scratch=True)

    def trl(
        self,
        model: Path,
        prompts: list[dict[str, Any]],
        work: Workload,
        setting: Mapping[str, Any],
        *,
        random_model: bool,
        tuned_allocator: bool = False,
    ) -> MeasuredPart:
        """The same steps in TRL, in a process that imports nothing of ours. Raises EdgeError where TRL is not installed."""
        if not version_of("trl"):
            raise EdgeError("TRL is not installed", hint=install_extra("trl"))
        own = {"model": str(model), "prompts": prompts, "setting": dict(setting), "force_length": random_model}
        environment = self._environment(ALLOCATOR if tuned_allocator else {})
        return MeasuredPart(
            (sys.executable, str(PEER_SCRIPT)), {**own, **self._step(work, random_model)}, environment, scratch=True
        )

    def rollout(self, model: Path, load: RolloutLoad, program: Path | None = None, *, shared: bool = True) -> MeasuredPart:
        """Our rollouts, or those of llama.cpp's batched bench where its `program` is given, whose rows share prompts or do not."""
        job = {
            **_model(model),
            "prompts": load.prompts,
            "group_size": GROUP_SIZE,
            "prompt_tokens": load.prompt_tokens,
            "max_tokens": load.max_tokens,
            "context_tokens": load.prompt_tokens + load.max_tokens,
            "repeats": load.repeats,
            "threads": self.threads,
        }
        if program is None:
            return self._own("table.rollout", job)
        return self._own("table.batched_peer", {"program": str(program), "shared": shared, **job})

    def speed(self, models: Mapping[str, Path], seconds: float) -> MeasuredPart:
        """The speeds of the machine; every rate is measured for about `seconds`."""
        named = {name: str(path) for name, path in models.items()}
        return self._own("table.device_speed", {"models": named, "threads": self.threads, "seconds": seconds})

    def _own(self, module: str, job: Mapping[str, Any]) -> MeasuredPart:
        return own_part(module, job, self._environment({}))

    def _environment(self, extra: Mapping[str, str]) -> dict[str, str]:
        """The same number of threads as the other side, independent of the caller's environment."""
        return {"OMP_NUM_THREADS": str(self.threads), **_NEUTRAL, **extra}

    def _step(self, work: Workload, random_model: bool) -> dict[str, Any]:
        """The settings common to both sides of a comparison."""
        return {
            "prompts_per_step": work.prompts,
            "group_size": GROUP_SIZE,
            "max_tokens": work.max_tokens,
            "context_tokens": work.context_tokens,
            "rank": RANK,
            "alpha": ALPHA,
            "learning_rate": LEARNING_RATE,
            "dual": DUAL,
            "dual_lr": DUAL_LR,
            "target_rate": TARGET_RATE,
            "made_up_rewards": random_model,
            "warmup": work.warmup,
            "steps": work.steps,
            "threads": self.threads,
        }


def _model(path: Path) -> dict[str, str]:
    """A file, and which version of it: another one is measured anew."""
    return {"model": str(path), "model_is": identity(path)}

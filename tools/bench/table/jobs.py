"""The measured processes of every row, as commands and jobs: which side gets which settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from edge.cli.allocator import LEAN_SETTINGS
from edge.cli.allocator import SETTINGS as ALLOCATOR
from tools.bench.harness import Part, own_part
from tools.bench.table.models import identity
from tools.bench.table.plan import ALPHA, DUAL, DUAL_LR, GROUP_SIZE, LEARNING_RATE, RANK, TARGET_RATE, RolloutLoad, Workload

PEER_SCRIPT = Path(__file__).with_name("trl_peer.py")
FP32 = {"bf16": False, "gradient_checkpointing": False}
DEFAULTS: dict[str, Any] = {}
CHECKPOINTING = {"gradient_checkpointing": "on"}
LEAN = {**CHECKPOINTING, "micro_batch_tokens": 512}
"""Our own settings for little memory."""
BF16 = {"bf16": True, "gradient_checkpointing": True, "model_init_kwargs": {"dtype": "bfloat16"}}
_AGENT_FLAG = "EDGE_AGENT_ALLOCATOR"
_NEUTRAL = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error"}


@dataclass(frozen=True, slots=True)
class Places:
    """Where things lie: `cache` is kept between runs (models, peers), `out` belongs to one run."""

    cache: Path
    out: Path

    @property
    def models(self) -> Path:
        """Folder of the made models."""
        return self.cache / "models"

    def items(self, model: Path, work: Workload) -> Path:
        """The task file of a workload."""
        return self.out / "prompts" / f"{model.stem}-{work.prompts}x{work.prompt_tokens or 'practice'}.jsonl"

    def scratch(self, key: str) -> Path:
        """A folder that a process may fill and that goes with it."""
        return self.out / "scratch" / key.replace("/", "-")


def environment_of(threads: int, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """What every measured process gets: as many threads as the other side, and nothing that depends on who started the bench."""
    return {"OMP_NUM_THREADS": str(threads), **_NEUTRAL, **(extra or {})}


def models_part(places: Places, shape: str, kinds: list[str], transformers: bool, source: Path | None = None) -> Part:
    """Make a model's files; `source` is the bundled model where it is not a random one."""
    job: dict[str, Any] = {"folder": str(places.models), "shape": shape, "quantisations": kinds, "transformers": transformers}
    if source is not None:
        job |= {"source": str(source), "source_is": identity(source)}
    return own_part("table.models", f"models/{shape}-{'-'.join(kinds).lower()}{'-transformers' if transformers else ''}", job)


def prompts_part(places: Places, model: Path, work: Workload, source: str | None, wanted: int) -> Part:
    """Make the prompts of a workload."""
    items = places.items(model, work)
    job = {
        "model": str(model),
        "model_is": identity(model),
        "source": source,
        "prompt_tokens": work.prompt_tokens,
        "wanted": wanted,
        "items": str(items),
    }
    return own_part("table.prompts", f"prompts/{items.stem}", job)


def agent_part(
    places: Places,
    key: str,
    model: Path,
    work: Workload,
    threads: int,
    *,
    random_model: bool,
    weights: str = "auto",
    serve: bool = False,
    learning: Mapping[str, Any] | None = None,
    profile: bool = False,
    gate: Mapping[str, Any] | None = None,
    cloud: Literal["bundled", "answering"] = "answering",
    lean: bool = False,
) -> Part:
    """Learning steps of our agent, with the allocator settings that `edge-agent run` gives itself; `learning` departs from its defaults.

    `gate` is the promotion gate's section; without one there is no gate. The `cloud` answers at once, as the peer's is taken to, or is
    the bundled LLM on the same cores. `lean` is what is no setting of learning: the allocator, and no rearranged second copy of weights.
    """
    job = {
        "model": str(model),
        "model_is": identity(model),
        "items": str(places.items(model, work)),
        "prompts_per_step": work.prompts,
        "max_rows": work.prompts * GROUP_SIZE if random_model else 0,
        "weights": weights,
        "endless": random_model,
        "serve": serve,
        "learning": dict(learning or {}),
        "profile": profile,
        "cloud": cloud,
        **({"repack": False} if lean else {}),
        **({"gate": dict(gate)} if gate else {}),
        **_common(places, key, work, threads, random_model),
    }
    allocator = LEAN_SETTINGS if lean else ALLOCATOR
    return own_part("table.agent_steps", key, job, environment_of(threads, {**allocator, _AGENT_FLAG: "tuned"}))


def trl_part(
    places: Places,
    key: str,
    python: Path,
    model: Path,
    prompts: list[dict[str, Any]],
    work: Workload,
    threads: int,
    setting: Mapping[str, Any],
    *,
    random_model: bool,
    tuned_allocator: bool = False,
) -> Part:
    """The same steps in TRL."""
    job = {
        "model": str(model),
        "prompts": prompts,
        "prompts_per_step": work.prompts,
        "setting": dict(setting),
        "force_length": random_model,
        **_common(places, key, work, threads, random_model),
    }
    extra = dict(ALLOCATOR) if tuned_allocator else {}
    return Part(key, (str(python), str(PEER_SCRIPT)), job, environment_of(threads, extra))


def rollout_part(key: str, model: Path, load: RolloutLoad, threads: int) -> Part:
    """Our rollouts."""
    return own_part("table.rollouts", key, _rollout_job(model, load, threads), environment_of(threads))


def batched_part(key: str, program: Path, model: Path, load: RolloutLoad, threads: int) -> Part:
    """llama.cpp's batched bench."""
    job = {"program": str(program), **_rollout_job(model, load, threads)}
    return own_part("table.batched_peer", key, job, environment_of(threads))


def speed_part(key: str, models: Mapping[str, Path], threads: int, seconds: float) -> Part:
    """What the machine reaches; every rate is measured for about so many seconds."""
    job = {"models": {name: str(path) for name, path in models.items()}, "threads": threads, "seconds": seconds, "form": 2}
    return own_part("table.device_speed", key, job, environment_of(threads))


def mismatch_part(
    key: str,
    model: Path,
    original: Path | None,
    items: Path,
    *,
    prompts: int,
    tokens: int,
    context: int,
    threads: int,
    random: bool,
) -> Part:
    """Sampler against trainer."""
    job = {
        "model": str(model),
        "model_is": identity(model),
        "original": str(original) if original else "",
        "items": str(items),
        "prompts": prompts,
        "group_size": GROUP_SIZE,
        "max_tokens": tokens,
        "context_tokens": context,
        "rows": prompts * GROUP_SIZE,
        "endless": random,
        "bf16": random,
        "threads": threads,
    }
    return own_part("table.mismatch", key, job, environment_of(threads))


def install_part(places: Places, commit: str) -> Part:
    """From a clean checkout to one learned step."""
    job = {"scratch": str(places.scratch("install")), "commit": commit}
    return own_part("table.install", "install/1", job, {"PIP_NO_CACHE_DIR": "1"})


def _common(places: Places, key: str, work: Workload, threads: int, random_model: bool) -> dict[str, Any]:
    """What both sides of a comparison have in common."""
    return {
        "scratch": str(places.scratch(key)),
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
        "threads": threads,
    }


def _rollout_job(model: Path, load: RolloutLoad, threads: int) -> dict[str, Any]:
    return {
        "model": str(model),
        "model_is": identity(model),
        "prompts": load.prompts,
        "group_size": GROUP_SIZE,
        "prompt_tokens": load.prompt_tokens,
        "max_tokens": load.max_tokens,
        "context_tokens": load.prompt_tokens + load.max_tokens,
        "repeats": load.repeats,
        "threads": threads,
    }

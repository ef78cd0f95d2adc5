"""The peer: DA-GRPO steps in TRL's GRPOTrainer. Runs in its own environment, so it imports nothing of this project.

    python trl_peer.py JOB RESULT

Two reward functions, r and c, with weights 1 and -λ, and a callback that moves λ by the share that asked: this gives exactly DA-GRPO's
advantage r - λc centred in its group, which is checked at every step. A step's time is from the end of the step before to its own end.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

TOLERANCE = 1e-5
HELP = "I need external assistance."
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Rewards:
    """r and c of completions, and their last values; `made_up` ones depend on the ids alone, for models without meaningful output."""

    def __init__(self, made_up: bool) -> None:
        self._made_up = made_up
        self.last_r: list[float] = []
        self.last_c: list[float] = []

    def reward(self, completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any) -> list[float]:
        """r: 1 when right or asked (the cloud is taken to know), -0.1 without an answer, else 0."""
        if self._made_up:
            self.last_r = [(sum(ids) % 97) / 96 for ids in completion_ids]
        else:
            self.last_r = [task_reward(text, expected) for text, expected in zip(completions, answer, strict=True)]
        return self.last_r

    def cost(self, completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        """c: 1 when the completion asks."""
        if self._made_up:
            self.last_c = [float(sum(ids) % 3 == 0) for ids in completion_ids]
        else:
            self.last_c = [float(text.strip().endswith(HELP)) for text in completions]
        return self.last_c


def task_reward(text: str, expected: str) -> float:
    """r of one completion."""
    if text.strip().endswith(HELP):
        return 1.0
    boxed = re.findall(r"\\boxed\{([^{}]*)\}", text)
    return (1.0 if boxed[-1].strip() == expected else 0.0) if boxed else -0.1


def centred(rewards: list[float], costs: list[float], dual: float, group_size: int) -> list[float]:
    """r - λc less its mean over the group."""
    values = [reward - dual * cost for reward, cost in zip(rewards, costs, strict=True)]
    means = [sum(values[start : start + group_size]) / group_size for start in range(0, len(values), group_size)]
    return [value - means[index // group_size] for index, value in enumerate(values)]


def arguments_of(job: dict[str, Any]) -> dict[str, Any]:
    """GRPOConfig's arguments; TRL's defaults for settings missing in `setting`."""
    rows = job["prompts_per_step"] * job["group_size"]
    given: dict[str, Any] = {
        "output_dir": job["scratch"],
        "use_cpu": True,
        "per_device_train_batch_size": rows,
        "num_generations": job["group_size"],
        "max_completion_length": job["max_tokens"],
        "max_steps": job["warmup"] + job["steps"],
        "learning_rate": job["learning_rate"],
        "temperature": 1.0,
        "reward_weights": [1.0, -job["dual"]],
        "scale_rewards": "none",
        "shuffle_dataset": False,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "seed": 1,
        **job["setting"],
    }
    if job["force_length"]:
        given["generation_kwargs"] = {"min_new_tokens": job["max_tokens"]}
    return given


def main(paths: list[str]) -> None:
    """Run the job's steps and write their times. Raises AssertionError when an advantage is not r - λc centred."""
    job = json.loads(Path(paths[0]).read_text(encoding="utf-8"))
    import torch
    import transformers
    import trl  # type: ignore[import-not-found]
    from datasets import Dataset  # type: ignore[import-not-found]
    from peft import LoraConfig
    from transformers import AutoTokenizer, TrainerCallback

    if job["threads"]:
        torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["model"])
    check_tokens(tokenizer, job["prompts"])
    rewards = Rewards(job["made_up_rewards"])
    steps: list[dict[str, float]] = []
    watch = {"end": 0.0, "generate": 0.0}

    class WatchedTrainer(trl.GRPOTrainer):  # type: ignore[misc, name-defined]
        """TRL's trainer, watched."""

        def _generate(self, *args: Any, **kwargs: Any) -> Any:
            began = time.perf_counter()
            try:
                return super()._generate(*args, **kwargs)
            finally:
                watch["generate"] += time.perf_counter() - began

        def _generate_and_score_completions(self, *args: Any, **kwargs: Any) -> Any:
            made = super()._generate_and_score_completions(*args, **kwargs)
            dual = -float(self.reward_weights[1])
            expected = torch.tensor(centred(rewards.last_r, rewards.last_c, dual, job["group_size"]))
            error = float((made["advantages"].float() - expected).abs().max())
            if not error <= TOLERANCE:
                raise AssertionError(f"TRL's advantages differ from r - λc centred by {error}")
            watch["error"] = max(watch.get("error", 0.0), error)
            watch["tokens"] = float(made["completion_mask"].sum())
            watch["dual"] = dual
            return made

    class StepWatch(TrainerCallback):  # type: ignore[misc]
        """Times steps and moves λ."""

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            watch["end"] = time.perf_counter()

        def on_step_end(self, _args: Any, state: Any, _control: Any, **__: Any) -> None:
            now = time.perf_counter()
            asked = sum(rewards.last_c) / len(rewards.last_c)
            steps.append(
                {
                    "seconds": now - watch["end"],
                    "generate_s": watch["generate"],
                    "tokens": watch["tokens"],
                    "assist_rate": asked,
                    "dual": watch["dual"],
                    "reward": sum(rewards.last_r) / len(rewards.last_r),
                }
            )
            print(f"step {state.global_step}: {now - watch['end']:.2f} s", flush=True)
            trainer.reward_weights[1] = -max(0.0, watch["dual"] + job["dual_lr"] * (asked - job["target_rate"]))
            watch["end"], watch["generate"] = time.perf_counter(), 0.0

    config = trl.GRPOConfig(**arguments_of(job))
    trainer = WatchedTrainer(
        model=job["model"],
        args=config,
        reward_funcs=[rewards.reward, rewards.cost],
        train_dataset=Dataset.from_list([{"prompt": entry["text"], "answer": entry["answer"]} for entry in job["prompts"]]),
        processing_class=tokenizer,
        peft_config=LoraConfig(r=job["rank"], lora_alpha=job["alpha"], target_modules=TARGETS, task_type="CAUSAL_LM"),
        callbacks=[StepWatch()],
    )
    trainer.train()
    model = trainer.accelerator.unwrap_model(trainer.model)
    result = {
        "steps": steps[job["warmup"] :],
        "warmup": steps[: job["warmup"]],
        "peak_mib": peak_mib(),
        "advantage_error": watch["error"],
        "versions": {"trl": trl.__version__, "transformers": transformers.__version__, "torch": torch.__version__},
        "threads": torch.get_num_threads(),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "used": {
            "bf16": config.bf16,
            "gradient_checkpointing": config.gradient_checkpointing,
            "loss_type": config.loss_type,
            "scale_rewards": config.scale_rewards,
            "beta": config.beta,
            "optim": str(config.optim),
            "dtype": str(next(model.parameters()).dtype),
            "allocator": {name: value for name, value in os.environ.items() if name.startswith("MALLOC_")},
        },
    }
    Path(paths[1]).write_text(json.dumps(result), encoding="utf-8")


def check_tokens(tokenizer: Any, prompts: list[dict[str, Any]]) -> None:
    """Both sides must read the same ids. Raises AssertionError."""
    for entry in prompts:
        ids = tokenizer(entry["text"], add_special_tokens=False)["input_ids"]
        if ids != entry["ids"]:
            raise AssertionError(f"the tokenizers disagree: {len(ids)} and {len(entry['ids'])} ids of {entry['text'][:60]!r}")


def peak_mib() -> float:
    """The largest resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    main(sys.argv[1:])

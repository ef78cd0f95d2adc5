"""The plug-in inside verl itself: its registry, its losses, its reward path and its trainer, on the CPU. Skipped where verl is not
installed.
"""

from __future__ import annotations

import copy
import importlib.util
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edge.dagrpo.advantages import dual_advantages, estimator_weight
from edge.rpc.client import CloudCall
from edge.tasks.registry import open_source
from edge.testing.coordinator import ScriptedCoordinatorClient, ScriptedTerms
from tests.unit.verl_free_keys import FREE
from tests.worlds.agent import HELP, item, local_answer
from tools.integrations.loop_thread import LoopThread
from tools.integrations.verl.method import NEEDS, SAMES
from tools.integrations.verl.prepare import as_row, item_of, prepare
from tools.integrations.verl.settings import STATE_FILE, DagrpoSettings
from tools.integrations.verl.steps import RunState, TrainingSteps

for module in ("verl", "ray", "transfer_queue", "hydra"):
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"verl's side needs {module}: see tools/integrations/verl/README.md", allow_module_level=True)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import numpy as np
    import torch
    import verl.trainer.ppo.v1.trainer_base as trainer_base
    from hydra import compose, initialize_config_dir
    from omegaconf import OmegaConf
    from tensordict import TensorDict
    from verl import DataProto
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
    from verl.trainer.ppo.core_algos import get_adv_estimator_fn, get_policy_loss_fn
    from verl.trainer.ppo.padding_utils import construct_minimal_padding_template
    from verl.trainer.ppo.reward import load_reward_manager
    from verl.trainer.ppo.v1 import get_trainer_cls
    from verl.utils.config import omega_conf_to_dataclass, validate_config
    from verl.utils.dataset.rl_dataset import RLHFDataset
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    from edge.core.errors import ConfigError
    from edge.testing.clock import ManualClock
    from tools.integrations.verl import plugin
    from tools.integrations.verl import trainer as our_trainer
    from tools.integrations.verl.estimator import Priced, dagrpo_advantage, priced
    from tools.integrations.verl.reward import STEP_FIELD, DagrpoRewardManager

pytestmark = pytest.mark.filterwarnings("ignore")
CONFIG = Path(our_trainer.__file__).parent / "config"
MODELS = ("qwen2.5-1.5b-instruct", "llama-3.2-3b-instruct")


def composed(model: str = MODELS[0], *overrides: str) -> Any:
    with initialize_config_dir(str(CONFIG), version_base=None):
        return compose(model, overrides=list(overrides))


# one batch: three prompts of four responses, one of them masked, rows in no order, two rows of padding -----------------------------

REWARDS = [1.0, 0.0, -0.1, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0]
COSTS = [1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0]
LEFT_OUT = [False] * 4 + [False, False, False, True] + [False] * 4 + [True, True]
GROUPS = ["a"] * 4 + ["b"] * 4 + ["c"] * 4 + ["pad", "pad"]
ORDER = [9, 3, 12, 0, 7, 4, 1, 10, 5, 13, 2, 8, 6, 11]
DUAL, TOKENS = 0.7, 5


def columns(*values: list[Any]) -> list[list[Any]]:
    return [[column[row] for row in ORDER] for column in values]


@pytest.fixture
def batch() -> SimpleNamespace:
    """Tensors as verl gives them: scores on the last token, masks of different lengths, padding with nothing to learn."""
    rewards, costs, left_out, groups = columns(REWARDS, COSTS, LEFT_OUT, GROUPS)
    lengths = [1 + row % TOKENS for row in range(len(rewards))]
    mask = torch.tensor(
        [[float(t < lengths[row] and groups[row] != "pad") for t in range(TOKENS)] for row in range(len(rewards))]
    )
    scores = torch.zeros_like(mask)
    for row, reward in enumerate(rewards):
        scores[row, lengths[row] - 1] = reward
    logprobs = torch.randn(mask.shape, generator=torch.Generator().manual_seed(0)).requires_grad_()
    return SimpleNamespace(
        scores=scores, mask=mask, costs=costs, left_out=left_out, groups=np.array(groups, dtype=object), logprobs=logprobs
    )


def advantages_of(batch: SimpleNamespace) -> torch.Tensor:
    with priced(Priced(batch.costs, batch.left_out, DUAL)):
        values, returns = get_adv_estimator_fn("dagrpo")(
            token_level_rewards=batch.scores, response_mask=batch.mask, config=None, index=batch.groups
        )
    assert torch.equal(values, returns)
    return values


def wanted_gradient(batch: SimpleNamespace) -> torch.Tensor:
    """-∂/∂log π of mean over usable groups of 1/(G'-1) Σ_i Â_i Σ_t log π, by the project's own equations."""
    rewards = batch.scores.sum(-1).tolist()
    kept = {name: [row for row in range(len(rewards)) if batch.groups[row] == name and not batch.left_out[row]] for name in "abc"}
    gradient = torch.zeros_like(batch.mask)
    for rows in kept.values():
        values = dual_advantages([rewards[row] for row in rows], [batch.costs[row] for row in rows], DUAL)
        for row, value in zip(rows, values, strict=True):
            gradient[row] = -value * estimator_weight(len(rows)) / len(kept) * batch.mask[row]
    return gradient


def gradient(batch: SimpleNamespace, loss: torch.Tensor) -> torch.Tensor:
    (found,) = torch.autograd.grad(loss, batch.logprobs)
    return found


def actor(mode: str, loss_mode: str, rows: int, dp_size: int = 1, **changes: Any) -> Any:
    overrides = [f"actor_rollout_ref.actor.loss_agg_mode={mode}", f"actor_rollout_ref.actor.policy_loss.loss_mode={loss_mode}"]
    overrides += [f"actor_rollout_ref.actor.{name}={value}" for name, value in changes.items()]
    config = omega_conf_to_dataclass(composed(MODELS[0], *overrides).actor_rollout_ref.actor)
    tokens = {"dp_size": dp_size, "batch_num_tokens": None, "global_batch_size": rows, "loss_scale_factor": None}
    config.global_batch_info.update(tokens)
    return config


def policy_loss(batch: SimpleNamespace, config: Any, rows: slice = slice(None)) -> torch.Tensor:
    loss, _ = get_policy_loss_fn(config.policy_loss.loss_mode)(
        old_log_prob=batch.logprobs.detach()[rows],
        log_prob=batch.logprobs[rows],
        advantages=advantages_of(batch)[rows],
        response_mask=batch.mask[rows],
        loss_agg_mode=config.loss_agg_mode,
        config=config,
    )
    return loss


def test_estimator_and_trainer_are_registered_in_verl():
    assert get_adv_estimator_fn("dagrpo") is dagrpo_advantage
    assert get_trainer_cls("dagrpo") is our_trainer.DagrpoTrainer
    assert plugin.trainer is our_trainer


def test_verl_loss_with_the_launch_settings_has_the_gradient_of_the_estimator(batch):
    launch = composed().actor_rollout_ref.actor
    config = actor(launch.loss_agg_mode, launch.policy_loss.loss_mode, rows=len(ORDER))
    assert (config.loss_agg_mode, config.policy_loss.loss_mode) == ("seq-mean-token-sum", "gpg")
    torch.testing.assert_close(gradient(batch, policy_loss(batch, config)), wanted_gradient(batch))


def test_micro_batches_and_data_parallel_ranks_add_up_to_the_same_gradient(batch):
    config = actor("seq-mean-token-sum", "gpg", rows=len(ORDER), dp_size=2)
    ranks = [[slice(0, 3), slice(3, 7)], [slice(7, 12), slice(12, 14)]]
    summed = [sum(policy_loss(batch, config, rows) for rows in micro_batches) for micro_batches in ranks]
    torch.testing.assert_close(gradient(batch, sum(summed) / 2), wanted_gradient(batch))


def test_masked_responses_and_padding_have_no_advantage(batch):
    values = advantages_of(batch)
    assert all(not values[row].any() for row in range(len(ORDER)) if batch.left_out[row])


# against verl's own GRPO on the same batch ------------------------------------------------------------------------------------------


@pytest.fixture
def plain(batch: SimpleNamespace) -> SimpleNamespace:
    """The batch without padding; verl's GRPO uses neither costs nor masks."""
    rows = [row for row in range(len(ORDER)) if batch.groups[row] != "pad"]
    return SimpleNamespace(scores=batch.scores[rows], mask=torch.ones(len(rows), TOKENS), groups=batch.groups[rows])


def verls_grpo(plain: SimpleNamespace, name: str, by_std: bool, epsilon: float) -> list[float]:
    values, _ = get_adv_estimator_fn(name)(
        token_level_rewards=plain.scores.clone(),
        response_mask=plain.mask,
        index=plain.groups,
        epsilon=epsilon,
        norm_adv_by_std_in_grpo=by_std,
    )
    return values[:, 0].tolist()


def test_at_a_dual_our_estimator_is_verls_unscaled_grpo_of_the_shaped_reward(plain):
    costs = [float(row % 3 == 0) for row in range(12)]
    with priced(Priced(costs, [False] * 12, DUAL)):
        ours, _ = dagrpo_advantage(plain.scores, plain.mask, plain.groups)
    plain.scores[:, 0] -= DUAL * torch.tensor(costs)
    wanted = [value * 4 / 3 for value in verls_grpo(plain, "grpo", by_std=False, epsilon=1e-6)]
    assert ours[:, 0].tolist() == pytest.approx(wanted, abs=1e-6)


# launch files ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", MODELS)
def test_launch_files_pass_verls_own_checks_and_ours(model):
    config = composed(model)
    validate_config(config, use_reference_policy=False, use_critic=False)
    our_trainer.require_method(config)
    OmegaConf.resolve(config)
    settings = DagrpoSettings.of(config)
    assert settings.run_id == f"dagrpo/{model}-group1"
    assert settings.agent_config().coordinator.address == "127.0.0.1:7420"
    assert config.ray_kwargs.ray_init.runtime_env.env_vars.VERL_USE_EXTERNAL_MODULES == "tools.integrations.verl.plugin"


def test_launch_file_that_verl_would_interpret_differently_is_refused_before_loading():
    with pytest.raises(ConfigError, match=r"^actor_rollout_ref\.actor\.loss_agg_mode must be 'seq-mean-token-sum'"):
        our_trainer.DagrpoTrainer(composed(MODELS[0], "actor_rollout_ref.actor.loss_agg_mode=token-mean"))


SECTIONS = ("algorithm", "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "data", "trainer.v1")
CHECKED = {
    "actor_rollout_ref.rollout.n",
    "actor_rollout_ref.rollout.calculate_log_probs",
    "actor_rollout_ref.rollout.max_model_len",
    "algorithm.rollout_correction.rollout_is_threshold",
}
NEEDED = {need.key for need in NEEDS} | {same.key for same in SAMES} | CHECKED
ADDED = {
    "actor_rollout_ref.rollout.min_p",
    "actor_rollout_ref.rollout.repetition_penalty",
    "trainer.v1.sync.parameter_sync_step",
}
"""Needed keys that verl's composed configuration does not have: somebody may add them."""


def leaves_of(section: Any, name: str) -> Iterator[str]:
    """Dotted keys of a section's values; `section.*` for one that is empty. Names of verl's own classes are no settings."""
    for key, value in section.items():
        if OmegaConf.is_dict(value):
            yield from leaves_of(value, f"{name}.{key}") if value else [f"{name}.{key}.*"]
        elif key != "_target_":
            yield f"{name}.{key}"


def keys_of_verl(*overrides: str) -> set[str]:
    config = composed(MODELS[0], *overrides)
    return {key for section in SECTIONS for key in leaves_of(OmegaConf.select(config, section), section)}


def declares(free: str, key: str) -> bool:
    return key == free or (free.endswith(".*") and key.startswith(free[:-1])) or key == f"{free}.*"


ALL_FREE = [name for names in FREE.values() for name in names]


def undecided(keys: set[str]) -> list[str]:
    """Of an empty section, a key that may be added to it is decided on."""
    return sorted(key for key in keys if not any(declares(name, key) or declares(key, name) for name in [*ALL_FREE, *NEEDED]))


def test_every_relevant_verl_setting_is_required_or_declared_free():
    assert undecided(keys_of_verl()) == [], "decide on each in tools/integrations/verl/method.py or tests/unit/verl_free_keys.py"


def test_no_decision_concerns_a_setting_that_verl_no_longer_has():
    keys = keys_of_verl()
    assert [name for name in ALL_FREE if not any(declares(name, key) for key in keys)] == []
    assert {key for key in NEEDED if key.startswith(SECTIONS)} - keys == ADDED


# verl's reward path ---------------------------------------------------------------------------------------------------------------


class Letters:
    """A tokenizer whose tokens are characters; 0 ends a text."""

    eos_token_id = 0

    def encode(self, text: str) -> list[int]:
        return [*(ord(letter) for letter in text), 0]

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(chr(one) for one in ids if one)


def right(call: CloudCall) -> str:
    return f"<answer>\\boxed{{{int(call.messages[-1].content.split()[2]) + 1}}}</answer>"


def small(*overrides: str) -> Any:
    sizes = ("data.train_batch_size=2", "actor_rollout_ref.rollout.n=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2")
    return composed(MODELS[0], *sizes, "data.max_response_length=120", "dagrpo.task=math", *overrides)


def response(text: str, number: int = 7, **fields: Any) -> Any:
    """The batch of one that verl's agent loop passes to a reward worker."""
    ids, prompt = Letters().encode(text)[:120], [1, 2]
    tensors = {"prompts": [prompt], "responses": [ids], "attention_mask": [[1] * (len(prompt) + len(ids))]}
    columns = {"extra_info": as_row(item(number), number)["extra_info"], "data_source": "sums", **fields}
    data = {name: torch.tensor(value) for name, value in tensors.items()}
    return DataProto(TensorDict(data, batch_size=1), {name: np.array([value]) for name, value in columns.items()})


async def manager(client: ScriptedCoordinatorClient, *overrides: str) -> Any:
    """Made by verl from the launch file; the connection is the scripted one."""
    return load_reward_manager(small(*overrides), Letters(), client=client)


@pytest.fixture
async def client() -> ScriptedCoordinatorClient:
    found = ScriptedCoordinatorClient(right, terms=ScriptedTerms(dual_lr=0.1, step_credit_kappa=None))
    await found.open_step("math", 0, 2, 2, 0.3)
    return found


async def test_verl_loads_the_reward_manager_and_gets_reward_and_cost_of_the_composed_response(client):
    found = await manager(client)
    assert type(found).__name__ == DagrpoRewardManager.__name__
    asked = await found.run_single(response(HELP, **{STEP_FIELD: 0}))
    assert asked["reward_score"] == 1.0
    assert (asked["reward_extra_info"]["cost"], asked["reward_extra_info"]["acc"]) == (1.0, 1.0)
    kept = await found.run_single(response(local_answer(9), **{STEP_FIELD: 0}))
    assert (kept["reward_score"], kept["reward_extra_info"]["cost"]) == (0.0, 0.0)


def test_verl_reads_the_prepared_rows_and_hands_on_the_items(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", str(tmp_path / "cache"))
    assert prepare(["practice:group1"], tmp_path, 12, 3, 0, "full") == (12, 3)
    settings = OmegaConf.create({"filter_overlong_prompts": False, "cache_dir": str(tmp_path / "cache")})
    rows = RLHFDataset(str(tmp_path / "train.parquet"), None, settings)
    wanted = list(islice(open_source("practice:group1").train(0), 12))
    assert [item_of(rows[number]["extra_info"]) for number in range(len(rows))] == wanted
    assert rows[2]["index"] == 2
    assert [message["role"] for message in rows[2]["raw_prompt"]] == ["system", "user"]


async def test_a_response_without_an_end_is_a_format_violation(client):
    found = await (await manager(client)).run_single(response("<think>\nStep 1: " + "x" * 200, **{STEP_FIELD: 0}))
    assert found["reward_score"] == -0.1
    ends_with_the_limit = "<think>\nStep 1: a\n</think>\n<answer>\\boxed{8}</answer>"
    padded = ends_with_the_limit.replace("a\n", "a" * (120 - len(ends_with_the_limit)) + "\n")
    assert len(Letters().encode(padded)) == 120
    assert (await (await manager(client)).run_single(response(padded, **{STEP_FIELD: 0})))["reward_score"] == 1.0


async def test_validation_asks_outside_of_steps_or_not_at_all(client):
    assert (await (await manager(client)).run_single(response(HELP)))["reward_extra_info"]["acc"] == 1.0
    assert [call.step for call in client.calls] == [-1]
    unasked = await (await manager(client, "dagrpo.validate_with_cloud=false")).run_single(response(HELP, number=8))
    assert (unasked["reward_extra_info"]["acc"], unasked["reward_extra_info"]["masked"]) == (0.0, 1.0)
    assert len(client.calls) == 1


# verl's trainer: its real computation of advantages around ours, over a queue in memory -------------------------------------------


class Keys(SimpleNamespace):
    """A batch as verl's trainer passes it on: the keys of its trajectories."""

    def __len__(self) -> int:
        return len(self.keys)


class Queue:
    """The two requests that verl's computation of advantages makes of TransferQueue."""

    def __init__(self, samples: dict[str, dict[str, Any]]) -> None:
        self.samples = samples

    def kv_batch_get(self, keys: list[str], partition_id: str, select_fields: list[str]) -> Any:
        rows = [
            copy.deepcopy({name: self.samples[key][name] for name in select_fields if name in self.samples[key]}) for key in keys
        ]
        return list_of_dict_to_tensordict(rows)

    def kv_batch_put(self, keys: list[str], partition_id: str, fields: Any) -> str:
        for number, key in enumerate(keys):
            self.samples[key] |= {name: fields[name][number] for name in fields.keys()}  # noqa: SIM118
        return "the batch as verl has put it"


def sampled(text: str, uid: str, session: int, info: dict[str, float], score: float) -> dict[str, Any]:
    """A trajectory as verl's agent loop puts it into the queue."""
    ids = Letters().encode(text)
    output = AgentLoopOutput(
        prompt_ids=[1, 2],
        response_ids=ids,
        response_mask=[1] * len(ids),
        response_logprobs=[-0.1] * len(ids),
        reward_score=score,
        metrics=AgentLoopMetrics(),
        extra_fields={"reward_extra_info": info, "turn_scores": []},
    )
    fields = output.as_dict()
    fields["old_log_probs"] = torch.full((len(ids),), -0.1)
    return {**fields, "uid": uid, "session_id": session}


TEXTS = {"u0": (HELP, local_answer(8)), "u1": (local_answer(0), HELP)}


async def scored_samples(client: ScriptedCoordinatorClient, step: int) -> dict[str, dict[str, Any]]:
    """Two groups of two, through verl's reward path, in the order that a balanced batch might have."""
    worker = await manager(client)
    samples = {}
    for uid, texts in TEXTS.items():
        for session, text in enumerate(texts):
            answer = await worker.run_single(response(text, number=7 if uid == "u0" else 8, **{STEP_FIELD: step}))
            key, info = f"{uid}_{session}_0", answer["reward_extra_info"]
            samples[key] = sampled(text, uid, session, info, answer["reward_score"])
    order = ["u1_1_0", "u0_0_0", "u1_0_0", "u0_1_0"]
    return {key: samples[key] for key in order}


@pytest.fixture
def training(tmp_path: Path) -> Iterator[tuple[Any, ScriptedCoordinatorClient]]:
    """verl's trainer with our steps, without the models and workers that its constructor would start."""
    client = ScriptedCoordinatorClient(right, terms=ScriptedTerms(dual_lr=0.1, step_credit_kappa=None))
    config = small(f"trainer.default_local_dir={tmp_path}")
    trainer = our_trainer.DagrpoTrainer.__new__(our_trainer.DagrpoTrainer)
    trainer.config = config
    trainer.steps = TrainingSteps(lambda: client, ManualClock(), DagrpoSettings.of(config), 0.5)
    trainer.checkpoint_manager = SimpleNamespace(update_weights=lambda step: None)
    trainer.timing_raw, trainer.global_steps = {}, 1
    yield trainer, client
    trainer.steps.shut()


def made(
    trainer: Any, client: ScriptedCoordinatorClient, monkeypatch: pytest.MonkeyPatch, padding: bool = False
) -> tuple[Queue, dict[str, Any]]:
    """One step of the trainer between its two hooks."""
    trainer.on_step_begin()
    thread = LoopThread()
    queue = Queue(thread.run(scored_samples(client, trainer.steps.now.task_step)))
    thread.close()
    tags: list[dict[str, Any]] = [{} for _ in queue.samples]
    if padding:
        sample, tag = construct_minimal_padding_template(queue.samples["u1_1_0"], {}, Letters.eos_token_id)
        queue.samples["pad_0_0"] = {**sample, "uid": "pad", "old_log_probs": torch.zeros(1)}
        tags.append(tag)
    for module in (trainer_base, our_trainer):
        monkeypatch.setattr(module, "tq", queue)
    metrics: dict[str, Any] = {}
    keys = Keys(keys=list(queue.samples), tags=tags, partition_id="train")
    assert trainer._compute_advantage(keys, metrics) == "the batch as verl has put it"
    trainer.on_step_end()
    return queue, metrics


def test_verl_trainer_computes_our_advantages_from_costs_of_its_reward_path(training, monkeypatch):
    trainer, client = training
    queue, metrics = made(trainer, client, monkeypatch)
    first = {key: float(sample["advantages"][0]) for key, sample in queue.samples.items()}
    # u0: asks and is right (r 1, c 1), local and right (1, 0); u1: local and wrong (0, 0), asks and is right (1, 1); λ = 0.5;
    # Â = ±0.25, and the weight is N / (U (G'-1)) = 4 / (2 · 1)
    assert first == pytest.approx({"u0_0_0": -0.5, "u0_1_0": 0.5, "u1_0_0": -0.5, "u1_1_0": 0.5})
    assert all(len(sample["advantages"]) == len(sample["responses"]) for sample in queue.samples.values())
    assert len(client.calls) == 2
    assert (metrics["dagrpo/dual"], metrics["dagrpo/assist_rate"], metrics["dagrpo/joint_accuracy"]) == (0.5, 0.5, 0.75)


def test_the_dual_moves_once_for_each_step_of_verls_trainer(training, monkeypatch):
    trainer, client = training
    duals = [made(trainer, client, monkeypatch)[1]["dagrpo/dual"] for _ in range(3)]
    assert duals == pytest.approx([0.5, 0.52, 0.54])
    assert RunState(Path(trainer.config.trainer.default_local_dir) / STATE_FILE).waiting_reports() == []


def test_padding_rows_of_verl_change_no_rate_and_no_gradient(training, monkeypatch):
    trainer, client = training
    queue, metrics = made(trainer, client, monkeypatch, padding=True)
    assert metrics["dagrpo/assist_rate"] == 0.5
    assert not queue.samples["pad_0_0"]["advantages"].any()
    assert float(queue.samples["u0_1_0"]["advantages"][0]) / 5 == pytest.approx(0.5 / 4)  # verl's mean is over five rows now

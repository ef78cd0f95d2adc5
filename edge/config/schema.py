"""The agent's configuration as data.

All models are frozen and reject unknown keys. Units are in the names (`_s` seconds, `_uusd` micro-USD, `_tokens`). A default that is
a decision of the paper or of DECISIONS.md is written here and nowhere else.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, field_validator, model_validator

from edge.config.device import DeviceConfig
from edge.config.secret_refs import require_one_reference
from edge.config.section import NotNegative, Positive, Rate, Section
from edge.core.columns import Columns
from edge.core.engines import ENGINES
from edge.core.limits import (
    LARGEST_ALPHA,
    LARGEST_SEED,
    MOST_LAYERS,
    MOST_STEPS,
    MOST_THREADS,
    MOST_TOKENS,
    OWN_LABEL,
    checked_rule,
    checked_term,
)
from edge.core.periods import Period
from edge.core.types import Mode
from edge.dagrpo.dual import MOST_WINDOW, Controller, HelpBiasRule, ProportionalIntegral, dual_rule


def _switch_word(value: object) -> object:
    """YAML reads a bare on or off as a truth value."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch_word)]
OffOrOn = Annotated[Literal["off", "on"], BeforeValidator(_switch_word)]
AdvantageScale = Literal["none", "group", "batch"]
Method = Literal["da-grpo", "edge-only", "grpo", "gvpo", "gapg"]
AnswerMatch = Literal["exact", "equivalent"]
if TYPE_CHECKING:
    EngineBackend = str
else:
    EngineBackend = Literal["auto", *ENGINES]
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


_HOST_NAME = re.compile(r"[A-Za-z0-9_.:-]{1,253}")
_ORIGIN = re.compile(r"https?://[A-Za-z0-9_.-]{1,253}(:[0-9]{1,5})?|https?://\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")


class ModelConfig(Section):
    """The SLM."""

    path: str = Field(
        "nano-edge", description="A bundled model by name, a pulled one by its hub name, a GGUF file, or on MLX a folder."
    )
    context_tokens: int | None = Field(
        None,
        ge=64,
        le=MOST_TOKENS,
        description="Tokens that a served conversation and its answer share (null: what the model was made for, at most 8192 and what fits "
        "in a quarter of free memory).",
    )
    prompt_form: Literal["auto", "compact", "full"] = Field(
        "auto",
        description="How the SLM is asked: bare question (compact) or worded prompt (full); auto: as the model was made for.",
    )
    responses: Literal["auto", "guided", "free"] = Field(
        "auto",
        description="Responses are held to their form by the engine (guided), or free; auto: guided but for bundled models.",
    )
    certainty: float = Field(
        16.0,
        ge=0.0,
        le=1000.0,
        description="Nats by which each nat of doubt in a plain answer raises the log-odds of asking (0, and with controller paper: none).",
    )


class EngineConfig(Section):
    """The engine: what computes answers, and how it uses the machine.

    `edge-agent doctor` shows which engine `auto` chooses. `streamed` weights are turned into floats matrix by matrix. `onnx` serves with
    ONNX Runtime while torch trains: from NAME.onnx next to the model's NAME.gguf, else from a graph that is exported once and kept in the
    state folder.
    """

    backend: EngineBackend = Field(
        "auto", description="The engine; auto: MLX on Apple silicon where it is installed, llama.cpp with torch elsewhere."
    )
    threads: int = Field(
        0,
        ge=0,
        le=MOST_THREADS,
        description="Processor threads for answering (0: one per physical core); MLX chooses its threads itself.",
    )
    max_rows: int = Field(
        0,
        ge=0,
        le=4096,
        description="Rows decoded together (0: as many as fit in memory, 8 to 32, on a graphics processor to 128).",
    )
    weights: Literal["auto", "resident", "streamed"] = Field(
        "auto",
        description="How torch holds the weights: as floats in memory, or in the file that serves; auto: streams all but small models.",
    )
    unload_after: NotNegative = Field(
        1800.0,
        description="Seconds without an answer after which llama.cpp gives back the memory of conversations, which are then read again "
        "(0: never).",
    )
    repack: bool = Field(True, description="llama.cpp may keep a second copy of 4-bit weights, arranged for faster products.")
    gpu_layers: int | None = Field(
        None,
        ge=0,
        le=MOST_LAYERS,
        description="Layers that llama.cpp puts on the graphics processor, where it was built for one (null: all).",
    )
    onnx_providers: tuple[str, ...] = Field(
        (),
        description="ONNX Runtime's providers in order of preference, as [CUDA, CoreML]; what is not there falls back to the CPU.",
    )


class AdapterConfig(Section):
    """The LoRA adapter."""

    rank: int = Field(16, ge=1, le=4096, description="Rank of the adapter's matrices.")
    alpha: float = Field(32.0, gt=0, le=LARGEST_ALPHA, description="Scale of the adapter; what counts is alpha / rank.")
    targets: tuple[LoraTarget, ...] = Field(
        ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        min_length=1,
        description="Layers that get an adapter, at least one.",
    )


class WhenConfig(Section):
    """When learning may use the machine; checked between steps.

    A limit whose reading a machine does not give holds nothing back: a desktop has no battery. `edge-agent run` obeys it, `learn` does not.
    """

    on_mains: bool = Field(True, description="Only on mains power; a machine without a battery is.")
    min_battery_percent: Annotated[float, Field(ge=0.0, le=100.0)] | None = Field(
        20.0, description="Only with at least this much battery charge, also on mains (null: any)."
    )
    max_temperature_c: Positive | None = Field(90.0, description="Only while the processor is no hotter, in °C (null: any).")
    max_other_load: Rate | None = Field(
        None, description="Only while other programs keep no larger share of the processors busy (null: any)."
    )
    quiet_s: NotNegative = Field(
        0.0, description="Only when the last answer was at least this many seconds ago; never while somebody is answered."
    )
    from_hour: int = Field(0, ge=0, le=23, description="Only from this hour of the day on, local time.")
    until_hour: int = Field(
        24, ge=1, le=24, description="Only until this hour of the day; an earlier one than from_hour is tomorrow's."
    )
    check_s: Positive = Field(5.0, description="Seconds between two checks while learning waits.")


class ObjectiveConfig(Section):
    """What the method maximises: rewards, advantages, and which samples count."""

    answer_match: AnswerMatch = Field(
        "exact",
        description="How a mathematical answer is judged: by its exact string (the paper) or by equivalence (needs math-verify).",
    )
    advantage_scale: AdvantageScale = Field(
        "none", description="What advantages are divided by: nothing (the paper), or the deviation of their group or the batch."
    )
    importance_cap: Positive = Field(
        2.0, description="Most that a token's importance weight (trainer's probability over the sampler's) counts."
    )
    unanimous_calls: Literal["make", "skip"] = Field(
        "make",
        description="Where all G responses ask, the call moves no weight but reports if it was right: make it (the paper) or skip it.",
    )
    cloud_samples: OffOrOn = Field(
        "off", description="Learn from right, well-formed cloud answers to a group as from one more response of it."
    )
    options: Literal["sampled", "given"] = Field(
        "sampled",
        description="Where a plain answer is one of few options: learn from sampled answers, or the right option by its likelihood "
        "(da-grpo, edge-only).",
    )
    assist_reward: NotNegative = Field(
        0.4, description="grpo, gvpo, gapg: reward of a response that asked and was helped to a right answer."
    )
    assist_rewards: dict[str, NotNegative] = Field(
        {}, description="grpo, gvpo, gapg: that reward by task label, as {group1: 0.3}; others have assist_reward."
    )
    ratio_clip: NotNegative = Field(0.2, description="grpo: how far from 1 a token's probability ratio may push.")
    gvpo_beta: Positive = Field(0.1, description="gvpo: β, how strongly the update of a response that already moved is damped.")

    @model_validator(mode="after")
    def _cloud_samples_are_not_scaled(self) -> ObjectiveConfig:
        if self.cloud_samples == "on" and self.advantage_scale != "none":
            raise ValueError(f"cloud_samples on needs advantage_scale none, not {self.advantage_scale}")
        return self


class ControlConfig(Section):
    """How the assist rate is held at τ.

    Those that begin with `dual_` are used by the embedded coordinator; a remote one has its operator's values.
    """

    controller: Controller = Field(
        "dial",
        description="What holds the assist rate of da-grpo's rollouts: a help bias and λ (dial), or λ alone (paper).",
    )
    help_bias_rule: HelpBiasRule = Field(
        "solved",
        description="The help bias of dial: solved for τ on the log-odds of the last rollouts, or integrated from what their rates missed.",
    )
    step_dual: Literal["coordinator", "estimated"] = Field(
        "coordinator",
        description="λ of a step: the coordinator's, or with dial what asking gained in the step (estimated).",
    )
    dual_init: NotNegative = Field(0.5, description="λ_0: λ before the first step.")
    dual_lr: NotNegative | None = Field(
        None, description="η_λ: how far a step moves λ for each unit by which its rate misses τ (null: dial 0.05, paper 0.01)."
    )
    dual_proportional: NotNegative | None = Field(
        None, description="k_p: how much λ holds of what the last steps' rates miss τ by, immediately (null: dial 1.5, paper 0)."
    )
    dual_window: int | None = Field(
        None,
        ge=1,
        le=MOST_WINDOW,
        description="Steps whose mean dual_proportional acts on; small batches are noisy (null: dial 4, paper 1).",
    )
    dual_ceiling: NotNegative | None = Field(
        None, description="Highest λ, an anti-windup bound where asking does not react to λ (null: none)."
    )
    dual_scope: Literal["task", "global"] = Field(
        "task", description="What has one λ: each task label, or all of this device together (global, the paper's)."
    )
    dual_unit: Literal["calls", "tokens", "spend"] = Field(
        "calls",
        description="What λ acts on: each call alike, or its expected tokens or money; then a budget that renews sets τ (budget.period).",
    )

    @property
    def dual_rule(self) -> ProportionalIntegral:
        """How λ moves."""
        return dual_rule(self.controller, self.dual_lr, self.dual_proportional, self.dual_window, self.dual_ceiling)

    @model_validator(mode="after")
    def _something_holds_the_rate(self) -> ControlConfig:
        if self.step_dual == "estimated" and self.controller == "paper":
            raise ValueError("step_dual estimated needs controller dial: such a λ does not follow the rate")
        return self

    @model_validator(mode="after")
    def _begins_below_the_ceiling(self) -> ControlConfig:
        if self.dual_ceiling is not None and self.dual_init > self.dual_ceiling:
            raise ValueError(f"dual_init {self.dual_init:g} is above dual_ceiling {self.dual_ceiling:g}")
        return self


class OptimiserConfig(Section):
    """How the adapter's weights move."""

    learning_rate: Positive = Field(
        5e-4,
        description="Learning rate of the adapter's weights; where learn and run fit steps to a model, 1e-4 unless it is given.",
    )
    weight_decay: NotNegative = Field(0.0, description="Weight decay of the adapter's weights.")
    max_grad_norm: Positive = Field(1.0, description="Norm that a larger gradient is scaled down to.")
    live_group_scaling: Switch = Field(
        "auto",
        description="Multiply a step's learning rate by the share of its groups that have an advantage; auto: for guided responses.",
    )
    collapse: Literal["go-back", "ignore"] = Field(
        "go-back",
        description="Where learning has collapsed (all ask, or far fewer are right), go back to the last good adapter, at half the rate.",
    )
    updates_per_rollout: int | None = Field(
        None, ge=1, le=64, description="Updates made of one step's responses (null: 1, of gvpo 4, as its authors do)."
    )


class LearningMemoryConfig(Section):
    """How much memory an update takes."""

    micro_batch_tokens: int = Field(
        1024, ge=1, description="Most tokens of a micro-batch, padding included; fewer need less memory."
    )
    gradient_checkpointing: Switch = Field(
        "auto",
        description="Compute activations again, not keep them: less memory, more time; auto: where it does not fit otherwise.",
    )
    memory_probe: Switch = Field(
        "auto",
        description="Before the first step, try the longest micro-batch that can come; auto: only where it may need much of the memory.",
    )


class ImitationConfig(Section):
    """Learning from given answers, as those to one's own questions, and what it must not cost."""

    demonstrations: Literal["own", "all", "none"] = Field(
        "own",
        description="Learn from a given answer that the model would not give (of a label with held-out questions: where no response is "
        "right, and there are no options), too: of one's own questions (feedback, task files), of all tasks, or of none.",
    )
    imitation_rate: Positive = Field(5e-4, description="The same of updates on given answers; 1e-3 there.")
    skills: list[str] | None = Field(
        None,
        description="Sources that learning must not make worse: the model is held to what it makes of their questions while it learns "
        "given answers, and the gate examines them though no phase learns them (null: practice:group1 and practice:group2 for a bundled "
        "model, general for others; []: none).",
    )


class LearningConfig(Section):
    """DA-GRPO, or a method it is compared with.

    Where group_size, prompts_per_step, max_tokens or step_tokens is not set, `learn` and `run` fit it to the speed of a model that is not
    bundled, so that a step takes about half a minute: never more than the default. A run keeps what was fitted when it began.
    """

    enabled: bool = Field(True, description="Learn in run; false: only answer.")
    when: WhenConfig = Field(WhenConfig(), description="When learning may use the machine, in run.")
    method: Method = Field(
        "da-grpo",
        description="How it learns; edge-only never asks, grpo, gvpo and gapg have a fixed reward for help instead of λ.",
    )
    group_size: int = Field(8, ge=2, le=1024, description="G: responses to each prompt.")
    prompts_per_step: int = Field(8, ge=1, le=4096, description="Prompts of a step.")
    questions: Literal["stream", "teaching"] = Field(
        "stream",
        description="Which questions of a file or data set a step takes: the next ones in a random order, or more of those that teach more "
        "(right in some responses, or not yet right where their answers are shown). Practice is always a stream.",
    )
    max_tokens: int = Field(288, ge=1, le=MOST_TOKENS, description="Most tokens of a response that is learned from.")
    context_tokens: int = Field(
        1024, ge=64, le=MOST_TOKENS, description="Tokens that a prompt and its response share in learning and eval."
    )
    step_tokens: int = Field(
        0,
        ge=0,
        description="Sampled tokens after which a step takes no further prompt (0: no limit, or the one that was fitted).",
    )
    temperature: Positive = Field(
        1.0, description="Temperature of the responses that are learned from; 1 is what the estimator assumes."
    )
    seed: int = Field(0, ge=0, le=LARGEST_SEED, description="Seed of prompts, responses and first weights.")
    device: Literal["auto", "cpu", "cuda", "mps"] = Field(
        "auto", description="Where torch trains; auto: CUDA, else Metal, else the processor. MLX has its own."
    )
    torch_threads: int = Field(0, ge=0, le=MOST_THREADS, description="Threads of torch (0: as many as torch chooses).")
    objective: ObjectiveConfig = Field(ObjectiveConfig(), description="Rewards, advantages, and which samples count.")
    control: ControlConfig = Field(ControlConfig(), description="How the assist rate is held at τ: the help bias and λ.")
    optimiser: OptimiserConfig = Field(OptimiserConfig(), description="How the adapter's weights move.")
    memory: LearningMemoryConfig = Field(LearningMemoryConfig(), description="How much memory an update takes.")
    imitation: ImitationConfig = Field(ImitationConfig(), description="Learning from given answers, and skills to keep.")

    @model_validator(mode="after")
    def _method_has_these(self) -> LearningConfig:
        beyond_the_paper = {
            "objective.cloud_samples on": (self.objective.cloud_samples == "on", ["da-grpo"]),
            f"objective.advantage_scale {self.objective.advantage_scale}": (
                self.objective.advantage_scale != "none",
                ["da-grpo"],
            ),
            "objective.options given": (self.objective.options == "given", ["da-grpo", "edge-only"]),
            f"control.dual_unit {self.control.dual_unit}": (self.control.dual_unit != "calls", ["da-grpo"]),
        }
        for name, (is_used, methods) in beyond_the_paper.items():
            if is_used and self.method not in methods:
                raise ValueError(f"{name} is of method {' or '.join(methods)}, not {self.method}")
        if (self.optimiser.updates_per_rollout or 1) > 1 and self.method not in ("grpo", "gvpo"):
            raise ValueError(f"method {self.method} makes one update of a step's responses; grpo and gvpo can make several")
        return self


class UseConfig(Section):
    """Learning from one's own use in `edge-agent run`: feedback on answers, and task files in a folder.

    Questions that were answered on this device alone are learned from without asking the cloud. An item is learned from until it was
    right in `passes` steps; where it is changed or corrected, it is a new one.
    """

    feedback: bool = Field(True, description="Learn from ratings of answers (edge-agent feedback, chat, page) and corrections.")
    agreement: bool = Field(
        False, description="Where nobody rated an answer, hold the answer right that the cloud gave and was paid for."
    )
    tasks_folder: str | None = Field(
        None, description="Folder whose task files (.jsonl, .csv) are learned from as they come, change and go (null: none)."
    )
    share: Rate = Field(0.25, description="Share of the steps for one's own use, while it has something to learn from.")
    passes: int = Field(
        4,
        ge=1,
        le=1000,
        description="Steps in which half of a question's responses must be right, or 8 times as many steps that show its answer.",
    )
    target_rate: Rate = Field(0.3, description="τ of labels that neither a phase nor the coordinator has one for.")

    @property
    def learns_ratings(self) -> bool:
        """Whether feedback has any share of the steps."""
        return self.feedback and self.share > 0


class GateConfig(Section):
    """The promotion gate: a step's adapter is promoted only after a test of stored items of every task so far (anchors).

    Anchors are answered without the cloud.
    """

    enabled: bool | None = Field(
        None,
        description="Whether there is a gate (null: in run, where people are served, and not in learn, whose runs are measurements).",
    )
    every: int = Field(10, ge=1, description="Steps between two judgements; a phase's last step is judged, too.")
    anchors: int = Field(16, ge=1, description="Stored items of each task that are answered.")
    max_drop: Rate = Field(
        0.2,
        description="Most that a task's share of right answers may fall from its best so far (all together a quarter of it); more counts "
        "where it is beyond chance.",
    )
    skill_anchors: int = Field(60, ge=1, description="Questions of each of learning.imitation.skills that are answered.")
    max_skill_drop: Rate = Field(
        0.02, description="The same for a skill's questions: what learning must not cost; more counts where it is beyond chance."
    )
    rate_window: int = Field(10, ge=1, description="Steps whose mean is reported as the share that asks.")
    max_refusals: int = Field(
        5, ge=1, description="This many rejected adapters in a row take training back to the adapter in use."
    )
    keep: int = Field(3, ge=1, description="Versions that were active and stay on disk, to go back to.")
    recheck_every: int | None = Field(
        20,
        ge=1,
        description="Steps after which the adapter in use is tested again and, if an earlier one is better, left (null: by feedback only).",
    )


class RoutingConfig(Section):
    """Who decides that a response is handed to the cloud.

    This is so in learning and evaluation; people are answered by the model's own decision.
    """

    policy: Literal["self", "router"] = Field(
        "self", description="The response itself asks (self, the paper), or a classifier decides (router)."
    )
    router: str | None = Field(
        None, description="File of edge-agent router train; it runs on the providers of engine.onnx_providers."
    )
    threshold: Rate | None = Field(None, description="Score above which the router hands over (null: the one in its file).")

    @model_validator(mode="after")
    def _a_router_has_a_file(self) -> RoutingConfig:
        if self.policy == "router" and not self.router:
            raise ValueError("policy router needs router, a file of edge-agent router train")
        return self


class PhaseConfig(Section):
    """One stretch of learning: a task source held to a target rate."""

    source: str = Field(
        "practice:group1",
        description="Where items come from: a name that edge-agent tasks list shows, or a .jsonl or .csv file.",
    )
    question: str | None = Field(
        None, description="Column (of JSON Lines: key) of the file that has the texts (null: question); others are passed over."
    )
    answer: str | None = Field(
        None, description="Column that has their answers (null: answer); where few differ, they are the options of each text."
    )
    ask: str | None = Field(None, description="Question that is put to each text of the file (null: the text is the question).")
    target_rate: Rate = Field(0.3, description="τ: the share of responses that may ask for help.")
    steps: int | None = Field(
        None, ge=1, le=MOST_STEPS, description="Steps of the phase (null: without end; only the last phase)."
    )
    task: str | None = Field(None, description="Label whose λ applies (null: the items' own).")

    @field_validator("source")
    @classmethod
    def _not_empty(cls, source: str) -> str:
        if not source.strip():
            raise ValueError("is empty; write practice:group1 or a path to a .jsonl file")
        return source

    @field_validator("question", "answer", "ask")
    @classmethod
    def _not_blank(cls, words: str | None) -> str | None:
        if words is not None and not words.strip():
            raise ValueError("is empty; leave it out, or write some words")
        return words

    @property
    def columns(self) -> Columns | None:
        """The columns of the file that are learned from; None: those of the usual names."""
        return Columns.given(self.question, self.answer, self.ask)


FIRST_PHASE_STEPS = 150
"""Steps of the first group before the second one begins, where nobody chose the phases."""


class EmbeddedCoordinatorConfig(Section):
    """The coordinator that the agent starts for itself, with one cloud LLM.

    Where neither prices are given nor published ones known, calls are refused as UNPRICED.
    """

    upstream: Literal["bundled", "openai_compatible", "anthropic", "recorded"] = Field(
        "bundled", description="Who answers: the bundled model, a server, Anthropic's Messages API, or a cassette."
    )
    model: str = Field(
        "nano-cloud",
        description="Name of the model, as its server knows it; for bundled one that comes with the package, unless path is given.",
    )
    base_url: str | None = Field(
        None, description="Address of the server, as https://HOST/v1 (null: Anthropic's own; openai_compatible needs one)."
    )
    api_key: str | None = Field(
        None,
        description="Where the API key lies, env:NAME or file:/PATH, never the key itself (null: see api_key_env, or no key is sent).",
    )
    api_key_env: str | None = Field(
        None, description="Name of the environment variable with the API key: short for api_key env:NAME (null: see api_key)."
    )
    path: str | None = Field(
        None,
        description="File: of the GGUF model instead of one of the package (bundled), or of the cassette (recorded).",
    )
    price_in_uusd_per_mtok: int | None = Field(
        None,
        ge=0,
        description="Price of a million input tokens, in micro-USD (null: as published, where known; bundled: 100000).",
    )
    price_out_uusd_per_mtok: int | None = Field(
        None,
        ge=0,
        description="Price of a million output tokens, in micro-USD (null: as published, where known; bundled: 400000).",
    )
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens",
        description="openai_compatible: what the server calls the limit of output tokens; where it refuses this, it gets the other.",
    )
    allow_plaintext: bool = Field(
        False, description="Ask a base_url that is plain http beyond loopback: prompts and key travel unencrypted."
    )
    threads: int = Field(1, ge=1, le=MOST_THREADS, description="bundled: processor threads that the model runs on.")
    step_credit_kappa: NotNegative | None = Field(
        None, description="κ: a step may make at most ceil(κ·τ·prompts) calls (null: no such limit, as in the paper)."
    )
    start_timeout_s: Positive = Field(30.0, description="Seconds that the embedded coordinator has to start.")

    @model_validator(mode="after")
    def _what_the_upstream_needs(self) -> EmbeddedCoordinatorConfig:
        if self.upstream == "openai_compatible" and not self.base_url:
            raise ValueError("upstream openai_compatible needs base_url")
        if self.upstream == "anthropic" and not (self.base_url or self.api_key or self.api_key_env):
            raise ValueError("upstream anthropic needs api_key or api_key_env")
        if self.upstream == "anthropic" and self.model == type(self).model_fields["model"].default:
            raise ValueError("upstream anthropic needs model, the name of one of its models")
        if self.upstream == "recorded" and not self.path:
            raise ValueError("upstream recorded needs path, the cassette")
        require_one_reference(self.api_key, self.api_key_env)
        return self


class CoordinatorTlsConfig(Section):
    """Certificates for speaking to a coordinator, as PEM files."""

    ca: str = Field(description="PEM file with the authority of the coordinator's certificate.")
    cert: str | None = Field(None, description="PEM file with the certificate to show (null: none; a token names the caller).")
    key: str | None = Field(None, description="PEM file with the key of cert; given where cert is.")
    server_name: str | None = Field(
        None, description="The name in the coordinator's certificate, where it is not the host of the address (null: it is)."
    )

    @model_validator(mode="after")
    def _both_or_neither(self) -> CoordinatorTlsConfig:
        if (self.cert is None) != (self.key is None):
            raise ValueError("needs cert and key together")
        return self


class CoordinatorConfig(Section):
    """Where the cloud is asked, and how.

    Another machine is spoken to over `tls`, and the certificate or the token names the device. Of an attempt that goes along (`hint_chars`)
    what `privacy` knows is left out, and every number of more than 8 digits; `edge-agent hints measure` shows whether hints pay.
    """

    address: str | None = Field(
        None, description="HOST:PORT or unix:PATH of the coordinator (null: the agent starts one for itself)."
    )
    tls: CoordinatorTlsConfig | None = Field(
        None, description="How to speak TLS to a coordinator on another machine (null: not at all)."
    )
    token_file: str | None = Field(
        None, description="File (mode 0600) with this device's token, which the agent renews (null: none is shown)."
    )
    device_id: str | None = Field(
        None,
        description="Name of this device at a coordinator that trusts the connection (null: made of the state folder's run id).",
    )
    allow_insecure: bool = Field(False, description="Connect to another machine without tls: what is sent is unencrypted.")
    call_deadline_s: Positive = Field(
        60.0,
        description="Seconds that a call may take while learning or evaluating, and at most at the embedded coordinator's upstream.",
    )
    control_deadline_s: Positive = Field(10.0, description="Seconds that every other request to the coordinator may take.")
    max_output_tokens: int = Field(512, ge=1, le=MOST_TOKENS, description="Most output tokens of a cloud completion.")
    model_alias: str = Field("default", description="Which of the coordinator's models is asked.")
    prompt_form: Literal["auto", "compact", "full"] = Field(
        "auto",
        description="How the cloud LLM is asked: bare question (compact) or worded prompt (full); auto: compact for the bundled one.",
    )
    hint_chars: int = Field(
        0,
        ge=0,
        le=16_000,
        description="Characters of the SLM's own attempt that go along to the cloud LLM, paid like other input (0: none).",
    )
    embedded: EmbeddedCoordinatorConfig = Field(
        EmbeddedCoordinatorConfig(), description="The coordinator that the agent starts for itself, where address is null."
    )


class ServeConfig(Section):
    """Answering people: the local endpoint and how answers are sampled."""

    host: str = Field(
        "127.0.0.1",
        description="Address of the endpoint; beyond loopback only with token_file, and in plain HTTP: for a network that you trust.",
    )
    port: int = Field(8040, ge=0, le=65535, description="Port of the endpoint (0: any free one).")
    temperature: float | None = Field(
        None,
        ge=0.0,
        le=2.0,
        description="Temperature of answers, also the cloud LLM's (null: its own there, and on this device 0, which is greedy).",
    )
    max_tokens: int = Field(512, ge=1, le=MOST_TOKENS, description="Most tokens of an answer of the SLM.")
    max_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="Reasoning steps that an answer may have and still be well-formed (null: any number).",
    )
    task: str | None = Field(
        None, description=f"Label of questions that have none, whose budget and dial apply (null: {OWN_LABEL})."
    )
    cloud_deadline_s: Positive = Field(20.0, description="Seconds that a cloud call may take while a person waits.")
    token_file: str | None = Field(
        None,
        description="File (mode 0600) with the token that clients must show; edge-agent serve-token makes it (null: none is asked for).",
    )
    names: tuple[str, ...] = Field(
        (), description="Further host names under which clients may ask, in addition to those of loopback and the address itself."
    )
    allow_origins: tuple[str, ...] = Field(
        (), description="Web pages that may ask, by origin as https://HOST or http://HOST:PORT (none: only the agent's own page)."
    )
    socket: str | None = Field(None, description="Path of a Unix socket, for this user alone, to serve at too (null: none).")
    max_requests: int = Field(32, ge=1, le=1024, description="Questions that are worked on at once; more get 429 for the moment.")

    @field_validator("names")
    @classmethod
    def _are_names(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if not _HOST_NAME.fullmatch(name):
                raise ValueError(f"{name!r} is no host name; write it without http:// and port, as in my-laptop.local")
        return names

    @field_validator("allow_origins")
    @classmethod
    def _are_origins(cls, origins: tuple[str, ...]) -> tuple[str, ...]:
        for origin in origins:
            if not _ORIGIN.fullmatch(origin):
                raise ValueError(f"{origin!r} is no origin; name each one, as in https://notes.example or http://localhost:3000")
        return origins


class ProgramsConfig(Section):
    """Running programs that a model has written."""

    sandbox: Literal["auto", "bubblewrap", "landlock", "sandbox-exec", "container", "none"] = Field(
        "auto", description="What confines them; auto: the best that works here (edge-agent doctor shows which)."
    )
    unsafe: bool = Field(
        False, description="Let sandbox be none, or auto end there: programs then run with the rights of this user."
    )
    timeout_s: Positive = Field(5.0, description="Seconds that a program may run.")
    memory_mib: int = Field(512, ge=128, description="Address space of a program, in MiB.")

    @model_validator(mode="after")
    def _none_needs_unsafe(self) -> ProgramsConfig:
        if self.sandbox == "none" and not self.unsafe:
            raise ValueError("sandbox none runs programs with your rights; it needs unsafe: true (--unsafe-programs)")
        return self


class BudgetConfig(Section):
    """Hard limits of the embedded coordinator's ledger, and the dial.

    What `edge-agent budget limit` sets wins over the limits and the period here. When learning has used its limits of a day up, it goes on
    without the cloud.
    """

    calls_limit: int | None = Field(None, ge=0, description="Most calls (null: no limit).")
    tokens_limit: int | None = Field(None, ge=0, description="Most tokens, input and output together (null: no limit).")
    spend_limit_uusd: int | None = Field(None, ge=0, description="Most spend, in micro-USD (null: no limit).")
    period: Period = Field(
        "total",
        description="How long an amount counts: until the calendar's next hour, day, week or month begins (UTC), or for good.",
    )
    dial: Rate | None = Field(
        None,
        description="Share of people's questions that may ask, from the next one on, without retraining (null: the model decides).",
    )
    learning_calls_per_day: int | None = Field(
        None, ge=0, description="Most calls of learning in a day, local time; answers are not counted (null: no limit)."
    )
    learning_spend_per_day_uusd: int | None = Field(
        None, ge=0, description="Most spend of learning in a day, in micro-USD; answers are not counted (null: no limit)."
    )


class ChatConfig(Section):
    """Talking in the terminal."""

    history: bool = Field(
        True, description="Remember what is asked in edge-agent chat, in a file of the state folder that only you can read."
    )


PrivateKind = Literal["secret", "email", "card", "iban", "phone", "ip", "path"]


class PrivacyConfig(Section):
    """What stays on the device, and what is kept of what left it.

    Before a request leaves, what is private in it is replaced by placeholders such as [EMAIL_1], and restored in the answer. A request that
    breaks a rule of `never_send`, or fails the leak test, is not sent; the question is answered here. `edge-agent privacy check` shows what
    would leave, `edge-agent outbox` what did.
    """

    enabled: bool = Field(True, description="Replace what is private, and test for leaks; never_send holds in any case.")
    kinds: tuple[PrivateKind, ...] = Field(
        ("secret", "email", "card", "iban", "phone", "ip", "path"),
        description="What is searched for, in addition to the private terms.",
    )
    terms: tuple[Annotated[str, AfterValidator(checked_term)], ...] = Field(
        (), description="Words that are private: names of people, customers, projects; in any case, and in the plural."
    )
    terms_file: str | None = Field(None, description="File with further terms, one a line; # begins a comment (null: none).")
    never_send: tuple[Annotated[str, AfterValidator(checked_rule)], ...] = Field(
        (),
        description="What is in no request: a text, or like:PATTERN, where # is a digit, ? a character and * up to 64 characters.",
    )
    region: str | None = Field(
        None,
        pattern="^[A-Z]{2}$",
        description="Country, as DE, whose telephone numbers are known without a prefix (null: the system's).",
    )
    keep_days: int = Field(
        365, ge=1, description="Days that an entry of the outbox is kept; what was dropped is counted and reported."
    )
    keep_entries: int = Field(100_000, ge=1, description="Most entries of the outbox; the oldest go first.")


class AgentConfig(Section):
    """Everything an agent needs to know."""

    mode: Mode = Field(
        "auto",
        description="When the cloud answers: as the model decides, only where its answer is unusable, never (nor in learning), or always.",
    )
    state_folder: str | None = Field(
        None, description="Folder of everything that is kept (null: the platform's folder for application data)."
    )
    device_profile: str | None = Field(
        None,
        description="A configuration file that is weaker than all others, as edge-agent doctor writes it (null: the one of this machine, "
        "if there is one; none: none).",
    )
    device: DeviceConfig = Field(DeviceConfig(), description="What was measured on this machine.")
    model: ModelConfig = Field(ModelConfig(), description="The SLM.")
    engine: EngineConfig = Field(EngineConfig(), description="What computes answers, and how it uses the machine.")
    adapter: AdapterConfig = Field(AdapterConfig(), description="The LoRA adapter.")
    learning: LearningConfig = Field(LearningConfig(), description="DA-GRPO, the learning.")
    use: UseConfig = Field(UseConfig(), description="Learning from one's own use, in run.")
    gate: GateConfig = Field(GateConfig(), description="When a learned adapter is promoted.")
    routing: RoutingConfig = Field(
        RoutingConfig(), description="Who decides, in learning and evaluation, that a response is handed to the cloud."
    )
    phases: tuple[PhaseConfig, ...] = Field(
        (
            PhaseConfig(source="practice:group1", steps=FIRST_PHASE_STEPS),
            PhaseConfig(source="practice:group2"),
        ),
        description="What is learned, one phase after the other.",
    )
    coordinator: CoordinatorConfig = Field(CoordinatorConfig(), description="Where the cloud is asked, and how.")
    serve: ServeConfig = Field(ServeConfig(), description="Answering people: the local endpoint and how answers are sampled.")
    programs: ProgramsConfig = Field(ProgramsConfig(), description="Running programs that a model has written.")
    budget: BudgetConfig = Field(BudgetConfig(), description="Hard limits of the embedded coordinator's ledger, and the dial.")
    chat: ChatConfig = Field(ChatConfig(), description="Talking in the terminal.")
    privacy: PrivacyConfig = Field(PrivacyConfig(), description="What stays on the device, and what is kept of what left it.")

    @property
    def columns(self) -> dict[str, Columns | None]:
        """For each source of the phases the columns that are learned from."""
        return {phase.source: phase.columns for phase in self.phases}

    @model_validator(mode="after")
    def _one_reading_of_a_file(self) -> AgentConfig:
        for phase in self.phases:
            if phase.columns != self.columns[phase.source]:
                raise ValueError(f"two phases read other columns of {phase.source}; give one of them a copy under another name")
        return self

    @model_validator(mode="after")
    def _only_the_last_phase_is_endless(self) -> AgentConfig:
        for phase in self.phases[:-1]:
            if phase.steps is None:
                raise ValueError(f"phase {phase.source} has no number of steps but others follow it")
        return self

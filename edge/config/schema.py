"""The agent's configuration as data. Knows every setting, its default and its range; knows nothing of files or flags.

All models are frozen and refuse unknown keys. Units are in the names (`_s` seconds, `_uusd` micro-USD, `_tokens`). A default that is
a decision of the paper or of DECISIONS.md is written here and nowhere else.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from edge.config.secret_refs import require_one_reference
from edge.core.limits import LARGEST_ALPHA, LARGEST_SEED, MOST_LAYERS, MOST_STEPS, MOST_THREADS, MOST_TOKENS


def _share(value: float) -> float:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"must lie in [0, 1], not {value}")
    return value


def _switch_word(value: object) -> object:
    """YAML reads a bare on or off as a truth value."""
    return ("on" if value else "off") if isinstance(value, bool) else value


Rate = Annotated[float, AfterValidator(_share)]
Switch = Annotated[Literal["auto", "on", "off"], BeforeValidator(_switch_word)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Mode = Literal["auto", "prefer-local", "local-only", "cloud-only"]
AdvantageScale = Literal["none", "group", "batch"]
AnswerMatch = Literal["exact", "equivalent"]
EngineBackend = Literal["auto", "llamacpp", "mlx", "onnx"]
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())


class ModelConfig(Section):
    """The SLM: a GGUF file or (on MLX) a folder by path, a bundled model by name (`nano-edge`), or a pulled one by its hub name."""

    path: str = "nano-edge"
    context_tokens: int = Field(1024, ge=64, le=MOST_TOKENS)
    prompt_form: Literal["auto", "compact", "full"] = "auto"


class EngineConfig(Section):
    """The engine: threads (0: one per physical core) and rows decoded together (0: as many as fit in memory, 8 to 32, to 128 on a graphics
    processor).

    `backend` auto is MLX on Apple silicon where it is installed, and llama.cpp with torch elsewhere (`edge-agent doctor` shows which). MLX
    chooses its threads itself. `weights`: how torch holds the model's weights while learning, as floats in memory (`resident`) or in the
    file that serves, dequantised matrix by matrix (`streamed`); `auto` streams all but small models. `repack`: llama.cpp may keep a second
    copy of 4-bit weights, arranged for faster products. `gpu_layers` of the model go to the graphics processor where llama.cpp was built
    for one: all of them unless told.

    `backend` onnx serves with ONNX Runtime, and torch trains: from NAME.onnx beside the model's NAME.gguf, else from a graph that is made
    of it once and kept in the state folder. `onnx_providers` are execution providers in order of preference (`[CUDA, CoreML]`); what is
    not there falls back to the CPU.
    """

    backend: EngineBackend = "auto"
    threads: int = Field(0, ge=0, le=MOST_THREADS)
    max_rows: int = Field(0, ge=0, le=4096)
    weights: Literal["auto", "resident", "streamed"] = "auto"
    repack: bool = True
    gpu_layers: int | None = Field(None, ge=0, le=MOST_LAYERS)
    onnx_providers: tuple[str, ...] = ()


class AdapterConfig(Section):
    """The LoRA adapter. Effective scale is alpha / rank."""

    rank: int = Field(16, ge=1, le=4096)
    alpha: float = Field(32.0, gt=0, le=LARGEST_ALPHA)
    targets: tuple[LoraTarget, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

    @field_validator("targets")
    @classmethod
    def _some_target(cls, targets: tuple[LoraTarget, ...]) -> tuple[LoraTarget, ...]:
        if not targets:
            raise ValueError("needs at least one layer name")
        return targets


class LearningConfig(Section):
    """DA-GRPO. `dual_*` are used by the embedded coordinator; a remote one has its operator's values.

    `temperature` 1 without truncation is what the estimator assumes; `advantage_scale` other than `none` is a departure from the paper.
    `memory_probe`: before the first step, the longest micro-batch that can come is computed once and forgotten, so that memory runs out
    at once or never (auto: only where by its shapes it takes more than a quarter of what is free). `gradient_checkpointing` computes a
    block's activations again in the backward pass instead of keeping them: the same gradients in less memory and more time (auto: only
    where the probe finds that it does not fit otherwise). `answer_match`: which verdict on a mathematical answer is the reward, the
    exact string (paper) or equivalence (needs math-verify). `unanimous_calls`: where all G responses to a prompt ask, whatever the cloud
    would answer moves nothing, since all Â are 0; skip saves the call, make (the paper) pays it and knows if the answer was right.
    `device`: where torch trains (auto: CUDA, else Metal, else the processor); MLX has its own.
    """

    group_size: int = Field(8, ge=2, le=1024)
    prompts_per_step: int = Field(8, ge=1, le=4096)
    learning_rate: Positive = 5e-4
    weight_decay: NotNegative = 0.0
    max_grad_norm: Positive = 1.0
    dual_lr: NotNegative = 0.02
    dual_init: NotNegative = 0.5
    temperature: Positive = 1.0
    max_tokens: int = Field(288, ge=1, le=MOST_TOKENS)
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    advantage_scale: AdvantageScale = "none"
    answer_match: AnswerMatch = "exact"
    unanimous_calls: Literal["make", "skip"] = "make"
    importance_cap: Positive = 2.0
    micro_batch_tokens: int = Field(1024, ge=1)
    torch_threads: int = Field(0, ge=0, le=MOST_THREADS)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    memory_probe: Switch = "auto"
    gradient_checkpointing: Switch = "auto"
    enabled: bool = True


class GateConfig(Section):
    """The promotion gate: a step's adapter serves only after stored items of every task learned so far (anchors) and the rate were tested.

    `enabled` None: in `run`, where people are served, and not in `learn`, whose runs are measurements. Judged are every `every`-th step
    and a phase's last one. `anchors` items of each task are answered without the cloud; a task's share right may fall by `max_drop`. The
    share that asks, meant over `rate_window` steps, lies within `rate_band` of τ or no further away than before. After `max_refusals`
    in a row training goes back to the adapter in use. `keep`: versions that served and stay on disk to go back to.
    """

    enabled: bool | None = None
    every: int = Field(10, ge=1)
    anchors: int = Field(16, ge=1)
    max_drop: Rate = 0.2
    rate_band: Rate = 0.15
    rate_window: int = Field(10, ge=1)
    max_refusals: int = Field(5, ge=1)
    keep: int = Field(3, ge=1)


class RoutingConfig(Section):
    """Who decides, in learning and evaluation, that a response is handed to the cloud; people are answered by the model's own decision.

    `policy` self: the response asks (the paper). router: a classifier from `edge-agent router train` in the file `router` hands over above
    its threshold, or above `threshold` where one is given; it runs on the providers of `engine.onnx_providers`.
    """

    policy: Literal["self", "router"] = "self"
    router: str | None = None
    threshold: Rate | None = None

    @model_validator(mode="after")
    def _a_router_has_a_file(self) -> RoutingConfig:
        if self.policy == "router" and not self.router:
            raise ValueError("policy router needs router, a file of edge-agent router train")
        return self


class PhaseConfig(Section):
    """One stretch of learning: a task source held to a target rate τ for some steps (None: without end).

    `source` is a name that `edge-agent tasks list` shows, or a path to a .jsonl file. `task` overrides the label whose λ applies (default:
    the items' own).
    """

    source: str = "practice:group1"
    target_rate: Rate = 0.3
    steps: int | None = Field(None, ge=1, le=MOST_STEPS)
    task: str | None = None

    @field_validator("source")
    @classmethod
    def _not_empty(cls, source: str) -> str:
        if not source.strip():
            raise ValueError("is empty; write practice:group1 or a path to a .jsonl file")
        return source


FIRST_PHASE_STEPS = 150
"""Steps of the first group before the second one begins, where nobody chose the phases."""


class EmbeddedCoordinatorConfig(Section):
    """The coordinator that the agent starts for itself, with one cloud LLM.

    `upstream`: `bundled` runs `model` (or the GGUF file at `path`) beside the agent; `openai_compatible` asks a server at `base_url`,
    `anthropic` the Messages API (its own address when no `base_url` is given); `recorded` replays the cassette at `path`. `api_key` says
    where the key lies, `env:NAME` or `file:/PATH`, and never holds it; `api_key_env: NAME` is short for the former. Prices are micro-USD
    per million tokens; where neither they nor published ones are known, calls are refused as UNPRICED. `tokens_field` and `allow_plaintext`
    are as in the coordinator's own configuration. `step_credit_kappa` κ bounds a step's calls by ceil(κ·τ·prompts) (None: λ alone
    steers, as in the paper, and the limits of `budget` stand behind it).
    """

    upstream: Literal["bundled", "openai_compatible", "anthropic", "recorded"] = "bundled"
    model: str = "nano-cloud"
    base_url: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    path: str | None = None
    price_in_uusd_per_mtok: int | None = Field(None, ge=0)
    price_out_uusd_per_mtok: int | None = Field(None, ge=0)
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    allow_plaintext: bool = False
    threads: int = Field(1, ge=1, le=MOST_THREADS)
    step_credit_kappa: NotNegative | None = None
    start_timeout_s: Positive = 30.0

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
    """PEM files: `ca` of the coordinator's authority; `cert` and `key` of this device where it has a certificate.

    `server_name`: the name in the coordinator's certificate when it is not the host of the address.
    """

    ca: str
    cert: str | None = None
    key: str | None = None
    server_name: str | None = None

    @model_validator(mode="after")
    def _both_or_neither(self) -> CoordinatorTlsConfig:
        if (self.cert is None) != (self.key is None):
            raise ValueError("needs cert and key together")
        return self


class CoordinatorConfig(Section):
    """Where the cloud is asked. `address` is HOST:PORT or unix:PATH; without one an embedded coordinator is started.

    `device_id` names this device to a coordinator that trusts the connection (None: derived from the state folder's run id). Another
    machine is spoken to over `tls`, and the certificate or the token in `token_file` (mode 0600, renewed by the agent) names the device.
    `hint_chars`: so many characters of the SLM's own attempt go along to the cloud LLM, without e-mail addresses, keys, passwords and
    numbers of more than 8 digits (0: nothing goes along). They are paid like any other input.
    """

    address: str | None = None
    tls: CoordinatorTlsConfig | None = None
    token_file: str | None = None
    device_id: str | None = None
    allow_insecure: bool = False
    call_deadline_s: Positive = 60.0
    control_deadline_s: Positive = 10.0
    max_output_tokens: int = Field(512, ge=1, le=MOST_TOKENS)
    model_alias: str = "default"
    prompt_form: Literal["auto", "compact", "full"] = "auto"
    hint_chars: int = Field(0, ge=0, le=16_000)
    embedded: EmbeddedCoordinatorConfig = EmbeddedCoordinatorConfig()


class ServeConfig(Section):
    """Answering people: the local endpoint and how answers are sampled (temperature 0 is greedy).

    `task` is the label whose budget served cloud calls use (None: the label being learned).
    """

    host: str = "127.0.0.1"
    port: int = Field(8040, ge=0, le=65535)
    temperature: NotNegative = 0.0
    max_tokens: int = Field(512, ge=1, le=MOST_TOKENS)
    max_steps: int | None = Field(None, ge=1, le=MOST_STEPS)
    task: str | None = None
    cloud_deadline_s: Positive = 20.0


class ProgramsConfig(Section):
    """Running programs that a model has written. `timeout_s` bounds one run, `memory_mib` its address space.

    `sandbox` auto is the best one that works here (`edge-agent doctor` shows which); `unsafe` (`--unsafe-programs`) lets auto end in none,
    and alone makes none possible: programs then run with the rights of this user.
    """

    sandbox: Literal["auto", "bubblewrap", "landlock", "sandbox-exec", "container", "none"] = "auto"
    unsafe: bool = False
    timeout_s: Positive = 5.0
    memory_mib: int = Field(512, ge=128)

    @model_validator(mode="after")
    def _none_is_said_twice(self) -> ProgramsConfig:
        if self.sandbox == "none" and not self.unsafe:
            raise ValueError("sandbox none runs programs with your rights; it needs unsafe: true (--unsafe-programs)")
        return self


class BudgetConfig(Section):
    """Hard limits of the embedded coordinator's ledger (None: no limit) and the dial: the share of served questions that may ask.

    The dial acts without retraining; None leaves the decision to the model alone.
    """

    calls_limit: int | None = Field(None, ge=0)
    tokens_limit: int | None = Field(None, ge=0)
    spend_limit_uusd: int | None = Field(None, ge=0)
    dial: Rate | None = None


class DecodeRate(Section):
    """Tokens/s of all rows together when so many are decoded at once."""

    rows: int = Field(ge=1)
    tokens_per_s: Positive


class DeviceConfig(Section):
    """What was measured on this machine; the part of a device profile that `edge-agent doctor --write-profile` fills in.

    Nothing here changes what the agent does: with bandwidth and both speeds, reports tell how many times the least possible time a step
    took. None (or an empty list) is what was not measured; G is 10^9. `bandwidth_gb_per_s`: bytes read from memory, buffers larger than
    the caches. `infer_gflop_per_s`: 2 x weights of the blocks x tokens/s of a prompt in the engine. `train_*_gflop_per_s`: torch matrix
    products of training's shapes. `dequantise_gweights_per_s`: weights turned from the file's form into floats. `model` is what the
    engine's numbers were taken with: `prefill_tokens_per_s` of one prompt, `decode` for some numbers of rows behind a short prompt.
    """

    name: str = ""
    measured_on: str = ""
    backend: Literal["", "llamacpp", "mlx", "onnx"] = ""
    cores: int | None = Field(None, ge=1)
    memory_mib: int | None = Field(None, ge=1)
    bandwidth_gb_per_s: Positive | None = None
    train_fp32_gflop_per_s: Positive | None = None
    train_bf16_gflop_per_s: Positive | None = None
    infer_gflop_per_s: Positive | None = None
    dequantise_gweights_per_s: Positive | None = None
    model: str = ""
    prefill_tokens_per_s: Positive | None = None
    decode: tuple[DecodeRate, ...] = ()


class AgentConfig(Section):
    """Everything an agent needs to know. `state_folder` None is the platform's folder for application data."""

    mode: Mode = "auto"
    state_folder: str | None = None
    device_profile: str | None = None
    device: DeviceConfig = DeviceConfig()
    model: ModelConfig = ModelConfig()
    engine: EngineConfig = EngineConfig()
    adapter: AdapterConfig = AdapterConfig()
    learning: LearningConfig = LearningConfig()
    gate: GateConfig = GateConfig()
    routing: RoutingConfig = RoutingConfig()
    phases: tuple[PhaseConfig, ...] = (
        PhaseConfig(source="practice:group1", steps=FIRST_PHASE_STEPS),
        PhaseConfig(source="practice:group2"),
    )
    coordinator: CoordinatorConfig = CoordinatorConfig()
    serve: ServeConfig = ServeConfig()
    programs: ProgramsConfig = ProgramsConfig()
    budget: BudgetConfig = BudgetConfig()

    @model_validator(mode="after")
    def _only_the_last_phase_is_endless(self) -> AgentConfig:
        for phase in self.phases[:-1]:
            if phase.steps is None:
                raise ValueError(f"phase {phase.source} has no number of steps but others follow it")
        return self

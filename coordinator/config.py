"""The coordinator's configuration as data. Knows every setting, its default and its range; knows nothing of files or flags.

All models are frozen and refuse unknown keys. Units are in the names: `_s` seconds, `_uusd` micro-USD, `_per_mtok` for a million tokens.
Secrets are never written here, only where they lie: `env:NAME` or `file:/PATH`. What looks like a secret itself is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, model_validator

from edge.config.loader import Flag, Resolved, ValueAt, resolve
from edge.config.schema import CoordinatorTlsConfig
from edge.config.secret_refs import HOW, require_one_reference
from edge.core.errors import PermissionDenied

ANY_TASK = "*"
DEFAULT_ALIAS = "default"
EXAMPLE = "budgets.device.calls_limit=100"
BUNDLED_PRICE_IN = 100_000
BUNDLED_PRICE_OUT = 400_000

Rate = Annotated[float, Field(ge=0.0, le=1.0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Window = Literal["total", "month", "week", "day", "hour"]
DualScope = Literal["task", "global", "fleet", "fleet_all"]
AnswerCache = Literal["off", "device", "fleet"]


class Section(BaseModel):
    """A frozen group of settings that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())


class PriceConfig(Section):
    """Micro-USD per million input and output tokens from a day on (UTC), until the next entry's day or through `until_day`."""

    from_day: date = date.min
    until_day: date | None = None
    in_uusd_per_mtok: Count
    out_uusd_per_mtok: Count


class BreakerConfig(Section):
    """After `failures_to_open` failures in a row an upstream is left alone for `first_pause_s`, twice as long after each failed probe, at
    most `longest_pause_s`; as long as its Retry-After asks for, at most `longest_retry_after_s`.
    """

    failures_to_open: int = Field(5, ge=1)
    first_pause_s: Positive = 5.0
    longest_pause_s: Positive = 60.0
    longest_retry_after_s: Positive = 600.0


class UpstreamConfig(Section):
    """One cloud LLM under an alias.

    `bundled` runs `model` (nano-cloud, or `path` to a GGUF file) in this process at a small notional price, so that spend moves and caps
    can be tried; `openai_compatible` asks a server at `base_url`; `anthropic` asks the Messages API there (its own address when none is
    given); `recorded` replays the cassette at `path`. All but the bundled one need their real price, or their calls are UNPRICED: `prices`
    with the days they hold from, or the two `price_*` for one that always holds, or the price file that comes with the package, when it
    knows the model at the host of `base_url`. `overloaded_is_refusal`: Anthropic's status 529 is taken for certainly not executed.
    `api_key` is a reference, `env:NAME` or `file:/PATH`; `api_key_env: NAME` is short for the former.
    """

    provider: str = "bundled"
    model: str = "nano-cloud"
    path: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    api_key_env: str | None = None
    price_in_uusd_per_mtok: Count | None = None
    price_out_uusd_per_mtok: Count | None = None
    prices: tuple[PriceConfig, ...] = ()
    overloaded_is_refusal: bool = False
    breaker: BreakerConfig = BreakerConfig()
    max_concurrency: int = Field(16, ge=1, le=4096)
    deadline_s: Positive = 60.0
    max_output_tokens: int = Field(4096, ge=1)
    threads: int = Field(1, ge=1)
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    allow_plaintext: bool = False

    @model_validator(mode="after")
    def _what_the_provider_needs(self) -> UpstreamConfig:
        if self.provider == "openai_compatible" and not self.base_url:
            raise ValueError("needs base_url for provider openai_compatible")
        if self.provider == "recorded" and not self.path:
            raise ValueError("needs path, the cassette, for provider recorded")
        if self.provider == "anthropic" and not (self.base_url or self.key_name):
            raise ValueError("needs api_key or api_key_env for provider anthropic")
        return self

    @model_validator(mode="after")
    def _one_way_to_say_a_price(self) -> UpstreamConfig:
        if self.prices and (self.price_in_uusd_per_mtok is not None or self.price_out_uusd_per_mtok is not None):
            raise ValueError("has prices and price_in_uusd_per_mtok or price_out_uusd_per_mtok; give one of them")
        days = [price.from_day for price in self.prices]
        if len(set(days)) < len(days):
            raise ValueError("has two prices from the same day")
        for price in self.prices:
            if price.until_day is not None and price.until_day < price.from_day:
                raise ValueError(f"has a price until {price.until_day} that begins later, on {price.from_day}")
            if any(price.from_day < day <= (price.until_day or price.from_day) for day in days):
                raise ValueError(f"has a price until {price.until_day} that ends after another one has begun")
        return self

    @model_validator(mode="after")
    def _one_reference_to_a_key(self) -> UpstreamConfig:
        require_one_reference(self.api_key, self.api_key_env)
        return self

    @property
    def key_name(self) -> str | None:
        """What `coordinator.secrets.Secrets` is asked for: a variable's name or `file:/PATH`; None without a key."""
        return self.api_key.removeprefix("env:") if self.api_key is not None else self.api_key_env

    @property
    def constant_price(self) -> tuple[int, int] | None:
        """Micro-USD per million input and output tokens where one price always holds; None when not both are known."""
        bundled = self.provider == "bundled"
        price_in = (
            self.price_in_uusd_per_mtok if self.price_in_uusd_per_mtok is not None else BUNDLED_PRICE_IN if bundled else None
        )
        price_out = (
            self.price_out_uusd_per_mtok if self.price_out_uusd_per_mtok is not None else BUNDLED_PRICE_OUT if bundled else None
        )
        return None if price_in is None or price_out is None else (price_in, price_out)


class LegConfig(Section):
    """One upstream of an alias. Lower `order` is asked first; upstreams of one order share the calls by `weight`."""

    upstream: str
    weight: Positive = 1.0
    order: int = Field(0, ge=0)


class RatePoint(Section):
    """From this step of a device on, or from this date on (UTC where it names no zone), τ is `target_rate`."""

    from_step: int | None = Field(None, ge=0)
    from_date: datetime | None = None
    target_rate: Rate

    @model_validator(mode="after")
    def _one_beginning(self) -> RatePoint:
        if (self.from_step is None) == (self.from_date is None):
            raise ValueError("needs either from_step or from_date")
        return self

    def holds(self, step: int, now: float) -> bool:
        """Whether it has begun, for a step opened at `now` (seconds since the epoch)."""
        if self.from_date is None:
            return self.from_step is not None and step >= self.from_step
        begin = self.from_date if self.from_date.tzinfo else self.from_date.replace(tzinfo=UTC)
        return now >= begin.timestamp()


class TaskConfig(Section):
    """What a task label is held to: τ, λ_0, η_λ, and κ of the step credit ceil(κ·τ·planned_prompts) (null: no step credit).

    With `target_rate_from_device` the τ that a device sends with OpenStep (its phase's) is taken instead of `target_rate`; with a
    `target_rate_schedule` neither is, once one of its points holds: the last of those that hold counts.

    `dual_scope`: one λ for each device and task (`task`), over all tasks of a device (`global`, the paper's), over all devices for this
    task (`fleet`), or over all devices and tasks (`fleet_all`). `answer_cache`: an answer may be given again, without a charge, to the same
    device in this task or to the whole fleet; up to `answer_cache_ttl_s` old (null: as long as answers are kept) and only at temperature 0,
    unless `answer_cache_any_temperature`.
    """

    target_rate: Rate = 0.3
    target_rate_schedule: tuple[RatePoint, ...] = ()
    dual_scope: DualScope = "task"
    dual_init: NotNegative = 0.5
    dual_lr: NotNegative = 0.01
    step_credit_kappa: NotNegative | None = 2.0
    target_rate_from_device: bool = True
    answer_cache: AnswerCache = "device"
    answer_cache_ttl_s: Positive | None = None
    answer_cache_any_temperature: bool = False

    @model_validator(mode="after")
    def _one_source_of_the_target_rate(self) -> TaskConfig:
        if self.target_rate_schedule and "target_rate_from_device" in self.model_fields_set and self.target_rate_from_device:
            raise ValueError("takes its target rate from target_rate_schedule or from the device, not from both")
        return self

    def scheduled_rate(self, step: int, now: float) -> float | None:
        """τ of the schedule for a step opened at `now`; None before its first point and without one."""
        return next((point.target_rate for point in reversed(self.target_rate_schedule) if point.holds(step, now)), None)


class LimitConfig(Section):
    """Hard limits of one scope in each window (null: none). Windows are those of the calendar in UTC, weeks begin on Monday (ISO 8601);
    `total` never ends."""

    window: Window = "total"
    calls_limit: Count | None = None
    tokens_limit: Count | None = None
    spend_limit_uusd: Count | None = None


class BudgetsConfig(Section):
    """Limits of the whole fleet, of each task over the fleet, of each device, and of each task on each device."""

    fleet: LimitConfig = LimitConfig()
    fleet_task: LimitConfig = LimitConfig()
    device: LimitConfig = LimitConfig()
    device_task: LimitConfig = LimitConfig()


class FleetConfig(Section):
    """What devices that share a coordinator owe each other.

    `fairness_floor` f: of the N devices that have calls in a window each can rely on f/N of the fleet's limits (0: first come, first
    served). A device that opens or closes no step for `price_idle_s` leaves the rounds of shared prices until its next one.
    """

    fairness_floor: Rate = 0.0
    price_idle_s: Positive = 3600.0


class RateConfig(Section):
    """Calls that may be started in a minute (null: any number), and how many of them at once (null: a tenth of a minute's)."""

    calls_per_min: int | None = Field(None, ge=1, le=10**9)
    burst: int | None = Field(None, ge=1, le=10**9)

    @property
    def most_at_once(self) -> int:
        """The size of the bucket, in calls."""
        return self.burst or max(1, (self.calls_per_min or 0) // 10)


class RatesConfig(Section):
    """Rate limits of each device and of the whole fleet. Beyond them a call is RATE_LIMITED, before anything is held for it."""

    device: RateConfig = RateConfig()
    fleet: RateConfig = RateConfig()


class ServiceConfig(Section):
    """Limits that protect the service itself. A call waits at most `max_queue_wait_s` for its upstream's slot; then OVERLOADED.

    `max_open_streams` bounds batches and watches together, `batch_items` what one batch has under way. A connection is ended politely
    when it is `connection_age_s` old, so that devices spread over replicas again; what runs on it then has `connection_grace_s`.
    """

    max_message_bytes: int = Field(4 << 20, ge=1024)
    max_rpcs: int = Field(4096, ge=1)
    max_queue: int = Field(1024, ge=0)
    max_queue_wait_s: Positive = 60.0
    drain_grace_s: NotNegative = 30.0
    sweep_interval_s: Positive = 2.0
    lease_margin_s: Positive = 30.0
    answers_kept_s: Positive = 7 * 86400.0
    answer_cache: bool = True
    allow_insecure: bool = False
    max_open_streams: int = Field(16384, ge=1)
    max_streams_per_connection: int = Field(4096, ge=1, le=2**31 - 1)
    batch_items: int = Field(256, ge=1)
    watch_heartbeat_s: Positive = 30.0
    connection_age_s: float = Field(1800.0, ge=1.0, le=2_000_000.0)
    connection_grace_s: float = Field(300.0, ge=1.0, le=2_000_000.0)


class StorageConfig(Section):
    """Where the ledger lies: in one SQLite file of the state folder, in PostgreSQL (for several coordinators), or in memory (for trials).

    `dsn` (postgresql://user@host/database) may not hold a password: name an environment variable with the whole DSN in `dsn_env`, or use
    PGPASSWORD or a password file. A coordinator on PostgreSQL that was not heard of for `replica_lease_s` counts as gone, and what it
    left running is charged as in doubt.
    """

    backend: Literal["sqlite", "postgres", "memory"] = "sqlite"
    dsn: str | None = None
    dsn_env: str | None = None
    replica_lease_s: Positive = 15.0

    @model_validator(mode="after")
    def _one_place(self) -> StorageConfig:
        given = [name for name in ("dsn", "dsn_env") if getattr(self, name) is not None]
        if self.backend != "postgres" and given:
            raise ValueError(f"{given[0]} belongs to backend postgres")
        if self.backend == "postgres" and len(given) != 1:
            raise ValueError("needs either dsn or dsn_env for backend postgres")
        if self.dsn is not None and _holds_password(self.dsn):
            raise ValueError("dsn holds a password; put the DSN into an environment variable and name that in dsn_env")
        return self


def _holds_password(dsn: str) -> bool:
    from urllib.parse import parse_qs, urlsplit

    try:
        parts = urlsplit(dsn)
        return parts.password is not None or "password" in parse_qs(parts.query)
    except ValueError:
        return "password" in dsn


class TlsConfig(Section):
    """Server certificate and key (PEM files; read again when they change), and the authority of client certificates.

    With `tls` every TCP listener speaks TLS. With `require_client_cert: false` devices show tokens and nothing else: no certificate is
    asked for, so one that a device has does not count. Administrators show certificates wherever `client_ca` is given, tokens without it.
    """

    cert: str
    key: str
    client_ca: str | None = None
    require_client_cert: bool = True

    @model_validator(mode="after")
    def _an_authority_for_clients(self) -> TlsConfig:
        if self.require_client_cert and not self.client_ca:
            raise ValueError("needs client_ca, or require_client_cert: false so that tokens alone tell who calls")
        return self

    def asks_certificate_of(self, role: Literal["device", "admin"]) -> bool:
        """Whether the listener for this role requires client certificates; gRPC cannot ask for one without requiring it."""
        return self.require_client_cert if role == "device" else self.client_ca is not None

    @property
    def note(self) -> str:
        """What an operator may not expect of these settings; "" where there is nothing."""
        if self.require_client_cert:
            return ""
        admins = "administrators show certificates" if self.asks_certificate_of("admin") else "administrators show tokens, too"
        return f"tls.require_client_cert is false: devices show tokens, and their certificates are not asked for; {admins}"


class DeviceGrant(Section):
    """What one device may do: the tasks it may work on (null: every task)."""

    tasks: tuple[str, ...] | None = None


class AuthConfig(Section):
    """Tokens and rights. A token lives `token_life_s` and can be renewed by its holder until the first of the chain is `renewable_s` old.

    `devices` narrows what a device may do; with `unlisted_devices: refuse` only the devices named there are served.
    `max_failures_per_min` failed authentications of one peer are answered, further ones are RATE_LIMITED.

    `folder` holds signing keys and epochs (null: `auth` in the state folder). Coordinators that share a ledger must share it, on a file
    system that shows a change at once, or else what one revokes would be valid at the others: on PostgreSQL nothing is issued or revoked
    without it.
    """

    folder: str | None = None
    audience: str = Field("edge-coordinator", min_length=1, max_length=200)
    token_life_s: int = Field(900, ge=10, le=900)
    clock_skew_s: int = Field(30, ge=0, le=60)
    renewable_s: int = Field(30 * 86400, ge=900)
    max_failures_per_min: int = Field(20, ge=1)
    devices: dict[str, DeviceGrant] = {}
    unlisted_devices: Literal["serve", "refuse"] = "serve"

    def tasks_of(self, device: str) -> frozenset[str] | None:
        """The tasks a device may work on, None for every task. Raises PermissionDenied for one that is not served."""
        grant = self.devices.get(device)
        if grant is None and self.unlisted_devices == "refuse":
            raise PermissionDenied(f"device {device} is not listed here", hint="add it under auth.devices")
        return None if grant is None or grant.tasks is None else frozenset(grant.tasks)


class AdminConfig(Section):
    """How commands reach the administrators' listener of a coordinator on another machine; nothing here matters to `serve`.

    `address` is its HOST:PORT (null: `admin_listen` of a coordinator on this machine). Over `tls` the certificate there or the token in
    `token_file` (mode 0600, role admin) tells who administers.
    """

    address: str | None = None
    tls: CoordinatorTlsConfig | None = None
    token_file: str | None = None


class TelemetryConfig(Section):
    """Traces of RPCs and calls for an OpenTelemetry collector (needs the extra `otel`). They tell devices' tasks, models, outcomes and
    amounts, and never a prompt, an answer or a key.

    `otlp_endpoint` is its OTLP/HTTP address, as http://127.0.0.1:4318. What the collector asks for goes into OTEL_EXPORTER_OTLP_HEADERS in
    the environment. `sample_rate`: the share of the traces that begin here; those that a device began are kept where it says so.
    """

    otlp_endpoint: str
    sample_rate: Rate = 1.0

    @model_validator(mode="after")
    def _an_address_without_secrets(self) -> TelemetryConfig:
        try:
            parts = urlsplit(self.otlp_endpoint)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise ValueError(f"otlp_endpoint is malformed: {error}") from error
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.password or parts.query or parts.fragment:
            raise ValueError("otlp_endpoint must look like http://HOST:4318, without user, password or query")
        return self

    @property
    def traces_url(self) -> str:
        """Where spans are sent."""
        return self.otlp_endpoint.rstrip("/").removesuffix("/v1/traces") + "/v1/traces"


class CoordinatorConfig(Section):
    """Everything a coordinator needs to know.

    No `upstreams` means `default: {provider: bundled}`; no `tasks` means that every label is held to the defaults of a task. A task named
    "*" stands for every label not named. `admin_listen` is where administrators connect: null means `admin.sock` in the state folder, []
    nowhere; that socket is there as well where `admin_listen` names ports alone, so that commands on this machine work without a
    credential; off loopback it needs `tls`. `admin` is for commands that administer from another machine. `metrics_listen` (Prometheus, at
    /metrics) and `console_listen` (the web console) are HOST:PORT, null: none; off loopback they need `tls` and tell only who shows a
    token. `metrics_devices` devices get series of their own.

    Each upstream is an alias by its own name. `aliases` gives more: an alias over several upstreams shares calls among them by weight, and
    asks a second one when the first is left alone by its breaker or certainly did not execute a call.
    """

    listen: tuple[str, ...] = ()
    admin_listen: tuple[str, ...] | None = None
    metrics_listen: str | None = None
    console_listen: str | None = None
    metrics_devices: int = Field(20, ge=0, le=1000)
    state_dir: str | None = None
    upstreams: dict[str, UpstreamConfig] = {}
    aliases: dict[str, tuple[LegConfig, ...]] = {}
    tasks: dict[str, TaskConfig] = {}
    budgets: BudgetsConfig = BudgetsConfig()
    fleet: FleetConfig = FleetConfig()
    rates: RatesConfig = RatesConfig()
    service: ServiceConfig = ServiceConfig()
    storage: StorageConfig = StorageConfig()
    tls: TlsConfig | None = None
    auth: AuthConfig = AuthConfig()
    admin: AdminConfig = AdminConfig()
    telemetry: TelemetryConfig | None = None

    @model_validator(mode="after")
    def _aliases_name_upstreams(self) -> CoordinatorConfig:
        for alias, legs in self.aliases.items():
            _check_legs(alias, legs, self.effective_upstreams)
        return self

    @model_validator(mode="after")
    def _no_plain_secret(self) -> CoordinatorConfig:
        from coordinator.secrets import find_plain_secret

        if where := find_plain_secret(self.model_dump(mode="json")):
            raise ValueAt(
                tuple(where.replace("[", ".").replace("]", "").split(".")), f"{where} looks like a secret itself; {HOW}"
            )
        return self

    @property
    def effective_upstreams(self) -> dict[str, UpstreamConfig]:
        """The configured upstreams, or the bundled one when there are none."""
        return dict(self.upstreams) or {DEFAULT_ALIAS: UpstreamConfig()}

    @property
    def effective_tasks(self) -> dict[str, TaskConfig]:
        """The configured tasks, or one for every label when there are none."""
        return dict(self.tasks) or {ANY_TASK: TaskConfig()}


def _check_legs(alias: str, legs: Sequence[LegConfig], upstreams: Mapping[str, UpstreamConfig]) -> None:
    names = [leg.upstream for leg in legs]
    unknown = next((name for name in names if name not in upstreams), None)
    if unknown is not None:
        raise ValueAt(
            ("aliases", alias, names.index(unknown)),
            f"alias {alias} names upstream {unknown}, which is not configured; known: {', '.join(sorted(upstreams))}",
        )
    if not names or len(set(names)) < len(names):
        raise ValueAt(("aliases", alias), f"alias {alias} must name at least one upstream, and each only once")


def resolve_coordinator_config(
    file: Path | None = None, sets: Sequence[str] = (), flags: Sequence[Flag] = ()
) -> Resolved[CoordinatorConfig]:
    """Defaults < file < --set < flags. Raises ConfigError with one line that names file and line."""
    return resolve(CoordinatorConfig, files=[file] if file is not None else [], sets=sets, flags=flags, example=EXAMPLE)

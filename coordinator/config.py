"""The coordinator's configuration: every setting, its default and its range.

All models are frozen and refuse unknown keys. Units are in the names: `_s` seconds, `_uusd` micro-USD, `_per_mtok` for a million tokens.
Secrets are never written here, only where they lie: `env:NAME` or `file:/PATH`. What looks like a secret itself is refused.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator

from edge.config.loader import Flag, Resolved, ValueAt, resolve
from edge.config.schema import CoordinatorTlsConfig
from edge.config.secret_refs import HOW, require_one_reference
from edge.config.section import NotNegative, Positive, Rate, Section
from edge.core.errors import PermissionDenied
from edge.core.periods import Period
from edge.dagrpo.dual import MOST_WINDOW, Controller, ProportionalIntegral, dual_rule
from edge.rpc.address import MAX_UNIX_PATH_BYTES, UNIX_PREFIX

ANY_TASK = "*"
DEFAULT_ALIAS = "default"
ADMIN_SOCKET = "admin.sock"
KEYS_COMMAND = "edge-coordinator config keys"
EXAMPLE = "budgets.device.calls_limit=100"
MOST_CLIENT_TOKEN_LIFE_S = 366 * 86400
BUNDLED_PRICE_IN = 100_000
BUNDLED_PRICE_OUT = 400_000

Count = Annotated[int, Field(ge=0, le=2**62)]
DualScope = Literal["task", "global", "fleet", "fleet_all"]


# YAML reads a bare off as a truth value.
AnswerCache = Annotated[Literal["off", "device", "fleet"], BeforeValidator(lambda value: "off" if value is False else value)]


class PriceConfig(Section):
    """A price and the days it holds on."""

    from_day: date = Field(date.min, description="First day the price holds on, in UTC (left out: from the beginning).")
    until_day: date | None = Field(
        None, description="Last day it holds on, in UTC (null: until the next entry's first day, or for good)."
    )
    in_uusd_per_mtok: Count = Field(strict=True, description="Price of a million input tokens, in micro-USD.")
    out_uusd_per_mtok: Count = Field(strict=True, description="Price of a million output tokens, in micro-USD.")


def check_days(prices: tuple[PriceConfig, ...]) -> tuple[PriceConfig, ...]:
    """These prices. Raises ValueError where their days contradict each other."""
    days = [price.from_day for price in prices]
    if len(set(days)) < len(days):
        raise ValueError("has two prices from the same day")
    for price in prices:
        if price.until_day is not None and price.until_day < price.from_day:
            raise ValueError(f"has a price until {price.until_day} that begins later, on {price.from_day}")
        if any(price.from_day < day <= (price.until_day or price.from_day) for day in days):
            raise ValueError(f"has a price until {price.until_day} that ends after another one has begun")
    return prices


class BreakerConfig(Section):
    """When an upstream is left alone.

    A Retry-After is kept to, even where it is longer than the pause.
    """

    failures_to_open: int = Field(5, ge=1, description="The breaker opens after this many failures in a row.")
    first_pause_s: Positive = Field(
        5.0, description="Seconds an upstream is left alone when its breaker opens; twice as long after each failed probe."
    )
    longest_pause_s: Positive = Field(60.0, description="Most seconds that a pause grows to.")
    longest_retry_after_s: Positive = Field(
        600.0, description="Longest pause that an upstream can ask for by Retry-After, in seconds; a longer one counts as this."
    )


class UpstreamConfig(Section):
    """One cloud LLM.

    `bundled` runs a model in this process (practice cloud, nothing is charged) at a small price for practice, so that spend moves and caps
    can be tried; `openai_compatible` asks a
    server at `base_url`; `anthropic` asks the Messages API there; `recorded` replays a cassette. All but the bundled one need their real
    price, or their calls are UNPRICED: `prices`, or the two `price_*` together, or the price file that comes with the package, when it
    knows the model at the host of `base_url`.
    """

    provider: str = Field(
        "bundled",
        description="Who answers: bundled, openai_compatible, anthropic, recorded, or one that an installed package adds.",
    )
    model: str = Field(
        "nano-cloud",
        description="Name of the model, as its server knows it; for bundled one that comes with the package, unless path is given.",
    )
    path: str | None = Field(
        None,
        description="File: of the GGUF model instead of one of the package (bundled), or of the cassette (recorded).",
    )
    base_url: str | None = Field(
        None, description="Address of the server, as https://HOST/v1 (null: Anthropic's own; openai_compatible needs one)."
    )
    api_key: str | None = Field(
        None,
        description="Where the API key lies, env:NAME or file:/PATH, never the key itself (null: from api_key_env, or no key is sent).",
    )
    api_key_env: str | None = Field(
        None,
        description="Name of the environment variable with the API key: short for api_key env:NAME (null: see api_key).",
    )
    price_in_uusd_per_mtok: Count | None = Field(
        None,
        description="Price of a million input tokens at all times, in micro-USD (null: as published, where known; bundled: 100000).",
    )
    price_out_uusd_per_mtok: Count | None = Field(
        None,
        description="Price of a million output tokens at all times, in micro-USD (null: as published, where known; bundled: 400000).",
    )
    prices: tuple[PriceConfig, ...] = Field(
        (), description="Prices with the days they hold on, instead of price_in_uusd_per_mtok and price_out_uusd_per_mtok."
    )
    overloaded_is_refusal: bool = Field(
        False, description="anthropic: status 529 counts as certainly not executed: refunded, and another upstream may be asked."
    )
    breaker: BreakerConfig = Field(
        BreakerConfig(), description="When the upstream is left alone after failures, and for how long."
    )
    max_concurrency: int = Field(
        16,
        ge=1,
        le=4096,
        description="Calls that are under way at this upstream at once; for bundled also the rows decoded together.",
    )
    deadline_s: Positive = Field(
        60.0, description="Seconds a call may take at this upstream, all in all; a device's own deadline can only shorten them."
    )
    max_output_tokens: int = Field(4096, ge=1, description="Most output tokens that a call may ask of this upstream.")
    threads: int = Field(1, ge=1, description="bundled: processor threads that the model runs on.")
    tokens_field: Literal["max_tokens", "max_completion_tokens"] = Field(
        "max_tokens",
        description="openai_compatible: what the server calls the limit of output tokens; where it refuses this, it gets the other.",
    )
    allow_plaintext: bool = Field(
        False, description="Ask a base_url that is plain http beyond loopback: prompts and key travel unencrypted."
    )

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
        if self.provider != "bundled" and (self.price_in_uusd_per_mtok is None) != (self.price_out_uusd_per_mtok is None):
            raise ValueError("has one of price_in_uusd_per_mtok and price_out_uusd_per_mtok; give both")
        check_days(self.prices)
        return self

    @model_validator(mode="after")
    def _one_reference_to_a_key(self) -> UpstreamConfig:
        require_one_reference(self.api_key, self.api_key_env)
        return self

    @property
    def key_name(self) -> str | None:
        """What `coordinator.config_secrets.Secrets` is asked for: a variable's name or `file:/PATH`; None without a key."""
        return self.api_key.removeprefix("env:") if self.api_key is not None else self.api_key_env

    @property
    def constant_price(self) -> tuple[int, int] | None:
        """Micro-USD per million input and output tokens where one price always holds; None when not both are known."""
        priced = (self.price_in_uusd_per_mtok, self.price_out_uusd_per_mtok)
        practice = (BUNDLED_PRICE_IN, BUNDLED_PRICE_OUT) if self.provider == "bundled" else (None, None)
        price_in, price_out = (known if given is None else given for given, known in zip(priced, practice, strict=True))
        return None if price_in is None or price_out is None else (price_in, price_out)


class LegConfig(Section):
    """One upstream of an alias.

    An alias shares its calls among its upstreams, and asks a second one when the first is left alone by its breaker or certainly did not
    execute a call.
    """

    upstream: str = Field(description="Name of the upstream, a key of upstreams.")
    weight: Positive = Field(
        1.0, description="Its part of the calls, in proportion to the weights of the upstreams of the same order."
    )
    order: int = Field(
        0, ge=0, description="Lower is asked first; higher ones when those cannot be asked or certainly did not execute a call."
    )


class RatePoint(Section):
    """A beginning and the τ that holds from then on."""

    from_step: int | None = Field(None, ge=0, description="From this step of a device on; or give from_date.")
    from_date: datetime | None = Field(None, description="From this time on, UTC where it names no zone; or give from_step.")
    target_rate: Rate = Field(description="τ from then on.")

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
    """What a task label is held to.

    A point of `target_rate_schedule` that holds counts before what the device sends, and that before `target_rate`.
    """

    target_rate: Rate = Field(
        0.3,
        description="τ: the share of responses that may ask for help, where neither a schedule nor the device says otherwise.",
    )
    target_rate_schedule: tuple[RatePoint, ...] = Field(
        (), description="Values of τ from a step or a time on; of the points that hold, the last one in the list counts."
    )
    dual_scope: DualScope = Field(
        "task",
        description="What shares one λ: nothing (task), all tasks of a device (global, the paper's), this task on all devices, or all.",
    )
    dual_init: NotNegative = Field(0.5, description="λ_0: λ before the first step is closed.")
    controller: Controller | None = Field(
        None,
        description="The rule of λ: dial, or paper, the integral alone (null: paper where dual_lr is set and dual_proportional is not, "
        "as configurations had it before there was a choice; else dial).",
    )
    dual_lr: NotNegative | None = Field(
        None,
        description="η_λ: how far a closed step moves λ for each unit by which its rate misses τ (null: dial 0.05, paper 0.01).",
    )
    dual_proportional: NotNegative | None = Field(
        None,
        description="k_p: how much λ holds of what the last reports miss τ by, at once (null: dial 1.5, paper and fleets 0).",
    )
    dual_window: int | None = Field(
        None,
        ge=1,
        le=MOST_WINDOW,
        description="Closed steps whose mean dual_proportional acts on; small batches are noisy (null: dial 4, paper 1).",
    )
    dual_ceiling: NotNegative | None = Field(
        None, description="Highest λ, an anti-windup bound where asking does not react to λ (null: none)."
    )
    step_credit_kappa: NotNegative | None = Field(
        2.0, description="κ: a step may make at most ceil(κ·τ·planned_prompts) calls (null: no such limit)."
    )
    target_rate_from_device: bool = Field(
        True, description="Take the τ that a device sends with OpenStep, where it sends one, instead of target_rate."
    )
    answer_cache: AnswerCache = Field(
        "device",
        description="Who is given a stored answer to the same question, uncharged: nobody, the same device in this task, or all devices.",
    )
    answer_cache_ttl_s: Positive | None = Field(
        None, description="Oldest answer that is given again, in seconds (null: as old as answers are kept)."
    )

    @property
    def dual_rule(self) -> ProportionalIntegral:
        """How λ moves; one that many devices move has no proportional part."""
        shared = self.dual_scope in ("fleet", "fleet_all")
        proportional = 0.0 if shared else self.dual_proportional
        as_before = self.dual_lr is not None and self.dual_proportional is None
        controller = self.controller or ("paper" if as_before else "dial")
        return dual_rule(controller, self.dual_lr, proportional, 1 if shared else self.dual_window, self.dual_ceiling)

    @model_validator(mode="after")
    def _one_source_of_the_target_rate(self) -> TaskConfig:
        if self.target_rate_schedule and "target_rate_from_device" in self.model_fields_set and self.target_rate_from_device:
            raise ValueError("takes its target rate from target_rate_schedule or from the device, not from both")
        return self

    @model_validator(mode="after")
    def _rule_that_can_be_kept(self) -> TaskConfig:
        if self.dual_proportional and self.dual_scope in ("fleet", "fleet_all"):
            raise ValueError(
                f"dual_proportional is for a λ that one device moves: dual_scope task or global, not {self.dual_scope}"
            )
        if self.dual_ceiling is not None and self.dual_init > self.dual_ceiling:
            raise ValueError(f"dual_init {self.dual_init:g} is above dual_ceiling {self.dual_ceiling:g}")
        return self

    def scheduled_rate(self, step: int, now: float) -> float | None:
        """τ of the schedule for a step opened at `now`; None before its first point and without one."""
        return next((point.target_rate for point in reversed(self.target_rate_schedule) if point.holds(step, now)), None)

    def rate_at(self, step: int, now: float, wished: float | None = None) -> float:
        """τ for a step opened at `now` (seconds since the epoch): that of the schedule, else what the device wishes where it is asked,
        else `target_rate`. Step 0 is also what holds before the first step; a wish is not checked."""
        scheduled = self.scheduled_rate(step, now)
        if scheduled is not None:
            return scheduled
        return self.target_rate if wished is None or not self.target_rate_from_device else wished


class LimitConfig(Section):
    """Hard limits of one scope in each window.

    Windows are those of the calendar in UTC, weeks begin on Monday (ISO 8601); `total` never ends. What `edge-coordinator budget set` says
    wins over what is written here.
    """

    window: Period = Field(
        "total",
        description="How long an amount counts against the limits: until the calendar's next hour, day, week or month begins, or for good.",
    )
    calls_limit: Count | None = Field(None, description="Most calls in a window (null: no limit).")
    tokens_limit: Count | None = Field(None, description="Most tokens in a window, input and output together (null: no limit).")
    spend_limit_uusd: Count | None = Field(None, description="Most spend in a window, in micro-USD (null: no limit).")


class BudgetsConfig(Section):
    """Hard limits by scope."""

    fleet: LimitConfig = Field(LimitConfig(), description="Limits of all devices and tasks together.")
    fleet_task: LimitConfig = Field(LimitConfig(), description="Limits of each task, over all devices.")
    device: LimitConfig = Field(LimitConfig(), description="Limits of each device, over all its tasks.")
    device_task: LimitConfig = Field(LimitConfig(), description="Limits of each task on each device.")
    user: LimitConfig = Field(
        LimitConfig(), description="Limits of each person whom a device names: auth.devices.NAME.user_header."
    )


class FleetConfig(Section):
    """What devices that share a coordinator owe each other."""

    fairness_floor: Rate = Field(
        0.0,
        description="f: each of the N devices with calls in a window can rely on f/N of the fleet's limits (0: first come, first served).",
    )
    dual_idle_s: Positive = Field(
        3600.0,
        description="A device that opens or closes no step for this many seconds leaves the rounds of shared λ until its next one.",
    )


class RateConfig(Section):
    """How fast calls may be started; a bucket that fills again as time goes by."""

    calls_per_min: int | None = Field(
        None, ge=1, le=10**9, description="Calls that may be started in a minute (null: any number)."
    )
    burst: int | None = Field(
        None, ge=1, le=10**9, description="How many of them may be started at once (null: a tenth of calls_per_min, at least 1)."
    )

    @property
    def most_at_once(self) -> int:
        """The size of the bucket, in calls."""
        return self.burst or max(1, (self.calls_per_min or 0) // 10)


class RatesConfig(Section):
    """How fast calls may be started.

    Beyond a rate limit a call is RATE_LIMITED, before anything is held for it. Each coordinator counts by itself.
    """

    device: RateConfig = Field(RateConfig(), description="Rate limit of each device.")
    fleet: RateConfig = Field(RateConfig(), description="Rate limit of all devices together, at this coordinator.")


class ServiceConfig(Section):
    """Limits that protect the service itself.

    Of `max_rpcs` and `max_open_streams` one device alone gets about half, so that another finds
    room. Connections are ended politely when they are old, so that devices spread over replicas again.
    """

    max_message_bytes: int = Field(4 << 20, ge=1024, description="Largest message in either direction, in bytes.")
    max_rpcs: int = Field(
        4096,
        ge=1,
        description="Requests of devices that run at once; further ones are turned away (OVERLOADED).",
    )
    max_queue: int = Field(
        1024,
        ge=0,
        description="Calls that may wait for a slot of one upstream; beyond them the newest of the device with most is OVERLOADED.",
    )
    max_queue_wait_s: Positive = Field(
        60.0, description="Seconds a call waits for a slot of its upstream; then it is turned away (OVERLOADED)."
    )
    drain_grace_s: NotNegative = Field(
        30.0,
        description="Seconds that calls under way have to end when the coordinator stops; what is cut then is charged as in doubt.",
    )
    sweep_interval_s: Positive = Field(
        2.0, description="Seconds between two rounds of upkeep, which charge holds whose lease is over."
    )
    lease_margin_s: Positive = Field(
        30.0, description="Seconds a hold outlives its call's deadline; then the call is in doubt and is charged what was held."
    )
    answers_kept_s: Positive = Field(
        7 * 86400.0, description="Seconds that answers stay stored, to be given again; charges and digests stay for good."
    )
    answer_cache: bool = Field(True, description="Give stored answers again as tasks.NAME.answer_cache says; false: at no task.")
    allow_insecure: bool = Field(
        False,
        description="Serve devices on other machines without tls: what they send is unencrypted, and their names are not checked.",
    )
    max_open_streams: int = Field(16384, ge=1, description="Watches that are open at once, over all devices.")
    watch_heartbeat_s: Positive = Field(
        30.0, description="Seconds without a change after which a watched budget sends a heartbeat."
    )
    connection_age_s: float = Field(
        1800.0, ge=1.0, le=2_000_000.0, description="Seconds after which a connection is ended politely, give or take a tenth."
    )
    connection_grace_s: float = Field(
        300.0, ge=1.0, le=2_000_000.0, description="Seconds that what still runs on such a connection has to end."
    )


class StorageConfig(Section):
    """Where the ledger lies.

    A password for PostgreSQL is never written here: use `dsn_env`, PGPASSWORD or a password file.
    """

    backend: Literal["sqlite", "postgres", "memory"] = Field(
        "sqlite",
        description="Where the ledger lies: in a file of the state folder, in PostgreSQL (for several coordinators), or in memory.",
    )
    dsn: str | None = Field(
        None, description="postgres: the database, as postgresql://USER@HOST/DATABASE, without a password; or give dsn_env."
    )
    dsn_env: str | None = Field(
        None, description="postgres: name of the environment variable with the whole DSN, password and all; instead of dsn."
    )
    replica_lease_s: Positive = Field(
        15.0,
        description="postgres: a coordinator not heard of for this many seconds is gone; what it left running is charged as in doubt.",
    )

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
    """Certificates.

    With `tls` every TCP listener speaks TLS, but for metrics and console on loopback, which stay plain HTTP. Administrators show
    certificates wherever `client_ca` is given, tokens without it; a certificate that a device has does not count where none is asked for.
    """

    cert: str = Field(description="PEM file with the server's certificate; read again when it changes.")
    key: str = Field(description="PEM file with the certificate's key; read again when it changes.")
    client_ca: str | None = Field(
        None,
        description="PEM file with the authority of client certificates; read again when it changes (null: no certificate is asked for).",
    )
    require_client_cert: bool = Field(
        True, description="Devices must show a certificate; false: they show tokens, and no certificate is asked for."
    )

    @model_validator(mode="after")
    def _an_authority_for_clients(self) -> TlsConfig:
        if self.require_client_cert and not self.client_ca:
            raise ValueError("needs client_ca, or require_client_cert: false so that tokens alone identify who calls")
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
    """What one device may do."""

    tasks: tuple[str, ...] | None = Field(None, description="The tasks it may work on (null: every task).")
    user_header: str | None = Field(
        None,
        pattern=r"^[Xx]-[A-Za-z0-9-]{1,62}$",
        description="HTTP header, X-SOMETHING, in which it names the person who asks, whom budgets.user limits (null: it names nobody).",
    )


class AuthConfig(Section):
    """Tokens and rights.

    Coordinators that share a ledger must share `folder`, on a file system that shows a change at once, or else what one revokes would be
    valid at the others: on PostgreSQL nothing is issued or revoked without it.
    """

    folder: str | None = Field(
        None,
        description="Folder of signing keys and epochs (null: auth in the state folder); coordinators on one ledger must share it.",
    )
    audience: str = Field(
        "edge-coordinator",
        min_length=1,
        max_length=200,
        description="Whom tokens are for; a token for another audience is refused.",
    )
    token_life_s: int = Field(
        900, ge=10, le=900, description="Seconds that a token lives, unless it is issued for a shorter life."
    )
    clock_skew_s: int = Field(
        30,
        ge=0,
        le=60,
        description="Seconds that the clock where a token was issued may differ from this one.",
    )
    client_token_life_s: int = Field(
        90 * 86400,
        ge=10,
        le=MOST_CLIENT_TOKEN_LIFE_S,
        description="Seconds that a token of role client lives, an API key for openai_listen, unless it is issued for a shorter life.",
    )
    renewable_s: int = Field(
        30 * 86400,
        ge=900,
        description="Seconds after which a token and those renewed from it can be renewed no more, counted from the first.",
    )
    max_failures_per_min: int = Field(
        20, ge=1, description="Failed authentications a minute that one host is answered; more are RATE_LIMITED."
    )
    devices: dict[str, DeviceGrant] = Field({}, description="What single devices may do, by the device's name.")
    unlisted_devices: Literal["serve", "refuse"] = Field(
        "serve", description="Whether devices that are not named under devices are served or refused."
    )

    @property
    def user_headers(self) -> dict[str, str]:
        """By device, of those that name people."""
        return {name: grant.user_header for name, grant in self.devices.items() if grant.user_header}

    def tasks_of(self, device: str) -> frozenset[str] | None:
        """The tasks a device may work on, None for every task. Raises PermissionDenied for one that is not served."""
        grant = self.devices.get(device)
        if grant is None and self.unlisted_devices == "refuse":
            raise PermissionDenied(f"device {device} is not listed here", hint="add it under auth.devices")
        return None if grant is None or grant.tasks is None else frozenset(grant.tasks)


class AdminConfig(Section):
    """How commands reach the administrators' listener of a coordinator on another machine.

    Nothing here matters to `serve`. Over TLS the certificate of `tls` or the token in `token_file` identifies the administrator.
    """

    address: str | None = Field(
        None,
        description="HOST:PORT or unix:PATH of the coordinator to administer (null: admin_listen of the one on this machine).",
    )
    tls: CoordinatorTlsConfig | None = Field(None, description="How to speak TLS there; needed beyond this machine.")
    token_file: str | None = Field(None, description="File (mode 0600) with a token of role admin (null: none is shown).")


class TelemetryConfig(Section):
    """Traces of RPCs and calls for an OpenTelemetry collector (needs the extra `otel`).

    They hold devices' tasks, models, outcomes and amounts, and never a prompt, an answer or a key. What the collector asks for goes into
    OTEL_EXPORTER_OTLP_HEADERS in the environment; OTEL_TRACES_SAMPLER and OTEL_TRACES_SAMPLER_ARG there say which traces are kept.
    """

    otlp_endpoint: str = Field(description="The collector's OTLP/HTTP address, as http://127.0.0.1:4318.")

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


class ServerConfig(Section):
    """Everything a coordinator needs to know.

    The socket `admin.sock` is there as well where `admin_listen` names ports alone, so that commands on this machine work without a
    credential.
    """

    listen: tuple[str, ...] = Field(
        ("127.0.0.1:7420",),
        description="Where devices connect: HOST:PORT (off loopback with tls) or unix:PATH.",
    )
    admin_listen: tuple[str, ...] | None = Field(
        None,
        description="Where administrators connect, as in listen (null: admin.sock in the state folder, also with ports; []: nowhere).",
    )
    metrics_listen: str | None = Field(
        None,
        description="HOST:PORT of Prometheus metrics, at /metrics; off loopback with tls, for a token or certificate (null: none).",
    )
    console_listen: str | None = Field(
        None, description="HOST:PORT of the web console; off loopback with tls, for a token or certificate (null: none)."
    )
    openai_listen: str | None = Field(
        None,
        description="HOST:PORT of the OpenAI-compatible endpoint, at /v1; off loopback with tls, for a token or certificate (null: none).",
    )
    state_dir: str | None = Field(
        None, description="State folder: ledger, signing keys, admin.sock (null: the platform's folder for application data)."
    )
    upstreams: dict[str, UpstreamConfig] = Field(
        {}, description="The cloud LLMs by name, each an alias of its own (none: default, the bundled provider)."
    )
    aliases: dict[str, tuple[LegConfig, ...]] = Field(
        {}, description="Names that devices may ask for, each with several upstreams."
    )
    tasks: dict[str, TaskConfig] = Field(
        {},
        description='What task labels are held to, by label; "*" stands for every label not named (none: every label has the defaults).',
    )
    budgets: BudgetsConfig = Field(BudgetsConfig(), description="Hard limits; a call must fit into all of them.")
    fleet: FleetConfig = Field(FleetConfig(), description="What devices that share a coordinator owe each other.")
    rates: RatesConfig = Field(RatesConfig(), description="Rate limits: how many calls may be started.")
    service: ServiceConfig = Field(ServiceConfig(), description="Limits that protect the service itself.")
    storage: StorageConfig = Field(StorageConfig(), description="Where the ledger lies, and how coordinators share it.")
    tls: TlsConfig | None = Field(
        None,
        description="Certificates of the TCP listeners (null: none, so loopback and Unix sockets alone; but see service.allow_insecure).",
    )
    auth: AuthConfig = Field(AuthConfig(), description="Tokens and rights.")
    admin: AdminConfig = Field(
        AdminConfig(), description="How commands reach the administrators' listener of a coordinator on another machine."
    )
    telemetry: TelemetryConfig | None = Field(
        None, description="Traces of RPCs and calls for an OpenTelemetry collector; needs the extra otel (null: none)."
    )

    @model_validator(mode="after")
    def _aliases_name_upstreams(self) -> ServerConfig:
        for alias, legs in self.aliases.items():
            _check_legs(alias, legs, self.effective_upstreams)
        return self

    @model_validator(mode="after")
    def _no_plain_secret(self) -> ServerConfig:
        from coordinator.config_secrets import find_plain_secret

        if where := find_plain_secret(self.model_dump(mode="json")):
            raise ValueAt(
                tuple(where.replace("[", ".").replace("]", "").split(".")), f"{where} looks like a secret itself; {HOW}"
            )
        return self

    @property
    def state_folder(self) -> Path:
        """The configured state folder or the platform's."""
        if self.state_dir:
            return Path(self.state_dir).expanduser()
        from platformdirs import user_data_path

        return user_data_path("edge-coordinator")

    @property
    def admin_addresses(self) -> tuple[str, ...]:
        """Where administrators connect: as configured, and unless that is nowhere, at a Unix socket for the commands of this machine.

        Where the configuration names no socket it is one in the state folder, if its path is short enough for one.
        """
        named = self.admin_listen
        if named is not None and (not named or any(each.startswith(UNIX_PREFIX) for each in named)):
            return named
        path = str((self.state_folder / ADMIN_SOCKET).absolute())
        fits = hasattr(socket, "AF_UNIX") and len(path.encode()) <= MAX_UNIX_PATH_BYTES
        return (*(named or ()), *((UNIX_PREFIX + path,) if fits else ()))

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
) -> Resolved[ServerConfig]:
    """Defaults < file < --set < flags. Raises ConfigError with one line that names file and line."""
    files = [file] if file is not None else []
    return resolve(ServerConfig, files=files, sets=sets, flags=flags, example=EXAMPLE, keys_command=KEYS_COMMAND)

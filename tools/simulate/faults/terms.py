"""The terms that a simulated coordinator is held to, and since when.

World and checker both read them: the one makes a configuration of them, the other expects what they say of the journal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

Caps = tuple[int | None, int | None, int | None]
Rate = tuple[int, int]
NO_CAPS: Caps = (None, None, None)
LIMIT_FIELDS = ("calls_limit", "tokens_limit", "spend_limit_uusd")
Settings = Mapping[str, Any]
CALL_SCOPES = ("device_task", "device", "fleet_task", "fleet")
"""Those that every call counts against."""
SCOPES = (*CALL_SCOPES, "user")
FOREIGN_TASK = "foreign"
"""A configured task that no scripted device has a right to."""
WINDOWS = {"total": "", "month": "%Y-%m", "week": "%G-W%V", "day": "%Y-%m-%d", "hour": "%Y-%m-%dT%H"}


@dataclass(frozen=True, slots=True)
class RateChange:
    """τ is `target_rate` from a step on, or from a time on (milliseconds since the epoch)."""

    target_rate: float
    from_step: int | None = None
    from_ms: int | None = None

    def holds(self, step: int, at_ms: int) -> bool:
        """Whether it has begun."""
        return step >= self.from_step if self.from_step is not None else at_ms > (self.from_ms or 0)


@dataclass(frozen=True, slots=True)
class DrawnTaskTerms:
    """What a task is held to: how many share its λ (`scope`), τ and its changes, λ_0, η, k_p and its window, the highest λ, κ, and who may
    be given its answers again."""

    scope: str = "task"
    target_rate: float = 0.3
    rate_from_device: bool = True
    schedule: tuple[RateChange, ...] = ()
    dual_init: float = 0.5
    dual_lr: float = 0.01
    credit_factor: float | None = 2.0
    answer_cache: str = "device"
    proportional: float = 0.0
    window: int = 1
    ceiling: float | None = None

    @property
    def beyond_lr(self) -> dict[str, Any]:
        """What the entry of an opened step has of its rule of λ, other than η."""
        written: dict[str, Any] = {"dual_proportional": self.proportional.hex()} if self.proportional else {}
        written |= {"dual_window": self.window} if self.window != 1 else {}
        return written | ({} if self.ceiling is None else {"dual_ceiling": self.ceiling.hex()})

    def rate(self, step: int, at_ms: int, wished: float) -> float:
        """τ of a step opened at that time by a device that wishes for `wished`."""
        begun = [change.target_rate for change in self.schedule if change.holds(step, at_ms)]
        return begun[-1] if begun else wished if self.rate_from_device else self.target_rate

    def credit(self, rate: float, prompts: int) -> int | None:
        """The calls that a step may make."""
        return None if self.credit_factor is None else math.ceil(self.credit_factor * rate * prompts - 1e-9)

    def dual_key(self, device: str, task: str) -> str:
        """The name of the λ that a task of a device moves; "" for one of its own."""
        return {"task": "", "global": f"global[device:{device}]", "fleet": f"fleet[task:{task}]", "fleet_all": "fleet"}[
            self.scope
        ]


@dataclass(frozen=True, slots=True)
class DrawnTerms:
    """All of it at one moment. `caps` in calls, tokens and micro-USD; `floor_ppm` is what of the fleet's caps is divided into floors;
    `prices` in micro-USD per token; `rates` as calls a minute and calls at once, of each device and of the fleet.
    """

    tasks: Mapping[str, DrawnTaskTerms] = field(default_factory=lambda: {"math": DrawnTaskTerms()})
    caps: Mapping[str, Caps] = field(default_factory=dict)
    windows: Mapping[str, str] = field(default_factory=dict)
    floor_ppm: int = 0
    prices: tuple[int, int] = (1, 2)
    device_rate: Rate | None = None
    fleet_rate: Rate | None = None
    dual_idle_s: float = 3600.0
    answers_cached: bool = True

    def cap(self, scope: str) -> Caps:
        """The caps of a scope."""
        return self.caps.get(scope, NO_CAPS)

    def budget(self, scope: str, device: str, task: str, at_ms: int, user: str = "") -> str:
        """The name of the budget of a scope that a call counts against; `user`: the person whom its device asks for."""
        owners = {
            "device_task": f"[device:{device}/task:{task}]",
            "device": f"[device:{device}]",
            "fleet_task": f"[task:{task}]",
            "user": f"[device:{device}/user:{user}]",
        }
        label = datetime.fromtimestamp(at_ms / 1000, UTC).strftime(WINDOWS[self.windows.get(scope, "total")])
        return scope + owners.get(scope, "") + (f"@{label}" if label else "")

    def with_set(self, scope: str, settings: Settings) -> DrawnTerms:
        """With what was set for a scope at run time: some of its caps, and its window."""
        calls, tokens, uusd = (settings.get(name, cap) for name, cap in zip(LIMIT_FIELDS, self.cap(scope), strict=True))
        windows = {**self.windows, scope: settings["window"]} if "window" in settings else self.windows
        return replace(self, caps={**self.caps, scope: (calls, tokens, uusd)}, windows=windows)

    def with_all_set(self, settings: Mapping[str, Settings]) -> DrawnTerms:
        """With what was set for each scope."""
        terms = self
        for scope, changes in settings.items():
            terms = terms.with_set(scope, changes)
        return terms


@dataclass(frozen=True, slots=True)
class History:
    """Which terms held since when, on the clock of the upstream's log. What was asked under older ones may still be on its way to the
    ledger for `slack_s`.
    """

    since: Sequence[tuple[float, DrawnTerms]]
    slack_s: float = 8.0

    def possible(self, earliest: float, latest: float) -> tuple[DrawnTerms, ...]:
        """The terms that something may have been asked under which was written in this time."""
        ends = [*(at for at, _ in self.since[1:]), math.inf]
        found = (
            terms for (at, terms), end in zip(self.since, ends, strict=True) if at <= latest and end >= earliest - self.slack_s
        )
        return tuple(found)

    def overlaid(self, changes: Sequence[tuple[float, str, Settings]]) -> History:
        """With what was set for scopes at run time, and when, in this order; it takes precedence over what is configured then and later."""
        since: list[tuple[float, DrawnTerms]] = []
        settings: dict[str, Settings] = {}
        waiting = list(self.since)
        terms = waiting.pop(0)[1]
        since.append((self.since[0][0], terms))
        for at, scope, change in [*changes, (math.inf, "", {})]:
            while waiting and waiting[0][0] <= at:
                read_at, terms = waiting.pop(0)
                since.append((read_at, terms.with_all_set(settings)))
            if scope:
                settings[scope] = change
                since.append((at, terms.with_all_set(settings)))
        return replace(self, since=since)

    @property
    def ever(self) -> tuple[DrawnTerms, ...]:
        """All of them."""
        return tuple(terms for _, terms in self.since)

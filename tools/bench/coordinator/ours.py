"""Our coordinator as a service under test: its configuration, its devices' tokens, and its command. Starts nothing.

Limits hold in all three scopes so that every call is held on four budgets, and none is ever reached.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coordinator.config import AuthConfig
from coordinator.ledger.opening import LEDGER_FILE
from coordinator.service.tokens import Tokens, TokenStore
from edge.core.clock import SystemClock

PRICE_IN_UUSD_PER_MTOK, PRICE_OUT_UUSD_PER_MTOK = 1_000_000, 4_000_000
AMPLE = 10**12


def settings(state: Path, upstream_port: int, *, metrics_port: int | None) -> dict[str, Any]:
    """The configuration as plain data."""
    upstream = {
        "provider": "openai_compatible",
        "model": "mock",
        "base_url": f"http://127.0.0.1:{upstream_port}/v1",
        "price_in_uusd_per_mtok": PRICE_IN_UUSD_PER_MTOK,
        "price_out_uusd_per_mtok": PRICE_OUT_UUSD_PER_MTOK,
        "max_concurrency": 1024,
        "max_output_tokens": 256,
    }
    limit = {"window": "month", "calls_limit": AMPLE, "tokens_limit": AMPLE, "spend_limit_uusd": AMPLE}
    metrics = {"metrics_listen": f"127.0.0.1:{metrics_port}"} if metrics_port else {}
    return {
        "listen": ["127.0.0.1:0"],
        "admin_listen": [],
        "state_dir": str(state),
        "upstreams": {"default": upstream},
        "budgets": {"fleet": limit, "device": limit, "device_task": limit},
        **metrics,
    }


def write_settings(file: Path, values: dict[str, Any]) -> None:
    """As JSON, which is YAML."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(values, indent=1), encoding="utf-8")


def command(config: Path) -> tuple[str, ...]:
    """Serve; says where in one line of JSON."""
    return (sys.executable, "-m", "coordinator", "serve", "--config", str(config), "--json")


def device_tokens(state: Path, devices: Sequence[str]) -> list[str]:
    """A valid token for each device; makes the signing key where there is none."""
    tokens = Tokens(TokenStore(state), AuthConfig(), SystemClock())
    return [tokens.renew("device", device) for device in devices]


def ledger_file(state: Path) -> Path:
    """Where the ledger lies."""
    return state / LEDGER_FILE


def address_of(told: Any) -> str:
    """Where a serving coordinator said that devices connect."""
    address: str = next(iter(told["addresses"]))
    return address

"""Numbers of the paper and of its baselines that no setting changes; those of a device are the defaults of its configuration
(`edge/config/schema.py`)."""

from __future__ import annotations

GVPO_UPDATES = 4
"""Updates of one rollout in GVPO, as its authors make; with one it is the unscaled policy gradient."""

STEP_LIMITS: dict[str, int] = {"math": 4, "code": 6, "qa": 4}
"""Reasoning steps allowed per task label (paper)."""

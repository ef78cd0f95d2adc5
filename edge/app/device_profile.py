"""Where this machine's device profile is looked for. What fits is decided in edge.config.device_profile."""

from __future__ import annotations

import os
from pathlib import Path

from edge.app.places import state_folder
from edge.config.device_profile import KEPT_NAME, NONE, Pick, known_profiles, pick_profile
from edge.config.schema import AgentConfig
from edge.core.machine import machine_facts

PROFILE_SWITCH = "EDGE_AGENT_DEVICE_PROFILE"
"""`none` in this variable keeps every command from picking one by itself."""


def own_profile(config: AgentConfig) -> Pick:
    """The profile to use where the configuration names none."""
    if os.environ.get(PROFILE_SWITCH) == NONE:
        return Pick()
    places = (kept_profile(config), kept_profile(AgentConfig()))
    return pick_profile(places, known_profiles(), machine_facts)


def kept_profile(config: AgentConfig) -> Path:
    """Where `edge-agent doctor --keep-profile` puts what it measured: beside the state, found by every run on it.

    A run on another state folder finds the one in the platform's folder.
    """
    return state_folder(config) / KEPT_NAME

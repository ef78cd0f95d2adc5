"""Logging set-up. Logs tell a person what happens; they never carry prompts, answers or secrets."""

from __future__ import annotations

import logging
import os
import sys


def configure_logging(level: str = "warning") -> None:
    """Send records of this level and above to stderr, one plain line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def quiet_transport() -> None:
    """Keep gRPC's own notes on failed handshakes off stderr, but not its errors. Call before grpc is imported; GRPC_VERBOSITY prevails."""
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

"""Logging set-up. Logs are for a person; they never carry prompts, answers or secrets."""

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
    """Keep gRPC's own notes on failed handshakes and on peers that left in mid-message off stderr, but not its errors. Call before grpc is
    imported; GRPC_VERBOSITY prevails.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    logging.getLogger("grpc._cython.cygrpc").addFilter(_is_no_broken_line)


def _is_no_broken_line(record: logging.LogRecord) -> bool:
    """gRPC logs a traceback when whom it was sending to is gone; nothing can be done about that."""
    return not (record.exc_info and record.exc_info[0] is not None and record.exc_info[0].__name__ == "ExecuteBatchError")

"""Fixtures shared by several folders of tests, the summary of fault tests, one thread per worker, and property tests without a deadline."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator

import pytest
from hypothesis import HealthCheck, settings

from tests.simulate.summary import PROPERTY, print_summary, take
from tests.worlds.postgres_server import postgres_server


def pytest_configure() -> None:
    """Tests interrupt processes, so SIGINT must not be ignored, even when the test run was started in the background."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


__all__ = ["postgres_server"]

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # the cores are shared by the workers

settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("untimed")  # a law holds or not, however long a busy machine takes for an example

os.environ.setdefault("EDGE_AGENT_DEVICE_PROFILE", "none")  # what tests find does not depend on whose machine they run on


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Attaches what a test noted to its report, also from a worker process."""
    try:
        yield
    finally:
        item.user_properties += [(PROPERTY, noted) for noted in take()]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Kills survived, faults injected, invariants checked, violations."""
    print_summary(terminalreporter)

"""What more than one file of unit tests uses."""

from __future__ import annotations

import pytest

from edge.core.errors import UsageError
from edge.verifiers.sandbox import choice
from edge.verifiers.sandbox.role import Sandbox


@pytest.fixture(scope="module")
def sandbox() -> Sandbox:
    """The best sandbox for programs that this machine has."""
    try:
        return choice.best_sandbox()
    except UsageError as error:
        pytest.skip(str(error))

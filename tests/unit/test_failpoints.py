"""Failpoints: off by default, armed by the environment, refused when misspelt."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from coordinator import failpoints
from edge.core.errors import ConfigError


def _run(setting: str, body: str) -> subprocess.CompletedProcess[str]:
    program = f"import os\nfrom coordinator import failpoints\nfailpoints.arm(os.environ)\n{body}\nprint('alive')"
    environment = {**os.environ, failpoints.VARIABLE: setting}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)


def test_an_armed_one_kills_the_process_at_the_right_time() -> None:
    setting = "settled=kill@2,answered=kill"
    assert _run(setting, "failpoints.reach('settled')").stdout == "alive\n"
    assert _run("", "failpoints.reach('settled')").stdout == "alive\n"
    twice = _run(setting, "failpoints.reach('settled')\nfailpoints.reach('settled')")
    assert (twice.returncode, twice.stdout) == (-9, "")
    assert _run(setting, "failpoints.reach('answered')").returncode == -9


@pytest.mark.parametrize("setting", ["setled=kill", "settled", "settled=sleep", "settled=kill@0", "settled=kill@x"])
def test_invalid_failpoint_is_refused_in_one_line(setting: str) -> None:
    with pytest.raises(ConfigError) as caught:
        failpoints.arm({failpoints.VARIABLE: setting})
    assert "before_reserve" in caught.value.hint

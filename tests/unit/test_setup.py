"""The set-up: packages installed while llama.cpp is built, and the outcome of a failed job."""

from __future__ import annotations

import asyncio
import sys
import tomllib
from pathlib import Path

from tools.setup import _run_side_by_side, packages_of


def test_build_packages_are_those_of_every_included_extra_except_llama_cpp() -> None:
    project = {
        "name": "p",
        "dependencies": ["a>=1"],
        "optional-dependencies": {
            "x": ["p[y,z]", "b"],
            "y": ["c; sys_platform != 'win32'", "llama-cpp-python[server]>=0.3"],
            "z": ["a>=1", "p[y]"],
        },
    }
    assert packages_of(project, "x") == ["a>=1", "b", "c; sys_platform != 'win32'"]
    own = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert {"torch>=2.6", "grpcio>=1.76", "fastapi>=0.120"} <= set(packages_of(own, "train")) <= set(packages_of(own, "dev"))


def test_a_job_that_fails_stops_the_others_and_shows_the_end_of_its_output(tmp_path: Path, capsys) -> None:
    def python(code: str) -> list[str]:
        return [sys.executable, "-c", code]

    assert asyncio.run(_run_side_by_side({"one": python("pass"), "two": python("pass")}, tmp_path, {}))
    jobs = {"slow": python("import time; time.sleep(600)"), "bad": python("print('no such package'); raise SystemExit(3)")}
    assert not asyncio.run(_run_side_by_side(jobs, tmp_path, {}))
    assert "no such package" in capsys.readouterr().err

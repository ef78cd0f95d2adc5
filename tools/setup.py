"""Sets up the virtual environment of the interpreter that runs it: `python -m tools.setup run`, or `dev` for tests and checks, too.

Needs nothing but the standard library. llama.cpp is compiled while the other packages are downloaded, and a line says how far both are.
What was compiled, or came from pip's cache, is tried: a prompt of the bundled model is decoded in a process of its own. Where that dies,
llama.cpp is built again without AMX, and if that dies too, for any x86-64 processor with AVX2.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from edge.core import llama_build
from edge.core.clock import SystemClock

LLAMA = "llama-cpp-python"
_EXTRAS = {"run": "train", "dev": "dev"}
_PIP = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
_INSTALL = [*_PIP, "install", "--no-compile", "--constraint", "constraints.txt"]
"""Python compiles what is imported when it is: of ten thousand files one in five, and not while compilers need the processors."""
_EVERY_S = 5.0
_SHOWN_LINES = 30
_DECODE = 'from edge.inference.llamacpp import decode_some; decode_some("edge/models/files/nano-edge.gguf")'
_REBUILDS: dict[llama_build.Build, str] = {
    "without-amx": "what is installed does not run on this processor",
    "for-any": "without what is special to this processor",
}
_COMPILED = re.compile(r"\[(\d+)/(\d+)\]")
_PACKAGE = re.compile(r"^\s*(Collecting|Downloading|Installing collected|Building wheel for) ?([\w.-]*)", re.MULTILINE)


def main(arguments: Sequence[str]) -> int:
    """Install everything and see that llama.cpp computes here; 1 with the end of pip's output where that cannot be done."""
    if len(arguments) != 1 or arguments[0] not in _EXTRAS:
        print(f"which set-up? one of {', '.join(_EXTRAS)}", file=sys.stderr)
        return 2
    extra = _EXTRAS[arguments[0]]
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
    jobs = {"packages": [*_INSTALL, *packages_of(project, extra)]}
    environment = dict(os.environ)
    with tempfile.TemporaryDirectory(prefix="setup-") as folder:
        if _installed(LLAMA) != _pinned(LLAMA):
            if "CMAKE_ARGS" not in environment:
                environment["CMAKE_ARGS"] = llama_build.arguments("first")
            jobs["llama.cpp"] = [*_PIP, "wheel", "--verbose", "--no-deps", "--wheel-dir", folder, f"{LLAMA}=={_pinned(LLAMA)}"]
        try:
            if not asyncio.run(_run_side_by_side(jobs, Path(folder), environment)):
                return 1
        except KeyboardInterrupt:
            print("stopped; the same command begins again", file=sys.stderr)
            return 130
        built = [str(wheel) for wheel in Path(folder).glob("*.whl")]
        if subprocess.run([*_INSTALL, "--quiet", *built, "--editable", f".[{extra}]"], check=False).returncode:
            return 1
    return _see_that_it_decodes()


def packages_of(project: Mapping[str, Any], extra: str) -> list[str]:
    """The requirements of the project with an extra, and the extras in it, but for llama.cpp's, which takes minutes to build."""
    found, extras = list(project["dependencies"]), [extra]
    for name in extras:  # grows while it is read
        for requirement in project["optional-dependencies"][name]:
            inner = re.fullmatch(rf"{project['name']}\[([\w,-]+)\]", requirement)
            if inner is None:
                found.append(requirement)
            else:
                extras += [other for other in inner[1].split(",") if other not in extras]
    return list(dict.fromkeys(one for one in found if not one.startswith(LLAMA)))


def progress(name: str, output: str) -> str:
    """How far a job is, from what it has printed: `llama.cpp: 23 of 83 files`, `packages: Downloading torch`."""
    if compiled := _COMPILED.findall(output):
        return f"{name}: {compiled[-1][0]} of {compiled[-1][1]} files"
    steps = _PACKAGE.findall(output)
    return f"{name}: {' '.join(steps[-1]).strip()}" if steps else f"{name}: starting"


async def _run_side_by_side(jobs: Mapping[str, Sequence[str]], logs: Path, environment: Mapping[str, str]) -> bool:
    """Run all commands and print how far they are; False, with the end of its output, where one fails. None is left running."""
    clock, places = SystemClock(), {name: logs / f"{name}.log" for name in jobs}
    began, running = clock.monotonic(), {}
    try:
        for name, command in jobs.items():
            with places[name].open("wb") as log:
                running[name] = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=log,
                    stderr=asyncio.subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # so that compilers end with it
                )
        waiting = {asyncio.ensure_future(job.wait()) for job in running.values()}
        while waiting and not any(job.returncode for job in running.values()):
            _, waiting = await asyncio.wait(waiting, timeout=_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            parts = [progress(name, _text(places[name])) for name, job in running.items() if job.returncode is None]
            if parts:
                print(f"   {clock.monotonic() - began:4.0f} s  {', '.join(parts)}", flush=True)
        failed = [name for name, job in running.items() if job.returncode]
    finally:
        for job in running.values():
            if job.returncode is None:
                os.killpg(job.pid, signal.SIGTERM)
                await job.wait()
    for name in failed:
        print("\n".join([*_text(places[name]).splitlines()[-_SHOWN_LINES:], f"{name} could not be installed"]), file=sys.stderr)
    return not failed


def _text(log: Path) -> str:
    return log.read_text(encoding="utf-8", errors="replace")


def _see_that_it_decodes() -> int:
    def decodes() -> bool:
        return subprocess.run([sys.executable, "-c", _DECODE], capture_output=True, check=False).returncode == 0

    if decodes():
        return 0
    for build, why in _REBUILDS.items():
        print(f"== building llama.cpp again: {why} (2 to 4 minutes on 2 cores)", flush=True)
        subprocess.run([*_PIP, "cache", "remove", "--quiet", "llama_cpp_python"], capture_output=True, check=False)
        again = ["--force-reinstall", "--no-deps", "--no-binary", LLAMA, f"{LLAMA}=={_pinned(LLAMA)}"]
        environment = {**os.environ, "CMAKE_ARGS": llama_build.arguments(build)}
        if subprocess.run([*_PIP, "install", "--quiet", *again], env=environment, check=False).returncode == 0 and decodes():
            return 0
    print(
        "llama.cpp does not run on this processor; see https://llama-cpp-python.readthedocs.io for other builds", file=sys.stderr
    )
    return 1


def _pinned(name: str) -> str:
    found = re.search(rf"^{name.replace('-', '[-_]')}==(.+)$", Path("constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"constraints.txt does not pin {name}")
    return found[1].strip()


def _installed(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""The peers of the bench, made once in a cache folder: TRL in its own environment, llama.cpp's batched bench from source. TRL is installed
under this project's constraints and with exactly the torch that this environment has, so that both sides multiply matrices with the same
library; an environment whose torch has CUDA is refused. llama.cpp's bench is built from the sources inside the source distribution of the
llama-cpp-python version that serves here, with its own defaults.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from edge.core.errors import EdgeError
from edge.core.llama_build import first_arguments
from edge.core.machine import cpu_flags
from tools.bench.harness import minutely, note, version_of
from tools.bench.processes import REPOSITORY, run_child

TRL = "1.16.0"
CMAKE_OPTIONS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DLLAMA_BUILD_TOOLS=ON",
    "-DLLAMA_BUILD_SERVER=OFF",
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_APP=OFF",
    "-DLLAMA_OPENSSL=OFF",
)
_PIP = ("-m", "pip", "--disable-pip-version-check")


def missing(cache: Path) -> list[str]:
    """What must be made first in this cache folder."""
    made = {
        f"an environment with TRL {TRL}": cache / f"trl-{TRL}" / "ready.json",
        "llama-batched-bench of llama.cpp": _program(cache),
    }
    return [name for name, file in made.items() if not file.exists()]


def trl_python(cache: Path) -> Path:
    """The interpreter of the environment with TRL, made when it is missing. Raises EdgeError."""
    folder = cache / f"trl-{TRL}"
    python, ready = folder / "bin" / "python", folder / "ready.json"
    if ready.exists():
        return python
    constraints = cache / "trl-constraints.txt"
    cache.mkdir(parents=True, exist_ok=True)
    constraints.write_text(peer_constraints((REPOSITORY / "constraints.txt").read_text(encoding="utf-8"), version_of("torch")))
    shutil.rmtree(folder, ignore_errors=True)
    _set_up("trl: environment", [sys.executable, "-m", "venv", str(folder)], cache)
    _set_up("trl: packages", [str(python), *install_arguments(constraints)], cache)
    versions = installed_versions(python)
    if versions["cuda"]:
        shutil.rmtree(folder, ignore_errors=True)
        raise EdgeError(
            "pip installed a torch with CUDA for TRL", hint="let pip find the CPU build of torch, as in constraints.txt"
        )
    ready.write_text(json.dumps(versions), encoding="utf-8")
    return python


def peer_constraints(own: str, torch: str) -> str:
    """This project's constraints with torch's build spelled out (`2.13.0+cpu`)."""
    kept = [line for line in own.splitlines() if line.strip() and not line.startswith(("#", "torch=="))]
    return "\n".join([f"torch=={torch}", *kept]) + "\n"


def install_arguments(constraints: Path) -> list[str]:
    """pip's arguments."""
    packages = ("torch", f"trl=={TRL}", "transformers", "peft", "datasets", "safetensors")
    return [*_PIP, "install", "--quiet", "--constraint", str(constraints), *packages]


def installed_versions(python: Path) -> dict[str, str]:
    """Versions in the other environment, and the CUDA version its torch was built for ("" for none)."""
    code = "import json,torch,trl;print(json.dumps({'torch':torch.__version__,'trl':trl.__version__,'cuda':torch.version.cuda or ''}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise EdgeError(f"TRL cannot be imported: {done.stderr.strip()[-300:]}", hint=f"remove {python.parents[1]} and try again")
    versions: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return versions


def batched_bench(cache: Path) -> Path:
    """The program, built when it is missing. Raises EdgeError."""
    version, program = version_of("llama-cpp-python"), _program(cache)
    if program.exists():
        return program
    folder = program.parents[2]
    folder.mkdir(parents=True, exist_ok=True)
    sources = _sources(folder, version)
    cmake = _cmake(cache)
    _set_up("llama.cpp: configure", [cmake, *configure_arguments(sources, folder / "build")], folder)
    jobs = str(os.cpu_count() or 1)
    build = [cmake, "--build", str(folder / "build"), "--target", "llama-batched-bench", "-j", jobs]
    _set_up("llama.cpp: build", build, folder)
    return program


def _program(cache: Path) -> Path:
    return cache / f"llama.cpp-{version_of('llama-cpp-python')}" / "build" / "bin" / "llama-batched-bench"


def configure_arguments(sources: Path, build: Path) -> list[str]:
    """cmake's arguments for a build with llama.cpp's own defaults and no more than the bench needs; without AMX where ours does without."""
    processor = first_arguments(shlex.split(os.environ.get("CC") or "cc"), cpu_flags())
    return ["-S", str(sources), "-B", str(build), *CMAKE_OPTIONS, *shlex.split(processor)]


def _sources(folder: Path, version: str) -> Path:
    """llama.cpp's sources out of llama-cpp-python's source distribution."""
    sources = folder / "source" / "vendor" / "llama.cpp"
    if sources.exists():
        return sources
    package = f"llama-cpp-python=={version}"
    download = [sys.executable, *_PIP, "download", "--quiet", "--no-deps", "--no-binary", "llama-cpp-python", package]
    _set_up("llama.cpp: sources", [*download, "--dest", str(folder)], folder)
    archive = next(folder.glob("llama_cpp_python-*.tar.gz"))
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(unpacked, filter="data")
    next(unpacked.iterdir()).rename(folder / "source")
    shutil.rmtree(unpacked)
    archive.unlink()
    return sources


def _cmake(cache: Path) -> str:
    """cmake of the system, or one that pip brings."""
    found = shutil.which("cmake")
    if found is not None:
        return found
    folder = cache / "cmake"
    if not (folder / "bin" / "cmake").exists():
        _set_up("cmake: environment", [sys.executable, "-m", "venv", str(folder)], cache)
        _set_up("cmake: package", [str(folder / "bin" / "python"), *_PIP, "install", "--quiet", "cmake"], cache)
    return str(folder / "bin" / "cmake")


def _set_up(key: str, command: Sequence[str], folder: Path) -> None:
    log = folder / f"{key.replace(': ', '-')}.log"
    seconds = run_child(command, log=log, environment=os.environ, folder=folder, on_line=minutely(key))
    note(f"  {key}: {seconds:.0f} s, made")

"""The peer of rollouts, made once in a cache folder: llama.cpp's batched bench, built from the sources in the source distribution of the
llama-cpp-python version that serves here, with its own defaults.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path

from edge.core.llama_build import first_arguments
from edge.core.machine import cpu_flags
from tools.bench.harness import minutely, note, version_of
from tools.bench.processes import run_child

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


def batched_bench(cache: Path) -> Path:
    """The program, built when it is missing. Raises EdgeError."""
    version, program = version_of("llama-cpp-python"), program_of(cache)
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


def program_of(cache: Path) -> Path:
    """Where the program is, or will be."""
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

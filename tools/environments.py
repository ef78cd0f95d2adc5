"""Programs of others in virtual environments of their own, in the user's cache folder: installed at the first use, kept with their pins."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

from platformdirs import user_cache_path

from edge.core.errors import EdgeError

INSTALL_TIMEOUT_S = 900


class CannotInstall(EdgeError):
    """A program that cannot be installed here."""


def environment(name: str, requirements: Path, *, sees_ours: bool = False) -> Path:
    """The environment's folder, made if it is not there yet. Raises CannotInstall.

    `sees_ours`: the packages of this environment are seen there too, behind its own, and the pins are all that is installed.
    """
    told = requirements.read_bytes() + sys.version.encode() + (sys.prefix.encode() if sees_ours else b"")
    home = user_cache_path("edge-agent") / f"{name}-{hashlib.sha256(told).hexdigest()[:12]}"
    home.parent.mkdir(parents=True, exist_ok=True)
    with (home.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "ready").exists():
            _install(name, home, requirements, sees_ours=sees_ours)
    return home


def _install(name: str, home: Path, requirements: Path, *, sees_ours: bool) -> None:
    print(f"installing {name} into {home}: about a minute, once", file=sys.stderr, flush=True)
    shutil.rmtree(home, ignore_errors=True)
    _run(name, [sys.executable, "-m", "venv", str(home)])
    if sees_ours:
        ours = Path(sysconfig.get_path("purelib"))
        (home / ours.relative_to(sys.prefix) / "beside.pth").write_text(f"{ours}\n")
    pip = [str(home / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    _run(name, [*pip, *(["--no-deps"] if sees_ours else []), "--requirement", str(requirements)])
    (home / "ready").touch()


def _run(name: str, command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, check=False)
    if done.returncode:
        raise CannotInstall(f"{name} cannot be installed", hint=done.stderr.strip()[-300:])

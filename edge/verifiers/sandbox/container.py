"""A container per program, by docker or podman; only where someone asks for it.

Slower than the other sandboxes (a container takes about half a second), but with limits by control groups. The image must be there
already: nothing is downloaded. Its Python need not be ours, so the inside is sent as text.
"""

from __future__ import annotations

import secrets
import shutil
import subprocess

from edge.verifiers.sandbox.interpreter import OPTIONS
from edge.verifiers.sandbox.role import ENVIRONMENT, Confined, Protection, SandboxError, SandboxLimits, Streams, launched

IMAGE = "python:3.12-slim"
_ASK_S = 20.0
_FIXED = (
    *("--rm", "--interactive", "--pull", "never", "--network", "none", "--ipc", "none", "--read-only", "--log-driver", "none"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "65534:65534", "--workdir", "/", "--cpus", "1"),
)


class Container:
    """Sandboxes by `docker run` or `podman run`."""

    name = "container"
    same_python = False
    protection = Protection(
        holds=(
            "network",
            "files of this machine, writing anywhere",
            "environment",
            "other processes",
            "memory, processes, CPU and wall time, output",
            "rare system calls (the runtime's own list)",
        ),
        lacks=("what the container runtime lets through", "faults of the kernel itself", "timing and cache side channels"),
    )

    def __init__(self, image: str = IMAGE) -> None:
        """Raises SandboxError without a running container service or without the image."""
        command = shutil.which("docker") or shutil.which("podman")
        if command is None:
            raise SandboxError("neither docker nor podman is installed")
        self._command, self._image = command, image
        if self._ask("info").returncode != 0:
            raise SandboxError(f"{command} does not answer", hint="start its service")
        if self._ask("image", "inspect", image).returncode != 0:
            raise SandboxError(f"the image {image} is not here", hint=f"run {command} pull {image}")

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        """Start a container. Raises SandboxError."""
        name = f"edge-program-{secrets.token_hex(8)}"
        memory = f"{limits.memory_mib}m"
        options = ["--memory", memory, "--memory-swap", memory, "--pids-limit", str(limits.threads)]
        for key, value in ENVIRONMENT.items():
            options += ["--env", f"{key}={value}"]
        command = [self._command, "run", "--name", name, *_FIXED, *options, self._image, "python3", *OPTIONS, "-c", boot]
        return _Running(launched(self._command, command, streams, env=None, cwd=None), self._command, name)

    def _ask(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        try:
            return subprocess.run([self._command, *arguments], capture_output=True, check=False, timeout=_ASK_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise SandboxError(f"{self._command} does not answer", hint="start its service") from error


class _Running(Confined):
    """The command outside and the container that it runs."""

    def __init__(self, process: subprocess.Popen[bytes], command: str, name: str) -> None:
        super().__init__(process)
        self._remove: list[str] | None = [command, "rm", "--force", name]

    def excess(self, limits: SandboxLimits) -> str:
        """The control group holds the limits."""
        return ""

    def kill(self) -> None:
        """Remove the container, then end the command."""
        if self._remove is not None:
            subprocess.run(self._remove, capture_output=True, check=False)
            self._remove = None
        super().kill()

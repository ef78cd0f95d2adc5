"""No sandbox at all, for those who said so (`--unsafe-programs`)."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress

from edge.verifiers.sandbox.interpreter import ENVIRONMENT, this_interpreter
from edge.verifiers.sandbox.role import Confined, Limits, OwnProcess, Protection, SandboxError, Streams


class Unconfined:
    """Plain processes with resource limits: a program can read and write whatever its user can, and use the network."""

    name = "none"
    same_python = True
    protection = Protection(holds=(), lacks=("files", "network", "environment of this process", "other processes"))

    def __init__(self) -> None:
        self._interpreter = this_interpreter()

    def start(self, boot: str, streams: Streams, limits: Limits) -> Confined:
        """Start the interpreter in a process group of its own. Raises SandboxError."""
        try:
            process = subprocess.Popen(
                self._interpreter.command(boot),
                stdin=streams.stdin,
                stdout=streams.stdout,
                stderr=streams.stderr,
                env=ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxError(f"the interpreter does not start: {error.strerror}") from error
        return ProcessGroup(process)


class ProcessGroup(OwnProcess):
    """A process with its group. A process that leaves the group escapes; sandboxes that use this keep it from doing so."""

    def kill(self) -> None:
        """End the group and reap its leader."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        super().kill()

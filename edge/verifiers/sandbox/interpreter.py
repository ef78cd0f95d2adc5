"""The Python interpreter that runs inside, and the files it needs.

The interpreter is the one this process runs on, without its virtual environment: binary, standard library and the shared libraries
they load. Third-party packages are not part of it. `Unconfined` is this interpreter with no sandbox around it.
"""

from __future__ import annotations

import functools
import os
import platform
import signal
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from edge.verifiers.sandbox.role import ENVIRONMENT, Confined, Protection, SandboxError, SandboxLimits, Streams, launched

OPTIONS = ("-S", "-s", "-P", "-B", "-X", "utf8")
_PACKAGES = ("site-packages", "dist-packages")
_PROGRAM_INTERPRETER = 3  # PT_INTERP: the file that loads shared libraries
_SYSTEM_FOLDERS = ("/lib", "/usr/lib", "/nix/store", "/gnu/store")
# Import every extension module of the standard library and print which files are mapped by then.
_SURVEY = """
import os, sys
for folder in sys.path:
    if folder.endswith("lib-dynload"):
        for name in os.listdir(folder):
            if name.endswith(".so") and not name.startswith(("_test", "_tkinter", "_ctypes_test", "xxlimited")):
                try:
                    __import__(name.partition(".")[0])
                except Exception:
                    pass
with open("/proc/self/maps") as maps:
    print(*sorted({line.split(None, 5)[5].strip() for line in maps if line.count("/")}), sep="\\n")
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """Binary, standard library, folders of it that stay hidden, library folders of the system, single library files, symbolic links."""

    binary: str
    stdlib: str
    hidden: tuple[str, ...]
    library_folders: tuple[str, ...]
    library_files: tuple[str, ...]
    links: tuple[tuple[str, str], ...]

    def command(self, boot: str) -> list[str]:
        """The interpreter running a statement: no site, no user or script folder in its path, no byte code written."""
        return [self.binary, *OPTIONS, "-c", boot]

    def stdlib_entries(self) -> list[str]:
        """What lies in the standard library's folder, hidden folders left out."""
        return [entry.path for entry in os.scandir(self.stdlib) if entry.path not in self.hidden]


@functools.cache
def this_interpreter() -> Interpreter:
    """The interpreter that runs this process. Raises SandboxError where it cannot be found."""
    binary = Path(getattr(sys, "_base_executable", "") or sys.executable).resolve()
    stdlib = Path(sysconfig.get_path("stdlib"))
    if not binary.is_file() or not stdlib.is_dir():
        raise SandboxError(f"the Python interpreter of this process cannot be found ({binary})")
    hidden = tuple(str(path) for name in _PACKAGES if (path := stdlib / name).is_dir())
    folders, files = _libraries(binary, stdlib) if platform.system() == "Linux" else ((), ())
    return Interpreter(str(binary), str(stdlib), hidden, folders, files, tuple(_links()))


def _libraries(binary: Path, stdlib: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(library folders of the system, single files elsewhere) that the interpreter and its extension modules load."""
    command = [str(binary), *OPTIONS, "-c", _SURVEY]
    survey = subprocess.run(command, capture_output=True, text=True, check=False, env=ENVIRONMENT, timeout=60)
    paths = [Path(line) for line in survey.stdout.splitlines()]
    mapped = [path for path in paths if ".so" in path.name and not path.is_relative_to(stdlib)]
    folders = sorted({path.parent for path in mapped})
    system = [folder for folder in folders if str(folder).startswith(_SYSTEM_FOLDERS)]
    outermost = (one for one in system if not any(one != other and one.is_relative_to(other) for other in system))
    # Of other folders every name that leads to a mapped file: libraries are looked up by a symbolic link.
    wanted = {path.resolve() for path in mapped}
    own = (path for folder in folders if folder not in system for path in sorted(folder.iterdir()) if path.resolve() in wanted)
    return tuple(map(str, outermost)), (*map(str, own), *_loader(binary))


def _loader(binary: Path) -> Iterator[str]:
    """The dynamic loader that a 64-bit ELF file names, by the real path of its folder; nothing for a static one."""
    with binary.open("rb") as file:
        head = file.read(64)
        start, (size, count) = struct.unpack_from("<Q", head, 32)[0], struct.unpack_from("<HH", head, 54)
        file.seek(start)
        table = file.read(size * count)
        for at in range(0, len(table), size):
            if struct.unpack_from("<I", table, at)[0] == _PROGRAM_INTERPRETER:
                offset, length = struct.unpack_from("<Q", table, at + 8)[0], struct.unpack_from("<Q", table, at + 32)[0]
                file.seek(offset)
                path = Path(os.fsdecode(file.read(length).rstrip(b"\0")))
                yield str(path.parent.resolve() / path.name)


def _links() -> Iterator[tuple[str, str]]:
    """(target, place) of the root's own links to libraries, such as /lib64 -> usr/lib64."""
    for place in map(Path, ("/lib", "/lib64", "/lib32")):
        if place.is_symlink():
            yield str(place.readlink()), str(place)


class Unconfined:
    """No sandbox at all, only with `--unsafe-programs`: plain processes with resource limits.

    A program can read and write whatever its user can, and use the network.
    """

    name = "none"
    same_python = True
    protection = Protection(holds=(), lacks=("files", "network", "environment of this process", "other processes"))

    def __init__(self) -> None:
        self._interpreter = this_interpreter()

    def start(self, boot: str, streams: Streams, limits: SandboxLimits) -> Confined:
        """Start the interpreter in a process group of its own. Raises SandboxError."""
        return _ProcessGroup(launched("the interpreter", self._interpreter.command(boot), streams))


class _ProcessGroup(Confined):
    """A process with its group. A process that leaves the group escapes."""

    def kill(self) -> None:
        """End the group and reap its leader."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        super().kill()

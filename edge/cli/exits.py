"""How a command ends: every failure is one line on stderr and an exit code.

Wrong usage 2, a failure 1, Ctrl-C 130. What nobody foresaw leaves its traceback in a log file that the line names; with
EDGE_AGENT_DEBUG=1 the traceback is shown instead.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edge.cli.output import one_line
from edge.core.engines import ENGINES
from edge.core.errors import EdgeError
from edge.core.install import install_extra

INTERRUPTED = 130
_FULL = (errno.ENOSPC, errno.EDQUOT)
EXTRAS = {
    "agent": ("llama_cpp", "gguf", "phonenumbers", "prompt_toolkit", "starlette", "uvicorn", "psutil", "aiohttp", "coordinator"),
    "train": ("torch", "peft", "safetensors", "matplotlib"),
    **{engine.extra: engine.packages for engine in ENGINES.values() if engine.packages},
}
"""What each extra brings that a command may miss."""


def ending(command: Callable[[], int]) -> int:
    """Run and translate whatever it raises into one line and an exit code."""
    _open_output()
    try:
        code = command()
        sys.stdout.flush()
        return code
    except EdgeError as error:
        return _fail(f"{error}; {error.hint}" if error.hint else str(error), error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _after_broken_pipe()
    except OSError as error:
        return _no_room_left() if error.errno in _FULL else _unforeseen(error)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # typer's own way to end then
            raise
        return _after_broken_pipe()
    except ModuleNotFoundError as error:
        return _missing_package(error)
    except Exception as error:
        if _is_usage_error(error):
            return _usage_exit(error)
        return _database_failed(error) if _is_of_the_database(error) else _unforeseen(error)


def _fail(message: str, exit_code: int) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return exit_code


def _is_usage_error(error: Exception) -> bool:
    """Whether the command-line parser raised it (its exception classes are not public, their two attributes are)."""
    return hasattr(error, "format_message") and hasattr(error, "exit_code")


def _usage_exit(error: Any) -> int:
    message = error.format_message().strip()
    if not message or "\n" in message:  # the parser's answer to a bare command is its whole help page
        print(message or "see --help", file=sys.stderr)
        return 2
    context = getattr(error, "ctx", None)
    if "unexpected extra argument" in message and context is not None and _takes_text(context.command):
        message = f"{message.rstrip('.')}; put words that belong together in quotes"
    return _fail(f"{message.rstrip('.')}; see {context.command_path if context else 'edge-agent'} --help", 2)


def _takes_text(command: Any) -> bool:
    """Whether a sentence may stand on its command line."""
    return any(getattr(param, "param_type_name", "") == "argument" for param in command.params)


def _is_of_the_database(error: Exception) -> bool:
    """Whether the state folder's database raised it while it was in use (its module need not be loaded for that)."""
    return any(base.__module__ == "sqlite3" for base in type(error).__mro__)


def _database_failed(error: Exception) -> int:
    text = f"the state folder's database cannot be used ({error})"
    return _fail(f"{text}; make room on the disk, restore agent.sqlite from a backup, or move it away to start afresh", 1)


def _missing_package(error: ModuleNotFoundError) -> int:
    """A part of the program that was not installed, with the command that installs it."""
    package = (error.name or "").partition(".")[0]
    extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
    if extra is None:
        return _unforeseen(error)
    return _fail(f"this needs the package {package}, which is not installed; run {install_extra(extra)}", 1)


def _open_output() -> None:
    """Somewhere to write for who was started without (`>&-`), and no character that stops a command: what cannot be shown is escaped."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process runs
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _after_broken_pipe() -> int:
    """Whoever read our output has gone (`| head`): stop quietly."""
    _drop_output()
    return 0


def _no_room_left() -> int:
    try:
        sys.stdout.flush()
    except OSError:
        _drop_output()
    return _fail("no room is left on what was written to, a disk or the output; make room, then the same command again", 1)


def _drop_output() -> None:
    """Keep the interpreter from flushing into what takes nothing any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _unforeseen(error: Exception) -> int:
    if os.environ.get("EDGE_AGENT_DEBUG") == "1":
        raise error
    where = _write_traceback(error)
    place = f"the traceback is in {where}" if where else "set EDGE_AGENT_DEBUG=1 to see the traceback"
    return _fail(f"unexpected {type(error).__name__}: {error}; {place}", 1)


def _write_traceback(error: Exception) -> Path | None:
    import traceback

    from platformdirs import user_log_path

    folder = user_log_path("edge-agent", appauthor=False)
    file = folder / f"crash-{os.getpid()}.log"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
    except OSError:
        return None
    return file

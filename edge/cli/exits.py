"""How a command ends: every failure is one line on stderr and an exit code, and a signal lets the work in progress end first.

Wrong usage 2, a failure 1, Ctrl-C 130. What nobody foresaw leaves its traceback in a log file that the line names; with
EDGE_AGENT_DEBUG=1 the traceback is shown instead.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from edge.cli.output import one_line
from edge.core.engines import ENGINES
from edge.core.errors import EdgeError
from edge.core.install import install_extra
from edge.core.interrupts import INTERRUPTED, is_interrupt

EXTRAS = {
    "agent": (
        "llama_cpp",
        "gguf",
        "phonenumbers",
        "prompt_toolkit",
        "starlette",
        "uvicorn",
        "psutil",
        "httptools",
        "coordinator",
    ),
    "train": ("torch", "safetensors", "matplotlib"),
    **{engine.extra: engine.packages for engine in ENGINES.values() if engine.packages},
}
"""What each extra brings that a command may miss."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_MOMENT_S = 1.0
_SHOW_CURSOR = "\x1b[?25h"


def ending(command: Callable[[], int]) -> int:
    """Run and translate whatever it raises into one line and an exit code."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # started without it (`>&-`)
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for as long as the process runs
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # no character stops a command: what cannot be shown is escaped
    try:
        code = command()
        sys.stdout.flush()
        return code
    except EdgeError as error:
        return _fail(error.with_hint, error.exit_code)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return _drop_output()
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            return _unforeseen(error)
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()
        return _fail("no room is left on what was written to, a disk or the output; make room, then the same command again")
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):  # typer's own way to end then
            raise
        return _drop_output()
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = next((extra for extra, packages in EXTRAS.items() if package in packages), None)
        if extra is None:
            return _unforeseen(error)
        return _fail(f"this needs the package {package}, which is not installed; run {install_extra(extra)}")
    except Exception as error:
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):  # the parser's, whose classes are not public
            return _wrong_usage(error)
        if any(base.__module__ == "sqlite3" for base in type(error).__mro__):  # its module need not be loaded for that
            failure = f"the state folder's database cannot be used ({error})"
            return _fail(f"{failure}; make room on the disk, restore agent.sqlite from a backup, or move it away to start afresh")
        return _unforeseen(error)


def _fail(message: str, exit_code: int = 1) -> int:
    print(f"error: {one_line(message)}", file=sys.stderr)
    return exit_code


def _wrong_usage(error: Any) -> int:
    message = error.format_message().strip()
    if not message or "\n" in message:  # the parser's answer to a bare command is its whole help page
        print(message or "see --help", file=sys.stderr)
        return 2
    message, context = message.rstrip("."), getattr(error, "ctx", None)
    params = context.command.params if context is not None else ()
    takes_text = any(getattr(param, "param_type_name", "") == "argument" for param in params)
    if takes_text and "unexpected extra argument" in message:
        message = f"{message}; put words that belong together in quotes"
    if "No such option" in message and hasattr(getattr(context, "command", None), "commands"):
        message = f"{message}; options come after a command"
    return _fail(f"{message}; see {context.command_path if context else 'edge-agent'} --help", 2)


def _drop_output() -> int:
    """Whoever read our output is gone (`| head`): end quietly, and keep the interpreter from flushing into what takes nothing any more."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _unforeseen(error: Exception) -> int:
    if is_interrupt(error):
        return INTERRUPTED
    if os.environ.get("EDGE_AGENT_DEBUG") == "1":
        raise error
    import traceback

    from platformdirs import user_log_path

    file = user_log_path("edge-agent", appauthor=False) / f"crash-{os.getpid()}.log"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("".join(traceback.format_exception(error)), encoding="utf-8")
        place = f"the traceback is in {file}"
    except OSError:
        place = "set EDGE_AGENT_DEBUG=1 to see the traceback"
    return _fail(f"unexpected {type(error).__name__}: {error}; {place}")


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` at the first signal. At the second cancel the task that entered the block, and end the process where that takes longer
    than a moment: an update under way cannot be cut, and what is on disk is whole whenever the process ends. A closed terminal stops too,
    but not twice: shell and system both report it. Where that is ignored, as under nohup, it stays so."""
    task = asyncio.current_task()
    loop = asyncio.get_running_loop()
    seen = 0

    def on_signal(number: int) -> None:
        nonlocal seen
        if number == signal.SIGHUP:
            _silence_lost_channels()
            if seen:
                return
        seen += 1
        if seen == 1:
            stop()
        elif task is not None:
            task.cancel()
            timer = threading.Timer(_MOMENT_S, _end)  # unless the process has ended by itself
            timer.daemon = True
            timer.start()

    numbers = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def _silence_lost_channels() -> None:
    """Writing to a terminal that is gone, or to a pipe whose reader went with it, is an error, and would cut what is still to be done."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    for channel in (0, 1, 2):
        with suppress(OSError):
            mode = os.fstat(channel).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
                os.dup2(nowhere, channel)
    os.close(nowhere)


def _end() -> None:
    """End the process now; the embedded coordinator ends with it."""
    if sys.stderr.isatty():
        os.write(sys.stderr.fileno(), _SHOW_CURSOR.encode())
    os._exit(INTERRUPTED)

"""`python -m tools.integrations.trl run CONFIG.yaml`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from edge.cli.exits import ending
from tools.integrations.trl.processes import MainFailed

_TERMINATED = 143
_MAIN_RANK = "0"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code:

    2 with one line for a refusal, 1 with one line for a failure, 130 for Ctrl-C. Where the main one of several processes fails, it alone
    prints the reason. Raises SystemExit(143) where a run was ended by SIGTERM.
    """
    chosen = _parser().parse_args(arguments)
    return ending(lambda: int(chosen.play(chosen)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.integrations.trl", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train with DA-GRPO on TRL, or go on where a run in the same folder stopped")
    run.set_defaults(play=_run)
    run.add_argument("config", type=Path, help="YAML file, see tools/integrations/trl/configs")
    run.add_argument("--out", help="folder of the run (out)")
    run.add_argument(
        "--set", action="append", default=[], metavar="K=V", help="a setting, as agent.learning.seed=1; may be repeated"
    )
    return parser


def _run(chosen: argparse.Namespace) -> int:
    from tools.integrations.trl.config import resolve_run
    from tools.integrations.trl.run import run

    sets = [*chosen.set, *([f"out={chosen.out}"] if chosen.out else [])]
    try:
        with stopped_by_term():
            run(resolve_run(chosen.config, tuple(sets)))
    except MainFailed as error:
        return error.exit_code
    return 0


@contextmanager
def stopped_by_term() -> Iterator[None]:
    """Raises SystemExit(143) in the block at the first SIGTERM; the next ones are passed over until the block has ended. Changes nothing
    where SIGTERM is ignored, outside the main thread, and in processes other than the main one, which have nothing to sum up."""
    alone = os.environ.get("RANK", _MAIN_RANK) == _MAIN_RANK
    before = signal.getsignal(signal.SIGTERM)
    if not alone or before is signal.SIG_IGN or threading.current_thread() is not threading.main_thread():
        yield
        return
    signal.signal(signal.SIGTERM, _terminate)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    raise SystemExit(_TERMINATED)


if __name__ == "__main__":
    sys.exit(main())

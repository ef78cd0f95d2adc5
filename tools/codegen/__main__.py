"""`python -m tools.codegen [--check]`."""

from __future__ import annotations

import argparse
import sys

from edge.cli.exits import ending
from edge.core.formatting import counted
from tools.codegen import drift, regenerate


def main() -> int:
    """Regenerate, or with --check report drift; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.codegen", description="Generate edge/rpc/v1 from proto/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail when the committed code is out of date")
    check = parser.parse_args().check
    return ending(_report_drift if check else _report_written)


def _report_drift() -> int:
    if changed := drift():
        names = ", ".join(map(str, changed))
        print(f"codegen: out of date: {names}; run `python -m tools.codegen` and commit the result", file=sys.stderr)
        return 1
    print("codegen: up to date")
    return 0


def _report_written() -> int:
    print(f"codegen: wrote {counted(len(regenerate()), 'file')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tools.nano`: train, export and measure the bundled models."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from edge.cli.exits import ending
from edge.core.errors import UsageError
from edge.models.catalogue import bundled_folder

RUNS = Path("runs/nano")
MODELS = ("nano-edge", "nano-edge-llama", "nano-cloud")


def main() -> int:
    """Parse the command line and run one command; its exit code."""
    arguments = parse()
    run = {
        "train": run_train,
        "export": run_export,
        "passes": run_passes,
    }
    run[arguments.command](arguments)
    return 0


def parse() -> argparse.Namespace:
    """The command line's arguments."""
    parser = argparse.ArgumentParser(prog="python -m tools.nano", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    train = commands.add_parser("train", help="train a bundled model, or go on with its training")
    train.add_argument("model", choices=MODELS)
    train.add_argument("--folder", type=Path, help="run folder (default runs/nano/MODEL)")
    train.add_argument("--seed", type=int, default=0)
    train.add_argument("--steps", type=int, help="optimiser steps (default: the recipe's)")
    train.add_argument("--threads", type=int, default=1)
    train.add_argument("--grow-from", type=Path, help="model file to begin with (default: the recipe's bundled one, or nothing)")
    export = commands.add_parser("export", help="write weights as a GGUF file")
    export.add_argument("model", choices=MODELS)
    export.add_argument("--weights", type=Path, help="default runs/nano/MODEL/final.pt")
    export.add_argument("--output", type=Path, help="default edge/models/files/MODEL.gguf")
    passes = commands.add_parser("passes", help="pass@1 and pass@8 at T = 1 by family and band")
    passes.add_argument("model", help="a bundled model's name or the path of a GGUF file")
    passes.add_argument("--per-level", type=int, default=60)
    passes.add_argument("--seed", type=int, default=1)
    passes.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def run_train(arguments: argparse.Namespace) -> None:
    """Train one model; print where its weights are."""
    from tools.nano.recipes import RECIPES
    from tools.nano.train import TrainOptions, train

    options = TrainOptions(
        folder=arguments.folder or RUNS / arguments.model,
        seed=arguments.seed,
        steps=arguments.steps,
        threads=arguments.threads,
        grow_from=arguments.grow_from,
    )
    print(train(RECIPES[arguments.model], options))


def run_export(arguments: argparse.Namespace) -> None:
    """Write one GGUF file; print its size."""
    from tools.nano.export import export_weights
    from tools.nano.unseen import spread_in_file

    weights = arguments.weights or RUNS / arguments.model / "final.pt"
    output = arguments.output or bundled_folder() / f"{arguments.model}.gguf"
    check_there(weights, hint=f"python -m tools.nano train {arguments.model}")
    export_weights(arguments.model, weights, output)
    print(f"{output}: {output.stat().st_size / 1e6:.2f} MB")
    print(f"{spread_in_file(output)} tokens were never seen and got directions of their own")


def run_passes(arguments: argparse.Namespace) -> None:
    """Print how often one response of one, and of eight, is right."""
    from tools.nano.passes import pass_table

    path = bundled_folder() / f"{arguments.model}.gguf"
    path = path if path.exists() else Path(arguments.model)
    check_there(path, hint="name one of edge/models/files, or a GGUF file")
    print(asyncio.run(pass_table(path, arguments.per_level, arguments.seed, arguments.threads)))


def check_there(file: Path, *, hint: str) -> None:
    """Raises UsageError where there is no such file; `hint`: what to do then."""
    if not file.is_file():
        raise UsageError(f"{file} is no file", hint=hint)


if __name__ == "__main__":
    sys.exit(ending(main))

"""`python -m tools.bench table`: the table of goals, measured side by side in one run.

Every figure comes from its own process; results are written to the folder `--out`, one file per process, and an interrupted run resumes.
Exit code 1 when a goal is missed, so that a machine can watch it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edge.app.settings import bundled_models
from edge.core.machine import usable_cores
from edge.models.catalogue import find_model
from tools.arguments import positive
from tools.bench import harness
from tools.bench.harness import BenchRow, MeasuredPart, Results
from tools.bench.table import jobs, peers, rows
from tools.bench.table.models import gguf_file
from tools.bench.table.plan import FULL, GROUP_SIZE, QUICK, ROWS, TablePlan, Workload
from tools.places import check_folder

BUNDLED, PUBLIC = "nano-edge", "smollm2"
SOURCE, WORD_PROBLEMS = "practice:group1", "practice:arith"
PEER_SETTINGS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "fp32": (jobs.FP32, False),
    "defaults": (jobs.DEFAULTS, False),
    "tuned": (jobs.FP32, True),
}
"""TRL's settings, and whether it gets our allocator settings."""


@dataclass(frozen=True, slots=True)
class TableBench:
    """Measures rows. Peers are made in the cache folder when a row first needs them."""

    plan: TablePlan
    jobs: jobs.Jobs
    results: Results

    def small(self) -> BenchRow:
        """The bundled model against TRL."""
        work = self.plan.small
        folder = self._made(BUNDLED, [], transformers=True)[-1]
        prompts = self._prompts(self._bundled(), work, SOURCE)

        competitors = {"ours": self._our_small(), "ours-bundled-cloud": self._our_small(cloud="bundled")}
        for name, (setting, tuned) in PEER_SETTINGS.items():
            peer = self.jobs.trl(folder, prompts, work, setting, random_model=False, tuned_allocator=tuned)
            competitors[f"trl-{name}"] = peer
        measured = self.results.alternating("small", competitors, work.rounds)
        peer_rounds = {name: measured[f"trl-{name}"] for name in PEER_SETTINGS}
        return rows.small_row(measured["ours"], measured["ours-bundled-cloud"], peer_rounds)

    def smollm2(self) -> BenchRow:
        """A public model against TRL. It is hardly ever right in the free form that both sides have, so rewards are made up, and every
        response has its full length."""
        work, model = self.plan.smollm2, _public()
        folder = Path(self.results.measure(f"models/{PUBLIC}", self.jobs.model_files(PUBLIC, [], True, model))["files"][-1])
        prompts = self._prompts(model, work, WORD_PROBLEMS)
        peer = replace(work, warmup=self.plan.peer_warmup, steps=self.plan.peer_steps)
        enough = prompts[: peer.prompts * (peer.warmup + peer.steps)]
        settings = {"bf16": jobs.BF16, "defaults": jobs.DEFAULTS}
        measured = self.results.alternating(
            "smollm2",
            {
                "ours": self._our_public(),
                **{
                    f"trl-{name}": self.jobs.trl(folder, enough, peer, given, random_model=True)
                    for name, given in settings.items()
                },
                "guided": self.jobs.agent(model, work, random_model=True, guided=True),
            },
            work.rounds,
        )
        peers_of = {name: measured[f"trl-{name}"] for name in settings}
        return rows.smollm2_row(measured["ours"], measured["guided"], peers_of)

    def large(self) -> BenchRow:
        """The real shape against TRL."""
        work, shape = self.plan.large, self.plan.large_shape
        *_, folder = self._made(shape, ["Q8_0", "Q4_K_M"], transformers=True)
        prompts = self._prompts(self._file(shape, "Q8_0"), work, None)
        peer = replace(work, warmup=self.plan.peer_warmup, steps=self.plan.peer_steps)
        enough = prompts[: peer.prompts * (peer.warmup + peer.steps)]
        competitors = {
            "Q8_0": self._our_large(),
            "trl-bf16": self.jobs.trl(folder, enough, peer, jobs.BF16, random_model=True),
            "Q8_0-checkpointing": self._our_large(jobs.CHECKPOINTING),
        }
        measured = self.results.alternating("large", competitors, work.rounds)
        ours = {"Q8_0": measured["Q8_0"], "Q8_0 with checkpointing": measured["Q8_0-checkpointing"]}
        return rows.large_row(ours, measured["trl-bf16"], shape)

    def rollout(self) -> BenchRow:
        """Rollouts against the batched bench."""
        program = peers.batched_bench(self.jobs.cache)
        measured = {}
        for load in self.plan.rollouts:
            model = self._bundled() if load.model == BUNDLED else self._random(load.model, "Q8_0")
            width = load.prompts * GROUP_SIZE
            competitors = {
                "ours": self.jobs.rollout(model, load),
                "shared": self.jobs.rollout(model, load, program),
                "alone": self.jobs.rollout(model, load, program, shared=False),
            }
            found = self.results.alternating(f"rollout/{load.model}-{width}", competitors, self.plan.rollout_rounds)
            measured[f"{load.model} Q8_0, {width} rows"] = (found["ours"], found["shared"], found["alone"])
        return rows.rollout_row(measured)

    def floor(self) -> BenchRow:
        """Our steps against the floor, with the machine's speeds measured before and after them."""
        small, public, large, shape = self.plan.small, self.plan.smollm2, self.plan.large, self.plan.large_shape
        models = {BUNDLED: self._bundled(), PUBLIC: _public(), shape: self._random(shape, "Q8_0")}
        self._prompts(models[BUNDLED], small, SOURCE)
        self._prompts(models[PUBLIC], public, WORD_PROBLEMS)
        self._prompts(models[shape], large, None)

        def speed(when: str) -> dict[str, Any]:
            return self.results.measure(f"floor/{when}", self.jobs.speed(models, self.plan.speed_s))

        speeds = [speed("before")]
        ours = self.results.alternating("small", {"ours": self._our_small()}, small.rounds)["ours"]
        ours_public = self.results.alternating("smollm2", {"ours": self._our_public()}, public.rounds)["ours"]
        ours_large = self.results.alternating("large", {"Q8_0": self._our_large()}, large.rounds)["Q8_0"]
        speeds.append(speed("after"))
        steps = {
            f"{BUNDLED}, {small.prompts} prompts x {GROUP_SIZE}": (ours, BUNDLED, _most_rows(models[BUNDLED], small), 2.0),
            f"SmolLM2-135M, {public.prompts} prompts x {GROUP_SIZE}": (ours_public, PUBLIC, public.prompts * GROUP_SIZE, 2.0),
            f"{shape} Q8_0, {large.prompts} prompts x {GROUP_SIZE}": (ours_large, shape, large.prompts * GROUP_SIZE, 1.8),
        }
        return rows.floor_row(speeds, steps)

    def memory(self) -> BenchRow:
        """One process that does everything, at every shape, weights streamed: with settings for little memory, and with our defaults."""
        work, measured = self.plan.memory, dict[str, dict[str, dict[str, Any]]]()
        settings: dict[str, Mapping[str, Any]] = {"lean": jobs.LEAN, "default": {}}
        for shape in self.plan.memory_shapes:
            model = self._random(shape, "Q4_K_M")
            self._prompts(model, work, None)
            for name, learning in settings.items():
                part = self.jobs.agent(
                    model,
                    work,
                    random_model=True,
                    weights="streamed",
                    serve=True,
                    learning=learning,
                    gate={"enabled": True, "anchors": 2},
                    lean=name == "lean",
                )
                found = self.results.measure(f"memory/{shape}-q4_k_m-{name}", part)
                measured.setdefault(shape, {})[f"Q4_K_M, {name}"] = found
        return rows.memory_row(measured)

    # -- parts of rows ---------------------------------------------------------------------------------------------------------------

    def _our_small(self, cloud: Literal["bundled", "answering"] = "answering") -> MeasuredPart:
        return self.jobs.agent(self._bundled(), self.plan.small, random_model=False, cloud=cloud)

    def _our_public(self) -> MeasuredPart:
        return self.jobs.agent(_public(), self.plan.smollm2, random_model=True)

    def _our_large(self, learning: Mapping[str, Any] | None = None) -> MeasuredPart:
        model = self._random(self.plan.large_shape, "Q8_0")
        return self.jobs.agent(model, self.plan.large, random_model=True, learning=learning)

    def _prompts(self, model: Path, work: Workload, source: str | None) -> list[dict[str, Any]]:
        wanted = max(work.prompts * (work.warmup + work.steps), work.prompts * 2)
        part = self.jobs.prompts(model, work, source, wanted)
        found: list[dict[str, Any]] = self.results.measure(f"prompts/{self.jobs.items(model, work).stem}", part)["prompts"]
        return found

    def _made(self, shape: str, kinds: list[str], *, transformers: bool = False) -> list[Path]:
        part = self.jobs.model_files(shape, kinds, transformers, self._bundled() if shape == BUNDLED else None)
        key = f"models/{shape}-{'-'.join(kinds).lower()}{'-transformers' if transformers else ''}"
        return [Path(file) for file in self.results.measure(key, part)["files"]]

    def _random(self, shape: str, kind: str) -> Path:
        """A random model's file; all its quantisations are made in one process."""
        self._made(shape, ["Q8_0", "Q4_K_M"])
        return self._file(shape, kind)

    def _file(self, shape: str, kind: str) -> Path:
        return gguf_file(self.jobs.models, shape, kind)

    @staticmethod
    def _bundled() -> Path:
        return bundled_models() / f"{BUNDLED}.gguf"


def _public() -> Path:
    """The public model's file. Raises EdgeError where the package that ships it is not installed."""
    return find_model(PUBLIC)


def _most_rows(model: Path, work: Workload) -> int:
    """Rows that rollouts may fill together by default."""
    from edge.inference.batched import rows_that_fit
    from edge.models.gguf_reader import open_gguf
    from edge.sizing import model_shape

    return rows_that_fit(
        model_shape(model).kv_bytes_per_token * min(work.context_tokens, open_gguf(model).decoder_spec().context_length)
    )


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench table", description="The table of goals, measured in one run.")
    harness.add_options(parser, ROWS)
    parser.add_argument("--quick", action="store_true", help="one round, few steps")
    parser.add_argument(
        "--threads", type=positive, default=usable_cores(), help="threads of every competitor (default: %(default)s)"
    )
    parser.add_argument("--cache", type=Path, default=harness.CACHE, help="folder for models and peers (default: runs/bench)")
    return parser.parse_args(arguments)


def plan_of(given: argparse.Namespace) -> TablePlan:
    """The size asked for, with the rounds asked for."""
    plan = QUICK if given.quick else FULL
    if given.rounds is None:
        return plan
    small, smollm2, large = (replace(work, rounds=given.rounds) for work in (plan.small, plan.smollm2, plan.large))
    return replace(plan, small=small, smollm2=smollm2, large=large, rollout_rounds=given.rounds)


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    plan, cache = plan_of(given), given.cache.resolve()
    check_folder(cache, "--cache")
    run = harness.Run(given, "table", plan.size, ROWS)
    print("\n".join(beginning(plan, run.names, cache)), file=sys.stderr)
    bench = TableBench(plan, jobs.Jobs(cache, run.out, given.threads), run.results)
    return run.report(bench, harness.describe_machine(), threads=given.threads)


def beginning(plan: TablePlan, names: Sequence[str], cache: Path) -> list[str]:
    """What is made first, and about how long that and the measuring take."""
    lasts = "half an hour or less" if plan.size == "quick" else "the better part of an hour"
    lines = [f"measuring {', '.join(names)} at size {plan.size}: {lasts} on two cores"]
    if "rollout" in names and not peers.program_of(cache).exists():
        lines.append(f"first llama-batched-bench of llama.cpp is built in {cache}: 5 to 15 minutes, once, over the network")
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `harness.command`."""
    return harness.command(lambda: measure(parse(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    sys.exit(main())

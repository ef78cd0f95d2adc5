"""`python -m tools.bench table`: the table of goals, measured side by side in one run.

Every figure comes from a process of its own; results lie in the folder `--out`, one file a process, and a run that was cut goes on where it
stopped. Ends with 1 when a goal is missed, so that a machine can watch it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from edge.app import bundled_models
from edge.core.machine import usable_cores
from tools.bench import harness
from tools.bench.harness import Part, Results, Row, Screen, commit
from tools.bench.table import jobs, peers, rows
from tools.bench.table.models import gguf_file
from tools.bench.table.plan import FULL, GROUP_SIZE, QUICK, ROWS, TINY, Plan, Workload

BUNDLED = "nano-edge"
SOURCE = "practice:group1"
PEER_SETTINGS: Mapping[str, tuple[Mapping[str, Any], bool]] = {
    "fp32": (jobs.FP32, False),
    "defaults": (jobs.DEFAULTS, False),
    "tuned": (jobs.FP32, True),
}
"""TRL's settings, and whether it gets our allocator settings."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Measures rows. `threads` is what every competitor gets. Peers are made in the cache folder when a row first needs them."""

    plan: Plan
    places: jobs.Places
    results: Results
    screen: Screen
    threads: int

    def row(self, name: str) -> Row:
        """One row by name. Raises EdgeError when something cannot be measured."""
        measure: Callable[[], Row] = getattr(self, name)
        return measure()

    def small(self) -> Row:
        """The bundled model against TRL."""
        work, model = self.plan.small, self._bundled()
        folder = self._made(BUNDLED, [], transformers=True)[-1]
        prompts = self._prompts(model, work, SOURCE)
        python = peers.trl_python(self.places.cache, self.screen)
        competitors = {
            "ours": lambda key: self._our_small(key),
            "ours-bundled-cloud": lambda key: self._our_small(key, cloud="bundled"),
        }
        for name, (setting, tuned) in PEER_SETTINGS.items():
            competitors[name] = lambda key, setting=setting, tuned=tuned: jobs.trl_part(  # type: ignore[misc]
                self.places,
                key.replace("small/", "small/trl-"),
                python,
                folder,
                prompts,
                work,
                self.threads,
                setting,
                random_model=False,
                tuned_allocator=tuned,
            )
        measured = self.results.alternating("small", competitors, work.rounds)
        ours, with_cloud = measured.pop("ours"), measured.pop("ours-bundled-cloud")
        row = rows.small_row(ours, with_cloud, measured)
        return self._profiled(row, model, work, random_model=False)

    def large(self) -> Row:
        """The real shape against TRL."""
        work, shape = self.plan.large, self.plan.large_shape
        *_, folder = self._made(shape, ["Q8_0", "Q4_K_M"], transformers=True)
        prompts = self._prompts(self._file(shape, "Q8_0"), work, None)
        peer = replace(work, warmup=self.plan.peer_warmup, steps=self.plan.peer_steps)
        python = peers.trl_python(self.places.cache, self.screen)
        enough = prompts[: peer.prompts * (peer.warmup + peer.steps)]
        competitors = {
            "Q8_0": lambda key: self._our_large(key, "Q8_0"),
            "trl-bf16": lambda key: jobs.trl_part(
                self.places, key, python, folder, enough, peer, self.threads, jobs.BF16, random_model=True
            ),
            "Q8_0-checkpointing": lambda key: self._our_large(key, "Q8_0", jobs.CHECKPOINTING),
        }
        measured = self.results.alternating("large", competitors, work.rounds)
        ours = {"Q8_0": measured["Q8_0"], "Q8_0 with checkpointing": measured["Q8_0-checkpointing"]}
        row = rows.large_row(ours, measured["trl-bf16"], shape)
        return self._profiled(row, self._file(shape, "Q8_0"), work, random_model=True)

    def rollout(self) -> Row:
        """Rollouts against the batched bench."""
        program = peers.batched_bench(self.places.cache, self.screen)
        measured = {}
        for load in self.plan.rollouts:
            model = self._bundled() if load.model == BUNDLED else self._random(load.model, "Q8_0")
            width = load.prompts * GROUP_SIZE
            competitors = {
                "ours": lambda key, model=model, load=load: jobs.rollout_part(key, model, load, self.threads),
                "peer": lambda key, model=model, load=load: jobs.batched_part(key, program, model, load, self.threads),
            }
            found = self.results.alternating(f"rollout/{load.model}-{width}", competitors, self.plan.rollout_rounds)
            measured[f"{load.model} Q8_0, {width} rows"] = (found["ours"], found["peer"])
        return rows.rollout_row(measured)

    def floor(self) -> Row:
        """Our steps against the floor, with the machine's speeds measured before and after them."""
        shape = self.plan.large_shape
        models = {BUNDLED: self._bundled(), shape: self._random(shape, "Q8_0")}
        self._prompts(models[BUNDLED], self.plan.small, SOURCE)
        self._prompts(models[shape], self.plan.large, None)
        speeds = [self._speed("before", models)]
        small = [self.results.measure(self._our_small(f"small/ours/{number}")) for number in _rounds(self.plan.small)]
        large = [self.results.measure(self._our_large(f"large/Q8_0/{number}", "Q8_0")) for number in _rounds(self.plan.large)]
        speeds.append(self._speed("after", models))
        small_work, large_work = self.plan.small, self.plan.large
        steps = {
            f"{BUNDLED}, {small_work.prompts} prompts x {GROUP_SIZE}": (small, BUNDLED, _most_rows(models[BUNDLED], small_work)),
            f"{shape} Q8_0, {large_work.prompts} prompts x {GROUP_SIZE}": (large, shape, large_work.prompts * GROUP_SIZE),
        }
        row = rows.floor_row(speeds, steps)
        row = self._profiled(row, models[BUNDLED], small_work, random_model=False)
        return self._profiled(row, models[shape], large_work, random_model=True)

    def memory(self) -> Row:
        """One process that does everything, at every shape, weights streamed: with settings for little memory, and with our defaults."""
        settings: tuple[tuple[str, str, Mapping[str, Any]], ...] = (
            ("Q4_K_M", "lean", jobs.LEAN),
            ("Q4_K_M", "default", {}),
        )
        measured: dict[str, dict[str, dict[str, Any]]] = {}
        for shape in self.plan.memory_shapes:
            for kind, name, learning in settings:
                part = self._memory_part(shape, kind, name, learning)
                measured.setdefault(shape, {})[f"{kind}, {name}"] = self.results.measure(part)
        return rows.memory_row(measured)

    def _memory_part(self, shape: str, kind: str, name: str, learning: Mapping[str, Any]) -> Part:
        model, work, key = self._random(shape, kind), self.plan.memory, f"memory/{shape}-{kind.lower()}-{name}"
        self._prompts(model, work, None)
        return jobs.agent_part(
            self.places,
            key,
            model,
            work,
            self.threads,
            random_model=True,
            weights="streamed",
            serve=True,
            learning=learning,
            gate={"enabled": True, "anchors": 2},
            lean=name == "lean",
        )

    def mismatch(self) -> Row:
        """The bundled model in several quantisations, and the real shape."""
        bundled, measured = self._bundled(), {}
        four_bit = dict(zip(("Q4_0", "Q4_K_M"), self._made(BUNDLED, ["Q4_0", "Q4_K_M"], transformers=False), strict=True))
        self._prompts(bundled, self.plan.small, SOURCE)
        items = self.places.items(bundled, self.plan.small)
        for kind in ("Q8_0", "Q4_0", "Q4_K_M"):
            model = four_bit.get(kind, bundled)
            original = None if kind == "Q8_0" else bundled
            measured[f"{BUNDLED} {kind}"] = self._mismatch(f"nano-{kind.lower()}", model, original, items, 110, random=False)
        shape = self.plan.large_shape
        self._made(shape, ["F16", "Q8_0", "Q4_K_M"], transformers=False)
        original, work = self._file(shape, "F16"), self.plan.large
        for kind in ("Q8_0", "Q4_K_M"):
            model = self._file(shape, kind)
            self._prompts(model, work, None)
            key, tokens = f"{shape}-{kind.lower()}", self.plan.mismatch_tokens
            measured[f"{shape} {kind}"] = self._mismatch(
                key, model, original, self.places.items(model, work), tokens, random=True
            )
        return rows.mismatch_row(measured)

    def install(self) -> Row:
        """From a clean checkout to a learned step."""
        return rows.install_row(self.results.measure(jobs.install_part(self.places, commit())), usable_cores())

    def _profiled(self, row: Row, model: Path, work: Workload, *, random_model: bool) -> Row:
        """The row; where a goal is missed, with where our time goes, from a process of its own whose stacks are watched."""
        if not row.missed:
            return row
        key = f"profile/{model.stem}"
        part = jobs.agent_part(self.places, key, model, work, self.threads, random_model=random_model, profile=True)
        where = (f"{model.stem}: {entry}" for entry in rows.where_profile(self.results.measure(part)))
        row.profile = (*row.profile, *where)
        return row

    # -- parts of rows ---------------------------------------------------------------------------------------------------------------

    def _our_small(self, key: str, cloud: Literal["bundled", "answering"] = "answering") -> Part:
        return jobs.agent_part(self.places, key, self._bundled(), self.plan.small, self.threads, random_model=False, cloud=cloud)

    def _our_large(self, key: str, kind: str, learning: Mapping[str, Any] | None = None) -> Part:
        model = self._random(self.plan.large_shape, kind)
        self._prompts(model, self.plan.large, None)
        return jobs.agent_part(self.places, key, model, self.plan.large, self.threads, random_model=True, learning=learning)

    def _speed(self, when: str, models: Mapping[str, Path]) -> dict[str, Any]:
        return self.results.measure(jobs.speed_part(f"floor/{when}", models, self.threads, self.plan.speed_s))

    def _mismatch(
        self, key: str, model: Path, original: Path | None, items: Path, tokens: int, *, random: bool
    ) -> dict[str, Any]:
        context = self.plan.large.context_tokens if random else self.plan.small.context_tokens
        prompts = self.plan.mismatch_prompts if random else max(self.plan.mismatch_prompts, self.plan.small.prompts)
        part = jobs.mismatch_part(
            f"mismatch/{key}",
            model,
            original,
            items,
            prompts=prompts,
            tokens=tokens,
            context=context,
            threads=self.threads,
            random=random,
        )
        return self.results.measure(part)

    def _prompts(self, model: Path, work: Workload, source: str | None) -> list[dict[str, Any]]:
        wanted = max(work.prompts * (work.warmup + work.steps), work.prompts * 2)
        found: list[dict[str, Any]] = self.results.measure(jobs.prompts_part(self.places, model, work, source, wanted))["prompts"]
        return found

    def _made(self, shape: str, kinds: Sequence[str], *, transformers: bool) -> list[Path]:
        source = self._bundled() if shape == BUNDLED else None
        part = jobs.models_part(self.places, shape, list(kinds), transformers, source)
        return [Path(file) for file in self.results.measure(part)["files"]]

    def _random(self, shape: str, kind: str) -> Path:
        """A random model's file; all its quantisations are made at once."""
        self._made(shape, ["Q8_0", "Q4_K_M"], transformers=False)
        return self._file(shape, kind)

    def _file(self, shape: str, kind: str) -> Path:
        return gguf_file(self.places.models, shape, kind)

    @staticmethod
    def _bundled() -> Path:
        return bundled_models() / f"{BUNDLED}.gguf"


def _rounds(work: Workload) -> range:
    return range(1, work.rounds + 1)


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
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--quick", action="store_true", help="one round, few steps")
    size.add_argument("--tiny", action="store_true", help="tries the bench out; the figures mean nothing")
    parser.add_argument("--threads", type=int, default=usable_cores(), help="threads of every competitor (default: %(default)s)")
    parser.add_argument("--cache", type=Path, default=harness.CACHE, help="folder for models and peers (default: runs/bench)")
    return parser.parse_args(arguments)


def plan_of(given: argparse.Namespace) -> Plan:
    """The size asked for, with the rounds asked for. Raises UsageError."""
    plan = TINY if given.tiny else QUICK if given.quick else FULL
    small, large = (replace(work, rounds=harness.rounds_of(given, work.rounds)) for work in (plan.small, plan.large))
    return replace(plan, small=small, large=large, rollout_rounds=harness.rounds_of(given, plan.rollout_rounds))


def measure(given: argparse.Namespace) -> int:
    """Measure the rows and write the report; 1 when a goal is missed. Raises EdgeError."""
    plan, cache = plan_of(given), given.cache.resolve()
    run = harness.Run(given, "table", plan.size, ROWS)
    print("\n".join(beginning(plan, run.names, cache)), file=sys.stderr)
    bench = Bench(plan, jobs.Places(cache, run.out), run.results, run.screen, given.threads)
    nothing = " A try of the bench itself at sizes that mean nothing." if plan.size == "tiny" else ""
    return run.report(bench.row, harness.describe_machine(), nothing, threads=given.threads)


def beginning(plan: Plan, names: Sequence[str], cache: Path) -> list[str]:
    """What is going to be made first, and about how long that and the measuring take."""
    missing = peers.missing(cache)
    lasts = {"tiny": "some minutes", "quick": "half an hour or less"}.get(plan.size, "the better part of an hour")
    lines = [f"measuring {', '.join(names)} at size {plan.size}: {lasts} on two cores"]
    if missing:
        lines.append(
            f"first, where a row needs it, {' and '.join(missing)} are built in {cache}: 5 to 15 minutes, once, over the network"
        )
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; see `harness.command`."""
    return harness.command(lambda: measure(parse(sys.argv[1:] if arguments is None else arguments)))


if __name__ == "__main__":
    sys.exit(main())

"""`python -m tools.simulate validate`: is the simulated device the real one?

The machine is measured as `edge-agent doctor --write-profile` does, the real agent answers a stream and learns, and the same is played in
virtual time with the profile just written. What the simulation knows of times comes from the profile and from calibrations on other
questions, never from the run itself.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from edge.app.settings import model_file
from edge.cli.measure import EngineRates, MachineMeasures, engine_rates, measure
from edge.config.agent import resolve_agent_config
from edge.config.device import DecodeRate, DeviceConfig
from edge.config.device_profile import profile_text, write_profile
from edge.config.schema import AgentConfig
from edge.core.clock import SystemClock
from edge.core.errors import UsageError
from edge.core.machine import usable_cores
from tools.places import check_folder, put_json, read_json
from tools.simulate.fleet.profiles import load_device
from tools.simulate.validation.comparison import GOAL, Row, compare, dual_distance, goal_is_met, table
from tools.simulate.validation.fitting import CloudPace, LocalPace, cloud_pace, fit_mind, local_pace
from tools.simulate.validation.real import Known, Measured, Plan, known_of, make_plan, measured_run, with_cloud_tokens
from tools.simulate.validation.replay import Lessons, Replay, replayed_steps, replayed_stream
from tools.simulate.validation.seen import Run, Taken

FORMAT = 1
_MOST_PROMPTS = 256
"""Practice prompts on which the bare model is sampled, at the most."""
_MOST_MINUTES, _MOST_QUESTIONS = 240.0, 20_000
_SOCKET = {"name": "socket on the same machine", "rtt_ms": 0, "up_mbit_per_s": 1e6, "down_mbit_per_s": 1e6}
"""The calibrated calls have its time in them."""
_OWN_LOAD = 1.5
"""Load that the run itself leaves behind."""
ReportStage = Callable[[str], None]


def add_command(commands: Any) -> None:
    """The subcommand, for argparse's subparsers."""
    command = commands.add_parser("validate", help="the simulated device against this machine: latencies, rate, λ")
    command.add_argument("--minutes", type=float, default=2.0, help="about how long the stream of questions lasts (default 2)")
    command.add_argument("--questions", type=int, default=240, help="how many there are (default 240)")
    command.add_argument("--steps", type=int, default=30, help="learning steps after it (default 30; 0: none)")
    command.add_argument("--dial", type=float, default=0.3, help="budget dial τ of the stream (default 0.3)")
    command.add_argument("--seed", type=int, default=1, help="of questions, times and the simulation (default 1)")
    command.add_argument(
        "--out", type=Path, default=Path("runs/validation"), metavar="FOLDER", help="for all that is written (runs/validation)"
    )
    command.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", dest="sets", help="a setting of the agent")
    command.add_argument(
        "--again", type=Path, metavar="validation.json", help="simulate and compare again what an earlier validation measured"
    )
    command.add_argument("--strict", action="store_true", help="end with 1 where the goal is missed")
    command.set_defaults(play=validate)


@dataclass(frozen=True, slots=True)
class Archive:
    """A validation in one file: all that was measured on one machine, from which it can be simulated again on any other, and what came of
    it. `device`: its measured speeds, as a profile has them."""

    format: int
    dial: float | None
    arrivals_s: tuple[float, ...]
    lessons: Lessons
    load: tuple[float, float]
    device: dict[str, Any]
    known: Known
    measured: Measured
    result: dict[str, Any] = field(default_factory=dict)


def validate(chosen: argparse.Namespace) -> int:
    """Measure, run, simulate, compare; 0, or with --strict 1 where the goal is missed. Raises EdgeError for what cannot be run."""
    _check(chosen)
    check_folder(chosen.out, "--out")
    archive = read_archive(chosen.again) if chosen.again is not None else _measured(chosen)
    chosen.out.mkdir(parents=True, exist_ok=True)
    replayed = simulate(archive, chosen.out, _print_stage)
    real = archive.measured.run
    rows, distance = compare(real, replayed.run), dual_distance(real.steps, replayed.run.steps)
    archive = replace(archive, result=_result(rows, distance, archive, replayed))
    put_json(archive, chosen.out / "validation.json")
    written = f"written to {chosen.out}: validation.json, profile.yaml"
    print("\n".join([*table(rows), *_remarks(rows, distance, archive), written]))
    return int(chosen.strict and not goal_is_met(rows))


def _measured(chosen: argparse.Namespace) -> Archive:
    """The device before and after the run, of both the faster: what else a machine does makes a measurement slower, never faster."""
    plan = make_plan(chosen.questions, chosen.minutes, chosen.dial, chosen.steps, chosen.seed)
    load = _load()
    with tempfile.TemporaryDirectory(prefix="validate-") as state:
        config = config_for(Path(state), [f"learning.seed={chosen.seed}", *chosen.sets])
        before = measure(config, lambda stage: _print_stage(f"measuring {stage}"))
        known = asyncio.run(known_of(config, plan, _MOST_PROMPTS, _print_stage))
        measured = asyncio.run(measured_run(config, plan, _print_stage))
        model = model_file(config.model.path)
        after = asyncio.run(engine_rates(config, model, lambda stage: _print_stage(f"again: {stage}"), SystemClock()))
    return archive_of(faster(before, after), known, measured, plan, config, (load, _load()))


def archive_of(
    device: DeviceConfig, known: Known, measured: Measured, plan: Plan, config: AgentConfig, load: tuple[float, float]
) -> Archive:
    """What was measured; `load`: the machine's before and after."""
    speeds = device.model_dump(mode="json", exclude_none=True)
    return Archive(FORMAT, plan.dial, plan.arrivals_s, _lessons(plan, config), load, speeds, known, measured)


def read_archive(path: Path) -> Archive:
    """An earlier validation. Raises UsageError for a file that is none."""
    return read_json(path, Archive, FORMAT, hint="give the validation.json of an earlier run, or measure again without --again")


def _check(chosen: argparse.Namespace) -> None:
    """Raises UsageError."""
    if not 0.0 < chosen.minutes <= _MOST_MINUTES:
        raise UsageError(f"--minutes {chosen.minutes:g}: give more than 0, at most {_MOST_MINUTES:g}")
    if not 8 <= chosen.questions <= _MOST_QUESTIONS:
        raise UsageError(f"--questions {chosen.questions}: give 8 to {_MOST_QUESTIONS}")
    if chosen.steps < 0 or chosen.seed < 0:
        raise UsageError("--steps and --seed are whole numbers from 0 on")
    if not 0.0 <= chosen.dial <= 1.0:
        raise UsageError(f"--dial {chosen.dial:g}: give a share from 0 to 1")


def config_for(state: Path, sets: Sequence[str] = ()) -> AgentConfig:
    """An agent of its own, which learns without a gate, on one thread unless the settings say otherwise; known devices' profiles are left
    out. Raises ConfigError."""
    own = [f"state_folder={state}", "engine.threads=1", "learning.prompts_per_step=4", "gate.enabled=false"]
    return resolve_agent_config(sets=[*own, *sets]).config


# -- measuring --------------------------------------------------------------------------------------------------------------------------


def faster(before: MachineMeasures, after: EngineRates) -> DeviceConfig:
    """The device's row of speeds with the better of two measurements of each number."""
    device = before.device
    (row,) = device.speeds
    decode = {rate.rows: rate.tokens_per_s for rate in row.decode}
    for rows, tokens_per_s in after.decode_tokens_per_s.items():
        decode[rows] = max(decode.get(rows, 0.0), tokens_per_s)
    rates = tuple(DecodeRate(rows=rows, tokens_per_s=_rounded(decode[rows])) for rows in sorted(decode))
    prefill = max(row.prefill_tokens_per_s or 0.0, after.prefill_tokens_per_s)
    better = row.model_copy(update={"decode": rates, "prefill_tokens_per_s": _rounded(prefill)})
    return device.model_copy(update={"speeds": (better,), "decode": rates, "prefill_tokens_per_s": _rounded(prefill)})


# -- simulating ---------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Simulated:
    """The simulated run and what it was made from."""

    run: Run
    local: LocalPace
    cloud: CloudPace
    mind: dict[str, Any] | None


def simulate(archive: Archive, out: Path, report_stage: ReportStage) -> Simulated:
    """Write profile and link to `out`, and play stream and steps with them."""
    device, measured, lessons = DeviceConfig.model_validate(archive.device), archive.measured, archive.lessons
    profile, link = out / "profile.yaml", out / "link.yaml"
    link.write_text(yaml.safe_dump({"link": _SOCKET}, sort_keys=False), encoding="utf-8")
    write_profile(profile, profile_text(device, {}))
    local, cloud = local_pace(load_device(str(profile)), measured.local), cloud_pace(measured.cloud)
    write_profile(profile, profile_text(_with_overheads(device, local), {}, _busy_note(archive.load[0])))
    usual = round(median(timed.tokens for timed in measured.cloud))
    facts = with_cloud_tokens(archive.known.facts, measured.cloud_tokens, usual)
    replay = Replay(archive.arrivals_s, facts, local, cloud, lessons.seed)
    report_stage("simulating the stream")
    with tempfile.TemporaryDirectory(prefix="validate-") as folder:
        answers = replayed_stream(replay, profile, link, archive.dial, Path(folder))
    steps: tuple[Taken, ...] = ()
    mind = None
    if lessons.steps:
        report_stage("simulating the learning steps")
        fitted = fit_mind(archive.known.prompts)
        with tempfile.TemporaryDirectory(prefix="validate-") as folder:
            steps = replayed_steps(lessons, fitted, cloud, profile, link, Path(folder))
        mind = {"theta": fitted.mind.model_dump(), "nature": fitted.nature.model_dump(), "prompts": len(fitted.prompts)}
    return Simulated(Run(answers, steps), local, cloud, mind)


def _with_overheads(device: DeviceConfig, pace: LocalPace) -> DeviceConfig:
    (row,) = device.speeds
    overheads = {
        "answer_overhead_s": _rounded(pace.overhead_s),
        "token_overhead_s": _rounded(pace.token_overhead_s),
        "token_growth_s": _rounded(pace.token_growth_s),
    }
    return device.model_copy(update={"speeds": (row.model_copy(update=overheads),)})


def _lessons(plan: Plan, config: AgentConfig) -> Lessons:
    learning = config.learning
    terms = {
        "target_rate": config.phases[0].target_rate,
        "dual_init": learning.control.dual_init,
        "dual_lr": learning.control.dual_rule.lr,
        "dual_proportional": learning.control.dual_rule.proportional,
        "dual_window": learning.control.dual_rule.window,
        "dual_ceiling": learning.control.dual_ceiling,
        "step_credit_kappa": config.coordinator.embedded.step_credit_kappa,
    }
    return Lessons(plan.steps, learning.prompts_per_step, learning.group_size, terms, plan.seed)


# -- telling ------------------------------------------------------------------------------------------------------------------------------


def _remarks(rows: Sequence[Row], distance: float | None, archive: Archive) -> list[str]:
    judged = [row for row in rows if row.met is not None]
    met = sum(bool(row.met) for row in judged)
    lines = [f"goal (p50 and p95 within {GOAL:.0%}): {met} of {len(judged)} numbers meet it"]
    if distance is not None:
        lines.append(f"λ: mean absolute difference {distance:.4f} over {len(archive.measured.run.steps)} steps")
    if differing := _differing(archive.known, archive.measured):
        lines.append(
            f"{differing} of {len(archive.known.facts)} questions had another length or log-odds in the run than before it"
        )
    before, after = archive.load
    if _busy_note(max(before, after - _OWN_LOAD)):
        lines.append(f"the machine was busy (load {before:.1f} before and {after:.1f} after): measure again when it is quiet")
    return lines


def _differing(known: Known, measured: Measured) -> int:
    """Questions whose facts did not hold in the run: a sign that replaying them is not fair."""
    pairs = zip(known.facts, measured.run.answers, strict=True)
    return sum(each.local_tokens != (facts.asking_tokens if each.asked else facts.local_tokens) for facts, each in pairs)


def _result(rows: Sequence[Row], distance: float | None, archive: Archive, replayed: Simulated) -> dict[str, Any]:
    local, cloud = replayed.local, replayed.cloud
    return {
        "goal": GOAL,
        "goal_met": goal_is_met(rows),
        "rows": [row.to_json() for row in rows],
        "dual_mean_absolute_difference": distance,
        "fitted": {
            "answer_overhead_s": local.overhead_s,
            "token_overhead_s": local.token_overhead_s,
            "token_growth_s": local.token_growth_s,
            "cloud_first_token_s": cloud.first_token_s,
            "cloud_tokens_per_s": cloud.tokens_per_s,
            "mind": replayed.mind,
        },
        "simulated": asdict(replayed.run),
    }


def _busy_note(load: float) -> str:
    """Why what is measured at such a load of others may be wrong, or ""."""
    return f"measured while the machine was busy (load {load:.1f})" if load > usable_cores() / 2 else ""


def _load() -> float:
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0


def _rounded(value: float) -> float:
    """To four digits: more is noise."""
    return float(f"{value:.4g}")


def _print_stage(line: str) -> None:
    print(line, file=sys.stderr, flush=True)

"""`python -m tools.simulate sweep`: which runs there are, that finished ones are kept, and what is reported."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from edge.core.errors import UsageError
from tests.simulate import fake_fleet
from tests.worlds.fleet import group
from tools.simulate.reports.result import SimulationResult
from tools.simulate.sweeps import engines
from tools.simulate.sweeps.command import sweep
from tools.simulate.sweeps.engines import Failed, Finished, kept, play_all
from tools.simulate.sweeps.plan import SweepRun, Variation, runs_of

PLAYER = "tests.simulate.fake_fleet:run_scenario"
ROOT = Path(__file__).resolve().parents[2]
SCENARIO: dict[str, Any] = {
    "seed": 5,
    "groups": [group("laptops", questions_per_day=10), group("phones", questions_per_day=30)],
}


def varied(*texts: str, seeds: int = 1, **orders: Any) -> list[SweepRun]:
    return runs_of({**SCENARIO, "about": json.dumps(orders)}, [Variation.of(text) for text in texts], seeds)


class InThisProcess:
    """Plays fakes at once; `played` are the seeds and settings, `most` how many it had at the same time."""

    at_once = 4

    def __init__(self) -> None:
        self.played: list[SweepRun] = []
        self._now = self.most = 0

    async def play(self, run: SweepRun, out: Path) -> None:
        self._now += 1
        self.most = max(self.most, self._now)
        await asyncio.sleep(0)
        self._now -= 1
        self.played.append(run)
        try:
            out.write_bytes(fake_fleet.run_scenario(run.scenario, run.seed).to_json())
        except UsageError as error:
            raise engines.RunFailed(str(error)) from error


def ignored(end: Finished | Failed) -> None:
    """Nobody reads it."""


# which runs there are ---------------------------------------------------------------------------------------------------------------


def test_every_combination_is_run_with_every_seed_from_the_scenarios_own_on() -> None:
    runs = varied("groups.laptops.questions_per_day=10,30", "coordinator.tasks.math.target_rate=0.1,0.3", seeds=2)
    assert [run.seed for run in runs] == [5, 6] * 4
    assert [run.scenario["groups"][0]["questions_per_day"] for run in runs] == [10] * 4 + [30] * 4
    assert runs[2].scenario["coordinator"] == {"tasks": {"math": {"target_rate": 0.3}}}
    assert runs[0].label == "questions_per_day=10 target_rate=0.1 seed=5"
    assert len({run.file_name for run in runs}) == 8
    assert "coordinator" not in SCENARIO


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["lasts_h="], "names no key with values"),
        (["lasts_h=[1"], "the values cannot be read"),
        (["lasts_h=1,2,1"], "has a value twice"),
        (["groups.laptop.dial=0.1"], "nothing is called 'laptop'"),
        (["groups.laptops=1"], "names a whole entry of a list"),
        (["about.x=1"], "there is nothing under 'x'"),
        (["lasts_h=1", "lasts_h=2"], "names the same key twice"),
        (["seed=1,2"], "seed is varied with --seeds"),
    ],
)
def test_a_variation_that_cannot_be_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=says.replace("[", r"\[")):
        varied(*texts)


# playing them -----------------------------------------------------------------------------------------------------------------------


async def test_so_many_runs_at_once_are_kept_and_what_cannot_be_read_is_made_again(tmp_path: Path) -> None:
    runs, first, again = varied("groups.*.questions_per_day=10,20,30,40,50"), InThisProcess(), InThisProcess()
    await play_all([runs[0], *runs[3:], runs[1]], tmp_path, first, 2, ignored)
    assert first.most == 2
    (tmp_path / runs[1].file_name).write_bytes(b'{"format": 1')
    ends = await play_all(runs, tmp_path, again, 2, ignored)
    assert [run.settings for run in again.played] == [runs[1].settings, runs[2].settings]
    assert all(isinstance(end, Finished) for end in ends)
    assert [end.run for end in ends] == runs


async def test_a_process_plays_a_run_and_its_failure_is_one_line(tmp_path: Path) -> None:
    engine = engines.ProcessEngine(PLAYER)
    good, refused, crashed = (varied("groups.*.dial=0.1", **what)[0] for what in ({}, {"fail": 5}, {"crash": 5}))
    await engine.play(good, tmp_path / good.file_name)
    found = kept(tmp_path, good)
    assert found is not None and found.result == fake_fleet.run_scenario(good.scenario, 5)
    for run, says in ((refused, "seed 5 is to fail; try another one"), (crashed, "RuntimeError: nobody foresaw this")):
        with pytest.raises(engines.RunFailed) as failure:
            await engine.play(run, tmp_path / run.file_name)
        assert str(failure.value) == says
    assert [each.name for each in tmp_path.iterdir()] == [good.file_name]


# the command ------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scenario(tmp_path: Path) -> Callable[..., Path]:
    def write(assertions: Sequence[Any] = (), **orders: Any) -> Path:
        path = tmp_path / "day.yaml"
        path.write_text(yaml.safe_dump({**SCENARIO, "about": json.dumps(orders), "assertions": [*assertions]}))
        return path

    return write


def chosen(path: Path, out: Path, *vary: str, seeds: int = 1, engine: str = "processes") -> argparse.Namespace:
    return argparse.Namespace(scenario=path, vary=list(vary), seeds=seeds, jobs=2, engine=engine, out=out)


def test_a_sweep_reports_its_results_and_resumes_without_playing_a_run_twice(
    tmp_path: Path, scenario: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = scenario(count=str(tmp_path / "count"), assertions=[{"metric": "p95", "op": "<", "value": 4}]), tmp_path / "out"
    asked = ("groups.*.questions_per_day=10,60",)
    assert sweep(chosen(path, out, *asked), player=PLAYER) == 1
    assert sweep(chosen(path, out, *asked, seeds=2), player=PLAYER) == 1
    assert sorted((tmp_path / "count").read_text().split()) == ["5", "5", "6", "6"]
    said = capsys.readouterr()
    assert "2 of 4 runs are in" in said.err.replace("\n", " ")
    assert "2 of 2" in said.out and "0 of 2" in said.out
    found = json.loads((out / "sweep.json").read_text(encoding="utf-8"))
    assert (found["runs"][0]["settings"], found["runs"][0]["seed"]) == ({"groups.*.questions_per_day": 10}, 5)
    assert [run["holds"] for run in found["runs"]] == [True, True, False, False]
    assert all((out / run["file"]).is_file() for run in found["runs"])
    assert len(found["rows"][1]["figures"]["p95"]) == 2


def test_a_scenario_that_cannot_be_played_is_refused_before_anything_runs(tmp_path: Path, scenario: Callable[..., Path]) -> None:
    with pytest.raises(UsageError, match=r"--vary groups: groups\.0\.dial"):
        sweep(chosen(scenario(count=str(tmp_path / "count")), tmp_path / "out", "groups.*.dial=0.1,2"), player=PLAYER)
    assert not (tmp_path / "count").exists()
    assert not (tmp_path / "out").exists()


async def test_ctrl_c_stops_what_runs_and_keeps_what_is_finished(tmp_path: Path, scenario: Callable[..., Path]) -> None:
    path = scenario(hang=str(tmp_path / "hangs"), hang_at=6)
    script = "import sys\nfrom tests.simulate.test_sweep import interruptible\nsys.exit(interruptible(*sys.argv[1:]))"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", script, str(path), str(tmp_path / "out")),
        cwd=ROOT,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while not ((tmp_path / "hangs").exists() and list((tmp_path / "out").glob("*.json"))) and process.returncode is None:
            await asyncio.sleep(0.02)
        os.killpg(process.pid, signal.SIGINT)
        _, said = await asyncio.wait_for(process.communicate(), 60)
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    assert process.returncode == 130
    assert "finished runs are kept: the same command goes on" in said.decode().replace("\n", " ")
    assert [each.name.partition("-")[0] for each in (tmp_path / "out").iterdir()] == ["dial=0.1_seed=5"]


def interruptible(path: str, out: str) -> int:
    """What the process above runs: as the command does, with a fake in place of the run."""
    try:
        return sweep(chosen(Path(path), Path(out), "groups.*.dial=0.1", seeds=2), player=PLAYER)
    except KeyboardInterrupt:
        return 130


# Ray ---------------------------------------------------------------------------------------------------------------------------------


class FakeRay:
    """Ray at its border: `remote`, awaitable references, `cancel`, `init` and `shutdown`; tasks run in this process."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.said: list[str] = []
        self._hangs = hangs

    def init(self, **settings: Any) -> None:
        self.said.append("init")

    def remote(self, **options: Any) -> Callable[[Callable[..., bytes]], SimpleNamespace]:
        assert options == {"num_cpus": 1, "max_calls": 1, "max_retries": 1}
        return lambda function: SimpleNamespace(remote=lambda *given: asyncio.ensure_future(self._task(function, given)))

    async def _task(self, function: Callable[..., bytes], given: tuple[Any, ...]) -> bytes:
        if self._hangs:
            await asyncio.Event().wait()
        return function(*json.loads(json.dumps(given)))

    def cancel(self, task: asyncio.Future[bytes], *, force: bool) -> None:
        self.said.append(f"cancel force={force}")
        task.cancel()

    def shutdown(self) -> None:
        self.said.append("shutdown")


def test_with_ray_the_same_results_come_and_ray_is_let_go(
    tmp_path: Path, scenario: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    ray = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", ray)
    path = scenario()
    assert sweep(chosen(path, tmp_path / "ray", "groups.*.dial=0.1", engine="ray"), player=PLAYER) == 0
    assert ray.said == ["init", "shutdown"]
    run = varied("groups.*.dial=0.1")[0]
    (file,) = (tmp_path / "ray").glob("dial*.json")
    assert SimulationResult.from_json(file.read_bytes()) == fake_fleet.run_scenario(run.scenario, run.seed)

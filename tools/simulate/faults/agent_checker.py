"""The invariants of an agent: its state folder against the coordinator's journal and the people it answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from edge.budget.dial import HelpDial
from tools.simulate.faults.agent_device import AgentMember, AskedQuestion, Kept
from tools.simulate.faults.duals import Data
from tools.simulate.faults.fold import Fold
from tools.simulate.faults.verdict import WorldVerdict


def check_agent(agent: AgentMember, fold: Fold, verdict: WorldVerdict) -> None:
    """A1 to A10 of an agent, against the folded journal."""
    verdict.check("A8", not agent.failures, f"{agent.name} broke: {agent.failures[:3]}")
    verdict.meet("cut step finished after a crash", any("had been cut" in text for text in agent.notices))
    verdict.meet("learning call refused by the day's budget", any("learning, today's" in text for text in agent.notices))
    verdict.meet("step report refused", any("set aside until" in text for text in agent.notices))
    verdict.meet("learning waited for a task that was taken away", agent.waits_for_task > 0)
    if agent.kept is not None:
        _AgentChecker(agent, agent.kept, fold, verdict).check()


class _AgentChecker:
    def __init__(self, agent: AgentMember, kept: Kept, fold: Fold, verdict: WorldVerdict) -> None:
        self._agent = agent
        self._kept = kept
        self._scenario = agent.around.scenario
        self._fold = fold
        self._verdict = verdict
        calls = {key: call for (device, key), call in fold.calls.items() if device == agent.name}
        self._serving = {key: call for key, call in calls.items() if call.data["step"] < 0}
        self._training = {key: call for key, call in calls.items() if call.data["step"] >= 0}

    def check(self) -> None:
        """All ten."""
        self._questions()
        self._calls()
        for task in self._scenario.tasks:
            closed = {step: body for (*mine, step), body in self._fold.closed.items() if mine == [self._agent.name, task]}
            reports = [closed[step] for step in sorted(closed)]
            self._steps(task, reports)
            self._terms(task, reports)
        waiting = [f"{report.task}#{report.task_step}" for report in self._kept.waiting_reports]
        self._is("A5", not waiting, f"reports wait at the end: {', '.join(waiting[:3])}")
        self._is("A5", not self._kept.unconfirmed, f"calls in doubt at the end: {', '.join(self._kept.unconfirmed[:3])}")
        self._daily_budget()
        if self._kept.dial is not None:
            self._dial(self._kept.dial, self._agent.asked[self._agent.dial_since :])
        self._position()

    def _is(self, invariant: str, holds: bool, story: str) -> None:
        self._verdict.check(invariant, holds, f"{self._agent.name}: {story}")

    def _questions(self) -> None:
        kept, ends = self._kept, {"": "cut by a crash", "left": "left by its person"}
        for one in self._agent.asked:
            self._verdict.meet(f"answer {ends.get(one.end, one.end)}")
            record = kept.records.get(one.id)
            if one.record is not None:
                shown = ("source", "text", "final", "created_at")
                shown_record = one.record.to_json()
                same = record is not None and all(record[name] == shown_record[name] for name in shown)
                short = "missing" if record is None else f"{record['source']} {record['call_state']}"
                self._is("A1", same, f"question {one.id} was answered, its record is {short}")
            self._verdict.meet("record of a call whose reply was lost", one.record is None and record is not None)
        unknown = set(kept.records) - {one.id for one in self._agent.asked}
        self._is("A1", not unknown, f"records of nobody's questions: {sorted(unknown)[:3]}")

    def _calls(self) -> None:
        records = self._kept.records.values()
        by_key = {record["call_key"] for record in records if record["call_key"]}
        for record in records:
            key, call = record["call_key"], self._serving.get(record["call_key"])
            state, charged = ("unknown", 0) if call is None else (call.state, call.charged[2])
            if record["source"] == "cloud":
                self._is("A2", state == "completed", f"{key} was answered by the cloud, its call is {state}")
            same = record["charged_uusd"] == charged
            self._is("A3", same, f"{key} cost {charged} uUSD, its record has {record['charged_uusd']}")
        for asked_for, count in Counter(call.data["prompt_id"] for call in self._serving.values()).items():
            self._is("A2", count == 1, f"question {asked_for} had {count} calls")
        for key, call in self._serving.items():
            known = key in by_key or not call.charged[2]
            self._is("A2", known, f"{key} cost {call.charged[2]} uUSD, and no record knows of it")

    def _steps(self, task: str, reports: Sequence[Data]) -> None:
        mine = [(event, place) for event, place in self._kept.steps if event.task == task]
        self._is("A4", len(mine) == len(reports), f"{len(mine)} steps of {task} were committed, {len(reports)} were reported")
        for number, ((event, place), report) in enumerate(zip(mine, reports, strict=False)):
            step, control = f"{task}#{number}", event.control
            self._verdict.meet("step reported")
            self._verdict.meet("waiting step report delivered", control.offline)
            rate = report["help_units"] / report["total_units"]
            same = abs(rate - control.assist_rate) < 1e-9
            self._is("A4", same, f"{step} had rate {control.assist_rate}, reported was {rate}")
            if not control.offline:
                self._is("A4", place == number, f"{step} was committed as {task}#{place}")
                way = (self._fold.steps[self._agent.name, task, number]["dual"], report["dual_after"])
                own = (control.dual_before.hex(), control.dual_after.hex())
                self._is("A4", way == own, f"{step} took λ from {own[0]} to {own[1]}, by the journal from {way[0]} to {way[1]}")

    def _terms(self, task: str, reports: Sequence[Data]) -> None:
        terms = self._kept.terms[task]
        if terms is None:
            self._is("A10", not reports, f"{len(reports)} steps of {task} are reported, and the agent knows nothing of the task")
            return
        follows = terms.next_step == len(reports)
        self._is("A10", follows, f"{task}#{terms.next_step} comes next, the journal expects {len(reports)}")
        if reports and self._scenario.terms.tasks[task].scope == "task":
            dual = reports[-1]["dual_after"]
            self._is("A10", terms.dual.hex() == dual, f"λ of {task} is {terms.dual}, by the journal {float.fromhex(dual)}")

    def _daily_budget(self) -> None:
        kept = self._kept
        for key, call in self._training.items():
            self._verdict.meet("training call in the daily budget")
            row = kept.daily_budget.get(key)
            free = not call.charged[2]
            self._is("A6", row is not None or free, f"{key} cost {call.charged[2]} uUSD, which is not in the daily budget")
            if row is not None and row.settled:
                same = row.spend_uusd == call.charged[2]
                self._is("A6", same, f"{key} cost {call.charged[2]} uUSD, the daily budget has {row.spend_uusd}")
            self._verdict.meet("training call that was not settled", row is not None and not row.settled)
        for key in set(kept.daily_budget) - set(self._training):
            row = kept.daily_budget[key]
            self._is(
                "A6",
                not row.spend_uusd,
                f"the daily budget paid {row.spend_uusd} uUSD for {key}, which the journal does not have",
            )
        most = self._agent.plan.calls_limit
        for day, calls in Counter(row.day for row in kept.daily_budget.values()).items():
            self._is("A6", most is None or calls <= most, f"{calls} calls of learning on {day}, {most} are its limit")

    def _dial(self, dial: HelpDial, asked: Sequence[AskedQuestion]) -> None:
        sure = [one.record for one in asked if one.record is not None and one.record.might_ask and not one.dial_set]
        unsure = sum(one.record is None or one.dial_set for one in asked)
        dialled = dial.snapshot()
        asks = sum(record.asked for record in sure)
        counted = len(sure) <= dialled.questions <= len(sure) + unsure and asks <= dialled.asked <= asks + unsure
        what = f"the dial has counted {dialled.asked} of {dialled.questions}"
        self._is("A7", counted, f"{what}, the records have {asks} of {len(sure)}, and {unsure} may have counted")

    def _position(self) -> None:
        kept, planned = self._kept, self._agent.plan.steps * len(self._scenario.tasks)
        all_done = len(kept.steps) == kept.steps_done == planned
        self._is("A9", all_done, f"{len(kept.steps)} steps are committed, {kept.steps_done} counted, {planned} planned")
        for source, place in kept.cursors.items():
            used = self._scenario.prompts * sum(event.source == source for event, _ in kept.steps)
            self._is("A9", place == used, f"{source} is at {place}, its steps used {used}")

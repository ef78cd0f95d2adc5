"""The invariants of an agent: its state folder against the coordinator's journal and the people it answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edge.budget.dial import HelpDial
from edge.state.events import StepFinished
from tools.simulate.faults.agent_device import AgentMember, Asked, Kept
from tools.simulate.faults.duals import Data
from tools.simulate.faults.fold import Call, Fold
from tools.simulate.faults.outcome import Verdict
from tools.simulate.faults.scenario import AgentPlan

INVARIANTS = {
    "A1": "every answered question has its record, as it was shown; a question that was cut has one at most; there are no others",
    "A2": "an answer of the cloud has exactly one call, completed; what a call for people cost stands in a record",
    "A3": "the cost of calls in the records is what the journal charged",
    "A4": "every committed step was reported exactly once, in order, with its rate; λ is the journal's after each",
    "A5": "at the end no report waits to be sent, and no call is unconfirmed",
    "A6": "learning's daily budget is the journal's share of learning, call by call; no day has more calls than its limit",
    "A7": "the dial has counted the answers whose records say so",
    "A8": "nothing is left over: no task, no failure",
    "A9": "position, cursor and committed steps agree; all that was planned was done",
    "A10": "λ and the next step in the agent's folder are the journal's",
}


def check_agents(agents: Iterable[AgentMember], fold: Fold, verdict: Verdict) -> None:
    """A1 to A10 of each agent, against the folded journal."""
    for agent in agents:
        verdict.check("A8", not agent.failures, f"{agent.name} broke: {agent.failures[:3]}")
        verdict.meet("cut step finished after a crash", any("had been cut" in text for text in agent.notices))
        verdict.meet("learning call refused by the day's budget", any("learning, today's" in text for text in agent.notices))
        if agent.kept is not None:
            _AgentChecker(agent, fold, verdict).check(agent.kept)


class _AgentChecker:
    def __init__(self, agent: AgentMember, fold: Fold, verdict: Verdict) -> None:
        self._name = name = agent.name
        self._scenario = agent.around.scenario
        self._plan: AgentPlan = agent.plan
        self._asked = agent.asked
        self._dial_since = agent.dial_since
        self._verdict = verdict
        self._fold = fold
        calls = {key: call for (device, key), call in fold.calls.items() if device == name}
        self._serving = {key: call for key, call in calls.items() if call.data["step"] < 0}
        self._training = {key: call for key, call in calls.items() if call.data["step"] >= 0}

    def check(self, kept: Kept) -> None:
        self._questions(kept, self._asked)
        self._calls(kept)
        for task in self._scenario.tasks:
            self._steps(kept, task)
            self._terms(kept, task)
        self._left_over(kept)
        self._purse(kept)
        if kept.dial is not None:
            self._dial(kept.dial, self._asked[self._dial_since :])
        self._position(kept)

    def _is(self, invariant: str, holds: bool, story: str) -> None:
        self._verdict.check(invariant, holds, f"{self._name}: {story}")

    def _questions(self, kept: Kept, asked: Sequence[Asked]) -> None:
        for one in asked:
            self._verdict.meet(f"answer {_ENDS.get(one.end, one.end)}")
            record = kept.records.get(one.id)
            if one.record is not None:
                told = one.record.to_json()
                same = record is not None and all(
                    record[name] == told[name] for name in ("source", "text", "final", "created_at")
                )
                self._is("A1", same, f"question {one.id} was answered, its record is {_short(record)}")
            self._verdict.meet("record of a call whose reply was lost", one.record is None and record is not None)
        unknown = set(kept.records) - {one.id for one in asked}
        self._is("A1", not unknown, f"records of nobody's questions: {sorted(unknown)[:3]}")

    def _calls(self, kept: Kept) -> None:
        by_key = {record["call_key"]: record for record in kept.records.values() if record["call_key"]}
        for record in kept.records.values():
            key = record["call_key"]
            if record["source"] == "cloud":
                call = self._serving.get(key)
                self._is(
                    "A2",
                    call is not None and call.state == "completed",
                    f"{key} was answered by the cloud, its call is {_state_of(call)}",
                )
            charged = self._serving[key].charged[2] if key in self._serving else 0
            self._is(
                "A3", record["charged_uusd"] == charged, f"{key} cost {charged} uUSD, its record says {record['charged_uusd']}"
            )
        for asked_for, count in Counter(call.data["prompt_id"] for call in self._serving.values()).items():
            self._is("A2", count == 1, f"question {asked_for} had {count} calls")
        for key, call in self._serving.items():
            known = key in by_key or not call.charged[2]
            self._is("A2", known, f"{key} cost {call.charged[2]} uUSD, and no record knows of it")

    def _steps(self, kept: Kept, task: str) -> None:
        mine = [(event, place) for event, place in kept.steps if event.task == task]
        closed = self._closed(task)
        self._is("A4", len(mine) == len(closed), f"{len(mine)} steps of {task} were committed, {len(closed)} were reported")
        for number, ((event, place), told) in enumerate(zip(mine, closed, strict=False)):
            step = f"{task}#{number}"
            self._verdict.meet("step reported")
            self._verdict.meet("step reported out of the outbox", event.control.offline)
            rate = told["help_units"] / told["total_units"]
            self._is(
                "A4",
                abs(rate - event.control.assist_rate) < 1e-9,
                f"{step} had rate {event.control.assist_rate}, reported was {rate}",
            )
            if not event.control.offline:
                self._is("A4", place == number, f"{step} was committed as {task}#{place}")
                self._online(step, task, number, event, told)

    def _online(self, step: str, task: str, number: int, event: StepFinished, told: Data) -> None:
        opened = self._fold.steps[self._name, task, number]
        way = (opened["dual"], told["dual_after"])
        mine = (event.control.dual_before.hex(), event.control.dual_after.hex())
        self._is("A4", way == mine, f"{step} took λ from {mine[0]} to {mine[1]}, by the journal from {way[0]} to {way[1]}")

    def _closed(self, task: str) -> list[Data]:
        found = {step: body for (device, label, step), body in self._fold.closed.items() if (device, label) == (self._name, task)}
        return [found[step] for step in sorted(found)]

    def _terms(self, kept: Kept, task: str) -> None:
        terms, closed = kept.terms[task], self._closed(task)
        if terms is None:
            self._is("A10", not closed, f"{len(closed)} steps of {task} are reported, and the agent knows nothing of the task")
            return
        self._is("A10", terms.next_step == len(closed), f"{task}#{terms.next_step} comes next, the journal expects {len(closed)}")
        if closed and self._scenario.terms.tasks[task].scope == "task":
            dual = closed[-1]["dual_after"]
            self._is("A10", terms.dual.hex() == dual, f"λ of {task} is {terms.dual}, by the journal {float.fromhex(dual)}")

    def _left_over(self, kept: Kept) -> None:
        waiting = [f"{report.task}#{report.task_step}" for report in kept.outbox]
        self._is("A5", not waiting, f"reports wait at the end: {', '.join(waiting[:3])}")
        self._is("A5", not kept.unconfirmed, f"calls in doubt at the end: {', '.join(kept.unconfirmed[:3])}")

    def _purse(self, kept: Kept) -> None:
        for key, call in self._training.items():
            self._verdict.meet("training call in the purse")
            row = kept.purse.get(key)
            free = not call.charged[2]
            self._is("A6", row is not None or free, f"{key} cost {call.charged[2]} uUSD, and the purse knows nothing of it")
            if row is not None and row.settled:
                same = row.spend_uusd == call.charged[2]
                self._is("A6", same, f"{key} cost {call.charged[2]} uUSD, the purse says {row.spend_uusd}")
            self._verdict.meet("training call that was not settled", row is not None and not row.settled)
        for key in set(kept.purse) - set(self._training):
            row = kept.purse[key]
            self._is("A6", not row.spend_uusd, f"the purse paid {row.spend_uusd} uUSD for {key}, which the journal does not have")
        days = Counter(row.day for row in kept.purse.values())
        for day, calls in days.items():
            most = self._plan.calls_limit
            self._is("A6", most is None or calls <= most, f"{calls} calls of learning on {day}, {most} are its limit")

    def _dial(self, dial: HelpDial, asked: Sequence[Asked]) -> None:
        sure = [one.record for one in asked if one.record is not None and one.record.might_ask and not one.dial_set]
        unsure = sum(one.record is None or one.dial_set for one in asked)
        told = dial.snapshot()
        asks = sum(record.asked for record in sure)
        counted = len(sure) <= told.questions <= len(sure) + unsure and asks <= told.asked <= asks + unsure
        what = f"the dial has counted {told.asked} of {told.questions}"
        self._is("A7", counted, f"{what}, the records say {asks} of {len(sure)}, and {unsure} may have counted")

    def _position(self, kept: Kept) -> None:
        planned = self._plan.steps * len(self._scenario.tasks)
        steps = len(kept.steps)
        self._is(
            "A9",
            steps == kept.steps_done == planned,
            f"{steps} steps are committed, {kept.steps_done} counted, {planned} planned",
        )
        for source, place in kept.cursors.items():
            used = self._scenario.prompts * sum(event.source == source for event, _ in kept.steps)
            self._is("A9", place == used, f"{source} stands at {place}, its steps used {used}")


_ENDS = {"": "cut by a crash", "left": "left by its person"}


def _state_of(call: Call | None) -> str:
    return "unknown" if call is None else call.state


def _short(record: Mapping[str, Any] | None) -> str:
    return "missing" if record is None else f"{record['source']} {record['call_state']}"

"""A scripted agent for the page, with the real endpoint and guard; its values have the product's own classes."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from google.protobuf.json_format import ParseDict
from starlette.responses import JSONResponse

from edge.agent import AgentStatus
from edge.answering.explain import explained
from edge.budget.dial import DialSnapshot
from edge.budget.limits import BudgetLimits
from edge.budget.overview import Overview, Target, TaskBudget, held_to
from edge.budget.quota import Circumstances, quota_of
from edge.budget.whatif import PastAnswer, what_if
from edge.cloud.client import KnownBudget
from edge.cloud.sent import SentEntry, SentKind, entry_json
from edge.core.types import TokenUsage
from edge.dagrpo.ranking import RankedAnswers, Ranking
from edge.inference.backend import ModelInfo
from edge.learning.adapters import Version
from edge.rpc.client import BudgetSnapshot, CloudCompletion
from edge.rpc.v1 import call_pb2
from edge.serve.access import App, Receive, Scope, Send
from edge.serve.agent_schemas import ExplanationView, WhatIfView
from edge.serve.endpoint import build_app
from edge.serve.errors import error_body
from edge.serve.ports import AnswerNote
from edge.serve.server import serving
from edge.state.answer_record import AnswerRecord
from edge.state.events import StepFinished
from edge.testing.clock import ManualClock
from edge.testing.endpoint import NO_HEADLINE, NOTHING_TO_REPORT, ScriptedAnswers, ScriptedControl
from tests.worlds.agent import changed
from tests.worlds.steps import step as finished_step

BEGAN = 1_764_000_000.0
REASONED = ["<think>\nStep 1: 14 + 23 = 37\n", "</think>\n<answer>", "She has ", "\\boxed{37}", " apples.", "</answer>"]
GARDEN = "questions-about-our-garden-and-the-weather"
HELD = held_to(
    BudgetLimits(100, 40_000, 10_000, "month"), "practice cloud, nothing is charged", Target(None, None, 0.2, None), BEGAN
)
MODEL = ModelInfo("nano-edge", "qwen2", 2_700_000, 1024, 2_900_000, "", "compact")


@dataclass
class PageAgent:
    """The state of the scripted agent and the requests it received. Routes in `failing` fail; `posted` holds the received bodies in
    order."""

    answers: ScriptedAnswers
    control: PageControl
    token: str = ""
    failing: frozenset[str] = frozenset()
    posted: list[tuple[str, Any]] = field(default_factory=list)

    def bodies_of(self, path: str) -> list[Any]:
        """The bodies that were posted to a route."""
        return [body for where, body in self.posted if where == path]

    def app(self) -> App:
        """The endpoint, recording what is posted to it."""
        inner = build_app(self.answers, self.control, ManualClock(BEGAN), token=self.token)

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope.get("path", "")
            if path in self.failing:
                await JSONResponse(error_body("the disk is full", kind="server_error"), 500)(scope, receive, send)
            else:
                await inner(scope, self._recorded(path, receive) if scope.get("method") == "POST" else receive, send)

        return app

    def _recorded(self, path: str, receive: Receive) -> Receive:
        body = bytearray()

        async def recorded() -> Any:
            message = await receive()
            if message["type"] == "http.request":
                body.extend(message.get("body", b""))
                if not message.get("more_body"):
                    self.posted.append((path, json.loads(body)))
            return message

        return recorded


class PageControl(ScriptedControl):
    """The scripted control with a past: replays are computed, and answers are explained, as the agent does it."""

    def __init__(self, answers: ScriptedAnswers) -> None:
        super().__init__(answers)
        self.past: list[PastAnswer] = []
        self.decision = self.remark = ""

    async def whatif(self, rates: Sequence[float], task: str, last: int) -> WhatIfView:
        """The real replay of the prepared answers, with a remark."""
        result = what_if(self.past[:last], rates, task)
        remarks = (self.remark,) if self.remark else ()
        outlooks = tuple(replace(one, notes=(*one.notes, *remarks)) for one in result.outlooks)
        return WhatIfView.model_validate(replace(result, outlooks=outlooks))

    async def why(self, answer_id: str) -> ExplanationView:
        """A record of a call, with the note's fields, explained as a real one is."""
        note = (await super().why(answer_id)).model_dump(exclude_unset=True)
        known = {one.name for one in fields(AnswerRecord)}
        record = {**RECORD.to_json(), **{name: value for name, value in note.items() if name in known and value is not None}}
        why = await explained(record, _call)
        ranking = RANKINGS["math"].to_json()
        return ExplanationView.model_validate({**why, "decision": self.decision or why["decision"], "ranking": ranking})


RECORD = AnswerRecord(
    id="", source="cloud", text="", final="", help_log_odds=1.25, dual=0.5, calls_left=69, tokens_left=9_000, spend_left_uusd=None,
    adapter_version=6, reason="the model asked for help", latency_s=0.4, local_text="<think>\nStep 1: 14 + 23 = 37",
    cloud_text="It is 37.", model="nano-edge", cloud_model="nano-cloud", cloud_tokens=20, charged_uusd=99, created_at=BEGAN,
    help_bias=-0.7, task="math", target_rate=0.2, prompt="2+2?", call_key="run-77", asked=True,
)  # fmt: skip


RANKINGS = {
    "math": Ranking((RankedAnswers(right=40, wrong=21, right_questions=40, wrong_questions=21, auc=0.52),)),
    "code": Ranking((RankedAnswers(right=90, wrong=60, right_questions=90, wrong_questions=60, auc=0.81),)),
}
"""What the help log-odds of two of the tasks are worth; nobody judged answers of the third."""


async def _call(key: str) -> CloudCompletion:
    return CloudCompletion(key, RECORD.cloud_text, TokenUsage(12, 8), RECORD.charged_uusd, False, RECORD.cloud_model)


def new_agent(**more: Any) -> PageAgent:
    """An agent that has just been started: no steps, nothing sent."""
    answers = ScriptedAnswers(REASONED, note=note("local"))
    agent = PageAgent(answers, PageControl(answers), **more)
    agent.control.state = status(0, 0)
    agent.control.budgets = Overview("agent", "math", 0.2, False, "", 0, 0, (), HELD).to_json()
    return agent


def lived_in_agent(steps: int = 90, **more: Any) -> PageAgent:
    """An agent with two phases of learning, dials, adapters, a past, an outbox and a report."""
    agent = new_agent(**more)
    control = agent.control
    control.log = [step(number, steps).to_json() for number in range(1, steps + 1)]
    control.versions = [asdict(version(number, steps)) for number in range(steps // 15 * 15 - 75, steps + 1, 15)]
    control.state = status(steps, 48)
    control.budgets = overview().to_json()
    control.prepared_report = report()
    control.prepared_headline = {
        **NO_HEADLINE, "answers": 46, "answered_locally": 37 / 46, "right_in_the_end": 0.88, "gained": 0.08,
        "own": True, "validation_questions": 30, "learned_from": 30,
        "practice": {"right_in_the_end": 0.9, "gained": 0.02, "validation_questions": 80, "learned_from": 0},
        "spent_today_uusd": 4_200, "spent_this_month_uusd": 310_000,
    }  # fmt: skip
    control.departed = [sent(number) for number in range(60, 0, -1)]
    control.waiting_reports = [waiting()]
    control.past = [past(number) for number in range(60)]
    return agent


def status(steps: int, answers: int) -> dict[str, Any]:
    quota = overview().tasks[0].quota if steps else None
    current = AgentStatus(
        run_id="r", model=MODEL, adapter_version=steps, mode="auto", learning="learning" if steps else "idle", online=True,
        offline_reason="", coordinator="embedded", task="code" if steps else "math", target_rate=0.2, dual=0.5, phase=int(steps > 0),
        phases=2, steps_done=steps, steps_planned=120, waiting_reports=int(steps > 0), answers=answers, total_cloud_calls=31,
        total_cloud_tokens=8_450, total_spend_uusd=3_404, uptime_s=5.0, trained_version=steps, quota=quota,
    )  # fmt: skip
    return asdict(current)


def note(source: str, reason: str = "") -> AnswerNote:
    """The metadata of a scripted answer."""
    reasons = {
        "local": "answered on this device",
        "cloud": "the model asked for help",
        "local-fallback": "the model asked for help, but the budget is used up",
    }
    return AnswerNote("", source, reason or reasons[source], "stop", 11, 7, 1.25, 0.5, 3, None, 20, 99, 6, 0.4, "37")


def overview() -> Overview:
    """Three tasks: one with a dial that is set, one that the model decides, and one that is named at length."""
    known = KnownBudget(BudgetSnapshot(5, 0.481, 0.2, 31, 100, 8_450, 40_000, 4_216, 10_000), BEGAN)
    tasks = [
        TaskBudget(quota_of(one.task, known, one, Circumstances()), one, ranking=RANKINGS.get(one.task, Ranking()))
        for one in dials()
    ]
    return Overview("agent", "math", 0.2, False, "", 1, 0, tuple(tasks), HELD)


def dials() -> list[DialSnapshot]:
    """The readings of their dials."""
    return [
        DialSnapshot("math", 0.2, False, -0.41, 0.184, 0.19, 212, 40, 0.0, 100, BEGAN),
        DialSnapshot("code", None, True, 0.0, 0.31, 0.31, 40, 12, 0.1, 40, BEGAN),
        DialSnapshot(GARDEN, 0.05, True, -2.2, 0.19, 0.19, 18, 3, 0.0, 18, BEGAN),
    ]


def past(number: int) -> PastAnswer:
    """An answer of which every third asked; people judged them all, and every fourth was bad."""
    asked = number % 3 == 0
    return PastAnswer(
        log_odds=float(-number), asked=asked, from_cloud=asked, charged_uusd=100 if asked else 0, local_s=0.5,
        cloud_s=2.0 if asked else None, total_s=2.5 if asked else 0.5, judged="bad" if number % 4 == 0 else "good",
        billed=asked,
    )  # fmt: skip


def step(number: int, steps: int) -> StepFinished:
    """A learning step on realistic curves."""
    half = steps // 2
    second, place = number > half, (number - 1) % half
    noise = 0.06 * math.sin(7.3 * number) + 0.03 * math.sin(2.1 * number)
    gain = 0.28 * (1 - math.exp(-place / 14))
    rate = min(0.9, max(0.0, 0.42 - gain * 0.8 + noise))
    return changed(
        finished_step(1),
        source="practice",
        step=number,
        phase=int(second),
        task="code" if second else "math",
        assist_rate=rate,
        coverage=1 - rate,
        kept_accuracy=min(1.0, 0.58 + gain + noise),
        joint_accuracy=min(1.0, 0.66 + gain + noise / 2),
        target_rate=0.2,
        dual_after=0.5 + 0.1 * math.sin(number / 12),
        total_spend_uusd=47 * number,
        at=BEGAN + 240 * number,
    )


def version(number: int, newest: int) -> Version:
    """An adapter version; every third was refused."""
    refused = number % 45 == 0 and number != newest
    gate = ("refused", "math fell from 71 % to 60 %, more than a slip") if refused else ("promoted", "")
    return Version(
        version=number, folder="/state", at=BEGAN + 240 * number, phase=1, task="code", source="practice", base=max(0, number - 15),
        size_bytes=1_420_000 + number, gate=gate[0], gate_reason=gate[1], gate_before=0.71, gate_after=0.6 if refused else 0.74,
        kept_accuracy=0.81, joint_accuracy=0.9, assist_rate=0.22, serving=number == newest, head=number == newest, on_line=True,
        damage="",
    )  # fmt: skip


def report() -> dict[str, Any]:
    """A report of gains, losses and spend; its keys are held to the real ones by tests of the control."""
    compared = {"own": False, "learned_from": False, "new": 0, "new_right": 0, "in_the_end": None, "examples": []}
    asked = {"items": 80, "rate": 0.2, "cloud_accuracy": 0.9, "before": 0.8, "after": 0.88}
    gained = {"change": "gained", "before": "36", "after": "37", "right_before": False, "right_after": True}
    practice = {
        "source": "practice:arith",
        "task": "math",
        "items": 80,
        "right_then": 52,
        "right_now": 58,
        "gained": 9,
        "lost": 3,
    }
    own = {
        "source": "/home/me/facts.jsonl",
        "task": "chat",
        "items": 40,
        "right_then": 36,
        "right_now": 37,
        "gained": 1,
        "lost": 0,
    }
    lost = {"change": "lost", "before": "Ilka", "after": "Rex", "right_before": True, "right_after": False}
    forgotten = {"source": "/home/me/facts.jsonl", "adapter": 60, "question": "Who barks?", **lost}
    stretch = {"serving_uusd": 0, "learning_uusd": 3_000}
    return {
        **NOTHING_TO_REPORT,
        "now": BEGAN + 300,
        "serving_version": 90,
        "serving_version_then": 45,
        "tasks": [
            {**compared, **practice, "in_the_end": asked, "examples": [{"question": "How many apples?", **gained}]},
            {**compared, **own, "own": True, "learned_from": True},
        ],
        "forgotten": {"by_source": [{"source": "/home/me/facts.jsonl", "questions": 1, "of": 40}], "examples": [forgotten]},
        "learning": {"steps": 90, "promotions": 5, "refusals": 1, "refused_because": ["math fell"], "by_source": []},
        "spend": {"stretch_s": 60, "stretches": [{"began": BEGAN, **stretch}, {"began": BEGAN + 120, **stretch}]},
    }


def waiting() -> dict[str, Any]:
    """A step's report that waits, as the outbox lists it."""
    return {
        "id": 1, "task": "code", "task_step": 44, "planned_prompts": 8, "group_size": 16, "target_rate": 0.2, "total_units": 128,
        "help_units": 25, "uncalled_units": 0, "own_rate": None, "refused": "",
    }  # fmt: skip


def sent(number: int, kind: SentKind = "answering") -> dict[str, Any]:
    """A question that left, with a placeholder for an address, and its message as it went."""
    prompt = {"role": "ROLE_USER", "content": f"Write to [EMAIL_1] about item {number}"}
    message = ParseDict({"call_key": f"run-{number}", "messages": [prompt]}, call_pb2.CompleteRequest()).SerializeToString()
    entry = SentEntry(
        id=number, at=BEGAN + 60 * number, kind=kind, why="the model asked for help", method="StreamComplete",
        answer_id=f"a{number}", call_key=f"run-{number}", bytes=len(message), replaced={"email": 1, "path": number % 2}, times=1,
        last_at=BEGAN + 60 * number, outcome="", ended="",
    )  # fmt: skip
    return entry_json(entry, message)


class Stage:
    """One server for many agents, one after the other."""

    def __init__(self) -> None:
        self.url = ""
        self._app: App | None = None

    def show(self, agent: PageAgent) -> str:
        """From now on this agent answers; the page's address."""
        self._app = agent.app()
        return self.url

    def app(self) -> App:
        """The app of the agent that is shown at the time of a request."""

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            assert self._app is not None
            await self._app(scope, receive, send)

        return app


@asynccontextmanager
async def open_stage() -> AsyncIterator[Stage]:
    """A server that runs for the block."""
    stage = Stage()
    async with serving(stage.app(), "127.0.0.1", 0) as url:
        stage.url = url
        yield stage


@asynccontextmanager
async def page_of(agent: PageAgent, port: int = 0) -> AsyncIterator[str]:
    """Serve the agent and give the page's address."""
    async with serving(agent.app(), "127.0.0.1", port) as url:
        yield url

"""A scripted agent for the page: every route that the page reads, over values prepared here, behind the real endpoint and guard."""

from __future__ import annotations

import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from edge.core.clock import ManualClock
from edge.serve.control import ScriptedControl
from edge.serve.endpoint import build_app
from edge.serve.failures import RequestProblem, error_body
from edge.serve.guard import App, Guard, Receive, Scope, Send
from edge.serve.ports import AnswerNote, ScriptedAnswers
from edge.serve.server import serving

BEGAN = 1_764_000_000.0
REASONED = ["<think>\nStep 1: 14 + 23 = 37\n", "</think>\n<answer>", "She has ", "\\boxed{37}", " apples.", "</answer>"]
WHY = {
    "prompt": "2+2?",
    "local_text": "<think>\nStep 1: 14 + 23 = 37",
    "cloud_text": "It is 37.",
    "call_key": "run-77",
    "charged_uusd": 99,
    "mode": "auto",
    "task": "arith",
    "target_rate": 0.2,
    "help_bias": -0.7,
    "model": "nano-edge",
    "cloud_model": "nano-cloud",
    "created_at": BEGAN,
    "tokens_left": 9_000,
}


@dataclass
class PageAgent:
    """What the scripted agent has and was told. `absent` names routes that it does not have; `posted` is what came, in order."""

    answers: ScriptedAnswers
    control: ScriptedControl
    token: str = ""
    absent: frozenset[str] = frozenset()
    budget: dict[str, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    sent: list[dict[str, Any]] = field(default_factory=list)
    waiting: list[dict[str, Any]] = field(default_factory=list)
    whatif: dict[str, Any] = field(default_factory=lambda: {"line": "would cost about $0.0042 for the last 120 answers"})
    posted: list[tuple[str, Any]] = field(default_factory=list)

    def said(self, path: str) -> list[Any]:
        """The bodies that came on a route."""
        return [body for where, body in self.posted if where == path]

    def app(self) -> App:
        """The endpoint with the routes of the page before it."""
        inner = build_app(self.answers, _Control(self.control), ManualClock(BEGAN), token=self.token)
        get = {"/api/budget": self._budget, "/api/report": self._report, "/api/sent": self._sent, "/api/sent/{id}": self._payload}
        post = {
            "/api/budget": self._set_dial,
            "/api/budget/pause": self._pause,
            "/api/feedback": self._taken,
            "/api/learning": self._learning,
            "/api/whatif": self._whatif,
        }
        routes = [Route(path, self._told(path, handler)) for path, handler in get.items()]
        routes += [Route(path, self._told(path, handler), methods=["POST"]) for path, handler in post.items()]
        return _either(Guard(Starlette(routes=routes), token=self.token), frozenset(get) | frozenset(post), inner)

    def _told(self, path: str, handler: Callable[[Request], Any]) -> Callable[[Request], Awaitable[Response]]:
        async def handle(request: Request) -> Response:
            if path in self.absent:
                return JSONResponse(error_body("Not Found", kind="invalid_request_error", code="not_found"), 404)
            if request.method == "POST":
                self.posted.append((path, await request.json()))
            try:
                return JSONResponse(handler(request))
            except RequestProblem as problem:
                return JSONResponse(problem.body(), problem.status)

        return handle

    def _budget(self, request: Request) -> Any:
        return self.budget

    def _report(self, request: Request) -> Any:
        return self.report

    def _sent(self, request: Request) -> Any:
        before = int(request.query_params.get("before", 10**9))
        newest = [entry for entry in reversed(self.sent) if entry["id"] < before]
        shown = newest[: int(request.query_params["limit"])]
        return {"sent": [{k: v for k, v in entry.items() if k != "payload"} for entry in shown], "waiting": self.waiting}

    def _payload(self, request: Request) -> Any:
        found = [entry for entry in self.sent if str(entry["id"]) == request.path_params["id"]]
        if not found:
            raise RequestProblem(404, "nothing of that number was sent")
        return found[0]

    def _set_dial(self, request: Request) -> Any:
        wanted = self.posted[-1][1]
        for dial in self.budget["dials"]:
            if dial["task"] == wanted["task"]:
                dial["target_rate"] = wanted["target_rate"]
        return {}

    def _pause(self, request: Request) -> Any:
        self.budget["paused"] = self.posted[-1][1]["paused"]
        return {}

    def _learning(self, request: Request) -> Any:
        self.control.state["learning_paused"] = self.posted[-1][1]["paused"]
        return {}

    def _taken(self, request: Request) -> Any:
        return {}

    def _whatif(self, request: Request) -> Any:
        return self.whatif


class _Control(ScriptedControl):
    """The scripted control, telling more of why."""

    def __init__(self, inner: ScriptedControl) -> None:
        self._inner = inner

    async def why(self, answer_id: str) -> Any:
        told = await self._inner.why(answer_id)
        return {**WHY, **{name: value for name, value in told.items() if value is not None}}

    async def status(self) -> Any:
        return await self._inner.status()

    async def steps(self, after: int) -> Any:
        return await self._inner.steps(after)

    async def adapters(self) -> Any:
        return await self._inner.adapters()

    async def rollback(self, version: int) -> Any:
        return await self._inner.rollback(version)


def _either(own: App, paths: frozenset[str], other: App) -> App:
    """Our routes by their first app, everything else by the second."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        ours = scope.get("path") in paths or str(scope.get("path")).startswith("/api/sent/")
        await (own if ours else other)(scope, receive, send)

    return app


def new_agent(**more: Any) -> PageAgent:
    """An agent that has just been started: no steps, nothing sent."""
    answers = ScriptedAnswers(REASONED, note=note("local"))
    agent = PageAgent(answers, ScriptedControl(answers), **more)
    agent.control.state = {"mode": "auto", "model": {"name": "nano-edge"}, "learning": "idle", "online": True, "steps_done": 0}
    agent.budget = {"quota": quota(0, 0, 0), "dials": [], "paused": False}
    agent.report = report(tasks=[])
    return agent


def lived_in_agent(steps: int = 90, **more: Any) -> PageAgent:
    """An agent with two phases of learning, dials, adapters, an outbox and a report."""
    agent = new_agent(**more)
    agent.control.log = [step(number, steps) for number in range(1, steps + 1)]
    agent.control.versions = [version(number, steps) for number in range(steps // 15 * 15 - 75, steps + 1, 15)]
    agent.control.state |= {"quota": quota(31, 8_450, 4_216), "learning": "learning", "waiting": "", "steps_done": steps}
    agent.control.state |= {
        "steps_planned": 120,
        "phase": 1,
        "phases": 2,
        "task": "code",
        "adapter_version": steps,
        "trained_version": steps,
    }
    agent.control.state |= {"coordinator": "embedded", "answers": 48, "outbox": 1}
    agent.budget = {"quota": quota(31, 8_450, 4_216), "dials": dials(), "paused": False}
    agent.report = report()
    agent.sent = [sent(number) for number in range(1, 61)]
    agent.waiting = [{"kind": "step report", "task": "code", "task_step": 44, "total_units": 128, "help_units": 25, "bytes": 61}]
    return agent


def note(source: str, reason: str = "") -> AnswerNote:
    """What is said of a scripted answer."""
    reasons = {
        "local": "answered on this device",
        "cloud": "the model asked, at a price of 0.48",
        "local-fallback": "the budget is used up",
    }
    return AnswerNote("", source, reason or reasons[source], "stop", 11, 7, 1.25, 0.5, 3, None, 20, 99, 6, 0.4, "37")


def quota(calls: int, tokens: int, spend_uusd: int) -> dict[str, Any]:
    """A quota with limits of 100 calls, 40 000 tokens and a cent."""
    return {
        "task": "code", "state": "ok", "calls": calls, "calls_limit": 100, "tokens": tokens, "tokens_limit": 40_000,
        "spend_uusd": spend_uusd, "spend_limit_uusd": 10_000, "target_rate": 0.2, "realised_rate": 0.184, "dual": 0.481,
        "as_of": BEGAN, "line": f"{calls} of 100 calls used, {100 - calls} left until midnight",
    }  # fmt: skip


def dials() -> list[dict[str, Any]]:
    """A dial that is set, one that the model decides, and one whose task is named at length."""
    return [
        {"task": "arith", "target_rate": 0.2, "realised_rate": 0.184, "answers": 212, "bias": -0.41},
        {"task": "code", "target_rate": None, "realised_rate": 0.31, "answers": 40, "bias": 0.0},
        {
            "task": "questions-about-our-garden-and-the-weather",
            "target_rate": 0.05,
            "realised_rate": 0.19,
            "answers": 18,
            "bias": -2.2,
        },
    ]


def step(number: int, steps: int) -> dict[str, Any]:
    """A learning step on curves that look like the real ones."""
    half = steps // 2
    second, place = number > half, (number - 1) % half
    noise = 0.06 * math.sin(7.3 * number) + 0.03 * math.sin(2.1 * number)
    gain = 0.28 * (1 - math.exp(-place / 14))
    rate = min(0.9, max(0.0, 0.42 - gain * 0.8 + noise))
    return {
        "step": number, "phase": int(second), "task": "code" if second else "arith", "assist_rate": rate,
        "kept_accuracy": min(1.0, 0.58 + gain + noise), "joint_accuracy": min(1.0, 0.66 + gain + noise / 2), "coverage": 1 - rate,
        "target_rate": 0.2, "dual_after": 0.5 + 0.1 * math.sin(number / 12), "total_spend_uusd": 47 * number, "at": BEGAN + 240 * number,
    }  # fmt: skip


def version(number: int, newest: int) -> dict[str, Any]:
    """An adapter version; every third was refused."""
    refused = number % 45 == 0 and number != newest
    gate = ("refused", "arith fell from 71 % to 60 %, more than a slip") if refused else ("promoted", "no task fell")
    return {
        "version": number, "folder": "/state", "at": BEGAN + 240 * number, "phase": 1, "task": "code", "source": "practice",
        "base": number - 15, "size_bytes": 1_420_000 + number, "gate": gate[0], "gate_reason": gate[1], "gate_before": 0.71,
        "gate_after": 0.6 if refused else 0.74, "kept_accuracy": 0.81, "joint_accuracy": 0.9, "assist_rate": 0.22,
        "serving": number == newest, "head": number == newest, "on_line": True, "damage": "",
    }  # fmt: skip


def report(tasks: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """What was gained and forgotten since yesterday."""
    known = [
        {"task": "arith", "items": 80, "right_then": 52, "right_now": 58, "gained": 9, "lost": 3},
        {"task": "code", "items": 40, "right_then": 36, "right_now": 37, "gained": 1, "lost": 0},
    ]
    return {
        "since": BEGAN - 86_400, "until": BEGAN, "tasks": known if tasks is None else tasks, "steps": 90, "promoted": 5, "refused": 1,
        "rolled_back": 0, "answers": {"local": 37, "cloud": 9, "local-fallback": 2}, "feedback": {"good": 6, "bad": 1},
        "spend": {"serving_uusd": 812, "learning_uusd": 3_404},
    }  # fmt: skip


def sent(number: int) -> dict[str, Any]:
    """Something that left: a prompt with placeholders."""
    payload = json.dumps(
        {"messages": [{"role": "user", "content": f"Write to <EMAIL_1> about item {number}, before <DATE_1>"}]}, indent=1
    )
    return {
        "id": number, "at": BEGAN + 60 * number, "kind": "question" if number % 3 else "training", "reason": "the model asked for help",
        "bytes": len(payload.encode()), "answer_id": f"a{number}", "replaced": {"email": 1, "path": number % 2}, "payload": payload,
    }  # fmt: skip


@asynccontextmanager
async def page_of(agent: PageAgent, port: int = 0) -> AsyncIterator[str]:
    """Serve the agent and give the page's address."""
    async with serving(agent.app(), "127.0.0.1", port) as url:
        yield url

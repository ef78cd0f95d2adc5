"""OpenAI's chat completions over the broker: who asks, for whom, under which label. Without sockets, so that the simulator plays it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any

from coordinator.calls.broker import Broker
from coordinator.calls.upstreams import UpstreamTable
from coordinator.control.devices import Fleet
from coordinator.endpoint import replies
from coordinator.endpoint.requests import Asked, random_key, read_request
from coordinator.ledger.accounts import UNITS, scope_of
from coordinator.ledger.budgets import opens_at
from coordinator.service.authentication import Identity
from edge.core.clock import Clock
from edge.core.errors import CoordinatorError, NotFound
from edge.rpc.client import CloudCompletion


@dataclass(frozen=True, slots=True)
class ChatApi:
    """What the OpenAI-compatible endpoint answers. Every method raises CoordinatorError."""

    broker: Broker
    fleet: Fleet
    upstreams: UpstreamTable
    clock: Clock
    new_key: Callable[[], str] = random_key
    """Names a call whose request has no key."""

    def read(self, body: bytes, identity: Identity, *, task: str = "", key: str = "", user: str = "") -> Asked:
        """The request of a caller; `task`, `key` and `user` are what its headers say."""
        asked = read_request(body, task=task, key=key, user=user, new_key=self.new_key, most_tokens=self.upstreams.most_tokens)
        identity.require_tasks({asked.call.task})
        self.fleet.admit(identity.device)
        return asked

    async def complete(self, asked: Asked, device: str, user: str = "") -> dict[str, Any]:
        """Ask the cloud once; a `chat.completion`."""
        with _noting(asked):
            completion = await self.broker.complete(device, asked.call, None, user=user, fresh=asked.fresh)
        return replies.completion_body(asked, completion, int(self.clock.now()))

    async def stream(self, asked: Asked, device: str, user: str = "") -> AsyncGenerator[dict[str, Any], None]:
        """The same as chunks; the first comes when the hold is durable, so what is refused is refused before it."""
        head, first = replies.chunks(asked, int(self.clock.now()))
        begun = False
        with _noting(asked):
            async with aclosing(self.broker.stream(device, asked.call, None, user=user, fresh=asked.fresh)) as pieces:
                async for piece in pieces:
                    if not begun:
                        begun = True
                        yield first
                    if isinstance(piece, CloudCompletion):
                        for last in replies.last_chunks(asked, piece, head):
                            yield last
                    elif piece:
                        yield replies.chunk(head, {"content": piece})

    def models(self, started: int) -> list[dict[str, Any]]:
        """The names that can be asked for."""
        return [
            {"id": alias, "object": "model", "created": started, "owned_by": "edge-coordinator"}
            for alias in self.upstreams.aliases
        ]

    def model(self, name: str, started: int) -> dict[str, Any]:
        """One of them. Raises NotFound."""
        for model in self.models(started):
            if model["id"] == name:
                return model
        raise NotFound(f"no model is called {name[:100]!r}; known: {', '.join(self.upstreams.aliases)}")

    async def usage(self, identity: Identity, task: str, user: str = "") -> dict[str, Any]:
        """What the caller's own budgets allow and what is used, that of one label where it names one; spend in micro-USD."""
        if task:
            identity.require_tasks({task})
        self.fleet.admit(identity.device)
        limits, view = await self.broker.budgets(identity.device, task, user)
        scopes = ("user", "device", "device_task") if task else ("user", "device")
        pairs = [(terms, row) for terms, row in zip(limits, view.budgets, strict=True) if scope_of(terms.key) in scopes]
        now = self.clock.now()
        budgets: list[Mapping[str, Any]] = [
            {
                "budget": terms.key,
                "scope": scope_of(terms.key),
                "opens_at": None if (opens := opens_at(terms.key, now)) is None else replies.utc(opens),
                **{
                    unit: {"used": getattr(row.used, unit), "limit": limit}
                    for unit, limit in zip(UNITS, terms.limits.units, strict=True)
                },
            }
            for terms, row in pairs
        ]
        return {"object": "usage", "device": identity.device, "user": user or None, "task": task or None, "budgets": budgets}


@contextmanager
def _noting(asked: Asked) -> Iterator[None]:
    """A refusal names its call, and says where the request had no key: the same one again would be another call."""
    try:
        yield
    except CoordinatorError as error:
        error.metadata |= {"call_key": asked.call.call_key, **({} if asked.named else {replies.UNNAMED: "yes"})}
        raise

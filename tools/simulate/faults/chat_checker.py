"""The checks of calls over the OpenAI-compatible endpoint, from the same logs. It shares no code with the endpoint.

A line about a chat request names the call as the device does: by the person and the Idempotency-Key. Which call of the ledger that is the
replies say. With it each line is read as one of a call over gRPC, for which the same invariants hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tools.simulate.faults.fold import Fold, scope_of, user_of
from tools.simulate.faults.log import ChatParts, DeviceEvent
from tools.simulate.faults.verdict import WorldVerdict

STATUS: Mapping[str, tuple[int, bool]] = {
    "INVALID_REQUEST": (400, False),
    "UPSTREAM_REJECTED": (400, False),
    "UNPRICED": (400, False),
    "PERMISSION_DENIED": (403, False),
    "DEVICE_DISABLED": (403, False),
    "NOT_FOUND": (404, False),
    "IN_PROGRESS": (409, True),
    "CALL_CANCELLED": (409, False),
    "KEY_REUSED": (409, False),
    "BUDGET_EXHAUSTED": (429, False),
    "RATE_LIMITED": (429, True),
    "OUTCOME_UNKNOWN": (502, False),
    "UPSTREAM_FAILED": (502, True),
    "OVERLOADED": (503, True),
    "DRAINING": (503, True),
    "UPSTREAM_OPEN": (503, True),
    "LEDGER_UNAVAILABLE": (503, True),
    "DEADLINE_EXCEEDED": (504, True),
}
"""By the code of an error: its status, and whether the same request may be sent again."""
PERHAPS_PAID = ("OUTCOME_UNKNOWN", "LEDGER_UNAVAILABLE")
"""After these only the same key may be asked again: without one the next request is another call."""
NO_REPLY = ("asked", "CONNECTION_LOST", "TIMED_OUT")
CHAT, TRESPASS, WRONG = "chat", "trespass", "wrong_chat"
Name = tuple[str, str]


class ChatChecker:
    """What the log's lines about chat requests say, against the folded journal."""

    def __init__(self, fold: Fold, devices: Sequence[DeviceEvent], verdict: WorldVerdict) -> None:
        self._fold = fold
        self._devices = devices
        self._check = verdict.check
        self._meet = verdict.meet
        self._keys: dict[Name, str] = {}
        self._askers: dict[Name, str] = {}

    def check(self) -> None:
        """Status and content of each reply, whose it is, and that nothing was begun that nobody asked for."""
        self._learn_keys()
        tries: dict[Name, int] = defaultdict(int)
        for event, parts in self._lines(CHAT, TRESPASS, WRONG):
            if event.outcome == "asked":
                tries[event.device, event.key] += 1
                continue
            self._status_is_right(event, parts)
            if event.what != CHAT:
                self._is_refused(event)
            elif event.outcome == "completed":
                self._answer_is_the_askers(event, parts)
                self._meet("chat answered again under its key", tries[event.device, event.key] > 1)
            elif event.outcome == "OUTCOME_UNKNOWN":
                self._charge_is_in_the_journal(event, parts)
            self._meet_features(event, parts)
        self._nothing_is_begun_unasked()
        self._copies_over_grpc_are_of_nobody()

    def as_calls(self) -> list[DeviceEvent]:
        """The log with each line about a chat as one about the call over gRPC, as far as the call is known; what was refused for its form
        alone is left out."""
        return [self._as_call(event) for event in self._devices if event.what not in (TRESPASS, WRONG)]

    def _as_call(self, event: DeviceEvent) -> DeviceEvent:
        if event.what != CHAT:
            return event
        parts = ChatParts(*event.reply)
        reply: tuple[object, ...] = ()
        if event.outcome == "completed":
            reply = (parts.text, parts.input_tokens, parts.output_tokens, parts.charged_uusd, parts.cached)
        elif event.outcome == "OUTCOME_UNKNOWN":
            reply = (("charged_uusd", str(parts.charged_uusd)),)
        elif event.outcome != "asked":
            reply = (parts.budget,)
        key = self._keys.get((event.device, event.key))
        return replace(event, reply=reply) if key is None else replace(event, what="complete", key=key, reply=reply)

    def _lines(self, *kinds: str) -> list[tuple[DeviceEvent, ChatParts]]:
        return [(event, ChatParts(*event.reply)) for event in self._devices if event.what in kinds]

    def _learn_keys(self) -> None:
        """The ledger's key of each name; a key without a person is the ledger's own. No call has two names."""
        names: dict[Name, str] = {}
        for event, parts in self._lines(CHAT):
            name = (event.device, event.key)
            own = "" if parts.asker else parts.idempotency_key
            key = parts.call_key or own
            if not key:
                continue
            known = self._keys.setdefault(name, own or key)
            self._check("I5", known == key, f"{event.device}'s {event.key} was call {known} and later call {key}")
            other = names.setdefault((event.device, key), event.key)
            self._check("I10", other == event.key, f"call {key} of {event.device} is the answer to {other} and to {event.key}")
            self._askers[event.device, key] = parts.asker

    def _status_is_right(self, event: DeviceEvent, parts: ChatParts) -> None:
        """An error in the middle of a stream has no status of its own."""
        if event.outcome in NO_REPLY:
            return
        status, again = STATUS.get(event.outcome, (500, False))
        again = again and (parts.idempotency_key != "" or event.outcome not in PERHAPS_PAID)
        expected = (200, None) if event.outcome == "completed" else (status, again)
        begun = parts.streamed and parts.status == 200 and event.outcome in STATUS
        story = f"{event.device} got {event.outcome} for {event.key} with status {parts.status}, to be repeated: {parts.again}"
        self._check("I9", begun or (parts.status, parts.again) == expected, story)

    def _is_refused(self, event: DeviceEvent) -> None:
        refusals = ("PERMISSION_DENIED",) if event.what == TRESPASS else ("INVALID_REQUEST", "NOT_FOUND", "DEVICE_DISABLED")
        refused = event.outcome in (*NO_REPLY, *refusals)
        self._check("I10" if event.what == TRESPASS else "I5", refused, f"{event.device} got {event.outcome} for a {event.what}")

    def _answer_is_the_askers(self, event: DeviceEvent, parts: ChatParts) -> None:
        """It answers the question of this request, counts against the person's budget, and is another call's only where that is allowed."""
        key, story = parts.call_key, f"{event.device} was given {parts.text!r} for {event.key}"
        self._check("I5", f" to {parts.question} for " in parts.text, f"{story}, which asked {parts.question!r}")
        call = self._fold.calls.get((event.device, key))
        if call is None:
            return  # missing from the journal, which is found elsewhere
        if not call.copied:
            held = user_of(call.data)
            self._check("I1", held == parts.asker, f"call {key} of {event.device} for {parts.asker!r} counts against {held!r}")
            return
        self._check("I5", not parts.fresh, f"{story}, a stored answer where a new one was asked for")
        self._source_is_of("chat", event, parts.asker)

    def _charge_is_in_the_journal(self, event: DeviceEvent, parts: ChatParts) -> None:
        """A charge without an answer names no call: one of this person's ended so."""
        ended = [
            call.charged[2]
            for (device, _), call in self._fold.calls.items()
            if device == event.device and call.state in ("failed", "in_doubt") and user_of(call.data) == parts.asker
        ]
        story = f"{event.device} was told of a charge of {parts.charged_uusd} for {event.key}, the journal has {ended}"
        self._check("I9", parts.charged_uusd in ended, story)

    def _source_is_of(self, what: str, event: DeviceEvent, asker: str) -> None:
        """A stored answer was given to this person before, where it does not go to the whole fleet."""
        call = self._fold.calls.get((event.device, self._keys.get((event.device, event.key), event.key)))
        if call is None or not call.copied or call.data["cache_key"].startswith("fleet:"):
            return
        device, _, key = call.data["source"].partition("|")
        source = self._fold.calls.get((device, key))
        owner = user_of(source.data) if source is not None else asker
        self._check("I10", owner == asker, f"{event.device} was given {owner!r}'s answer for {event.key}")
        self._meet(f"{what} out of the cache")

    def _copies_over_grpc_are_of_nobody(self) -> None:
        """Who calls over gRPC names no person, and gets no person's stored answers."""
        for event in self._devices:
            chats = self._askers.get((event.device, event.key))
            if event.what == "complete" and event.outcome == "completed" and not chats:
                self._source_is_of("call", event, "")

    def _nothing_is_begun_unasked(self) -> None:
        """A request without a key begins one call at the most, and so does a key, whatever is lost on the way. Where the reply says that
        the same may be asked again, one without a key was not charged."""
        for device in sorted({event.device for event, _ in self._lines(CHAT)}):
            mine = [event for event in self._devices if event.device == device]
            known = {event.key for event in mine if event.what not in (CHAT, TRESPASS, WRONG)}
            known |= {key for (owner, _), key in self._keys.items() if owner == device}
            unknown = [call for (owner, key), call in self._fold.calls.items() if owner == device and key not in known]
            last = {
                event.key: (event.outcome, ChatParts(*event.reply).idempotency_key)
                for event in mine
                if event.what == CHAT and (device, event.key) not in self._keys
            }
            unsure = [name for name, (outcome, key) in last.items() if key or outcome in (*NO_REPLY, *PERHAPS_PAID)]
            paid = [call for call in unknown if any(call.charged)]
            for what, calls, names in (("", unknown, [*last]), ("paid ", paid, unsure)):
                story = (
                    f"{device} knows nothing of {len(calls)} {what}calls, and has {len(names)} requests that may have begun one"
                )
                self._check("I3" if not what else "I4", len(calls) <= len(names), story)

    def _meet_features(self, event: DeviceEvent, parts: ChatParts) -> None:
        completed, replied = event.outcome == "completed", event.outcome not in NO_REPLY
        features = {
            "chat whole": completed and not parts.streamed,
            "chat streamed": completed and parts.streamed,
            "chat of a person": completed and parts.asker != "",
            "chat without a key": completed and parts.idempotency_key == "",
            "chat refused in its stream": parts.status == 200 and event.outcome in STATUS,
            "chat cut in its stream": parts.status == 200 and not replied,
            "chat whose reply was lost": not replied,
            "person refused by their own budget": scope_of(parts.budget) == "user",
            "key of a chat used again for something else": event.outcome == "KEY_REUSED",
            "chat cancelled over gRPC": event.outcome == "CALL_CANCELLED",
            "chat of a foreign task": event.what == TRESPASS and replied,
            "chat that is wrong": event.what == WRONG and replied,
        }
        for what, happened in features.items():
            self._meet(what, happened)

"""The coordinator client over grpc.aio: deadlines, retries, lost replies, credentials.

Only UNAVAILABLE (and a call that still runs elsewhere, or comes too early for a rate limit) is asked again, with the same key, within
the caller's deadline: the delay is the coordinator's RetryInfo or a jittered exponential one. A failing cloud LLM (UPSTREAM_FAILED) is
asked again once only: the coordinator has retried already. When a reply was lost after the request went out, GetCall recovers it; nothing
is asked twice. A watch that outlived the credential it began with is opened again with the renewed one. A coordinator that cannot be
connected to within `connect_timeout_s` is UNREACHABLE, so that the agent can answer locally. A token is renewed before it ends, by a task
that lives from the first call to `aclose`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc

from edge.core.errors import (
    CallInProgress,
    ConfigError,
    CoordinatorError,
    CoordinatorUnavailable,
    EdgeError,
    InvalidRequest,
    NotFound,
    OutcomeUnknown,
    PermissionDenied,
    RateLimited,
    Unauthenticated,
    UsageError,
)
from edge.core.rng import stream
from edge.rpc import codec
from edge.rpc.address import Address, parse_address
from edge.rpc.client import (
    BudgetSnapshot,
    CancelledCall,
    CloudCall,
    CloudCompletion,
    CloudDelta,
    Registration,
    StepClosed,
    StepOpened,
    StepUnits,
    fingerprint,
)
from edge.rpc.credentials import ClientCredentials, Stamp, TokenFile
from edge.rpc.errors import from_rpc_error, is_worth_retrying
from edge.rpc.handshake import open_channel
from edge.rpc.health import require_handshake
from edge.rpc.v1 import budget_pb2, call_pb2, credential_pb2, credential_pb2_grpc, device_pb2_grpc

log = logging.getLogger(__name__)
T = TypeVar("T")
DEVICE_ID_KEY = "device-id"
AUTHORIZATION_KEY = "authorization"
OLD_CHANNEL_GRACE_S = 60.0
RENEW_AGAIN_S = 5.0
PASSING = (CoordinatorUnavailable, CallInProgress, RateLimited)
_MAY_HAVE_ARRIVED = ("CONNECTION_LOST", "IN_PROGRESS")
"""Reasons after which a call may be executed all the same."""


@dataclass(frozen=True, slots=True)
class ClientPolicy:
    """Patience: seconds to connect, seconds for a control call, retries of one call, and the backoff between them.

    `max_upstream_failures`: how often one call may end with UPSTREAM_FAILED before it is given up.
    """

    connect_timeout_s: float = 2.0
    control_deadline_s: float = 10.0
    max_retries: int = 6
    max_upstream_failures: int = 2
    first_backoff_s: float = 0.1
    max_backoff_s: float = 3.0
    max_message_bytes: int = 4 << 20


class GrpcCoordinatorClient:
    """A connection to one coordinator. Made anywhere, connected at its first call; belongs to one event loop.

    `device_id` names this device where the coordinator trusts the connection (Unix socket, loopback); with credentials they name it.
    Plaintext to another machine is refused with UsageError unless `allow_insecure`, and a token is never sent so.
    """

    def __init__(
        self,
        address: str,
        *,
        device_id: str = "",
        allow_insecure: bool = False,
        policy: ClientPolicy | None = None,
        seed: int = 0,
        credentials: ClientCredentials | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`rng` jitters the backoff; without one, a stream of `seed` and the device does."""
        self._address = parse_address(address)
        self._credentials = credentials or ClientCredentials()
        _require_privacy(self._address, self._credentials, allow_insecure)
        self._policy = policy or ClientPolicy()
        self._device_id = device_id
        self._jitter = rng or stream(seed, "rpc-backoff", device_id)
        self._channel: grpc.aio.Channel | None = None
        self._channel_files: Stamp = ()
        self._closing: set[asyncio.Task[None]] = set()
        self._renewing: asyncio.Task[None] | None = None
        self._closed = False

    async def register(self, agent_version: str, tasks: Sequence[str]) -> Registration:
        """Announce this device; returns the task terms of each label."""
        return codec.decode_registration(
            await self._control("RegisterDevice", lambda: codec.encode_register(agent_version, tasks))
        )

    async def open_step(self, task: str, step: int, planned_prompts: int, group_size: int, target_rate: float) -> StepOpened:
        """Open a learning step."""

        def request() -> Any:
            return codec.encode_open_step(task, step, planned_prompts, group_size, target_rate)

        return codec.to_value(StepOpened, await self._control("OpenStep", request))

    async def close_step(self, task: str, step: int, units: StepUnits) -> StepClosed:
        """Report a step and move λ; repeated, returns the first answer."""
        return codec.to_value(StepClosed, await self._control("CloseStep", lambda: codec.encode_close_step(task, step, units)))

    async def get_budget(self, task: str) -> BudgetSnapshot:
        """The current budget of this device for one task."""
        return codec.to_value(
            BudgetSnapshot, (await self._control("GetBudget", lambda: budget_pb2.GetBudgetRequest(task=task))).budget
        )

    async def get_call(self, call_key: str) -> CloudCompletion:
        """The stored result of an earlier call; never starts work."""
        return codec.decode_completion(await self._control("GetCall", lambda: call_pb2.GetCallRequest(call_key=call_key)))

    async def cancel_call(self, call_key: str) -> CancelledCall:
        """Stop waiting for a call; what it cost stays charged."""
        return codec.decode_cancelled(await self._control("CancelCall", lambda: call_pb2.CancelCallRequest(call_key=call_key)))

    async def watch_budget(self, task: str) -> AsyncIterator[BudgetSnapshot]:
        """The budget now, then each new version; a connection that breaks is made again with backoff."""
        last: BudgetSnapshot | None = None
        failures = 0
        while True:
            shown = self._shown()
            try:
                async with aclosing(self._watch_once(task)) as budgets:
                    async for budget in budgets:
                        failures = 0
                        if budget != last:
                            last = budget
                            yield budget
            except Unauthenticated:
                if not self._has_fresher_than(shown):
                    raise
            except CoordinatorUnavailable as error:
                failures += 1
                if not is_worth_retrying(error) or failures > self._policy.max_retries:
                    raise
                await asyncio.sleep(self._delay_s(error, failures - 1))

    async def complete(self, call: CloudCall, deadline_s: float) -> CloudCompletion:
        """Ask the cloud once, idempotent by the call's key; a reply that was lost is recovered."""
        return await self._complete_until(call, self._end(deadline_s))

    async def stream_complete(self, call: CloudCall, deadline_s: float) -> AsyncIterator[CloudDelta]:
        """Ask the cloud once and stream its answer; a stream that breaks is finished from the stored result."""
        end = self._end(deadline_s)
        received = ""
        try:
            async for delta in self._stream_once(call, end):
                received += delta.text
                yield delta
            return
        except PASSING as error:
            failures, delay_s = int(is_upstream_failure(error)), self._delay_s(error, 0)
            lost = error.reason in _MAY_HAVE_ARRIVED
            if not self._goes_on(error, failures) or delay_s >= self._left(end):
                raise
        await asyncio.sleep(delay_s)
        completion = await self._complete_until(call, end, failures, lost=lost)
        rest = completion.text.removeprefix(received) if completion.text.startswith(received) else ""
        yield CloudDelta(rest, completion)

    async def aclose(self) -> None:
        """Close the connection. Safe to call twice."""
        self._closed = True
        tasks = {*self._closing, *([self._renewing] if self._renewing else [])}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        channel, self._channel = self._channel, None
        if channel is not None:
            await channel.close()

    async def _watch_once(self, task: str) -> AsyncGenerator[BudgetSnapshot, None]:
        request = _encode(lambda: budget_pb2.WatchBudgetRequest(task=task))
        stub = await self._ready_stub(self._end(self._policy.control_deadline_s))
        watching = stub.WatchBudget(request, metadata=self._metadata)
        try:
            async for event in watching:
                if event.WhichOneof("event") == "budget":
                    yield codec.to_value(BudgetSnapshot, event.budget)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        except grpc.aio.UsageError as error:
            raise CoordinatorUnavailable("the connection was closed", reason="CONNECTION_LOST") from error
        finally:
            watching.cancel()
        raise CoordinatorUnavailable("the coordinator ended the stream early", reason="CONNECTION_LOST")

    async def _complete_until(self, call: CloudCall, end: float, failures: int = 0, *, lost: bool = False) -> CloudCompletion:
        """`lost`: an earlier try may have been executed. A refusal of this try is no evidence about that one."""
        request = _encode(lambda: codec.encode_call(call))

        async def attempt() -> CloudCompletion:
            nonlocal lost
            try:
                recovered = await self._recover(request, end) if lost else None
                return recovered or codec.decode_completion(await self._once("Complete", request, end))
            except (CoordinatorUnavailable, CallInProgress) as error:
                lost = lost or error.reason in _MAY_HAVE_ARRIVED
                raise
            except (PermissionDenied, Unauthenticated) as error:
                if not lost:
                    raise
                text = f"the reply to the call was lost, and the coordinator does not say what became of it: {error}"
                raise OutcomeUnknown(text, reason="REPLY_LOST", hint=error.hint) from error

        return await self._retrying(attempt, end, failures)

    async def _recover(self, call: call_pb2.CompleteRequest, end: float) -> CloudCompletion | None:
        """The stored answer of a call whose reply was lost; None when asking again is right: it is unknown, runs on, or was not taken.

        Raises KeyReused when the key belongs to other content.
        """
        content = fingerprint(codec.decode_call(call))
        try:
            request = call_pb2.GetCallRequest(call_key=call.call_key, fingerprint=content)
            return codec.decode_completion(await self._once("GetCall", request, end))
        except (NotFound, CallInProgress):
            return None
        except CoordinatorUnavailable as error:
            if is_upstream_failure(error):
                return None
            raise

    async def _stream_once(self, call: CloudCall, end: float) -> AsyncIterator[CloudDelta]:
        request = call_pb2.StreamCompleteRequest(call=_encode(lambda: codec.encode_call(call)))
        stub = await self._ready_stub(end)
        try:
            async for reply in stub.StreamComplete(request, timeout=self._left(end), metadata=self._metadata):
                kind = reply.WhichOneof("event")
                if kind == "delta":
                    yield CloudDelta(reply.delta)
                elif kind == "finished":
                    yield CloudDelta("", codec.decode_completion(reply.finished))
                    return
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        raise CoordinatorUnavailable("the coordinator ended the stream early", reason="CONNECTION_LOST")

    async def _control(self, method: str, build: Callable[[], Any]) -> Any:
        request, end = _encode(build), self._end(self._policy.control_deadline_s)
        return await self._retrying(lambda: self._once(method, request, end), end)

    async def _retrying(self, attempt: Callable[[], Awaitable[T]], end: float, failures: int = 0) -> T:
        """The attempt's value; `failures` of the upstream were seen before."""
        for tried in range(self._policy.max_retries):
            try:
                return await attempt()
            except PASSING as error:
                failures += is_upstream_failure(error)
                delay_s = self._delay_s(error, tried)
                if not self._goes_on(error, failures) or delay_s >= self._left(end):
                    raise
            await asyncio.sleep(delay_s)
        return await attempt()

    def _goes_on(self, error: CoordinatorError, failures: int) -> bool:
        """Whether to ask again after this error, the upstream having failed `failures` times."""
        return may_be_asked_again(error) and failures < self._policy.max_upstream_failures

    def _delay_s(self, error: CoordinatorError, tried: int) -> float:
        """Jittered exponential backoff, never below what the coordinator asked for."""
        ceiling_s = min(self._policy.max_backoff_s, self._policy.first_backoff_s * 2.0**tried)
        return max(error.retry_after_s or 0.0, ceiling_s * (0.5 + 0.5 * self._jitter.random()))

    async def _once(self, method: str, request: Any, end: float) -> Any:
        stub = await self._ready_stub(end)
        try:
            return await getattr(stub, method)(request, timeout=self._left(end), metadata=self._metadata)
        except grpc.RpcError as error:
            raise from_rpc_error(error) from error
        except grpc.aio.UsageError as error:
            raise CoordinatorUnavailable("the connection was closed", reason="CONNECTION_LOST") from error

    async def _ready_stub(self, end: float) -> Any:
        channel = await self._ready_channel(end)
        if self._credentials.token is not None and self._renewing is None:
            self._renewing = asyncio.create_task(self._keep_renewed(self._credentials.token), name="token-renewal")
        return device_pb2_grpc.DeviceServiceStub(channel)

    async def _ready_channel(self, end: float) -> grpc.aio.Channel:
        if self._closed:
            raise CoordinatorUnavailable("the client is closed")
        channel = self._open_channel()
        if channel.get_state(try_to_connect=True) is not grpc.ChannelConnectivity.READY:
            try:
                async with asyncio.timeout(min(self._policy.connect_timeout_s, self._left(end))):
                    await self._connected(channel)
            except TimeoutError as error:
                raise CoordinatorUnavailable(
                    f"no coordinator answers at {self._address}", hint="is `edge-coordinator serve` running there?"
                ) from error
        return channel

    async def _connected(self, channel: grpc.aio.Channel) -> None:
        """Wait for the connection. Raises CoordinatorUnavailable as soon as a failure has a reason that waiting does not mend."""
        state = channel.get_state()
        while state is not grpc.ChannelConnectivity.READY:
            if state is grpc.ChannelConnectivity.SHUTDOWN:
                raise CoordinatorUnavailable("the connection was closed", reason="CONNECTION_LOST")
            if state is grpc.ChannelConnectivity.TRANSIENT_FAILURE:
                await require_handshake(str(self._address), self._policy.connect_timeout_s, self._credentials)
            await channel.wait_for_state_change(state)
            state = channel.get_state(try_to_connect=True)

    def _open_channel(self) -> grpc.aio.Channel:
        """The channel; a new one when the certificate's files changed, while calls on the old one go on."""
        tls = self._credentials.tls
        try:
            files = tls.stamp() if tls else ()
            if self._channel is not None and files != self._channel_files:
                closing: asyncio.Task[None] = asyncio.create_task(self._channel.close(OLD_CHANNEL_GRACE_S))
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)
                self._channel = None
            if self._channel is None:
                self._channel = open_channel(self._address, self._credentials, _channel_options(self._policy))
                self._channel_files = files
        except ConfigError as error:
            raise CoordinatorUnavailable(str(error), hint=error.hint) from error
        return self._channel

    @property
    def _metadata(self) -> tuple[tuple[str, str], ...]:
        """What goes with each call: the token, or the name of a device that shows nothing. Raises Unauthenticated."""
        tls, token = self._credentials.tls, self._credentials.token
        if token is not None:
            try:
                return ((AUTHORIZATION_KEY, f"Bearer {token.require_valid()}"),)
            except (ConfigError, Unauthenticated) as error:
                if tls is not None and tls.cert is not None:
                    return ()  # its certificate is enough
                if isinstance(error, Unauthenticated):
                    raise
                raise Unauthenticated(str(error), hint=error.hint) from error
        return ((DEVICE_ID_KEY, self._device_id),) if self._device_id and tls is None else ()

    def _shown(self) -> object:
        """The credential that a call shows now, to be compared with a later one: the connection with its certificate, and the token. None
        where there is nothing to show.
        """
        try:
            return None if self._closed else (self._open_channel(), self._metadata)
        except CoordinatorError:
            return None

    def _has_fresher_than(self, shown: object) -> bool:
        return self._shown() not in (None, shown)

    async def _keep_renewed(self, token: TokenFile) -> None:
        """Renew the token again and again, each time before it ends. A failure is logged once and tried again."""
        logged = ""
        while True:
            try:
                with suppress(ConfigError):  # one that cannot be read is renewed at once
                    await asyncio.sleep(token.renew_in_s())
                end = self._end(self._policy.control_deadline_s)
                stub = credential_pb2_grpc.CredentialServiceStub(await self._ready_channel(end))
                request = credential_pb2.RefreshTokenRequest()
                try:
                    reply = await stub.RefreshToken(request, timeout=self._left(end), metadata=self._metadata)
                except grpc.RpcError as error:
                    raise from_rpc_error(error) from error
                token.put(reply.token)
                logged = ""
            except EdgeError as error:
                if str(error) != logged:
                    logged = str(error)
                    log.warning("the token was not renewed: %s", logged)
                await asyncio.sleep(RENEW_AGAIN_S)

    @staticmethod
    def _end(deadline_s: float) -> float:
        return asyncio.get_running_loop().time() + deadline_s

    @staticmethod
    def _left(end: float) -> float:
        """Seconds until `end`, never quite 0 (a call without any time is still answered DEADLINE_EXCEEDED by gRPC)."""
        return max(0.001, end - asyncio.get_running_loop().time())


def may_be_asked_again(error: CoordinatorError) -> bool:
    """With the same key: what is UNAVAILABLE, a call that still runs elsewhere, and one for which nothing was held: it came too early."""
    return isinstance(error, (CallInProgress, RateLimited)) or is_worth_retrying(error)


def is_upstream_failure(error: CoordinatorError) -> bool:
    """The coordinator answered, and the cloud LLM that it called failed."""
    return error.reason == "UPSTREAM_FAILED"


def _require_privacy(address: Address, credentials: ClientCredentials, allow_insecure: bool) -> None:
    """Raises UsageError when prompts or a token would cross the network in the clear, or TLS would be asked of a Unix socket."""
    if credentials.tls is not None and address.path:
        raise UsageError(f"{address} is a Unix socket, which speaks no TLS", hint="remove coordinator.tls")
    if credentials.tls is not None or address.is_local:
        return
    if credentials.token is not None:
        raise UsageError(f"refusing to send a token unencrypted to {address}", hint="set coordinator.tls.ca")
    if not allow_insecure:
        raise UsageError(
            f"refusing to send prompts unencrypted to {address}",
            hint="set coordinator.tls.ca, or use a loopback address or a Unix socket",
        )


def _channel_options(policy: ClientPolicy) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", policy.max_message_bytes),
        ("grpc.max_send_message_length", policy.max_message_bytes),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.keepalive_time_ms", 30_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]


def _encode(build: Callable[[], T]) -> T:
    """A message from values. Raises InvalidRequest on what the wire cannot carry (a lone surrogate, a number out of range)."""
    try:
        return build()
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidRequest(f"cannot be sent: {error}") from error

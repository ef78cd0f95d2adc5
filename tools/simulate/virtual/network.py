"""Messages between simulated devices and a simulated coordinator.

Both ends are the real ones: the generated stub of the client with its serialisers calls a `SimulatedChannel`, and the service puts its
handlers into a `ServiceEndpoint`. A request or a reply may be lost, come late, out of order, or twice; RPCs may be unary or streams of
replies.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, NoReturn

import grpc

from edge.rpc.grpc_client import ClientPolicy, GrpcCoordinatorClient
from tools.simulate.virtual.loop import Host, current_host, is_alive

KEEPALIVE_S = 8.0
DELAY_S, LATE_S = 0.05, 3.0
"""How long a message takes at most, and one that is late."""
HELD_S = 2.0
"""How long a message waits at most for a later one that overtakes it."""
Metadata = Sequence[tuple[str, str | bytes]]


@dataclass(eq=False, slots=True)
class _Message:
    """On its way; `number` counts those of its lane."""

    number: int
    deliver: Callable[[], None]
    arrived: bool = False


@dataclass(eq=False, slots=True)
class _Lane:
    """One direction of a link: how many messages were sent, the newest that has arrived, and those held back for it."""

    sent: int = 0
    newest: int = 0
    held: list[_Message] = field(default_factory=list)


@dataclass(slots=True)
class LinkFaults:
    """What may happen to a message, as shares in [0, 1]. `reorder`: it is held until a later one has overtaken it;
    `cut`: nothing passes."""

    drop: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    cut: bool = False
    reorder: float = 0.0
    lanes: tuple[_Lane, _Lane] = field(default_factory=lambda: (_Lane(), _Lane()))

    def heal(self) -> None:
        """No fault any more."""
        self.drop = self.duplicate = self.late = self.reorder = 0.0
        self.cut = False


@dataclass(slots=True)
class Traffic:
    """How many messages there were, and what became of them. `held`: made to wait for a later one; `overtaken`: came after a later one,
    whatever made it so."""

    sent: int = 0
    dropped: int = 0
    duplicated: int = 0
    late: int = 0
    reset: int = 0
    held: int = 0
    overtaken: int = 0


class Network:
    """Carries messages under the faults of their link."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random, keepalive_s: float | None = KEEPALIVE_S) -> None:
        """`keepalive_s`: how often both ends check that the other one is still there; None: never, where no message is lost without
        a word."""
        self.loop = loop
        self.rng = rng
        self.keepalive_s = keepalive_s
        self.traffic = Traffic()
        self._outside = contextvars.Context()

    def carry(
        self,
        faults: LinkFaults,
        deliver: Callable[[], None],
        lost: Callable[[], None] | None = None,
        *,
        size: int = 0,
        up: bool = False,
    ) -> bool:
        """Call `deliver` once, later; or never; or twice. When it is lost (then False is returned), `lost` may be called: the connection
        was seen to break. `size` in bytes; `up`: towards the coordinator."""
        if not is_alive():
            return True
        self.traffic.sent += 1
        if faults.cut or self.rng.random() < faults.drop:
            self.traffic.dropped += 1
            if lost is not None and self.rng.random() < 0.5:
                self.later(self.rng.uniform(0.0, 0.5), lost)
            return False
        copies = 2 if self.rng.random() < faults.duplicate else 1
        self.traffic.duplicated += copies - 1
        for _ in range(copies):
            self._send(faults, faults.lanes[up], deliver)
        return True

    def _send(self, faults: LinkFaults, lane: _Lane, deliver: Callable[[], None]) -> None:
        lane.sent += 1
        message = _Message(lane.sent, deliver)
        if faults.reorder and self.rng.random() < faults.reorder:
            self.traffic.held += 1
            lane.held.append(message)
            self.later(HELD_S, lambda: self._arrive(lane, message))
        else:
            self.later(self._delay_s(faults), lambda: self._arrive(lane, message))

    def _arrive(self, lane: _Lane, message: _Message) -> None:
        """Deliver it, and then those that were held back for it."""
        if message.arrived:
            return
        message.arrived = True
        self.traffic.overtaken += message.number < lane.newest
        lane.newest = max(lane.newest, message.number)
        message.deliver()
        overtaken = [held for held in lane.held if held.number < message.number]
        lane.held = [held for held in lane.held if held.number > message.number]
        for held in overtaken:
            self._arrive(lane, held)

    def _delay_s(self, faults: LinkFaults) -> float:
        if self.rng.random() < faults.late:
            self.traffic.late += 1
            return self.rng.uniform(0.0, LATE_S)
        return self.rng.uniform(0.001, DELAY_S)

    def later(self, delay_s: float, deliver: Callable[[], None]) -> None:
        """Do something outside of all hosts."""
        self.loop.call_later(delay_s, deliver, context=self._outside)

    def check_again(self, look: Callable[[], None]) -> None:
        """Do so when the next keep-alive is due, if there are any."""
        if self.keepalive_s is not None:
            self.later(self.keepalive_s, look)


@dataclass(eq=False, slots=True)
class RpcExchange:
    """One RPC under way. `replies` holds ("message", bytes), ("end", None) or ("error", AioRpcError) in the order they
    came."""

    path: str
    request: bytes
    timeout_s: float | None
    metadata: Metadata
    streams: bool = False
    arrived: bool = False
    replies: asyncio.Queue[tuple[str, Any]] = field(default_factory=asyncio.Queue)
    client: Host | None = field(default_factory=current_host)
    over: bool = False

    @property
    def abandoned(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.over or (self.client is not None and not self.client.alive)

    def answer(self, kind: str, value: Any) -> None:
        """Something arrived at the client; a greeting is for nobody."""
        if not self.over and kind != "greeting":
            self.replies.put_nowait((kind, value))

    def reset(self) -> None:
        """The client sees its connection break."""
        self.answer("error", unavailable("the connection was reset"))


class _Ordered:
    """Replies that arrive in the order they were sent; one that is lost holds up those after it."""

    def __init__(self, network: Network, faults: LinkFaults, arrive: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self._network = network
        self._faults = faults
        self._arrive = arrive
        self._lost = lost
        self._sent = 0
        self._next = 0
        self._waiting: dict[int, Any] = {}

    def send(self, value: Any) -> None:
        """Send one; it arrives after those before it, and once."""
        place, self._sent = self._sent, self._sent + 1
        if not self._network.carry(self._faults, lambda: self._take(place, value), self._lost, size=size_of(value)):
            self._network.later(KEEPALIVE_S, self._lost)

    def _take(self, place: int, value: Any) -> None:
        if place < self._next:
            return
        self._waiting[place] = value
        while self._next in self._waiting:
            self._arrive(self._waiting.pop(self._next))
            self._next += 1


class ServiceEndpoint:
    """What generated code takes for a grpc.aio server: collects handlers, and runs them on its host."""

    def __init__(self, host: Host, network: Network, peer: str) -> None:
        self.host = host
        self._network = network
        self._peer = peer
        self._handlers: list[grpc.GenericRpcHandler] = []
        self._running: dict[RpcExchange, list[asyncio.Task[None]]] = {}
        self._faults: dict[RpcExchange, LinkFaults] = {}

    def add_generic_rpc_handlers(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        """Take over handlers."""
        self._handlers += handlers

    def accept(self, exchange: RpcExchange, faults: LinkFaults) -> None:
        """A request arrived; it may be the same one again."""
        if not self.host.alive:
            self._reset(exchange, faults)
            return
        self._faults[exchange] = faults
        task = self.host.spawn(self._serve(exchange, faults), exchange.path.rpartition("/")[2])
        self._running.setdefault(exchange, []).append(task)
        self._network.check_again(lambda: self._keep_alive(exchange))

    def _keep_alive(self, exchange: RpcExchange) -> None:
        """A client that is gone without a word is noticed in the end."""
        if exchange.abandoned:
            self.cancel(exchange)
        elif exchange in self._running:
            self._network.check_again(lambda: self._keep_alive(exchange))

    def serves(self, exchange: RpcExchange) -> bool:
        """Whether a handler works on it."""
        return self.host.alive and exchange in self._running

    def cancel(self, exchange: RpcExchange) -> None:
        """The client gave up; its handlers are cancelled, as gRPC does."""
        if self.host.alive:
            for task in self._running.get(exchange, ()):
                task.cancel()

    def connections_break(self) -> None:
        """The host died: what waits for it sees its connection break, if the news gets through."""
        for exchange, faults in self._faults.items():
            self._reset(exchange, faults)

    def _reset(self, exchange: RpcExchange, faults: LinkFaults) -> None:
        self._network.traffic.reset += 1
        self._network.carry(faults, exchange.reset)

    async def _serve(self, exchange: RpcExchange, faults: LinkFaults) -> None:
        replies = _Ordered(self._network, faults, lambda reply: exchange.answer(*reply), exchange.reset)
        try:
            await self._handle(exchange, replies)
        except _Aborted as error:
            replies.send(("error", error.status))
        except asyncio.CancelledError:
            replies.send(("error", rpc_error(grpc.StatusCode.CANCELLED, "cancelled")))
            raise
        finally:
            left = [task for task in self._running.get(exchange, ()) if task is not asyncio.current_task()]
            self._running[exchange] = left
            if not left:
                self._running.pop(exchange, None)
                self._faults.pop(exchange, None)

    async def _handle(self, exchange: RpcExchange, replies: _Ordered) -> None:
        handler = self._find(exchange.path)
        request = handler.request_deserializer(exchange.request)
        context = ServerContext(self._network.loop, self._peer, exchange, lambda: replies.send(("greeting", None)))
        if handler.response_streaming:
            async for reply in handler.unary_stream(request, context):
                replies.send(("message", handler.response_serializer(reply)))
            replies.send(("end", None))
        else:
            replies.send(("message", handler.response_serializer(await handler.unary_unary(request, context))))

    def _find(self, path: str) -> Any:
        found = (handler.service(_CallDetails(path)) for handler in self._handlers)
        return next(handler for handler in found if handler is not None)


class _CallDetails(NamedTuple):
    method: str
    invocation_metadata: Metadata = ()


class ServerContext:
    """What a servicer sees of an RPC."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: str, exchange: RpcExchange, greet: Callable[[], None]) -> None:
        self._greet = greet
        self._loop = loop
        self._peer = peer
        self._exchange = exchange
        self._end = None if exchange.timeout_s is None else loop.time() + exchange.timeout_s

    def peer(self) -> str:
        """Where it comes from, in gRPC's notation."""
        return self._peer

    def invocation_metadata(self) -> Metadata:
        """What the client sent along."""
        return self._exchange.metadata

    def time_remaining(self) -> float | None:
        """Seconds the client still waits; None when it did not say."""
        return None if self._end is None else max(0.0, self._end - self._loop.time())

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        """No client waits for it; on its way it can be lost as any message."""
        self._greet()

    async def abort(self, code: grpc.StatusCode, details: str = "", trailing_metadata: Metadata = ()) -> NoReturn:
        """End the RPC with a status."""
        raise _Aborted(rpc_error(code, details, trailing_metadata))


class _Aborted(Exception):
    def __init__(self, status: grpc.aio.AioRpcError) -> None:
        super().__init__(status.details())
        self.status = status


class SimulatedChannel:
    """What generated stubs take for a grpc.aio channel. `find` gives the endpoint that serves now, or None."""

    def __init__(self, network: Network, find: Callable[[], ServiceEndpoint | None], faults: LinkFaults) -> None:
        self._network = network
        self._find = find
        self._faults = faults

    def unary_unary(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A callable for a unary RPC."""

        async def call(request: Any, timeout: float | None = None, metadata: Metadata = ()) -> Any:  # noqa: ASYNC109
            exchange = RpcExchange(path, request_serializer(request), timeout, metadata or ())
            self.open(exchange)
            (reply,) = [each async for each in self.replies(exchange)]
            return response_deserializer(reply)

        return call

    def unary_stream(self, path: str, request_serializer: Any, response_deserializer: Any, **_: Any) -> Any:
        """A callable for a server stream."""

        def call(request: Any, timeout: float | None = None, metadata: Metadata = ()) -> SimulatedStream:
            exchange = RpcExchange(path, request_serializer(request), timeout, metadata or (), streams=True)
            return SimulatedStream(self, exchange, response_deserializer)

        return call

    def open(self, exchange: RpcExchange) -> None:
        """Send an RPC's request."""
        size = len(exchange.request)
        self._network.carry(self._faults, lambda: self._arrive(exchange), exchange.reset, size=size, up=True)
        if exchange.streams:
            self._network.check_again(lambda: self._keep_alive(exchange))

    def _keep_alive(self, exchange: RpcExchange) -> None:
        """A server that is gone without a word is noticed in the end."""
        endpoint = self._find()
        if exchange.over:
            return
        if self._faults.cut or endpoint is None or not endpoint.serves(exchange):
            exchange.reset()
        else:
            self._network.check_again(lambda: self._keep_alive(exchange))

    async def replies(self, exchange: RpcExchange) -> AsyncGenerator[bytes, None]:
        """The replies of a stream, until its end, an error, or the client's own deadline; the only one of a unary RPC."""
        end = None if exchange.timeout_s is None else self._network.loop.time() + exchange.timeout_s
        ended = False
        try:
            while not ended:
                try:
                    async with asyncio.timeout_at(end):
                        kind, value = await exchange.replies.get()
                except TimeoutError:
                    raise rpc_error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from None
                ended = kind != "message" or not exchange.streams
                if kind == "error":
                    raise value
                if kind == "message":
                    yield value
        finally:
            exchange.over = True
            if not ended:
                self.give_up(exchange)

    def _arrive(self, exchange: RpcExchange) -> None:
        endpoint = self._find()
        if exchange.streams and exchange.arrived:
            return  # a connection keeps what is sent on it from coming twice, also to a server that came after the first
        exchange.arrived = True
        if endpoint is None:
            exchange.answer("error", unavailable("the connection was refused"))
        else:
            endpoint.accept(exchange, self._faults)

    def give_up(self, exchange: RpcExchange) -> None:
        """Let the server know that nobody waits any more."""
        self._network.carry(self._faults, lambda: self._cancel_at_server(exchange), up=True)

    def _cancel_at_server(self, exchange: RpcExchange) -> None:
        if (endpoint := self._find()) is not None:
            endpoint.cancel(exchange)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        """READY while there is someone to talk to."""
        reachable = not self._faults.cut and self._find() is not None
        return grpc.ChannelConnectivity.READY if reachable else grpc.ChannelConnectivity.CONNECTING

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        """Wait until there is someone to talk to, or no longer."""
        while self.get_state() is last_observed_state:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Nothing to close."""


class SimulatedStream:
    """The client's end of a stream."""

    def __init__(self, channel: SimulatedChannel, exchange: RpcExchange, deserialize: Any) -> None:
        self._channel = channel
        self._exchange = exchange
        self._deserialize = deserialize
        self._replies: Any = channel.replies(exchange)
        channel.open(exchange)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for reply in self._replies:
            yield self._deserialize(reply)

    def cancel(self) -> None:
        """End it, at the server too."""
        if not self._exchange.over:
            self._exchange.answer("error", rpc_error(grpc.StatusCode.CANCELLED, "cancelled"))
            self._channel.give_up(self._exchange)


class SimulatedClient(GrpcCoordinatorClient):
    """The real client over a simulated channel."""

    def __init__(self, channel: SimulatedChannel, device_id: str, policy: ClientPolicy, seed: int) -> None:
        super().__init__("unix:simulated", device_id=device_id, policy=policy, seed=seed)
        self._simulated = channel

    def _open_channel(self) -> Any:
        return self._simulated


def size_of(value: Any) -> int:
    """Bytes of a reply, as they are sent."""
    payload = value[1]
    return len(payload) if isinstance(payload, bytes) else 0


def rpc_error(code: grpc.StatusCode, details: str, trailing: Metadata = ()) -> grpc.aio.AioRpcError:
    """The error a real channel would raise."""
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*trailing), details=details)


def unavailable(details: str) -> grpc.aio.AioRpcError:
    """A broken connection, as gRPC reports it."""
    return rpc_error(grpc.StatusCode.UNAVAILABLE, details)

"""Processor: one thread with a Selector of its own, for its share of the connections.

A request is taken off its channel and the channel muted; it is unmuted when the answer has been written. So of one
connection there is never more than one request under way, and a producer's requests are applied in the order in which
they were sent, although some wait and the handlers run side by side.

What clients can do to it has limits: how much memory the frames of all its connections take, and how long a frame or a
login may last. A reply that cannot be given ends its own connection. If the thread ends by an error all the same,
`failed` is called, for its connections would never be answered.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.network.channel import ChannelBuilder, KafkaChannel
from spark_kafka_sink.network.deadlines import Deadlines
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX, NetworkReceive, NetworkSend
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import ByteSocket, SocketAddress, System

_log = logging.getLogger(__name__)

POLL_MS = 10_000.0
DEADLINES = Deadlines(idle_ms=600_000.0, setup_ms=30_000.0, frame_ms=60_000.0)
MEMORY_BYTES_MAX = FRAME_BYTES_MAX + 28 * 1024 * 1024
"""The frames of one processor take at most this much memory: room for the longest frame and others beside it."""


@dataclass(frozen=True, eq=False)
class ReceivedRequest:
    processor: Processor
    node: int
    receive: NetworkReceive

    @property
    def frame(self) -> memoryview:
        return self.receive.payload


class Processor:
    """`accept`, `respond`, `cut` and `stop` are for any thread; everything else is its own thread's.

    `handle` is called with each request; `respond` must be called for the request later, by any thread. `handle` may
    block, which stops the processor from reading.
    """

    def __init__(
        self,
        number: int,
        system: System,
        channels: ChannelBuilder,
        handle: Callable[[ReceivedRequest], object],
        failed: Callable[[BaseException], None],
    ) -> None:
        memory: FrameMemory[KafkaChannel] = FrameMemory(MEMORY_BYTES_MAX)
        self._selector = Selector(system, channels=channels, deadlines=DEADLINES, memory=memory)
        self._handle = handle
        self._failed = failed
        self._nodes: dict[str, int] = {}
        self._accepted: deque[tuple[str, int, ByteSocket, SocketAddress]] = deque()
        self._replies: deque[tuple[ReceivedRequest, ChannelResponse]] = deque()
        self._cuts: deque[tuple[int, threading.Event]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"embedded-broker-processor-{number}", daemon=True)

    # --- other threads

    def start(self) -> None:
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._nodes) + len(self._accepted)

    def accept(self, channel_id: str, node: int, sock: ByteSocket, address: SocketAddress) -> None:
        self._accepted.append((channel_id, node, sock, address))
        self._selector.wakeup()

    def respond(self, request: ReceivedRequest, reply: ChannelResponse) -> None:
        self._replies.append((request, reply))
        self._selector.wakeup()

    def cut(self, node: int) -> threading.Event:
        """Close all connections of a node; the event is set when that is done."""
        done = threading.Event()
        self._cuts.append((node, done))
        self._selector.wakeup()
        return done

    def stop(self) -> None:
        self._stopping = True
        self._selector.wakeup()

    def join(self) -> None:
        """After `stop`, and when no more connections are delivered."""
        self._thread.join()
        for _, _, sock, _ in self._accepted:
            sock.close()

    # --- its own thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.run_once()
            self._send_last_replies()
        except BaseException as error:
            self._failed(error)
        finally:
            self._selector.close()
            for _, done in self._cuts:
                done.set()

    def run_once(self) -> None:
        self._register_accepted()
        self._cut_nodes()
        self._send_replies()
        self._selector.poll(POLL_MS)
        self._finish_sends()
        self._take_requests()
        self._forget_disconnected()

    def _send_last_replies(self) -> None:
        """Write what the sockets take at once: clients that do not read must not delay the end."""
        self._send_replies()
        self._selector.poll(0)

    def _register_accepted(self) -> None:
        while self._accepted:
            channel_id, node, sock, address = self._accepted.popleft()
            # A client that is gone again already; the selector has closed the socket.
            with contextlib.suppress(OSError, KafkaSinkError):
                self._selector.register(channel_id, sock, address)
                self._nodes[channel_id] = node

    def _cut_nodes(self) -> None:
        while self._cuts:
            node, done = self._cuts.popleft()
            for channel_id in [name for name, owner in self._nodes.items() if owner == node]:
                self._close(channel_id)
            done.set()

    def _send_replies(self) -> None:
        while self._replies:
            request, reply = self._replies.popleft()
            channel_id = request.receive.channel_id
            self._selector.give_back(request.receive.reserved)
            if self._selector.channel(channel_id) is None:
                continue
            try:
                self._send(channel_id, reply)
            except Exception:
                _log.exception("the embedded broker could not send an answer")
                self._close(channel_id)

    def _send(self, channel_id: str, reply: ChannelResponse) -> None:
        if reply.frame is not None:
            self._selector.send(NetworkSend(channel_id, reply.frame))
            return
        if reply.raw_bytes is not None:
            self._write_raw(channel_id, reply.raw_bytes)
        if reply.action is ChannelAction.CLOSE:
            self._close(channel_id)
        elif reply.action is ChannelAction.UNMUTE:
            self._unmute(channel_id)

    def _write_raw(self, channel_id: str, raw_bytes: bytes) -> None:
        """Bytes that are no frame: one attempt, which is all that a fault needs."""
        channel = self._selector.channel(channel_id)
        if channel is not None:
            with contextlib.suppress(OSError, KafkaSinkError):
                channel.transport.write([memoryview(raw_bytes)])
                channel.transport.flush()

    def _take_requests(self) -> None:
        for receive in self._selector.completed_receives:
            self._mute(receive.channel_id)
            self._handle(ReceivedRequest(self, self._nodes[receive.channel_id], receive))

    def _finish_sends(self) -> None:
        for send in self._selector.completed_sends:
            self._unmute(send.channel_id)

    def _mute(self, channel_id: str) -> None:
        self._selector.mute(channel_id)

    def _unmute(self, channel_id: str) -> None:
        if self._selector.channel(channel_id) is not None:
            self._selector.unmute(channel_id)

    def _forget_disconnected(self) -> None:
        for channel_id, state in self._selector.disconnected.items():
            _log.debug("connection %s ended: %s", channel_id, state.error or state.kind.value)
            self._nodes.pop(channel_id, None)

    def _close(self, channel_id: str) -> None:
        self._selector.close_channel(channel_id)
        self._nodes.pop(channel_id, None)

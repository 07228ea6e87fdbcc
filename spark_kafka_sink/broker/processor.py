"""Processor: one thread with a Selector of its own, for its share of the connections.

A request is taken off its channel and the channel muted; it is unmuted when the answer has been written. So of one
connection there is never more than one request with the handlers, and a producer's requests are applied in the order in
which they were sent, although the handlers run in parallel.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from spark_kafka_sink.broker.reply import Reply, Then
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.network.channel import ChannelBuilder
from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import ByteSocket, SocketAddress, System

_log = logging.getLogger(__name__)

POLL_MS = 10_000.0
IDLE_MS_MAX = 600_000.0


@dataclass(frozen=True, eq=False)
class Request:
    processor: Processor
    channel_id: str
    node: int
    frame: memoryview


class Processor:
    """`accept`, `respond`, `cut` and `stop` are for other threads; everything else is its own thread's."""

    def __init__(
        self,
        number: int,
        system: System,
        channels: ChannelBuilder,
        frame_bytes_max: int,
        take: Callable[[Request], None],
    ) -> None:
        self._selector = Selector(
            system, channels=channels, frame_bytes_max=frame_bytes_max, connections_max_idle_ms=IDLE_MS_MAX
        )
        self._take = take
        self._nodes: dict[str, int] = {}
        self._accepted: deque[tuple[str, int, ByteSocket, SocketAddress]] = deque()
        self._replies: deque[tuple[str, Reply]] = deque()
        self._cuts: deque[tuple[int, threading.Event]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=f"embedded-broker-processor-{number}", daemon=True)

    # --- other threads

    def start(self) -> None:
        self._thread.start()

    def accept(self, channel_id: str, node: int, sock: ByteSocket, address: SocketAddress) -> None:
        self._accepted.append((channel_id, node, sock, address))
        self._selector.wakeup()

    def respond(self, channel_id: str, reply: Reply) -> None:
        self._replies.append((channel_id, reply))
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
        self._thread.join()

    # --- its own thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self._register_accepted()
                self._cut_nodes()
                self._send_replies()
                self._selector.poll(POLL_MS)
                self._finish_sends()
                self._take_requests()
                self._forget_disconnected()
        except Exception:
            _log.exception("a processor of the embedded broker has failed")
        finally:
            self._selector.close()
            for _, _, sock, _ in self._accepted:
                sock.close()
            for _, done in self._cuts:
                done.set()

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
            channel_id, reply = self._replies.popleft()
            if self._selector.channel(channel_id) is None:
                continue
            if reply.frame is not None:
                self._selector.send(NetworkSend(channel_id, reply.frame))
                continue
            if reply.raw is not None:
                self._write_raw(channel_id, reply.raw)
            if reply.then is Then.CLOSE:
                self._close(channel_id)
            elif reply.then is Then.READ_ON:
                self._unmute(channel_id)

    def _write_raw(self, channel_id: str, raw: bytes) -> None:
        """Bytes that are no frame: one attempt, which is all that a fault needs."""
        channel = self._selector.channel(channel_id)
        if channel is not None:
            with contextlib.suppress(OSError, KafkaSinkError):
                channel.transport.write([memoryview(raw)])
                channel.transport.flush()

    def _take_requests(self) -> None:
        for receive in self._selector.completed_receives:
            self._mute(receive.channel_id)
            self._take(Request(self, receive.channel_id, self._nodes[receive.channel_id], receive.payload))

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

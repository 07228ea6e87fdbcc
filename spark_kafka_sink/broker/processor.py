"""Processor: a network thread that serves a share of the connections, reading requests and writing responses.

Each processor has its own Selector. It mutes a channel after reading a request from it, and unmutes the channel once
the response has been written. Therefore a connection has at most one request in progress, and a producer's requests are
applied in the order in which they were sent, even if some are delayed and handlers run concurrently.

The memory for all of a processor's frames is limited, and so is the time to receive a frame or to complete a login. If
a response cannot be sent, only its own connection is closed. If another error ends the thread, `on_failure` is called
and the broker shuts down, because the thread's clients would otherwise wait forever.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse
from spark_kafka_sink.errors import KafkaSinkError
from spark_kafka_sink.network.channel import ChannelBuilder, KafkaChannel
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.frame import DEFAULT_MAX_FRAME_BYTES, NetworkReceive, NetworkSend
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.network.system import ByteSocket, SocketAddress, System

_log = logging.getLogger(__name__)

MAX_POLL_MS = 10_000.0
"""The maximum time to wait for I/O. Other threads end the wait early by waking the selector."""
TIMEOUTS = ChannelTimeouts(idle_ms=600_000.0, setup_ms=30_000.0, frame_ms=60_000.0)
"""Limits for idle connections, for the TLS handshake and login, and for clients that send a frame too slowly."""
MAX_FRAME_MEMORY_BYTES = DEFAULT_MAX_FRAME_BYTES + 28 * 1024 * 1024
"""Memory limit for the frames of one processor: enough for the longest frame and several shorter ones."""


@dataclass(frozen=True, eq=False)
class ReceivedRequest:
    """A request frame, the processor that read it, and the node that the client sent it to."""

    processor: Processor
    node_id: int
    network_receive: NetworkReceive

    @property
    def frame(self) -> memoryview:
        return self.network_receive.payload


class _AcceptedConnection(NamedTuple):
    """A connection that the acceptor has handed over and that is not registered with the selector yet."""

    channel_id: str
    node_id: int
    sock: ByteSocket
    address: SocketAddress


class Processor:
    """A network thread and its connections.

    Any thread may call the methods up to and including `join`. The others run only on the processor's thread.
    """

    def __init__(
        self,
        number: int,
        system: System,
        channel_builder: ChannelBuilder,
        handle_request: Callable[[ReceivedRequest], object],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """`handle_request` is called on the processor's thread. While it blocks, the processor does no I/O.

        For each request, `send_response` must be called exactly once, on any thread.
        """
        frame_memory: FrameMemory[KafkaChannel] = FrameMemory(MAX_FRAME_MEMORY_BYTES)
        self._selector = Selector(system, channel_builder=channel_builder, timeouts=TIMEOUTS, frame_memory=frame_memory)
        self._handle_request = handle_request
        self._on_failure = on_failure
        self._node_ids_by_channel_id: dict[str, int] = {}
        """The node that each registered channel belongs to."""
        self._new_connections: deque[_AcceptedConnection] = deque()
        self._responses: deque[tuple[ReceivedRequest, ChannelResponse]] = deque()
        self._nodes_to_close: deque[tuple[int, threading.Event]] = deque()
        """The nodes to which all connections must be closed, each with an event to set once they are closed."""
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name=f"embedded-broker-processor-{number}", daemon=True)

    # --- any thread

    def start(self) -> None:
        self._thread.start()

    @property
    def connection_count(self) -> int:
        return len(self._node_ids_by_channel_id) + len(self._new_connections)

    def accept(self, channel_id: str, node_id: int, sock: ByteSocket, address: SocketAddress) -> None:
        """Hand over an accepted connection. From now on, the processor's thread owns the socket."""
        self._new_connections.append(_AcceptedConnection(channel_id, node_id, sock, address))
        self._selector.wakeup()

    def send_response(self, request: ReceivedRequest, response: ChannelResponse) -> None:
        """Queue the response to a request. The processor's thread writes it and carries out its action."""
        self._responses.append((request, response))
        self._selector.wakeup()

    def close_connections(self, node_id: int) -> threading.Event:
        """Ask the thread to close all connections to a node. Return an event that is set once they are closed."""
        closed_event = threading.Event()
        self._nodes_to_close.append((node_id, closed_event))
        self._selector.wakeup()
        return closed_event

    def stop(self) -> None:
        """Tell the thread to end. Does not wait for it."""
        self._is_stopping = True
        self._selector.wakeup()

    def join(self) -> None:
        """Wait until the thread has ended. Call this after `stop`, when `accept` will not be called again."""
        self._thread.join()
        for connection in self._new_connections:
            connection.sock.close()

    # --- the processor's thread

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self.run_once()
            self._flush_responses()
        except BaseException as error:
            self._on_failure(error)
        finally:
            self._selector.close()
            # Closing the selector closed all connections, so release the threads that wait for that.
            for _, closed_event in self._nodes_to_close:
                closed_event.set()

    def run_once(self) -> None:
        """Carry out the work that other threads have queued, wait for I/O, and process the results."""
        self._configure_new_connections()
        self._close_node_connections()
        self._process_new_responses()
        self._selector.poll(MAX_POLL_MS)
        self._process_completed_sends()
        self._process_completed_receives()
        self._process_disconnected()

    def _flush_responses(self) -> None:
        """Write only what the sockets accept immediately: clients that do not read must not delay a shutdown."""
        self._process_new_responses()
        self._selector.poll(timeout_ms=0)

    def _configure_new_connections(self) -> None:
        while self._new_connections:
            connection = self._new_connections.popleft()
            # If the client has already disconnected, the selector closes the socket.
            with contextlib.suppress(OSError, KafkaSinkError):
                self._selector.register(connection.channel_id, connection.sock, connection.address)
                self._node_ids_by_channel_id[connection.channel_id] = connection.node_id

    def _close_node_connections(self) -> None:
        """Close the connections to each node in `_nodes_to_close`, and wake the thread that waits for this."""
        while self._nodes_to_close:
            node_id, closed_event = self._nodes_to_close.popleft()
            channel_ids = [
                channel_id
                for channel_id, channel_node_id in self._node_ids_by_channel_id.items()
                if channel_node_id == node_id
            ]
            try:
                for channel_id in channel_ids:
                    self._close(channel_id)
            finally:
                # Release the waiting thread even after an error. The error ends the processor's thread, which then
                # closes all connections.
                closed_event.set()

    def _process_new_responses(self) -> None:
        """Release the memory of each answered request, and start its response unless the connection has ended."""
        while self._responses:
            request, response = self._responses.popleft()
            channel_id = request.network_receive.channel_id
            self._selector.release_memory(request.network_receive.reserved_bytes)
            if self._selector.channel(channel_id) is None:
                continue
            try:
                self._process_response(channel_id, response)
            except Exception:
                _log.exception("Could not send a response")
                self._close(channel_id)

    def _process_response(self, channel_id: str, response: ChannelResponse) -> None:
        """Start writing a response, then close or unmute the channel, or keep it muted, as the action says.

        The action of a frame is ignored: `_process_completed_sends` unmutes the channel once the frame is written.
        """
        if response.frame is not None:
            self._selector.send(NetworkSend(channel_id, response.frame))
            return
        if response.raw_bytes is not None:
            self._write_raw_bytes(channel_id, response.raw_bytes)
        if response.action is ChannelAction.CLOSE:
            self._close(channel_id)
        elif response.action is ChannelAction.UNMUTE:
            self._unmute(channel_id)

    def _write_raw_bytes(self, channel_id: str, raw_bytes: bytes) -> None:
        """Write bytes that are not a frame, in a single attempt, which is enough for an injected fault."""
        channel = self._selector.channel(channel_id)
        if channel is not None:
            with contextlib.suppress(OSError, KafkaSinkError):
                channel.transport.write([memoryview(raw_bytes)])
                channel.transport.flush()

    def _process_completed_receives(self) -> None:
        for receive in self._selector.completed_receives:
            self._mute(receive.channel_id)
            self._handle_request(ReceivedRequest(self, self._node_ids_by_channel_id[receive.channel_id], receive))

    def _process_completed_sends(self) -> None:
        for send in self._selector.completed_sends:
            self._unmute(send.channel_id)

    def _mute(self, channel_id: str) -> None:
        self._selector.mute(channel_id)

    def _unmute(self, channel_id: str) -> None:
        """Read the next request from the channel, unless the channel has been closed."""
        if self._selector.channel(channel_id) is not None:
            self._selector.unmute(channel_id)

    def _process_disconnected(self) -> None:
        for channel_id, state in self._selector.disconnected.items():
            _log.debug("Connection %s was closed: %s", channel_id, state.error or state.kind.value)
            self._node_ids_by_channel_id.pop(channel_id, None)

    def _close(self, channel_id: str) -> None:
        self._selector.close_channel(channel_id)
        self._node_ids_by_channel_id.pop(channel_id, None)

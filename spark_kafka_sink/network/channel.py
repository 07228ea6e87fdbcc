"""KafkaChannel: a connection with a transport, an authenticator and at most one send and one receive in progress.

A channel goes through these states. Only the Selector calls the methods that lead from one state to the next:

    connecting --finish_connect--> handshaking --prepare--> authenticating --read/write--> ready
                                                                  ^                          |
                                                                  +--- a client's session expires soon, or
                                                                       a server receives a new SaslHandshake

Three attributes describe the progress:

|                                 | `state.kind`    | `is_connecting` | `is_ready` |
|---------------------------------|-----------------|-----------------|------------|
| connecting                      | `NOT_CONNECTED` | yes             | no         |
| handshaking, authenticating     | `AUTHENTICATE`  | no              | no         |
| ready                           | `READY`         | no              | yes        |
| re-authenticating               | `READY`         | no              | no         |

When a channel expires or fails authentication, `state.kind` becomes the reason for closing it. It then no longer shows
whether the channel was still connecting, but `is_connecting` does.

A frame that is partly written is always finished first. Otherwise, authentication frames are written before all others.
The channel holds references to a send's segments until the send is complete or the channel is closed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Protocol

from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError
from spark_kafka_sink.network.authenticator import MAX_AUTHENTICATION_FRAME_BYTES, Authenticator
from spark_kafka_sink.network.frame import (
    DEFAULT_MAX_FRAME_BYTES,
    FrameReader,
    NetworkReceive,
    NetworkSend,
    OutgoingFrame,
)
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.io_counts import IoCounts, TrafficCounts
from spark_kafka_sink.network.system import EVENT_READ, EVENT_WRITE, Buffer, ByteSocket, SocketAddress
from spark_kafka_sink.network.transport import MAX_SEGMENTS_PER_WRITE, Transport, raise_if_connect_failed

MAX_READ_BYTES_PER_POLL = 1024 * 1024
"""The number of bytes after which a channel stops reading in one poll, so that the other channels get their turn."""


class ChannelStateKind(Enum):
    """A channel's progress, or the reason why it was closed."""

    NOT_CONNECTED = "not connected"
    AUTHENTICATE = "authenticating"
    READY = "ready"
    EXPIRED = "closed when idle"
    AUTHENTICATION_FAILED = "authentication failed"


@dataclass(frozen=True)
class ChannelState:
    """A channel's progress and, once the channel has failed, the error that closed it."""

    kind: ChannelStateKind
    error: KafkaSinkError | None = None
    has_received: bool = False
    """Whether the peer had sent any bytes, or completed a TLS handshake. Set only in the state of a closed channel."""

    @property
    def has_failed_authentication(self) -> bool:
        return self.kind is ChannelStateKind.AUTHENTICATION_FAILED


class KafkaChannel:
    """A connection to one peer. Owned by one Selector and used only by its thread.

    `channel_id`: chosen by the owner of the selector; identifies the channel in sends and receives.
    `is_connecting`: whether the socket is still connecting. False for a connection that a server has accepted.
    `max_frame_bytes`: the largest frame to receive.
    """

    def __init__(
        self,
        channel_id: str,
        address: SocketAddress,
        transport: Transport,
        authenticator: Authenticator,
        *,
        is_connecting: bool,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
    ) -> None:
        self.id = channel_id
        self.address = address
        self.transport = transport
        self.authenticator = authenticator
        self.is_connecting = is_connecting
        self.is_muted = False
        self.is_ready = False
        """Whether frames other than authentication frames can be sent and received."""
        self.last_active_ms = 0.0
        """When the Selector added the channel or last processed its events, on the monotonic clock."""
        self.registered_events = 0
        """The events that the selector's poller watches for on the socket."""
        self.bytes_received = 0
        self.setup_started_ms: float | None = None
        """When connecting or (re-)authentication started; None while the channel is ready."""
        self.frame_started_ms: float | None = None
        """When the current frame started; None between frames and while reading is paused."""
        self.state = ChannelState(ChannelStateKind.NOT_CONNECTED if is_connecting else ChannelStateKind.AUTHENTICATE)
        self._max_frame_bytes = max_frame_bytes
        self._has_completed_handshake = False  # set once, by the TLS handshake; not set without TLS
        self._has_started_authentication = False  # set once, after the TLS handshake
        self._has_authenticated = False  # set once; a later authentication counts as a re-authentication
        self._reader = FrameReader()
        self._frame_memory: FrameMemory[KafkaChannel] | None = None
        self._counts = IoCounts()
        self._traffic_counts: tuple[TrafficCounts, ...] = ()  # the selector's total and, if counted, the channel's own
        self._send: NetworkSend | None = None
        self._send_frame: OutgoingFrame | None = None
        """The frame of `_send`; None if there is no send."""
        self._authentication_frame: OutgoingFrame | None = None
        self._update_ready()

    def __repr__(self) -> str:
        return f"<KafkaChannel {self.id} {self.address} {self.state.kind.value}>"

    @property
    def principal(self) -> str:
        return self.authenticator.principal

    @property
    def final_state(self) -> ChannelState:
        """The state to report once the channel has been closed."""
        return replace(self.state, has_received=self.bytes_received > 0 or self._has_completed_handshake)

    @property
    def has_output(self) -> bool:
        """Whether the channel has bytes to write now."""
        return (
            (self._send is not None and self.is_ready)
            or self._authentication_frame is not None
            or self.transport.has_buffered_output
        )

    @property
    def can_read(self) -> bool:
        """Whether the next frame may be read now.

        During the first authentication, the channel reads the next frame only once its own frame has been written.
        """
        is_responding = self._authentication_frame is not None and self.state.kind is ChannelStateKind.AUTHENTICATE
        is_muted = self.is_muted and self.is_ready
        return not (self.is_connecting or is_muted or self._reader.is_waiting_for_memory or is_responding)

    @property
    def is_reading_frame(self) -> bool:
        """Whether a frame has been received in part and the rest of it may be read now."""
        return self._reader.has_partial_frame and self.can_read

    @property
    def has_buffered_input(self) -> bool:
        """Whether input is waiting in a buffer and may be read now. It has left the socket, so no poller reports it."""
        return (self._reader.has_buffered_input or self.transport.has_buffered_input) and self.can_read

    def update_start_times(self, now_ms: float) -> None:
        """Record when the setup and the current frame started. Call this whenever the state may have changed."""
        if self.is_ready:
            self.setup_started_ms = None
        elif self.setup_started_ms is None:
            self.setup_started_ms = now_ms
        if not self.is_reading_frame:
            self.frame_started_ms = None
        elif self.frame_started_ms is None:
            self.frame_started_ms = now_ms

    def resume_reading(self) -> None:
        """Start reading the frame whose memory reservation has been granted."""
        self._reader.resume()

    @property
    def interest_events(self) -> int:
        """The events that the channel can act on now."""
        if self.is_connecting:
            return EVENT_WRITE
        read_event = EVENT_READ if self.can_read else 0
        write_event = EVENT_WRITE if self.has_output else 0
        return read_event | write_event

    def attach(self, counts: IoCounts, frame_memory: FrameMemory[KafkaChannel] | None, now_ms: float) -> None:
        """Count this channel's I/O in `counts`, and reserve memory for its long frames from `frame_memory`.

        Call this once, before anything is read or written.

        `frame_memory`: None if the memory is not limited.
        `now_ms`: the current time, which becomes the time of the last activity.
        """
        self._counts = counts
        channel_counts = counts.get_or_create_channel_counts(self.id)
        self._traffic_counts = (counts,) if channel_counts is None else (counts, channel_counts)
        if not self.is_connecting:  # an accepted socket is already connected
            counts.connections_opened += 1
        if frame_memory is not None:
            self._frame_memory = frame_memory
            self._reader = FrameReader(lambda size: frame_memory.try_reserve(self, size))
        self.last_active_ms = now_ms

    def finish_connect(self) -> None:
        """Complete the TCP connection. Raise OSError if the connection attempt failed."""
        raise_if_connect_failed(self.transport.socket)
        self.is_connecting = False
        self._counts.connections_opened += 1
        self.state = ChannelState(ChannelStateKind.AUTHENTICATE)
        self._update_ready()

    def prepare(self, now_ms: float) -> None:
        """Continue the TLS handshake, and start authentication once the handshake is complete."""
        if not self.transport.is_ready:
            self.transport.handshake()
            self._has_completed_handshake = self.transport.is_ready
        if self.transport.is_ready and not self._has_started_authentication:
            self._has_started_authentication = True
            self._queue_authentication_frame(self.authenticator.start(now_ms))
        self._record_authentication()

    def fail_authentication(self, error: KafkaSinkError) -> None:
        """Record that the channel must be closed because authentication failed, and count the failure.

        One channel can count as both a successful and a failed authentication: a client counts the TLS handshake as
        successful, but a TLS 1.3 server may reject the client's certificate after the handshake.
        """
        self.state = ChannelState(ChannelStateKind.AUTHENTICATION_FAILED, error)
        # Once the first authentication has succeeded, the authenticator is incomplete only while re-authenticating.
        if self._has_authenticated and not self.authenticator.is_complete:
            self._counts.failed_reauthentications += 1
        else:
            self._counts.failed_authentications += 1

    def set_send(self, send: NetworkSend) -> None:
        """Set the frame that `write` writes. Raise IllegalStateError if the previous one has not been completed."""
        if self._send is not None:
            raise IllegalStateError(f"channel {self.id}: cannot send a frame while another is being written")
        self._send_frame = OutgoingFrame(send.segments)
        self._send = send

    def read(self, now_ms: float) -> NetworkReceive | None:
        """Continue reading the current frame. Return the frame once it is complete, else None.

        An authentication frame is passed to the authenticator, not returned. Raise AuthenticationError if
        authentication has failed and no error response has to be written first.
        """
        frame = self._read_frame()
        if frame is None:
            return None
        self.frame_started_ms = None  # the next frame, which may have arrived in part, has its own time limit
        reserved_bytes = 0 if self._frame_memory is None else self._frame_memory.transfer_to_receiver(self)
        if not self.authenticator.is_authentication_frame(frame, now_ms):
            for counts in self._traffic_counts:
                counts.record_completed_receive()
            return NetworkReceive(self.id, frame, reserved_bytes)
        if self._frame_memory is not None:
            self._frame_memory.release(reserved_bytes)  # the caller releases only the memory of frames it is given
        self._queue_authentication_frame(self.authenticator.handle_frame(frame, now_ms))
        # If there is an error response, _finish_frame raises the failure once the response has been written.
        if self._authentication_frame is None and self.authenticator.failure is not None:
            raise self.authenticator.failure
        return None

    def write(self, now_ms: float) -> NetworkSend | None:
        """Try once to write. Return the send if this attempt has completed it, else None.

        Raise AuthenticationError once the response that rejects the peer has been written.
        """
        self._start_due_reauthentication(now_ms)
        frame = self._select_frame()
        if frame is None or frame.is_complete:
            self.transport.flush()  # the transport may hold ciphertext that the socket has not accepted yet
        else:
            written_bytes = self.transport.write(frame.next_segments(MAX_SEGMENTS_PER_WRITE))
            frame.advance(written_bytes)
            if written_bytes and frame is self._send_frame:
                for counts in self._traffic_counts:
                    counts.record_bytes_sent(written_bytes)
        # A frame is complete only once the socket has accepted all of its ciphertext.
        if frame is None or not frame.is_complete or self.transport.has_buffered_output:
            return None
        return self._finish_frame(frame)

    def close(self) -> None:
        """Close the transport, drop the send's segments and release the memory reserved for the current frame."""
        if not self.is_connecting:  # a failed attempt was not counted as opened
            self._counts.connections_closed += 1
        self._send = self._send_frame = self._authentication_frame = None
        if self._frame_memory is not None:
            self._frame_memory.remove_owner(self)
        self.transport.close()

    def _start_due_reauthentication(self, now_ms: float) -> None:
        """Start re-authentication if the session is about to expire and a new send is waiting."""
        has_new_send = self._send_frame is not None and self._send_frame.written_bytes == 0
        # Re-authentication has to read responses, so it waits until the channel is unmuted.
        can_reauthenticate = has_new_send and self._authentication_frame is None and not self.is_muted
        if can_reauthenticate and self.authenticator.is_reauthentication_due(now_ms):
            self._queue_authentication_frame(self.authenticator.start(now_ms))

    def _select_frame(self) -> OutgoingFrame | None:
        """Return the frame to write next: a partly written send first, then authentication, then a new send.

        Return None if no frame may be written now.
        """
        send_frame = self._send_frame
        if send_frame is not None and send_frame.written_bytes > 0:
            return send_frame
        if self._authentication_frame is not None:
            return self._authentication_frame
        return send_frame if self.authenticator.is_complete else None

    def _record_authentication(self) -> None:
        """Update `is_ready`, and count the authentication if the last step has completed it."""
        was_ready = self.is_ready
        self._update_ready()
        if not self.is_ready or was_ready:
            return
        if self._has_authenticated:
            self._counts.successful_reauthentications += 1
        else:
            self._counts.successful_authentications += 1
        self._has_authenticated = True

    def _update_ready(self) -> None:
        """Update `is_ready` and the state after a step of connecting or authenticating."""
        self.is_ready = (
            not self.is_connecting
            and self.transport.is_ready
            and self.authenticator.is_complete
            and self._authentication_frame is None
        )
        if self.is_ready:
            self.state = ChannelState(ChannelStateKind.READY)

    def _queue_authentication_frame(self, segments: Sequence[Buffer] | None) -> None:
        """Queue the frame that an authentication step returned, if any, and record the step."""
        if segments is not None:
            self._authentication_frame = OutgoingFrame(segments)
        self._record_authentication()

    def _finish_frame(self, frame: OutgoingFrame) -> NetworkSend | None:
        """Record that a frame has been written. Return its send, or None for an authentication frame.

        Raise AuthenticationError if the frame was the response that rejects the peer.
        """
        if frame is self._authentication_frame:
            self._authentication_frame = None
            if self.authenticator.failure is not None:
                raise self.authenticator.failure
            self._record_authentication()
            return None
        send, self._send, self._send_frame = self._send, None, None
        for counts in self._traffic_counts:
            counts.record_completed_send(frame.size)
        return send

    def _read_frame(self) -> memoryview | None:
        """Read from the transport until a frame is complete.

        Return None if no more bytes are available, or once MAX_READ_BYTES_PER_POLL have been read.
        """
        reader = self._reader
        max_bytes = self._compute_max_receive_bytes()
        remaining_bytes = MAX_READ_BYTES_PER_POLL
        frame = reader.next_frame(max_bytes)
        while frame is None and remaining_bytes > 0 and not reader.is_waiting_for_memory:
            received_bytes = self.transport.read_into(reader.prepare_buffer())
            if received_bytes == 0:
                return None
            reader.advance(received_bytes)
            remaining_bytes -= received_bytes
            self.bytes_received += received_bytes
            if self.is_ready:
                for counts in self._traffic_counts:
                    counts.record_bytes_received(received_bytes)
            frame = reader.next_frame(max_bytes)
        return frame

    def _compute_max_receive_bytes(self) -> int:
        """Return the maximum frame size. Until the first authentication has succeeded, the limit is lower."""
        # During re-authentication, the state stays READY: long responses to earlier requests may still arrive.
        if self.state.kind is ChannelStateKind.READY:
            return self._max_frame_bytes
        return min(MAX_AUTHENTICATION_FRAME_BYTES, self._max_frame_bytes)


class ChannelBuilder(Protocol):
    """Builds a Selector's channels, each with a transport and an authenticator."""

    def __call__(
        self, channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool, max_frame_bytes: int
    ) -> KafkaChannel: ...

"""KafkaChannel: a transport, an authenticator, one send and one receive at a time.

The life of a channel, and who moves it on (always the Selector, in its poll):

    connecting --finish_connect--> handshaking --handshake--> authenticating --read/write--> ready
                                                                   ^                           |
                                                                   +--- the session nears its end (clients)
                                                                        or the client begins anew (servers)

Frames of the authentication go the same way as all others, and first: a channel that has one to write writes no other.
The segments of a send are referenced until the send is complete or the channel closed, and never after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from spark_kafka_sink.errors import IllegalStateError, KafkaSinkError
from spark_kafka_sink.network.authenticator import AUTHENTICATION_FRAME_BYTES_MAX, Authenticator
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX, FrameReader, FrameWriter, NetworkReceive, NetworkSend
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.io_counts import IoCounts, TrafficCounts
from spark_kafka_sink.network.system import EVENT_READ, EVENT_WRITE, Buffer, ByteSocket, SocketAddress
from spark_kafka_sink.network.transport import SEGMENTS_PER_WRITE, Transport, connect_result

READ_BYTES_PER_POLL = 1024 * 1024
"""After this many bytes the other channels have their turn."""


class ChannelStateKind(Enum):
    """How far a channel had come, or what ended it."""

    NOT_CONNECTED = "not connected"
    AUTHENTICATE = "authenticating"
    READY = "ready"
    EXPIRED = "closed when idle"
    AUTHENTICATION_FAILED = "authentication failed"


@dataclass(frozen=True)
class ChannelState:
    kind: ChannelStateKind
    error: KafkaSinkError | None = None

    @property
    def authentication_failed(self) -> bool:
        return self.kind is ChannelStateKind.AUTHENTICATION_FAILED


class KafkaChannel:
    """Owned by one Selector, and used in its thread only."""

    def __init__(
        self,
        channel_id: str,
        address: SocketAddress,
        transport: Transport,
        authenticator: Authenticator,
        *,
        connecting: bool,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        self.id = channel_id
        self.address = address
        self.transport = transport
        self.authenticator = authenticator
        self.connecting = connecting
        self.muted = False
        self.ready = False
        """Frames of others than the authenticator may flow."""
        self.last_active_ms = 0.0
        self.waited_for = 0
        """The events that the selector's poller reports."""
        self.bytes_received = 0
        self.unready_since_ms: float | None = None
        self.frame_since_ms: float | None = None
        """Since when the other end has owed the rest of its login, or of a frame (deadlines.py)."""
        self.state = ChannelState(ChannelStateKind.NOT_CONNECTED if connecting else ChannelStateKind.AUTHENTICATE)
        self._frame_bytes_max = frame_bytes_max
        self._started = False
        self._has_authenticated = False
        self._reader = FrameReader()
        self._memory: FrameMemory[KafkaChannel] | None = None
        self._counts = IoCounts()
        self._traffic: tuple[TrafficCounts, ...] = ()
        self._send: NetworkSend | None = None
        self._send_writer: FrameWriter | None = None
        self._authentication_writer: FrameWriter | None = None
        self._note_whether_ready()

    def __repr__(self) -> str:
        return f"<KafkaChannel {self.id} {self.address} {self.state.kind.value}>"

    @property
    def principal(self) -> str:
        return self.authenticator.principal

    @property
    def has_output(self) -> bool:
        """There is something that could be written now if the socket took it."""
        return (
            (self._send is not None and self.ready)
            or self._authentication_writer is not None
            or self.transport.has_output
        )

    @property
    def wants_input(self) -> bool:
        """Before the login is over, the next frame is read when the answer to the last one is written."""
        is_answering = self._authentication_writer is not None and self.state.kind is ChannelStateKind.AUTHENTICATE
        return not (self.connecting or (self.muted and self.ready) or self._reader.starved or is_answering)

    @property
    def is_reading_a_frame(self) -> bool:
        """A part of one is here, and the rest of it may come."""
        return self._reader.has_begun and self.wants_input

    @property
    def has_buffered_input(self) -> bool:
        """Bytes that no poller will report are waiting, and may be taken."""
        return (self._reader.has_input or self.transport.has_input) and self.wants_input

    def use_memory(self, memory: FrameMemory[KafkaChannel]) -> None:
        """Let long frames take their memory from `memory`; to be called before anything is read."""
        self._memory = memory
        self._reader = FrameReader(lambda size: memory.take(self, size))

    def go_on(self) -> None:
        """The memory that the channel waited for is there."""
        self._reader.go_on()

    def events(self) -> int:
        """What to wait for."""
        if self.connecting:
            return EVENT_WRITE
        return (EVENT_READ if self.wants_input else 0) | (EVENT_WRITE if self.has_output else 0)

    def count_in(self, counts: IoCounts) -> None:
        """Count what this channel does in `counts` from now on."""
        self._counts, own = counts, counts.channel(self.id)
        self._traffic = (counts,) if own is None else (counts, own)
        counts.connections_opened += not self.connecting

    def finish_connect(self) -> None:
        connect_result(self.transport.socket)
        self.connecting = False
        self._counts.connections_opened += 1
        self.state = ChannelState(ChannelStateKind.AUTHENTICATE)
        self._note_whether_ready()

    def prepare(self, now: float) -> None:
        """Go on with the TLS handshake; after it, begin to authenticate."""
        if not self.transport.ready:
            self.transport.handshake()
        if self.transport.ready and not self._started:
            self._started = True
            self._send_login(self.authenticator.start(now))
        self._note_login_progress()

    def fail_authentication(self, error: KafkaSinkError) -> None:
        """Note why the channel must end. After a TLS handshake of version 1.3 it may be the server that refuses the
        client's certificate; the client has counted the handshake as successful by then."""
        self.state = ChannelState(ChannelStateKind.AUTHENTICATION_FAILED, error)
        if self._has_authenticated and not self.authenticator.complete:
            self._counts.failed_reauthentications += 1
        else:
            self._counts.failed_authentications += 1

    def set_send(self, send: NetworkSend) -> None:
        if self._send is not None:
            raise IllegalStateError(f"channel {self.id}: a send was given while another is being written")
        self._send_writer = FrameWriter(send.segments)
        self._send = send

    def read(self, now: float) -> NetworkReceive | None:
        """Read on at the current frame. A whole one goes to the authenticator or is returned."""
        frame = self._read_frame()
        if frame is None:
            return None
        self.frame_since_ms = None
        reserved = 0 if self._memory is None else self._memory.pass_on(self)
        if not self.authenticator.claims(frame, now):
            for counts in self._traffic:
                counts.completed_receive()
            return NetworkReceive(self.id, frame, reserved)
        if self._memory is not None:
            self._memory.give(reserved)
        self._send_login(self.authenticator.step(frame, now))
        if self._authentication_writer is None and self.authenticator.failure is not None:
            raise self.authenticator.failure
        return None

    def write(self, now: float) -> NetworkSend | None:
        """One attempt to write. The send that is complete by it, if one is."""
        writer = self._next_writer(now)
        if writer is None or writer.done:
            self.transport.flush()
        else:
            written = self.transport.write(writer.window(SEGMENTS_PER_WRITE))
            writer.advance(written)
            if written and writer is self._send_writer:
                for counts in self._traffic:
                    counts.sent(written)
        if writer is None or not writer.done or self.transport.has_output:
            return None
        return self._complete(writer)

    def close(self) -> None:
        self._counts.connections_closed += not self.connecting
        self._send = self._send_writer = self._authentication_writer = None
        if self._memory is not None:
            self._memory.leave(self)
        self.transport.close()

    def _next_writer(self, now: float) -> FrameWriter | None:
        """A frame that is begun must be finished; else the conversation goes first, one that is due included."""
        send = self._send_writer
        if send is not None and send.written > 0:
            return send
        if send is not None and self._authentication_writer is None and not self.muted and self.authenticator.due(now):
            self._send_login(self.authenticator.start(now))
        return self._authentication_writer or (send if self.authenticator.complete else None)

    def _note_login_progress(self) -> None:
        """Count the authentication if this step of the TLS handshake or of the conversation has completed it."""
        was_ready = self.ready
        self._note_whether_ready()
        if not self.ready or was_ready:
            return
        if self._has_authenticated:
            self._counts.successful_reauthentications += 1
        else:
            self._counts.successful_authentications += 1
        self._has_authenticated = True

    def _note_whether_ready(self) -> None:
        """After each step of the connection's making, and of a conversation with the authenticator."""
        self.ready = (
            not self.connecting
            and self.transport.ready
            and self.authenticator.complete
            and self._authentication_writer is None
        )
        if self.ready:
            self.state = ChannelState(ChannelStateKind.READY)

    def _send_login(self, segments: Sequence[Buffer] | None) -> None:
        if segments is not None:
            self._authentication_writer = FrameWriter(segments)
        self._note_login_progress()

    def _complete(self, writer: FrameWriter) -> NetworkSend | None:
        if writer is self._authentication_writer:
            self._authentication_writer = None
            if self.authenticator.failure is not None:
                raise self.authenticator.failure
            self._note_login_progress()
            return None
        send, self._send, self._send_writer = self._send, None, None
        for counts in self._traffic:
            counts.completed_send(writer.size)
        return send

    def _read_frame(self) -> memoryview | None:
        reader, bytes_max, budget = self._reader, self._receive_bytes_max(), READ_BYTES_PER_POLL
        frame = reader.take(bytes_max)
        while frame is None and budget > 0 and not reader.starved:
            received = self.transport.read_into(reader.space())
            if received == 0:
                return None
            reader.advance(received)
            budget -= received
            self.bytes_received += received
            if self.ready:
                for counts in self._traffic:
                    counts.received(received)
            frame = reader.take(bytes_max)
        return frame

    def _receive_bytes_max(self) -> int:
        # A channel that was ready once may get a long answer to an earlier request while it authenticates again.
        if self.state.kind is ChannelStateKind.READY:
            return self._frame_bytes_max
        return min(AUTHENTICATION_FRAME_BYTES_MAX, self._frame_bytes_max)


class ChannelBuilder(Protocol):
    """Makes the channels of a Selector: what they speak, and how they authenticate."""

    def __call__(
        self, channel_id: str, sock: ByteSocket, address: SocketAddress, *, connecting: bool, frame_bytes_max: int
    ) -> KafkaChannel: ...

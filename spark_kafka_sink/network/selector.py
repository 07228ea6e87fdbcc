"""Selector: runs many nonblocking channels in one thread. Each `poll` connects, performs handshakes, reads and writes.

A poll leaves its results in `connected`, `disconnected`, `completed_sends` and `completed_receives`, which the next
poll clears. A poll returns when:

- there is a result,
- its timeout has passed,
- `wakeup` has been called, or
- a handshake has made progress.

A poll that has only written part of a large send continues, because the caller could only poll again. In each round, a
channel gets at most one receive and one attempt to write, so that a slow broker does not delay the other channels.

Some channels have work to do that the poller does not report:

- A new send is written at once, without waiting until the poller reports that the socket is writable.
- Input may already have left the socket: a frame that arrived together with the previous one, or data buffered by TLS.

These channels are in `_ready_channels`, and a poll does not wait while there are any.

When a connection fails, its channel may still hold responses that arrived earlier. The channel then moves to
`_closing_channels` and returns one receive per poll. It is reported in `disconnected` after its last receive.
"""

from __future__ import annotations

import contextlib
import math

from spark_kafka_sink.errors import (
    AuthenticationError,
    DecodeError,
    IllegalStateError,
    NetworkError,
)
from spark_kafka_sink.network.channel import ChannelBuilder, ChannelState, ChannelStateKind, KafkaChannel
from spark_kafka_sink.network.channel_builders import build_plaintext_channel
from spark_kafka_sink.network.channel_timeouts import ChannelTimeouts
from spark_kafka_sink.network.connection_errors import FATAL_ERRORS, log_unexpected_error, with_peer_address
from spark_kafka_sink.network.frame import DEFAULT_MAX_FRAME_BYTES, NetworkReceive, NetworkSend
from spark_kafka_sink.network.frame_memory import FrameMemory
from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.network.system import (
    EVENT_READ,
    EVENT_WRITE,
    OS_DEFAULT_BUFFER,
    ByteSocket,
    SocketAddress,
    System,
)

MAX_WAIT_MS = 3_600_000.0
"""The longest wait of one poll. A limit is needed because pollers do not accept infinity."""

_MAX_WAKEUP_BYTES = 64
"""The maximum number of bytes to read after a wakeup. If any are left, they only end the next wait early."""


class Selector:
    """Connects many channels and sends and receives their frames, using nonblocking sockets.

    Not thread-safe, except for `wakeup`, which any thread may call at any time.
    """

    def __init__(
        self,
        system: System,
        *,
        channel_builder: ChannelBuilder = build_plaintext_channel,
        max_frame_bytes: int = DEFAULT_MAX_FRAME_BYTES,
        timeouts: ChannelTimeouts = ChannelTimeouts(),  # noqa: B008 - frozen
        frame_memory: FrameMemory[KafkaChannel] | None = None,
        counts_per_channel: bool = False,
    ) -> None:
        """Create a selector without channels.

        `frame_memory`: limits the memory that long frames use across all channels. If it is set, the caller must
        release each receive's memory with `release_memory`.
        `counts_per_channel`: whether to count the traffic of each channel id, in addition to the total.
        """
        self.connected: list[str] = []
        """The ids of channels whose TCP connection was established. TLS and SASL may still be in progress."""
        self.disconnected: dict[str, ChannelState] = {}
        """The final states of channels that the poll closed, by channel id."""
        self.completed_sends: list[NetworkSend] = []
        self.completed_receives: list[NetworkReceive] = []
        self.counts = IoCounts(counts_per_channel=counts_per_channel)
        self._system = system
        self._build_channel = channel_builder
        self._max_frame_bytes = (
            max_frame_bytes if frame_memory is None else min(max_frame_bytes, frame_memory.max_bytes)
        )
        self._timeouts = timeouts
        self._frame_memory = frame_memory
        self._channels: dict[str, KafkaChannel] = {}
        self._closing_channels: dict[str, KafkaChannel] = {}
        self._ids_with_rejected_sends: set[str] = set()  # ids of closing channels for which `send` was called
        self._ready_channels: dict[KafkaChannel, int] = {}  # channel -> events to process without waiting
        self._next_deadline_check_ms = math.inf  # no channel's deadline is earlier; recomputed once it has passed
        self._poller = system.create_poller()
        self._wake_reader, self._wake_writer = system.create_waker_pair()
        self._poller.register(self._wake_reader, EVENT_READ)
        self._is_wakeup_requested = False  # set by any thread; cleared by the poll that ends because of it
        self._may_be_waiting = False  # while set, a wakeup must write a byte to end the wait

    # --- channels

    def connect(
        self,
        channel_id: str,
        address: SocketAddress,
        *,
        send_buffer_bytes: int = OS_DEFAULT_BUFFER,
        receive_buffer_bytes: int = OS_DEFAULT_BUFFER,
    ) -> None:
        """Start connecting. A later poll reports the result in `connected` or `disconnected`.

        Raise DisconnectedError if the attempt fails immediately.
        """
        self._check_id_unused(channel_id)
        try:
            sock = self._system.connect(address, send_buffer_bytes, receive_buffer_bytes)
            self._add_channel(channel_id, sock, address, is_connecting=True)
        except OSError as error:  # TLS and the poller can fail as well, for example if no file descriptor is free
            raise with_peer_address(error, address) from error

    def register(self, channel_id: str, sock: ByteSocket, address: SocketAddress) -> None:
        """Add a channel for an accepted socket. Raise IllegalStateError if the id is in use."""
        self._check_id_unused(channel_id)
        channel = self._add_channel(channel_id, sock, address, is_connecting=False)
        # Process the channel once without waiting for the poller, because this side may have to send the first bytes.
        self._ready_channels[channel] = EVENT_READ

    def is_channel_ready(self, channel_id: str) -> bool:
        channel = self._channels.get(channel_id)
        return channel is not None and channel.is_ready

    def channel(self, channel_id: str) -> KafkaChannel | None:
        """Return the open or closing channel with this id, or None. The caller must not modify it."""
        return self._channels.get(channel_id) or self._closing_channels.get(channel_id)

    def close_channel(self, channel_id: str) -> None:
        """Close a channel immediately, without reporting it in `disconnected`. Do nothing if it does not exist."""
        channel = self._channels.get(channel_id) or self._closing_channels.get(channel_id)
        if channel is not None:
            self._remove(channel)
            channel.close()

    def release_memory(self, reserved_bytes: int) -> None:
        """Release the `reserved_bytes` of a receive whose payload is no longer needed."""
        if self._frame_memory is not None:
            self._frame_memory.release(reserved_bytes)

    def mute(self, channel_id: str) -> None:
        """Stop reading from the channel until it is unmuted."""
        self._set_muted(self._get_channel(channel_id), is_muted=True)

    def unmute(self, channel_id: str) -> None:
        self._set_muted(self._get_channel(channel_id), is_muted=False)

    def send(self, send: NetworkSend) -> None:
        """Queue a frame to be written by later polls.

        Raise IllegalStateError if the channel does not exist or is still writing its previous frame.
        """
        channel = self._get_channel(send.channel_id)
        if channel.id in self._closing_channels:
            # The connection has ended, so no response can arrive. The next poll reports the channel in `disconnected`.
            self._ids_with_rejected_sends.add(channel.id)
            return
        channel.set_send(send)
        self._mark_ready(channel, EVENT_WRITE)

    def wakeup(self) -> None:
        """End the wait of the current poll or, if no poll is waiting, of the next one.

        Most wakeups arrive while no thread is waiting, and only set a flag. No wakeup is lost: `wakeup` sets
        `_is_wakeup_requested` and then reads `_may_be_waiting`, while a poll sets `_may_be_waiting` and then reads
        `_is_wakeup_requested`. So at least one of the two threads sees the flag that the other has set.
        """
        if self._is_wakeup_requested:
            return  # the thread that set the flag writes the byte
        self._is_wakeup_requested = True
        if self._may_be_waiting:
            # Ignore errors: if the buffer is full, its bytes wake the reader; if the socket is closed, no thread waits.
            with contextlib.suppress(OSError):
                self._wake_writer.send(b"\0")

    def close(self) -> None:
        for channel in [*self._channels.values(), *self._closing_channels.values()]:
            self.close_channel(channel.id)
        self._poller.close()
        self._wake_reader.close()
        self._wake_writer.close()

    # --- one poll

    def poll(self, timeout_ms: float) -> None:
        """Wait up to `timeout_ms` for the first event, then process all channels that are ready."""
        self._begin_poll()
        deadline_ms = self._system.now() + timeout_ms
        while self._poll_once(timeout_ms):
            timeout_ms = deadline_ms - self._system.now()
            if timeout_ms <= 0:
                return

    def _poll_once(self, timeout_ms: float) -> bool:
        """Wait once and process the channels that are ready.

        Return True if the poll should continue because bytes were transferred but there is nothing to report.
        """
        started_ms = self._system.now()
        ready_channels, was_woken = self._select(timeout_ms)
        now_ms = self._system.now()
        # A channel that is not ready is in a handshake. Progress in a handshake ends the poll.
        has_only_transfers = bool(ready_channels) and not was_woken
        for channel, events in ready_channels.items():
            has_only_transfers = has_only_transfers and channel.is_ready
            self._process_channel(channel, events, now_ms)
        if now_ms >= self._next_deadline_check_ms:
            self._close_expired(now_ms)
        self.counts.record_select(wait_ms=now_ms - started_ms, io_ms=self._system.now() - now_ms)
        return has_only_transfers and not (self.completed_sends or self.completed_receives or self.disconnected)

    def _begin_poll(self) -> None:
        """Clear the results of the previous poll, and read from the closing channels."""
        self.connected.clear()
        self.disconnected.clear()
        self.completed_sends.clear()
        self.completed_receives.clear()
        if self._closing_channels:
            self._read_from_closing_channels(self._system.now())
        self._ids_with_rejected_sends.clear()

    def _read_from_closing_channels(self, now_ms: float) -> None:
        """Read once from each closing channel, and finish closing the channels that have nothing left to return.

        A closing channel for which `send` was called is closed without reading, to report the failed send at once.
        """
        for channel in list(self._closing_channels.values()):
            if channel.id in self._ids_with_rejected_sends or not self._read_from_closing_channel(channel, now_ms):
                self._finish_close(channel)

    def _select(self, timeout_ms: float) -> tuple[dict[KafkaChannel, int], bool]:
        """Wait for events. Return the ready channels with their events, and whether a wakeup was requested."""
        if self._frame_memory is not None and self._frame_memory.granted_owners:
            self._resume_reading(self._frame_memory)
        ready_channels = self._ready_channels
        # The poller does not watch closing channels, but they may still hold received frames to return.
        has_readable_closing_channel = any(not channel.is_muted for channel in self._closing_channels.values())
        has_results = bool(self.completed_receives or self.disconnected)
        if ready_channels or has_results or has_readable_closing_channel:
            timeout_ms = 0
        else:
            # The order of the next two lines matters: see `wakeup`.
            self._may_be_waiting = True
            if self._is_wakeup_requested:
                timeout_ms = 0
        for key, events in self._poller.select(min(timeout_ms, MAX_WAIT_MS) / 1000.0):
            if key.data is None:  # the waker's socket, the only one registered without a channel
                self._drain_waker()
            else:
                ready_channels[key.data] = ready_channels.get(key.data, 0) | events
        self._ready_channels = {}
        self._may_be_waiting = False
        was_woken = self._is_wakeup_requested
        if was_woken:
            # Clear the flag only if this thread has seen it set. Clearing it unconditionally would lose a wakeup that
            # is requested just after the read. If the flag was set, a further wakeup may be cleared along with it,
            # because this poll ends anyway.
            self._is_wakeup_requested = False
        return ready_channels, was_woken

    def _process_channel(self, channel: KafkaChannel, events: int, now_ms: float) -> None:
        """Process a channel's events. An error closes the channel; only FATAL_ERRORS are raised."""
        channel.last_active_ms = now_ms
        try:
            self._process_events(channel, events, now_ms)
        except AuthenticationError as error:
            channel.fail_authentication(with_peer_address(error, channel.address))
            self._begin_close(channel, now_ms)
        except (OSError, NetworkError, DecodeError) as error:
            channel.state = ChannelState(channel.state.kind, with_peer_address(error, channel.address))
            self._begin_close(channel, now_ms)
        except FATAL_ERRORS:
            raise
        except Exception as error:
            self._close_after_unexpected_error(channel, error)
        else:
            self._set_watched_events(channel, channel.interest_events)
            if channel.has_buffered_input:
                self._mark_ready(channel, EVENT_READ)
            self._update_deadline(channel, now_ms)

    def _process_events(self, channel: KafkaChannel, events: int, now_ms: float) -> None:
        """Connect, prepare, read at most one frame and try once to write, as far as the events and the state allow."""
        if channel.is_connecting:
            if not events & EVENT_WRITE:
                return
            channel.finish_connect()
            self.connected.append(channel.id)
        if not channel.is_ready:
            channel.prepare(now_ms)
        if events & EVENT_READ and channel.can_read and channel.transport.is_ready:
            receive = channel.read(now_ms)
            if receive is not None:
                self.completed_receives.append(receive)
        if events & EVENT_WRITE and channel.has_output:
            completed_send = channel.write(now_ms)
            if completed_send is not None:
                self.completed_sends.append(completed_send)

    def _close_expired(self, now_ms: float) -> None:
        """Close the channels whose deadline has passed, and compute the next deadline."""
        for channel, state in self._timeouts.find_expired(list(self._channels.values()), now_ms):
            channel.state = state
            if state.kind is ChannelStateKind.EXPIRED:
                self._begin_close(channel, now_ms)
            else:
                self._remove(channel)
                self._finish_close(channel)
        self._next_deadline_check_ms = min(
            map(self._timeouts.compute_deadline_ms, self._channels.values()), default=math.inf
        )

    def _resume_reading(self, frame_memory: FrameMemory[KafkaChannel]) -> None:
        """Resume the channels whose queued memory reservation has been granted."""
        granted_channels, frame_memory.granted_owners = frame_memory.granted_owners, []
        for channel in granted_channels:
            channel.resume_reading()
            if channel.id in self._channels:
                self._set_watched_events(channel, channel.interest_events)
                self._mark_ready(channel, EVENT_READ)

    # --- closing a channel

    def _close_after_unexpected_error(self, channel: KafkaChannel, error: Exception) -> None:
        # Unlike after an OSError, do not read from the channel again: it may have stopped inside a frame.
        channel.state = ChannelState(channel.state.kind, log_unexpected_error(str(channel.address), error))
        if channel.id in self.connected:
            self.connected.remove(channel.id)
        self._remove(channel)
        self._finish_close(channel)

    def _begin_close(self, channel: KafkaChannel, now_ms: float) -> None:
        """Close a channel whose connection has ended.

        While the channel still has receives to return, it is kept in `_closing_channels`.
        """
        self._remove(channel)
        if channel.id in self.connected:
            self.connected.remove(channel.id)
        # A poll returns at most one receive per channel, so if this poll already has one, leave the rest to the next.
        may_have_receives = any(receive.channel_id == channel.id for receive in self.completed_receives)
        if not may_have_receives and channel.transport.is_ready and not channel.state.has_failed_authentication:
            may_have_receives = self._read_from_closing_channel(channel, now_ms)
        # A channel that failed before it was ready has received no frames for the caller.
        if may_have_receives and channel.state.kind in (ChannelStateKind.READY, ChannelStateKind.EXPIRED):
            self._closing_channels[channel.id] = channel
        else:
            self._finish_close(channel)

    def _read_from_closing_channel(self, channel: KafkaChannel, now_ms: float) -> bool:
        """Read once from a closing channel. Return whether to keep it, because it is muted or had bytes to read."""
        if channel.is_muted:
            return True
        previous_bytes_received = channel.bytes_received
        try:
            receive = channel.read(now_ms)
        except AuthenticationError as error:
            # A TLS 1.3 server's alert that rejects the client's certificate arrives only after the handshake.
            channel.fail_authentication(with_peer_address(error, channel.address))
            return False
        except (OSError, NetworkError, DecodeError):
            return False  # the error that ended the connection is the one to report
        except FATAL_ERRORS:
            raise
        except Exception as error:
            log_unexpected_error(str(channel.address), error)
            return False
        if receive is not None:
            self.completed_receives.append(receive)
        return receive is not None or channel.bytes_received > previous_bytes_received

    def _finish_close(self, channel: KafkaChannel) -> None:
        """Close the channel and report its state in `disconnected`."""
        self._closing_channels.pop(channel.id, None)
        channel.close()
        self.disconnected[channel.id] = channel.final_state

    def _remove(self, channel: KafkaChannel) -> None:
        """Remove a channel from the poller and the internal collections, but not from the results for the caller."""
        self._set_watched_events(channel, events=0)
        self._ready_channels.pop(channel, None)
        self._channels.pop(channel.id, None)
        self._closing_channels.pop(channel.id, None)

    # --- helpers

    def _add_channel(
        self, channel_id: str, sock: ByteSocket, address: SocketAddress, *, is_connecting: bool
    ) -> KafkaChannel:
        """Build a channel for the socket, and register the socket with the poller. Close the socket if that fails."""
        try:
            channel = self._build_channel(
                channel_id, sock, address, is_connecting=is_connecting, max_frame_bytes=self._max_frame_bytes
            )
            self._set_watched_events(channel, channel.interest_events)
        except BaseException:
            sock.close()
            raise
        self._channels[channel_id] = channel
        now_ms = self._system.now()
        # Count the channel only once it is registered. If its registration fails, it is never closed as a channel, so
        # the number of open connections would stay too high.
        channel.attach(self.counts, self._frame_memory, now_ms)
        self._update_deadline(channel, now_ms)
        return channel

    def _set_watched_events(self, channel: KafkaChannel, events: int) -> None:
        """Set the events that the poller watches for on the channel's socket. 0 unregisters the socket."""
        if events == channel.registered_events:
            return
        sock = channel.transport.socket
        if not channel.registered_events:
            self._poller.register(sock, events, channel)
        elif events:
            self._poller.modify(sock, events, channel)
        else:
            self._poller.unregister(sock)
        channel.registered_events = events

    def _update_deadline(self, channel: KafkaChannel, now_ms: float) -> None:
        """Schedule a check of the channel's deadline. Call this whenever the channel's state may have changed."""
        channel.update_start_times(now_ms)
        self._next_deadline_check_ms = min(self._next_deadline_check_ms, self._timeouts.compute_deadline_ms(channel))

    def _mark_ready(self, channel: KafkaChannel, events: int) -> None:
        """Make the next poll process these events of the channel without waiting for the poller."""
        self._ready_channels[channel] = self._ready_channels.get(channel, 0) | events

    def _set_muted(self, channel: KafkaChannel, *, is_muted: bool) -> None:
        """Pause or resume reading from the channel.

        After a resume, the next poll reads buffered input without waiting for the poller, which does not report it.
        """
        channel.is_muted = is_muted
        if channel.id in self._closing_channels:
            return  # the poller no longer watches the channel, and the next poll reads from it unless it is muted
        self._set_watched_events(channel, channel.interest_events)
        self._update_deadline(channel, self._system.now())
        if channel.has_buffered_input:
            self._mark_ready(channel, EVENT_READ)
        elif self._ready_channels.get(channel) == EVENT_READ:
            # There is nothing to read now, and reading was the only reason to process the channel without waiting.
            del self._ready_channels[channel]

    def _get_channel(self, channel_id: str) -> KafkaChannel:
        channel = self.channel(channel_id)
        if channel is None:
            raise IllegalStateError(f"channel {channel_id} does not exist")
        return channel

    def _check_id_unused(self, channel_id: str) -> None:
        if self.channel(channel_id) is not None:
            raise IllegalStateError(f"channel {channel_id} already exists, open or closing")

    def _drain_waker(self) -> None:
        with contextlib.suppress(BlockingIOError):
            # There may be several bytes, because an earlier wakeup may have written its byte only after the wait ended.
            self._wake_reader.recv(_MAX_WAKEUP_BYTES)

"""Selector: one `poll` does all connects, handshakes, reads and writes of many channels.

What happened is left in four collections, which the next poll clears: `connected`, `disconnected`, `completed_sends`,
`completed_receives`. A poll goes round until one of them has something, its time is over, it is woken, or a handshake
has moved: a large send takes many turns of the socket, and its sender has no business with each of them. Per round and
channel there is at most one receive and one attempt to write, so that no channel holds up another: a broker that reads
slowly costs the others nothing.

Not everything that is ready is known to the poller: a send that was just given (its first attempt needs no permission),
and bytes that have left the socket: a frame that came together with the one before it, or what TLS holds. Such channels
stand in `_ready_now`, and while one does, no poll waits.

A channel whose connection has failed may still hold answers that came before. It is kept in `_closing` and hands out
one receive per poll; `disconnected` names it after the last.
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
from spark_kafka_sink.network.channels import plaintext_channels
from spark_kafka_sink.network.connection_errors import FATAL_ERRORS, located, log_unexpected
from spark_kafka_sink.network.deadlines import Deadlines
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX, NetworkReceive, NetworkSend
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

WAIT_MS_MAX = 3_600_000.0
"""The longest wait of one poll, whatever was asked for: pollers take no infinity."""


class Selector:
    """Used by one thread, except `wakeup`, which any thread may call at any time."""

    def __init__(
        self,
        system: System,
        *,
        channels: ChannelBuilder = plaintext_channels,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        deadlines: Deadlines = Deadlines(),  # noqa: B008 - frozen
        memory: FrameMemory[KafkaChannel] | None = None,
        counts_channels: bool = False,
    ) -> None:
        """`memory` bounds what the frames of all channels take together; who takes a receive gives its part back."""
        self.connected: list[str] = []
        self.disconnected: dict[str, ChannelState] = {}
        self.completed_sends: list[NetworkSend] = []
        self.completed_receives: list[NetworkReceive] = []
        self.counts = IoCounts(counts_channels=counts_channels)
        self._system = system
        self._build_channel = channels
        self._frame_bytes_max = frame_bytes_max if memory is None else min(frame_bytes_max, memory.bytes_max)
        self._deadlines = deadlines
        self._memory = memory
        self._channels: dict[str, KafkaChannel] = {}
        self._closing: dict[str, KafkaChannel] = {}
        self._refused_sends: set[str] = set()
        self._ready_now: dict[KafkaChannel, int] = {}
        self._deadline_ms = math.inf  # no channel has to go before
        self._poller = system.poller()
        self._wake_reader, self._wake_writer = system.waker()
        self._poller.register(self._wake_reader, EVENT_READ)
        self._woken = False  # set by any thread, unset by the poll that it ends
        self._waiting = False  # a poll may be waiting: to end that takes a byte

    # --- channels

    def connect(
        self,
        channel_id: str,
        address: SocketAddress,
        *,
        send_buffer_bytes: int = OS_DEFAULT_BUFFER,
        receive_buffer_bytes: int = OS_DEFAULT_BUFFER,
    ) -> None:
        """Begin to connect: `connected` or `disconnected` reports the result. DisconnectedError if it fails at once."""
        self._check_unused(channel_id)
        try:
            sock = self._system.connect(address, send_buffer_bytes, receive_buffer_bytes)
            self._add(channel_id, sock, address, connecting=True)
        except OSError as error:  # TLS and the poller may also fail, as without a free descriptor
            raise located(address, error) from error

    def register(self, channel_id: str, sock: ByteSocket, address: SocketAddress) -> None:
        """Take over an accepted socket."""
        self._check_unused(channel_id)
        # The first turn comes unasked: it may be this side that speaks first.
        self._ready_now[self._add(channel_id, sock, address, connecting=False)] = EVENT_READ

    def is_channel_ready(self, channel_id: str) -> bool:
        channel = self._channels.get(channel_id)
        return channel is not None and channel.ready

    def channel(self, channel_id: str) -> KafkaChannel | None:
        """The open or closing channel of this id, to be looked at."""
        return self._channels.get(channel_id) or self._closing.get(channel_id)

    def close_channel(self, channel_id: str) -> None:
        """Close at once, without notice in `disconnected`. Nothing of the channel's send is referenced any longer."""
        channel = self._channels.get(channel_id) or self._closing.get(channel_id)
        if channel is not None:
            self._forget(channel)
            channel.close()

    def give_back(self, reserved: int) -> None:
        """A receive is no longer needed: its memory is for other frames."""
        if self._memory is not None:
            self._memory.give(reserved)

    def mute(self, channel_id: str) -> None:
        """Read nothing more of the channel until it is unmuted."""
        self._set_muted(self._existing(channel_id), True)

    def unmute(self, channel_id: str) -> None:
        self._set_muted(self._existing(channel_id), False)

    def send(self, send: NetworkSend) -> None:
        """Write a frame in the polls to come. One at a time: IllegalStateError while another is being written."""
        channel = self._existing(send.channel_id)
        if channel.id in self._closing:
            # No answer can come any more: the next poll says so in `disconnected`.
            self._refused_sends.add(channel.id)
            return
        channel.set_send(send)
        self._be_ready_now(channel, EVENT_WRITE)

    def wakeup(self) -> None:
        """End the wait of a poll that is going on, or of the next one.

        Most wakeups come while no thread waits, and cost a flag. None is lost: this sets `_woken` and then looks at
        `_waiting`, a poll sets `_waiting` and then looks at `_woken`, so at least one of them sees the other.
        """
        if self._woken:
            return  # the thread that set it does the rest
        self._woken = True
        if self._waiting:
            # Full: then the reader wakes anyway. Closed: then no thread waits.
            with contextlib.suppress(OSError):
                self._wake_writer.send(b"\0")

    def close(self) -> None:
        for channel in [*self._channels.values(), *self._closing.values()]:
            self.close_channel(channel.id)
        self._poller.close()
        self._wake_reader.close()
        self._wake_writer.close()

    # --- one poll

    def poll(self, timeout_ms: float) -> None:
        """Wait until something has happened, at most so long, and do all that is ready."""
        self._clear()
        end_ms = self._system.now() + timeout_ms
        while self._round(timeout_ms):
            timeout_ms = end_ms - self._system.now()
            if timeout_ms <= 0:
                return

    def _round(self, timeout_ms: float) -> bool:
        """Wait once, and serve what is ready. True if only bytes have moved, so that there is nothing to report."""
        started_ms = self._system.now()
        ready, woken = self._wait(timeout_ms)
        now = self._system.now()
        only_bytes = bool(ready) and not woken
        for channel, events in ready.items():
            only_bytes = only_bytes and channel.ready
            self._serve(channel, events, now)
        if now >= self._deadline_ms:
            self._close_overdue(now)
        self.counts.select(wait_ms=now - started_ms, io_ms=self._system.now() - now)
        return only_bytes and not (self.completed_sends or self.completed_receives or self.disconnected)

    def _clear(self) -> None:
        self.connected.clear()
        self.disconnected.clear()
        self.completed_sends.clear()
        self.completed_receives.clear()
        if self._closing:
            self._read_from_all_closing(self._system.now())
        self._refused_sends.clear()

    def _read_from_all_closing(self, now: float) -> None:
        for channel in list(self._closing.values()):
            if channel.id in self._refused_sends or not self._read_from_closing(channel, now):
                self._finish(channel)

    def _wait(self, timeout_ms: float) -> tuple[dict[KafkaChannel, int], bool]:
        """The channels that are ready, each with its events, and whether a wakeup ended this wait."""
        if self._memory is not None and self._memory.granted:
            self._go_on_reading(self._memory)
        ready = self._ready_now
        going_on = any(not channel.muted for channel in self._closing.values())  # in no poller, and not read out yet
        if ready or self.completed_receives or self.disconnected or going_on:
            timeout_ms = 0
        else:
            self._waiting = True
            if self._woken:
                timeout_ms = 0
        for key, events in self._poller.select(min(timeout_ms, WAIT_MS_MAX) / 1000.0):
            if key.data is None:
                self._drain_waker()
            else:
                ready[key.data] = ready.get(key.data, 0) | events
        self._ready_now = {}
        self._waiting = False
        woken = self._woken
        if woken:
            # Only then: a wakeup after that look must end the next wait. One between the two lines ends this poll.
            self._woken = False
        return ready, woken

    def _serve(self, channel: KafkaChannel, events: int, now: float) -> None:
        channel.last_active_ms = now
        try:
            self._advance(channel, events, now)
        except AuthenticationError as error:
            channel.fail_authentication(located(channel.address, error))
            self._end(channel, now)
        except (OSError, NetworkError, DecodeError) as error:
            channel.state = ChannelState(channel.state.kind, located(channel.address, error))
            self._end(channel, now)
        except FATAL_ERRORS:
            raise
        except Exception as error:
            # The channel may be in the middle of a frame, so it is not read again, unlike after an OSError.
            channel.state = ChannelState(channel.state.kind, log_unexpected(str(channel.address), error))
            if channel.id in self.connected:
                self.connected.remove(channel.id)
            self._forget(channel)
            self._finish(channel)
        else:
            self._wait_for(channel, channel.events())
            if channel.has_buffered_input:
                self._be_ready_now(channel, EVENT_READ)
            self._deadline_ms = min(self._deadline_ms, self._deadlines.note(channel, now))

    def _advance(self, channel: KafkaChannel, events: int, now: float) -> None:
        if channel.connecting:
            if not events & EVENT_WRITE:
                return
            channel.finish_connect()
            self.connected.append(channel.id)
        if not channel.ready:
            channel.prepare(now)
        if events & EVENT_READ and channel.wants_input and channel.transport.ready:
            receive = channel.read(now)
            if receive is not None:
                self.completed_receives.append(receive)
        if events & EVENT_WRITE and channel.has_output:
            completed = channel.write(now)
            if completed is not None:
                self.completed_sends.append(completed)

    def _close_overdue(self, now: float) -> None:
        """Look at all channels, and then not again before the first of their deadlines."""
        for channel, state in self._deadlines.overdue(list(self._channels.values()), now):
            channel.state = state
            if state.kind is ChannelStateKind.EXPIRED:
                self._end(channel, now)
            else:
                self._forget(channel)
                self._finish(channel)
        self._deadline_ms = min(map(self._deadlines.next_ms, self._channels.values()), default=math.inf)

    def _go_on_reading(self, memory: FrameMemory[KafkaChannel]) -> None:
        """Channels that waited for memory have got it."""
        granted, memory.granted = memory.granted, []
        for channel in granted:
            channel.go_on()
            if channel.id in self._channels:
                self._wait_for(channel, channel.events())
                self._be_ready_now(channel, EVENT_READ)

    # --- the end of a channel

    def _end(self, channel: KafkaChannel, now: float) -> None:
        """The connection is over. Keep the channel as long as it has receives to hand out."""
        self._forget(channel)
        if channel.id in self.connected:
            self.connected.remove(channel.id)
        # One receive per poll also at the end: if this poll has got one, the rest is for the next.
        more = any(receive.channel_id == channel.id for receive in self.completed_receives)
        if not more and channel.transport.ready and not channel.state.authentication_failed:
            more = self._read_from_closing(channel, now)
        if more and channel.state.kind in (ChannelStateKind.READY, ChannelStateKind.EXPIRED):
            self._closing[channel.id] = channel
        else:
            self._finish(channel)

    def _read_from_closing(self, channel: KafkaChannel, now: float) -> bool:
        """Whether the channel must be kept: it is muted, or this read has got something out of it."""
        if channel.muted:
            return True
        before = channel.bytes_received
        try:
            receive = channel.read(now)
        except AuthenticationError as error:
            # The alert by which a TLS 1.3 server refuses a client's certificate comes after the handshake.
            channel.fail_authentication(located(channel.address, error))
            return False
        except (OSError, NetworkError, DecodeError):
            return False
        except FATAL_ERRORS:
            raise
        except Exception as error:
            log_unexpected(str(channel.address), error)
            return False
        if receive is not None:
            self.completed_receives.append(receive)
        return receive is not None or channel.bytes_received > before

    def _finish(self, channel: KafkaChannel) -> None:
        self._closing.pop(channel.id, None)
        channel.close()
        self.disconnected[channel.id] = channel.state

    def _forget(self, channel: KafkaChannel) -> None:
        """Out of all that polls look at; `connected` and the completed ones are the caller's."""
        self._wait_for(channel, 0)
        self._ready_now.pop(channel, None)
        self._channels.pop(channel.id, None)
        self._closing.pop(channel.id, None)

    # --- small parts

    def _add(self, channel_id: str, sock: ByteSocket, address: SocketAddress, *, connecting: bool) -> KafkaChannel:
        try:
            channel = self._build_channel(
                channel_id, sock, address, connecting=connecting, frame_bytes_max=self._frame_bytes_max
            )
            self._wait_for(channel, channel.events())
        except BaseException:
            sock.close()
            raise
        self._channels[channel_id] = channel
        channel.count_in(self.counts)
        if self._memory is not None:
            channel.use_memory(self._memory)
        channel.last_active_ms = now = self._system.now()
        self._deadline_ms = min(self._deadline_ms, self._deadlines.note(channel, now))
        return channel

    def _wait_for(self, channel: KafkaChannel, events: int) -> None:
        before = channel.waited_for
        if events == before:
            return
        sock = channel.transport.socket
        if not before:
            self._poller.register(sock, events, channel)
        elif events:
            self._poller.modify(sock, events, channel)
        else:
            self._poller.unregister(sock)
        channel.waited_for = events

    def _be_ready_now(self, channel: KafkaChannel, events: int) -> None:
        self._ready_now[channel] = self._ready_now.get(channel, 0) | events

    def _set_muted(self, channel: KafkaChannel, muted: bool) -> None:
        channel.muted = muted
        if channel.id in self._closing:
            return
        self._wait_for(channel, channel.events())
        self._deadline_ms = min(self._deadline_ms, self._deadlines.note(channel, self._system.now()))
        if channel.has_buffered_input:
            self._be_ready_now(channel, EVENT_READ)
        elif self._ready_now.get(channel) == EVENT_READ:
            del self._ready_now[channel]

    def _existing(self, channel_id: str) -> KafkaChannel:
        channel = self.channel(channel_id)
        if channel is None:
            raise IllegalStateError(f"there is no channel {channel_id}")
        return channel

    def _check_unused(self, channel_id: str) -> None:
        if self.channel(channel_id) is not None:
            raise IllegalStateError(f"there is a channel {channel_id} already, open or closing")

    def _drain_waker(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wake_reader.recv(64)  # one byte, or that of a thread that came too late for the wait it saw, too

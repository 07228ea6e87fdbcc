"""FakeSystem: a System with virtual time and scripted peers, for tests that never wait.

All future events are in one heap, ordered by time and then by the order in which they were scheduled. `select` runs the
events that are due. If nothing is ready then, it moves the clock to the next event, or by its timeout. So one thread
runs a client and all its brokers, and thousands of virtual seconds pass in a moment, in the same way each time.

    class Echo(Peer):
        def on_bytes(self, connection, data):
            connection.send(data, after_ms=5)

    system = FakeSystem()
    system.listen("broker", 9092, Echo())
    selector = Selector(system)
    selector.connect("0", system.resolve("broker", 9092)[0])

Bytes take `latency_ms` in each direction. The window of a connection limits the bytes that the client has written and
the peer has not read: `stall()` makes the peer stop reading, and `max_write_bytes` makes every write partial.
"""

from __future__ import annotations

import errno
import heapq
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable
from selectors import EVENT_READ, EVENT_WRITE, SelectorKey
from typing import Any

from spark_kafka_sink.errors import DisconnectedError
from spark_kafka_sink.network.system import Buffer, ByteSocket, HasFileno, Poller, SocketAddress, Waker

WALL_MS = 1_700_000_000_000
"""Wall-clock time at which the monotonic clock was 0."""


class Peer:
    """The remote end of all connections to one address. Subclasses override the events that they handle."""

    def on_connect(self, connection: FakeConnection) -> None:
        """Handle a new connection of a client."""

    def on_bytes(self, connection: FakeConnection, data: bytes) -> None:
        """Handle bytes of the client, which may be split at any position."""

    def on_close(self, connection: FakeConnection) -> None:
        """Handle the end of a connection that the client has closed."""


class FakeConnection:
    """The peer's end of a connection. Tests use it to send bytes and to inject faults."""

    def __init__(self, system: FakeSystem, sock: FakeSocket, peer: Peer) -> None:
        self.system = system
        self.socket = sock
        self.peer = peer
        self.stalled = False
        self.open = True
        self._unread: deque[bytes] = deque()
        self._arrival_ms = 0.0

    def send(self, data: Buffer | Iterable[Buffer], after_ms: float = 0.0) -> None:
        """Send bytes to the client, after all bytes that were sent before."""
        joined = bytes(data) if isinstance(data, Buffer) else b"".join(data)
        if joined:
            self._schedule_in_order(after_ms, lambda: self.socket.incoming.append(memoryview(joined)))

    def close(self, after_ms: float = 0.0) -> None:
        """Close the connection. The client first reads what was sent before."""
        self.open = False
        self._schedule_in_order(after_ms, self.socket.end)

    def reset(self, after_ms: float = 0.0) -> None:
        """Reset the connection. The client first reads what was sent before; then reads and writes fail."""
        self.open = False
        self._schedule_in_order(after_ms, lambda: self.socket.fail(errno.ECONNRESET))

    def stall(self) -> None:
        """Stop reading, so that the window fills up."""
        self.stalled = True

    def resume(self) -> None:
        """Read again, beginning with the bytes that arrived in the meantime."""
        self.stalled = False
        while self._unread and not self.stalled:
            self._deliver(self._unread.popleft())

    def receive(self, data: bytes) -> None:
        """Handle bytes of the client that have arrived, unless the peer has stopped reading."""
        if self.stalled:
            self._unread.append(data)
        else:
            self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        self.socket.unread_bytes -= len(data)
        if self.open:
            self.peer.on_bytes(self, data)

    def _schedule_in_order(self, after_ms: float, action: Callable[[], None]) -> None:
        self._arrival_ms = max(self._arrival_ms, self.system.now() + after_ms + self.system.latency_ms)
        self.system.at(self._arrival_ms, action)


class FakeSocket:
    """The client's end of a connection."""

    def __init__(self, system: FakeSystem, number: int, address: SocketAddress, window_bytes: int) -> None:
        self.address = address
        self.incoming: deque[memoryview] = deque()
        self.unread_bytes = 0
        self.window_bytes = window_bytes
        self.max_write_bytes: int | None = None
        self.closed = False
        self.writes = 0
        self.connection: FakeConnection | None = None
        self.before_write: Callable[[bytes], None] = lambda data: None
        """Called with the bytes of each write, before they are accepted. Tests use it to simulate a race."""
        self.after_read: Callable[[memoryview], None] = lambda data: None
        """Called with the bytes of each read of the client."""
        self._system = system
        self._number = number
        self._error = 0
        self._ended = False

    def fileno(self) -> int:
        return -1 if self.closed else self._number

    def readiness(self) -> int:
        events = EVENT_READ if self.incoming or self._ended or self._error else 0
        if self._error or (self.connection is not None and self.unread_bytes < self.window_bytes):
            events |= EVENT_WRITE
        return events

    def getsockopt(self, level: int, option: int, /) -> int:
        assert (level, option) == (socket.SOL_SOCKET, socket.SO_ERROR)
        return self._error

    def recv_into(self, buffer: bytearray | memoryview, /) -> int:
        self._check_open()
        if not self.incoming:
            if self._error:
                raise OSError(self._error, os.strerror(self._error))
            if self._ended:
                return 0
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        data = self.incoming[0]
        count = min(len(data), len(buffer))
        memoryview(buffer)[:count] = data[:count]
        self.after_read(data[:count])
        if count == len(data):
            self.incoming.popleft()
        else:
            self.incoming[0] = data[count:]
        return count

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int:
        self._check_open()
        self.writes += 1
        if self._error:
            raise OSError(self._error, os.strerror(self._error))
        space = self.window_bytes - self.unread_bytes
        if self.connection is None or space <= 0:
            raise BlockingIOError(errno.EAGAIN, "no space to write")
        if self.max_write_bytes is not None:
            space = min(space, self.max_write_bytes)
        accepted: list[Buffer] = []
        for buffer in buffers:
            chunk = memoryview(buffer)[:space]
            accepted.append(chunk)
            space -= len(chunk)
            if not space:
                break
        data = b"".join(accepted)
        self.before_write(data)
        self._check_open()
        self.unread_bytes += len(data)
        connection = self.connection
        self._system.after(self._system.latency_ms, lambda: connection.receive(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.incoming.clear()
            self._system.open_sockets.discard(self)
            connection = self.connection
            if connection is not None and connection.open:
                self._system.after(self._system.latency_ms, lambda: connection.peer.on_close(connection))

    def end(self) -> None:
        self._ended = True

    def fail(self, code: int) -> None:
        self._error = code

    def _check_open(self) -> None:
        if self.closed:
            raise OSError(errno.EBADF, "the socket is closed")


class FakeWaker:
    """One end of a pair of connected wakers: `send` at one end makes the other end readable."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.pending = bytearray()
        self.other: FakeWaker = self

    def fileno(self) -> int:
        return self._number

    def readiness(self) -> int:
        return EVENT_READ if self.pending else 0

    def recv(self, size: int, /) -> bytes:
        if not self.pending:
            raise BlockingIOError(errno.EAGAIN, "nothing to read")
        data = bytes(self.pending[:size])
        del self.pending[:size]
        return data

    def send(self, data: bytes, /) -> int:
        self.other.pending += data
        return len(data)

    def close(self) -> None:
        self.pending.clear()


class FakePoller:
    """A poller whose `select` advances the virtual time."""

    def __init__(self, system: FakeSystem) -> None:
        self._system = system
        self._keys: dict[int, tuple[FakeSocket | FakeWaker, SelectorKey]] = {}

    def register(self, fileobj: HasFileno, events: int, data: Any = None) -> SelectorKey:
        assert isinstance(fileobj, FakeSocket | FakeWaker)
        assert fileobj.fileno() not in self._keys, "registered twice"
        return self._put(fileobj, events, data)

    def modify(self, fileobj: HasFileno, events: int, data: Any = None) -> SelectorKey:
        assert isinstance(fileobj, FakeSocket | FakeWaker)
        assert fileobj.fileno() in self._keys, "modified before it was registered"
        return self._put(fileobj, events, data)

    def unregister(self, fileobj: HasFileno) -> SelectorKey:
        return self._keys.pop(fileobj.fileno())[1]

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        system = self._system
        deadline = math.inf if timeout is None else system.now() + max(0.0, timeout * 1000.0)
        system.selects += 1
        while True:
            system.run_due()
            ready = self._ready()
            if ready:
                return ready
            upcoming = system.next_event_ms()
            if upcoming > deadline:
                system.jump_to(deadline)
                return []
            assert upcoming < math.inf, "this select would wait forever: no event is scheduled"
            system.jump_to(upcoming)

    def close(self) -> None:
        self._keys.clear()

    def _put(self, fileobj: FakeSocket | FakeWaker, events: int, data: Any) -> SelectorKey:
        assert events in (EVENT_READ, EVENT_WRITE, EVENT_READ | EVENT_WRITE), "invalid events"
        key = SelectorKey(fileobj, fileobj.fileno(), events, data)
        self._keys[key.fd] = (fileobj, key)
        return key

    def _ready(self) -> list[tuple[SelectorKey, int]]:
        ready = []
        for fileobj, key in self._keys.values():
            events = fileobj.readiness() & key.events
            if events:
                ready.append((key, events))
        return ready


class FakeSystem:
    """Virtual clock, network and name resolution; implements System."""

    def __init__(self, *, now_ms: float = 1_000.0, latency_ms: float = 0.0, window_bytes: int = 128 * 1024) -> None:
        self.latency_ms = latency_ms
        self.window_bytes = window_bytes
        self.names: dict[str, list[str]] = {}
        """IP addresses by host name. Other names resolve to themselves; an empty list makes a name unknown."""
        self.connect_at_once = False
        """Whether connections are established without latency."""
        self.open_sockets: set[FakeSocket] = set()
        self.connections: list[FakeConnection] = []
        """All connections that were accepted so far, oldest first."""
        self.connects: list[tuple[float, SocketAddress]] = []
        """Time and address of all connection attempts so far."""
        self.holds_background = False
        """Whether functions that are to run in the background are only added to `background`."""
        self.background: list[Callable[[], None]] = []
        self.selects = 0
        self._now_ms = now_ms
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._event_number = 0
        self._file_number = 0
        self._peers: dict[tuple[str, int], Peer | None] = {}

    # --- System

    def now(self) -> float:
        return self._now_ms

    def wall_ms(self) -> int:
        return WALL_MS + int(self._now_ms)

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        ips = self.names.get(host, [host])
        if not ips:
            raise DisconnectedError("the name cannot be resolved: unknown name", address=f"{host}:{port}")
        return [SocketAddress(host, port, socket.AF_INET, (ip, port)) for ip in ips]

    def find_canonical_name(self, address: SocketAddress) -> str:
        return next((name for name, ips in self.names.items() if address.sockaddr[0] in ips), address.sockaddr[0])

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        self.connects.append((self._now_ms, address))
        sock = FakeSocket(self, self._next_file_number(), address, self.window_bytes)
        self.open_sockets.add(sock)
        if self.connect_at_once:
            self._establish(sock)
        else:
            self.after(2 * self.latency_ms, lambda: self._establish(sock))
        return sock

    def run_in_background(self, run: Callable[[], None], name: str) -> None:
        if self.holds_background:
            self.background.append(run)
        else:
            run()

    def create_poller(self) -> Poller:
        return FakePoller(self)

    def create_waker_pair(self) -> tuple[Waker, Waker]:
        reader, writer = FakeWaker(self._next_file_number()), FakeWaker(self._next_file_number())
        writer.other = reader
        return reader, writer

    # --- peers

    def listen(self, host: str, port: int, peer: Peer) -> None:
        """Accept connections to an IP address, or to a name that is not in `names`. All others are refused."""
        self._peers[host, port] = peer

    def refuse(self, host: str, port: int) -> None:
        """Refuse new connections to an address. Open connections stay open."""
        self._peers.pop((host, port), None)

    def swallow(self, host: str, port: int) -> None:
        """Neither accept nor refuse connections to an address, like a host that is down."""
        self._peers[host, port] = None

    # --- time

    def at(self, time_ms: float, action: Callable[[], None]) -> None:
        """Schedule an action at a time."""
        self._event_number += 1
        heapq.heappush(self._events, (max(time_ms, self._now_ms), self._event_number, action))

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Schedule an action after a delay."""
        self.at(self._now_ms + delay_ms, action)

    def advance(self, delay_ms: float) -> None:
        """Advance the clock, and run the events that become due."""
        deadline = self._now_ms + delay_ms
        while self.next_event_ms() <= deadline:
            self.jump_to(self.next_event_ms())
            self.run_due()
        self._now_ms = deadline

    def next_event_ms(self) -> float:
        return self._events[0][0] if self._events else math.inf

    def run_due(self) -> None:
        while self._events and self._events[0][0] <= self._now_ms:
            heapq.heappop(self._events)[2]()

    def jump_to(self, time_ms: float) -> None:
        self._now_ms = max(self._now_ms, time_ms)

    def _establish(self, sock: FakeSocket) -> None:
        if sock.closed:
            return
        key = str(sock.address.sockaddr[0]), sock.address.port
        if key not in self._peers:
            sock.fail(errno.ECONNREFUSED)
            return
        peer = self._peers[key]
        if peer is not None:
            sock.connection = FakeConnection(self, sock, peer)
            self.connections.append(sock.connection)
            peer.on_connect(sock.connection)

    def _next_file_number(self) -> int:
        self._file_number += 1
        return self._file_number

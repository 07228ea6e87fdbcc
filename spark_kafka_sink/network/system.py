"""System: the interface to the operating system, for clocks, name resolution, sockets, polling and threads.

The client and the producer use the operating system only through a `System`; docs/internals.md lists the exception.
`OperatingSystem` is the real implementation. The tests' FakeSystem simulates the clock, so that a complete producer can
run against scripted peers in one thread without waiting.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any, Protocol

from spark_kafka_sink.errors import DisconnectedError

__all__ = [
    "EVENT_READ",
    "EVENT_WRITE",
    "OS_DEFAULT_BUFFER",
    "Buffer",
    "ByteSocket",
    "OperatingSystem",
    "Poller",
    "SocketAddress",
    "System",
    "Waker",
    "configure_socket",
    "find_host_error",
    "get_peer_address",
    "is_ip_address",
]

Buffer = bytes | bytearray | memoryview

OS_DEFAULT_BUFFER = -1
"""The value of send.buffer.bytes and receive.buffer.bytes that selects the operating system's default."""

MAX_PORT = 65535
MAX_HOST_CHARACTERS = 255
"""The maximum length of a host name in DNS."""

_CONNECT_IN_PROGRESS_ERRORS = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR})


@dataclass(frozen=True)
class SocketAddress:
    """One of the addresses that a host name resolves to.

    `host` is the name as configured or advertised. TLS checks the broker's certificate against this name.
    """

    host: str
    port: int
    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        ip = str(self.sockaddr[0]) if self.sockaddr else self.host
        return f"{self.host}:{self.port}" if ip == self.host else f"{self.host}:{self.port} ({ip})"


class ByteSocket(Protocol):
    """The methods of a connected, nonblocking stream socket that this package uses. Each may raise OSError."""

    def fileno(self) -> int: ...

    def getsockopt(self, level: int, option: int, /) -> int: ...

    def recv_into(self, buffer: bytearray | memoryview, /) -> int: ...

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int: ...

    def close(self) -> None: ...


class Waker(Protocol):
    """One end of a socket pair that a thread uses to end another thread's wait."""

    def fileno(self) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def send(self, data: bytes, /) -> int: ...

    def close(self) -> None: ...


class HasFileno(Protocol):
    """An object with a file descriptor, which a Poller can watch."""

    def fileno(self) -> int: ...


class Poller(Protocol):
    """The methods of `selectors.BaseSelector` that this package uses. `events` must not be 0."""

    def register(self, fileobj: HasFileno, events: int, data: Any = None) -> selectors.SelectorKey: ...

    def modify(self, fileobj: HasFileno, events: int, data: Any = None) -> selectors.SelectorKey: ...

    def unregister(self, fileobj: HasFileno) -> selectors.SelectorKey: ...

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]: ...

    def close(self) -> None: ...


class System(Protocol):
    """The services of the operating system that a client needs."""

    def now(self) -> float:
        """Return the monotonic clock's time in milliseconds."""

    def wall_ms(self) -> int:
        """Return the wall-clock time as a Unix timestamp in milliseconds. The wall clock may jump."""

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        """Return all addresses of a host in the resolver's order. Raise DisconnectedError if it cannot be resolved."""

    def find_canonical_name(self, address: SocketAddress) -> str:
        """Look up the host name of an address. Return the IP address if there is no name."""

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        """Start connecting. The socket becomes writable once the attempt has succeeded or failed.

        Raise OSError if the attempt fails immediately.
        """

    def run_in_background(self, run: Callable[[], None], name: str) -> None:
        """Run a function on a daemon thread with this name, or on the calling thread if no thread can be started."""

    def create_poller(self) -> Poller:
        """Create a poller that watches no sockets yet."""

    def create_waker_pair(self) -> tuple[Waker, Waker]:
        """Create two connected, nonblocking sockets. Sending to the second one ends a wait for the first one."""


class OperatingSystem:
    """The real System: this machine's sockets, clocks and resolver."""

    def now(self) -> float:
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        if not 0 < port <= MAX_PORT:
            # The resolver would treat port 65536 + n as port n, which is not the port that the broker advertised.
            raise DisconnectedError(f"the port must be between 1 and {MAX_PORT}", address=f"{host}:{port}")
        try:
            results = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # The resolver itself may raise OSErrors other than gaierror, for example if no file descriptor is free. A
            # UnicodeError means that IDNA does not allow a label of the name, such as an empty or overlong one.
            reason = getattr(error, "strerror", None) or error
            raise DisconnectedError(f"the name cannot be resolved: {reason}", address=f"{host}:{port}") from error
        return [SocketAddress(host, port, family, sockaddr) for family, _, _, _, sockaddr in results]

    def find_canonical_name(self, address: SocketAddress) -> str:
        try:
            return socket.getnameinfo(address.sockaddr, socket.NI_NAMEREQD)[0]
        except OSError:
            return str(address.sockaddr[0])

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            configure_socket(sock, send_buffer_bytes, receive_buffer_bytes)
            code = sock.connect_ex(address.sockaddr)
            if code != 0 and code not in _CONNECT_IN_PROGRESS_ERRORS:
                raise OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        return sock

    def run_in_background(self, run: Callable[[], None], name: str) -> None:
        try:
            threading.Thread(target=run, name=name, daemon=True).start()
        except RuntimeError:  # the thread limit has been reached, or the interpreter is shutting down
            run()

    def create_poller(self) -> Poller:
        return selectors.DefaultSelector()

    def create_waker_pair(self) -> tuple[Waker, Waker]:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        return reader, writer


def configure_socket(sock: socket.socket, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
    """Make an outgoing or accepted socket nonblocking, and set its TCP options and buffer sizes."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer_bytes != OS_DEFAULT_BUFFER:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if receive_buffer_bytes != OS_DEFAULT_BUFFER:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)


def get_peer_address(sock: socket.socket) -> SocketAddress:
    """Return the address of an accepted socket's peer."""
    sockaddr = sock.getpeername()
    return SocketAddress(str(sockaddr[0]), int(sockaddr[1]), sock.family, sockaddr)


def find_host_error(host: str) -> str | None:
    """Return why a host name is invalid, or None if it is valid."""
    if not host:
        return "it is empty"
    if len(host) > MAX_HOST_CHARACTERS:
        return f"it has {len(host)} characters; at most {MAX_HOST_CHARACTERS} are allowed"
    return None if host.isprintable() and " " not in host else "it has characters that are not allowed in a host name"


def is_ip_address(host: str) -> bool:
    """Return whether a host is an IPv4 or IPv6 address, which needs no DNS lookup."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with contextlib.suppress(OSError, ValueError):  # ValueError: the host contains a NUL character
            socket.inet_pton(family, host)
            return True
    return False

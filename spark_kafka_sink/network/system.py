"""The seam to the operating system: the clock, sockets, names, and waiting for any of them.

Everything in the client and the producer that would touch the machine asks a `System`. There are two: `OperatingSystem`
here, and the tests' FakeSystem with a clock that jumps, so that a whole producer runs against scripted peers in one
thread and never waits. docs/architecture.md names the few modules that have a door of their own.
"""

from __future__ import annotations

import errno
import os
import selectors
import socket
import time
from collections.abc import Iterable
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
    "host_fault",
    "peer_address",
]

Buffer = bytes | bytearray | memoryview

OS_DEFAULT_BUFFER = -1
"""send.buffer.bytes or receive.buffer.bytes that leaves the choice to the operating system."""

MAX_PORT = 65535
HOST_CHARACTERS_MAX = 255
"""The longest host name that the DNS allows."""

_CONNECT_GOES_ON = frozenset({errno.EINPROGRESS, errno.EWOULDBLOCK, errno.EINTR})


@dataclass(frozen=True)
class SocketAddress:
    """One address of a name. `host` is the name as configured or advertised: what a certificate is checked against."""

    host: str
    port: int
    family: int
    sockaddr: tuple[Any, ...]

    def __str__(self) -> str:
        ip = str(self.sockaddr[0]) if self.sockaddr else self.host
        return f"{self.host}:{self.port}" if ip == self.host else f"{self.host}:{self.port} ({ip})"


class ByteSocket(Protocol):
    """What is used of a connected, non-blocking stream socket. Errors are OSErrors, as `socket` raises them."""

    def fileno(self) -> int: ...

    def getsockopt(self, level: int, option: int, /) -> int: ...

    def recv_into(self, buffer: bytearray | memoryview, /) -> int: ...

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int: ...

    def close(self) -> None: ...


class Waker(Protocol):
    """One end of the pair by which another thread ends a wait."""

    def fileno(self) -> int: ...

    def recv(self, size: int, /) -> bytes: ...

    def send(self, data: bytes, /) -> int: ...

    def close(self) -> None: ...


class HasFileno(Protocol):
    def fileno(self) -> int: ...


class Poller(Protocol):
    """Readiness of many sockets, as in the standard library's `selectors`. An empty set of events is not allowed."""

    def register(self, fileobj: HasFileno, events: int, data: Any = None) -> selectors.SelectorKey: ...

    def modify(self, fileobj: HasFileno, events: int, data: Any = None) -> selectors.SelectorKey: ...

    def unregister(self, fileobj: HasFileno) -> selectors.SelectorKey: ...

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]: ...

    def close(self) -> None: ...


class System(Protocol):
    def now(self) -> float:
        """Monotonic milliseconds."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970, by the clock of this machine. It may jump."""

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        """All addresses of a name, in the resolver's order; DisconnectedError if there are none."""

    def canonical_name(self, address: SocketAddress) -> str:
        """The address's name by reverse lookup; its IP if it has none."""

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        """Begin to connect; the socket is writable when that is decided. OSError if it fails on the spot."""

    def poller(self) -> Poller: ...

    def waker(self) -> tuple[Waker, Waker]:
        """Two connected, non-blocking ends: what is sent to the second makes the first readable."""


class OperatingSystem:
    """The System of the machine: real sockets, clock and resolver."""

    def now(self) -> float:
        return time.monotonic() * 1000.0

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def resolve(self, host: str, port: int) -> list[SocketAddress]:
        if not 0 < port <= MAX_PORT:
            # The resolver would take 65536 + n for n: another port than the one that a broker has advertised.
            raise DisconnectedError("there is no such port", address=f"{host}:{port}")
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            # OSError and not gaierror alone: when the system has failed the resolver, as without a free descriptor.
            # UnicodeError: labels that IDNA refuses, such as an empty or an overlong one.
            reason = getattr(error, "strerror", None) or error
            raise DisconnectedError(f"the name cannot be resolved: {reason}", address=f"{host}:{port}") from error
        return [SocketAddress(host, port, family, sockaddr) for family, _, _, _, sockaddr in found]

    def canonical_name(self, address: SocketAddress) -> str:
        try:
            return socket.getnameinfo(address.sockaddr, socket.NI_NAMEREQD)[0]
        except OSError:
            return str(address.sockaddr[0])

    def connect(self, address: SocketAddress, send_buffer_bytes: int, receive_buffer_bytes: int) -> ByteSocket:
        sock = socket.socket(address.family, socket.SOCK_STREAM)
        try:
            configure_socket(sock, send_buffer_bytes, receive_buffer_bytes)
            code = sock.connect_ex(address.sockaddr)
            if code != 0 and code not in _CONNECT_GOES_ON:
                raise OSError(code, os.strerror(code))
        except BaseException:
            sock.close()
            raise
        return sock

    def poller(self) -> Poller:
        return selectors.DefaultSelector()

    def waker(self) -> tuple[Waker, Waker]:
        reader, writer = socket.socketpair()
        reader.setblocking(False)
        writer.setblocking(False)
        return reader, writer


def configure_socket(sock: socket.socket, send_buffer_bytes: int, receive_buffer_bytes: int) -> None:
    """The options of every socket, whether it connects or was accepted."""
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if send_buffer_bytes != OS_DEFAULT_BUFFER:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer_bytes)
    if receive_buffer_bytes != OS_DEFAULT_BUFFER:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)


def peer_address(sock: socket.socket) -> SocketAddress:
    """Who is at the other end of an accepted socket."""
    name = sock.getpeername()
    return SocketAddress(str(name[0]), int(name[1]), sock.family, name)


def host_fault(host: str) -> str | None:
    """Return why this cannot be the name of a host, None if it can."""
    if not host:
        return "it is empty"
    if len(host) > HOST_CHARACTERS_MAX:
        return f"it has {len(host)} characters, and at most {HOST_CHARACTERS_MAX} are possible"
    return None if host.isprintable() and " " not in host else "it has characters that no name has"

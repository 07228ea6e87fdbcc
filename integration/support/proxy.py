"""Proxy: a TCP proxy between a client and a broker that loses, truncates, delays or swallows bytes on demand.

    with Proxy() as proxy:                                                   # listens on a free loopback port
        with KafkaCluster(folder, listeners=("PLAINTEXT", "PROXIED"), advertised_ports={1: proxy.port}) as kafka:
            proxy.target = ("localhost", kafka.nodes[1].ports["PROXIED"])

Each connection has two threads, one for each direction. `mode` may be changed at any time; it applies to later bytes.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum
from types import TracebackType

from tests.waiting import WAIT_TIMEOUT_SECONDS

CHUNK = 65_536


class Mode(Enum):
    """Behavior of the proxy."""

    PASS = "forward everything"
    LOSE_RESPONSE = "forward requests, and close the connection at the next response"
    TRUNCATE_REQUEST = "forward half of the next chunk of a request, then close the connection"
    SWALLOW = "accept everything and forward nothing"
    DUPLICATE_RESPONSE = "forward everything, and the next response twice"
    HOLD_RESPONSES = "forward requests, and hold responses until the mode changes"
    HOLD_REQUESTS = "hold requests until the mode changes, and forward them then, even if the client has disconnected"
    REFUSE = "close all existing and new connections"


class Proxy:
    """A proxy that forwards connections to `target`, a pair of host and port."""

    def __init__(self) -> None:
        self.target: tuple[str, int] | None = None
        self.faults = 0
        """Number of injected faults."""
        self._mode = Mode.PASS
        self._condition = threading.Condition()
        self._is_closed = False
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    @property
    def mode(self) -> Mode:
        return self._mode

    @mode.setter
    def mode(self, mode: Mode) -> None:
        with self._condition:
            self._mode = mode
            self._condition.notify_all()
        if mode is Mode.REFUSE:
            self.disconnect_all()

    def wait_for_fault(self, count: int = 1) -> None:
        with self._condition:
            if not self._condition.wait_for(lambda: self.faults >= count, WAIT_TIMEOUT_SECONDS):
                raise AssertionError(f"no bytes arrived in mode {self._mode}")

    def disconnect_all(self) -> None:
        for connection in list(self._sockets):
            _shut_down(connection)

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
        _shut_down(self._listener)
        self.disconnect_all()
        for thread in self._threads:
            thread.join(10)

    # --- threads

    def _start(self, run: object, *args: object) -> None:
        thread = threading.Thread(target=run, args=args, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._mode is Mode.REFUSE or self.target is None:
                self._count_fault()
                client.close()
                continue
            try:
                server = socket.create_connection(self.target)
            except OSError:
                client.close()
                continue
            self._sockets |= {client, server}
            self._start(self._forward_requests, client, server)
            self._start(self._forward_responses, client, server)

    def _forward_requests(self, client: socket.socket, server: socket.socket) -> None:
        while data := _read(client):
            if self._mode is Mode.SWALLOW:
                self._count_fault()
                continue
            if self._mode is Mode.TRUNCATE_REQUEST and len(data) > 1000:
                _write(server, data[: len(data) // 2])
                self._mode = Mode.PASS
                self._count_fault()
                break
            if self._mode is Mode.HOLD_REQUESTS:
                self._hold(Mode.HOLD_REQUESTS)
            if not _write(server, data):
                break
        self._close(client, server)

    def _forward_responses(self, client: socket.socket, server: socket.socket) -> None:
        while data := _read(server):
            if self._mode is Mode.LOSE_RESPONSE:
                self._mode = Mode.PASS
                self._count_fault()
                break
            if self._mode is Mode.DUPLICATE_RESPONSE:
                self._mode = Mode.PASS
                self._count_fault()
                data += data
            if self._mode is Mode.HOLD_RESPONSES:
                self._hold(Mode.HOLD_RESPONSES)
            if self._mode is Mode.SWALLOW:
                self._count_fault()
                continue
            if not _write(client, data):
                break
        self._close(client, server)

    def _hold(self, mode: Mode) -> None:
        self._count_fault()
        with self._condition:
            self._condition.wait_for(lambda: self._mode is not mode or self._is_closed)

    def _count_fault(self) -> None:
        with self._condition:
            self.faults += 1
            self._condition.notify_all()

    def _close(self, client: socket.socket, server: socket.socket) -> None:
        for connection in (client, server):
            _shut_down(connection)
            self._sockets.discard(connection)


def _read(connection: socket.socket) -> bytes:
    try:
        return connection.recv(CHUNK)
    except OSError:
        return b""


def _write(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def _shut_down(connection: socket.socket) -> None:
    """Close a connection, and wake the thread that reads from it."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()

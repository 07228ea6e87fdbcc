"""Acceptor: one thread that holds the listening sockets of all nodes and hands connections to the processors.

Listening and ceasing to listen are done by that thread, on request; the caller waits until it is done. So when
`stop_node` returns, the port refuses. When the thread ends, for whatever reason, no port is listened on any more.

Without descriptors a connection cannot be accepted, and its listener stays readable: to ask again at once would take
all of a processor, so the thread pauses. Those who wait stand in the kernel's queue meanwhile.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import threading
from collections import deque
from collections.abc import Callable

from spark_kafka_sink.network.system import (
    EVENT_READ,
    OS_DEFAULT_BUFFER,
    SocketAddress,
    System,
    configure_socket,
    peer_address,
)

_log = logging.getLogger(__name__)

BACKLOG = 128
POLL_SECONDS = 10.0
PAUSE_SECONDS = 0.5
ORDER_SECONDS_MAX = 10.0

_OUT_OF_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Acceptor:
    """`deliver` takes an accepted connection of a node; `failed` is called if the thread ends by an error."""

    def __init__(
        self,
        system: System,
        host: str,
        deliver: Callable[[int, socket.socket, SocketAddress], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._host = host
        self._deliver = deliver
        self._failed = failed
        self._listeners: dict[int, socket.socket] = {}
        self._orders: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._poller = system.poller()
        self._wake_reader, self._wake_writer = system.waker()
        self._poller.register(self._wake_reader, EVENT_READ)
        self._paused = False
        self._refused_by: int | None = None  # the system's reason, until a connection is accepted again: said once
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="embedded-broker-acceptor", daemon=True)

    # --- other threads

    def bind(self, node: int, port: int) -> int:
        """Before `start`: listen on a port, 0 for any; which one it is. OSError if it is taken."""
        sock = _listener(self._host, port)
        self._add(node, sock)
        return int(sock.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def listen(self, node: int, port: int) -> None:
        sock = _listener(self._host, port)
        self._order(lambda: self._add(node, sock))

    def refuse(self, node: int) -> None:
        self._order(lambda: self._remove(node))

    def stop(self) -> None:
        """The thread ends soon, and the ports refuse."""
        self._stopping = True
        self._wake()

    def close(self) -> None:
        """`stop`, and wait until it is done."""
        self.stop()
        if self._thread.ident is None:
            self._remove_all()
        else:
            self._thread.join()
        self._poller.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _order(self, action: Callable[[], None]) -> None:
        done = threading.Event()
        self._orders.append((action, done))
        self._wake()
        done.wait(ORDER_SECONDS_MAX)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    # --- its own thread

    def _run(self) -> None:
        try:
            while not self._stopping:
                self.run_once()
        except BaseException as error:
            self._failed(error)
        finally:
            self._remove_all()

    def run_once(self) -> None:
        ready = self._poller.select(PAUSE_SECONDS if self._paused else POLL_SECONDS)
        if self._paused:
            self._paused = False
            for node, sock in self._listeners.items():
                self._poller.register(sock, EVENT_READ, node)
        for key, _ in ready:
            if key.data is None:
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(64)
            elif key.data in self._listeners and not self._paused:
                self._accept(key.data)
        while self._orders:
            action, done = self._orders.popleft()
            action()
            done.set()

    def _accept(self, node: int) -> None:
        try:
            sock, _ = self._listeners[node].accept()
        except OSError as error:
            if error.errno in _OUT_OF_RESOURCES:
                self._pause(error)
            else:
                # The client is gone again.
                _log.debug("a connection to node %d could not be accepted: %s", node, error)
            return
        self._refused_by = None
        try:
            configure_socket(sock, OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER)
            self._deliver(node, sock, peer_address(sock))
        except OSError:
            sock.close()

    def _pause(self, error: OSError) -> None:
        if self._refused_by != error.errno:
            _log.warning("no connections are accepted until there is room: %s", error.strerror)
        self._refused_by = error.errno
        self._paused = True
        for sock in self._listeners.values():
            self._poller.unregister(sock)

    def _add(self, node: int, sock: socket.socket) -> None:
        if node in self._listeners:
            sock.close()
            return
        self._listeners[node] = sock
        if not self._paused:
            self._poller.register(sock, EVENT_READ, node)

    def _remove(self, node: int) -> None:
        sock = self._listeners.pop(node, None)
        if sock is not None:
            if not self._paused:
                self._poller.unregister(sock)
            sock.close()

    def _remove_all(self) -> None:
        for node in list(self._listeners):
            self._remove(node)
        for _, done in self._orders:
            done.set()


def _listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock

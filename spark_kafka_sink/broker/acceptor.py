"""Acceptor: the thread that owns the listening sockets of all nodes and assigns accepted connections to processors.

Once the thread is running, only it registers and closes listeners. Other threads submit a task and wait for it, so a
port refuses connections by the time `stop_listening` returns. When the thread ends, for whatever reason, it closes all
listeners.

If the process has run out of file descriptors, a connection cannot be accepted and its listener stays readable. Polling
again immediately would keep a CPU busy, so the acceptor pauses. Meanwhile clients wait in the kernel's backlog.
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
    get_peer_address,
)

_log = logging.getLogger(__name__)

BACKLOG = 128
"""Number of connections that the kernel may queue for each listener."""
MAX_POLL_SECONDS = 10.0
"""The maximum time to wait for a connection. Other threads end the wait early by writing to the wakeup socket."""
_MAX_WAKEUP_BYTES = 64
"""Maximum number of bytes to read after a wakeup. Unread bytes only end the next wait early."""
PAUSE_SECONDS = 0.5
"""The pause before connections are accepted again after resources have run out."""
MAX_TASK_WAIT_SECONDS = 10.0
"""The maximum time that another thread waits until the acceptor has run a task for it."""

_RESOURCE_ERRNOS = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
"""Errors of `accept` that persist until the process or the system releases descriptors or memory."""


class Acceptor:
    """Accepts connections for all nodes on its own thread."""

    def __init__(
        self,
        system: System,
        host: str,
        assign_connection: Callable[[int, socket.socket, SocketAddress], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        """Create the thread and its wakeup sockets, without starting the thread.

        `assign_connection`: called with the node id, socket and client address of each accepted connection.
        `on_failure`: called on the acceptor's thread if an error ends it.
        """
        self._host = host
        self._assign_connection = assign_connection
        self._on_failure = on_failure
        self._listeners: dict[int, socket.socket] = {}
        self._tasks: deque[tuple[Callable[[], None], threading.Event]] = deque()
        self._poller = system.create_poller()
        self._wake_reader, self._wake_writer = system.create_waker_pair()
        self._poller.register(self._wake_reader, EVENT_READ)
        self._is_paused = False
        self._pause_errno: int | None = None
        """The errno that caused the last pause, kept so that a repeated error is logged only once.

        Reset when a connection is accepted.
        """
        self._is_stopping = False
        self._thread = threading.Thread(target=self._run, name="embedded-broker-acceptor", daemon=True)

    # --- any thread

    def bind(self, node_id: int, port: int) -> int:
        """Listen on a port for a node, and return the port's number. Port 0 selects any free port.

        Call this only before `start`. Raise OSError if the port is in use.
        """
        sock = _create_listener(self._host, port)
        self._add_listener(node_id, sock)
        return int(sock.getsockname()[1])

    def start(self) -> None:
        self._thread.start()

    def listen(self, node_id: int, port: int) -> None:
        """Listen on a node's port. Raise OSError if the port is in use, even by the node itself."""
        sock = _create_listener(self._host, port)
        self._run_on_thread(lambda: self._add_listener(node_id, sock))

    def stop_listening(self, node_id: int) -> None:
        """Close a node's listener, so that its port refuses connections."""
        self._run_on_thread(lambda: self._remove_listener(node_id))

    def stop(self) -> None:
        """Tell the thread to close all listeners and end. Does not wait for it."""
        self._is_stopping = True
        self._wake()

    def close(self) -> None:
        """Stop the thread, wait until it has ended, and close the poller."""
        self.stop()
        if self._thread.ident is None:  # the thread was never started, so it does not close the listeners
            self._remove_all_listeners()
        else:
            self._thread.join()
        self._poller.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _run_on_thread(self, task: Callable[[], None]) -> None:
        """Run a task on the acceptor's thread. Wait at most MAX_TASK_WAIT_SECONDS until the task has run."""
        done_event = threading.Event()
        self._tasks.append((task, done_event))
        self._wake()
        done_event.wait(MAX_TASK_WAIT_SECONDS)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")

    # --- the acceptor's thread

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self.run_once()
        except BaseException as error:
            self._on_failure(error)
        finally:
            self._remove_all_listeners()

    def run_once(self) -> None:
        """Wait for connections or tasks, accept the connections, and then run the tasks."""
        ready_keys = self._poller.select(PAUSE_SECONDS if self._is_paused else MAX_POLL_SECONDS)
        if self._is_paused:  # a pause lasts for one wait
            self._resume()
        for key, _ in ready_keys:
            node_id: int | None = key.data
            if node_id is None:  # the wakeup socket, which belongs to no node
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(_MAX_WAKEUP_BYTES)
            elif node_id in self._listeners and not self._is_paused:  # an earlier `_accept` may have caused a pause
                self._accept(node_id)
        while self._tasks:
            task, done_event = self._tasks.popleft()
            try:
                task()
            finally:
                done_event.set()  # even after an error, which ends this thread: another thread waits for the task

    def _accept(self, node_id: int) -> None:
        """Accept one connection from the node's listener. Pause if there are no resources for it."""
        try:
            sock, _ = self._listeners[node_id].accept()
        except OSError as error:
            if error.errno in _RESOURCE_ERRNOS:
                self._pause(error)
            else:
                # The client closed the connection before it was accepted.
                _log.debug("Could not accept a connection to node %d: %s", node_id, error)
            return
        self._pause_errno = None
        try:
            configure_socket(sock, OS_DEFAULT_BUFFER, OS_DEFAULT_BUFFER)
            self._assign_connection(node_id, sock, get_peer_address(sock))
        except OSError:  # the client has already disconnected
            sock.close()

    def _pause(self, error: OSError) -> None:
        """Stop polling the listeners during the next `run_once`, which waits for at most PAUSE_SECONDS."""
        if self._pause_errno != error.errno:
            _log.warning("Paused accepting connections until resources are free: %s", error.strerror)
        self._pause_errno = error.errno
        self._is_paused = True
        for sock in self._listeners.values():
            self._poller.unregister(sock)

    def _resume(self) -> None:
        """Poll the listeners again."""
        self._is_paused = False
        for node_id, sock in self._listeners.items():
            self._poller.register(sock, EVENT_READ, node_id)

    def _add_listener(self, node_id: int, sock: socket.socket) -> None:
        """Accept connections on the socket. Close the socket instead if the node already has a listener."""
        if node_id in self._listeners:
            sock.close()
            return
        self._listeners[node_id] = sock
        if not self._is_paused:
            self._poller.register(sock, EVENT_READ, node_id)

    def _remove_listener(self, node_id: int) -> None:
        sock = self._listeners.pop(node_id, None)
        if sock is not None:
            if not self._is_paused:
                self._poller.unregister(sock)
            sock.close()

    def _remove_all_listeners(self) -> None:
        """Close all listeners, and release the threads that wait for a task that will not run."""
        for node_id in list(self._listeners):
            self._remove_listener(node_id)
        for _, done_event in self._tasks:
            done_event.set()


def _create_listener(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.create_server((host, port), family=family, backlog=BACKLOG)
    sock.setblocking(False)
    return sock

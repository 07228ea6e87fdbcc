"""SocketServer: the cluster on real sockets, with the threads of Kafka's broker.

    acceptor --> processors --- requests ---> bounded queue ---> handler threads --- requests that must wait ---+
                     ^                                               |                                          v
                     +-------------------- replies ------------------+------------------ one thread that resumes them

Threads: one acceptor; `num.network.threads` processors with a Selector each; `num.io.threads` handlers; and one for
what waits. A processor that finds the queue full reads nothing more until a handler takes a request, so clients wait.
With `num.io.threads` 0 each processor handles the requests of its own connections, without a queue: Python runs one
thread at a time, and handing over a request costs CPU (docs/decisions/0014-broker-threads.md).

`close` lets the handlers finish the requests in the queue, then ends all threads and closes every socket. If one of
the threads fails, which none should, all of them end: what is half dead would leave clients waiting.
"""

from __future__ import annotations

import logging
import socket
import threading
from itertools import count

from spark_kafka_sink.broker.acceptor import ORDER_SECONDS_MAX, Acceptor
from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.kafka_apis import handle_request
from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.broker.outcome import ChannelAction, ChannelResponse, DelayedRequest, RequestOutcome
from spark_kafka_sink.broker.processor import Processor, ReceivedRequest
from spark_kafka_sink.broker.request_purgatory import RequestPurgatory
from spark_kafka_sink.broker.request_queue import RequestQueue
from spark_kafka_sink.network.system import OperatingSystem, SocketAddress

_log = logging.getLogger(__name__)

CONNECTIONS_MAX = 1_000
WAITING_MAX = 2 * CONNECTIONS_MAX
"""Requests that wait for something to change, those of clients that have gone included; more are answered at once."""

IDLE_MS = 250.0
"""Without requests, the server looks for overdue transactions at this interval."""


class SocketServer:
    """Owns its threads and sockets; implements NodePorts."""

    def __init__(self, cluster: EmbeddedCluster, control: Control, listening: ListenerConfig) -> None:
        self.cluster = cluster
        self.failure: BaseException | None = None
        """The exception that ended one of the threads."""
        self._control = control
        channels, name = listening.security.channels(cluster), listening.resolve_advertised_host()
        self._system = OperatingSystem()
        self._waiting = RequestPurgatory(now=self._system.now, change_count=lambda: cluster.change_count)
        self._resumer = threading.Thread(target=self._resume_requests, name="embedded-broker-waiting", daemon=True)
        self._requests: RequestQueue[ReceivedRequest] = RequestQueue(listening.max_queued_requests)
        self._handlers = [
            threading.Thread(target=self._handle_requests, name=f"embedded-broker-handler-{number}", daemon=True)
            for number in range(listening.io_threads)
        ]
        self._connections = count()
        self._acceptor = Acceptor(self._system, listening.host, self._deliver, self._fail)
        self._processors: list[Processor] = []
        try:
            for node in cluster.nodes.values():
                wanted = listening.ports[node.id] if node.id < len(listening.ports) else 0
                node.host, node.port = name, self._acceptor.bind(node.id, wanted)
        except BaseException:
            self._acceptor.close()
            raise
        handle = self._requests.put if self._handlers else self._handle
        for number in range(listening.network_threads):
            self._processors.append(Processor(number, self._system, channels, handle, self._fail))
        cluster.ports = self

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.cluster.nodes.values())

    def start_threads(self) -> None:
        self._acceptor.start()
        for processor in self._processors:
            processor.start()
        for handler in self._handlers:
            handler.start()
        self._resumer.start()

    def close(self) -> None:
        self._acceptor.stop()
        self._requests.close()
        for handler in self._handlers:
            handler.join()
        self._stop()
        self._acceptor.close()
        self._resumer.join()
        for processor in self._processors:
            processor.join()

    def _stop(self) -> None:
        """All threads end soon: no port is listened on, and connections end."""
        self._requests.close()
        self._waiting.close()
        self._acceptor.stop()
        for processor in self._processors:
            processor.stop()

    def _fail(self, error: BaseException) -> None:
        """The thread that calls this has failed."""
        if self.failure is None:
            self.failure = error
            _log.critical("the embedded broker has failed, and ends", exc_info=error)
            self._stop()

    # --- NodePorts

    def stop_node(self, node: int) -> None:
        self._acceptor.refuse(node)
        for done in [processor.cut(node) for processor in self._processors]:
            done.wait(ORDER_SECONDS_MAX)

    def start_node(self, node: int) -> None:
        self.accept_connections(node)

    def refuse_connections(self, node: int) -> None:
        self._acceptor.refuse(node)

    def accept_connections(self, node: int) -> None:
        self._acceptor.listen(node, self.cluster.nodes[node].port)

    # --- a connection, a request

    def _deliver(self, node: int, sock: socket.socket, address: SocketAddress) -> None:
        if sum(processor.connections for processor in self._processors) >= CONNECTIONS_MAX:
            _log.warning("%s is turned away: there are %d connections already", address, CONNECTIONS_MAX)
            sock.close()
            return
        number = next(self._connections)
        processor = self._processors[number % len(self._processors)]
        processor.accept(f"{node}-{number}", node, sock, address)

    def _handle_requests(self) -> None:
        try:
            while (request := self._requests.take()) is not None:
                self._handle(request)
        except BaseException as error:
            self._fail(error)

    def _handle(self, request: ReceivedRequest) -> None:
        """On a handler thread, or without any, on the thread of the request's processor."""
        try:
            outcome = handle_request(self.cluster, self._control, request.node, request.frame, self._system.now())
        except Exception:
            outcome = self._failed()
        self._follow(request, outcome)
        self._waiting.release_on_change()

    def _resume_requests(self) -> None:
        try:
            while not self._waiting.closed:
                task = self._waiting.get(IDLE_MS)
                if task is not None:
                    task()
                self.cluster.tick(self._system.now())
                self._waiting.release_on_change()
        except BaseException as error:
            self._fail(error)

    def _follow(self, request: ReceivedRequest, outcome: RequestOutcome) -> None:
        if isinstance(outcome, ChannelResponse):
            request.processor.respond(request, outcome)
            return
        later = outcome
        if later.change_count is not None and self._waiting.count >= WAITING_MAX:
            self._resume(request, later, later.deadline_ms)
        else:
            self._waiting.put(
                later.deadline_ms, lambda: self._resume(request, later, self._system.now()), later.change_count
            )

    def _resume(self, request: ReceivedRequest, later: DelayedRequest, now: float) -> None:
        try:
            outcome = later.resume(now)
        except Exception:
            outcome = self._failed()
        self._follow(request, outcome)

    def _failed(self) -> ChannelResponse:
        """A fault of ours ends the connection it came by, and nothing else."""
        _log.exception("the embedded broker could not handle a request")
        return ChannelResponse(action=ChannelAction.CLOSE)

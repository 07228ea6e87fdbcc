"""SocketServer: serves an embedded cluster on real sockets, with the same kinds of threads as Kafka's broker.

    acceptor --> processors --- requests ---> bounded queue ---> handler threads --- delayed requests ---> purgatory
                     ^                                               |                                        |
                     +------------------- responses -----------------+-------------- purgatory thread <-------+

There are one acceptor thread, `num.network.threads` processors (each with its own Selector), `num.io.threads` handler
threads, and one thread that resumes delayed requests. If the queue is full, a processor stops reading until a handler
takes a request, so clients wait. If `num.io.threads` is 0, there is no queue and each processor handles the requests of
its own connections. This saves CPU time, because Python runs one thread at a time and passing a request to another
thread has a cost (docs/decisions/0014-broker-threads.md).

`close` lets the handlers finish the queued requests, then ends all threads and closes all sockets. If any thread fails,
which should not happen, all threads end, because a partly running server would leave clients waiting.
"""

from __future__ import annotations

import logging
import socket
import threading
from itertools import count

from spark_kafka_sink.broker.acceptor import MAX_TASK_WAIT_SECONDS, Acceptor
from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.kafka_apis import CLOSE_CONNECTION, handle_request
from spark_kafka_sink.broker.listener_config import ListenerConfig
from spark_kafka_sink.broker.outcome import ChannelResponse, DelayedRequest, RequestOutcome
from spark_kafka_sink.broker.processor import Processor, ReceivedRequest
from spark_kafka_sink.broker.request_purgatory import RequestPurgatory
from spark_kafka_sink.broker.request_queue import RequestQueue
from spark_kafka_sink.network.system import OperatingSystem, SocketAddress

_log = logging.getLogger(__name__)

MAX_CONNECTIONS = 1_000
MAX_DELAYED_REQUESTS = 2 * MAX_CONNECTIONS
"""Maximum number of delayed requests, including those of disconnected clients. At the limit, a request that would wait
for a change is resumed immediately."""

TRANSACTION_CHECK_INTERVAL_MS = 250.0
"""Maximum time between two checks for timed-out transactions while no requests arrive."""


class SocketServer:
    """The listeners, threads and connections of an embedded cluster. Implements NodeListeners."""

    def __init__(self, cluster: EmbeddedCluster, control: Control, config: ListenerConfig) -> None:
        """Listen on the ports of all nodes, and set each node's advertised host and port.

        Call `start_threads` afterwards. Raise OSError if a port is in use.
        """
        self.cluster = cluster
        self.failure: BaseException | None = None
        """The first exception that ended one of the threads, or None."""
        self._control = control
        channel_builder = config.security.create_channel_builder(cluster)
        advertised_host = config.resolve_advertised_host()
        self._system = OperatingSystem()
        self._purgatory = RequestPurgatory(get_now_ms=self._system.now, get_change_count=lambda: cluster.change_count)
        self._purgatory_thread = threading.Thread(
            target=self._resume_delayed_requests, name="embedded-broker-purgatory", daemon=True
        )
        self._requests: RequestQueue[ReceivedRequest] = RequestQueue(config.max_queued_requests)
        self._handlers = [
            threading.Thread(target=self._handle_queued_requests, name=f"embedded-broker-handler-{number}", daemon=True)
            for number in range(config.io_threads)
        ]
        self._connection_numbers = count()
        self._acceptor = Acceptor(self._system, config.host, self._assign_connection, self._fail)
        self._processors: list[Processor] = []
        try:
            for node in cluster.nodes.values():
                node.host = advertised_host
                node.port = self._acceptor.bind(node.id, config.find_port(node.id))
        except BaseException:
            # Release the ports of the nodes that are already listening.
            self._acceptor.close()
            raise
        # Without handler threads, the processors handle the requests themselves.
        handle_request = self._requests.put if self._handlers else self._handle
        for number in range(config.network_threads):
            self._processors.append(Processor(number, self._system, channel_builder, handle_request, self._fail))

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{node.host}:{node.port}" for node in self.cluster.nodes.values())

    def start_threads(self) -> None:
        self._acceptor.start()
        for processor in self._processors:
            processor.start()
        for handler in self._handlers:
            handler.start()
        self._purgatory_thread.start()

    def close(self) -> None:
        """Finish the queued requests, end all threads and close all sockets."""
        # The handlers end first, because the processors must still be running to send their responses.
        self._acceptor.stop()
        self._requests.close()
        for handler in self._handlers:
            handler.join()
        self._stop_threads()
        self._acceptor.close()
        self._purgatory_thread.join()
        for processor in self._processors:
            processor.join()

    def _stop_threads(self) -> None:
        """Tell all threads to end. Does not wait for them."""
        self._requests.close()
        self._purgatory.close()
        self._acceptor.stop()
        for processor in self._processors:
            processor.stop()

    def _fail(self, error: BaseException) -> None:
        """Record the error that ended the current thread, and stop all other threads."""
        if self.failure is None:
            self.failure = error
            _log.critical("The embedded broker failed and is shutting down", exc_info=error)
            self._stop_threads()

    # --- NodeListeners

    def stop_node(self, node_id: int) -> None:
        self._acceptor.stop_listening(node_id)
        # Ask all processors before waiting for any of them, so that they close their connections concurrently.
        closed_events = [processor.close_connections(node_id) for processor in self._processors]
        for closed_event in closed_events:
            closed_event.wait(MAX_TASK_WAIT_SECONDS)

    def start_node(self, node_id: int) -> None:
        self.accept_connections(node_id)

    def refuse_connections(self, node_id: int) -> None:
        self._acceptor.stop_listening(node_id)

    def accept_connections(self, node_id: int) -> None:
        self._acceptor.listen(node_id, self.cluster.nodes[node_id].port)

    # --- connections and requests

    def _assign_connection(self, node_id: int, sock: socket.socket, address: SocketAddress) -> None:
        """Hand the connection over to the next processor in turn, or close it if there are too many connections."""
        if sum(processor.connection_count for processor in self._processors) >= MAX_CONNECTIONS:
            _log.warning("Rejected a connection from %s: the limit is %d connections", address, MAX_CONNECTIONS)
            sock.close()
            return
        number = next(self._connection_numbers)
        processor = self._processors[number % len(self._processors)]
        processor.accept(f"{node_id}-{number}", node_id, sock, address)

    def _handle_queued_requests(self) -> None:
        try:
            while (request := self._requests.take()) is not None:
                self._handle(request)
        except BaseException as error:
            self._fail(error)

    def _handle(self, request: ReceivedRequest) -> None:
        """Handle a request. Runs on a handler thread or, if there are none, on the processor's thread."""
        try:
            outcome = handle_request(self.cluster, self._control, request.node_id, request.frame, self._system.now())
        except Exception:
            outcome = self._close_after_error()
        self._process_outcome(request, outcome)
        self._purgatory.release_on_change()

    def _resume_delayed_requests(self) -> None:
        """Resume due requests and abort timed-out transactions until the purgatory is closed."""
        try:
            while not self._purgatory.is_closed:
                task = self._purgatory.take(TRANSACTION_CHECK_INTERVAL_MS)
                if task is not None:
                    task()
                self.cluster.abort_due_transactions(self._system.now())
                self._purgatory.release_on_change()
        except BaseException as error:
            self._fail(error)

    def _process_outcome(self, request: ReceivedRequest, outcome: RequestOutcome) -> None:
        """Send the response, or put the delayed request into the purgatory."""
        if isinstance(outcome, ChannelResponse):
            request.processor.send_response(request, outcome)
            return
        delayed_request = outcome
        if delayed_request.change_count is not None and self._purgatory.count >= MAX_DELAYED_REQUESTS:
            # The purgatory is full. Resume the request at once, with its deadline as the current time, so that the
            # handler responds instead of waiting. (Requests without a change_count are delayed by injected faults.)
            self._resume(request, delayed_request, delayed_request.deadline_ms)
        else:
            self._purgatory.put(
                delayed_request.deadline_ms,
                lambda: self._resume(request, delayed_request, self._system.now()),
                delayed_request.change_count,
            )

    def _resume(self, request: ReceivedRequest, delayed_request: DelayedRequest, now_ms: float) -> None:
        """Continue a delayed request and process its outcome, which may be another delay."""
        try:
            outcome = delayed_request.resume(now_ms)
        except Exception:
            outcome = self._close_after_error()
        self._process_outcome(request, outcome)

    def _close_after_error(self) -> ChannelResponse:
        """Log the current exception, and return a response that closes the request's connection and no other."""
        _log.exception("Could not handle a request")
        return CLOSE_CONNECTION

"""SocketServer: the cluster on real sockets, built as a broker's is.

    acceptor --> processors --requests--> one bounded queue --> handler threads
                     ^                                               |
                     +------------------- replies -------------------+

Threads: one acceptor, `processors` with a Selector each, `handlers` that run the core. `stop` ends them all and closes
every socket.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Sequence
from itertools import count

from spark_kafka_sink.broker.acceptor import ORDER_SECONDS_MAX, Acceptor
from spark_kafka_sink.broker.cluster import EmbeddedCluster
from spark_kafka_sink.broker.control import Control
from spark_kafka_sink.broker.processor import Processor, Request
from spark_kafka_sink.broker.reply import Later, Outcome, Reply, Then
from spark_kafka_sink.broker.request_queue import RequestQueue
from spark_kafka_sink.broker.requests import answer
from spark_kafka_sink.network.channel import ChannelBuilder, plaintext_channels
from spark_kafka_sink.network.frame import FRAME_BYTES_MAX
from spark_kafka_sink.network.system import OperatingSystem, SocketAddress

_log = logging.getLogger(__name__)

REQUESTS_MAX = 500
IDLE_MS = 250.0
"""So often is looked after overdue transactions when nothing comes in."""


class SocketServer:
    """Owns its threads and sockets; implements NodePorts."""

    def __init__(  # noqa: PLR0913 - the settings of a server, each by its name
        self,
        cluster: EmbeddedCluster,
        control: Control,
        *,
        host: str = "127.0.0.1",
        advertised_host: str | None = None,
        ports: Sequence[int] = (),
        channels: ChannelBuilder = plaintext_channels,
        processors: int = 2,
        handlers: int = 4,
        frame_bytes_max: int = FRAME_BYTES_MAX,
    ) -> None:
        """`ports` of the nodes in turn; nodes without one get any free port."""
        self.cluster = cluster
        self._control = control
        self._system = OperatingSystem()
        self._queue = RequestQueue(REQUESTS_MAX, now=self._system.now, progress=lambda: cluster.progress)
        self._connections = count()
        self._acceptor = Acceptor(self._system, host, self._deliver)
        self._processors: list[Processor] = []
        self._handlers: list[threading.Thread] = []
        try:
            for node in cluster.nodes.values():
                wanted = ports[node.id] if node.id < len(ports) else 0
                node.host, node.port = advertised_host or host, self._acceptor.bind(node.id, wanted)
        except BaseException:
            self._acceptor.stop()
            raise
        for number in range(processors):
            self._processors.append(Processor(number, self._system, channels, frame_bytes_max, self._take))
        for number in range(handlers):
            name = f"embedded-broker-handler-{number}"
            self._handlers.append(threading.Thread(target=self._handle_requests, name=name, daemon=True))
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

    def close(self) -> None:
        self._queue.close()
        self._acceptor.stop()
        for handler in self._handlers:
            handler.join()
        for processor in self._processors:
            processor.stop()
        for processor in self._processors:
            processor.join()

    # --- NodePorts

    def stop(self, node: int) -> None:
        self._acceptor.refuse(node)
        for done in [processor.cut(node) for processor in self._processors]:
            done.wait(ORDER_SECONDS_MAX)

    def start(self, node: int) -> None:
        self.accept(node)

    def refuse(self, node: int) -> None:
        self._acceptor.refuse(node)

    def accept(self, node: int) -> None:
        self._acceptor.listen(node, self.cluster.nodes[node].port)

    # --- a connection, a request

    def _deliver(self, node: int, sock: socket.socket, address: SocketAddress) -> None:
        number = next(self._connections)
        processor = self._processors[number % len(self._processors)]
        processor.accept(f"{node}-{number}", node, sock, address)

    def _take(self, request: Request) -> None:
        self._queue.put(lambda: self._handle(request))

    def _handle_requests(self) -> None:
        while not self._queue.closed:
            task = self._queue.get(IDLE_MS)
            if task is not None:
                task()
            self.cluster.tick(self._system.now())
            self._queue.note_progress()

    def _handle(self, request: Request) -> None:
        try:
            outcome = answer(self.cluster, self._control, request.node, request.frame, self._system.now())
        except Exception:
            outcome = self._failed()
        self._follow(request, outcome)

    def _follow(self, request: Request, outcome: Outcome) -> None:
        if isinstance(outcome, Later):
            later = outcome
            self._queue.put_at(later.until_ms, lambda: self._resume(request, later), later.progress)
        else:
            request.processor.respond(request.channel_id, outcome)

    def _resume(self, request: Request, later: Later) -> None:
        try:
            outcome = later.resume(self._system.now())
        except Exception:
            outcome = self._failed()
        self._follow(request, outcome)

    def _failed(self) -> Reply:
        """A fault of ours ends the connection it came by, and nothing else."""
        _log.exception("the embedded broker could not handle a request")
        return Reply(then=Then.CLOSE)

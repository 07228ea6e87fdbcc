"""Threads of SocketServer: handlers, processors, the bounded queue between them, and the shutdown."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from spark_kafka_sink.broker import socket_server
from spark_kafka_sink.broker.kafka_apis import handle_request
from spark_kafka_sink.broker.request_queue import RequestQueue
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.protocol.message import ApiKey, Message
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.testing import embedded_broker
from tests.broker.loopback_client import LoopbackClient, broker_threads
from tests.broker.wire_client import batch, produce_request
from tests.waiting import WAIT_TIMEOUT_SECONDS, eventually

METADATA = (MetadataRequest(topics=None), 9)


class BlockedProduce:
    """Blocks handlers of Produce until it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.blocked = 0
        self.released = threading.Event()

        def block(cluster: Any, control: Any, node: int, frame: memoryview, now_ms: float) -> Any:
            if int.from_bytes(frame[:2], "big") == ApiKey.PRODUCE:
                self.blocked += 1
                self.released.wait()
            return handle_request(cluster, control, node, frame, now_ms)

        monkeypatch.setattr(socket_server, "handle_request", block)


@pytest.fixture
def handlers(monkeypatch: pytest.MonkeyPatch) -> Iterator[BlockedProduce]:
    handlers = BlockedProduce(monkeypatch)
    yield handlers
    handlers.released.set()


def test_blocked_handler_delays_no_other_connection_of_its_processor(handlers: BlockedProduce) -> None:
    with (
        embedded_broker({"t": 1}, num_network_threads=1) as broker,
        LoopbackClient(broker.bootstrap_servers) as blocked,
        LoopbackClient(broker.bootstrap_servers) as other,
    ):
        blocked.send((produce_request(batch(b"a")), 9))
        assert eventually(lambda: handlers.blocked == 1)
        try:
            assert other.request(*METADATA) is not None
        finally:
            handlers.released.set()
        assert blocked.receive() is not None


def test_blocked_fault_filter_delays_no_other_request() -> None:
    entered, released = threading.Event(), threading.Event()

    def block(request: Message) -> bool:
        entered.set()
        return released.wait(WAIT_TIMEOUT_SECONDS)

    with (
        embedded_broker({"t": 1}) as broker,
        LoopbackClient(broker.bootstrap_servers) as blocked,
        LoopbackClient(broker.bootstrap_servers) as other,
    ):
        broker.control.when(api=ApiKey.PRODUCE, matches=block).delay(0)
        blocked.send((produce_request(batch(b"a")), 9))
        assert entered.wait(WAIT_TIMEOUT_SECONDS)
        try:
            assert other.request(*METADATA) is not None
        finally:
            released.set()
        assert blocked.receive() is not None


@contextmanager
def requests_behind_blocked_produce(
    bootstrap: str, handlers: BlockedProduce, count: int
) -> Iterator[list[LoopbackClient]]:
    """Yield clients: the first one's Produce blocks a handler, and each of the others has sent a request after it."""
    with ExitStack() as stack:
        clients = [stack.enter_context(LoopbackClient(bootstrap)) for _ in range(count)]
        stack.callback(handlers.released.set)
        clients[0].send((produce_request(batch(b"a")), 9))
        assert eventually(lambda: handlers.blocked == 1)
        for client in clients[1:]:
            client.send(METADATA)
        yield clients


def test_full_queue_stops_its_processor_from_reading(handlers: BlockedProduce, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    put = RequestQueue.put

    def recorded_put(queue: RequestQueue[object], request: object) -> bool:
        read.append(request)
        return put(queue, request)

    monkeypatch.setattr(RequestQueue, "put", recorded_put)
    with (
        embedded_broker({"t": 1}, num_network_threads=1, num_io_threads=1, queued_max_requests=1) as broker,
        requests_behind_blocked_produce(broker.bootstrap_servers, handlers, 5) as clients,
    ):
        queue = broker._server._requests
        assert eventually(lambda: bool(queue._not_full._waiters))  # type: ignore[attr-defined]
        assert len(read) == 3  # one is being handled, one is queued, and the processor waits to queue another one
        handlers.released.set()
        assert all(client.receive() is not None for client in clients)


def test_close_responds_to_queued_requests(handlers: BlockedProduce) -> None:
    with (
        embedded_broker({"t": 1}, num_io_threads=1) as broker,
        requests_behind_blocked_produce(broker.bootstrap_servers, handlers, 4) as clients,
    ):
        queue = broker._server._requests
        assert eventually(lambda: len(queue._requests) == 3)
        closing = threading.Thread(target=broker.close, daemon=True)
        closing.start()
        assert eventually(lambda: queue._is_closed)
        handlers.released.set()
        closing.join()
        assert all(client.receive() is not None for client in clients)


@pytest.mark.parametrize(("network_threads", "io_threads"), [(1, 0), (2, 2), (3, 4)])
def test_starts_as_many_threads_as_configured(network_threads: int, io_threads: int) -> None:
    threads = broker_threads()
    with (
        embedded_broker({"t": 1}, num_network_threads=network_threads, num_io_threads=io_threads) as broker,
        LoopbackClient(broker.bootstrap_servers) as client,
    ):
        kinds = [thread.name.split("-")[2] for thread in broker_threads() - threads]
        assert (kinds.count("processor"), kinds.count("handler")) == (network_threads, io_threads)
        assert client.request(*METADATA) is not None


def test_rejects_thread_counts_out_of_range() -> None:
    threads = broker_threads()
    with pytest.raises(ConfigurationError) as caught:
        embedded_broker(num_network_threads=0, num_io_threads=-1, queued_max_requests=0)
    for name in ("num.network.threads must be at least 1", "num.io.threads must be at least 0", "queued.max.requests"):
        assert name in str(caught.value)
    assert broker_threads() <= threads

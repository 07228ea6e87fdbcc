"""A producer whose resolver does not respond: calls keep their timeouts, and close() does not wait for the resolver."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from spark_kafka_sink import KafkaProducer
from spark_kafka_sink.errors import KafkaSinkError, MetadataTimeoutError
from spark_kafka_sink.testing import embedded_broker


class HangingResolver:
    """Replaces socket.getaddrinfo. The name `hangs` is not resolved until `release` is set."""

    def __init__(self) -> None:
        self.release, self.has_started = threading.Event(), threading.Event()
        self._getaddrinfo = socket.getaddrinfo

    def __call__(self, host: str, *args: Any, **keywords: Any) -> Any:
        if host == "hangs":
            self.has_started.set()
            self.release.wait()
            raise socket.gaierror(socket.EAI_NONAME, "unknown name")
        return self._getaddrinfo(host, *args, **keywords)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[HangingResolver]:
    resolver = HangingResolver()
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    yield resolver
    resolver.release.set()


def close_during_lookup(producer: KafkaProducer, resolver: HangingResolver) -> None:
    """Close the producer while a lookup hangs. Without a timeout, close() waits for the sender thread."""
    assert resolver.has_started.wait(60)
    with ThreadPoolExecutor(1) as pool:
        closed = pool.submit(producer.close)
        try:
            closed.result(60)
        finally:
            resolver.release.set()


def test_closes_while_bootstrap_servers_are_looked_up(resolver: HangingResolver) -> None:
    producer = KafkaProducer(bootstrap_servers="hangs:9092", bootstrap_resolve_timeout_ms=600_000, max_block_ms=1)
    with pytest.raises(MetadataTimeoutError):
        producer.partitions_for("t")
    close_during_lookup(producer, resolver)


def test_closes_while_a_broker_is_looked_up(resolver: HangingResolver) -> None:
    with embedded_broker({"t": 1}, advertised_host="hangs") as broker:
        _, port = broker.bootstrap_servers.rsplit(":", 1)
        producer = KafkaProducer(bootstrap_servers=f"127.0.0.1:{port}")
        future = producer.send("t", b"value")
        assert resolver.has_started.wait(60)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(producer.close, 0).result(60)
        assert isinstance(future.exception(0), KafkaSinkError)

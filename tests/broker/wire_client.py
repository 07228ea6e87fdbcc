"""WireClient: sends single requests in virtual time. Other functions encode record batches by hand."""

from __future__ import annotations

from typing import Any

from spark_kafka_sink.network.frame import NetworkSend
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.protocol.headers import decode_response, encode_request, peek_correlation_id
from spark_kafka_sink.protocol.message import Message
from spark_kafka_sink.protocol.messages import load_response_type
from spark_kafka_sink.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from tests.fake_system import FakeSystem
from tests.records.batch_headers import build_header


def record(value: bytes, offset_delta: int = 0) -> bytes:
    """Encode a record with a short value, no key and no headers."""
    body = bytes([0, 0, offset_delta * 2, 1, len(value) * 2]) + value + b"\0"
    assert len(body) < 64
    return bytes([len(body) * 2]) + body


def batch(*values: bytes, sequence: int = -1, producer: tuple[int, int] = (-1, -1), **fields: Any) -> bytes:
    body = b"".join(record(value, index) for index, value in enumerate(values))
    header = {"base_timestamp": 1000, "max_timestamp": 1000, "record_count": len(values), **fields}
    return (
        build_header(
            segments=[body], producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence, **header
        )
        + body
    )


def produce_request(data: bytes, topic: str = "t", partition: int = 0, **fields: Any) -> ProduceRequest:
    fields = {"acks": -1, "timeout_ms": 1000, **fields}
    partitions = [PartitionProduceData(index=partition, records=data)]
    return ProduceRequest(topic_data=[TopicProduceData(name=topic, partition_data=partitions)], **fields)


def partition_response(response: Message) -> PartitionProduceResponse:
    """Return the response of the only partition in a produce request."""
    assert isinstance(response, ProduceResponse)
    (topic,) = response.responses
    (partition,) = topic.partition_responses
    return partition


class WireClient:
    """A client with one connection per node of a simulated cluster, opened by the first request."""

    def __init__(self, system: FakeSystem, client_id: str = "tests") -> None:
        self.selector = Selector(system)
        self._system = system
        self._client_id = client_id
        self._correlation_id = 0

    def send(self, message: Message, version: int, node: int = 0) -> int:
        """Send a request without waiting for the response. Return its correlation id."""
        channel_id = str(node)
        if not self.selector.is_channel_ready(channel_id):
            self.selector.connect(channel_id, self._system.resolve(f"broker{node}", 9092 + node)[0])
            self.selector.poll(1000)
            assert self.selector.connected == [channel_id], "the connection was refused"
        self._correlation_id += 1
        self.selector.send(
            NetworkSend(channel_id, encode_request(message, version, self._correlation_id, self._client_id))
        )
        return self._correlation_id

    def request(self, message: Message, version: int | None = None, node: int = 0) -> Any:
        """Send a request, by default in its latest version.

        Return the response, or None if the connection is closed instead.
        """
        if version is None:
            version = type(message).VERSIONS.max
        correlation_id = self.send(message, version, node)
        payload = self.wait()
        if payload is None:
            return None
        assert peek_correlation_id(payload) == correlation_id
        return decode_response(payload, load_response_type(message.API_KEY), version)[1]

    def wait(self, max_polls: int = 100) -> memoryview | None:
        """Wait for a response. Return its payload, or None if the connection is closed instead."""
        for _ in range(max_polls):
            self.selector.poll(1_000)
            if self.selector.completed_receives:
                return self.selector.completed_receives[0].payload
            if self.selector.disconnected:
                return None
        raise AssertionError("neither a response nor the end of the connection")

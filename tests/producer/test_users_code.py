"""A user's own code around send(): a partitioner, an interceptor or a callback that raises or returns nonsense."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from spark_kafka_sink.client.metadata import Metadata
from spark_kafka_sink.errors import InvalidRecordError, MetadataTimeoutError
from spark_kafka_sink.producer.futures import RecordMetadata
from spark_kafka_sink.producer.interceptors import Interceptor
from spark_kafka_sink.producer.producer import KafkaProducer, RecordPartitioner
from spark_kafka_sink.producer.record import ProducerRecord
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import InlineLoop, loop_of, outcome
from tests.simulated_cluster import SimulatedCluster


def producer_with(
    partitioner: RecordPartitioner | None = None,
    interceptors: Sequence[Interceptor[ProducerRecord, RecordMetadata]] = (),
) -> KafkaProducer:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), nodes=2, topics={"t": 2})
    return KafkaProducer(
        {"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0},
        system=cluster.system,
        loop=InlineLoop(cluster.system),
        partitioner=partitioner,
        interceptors=interceptors,
    )


def test_a_topic_that_becomes_known_in_the_last_moment_is_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    producer = producer_with()
    loop = loop_of(producer)

    def too_late(metadata: Metadata, last_version: int, timeout_ms: float) -> None:
        loop.run_until(lambda: metadata.snapshot.partition_count("t") is not None, timeout_ms)
        raise MetadataTimeoutError("just now")

    monkeypatch.setattr(loop, "await_metadata", too_late)
    assert outcome(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0


@pytest.mark.parametrize("chosen", ["0", 1.5, -1, 2, b"", ValueError("no idea")])
def test_a_partitioner_that_raises_or_chooses_nonsense_fails_its_record_alone(chosen: object) -> None:
    def choose(topic: str, key: bytes | None, value: bytes | None, partitions: object) -> int:
        if key is None:
            return 1
        if isinstance(chosen, Exception):
            raise chosen
        return chosen  # type: ignore[return-value]

    producer = producer_with(choose)
    error = producer.send(ProducerRecord("t", b"v", key=b"k")).exception(0)
    assert isinstance(error, InvalidRecordError)
    assert "Topic t" in str(error)
    assert outcome(producer, producer.send(ProducerRecord("t", b"v"))).partition == 1


@pytest.mark.parametrize("returned", [None, b"v", ProducerRecord("", b"v")])
def test_an_interceptor_that_returns_no_record_is_told_at_the_call(returned: object) -> None:
    class Wrong:
        def on_send(self, record: ProducerRecord) -> ProducerRecord:
            return returned if record.value == b"bad" else record  # type: ignore[return-value]

        def on_acknowledgement(self, metadata: RecordMetadata | None, error: Exception | None) -> None:
            raise ValueError("at the wrong time")

    producer = producer_with(interceptors=[Wrong()])
    with pytest.raises(InvalidRecordError):
        producer.send(ProducerRecord("t", b"bad"))
    assert outcome(producer, producer.send(ProducerRecord("t", b"v"))).offset == 0

"""Callbacks of one partition run in the order in which its records were sent, whether they are stored or fail."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from random import Random

import pyarrow as pa
import pytest

from spark_kafka_sink.producer.batching.row_groups import RowGroup
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.results import RecordMetadata
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster


def simulated(partitions: int, **options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=1), topics={"t": partitions})
    return cluster, create_simulated_producer(cluster, **options)


class RecordedOutcomes:
    """Outcomes in the order in which the callbacks received them."""

    def __init__(self) -> None:
        self.numbers: list[int] = []
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)

    def create_callback(self, number: int) -> Callable[[RecordMetadata, Exception | None], None]:
        def callback(metadata: RecordMetadata, error: Exception | None) -> None:
            self.numbers.append(number)
            self.offsets[metadata.partition].append(metadata.offset)

        return callback


def test_callback_order_when_later_call_is_acknowledged_first_on_another_partition() -> None:
    _, producer = simulated(4, linger_ms=5, batch_size=1_000)
    outcomes = RecordedOutcomes()
    partitions = [*(1 + n % 3 for n in range(12)), *range(4)]  # the first twelve are assigned before the others
    futures = [
        producer.send(ProducerRecord("t", b"v" * 100, partition=to), outcomes.create_callback(n))
        for n, to in enumerate(partitions)
    ]
    run_until(producer, lambda: all(future.done() for future in futures))
    assert dict(outcomes.offsets) == {0: [0], **{partition: [0, 1, 2, 3, 4] for partition in (1, 2, 3)}}


@pytest.mark.parametrize("compression", ["none", "gzip"])
@pytest.mark.parametrize("seed", [0, 1, 2, 4, 7, 9])
def test_callback_order_of_records_and_columns_for_many_partitions(seed: int, compression: str) -> None:
    chance = Random(seed)
    partitions = chance.choice([1, 2, 4, 40])
    batch_size = chance.choice([300, 1_000, 16_384])
    _, producer = simulated(partitions, linger_ms=5, batch_size=batch_size, compression_type=compression)
    outcomes = RecordedOutcomes()
    futures = []
    for number in range(200):
        if chance.random() < 0.1:
            to = pa.array([chance.randrange(partitions) for _ in range(chance.randrange(1, 30))], pa.int32())
            producer.send_columns("t", RecordColumns(pa.array([b"c" * 50] * len(to))), to)
        record = ProducerRecord("t", b"v" * chance.randrange(200), partition=chance.randrange(partitions))
        futures.append(producer.send(record, outcomes.create_callback(number)))
        if chance.random() < 0.05:
            get_loop(producer).run_once()
    run_until(producer, lambda: all(future.done() for future in futures))
    assert sum(map(len, outcomes.offsets.values())) == 200
    assert {partition: sorted(offsets) for partition, offsets in outcomes.offsets.items()} == outcomes.offsets


def test_stored_record_completes_before_later_record_that_fails_in_same_round() -> None:
    cluster, producer = simulated(
        1, linger_ms=0, batch_size=200, retries=0, enable_idempotence=False, request_timeout_ms=1_000
    )
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first")))
    cluster.control.when(api=ApiKey.PRODUCE, nth=1).delay(998)  # its response arrives when the other request times out
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).never_respond()
    outcomes = RecordedOutcomes()
    stored, lost = (producer.send(ProducerRecord("t", b"v" * 120), outcomes.create_callback(n)) for n in range(2))
    run_until(producer, lambda: stored.done() and lost.done())
    assert stored.exception(0) is None
    assert lost.exception(0) is not None
    assert outcomes.numbers == [0, 1]


def test_staged_records_fail_after_records_in_batches() -> None:
    cluster, producer = simulated(1, linger_ms=50, batch_size=1_000, max_in_flight_requests_per_connection=1)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first")))
    cluster.control.when(api=ApiKey.PRODUCE, times=None).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    outcomes = RecordedOutcomes()
    futures = [producer.send(ProducerRecord("t", b"v" * 100), outcomes.create_callback(n)) for n in range(60)]
    run_until(producer, lambda: all(future.done() for future in futures))
    assert outcomes.numbers == list(range(60))


def test_stored_records_fail_when_memory_for_their_results_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, producer = simulated(1, linger_ms=5)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"first")))

    def no_memory(*_: object) -> None:
        raise MemoryError("at a bad moment")

    monkeypatch.setattr(RowGroup, "split_stored_ranges", no_memory)
    future = producer.send(ProducerRecord("t", b"v"))
    with pytest.raises(MemoryError):
        run_until(producer, future.done)
    sender = get_loop(producer).sender
    sender.shut_down()
    assert "may have been stored" in str(future.exception(0))
    assert get_reserved_bytes(producer) == 0
    assert not sender.has_incomplete_rows

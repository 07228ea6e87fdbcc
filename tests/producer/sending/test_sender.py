"""The sender and idempotence in virtual time: the cases of Kafka's SenderTest and TransactionManagerTest."""

from __future__ import annotations

import pyarrow as pa
import pytest

from spark_kafka_sink.client.producer_ids import MAX_EPOCH, ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    DecodeError,
    DeliveryTimeoutError,
    ProducerClosedError,
    RecordTooLargeError,
)
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    get_sender,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster

TP = TopicPartition("t", 0)


def simulated(nodes: int = 2, **options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=2), nodes=nodes, topics={"t": 1})
    given: dict[str, object] = {"linger_ms": 0, "retry_backoff_ms": 10, **options}
    return cluster, create_simulated_producer(cluster, **given)


def send_each(producer: KafkaProducer, *values: bytes) -> list[BaseException | None]:
    """Send a request for each value, concurrently if the rules allow it. Return their errors."""
    futures = []
    for value in values:
        futures.append(producer.send(ProducerRecord("t", value)))
        get_loop(producer).run_until(lambda: False, 0.2)
    get_loop(producer).run_until(lambda: all(future.done() for future in futures), 600_000)
    return [future.exception(0) for future in futures]


def established(producer: KafkaProducer) -> None:
    """Deliver one record, so that several requests may be in flight."""
    wait_for_result(producer, producer.send(ProducerRecord("t", b"0")))


@pytest.mark.parametrize(
    "code",
    [
        codes.NOT_LEADER_OR_FOLLOWER,
        codes.NOT_ENOUGH_REPLICAS,
        codes.OUT_OF_ORDER_SEQUENCE_NUMBER,
        codes.CORRUPT_MESSAGE,
    ],
)
def test_10_rejection_in_the_middle_of_a_pipeline_keeps_the_order(code: int) -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).fail(code)
    assert send_each(producer, b"1", b"2", b"3", b"4") == [None] * 4
    assert cluster.values("t") == [b"0", b"1", b"2", b"3", b"4"]


def test_9_retry_after_lost_response_is_recognized_as_duplicate() -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    assert send_each(producer, b"1", b"2", b"3") == [None] * 3
    assert cluster.values("t") == [b"0", b"1", b"2", b"3"]


def test_failed_batch_leaves_no_gap_under_the_new_epoch() -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    errors = send_each(producer, b"1", b"2", b"3")
    assert isinstance(errors[0], AuthorizationError)
    assert errors[1:] == [None, None]
    assert cluster.values("t") == [b"0", b"2", b"3"]
    assert get_sender(producer).idempotence.id_and_epoch.epoch == 1


def test_expired_batch_leaves_unresolved_sequence_until_epoch_bump() -> None:
    cluster, producer = simulated(request_timeout_ms=500, delivery_timeout_ms=800)
    established(producer)
    rule = cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    errors = send_each(producer, b"lost")
    assert isinstance(errors[0], DeliveryTimeoutError)
    assert "may have been stored" in str(errors[0])
    rule.remove()
    assert send_each(producer, b"1") == [None]
    assert cluster.values("t") == [b"0", b"1"]


def test_late_response_resolves_sequence_without_new_epoch() -> None:
    cluster, producer = simulated(request_timeout_ms=800, delivery_timeout_ms=800)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).delay(795)
    assert isinstance(send_each(producer, b"1")[0], DeliveryTimeoutError)
    get_loop(producer).run_until(lambda: False, 2000)
    assert send_each(producer, b"2") == [None]
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_17_sequences_wrap_around_in_order() -> None:
    cluster, producer = simulated()
    idempotence = get_sender(producer).idempotence
    idempotence.set_producer_id_and_epoch(ProducerIdAndEpoch(77, 0))
    state = idempotence.partition_state(TP)
    state.start_sequences(ProducerIdAndEpoch(77, 0))
    state.next_sequence = 2**31 - 3
    cluster.control.when(api=ApiKey.PRODUCE, nth=3).fail(codes.NOT_ENOUGH_REPLICAS)
    assert send_each(producer, *(b"%d" % i for i in range(8))) == [None] * 8
    assert cluster.values("t") == [b"%d" % i for i in range(8)]
    assert state.next_sequence == 5


def test_requests_new_producer_id_after_last_epoch() -> None:
    cluster, producer = simulated()
    idempotence = get_sender(producer).idempotence
    idempotence.set_producer_id_and_epoch(ProducerIdAndEpoch(77, MAX_EPOCH))
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    assert send_each(producer, b"1", b"2") == [None, None]
    assert cluster.values("t") == [b"0", b"1", b"2"]
    assert idempotence.id_and_epoch.producer_id != 77
    assert idempotence.id_and_epoch.epoch < MAX_EPOCH


def test_splits_batch_that_is_too_large_and_fails_single_record() -> None:
    cluster, producer = simulated(batch_size=100_000, linger_ms=5)
    cluster.control.when(api=ApiKey.PRODUCE, times=2).fail(codes.MESSAGE_TOO_LARGE)
    many = producer.send_columns("t", RecordColumns(pa.array([b"%03d" % i for i in range(100)])))
    assert wait_for_result(producer, many).rows_written == 100
    assert cluster.values("t") == [b"%03d" % i for i in range(100)]
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.MESSAGE_TOO_LARGE)
    assert isinstance(send_each(producer, b"single")[0], RecordTooLargeError)


@pytest.mark.parametrize("is_in_doubt", [False, True])
def test_fails_batch_when_memory_for_its_split_is_missing(
    is_in_doubt: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_memory(*_: object) -> None:
        raise MemoryError("at a bad moment")

    cluster, producer = simulated(linger_ms=5)
    if is_in_doubt:
        cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2 if is_in_doubt else 1).fail(codes.MESSAGE_TOO_LARGE)
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_splitting.encode_records", no_memory)
    (failure,) = wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([b"1", b"2"])))).failures
    assert "topic t, partition 0: a batch that was rejected as too large could not be split: MemoryError" in str(
        failure.error
    )
    assert failure.error.possibly_stored is is_in_doubt
    assert isinstance(failure.error.__cause__, MemoryError)
    assert failure.error.__cause__.__traceback__ is None, "its frames would keep the batch's records in memory"
    assert "in no_memory" in caplog.text, "the traceback is in the log"
    assert send_each(producer, b"3") == [None]
    assert get_reserved_bytes(producer) == 0


def test_failed_split_frees_memory_of_the_batches_it_has_created(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: list[ProducerBatch] = []
    original = ProducerBatch.copy_to_own_memory

    def copy_only_the_first(batch: ProducerBatch) -> None:
        if copied:
            raise MemoryError("at a bad moment")
        copied.append(batch)
        original(batch)

    cluster, producer = simulated(linger_ms=5)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.MESSAGE_TOO_LARGE)
    monkeypatch.setattr(ProducerBatch, "copy_to_own_memory", copy_only_the_first)
    (failure,) = wait_for_result(producer, producer.send_columns("t", RecordColumns(pa.array([b"1", b"2"])))).failures
    assert "could not be split: MemoryError" in str(failure.error)
    assert copied
    assert get_reserved_bytes(producer) == 0


def test_rejected_producer_id_fails_all_records_immediately() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(codes.INVALID_REQUEST)
    error = send_each(producer, b"1")[0]
    assert isinstance(error, BrokerError)
    with pytest.raises(ProducerClosedError, match="INVALID_REQUEST"):
        producer.send(ProducerRecord("t", b"2"))


def test_negative_producer_id_fails_all_records() -> None:
    cluster, producer = simulated()
    cluster.core.coordinator.next_producer_id = -5
    error = send_each(producer, b"1")[0]
    assert isinstance(error, DecodeError)
    assert "A broker returned the producer id -5" in str(error)


def test_records_fail_until_idempotent_write_is_authorized() -> None:
    cluster, producer = simulated()
    rule = cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=None).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    started = cluster.system.now()
    for value in (b"1", b"2"):
        error = send_each(producer, value)[0]
        assert isinstance(error, AuthorizationError)
        permissions = "the Write permission on the topic (before Kafka 2.8, IdempotentWrite on the cluster)"
        assert f"Grant this user {permissions}" in str(error)
    assert cluster.system.now() - started < 3000
    rule.remove()
    assert send_each(producer, b"3", b"4") == [None, None]
    assert cluster.values("t") == [b"3", b"4"]
    producer.close()
    assert get_reserved_bytes(producer) == 0


def test_requests_producer_id_again_after_retriable_error() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, nth=2).drop()
    assert send_each(producer, b"1") == [None]


@pytest.mark.parametrize("newest", [3, 9, 12, 13])
def test_produce_request_names_topics_as_its_version_requires(newest: int) -> None:
    cluster = SimulatedCluster(FakeSystem(), topics={"t": 1}, version_limits={ApiKey.PRODUCE: VersionRange(3, newest)})
    producer = create_simulated_producer(cluster)
    assert send_each(producer, b"1") == [None]
    assert cluster.values("t") == [b"1"]


def test_21_throttled_producer_waits_without_timeouts() -> None:
    cluster, producer = simulated(request_timeout_ms=1000)
    cluster.control.when(api=ApiKey.PRODUCE, times=3).throttle(3000)
    assert send_each(producer, b"1", b"2", b"3") == [None] * 3
    assert producer.metrics()["produce-throttle-time-max"] == 3000


def test_waits_for_end_of_throttling_while_requests_are_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise that broker's next request would wait for another response, or a timeout."""
    _, producer = simulated()
    established(producer)
    sender = get_sender(producer)
    node_id = next(iter(sender.metadata.snapshot.nodes))
    monkeypatch.setattr(sender.client, "ready", lambda *_: False)
    monkeypatch.setattr(sender.client, "poll_delay_ms", lambda *_: 300.0)
    assert sender._connect_and_find_available_nodes(sender.metadata.snapshot, [node_id], 0.0) == ([], 300.0)


def test_follows_moved_leader() -> None:
    cluster, producer = simulated()
    established(producer)
    leader = cluster.core.topic("t").partitions[0].leader
    cluster.control.move_leader("t", 0, 1 - (leader or 0))
    assert send_each(producer, b"1", b"2") == [None, None]
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_16_forgotten_producer_state_loses_and_duplicates_nothing() -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.delete_records("t", 0, 1)
    cluster.control.forget_producers("t", 0)
    assert send_each(producer, b"1", b"2") == [None, None]
    assert cluster.values("t") == [b"1", b"2"]

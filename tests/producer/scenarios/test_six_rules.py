"""The six rules by their numbers (docs/producer-guarantees.md). Each scenario is run with the rule and without it."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import Mock
from uuid import UUID

import pyarrow as pa
import pytest

from spark_kafka_sink.broker.api_error import ApiError
from spark_kafka_sink.client.producer_ids import ProducerIdAndEpoch
from spark_kafka_sink.client.topic_partition import TopicPartition
from spark_kafka_sink.client.versions import NodeApiVersions
from spark_kafka_sink.errors import (
    BatchRejectedError,
    DeliveryError,
    DeliveryTimeoutError,
    InvalidRecordError,
    KafkaSinkError,
)
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending import deliveries, idempotence
from spark_kafka_sink.producer.sending.idempotence import Idempotence
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_loop,
    get_reserved_bytes,
    get_sender,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster

TP = TopicPartition("t", 0)


def create_batch(records: int = 1, *, timestamp_ms: int = idempotence.MAX_AGE_MS) -> ProducerBatch:
    """Create a batch whose timestamp is, by default, not before any time of these tests."""
    batch = ProducerBatch(TP, oldest_row_arrival_ms=0, deadline_ms=1_000)
    batch.record_count = records
    batch.max_timestamp = timestamp_ms
    return batch


def create_idempotence() -> tuple[Idempotence, dict[int, NodeApiVersions]]:
    connections: dict[int, NodeApiVersions] = {0: NodeApiVersions("b", {}), 1: NodeApiVersions("b", {})}
    tracker = Idempotence(
        enabled=True,
        max_in_flight=5,
        get_connection_identity=connections.get,
        get_topic_id={"t": UUID(int=1)}.get,
        get_unix_time_ms=lambda: 0,
    )
    tracker.set_producer_id_and_epoch(ProducerIdAndEpoch(7, 0))
    return tracker, connections


def succeed(tracker: Idempotence, batch: ProducerBatch, node: int = 0) -> None:
    tracker.handle_stored_batch(batch, tracker.get_connection_identity(node), tracker._get_topic_id("t"))


def create_pipelined_idempotence() -> tuple[Idempotence, dict[int, NodeApiVersions]]:
    """Create an Idempotence whose partition is PIPELINED at time 0 and has one request in flight to node 0."""
    tracker, connections = create_idempotence()
    first = create_batch()
    assert tracker.admit(first, 0)
    succeed(tracker, first)
    assert tracker.admit(create_batch(), 0)
    return tracker, connections


def send_in_separate_batches(producer: KafkaProducer, *values: bytes) -> list[object]:
    """Send the records one by one, each in a separate request."""
    futures = []
    for value in values:
        futures.append(producer.send(ProducerRecord("t", value, partition=0)))
        get_loop(producer).run_until(lambda: False, 0.2)
    return list(futures)


def simulated(**options: object) -> tuple[SimulatedCluster, KafkaProducer]:
    cluster = SimulatedCluster(FakeSystem(latency_ms=5), nodes=2, topics={"t": 1})
    producer = create_simulated_producer(cluster, linger_ms=0, retry_backoff_ms=10, **options)
    producer.partitions_for("t")
    return cluster, producer


# --- rule 1


def reject_first_of_two_batches() -> list[bytes | None]:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.NOT_ENOUGH_REPLICAS)
    leader = cluster.core.topic("t").partitions[0].leader
    assert leader is not None
    get_loop(producer).run_until(lambda: get_sender(producer).client.is_ready(leader, cluster.system.now()), 1)
    send_in_separate_batches(producer, b"1")
    run_until(producer, lambda: producer.metric("requests-in-flight") > 0 and bool(producer_requests(producer)))
    send_in_separate_batches(producer, b"2")
    producer.close()
    return cluster.values("t", 0)


def producer_requests(producer: KafkaProducer) -> dict[ProducerBatch, int]:
    return get_sender(producer).idempotence.partition_state(TP).in_flight_batches


def test_7_rule_1_sends_one_request_until_the_first_success() -> None:
    assert reject_first_of_two_batches() == [b"1", b"2"]


def test_without_rule_1_second_batch_overtakes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "can_pipeline", lambda state, connection, topic_id, unix_time_ms: True)
    assert reject_first_of_two_batches() == [b"2", b"1"]


def admit_after_reconnect(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    connections[0] = NodeApiVersions("b", {})
    assert tracker.admit(create_batch(), 0)


def admit_after_leader_change(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    connections[0] = connections[1]  # the connection to the new leader
    assert tracker.admit(create_batch(), 0)


def admit_after_failed_attempt(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    failing = create_batch()
    assert tracker.admit(failing, 0)
    tracker.handle_failed_attempt(failing, in_doubt=False)
    tracker.handle_retry(failing, needs_new_sequence=False)
    assert tracker.admit(failing, 0)


def admit_after_failed_batch(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    failing = create_batch()
    assert tracker.admit(failing, 0)
    tracker.handle_failed_attempt(failing, in_doubt=True)
    tracker.handle_failed_batch(failing, in_doubt=True)
    assert tracker.admit(create_batch(), 0)


def admit_after_split(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    too_large, parts = create_batch(2), [create_batch(), create_batch()]
    assert tracker.admit(too_large, 0)
    for part, sequence in zip(parts, (too_large.base_sequence, too_large.last_sequence), strict=True):
        part.set_producer_state(*tracker.id_and_epoch, sequence)
    tracker.handle_failed_attempt(too_large, in_doubt=False)
    tracker.handle_split(too_large, parts)
    assert tracker.admit(parts[0], 0)
    assert not tracker.admit(parts[1], 0)
    succeed(tracker, parts[0])
    assert tracker.admit(parts[1], 0)


def admit_after_topic_recreation(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    tracker._get_topic_id = {"t": UUID(int=2)}.get
    assert tracker.admit(create_batch(), 0)


def admit_after_idle_time(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    """The broker may have forgotten the producer, although the connection is the same."""
    tracker._get_unix_time_ms = lambda: idempotence.MAX_AGE_MS
    assert tracker.admit(create_batch(), 0)


def admit_after_old_timestamps(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    """The broker may have forgotten the producer right after it had stored these records."""
    old_batch = create_batch(timestamp_ms=-idempotence.MAX_AGE_MS)
    assert tracker.admit(old_batch, 0)
    succeed(tracker, old_batch)
    assert tracker.admit(create_batch(), 0)


def admit_after_epoch_bump(tracker: Idempotence, connections: dict[int, NodeApiVersions]) -> None:
    """Another partition needs the new epoch. This one has no open batch and no failure."""
    other = TopicPartition("t", 1)
    rejected_batch = ProducerBatch(other, oldest_row_arrival_ms=0, deadline_ms=1_000)
    rejected_batch.record_count = 1
    assert tracker.admit(rejected_batch, 0)
    tracker.handle_failed_attempt(rejected_batch, in_doubt=False)
    tracker.handle_failed_batch(rejected_batch, in_doubt=False)
    assert tracker.id_and_epoch.epoch == 1
    assert tracker.admit(create_batch(), 0)


@pytest.mark.parametrize(
    "admit_after_event",
    [
        admit_after_reconnect,
        admit_after_leader_change,
        admit_after_failed_attempt,
        admit_after_failed_batch,
        admit_after_split,
        admit_after_topic_recreation,
        admit_after_idle_time,
        admit_after_old_timestamps,
        admit_after_epoch_bump,
    ],
)
def test_rule_1_holds(admit_after_event: Callable[[Idempotence, dict[int, NodeApiVersions]], None]) -> None:
    tracker, connections = create_idempotence()
    first = create_batch()
    assert tracker.admit(first, 0)
    succeed(tracker, first)
    admit_after_event(tracker, connections)
    (probe,) = tracker.partition_state(TP).in_flight_batches
    assert not tracker.admit(create_batch(), 0), "the first request is sent alone until it has succeeded"
    succeed(tracker, probe)
    assert [tracker.admit(create_batch(), 0) for _ in range(3)] == [True] * 3


def test_rule_1_sends_nothing_to_recreated_topic_while_requests_are_in_flight() -> None:
    tracker, _ = create_pipelined_idempotence()
    tracker._get_topic_id = {"t": UUID(int=2)}.get
    assert not tracker.admit(create_batch(), 0)


def test_rule_1_sends_nothing_behind_old_records_that_are_in_flight() -> None:
    """If two more requests followed, the broker could forget the producer before it rejects the first of them."""
    tracker, _ = create_pipelined_idempotence()
    assert tracker.admit(create_batch(timestamp_ms=-idempotence.MAX_AGE_MS), 0)
    assert not tracker.admit(create_batch(), 0)


def test_rule_1_pipelines_although_broker_takes_long_to_respond() -> None:
    tracker, _ = create_pipelined_idempotence()
    tracker._get_unix_time_ms = lambda: idempotence.MAX_AGE_MS - 1
    assert tracker.admit(create_batch(), 0)


def test_rule_1_sends_nothing_after_reconnect_while_requests_are_in_flight() -> None:
    tracker, connections = create_pipelined_idempotence()
    connections[0] = NodeApiVersions("b", {})
    assert not tracker.admit(create_batch(), 0)


# --- rule 2


def find_leaders_with_open_requests() -> set[int]:
    tracker, _ = create_pipelined_idempotence()
    tracker.partition_state(TP).confirmed_connection = tracker.get_connection_identity(1)
    tracker.admit(create_batch(), 1)
    return set(tracker.partition_state(TP).in_flight_batches.values())


def test_rule_2_waits_for_requests_to_previous_leader() -> None:
    assert find_leaders_with_open_requests() == {0}


def test_without_rule_2_requests_go_to_two_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "can_send_to", lambda state, leader_id, max_in_flight: True)
    assert find_leaders_with_open_requests() == {0, 1}


def test_rule_2_allows_at_most_five_requests_in_flight() -> None:
    tracker, _ = create_idempotence()
    first = create_batch()
    assert tracker.admit(first, 0)
    succeed(tracker, first)
    assert [tracker.admit(create_batch(), 0) for _ in range(6)] == [True] * 5 + [False]


# --- rule 3


def compute_epoch_after_rejection_behind_request_in_flight() -> int:
    tracker, _ = create_idempotence()
    zero, one, two = create_batch(), create_batch(), create_batch()
    assert tracker.admit(zero, 0)
    succeed(tracker, zero)
    assert tracker.admit(one, 0)
    assert tracker.admit(two, 0)
    tracker.handle_failed_attempt(two, in_doubt=False)
    tracker.handle_failed_batch(two, in_doubt=False)  # a gap behind `one`, whose response is lost
    tracker.handle_failed_attempt(one, in_doubt=True)
    tracker.handle_retry(one, needs_new_sequence=False)
    return one.producer_epoch


def test_rule_3_batch_in_doubt_keeps_its_sequence() -> None:
    assert compute_epoch_after_rejection_behind_request_in_flight() == 0


def test_without_rule_3_batch_in_doubt_gets_new_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "can_restart_sequences", lambda state: state.gap_start is not None)
    monkeypatch.setattr(idempotence, "is_possibly_stored", lambda state, batch: False)
    assert compute_epoch_after_rejection_behind_request_in_flight() > 0


def lose_response_then_reject_sequence() -> tuple[list[bytes | None], object]:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    cluster.control.when(api=ApiKey.PRODUCE, nth=2).fail(codes.OUT_OF_ORDER_SEQUENCE_NUMBER)
    future = producer.send(ProducerRecord("t", b"1"))
    producer.close()
    return cluster.values("t", 0), future.exception(0)


def test_rule_3_fails_batch_in_doubt_instead_of_storing_it_twice() -> None:
    stored, error = lose_response_then_reject_sequence()
    assert stored == [b"1"]
    assert isinstance(error, DeliveryError)
    assert "may have been stored" in str(error)


def test_without_rule_3_batch_is_stored_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idempotence, "is_possibly_stored", lambda state, batch: False)
    assert lose_response_then_reject_sequence()[0] == [b"1", b"1"]


# --- rule 4


def write_before_and_after_hidden_topic(*, forget: bool) -> list[bytes | None]:
    cluster, producer = simulated(metadata_max_age_ms=50)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"1")))
    cluster.control.hide_topic("t")
    get_loop(producer).run_until(lambda: False, 500)
    if forget:
        tracker = get_sender(producer).idempotence
        tracker.partition_state(TP).start_sequences(tracker.id_and_epoch)
    cluster.control.show_topic("t")
    get_loop(producer).run_until(lambda: False, 500)
    wait_for_result(producer, producer.send(ProducerRecord("t", b"2")))
    producer.close()
    return cluster.values("t", 0)


def test_15_rule_4_sequences_continue_when_topic_is_known_again() -> None:
    assert write_before_and_after_hidden_topic(forget=False) == [b"1", b"2"]


def test_without_rule_4_new_records_are_treated_as_duplicates() -> None:
    assert write_before_and_after_hidden_topic(forget=True) == [b"1"]


# --- rule 5


def is_memory_free_before_and_after_close() -> tuple[bool, bool]:
    cluster, producer = simulated(request_timeout_ms=1000, delivery_timeout_ms=1000)
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    future = producer.send(ProducerRecord("t", b"1"))
    run_until(producer, future.done)  # the request was sent after the record was added, so it has not timed out yet
    assert isinstance(future.exception(0), DeliveryTimeoutError)
    assert producer_requests(producer)
    early = get_reserved_bytes(producer) == 0
    producer.close()
    return early, get_reserved_bytes(producer) == 0


def test_rule_5_keeps_memory_until_request_has_ended() -> None:
    assert is_memory_free_before_and_after_close() == (False, True)


def test_without_rule_5_memory_is_released_while_request_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    fail = ProducerBatch.fail

    def fail_as_if_not_in_flight(batch: ProducerBatch, error: Exception) -> None:
        batch.has_request_in_flight = False
        fail(batch, error)

    monkeypatch.setattr(ProducerBatch, "fail", fail_as_if_not_in_flight)
    assert is_memory_free_before_and_after_close()[0]


# --- rule 6


def reject_second_of_three_batches() -> list[KafkaSinkError]:
    """Send three records of which the broker rejects the second by its index (KIP-467). Return the errors in order."""
    cluster, producer = simulated()
    cluster.control.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    columns = RecordColumns(pa.array([b"a", b"b", b"c"]), pa.array([b"k", None, b"k"]))
    future = producer.send_columns("compacted", columns, 0)
    producer.flush()
    errors = {int(row): failure.error for failure in future.result(0).failures for row in failure.row_indices}
    producer.close()
    return [errors[row] for row in sorted(errors)]


def test_rule_6_each_record_gets_its_own_error() -> None:
    first, second, third = reject_second_of_three_batches()
    assert isinstance(second, InvalidRecordError)
    assert "must have a key" in str(second)
    for innocent in (first, third):
        assert isinstance(innocent, BatchRejectedError)
        assert "without a key" not in str(innocent)


def test_rule_6_remaining_records_may_be_stored_after_lost_response(monkeypatch: pytest.MonkeyPatch) -> None:
    """With BatchRejectedError they would be sent again: the topic would get each twice, a dead-letter topic none."""
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=False)
    rejection = ApiError(codes.INVALID_RECORD, "a record has no key", {1: "no key"})
    monkeypatch.setattr(cluster.log("t"), "append", Mock(side_effect=rejection))
    future = producer.send_columns("t", RecordColumns(pa.array([b"a", b"b", b"c"])), 0)
    producer.flush()
    errors = {int(row): failure.error for failure in future.result(0).failures for row in failure.row_indices}
    assert isinstance(errors[1], InvalidRecordError)
    for other in (errors[0], errors[2]):
        assert not isinstance(other, BatchRejectedError)
        assert "may have been stored" in str(other)
    producer.close()


def test_without_rule_6_remaining_records_fail_with_the_same_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deliveries, "build_record_errors", lambda batch, response: ({}, None))
    errors = reject_second_of_three_batches()
    assert len({id(error) for error in errors}) == 1
    assert not any(isinstance(error, BatchRejectedError) for error in errors)


def test_rule_6_single_record_gets_broker_message() -> None:
    cluster, producer = simulated()
    cluster.control.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    future = producer.send(ProducerRecord("compacted", b"v", partition=0))
    run_until(producer, future.done)
    error = future.exception(0)
    assert isinstance(error, InvalidRecordError)
    assert "Records of a compacted topic must have a key" in str(error)
    producer.close()


def test_rule_6_records_fail_individually_although_flush_succeeds() -> None:
    cluster, producer = simulated(max_request_size=1000)
    columns = RecordColumns(pa.array([b"a", b"x" * 2000, b"c"]), timestamp=pa.array([1, 2, -5]))
    future = producer.send_columns("t", columns)
    producer.flush()
    result = future.result(0)
    assert result.rows_written == 1
    assert {int(row) for failure in result.failures for row in failure.row_indices} == {1, 2}
    assert any(isinstance(failure.error, InvalidRecordError) for failure in result.failures)
    assert cluster.values("t", 0) == [b"a"]
    producer.close()

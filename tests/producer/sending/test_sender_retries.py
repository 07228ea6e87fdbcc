"""The sender: retries, their order and their sequences (cases of Kafka's SenderTest)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import (
    AuthorizationError,
    BrokerError,
    DeliveryError,
    ProducerClosedError,
    UnsupportedVersionError,
)
from spark_kafka_sink.producer.batching.batch_filler import BatchFiller
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending import produce_exchange
from spark_kafka_sink.producer.sending.produce_exchange import PartitionResponse, parse_partition_response
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from spark_kafka_sink.protocol.messages.metadata import MetadataRequest
from spark_kafka_sink.protocol.messages.produce import PartitionProduceResponse, ProduceRequest
from spark_kafka_sink.protocol.schema import VersionRange
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.sending.sender_cases import (
    at_last_epoch,
    established,
    find_requests,
    get_state,
    in_flight_count,
    pass_time,
    read_batch_stamps,
    send,
    simulated,
    wait,
)
from tests.producer.virtual_time import (
    create_simulated_producer,
    get_reserved_bytes,
    get_sender,
    run_until,
    wait_for_result,
)
from tests.simulated_cluster import SimulatedCluster


def test_batch_is_in_flight_until_response_and_has_first_sequence() -> None:
    cluster, producer = simulated()
    future = send(producer, b"1")
    run_until(producer, lambda: in_flight_count(producer) == 1)
    assert not future.done()
    assert wait_for_result(producer, future).offset == 0
    assert in_flight_count(producer) == 0
    assert producer.metric("requests-in-flight") == 0
    assert (get_state(producer).next_sequence, get_state(producer).last_acked_sequence) == (1, 0)
    assert read_batch_stamps(cluster) == [(0, 0, 1)]


@pytest.mark.parametrize("idempotent", [True, False])
def test_retries_lost_connection_as_often_as_retries_allows(idempotent: bool) -> None:
    cluster, producer = simulated(retries=1, enable_idempotence=idempotent)
    cluster.control.when(api=ApiKey.PRODUCE).drop()
    assert wait_for_result(producer, send(producer, b"1")).offset == 0
    cluster.control.when(api=ApiKey.PRODUCE, times=2).drop()
    lost = send(producer, b"2")
    wait(producer, lost)
    assert isinstance(lost.exception(0), DeliveryError)
    assert "Attempts: 2" in str(lost.exception(0))
    assert in_flight_count(producer) == 0
    assert wait_for_result(producer, send(producer, b"3")).offset == 1


def test_batches_without_idempotence_have_no_producer_id_and_fail_on_rejection() -> None:
    cluster, producer = simulated(enable_idempotence=False)
    established(producer)
    assert read_batch_stamps(cluster) == [(-1, -1, 1)]
    assert find_requests(cluster, InitProducerIdRequest) == []
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.TOPIC_AUTHORIZATION_FAILED)
    rejected = send(producer, b"1")
    wait(producer, rejected)
    assert isinstance(rejected.exception(0), AuthorizationError)
    assert len(find_requests(cluster, ProduceRequest)) == 2


def test_lost_response_without_idempotence_may_be_stored_twice() -> None:
    cluster, producer = simulated(enable_idempotence=False)
    cluster.control.when(api=ApiKey.PRODUCE).drop(execute_first=True)
    assert wait_for_result(producer, send(producer, b"1")).offset == 1
    assert cluster.values("t") == [b"1", b"1"]


def test_retries_batch_whose_backoff_ends_while_sender_fills_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer = simulated(retry_backoff_ms=50, retry_backoff_max_ms=50)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.NOT_ENOUGH_REPLICAS)
    retried = send(producer, b"1")
    run_until(producer, lambda: producer.metric("record-retry-total") == 1)
    due_ms = get_sender(producer).accumulator.next_due_ms()
    fill_batches = BatchFiller.fill_batches

    def send_during_poll() -> None:
        producer.send(ProducerRecord("t", b"2"))

    def fill_slowly(filler: BatchFiller, *arguments: Any, **options: Any) -> bool:
        cluster.system.advance(max(0.0, due_ms - cluster.system.now()))
        return fill_batches(filler, *arguments, **options)

    monkeypatch.setattr(BatchFiller, "fill_batches", fill_slowly)
    cluster.system.at(due_ms - 1, send_during_poll)
    wait(producer, retried)
    assert cluster.system.now() < due_ms + 50


@pytest.mark.parametrize("idempotent", [True, False])
def test_new_leader_gets_second_request_after_first_when_one_may_be_in_flight(idempotent: bool) -> None:
    cluster, producer = simulated(nodes=2, max_in_flight_requests_per_connection=1, enable_idempotence=idempotent)
    established(producer)
    old = cluster.core.topic("t").partitions[0].leader
    cluster.control.when(api=ApiKey.PRODUCE).delay(900)
    first, second = send(producer, b"1"), send(producer, b"2")
    cluster.control.move_leader("t", 0, 1 - (old or 0))
    get_sender(producer).metadata.request_update()
    pass_time(producer, 500)
    assert get_sender(producer).metadata.snapshot.topics["t"].partitions[0].leader == 1 - (old or 0)
    assert (in_flight_count(producer), first.done(), second.done()) == (1, False, False)
    assert len(find_requests(cluster, ProduceRequest)) == 2
    wait(producer, first, second)
    assert cluster.values("t") == [b"0", b"1", b"2"]


def test_gets_producer_id_over_single_connection_that_waits_for_metadata() -> None:
    cluster, producer = simulated(max_in_flight_requests_per_connection=1)
    cluster.control.when(api=ApiKey.METADATA, times=2).delay(500)
    assert wait_for_result(producer, send(producer, b"1")).offset == 0
    assert len(find_requests(cluster, InitProducerIdRequest)) == 1


def test_gets_producer_id_from_another_broker_when_first_is_unreachable() -> None:
    cluster, producer = simulated(nodes=2)
    producer.partitions_for("t")
    leader = cluster.core.topic("t").partitions[0].leader
    cluster.control.refuse_connections(1 - (leader or 0))
    assert wait_for_result(producer, send(producer, b"1")).offset == 0


def test_requests_for_producer_id_back_off_exponentially() -> None:
    cluster, producer = simulated(retry_backoff_ms=100, retry_backoff_max_ms=1000)
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID, times=3).fail(codes.COORDINATOR_LOAD_IN_PROGRESS)
    wait_for_result(producer, send(producer, b"1"))
    times = [at for at, _ in find_requests(cluster, InitProducerIdRequest)]
    pauses = [later - earlier for earlier, later in pairwise(times)]
    for pause, usual in zip(pauses, (100, 200, 400), strict=True):
        assert 0.8 * usual <= pause <= 1.2 * usual + 10


def test_acknowledges_two_requests_in_flight_in_order() -> None:
    cluster, producer = simulated()
    established(producer)
    first, second = send(producer, b"1"), send(producer, b"2")
    state = get_state(producer)
    assert (in_flight_count(producer), state.next_sequence, state.last_acked_sequence) == (2, 3, 0)
    run_until(producer, first.done)
    assert (second.done(), state.last_acked_sequence) == (False, 1)
    run_until(producer, second.done)
    assert (first.result(0).offset, second.result(0).offset, state.last_acked_sequence) == (1, 2, 2)
    assert (in_flight_count(producer), state.pending_batches) == (0, [])
    assert read_batch_stamps(cluster) == [(0, 0, 1), (0, 1, 1), (0, 2, 1)]


def test_one_request_is_in_flight_and_new_batches_get_no_sequence_during_retry() -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.LEADER_NOT_AVAILABLE)
    futures = [send(producer, b"%d" % i) for i in (1, 2, 3)]
    state = get_state(producer)
    assert in_flight_count(producer) == 3
    run_until(producer, lambda: state.pending_batches[0].failed_attempts == 1)
    futures.append(send(producer, b"4"))
    run_until(producer, lambda: in_flight_count(producer) == 0)
    seen = set()
    while not futures[1].done():
        seen.add((in_flight_count(producer), state.next_sequence))
        pass_time(producer, 0.5)
    assert seen <= {(0, 4), (1, 4)}
    wait(producer, *futures)
    assert [future.result(0).offset for future in futures] == [1, 2, 3, 4]
    assert read_batch_stamps(cluster) == [(0, sequence, 1) for sequence in range(5)]


@pytest.mark.parametrize("in_doubt_error", [codes.REQUEST_TIMED_OUT, codes.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
def test_success_does_not_acknowledge_earlier_batch_in_doubt(in_doubt_error: int) -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(in_doubt_error, execute_first=True)
    first, second = send(producer, b"1"), send(producer, b"2")
    run_until(producer, second.done)
    assert not first.done()
    assert get_state(producer).last_acked_sequence == 2
    assert wait_for_result(producer, first).offset in (-1, 1)
    assert get_state(producer).last_acked_sequence == 2
    assert cluster.values("t") == [b"0", b"1", b"2"]
    assert wait_for_result(producer, send(producer, b"3")).offset == 3
    assert get_sender(producer).idempotence.id_and_epoch.epoch == 0


def test_duplicate_is_success_without_offset_and_keeps_last_acked_sequence() -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.DUPLICATE_SEQUENCE_NUMBER, execute_first=True)
    first, second = send(producer, b"1"), send(producer, b"2")
    wait(producer, first, second)
    assert (first.result(0).offset, second.result(0).offset) == (-1, 2)
    assert get_state(producer).last_acked_sequence == 2
    assert cluster.values("t") == [b"0", b"1", b"2"]


def with_log_start(monkeypatch: pytest.MonkeyPatch, offset: int) -> None:
    """Add a log start offset to responses, as brokers that still return UNKNOWN_PRODUCER_ID do."""

    def with_offset(row: PartitionProduceResponse) -> PartitionResponse:
        return parse_partition_response(row)._replace(log_start_offset=offset)

    monkeypatch.setattr(produce_exchange, "parse_partition_response", with_offset)


@pytest.mark.parametrize("log_start", [1010, 0], ids=["all was deleted", "nothing was deleted"])
@pytest.mark.parametrize("rejections", [1, 2])
def test_starts_new_epoch_when_broker_does_not_know_the_producer(
    log_start: int, rejections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = simulated()
    established(producer)
    with_log_start(monkeypatch, log_start)
    cluster.control.when(api=ApiKey.PRODUCE, times=rejections).fail(codes.UNKNOWN_PRODUCER_ID)
    futures = [send(producer, b"1"), send(producer, b"2"), send(producer, b"3")]
    wait(producer, *futures)
    assert [future.result(0).offset for future in futures] == [1, 2, 3]
    assert read_batch_stamps(cluster) == [(0, 0, 1), (1, 0, 1), (1, 1, 1), (1, 2, 1)]


def test_keeps_sequence_when_log_start_offset_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, producer = simulated()
    established(producer)
    with_log_start(monkeypatch, -1)
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.UNKNOWN_PRODUCER_ID)
    assert wait_for_result(producer, send(producer, b"1")).offset == 1
    assert read_batch_stamps(cluster) == [(0, 0, 1), (0, 1, 1)]


@pytest.mark.parametrize("code", [codes.UNSUPPORTED_FOR_MESSAGE_FORMAT, codes.INVALID_REQUEST, codes.POLICY_VIOLATION])
def test_permanent_rejection_fails_only_its_batch(code: int) -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.PRODUCE).fail(code)
    rejected = send(producer, b"1")
    wait(producer, rejected)
    error = rejected.exception(0)
    assert isinstance(error, BrokerError)
    assert error.code == code
    assert codes.lookup_error_code(code).advice in str(error)
    assert wait_for_result(producer, send(producer, b"2")).offset == 0


def test_broker_without_supported_produce_version_ends_the_producer() -> None:
    cluster = SimulatedCluster(FakeSystem(), topics={"t": 1}, version_limits={ApiKey.PRODUCE: VersionRange(0, 2)})
    producer = create_simulated_producer(cluster, linger_ms=0)
    rejected = send(producer, b"1")
    wait(producer, rejected)
    assert isinstance(rejected.exception(0), UnsupportedVersionError)
    assert "PRODUCE" in str(rejected.exception(0)).upper()
    with pytest.raises(ProducerClosedError) as closed:
        send(producer, b"2")
    assert isinstance(closed.value.__cause__, UnsupportedVersionError)


def test_batches_in_flight_may_succeed_after_fatal_error_but_none_are_sent() -> None:
    cluster, producer = simulated(partitions=2)
    established(producer, 0, 1)
    cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=0).fail(codes.CLUSTER_AUTHORIZATION_FAILED)
    first = send(producer, b"1", 0)
    second = send(producer, b"2", 1)
    wait(producer, first, second)
    assert isinstance(first.exception(0), AuthorizationError)
    assert second.result(0).offset == 1
    sent = len(find_requests(cluster, ProduceRequest))
    with pytest.raises(ProducerClosedError, match="CLUSTER_AUTHORIZATION_FAILED"):
        send(producer, b"3", 1)
    producer.close()
    assert len(find_requests(cluster, ProduceRequest)) == sent
    assert get_reserved_bytes(producer) == 0


def test_children_of_split_batch_take_over_its_sequences() -> None:
    cluster, producer = simulated(batch_size=100_000, linger_ms=5, compression_type="gzip")
    cluster.control.when(api=ApiKey.PRODUCE).fail(codes.MESSAGE_TOO_LARGE)
    columns = RecordColumns(pa.array([b"%03d" % i for i in range(100)]))
    future = producer.send_columns("t", columns)
    assert wait_for_result(producer, future).rows_written == 100
    written = read_batch_stamps(cluster)
    assert len(written) >= 2
    assert [epoch for epoch, _, _ in written] == [0] * len(written)
    assert [first for _, first, _ in written] == [sum(rows for _, _, rows in written[:i]) for i in range(len(written))]
    assert producer.metrics()["batch-split-total"] == 1
    state = get_state(producer)
    assert (state.next_sequence, state.last_acked_sequence, state.pending_batches) == (100, 99, [])
    pass_time(producer, 200_000)  # longer than delivery.timeout.ms: none of its parts may expire now
    assert wait_for_result(producer, send(producer, b"later")).offset == 100
    assert get_reserved_bytes(producer) == 0


def test_looks_up_moved_leader_and_backs_off_without_leader_hint() -> None:
    cluster, producer = simulated(partitions=3, retry_backoff_ms=200, retry_backoff_max_ms=200)
    established(producer, 0, 1, 2)
    request_count = len(find_requests(cluster, MetadataRequest))
    for partition in (0, 1):
        cluster.control.when(api=ApiKey.PRODUCE, topic="t", partition=partition).fail(codes.NOT_LEADER_OR_FOLLOWER)
    many = producer.send_columns("t", RecordColumns(pa.array([b"v", b"v", b"v"])), pa.array([0, 1, 2], pa.int32()))
    other = send(producer, b"other", 2)
    started = cluster.system.now()
    assert wait_for_result(producer, other).offset == 2
    assert cluster.system.now() - started < 100
    assert not many.done()
    run_until(producer, many.done)
    assert cluster.system.now() - started >= 0.8 * 200
    assert many.result(0).rows_written == 3
    assert len(find_requests(cluster, MetadataRequest)) > request_count


def test_retries_batches_together_when_rejected_together() -> None:
    """A broker that does not lead its partitions yet rejects all batches. Separate retries would multiply requests."""
    partitions = 40
    cluster, producer = simulated(partitions=partitions, retry_backoff_ms=200, retry_backoff_max_ms=1_000)
    producer.partitions_for("t")
    cluster.control.when(api=ApiKey.PRODUCE, times=2).fail(codes.NOT_LEADER_OR_FOLLOWER)
    rows = RecordColumns(pa.array([b"v"] * partitions))
    many = producer.send_columns("t", rows, pa.array(range(partitions), pa.int32()))
    run_until(producer, many.done)
    assert many.result(0).rows_written == partitions
    assert len(find_requests(cluster, ProduceRequest)) == 3


def test_sends_to_hinted_leader_without_backoff() -> None:
    cluster, producer = simulated(nodes=2, retry_backoff_ms=1000, retry_backoff_max_ms=1000)
    established(producer)
    old = cluster.core.topic("t").partitions[0].leader
    cluster.control.move_leader("t", 0, 1 - (old or 0))
    started = cluster.system.now()
    assert wait_for_result(producer, send(producer, b"1")).offset == 1
    assert cluster.system.now() - started < 500


def test_measures_throttle_time() -> None:
    cluster, producer = simulated()
    established(producer)
    for ms in (100, 200, 300):
        cluster.control.when(api=ApiKey.PRODUCE).throttle(ms)
        wait_for_result(producer, send(producer, b"1"))
    metrics = producer.metrics()
    assert metrics["produce-throttle-time-max"] == 300
    assert metrics["produce-throttle-time-avg"] == pytest.approx(600 / 4)


def test_retries_lost_connection_under_same_producer_id_at_last_epoch() -> None:
    cluster, producer = simulated()
    at_last_epoch(producer)
    established(producer)
    cluster.control.when(api=ApiKey.PRODUCE).drop()
    assert wait_for_result(producer, send(producer, b"1")).offset == 1
    assert [first for _, first, _ in read_batch_stamps(cluster)] == [0, 1]
    assert find_requests(cluster, InitProducerIdRequest) == []

"""Scripted faults of transactions: lost and late responses, moved coordinators, zombies and timeouts.

The numbers in the test names are those of the faults in docs/producer-guarantees.md.
"""

from __future__ import annotations

import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import (
    BrokerError,
    DeliveryTimeoutError,
    ProducerClosedError,
    ProducerFencedError,
    TransactionAbortableError,
)
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.headers import decode_request
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.end_txn import EndTxnRequest
from spark_kafka_sink.protocol.messages.init_producer_id import InitProducerIdRequest
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    create_cluster,
    create_initialized_producer,
    create_producer,
    create_producer_in_transaction,
    find_requests,
    pass_time,
    read_committed,
    send,
    send_and_flush,
    state,
)

TRANSACTION_APIS = [ApiKey.FIND_COORDINATOR, ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN]
OFFSET_APIS = [ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.TXN_OFFSET_COMMIT]
EVERY_REQUEST = pytest.mark.parametrize("api", [*TRANSACTION_APIS, *OFFSET_APIS, ApiKey.PRODUCE])


def run_two_transactions(producer_options: dict[str, object], version: int, api: ApiKey, fault: object) -> None:
    """Run two transactions. In each, the fault affects the first request of the given type."""
    cluster = create_cluster(version)
    producer = create_producer(cluster, **producer_options)
    for value in (b"1", b"2"):
        fault(cluster.control.when(api=api))  # type: ignore[operator]
        producer.init_transactions()
        producer.begin_transaction()
        send(producer, value)
        producer.send_offsets_to_transaction({("t", 0): int(value)}, "g")
        producer.commit_transaction()
    assert read_committed(cluster) == [b"1", b"2"]
    assert cluster.core.offsets.committed["g"]["t", 0].offset == 2
    assert cluster.log("t").list_open_producer_ids() == []


# --- responses


@BOTH_VERSIONS
@EVERY_REQUEST
@pytest.mark.parametrize("applied", [True, False])
def test_retries_request_after_lost_response(version: int, api: ApiKey, applied: bool) -> None:
    run_two_transactions({}, version, api, lambda rule: rule.drop(execute_first=applied))


@BOTH_VERSIONS
@EVERY_REQUEST
@pytest.mark.parametrize("applied", [True, False])
def test_retries_request_that_times_out(version: int, api: ApiKey, applied: bool) -> None:
    run_two_transactions(
        {"request_timeout_ms": 500}, version, api, lambda rule: rule.never_respond(execute_first=applied)
    )


@BOTH_VERSIONS
@EVERY_REQUEST
def test_late_response_has_no_effect(version: int, api: ApiKey) -> None:
    run_two_transactions({"request_timeout_ms": 500}, version, api, lambda rule: rule.delay(2000))


@BOTH_VERSIONS
@EVERY_REQUEST
def test_request_executed_after_its_timeout_has_no_effect(version: int, api: ApiKey) -> None:
    run_two_transactions({"request_timeout_ms": 500}, version, api, lambda rule: rule.delay(2000, execute_first=False))


@BOTH_VERSIONS
@pytest.mark.parametrize("api", [*TRANSACTION_APIS, *OFFSET_APIS])
@pytest.mark.parametrize(
    "code", [codes.COORDINATOR_NOT_AVAILABLE, codes.NOT_COORDINATOR, codes.COORDINATOR_LOAD_IN_PROGRESS]
)
def test_22_retries_request_after_coordinator_error(version: int, api: ApiKey, code: int) -> None:
    run_two_transactions({}, version, api, lambda rule: rule.fail(code))


@BOTH_VERSIONS
@pytest.mark.parametrize("api", [ApiKey.INIT_PRODUCER_ID, ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.END_TXN, ApiKey.PRODUCE])
def test_waits_for_completion_of_previous_transaction(version: int, api: ApiKey) -> None:
    run_two_transactions({}, version, api, lambda rule: rule.fail(codes.CONCURRENT_TRANSACTIONS))


# --- 22: coordinators that move


@BOTH_VERSIONS
@pytest.mark.parametrize("step", ["begin", "write", "commit", "next"])
def test_22_commits_once_if_coordinator_moves_at_any_step(version: int, step: str) -> None:
    cluster, producer = create_initialized_producer(version, nodes=3)

    def move(at: str) -> None:
        if at == step:
            coordinator = cluster.core.find_coordinator("x")
            assert coordinator is not None
            cluster.control.move_coordinator("x", (coordinator.id + 1) % 3)

    producer.begin_transaction()
    move("begin")
    send_and_flush(producer, b"1", partition=0)
    move("write")
    send_and_flush(producer, b"2", partition=1)
    move("commit")
    producer.commit_transaction()
    move("next")
    with producer.transaction():
        send(producer, b"3")
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == ([b"1", b"3"], [b"2"])


@BOTH_VERSIONS
@pytest.mark.parametrize("applied", [True, False])
def test_22_commits_once_if_coordinator_dies_during_end_txn(version: int, applied: bool) -> None:
    cluster, producer = create_producer_in_transaction(version, nodes=3)
    send_and_flush(producer, b"1")
    send_and_flush(producer, b"2", partition=1)
    node = cluster.core.find_coordinator("x")
    assert node is not None
    cluster.control.when(api=ApiKey.END_TXN).never_respond(execute_first=applied)
    cluster.system.after(20, lambda: cluster.control.stop_node(node.id))
    cluster.system.after(3000, lambda: cluster.control.start_node(node.id))
    producer.commit_transaction()
    assert (read_committed(cluster, 0), read_committed(cluster, 1)) == ([b"1"], [b"2"])
    with producer.transaction():
        send(producer, b"3")
    assert read_committed(cluster, 0) == [b"1", b"3"]


# --- 23: two producers with the same transactional id


@BOTH_VERSIONS
def test_23_second_producer_fences_first_and_aborts_its_transaction(version: int) -> None:
    cluster, first = create_producer_in_transaction(version)
    send_and_flush(first, b"zombie")
    second = create_producer(cluster)
    second.init_transactions()
    with second.transaction():
        send(second, b"heir")
    with pytest.raises((ProducerFencedError, TransactionAbortableError)) as rejection:
        first.commit_transaction()
    with pytest.raises(ProducerFencedError, match=r"Another producer with the same transactional\.id"):
        (first.abort_transaction if rejection.type is TransactionAbortableError else first.commit_transaction)()
    with pytest.raises((ProducerFencedError, ProducerClosedError)):
        send(first, b"more")
    assert read_committed(cluster) == [b"heir"]


@BOTH_VERSIONS
def test_23_rejects_late_write_of_fenced_producer(version: int) -> None:
    cluster, first = create_producer_in_transaction(version)
    send_and_flush(first, b"0")
    cluster.executes_after_disconnect = True
    cluster.control.when(api=ApiKey.PRODUCE).delay(500, execute_first=False)
    late = send(first, b"zombie")
    pass_time(first, 10)
    second = create_producer(cluster)
    second.init_transactions()
    with second.transaction():
        send(second, b"heir")
    pass_time(first, 2000)
    assert late.done()
    assert late.exception(0) is not None
    assert read_committed(cluster) == [b"heir"]
    assert cluster.log("t").list_open_producer_ids() == []
    with second.transaction():
        send(second, b"again")
    assert read_committed(cluster) == [b"heir", b"again"]


@BOTH_VERSIONS
def test_23_late_write_after_abort_opens_no_transaction(version: int) -> None:
    """The batch expires in flight, the transaction is aborted, and only then does the broker handle the batch."""
    cluster, producer = create_producer_in_transaction(version, delivery_timeout_ms=300, request_timeout_ms=300)
    send_and_flush(producer, b"0")
    cluster.executes_after_disconnect = True
    cluster.control.when(api=ApiKey.PRODUCE).delay(5000, execute_first=False)
    late = send(producer, b"late")
    pass_time(producer, 1000)
    assert isinstance(late.exception(0), DeliveryTimeoutError)
    producer.abort_transaction()
    pass_time(producer, 10_000)
    assert cluster.log("t").list_open_producer_ids() == []
    with producer.transaction():
        send(producer, b"1")
    assert read_committed(cluster) == [b"1"]


@BOTH_VERSIONS
def test_23_sends_end_txn_after_last_request_of_expired_batch_has_ended(version: int) -> None:
    """Brokers without KIP-890 would append the batch after the marker, in a transaction that never ends."""
    cluster, producer = create_producer_in_transaction(
        version, nodes=2, delivery_timeout_ms=500, request_timeout_ms=400
    )
    cluster.control.move_leader("t", 0, 0)
    cluster.control.move_coordinator("x", 1)
    send_and_flush(producer, b"0")
    cluster.control.when(api=ApiKey.PRODUCE, times=2).never_respond()
    started = cluster.system.now()
    late = send(producer, b"late")
    pass_time(producer, 600)
    assert isinstance(late.exception(0), DeliveryTimeoutError)
    producer.abort_transaction()
    *_, ended = [
        at - started
        for at, _, frame in cluster.requests
        if isinstance(decode_request(memoryview(frame))[1], EndTxnRequest)
    ]
    assert ended >= 800  # the second request timed out at this time


# --- 13: recreated topics


def test_13_commit_fails_if_topic_is_recreated_during_transaction() -> None:
    """Transactions of version 2 write by topic id, and the leader rejects the id of the deleted topic."""
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    cluster.control.delete_topic("t")
    cluster.control.create_topic("t", 2)
    send_and_flush(producer, b"2", partition=1)
    with pytest.raises(TransactionAbortableError, match="Topic t was deleted and created again"):
        producer.commit_transaction()
    producer.abort_transaction()
    assert read_committed(cluster, 1) == []
    producer.begin_transaction()
    send_and_flush(producer, b"3", partition=1)
    producer.commit_transaction()
    assert read_committed(cluster, 1) == [b"3"]


def test_13_first_transaction_to_recreated_topic_fails_with_version_1_from_kafka_4_5() -> None:
    """The sequences continue from one transaction to the next, and the new log accepts only 0 as the first."""
    cluster = create_cluster(1, first_sequence_must_be_zero=True)
    producer = create_producer(cluster)
    producer.init_transactions()
    producer.begin_transaction()
    send_and_flush(producer, b"1")
    producer.commit_transaction()
    cluster.control.delete_topic("t")
    cluster.control.create_topic("t", 2)
    producer.begin_transaction()
    send(producer, b"2")
    with pytest.raises(TransactionAbortableError, match="recreated"):
        producer.commit_transaction()
    producer.abort_transaction()
    producer.begin_transaction()
    send(producer, b"3")
    producer.commit_transaction()
    assert read_committed(cluster) == [b"3"]


# --- 24: transactions that never end


@BOTH_VERSIONS
def test_24_coordinator_aborts_abandoned_transaction_after_its_timeout(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, transaction_timeout_ms=5000)
    send_and_flush(producer, b"1")
    producer.close(timeout=0)
    assert state(cluster) is TransactionState.ONGOING
    other = create_producer(cluster, "other")
    other.init_transactions()
    pass_time(other, 6000)
    assert state(cluster) is TransactionState.COMPLETE_ABORT
    assert read_committed(cluster) == []
    assert cluster.log("t").last_stable_offset == cluster.log("t").log_end_offset


@BOTH_VERSIONS
def test_24_commit_after_the_timeout_fails_and_no_record_is_visible(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, transaction_timeout_ms=5000)
    send_and_flush(producer, b"1")
    pass_time(producer, 6000)
    rejection = {1: "PRODUCER_FENCED", 2: "INVALID_TXN_STATE"}[version]
    with pytest.raises(BrokerError, match=rejection):
        producer.commit_transaction()
    assert read_committed(cluster) == []


@BOTH_VERSIONS
def test_commit_after_the_timeout_names_transaction_timeout_ms(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, transaction_timeout_ms=5000)
    send_and_flush(producer, b"1")
    pass_time(producer, 6000)
    with pytest.raises(BrokerError, match=r"longer than transaction\.timeout\.ms \(5000 ms\)") as raised:
        producer.commit_transaction()
    assert "Another producer" not in str(raised.value)
    producer.close()
    successor = create_producer(cluster)
    successor.init_transactions()
    successor.begin_transaction()
    send_and_flush(successor, b"2")
    successor.commit_transaction()
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
def test_commit_of_a_fenced_producer_does_not_name_a_timeout_before_it(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, transaction_timeout_ms=5000)
    send_and_flush(producer, b"1")
    successor = create_producer(cluster)
    successor.init_transactions()
    with pytest.raises(BrokerError) as raised:
        producer.commit_transaction()
    assert "timeout" not in str(raised.value)


@BOTH_VERSIONS
def test_24_record_after_the_timeout_fails_and_no_record_is_visible(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, transaction_timeout_ms=5000)
    send_and_flush(producer, b"1")
    pass_time(producer, 6000)
    future = send(producer, b"2")
    producer.flush()
    assert future.exception(0) is not None
    with pytest.raises(TransactionAbortableError, match="INVALID_PRODUCER_EPOCH"):
        producer.commit_transaction()
    assert read_committed(cluster) == []


# --- requests that are executed after the end of their transaction (KAFKA-17754)


@pytest.mark.parametrize("version", [0, 1, 2])
@pytest.mark.parametrize("commit", [True, False])
def test_late_end_txn_does_not_end_next_transaction(version: int, commit: bool) -> None:
    """Kafka 3 clusters have finalized features but none for transactions. Level 0 means protocol version 1."""
    cluster, producer = create_producer_in_transaction(version, request_timeout_ms=300)
    send_and_flush(producer, b"1")
    cluster.executes_after_disconnect = True
    cluster.control.when(api=ApiKey.END_TXN).delay(2000, execute_first=False)
    producer.commit_transaction()
    producer.begin_transaction()
    send_and_flush(producer, b"2")
    pass_time(producer, 3000)
    assert read_committed(cluster) == [b"1"]
    send_and_flush(producer, b"3")
    if commit:
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    assert read_committed(cluster) == ([b"1", b"2", b"3"] if commit else [b"1"])


@BOTH_VERSIONS
def test_late_offset_commit_does_not_replace_later_offsets(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, request_timeout_ms=300)
    cluster.executes_after_disconnect = True
    cluster.control.when(api=ApiKey.TXN_OFFSET_COMMIT).delay(2000, execute_first=False)
    producer.send_offsets_to_transaction({("t", 0): 1}, "g")
    producer.commit_transaction()
    producer.begin_transaction()
    producer.send_offsets_to_transaction({("t", 0): 2}, "g")
    pass_time(producer, 3000)
    producer.commit_transaction()
    assert cluster.core.offsets.committed["g"]["t", 0].offset == 2


def test_requests_one_producer_id_without_lost_response() -> None:
    cluster, producer = create_producer_in_transaction(1)
    for value in (b"1", b"2"):
        send_and_flush(producer, value)
        producer.commit_transaction()
        producer.begin_transaction()
    assert len(find_requests(cluster, InitProducerIdRequest)) == 1

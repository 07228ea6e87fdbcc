"""Transactional calls of a producer: when they are allowed, how they wait, and the effects of close()."""

from __future__ import annotations

import re
from collections.abc import Callable

import pyarrow as pa
import pytest

from spark_kafka_sink.broker.transaction_coordinator import TransactionState
from spark_kafka_sink.errors import (
    IllegalStateError,
    ProducerClosedError,
    TransactionAbortableError,
    TransactionTimeoutError,
)
from spark_kafka_sink.network.selector import Selector
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.describe_transactions import DescribeTransactionsRequest
from spark_kafka_sink.records.columns import RecordColumns
from tests.fake_system import FakeSystem
from tests.producer.transactional_cases import (
    BOTH_VERSIONS,
    ID,
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
from tests.producer.virtual_time import create_simulated_producer, get_loop, get_sender
from tests.simulated_cluster import SimulatedCluster

CALLS = ("init", "begin", "send-offsets", "commit", "abort")


# --- calls


def test_transactional_calls_fail_without_transactional_id() -> None:
    cluster = SimulatedCluster(FakeSystem(), topics={"t": 1})
    producer = create_simulated_producer(cluster)
    for call in (producer.init_transactions, producer.begin_transaction, producer.commit_transaction):
        with pytest.raises(IllegalStateError, match=r"no transactional\.id"):
            call()


def test_rejects_record_outside_of_transaction() -> None:
    cluster = create_cluster(2)
    producer = create_producer(cluster)
    with pytest.raises(IllegalStateError, match=r"Call init_transactions\(\) first"):
        send(producer, b"1")
    producer.init_transactions()
    with pytest.raises(IllegalStateError, match=r"Call begin_transaction\(\) first"):
        send(producer, b"1")
    with pytest.raises(IllegalStateError, match=r"Call begin_transaction\(\) first"):
        producer.send_columns("t", RecordColumns(pa.array([b"1"])))


def test_blocking_calls_wake_the_sender_before_they_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sender thread may be waiting for network events that do not come."""
    _, producer = create_initialized_producer(2)
    loop = get_loop(producer)
    wakeup, wait, events = Selector.wakeup, loop.wait, list[str]()

    def record_wakeup(selector: Selector) -> None:
        events.append("wakeup")
        wakeup(selector)

    def record_wait(event: OneTimeEvent, timeout_ms: float | None) -> bool:
        events.append("wait")
        return wait(event, timeout_ms)

    monkeypatch.setattr(Selector, "wakeup", record_wakeup)
    monkeypatch.setattr(loop, "wait", record_wait)
    for call in (
        producer.init_transactions,
        lambda: producer.describe_transactions(["y"]),
        lambda: send_offsets(producer),
        producer.commit_transaction,
    ):
        events.clear()
        call()
        assert events.index("wakeup") < events.index("wait")


def send_offsets(producer: KafkaProducer) -> None:
    producer.begin_transaction()
    producer.send_offsets_to_transaction({("t", 0): 1}, "g")


def test_blocking_transactional_calls_fail_in_callback() -> None:
    _, producer = create_producer_in_transaction(2)
    rejected_calls: list[object] = []

    def end(metadata: object, error: object) -> None:
        for call in (
            *(producer.commit_transaction, producer.abort_transaction, producer.prepare_transaction),
            lambda: producer.describe_transactions(["y"]),
        ):
            with pytest.raises(IllegalStateError, match="would wait for itself"):
                call()
            rejected_calls.append(call)

    producer.send(ProducerRecord("t", b"1", partition=0), end)
    producer.flush()
    assert len(rejected_calls) == 4
    producer.commit_transaction()


@BOTH_VERSIONS
def test_commit_can_only_be_repeated_after_it_times_out(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=1000, request_timeout_ms=5000)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).never_respond(execute_first=True)
    with pytest.raises(TransactionTimeoutError, match=r"Call commit_transaction\(\) again to learn its outcome"):
        producer.commit_transaction()
    for call in (producer.abort_transaction, producer.begin_transaction, lambda: send(producer, b"2")):
        with pytest.raises(IllegalStateError, match=r"Call commit_transaction\(\) again"):
            call()
    pass_time(producer, 10_000)
    producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"1", b"2"]


def test_description_of_no_ids_sends_no_request() -> None:
    cluster, producer = create_initialized_producer(2)
    request_count = len(cluster.requests)
    assert producer.describe_transactions([]) == {}
    assert len(cluster.requests) == request_count


def test_description_times_out_and_is_not_requested_again_later() -> None:
    cluster, producer = create_initialized_producer(2, max_block_ms=1000, request_timeout_ms=500)
    cluster.control.when(api=ApiKey.DESCRIBE_TRANSACTIONS, times=None).never_respond()
    with pytest.raises(
        TransactionTimeoutError, match=r"describe_transactions\(\) timed out after max.block.ms \(1000 ms"
    ):
        producer.describe_transactions([ID])
    request_count = len(find_requests(cluster, DescribeTransactionsRequest))
    assert request_count > 0
    pass_time(producer, 10_000)
    assert len(find_requests(cluster, DescribeTransactionsRequest)) == request_count


# --- the end of a producer


@BOTH_VERSIONS
def test_close_aborts_an_open_transaction(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version)
    send_and_flush(producer, b"1")
    producer.close()
    assert state(cluster) is TransactionState.COMPLETE_ABORT
    assert not cluster.system.open_sockets


@BOTH_VERSIONS
def test_close_waits_for_pending_commit(version: int) -> None:
    cluster, producer = create_producer_in_transaction(version, max_block_ms=100)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN).delay(150, execute_first=False)
    with pytest.raises(TransactionTimeoutError):
        producer.commit_transaction()
    producer.close()
    assert read_committed(cluster) == [b"1"]


def test_close_with_zero_timeout_leaves_transaction_open() -> None:
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    producer.close(timeout=0)
    assert state(cluster) is TransactionState.ONGOING


def test_second_close_does_not_wait_after_close_with_zero_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This happens at the end of a `with` block: the sender that could end the transaction has ended."""
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    producer.close(timeout=0)
    monkeypatch.setattr(get_loop(producer), "wait", lambda *_: pytest.fail("it waits for a sender that is gone"))
    producer.close()
    assert state(cluster) is TransactionState.ONGOING


def test_close_timeout_includes_abort_of_open_transaction(caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.PRODUCE, times=None).never_respond()
    send(producer, b"2")
    pass_time(producer, 1)
    started = cluster.system.now()
    producer.close(timeout=3)
    assert cluster.system.now() - started < 3_100
    assert "did not finish within 3 seconds" in caplog.text, "the timeout of the caller, not what the abort left of it"


@BOTH_VERSIONS
def test_measures_time_of_each_transactional_call(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, producer = create_initialized_producer(version)
    monkeypatch.setattr(get_sender(producer).accumulator, "unmute", lambda: cluster.system.advance(3))
    producer.begin_transaction()
    monkeypatch.undo()
    producer.send_offsets_to_transaction({("t", 0): 1}, "g")
    producer.commit_transaction()
    producer.begin_transaction()
    send_and_flush(producer, b"1")
    producer.abort_transaction()
    waited_ms = {call: producer.metric(f"txn-{call}-time-ns-total") / 1e6 for call in CALLS}
    assert waited_ms.pop("begin") == 3
    assert all(ms >= 4 for ms in waited_ms.values()), "there and back"


def test_close_times_out_if_coordinator_is_stopped() -> None:
    cluster, producer = create_producer_in_transaction(2, max_block_ms=2000)
    send_and_flush(producer, b"1")
    cluster.control.stop_node(0)
    started = cluster.system.now()
    producer.close()
    assert cluster.system.now() - started < 5000


def test_send_after_close_raises_closed_error_although_abort_timed_out() -> None:
    cluster, producer = create_producer_in_transaction(2, max_block_ms=1000)
    send_and_flush(producer, b"1")
    cluster.control.when(api=ApiKey.END_TXN, times=None).never_respond()
    producer.close()
    with pytest.raises(ProducerClosedError, match="was closed"):
        send(producer, b"2")


def test_transaction_block_before_init_names_required_call() -> None:
    producer = create_producer(create_cluster(2))
    with pytest.raises(IllegalStateError, match=r"Call init_transactions\(\) first"), producer.transaction():
        raise AssertionError("the block has begun")


@BOTH_VERSIONS
def test_error_of_aborted_block_does_not_advise_to_abort(version: int) -> None:
    cluster, producer = create_initialized_producer(version)
    cluster.control.when(api=ApiKey.PRODUCE).fail("INVALID_RECORD")
    with pytest.raises(TransactionAbortableError) as caught, producer.transaction():
        send(producer, b"1")
    message = str(caught.value)
    assert message.endswith("It was aborted; begin a new transaction.")
    assert "abort_transaction()" not in message
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


def test_block_does_not_abort_after_commit_timeout(caplog: pytest.LogCaptureFixture) -> None:
    """The commit may still be executed, so only the same call may follow."""
    cluster, producer = create_initialized_producer(2, max_block_ms=200)
    cluster.control.when(api=ApiKey.END_TXN).delay(300, execute_first=False)
    with pytest.raises(TransactionTimeoutError), producer.transaction():
        send(producer, b"1")
    assert "could not abort the transaction" not in caplog.text
    producer.commit_transaction()
    assert read_committed(cluster) == [b"1"]


def test_error_of_block_advises_to_abort_after_abort_timeout(caplog: pytest.LogCaptureFixture) -> None:
    cluster, producer = create_initialized_producer(2, max_block_ms=200)
    cluster.control.when(api=ApiKey.PRODUCE).fail("INVALID_RECORD")
    cluster.control.when(api=ApiKey.END_TXN, times=None).never_respond()
    with pytest.raises(TransactionAbortableError) as caught, producer.transaction():
        send(producer, b"1")
    assert str(caught.value).endswith("Call abort_transaction(), then begin a new transaction.")
    assert "could not abort the transaction: transactional id x: abort_transaction() timed out" in caplog.text


@BOTH_VERSIONS
@pytest.mark.parametrize(
    ("call_name", "send_interrupted"),
    [
        ("send()", lambda producer: producer.send("t", b"1")),
        ("send_columns()", lambda producer: producer.send_columns("t", RecordColumns(pa.array([b"1", b"2"])))),
    ],
)
def test_call_interrupted_while_it_waits_for_metadata_prevents_the_commit(
    version: int,
    call_name: str,
    send_interrupted: Callable[[KafkaProducer], object],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, producer = create_producer_in_transaction(version)

    def interrupt(*_: object) -> object:
        raise KeyboardInterrupt

    send(producer, b"0")
    with monkeypatch.context() as patch:
        patch.setattr(producer, "_await_topic", interrupt)
        with pytest.raises(KeyboardInterrupt) as interruption:
            send_interrupted(producer)
    with pytest.raises(TransactionAbortableError, match=rf"{re.escape(call_name)} was interrupted by Keyb") as caught:
        producer.commit_transaction()
    assert caught.value.__cause__ is not None
    assert caught.value.__cause__.__cause__ is interruption.value
    producer.abort_transaction()
    with producer.transaction():
        send(producer, b"2")
    assert read_committed(cluster) == [b"2"]


@BOTH_VERSIONS
def test_interrupted_call_does_not_prevent_commit_of_next_transaction(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, producer = create_producer_in_transaction(version)

    def begin_next_transaction(*_: object) -> object:
        producer.abort_transaction()
        producer.begin_transaction()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(producer, "_await_topic", begin_next_transaction)
        with pytest.raises(KeyboardInterrupt):
            producer.send("t", b"1")
    send(producer, b"2")
    producer.commit_transaction()
    assert read_committed(cluster) == [b"2"]

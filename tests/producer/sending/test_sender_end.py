"""The end of the sender: calls that wake it, errors that end it, and calls that wait for it when it ends."""

from __future__ import annotations

from collections.abc import Callable
from unittest.mock import patch

import pytest

from spark_kafka_sink.errors import AuthenticationError, BrokerError, DeliveryError, ProducerClosedError
from spark_kafka_sink.producer.one_time_event import OneTimeEvent
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.producer.sending.call_executor import BlockingCall
from spark_kafka_sink.producer.sending.sender import Sender
from spark_kafka_sink.protocol import error_codes as codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.protocol.messages.metadata import MetadataResponse
from spark_kafka_sink.requests.topics import DescribeTopic
from tests.producer.sending.sender_cases import Sent, established, pass_time, simulated, wait
from tests.producer.transactional_cases import create_producer_in_transaction, send_and_flush
from tests.producer.virtual_time import get_loop, get_sender


def submit_call(producer: KafkaProducer) -> BlockingCall[MetadataResponse]:
    """Submit a blocking call, as a second thread does, without running the sender."""
    call: BlockingCall[MetadataResponse] = BlockingCall([DescribeTopic("t")])
    producer._call_executor.submit(call)
    return call


def wait_for_error(producer: KafkaProducer, future: Sent) -> BaseException | None:
    wait(producer, future)
    return future.exception(0)


@pytest.mark.parametrize(
    "end",
    [
        lambda sender: sender.initiate_close(force=False),
        lambda sender: sender.handle_interrupted_append("send()", KeyboardInterrupt()),
    ],
)
def test_call_that_ends_the_sender_ends_its_poll(end: Callable[[Sender], None]) -> None:
    cluster, producer = simulated()
    established(producer)
    sender = get_sender(producer)
    end(sender)
    called_ms = cluster.system.now()
    sender.client.poll(60_000, called_ms)
    assert cluster.system.now() == called_ms


def test_unexpected_exception_is_logged_and_the_cause_of_the_records_error(caplog: pytest.LogCaptureFixture) -> None:
    _, producer = simulated()
    established(producer)
    future = producer.send(ProducerRecord("t", b"1"))
    sender, unexpected = get_sender(producer), ValueError("unexpected")
    with patch.object(sender, "run_once", side_effect=unexpected):
        sender.run()
    error = future.exception(0)
    assert isinstance(error, DeliveryError)
    assert "The producer's sender thread has failed: ValueError('unexpected')" in str(error)
    assert sender.fatal_error is not None
    assert sender.fatal_error.__cause__ is unexpected
    assert unexpected.__traceback__ is None, "its frames would keep all records in memory"
    assert "The sender thread has failed. No more records are sent." in caplog.text
    assert "ValueError: unexpected" in caplog.text


def test_absence_of_an_error_does_not_replace_the_error_of_an_interrupted_call() -> None:
    """The interrupted call's thread may set its error at any moment, so only an error may be written."""
    _, producer = simulated()
    established(producer)
    sender = get_sender(producer)
    with patch.object(Sender, "__setattr__", side_effect=AssertionError("written")):
        sender._set_fatal_error(None)


def test_call_that_waits_for_memory_ends_when_the_sender_fails() -> None:
    _, producer = simulated()
    established(producer)
    sender = get_sender(producer)
    pool = sender.accumulator.pool
    pool.reserve(pool.free_bytes, 0)

    def fail_sender(event: OneTimeEvent, timeout_ms: float | None) -> bool:
        with patch.object(sender, "run_once", side_effect=ValueError("unexpected")):
            sender.run()
        return event.is_set()

    with pytest.raises(ProducerClosedError, match="closed while this call waited for memory"):
        pool.reserve(1, 60_000, fail_sender)


def test_blocking_call_ends_with_the_sender() -> None:
    _, producer = simulated()
    established(producer)
    call = submit_call(producer)
    producer.close(timeout=0)
    assert call.done_event.is_set()
    with pytest.raises(ProducerClosedError):
        call.results()


def test_transactional_call_ends_with_the_sender() -> None:
    _, producer = create_producer_in_transaction(2)
    send_and_flush(producer, b"1")
    assert producer._transactions is not None
    operation = producer._transactions.manager.commit()
    producer.close(timeout=0)
    assert operation.done_event.is_set()
    with pytest.raises(ProducerClosedError):
        operation.read_result()


def test_rejected_producer_id_ends_blocking_calls() -> None:
    cluster, producer = simulated()
    cluster.control.when(api=ApiKey.METADATA, nth=2, times=None).never_respond()
    cluster.control.when(api=ApiKey.INIT_PRODUCER_ID).fail(codes.INVALID_REQUEST)
    future = producer.send(ProducerRecord("t", b"1"))
    call = submit_call(producer)
    assert isinstance(wait_for_error(producer, future), BrokerError)
    get_loop(producer).run_once()
    assert call.done_event.is_set()
    with pytest.raises(BrokerError, match="INVALID_REQUEST"):
        call.results()


def test_fatal_metadata_error_ends_blocking_calls() -> None:
    cluster, producer = simulated()
    established(producer)
    cluster.control.when(api=ApiKey.METADATA, times=None).never_respond()
    call = submit_call(producer)
    sender = get_sender(producer)
    sender.metadata.set_fatal_error(AuthenticationError("rejected"))
    get_loop(producer).run_once()
    assert call.done_event.is_set()
    with pytest.raises(AuthenticationError, match="rejected"):
        call.results()


def test_fatal_metadata_error_ends_transactional_calls() -> None:
    _, producer = create_producer_in_transaction(2)
    assert producer._transactions is not None
    operation = producer._transactions.manager.abort()
    get_sender(producer).metadata.set_fatal_error(AuthenticationError("rejected"))
    get_loop(producer).run_once()
    with pytest.raises(AuthenticationError, match="rejected"):
        operation.read_result()


def test_record_fails_immediately_if_it_cannot_be_encoded(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def raise_memory_error(*_: object) -> None:
        raise MemoryError("none left")

    _, producer = simulated()
    established(producer)
    monkeypatch.setattr("spark_kafka_sink.producer.batching.batch_filler.encode_records", raise_memory_error)
    future = producer.send(ProducerRecord("t", b"1"))
    pass_time(producer, 100)
    assert future.done()
    error = future.exception(0)
    assert "the rows could not be encoded: MemoryError('none left')" in str(error)
    assert error is not None
    assert isinstance(error.__cause__, MemoryError)
    assert error.__cause__.__traceback__ is None, "its frames would keep the records in memory"
    assert "in raise_memory_error" in caplog.text, "the traceback is in the log"


def test_flush_that_begins_after_the_last_round_ends_with_the_sender() -> None:
    _, producer = simulated()
    established(producer)
    sender = get_sender(producer)

    def shut_down(flushed: OneTimeEvent) -> bool:
        sender.shut_down()
        return flushed.is_set()

    producer.send(ProducerRecord("t", b"1"))
    assert sender.accumulator.flush(shut_down)

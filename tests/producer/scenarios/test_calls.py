"""Call styles of Python programs: keyword arguments, send() with topic and fields, await."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import BrokerError, ConfigurationError, InvalidRecordError
from spark_kafka_sink.producer.futures import SendFuture
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker

WAIT_TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(auto_create_topics=True) as broker:
        yield broker


@pytest.fixture
def producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers) as producer:
        yield producer


def stored(broker: EmbeddedBroker, topic: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = broker.topic(topic).read().to_pylist()
    return rows


# --- options


def test_accepts_options_as_dictionary_keyword_arguments_or_both(broker: EmbeddedBroker) -> None:
    servers = broker.bootstrap_servers
    calls: list[Callable[[], KafkaProducer]] = [
        lambda: KafkaProducer({"bootstrap.servers": servers, "linger.ms": 7}),
        lambda: KafkaProducer(bootstrap_servers=servers, linger_ms=7),
        lambda: KafkaProducer({"bootstrap.servers": servers}, linger_ms="7"),
        lambda: KafkaProducer(bootstrap_servers=[servers], linger_ms=7, security_protocol="PLAINTEXT"),
    ]
    for call in calls:
        with call() as producer:
            assert producer.config.linger_ms == 7


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstrap_server": "a:1"}, "Did you mean bootstrap.servers?"),
        ({"sasl_plain_username": "alice"}, "That is kafka-python's name. Instead, use sasl.jaas.config"),
        (
            {"api_version": (2, 8)},
            "That is kafka-python's name. The option is not needed: the client requests the versions",
        ),
        ({"lingr_ms": 5}, "lingr_ms is not an option of the Kafka producer. Did you mean linger.ms?"),
    ],
)
def test_rejects_unknown_keyword_and_suggests_option(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        KafkaProducer(**{"bootstrap_servers": "a:1", **options})  # type: ignore[arg-type]
    assert message in str(caught.value)


def test_rejects_option_given_twice() -> None:
    with pytest.raises(ConfigurationError, match=r"linger\.ms is set twice"):
        KafkaProducer({"bootstrap.servers": "a:1", "linger.ms": 1}, linger_ms=2)


@pytest.mark.parametrize("options", ["a:9092", ["a:9092"]])
def test_rejects_single_address_and_suggests_the_call(options: Any) -> None:
    with pytest.raises(ConfigurationError, match=r'KafkaProducer\(bootstrap_servers="host:9092"\)'):
        KafkaProducer(options)


def test_reports_missing_bootstrap_servers_without_options() -> None:
    with pytest.raises(ConfigurationError, match=r"bootstrap\.servers"):
        KafkaProducer()


# --- send


def test_send_accepts_topic_and_record_fields(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    producer.send("fields", b"1")
    producer.send("fields", "zwei", "schlüssel")
    producer.send("fields", value=b"3", key=b"k", headers={"a": b"x", "b": "ü", "c": None}, timestamp_ms=5)
    producer.send("fields", b"4", headers=[("a", "text"), ("a", b"bytes")], partition=0)
    producer.send("fields")
    producer.flush(WAIT_TIMEOUT_SECONDS)
    rows = stored(broker, "fields")
    assert [row["value"] for row in rows] == [b"1", b"zwei", b"3", b"4", None]
    assert [row["key"] for row in rows] == [None, "schlüssel".encode(), b"k", None, None]
    assert rows[2]["headers"] == [
        {"key": "a", "value": b"x"},
        {"key": "b", "value": "ü".encode()},
        {"key": "c", "value": None},
    ]
    assert [header["value"] for header in rows[3]["headers"]] == [b"text", b"bytes"]
    assert int(rows[2]["timestamp"].timestamp() * 1000) == 5


def test_send_accepts_callback_by_position_or_name(producer: KafkaProducer) -> None:
    called: list[object] = []

    def note(metadata: object, error: Exception | None) -> None:
        called.append(error)

    futures = [
        producer.send(ProducerRecord("called", b"1"), note),
        producer.send(ProducerRecord("called", b"2"), callback=note),
        producer.send("called", b"3", callback=note),
    ]
    for future in futures:
        future.result(WAIT_TIMEOUT_SECONDS)
    assert called == [None, None, None]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda producer: producer.send(5), r'send\("topic", b"value", key=b"key"\), or a ProducerRecord, not int'),
        (lambda producer: producer.send(ProducerRecord("t"), b"v"), "Pass the value and the key in the ProducerRecord"),
        (
            lambda producer: producer.send(ProducerRecord("t"), key=b"k"),
            "Pass the key and the headers in the ProducerRecord",
        ),
        (lambda producer: producer.send("t", b"v", headers={"a": 5}), "a header must be a tuple of a str and bytes"),
        (
            lambda producer: producer.send("t", b"v", headers=5),
            "headers must be an iterable of .* tuples, not int",
        ),
        (lambda producer: producer.send("no topic", b"v"), "is not a valid topic name"),
        (lambda producer: producer.send("t", b"v", partition="1"), "'1' is not a partition"),
    ],
)
def test_send_rejects_invalid_arguments_and_suggests_the_call(producer: KafkaProducer, call: Any, message: str) -> None:
    with pytest.raises(InvalidRecordError, match=message):
        call(producer)


# --- names of other clients


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda producer: producer.produce("t", b"v"),
            r"confluent-kafka's name. Instead, use send\(topic, value, key\)",
        ),
        (
            lambda producer: producer.poll(0),
            "'KafkaProducer' object has no attribute 'poll'.* does not need it: the producer's own thread",
        ),
        (
            lambda producer: producer.send("t", b"v").get(timeout=10),
            r"kafka-python's name. Instead, use result\(timeout\)",
        ),
        (lambda producer: producer.send("t", b"v").add_errback(print), r"Instead, use add_done_callback\(f\)"),
        (lambda producer: producer.send_and_wait("t", b"v"), r"aiokafka's name. Instead, use await send\("),
    ],
)
def test_suggests_method_for_method_of_another_client(producer: KafkaProducer, call: Any, message: str) -> None:
    with pytest.raises(AttributeError, match=message):
        call(producer)


def test_suggests_argument_for_argument_of_another_client(producer: KafkaProducer) -> None:
    message = r"unexpected keyword argument 'on_delivery'. That is confluent-kafka's name. Instead, use callback=f"
    with pytest.raises(TypeError, match=message):
        producer.send("t", b"v", on_delivery=print)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'callbak'$"):
        producer.send("t", b"v", callbak=print)  # type: ignore[arg-type]


# --- asyncio


def test_async_with_closes_without_blocking_the_event_loop(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_closing, may_close, close = threading.Event(), threading.Event(), KafkaProducer.close

    def close_when_allowed(self: KafkaProducer) -> None:
        is_closing.set()
        assert may_close.wait(WAIT_TIMEOUT_SECONDS), "the event loop did not go on while the producer closed"
        close(self)

    async def allow_close() -> None:
        while not is_closing.is_set():
            await asyncio.sleep(0)
        may_close.set()

    async def main() -> SendFuture:
        allowed = asyncio.ensure_future(allow_close())
        async with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000) as producer:
            sent = producer.send("entered", b"v")
        await allowed
        assert repr(producer).endswith("closed)")
        return sent

    monkeypatch.setattr(KafkaProducer, "close", close_when_allowed)
    assert asyncio.run(main()).done()
    assert len(stored(broker, "entered")) == 1


def test_async_with_closes_and_raises_the_error_of_its_block(broker: EmbeddedBroker) -> None:
    producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers, linger_ms=60_000)

    async def main() -> None:
        async with producer as entered:
            assert entered is producer
            producer.send("failing-block", b"v")
            raise LookupError("of the block")

    with pytest.raises(LookupError, match="of the block"):
        asyncio.run(main())
    assert repr(producer).endswith("closed)")
    assert len(stored(broker, "failing-block")) == 1


def test_futures_can_be_awaited(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    async def main() -> list[int]:
        first = await producer.send("awaited", b"1")
        others = await asyncio.gather(*(producer.send("awaited", b"%d" % number) for number in range(2, 5)))
        columns = await producer.send_columns("awaited", RecordColumns(value=pa.array([b"5", b"6"])))
        assert columns.rows_written == 2
        return [metadata.offset for metadata in (first, *others)]

    assert asyncio.run(main()) == [0, 1, 2, 3]
    assert len(stored(broker, "awaited")) == 6


def test_event_loop_continues_while_record_is_in_flight(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    async def main() -> int:
        turns, sent = 0, asyncio.ensure_future(awaited())
        while not sent.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    async def awaited() -> object:
        return await producer.send("slow", b"v")

    with broker.faults.slow(50):
        assert asyncio.run(main()) > 1


def test_await_raises_error_of_rejected_record(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    async def main() -> None:
        await producer.send("refused", b"v")

    with broker.faults.produce_fails("TOPIC_AUTHORIZATION_FAILED"), pytest.raises(BrokerError):
        asyncio.run(main())


def test_cancelled_task_does_not_cancel_its_record(broker: EmbeddedBroker, producer: KafkaProducer) -> None:
    async def main() -> None:
        task = asyncio.ensure_future(awaited())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    async def awaited() -> object:
        return await producer.send("cancelled", b"v")

    with broker.faults.slow(20):
        asyncio.run(main())
        producer.flush(WAIT_TIMEOUT_SECONDS)
    assert len(stored(broker, "cancelled")) == 1

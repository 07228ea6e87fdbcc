"""SenderThread with real sockets against the embedded broker: behaviour that virtual time cannot show."""

from __future__ import annotations

import gc
import os
import threading

import pyarrow as pa

from spark_kafka_sink import KafkaProducer, ProducerRecord, RecordColumns
from spark_kafka_sink.errors import IllegalStateError
from spark_kafka_sink.testing import embedded_broker
from tests.leak_check import assert_no_leaks
from tests.waiting import WAIT_TIMEOUT_SECONDS


def senders() -> set[threading.Thread]:
    """Return the sender threads of all producers of this process, those of earlier tests included."""
    return {thread for thread in threading.enumerate() if "kafka-producer" in thread.name}


def test_leaves_no_thread_or_descriptor_after_100_000_rows() -> None:
    before = senders()
    with assert_no_leaks(), embedded_broker(topics={"t": 3}) as broker:
        with KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            single = producer.send(ProducerRecord("t", b"first"))
            columns = producer.send_columns("t", RecordColumns(pa.array([b"v"] * 100_000)))
            assert single.result(WAIT_TIMEOUT_SECONDS).offset >= 0
            assert columns.result(WAIT_TIMEOUT_SECONDS).rows_written == 100_000
        assert senders() <= before
        # Only now: the broker, in this process too, closes its ends of the connections when it comes to it.


def test_unreferenced_producer_ends_its_thread() -> None:
    before = senders()
    with embedded_broker(topics={"t": 1}) as broker:
        producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers})
        producer.send(ProducerRecord("t", b"v")).result(WAIT_TIMEOUT_SECONDS)
        (sender,) = senders() - before
        del producer
        gc.collect()
        sender.join(WAIT_TIMEOUT_SECONDS)
        assert not sender.is_alive()


def test_close_in_callback_ends_the_thread() -> None:
    before = senders()
    with embedded_broker(topics={"t": 1}) as broker:
        producer = KafkaProducer({"bootstrap.servers": broker.bootstrap_servers})
        (sender,) = senders() - before
        producer.send(ProducerRecord("t", b"v"), lambda metadata, error: producer.close()).result(WAIT_TIMEOUT_SECONDS)
        sender.join(WAIT_TIMEOUT_SECONDS)
        assert not sender.is_alive()


def test_27_send_in_child_process_fails_and_names_the_fork() -> None:
    with (
        embedded_broker(topics={"t": 1}) as broker,
        KafkaProducer({"bootstrap.servers": broker.bootstrap_servers}) as producer,
    ):
        child = os.fork()
        if not child:
            try:
                producer.send(ProducerRecord("t", b"v"))
            except IllegalStateError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0

"""Interoperability of record batches: librdkafka reads ours from a broker, and we read those of Kafka's own tools."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import create_topic, read_topic
from integration.support.wire import fetch_all, produce
from spark_kafka_sink.records.compression import Codec
from spark_kafka_sink.records.decoder import parse_batches
from tests.records.reference_encoder import Row
from tests.records.shapes import SHAPES, decode_rows, encode_batches, expected_rows, to_columns

CODECS = [codec.name.lower() for codec in Codec]
BATCH_BYTES_MAX = str(8 << 20)


@pytest.fixture(scope="module")
def mock_cluster() -> Iterator[str]:
    """librdkafka's mock broker, which runs in this process and needs no Java."""
    host = Producer({"bootstrap.servers": "localhost:1", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = host.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del host


def write_and_read_by_librdkafka(bootstrap: str, topic: str, codec: Codec) -> None:
    rows = [row for shape in SHAPES.values() for row in shape]
    for shape in SHAPES.values():
        # The broker requires that a Produce request contains a single batch per partition.
        for batch in split_batches(encode_batches(to_columns(shape), codec)):
            produce(bootstrap, topic, batch)
    found = read_topic(bootstrap, topic)
    assert [Row(r.value, r.key, r.headers, r.timestamp) for r in found] == [row for _, row in expected_rows(rows)]
    assert [r.offset for r in found] == list(range(len(rows)))


def split_batches(buffer: bytes) -> list[bytes]:
    return [bytes(batch) for _, batch in parse_batches(buffer)]


@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_records_of_every_shape_from_its_mock_broker(mock_cluster: str, codec: str) -> None:
    topic = f"shapes-{codec}"
    Producer({"bootstrap.servers": mock_cluster}).list_topics(topic, timeout=10)
    write_and_read_by_librdkafka(mock_cluster, topic, Codec[codec.upper()])


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("codec", CODECS)
def test_librdkafka_reads_records_of_every_shape_from_kafka(kafka: KafkaCluster, codec: str) -> None:
    topic = create_topic(kafka.bootstrap(), max_message_bytes=BATCH_BYTES_MAX)
    write_and_read_by_librdkafka(kafka.bootstrap(), topic, Codec[codec.upper()])


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("codec", CODECS[1:])
def test_broker_recompresses_batches_with_codec_of_topic(kafka: KafkaCluster, codec: str) -> None:
    """If the topic has another codec, the broker decompresses, validates and recompresses each record."""
    other = "gzip" if codec != "gzip" else "lz4"
    topic = create_topic(kafka.bootstrap(), compression_type=other, max_message_bytes=BATCH_BYTES_MAX)
    write_and_read_by_librdkafka(kafka.bootstrap(), topic, Codec[codec.upper()])
    stored = parse_batches(fetch_all(kafka.bootstrap(), topic, 100))
    assert {header.codec for header, _ in stored} == {Codec[other.upper()]}


@pytest.mark.needs("kafka")
@pytest.mark.parametrize("codec", CODECS)
def test_batches_of_kafkas_console_producer_are_read(kafka: KafkaCluster, codec: str) -> None:
    topic = create_topic(kafka.bootstrap(), max_message_bytes=BATCH_BYTES_MAX)
    rows = [
        Row(f"wört-{n % 17}".encode() * (n % 40 + 1), f"k{n}".encode(), (("h", b"x"), ("n", b"%d" % n)))
        for n in range(3_000)
    ]
    lines = b"".join(
        b",".join(b"%s:%s" % (k.encode(), v) for k, v in row.headers or ()) + b"\t%s\t%s\n" % (row.key, row.value)
        for row in rows
    )
    kafka.run_tool(
        "org.apache.kafka.tools.ConsoleProducer", "--bootstrap-server", kafka.bootstrap(), "--topic", topic,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        "--compression-codec", codec, stdin=lines,
    )  # fmt: skip
    stored = fetch_all(kafka.bootstrap(), topic, len(rows))
    assert {header.codec for header, _ in parse_batches(stored)} == {Codec[codec.upper()]}
    found = decode_rows(stored)
    assert [offset for offset, _ in found] == list(range(len(rows)))
    assert [Row(row.value, row.key, row.headers) for _, row in found] == rows
    assert min(row.timestamp or 0 for _, row in found) > 1_700_000_000_000


@pytest.mark.needs("kafka")
def test_reads_timestamps_of_topic_with_log_append_time(kafka: KafkaCluster) -> None:
    topic = create_topic(kafka.bootstrap(), message_timestamp_type="LogAppendTime")
    (batch,) = split_batches(
        encode_batches(to_columns([Row(b"a", None, None, 5), Row(b"b", None, None, 6)]), Codec.LZ4)
    )
    produce(kafka.bootstrap(), topic, batch)
    ((header, _),) = parse_batches(fetch_all(kafka.bootstrap(), topic, 2))
    assert header.has_log_append_time
    found = decode_rows(fetch_all(kafka.bootstrap(), topic, 2))
    assert [row.timestamp for _, row in found] == [header.max_timestamp] * 2
    assert header.max_timestamp > 1_700_000_000_000

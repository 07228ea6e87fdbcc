"""Round trips with real Spark and Kafka, compared with Spark's own source and sink and with librdkafka."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from chispa import assert_df_equality
from pyspark.sql import DataFrame, SparkSession

from integration.support.kafka_cluster import KafkaCluster
from integration.support.librdkafka import add_partitions, create_topic, read_topic
from integration.support.wire import read_producer_ids
from spark_kafka_sink.testing import KafkaTopic, assert_topic_equals

pytestmark = pytest.mark.needs("kafka", "connector")

PARTITIONS = 5
ADDED_MAX = 8
ROWS = 6_000


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    """Rows with all kinds of keys, values and headers. All rows of a key are in one task, in the order of `n`."""
    key = (
        "CASE n % 40 WHEN 0 THEN NULL WHEN 1 THEN '' WHEN 2 THEN 'ключ-ключ' WHEN 3 THEN repeat('long', 100) "
        "ELSE concat('key-', n % 40) END"
    )
    value = "CASE WHEN n % 97 = 0 THEN NULL ELSE concat(n, ' ', repeat('é', n % 50)) END"
    header = "named_struct('key', concat('h', n % 3), 'value', CAST(CAST(n AS STRING) AS BINARY))"
    headers = f"CASE n % 4 WHEN 0 THEN NULL WHEN 1 THEN array() WHEN 2 THEN array({header}) "
    headers += f"ELSE array({header}, {header}) END"
    numbered = (
        spark.range(ROWS)
        .selectExpr("id AS n")
        .selectExpr("n", f"{key} AS key", f"{value} AS value", f"{headers} AS headers")
    )
    return numbered.repartition(3, "key").sortWithinPartitions("n").drop("n").cache()


def stored(spark: SparkSession, kafka: KafkaCluster, topic: str) -> DataFrame:
    """Read the topic with Spark's own source."""
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap())
    return reader.option("subscribe", topic).option("includeHeaders", "true").load()


def assert_same_records(found: DataFrame, expected: DataFrame, *more: str) -> None:
    """Check that keys, values, headers and the columns `more` are equal. An empty list of headers equals null."""
    columns = (
        *more,
        "CAST(key AS BINARY) AS key",
        "CAST(value AS BINARY) AS value",
        "CASE WHEN size(headers) > 0 THEN headers END AS headers",
    )
    chosen, wanted = found.selectExpr(*columns), expected.selectExpr(*columns)
    assert_df_equality(chosen, wanted, ignore_row_order=True, ignore_nullable=True)


def in_order(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Return the records of a topic, ordered by partition and offset."""
    return [as_written(row) for row in frame.orderBy("partition", "offset").collect()]


def as_written(row: Any) -> tuple[Any, ...]:
    """Return the key, value and headers as a hashable tuple, with text as bytes and `()` for null headers."""
    key, value = (part.encode() if isinstance(part, str) else part for part in (row.key, row.value))
    headers = tuple((header.key, None if header.value is None else bytes(header.value)) for header in row.headers or ())
    return (None if key is None else bytes(key), None if value is None else bytes(value), headers)


def values_by_key(written: list[tuple[Any, ...]]) -> dict[Any, list[Any]]:
    by_key = defaultdict(list)
    for key, value, _ in written:
        if key is not None:
            by_key[key].append(value)
    return by_key


def write(frame: DataFrame, kafka: KafkaCluster, topic: str, sink: str = "pykafka", **options: str) -> None:
    writer = frame.write.format(sink).option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    writer.options(**options).save()


@pytest.fixture(scope="module")
def written_topic(kafka: KafkaCluster, rows: DataFrame) -> str:
    """A topic that contains the rows in compressed batches."""
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    write(rows, kafka, topic, **{"kafka.compression.type": "zstd"})
    return topic


def test_sparks_source_reads_written_batch(
    spark: SparkSession, kafka: KafkaCluster, rows: DataFrame, written_topic: str
) -> None:
    read = stored(spark, kafka, written_topic)
    assert_same_records(read, rows)
    assert values_by_key(in_order(read)) == values_by_key([as_written(row) for row in rows.collect()])


def test_librdkafka_reads_written_batch(kafka: KafkaCluster, rows: DataFrame, written_topic: str) -> None:
    source = [as_written(row) for row in rows.collect()]
    read = [(record.key, record.value, record.headers) for record in read_topic(kafka.bootstrap(), written_topic)]
    assert Counter(read) == Counter(source)
    assert values_by_key(read) == values_by_key(source)


def test_assigns_partitions_like_sparks_sink(
    spark: SparkSession, kafka: KafkaCluster, rows: DataFrame, written_topic: str
) -> None:
    theirs = create_topic(kafka.bootstrap(), partitions=PARTITIONS, for_java_producer=True)
    write(rows, kafka, theirs, sink="kafka")
    by_ours, by_theirs = stored(spark, kafka, written_topic), stored(spark, kafka, theirs)
    assert_same_records(by_ours, by_theirs)
    assert_same_records(by_ours.where("key IS NOT NULL"), by_theirs.where("key IS NOT NULL"), "partition")


def test_reused_producer_writes_to_added_partition(spark: SparkSession, kafka: KafkaCluster) -> None:
    """Add partitions until a producer writes twice: Spark may run a task in a new worker, with a new producer."""
    topic = create_topic(kafka.bootstrap(), partitions=1)
    seen, written = set[int](), []
    for partition in range(ADDED_MAX):
        write(spark.range(3).coalesce(1).selectExpr("'v' AS value", f"{partition} AS partition"), kafka, topic)
        written += [partition] * 3
        assert sorted(record.partition for record in read_topic(kafka.bootstrap(), topic)) == written
        writers = read_producer_ids(kafka.bootstrap(), topic, partition)
        if writers <= seen:
            return
        seen |= writers
        add_partitions(kafka.bootstrap(), topic, partition + 2)
    pytest.fail(f"no producer of {seen} wrote twice")


def test_stream_reads_rows_of_written_stream(
    spark: SparkSession, kafka: KafkaCluster, rows: DataFrame, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=PARTITIONS)
    rows.write.parquet(str(tmp_path / "source"))
    files = spark.readStream.schema(rows.schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "source"))
    writer = files.writeStream.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap())
    writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    batches = [progress for progress in query.recentProgress if progress.numInputRows]
    assert len(batches) > 1
    assert sum(progress.numInputRows for progress in batches) == ROWS

    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap())
    reader = reader.option("subscribe", topic).option("includeHeaders", "true").option("startingOffsets", "earliest")
    echo = reader.load().writeStream.format("memory").queryName("echo")
    echo.trigger(availableNow=True).start().awaitTermination()
    assert_same_records(spark.table("echo"), rows)


def test_continues_from_checkpoint_of_sparks_sink(spark: SparkSession, kafka: KafkaCluster, tmp_path: Path) -> None:
    topic = create_topic(kafka.bootstrap())

    def run(sink: str, start: int) -> None:
        spark.range(start, start + 100).selectExpr("CAST(id AS STRING) AS value").write.mode("append").parquet(
            str(tmp_path / "source")
        )
        files = spark.readStream.schema("value STRING").parquet(str(tmp_path / "source"))
        writer = files.writeStream.format(sink).option("kafka.bootstrap.servers", kafka.bootstrap())
        writer = writer.option("topic", topic).option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination()

    run("kafka", 0)
    run("pykafka", 100)
    expected = spark.range(200).selectExpr("CAST(id AS STRING) AS value")
    assert_topic_equals(expected, KafkaTopic(topic, {"bootstrap.servers": kafka.bootstrap()}))


def test_writes_too_large_records_to_dead_letter_topic(
    spark: SparkSession, kafka: KafkaCluster, tmp_path: Path
) -> None:
    topic = create_topic(kafka.bootstrap(), partitions=2, max_message_bytes="20000")
    dead = create_topic(kafka.bootstrap())
    frame = spark.range(300).selectExpr(
        "CAST(id AS STRING) AS key", "CASE WHEN id % 100 = 7 THEN repeat('x', 50000) ELSE 'fine' END AS value"
    )
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    writer.option("onRecordError", "deadLetter").option("deadLetterTopic", dead).save()
    assert len(read_topic(kafka.bootstrap(), topic)) == 297
    letters = read_topic(kafka.bootstrap(), dead)
    assert sorted(letter.key or b"" for letter in letters) == [b"107", b"207", b"7"]
    for letter in letters:
        headers = dict(letter.headers)
        assert headers["pykafka.topic"] == topic.encode()
        assert headers["pykafka.partition"] in (b"0", b"1")
        assert headers["pykafka.error"] == b"RecordTooLargeError"
        assert letter.value == b"x" * 50_000


def test_writes_records_named_by_broker_to_dead_letter_topic(spark: SparkSession, kafka: KafkaCluster) -> None:
    """For a compacted topic, the broker rejects records without a key and names them in its response (KIP-467)."""
    topic = create_topic(kafka.bootstrap(), cleanup_policy="compact")
    dead = create_topic(kafka.bootstrap())
    frame = spark.range(300).selectExpr("CASE WHEN id % 100 <> 7 THEN 'k' END AS key", "CAST(id AS STRING) AS value")
    writer = frame.write.format("pykafka").option("kafka.bootstrap.servers", kafka.bootstrap()).option("topic", topic)
    writer.option("onRecordError", "deadLetter").option("deadLetterTopic", dead).save()
    rejected = {record.value: dict(record.headers) for record in read_topic(kafka.bootstrap(), dead)}
    assert {b"7", b"107", b"207"} <= set(rejected)
    accepted = [record.value for record in read_topic(kafka.bootstrap(), topic)]
    assert Counter(accepted) + Counter(rejected.keys()) == Counter(b"%d" % number for number in range(300))
    assert rejected[b"7"]["pykafka.error"] == b"InvalidRecordError"


def test_wrong_password_fails_write_and_stays_secret(spark: SparkSession, kafka: KafkaCluster) -> None:
    login = "org.apache.kafka.common.security.plain.PlainLoginModule required"
    writer = spark.range(3).selectExpr("CAST(id AS STRING) AS value").write.format("pykafka").option("topic", "t")
    writer = writer.option("kafka.bootstrap.servers", kafka.bootstrap("SASL_PLAINTEXT"))
    writer = writer.option("kafka.security.protocol", "SASL_PLAINTEXT").option("kafka.sasl.mechanism", "PLAIN")
    writer = writer.option("kafka.sasl.jaas.config", f'{login} username="alice" password="hush-hush";')
    with pytest.raises(Exception, match=r"(?i)authentication") as raised:
        writer.save()
    assert "hush-hush" not in str(raised.value)

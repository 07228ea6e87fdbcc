"""Records that cannot be written: the error of their task, and dead letters."""

from __future__ import annotations

import re

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.spark.pool import ProducerPool
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.spark.task_cases import PLAN, TOPIC, batch, failed, options, values
from tests.spark.task_cases import broker as broker
from tests.spark.task_cases import pool as pool


def test_error_names_topic_partition_reason_count_and_key(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, topic=TOPIC, times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    message = failed(broker, pool, [batch(0)])
    # Outside of Spark a task has random ids.
    beginning = r"The task for Spark partition \d+ \(stage 0, attempt 0\) failed to write 100 records to Kafka\."
    assert re.match(beginning, message)
    assert "topic 'orders', partition 0: " in message
    assert "topic 'orders', partition 1: " in message
    assert "TOPIC_AUTHORIZATION_FAILED" in message
    assert "key 'key-" in message


def test_too_large_record_fails_task_with_remedy(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    big = pa.record_batch({"value": [b"small", b"x" * 5_000, b"small"], "key": ["a", "k" * 500, None]})
    message = failed(broker, pool, [big], kafka__max__request__size="2000")
    assert "failed to write 1 record to Kafka" in message.splitlines()[0]
    assert "max.request.size" in message
    assert '.option("onRecordError", "deadLetter")' in message
    assert "k" * 60 not in message


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            {"kafka__max__request__size": "2000"},
            "exceeds kafka.max.request.size (2000). Increase kafka.max.request.size to at least 5",
        ),
        (
            {"kafka__buffer__memory": "3000"},
            "exceeds kafka.buffer.memory (3000). Increase kafka.buffer.memory to at least 5",
        ),
        (
            {"kafka__max__request__size": "2000", "kafka__buffer__memory": "3000"},
            "exceeds kafka.max.request.size (2000) and kafka.buffer.memory (3000). Increase kafka.max.request.size and "
            "kafka.buffer.memory to at least 5",
        ),
    ],
)
def test_error_names_exceeded_limit_and_required_value(
    broker: EmbeddedBroker, pool: ProducerPool, overrides: dict[str, str], message: str
) -> None:
    big = pa.record_batch({"value": [b"small", b"x" * 5_000], "key": ["a", "b"]})
    assert message in failed(broker, pool, [big], **overrides)


def test_error_names_unknown_topic(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.hide_topic(TOPIC)
    broker.control.when(api=ApiKey.METADATA, times=None).fail(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    assert "'orders'" in failed(broker, pool, [batch(0)], kafka__max__block__ms="500")


def dead_letters(broker: EmbeddedBroker) -> list[dict[str, bytes | None]]:
    table = read_topic(broker.bootstrap_servers, "dead")
    return [{header["key"]: header["value"] for header in row} for row in table.column("headers").to_pylist()]


def test_writes_too_large_records_to_dead_letter_topic(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.delete_topic(TOPIC)
    broker.control.create_topic(TOPIC, 1, {"max.message.bytes": "1000"})
    big = pa.record_batch({"value": [b"a", b"x" * 5_000, b"b", b"y" * 6_000], "key": ["1", "2", "3", "4"]})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **overrides), PLAN, iter([big]), pool)
    assert (report.totals.rows, report.totals.dead_letters, report.totals.dead_letters_cut) == (2, 2, 0)
    assert report.totals.bytes < 1_000, "what became a dead letter was not written to its topic"
    assert values(broker) == [b"a", b"b"]
    assert sorted(values(broker, "dead")) == [b"x" * 5_000, b"y" * 6_000]
    for letter in dead_letters(broker):
        assert letter["pykafka.topic"] == b"orders"
        assert letter["pykafka.partition"] == b"0"
        assert letter["pykafka.error"] == b"RecordTooLargeError"
        assert letter["pykafka.batch"] == b"batch job"


def test_flushes_last_dead_letters_together(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushes: list[int] = []
    flush = KafkaProducer.flush

    def counted(producer: KafkaProducer) -> None:
        flush(producer)
        flushes.append(producer.totals().records)

    monkeypatch.setattr(KafkaProducer, "flush", counted)
    big = pa.record_batch({"value": [b"fine", b"x" * 300_000], "key": ["1", "2"]})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__request__size": "200000"}
    overrides |= {"kafka__batch__size": "1000000", "kafka__linger__ms": "60000"}  # no batch becomes full or due
    report = write_rows(options(broker, **overrides), PLAN, iter([big, big]), pool)
    assert (report.totals.rows, report.totals.dead_letters) == (2, 2)
    assert flushes == [2, 4]


def test_truncates_and_counts_too_large_dead_letter(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    big = pa.record_batch({"value": [b"fine", b"x" * 300_000], "key": ["1", "2"]})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__request__size": "200000"}
    report = write_rows(options(broker, **overrides), PLAN, iter([big]), pool)
    assert (report.totals.rows, report.totals.dead_letters, report.totals.dead_letters_cut) == (1, 1, 1)
    assert values(broker, "dead") == [b"x" * 65_536]
    assert dead_letters(broker)[0]["pykafka.value.bytes"] == b"300000"


def test_rejected_dead_letter_fails_task(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, topic="dead", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    big = pa.record_batch({"value": [b"x" * 300_000], "key": ["1"]})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__request__size": "200000"}
    message = failed(broker, pool, [big], **overrides)
    assert "dead-letter topic also rejected the record" in message
    assert "TOPIC_AUTHORIZATION_FAILED" in message


def test_missing_partition_becomes_dead_letter(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    plan = ColumnPlan(value=0, partition=1, fixed_topic=TOPIC)
    rows = pa.record_batch({"value": [b"a", b"b"], "partition": pa.array([0, 77], pa.int32())})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__block__ms": "500"}
    report = write_rows(options(broker, **overrides), plan, iter([rows]), pool)
    assert (report.totals.rows, report.totals.dead_letters) == (1, 1)
    assert values(broker, "dead") == [b"b"]
    assert dead_letters(broker)[0]["pykafka.partition"] == b"77"


def test_rewrites_valid_records_of_rejected_batch_and_dead_letters_invalid_ones(
    broker: EmbeddedBroker, pool: ProducerPool
) -> None:
    """In a compacted topic, brokers reject records without a key and identify them in the response (KIP-467)."""
    broker.control.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    plan = ColumnPlan(value=0, key=1, fixed_topic="compacted")
    rows = pa.record_batch({"value": [b"a", b"b", b"c", b"d"], "key": ["k", None, "k", None]})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **overrides), plan, iter([rows]), pool)
    assert (report.totals.rows, report.totals.dead_letters) == (2, 2)
    assert values(broker, "compacted") == [b"a", b"c"]
    assert values(broker, "dead") == [b"b", b"d"]
    assert [letter["pykafka.partition"] for letter in dead_letters(broker)] == [b"0", b"0"]


def test_valid_records_of_rejected_batch_fail_without_dead_letters(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    plan = ColumnPlan(value=0, key=1, fixed_topic="compacted")
    rows = pa.record_batch({"value": [b"a", b"b"], "key": ["k", None]})
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker), plan, iter([rows]), pool)
    assert "InvalidRecordError: " in str(error.value)
    assert "BatchRejectedError: " in str(error.value)
    assert '.option("onRecordError", "deadLetter")' in str(error.value)
    assert values(broker, "compacted") == []


@pytest.mark.parametrize(
    ("partitions", "message"),
    [
        ([2], "has no partition 2: it has 2, numbered from 0"),
        ([-1], "has no partition -1: it has 2"),
        ([0, 9, 1, 7, 9], "has no partition 7 or 9: it has 2"),
        (list(range(20)), "has no partition 2, 3, 4, 5, 6 or 13 others: it has 2"),
    ],
)
def test_error_names_missing_partition_and_existing_ones(
    broker: EmbeddedBroker, pool: ProducerPool, partitions: list[int], message: str
) -> None:
    plan = ColumnPlan(value=0, partition=1, fixed_topic=TOPIC)
    rows = pa.record_batch({"value": [b"a"] * len(partitions), "partition": pa.array(partitions, pa.int32())})
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker, kafka__max__block__ms="1000"), plan, iter([rows]), pool)
    assert f"topic {TOPIC} {message}" in str(error.value)


def test_failed_topic_does_not_fail_rows_of_other_topics(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, topic="dead", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    rows = pa.record_batch({"value": [b"a", b"b"], "topic": [TOPIC, "dead"]})
    with pytest.raises(DeliveryError, match="failed to write 1 record to Kafka"):
        write_rows(options(broker), ColumnPlan(value=0, topic=1), iter([rows]), pool)
    assert values(broker) == [b"a"]


NULL_TOPIC_MESSAGE = pa.record_batch({"value": [b"a", b"b", b"c"], "topic": [TOPIC, None, TOPIC]})


def test_null_topic_fails_task(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker), ColumnPlan(value=0, topic=1), iter([NULL_TOPIC_MESSAGE]), pool)
    assert (
        str(error.value)
        .splitlines()[0]
        .endswith(
            "failed to write 1 record to Kafka. InvalidRecordError: null topic present in the data. Fill the column "
            "'topic' or filter these rows out; the option 'topic' would replace the topic of all rows."
        )
    )
    assert "- no topic: 1 record, for example with no key." in str(error.value)
    assert '.option("onRecordError", "deadLetter")' in str(error.value)
    assert sorted(values(broker)) == [b"a", b"c"]


def test_null_topic_becomes_dead_letter(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **overrides), ColumnPlan(value=0, topic=1), iter([NULL_TOPIC_MESSAGE]), pool)
    assert (report.totals.rows, report.totals.dead_letters) == (2, 1)
    assert values(broker, "dead") == [b"b"]
    assert dead_letters(broker)[0]["pykafka.topic"] is None
    assert (dead_letters(broker)[0]["pykafka.message"] or b"").startswith(b"null topic present in the data.")


@pytest.mark.parametrize("topic", ["", "no/topic", "x" * 250])
def test_invalid_topic_name_becomes_dead_letter(broker: EmbeddedBroker, pool: ProducerPool, topic: str) -> None:
    rows = pa.record_batch({"value": [b"a", b"b"], "topic": [TOPIC, topic]})
    overrides = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **overrides), ColumnPlan(value=0, topic=1), iter([rows]), pool)
    assert (report.totals.rows, report.totals.dead_letters) == (1, 1)
    assert dead_letters(broker)[0]["pykafka.topic"] == topic.encode()

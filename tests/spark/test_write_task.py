"""One task's promises, without a JVM: a real producer, and the embedded broker at the other end."""

from __future__ import annotations

import platform
import threading
from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import DeliveryError
from spark_kafka_sink.producer.calls import Shares
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.producer.results import OffsetRange, written_ranges
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.spark import write_task
from spark_kafka_sink.spark.columns import ColumnPlan
from spark_kafka_sink.spark.options.parse import parse_options
from spark_kafka_sink.spark.options.sink_options import SinkOptions
from spark_kafka_sink.spark.pace import Pace
from spark_kafka_sink.spark.pool import ProducerPool
from spark_kafka_sink.spark.report import TaskReport
from spark_kafka_sink.spark.words import TASKS_AT_ONCE
from spark_kafka_sink.spark.write_task import write_rows
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, read_topic

TOPIC = "orders"
PLAN = ColumnPlan(value=0, key=1, fixed_topic=TOPIC)


@pytest.fixture
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker(topics={TOPIC: 2, "dead": 1}) as broker:
        yield broker


@pytest.fixture
def pool() -> Iterator[ProducerPool]:
    pool = ProducerPool()
    yield pool
    pool.close()


def options(broker: EmbeddedBroker, **more: str) -> SinkOptions:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, "topic": TOPIC}
    return parse_options(given | {name.replace("__", "."): value for name, value in more.items()})


def batch(start: int, rows: int = 100) -> pa.RecordBatch:
    numbers = range(start, start + rows)
    return pa.record_batch({"value": [b"%d" % n for n in numbers], "key": [f"key-{n}" for n in numbers]})


def values(broker: EmbeddedBroker, topic: str = TOPIC) -> list[bytes]:
    found: list[bytes] = read_topic(broker.bootstrap_servers, topic).column("value").to_pylist()
    return found


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate()}


def test_ranges_of_many_answers_are_added_up_before_there_are_too_many(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write_task, "_SHARES_MAX", 5)
    added_up: list[int] = []

    def counted(stored: Sequence[Shares]) -> dict[int, OffsetRange]:
        added_up.append(sum(map(len, stored)))
        return written_ranges(stored)

    monkeypatch.setattr(write_task, "written_ranges", counted)
    report = write_rows(options(broker), PLAN, (batch(100 * number) for number in range(20)), pool)
    assert 0 < max(added_up) <= 5 + 2, "a batch of rows has two partitions, and here one answer for each"
    assert min(added_up[:-1]) > 5, "and not before there are many"
    assert sum(written.rows for written in report.partitions[TOPIC].values()) == report.rows == 2_000
    for written in report.partitions[TOPIC].values():
        assert (written.first_offset, written.last_offset) == (0, written.rows - 1)


def test_a_task_reports_what_was_acknowledged(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    plan = ColumnPlan(value=0, key=1, partition=2, fixed_topic=TOPIC)
    batches = [
        each.append_column("partition", pa.array([n % 2 for n in range(each.num_rows)], pa.int32()))
        for each in (batch(0), batch(100))
    ]
    report = write_rows(options(broker), plan, iter(batches), pool)
    assert report.partitions == {TOPIC: {0: OffsetRange(0, 99, 100), 1: OffsetRange(0, 99, 100)}}
    assert (report.rows, report.retries, report.dead_letters) == (200, 0, 0)
    assert report.bytes == sum(len(f"{n}key-{n}") for n in range(200)), "of keys and values, without Arrow's offsets"
    assert len(pool) == 1


def test_a_task_reports_latencies_bytes_and_its_host(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    first = write_rows(options(broker, kafka__compression__type="zstd"), PLAN, iter([batch(0, 5_000)]), pool)
    report = write_rows(options(broker, kafka__compression__type="zstd"), PLAN, iter([batch(5_000, 100)]), pool)
    assert sum(first.latency_counts.values()) == 5_000
    assert sum(report.latency_counts.values()) == 100, "of its own rows, though the producer is not new"
    assert 0 < first.wire_bytes < first.uncompressed_bytes
    assert report.uncompressed_bytes < first.uncompressed_bytes / 10
    assert first.started_ms <= report.started_ms
    assert report.host == platform.node()


def test_a_task_reports_requests_and_batches(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    write_rows(options(broker), PLAN, iter([batch(0, 5_000)]), pool)
    report = write_rows(options(broker), PLAN, iter([batch(5_000, 100)]), pool)
    assert (report.requests, report.batches) == (1, 2), "of this task, though the producer is not new"
    assert (report.throttle_ms, report.paced_ms) == (0, 0)


def test_a_task_writes_at_its_pace_and_reports_how_long_it_waited(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(write_task, "Pace", lambda share: Pace(share, lambda: sum(slept), slept.append))
    slow = options(broker, maxBytesPerSecond="2000", **{TASKS_AT_ONCE: "2"})
    report = write_rows(slow, PLAN, iter([batch(0, 1_000)]), pool)
    assert report.rows == len(values(broker)) == 1_000
    assert report.bytes / 1e3 - 1e-6 <= sum(slept) == report.paced_ms / 1e3, "a thousand a second for one of two tasks"


def test_a_task_reports_how_long_it_waited_for_memory(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, times=None).delay(50)
    slow = options(broker, kafka__buffer__memory="300000", kafka__batch__size="65536")
    report = write_rows(slow, PLAN, iter([batch(start, 2_000) for start in range(0, 40_000, 2_000)]), pool)
    assert report.rows == 40_000
    assert report.blocked_ms >= 50


def test_the_next_task_writes_with_the_same_producer(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    write_rows(options(broker), PLAN, iter([batch(0)]), pool)
    before = threads()
    write_rows(options(broker), PLAN, iter([batch(100)]), pool)
    assert threads() == before
    assert len(pool) == 1
    assert len(values(broker)) == 200


def test_a_task_without_rows_makes_no_producer(pool: ProducerPool) -> None:
    nowhere = parse_options({"kafka.bootstrap.servers": "no-such-host.invalid:1", "topic": TOPIC})
    report = write_rows(nowhere, PLAN, iter([batch(0, 0), batch(0, 0)]), pool)
    assert (report.rows, len(pool)) == (0, 0)


def test_retries_are_counted(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE).fail(error_codes.NOT_LEADER_OR_FOLLOWER)
    report = write_rows(options(broker), PLAN, iter([batch(0)]), pool)
    assert report.retries > 0
    assert len(values(broker)) == 100


def test_a_task_does_not_compute_all_metrics_to_read_one(
    broker: EmbeddedBroker, pool: ProducerPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(KafkaProducer, "metrics")
    assert write_rows(options(broker), PLAN, iter([batch(0)]), pool).rows == 100


def failed(broker: EmbeddedBroker, pool: ProducerPool, batches: list[pa.RecordBatch], **more: str) -> str:
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker, **more), PLAN, iter(batches), pool)
    assert len(pool) == 0, "a producer whose task failed is dropped"
    return str(error.value)


def test_an_error_names_topic_partition_reason_count_and_a_key(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, topic=TOPIC, times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    words = failed(broker, pool, [batch(0)])
    assert words.startswith("Not written to Kafka: 100 records, by the task of partition 0 (attempt 0, stage 0).")
    assert "topic 'orders', partition 0: " in words
    assert "topic 'orders', partition 1: " in words
    assert "TOPIC_AUTHORIZATION_FAILED" in words
    assert "key 'key-" in words


def test_a_record_that_is_too_large_fails_the_task_and_says_what_to_do(
    broker: EmbeddedBroker, pool: ProducerPool
) -> None:
    big = pa.record_batch({"value": [b"small", b"x" * 5_000, b"small"], "key": ["a", "k" * 500, None]})
    words = failed(broker, pool, [big], kafka__max__request__size="2000")
    assert words.startswith("Not written to Kafka: 1 record,")
    assert "max.request.size" in words
    assert '.option("onRecordError", "deadLetter")' in words
    assert "k" * 60 not in words


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"kafka__max__request__size": "2000"}, "kafka.max.request.size allows (2000). Raise it to at least 5"),
        ({"kafka__buffer__memory": "3000"}, "kafka.buffer.memory allows (3000). Raise it to at least 5"),
        (
            {"kafka__max__request__size": "2000", "kafka__buffer__memory": "3000"},
            "kafka.max.request.size (2000) and kafka.buffer.memory (3000) allow. Raise both to at least 5",
        ),
    ],
)
def test_the_limit_that_a_record_exceeds_is_named_with_the_value_that_it_needs(
    broker: EmbeddedBroker, pool: ProducerPool, more: dict[str, str], words: str
) -> None:
    big = pa.record_batch({"value": [b"small", b"x" * 5_000], "key": ["a", "b"]})
    assert words in failed(broker, pool, [big], **more)


def test_an_unknown_topic_is_named(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.hide_topic(TOPIC)
    broker.control.when(api=ApiKey.METADATA, times=None).fail(error_codes.UNKNOWN_TOPIC_OR_PARTITION)
    assert "'orders'" in failed(broker, pool, [batch(0)], kafka__max__block__ms="500")


def dead_letters(broker: EmbeddedBroker) -> list[dict[str, bytes | None]]:
    table = read_topic(broker.bootstrap_servers, "dead")
    return [{header["key"]: header["value"] for header in row} for row in table.column("headers").to_pylist()]


def test_records_that_are_too_large_go_to_the_dead_letter_topic(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.delete_topic(TOPIC)
    broker.control.create_topic(TOPIC, 1, {"max.message.bytes": "1000"})
    big = pa.record_batch({"value": [b"a", b"x" * 5_000, b"b", b"y" * 6_000], "key": ["1", "2", "3", "4"]})
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **more), PLAN, iter([big]), pool)
    assert (report.rows, report.dead_letters, report.dead_letters_cut) == (2, 2, 0)
    assert report.bytes < 1_000, "what became a dead letter was not written to its topic"
    assert values(broker) == [b"a", b"b"]
    assert sorted(values(broker, "dead")) == [b"x" * 5_000, b"y" * 6_000]
    for letter in dead_letters(broker):
        assert letter["pykafka.topic"] == b"orders"
        assert letter["pykafka.partition"] == b"0"
        assert letter["pykafka.error"] == b"RecordTooLargeError"
        assert letter["pykafka.batch"] == b"None/stage-0"


def test_a_dead_letter_that_is_too_large_itself_is_cut_and_counted(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    big = pa.record_batch({"value": [b"fine", b"x" * 300_000], "key": ["1", "2"]})
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__request__size": "200000"}
    report = write_rows(options(broker, **more), PLAN, iter([big]), pool)
    assert (report.rows, report.dead_letters, report.dead_letters_cut) == (1, 1, 1)
    assert values(broker, "dead") == [b"x" * 65_536]
    assert dead_letters(broker)[0]["pykafka.value.bytes"] == b"300000"


def test_a_dead_letter_that_cannot_be_written_either_fails_the_task(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, topic="dead", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    big = pa.record_batch({"value": [b"x" * 300_000], "key": ["1"]})
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__request__size": "200000"}
    words = failed(broker, pool, [big], **more)
    assert "dead-letter topic did not take it either" in words
    assert "TOPIC_AUTHORIZATION_FAILED" in words


def test_a_partition_that_does_not_exist_makes_a_dead_letter(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    plan = ColumnPlan(value=0, partition=1, fixed_topic=TOPIC)
    rows = pa.record_batch({"value": [b"a", b"b"], "partition": pa.array([0, 77], pa.int32())})
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead", "kafka__max__block__ms": "500"}
    report = write_rows(options(broker, **more), plan, iter([rows]), pool)
    assert (report.rows, report.dead_letters) == (1, 1)
    assert values(broker, "dead") == [b"b"]
    assert dead_letters(broker)[0]["pykafka.partition"] == b"77"


def test_the_innocent_records_of_a_refused_batch_are_written_and_the_guilty_become_dead_letters(
    broker: EmbeddedBroker, pool: ProducerPool
) -> None:
    """A compacted topic takes no record without a key, and says which records of a batch have none (KIP-467)."""
    broker.control.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    plan = ColumnPlan(value=0, key=1, fixed_topic="compacted")
    rows = pa.record_batch({"value": [b"a", b"b", b"c", b"d"], "key": ["k", None, "k", None]})
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **more), plan, iter([rows]), pool)
    assert (report.rows, report.dead_letters) == (2, 2)
    assert values(broker, "compacted") == [b"a", b"c"]
    assert values(broker, "dead") == [b"b", b"d"]
    assert [letter["pykafka.partition"] for letter in dead_letters(broker)] == [b"0", b"0"]


def test_the_innocent_records_of_a_refused_batch_fail_with_it_where_there_are_no_dead_letters(
    broker: EmbeddedBroker, pool: ProducerPool
) -> None:
    broker.control.create_topic("compacted", 1, {"cleanup.policy": "compact"})
    plan = ColumnPlan(value=0, key=1, fixed_topic="compacted")
    rows = pa.record_batch({"value": [b"a", b"b"], "key": ["k", None]})
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker), plan, iter([rows]), pool)
    assert "InvalidRecordError: " in str(error.value)
    assert "BatchRefusedError: " in str(error.value)
    assert '.option("onRecordError", "deadLetter")' in str(error.value)
    assert values(broker, "compacted") == []


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ([2], "has no partition 2: it has 2, numbered from 0"),
        ([-1], "has no partition -1: it has 2"),
        ([0, 9, 1, 7, 9], "has no partition 7 or 9: it has 2"),
        (list(range(20)), "has no partition 2, 3, 4, 5, 6 or 13 others: it has 2"),
    ],
)
def test_a_partition_that_does_not_exist_is_named_with_those_that_do(
    broker: EmbeddedBroker, pool: ProducerPool, asked: list[int], words: str
) -> None:
    plan = ColumnPlan(value=0, partition=1, fixed_topic=TOPIC)
    rows = pa.record_batch({"value": [b"a"] * len(asked), "partition": pa.array(asked, pa.int32())})
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker, kafka__max__block__ms="1000"), plan, iter([rows]), pool)
    assert f"topic {TOPIC} {words}" in str(error.value)


def test_the_rows_of_other_topics_are_not_failed_by_one(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    broker.control.when(api=ApiKey.PRODUCE, topic="dead", times=None).fail(error_codes.TOPIC_AUTHORIZATION_FAILED)
    rows = pa.record_batch({"value": [b"a", b"b"], "topic": [TOPIC, "dead"]})
    with pytest.raises(DeliveryError, match="Not written to Kafka: 1 record,"):
        write_rows(options(broker), ColumnPlan(value=0, topic=1), iter([rows]), pool)
    assert values(broker) == [b"a"]


NULL_TOPIC = pa.record_batch({"value": [b"a", b"b", b"c"], "topic": [TOPIC, None, TOPIC]})


def test_a_null_topic_fails_the_task_like_any_other_fault_of_a_record(
    broker: EmbeddedBroker, pool: ProducerPool
) -> None:
    with pytest.raises(DeliveryError) as error:
        write_rows(options(broker), ColumnPlan(value=0, topic=1), iter([NULL_TOPIC]), pool)
    assert "Not written to Kafka: 1 record," in str(error.value)
    assert "stage 0). InvalidRecordError: null topic present" in str(error.value).splitlines()[0]
    assert "- no topic: 1 record, for example with no key." in str(error.value)
    assert '.option("onRecordError", "deadLetter")' in str(error.value)
    assert sorted(values(broker)) == [b"a", b"c"]


def test_a_null_topic_makes_a_dead_letter(broker: EmbeddedBroker, pool: ProducerPool) -> None:
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **more), ColumnPlan(value=0, topic=1), iter([NULL_TOPIC]), pool)
    assert (report.rows, report.dead_letters) == (2, 1)
    assert values(broker, "dead") == [b"b"]
    assert dead_letters(broker)[0]["pykafka.topic"] is None
    assert (dead_letters(broker)[0]["pykafka.message"] or b"").startswith(b"null topic present in the data.")


@pytest.mark.parametrize("topic", ["", "no/topic", "x" * 250])
def test_a_topic_that_cannot_exist_makes_a_dead_letter(broker: EmbeddedBroker, pool: ProducerPool, topic: str) -> None:
    rows = pa.record_batch({"value": [b"a", b"b"], "topic": [TOPIC, topic]})
    more = {"onRecordError": "deadLetter", "deadLetterTopic": "dead"}
    report = write_rows(options(broker, **more), ColumnPlan(value=0, topic=1), iter([rows]), pool)
    assert (report.rows, report.dead_letters) == (1, 1)
    assert dead_letters(broker)[0]["pykafka.topic"] == topic.encode()


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt, GeneratorExit, SystemExit])
def test_a_task_that_is_killed_leaves_neither_threads_nor_connections(
    broker: EmbeddedBroker, pool: ProducerPool, end: type[BaseException]
) -> None:
    before = threads()

    def interrupted() -> Iterator[pa.RecordBatch]:
        yield batch(0)
        raise end

    def task() -> TaskReport:
        return write_rows(options(broker), PLAN, interrupted(), pool)

    with pytest.raises(end):
        task()
    assert threads() == before
    assert len(pool) == 0


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_what_waits_for_its_answer_is_bounded(broker: EmbeddedBroker, pool: ProducerPool, codec: str) -> None:
    """A slow broker holds the task back, so that memory does not grow with the input: compressed, rows take much less
    of the producer's memory than of the task's."""
    broker.control.when(api=ApiKey.PRODUCE, times=None).delay(20)
    waiting: list[int] = []

    def watched(writing: write_task.Writing, rows: object) -> None:
        send(writing, rows)  # type: ignore[arg-type]
        waiting.append(writing.waiting_bytes)

    send = write_task.Writing.send
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write_task.Writing, "send", watched)
        more = {"kafka__buffer__memory": "300000", "kafka__batch__size": "20000", "kafka__compression__type": codec}
        write_rows(options(broker, **more), PLAN, (batch(n * 1000, 1000) for n in range(60)), pool)
    assert max(waiting) <= 300_000
    assert len(values(broker)) == 60_000

"""Option `distribution` in exactly-once writes, each output mode and foreachBatch, and early errors."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigurationError
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.testing import EmbeddedBroker, KafkaTopic, embedded_broker, run_stream, stream_of
from tests.spark_session import SMALL

pytestmark = pytest.mark.needs("java")

PARTITIONS = 5
KEYS = 7
ROWS = 40
"""Number of rows per micro-batch."""
TASKS_AND_ORDER = {"distribution": "partition", "orderBy": "seq", "distributionTasks": "3"}


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


@pytest.fixture
def topic(broker: EmbeddedBroker, request: pytest.FixtureRequest) -> KafkaTopic:
    return broker.create_topic(
        "".join(character for character in request.node.name if character.isalnum())[-100:], PARTITIONS
    )


@pytest.fixture(scope="module")
def stream(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> DataFrame:
    """Return a stream of two micro-batches, whose rows are in descending order of the column seq."""
    register(spark)

    def batch(number: int) -> DataFrame:
        first = number * ROWS
        numbered = spark.range(first, first + ROWS).orderBy("id", ascending=False)
        return numbered.selectExpr(f"concat('key-', id % {KEYS}) AS key", "CAST(id AS STRING) AS value", "id AS seq")

    return stream_of([batch(0), batch(1)], tmp_path_factory.mktemp("source"))


def options(broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path, **more: str) -> dict[str, str]:
    write_options = {**broker.spark_options, "topic": topic.name, "reportPath": str(tmp_path / "reports.jsonl")}
    return {**write_options, "checkpointLocation": str(tmp_path / "checkpoint"), **TASKS_AND_ORDER, **more}


def numbers_by_key(topic: KafkaTopic, isolation: str = "read_committed") -> dict[bytes, list[int]]:
    """Return the numbers of each key in the order of their offsets."""
    found: dict[bytes, list[int]] = defaultdict(list)
    rows = topic.read(isolation=isolation).to_pylist()
    for row in sorted(rows, key=lambda row: (row["partition"], row["offset"])):
        found[row["key"]].append(int(row["value"]))
    return dict(found)


def all_in_order() -> dict[bytes, list[int]]:
    return {b"key-%d" % key: [*range(key, 2 * ROWS, KEYS)] for key in range(KEYS)}


def forget_commit(tmp_path: Path, batch: int) -> None:
    """Delete the last commit, as if the driver had died before Spark recorded the end of the batch."""
    for name in (f"{batch}", f".{batch}.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)


def test_exactly_once_stream_is_ordered_and_last_batch_is_not_rewritten(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    write_options = options(broker, topic, tmp_path, deliveryGuarantee="exactly-once")
    query = run_stream(stream.writeStream.format("pykafka").options(**write_options))
    reports = read_reports(write_options["reportPath"])
    assert [(report.batch, report.tasks) for report in reports] == [(f"{query.id}/0", 3), (f"{query.id}/1", 3)]
    forget_commit(tmp_path, 1)
    run_stream(stream.writeStream.format("pykafka").options(**write_options))
    assert numbers_by_key(topic) == all_in_order()
    assert numbers_by_key(topic, "read_uncommitted") == all_in_order(), "nothing hidden either"


@pytest.mark.parametrize("mode", ["update", "complete"])
def test_output_modes_write_rows_in_order(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path, mode: str
) -> None:
    """Each micro-batch has rows of every key, so that each batch changes all counts."""
    counts = stream.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value", "count AS seq")
    writer = counts.writeStream.format("pykafka").options(**options(broker, topic, tmp_path))
    run_stream(writer.outputMode(mode))
    after_one = {key: len([*range(key, ROWS, KEYS)]) for key in range(KEYS)}
    after_two = {key: len([*range(key, 2 * ROWS, KEYS)]) for key in range(KEYS)}
    expected = {b"key-%d" % key: [after_one[key], after_two[key]] for key in range(KEYS)}
    assert numbers_by_key(topic) == expected


def test_users_foreach_batch_distributes_each_write(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    once = {"deliveryGuarantee": "exactly-once", "transactionalIdPrefix": topic.name}
    write_options = options(broker, topic, tmp_path, **once)
    checkpoint = write_options.pop("checkpointLocation")

    def write(frame: DataFrame, batch_id: int) -> None:
        for _ in range(2):  # Spark may run the function again
            frame.write.format("pykafka").options(**write_options, idempotencyKey=f"{topic.name}-{batch_id}").save()

    run_stream(stream.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint))
    assert numbers_by_key(topic) == all_in_order()
    assert {report.tasks for report in read_reports(write_options["reportPath"])} == {3}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"orderBy": "sqe"}, "Option 'orderBy' names the column 'sqe', which does not exist. .*Did you mean 'seq'"),
        ({"orderBy": "seq SIDEWAYS"}, "orderBy"),
        ({"distribution": "partitions"}, "distribution.*'partitions'"),
        ({"distribution": "none"}, "orderBy.*distribution"),
    ],
)
def test_start_and_save_reject_impossible_distribution_before_any_task(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path, change: dict[str, str], words: str
) -> None:
    write_options = options(broker, topic, tmp_path) | change
    with pytest.raises(ConfigurationError, match=words):
        stream.writeStream.format("pykafka").options(**write_options).start()
    assert stream.sparkSession.streams.active == []
    assert not (tmp_path / "checkpoint").exists()
    fails = "CAST(raise_error('a task ran') AS STRING)"
    rows = stream.sparkSession.range(4).selectExpr(f"{fails} AS key", "'v' AS value", "id AS seq")
    with pytest.raises(ConfigurationError, match=words):
        rows.write.format("pykafka").options(**write_options).save()


def test_start_rejects_topics_of_a_column_and_continuous_processing(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    write_options = options(broker, topic, tmp_path)
    writer = stream.writeStream.format("pykafka").options(**write_options)
    with pytest.raises(ConfigurationError, match=r"trigger\(continuous=\.\.\.\) is not supported"):
        writer.trigger(continuous="1 second").start()
    del write_options["topic"]
    several = stream.selectExpr("*", f"'{topic.name}' AS topic")
    with pytest.raises(ConfigurationError, match="Write one topic at a time, or set distribution to 'key'"):
        several.writeStream.format("pykafka").options(**write_options).start()
    assert stream.sparkSession.streams.active == []


def test_distributes_topics_of_a_column_by_key(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    write_options = options(broker, topic, tmp_path, distribution="key")
    del write_options["topic"]
    several = stream.selectExpr("*", f"'{topic.name}' AS topic")
    run_stream(several.writeStream.format("pykafka").options(**write_options))
    assert numbers_by_key(topic) == all_in_order()


def test_limits_tasks_to_number_of_partitions(
    spark: SparkSession, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    """Additional tasks would have no rows."""
    write_options = options(broker, topic, tmp_path, distributionTasks="64", orderBy="id")
    del write_options["checkpointLocation"]
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS key", "CAST(id AS STRING) AS value", "id")
    rows.write.format("pykafka").options(**write_options).save()
    (report,) = read_reports(write_options["reportPath"])
    assert report.tasks == PARTITIONS


def test_stateful_stream_by_key_uses_max_concurrent_tasks(
    stream: DataFrame, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    """Spark does not coalesce this shuffle, so there would be 20 tasks. The session has two cores."""
    write_options = options(broker, topic, tmp_path, distribution="key")
    del write_options["distributionTasks"]
    session = stream.sparkSession
    session.conf.set("spark.sql.shuffle.partitions", "20")
    try:
        counts = stream.groupBy("key").count().selectExpr("key", "CAST(count AS STRING) AS value", "count AS seq")
        run_stream(counts.writeStream.format("pykafka").options(**write_options).outputMode("update"))
    finally:
        session.conf.set("spark.sql.shuffle.partitions", SMALL["spark.sql.shuffle.partitions"])
    assert [report.tasks for report in read_reports(write_options["reportPath"])] == [2, 2]


@pytest.mark.parametrize("named", [True, False])
def test_value_contains_partition_column_and_not_target_partition(
    spark: SparkSession, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path, named: bool
) -> None:
    write_options = options(
        broker, topic, tmp_path, valueFormat="json", **({"valueColumns": "n,partition"} if named else {})
    )
    del write_options["checkpointLocation"], write_options["orderBy"]
    key = "concat('key-', id % 7) AS key"
    rows = spark.range(40).selectExpr(key, "id AS n", "CAST(IF(id < 20, id % 5, NULL) AS INT) AS partition")
    rows.write.format("pykafka").options(**write_options).save()
    stored = {json.loads(row["value"])["n"]: row for row in topic.read().to_pylist()}
    assert sorted(stored) == [*range(40)]
    for n, row in stored.items():
        at = {"partition": n % 5} if named and n < 20 else {}
        assert json.loads(row["value"]) == {"n": n, **at}
        assert n >= 20 or row["partition"] == n % 5


def test_micro_batch_keeps_partition_column_in_values(
    spark: SparkSession, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    write_options = options(broker, topic, tmp_path, valueFormat="json", valueColumns="seq,partition")
    rows = spark.range(10).selectExpr("CAST(id AS STRING) AS key", "id AS seq", "CAST(NULL AS INT) AS partition")
    run_stream(stream_of([rows], tmp_path / "rows").writeStream.format("pykafka").options(**write_options))
    assert sorted(json.loads(row["value"])["seq"] for row in topic.read().to_pylist()) == [*range(10)]
    assert {row["value"] for row in topic.read().to_pylist()} == {b'{"seq":%d}' % n for n in range(10)}


def test_rows_with_all_null_key_columns_have_a_key_and_are_ordered(
    spark: SparkSession, broker: EmbeddedBroker, topic: KafkaTopic, tmp_path: Path
) -> None:
    """The key of these rows is {}."""
    write_options = options(broker, topic, tmp_path, distribution="key", keyFormat="json", keyColumns="who")
    del write_options["checkpointLocation"]
    rows = spark.range(0, 200, 1, 4).selectExpr(
        "CAST(NULL AS STRING) AS who", "CAST(id AS STRING) AS value", "id AS seq"
    )
    rows.orderBy(F.rand(1)).write.format("pykafka").options(**write_options).save()
    assert numbers_by_key(topic) == {b"{}": [*range(200)]}
    (report,) = read_reports(write_options["reportPath"])
    assert [task.rows for task in report.task_list if task.rows] == [200]

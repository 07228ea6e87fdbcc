"""Distribution: one task writes each partition or key, and partitions are chosen as by the Java client."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from kafka.partitioner.default import murmur2 as reference
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users call it
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    UserDefinedType,
)

from spark_kafka_sink import register
from spark_kafka_sink.errors import ConfigurationError, PreflightError
from spark_kafka_sink.reports.store import read_reports
from spark_kafka_sink.reports.write_report import WriteReport
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.spark import distribution
from spark_kafka_sink.spark.checks import check_options_and_schema
from spark_kafka_sink.spark.datasource import KafkaDataSource
from spark_kafka_sink.spark.distribution import Distribution, SortPosition, build_distribution, distribute_rows
from spark_kafka_sink.testing import EmbeddedBroker, embedded_broker, run_stream, stream_of
from tests.spark_session import SMALL

PARTITIONS = 10
ROWS = 2_000
TASKS = 8
SCHEMA = StructType(
    [
        StructField("key", StringType()),
        StructField("value", StringType()),
        StructField("headers", MapType(StringType(), BinaryType())),
        StructField("seq", LongType()),
        StructField("partition", IntegerType()),
    ]
)
GIVEN = {"kafka.bootstrap.servers": "a:1", "topic": "t"}


class PointOfMap(UserDefinedType):
    """A user-defined type, which Spark compares as its storage type."""

    @classmethod
    def sqlType(cls) -> DataType:  # noqa: N802
        return MapType(StringType(), LongType())


def unsortable_types() -> list[DataType]:
    """Return types without an order. pyspark 3.5 has no class for calendar intervals."""
    if not hasattr(types, "CalendarIntervalType"):
        return [PointOfMap()]
    interval = types.CalendarIntervalType()
    return [interval, ArrayType(interval), PointOfMap()]


def problems(options: dict[str, str], schema: StructType = SCHEMA) -> str:
    with pytest.raises(ConfigurationError) as error_info:
        check_options_and_schema(GIVEN | options, schema)
    return "\n".join(error_info.value.problems)


def test_rejects_missing_sort_column_and_lists_columns() -> None:
    assert "Option 'orderBy' names the column 'sec', which does not exist. The columns are" in problems(
        {"distribution": "key", "orderBy": "sec"}
    )


def test_rejects_sort_columns_that_spark_cannot_sort() -> None:
    messages = problems({"distribution": "key", "orderBy": "seq, headers DESC"})
    assert (
        messages
        == "Option 'orderBy' names the column 'headers', but Spark cannot sort by its type, map<string,binary>."
    )


@pytest.mark.parametrize("kind", unsortable_types())
def test_rejects_nested_types_without_order(kind: DataType) -> None:
    schema = StructType([*SCHEMA.fields, StructField("at", kind)])
    messages = problems({"distribution": "key", "orderBy": "at"}, schema)
    assert messages.startswith("Option 'orderBy' names the column 'at', but Spark cannot sort by its type, ")


def test_rejects_duplicate_sort_column() -> None:
    schema = StructType([*SCHEMA.fields, StructField("seq", StringType())])
    messages = problems({"distribution": "key", "orderBy": "seq"}, schema)
    assert messages == (
        "Option 'orderBy' names the column 'seq', which occurs more than once. Rename or drop all but one of them."
    )


@pytest.mark.parametrize(
    ("formats", "content"),
    [
        ({}, (0, 1, 4)),
        ({"keyFormat": "json", "keyColumns": "seq"}, ()),
        ({"keyFormat": "json", "keyColumns": "who.*"}, (1, 4, 5)),
    ],
)
def test_hashes_content_only_if_rows_may_lack_a_key(formats: dict[str, str], content: tuple[int, ...]) -> None:
    """If all key columns are null, the key is {}. If the key's struct is null, there is no key."""
    who = StructField("who", StructType([StructField("id", LongType())]))
    schema = StructType([*SCHEMA.fields, who])
    options, plan = check_options_and_schema(GIVEN | formats | {"distribution": "key"}, schema)
    row_distribution = build_distribution(options, plan, schema)
    assert row_distribution is not None
    assert row_distribution.content_positions == content


def test_rejects_distribution_by_partition_for_topics_of_a_column() -> None:
    schema = StructType([*SCHEMA.fields, StructField("topic", StringType())])
    with pytest.raises(ConfigurationError, match="Write one topic at a time, or set distribution to 'key'"):
        check_options_and_schema({"kafka.bootstrap.servers": "a:1", "distribution": "partition"}, schema)
    check_options_and_schema({"kafka.bootstrap.servers": "a:1", "distribution": "key"}, schema)


def test_rejects_distribution_by_partition_with_key_format() -> None:
    formats = {"keyFormat": "json", "keyColumns": "seq"}
    assert "create a column 'key'" in problems({"distribution": "partition"} | formats)
    options, plan = check_options_and_schema(GIVEN | formats | {"distribution": "key"}, SCHEMA)
    row_distribution = build_distribution(options, plan, SCHEMA)
    assert row_distribution is not None
    assert row_distribution.key_positions == (3,)


def test_rejects_distribution_by_missing_key() -> None:
    schema = StructType([StructField("value", StringType())])
    assert "there is neither a column 'key' nor the option keyFormat" in problems({"distribution": "key"}, schema)


def test_connect_client_gets_distribution_of_driver() -> None:
    options, plan = check_options_and_schema(GIVEN | {"distribution": "key", "orderBy": "seq DESC"}, SCHEMA)
    row_distribution = build_distribution(options, plan, SCHEMA)
    assert row_distribution is not None
    assert row_distribution.content_positions == (0, 1, 4), "Spark hashes no map"
    assert Distribution.from_json(row_distribution.to_json()) == row_distribution


def test_connect_client_and_driver_can_be_upgraded_one_after_the_other() -> None:
    """Older drivers send the partition count 0 for BY_KEY. Older clients reject JSON with other keys than these."""
    old_json = (
        '{"by": "key", "partition": null, "key": [1], "content": [0, 1], "order": [[4, true]], "task_count": null, '
        '"partition_count": 0}'
    )
    row_distribution = Distribution.from_json(old_json)
    assert row_distribution == Distribution("key", None, (1,), (0, 1), (SortPosition(4, True),), None, 0)
    assert row_distribution.to_json() == old_json


def test_rejects_distribution_without_register() -> None:
    source = KafkaDataSource(GIVEN | {"distribution": "key", "checkConnection": "false"})
    with pytest.raises(ConfigurationError, match=r"Option 'distribution' requires .*register"):
        source.writer(SCHEMA, overwrite=False)


@pytest.fixture(scope="module")
def broker() -> Iterator[EmbeddedBroker]:
    with embedded_broker() as broker:
        yield broker


def find_partition_count(topic: str, **options: str) -> int:
    sink_options = {"topic": topic, "checkConnection": "false", "distribution": "partition", **options}
    options_and_plan = check_options_and_schema(sink_options, SCHEMA)
    row_distribution = build_distribution(*options_and_plan, SCHEMA)
    assert row_distribution is not None
    assert row_distribution.partition_count is not None
    return row_distribution.partition_count


def test_micro_batches_share_one_client_and_see_new_partitions(broker: EmbeddedBroker) -> None:
    broker.create_topic("asked-each-time", 3)
    distribution._idle_clients.close()
    with patch.object(distribution, "BlockingClient", wraps=BlockingClient) as client_class:
        assert find_partition_count("asked-each-time", **broker.spark_options) == 3
        broker.control.add_partitions("asked-each-time", 5)
        assert find_partition_count("asked-each-time", **broker.spark_options) == 5
    assert client_class.call_count == 1


def test_partition_lookup_error_names_option_and_remedy() -> None:
    unreachable = {"kafka.bootstrap.servers": "127.0.0.1:1", "kafka.max.block.ms": "50"}
    with pytest.raises(
        PreflightError,
        match=(
            r"(?s)'distribution' is 'partition'.*topic 'there'.*refused\. Check the host and port.*\n"
            "If only.*set distribution to 'key'"
        ),
    ):
        find_partition_count("there", **unreachable)


@pytest.fixture(scope="module")
def rows(spark: SparkSession) -> DataFrame:
    register(spark)
    key = "CASE WHEN id % 10 = 0 THEN NULL ELSE concat('key-', id % 97) END"
    named = "CAST(CASE WHEN id % 10 = 1 THEN 3 END AS INT)"
    return spark.range(0, ROWS, 1, TASKS).selectExpr(
        f"{key} AS key", "CAST(id AS STRING) AS value", f"{named} AS partition", "id AS seq"
    )


def build_frame_distribution(frame: DataFrame, by: str) -> Distribution:
    names = frame.columns
    own = names.index("partition") if by == "partition" else None
    content = (names.index("key"), names.index("value"))
    order = (SortPosition(names.index("seq"), is_descending=False),)
    return Distribution(by, own, (names.index("key"),), content, order, task_count=4, partition_count=PARTITIONS)


class Written:
    """A new topic, with checks of the rows and the report that a write leaves."""

    def __init__(self, broker: EmbeddedBroker, topic: str, folder: Path) -> None:
        self.topic = broker.create_topic(topic, PARTITIONS)
        self.report_path = str(folder / f"{topic}.jsonl")
        self.options = {**broker.spark_options, "topic": topic, "reportPath": self.report_path}

    def rows(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.topic.read().to_pylist()
        return sorted(found, key=lambda row: (row["partition"], row["offset"]))

    def report(self) -> WriteReport:
        return read_reports(self.report_path)[-1]

    def check_placement(self) -> None:
        rows = self.rows()
        assert sorted(int(row["value"]) for row in rows) == list(range(ROWS)), "each row once"
        for row in rows:
            if int(row["value"]) % 10 == 1:
                assert row["partition"] == 3
            elif row["key"] is not None:
                assert row["partition"] == (reference(row["key"]) & 0x7FFF_FFFF) % PARTITIONS

    def check_spread(self) -> None:
        assert {row["partition"] for row in self.rows() if row["key"] is None} == {*range(PARTITIONS)}

    def check_order(self, *, descends: bool = False) -> None:
        of: dict[tuple[int, bytes], list[int]] = defaultdict(list)
        for row in self.rows():
            if row["key"] is not None and int(row["value"]) % 10 != 1:
                of[row["partition"], row["key"]].append(int(row["value"]))
        assert len(of) == 97
        assert all(numbers == sorted(numbers, reverse=descends) for numbers in of.values())


@pytest.mark.needs("java")
@pytest.mark.parametrize("guarantee", ["at-least-once", "exactly-once"])
def test_each_partition_has_one_writer_and_rows_are_partitioned_as_in_java(
    rows: DataFrame, broker: EmbeddedBroker, tmp_path: Path, guarantee: str
) -> None:
    written = Written(broker, f"by-partition-{guarantee}", tmp_path)
    distribution_options = {"distribution": "partition", "orderBy": "seq DESC", "distributionTasks": "4"}
    rows.write.format("pykafka").options(**written.options, **distribution_options, deliveryGuarantee=guarantee).save()
    written.check_placement()
    written.check_order(descends=True)
    written.check_spread()
    assert written.report().tasks == 4
    for partition in range(PARTITIONS):
        of_partition = [int(row["value"]) for row in written.rows() if row["partition"] == partition]
        assert of_partition == sorted(of_partition, reverse=True), "one task has written all of them"


@pytest.mark.needs("java")
def test_one_task_writes_all_rows_of_a_key_in_order(rows: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    written = Written(broker, "by-key", tmp_path)
    distribution_options = {"distribution": "key", "orderBy": "seq", "distributionTasks": "5"}
    rows.write.format("pykafka").options(**written.options, **distribution_options).save()
    written.check_placement()
    written.check_order()
    assert written.report().tasks == 5
    assert min(task.rows for task in written.report().task_list) > ROWS / 50, "rows without a key are spread"


@pytest.mark.needs("java")
def test_distribution_by_key_runs_no_python(rows: DataFrame) -> None:
    def plan(by: str) -> str:
        frame: Any = distribute_rows(rows, build_frame_distribution(rows, by), [0, 1])
        return str(frame._jdf.queryExecution().executedPlan().toString())

    assert "Python" not in plan("key")
    assert "Python" in plan("partition")


@pytest.mark.needs("java")
def test_uses_sparks_default_when_shuffle_partitions_is_not_a_number(
    rows: DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Databricks accepts `auto`, which Spark itself rejects."""
    monkeypatch.setattr(distribution, "_SHUFFLE_PARTITIONS_CONF", "spark.shuffle.partitions.of.databricks")
    rows.sparkSession.conf.set("spark.shuffle.partitions.of.databricks", "auto")
    row_distribution = dataclasses.replace(
        build_frame_distribution(rows, "partition"), task_count=None, partition_count=300
    )
    assert distribute_rows(rows, row_distribution, [0, 1]).rdd.getNumPartitions() == 200


@pytest.mark.needs("java")
def test_uses_sparks_default_when_shuffle_partitions_is_unset(rows: DataFrame) -> None:
    """If the setting was never set, `conf.get` fails for a default that is not a number."""
    session = rows.sparkSession
    session.conf.unset(distribution._SHUFFLE_PARTITIONS_CONF)
    try:
        row_distribution = dataclasses.replace(
            build_frame_distribution(rows, "partition"), task_count=None, partition_count=300
        )
        assert distribute_rows(rows, row_distribution, [0, 1]).rdd.getNumPartitions() == 200
        with_state = dataclasses.replace(build_frame_distribution(rows, "key"), task_count=None)
        session.conf.set("spark.sql.adaptive.enabled", "false")
        assert distribution.limit_micro_batch_tasks(with_state, session).task_count == 2, "as many as run at once"
    finally:
        session.conf.unset("spark.sql.adaptive.enabled")
        session.conf.set(distribution._SHUFFLE_PARTITIONS_CONF, SMALL[distribution._SHUFFLE_PARTITIONS_CONF])


@pytest.mark.needs("java")
@pytest.mark.parametrize("by", ["key", "partition"])
def test_rerun_task_has_same_rows_in_same_order(rows: DataFrame, by: str) -> None:
    """The order of the input rows, and the tasks that they come from, make no difference."""

    def of_tasks(sink_options: DataFrame) -> list[list[str]]:
        moved: DataFrame = distribute_rows(sink_options, build_frame_distribution(sink_options, by), [0, 1])
        return [[row.value for row in task] for task in moved.rdd.glom().collect()]

    first, again = of_tasks(rows), of_tasks(rows.orderBy(F.rand(1)).repartition(3))
    assert first == again
    assert sum(map(len, first)) == ROWS
    assert sum(1 for task in first if task) > 1


@pytest.mark.needs("java")
def test_stream_distributes_each_micro_batch(rows: DataFrame, broker: EmbeddedBroker, tmp_path: Path) -> None:
    written = Written(broker, "stream", tmp_path)
    stream = stream_of([rows.repartition(TASKS)], tmp_path / "source").writeStream.format("pykafka")
    distribution_options = {
        "distribution": "partition",
        "orderBy": "seq",
        "checkpointLocation": str(tmp_path / "checkpoint"),
    }
    run_stream(stream.options(**written.options, **distribution_options))
    written.check_placement()
    written.check_order()


@pytest.mark.needs("java")
@pytest.mark.data_source
def test_rejects_distribution_for_table_before_any_task(
    rows: DataFrame, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    written = Written(broker, "table", tmp_path)
    with pytest.raises(ConfigurationError, match="Option 'distribution' requires"):
        rows.write.format("pykafka").options(**written.options, distribution="key").saveAsTable("never")

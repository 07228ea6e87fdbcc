"""The plan of a record's columns: which topic each row of a batch goes to, and with which fields."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa

from spark_kafka_sink.producer.column_plan import ColumnPlan
from spark_kafka_sink.records.topic_rows import TopicRows


def split_by_topic(batch: pa.RecordBatch, plan: ColumnPlan) -> dict[str | None, TopicRows]:
    return {rows.topic: rows for rows in plan.split(batch).topic_rows}


def test_rows_are_grouped_by_topic_and_keep_their_order() -> None:
    batch = pa.record_batch(
        {
            "topic": ["a", "b", "a", "c", "b", "a"],
            "value": [b"0", b"1", b"2", b"3", b"4", None],
            "key": ["k0", None, "k2", "k3", "k4", "k5"],
            "partition": pa.array([0, 1, None, 3, 4, 5], pa.int32()),
        }
    )
    split = split_by_topic(batch, ColumnPlan(topic=0, value=1, key=2, partition=3))
    assert list(split) == ["a", "b", "c"]
    assert split["a"].columns.value.to_pylist() == [b"0", b"2", None]
    assert split["a"].columns.key is not None
    assert split["a"].columns.key.to_pylist() == ["k0", "k2", "k5"]
    assert isinstance(split["a"].partition, pa.Array)
    assert split["a"].partition.to_pylist() == [0, None, 5]
    assert split["b"].columns.value.to_pylist() == [b"1", b"4"]
    assert isinstance(split["c"].partition, pa.Array)
    assert split["c"].partition.to_pylist() == [3]


def test_fixed_partition_applies_to_all_topics() -> None:
    batch = pa.record_batch({"topic": ["a", "b", "a"], "value": ["0", "1", "2"]})
    split = split_by_topic(batch, ColumnPlan(topic=0, value=1, fixed_partition=7))
    assert {topic: rows.partition for topic, rows in split.items()} == {"a": 7, "b": 7}


def test_rows_of_one_topic_are_not_copied() -> None:
    value = pa.array([b"x" * 10] * 100)
    batch = pa.record_batch({"value": value, "topic": ["t"] * 100})
    for plan in (ColumnPlan(value=0, topic=1), ColumnPlan(value=0, fixed_topic="t")):
        (rows,) = plan.split(batch).topic_rows
        assert rows.topic == "t"
        assert rows.columns.value.buffers()[2].address == value.buffers()[2].address


def test_splits_sliced_batch_by_topic() -> None:
    batch = pa.record_batch({"topic": ["x", "a", "b", "a", "y"], "value": ["0", "1", "2", "3", "4"]}).slice(1, 3)
    split = split_by_topic(batch, ColumnPlan(topic=0, value=1))
    assert {topic: rows.columns.value.to_pylist() for topic, rows in split.items()} == {"a": ["1", "3"], "b": ["2"]}


def test_rows_without_a_topic_are_a_group_of_their_own() -> None:
    batch = pa.record_batch({"topic": ["a", None, "a", None], "value": ["0", "1", "2", "3"]})
    split = split_by_topic(batch, ColumnPlan(topic=0, value=1))
    found = {topic: rows.columns.value.to_pylist() for topic, rows in split.items()}
    assert found == {"a": ["0", "2"], None: ["1", "3"]}


def test_topics_that_are_not_utf8_are_groups_with_invalid_names() -> None:
    for text_type, bytes_type in ((pa.string(), pa.binary()), (pa.large_string(), pa.large_binary())):
        topic = pa.array([b"a", b"a\xff", b"b\xfe", b"a\xff"], bytes_type).view(text_type)
        batch = pa.record_batch({"topic": topic, "value": ["0", "1", "2", "3"]})
        split = split_by_topic(batch, ColumnPlan(topic=0, value=1))
        found = {topic: rows.columns.value.to_pylist() for topic, rows in split.items()}
        assert found == {"a": ["0"], "a\\xff": ["1", "3"], "b\\xfe": ["2"]}


def test_empty_batch_has_no_topic_rows() -> None:
    batch = pa.record_batch({"topic": pa.array([], pa.string()), "value": pa.array([], pa.string())})
    for plan in (ColumnPlan(topic=0, value=1), ColumnPlan(value=1, fixed_topic="t")):
        assert list(plan.split(batch).topic_rows) == []


def test_timestamps_become_milliseconds_and_nulls_stay() -> None:
    instant = datetime(2026, 2, 3, 4, 5, 6, 789_123, tzinfo=timezone.utc)
    milliseconds = int(instant.timestamp()) * 1000 + 789
    for column in (
        pa.array([instant, None], pa.timestamp("us", tz="Europe/Vienna")),
        pa.array([milliseconds, None], pa.int64()),
    ):
        batch = pa.record_batch({"value": ["0", "1"], "timestamp": column})
        (rows,) = ColumnPlan(value=0, timestamp=1, fixed_topic="t").split(batch).topic_rows
        assert rows.columns.timestamp is not None
        assert rows.columns.timestamp.to_pylist() == [milliseconds, None]

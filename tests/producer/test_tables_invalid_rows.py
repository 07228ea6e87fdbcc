"""Tests of send_table() with values that cannot be written and dictionaries that are large when decoded."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from spark_kafka_sink import KafkaProducer, KafkaSinkError
from spark_kafka_sink.errors import InvalidRecordError, SchemaError, TransactionAbortableError
from spark_kafka_sink.formats.json_text import JsonFormat
from spark_kafka_sink.producer import tables
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.testing import EmbeddedBroker, read_topic
from tests.producer.table_cases import broker as broker
from tests.producer.table_cases import producer as producer
from tests.producer.table_cases import topic as topic

FAR_FUTURE_SECONDS = 1 << 60


@pytest.mark.parametrize("is_dictionary", [False, True])
@pytest.mark.parametrize(
    ("unit", "time", "reason"),
    [("s", FAR_FUTURE_SECONDS, "the timestamp is after the year"), ("ns", -5, "the timestamp is before 1970")],
)
def test_fails_only_row_with_timestamp_out_of_range(
    producer: KafkaProducer, topic: str, unit: str, time: int, reason: str, is_dictionary: bool
) -> None:
    times = pa.array([1, time, 2], pa.timestamp(unit))
    table = pa.table({"value": ["a", "b", "c"], "timestamp": times.dictionary_encode() if is_dictionary else times})
    result = producer.send_table(topic, table)
    assert [failure.row_indices.tolist() for failure in result.failures] == [[1]]
    assert reason in str(result.failures[0].error)
    assert result.rows_written == 2


def test_fails_only_row_with_uint64_timestamp_out_of_range(producer: KafkaProducer, topic: str) -> None:
    table = pa.table({"value": ["a", "b", "c"], "timestamp": pa.array([1, 1 << 63, 2], pa.uint64())})
    result = producer.send_table(topic, table)
    assert [failure.row_indices.tolist() for failure in result.failures] == [[1]]
    assert "column timestamp" in str(result.failures[0].error)
    assert result.rows_written == 2


@pytest.mark.parametrize(
    "columns",
    [
        {"topic": ["t", None], "value": ["a", "b"]},
        {"topic": ["t", "t"], "value": ["a", "b"], "timestamp": pa.array([1, FAR_FUTURE_SECONDS], pa.timestamp("s"))},
    ],
)
def test_row_that_cannot_be_written_prevents_commit(
    broker: EmbeddedBroker, topic: str, columns: dict[str, Any]
) -> None:
    table = pa.table(columns | {"topic": [name and topic for name in columns["topic"]]})
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        with pytest.raises(TransactionAbortableError) as caught, producer.transaction():
            result = producer.send_table(None, table)
        (error,) = (failure.error for failure in result.failures if failure.row_indices.tolist() == [1])
        assert caught.value.__cause__ is error
        assert read_topic(broker.bootstrap_servers, topic).num_rows == 0
        with producer.transaction():
            producer.send_table(None, table.slice(0, 1)).raise_for_failures()
    assert read_topic(broker.bootstrap_servers, topic).num_rows == 1


@pytest.mark.parametrize(
    ("table", "arguments"),
    [
        (5, {}),
        (pa.table({"value": pa.array([[1]])}), {}),
        (pa.table({"value": ["a"]}), {"key": "missing"}),
        (pa.table({"value": ["a"]}), {"max_failed_rows": -1}),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
def test_rejected_table_prevents_commit(
    broker: EmbeddedBroker, topic: str, table: Any, arguments: dict[str, Any], is_async: bool
) -> None:
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"the other part of the transaction")
        with pytest.raises(KafkaSinkError) as rejected:
            asyncio.run(producer.send_table_async(topic, table, **arguments)) if is_async else producer.send_table(
                topic, table, **arguments
            )
        with pytest.raises(TransactionAbortableError) as caught:
            producer.commit_transaction()
        assert caught.value.__cause__ is rejected.value
        producer.abort_transaction()
    assert read_topic(broker.bootstrap_servers, topic).num_rows == 0


@pytest.mark.parametrize("index", [2, -1])
@pytest.mark.parametrize("column", ["value", "key", "timestamp", "topic", "word"])
def test_fails_only_row_with_index_outside_dictionary(
    producer: KafkaProducer, topic: str, column: str, index: int
) -> None:
    texts = {"topic": [topic, topic]}.get(column, ["a", "b"])
    words = pa.array([1, 2], pa.timestamp("us")) if column == "timestamp" else pa.array(texts)
    indices = pa.array([0, index, 1], pa.int8())
    columns = {"value": ["x", "y", "z"], column: pa.DictionaryArray.from_arrays(indices, words, safe=False)}
    result = producer.send_table(
        None if column == "topic" else topic, pa.table(columns), value_format="json" if column == "word" else None
    )
    assert [failure.row_indices.tolist() for failure in result.failures] == [[1]]
    assert f"column {column} of type dictionary" in str(result.failures[0].error)
    assert result.rows_written == 2


def test_fails_only_rows_that_format_cannot_encode(broker: EmbeddedBroker, producer: KafkaProducer, topic: str) -> None:
    times = [0] * 100
    times[37] = times[80] = FAR_FUTURE_SECONDS
    table = pa.table({"id": range(100), "t": pa.array(times, pa.timestamp("s"))})
    result = producer.send_table(topic, table, value_format="json")
    assert [failure.row_indices.tolist() for failure in result.failures] == [[37], [80]]
    assert result.failures[0].topic == topic
    assert "column t of type timestamp[s]" in str(result.failures[0].error)
    assert (result.rows_written, result.rows_failed, result.is_complete) == (98, 2, True)
    stored = read_topic(broker.bootstrap_servers, topic)["value"].to_pylist()
    ids = [row for row in range(100) if row not in (37, 80)]
    assert stored == [b'{"id":%d,"t":"1970-01-01T00:00:00.000"}' % row for row in ids]


def test_stops_reading_when_unencodable_rows_exceed_max_failed_rows(producer: KafkaProducer, topic: str) -> None:
    table = pa.table({"t": pa.array([FAR_FUTURE_SECONDS] * 1_000, pa.timestamp("s"))})
    result = producer.send_table(topic, table, value_format="json", max_failed_rows=2)
    assert (result.rows_failed, result.is_complete) == (3, False)


def test_shows_arrow_error_for_unreadable_table(producer: KafkaProducer, topic: str) -> None:
    for values, reason in (
        (["a", 1], r"Expected bytes, got a 'int' object.* column value"),
        ([1, "a"], r"Could not convert 'a' with type str: tried to convert to int64.* column value"),
        ([{"n": 1}, {"n": "a"}], r"Could not convert 'a' with type str.* column value"),
        ([1 << 80], r"Python int too large"),
    ):
        with pytest.raises(InvalidRecordError, match=rf"cannot read pandas.DataFrame as a table .*: {reason}"):
            producer.send_table(topic, pd.DataFrame({"value": values}))


def test_names_unknown_time_zone_of_column(producer: KafkaProducer, topic: str) -> None:
    table = pa.table({"t": pa.array([1], pa.timestamp("us", "Mars/Olympus"))})
    with pytest.raises(SchemaError, match=r"'Mars/Olympus' of a timestamp column is unknown.* of the column's type"):
        producer.send_table(topic, table, value_format="json")


def test_fails_only_row_too_large_to_encode(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str
) -> None:
    encode_rows = JsonFormat.encode_rows

    def reject_large(self: JsonFormat, names: Any, columns: Any, rows: int, prefix: bytes = b"") -> pa.Array:
        if "large" in columns[0].to_pylist():
            raise pa.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return encode_rows(self, names, columns, rows, prefix)

    monkeypatch.setattr(JsonFormat, "encode_rows", reject_large)
    result = producer.send_table(topic, pa.table({"text": ["a", "b", "large", "c"]}), value_format="json")
    assert [failure.row_indices.tolist() for failure in result.failures] == [[2]]
    assert "The row is too large to encode: array cannot contain" in str(result.failures[0].error)
    assert result.rows_written == 3


def test_rejects_polars_object_column(producer: KafkaProducer, topic: str) -> None:
    frame = pl.DataFrame({"value": ["a"], "o": [object()]})
    with pytest.raises(InvalidRecordError, match="Column o has polars' type Object"):
        producer.send_table(topic, frame)
    assert producer.totals().records == 0


@pytest.mark.parametrize("words_type", [pa.string(), pa.string_view()])
@pytest.mark.parametrize(("value_format", "nest"), [(None, False), ("json", False), ("json", True)])
def test_splits_batches_by_decoded_dictionary_size(
    monkeypatch: pytest.MonkeyPatch,
    producer: KafkaProducer,
    topic: str,
    value_format: Any,
    nest: bool,
    words_type: pa.DataType,
) -> None:
    """Only the rows with the long dictionary value are sent in small batches."""
    monkeypatch.setattr(tables, "MAX_BATCH_BYTES", 100_000)
    original_send_columns, sizes = producer.send_columns, []

    def send_columns(topic: str, columns: RecordColumns, partition: Any = None) -> Any:
        sizes.append((columns.num_rows, columns.nbytes))
        return original_send_columns(topic, columns, partition)

    monkeypatch.setattr(producer, "send_columns", send_columns)
    indices = pa.array([0] * 1_000 + [1] * 3_000, pa.int32())
    words = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 1_000, "y"] + ["z"] * 500, words_type))
    if nest:
        words = pa.StructArray.from_arrays([words], ["word"])
    assert producer.send_table(topic, pa.table({"value": words}), value_format=value_format).rows_written == 4_000
    assert max(nbytes for _, nbytes in sizes) < 110_000
    assert max(rows for rows, _ in sizes) == 2_000


def test_warns_once_about_timestamps_in_seconds(
    producer: KafkaProducer, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    rows = pa.record_batch({"value": ["v"], "timestamp": [1_764_000_000]})
    assert producer.send_table(topic, pa.Table.from_batches([rows, rows])).rows_written == 2
    assert caplog.text.count("Column timestamp contains 1764000000.") == 1

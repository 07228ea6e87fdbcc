"""Tests of send_table() with tables of pyarrow, polars, DuckDB and pandas, read back from an embedded broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any

import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import tqdm

from spark_kafka_sink import KafkaProducer, KafkaSinkError, RecordColumns, TableResult
from spark_kafka_sink.errors import ConfigurationError, DeliveryError, InvalidRecordError, MetadataTimeoutError
from spark_kafka_sink.producer import columns_writer, tables
from spark_kafka_sink.producer.table_types import to_spark_type
from spark_kafka_sink.testing import EmbeddedBroker
from tests.formats.fake_registry import fake_registry
from tests.producer.table_cases import broker as broker
from tests.producer.table_cases import producer as producer
from tests.producer.table_cases import read_rows
from tests.producer.table_cases import topic as topic

PEOPLE = {"id": ["a", "b", "c"], "age": [1, 2, 3]}
PEOPLE_AS_JSON = [b'{"age":1}', b'{"age":2}', b'{"age":3}']


@pytest.fixture
def short_block_producer(broker: EmbeddedBroker) -> Iterator[KafkaProducer]:
    """Yield a producer that waits at most two seconds for a topic that does not exist."""
    with KafkaProducer(bootstrap_servers=broker.bootstrap_servers, max_block_ms=2_000) as producer:
        yield producer


def duckdb_relation() -> Any:
    return duckdb.sql("SELECT * FROM (VALUES ('a', 1), ('b', 2), ('c', 3)) AS people(id, age)")


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(lambda: pa.table(PEOPLE), id="pyarrow.Table"),
        pytest.param(lambda: pa.record_batch(PEOPLE), id="pyarrow.RecordBatch"),
        pytest.param(lambda: pa.table(PEOPLE).to_reader(1), id="pyarrow.RecordBatchReader"),
        pytest.param(lambda: pa.table(PEOPLE).to_struct_array().combine_chunks(), id="a struct array"),
        pytest.param(lambda: pl.DataFrame(PEOPLE), id="polars"),
        pytest.param(lambda: pl.DataFrame(PEOPLE, schema_overrides={"id": pl.Categorical}), id="polars.Categorical"),
        pytest.param(duckdb_relation, id="duckdb"),
        pytest.param(lambda: pd.DataFrame(PEOPLE)[lambda frame: frame.age > 0].set_axis([5, 1, 9]), id="pandas"),
    ],
)
def test_sends_rows_of_each_library_in_order(
    broker: EmbeddedBroker, producer: KafkaProducer, topic: str, table: Any
) -> None:
    result = producer.send_table(topic, table(), key="id", value_format="json")
    assert (result.rows_written, result.rows_failed, result.is_complete) == (3, 0, True)
    offsets = result.partitions[topic][0]
    assert (offsets.first_offset, offsets.last_offset, offsets.rows) == (0, 2, 3)
    assert read_rows(broker, topic, "key", "value") == list(zip([b"a", b"b", b"c"], PEOPLE_AS_JSON, strict=True))


def test_maps_columns_named_as_in_spark_without_arguments(
    broker: EmbeddedBroker, producer: KafkaProducer, topic: str
) -> None:
    broker.create_topic(other := topic + "-b", 3)
    table = pl.DataFrame(
        {
            "topic": [topic, other, topic],
            "value": ["1", "2", None],
            "key": [b"k", b"l", None],
            "headers": [[{"key": "h", "value": b"x"}], [], None],
            "partition": [0, 2, 0],
            "timestamp": [datetime(2026, 1, 2, tzinfo=timezone.utc)] * 3,
            "other": [1, 2, 3],
        }
    )
    result = producer.send_table(None, table)
    assert {name: set(offsets) for name, offsets in result.partitions.items()} == {topic: {0}, other: {2}}
    rows = read_rows(broker, topic, "key", "value", "headers", "timestamp")
    time = datetime(2026, 1, 2, tzinfo=timezone.utc)
    assert rows == [(b"k", b"1", [{"key": "h", "value": b"x"}], time), (None, None, None, time)]
    assert read_rows(broker, other, "partition", "value") == [(2, b"2")]


def test_limits_rows_read_ahead_and_reports_table_row_indices(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, producer: KafkaProducer, topic: str
) -> None:
    monkeypatch.setattr(tables, "MAX_BATCH_ROWS", 10)
    monkeypatch.setattr(columns_writer, "PENDING_CALL_BYTES", producer.config.buffer_memory // 2)
    schema = pa.schema([("value", pa.string())])
    max_unwritten_rows = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal max_unwritten_rows
        for number in range(20):
            max_unwritten_rows = max(max_unwritten_rows, 35 * number - sender.result.rows_written)
            values = [str(35 * number + row) for row in range(35)]
            values[7] = "x" * 2_000_000 if number % 10 == 3 else values[7]
            yield pa.RecordBatch.from_arrays([pa.array(values)], schema=schema)

    plan = plan_without_arguments(topic, schema)
    sender = tables.TableSender(producer, plan, 100)
    completed_count = sum(sender.send_batches(pa.RecordBatchReader.from_batches(schema, batches())))
    assert completed_count == 700
    assert max_unwritten_rows <= 35 + 2 * 10, "reads only one batch beyond the pending calls"
    failed = [int(row) for failure in sender.result.failures for row in failure.row_indices]
    assert failed == [3 * 35 + 7, 13 * 35 + 7]
    values = [value.decode() for (value,) in read_rows(broker, topic, "value")]
    assert values == [str(row) for row in range(700) if row not in failed]


def plan_without_arguments(topic: str | None, schema: pa.Schema) -> Any:
    from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table

    return plan_table(topic, schema, ColumnMapping(), {})


def test_reports_failed_rows_and_writes_the_others(
    broker: EmbeddedBroker, short_block_producer: KafkaProducer, topic: str
) -> None:
    table = pa.table({"topic": [topic, None, "nowhere", topic], "value": ["1", "2", "3", "x" * 2_000_000]})
    result = short_block_producer.send_table(None, table)
    reasons = {int(failure.row_indices[0]): (failure.topic, str(failure.error)) for failure in result.failures}
    assert reasons[1] == (None, "The row has no topic: its column 'topic' is null.")
    assert reasons[2][0] == "nowhere"
    assert "UNKNOWN_TOPIC_OR_PARTITION" in reasons[2][1]
    assert "max.request.size" in reasons[3][1]
    assert (result.rows_written, result.rows_failed) == (1, 3)
    with pytest.raises(
        DeliveryError, match=r"3 of 4 rows were not written. The first of them is row 1: The row has no"
    ):
        result.raise_for_failures()
    assert repr(result) == "TableResult(1 row written, 3 failed)"


def test_stops_reading_after_failed_rows_max_is_exceeded(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str
) -> None:
    monkeypatch.setattr(tables, "MAX_BATCH_ROWS", 10)
    table = pa.table({"topic": pa.array([None] * 1_000, pa.string()), "value": ["v"] * 1_000})
    result = producer.send_table(None, table, max_failed_rows=25)
    assert (result.rows_failed, result.is_complete) == (30, False)
    with pytest.raises(DeliveryError, match="The rows after them were not read"):
        result.raise_for_failures()


@pytest.mark.parametrize("limit", [-1, 1.5, True, None])
def test_rejects_invalid_max_failed_rows(
    broker: EmbeddedBroker, producer: KafkaProducer, topic: str, limit: Any
) -> None:
    with pytest.raises(ConfigurationError, match="max_failed_rows must be a number of rows, 0 or more, not"):
        producer.send_table(topic, pa.table({"value": ["1"]}), max_failed_rows=limit)
    assert read_rows(broker, topic, "value") == []


def test_raise_for_failures_rejects_incomplete_result() -> None:
    with pytest.raises(DeliveryError, match="Only the first 10 rows were read and written"):
        TableResult(rows_written=10, is_complete=False).raise_for_failures()


def test_raises_when_fixed_topic_does_not_exist(short_block_producer: KafkaProducer) -> None:
    with pytest.raises(MetadataTimeoutError, match="Create the topic or correct its name"):
        short_block_producer.send_table("nowhere", pa.table({"value": ["1"]}))


def test_propagates_exception_of_reader(producer: KafkaProducer, topic: str) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"value": ["1"]})
        raise LookupError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(pa.schema([("value", pa.string())]), batches())
    with pytest.raises(LookupError, match="the source is gone"):
        producer.send_table(topic, reader)


@pytest.mark.parametrize(
    ("table", "arguments", "message"),
    [
        (pa.table(PEOPLE), {}, "value: there is no column 'value'. The columns are id, age. Name the column"),
        (pa.table(PEOPLE), {"value": "ID"}, "There is 'id', but the names of columns are case-sensitive"),
        (pa.table(PEOPLE), {"value": "id", "key": "age"}, "key='age': column key must be a string or binary column"),
        (pa.table(PEOPLE), {"value": ["id", "age"]}, 'Add value_format="json" or another format'),
        (pa.table(PEOPLE), {"value": "id", "partition": "id"}, "partition='id': column partition must be of integers"),
        (pa.table(PEOPLE), {"value": "id", "partition": True}, "partition must be the name of a column or a number"),
        (pa.table(PEOPLE), {"value": "id", "timestamp": "id"}, "timestamp='id': column timestamp must be a timestamp"),
        (
            pa.table(PEOPLE),
            {"value": "id", "headers": "id"},
            "headers='id': column 'headers' must be a list<struct",
        ),
        (pa.table(PEOPLE), {"value_format": "xml"}, "Argument 'value_format' must be one of json, avro"),
        (pa.table(PEOPLE), {"value_formt": "json"}, "Did you mean 'value_format'?"),
        (pa.table(PEOPLE), {"valueFormat": "json"}, "has no argument 'valueFormat'. Did you mean 'value_format'?"),
        (pa.table(PEOPLE), {"schema.registry.url": "a"}, "'schema.registry.url'. Did you mean 'schema_registry_url'?"),
        (pa.table(PEOPLE), {"valueColumns": "id"}, "has no argument 'valueColumns'. Did you mean 'value'?"),
        (pa.table(PEOPLE), {"VALUE_FORMAT": "json"}, "'value_format', but the names of arguments are case-sensitive"),
        (pa.table(PEOPLE), {"value": "id", "key": "valueFormat"}, "key: there is no column 'valueFormat'"),
        (
            pa.table(PEOPLE),
            {"value_format": "json", "value": ["aeg"]},
            "Argument 'value' names the column 'aeg', which does not exist.",
        ),
        (pa.table(PEOPLE), {"value_format": "avro-confluent"}, "Argument 'schema_registry_url' is not set"),
        (pa.table(PEOPLE), {"value_format": "json", "value_schema": "{}"}, "Argument 'value_schema' has no effect"),
        (pa.table({"x": pa.array([1], pa.duration("s"))}), {"value_format": "json"}, "column x of type duration"),
        (pl.LazyFrame(PEOPLE), {}, "DuckDB and pandas do. To send it, write table.collect()."),
        (pl.Series([1]), {}, "cannot read polars.Series as a table with named columns: Cannot import schema"),
        ([{"value": "1"}], {}, "To send it, write pa.Table.from_pylist(table)."),
        (pa.table(PEOPLE).rename_columns(["a", "a"]), {"value": "a"}, "there are 2 columns named 'a'. Rename or drop"),
    ],
)
def test_explains_invalid_arguments_before_sending_rows(
    producer: KafkaProducer, topic: str, table: Any, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(KafkaSinkError) as caught:
        producer.send_table(topic, table, **arguments)
    assert isinstance(caught.value, ConfigurationError | InvalidRecordError)
    assert message in str(caught.value)
    assert producer.totals().records == 0


def test_requires_string_topic_column_without_topic_argument(producer: KafkaProducer) -> None:
    with pytest.raises(ConfigurationError, match=r"there is no column 'topic'\. Pass a topic"):
        producer.send_table(None, pa.table({"value": ["1"]}))
    with pytest.raises(ConfigurationError, match="column topic must be a string column, not int64"):
        producer.send_table(None, pa.table({"value": ["1"], "topic": [1]}))


def test_reports_all_column_faults_in_one_error(producer: KafkaProducer, topic: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        producer.send_table(topic, pa.table(PEOPLE), key="x", value="y", timestamp="z")
    assert [problem.partition(":")[0] for problem in caught.value.problems] == ["value", "key", "timestamp"]


def test_prefixes_values_with_registry_schema_id(broker: EmbeddedBroker, producer: KafkaProducer, topic: str) -> None:
    with fake_registry() as registry:
        producer.send_table(
            topic, pl.DataFrame(PEOPLE), key="id", value_format="avro-confluent", schema_registry_url=registry.url
        )
    values = [value for (value,) in read_rows(broker, topic, "value")]
    assert [value[0] for value in values] == [0, 0, 0]
    assert len({value[:5] for value in values}) == 1


def test_encodes_key_from_one_or_several_columns(broker: EmbeddedBroker, producer: KafkaProducer, topic: str) -> None:
    table = pa.table({"key": [1], "value": ["v"], "shop": ["north"]})
    producer.send_table(topic, table, key_format="json")
    producer.send_table(topic, table, key=["shop", "key"], key_format="json")
    assert read_rows(broker, topic, "key") == [(b'{"key":1}',), (b'{"shop":"north","key":1}',)]


def test_encodes_types_that_spark_lacks(broker: EmbeddedBroker, producer: KafkaProducer, topic: str) -> None:
    columns = {
        "views": pa.array(["a"], pa.string_view()),
        "wide": pa.array([["b"]], pa.large_list(pa.large_string())),
        "message": pa.array(["c"]).dictionary_encode(),
        "unsigned": pa.array([2**64 - 1], pa.uint64()),
        "small": pa.array([255], pa.uint8()),
        "pair": pa.array([[1, 2]], pa.list_(pa.int32(), 2)),
        "time": pa.array([1_767_312_000_000_000_999], pa.timestamp("ns", "UTC")),
        "part": pa.array([{"x": "d"}], pa.struct([("x", pa.string_view())])),
        "price": pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
    }
    producer.send_table(topic, pa.table(columns), value_format="json")
    assert read_rows(broker, topic, "value") == [
        (
            b'{"views":"a","wide":["b"],"message":"c","unsigned":18446744073709551615,"small":255,"pair":[1,2],'
            b'"time":"2026-01-02T00:00:00.000Z","part":{"x":"d"},"price":1.50}',
        )
    ]
    assert to_spark_type(pa.map_(pa.string_view(), pa.uint32())) == pa.map_(pa.string(), pa.int64())
    assert to_spark_type(pa.duration("s")) == pa.duration("s")


def test_checks_columns_of_empty_table(producer: KafkaProducer, topic: str) -> None:
    assert producer.send_table(topic, pa.table({"value": pa.array([], pa.string())})).rows_written == 0
    with pytest.raises(ConfigurationError, match="there is no column 'value'"):
        producer.send_table(topic, pa.table({"a": pa.array([], pa.string())}))


class QueryResult:
    """The lazy result of a query. As with DuckDB 1, len() runs the query, which ends the streams that are open."""

    def __init__(self, row_count: int) -> None:
        self._table = pa.table({"id": range(row_count)})
        self._row_count = row_count
        self._is_stream_open = True

    def __len__(self) -> int:
        self._is_stream_open = False
        return self._row_count

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        batches = (batch for batch in self._table.to_batches() if self._is_stream_open)
        return pa.RecordBatchReader.from_batches(self._table.schema, batches).__arrow_c_stream__(requested_schema)


def test_sends_all_rows_of_query_whose_stream_len_would_end(producer: KafkaProducer, topic: str) -> None:
    result = producer.send_table(topic, QueryResult(3), value_format="json")
    assert result.rows_written == 3


@pytest.mark.parametrize(("progress", "expected"), [(True, [("records", 3, 1, [3])]), (False, [])])
def test_draws_progress_bar_on_terminal_if_enabled(
    monkeypatch: pytest.MonkeyPatch, producer: KafkaProducer, topic: str, progress: bool, expected: list[Any]
) -> None:
    drawn: list[Any] = []

    class Bar:
        def __init__(self, total: int, unit: str, delay: float, **_: object) -> None:
            self.updates: list[int] = []
            drawn.append((unit.strip(), total, delay, self.updates))

        def update(self, number: int) -> None:
            if number:
                self.updates.append(number)

        def close(self) -> None: ...

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    producer.send_table(topic, pl.DataFrame({"value": ["1", "2", "3"]}), progress=progress)
    assert drawn == expected


def test_sends_wide_rows_in_smaller_batches(
    monkeypatch: pytest.MonkeyPatch, broker: EmbeddedBroker, producer: KafkaProducer, topic: str
) -> None:
    monkeypatch.setattr(tables, "MAX_BATCH_BYTES", 3_500)
    batch_sizes: list[int] = []
    send_columns = producer.send_columns

    def record_size(topic: str, columns: RecordColumns, partition: Any = None) -> Any:
        batch_sizes.append(len(columns))
        return send_columns(topic, columns, partition)

    monkeypatch.setattr(producer, "send_columns", record_size)
    assert producer.send_table(topic, pa.table({"value": ["x" * 1_000] * 10})).rows_written == 10
    assert batch_sizes == [2, 3, 2, 3]
    assert len(read_rows(broker, topic, "value")) == 10

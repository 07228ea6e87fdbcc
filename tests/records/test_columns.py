"""RecordColumns: accepted types, and slicing, taking and concatenation."""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.records import columns as columns_module
from spark_kafka_sink.records.columns import (
    BEFORE_EPOCH_TIMESTAMP,
    OVERFLOW_TIMESTAMP,
    RecordColumns,
    find_likely_seconds,
)

HEADERS = pa.array([[("a", b"1")], None, []], pa.map_(pa.string(), pa.binary()))

TWO_KEYS = pa.ListArray.from_arrays(
    [0, 1], pa.StructArray.from_arrays([pa.array(["k"]), pa.array([b"v"]), pa.array(["k"])], ["key", "value", "key"])
)


def sample() -> RecordColumns:
    return RecordColumns(pa.array(["x", None, "z"]), pa.array([b"1", b"2", None]), HEADERS, pa.array([1, None, 3]))


def test_rejects_columns_of_different_lengths() -> None:
    with pytest.raises(SchemaError, match="value has 1, key has 2"):
        RecordColumns(pa.array(["x"]), pa.array(["a", "b"]))


@pytest.mark.parametrize(
    ("columns", "name"),
    [
        ({"value": pa.array([1])}, "value"),
        ({"value": pa.array(["x"]), "key": pa.array([1.5])}, "key"),
        ({"value": pa.array(["x"]), "headers": pa.array(["x"])}, "headers"),
        ({"value": pa.array(["x"]), "headers": pa.array([["x"]])}, "headers"),
        ({"value": pa.array(["x"]), "headers": pa.array([[{"key": 1, "value": b"x"}]])}, "headers"),
        ({"value": pa.array(["x"]), "headers": TWO_KEYS}, "headers"),
        ({"value": pa.array(["x"]), "timestamp": pa.array([1 << 63], pa.uint64())}, "timestamp"),
        ({"value": pa.array(["x"]), "timestamp": pa.array(["now"])}, "timestamp"),
        ({"value": pa.array(["x"]), "timestamp": pa.array([datetime.date(2026, 1, 1)])}, "timestamp"),
    ],
)
def test_names_column_of_unsupported_type(columns: dict[str, Any], name: str) -> None:
    with pytest.raises(SchemaError, match=name):
        RecordColumns(**columns)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_keeps_text_and_bytes_without_copy(kind: pa.DataType) -> None:
    value = pa.array(["a", None], kind)
    assert RecordColumns(value).value is value


def test_converts_views_and_dictionaries_to_plain_columns() -> None:
    words = pa.array(["unused", "a", None], pa.string_view())
    for value in (
        words.slice(1),
        pa.array(["a", None]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), words).slice(1),
        pa.DictionaryArray.from_arrays(pa.array([0, 1, None], pa.uint32()), words.cast(pa.large_string())).slice(1),
    ):
        assert RecordColumns(value).take([1, 0]).value.cast(pa.string()).to_pylist() == [None, "a"]
        chunks = RecordColumns(pa.chunked_array([value, value])).value
        assert chunks.cast(pa.string()).to_pylist() == ["a", None, "a", None]


def test_converts_dictionary_of_views_with_several_data_buffers() -> None:
    words = pa.concat_arrays([pa.array([letter * 40_000], pa.string_view()) for letter in "xy"])
    assert len(words.buffers()) > 3, "validity, views and more than one data buffer"
    columns = RecordColumns(pa.DictionaryArray.from_arrays(pa.array([1, 0]), words))
    assert columns.value.to_pylist() == [b"y" * 40_000, b"x" * 40_000]


def test_rejects_dictionary_by_its_value_type() -> None:
    with pytest.raises(SchemaError, match="column value must be a string or binary column, not int64"):
        RecordColumns(pa.array([1, 2]).dictionary_encode())


def test_null_columns_mean_no_keys_headers_or_timestamps() -> None:
    columns = RecordColumns(pa.nulls(2), pa.nulls(2), pa.nulls(2), pa.nulls(2))
    assert (columns.key, columns.headers, columns.timestamp) == (None, None, None)
    assert columns.value.to_pylist() == [None, None]


SECONDS_MAX = ((1 << 63) - 1) // 1_000


@pytest.mark.parametrize(
    ("unit", "ticks", "expected"),
    [
        ("s", [1, 0, -1, 1 << 62, -1 << 62, None], [1000, 0, -1000, OVERFLOW_TIMESTAMP, -SECONDS_MAX * 1000, None]),
        ("ms", [1, -1, -5, OVERFLOW_TIMESTAMP], [1, BEFORE_EPOCH_TIMESTAMP, -5, OVERFLOW_TIMESTAMP + 1]),
        (
            "us",
            [1999, -1, -1000, -1001, -86_400_000_001, 0],
            [1, BEFORE_EPOCH_TIMESTAMP, BEFORE_EPOCH_TIMESTAMP, -2, -86_400_001, 0],
        ),
        ("ns", [1_999_999, None, 5_000_000], [1, None, 5]),
    ],
)
def test_converts_times_to_milliseconds_and_marks_invalid_ones(
    unit: str, ticks: list[int], expected: list[int]
) -> None:
    for zone in (None, "UTC"):
        times = pa.array(ticks, pa.int64()).cast(pa.timestamp(unit, zone))
        assert RecordColumns(pa.nulls(len(ticks)), timestamp=times).timestamp.to_pylist() == expected  # type: ignore[union-attr]


def test_slice_take_and_chunks_keep_all_columns() -> None:
    columns = sample()
    assert columns.slice(1).value.to_pylist() == [None, "z"]
    taken = columns.take(np.array([2, 0]))
    assert taken.headers is not None
    assert taken.headers.to_pylist() == [[], [("a", b"1")]]
    assert [chunk.num_rows for chunk in columns.chunks(2)] == [2, 1]
    assert (
        repr(columns)
        == "RecordColumns(3 rows, value: string, key: binary, headers: map<string, binary>, timestamp: int64)"
    )


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.large_binary(), pa.large_string()], ids=str)
@pytest.mark.parametrize("values", [["ab", "c", None, "ghi"], ["ab", "cd", "ef", "gh"], [None] * 4, [""] * 4], ids=str)
@pytest.mark.parametrize("positions", [[3, 0, 2, 1], [1, 1, 0], [2], []], ids=str)
def test_take_selects_rows_by_position(kind: pa.DataType, values: list[str | None], positions: list[int]) -> None:
    longer = pa.array(["before", *values, "after"], pa.string()).cast(kind)
    for column in (longer.slice(1, 4), pa.chunked_array([longer.slice(1, 1), longer.slice(2, 3)])):
        taken = RecordColumns(column).take(positions).value
        taken.validate(full=True)
        assert taken.type == kind
        assert taken.cast(pa.large_string()).to_pylist() == [values[position] for position in positions]


def test_columns_beyond_32_bit_offsets_get_large_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns_module, "_MIN_64_BIT_OFFSET_BYTES", 100)
    value = pa.array([b"x" * 60, b"y" * 60])
    for wide in (
        RecordColumns(value).take([1, 0, 1]).value,
        RecordColumns(pa.chunked_array([value, value])).to_contiguous().value,
        RecordColumns(pa.array([b"x" * 60] * 2).dictionary_encode()).value,
    ):
        assert wide.type == pa.large_binary()
    assert RecordColumns(value).take([1, 0]).value.to_pylist() == [b"y" * 60, b"x" * 60]
    assert RecordColumns(pa.array([b"x"])).take([0]).value.type == pa.binary()


NOW_MS = 1_800_000_000_000  # in 2027


@pytest.mark.parametrize(
    ("times", "seconds"),
    [
        ([1_700_000_000, 1_764_000_000], 1_700_000_000),
        ([None, 1_764_000_000], 1_764_000_000),
        ([300_000_000], 300_000_000),  # in 1979
        ([1_700_000_000_000], None),
        ([1_700_000_000, 1_700_000_000_000], None),
        ([1_700_000_000, 0], None),
        ([100_000_000], None),  # in 1973
        ([1_900_000_000], None),  # in 2030
        ([-1_700_000_000], None),
        ([None], None),
        ([], None),
    ],
)
def test_finds_timestamps_that_are_likely_seconds(times: list[int | None], seconds: int | None) -> None:
    column = pa.array(times, pa.int64())
    assert find_likely_seconds(column, NOW_MS) == seconds
    assert find_likely_seconds(pa.chunked_array([column]), NOW_MS) == seconds
    assert find_likely_seconds(column.cast(pa.timestamp("ms")), NOW_MS) is None


@pytest.mark.parametrize(("size", "lengths"), [(10, [5]), (100_000, [1, 1, 1, 1, 1])])
def test_joins_small_chunks_without_copying_large_ones(size: int, lengths: list[int]) -> None:
    value = pa.chunked_array([pa.array([b"v" * size] * 2), pa.array([b"v" * size] * 3)])
    key = pa.chunked_array([pa.array([b"k"]), pa.array([b"k"] * 2), pa.array([b"k"]), pa.array([b"k"])])
    chunks = list(RecordColumns(value, key).chunks(100))
    assert [chunk.num_rows for chunk in chunks] == lengths
    if len(chunks) > 1:
        addresses = [chunk.value.buffers()[2].address for chunk in chunks]
        assert addresses == [value.chunk(number).buffers()[2].address for number in (0, 0, 1, 1, 1)]
    assert pa.chunked_array([chunk.value for chunk in chunks]).equals(value)
    assert pa.chunked_array([chunk.key for chunk in chunks]).equals(key)


def test_take_of_repeated_chunk_gets_large_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.records.columns._MIN_64_BIT_OFFSET_BYTES", 1_000)
    repeated = pa.chunked_array([pa.array([b"v" * 100])] * 20)
    assert RecordColumns(repeated).take([19]).value.type == pa.large_binary()


def test_concat_fills_missing_columns_with_nulls() -> None:
    joined = RecordColumns.concat([sample(), RecordColumns(pa.array([b"plain"]))]).to_contiguous()
    assert joined.value.to_pylist() == [b"x", None, b"z", b"plain"]
    assert joined.key is not None
    assert joined.headers is not None
    assert joined.timestamp is not None
    assert joined.key.to_pylist() == [b"1", b"2", None, None]
    assert joined.headers.to_pylist() == [[("a", b"1")], None, [], None]
    assert joined.timestamp.to_pylist() == [1, None, 3, None]


def test_concat_rejects_headers_of_different_types() -> None:
    other = pa.array([[{"key": "a", "value": b"1"}]])
    with pytest.raises(SchemaError, match="different types"):
        RecordColumns.concat([sample(), RecordColumns(pa.array(["x"]), None, other)])


def test_nbytes_counts_only_the_rows_of_a_slice() -> None:
    value = pa.array([b"x" * 100] * 1000)
    assert 1000 <= RecordColumns(value.slice(10, 10)).nbytes <= 1100
    assert 1000 <= RecordColumns(pa.chunked_array([value, value]).slice(995, 10)).nbytes <= 1100
    view = pa.array([b"x" * 100] * 1000, pa.binary_view())
    assert 1000 <= RecordColumns(view).slice(10, 10).nbytes <= 1100


def fake_series(library: str) -> object:
    """Build an object that looks like the Series of a library which need not be installed."""
    return type("Series", (), {"__module__": f"{library}.series"})()


@pytest.mark.parametrize("name", ["value", "key", "headers", "timestamp"])
@pytest.mark.parametrize(
    ("column", "message"),
    [
        ([b"a"], "is of type list, not an Arrow array: write pa.array({})"),
        (7, "is of type int, not an Arrow array: write pa.array({})"),
        (np.array([b"a"]), "is of type numpy.ndarray, not an Arrow array: write pa.array({})"),
        (fake_series("polars"), "is of type polars.Series, not an Arrow array: write {}.to_arrow()"),
        (fake_series("pandas"), "is of type pandas.Series, not an Arrow array: write pa.Array.from_pandas({})"),
        (pa.table({"a": [b"a"]}), 'is of type pyarrow.Table, not an Arrow array: write table.column("{}")'),
    ],
)
def test_rejects_other_objects_with_conversion_to_arrow(name: str, column: object, message: str) -> None:
    columns = {"value": pa.array([b"a"]), name: column}
    with pytest.raises(SchemaError, match=re.escape(f"column {name} {message.format(name)}")):
        RecordColumns(**columns)


def test_rejects_missing_value_column() -> None:
    with pytest.raises(SchemaError, match="column value is of type NoneType, not an Arrow array"):
        RecordColumns(None)


@pytest.mark.parametrize("is_map", [False, True])
def test_payload_counts_only_keys_values_and_headers(is_map: bool) -> None:
    pairs = [[("h", b"1234")], None, [], [("a", b"1"), ("b", None)]]
    header_lists = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in pairs]
    listed_kind = pa.list_(pa.struct({"key": pa.string(), "value": pa.binary()}.items()))
    kind = pa.map_(pa.string(), pa.binary()) if is_map else listed_kind
    headers = pa.array(pairs if is_map else header_lists, kind)
    value, key = pa.array([b"abc", None, b"", b"de"]), pa.array(["k", "straße", None, ""], pa.large_string())
    columns = RecordColumns(value, key, headers, pa.array([1, 2, 3, 4]))
    assert columns.payload_nbytes == 5 + 8 + 8
    assert [columns.slice(n, 1).payload_nbytes for n in range(4)] == [3 + 1 + 5, 7, 0, 2 + 3]
    twice = [pa.chunked_array([column, column]) for column in (value, key, headers)]
    assert RecordColumns(*twice).slice(3, 2).payload_nbytes == 5 + 9

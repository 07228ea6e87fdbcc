"""Tests of the conversion of Arrow types that Spark lacks: nested dictionaries, views, nanoseconds."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError, SchemaError
from spark_kafka_sink.producer.table_plan import ColumnMapping, plan_table
from spark_kafka_sink.producer.table_types import compute_decoded_nbytes, convert_column, to_spark_type
from tests.records.large_arrays import build_behind_2_gib

WORDS = pa.DictionaryArray.from_arrays(pa.array([0, None, 1], pa.int8()), pa.array(["a", "bb"], pa.string_view()))
LIST_OFFSETS = pa.array([0, None, 1, 3], pa.int32())

COLUMNS: dict[str, tuple[pa.Array, list[Any]]] = {
    "dictionary": (WORDS, ["a", None, "bb"]),
    "dictionary of dictionaries": (
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), WORDS.take(pa.array([0, 2]))),
        ["bb", None, "a"],
    ),
    "list": (pa.ListArray.from_arrays(LIST_OFFSETS, WORDS), [["a"], None, [None, "bb"]]),
    "wide list": (
        pa.LargeListArray.from_arrays(LIST_OFFSETS.cast(pa.int64()), WORDS),
        [["a"], None, [None, "bb"]],
    ),
    "list of fixed size": (
        pa.FixedSizeListArray.from_arrays(WORDS, 1, mask=pa.array([True, False, False])),
        [None, [None], ["bb"]],
    ),
    "list of lists": (
        pa.ListArray.from_arrays(pa.array([0, 0, 1, 2]), pa.ListArray.from_arrays(pa.array([0, 1, 3]), WORDS)),
        [[], [["a"]], [[None, "bb"]]],
    ),
    "map": (
        pa.MapArray.from_arrays(LIST_OFFSETS, pa.array(["x", "y", "z"], pa.large_string()), WORDS),
        [[("x", "a")], None, [("y", None), ("z", "bb")]],
    ),
    "keys of a map": (
        pa.MapArray.from_arrays(pa.array([0, None, 1, 2], pa.int32()), WORDS.take(pa.array([0, 2])), pa.array([1, 2])),
        [[("a", 1)], None, [("bb", 2)]],
    ),
    "struct": (
        pa.StructArray.from_arrays([WORDS], ["x"], mask=pa.array([False, False, True])),
        [{"x": "a"}, {"x": None}, None],
    ),
    "null structs": (pa.nulls(3, pa.struct([("x", pa.dictionary(pa.int32(), pa.string()))])), [None] * 3),
    "dictionary of numbers": (
        pa.DictionaryArray.from_arrays(pa.array([0, None, 0], pa.int8()), pa.array([7], pa.uint32())),
        [7, None, 7],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("start", [0, 1, 3])
def test_decodes_dictionaries_at_every_depth(name: str, start: int) -> None:
    column, values = COLUMNS[name]
    spark_type = to_spark_type(column.type)
    converted = convert_column(column.slice(start), spark_type, "a")
    converted.validate(full=True)
    assert converted.type == spark_type
    assert converted.to_pylist() == values[start:]


@pytest.mark.parametrize(
    "frame",
    [
        pl.DataFrame({"a": [["x", "y"], None]}, schema={"a": pl.List(pl.Categorical)}),
        pl.DataFrame({"a": [["x", "y"], ["y", "x"]]}, schema={"a": pl.Array(pl.Enum(["x", "y"]), 2)}),
        pl.DataFrame({"a": [{"e": "x"}, None]}, schema={"a": pl.Struct({"e": pl.Enum(["x", "y"])})}),
    ],
)
def test_decodes_nested_polars_categories(frame: pl.DataFrame) -> None:
    batch = pa.RecordBatchReader.from_stream(frame).read_next_batch()
    converted = convert_column(batch.column("a"), to_spark_type(batch.schema.field("a").type), "a")
    assert converted.to_pylist() == frame["a"].to_list()


@pytest.mark.parametrize("nest", [lambda times: times, lambda times: times.dictionary_encode(), "struct"])
def test_rounds_nanoseconds_down(nest: Any) -> None:
    times = pa.array([-5, None, -1_000, 1_999], pa.timestamp("ns", "UTC"))
    column = pa.StructArray.from_arrays([times], ["t"]) if nest == "struct" else nest(times)
    converted = convert_column(column, to_spark_type(column.type), "a")
    converted = converted.field("t") if nest == "struct" else converted
    assert converted.type == pa.timestamp("us", "UTC")
    assert converted.view(pa.int64()).to_pylist() == [-1, None, -1, 1]


def test_names_column_of_value_out_of_range() -> None:
    seconds = pa.array([1 << 60], pa.timestamp("s"))
    for column in (seconds, seconds.dictionary_encode(), pa.StructArray.from_arrays([seconds], ["t"])):
        with pytest.raises(InvalidRecordError, match=r"^column far of type "):
            convert_column(column, to_spark_type(column.type), "far")
    gone = pa.DictionaryArray.from_arrays(pa.array([3], pa.int8()), pa.array(["a"]), safe=False)
    with pytest.raises(InvalidRecordError, match=r"^column gone of type dictionary"):
        convert_column(gone, pa.string(), "gone")


def test_rejects_date64_outside_range_of_date32() -> None:
    last_day_ms = (2**31 - 1) * 86_400_000
    days = pa.array([-1, None, last_day_ms + 1], pa.date64())
    assert convert_column(days, pa.date32(), "a").view(pa.int32()).to_pylist() == [-1, None, 2**31 - 1]
    for ms in (last_day_ms + 86_400_000, 1 << 62, -(1 << 62)):
        with pytest.raises(InvalidRecordError, match=r"column far of type date64\[ms\]: .* not a valid date"):
            convert_column(pa.array([ms], pa.date64()), pa.date32(), "far")


def test_names_column_of_unsupported_type() -> None:
    with pytest.raises(SchemaError, match=r"column a of type .* cannot be written; cast it"):
        convert_column(pa.array([1]), pa.list_(pa.int64()), "a")


def test_plan_rejects_nested_type_without_format_support() -> None:
    schema = pa.schema([("a", pa.list_(pa.dictionary(pa.int8(), pa.month_day_nano_interval())))])
    with pytest.raises(ConfigurationError, match=r"column a.* of type month_day_nano_interval"):
        plan_table("t", schema, ColumnMapping(), {"value_format": "json"})


@pytest.mark.parametrize("width", [8, 16, 32, 64])
@pytest.mark.parametrize("sign", ["int", "uint"])
def test_decoded_size_of_null_is_zero_for_each_index_type(sign: str, width: int) -> None:
    """Polars exports category indices as uint32, and DuckDB exports enum indices as uint8."""
    indices = pa.array([0, None, 1], f"{sign}{width}")
    assert compute_decoded_nbytes(pa.DictionaryArray.from_arrays(indices, pa.array(["ab", "c"]))) == 3


def test_computes_size_of_decoded_dictionaries() -> None:
    dictionary_array = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 1], pa.int8()), pa.array(["a" * 1_000, "b" * 10])
    )
    assert compute_decoded_nbytes(dictionary_array) == 1_020
    assert compute_decoded_nbytes(dictionary_array.slice(1)) == 20
    assert compute_decoded_nbytes(pa.ListArray.from_arrays(pa.array([0, 1, 4]), dictionary_array).slice(1)) == 20
    assert compute_decoded_nbytes(pa.StructArray.from_arrays([dictionary_array, dictionary_array], ["x", "y"])) == 2_040
    items = pa.MapArray.from_arrays(pa.array([0, 1, 4]), pa.array(["k", "l", "m", "n"]), dictionary_array)
    assert compute_decoded_nbytes(items.slice(1)) == 23  # including the three keys
    views = pa.DictionaryArray.from_arrays(dictionary_array.indices, dictionary_array.dictionary.cast(pa.string_view()))
    assert compute_decoded_nbytes(views.slice(1)) == 20
    views = pa.DictionaryArray.from_arrays(
        pa.array([1, 0, 1], pa.int8()), pa.array(["x", None, "c" * 30], pa.string_view())[1:]
    )
    assert compute_decoded_nbytes(views.slice(0, 2)) == 30
    assert compute_decoded_nbytes(pa.nulls(3, pa.dictionary(pa.int8(), pa.string_view()))) == 0
    lists = pa.DictionaryArray.from_arrays(dictionary_array.indices, pa.array([["a" * 1_000], ["b" * 4, "b" * 6]]))
    assert compute_decoded_nbytes(lists.slice(1)) == 20
    nested = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1], pa.uint64()), dictionary_array.slice(0, 2))
    assert compute_decoded_nbytes(nested) == 2_010
    numbers = pa.DictionaryArray.from_arrays(pa.array([0] * 8, pa.int8()), pa.array([1], pa.int64()))
    assert compute_decoded_nbytes(numbers) == 64
    lists = pa.array([["a"]])
    assert compute_decoded_nbytes(lists) == lists.nbytes
    assert compute_decoded_nbytes(pa.array(["x" * 50, None, "y"], pa.string_view())) == 51
    assert compute_decoded_nbytes(pa.array([["x" * 50], []], pa.list_(pa.binary_view()))) == 50
    assert compute_decoded_nbytes(pa.nulls(3, pa.dictionary(pa.int8(), pa.string()))) == 0


@pytest.mark.parametrize("data_type", [pa.large_string(), pa.large_binary()])
def test_converts_slice_behind_2_gib_of_column(data_type: pa.DataType) -> None:
    column = build_behind_2_gib([b"a", None, b"bcd"], data_type)
    target_type = to_spark_type(data_type)
    assert convert_column(column, target_type, "c").equals(pa.array([b"a", None, b"bcd"]).view(target_type))

"""JSON out of columns equals JSON that is written value by value, for every type and for slices."""

from __future__ import annotations

import datetime as dt
import pickle
import subprocess
import sys
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given

from spark_kafka_sink.errors import SchemaError
from spark_kafka_sink.formats.encoder import ColumnsEncoder
from spark_kafka_sink.formats.json_text import JsonFormat, check_json_type
from tests.formats.arrow_strategies import batches
from tests.formats.slow_json import slow_rows


def encoder(schema: pa.Schema) -> ColumnsEncoder:
    return ColumnsEncoder(JsonFormat(), tuple(schema), tuple(range(len(schema))))


def rows_of(batch: pa.RecordBatch) -> list[bytes | None]:
    encoded: list[bytes | None] = encoder(batch.schema).encode(batch).to_pylist()
    return encoded


def json_of(kind: pa.DataType, *values: Any) -> list[str]:
    """The text of each value in a column `a`, without the object around it."""
    rows = rows_of(pa.record_batch({"a": pa.array(values, kind)}))
    return [row.decode()[5:-1] for row in rows if row is not None]


@given(batches())
def test_columns_become_the_json_that_is_written_value_by_value(batch: pa.RecordBatch) -> None:
    assert rows_of(batch) == slow_rows(batch)


def test_fields_that_are_null_are_left_out_with_their_commas() -> None:
    batch = pa.record_batch(
        {"a": [None, 1, None, 4], "b": [None, None, 3, 4], "c": [1, 2, 3, 4], "d": [None, 2, None, 4]}
    )
    assert rows_of(batch) == [
        b'{"c":1}',
        b'{"a":1,"c":2,"d":2}',
        b'{"b":3,"c":3}',
        b'{"a":4,"b":4,"c":4,"d":4}',
    ]


def test_a_row_without_a_value_is_an_empty_object() -> None:
    assert rows_of(pa.record_batch({"a": pa.array([None, None], pa.string()), "b": pa.nulls(2)})) == [b"{}", b"{}"]


def test_strings_have_jacksons_escapes() -> None:
    assert json_of(pa.string(), 'a"b\\c/d', "\b\t\n\f\r\x00\x1f\x7f", "é😀\u2028") == [
        '"a\\"b\\\\c/d"',
        '"\\b\\t\\n\\f\\r\\u0000\\u001F\x7f"',
        '"é😀\u2028"',
    ]


def test_decimals_are_written_as_javas_big_decimal_writes_them() -> None:
    values = [Decimal("1"), Decimal("0.0000001"), Decimal("0"), Decimal("-1.5")]
    assert json_of(pa.decimal128(20, 10), *values) == ["1.0000000000", "1.000E-7", "0E-10", "-1.5000000000"]
    assert json_of(pa.decimal128(38, 0), Decimal(10**37)) == ["1" + "0" * 37]


def test_the_keys_of_maps_are_sparks_own_numbers_for_dates_and_times() -> None:
    day, time = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)
    assert json_of(pa.map_(pa.date32(), pa.int32()), [(day, 1)]) == ['{"19723":1}']
    assert json_of(pa.map_(pa.timestamp("us", "UTC"), pa.int32()), [(time, 1)]) == ['{"1704067200000000":1}']
    assert json_of(pa.map_(pa.float64(), pa.int32()), [(1e7, 1)]) == ['{"1.0E7":1}']
    assert json_of(pa.map_(pa.bool_(), pa.string()), [(True, "x"), (False, None)]) == ['{"true":"x","false":null}']


def test_wide_offsets_are_read_too() -> None:
    assert json_of(pa.large_string(), "a", None) == ['"a"', ""]
    assert json_of(pa.large_binary(), b"abc") == ['"YWJj"']


def test_a_null_struct_whose_fields_are_the_value_is_a_tombstone() -> None:
    batch = pa.record_batch({"x": [1, 2], "payload": [{"a": 1, "b": "x"}, None]})
    fields = (pa.field("a", pa.int64()), pa.field("b", pa.string()))
    wanted = ColumnsEncoder(JsonFormat(), fields, (0, 1), parent=1)
    assert wanted.encode(batch).to_pylist() == [b'{"a":1,"b":"x"}', None]
    assert wanted.encode(batch.slice(1)).to_pylist() == [None]


def test_a_header_stands_in_front_of_every_row() -> None:
    batch = pa.record_batch({"a": [1, None]})
    wanted = ColumnsEncoder(JsonFormat(), (pa.field("a", pa.int64()),), (0,), header=b"\0\0\0\0\7")
    assert wanted.encode(batch).to_pylist() == [b'\0\0\0\0\7{"a":1}', b"\0\0\0\0\7{}"]


def test_a_large_batch_is_encoded_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.formats.encoder._MAX_BATCH_BYTES", 100)
    batch = pa.record_batch({"a": ["x" * 30] * 9, "b": range(9)})
    encoded = encoder(batch.schema).encode(batch)
    assert encoded.num_chunks > 1
    assert encoded.to_pylist() == slow_rows(batch)


def test_rows_that_need_more_than_an_array_can_hold_are_encoded_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: JsonFormat, names: Any, columns: Any, rows: int, header: bytes = b"") -> pa.Array:
        if rows > 2:
            raise pa.lib.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return written(self, names, columns, rows, header)

    written = JsonFormat.encode_rows
    monkeypatch.setattr(JsonFormat, "encode_rows", full)
    batch = pa.record_batch({"a": range(7)})
    assert rows_of(batch) == slow_rows(batch)


def test_an_encoder_can_be_pickled_to_the_tasks() -> None:
    wanted = ColumnsEncoder(JsonFormat(), (pa.field("a", pa.int64()),), (0,), parent=3, header=b"x")
    assert pickle.loads(pickle.dumps(wanted)) == wanted


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (pa.duration("us"), "column a of type duration[us] cannot be written as JSON"),
        (pa.list_(pa.duration("us")), "column a.element of type duration[us] cannot be written"),
        (pa.struct([("x", pa.month_day_nano_interval())]), "column a.x of type"),
        (pa.map_(pa.binary(), pa.int32()), "column a: a map with keys of type binary cannot be written as JSON"),
        (pa.map_(pa.list_(pa.int32()), pa.int32()), "cast the keys to strings"),
    ],
    ids=str,
)
def test_a_type_that_has_no_json_is_refused_by_its_name(kind: pa.DataType, words: str) -> None:
    with pytest.raises(SchemaError) as refused:
        check_json_type(kind, "a")
    assert words in str(refused.value)


def test_no_pandas_is_imported_by_an_encoder() -> None:
    code = (
        "import sys, datetime, decimal, numpy as np, pyarrow as pa\n"
        "from spark_kafka_sink.formats.encoder import ColumnsEncoder\n"
        "from spark_kafka_sink.formats.json_text import JsonFormat\n"
        "from spark_kafka_sink.records.arrays import bytes_to_arrow, numbers_to_arrow\n"
        "text = bytes_to_arrow([b'a', None]).view(pa.string())\n"
        "number = numbers_to_arrow(np.array([1, 2]), np.array([False, True]))\n"
        "double = numbers_to_arrow(np.array([1.5e20, 2.0]))\n"
        "time = number.view(pa.timestamp('us', 'Europe/Paris'))\n"
        "batch = pa.RecordBatch.from_arrays([text, number, double, time, text.view(pa.binary())], list('abcde'))\n"
        "rows = ColumnsEncoder(JsonFormat(), tuple(batch.schema), tuple(range(5))).encode(batch)\n"
        "assert len(rows) == 2\n"
        "assert 'pandas' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

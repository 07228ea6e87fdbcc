"""JSON encoder, compared with a reference that encodes value by value, for every type and for slices."""

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
from tests.formats.reference_json import reference_rows


def make_encoder(schema: pa.Schema) -> ColumnsEncoder:
    return ColumnsEncoder(JsonFormat(), tuple(schema), tuple(range(len(schema))))


def encode_batch(batch: pa.RecordBatch) -> list[bytes | None]:
    encoded: list[bytes | None] = make_encoder(batch.schema).encode(batch).to_pylist()
    return encoded


def encode_values(data_type: pa.DataType, *values: Any) -> list[str]:
    """Encode a column `a` and return the JSON of each value, without the object around it."""
    rows = encode_batch(pa.record_batch({"a": pa.array(values, data_type)}))
    return [row.decode()[5:-1] for row in rows if row is not None]


@given(batches())
def test_encoded_rows_equal_reference_json(batch: pa.RecordBatch) -> None:
    assert encode_batch(batch) == reference_rows(batch)


def test_omits_null_fields_with_their_commas() -> None:
    batch = pa.record_batch(
        {"a": [None, 1, None, 4], "b": [None, None, 3, 4], "c": [1, 2, 3, 4], "d": [None, 2, None, 4]}
    )
    assert encode_batch(batch) == [
        b'{"c":1}',
        b'{"a":1,"c":2,"d":2}',
        b'{"b":3,"c":3}',
        b'{"a":4,"b":4,"c":4,"d":4}',
    ]


def test_encodes_row_of_nulls_to_empty_object() -> None:
    assert encode_batch(pa.record_batch({"a": pa.array([None, None], pa.string()), "b": pa.nulls(2)})) == [b"{}", b"{}"]


def test_escapes_strings_like_jackson() -> None:
    assert encode_values(pa.string(), 'a"b\\c/d', "\b\t\n\f\r\x00\x1f\x7f", "é😀\u2028") == [
        '"a\\"b\\\\c/d"',
        '"\\b\\t\\n\\f\\r\\u0000\\u001F\x7f"',
        '"é😀\u2028"',
    ]


def test_replaces_invalid_utf8() -> None:
    texts = pa.array([b"a\xff", b"caf\xc3\xa9", None], pa.binary()).view(pa.string())
    entries = pa.MapArray.from_arrays(pa.array([0, 1, 2, 2], pa.int32()), texts[:2], texts[1::-1])
    rows = encode_batch(pa.record_batch({"s": texts, "m": entries}))
    assert [None if row is None else row.decode() for row in rows] == [
        '{"s":"a\ufffd","m":{"a\ufffd":"caf\u00e9"}}',
        '{"s":"caf\u00e9","m":{"caf\u00e9":"a\ufffd"}}',
        '{"m":{}}',
    ]


def test_formats_decimals_like_big_decimal() -> None:
    values = [Decimal("1"), Decimal("0.0000001"), Decimal("0"), Decimal("-1.5")]
    assert encode_values(pa.decimal128(20, 10), *values) == ["1.0000000000", "1.000E-7", "0E-10", "-1.5000000000"]
    assert encode_values(pa.decimal128(38, 0), Decimal(10**37)) == ["1" + "0" * 37]


def test_map_keys_are_spark_internal_numbers_for_dates_and_times() -> None:
    day, time = dt.date(2024, 1, 1), dt.datetime(2024, 1, 1)
    assert encode_values(pa.map_(pa.date32(), pa.int32()), [(day, 1)]) == ['{"19723":1}']
    assert encode_values(pa.map_(pa.timestamp("us", "UTC"), pa.int32()), [(time, 1)]) == ['{"1704067200000000":1}']
    assert encode_values(pa.map_(pa.float64(), pa.int32()), [(1e7, 1)]) == ['{"1.0E7":1}']
    entries = [(True, "x"), (False, None)]
    assert encode_values(pa.map_(pa.bool_(), pa.string()), entries) == ['{"true":"x","false":null}']


def test_encodes_large_strings_and_binaries() -> None:
    assert encode_values(pa.large_string(), "a", None) == ['"a"', ""]
    assert encode_values(pa.large_binary(), b"abc") == ['"YWJj"']


def test_null_parent_struct_becomes_tombstone() -> None:
    batch = pa.record_batch({"x": [1, 2], "payload": [{"a": 1, "b": "x"}, None]})
    fields = (pa.field("a", pa.int64()), pa.field("b", pa.string()))
    encoder = ColumnsEncoder(JsonFormat(), fields, (0, 1), struct_position=1)
    assert encoder.encode(batch).to_pylist() == [b'{"a":1,"b":"x"}', None]
    assert encoder.encode(batch.slice(1)).to_pylist() == [None]


def test_header_precedes_every_row() -> None:
    batch = pa.record_batch({"a": [1, None]})
    encoder = ColumnsEncoder(JsonFormat(), (pa.field("a", pa.int64()),), (0,), prefix=b"\0\0\0\0\7")
    assert encoder.encode(batch).to_pylist() == [b'\0\0\0\0\7{"a":1}', b"\0\0\0\0\7{}"]


def test_encodes_large_batch_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spark_kafka_sink.formats.encoder._MAX_BATCH_BYTES", 100)
    batch = pa.record_batch({"a": ["x" * 30] * 9, "b": range(9)})
    encoded = make_encoder(batch.schema).encode(batch)
    assert encoded.num_chunks > 1
    assert encoded.to_pylist() == reference_rows(batch)


def test_halves_batch_when_rows_exceed_array(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_above_two_rows(
        self: JsonFormat, names: Any, columns: Any, row_count: int, prefix: bytes = b""
    ) -> pa.Array:
        if row_count > 2:
            raise pa.lib.ArrowCapacityError("array cannot contain more than 2147483646 bytes")
        return encode_rows(self, names, columns, row_count, prefix)

    encode_rows = JsonFormat.encode_rows
    monkeypatch.setattr(JsonFormat, "encode_rows", raise_above_two_rows)
    batch = pa.record_batch({"a": range(7)})
    assert encode_batch(batch) == reference_rows(batch)


def test_encoder_can_be_pickled() -> None:
    encoder = ColumnsEncoder(JsonFormat(), (pa.field("a", pa.int64()),), (0,), struct_position=3, prefix=b"x")
    assert pickle.loads(pickle.dumps(encoder)) == encoder


@pytest.mark.parametrize(
    ("data_type", "message"),
    [
        (pa.duration("us"), "column a of type duration[us] cannot be written as JSON"),
        (pa.list_(pa.duration("us")), "column a.element of type duration[us] cannot be written"),
        (pa.struct([("x", pa.month_day_nano_interval())]), "column a.x of type"),
        (pa.map_(pa.binary(), pa.int32()), "column a: a map with keys of type binary cannot be written as JSON"),
        (pa.map_(pa.list_(pa.int32()), pa.int32()), "cast the keys to strings"),
    ],
    ids=str,
)
def test_rejects_unsupported_type_with_its_name(data_type: pa.DataType, message: str) -> None:
    with pytest.raises(SchemaError) as caught:
        check_json_type(data_type, "a")
    assert message in str(caught.value)


def test_encoder_does_not_import_pandas() -> None:
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

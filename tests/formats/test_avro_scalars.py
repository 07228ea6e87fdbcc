"""Writers of Avro's scalar types, compared with fastavro."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kafka_sink.errors import InvalidRecordError, SchemaError
from spark_kafka_sink.formats.avro import build_record_writer
from spark_kafka_sink.formats.avro_scalars import build_scalar_writer
from spark_kafka_sink.formats.avro_schema import derive_avro_schema
from tests.formats.avro_reference import (
    encode,
    encode_with_fastavro,
    field_schema,
    fixed_decimal_schema,
    logical_schema,
    record_schema,
)


@given(st.lists(st.none() | st.decimals(-(10**18), 10**18, places=4), min_size=1, max_size=6))
def test_decimals_have_minimum_size_or_size_of_fixed_type(values: list[Decimal | None]) -> None:
    batch = pa.record_batch({"a": pa.array(values, pa.decimal128(38, 4))})
    fixed = {"type": "fixed", "name": "f", "size": 16, "logicalType": "decimal", "precision": 38, "scale": 4}
    for avro_type in (logical_schema("bytes", "decimal", precision=38, scale=4), fixed):
        schema = record_schema(field_schema("a", ["null", avro_type]))
        assert encode(schema, batch) == encode_with_fastavro(schema, batch)


@pytest.mark.parametrize("size", [16, 17, 25, 33])
def test_extends_sign_of_decimals_to_size_of_fixed_type(size: int) -> None:
    values = [Decimal(edge) for edge in (0, 1, -1, 2**63, -(2**63) - 1, 10**35, -(10**35))]
    batch = pa.record_batch({"a": pa.array([*values, None], pa.decimal128(36, 0))})
    schema = record_schema(field_schema("a", ["null", fixed_decimal_schema("a", size, 36, 0)]))
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def test_accepts_precision_that_fits_large_fixed_type() -> None:
    arguments = (("a",), (pa.decimal128(1, 0),))
    build_record_writer(record_schema(field_schema("a", fixed_decimal_schema("a", 17, 40, 0))), *arguments)
    with pytest.raises(SchemaError, match="17 bytes for a decimal of precision 41, but they hold at most 40 digits"):
        build_record_writer(record_schema(field_schema("a", fixed_decimal_schema("a", 17, 41, 0))), *arguments)


@pytest.mark.parametrize("size", [16, "x"])
def test_ignores_size_of_decimals_in_bytes(size: Any) -> None:
    """Only Avro's fixed type has a size."""
    decimals = pa.array([Decimal("1.00"), Decimal("-300.00")], pa.decimal128(10, 2))
    batch = pa.record_batch({"a": decimals, "b": ["x", ""]})
    schemas = [logical_schema("bytes", "decimal", precision=10, scale=2, **extra) for extra in ({}, {"size": size})]
    expected, encoded = (
        encode(record_schema(field_schema("a", avro_type), field_schema("b", "string")), batch) for avro_type in schemas
    )
    assert encoded == expected


def test_encodes_decimals_of_every_size() -> None:
    edges = [sign * (2**bits + attributes) for bits in range(126) for attributes in (-1, 0, 1) for sign in (1, -1)]
    batch = pa.record_batch({"a": pa.array([Decimal(edge) for edge in edges], pa.decimal128(38, 0))})
    schema = record_schema(field_schema("a", logical_schema("bytes", "decimal", precision=38, scale=0)))
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def test_encodes_integers_of_every_size() -> None:
    edges = [sign * 2**bits + attributes for bits in range(63) for attributes in (-1, 0) for sign in (1, -1)]
    batch = pa.record_batch({"a": pa.array([*edges, -(2**63), 2**63 - 1], pa.int64())})
    schema = record_schema(field_schema("a", "long"))
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def test_rejects_enum_value_that_is_not_utf8_and_shows_it() -> None:
    invalid = pa.array([b"\xff"], pa.binary()).view(pa.string())
    with pytest.raises(InvalidRecordError, match=r"is not a symbol of the enum e") as caught:
        encode(
            record_schema(field_schema("a", {"type": "enum", "name": "e", "symbols": ["A"]})),
            pa.record_batch({"a": invalid}),
        )
    assert "\\xff" in str(caught.value)


def test_replaces_invalid_utf8_in_strings_but_not_in_bytes() -> None:
    invalid = pa.array([b"caf\xe9", None, "caf\u00e9".encode()])
    valid_texts = pa.array(["caf\ufffd", None, "caf\u00e9"])
    invalid_batch = pa.record_batch(
        {
            "s": invalid.view(pa.string()),
            "l": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), invalid.view(pa.string())),
            "m": pa.MapArray.from_arrays(
                pa.array([0, 1, 2, 2], pa.int32()), invalid.drop_null().view(pa.string()), invalid.drop_null()
            ),
            "b": invalid,
        }
    )
    valid_batch = pa.record_batch(
        {
            "s": valid_texts,
            "l": pa.ListArray.from_arrays(pa.array([0, 1, 3, 3], pa.int32()), valid_texts),
            "m": pa.MapArray.from_arrays(
                pa.array([0, 1, 2, 2], pa.int32()), valid_texts.drop_null(), invalid.drop_null()
            ),
            "b": invalid,
        }
    )
    schema = derive_avro_schema(list(valid_batch.schema), None, null_first=False)
    assert encode(schema, invalid_batch) == encode_with_fastavro(schema, valid_batch)


def test_rejects_bytes_whose_size_differs_from_fixed_type() -> None:
    with pytest.raises(InvalidRecordError, match="the schema's fixed type has 3 bytes"):
        encode(
            record_schema(field_schema("a", {"type": "fixed", "name": "f", "size": 3})), pa.record_batch({"a": [b"ab"]})
        )


@pytest.mark.parametrize("is_nullable", [False, True])
def test_rejects_fixed_type_that_is_too_small_for_decimals(is_nullable: bool) -> None:
    """For example, 9,999,999,999 does not fit into four bytes."""
    for size, precision in ((4, 10), (0, 1), (16, 39), (16, 2**31 - 1)):
        digits = {"logicalType": "decimal", "precision": precision, "scale": 0}
        avro_type = {"type": "fixed", "name": "f", "size": size, **digits}
        with pytest.raises(SchemaError, match=rf"column a: .* {size} bytes .*precision {precision}"):
            build_record_writer(
                record_schema(field_schema("a", ["null", avro_type] if is_nullable else avro_type)),
                ("a",),
                (pa.decimal128(1, 0),),
            )
    build_record_writer(
        record_schema(field_schema("a", fixed_decimal_schema("a", 4, 9, 0))), ("a",), (pa.decimal128(9, 0),)
    )


@pytest.mark.parametrize(
    ("schema", "data_type"),
    [
        ("boolean", pa.int32()),
        ("float", pa.float64()),
        ("string", pa.int64()),
        ("bytes", pa.string()),
        ({"type": "fixed", "name": "f", "size": 3}, pa.string()),
        ({"type": "enum", "name": "e", "symbols": ["A"]}, pa.binary()),
        (logical_schema("bytes", "decimal", precision=5, scale=2), pa.int64()),
        (logical_schema("bytes", "decimal", precision=5, scale=2), pa.decimal128(5, 1)),
        (logical_schema("bytes", "decimal", precision=5, scale=2), pa.decimal128(6, 2)),
        (fixed_decimal_schema("a", 16, 5, 2), pa.int64()),
        (logical_schema("long", "timestamp-micros"), pa.timestamp("us")),
        (logical_schema("long", "local-timestamp-micros"), pa.timestamp("us", "UTC")),
        (logical_schema("long", "timestamp-micros"), pa.time64("ns")),
    ],
    ids=str,
)
def test_rejects_column_whose_type_does_not_fit(schema: Any, data_type: pa.DataType) -> None:
    with pytest.raises(SchemaError, match=r"column a has type .*, which cannot be written as Avro type"):
        build_scalar_writer(schema, data_type, "a")


@pytest.mark.parametrize(
    ("schema", "data_type"),
    [
        *((logical_schema("int", f"timestamp-{unit}"), pa.timestamp("us", "UTC")) for unit in ("millis", "micros")),
        *((logical_schema("int", f"local-timestamp-{unit}"), pa.timestamp("us")) for unit in ("millis", "micros")),
        (logical_schema("int", "time-micros"), pa.time64("ns")),
        (logical_schema("long", "time-millis"), pa.time64("ns")),
        (logical_schema("bytes", "decimal"), pa.decimal128(4, 2)),
        (logical_schema("bytes", "decimal", precision=4, scale=5), pa.decimal128(4, 2)),
        (logical_schema("bytes", "decimal", precision=0), pa.decimal128(1, 0)),
        (logical_schema("string", "decimal", precision=4, scale=2), pa.decimal128(4, 2)),
        (fixed_decimal_schema("a", 4, 10, 2), pa.int64()),
        ({**fixed_decimal_schema("a", 4, 10, 2), "precision": "10"}, pa.decimal128(4, 2)),
    ],
    ids=str,
)
def test_rejects_column_that_fits_only_invalid_logical_type(schema: Any, data_type: pa.DataType) -> None:
    """Readers would ignore the logical type. They could not even read a timestamp in microseconds as an int."""
    with pytest.raises(
        SchemaError, match=f"whose logical type {schema['logicalType']} is invalid and therefore ignored"
    ):
        build_scalar_writer(schema, data_type, "a")


@pytest.mark.parametrize(
    ("avro_type", "column"),
    [
        (logical_schema("int", "timestamp-millis"), pa.array([5, -1], pa.int32())),
        (logical_schema("bytes", "decimal"), pa.array([b"a", b""])),
        (logical_schema("bytes", "decimal", precision="4"), pa.array([b"a", b""])),
        (fixed_decimal_schema("a", 2, 10, 0), pa.array([b"ab"])),
        (logical_schema("string", "decimal", precision=4), pa.array(["a", ""])),
        (logical_schema("long", "date"), pa.array([dt.date(2024, 2, 29)], pa.date32())),
    ],
    ids=str,
)
def test_ignores_invalid_logical_type(avro_type: Any, column: pa.Array) -> None:
    batch = pa.record_batch({"a": column})
    numbers = pa.record_batch({"a": column.view(pa.int32())}) if pa.types.is_date32(column.type) else batch
    plain_type = {name: value for name, value in avro_type.items() if name != "logicalType"}
    expected = encode_with_fastavro(record_schema(field_schema("a", plain_type)), numbers)
    assert encode(record_schema(field_schema("a", avro_type)), batch) == expected


def test_does_not_write_dates_as_unsupported_logical_type() -> None:
    with pytest.raises(SchemaError, match=r"cannot be written as Avro type long \(timestamp-nanos\)"):
        build_scalar_writer(logical_schema("long", "timestamp-nanos"), pa.date32(), "a")

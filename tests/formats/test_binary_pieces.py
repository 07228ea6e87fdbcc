"""Pieces of binary rows: nulls and unselected rows contribute no bytes, whatever their buffers contain."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from spark_kafka_sink.formats.binary_pieces import split_lengths_and_bytes
from tests.formats.avro_reference import encode, encode_with_fastavro, field_schema, record_schema

SECOND_IS_NULL = pa.py_buffer(bytes([0b101]))


def test_null_whose_buffer_has_bytes_becomes_empty_value() -> None:
    """Arrow allows bytes in the place of a null, for instance in the result of a filter."""
    offsets, data = pa.py_buffer(np.array([0, 1, 4, 5], np.int32)), pa.py_buffer(b"axxxb")
    column = pa.Array.from_buffers(pa.binary(), 3, [SECOND_IS_NULL, offsets, data])
    lengths, values = split_lengths_and_bytes(column)
    assert lengths.tolist() == [1, 0, 1]
    assert (values.to_pylist(), values.null_count) == ([b"a", b"", b"b"], 0)
    schema = record_schema(field_schema("a", ["null", "bytes"]))
    batch = pa.record_batch({"a": column})
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)


def test_elements_of_null_list_are_neither_written_nor_checked() -> None:
    """Arrow allows elements in the place of a null list, too. Here they violate the schema."""
    offsets = pa.py_buffer(np.array([0, 1, 3, 4], np.int32))
    elements = pa.array(["A", "unknown", "unknown", "B"])
    column = pa.Array.from_buffers(pa.list_(pa.string()), 3, [SECOND_IS_NULL, offsets], children=[elements])
    enum = {"type": "enum", "name": "e", "symbols": ["A", "B"]}
    schema = record_schema(field_schema("a", ["null", {"type": "array", "items": enum}]))
    batch = pa.record_batch({"a": column})
    assert encode(schema, batch) == encode_with_fastavro(schema, batch)

"""Small tools to put columns of bytes together: constants, joins, choices, rows of one width.

An encoder of a nested type makes one binary array for each part and joins them row by row in one call of Arrow. What a
join costs grows with the number of its pieces (10 to 15 ns for each row and piece), so neighbouring constants belong
into one piece.

Constants are built from bytes here and not by `pa.scalar`, which imports pandas (see `records/arrays.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from spark_kafka_sink.records.arrays import EMPTY_BYTES, bytes_to_arrow, null_mask, numbers_to_arrow

_BINARY = pa.binary()


@lru_cache(maxsize=4096)
def constant(data: bytes) -> pa.Scalar:
    """A piece that is the same in every row."""
    return bytes_to_arrow([data])[0]


def as_binary(array: pa.Array) -> pa.Array:
    """A string or binary array as binary with 32-bit offsets; its bytes are copied only if its offsets were wider."""
    if array.type == _BINARY:
        return array
    if pa.types.is_string(array.type):
        return array.view(_BINARY)
    return array.cast(_BINARY)


def text_for_error(texts: pa.Array, row: int) -> str:
    """Return one text of an array of strings. Spark hands over strings that are not UTF-8: it casts any bytes."""
    text: bytes = as_binary(texts)[row].as_py()
    return text.decode("utf-8", "backslashreplace")


def is_text(kind: pa.DataType) -> bool:
    """Spark hands text over with wide offsets where spark.sql.execution.arrow.useLargeVarTypes is set."""
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def text_of(array: pa.Array) -> pa.Array:
    """Arrow's own text for numbers and decimals, as binary."""
    return array.cast(pa.string()).view(_BINARY)


def join(*pieces: Any) -> pa.Array:
    """The pieces of each row one after the other. A row is null where one of its pieces is."""
    return pc.binary_join_element_wise(*pieces, EMPTY_BYTES)


def join_present(*pieces: Any) -> pa.Array:
    """The pieces of each row one after the other, without those that are null."""
    return pc.binary_join_element_wise(*pieces, EMPTY_BYTES, null_handling="replace", null_replacement="")


def constant_rows(data: bytes, rows: int) -> pa.Array:
    """An array whose rows are all the same."""
    return chosen(np.zeros(rows, np.int64), [data])


def chosen(which: NDArray[Any], texts: Sequence[bytes]) -> pa.Array:
    """For each row the text with this number."""
    return bytes_to_arrow(texts).take(numbers_to_arrow(which.astype(np.int64, copy=False)))


def either(mask: NDArray[np.bool_], yes: Any, no: Any) -> pa.Array:
    """`yes` in the rows of the mask, `no` in the others; each is an array or a constant."""
    bits = pa.py_buffer(np.packbits(mask, bitorder="little"))
    return pc.if_else(pa.Array.from_buffers(pa.bool_(), len(mask), [None, bits]), yes, no)


def fixed_rows(table: NDArray[np.uint8], nulls: NDArray[np.bool_] | None = None) -> pa.Array:
    """A binary array of a table of bytes: each of its rows is a row."""
    rows, width = table.shape
    offsets = np.arange(rows + 1, dtype=np.int32) * np.int32(width)
    data = pa.py_buffer(np.ascontiguousarray(table))
    return pa.Array.from_buffers(_BINARY, rows, [_validity(nulls), pa.py_buffer(offsets), data])


def with_nulls_of(array: pa.Array, source: pa.Array) -> pa.Array:
    """`array`, which has no nulls, with nulls in the rows where `source` has them."""
    return with_nulls(array, null_mask(source)) if source.null_count else array


def with_nulls(array: pa.Array, nulls: NDArray[np.bool_]) -> pa.Array:
    """`array` with nulls in these rows, in place of the ones that it has."""
    _, offsets, data = array.buffers()
    validity = np.zeros(array.offset + len(array), np.bool_)
    validity[array.offset :] = nulls
    return pa.Array.from_buffers(_BINARY, len(array), [_validity(validity), offsets, data], offset=array.offset)


def in_place_of_nulls(array: pa.Array, data: bytes) -> pa.Array:
    """`array` with these bytes where it is null."""
    return pc.fill_null(array, constant(data)) if array.null_count else array


def merged(groups: Sequence[tuple[NDArray[np.int64], pa.Array]], rows: int) -> pa.Array:
    """One array from groups of rows: for each group the places of its rows, and their bytes."""
    source = np.empty(rows, np.int64)
    end = 0
    for places, _ in groups:
        source[places] = np.arange(end, end + len(places))
        end += len(places)
    return pa.concat_arrays([array for _, array in groups]).take(numbers_to_arrow(source))


def take(array: pa.Array, places: NDArray[np.int64]) -> pa.Array:
    """The rows at these places."""
    return array.take(numbers_to_arrow(places))


def _validity(nulls: NDArray[np.bool_] | None) -> pa.Buffer | None:
    return None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))

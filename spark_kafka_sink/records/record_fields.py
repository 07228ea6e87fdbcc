"""The numbers of a record, as fields: those in front of the key, and those between key and value.

The first of them is the record's length, which follows from all the others.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.errors import RecordTooLargeError
from spark_kafka_sink.records.arrays import OFFSETS_MAX
from spark_kafka_sink.records.varint import Field, constant, merge, total_width, varint_fields

ZERO = constant(b"\0")
LENGTH_BYTES_MAX = 5
"""What the length of a record takes itself."""


class Rows(NamedTuple):
    """What is known of some records besides their columns."""

    total: int
    timestamp_delta: list[Field]
    offset_delta: list[Field]


def record_fields(
    rows: Rows, key_length: NDArray[np.int64] | int, value_length: NDArray[np.int64] | int, header_bytes: Any
) -> tuple[list[Field], list[Field]]:
    """What stands before the key, and what stands between key and value; lengths are Kafka's, -1 for null."""
    before_key = varint_fields(key_length)
    middle = varint_fields(value_length)
    length: Any = 1 + header_bytes + total_width(rows.timestamp_delta + rows.offset_delta + before_key + middle)
    length = length + _payload(key_length) + _payload(value_length)
    check_total(int(length.sum()) if isinstance(length, np.ndarray) else length * rows.total, rows.total)
    return [*varint_fields(length), *merge([ZERO, *rows.timestamp_delta]), *rows.offset_delta, *before_key], middle


def check_total(record_bytes: int, count: int) -> None:
    if record_bytes + count * LENGTH_BYTES_MAX > OFFSETS_MAX:
        raise RecordTooLargeError(
            f"{count} records of {record_bytes} bytes cannot be one batch: it holds less than 2 GiB"
        )


def _payload(length: NDArray[np.int64] | int) -> Any:
    if isinstance(length, int):
        return max(0, length)
    return length if np.minimum.reduce(length) >= 0 else np.maximum(length, 0)

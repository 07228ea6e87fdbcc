"""Slices as rows, one object for each, for tests; the product has them as columns (records/cutting.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.cutting import BatchSlice, PartitionSlices, batch_slices
from spark_kafka_sink.records.encoder import EncodedSlice, encode_slices
from spark_kafka_sink.records.header import HEADER_BYTES


class PartitionSlice(NamedTuple):
    """One line of PartitionSlices."""

    start: int
    stop: int
    open_records: int = 0
    open_bytes: int = HEADER_BYTES
    base_timestamp: int | None = None


def partition_slices(rows: Sequence[PartitionSlice]) -> PartitionSlices:
    """The columns of some slices."""
    return PartitionSlices(*zip(*rows, strict=True)) if rows else PartitionSlices((), (), (), (), ())


def encoded(
    columns: RecordColumns, rows: Sequence[BatchSlice], now_ms: int, order: NDArray[np.int32] | None = None
) -> list[EncodedSlice]:
    """The records of some slices."""
    return encode_slices(columns, batch_slices(rows), now_ms, order)

"""Slices as one object each, for tests. The package keeps them as columns (records/batch_slicing.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.records.batch_slicing import BatchSlices, PartitionSlices
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import HEADER_BYTES


class PartitionSlice(NamedTuple):
    """One slice of PartitionSlices."""

    start: int
    stop: int
    open_record_count: int = 0
    open_batch_bytes: int = HEADER_BYTES
    base_timestamp: int | None = None


def partition_slices(rows: Sequence[PartitionSlice]) -> PartitionSlices:
    """Convert slices to columns."""
    return PartitionSlices(*zip(*rows, strict=True)) if rows else PartitionSlices((), (), (), (), ())


class BatchSlice(NamedTuple):
    """One slice of BatchSlices."""

    partition_index: int
    start: int
    stop: int
    first_offset_delta: int = 0
    base_timestamp: int | None = None


def to_rows(slices: BatchSlices) -> list[BatchSlice]:
    return [BatchSlice(*row) for row in zip(*slices, strict=True)]


class EncodedSlice(NamedTuple):
    """One encoded slice. `segment` keeps its memory alive."""

    segment: memoryview
    record_count: int
    base_timestamp: int
    max_timestamp: int


def encode_slices(
    columns: RecordColumns, rows: Sequence[BatchSlice], now_ms: int, order: NDArray[np.int32] | None = None
) -> list[EncodedSlice]:
    """Encode the records of the slices."""
    slices = BatchSlices(*zip(*rows, strict=True)) if rows else BatchSlices((), (), (), (), ())
    return [
        EncodedSlice(buffer.get_segment(number), *header_fields)
        for buffer in encode_records(columns, slices, now_ms, order)
        for number, header_fields in enumerate(
            zip(buffer.record_counts, buffer.base_timestamps, buffer.max_timestamps, strict=True)
        )
    ]

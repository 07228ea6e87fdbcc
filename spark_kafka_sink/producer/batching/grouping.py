"""Grouping: the order in which staged rows are encoded. The only place that orders rows; pure.

One stable sort of the partition numbers finds an order in which the rows of a partition are neighbours, as they were
given. The columns stay as they came: the encoder reads them in that order. Single records become columns first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.row_origins import RowOrigins
from spark_kafka_sink.producer.batching.staging import GROUPED_BYTES_MAX, StagedRecords
from spark_kafka_sink.producer.partitioner import NOT_NAMED
from spark_kafka_sink.producer.record import Headers
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.arrays import bytes_to_arrow, numbers_to_arrow
from spark_kafka_sink.records.batch_slicing import PartitionSlices
from spark_kafka_sink.records.byte_column import read_byte_column
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.record_sizes import record_size_bounds

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_FEW_ROWS = 64


PartitionsOf = Callable[[Rows, ClusterSnapshot], NDArray[np.int32]]
"""From rows to the partition of each."""


class GroupedRows(NamedTuple):
    """partitions[i] has the rows [starts[i], starts[i + 1]), counted in the order of `sizes` and `origins`."""

    columns: RecordColumns
    order: NDArray[np.int32] | None
    """For each row its index in the columns, which stay as they came. None: they came in order."""
    sizes: NDArray[np.int64]
    partitions: list[int]
    starts: list[int]
    origins: RowOrigins

    def slices(self, pinned: Sequence[ProducerBatch | None]) -> PartitionSlices:
        """Where the rows of each partition are, and the open batch that they go on in."""
        records = [0 if batch is None else batch.record_count for batch in pinned]
        filled = [HEADER_BYTES if batch is None else HEADER_BYTES + batch.body_bytes for batch in pinned]
        bases = [None if batch is None else batch.base_timestamp for batch in pinned]
        return PartitionSlices(self.starts[:-1], self.starts[1:], records, filled, bases)


def compatible(staged: Sequence[Rows]) -> Iterator[list[Rows]]:
    """Runs of neighbours that can be grouped together: not too many bytes, and headers of one type."""
    together: list[Rows] = []
    kind: Any = None
    total = 0
    for rows in staged:
        size = int(np.add.reduce(rows.sizes))
        own = None if rows.columns.headers is None else rows.columns.headers.type
        differs = own is not None and kind is not None and own != kind
        if together and (differs or total + size > GROUPED_BYTES_MAX):
            yield together
            together, kind, total = [], None, 0
        kind = kind if own is None else own
        together.append(rows)
        total += size
    if together:
        yield together


def group(staged: Sequence[Rows]) -> GroupedRows:
    """Find the order of rows by partition; rows of one partition keep theirs."""
    columns = RecordColumns.concat([rows.columns for rows in staged])
    for rows in staged:
        del rows.columns
    partitions = _joined([rows.partitions for rows in staged])
    counts = staged[0].counts if len(staged) == 1 else np.bincount(partitions)
    with_rows = counts.nonzero()[0]
    order = _order_of(partitions, len(counts)) if len(with_rows) > 1 else None
    return GroupedRows(
        columns,
        None if order is None else order.astype(np.int32),
        _ordered(_joined([rows.sizes for rows in staged]), order),
        with_rows.tolist(),
        [0, *counts[with_rows].cumsum().tolist()],
        _origins(staged, order),
    )


def _order_of(partitions: NDArray[np.int32], stop: int) -> NDArray[np.intp] | None:
    """Return the permutation that sorts, or None if already sorted. All partitions are below `stop`."""
    return None if _in_order(partitions) else _narrow(partitions, stop).argsort(kind="stable")


def _ordered(values: NDArray[Any], order: NDArray[np.intp] | None) -> NDArray[Any]:
    return values if order is None else values.take(order)


def _origins(staged: Sequence[Rows], order: NDArray[np.intp] | None) -> RowOrigins:
    """Return each row's call and its index in that call, in this order."""
    row_indices = _ordered(_joined([rows.row_indices for rows in staged]), order)
    calls = list(dict.fromkeys([rows.call for rows in staged]))
    if len(calls) == 1:
        return RowOrigins(row_indices, calls)
    number_of = {call: number for number, call in enumerate(calls)}
    numbers = np.array([number_of[rows.call] for rows in staged], np.int32).repeat([len(rows) for rows in staged])
    return RowOrigins(row_indices, calls, _ordered(numbers, order))


def rows_of_records(staged: StagedRecords, partitions_of: PartitionsOf) -> Rows:
    """Make columns of single records. Their sizes get smaller: that of a single record counts each number at its
    widest."""
    values, keys, headers, named, timestamps = zip(*staged.records, strict=True)
    count = len(values)
    times = np.fromiter(timestamps, np.int64, count)
    columns = RecordColumns(
        value=bytes_to_arrow(values),
        key=None if keys.count(None) == count else bytes_to_arrow(keys),
        headers=_header_column(headers) if any(headers) else None,
        timestamp=numbers_to_arrow(times),
    )
    none_named = named.count(None) == count
    given = None if none_named else np.fromiter((NOT_NAMED if to is None else to for to in named), np.int32, count)
    rows = Rows(staged.call, np.arange(count), columns, record_size_bounds(columns), given)
    partitions = partitions_of(rows, staged.snapshot)
    staged.call.describe(times, _lengths(columns.key, count), _lengths(columns.value, count))
    return rows.assign(partitions)


def _lengths(column: ArrowColumn | None, count: int) -> NDArray[np.int32]:
    return np.full(count, -1, np.int32) if column is None else read_byte_column(combine_chunks(column)).lengths


def _header_column(headers: Sequence[Headers | None]) -> pa.Array:
    pairs = [pair for some in headers for pair in some or ()]
    keys = bytes_to_arrow([key.encode() for key, _ in pairs], pa.string())
    values = bytes_to_arrow([value for _, value in pairs], pa.binary())
    structs = pa.StructArray.from_arrays([keys, values], fields=[*HEADERS_TYPE.value_type])
    ends = np.cumsum([0, *(len(some or ()) for some in headers)], dtype=np.int32)
    return pa.ListArray.from_arrays(numbers_to_arrow(ends), structs, type=HEADERS_TYPE)


def _joined(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _in_order(partitions: NDArray[np.int32]) -> bool:
    """Are the partitions ascending? Check the first rows first: that mostly decides it."""
    return not any((rows[1:] < rows[:-1]).any() for rows in (partitions[:_FEW_ROWS], partitions))


def _narrow(partitions: NDArray[np.int32], stop: int) -> NDArray[Any]:
    """Few bytes per number make the stable sort a radix sort. All are below `stop`."""
    return partitions.astype(np.uint8 if stop <= 1 << 8 else np.uint16 if stop <= 1 << 16 else np.int32)

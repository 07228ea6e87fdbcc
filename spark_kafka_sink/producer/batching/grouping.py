"""Grouping of staged rows by partition before they are encoded.

A stable sort of the partition numbers brings each partition's rows together and keeps them in order. Nothing else
reorders rows. The columns themselves stay as they are: the encoder reads their rows in the sorted order. Single records
from send() are converted to columns first.

The rows come in entries, the parts of a stage (staging.py): the rows of one call, or consecutive single records.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.row_groups import RowGroup
from spark_kafka_sink.producer.batching.staging import MAX_GROUPED_BYTES, StagedRecords
from spark_kafka_sink.producer.partitioner import UNSPECIFIED_PARTITION
from spark_kafka_sink.producer.record import Headers
from spark_kafka_sink.producer.rows import Rows
from spark_kafka_sink.records.arrays import bytes_to_arrow, numbers_to_arrow, to_narrowest_dtype
from spark_kafka_sink.records.batch_slicing import PartitionSlices
from spark_kafka_sink.records.byte_column import read_byte_column
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds

HEADERS_TYPE = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
"""The Arrow type of the headers column into which the headers of single records are converted."""

_PROBED_ROWS = 64
"""Number of rows at the beginning that `_is_ascending` checks before it checks all rows."""


class AssignPartitions(Protocol):
    """A function that returns the partition of each row."""

    def __call__(self, rows: Rows, snapshot: ClusterSnapshot, /) -> NDArray[np.int32]: ...


class GroupedRows(NamedTuple):
    """Rows that are encoded together, grouped by partition.

    The rows have two orders: the staged order, in which they arrived, and the grouped order, in which they are encoded.
    In grouped order, the rows [partition_starts[i], partition_starts[i + 1]) belong to partitions[i].

    Example: five rows of the partitions [7, 3, 7, 7, 3], in staged order, have

        row_order           [1, 4, 0, 2, 3]
        partitions          [3, 7]
        partition_starts    [0, 2, 5]
    """

    columns: RecordColumns
    """The rows in staged order."""
    row_order: NDArray[np.int32] | None
    """For each row in grouped order, its index in `columns`; None if both orders are the same."""
    sizes: NDArray[np.int64]
    """For each row in grouped order, an upper bound on its encoded size."""
    partitions: list[int]
    """The partitions that have rows, in ascending order."""
    partition_starts: list[int]
    """For each partition, the index of its first row in grouped order. The last item is the total number of rows."""
    row_group: RowGroup
    """For each row in grouped order, the call that it came from and its index in that call."""

    def build_partition_slices(self, open_batches: Sequence[ProducerBatch | None]) -> PartitionSlices:
        """Return the row range of each partition, and the size of the open batch to which these rows can be appended.

        `open_batches`: the open batch of each partition; None if the partition has none.
        """
        record_counts = [0 if batch is None else batch.record_count for batch in open_batches]
        batch_sizes = [HEADER_BYTES if batch is None else HEADER_BYTES + batch.body_bytes for batch in open_batches]
        base_timestamps = [None if batch is None else batch.base_timestamp for batch in open_batches]
        return PartitionSlices(
            self.partition_starts[:-1], self.partition_starts[1:], record_counts, batch_sizes, base_timestamps
        )


def split_into_row_groups(entries: Sequence[Rows]) -> Iterator[list[Rows]]:
    """Split a stage's entries into row groups: lists of consecutive entries whose rows are encoded together.

    Within a group, the header columns all have the same Arrow type. A group has at most MAX_GROUPED_BYTES, unless it
    consists of a single entry.
    """
    group: list[Rows] = []
    group_headers_type: Any = None
    group_bytes = 0
    for rows in entries:
        rows_bytes = int(np.add.reduce(rows.sizes))
        headers_type = None if rows.columns.headers is None else rows.columns.headers.type
        have_both_headers = headers_type is not None and group_headers_type is not None
        has_other_headers_type = have_both_headers and headers_type != group_headers_type
        if group and (has_other_headers_type or group_bytes + rows_bytes > MAX_GROUPED_BYTES):
            yield group
            group, group_headers_type, group_bytes = [], None, 0
        group_headers_type = group_headers_type if headers_type is None else headers_type
        group.append(rows)
        group_bytes += rows_bytes
    if group:
        yield group


def group_by_partition(entries: Sequence[Rows]) -> GroupedRows:
    """Sort the rows of some entries by partition, keeping each partition's rows in order.

    The columns of the entries are deleted, so that their memory is available for the encoded records.
    """
    columns = RecordColumns.concat([rows.columns for rows in entries])
    for rows in entries:
        del rows.columns
    partitions = _concatenate([rows.partitions for rows in entries])
    row_counts = entries[0].row_counts if len(entries) == 1 else np.bincount(partitions)
    nonempty_partitions = row_counts.nonzero()[0]
    row_order = _find_row_order(partitions, len(row_counts)) if len(nonempty_partitions) > 1 else None
    return GroupedRows(
        columns=columns,
        row_order=None if row_order is None else row_order.astype(np.int32),
        sizes=_reorder(_concatenate([rows.sizes for rows in entries]), row_order),
        partitions=nonempty_partitions.tolist(),
        partition_starts=[0, *row_counts[nonempty_partitions].cumsum().tolist()],
        row_group=_build_row_group(entries, row_order),
    )


def _find_row_order(partitions: NDArray[np.int32], partition_count: int) -> NDArray[np.intp] | None:
    """Return the row indices that sort the rows by partition, or None if the rows are already sorted.

    `partition_count`: a number that is greater than all partition numbers.
    """
    if _is_ascending(partitions):
        return None
    return to_narrowest_dtype(partitions, partition_count - 1).argsort(kind="stable")


def _reorder(row_values: NDArray[Any], row_order: NDArray[np.intp] | None) -> NDArray[Any]:
    """Rearrange an array with one value per row from staged to grouped order (see GroupedRows)."""
    return row_values if row_order is None else row_values.take(row_order)


def _build_row_group(entries: Sequence[Rows], row_order: NDArray[np.intp] | None) -> RowGroup:
    """Return, in grouped order, the call of each row of the entries and the row's index in that call."""
    row_indices = _reorder(_concatenate([rows.row_indices for rows in entries]), row_order)
    calls = list(dict.fromkeys([rows.call for rows in entries]))  # several entries may have the same call
    if len(calls) == 1:
        return RowGroup(row_indices, calls)
    index_by_call = {call: index for index, call in enumerate(calls)}
    # Two entries with 2 and 3 rows, from the calls 0 and 1 -> [0, 0, 1, 1, 1].
    entry_call_indices = np.array([index_by_call[rows.call] for rows in entries], np.int32)
    call_indices = entry_call_indices.repeat([len(rows) for rows in entries])
    return RowGroup(row_indices, calls, _reorder(call_indices, row_order))


def convert_and_assign_records(staged_records: StagedRecords, assign_partitions: AssignPartitions) -> Rows:
    """Convert single records to columns, and assign them to partitions.

    Also store the timestamps and lengths of the records in their call, which needs them to build their results.

    The sizes of the resulting rows are tighter upper bounds than those of the staged records, which assume that every
    varint has its maximum length.
    """
    values, keys, headers, requested_partitions, timestamps = zip(*staged_records.records, strict=True)
    record_count = len(values)
    timestamp_array = np.fromiter(timestamps, np.int64, record_count)
    columns = RecordColumns(
        value=bytes_to_arrow(values),
        key=None if keys.count(None) == record_count else bytes_to_arrow(keys),
        headers=_build_headers_column(headers) if any(headers) else None,
        timestamp=numbers_to_arrow(timestamp_array),
    )
    rows = Rows(
        call=staged_records.call,
        row_indices=np.arange(record_count),
        columns=columns,
        sizes=compute_record_size_bounds(columns),
        requested_partitions=_build_requested_partitions(requested_partitions),
    )
    assigned_partitions = assign_partitions(rows, staged_records.snapshot)
    staged_records.call.set_record_fields(
        timestamp_array,
        _compute_byte_lengths(columns.key, record_count),
        _compute_byte_lengths(columns.value, record_count),
    )
    return rows.assign(assigned_partitions)


def _build_requested_partitions(partitions: Sequence[int | None]) -> NDArray[np.int32] | None:
    """Return the partition that each record requests, or None if no record requests one."""
    if partitions.count(None) == len(partitions):
        return None
    return np.fromiter(
        (UNSPECIFIED_PARTITION if partition is None else partition for partition in partitions),
        np.int32,
        len(partitions),
    )


def _compute_byte_lengths(column: ArrowColumn | None, row_count: int) -> NDArray[np.int32]:
    """Return the length of each value in bytes; -1 for a null, and for all rows if the column is None."""
    return np.full(row_count, -1, np.int32) if column is None else read_byte_column(combine_chunks(column)).lengths


def _build_headers_column(headers: Sequence[Headers | None]) -> pa.Array:
    """Return a list column with the headers of each record. A record without headers gets an empty list."""
    all_headers = [header for record_headers in headers for header in record_headers or ()]
    keys = bytes_to_arrow([key.encode() for key, _ in all_headers], pa.string())
    values = bytes_to_arrow([value for _, value in all_headers], pa.binary())
    header_structs = pa.StructArray.from_arrays([keys, values], fields=[*HEADERS_TYPE.value_type])
    header_counts = [len(record_headers or ()) for record_headers in headers]
    offsets = np.cumsum([0, *header_counts], dtype=np.int32)  # for example, counts [2, 0, 3] -> offsets [0, 2, 2, 5]
    return pa.ListArray.from_arrays(numbers_to_arrow(offsets), header_structs, type=HEADERS_TYPE)


def _concatenate(arrays: list[NDArray[Any]]) -> NDArray[Any]:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _is_ascending(partitions: NDArray[np.int32]) -> bool:
    """Return whether the partitions never decrease from one row to the next.

    Unsorted rows usually show up among the first _PROBED_ROWS rows, so these are checked first.
    """
    return not _has_descent(partitions[:_PROBED_ROWS]) and not _has_descent(partitions)


def _has_descent(partitions: NDArray[np.int32]) -> bool:
    return bool((partitions[1:] < partitions[:-1]).any())

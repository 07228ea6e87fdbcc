"""Rows: the rows of one send call, stored as columns, and the checks that find rows that cannot be sent.

send_columns() finds all rows that cannot be sent before it stages any row. Invalid and oversized rows are found before
partitions are assigned, because the assignment hashes each key. Hashing a huge key takes long (about a second for
100 MB), and would be wasted on a row that is rejected anyway.

Two kinds of indices occur in this module. A row index identifies a row: it is the row's position in the columns that
the caller passed. A position is an index into the arrays of one Rows object, which may have fewer rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError, RecordTooLargeError
from spark_kafka_sink.producer.calls import FailedRows, SendCall
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import UNSPECIFIED_PARTITION, parse_requested_partitions
from spark_kafka_sink.records.arrays import integers_to_numpy
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds, find_invalid_rows

_MAX_LISTED_PARTITIONS = 5
"""Maximum number of missing partitions that an error message lists."""


@dataclass(slots=True, eq=False)
class Rows:
    """Rows of one send call, stored as columns, until they are grouped with the rows of other calls (grouping.py).

    The rows count as assigned once `assign` has set their partitions.
    """

    call: SendCall
    row_indices: NDArray[np.int64]
    """The index of each row in the call."""
    columns: RecordColumns
    """The row data. Deleted when the rows are grouped, to free memory for the encoded records."""
    sizes: NDArray[np.int64]
    """Upper bound on the encoded size of each row, in bytes (records/record_sizes.py)."""
    requested_partitions: NDArray[np.int32] | None
    """The partition that the caller requested for each row (partitioner.parse_requested_partitions).

    None if no row requests a partition, or once `assign` has been called.
    """
    partitions: NDArray[np.int32] = field(init=False, repr=False)
    """The assigned partition of each row; set by `assign`."""
    row_counts: NDArray[np.int64] = field(init=False, repr=False)
    """Number of rows of each partition, from partition 0 to the last one that has rows; set by `assign`."""

    def __len__(self) -> int:
        return len(self.row_indices)

    @property
    def futures_bytes(self) -> int:
        """Number of bytes of buffer.memory that are reserved for the futures of these rows."""
        return self.call.future_bytes_per_row * len(self)

    @property
    def highest_requested_partition(self) -> int:
        """The highest partition that a row requests; -1 if no row requests a partition that a topic can have."""
        if self.requested_partitions is None:
            return -1
        return int(np.maximum.reduce(self.requested_partitions, initial=-1))

    def exclude(self, failures: Sequence[FailedRows]) -> Rows:
        """Return the rows that are not among the failures."""
        if not failures:
            return self
        failed_row_indices = np.concatenate([failure.row_indices for failure in failures])
        return self._take(np.flatnonzero(~np.isin(self.row_indices, failed_row_indices)))

    def assign(self, partitions: NDArray[np.int32]) -> Rows:
        """Set the partition of each row. Return self."""
        self.requested_partitions = None
        self.partitions = partitions
        self.row_counts = np.bincount(partitions)
        return self

    def slice(self, start: int, stop: int) -> Rows:
        """Return the rows at the positions [start, stop). The rows must already be assigned to partitions."""
        if stop - start == len(self):
            return self
        rows = Rows(
            call=self.call,
            row_indices=self.row_indices[start:stop],
            columns=self.columns.slice(start, stop - start),
            sizes=self.sizes[start:stop],
            requested_partitions=None,
        )
        return rows.assign(self.partitions[start:stop])

    def split(self, partition_mask: NDArray[np.bool_]) -> tuple[Rows | None, Rows | None]:
        """Split assigned rows into the rows of the selected partitions and all other rows.

        A part that has no rows is None.

        `partition_mask`: for each partition, whether the partition is selected.
        """
        # The counts show whether any row is selected, without a scan of all rows.
        if not self.row_counts[partition_mask[: len(self.row_counts)]].any():
            return None, self
        row_mask = partition_mask[self.partitions]
        if row_mask.all():
            return self, None
        selected_positions, other_positions = np.flatnonzero(row_mask), np.flatnonzero(~row_mask)
        return (
            self._take(selected_positions).assign(self.partitions[selected_positions]),
            self._take(other_positions).assign(self.partitions[other_positions]),
        )

    def _take(self, positions: NDArray[np.int64]) -> Rows:
        """Return a copy of the rows at these positions. The copy is not assigned to partitions."""
        return Rows(
            call=self.call,
            row_indices=self.row_indices[positions],
            columns=self.columns.take(positions),
            sizes=self.sizes[positions],
            requested_partitions=None if self.requested_partitions is None else self.requested_partitions[positions],
        )


def build_rows(call: SendCall, columns: RecordColumns, partition: int | ArrowColumn | None) -> Rows:
    """Build the Rows of a call. They are not checked yet, and not assigned to partitions.

    `partition`: the partition of all rows, or a column with the partition of each row.

    Raise SchemaError if the partition column has another length than the columns, or does not contain integers.
    """
    row_count = columns.num_rows
    return Rows(
        call=call,
        row_indices=np.arange(row_count),
        columns=columns,
        sizes=compute_record_size_bounds(columns),
        requested_partitions=parse_requested_partitions(partition, row_count),
    )


def find_row_failures(topic: str, rows: Rows, config: ProducerConfig) -> list[FailedRows]:
    """Return one failure for each reason why rows are invalid or too large.

    A row appears only under its first reason.
    """
    max_record_bytes = min(config.max_request_size - HEADER_BYTES, config.buffer_memory)
    positions_by_reason = find_invalid_rows(rows.columns)
    if not positions_by_reason and np.maximum.reduce(rows.sizes) <= max_record_bytes:
        return []
    failures: list[FailedRows] = []
    is_valid = np.ones(len(rows), np.bool_)
    for reason, positions in positions_by_reason.items():
        new_positions = positions[is_valid[positions]]
        is_valid[new_positions] = False
        error = InvalidRecordError(f"{reason}.", destination=format_partition(topic))
        failures.append(FailedRows(rows.row_indices[new_positions], error, topic))
    oversized_positions = np.flatnonzero(is_valid & (rows.sizes > max_record_bytes))
    if len(oversized_positions):
        size_error = build_record_size_error(topic, int(rows.sizes[oversized_positions].max()), config)
        failures.append(FailedRows(rows.row_indices[oversized_positions], size_error, topic))
    return failures


def find_missing_partition_failures(
    topic: str, rows: Rows, snapshot: ClusterSnapshot, partition: int | ArrowColumn | None
) -> list[FailedRows]:
    """Return one failure with all rows that request a missing partition, or an empty list if there are none.

    `partition`: the argument of send_columns(), from which the error message gets the partition numbers.
    """
    if rows.requested_partitions is None or partition is None:
        return []
    known_partitions = snapshot.topics[topic].partitions
    # Two markers are below 0: INVALID_PARTITION counts as missing, and UNSPECIFIED_PARTITION does not. Only the search
    # below distinguishes them.
    lowest_partition = int(np.minimum.reduce(rows.requested_partitions, initial=0))
    # `known_partitions` is sorted by index, so its last index shows whether a broker has omitted any partition.
    are_partitions_contiguous = known_partitions[-1].index + 1 == len(known_partitions)
    if are_partitions_contiguous and lowest_partition >= 0 and rows.highest_requested_partition < len(known_partitions):
        return []  # the usual case, which needs no search
    valid_partitions = [UNSPECIFIED_PARTITION, *(partition_info.index for partition_info in known_partitions)]
    row_indices = rows.row_indices[~np.isin(rows.requested_partitions, valid_partitions)]
    if not len(row_indices):
        return []
    partition_list = _list_requested_partitions(partition, row_indices)
    error = build_missing_partition_error(topic, partition_list, len(known_partitions))
    return [FailedRows(row_indices, error, topic)]


def _list_requested_partitions(partition: int | ArrowColumn, row_indices: NDArray[np.int64]) -> str:
    """Return the partitions that these rows request, as text for an error message.

    `partition`: the argument of send_columns(). `Rows.requested_partitions` cannot be used here, because it contains a
    marker instead of each invalid number.
    """
    if isinstance(partition, int):
        return str(partition)
    numbers = np.unique(integers_to_numpy(combine_chunks(partition))[row_indices]).tolist()
    return _join_with_or([str(number) for number in numbers])


def ensure_partitions_requested(rows: Rows) -> None:
    """Raise ConfigurationError if a row requests no partition. Call this if the producer has a custom partitioner.

    A custom partitioner takes a single record, so it cannot assign rows that are stored as columns.
    """
    partitions = rows.requested_partitions
    if partitions is None or np.minimum.reduce(partitions, initial=0) == UNSPECIFIED_PARTITION:
        raise ConfigurationError(
            "KafkaProducer(partitioner=...) applies to records passed to send(), but not to send_columns(). "
            "Pass the partition of each row to send_columns(), or create a producer without partitioner=."
        )


def build_record_size_error(topic: str, size: int, config: ProducerConfig) -> RecordTooLargeError:
    """Build the error for a record that exceeds max.request.size, buffer.memory, or both.

    `size`: the maximum encoded size of the record in bytes.
    """
    exceeded_limits: dict[str, int] = {}
    if size + HEADER_BYTES > config.max_request_size:
        exceeded_limits["max.request.size"] = config.max_request_size
    if size > config.buffer_memory:
        exceeded_limits["buffer.memory"] = config.buffer_memory
    limits = " and ".join([f"{option} ({limit})" for option, limit in exceeded_limits.items()])
    return RecordTooLargeError(
        f"a record of up to {size} bytes exceeds {limits}. Increase {' and '.join(exceeded_limits)} to at least "
        f"{size + HEADER_BYTES}.",
        destination=format_partition(topic),
    )


def build_missing_partition_error(topic: str, partitions: str, partition_count: int | None) -> InvalidRecordError:
    """Build the error for rows that request partitions which the topic does not have.

    `partitions`: the numbers of the missing partitions, as text.
    `partition_count`: the number of partitions that the topic has.
    """
    return InvalidRecordError(
        f"{format_partition(topic)} has no partition {partitions}: it has {partition_count}, numbered from 0."
    )


def _join_with_or(names: list[str]) -> str:
    """Return the names as text, such as `2 or 3`. List only the first few of many: `2, 3, 4, 5, 6 or 13 others`."""
    if len(names) > _MAX_LISTED_PARTITIONS + 1:
        names = [*names[:_MAX_LISTED_PARTITIONS], f"{len(names) - _MAX_LISTED_PARTITIONS} others"]
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} or {names[-1]}"

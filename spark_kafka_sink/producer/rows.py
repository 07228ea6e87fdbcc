"""The rows of one call, column by column, until they are grouped with those of others, and the checks of rows.

Rows of send_columns() that cannot be sent are found before anything is staged. What is large or wrong in itself is
found first, so that no partition is sought for it: to hash a key of 100 MB that fails anyway would cost a second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.client.cluster import ClusterSnapshot
from spark_kafka_sink.diagnostics.text import format_partition
from spark_kafka_sink.errors import ConfigurationError, InvalidRecordError, RecordTooLargeError
from spark_kafka_sink.producer.calls import Call, FailedRows
from spark_kafka_sink.producer.config import ProducerConfig
from spark_kafka_sink.producer.partitioner import NOT_NAMED, named_partitions
from spark_kafka_sink.records.arrays import integers_to_numpy
from spark_kafka_sink.records.columns import ArrowColumn, RecordColumns, combine_chunks
from spark_kafka_sink.records.header import HEADER_BYTES
from spark_kafka_sink.records.record_sizes import find_invalid_rows, record_size_bounds

_NAMED_MAX = 5
"""At most this many of the missing partitions are named in one error."""


@dataclass(slots=True, eq=False)
class Rows:
    """Rows of one call, column by column, from the call until they are grouped with those of others (grouping.py)."""

    call: Call
    row_indices: NDArray[np.int64]
    """Of each row its index in the call."""
    columns: RecordColumns
    """Deleted when the rows are grouped, so that encoded records can take their place in memory."""
    sizes: NDArray[np.int64]
    """Of each row what it is encoded to at most (records/record_sizes.py)."""
    named: NDArray[np.int32] | None
    """The partition that each row names (partitioner.named_partitions), until all rows are assigned to theirs."""
    partitions: NDArray[np.int32] = field(init=False, repr=False)
    """The partition of each row, from `assign` on."""
    counts: NDArray[np.int64] = field(init=False, repr=False)
    """Number of rows of each partition, up to the last one that has any; from `assign` on."""

    def __len__(self) -> int:
        return len(self.row_indices)

    @property
    def futures_bytes(self) -> int:
        """Bytes that are reserved for the futures of these rows."""
        return self.call.bytes_per_row * len(self)

    @property
    def highest_named(self) -> int:
        """-1 if no row names a valid partition."""
        return -1 if self.named is None else int(np.maximum.reduce(self.named, initial=-1))

    def without(self, failures: Sequence[FailedRows]) -> Rows:
        if not failures:
            return self
        failed = np.concatenate([failure.rows for failure in failures])
        return self._take(np.flatnonzero(~np.isin(self.row_indices, failed)))

    def assign(self, partitions: NDArray[np.int32]) -> Rows:
        """Set the partition of each row, and return the rows."""
        self.named, self.partitions, self.counts = None, partitions, np.bincount(partitions)
        return self

    def slice(self, start: int, stop: int) -> Rows:
        """Return the assigned rows [start, stop)."""
        if stop - start == len(self):
            return self
        columns = self.columns.slice(start, stop - start)
        rows = Rows(self.call, self.row_indices[start:stop], columns, self.sizes[start:stop], None)
        return rows.assign(self.partitions[start:stop])

    def split(self, leaving: NDArray[np.bool_]) -> tuple[Rows | None, Rows | None]:
        """Return the assigned rows whose partitions are True in `leaving`, and the others; None where there are
        none."""
        if not self.counts[leaving[: len(self.counts)]].any():
            return None, self
        leaves = leaving[self.partitions]
        if leaves.all():
            return self, None
        go, stay = np.flatnonzero(leaves), np.flatnonzero(~leaves)
        return self._take(go).assign(self.partitions[go]), self._take(stay).assign(self.partitions[stay])

    def _take(self, positions: NDArray[np.int64]) -> Rows:
        """Return the rows at these positions of the columns."""
        named, sizes = None if self.named is None else self.named[positions], self.sizes[positions]
        return Rows(self.call, self.row_indices[positions], self.columns.take(positions), sizes, named)


def rows_of_columns(call: Call, columns: RecordColumns, partition: int | ArrowColumn | None) -> Rows:
    """Return the rows of a call, with nothing checked yet. SchemaError if the column of partitions does not fit."""
    count = columns.num_rows
    return Rows(call, np.arange(count), columns, record_size_bounds(columns), named_partitions(partition, count))


def wrong_in_themselves(topic: str, rows: Rows, config: ProducerConfig) -> list[FailedRows]:
    """Every bad row once, with the first of its faults."""
    limit = min(config.max_request_size - HEADER_BYTES, config.buffer_memory)
    invalid = find_invalid_rows(rows.columns)
    if not invalid and np.maximum.reduce(rows.sizes) <= limit:
        return []
    found: list[FailedRows] = []
    good = np.ones(len(rows), np.bool_)
    for reason, wrong in invalid.items():
        newly = wrong[good[wrong]]
        good[newly] = False
        found.append(
            FailedRows(rows.row_indices[newly], InvalidRecordError(f"{format_partition(topic)}: {reason}."), topic)
        )
    large = np.flatnonzero(good & (rows.sizes > limit))
    if len(large):
        found.append(FailedRows(rows.row_indices[large], too_large(topic, int(rows.sizes[large].max()), config), topic))
    return found


def without_their_partition(
    topic: str, rows: Rows, snapshot: ClusterSnapshot, asked: int | ArrowColumn | None
) -> list[FailedRows]:
    """The rows that name a partition which the topic does not have. `asked` is what the caller gave as partition."""
    if rows.named is None or asked is None:
        return []
    info = snapshot.topics[topic]
    lowest = int(np.minimum.reduce(rows.named, initial=0))
    if lowest >= 0 and rows.highest_named < len(info.partitions) == info.partitions[-1].index + 1:
        return []
    known = [NOT_NAMED, *(partition.index for partition in info.partitions)]
    missing = rows.row_indices[~np.isin(rows.named, known)]
    if not len(missing):
        return []
    numbers = (
        [asked] if isinstance(asked, int) else np.unique(integers_to_numpy(combine_chunks(asked))[missing]).tolist()
    )
    words = _either([str(number) for number in numbers])
    return [FailedRows(missing, no_such_partition(topic, words, len(info.partitions)), topic)]


def ensure_named(rows: Rows) -> None:
    """Refuse rows without a partition if the user has a partitioner: a partitioner is called with one record."""
    if rows.named is None or np.minimum.reduce(rows.named, initial=0) == NOT_NAMED:
        raise ConfigurationError(
            "KafkaProducer(partitioner=...) is asked for each record of send(), but not for the rows of "
            "send_columns(). Give send_columns() the partition of each row, or make a producer without partitioner=."
        )


def too_large(topic: str, size: int, config: ProducerConfig) -> RecordTooLargeError:
    """`size` is what the record takes at most. The words name the limit that it exceeds, or both of them."""
    limits = [("max.request.size", config.max_request_size, size + HEADER_BYTES)]
    limits.append(("buffer.memory", config.buffer_memory, size))
    exceeded = [(name, limit) for name, limit, needed in limits if needed > limit]
    if len(exceeded) == 1:
        words = f"{exceeded[0][0]} allows ({exceeded[0][1]}). Raise it"
    else:
        words = " and ".join(f"{name} ({limit})" for name, limit in exceeded) + " allow. Raise both"
    return RecordTooLargeError(
        f"{format_partition(topic)}: a record of up to {size} bytes is more than {words} to at least "
        f"{size + HEADER_BYTES}."
    )


def no_such_partition(topic: str, asked: str, partition_count: int | None) -> InvalidRecordError:
    return InvalidRecordError(
        f"{format_partition(topic)} has no partition {asked}: it has {partition_count}, numbered from 0."
    )


def _either(names: list[str]) -> str:
    """`2`; `2 or 3`; of many the first ones: `2, 3, 4, 5, 6 or 13 others`."""
    if len(names) > _NAMED_MAX + 1:
        names = [*names[:_NAMED_MAX], f"{len(names) - _NAMED_MAX} others"]
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)

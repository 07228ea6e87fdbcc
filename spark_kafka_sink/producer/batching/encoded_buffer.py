"""EncodedBuffer: a buffer of encoded records, divided into slices that each go into one batch.

A slice is not an object but an index into several lists, each of which has one item per slice of the buffer. With ten
thousand partitions, a batch receives a few hundred bytes at a time and ends up with a handful of slices. If each slice
were an object, the garbage collector would have to visit all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.row_groups import BatchRows, RowGroup
from spark_kafka_sink.records.encoder import EncodedSlices


class EncodedBuffer:
    """A buffer of encoded records, divided into slices that each go into one batch.

    The lease owns the buffer's memory, and frees it once no batch needs any of its slices. All attributes except
    `lease` and `row_group` are parallel lists with one item per slice.
    """

    __slots__ = (
        "_byte_starts",
        "base_timestamps",
        "first_offset_deltas",
        "lease",
        "max_timestamps",
        "needed_bytes",
        "record_counts",
        "row_group",
        "row_starts",
        "row_stops",
        "sizes",
    )

    def __init__(
        self,
        encoded_slices: EncodedSlices,
        lease: MemoryLease,
        row_group: RowGroup,
        row_starts: Sequence[int],
        row_stops: Sequence[int],
        first_offset_deltas: Sequence[int],
    ) -> None:
        """Give the lease ownership of a buffer, and record for each slice which rows it encodes.

        `encoded_slices`: the buffer, and which bytes of it belong to each slice.
        `lease`: the memory reserved for the buffer, and for the row indices and futures of its rows.
        `row_group`: the rows that were encoded, and the call that each of them came from.
        `row_starts`, `row_stops`: slice i encodes the rows [row_starts[i], row_stops[i]) of the row group.
        `first_offset_deltas`: for each slice, the index that its first record has in its batch.
        """
        self.lease = lease
        lease.buffer = encoded_slices.data
        self.row_group = row_group
        self.row_starts = row_starts
        self.row_stops = row_stops
        self.first_offset_deltas = first_offset_deltas
        self._byte_starts = encoded_slices.byte_starts
        self.sizes = encoded_slices.sizes
        self.record_counts = encoded_slices.record_counts
        self.base_timestamps = encoded_slices.base_timestamps
        self.max_timestamps = encoded_slices.max_timestamps
        self.needed_bytes = row_group.compute_needed_bytes(row_starts, row_stops, encoded_slices.sizes)
        """For each slice, the number of the lease's bytes that its records, row indices and futures need."""

    def __len__(self) -> int:
        return len(self.sizes)

    def get_segment(self, slice_index: int) -> memoryview:
        """Return the encoded records of a slice as a view of the buffer."""
        buffer, byte_start = self.lease.buffer, self._byte_starts[slice_index]
        assert buffer is not None, "the memory of these records has returned to the pool"
        return buffer[byte_start : byte_start + self.sizes[slice_index]]

    def build_rows(self, slice_index: int) -> BatchRows:
        """Return the rows that a slice encodes."""
        start, stop = self.row_starts[slice_index], self.row_stops[slice_index]
        return BatchRows(self.row_group, start, stop, self.first_offset_deltas[slice_index])

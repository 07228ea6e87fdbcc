"""EncodedPieces: records encoded into one buffer, divided into one piece per batch.

A piece is not an object. It is an index into several parallel lists, each of which has one item per piece of the
buffer. With ten thousand partitions, a batch receives a few hundred bytes at a time and ends up with a handful of
pieces, and the garbage collector would have to visit an object for each of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.row_groups import BatchRows, RowGroup
from spark_kafka_sink.records.encoder import EncodedSlices


class EncodedPieces:
    """Encoded records of one buffer, divided into pieces that each go into one batch.

    The lease owns the buffer and frees it once no batch needs any piece of it.
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
        """Divide an encoded buffer into pieces, and give the lease ownership of the buffer.

        Piece i is slice i of `encoded_slices`.

        `lease`: the memory reserved for the buffer, and for the row indices and futures of its rows.
        `row_group`: the rows that were encoded, and the call that each of them came from.
        `row_starts`, `row_stops`: piece i encodes the rows [row_starts[i], row_stops[i]) of the row group.
        `first_offset_deltas`: for each piece, the offset delta of its first record in the batch that the piece goes to.
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
        """For each piece, the number of the lease's bytes that its records, row indices and futures need."""

    def __len__(self) -> int:
        return len(self.sizes)

    def get_segment(self, piece_index: int) -> memoryview:
        """Return a piece's encoded records as a view of the buffer."""
        buffer, byte_start = self.lease.buffer, self._byte_starts[piece_index]
        assert buffer is not None, "the memory of these records has returned to the pool"
        return buffer[byte_start : byte_start + self.sizes[piece_index]]

    def build_rows(self, piece_index: int) -> BatchRows:
        """Return the rows that a piece encodes."""
        start, stop = self.row_starts[piece_index], self.row_stops[piece_index]
        return BatchRows(self.row_group, start, stop, self.first_offset_deltas[piece_index])

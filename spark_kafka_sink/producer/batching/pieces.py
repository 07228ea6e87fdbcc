"""Pieces: what a fill has encoded into one buffer. A piece is the records that one batch gets.

With ten thousand partitions a batch gets some hundred bytes at a time, and has a handful of pieces in the end. So a
piece is no object, which the garbage collector would look at, but a number: its place in columns that all pieces of a
buffer share.
"""

from __future__ import annotations

from collections.abc import Sequence

from spark_kafka_sink.producer.batching.buffer_pool import MemoryLease
from spark_kafka_sink.producer.batching.row_origins import BatchRows, RowOrigins
from spark_kafka_sink.records.encoder import EncodedSlices


class Pieces:
    """See the module's docstring. The bytes are in the lease, which lets them go when no batch needs them any more."""

    __slots__ = (
        "_begins",
        "base_timestamps",
        "charges",
        "first_offset_deltas",
        "lease",
        "max_timestamps",
        "origins",
        "record_counts",
        "sizes",
        "starts",
        "stops",
    )

    def __init__(
        self,
        encoded: EncodedSlices,
        lease: MemoryLease,
        origins: RowOrigins,
        starts: Sequence[int],
        stops: Sequence[int],
        first_offset_deltas: Sequence[int],
    ) -> None:
        """Piece i has the rows [starts[i], stops[i]) of `origins`, as the records of its batch from
        first_offset_deltas[i] on. `lease` is for all bytes of the buffer, and what the rows are charged besides."""
        self.lease = lease
        lease.buffer = encoded.data
        self.origins = origins
        self.starts, self.stops, self.first_offset_deltas = starts, stops, first_offset_deltas
        self._begins = encoded.begins
        self.sizes = encoded.sizes
        self.record_counts = encoded.record_counts
        self.base_timestamps = encoded.base_timestamps
        self.max_timestamps = encoded.max_timestamps
        self.charges = origins.charges(starts, stops, encoded.sizes)

    def __len__(self) -> int:
        return len(self.sizes)

    def segment(self, number: int) -> memoryview:
        """The bytes of a piece."""
        buffer, begin = self.lease.buffer, self._begins[number]
        assert buffer is not None, "the memory of these records has returned to the pool"
        return buffer[begin : begin + self.sizes[number]]

    def rows(self, number: int) -> BatchRows:
        """Whose rows the records of a piece are."""
        return BatchRows(self.origins, self.starts[number], self.stops[number], self.first_offset_deltas[number])

"""Chunks of limited size, into which the rows of a call are split, and which are staged one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.batching.staging import MAX_GROUPED_BYTES


class Chunk(NamedTuple):
    """Rows [start, stop) of a call that are staged together. `nbytes` is an upper bound on their encoded size."""

    start: int
    stop: int
    nbytes: int


def split_into_chunks(sizes: NDArray[np.int64], max_rows: int, max_bytes: int) -> Iterator[Chunk]:
    """Split a call's rows into chunks of at most `max_rows` rows and `max_bytes` bytes.

    A row of more than `max_bytes` gets a chunk of its own.

    `sizes`: upper bound on each row's encoded size.
    """
    row_count = len(sizes)
    total_bytes = int(np.add.reduce(sizes))
    max_bytes = min(max_bytes, MAX_GROUPED_BYTES)
    if total_bytes <= max_bytes and row_count <= max_rows:
        yield Chunk(0, row_count, total_bytes)
        return
    # The stop of a chunk is found by a search in the cumulative sizes. For example, sizes [4, 4, 4] with a limit of 8
    # bytes have the cumulative sizes [4, 8, 12], so the first chunk stops at row 2 and the next one at row 3.
    cumulative_bytes = np.cumsum(sizes)
    start = bytes_before_start = 0
    while start < row_count:
        stop = int(np.searchsorted(cumulative_bytes, bytes_before_start + max_bytes, "right"))
        stop = max(stop, start + 1)  # a chunk has at least one row, even if that row is larger than max_bytes
        stop = min(stop, start + max_rows, row_count)
        bytes_before_stop = int(cumulative_bytes[stop - 1])
        yield Chunk(start, stop, bytes_before_stop - bytes_before_start)
        start, bytes_before_start = stop, bytes_before_stop

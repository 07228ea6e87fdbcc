"""Splitting of batches that the broker rejected as too large.

The records are decoded to columns and encoded again. The smaller batches take over the age, the deadline, the producer
identity and the memory of the original batch. The first one starts at the original's base sequence, and each of the
others continues where the previous one ends, so every record keeps its sequence number.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.records.batch_slicing import (
    build_consecutive_slices,
    build_single_partition_slices,
    find_timestamp_range,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.decoder import decode_records
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import parse_header
from spark_kafka_sink.records.record_sizes import compute_record_size_bounds

MAX_DECODED_BYTES = 1 << 40
"""Effectively no limit. The decoder has one to protect against untrusted input, but this producer encoded the input."""


def split_batch(batch: ProducerBatch, max_batch_bytes: int) -> Iterator[ProducerBatch]:
    """Split a batch's records into new, open batches of at most `max_batch_bytes` before compression.

    If all records fit into one such batch, split them into two halves. A record that is larger than the limit gets a
    batch of its own. The result is a single batch only if the original has a single record.

    Each new batch holds the memory of the original. If an error interrupts the split, the caller must fail those that
    it has received.
    """
    header, *body = batch.build_wire_segments()
    records = decode_records(
        parse_header(header), b"".join(body), max_bytes=MAX_DECODED_BYTES, preserve_header_keys=True
    )
    columns = RecordColumns(
        value=records["value"], key=records["key"], headers=records["headers"], timestamp=records["timestamp"]
    )
    sizes = compute_record_size_bounds(columns)
    timestamp_range = find_timestamp_range(columns, batch.max_timestamp)
    slices = split_into_batches(
        sizes, build_single_partition_slices(columns.num_rows), max_batch_bytes, timestamp_range
    )
    fits_in_one_batch = len(slices.starts) == 1
    if fits_in_one_batch and columns.num_rows > 1:  # the broker's limit must be lower, so split the batch anyway
        slices = build_consecutive_slices([_find_second_half_start(sizes), columns.num_rows])
    first_record_indices = iter(slices.starts)
    for encoded_slices in encode_records(columns, slices, batch.max_timestamp):
        for slice_index in range(len(encoded_slices.sizes)):
            yield batch.create_child(encoded_slices, slice_index, next(first_record_indices))


def _find_second_half_start(sizes: NDArray[np.int64]) -> int:
    """Return the row at which the second half begins, measured by size. The first half has at least one row."""
    # Sizes [10, 10, 30]: half is 25 bytes, and the cumulative sizes are [10, 20, 50], so the second half begins at 2.
    half_bytes = sizes.sum() // 2
    return max(1, int(np.searchsorted(np.cumsum(sizes), half_bytes, "right")))

"""Splitting a batch that the broker refused as too large: the same records, as several smaller batches.

The records are decoded and encoded again, as columns. The smaller batches keep the parent's age, deadline, identity and
memory, and have consecutive sequences from the parent's: for the broker's check of sequences, nothing has changed.
"""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.records.batch_slicing import (
    consecutive_slices,
    find_timestamp_range,
    single_partition_slices,
    split_into_batches,
)
from spark_kafka_sink.records.columns import RecordColumns
from spark_kafka_sink.records.decoder import decode_records
from spark_kafka_sink.records.encoder import encode_records
from spark_kafka_sink.records.header import parse_header
from spark_kafka_sink.records.record_sizes import record_size_bounds

OWN_BYTES_MAX = 1 << 40
"""The decoder's limit is for bytes of strangers; this batch is the producer's own."""


def split_batch(batch: ProducerBatch, batch_bytes_max: int) -> list[ProducerBatch]:
    """At least two open batches of at most `batch_bytes_max` before compression, where the records allow it."""
    header, *body = batch.wire_segments()
    rows = decode_records(parse_header(header), b"".join(body), max_bytes=OWN_BYTES_MAX, preserve_header_keys=True)
    columns = RecordColumns(rows["value"], rows["key"], rows["headers"], rows["timestamp"])
    sizes = record_size_bounds(columns)
    times = find_timestamp_range(columns, batch.max_timestamp)
    slices = split_into_batches(sizes, single_partition_slices(columns.num_rows), batch_bytes_max, times)
    if len(slices.starts) == 1 < columns.num_rows:
        middle = int(np.searchsorted(np.cumsum(sizes), sizes.sum() // 2, "right"))
        middle = max(1, middle)
        slices = consecutive_slices([middle, columns.num_rows])
    buffers = encode_records(columns, slices, batch.max_timestamp)
    pieces = [(encoded, number) for encoded in buffers for number in range(len(encoded.sizes))]
    return [batch.part(*piece, first_record) for piece, first_record in zip(pieces, slices.starts, strict=True)]

"""Helper that appends rows to a batch as the only slice of an encoded buffer."""

from __future__ import annotations

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.encoded_buffer import EncodedBuffer
from spark_kafka_sink.producer.batching.row_groups import BatchRows
from spark_kafka_sink.records.encoder import EncodedSlices
from tests.producer.batching.accumulator_harness import Clock


def append_rows(
    batch: ProducerBatch, rows: BatchRows, encoded: EncodedSlices | None = None, lease: MemoryLease | None = None
) -> None:
    """Append rows to a batch. `encoded`: an encoded buffer with one slice; None for an empty slice."""
    count = rows.stop - rows.start
    encoded = encoded or EncodedSlices(memoryview(b""), [0], [0], [count], [0], [0])
    lease = lease or MemoryLease(BufferPool(0, Clock()), 0)
    encoded_buffer = EncodedBuffer(encoded, lease, rows.row_group, [rows.start], [rows.stop], [rows.first_offset_delta])
    lease.add_holders([batch], encoded_buffer.needed_bytes)
    batch.append(encoded_buffer, 0)

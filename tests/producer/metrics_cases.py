"""Producer metrics with short windows, and batches to count."""

from __future__ import annotations

import numpy as np

from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.row_groups import build_batch_rows
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.records.compression import Codec
from spark_kafka_sink.records.encoder import EncodedSlices
from tests.producer.batching.accumulator_harness import Clock, tp
from tests.producer.batching.named_call import NamedCall
from tests.producer.batching.single_slice import append_rows

WINDOW_MS = 30_000


def create_sent_batch(records: int, size: int, codec: Codec = Codec.NONE) -> ProducerBatch:
    pool = BufferPool(1 << 20, Clock())
    pool.reserve(size, 0)
    batch = ProducerBatch(tp(0), oldest_row_arrival_ms=100, deadline_ms=1000)
    encoded = EncodedSlices(memoryview(bytes(size)), [0], [size], [records], [0], [0])
    append_rows(batch, build_batch_rows(NamedCall("c"), np.arange(records)), encoded, MemoryLease(pool, size))
    batch.close(codec)
    batch.mark_in_flight(130)
    return batch


def create_metrics(io: IoCounts | None = None, pool: BufferPool | None = None) -> ProducerMetrics:
    gauges = {"requests-in-flight": lambda now_ms: now_ms / 100}
    return ProducerMetrics(WINDOW_MS, 2, io or IoCounts(), pool or BufferPool(1 << 20, Clock()), gauges)

"""Metrics: Java's names, and windows that forget."""

from __future__ import annotations

import math

import numpy as np

from spark_kafka_sink.producer.batching.batch import ProducerBatch
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool, MemoryLease
from spark_kafka_sink.producer.batching.row_origins import rows_of_call
from spark_kafka_sink.producer.metrics import ProducerMetrics, Windowed
from spark_kafka_sink.records.compression import Codec
from tests.producer.batching.accumulator_harness import Clock, tp

WINDOW_MS = 30_000


def sent_batch(records: int, size: int, codec: Codec = Codec.NONE) -> ProducerBatch:
    pool = BufferPool(1 << 20, Clock())
    pool.reserve(size, 0)
    batch = ProducerBatch(tp(0), created_ms=100, deadline_ms=1000)
    batch.append(
        memoryview(bytes(size)),
        records,
        0,
        0,
        (rows_of_call("c", np.arange(records)),),
        (MemoryLease(pool, size),),
    )
    batch.close(codec)
    batch.depart(130)
    return batch


def snapshot(metrics: ProducerMetrics, now: float) -> dict[str, float]:
    return metrics.snapshot(now, BufferPool(500, Clock()), requests_in_flight=3, metadata_age_s=1.5)


def test_a_request_is_counted_by_batch_under_the_java_names() -> None:
    metrics = ProducerMetrics(WINDOW_MS, 2)
    metrics.request_sent({"t": {0: sent_batch(3, 39), 1: sent_batch(5, 139)}}, 200)
    metrics.request_answered(40, 0, 240)
    metrics.request_answered(60, 10, 260)
    values = snapshot(metrics, 300)
    assert (values["batch-size-avg"], values["batch-size-max"]) == (150, 200)
    assert (values["record-send-total"], values["record-send-rate"]) == (8, 8 / 30)
    assert (values["records-per-request-avg"], values["compression-rate-avg"]) == (8, 1)
    assert (values["request-latency-avg"], values["request-latency-max"]) == (50, 60)
    assert (values["record-queue-time-avg"], values["produce-throttle-time-max"]) == (30, 10)
    assert (values["record-send-total{topic=t}"], values["byte-total{topic=t}"]) == (8, 300)
    assert (values["requests-in-flight"], values["metadata-age"], values["request-total"]) == (3, 1.5, 1)


def test_compression_rate_is_compressed_over_uncompressed() -> None:
    metrics = ProducerMetrics(WINDOW_MS, 2)
    batch = sent_batch(1, 1000, Codec.ZSTD)
    metrics.request_sent({"t": {0: batch}}, 200)
    assert snapshot(metrics, 200)["compression-rate-avg"] == batch.body_bytes / 1000 < 0.5


def test_retries_errors_and_splits_are_counted_by_record_and_topic() -> None:
    metrics = ProducerMetrics(WINDOW_MS, 2)
    metrics.records_retried("t", 7, 100)
    metrics.records_failed("t", 2, 100)
    metrics.batch_split(100)
    values = snapshot(metrics, 100)
    assert [values[f"record-{kind}-total"] for kind in ("retry", "error")] == [7, 2]
    assert [values[f"record-{kind}-total{{topic=t}}"] for kind in ("retry", "error")] == [7, 2]
    assert values["batch-split-total"] == 1


def test_the_sizes_of_records_are_those_given() -> None:
    metrics = ProducerMetrics(WINDOW_MS, 2)
    metrics.rows_given(10, 1000, 400, 100)
    metrics.rows_given(10, 3000, 350, 100)
    values = snapshot(metrics, 100)
    assert (values["record-size-avg"], values["record-size-max"]) == (200, 400)


def test_the_pool_is_seen() -> None:
    clock = Clock()
    pool = BufferPool(500, clock)
    pool.reserve(200, 0)
    values = ProducerMetrics(WINDOW_MS, 2).snapshot(0, pool)
    assert (values["buffer-total-bytes"], values["buffer-available-bytes"], values["waiting-threads"]) == (500, 300, 0)
    assert values["buffer-exhausted-total"] == values["bufferpool-wait-time-ns-total"] == 0


def test_time_that_callers_wait_is_added_up() -> None:
    metrics = ProducerMetrics(WINDOW_MS, 2)
    metrics.waited("flush-time", 2)
    metrics.waited("flush-time", 3)
    metrics.waited("metadata-wait-time", 1)
    values = snapshot(metrics, 0)
    assert (values["flush-time-ns-total"], values["metadata-wait-time-ns-total"]) == (5e6, 1e6)


def test_before_anything_happened_averages_are_nan_and_totals_zero() -> None:
    values = snapshot(ProducerMetrics(WINDOW_MS, 2), 0)
    assert math.isnan(values["batch-size-avg"])
    assert math.isnan(values["request-latency-max"])
    assert values["record-send-rate"] == values["record-send-total"] == 0


def test_what_lies_before_the_last_windows_is_forgotten() -> None:
    windowed = Windowed(1000, 2)
    windowed.record(100, 0)
    windowed.record(10, 1000)
    windowed.record(20, 1500)
    assert (windowed.maximum(1900), windowed.average(1900)) == (100, 130 / 3)
    assert (windowed.maximum(2000), windowed.average(2000)) == (20, 15)
    windowed.record(5, 2000)
    assert windowed.maximum(2999) == 20
    assert math.isnan(windowed.average(9000))
    assert windowed.rate(9000) == 0


def test_a_rate_is_per_second_over_the_time_looked_back_on() -> None:
    windowed = Windowed(1000, 2)
    windowed.record(10, 0)
    assert windowed.rate(10) == 10
    windowed.record(20, 1500)
    assert windowed.rate(1600) == 30 / 1.6

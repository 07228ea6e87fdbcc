"""ProducerMetrics: counts under Java's names."""

from __future__ import annotations

import math

import pytest

from spark_kafka_sink.network.io_counts import IoCounts
from spark_kafka_sink.producer.batching.buffer_pool import BufferPool
from spark_kafka_sink.producer.metrics import ProducerMetrics
from spark_kafka_sink.records.compression import Codec
from tests.producer.batching.accumulator_harness import Clock
from tests.producer.metrics_cases import WINDOW_MS, create_metrics, create_sent_batch


def test_counts_batches_of_request_under_java_names() -> None:
    metrics = create_metrics()
    metrics.record_request({"t": {0: create_sent_batch(3, 39), 1: create_sent_batch(5, 139)}}, 200)
    metrics.record_response(1, 40, 0, 240)
    metrics.record_response(2, 60, 10, 260)
    values = metrics.read_all(300)
    assert (values["batch-size-avg"], values["batch-size-max"]) == (150, 200)
    assert (values["record-send-total"], values["record-send-rate"]) == (8, 8 / 30)
    assert (values["records-per-request-avg"], values["compression-rate-avg"]) == (8, 1)
    assert (values["request-latency-avg"], values["request-latency-max"]) == (50, 60)
    assert (values["record-queue-time-avg"], values["produce-throttle-time-max"]) == (30, 10)
    assert (values["record-send-total{topic=t}"], values["byte-total{topic=t}"]) == (8, 300)
    assert values["requests-in-flight"] == 3


def test_totals_include_only_acknowledged_batches() -> None:
    pool = BufferPool(1 << 20, Clock())
    metrics = create_metrics(pool=pool)
    pool.total_wait_ms = 3
    before = metrics.totals(0)
    plain, packed = create_sent_batch(3, 39), create_sent_batch(5, 1000, Codec.ZSTD)
    metrics.record_request({"t": {0: plain, 1: packed}}, 130)
    assert metrics.totals(140).records == 0
    metrics.record_acknowledged_batches([plain], 140)
    metrics.record_acknowledged_batches([packed], 300)
    metrics.record_response(1, 5, 7, 300)
    metrics.record_retries("t", 7, 100)
    metrics.record_failures("t", 2, 100)
    totals = metrics.totals(300)
    assert (totals.records, totals.bytes, totals.uncompressed_bytes) == (8, 39 + packed.body_bytes + 122, 39 + 1122)
    assert (totals.retries, totals.errors, totals.blocked_ms) == (7, 2, 3)
    assert (totals.batches, totals.requests, totals.throttle_ms) == (2, 1, 7)
    assert totals.latencies.percentile(0.3) == pytest.approx(40, rel=1 / 15)  # the batches were created at 100
    assert totals.latencies.percentile(0.9) == pytest.approx(200, rel=1 / 15)
    metrics.record_acknowledged_batches([create_sent_batch(1, 39)], 300)
    added = metrics.totals(300) - totals
    assert (added.records, added.bytes, added.uncompressed_bytes, added.retries) == (1, 100, 100, 0)
    assert metrics.totals(300) == totals + added
    assert (before.records, before.latencies.counts) == (0, {})


def test_compression_rate_is_compressed_over_uncompressed() -> None:
    metrics = create_metrics()
    batch = create_sent_batch(1, 1000, Codec.ZSTD)
    metrics.record_request({"t": {0: batch}}, 200)
    assert metrics.read_all(200)["compression-rate-avg"] == batch.body_bytes / 1000 < 0.5


def test_retries_errors_and_splits_are_counted_by_record_and_topic() -> None:
    metrics = create_metrics()
    metrics.record_retries("t", 7, 100)
    metrics.record_failures("t", 2, 100)
    metrics.record_batch_split(100)
    values = metrics.read_all(100)
    assert [values[f"record-{kind}-total"] for kind in ("retry", "error")] == [7, 2]
    assert [values[f"record-{kind}-total{{topic=t}}"] for kind in ("retry", "error")] == [7, 2]
    assert values["batch-split-total"] == 1


def test_record_sizes_have_average_and_maximum() -> None:
    metrics = create_metrics()
    metrics.record_row_sizes(10, 1000, 400, 100)
    metrics.record_row_sizes(10, 3000, 350, 100)
    values = metrics.read_all(100)
    assert (values["record-size-avg"], values["record-size-max"]) == (200, 400)


def create_metrics_with_nodes_and_topics() -> ProducerMetrics:
    io = IoCounts(counts_per_channel=True)
    metrics = create_metrics(io)
    io.get_or_create_channel_counts("1")
    metrics.record_response(1, 40, 0, 240)
    metrics.record_request({"t": {0: create_sent_batch(3, 39)}}, 200)
    metrics.record_retries("a{topic=b}", 7, 100)
    return metrics


def test_read_equals_read_all() -> None:
    metrics = create_metrics_with_nodes_and_topics()
    for name, value in metrics.read_all(300).items():
        assert metrics.read(name, 300) == pytest.approx(value, nan_ok=True), name


def test_unknown_metric_raises_key_error_with_suggestion() -> None:
    metrics = create_metrics_with_nodes_and_topics()
    with pytest.raises(
        KeyError, match=r"record-retry-totals is not a metric of the producer. Did you mean record-retry-total"
    ):
        metrics.read("record-retry-totals", 300)
    for unknown in ("record-retry-total{topic=unknown}", "nonsense{topic=t}", "request-total{node-id=node-2}"):
        with pytest.raises(KeyError):
            metrics.read(unknown, 300)


def test_rejected_rows_are_counted_as_errors_without_topic() -> None:
    metrics = create_metrics()
    metrics.record_rejected_rows(5, 100)
    values = metrics.read_all(100)
    assert values["record-error-total"] == 5
    assert not [name for name in values if "{" in name]


def test_measures_waits_for_memory_and_exhausted_memory() -> None:
    pool = BufferPool(1000, Clock())
    metrics = create_metrics(pool=pool)
    pool.reserve(400, 0)
    pool.total_wait_ms, pool.exhausted_count = 6_000, 3
    values = metrics.read_all(1000)
    assert (values["buffer-total-bytes"], values["buffer-available-bytes"]) == (1000, 600)
    assert (values["bufferpool-wait-ratio"], values["bufferpool-wait-time-ns-total"]) == (0.2, 6e9)
    assert (values["buffer-exhausted-rate"], values["buffer-exhausted-total"]) == (0.1, 3)
    later = metrics.read_all(1000 + 3 * WINDOW_MS)
    assert (later["bufferpool-wait-ratio"], later["buffer-exhausted-rate"]) == (0, 0)
    assert (later["bufferpool-wait-time-ns-total"], later["buffer-exhausted-total"]) == (6e9, 3)


def test_time_that_callers_wait_is_added_up() -> None:
    metrics = create_metrics()
    metrics.record_wait("flush-time", 2)
    metrics.record_wait("flush-time", 3)
    metrics.record_wait("metadata-wait-time", 1)
    values = metrics.read_all(0)
    assert (values["flush-time-ns-total"], values["metadata-wait-time-ns-total"]) == (5e6, 1e6)


def test_new_metrics_have_nan_averages_and_zero_totals() -> None:
    values = create_metrics().read_all(0)
    assert math.isnan(values["batch-size-avg"])
    assert math.isnan(values["request-latency-max"])
    assert values["record-send-rate"] == values["record-send-total"] == 0

"""Network metrics under their Java names: totals and averages over windows, for all nodes and for each."""

from __future__ import annotations

import math

import pytest

from spark_kafka_sink.network.io_counts import IoCounts
from tests.producer.metrics_cases import WINDOW_MS, create_metrics


def test_exposes_io_counts_and_windowed_averages() -> None:
    io = IoCounts()
    metrics = create_metrics(io)
    io.record_select(wait_ms=3, io_ms=1)
    io.record_select(wait_ms=5, io_ms=2)
    io.record_completed_send(100)
    io.record_completed_send(300)
    io.record_bytes_sent(150)
    io.record_bytes_sent(250)
    io.record_bytes_received(70)
    io.receives += 1
    io.connections_opened, io.connections_closed = 3, 1
    values = metrics.read_all(1000)
    assert [values[f"connection-{kind}"] for kind in ("count", "creation-total", "close-total")] == [2, 3, 1]
    assert (values["outgoing-byte-total"], values["incoming-byte-total"], values["network-io-total"]) == (400, 70, 3)
    assert (values["request-total"], values["response-total"], values["request-rate"]) == (2, 1, 2 / 30)
    assert (values["request-size-avg"], values["request-size-max"]) == (200, 300)
    assert (values["select-total"], values["io-time-ns-avg"], values["io-wait-time-ns-avg"]) == (2, 1.5e6, 4e6)
    assert (values["io-time-ns-total"], values["io-wait-time-ns-total"]) == (3e6, 8e6)
    assert values["io-ratio"] == pytest.approx(3 / 30_000)
    assert values["io-wait-ratio"] == pytest.approx(8 / 30_000)
    io.record_completed_send(1)
    later = metrics.read_all(1000 + 3 * WINDOW_MS)
    assert (later["request-total"], later["request-size-avg"], later["request-size-max"]) == (3, 1, 1)
    assert math.isnan(later["io-time-ns-avg"])


def test_each_node_has_its_own_requests_bytes_and_latencies() -> None:
    io = IoCounts(counts_per_channel=True)
    metrics = create_metrics(io)
    first, bootstrap = io.get_or_create_channel_counts("1"), io.get_or_create_channel_counts("-1")
    assert first is not None
    assert bootstrap is not None
    for size in (100, 300):
        first.record_bytes_sent(size)
        first.record_completed_send(size)
    first.record_bytes_received(70)
    first.record_completed_receive()
    bootstrap.record_bytes_sent(50)
    metrics.record_response(1, 40, 0, 240)
    metrics.record_response(1, 60, 0, 260)
    values = metrics.read_all(1000)
    node = {name.partition("{")[0]: value for name, value in values.items() if name.endswith("{node-id=node-1}")}
    assert (node["request-total"], node["request-rate"], node["response-total"]) == (2, 2 / 30, 1)
    assert (node["outgoing-byte-total"], node["incoming-byte-total"]) == (400, 70)
    assert (node["request-size-avg"], node["request-size-max"]) == (200, 300)
    assert (node["request-latency-avg"], node["request-latency-max"]) == (50, 60)
    assert values["outgoing-byte-total{node-id=node--1}"] == 50
    assert math.isnan(values["request-latency-avg{node-id=node--1}"])

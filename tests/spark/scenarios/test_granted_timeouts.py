"""Brokers whose transaction.max.timeout.ms is lowered while a query runs: the tasks' errors, and the next start."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import read_values
from tests.spark.test_exactly_once_writers import Spark, micro_batch
from tests.spark.test_exactly_once_writers import broker as broker
from tests.spark.test_exactly_once_writers import spark as spark


def test_task_reports_lowered_timeout_limit_and_next_start_requests_it_again(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro_batch(spark, 0, "a")
    broker.cluster.coordinator.max_timeout_ms = 300_000
    with pytest.raises(
        ExactlyOnceError, match=r"wrote nothing.*is not set.*now grants only a shorter one\. Start again"
    ):
        micro_batch(spark, 1, "b")
    micro_batch(Spark(broker, monkeypatch, checkpointLocation="/checkpoint"), 1, "b")
    assert read_values(broker) == ["a", "b"]


def test_task_names_option_when_transaction_timeout_is_rejected(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"checkpointLocation": "/checkpoint", "kafka.transaction.timeout.ms": "900000"}
    spark = Spark(broker, monkeypatch, **chosen)
    micro_batch(spark, 0, "a")
    broker.cluster.coordinator.max_timeout_ms = 300_000
    with pytest.raises(ExactlyOnceError, match=r"wrote nothing.*Decrease kafka\.transaction\.timeout\.ms"):
        micro_batch(spark, 1, "b")

"""Brokers whose transaction.max.timeout.ms is lowered while a query runs: what its tasks say, and what the next start
does."""

from __future__ import annotations

import pytest

from spark_kafka_sink.errors import ExactlyOnceError
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.cases import seen
from tests.spark.test_exactly_once_writers import Spark, micro_batch
from tests.spark.test_exactly_once_writers import broker as broker
from tests.spark.test_exactly_once_writers import spark as spark


def test_where_brokers_grant_less_than_when_the_query_began_a_task_says_so_and_the_next_start_asks_anew(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    micro_batch(spark, 0, "a")
    broker.cluster.coordinator.max_timeout_ms = 300_000
    with pytest.raises(ExactlyOnceError, match=r"wrote nothing.*is not set.*now one of them grants less\. Start again"):
        micro_batch(spark, 1, "b")
    micro_batch(Spark(broker, monkeypatch, checkpointLocation="/checkpoint"), 1, "b")
    assert seen(broker) == ["a", "b"]


def test_a_task_whose_transaction_may_not_last_as_long_as_the_user_wants_names_the_option(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = {"checkpointLocation": "/checkpoint", "kafka.transaction.timeout.ms": "900000"}
    spark = Spark(broker, monkeypatch, **chosen)
    micro_batch(spark, 0, "a")
    broker.cluster.coordinator.max_timeout_ms = 300_000
    with pytest.raises(ExactlyOnceError, match=r"wrote nothing.*Lower kafka\.transaction\.timeout\.ms"):
        micro_batch(spark, 1, "b")

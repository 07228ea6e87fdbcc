"""Exactly-once writers without a JVM: the names of starts, and the check that a task makes before it begins."""

from __future__ import annotations

from typing import Any

import pytest

from spark_kafka_sink.errors import ExactlyOnceError, TransactionTimeoutError
from spark_kafka_sink.exactly_once.entries import build_batch_driver_name
from spark_kafka_sink.producer.producer import KafkaProducer
from spark_kafka_sink.spark import exactly_once
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import read_values
from tests.spark.test_exactly_once_writers import Spark, open_count, rows
from tests.spark.test_exactly_once_writers import broker as broker
from tests.spark.test_exactly_once_writers import spark as spark


def test_attempt_begins_no_transaction_if_batch_ends_while_it_gets_its_id(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = spark.job()
    message = spark.task(writer, rows("a"))
    whole = KafkaProducer.init_transactions

    def init_transactions(producer: KafkaProducer, *arguments: Any) -> None:
        writer.commit([message])
        whole(producer, *arguments)

    monkeypatch.setattr(KafkaProducer, "init_transactions", init_transactions)
    with pytest.raises(ExactlyOnceError, match=r"This attempt came too late.*It wrote nothing"):
        spark.task(writer, rows("a"), attempt_number=1)
    assert (read_values(broker, "read_uncommitted"), open_count(broker)) == (["a"], 0)


@pytest.mark.parametrize("method", ["describe_transactions", "init_transactions", "prepare_transaction"])
def test_task_error_of_transaction_names_options_as_spark_job_does(
    spark: Spark, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def fail(producer: KafkaProducer, *arguments: Any) -> None:
        raise TransactionTimeoutError("timed out after max.block.ms.", remedy="Increase max.block.ms.")

    writer = spark.job()
    monkeypatch.setattr(KafkaProducer, method, fail)
    with pytest.raises(TransactionTimeoutError) as caught:
        spark.task(writer, rows("a"))
    assert str(caught.value) == "timed out after kafka.max.block.ms. Increase kafka.max.block.ms."


def test_start_name_identifies_spark_application_without_register(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Spark does not tell which start a batch belongs to, but each application has its own local directories."""
    names = []
    for folders in ("/tmp/blockmgr-1", "/tmp/blockmgr-1", "/tmp/blockmgr-2", None):
        if folders is None:
            monkeypatch.delenv("SPARK_LOCAL_DIRS")
        else:
            monkeypatch.setenv("SPARK_LOCAL_DIRS", folders)
        names.append(exactly_once.build_start_name(None))
        drivers = {exactly_once.build_driver_name(None) for _ in range(2)}
        assert len(drivers) == 2
        assert all(driver.startswith(build_batch_driver_name(names[-1], "")) for driver in drivers), (
            "they succeed each other"
        )
    assert names[0] == names[1]
    assert len({*names}) == 3

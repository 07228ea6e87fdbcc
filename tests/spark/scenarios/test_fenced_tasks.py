"""Tasks that are fenced while they write. The error reports a newer driver, and keeps the broker's error as a cause."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pyarrow as pa
import pytest

from spark_kafka_sink.errors import BrokerError, ExactlyOnceError, KafkaSinkError
from spark_kafka_sink.exactly_once.transaction_names import parse_task_id
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.protocol.message import ApiKey
from spark_kafka_sink.requests.transaction_admin import init_producer_id, list_transactional_ids
from spark_kafka_sink.requests.transaction_description import EMPTY, ONGOING
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import connect_client, read_values
from tests.spark.test_exactly_once_writers import Spark, micro_batch, open_count, rows
from tests.spark.test_exactly_once_writers import broker as broker
from tests.spark.test_exactly_once_writers import spark as spark


def overtaken(by: Callable[[], object]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a task, and call `by` between them."""
    yield from rows("a")
    by()
    yield from rows("b")


def iterate_causes(error: BaseException) -> Iterator[BaseException]:
    cause = error.__cause__
    while cause is not None:
        yield cause
        cause = cause.__cause__


def test_task_fenced_by_newer_driver_reports_it(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker's error, an epoch that is not the newest, does not explain the cause to a user."""
    newer = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    writer = spark.batch()
    with pytest.raises(ExactlyOnceError, match="has taken over the prefix") as error:
        spark.task(writer, overtaken(newer.batch), query_id="q", batch_id="0")
    assert "Its rows are not committed." in str(error.value)
    precommit_errors = [cause for cause in iterate_causes(error.value) if isinstance(cause, BrokerError)]
    assert precommit_errors, "what brokers said is kept"
    micro_batch(newer, 0, "c")
    assert (read_values(broker), open_count(broker)) == (["c"], 0)


def end_all(broker: EmbeddedBroker) -> None:
    """End all transactions, as brokers do when the transaction timeout expires."""
    with connect_client(broker) as client:
        ids = [name for name in list_transactional_ids(client, ONGOING, EMPTY) if parse_task_id(name) is not None]
        for name in ids:
            init_producer_id(client, name, 60_000)
        assert ids


def test_task_whose_transaction_was_ended_by_others_reports_broker_error(spark: Spark, broker: EmbeddedBroker) -> None:
    writer = spark.job()
    with pytest.raises(KafkaSinkError) as error:
        spark.task(writer, overtaken(lambda: end_all(broker)))
    assert not isinstance(error.value, ExactlyOnceError)
    assert "newer driver" not in str(error.value)


def test_fenced_task_reports_broker_error_if_cause_is_unknown(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    newer = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")
    error_code = error_codes.TRANSACTIONAL_ID_AUTHORIZATION_FAILED

    def taken_over() -> None:
        newer.batch()
        broker.control.when(api=ApiKey.DESCRIBE_TRANSACTIONS, times=None).fail(error_code)

    with pytest.raises(KafkaSinkError) as error:
        spark.task(spark.batch(), overtaken(taken_over), query_id="q", batch_id="0")
    assert not isinstance(error.value, ExactlyOnceError)
    assert "Could not find out whether there is a newer driver" in caplog.text


def test_task_with_invalid_rows_does_not_query_its_driver(
    spark: Spark, broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = Spark(broker, monkeypatch, checkpointLocation="/checkpoint")

    def failing() -> None:
        newer.batch()
        raise ValueError("of the job")

    with pytest.raises(ValueError, match="of the job"):
        spark.task(spark.batch(), overtaken(failing), query_id="q", batch_id="0")

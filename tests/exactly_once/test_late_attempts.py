"""Late task attempts, which leave no transaction open after their batch has ended."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import pytest

from spark_kafka_sink.client.config import ClientConfig
from spark_kafka_sink.errors import (
    BrokerError,
    ExactlyOnceError,
    KafkaSinkError,
    NetworkError,
    ProducerFencedError,
    TransactionAbortableError,
)
from spark_kafka_sink.exactly_once import late_attempts, operations
from spark_kafka_sink.exactly_once.batch_start import BatchStart
from spark_kafka_sink.exactly_once.late_attempts import (
    DescribeTransactions,
    check_and_renumber_attempt,
    raise_if_late,
    raise_if_late_attempt_was_fenced,
)
from spark_kafka_sink.exactly_once.transaction_names import build_task_id
from spark_kafka_sink.producer.record import ProducerRecord
from spark_kafka_sink.protocol import error_codes
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once.embedded_query import LOG, PREFIX, Query, connect_client, list_open_ids, read_values, rows
from tests.exactly_once.embedded_query import broker as broker


def describe_with(client: BlockingClient) -> DescribeTransactions:
    return partial(describe_transactions, client)


@contextmanager
def choose_id_and_check(query: Query, start: BatchStart) -> Iterator[None]:
    """Choose an id, run the block, which requests it, and check for a late attempt, as a task does."""
    with connect_client(query.broker) as client:
        assert check_and_renumber_attempt(
            describe_with(client), start, start.build_task_attempt(1, 1), 17
        ) == start.build_task_attempt(1, 1)
        yield
        raise_if_late(describe_with(client), start)


def commit(query: Query, start: BatchStart) -> None:
    query.commit(start, 0, query.write_tasks(start, 0))


def abort(query: Query, start: BatchStart) -> None:
    query.write_tasks(start, 0)
    query.abort(start, 0)


def stop(query: Query, start: BatchStart) -> None:
    query.write_tasks(start, 0)
    query.abort_unreported()


def take_over(query: Query, start: BatchStart) -> None:
    query.write_tasks(start, 0)
    query.with_new_driver().begin()


def abort_by_hand(query: Query, start: BatchStart) -> None:
    query.write_tasks(start, 0)
    aborted = operations.abort(query.options, PREFIX, LOG)
    assert len(aborted.aborted_ids) == 2, "an id without a transaction is fenced, but is none that was aborted"


@pytest.mark.parametrize("end", [commit, abort, stop, take_over, abort_by_hand])
def test_attempt_cannot_begin_after_its_batch_ended(
    broker: EmbeddedBroker, end: Callable[[Query, BatchStart], None]
) -> None:
    query = Query(broker)
    start = query.begin()
    with choose_id_and_check(query, start):
        late = query.attempt(start, 1, attempt=1)
    end(query, start)
    late.begin_transaction()
    future = late.send(ProducerRecord("t", "late", partition=1))
    with pytest.raises((ProducerFencedError, TransactionAbortableError)):
        late.prepare_transaction()
    assert future.exception() is not None
    assert list_open_ids(broker) == []
    assert read_values(broker) == (rows(0) if end is commit else [])
    late.close(timeout=0)


@pytest.mark.parametrize("end", [commit, abort, stop, take_over, abort_by_hand])
def test_attempt_reports_newer_driver_if_its_batch_ends_during_the_write(
    broker: EmbeddedBroker, end: Callable[[Query, BatchStart], None]
) -> None:
    query = Query(broker)
    start = query.begin()
    late = query.attempt(start, 1, attempt=1)
    late.begin_transaction()
    end(query, start)
    late.send(ProducerRecord("t", "late", partition=1))
    with pytest.raises((ProducerFencedError, TransactionAbortableError)) as fenced:
        late.prepare_transaction()
    with pytest.raises(ExactlyOnceError, match="a newer driver or `pykafka transactions` has taken over") as rejected:
        raise_if_late_attempt_was_fenced(fenced.value, late.config.client_config(), start, timeout_ms=10_000)
    assert rejected.value.__cause__ is fenced.value
    late.close(timeout=0)


def test_checks_for_late_attempt_only_after_fencing_error(
    broker: EmbeddedBroker, caplog: pytest.LogCaptureFixture
) -> None:
    """If brokers do not describe the driver id, the fencing error itself is raised."""
    query = Query(broker)
    start = query.begin()
    query.with_new_driver().begin()
    config = ClientConfig(tuple(broker.bootstrap_servers.split(",")))
    too_large = BrokerError("x", code=error_codes.MESSAGE_TOO_LARGE, name="")
    raise_if_late_attempt_was_fenced(too_large, config, start, timeout_ms=10_000)
    fenced = KafkaSinkError("of a task")
    fenced.__cause__ = ProducerFencedError("x", code=error_codes.PRODUCER_FENCED, name="")
    with patch.object(late_attempts, "describe_transactions", side_effect=NetworkError("no broker responds")):
        raise_if_late_attempt_was_fenced(fenced, config, start, timeout_ms=10_000)
    assert "Could not find out whether there is a newer driver (prefix p): no broker responds" in caplog.text
    with pytest.raises(ExactlyOnceError, match="a newer driver or `pykafka transactions` has taken over"):
        raise_if_late_attempt_was_fenced(fenced, config, start, timeout_ms=10_000)


@pytest.mark.parametrize("end", [commit, abort, take_over, abort_by_hand])
def test_attempt_writes_nothing_if_batch_ends_before_it_gets_its_id(
    broker: EmbeddedBroker, end: Callable[[Query, BatchStart], None]
) -> None:
    """The driver has listed the open transactions, and this attempt had none."""
    query = Query(broker)
    start = query.begin()

    def get_id_after_end() -> None:
        with choose_id_and_check(query, start):
            end(query, start)
            query.attempt(start, 1, attempt=1).close()

    with pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        get_id_after_end()
    assert list_open_ids(broker) == []


def test_id_without_transaction_is_not_listed_as_open(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.attempt(query.begin(), 1, attempt=1).close()
    (found,) = operations.list_prefixes(query.options, LOG, PREFIX)
    assert found.open_transactions == ()


# --- attempts that Spark numbers from 0 again


def test_attempt_takes_another_id_if_its_id_has_a_transaction(broker: EmbeddedBroker) -> None:
    """Spark runs a stage again and numbers its attempts from 0 again. The reports of the first run remain valid."""
    query = Query(broker)
    start = query.begin()
    reported = query.write_tasks(start, 0)
    with connect_client(broker) as client:
        name = check_and_renumber_attempt(
            describe_with(client), start, start.build_task_attempt(1, 0), spark_attempt_id=17
        )
    assert name.attempt != 0
    other = query.attempt(start, 1, attempt=name.attempt)
    other.begin_transaction()
    other.send(ProducerRecord("t", "of the second run", partition=1))
    query.commit(start, 0, reported)
    assert read_values(broker) == rows(0)
    assert list_open_ids(broker) == []
    other.close(timeout=0)


def test_id_taken_by_another_attempt_is_in_use(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    start = query.begin()
    first = query.attempt(start, 1, attempt=0)
    with connect_client(broker) as client:
        names = {
            check_and_renumber_attempt(
                describe_with(client), start, start.build_task_attempt(1, 0), spark_attempt_id=number
            )
            for number in (17, 18)
        }
    assert len({build_task_id(PREFIX, name) for name in names} | {start.build_task_id(1, 0)}) == 3
    first.close()


def test_next_batch_reuses_task_id(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    query.run(0)
    start = query.begin()
    with connect_client(broker) as client:
        assert check_and_renumber_attempt(
            describe_with(client), start, start.build_task_attempt(1, 0), spark_attempt_id=17
        ) == start.build_task_attempt(1, 0)


def test_id_without_transaction_is_fenced_once_and_free_again(broker: EmbeddedBroker) -> None:
    query = Query(broker)
    start = query.begin()
    query.attempt(start, 1, attempt=0).close()  # The task died.
    query.commit(start, 0, [query.write(start, 0, "0/0")])
    start = query.begin()
    with connect_client(broker) as client:
        fenced = describe_transactions(client, [start.build_task_id(1, 0)])
        assert check_and_renumber_attempt(
            describe_with(client), start, start.build_task_attempt(1, 0), spark_attempt_id=17
        ) == start.build_task_attempt(1, 0)
        query.commit(start, 1, [query.write(start, 0, "1/0")])
        assert describe_transactions(client, [start.build_task_id(1, 0)]) == fenced, "it is not fenced with each batch"


@pytest.mark.parametrize("end", [commit, abort, take_over, abort_by_hand])
def test_attempt_of_ended_batch_requests_no_id(
    broker: EmbeddedBroker, end: Callable[[Query, BatchStart], None]
) -> None:
    """A task of the next batch may have the id by then, and a request for it would abort that task's transaction."""
    query = Query(broker)
    start = query.begin()
    end(query, start)
    with connect_client(broker) as client, pytest.raises(ExactlyOnceError, match="This attempt came too late"):
        check_and_renumber_attempt(describe_with(client), start, start.build_task_attempt(1, 1), 17)


def test_concurrent_id_choice_of_two_attempts_fails_batch_and_rerun_succeeds(
    broker: EmbeddedBroker,
) -> None:
    query = Query(broker)
    start = query.begin()
    with connect_client(broker) as client:
        for task_attempt_id in (5, 9):
            assert check_and_renumber_attempt(
                describe_with(client), start, start.build_task_attempt(0, 0), task_attempt_id
            ) == start.build_task_attempt(0, 0)
    prepared = query.write_tasks(start, 0)
    second = query.attempt(start, 0, attempt=0)
    with pytest.raises(ExactlyOnceError, match=r"(?s)p-1-0-0: Empty, epoch .*- Spark ran a stage again"):
        query.commit(start, 0, prepared)
    assert query.abort(start, 0)
    second.close(timeout=0)
    query.run(0)
    assert read_values(broker) == rows(0)
    assert list_open_ids(broker) == []

"""Marks in a transaction timeout: the id was claimed or fenced by a driver."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from spark_kafka_sink.exactly_once.timeout_marks import (
    compute_driver_claimed_timeout_ms,
    compute_driver_fencing_timeout_ms,
    compute_task_fenced_timeout_ms,
    is_marked_claimed,
    is_marked_fenced,
    remove_timeout_mark,
)
from spark_kafka_sink.exactly_once.transaction_aborts import abort_transactions, can_write
from spark_kafka_sink.exactly_once.transaction_names import TaskAttempt, build_task_id
from spark_kafka_sink.requests.blocking import BlockingClient
from spark_kafka_sink.requests.transaction_admin import describe_transactions, init_producer_id
from spark_kafka_sink.testing import EmbeddedBroker
from tests.exactly_once import rules
from tests.exactly_once.embedded_query import PREFIX, Query, connect_client, open_query_transactions
from tests.exactly_once.embedded_query import broker as broker

GRANTED_MS = [1_000, 1_997, 5_000, 10_500, 60_000, 900_000, 86_400_000]


@pytest.mark.parametrize("granted_ms", GRANTED_MS)
def test_marks_are_distinct(granted_ms: int) -> None:
    assert is_marked_claimed(compute_driver_claimed_timeout_ms(granted_ms))
    assert not is_marked_fenced(compute_driver_claimed_timeout_ms(granted_ms))
    assert is_marked_fenced(compute_task_fenced_timeout_ms(granted_ms))
    assert not is_marked_claimed(compute_task_fenced_timeout_ms(granted_ms))


@pytest.mark.parametrize("mark", [compute_driver_claimed_timeout_ms, compute_task_fenced_timeout_ms])
@pytest.mark.parametrize("granted_ms", GRANTED_MS)
def test_marked_timeout_is_granted_and_long_enough_for_replication(mark: Callable[[int], int], granted_ms: int) -> None:
    """A coordinator waits for replication as long as the id's timeout. A timeout of 1 ms blocked an id for minutes."""
    assert 998 <= mark(granted_ms) <= granted_ms


def test_fencing_driver_keeps_the_mark_of_a_claim() -> None:
    assert is_marked_claimed(compute_driver_fencing_timeout_ms(is_claimed=True))
    assert not is_marked_claimed(compute_driver_fencing_timeout_ms(is_claimed=False))
    assert not is_marked_fenced(compute_driver_fencing_timeout_ms(is_claimed=False))


def test_id_has_mark_of_a_claim_if_the_timeout_of_its_tasks_is_unknown() -> None:
    assert compute_driver_claimed_timeout_ms(0) == compute_driver_fencing_timeout_ms(is_claimed=True)


@pytest.mark.parametrize("granted_ms", [1, 500])
def test_marks_fenced_id_with_timeout_below_a_second(granted_ms: int) -> None:
    """Otherwise each batch would fence it again, and block it each time."""
    assert compute_task_fenced_timeout_ms(granted_ms) == 998
    assert compute_driver_claimed_timeout_ms(granted_ms) == granted_ms


@pytest.mark.parametrize("timeout_ms", [1, 500, 998, 999, 59_998, 59_999, 60_000])
def test_user_timeout_has_no_mark(timeout_ms: int) -> None:
    unmarked = remove_timeout_mark(timeout_ms)
    assert timeout_ms - 2 <= unmarked <= timeout_ms
    assert not is_marked_claimed(unmarked)
    assert not is_marked_fenced(unmarked)


def test_ids_with_user_timeout_that_looks_marked_have_no_mark(broker: EmbeddedBroker) -> None:
    """Otherwise its attempts would look fenced, and a driver that dies during its start would look as if its log were
    lost.
    """
    query = Query(broker)
    query.timeout_ms = 59_998
    start = query.begin()
    attempt = query.attempt(start, 0, 0)
    with connect_client(broker) as client:
        (described,) = describe_transactions(client, [start.build_task_id(0, 0)]).values()
    assert can_write(described)
    attempt.close(timeout=0)


def test_fenced_id_in_version_1_has_time_for_replication(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    with connect_client(broker) as client:
        init_producer_id(client, "attempt", 60_000)
        abort_transactions(client, [*describe_transactions(client, ["attempt"]).values()])
        (described,) = describe_transactions(client, ["attempt"]).values()
    assert not can_write(described)
    assert described.timeout_ms == compute_task_fenced_timeout_ms(60_000)


def test_each_batch_fences_ids_of_version_1_again_without_the_mark(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the mark, each micro-batch of 300 tasks would begin with 300 requests."""
    monkeypatch.setattr(BlockingClient, "transaction_version", 1)
    with connect_client(broker) as client, open_query_transactions(broker) as next_start:
        for partition in range(3):
            init_producer_id(client, build_task_id(PREFIX, TaskAttempt(1, partition, 0)), 60_000)
        abort_transactions(client, next_start.list_task_transactions())
        assert next_start.list_task_transactions() == []
        rules.ignore_fenced_mark(monkeypatch)
        assert len(next_start.list_task_transactions()) == 3
